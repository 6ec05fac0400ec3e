/* cmd_receive.c: outbox receive, which reads what a sink has written, to show it or to check it
 * against the store. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/json.h"
#include "base/text.h"
#include "cli/cli.h"
#include "event/message_read.h"
#include "extra/receive/receive_check.h"
#include "receive/receive.h"

#define STEP_MS 200        /* how long one call of next may wait */
#define CHECK_IDLE_MS 2000 /* of --check, unless --idle says otherwise */
#define TEXT_MAX ((size_t)1 << 30)

/* What the signal handler can reach. */
static int wake_fd = -1;

static const struct option_def options[] = {
    {"from", "beginning|end|POSITION", "beginning",
     "where to begin; a position as the broker writes it: an id, an offset", option_name,
     ARG(receive.from)},
    {"count", "N", NULL, "end after this many messages", option_long, ARG(receive.count), .min = 1},
    {"idle", "DURATION", NULL,
     "end once nothing has come for this long; if not given, 2s with --check, else never",
     option_span, ARG(receive.idle_ms), .min = 1},
    {"check", NULL, "no",
     "print nothing but whether all events of the store have come, once, and in order per key",
     option_bool, ARG(receive.check)},
    {"consumer", "NAME", NULL,
     "with --check: expect what this consumer has delivered; if not given, all events",
     options_consumer_name, ARG(receive.consumer)},
    OPTION_JSON,
    OPTION_END,
};

/* One call. */
struct receiving {
    struct cli *cli;
    struct receiver *rc;
    struct receive_check *check; /* NULL: messages are printed */
    struct buf out, text;
    int64_t messages;
    int64_t idle_ms; /* 0: never */
};

static void on_signal(int number)
{
    uint64_t one = 1;
    int saved = errno;
    (void)number;
    if (write(wake_fd, &one, sizeof one) < 0)
        _exit(128 + number);
    errno = saved;
}

static int catch_signals(struct error *err)
{
    struct sigaction stop = {.sa_handler = on_signal, .sa_flags = SA_RESTART | (int)SA_RESETHAND},
                     ignore = {.sa_handler = SIG_IGN};
    wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_fd < 0)
        return err_errno(err, ERR_UNAVAILABLE, errno, "could not create an eventfd");
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGPIPE, &ignore, NULL);
    return 0;
}

static bool told_to_stop(void)
{
    struct pollfd fd = {.fd = wake_fd, .events = POLLIN};
    return poll(&fd, 1, 0) == 1;
}

/* ---- printing ---- */

/* add_text adds a member from a stranger: bytes that are not UTF-8 would make the whole no
 * JSON. */
static void add_text(struct buf *b, const char *name, struct str s)
{
    if (s.p && !utf8_valid(s, NULL))
        s = (struct str){0};
    output_str(b, name, s);
}

static void add_headers(struct buf *b, const struct message *m)
{
    output_member(b, "headers");
    buf_addc(b, '{');
    for (size_t i = 0; i < m->n; i++) {
        bool sound = utf8_valid(m->headers[i].name, NULL) && utf8_valid(m->headers[i].value, NULL);
        if (!sound)
            continue;
        bool first = b->p && b->n > 0 && b->p[b->n - 1] == '{';
        if (!first)
            buf_addc(b, ',');
        json_quote(b, m->headers[i].name);
        buf_addc(b, ':');
        json_quote(b, m->headers[i].value);
    }
    buf_addc(b, '}');
}

/* print_json writes one object a line. facts is NULL for a message that holds no event of ours. */
static void print_json(struct buf *b, const struct received *got, const struct message_facts *facts)
{
    static const struct message_facts none;
    const struct message_facts *f = facts ? facts : &none;
    buf_addc(b, '{');
    add_text(b, "place", got->place);
    add_text(b, "position", got->position);
    output_string(b, "format", facts ? message_formats[f->format] : NULL);
    add_text(b, "id", f->id);
    add_text(b, "type", f->type);
    add_text(b, "key", f->key);
    add_text(b, "message_key", got->m.key);
    add_text(b, "content_type", got->m.content_type);
    add_headers(b, &got->m);
    add_text(b, "value", got->m.value);
    buf_adds(b, "}\n");
}

static void add_word(struct buf *b, struct str s)
{
    text_show(b, s.n > 0 ? s : STR("-"), "");
    buf_addc(b, ' ');
}

/* print_line writes place, position, type, key, id and value. */
static void print_line(struct buf *b, const struct received *got, const struct message_facts *facts)
{
    static const struct message_facts none;
    const struct message_facts *f = facts ? facts : &none;
    add_word(b, got->place);
    add_word(b, got->position);
    add_word(b, f->type);
    add_word(b, f->key);
    add_word(b, f->id);
    add_word(b, got->m.value);
    b->n--;
    buf_addc(b, '\n');
}

/* ---- receiving ---- */

/* take notes or prints one message. */
static int take(struct receiving *r, const struct received *got, struct error *err)
{
    struct message_facts facts;
    struct error why;
    bool ours = message_read(&got->m, &r->text, &facts, &why) == 0;
    r->messages++;
    if (r->check && !ours) {
        receive_check_strange(r->check);
        return 0;
    }
    if (r->check)
        return receive_check_add(r->check, facts.id, got->place) == 0 ? 0 : err_nomem(err);

    if (r->cli->args.json)
        print_json(&r->out, got, ours ? &facts : NULL);
    else
        print_line(&r->out, got, ours ? &facts : NULL);
    return output_flush(&r->out, err);
}

