/* cmd_receive.c: outbox receive, which shows the messages that a sink has written, or checks them
 * against the store. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/json.h"
#include "base/text.h"
#include "cli/cli.h"
#include "event/message.h"
#include "extra/receive/receive.h"

struct receive_args {
    const char *from, *consumer;
    int64_t count, idle_ms; /* 0 if not given */
    bool check;
};

#define STEP_MS 200        /* maximum wait of one call to receive_next */
#define CHECK_IDLE_MS 2000 /* idle time of --check, unless --idle overrides it */
#define TEXT_MAX ((size_t)1 << 30)

/* For the signal handler. */
static int wake_fd = -1;

static const struct option_def options[] = {
    {"from", "beginning|end|POSITION", "beginning",
     "where to begin: beginning, end, or a position as the broker writes it (an id or an offset)",
     option_name, OWN(receive_args, from)},
    {"count", "N", NULL, "exit after this many messages", option_long, OWN(receive_args, count),
     .min = 1},
    {"idle", "DURATION", NULL,
     "exit after this long without a message; default: 2s with --check, otherwise never",
     option_span, OWN(receive_args, idle_ms), .min = 1},
    {"check", NULL, "no",
     "only print whether all events of the store have arrived, once, and in order per key",
     option_bool, OWN(receive_args, check)},
    {"consumer", "NAME", NULL,
     "with --check: expect the events that this consumer has delivered; default: all events",
     option_checked, OWN(receive_args, consumer), .check = store_name_check},
    OPTION_JSON,
    OPTION_END,
};

