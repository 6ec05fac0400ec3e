/* cmd_hwm.c: outbox hwm, which shows how far streams have been written. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

static const struct option_def options[] = {
    {"consumer", "NAME", NULL,
     "only marks recorded by this consumer; if not given, the role of another consumer may have "
     "recorded higher ones",
     options_consumer_name, ARG(hwm.consumer)},
    OPTION_JSON,
    OPTION_END,
};

/* Marks being listed. The marks of a stream come one after another, the furthest first. */
struct marks {
    const struct cli *cli;
    struct buf b;
    bool any;
    char last[1024]; /* the stream of the mark that came last */
};

/* Adds a mark: for a single stream only the furthest, as a bare id for scripts; else a row for
 * each. */
static int visit_mark(void *ctx, const char *consumer, const struct hwm *m, int64_t at)
{
    struct marks *l = ctx;
    const struct args *a = &l->cli->args;
    const char *wanted = a->hwm.consumer;
    if (wanted && strcmp(wanted, consumer) != 0)
        return 0;

    char id[48];
    bool one_stream = a->n_pos > 0;
    bool furthest = !l->any || !str_eq(str_of(l->last), m->stream);
    snprintf(id, sizeof id, "%lld-%lld", (long long)m->hi, (long long)m->lo);
    snprintf(l->last, sizeof l->last, "%.*s", (int)m->stream.n, m->stream.p);
    l->any = true;

    if (a->json) {
        struct listed_mark row = {l->last, id, consumer, at};
        listing_object(&l->b, fields_mark, &row);
        buf_addc(&l->b, '\n');
    } else if (!one_stream) {
        output_addf(&l->b, "%-24s %-32s %s\n", id, l->last, consumer);
    } else if (furthest) {
        buf_addf(&l->b, "%s\n", id);
    }
    return 0;
}

static int hwm_run(struct cli *cli, struct error *err)
{
    struct marks l = {.cli = cli};
    const char *stream = cli->args.pos[0]; /* NULL: all */
    struct store *st;
    if (commands_store(cli, &st, err) != 0)
        return -1;

    buf_init(&l.b, (size_t)64 << 20);
    int r = st->ops->marks(st, stream, visit_mark, &l, err);
    if (r == 0 && stream && !l.any)
        r = err_set(
            err, ERR_NOTFOUND,
            "nothing has been written to a stream \"%s\" yet; `outbox hwm` lists the streams",
            stream);
    if (r == 0)
        r = output_flush(&l.b, err);
    buf_release(&l.b);
    store_close(st);
    return r;
}

const struct command cmd_hwm[] = {
    {"hwm", NULL, "[STREAM]", "show the high-water mark of a stream: the last id written to it",
     .options = options, .max = 1, .json = JSON_LINES(fields_mark), .run = hwm_run},
    {NULL},
};