/* receive_all takes messages until there are enough, none came for long enough, or it is told to
 * stop. */
static int receive_all(struct receiving *r, struct error *err)
{
    int64_t count = r->cli->args.receive.count;
    int64_t last = clock_mono(&clock_system);
    while (!told_to_stop()) {
        struct received got;
        bool some;
        if (receive_next(r->rc, STEP_MS, &got, &some, err) != 0)
            return -1;
        if (some) {
            if (take(r, &got, err) != 0)
                return -1;
            last = clock_mono(&clock_system);
        }
        bool enough = count > 0 && r->messages >= count;
        bool idle = r->idle_ms > 0 && clock_mono(&clock_system) - last >= r->idle_ms * MS_NS;
        if (enough || idle)
            return 0;
    }
    return 0;
}

/* ---- the verdict ---- */

static void verdict_json(struct buf *b, const struct receive_counts *n)
{
    buf_addc(b, '{');
    output_number(b, "received", n->received);
    output_number(b, "events", n->events);
    output_number(b, "repeats", n->repeats);
    output_number(b, "strange", n->strange);
    output_number(b, "expected", n->expected);
    output_number(b, "lost", n->lost);
    output_number(b, "misordered", n->misordered);
    output_number(b, "unknown", n->unknown);
    output_string(b, "first_lost", n->lost_id[0] ? n->lost_id : NULL);
    output_string(b, "first_misordered", n->misordered_id[0] ? n->misordered_id : NULL);
    buf_adds(b, "}\n");
}

static void verdict_text(struct buf *b, const struct receive_counts *n)
{
    buf_addf(b, "%lld messages with %lld different events; %lld expected\n", (long long)n->received,
             (long long)n->events, (long long)n->expected);
    buf_addf(b, "lost: %lld%s%s\n", (long long)n->lost, n->lost ? ", the first " : "", n->lost_id);
    buf_addf(b, "out of order: %lld%s%s\n", (long long)n->misordered,
             n->misordered ? ", the first " : "", n->misordered_id);
    buf_addf(b, "repeats: %lld\n", (long long)n->repeats);
    if (n->unknown)
        buf_addf(b, "not in the store: %lld (trimmed, or of another store)\n",
                 (long long)n->unknown);
    if (n->strange)
        buf_addf(b, "not an event: %lld\n", (long long)n->strange);
}

/* judge compares with the store and prints what came of it. Repeats are no fault: delivery is at
 * least once. */
static int judge(struct receiving *r, struct error *err)
{
    struct store *st;
    if (commands_look(r->cli, &st, err) != 0)
        return -1;
    int rc = receive_check_store(r->check, st, r->cli->args.receive.consumer, err);
    store_close(st);
    if (rc != 0)
        return -1;

    const struct receive_counts *n = receive_check_counts(r->check);
    if (r->cli->args.json)
        verdict_json(&r->out, n);
    else
        verdict_text(&r->out, n);
    if (output_flush(&r->out, err) != 0)
        return -1;
    if (n->lost == 0 && n->misordered == 0)
        return 0;
    err->code = CLI_FOUND;
    return -1;
}

/* open_all opens what is needed; the caller closes it either way. */
static int open_all(struct receiving *r, struct error *err)
{
    const struct receive_args *a = &r->cli->args.receive;
    struct receiver_config cfg = {.url = r->cli->args.pos[0], .from = a->from, .wake = wake_fd};
    const struct receiver_ops *ops;
    if (receive_find(cfg.url, &ops, err) != 0)
        return -1;
    if (a->check && commands_need_store(r->cli, err) != 0)
        return -1;
    if (a->check)
        r->check = receive_check_new();
    if (a->check && !r->check)
        return err_nomem(err);
    return receive_open(&cfg, &r->rc, err);
}

static int run(struct cli *cli, struct error *err)
{
    const struct receive_args *a = &cli->args.receive;
    struct receiving r = {.cli = cli, .idle_ms = a->idle_ms};
    if (a->consumer && !a->check)
        return options_usage(err, "--consumer goes with --check");
    if (a->check && r.idle_ms == 0)
        r.idle_ms = CHECK_IDLE_MS;
    if (catch_signals(err) != 0)
        return -1;

    buf_init(&r.out, OUTPUT_MAX);
    buf_init(&r.text, TEXT_MAX);
    int rc = open_all(&r, err);
    if (rc == 0)
        rc = receive_all(&r, err);
    receive_close(r.rc);
    if (rc == 0 && r.check)
        rc = judge(&r, err);
    receive_check_free(r.check);
    buf_release(&r.out);
    buf_release(&r.text);
    return rc;
}

const struct command cmd_receive[] = {
    {.name = "receive",
     .args = "SINK-URL",
     .help = "show what a sink has written to a broker, or check it against the store",
     .options = options,
     .min = 1,
     .max = 1,
     .run = run},
    {.name = NULL},
};
