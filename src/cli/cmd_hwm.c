#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "cli/cli.h"

static const struct option_def options[] = {
    {"consumer", "NAME", NULL,
     "only what this consumer has recorded; without it, a role of another consumer may have "
     "recorded more",
     options_consumer_name, ARG(hwm.consumer)},
    OPTION_JSON,
    OPTION_END,
};

struct listing {
    const struct cli *cli;
    struct buf b;
    bool any;
    struct str last; /* stream: the furthest mark of each comes first */
    char last_text[1024];
};

static int show(void *ctx, const char *consumer, const struct hwm *m, int64_t at)
{
    struct listing *l = ctx;
    const char *wanted = l->cli->args.hwm.consumer;
    char id[48];
    if (wanted && strcmp(wanted, consumer) != 0)
        return 0;
    snprintf(id, sizeof id, "%lld-%lld", (long long)m->hi, (long long)m->lo);
    bool one = l->cli->args.n_pos > 0, first = !l->any || !str_eq(l->last, m->stream);
    l->any = true;
    snprintf(l->last_text, sizeof l->last_text, "%.*s", (int)m->stream.n, m->stream.p);
    l->last = str_of(l->last_text);
    if (l->cli->args.json) {
        buf_addc(&l->b, '{');
        output_string(&l->b, "stream", l->last_text);
        output_string(&l->b, "id", id);
        output_string(&l->b, "consumer", consumer);
        output_stamp(&l->b, "at", at);
        buf_adds(&l->b, "}\n");
    } else if (one && first) {
        buf_addf(&l->b, "%s\n", id);
    } else if (!one) {
        /* a worker names the stream: it could be anything */
        char stream[sizeof l->last_text], by[80];
        text_clean(stream, sizeof stream, m->stream.p, m->stream.n);
        text_clean(by, sizeof by, consumer, strlen(consumer));
        buf_addf(&l->b, "%-24s %-32s %s\n", id, stream, by);
    }
    return 0;
}

static int run(struct cli *cli, struct error *err)
{
    struct listing l = {.cli = cli};
    const char *stream = cli->args.n_pos ? cli->args.pos[0] : NULL;
    struct store *st;
    if (commands_store(cli, &st, err) != 0)
        return -1;
    buf_init(&l.b, (size_t)64 << 20);
    int r = st->ops->marks(st, stream, show, &l, err);
    if (r == 0 && stream && !l.any)
        r = err_set(
            err, ERR_NOTFOUND,
            "nothing has been written to a stream \"%s\" yet; `outbox hwm` lists those there are",
            stream);
    if (r == 0)
        r = output_flush(&l.b, err);
    buf_release(&l.b);
    store_close(st);
    return r;
}

const struct command cmd_hwm[] = {
    {.name = "hwm",
     .args = "[STREAM]",
     .help = "show a stream's high-water mark: the last id written to it",
     .options = options,
     .max = 1,
     .run = run},
    {.name = NULL},
};