/* One run of the command. */
struct receiving {
    struct cli *cli;
    struct receiver *rc;
    struct receive_check *check; /* NULL: messages are printed */
    struct buf text;
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

/* Printing */

/* A message; it has no facts if it contains no event of ours. */
struct shown_message {
    struct received got;
    struct receive_facts facts;
    const char *format; /* NULL: it contains no event */
};

static void add_headers(struct buf *b, const void *row)
{
    const struct message *m = &((const struct shown_message *)row)->got.m;
    bool first = true;
    buf_addc(b, '{');
    for (size_t i = 0; i < m->n; i++) {
        bool sound = utf8_valid(m->headers[i].name, NULL) && utf8_valid(m->headers[i].value, NULL);
        if (!sound)
            continue;
        if (!first)
            buf_addc(b, ',');
        first = false;
        json_quote(b, m->headers[i].name);
        buf_addc(b, ':');
        json_quote(b, m->headers[i].value);
    }
    buf_addc(b, '}');
}

#define AT(member) .at = offsetof(struct shown_message, member)
static const struct listing_field fields_message[] = {
    {"place", LISTING_STR, AT(got.place),
     "where the message is: a stream, or a topic and its partition"},
    {"position", LISTING_STR, AT(got.position), "position there, as the broker writes it"},
    {"format", LISTING_TEXT, AT(format), "format of the message; null if it contains no event"},
    {"id", LISTING_STR, AT(facts.id), "id of the event, or null"},
    {"type", LISTING_STR, AT(facts.type), "type of the event, or null"},
    {"key", LISTING_STR, AT(facts.key), "key of the event, or null"},
    {"message_key", LISTING_STR, AT(got.m.key), "key of the message, or null"},
    {"content_type", LISTING_STR, AT(got.m.content_type), "content type of the message, or null"},
    {"headers", LISTING_OWN, .json = add_headers, .kind = "object",
     .help = "headers of the message"},
    {"value", LISTING_STR, AT(got.m.value), "content of the message; null if it is not UTF-8"},
    {NULL},
};
#undef AT

static void add_word(struct buf *b, struct str s)
{
    text_show(b, s.n > 0 ? s : STR("-"), "");
    buf_addc(b, ' ');
}

/* Writes place, position, type, key, id and value. */
static void message_text(struct buf *b, const void *row)
{
    const struct shown_message *m = row;
    add_word(b, m->got.place);
    add_word(b, m->got.position);
    add_word(b, m->facts.type);
    add_word(b, m->facts.key);
    add_word(b, m->facts.id);
    add_word(b, m->got.m.value);
    b->n--;
    buf_addc(b, '\n');
}

/* Receiving */

/* Checks or prints one message. */
static int take_message(struct receiving *r, const struct received *got, struct error *err)
{
    struct shown_message m = {.got = *got};
    struct error why;
    if (receive_identify(&got->m, &r->text, &m.facts, &why) == 0)
        m.format = message_formats[m.facts.format];
    else
        m.facts = (struct receive_facts){0};
    r->messages++;
    if (!r->check)
        return output_result(r->cli, fields_message, &m, message_text, err);

    if (!m.format)
        receive_check_strange(r->check);
    else if (receive_check_add(r->check, m.facts.id, got->place) != 0)
        return err_nomem(err);
    return 0;
}

/* Receives messages until enough have arrived, none arrives for the idle time, or a signal
 * arrives. */
static int receive_all(struct receiving *r, struct error *err)
{
    int64_t count = ((const struct receive_args *)cli_own(r->cli))->count;
    int64_t last = clock_mono(&clock_system);
    while (!receive_stop(r->rc, 0)) {
        struct received got;
        bool some;
        if (receive_next(r->rc, STEP_MS, &got, &some, err) != 0)
            return -1;
        if (some) {
            if (take_message(r, &got, err) != 0)
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

/* The verdict */

#define AT(member) .at = offsetof(struct receive_counts, member)
static const struct listing_field fields_verdict[] = {
    {"received", LISTING_INT, AT(received), "messages received"},
    {"events", LISTING_INT, AT(events), "different events in these messages"},
    {"repeats", LISTING_INT, AT(repeats), "messages with an event that was received before"},
    {"strange", LISTING_INT, AT(strange), "messages that contain no event"},
    {"expected", LISTING_INT, AT(expected), "events that should have been received"},
    {"lost", LISTING_INT, AT(lost), "expected events not received"},
    {"misordered", LISTING_INT, AT(misordered),
     "events received before an earlier event of the same key"},
    {"unknown", LISTING_INT, AT(unknown), "events that are not in the store"},
    {"first_lost", LISTING_CHARS, AT(lost_id), "id of the first lost event, or null"},
    {"first_misordered", LISTING_CHARS, AT(misordered_id),
     "id of the first event out of order, or null"},
    {NULL},
};
#undef AT

static void verdict_text(struct buf *b, const void *row)
{
    const struct receive_counts *n = row;
    buf_addf(b, "%lld messages with %lld different events; %lld expected\n", (long long)n->received,
             (long long)n->events, (long long)n->expected);
    buf_addf(b, "lost: %lld%s%s\n", (long long)n->lost, n->lost ? ", the first " : "", n->lost_id);
    buf_addf(b, "out of order: %lld%s%s\n", (long long)n->misordered,
             n->misordered ? ", the first " : "", n->misordered_id);
    buf_addf(b, "repeats: %lld\n", (long long)n->repeats);
    if (n->unknown)
        buf_addf(b, "not in the store: %lld (trimmed, or from another store)\n",
                 (long long)n->unknown);
    if (n->strange)
        buf_addf(b, "not an event: %lld\n", (long long)n->strange);
}

/* Compares the messages with the store and prints the result. Repeats are not errors: delivery is
 * at least once. */
static int print_verdict(struct receiving *r, struct error *err)
{
    const struct receive_args *a = cli_own(r->cli);
    if (commands_open(r->cli, (struct store_options){.any_version = true}, err) != 0)
        return -1;
    if (receive_check_store(r->check, r->cli->st, a->consumer, err) != 0)
        return -1;

    const struct receive_counts *n = receive_check_counts(r->check);
    if (output_result(r->cli, fields_verdict, n, verdict_text, err) != 0)
        return -1;
    if (n->lost == 0 && n->misordered == 0)
        return 0;
    err->code = CLI_FOUND;
    return -1;
}

/* Opens source and store as needed; the caller closes them either way. */
static int open_all(struct receiving *r, struct error *err)
{
    const struct receive_args *a = cli_own(r->cli);
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

static int receive_run(struct cli *cli, struct error *err)
{
    const struct receive_args *a = cli_own(cli);
    struct receiving r = {.cli = cli, .idle_ms = a->idle_ms};
    if (a->consumer && !a->check)
        return commands_usage(err, "--consumer requires --check");
    if (a->check && r.idle_ms == 0)
        r.idle_ms = CHECK_IDLE_MS;
    if (catch_signals(err) != 0)
        return -1;

    buf_init(&r.text, TEXT_MAX);
    int rc = open_all(&r, err);
    if (rc == 0)
        rc = receive_all(&r, err);
    receive_close(r.rc);
    if (rc == 0 && r.check)
        rc = print_verdict(&r, err);
    receive_check_free(r.check);
    buf_release(&r.text);
    return rc;
}

static const struct command_json receive_json[] = {
    {fields_message, "an object per line", NULL},
    {fields_verdict, "an object", "with --check"},
    {NULL},
};

const struct command cmd_receive[] = {
    {"receive", NULL, "SINK-URL",
     "show what a sink has written to a broker, or check it against the store", .options = options,
     .min = 1, .max = 1, .json = receive_json, .run = receive_run},
    {NULL},
};
