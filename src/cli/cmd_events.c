#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "cli/cli.h"

#define STATES_MAX 4096 /* bytes of the STATE column */

/* The five inspections, which are commands, too: as other descriptions of an outbox call the
 * states. Unprocessed is what a worker would get: pending, or failed and due again. */
static const struct {
    const char *name;
    enum delivery_state state;
    bool unprocessed;
} inspections[] = {
    {"unprocessed", STATE_PENDING, true},  {"processing", STATE_INFLIGHT, false},
    {"failed", STATE_FAILED, false},       {"abandoned", STATE_EXPIRED, false},
    {"published", STATE_DELIVERED, false},
};
#define N_INSPECTIONS ((int)(sizeof inspections / sizeof *inspections))

static bool inspection(struct events_args *a, const char *name)
{
    for (int i = 0; i < N_INSPECTIONS; i++) {
        if (strcmp(inspections[i].name, name) != 0)
            continue;
        a->unprocessed = inspections[i].unprocessed;
        a->state = a->unprocessed ? 0 : (int)inspections[i].state + 1;
        return true;
    }
    return false;
}

static int set_state(void *field, const char *value, const struct option_def *o, struct error *err)
{
    struct events_args *a = field;
    const char *names[STATE_COUNT + N_INSPECTIONS + 1];
    int i, n = 0;
    (void)o;
    if (inspection(a, value))
        return 0;
    for (i = 0; i < STATE_COUNT; i++)
        names[n++] = delivery_state_names[i];
    for (i = 0; i < N_INSPECTIONS; i++)
        if (strcmp(inspections[i].name, delivery_state_names[inspections[i].state]) != 0)
            names[n++] = inspections[i].name;
    names[n] = NULL;
    if (option_index(value, names, &i, err) != 0)
        return -1;
    a->state = i + 1; /* a state: the names of inspections were taken above */
    a->unprocessed = false;
    return 0;
}

/* clang-format off */
#define OPTIONS_OF_A_LISTING \
    {"type", "PATTERN", NULL, "only event types that match; * matches anything", option_text, ARG(events.type)}, \
    {"key", "AGGTYPE/AGGID", NULL, "only events with this key", options_key, ARG(events.key)}, \
    {"consumer", "NAME", NULL, "only the states for this consumer", options_consumer_name, ARG(events.consumer)}, \
    {"after", "SEQ", "0", "only events after this sequence number", option_long, ARG(events.after)}, \
    {"newest", NULL, "no", "newest first", option_bool, ARG(events.newest), .env = true}, \
    {"limit", "N", "100", "maximum number to list", option_long, ARG(events.limit), .min = 1, .max = INT32_MAX, .env = true}, \
    OPTION_JSON, \
    OPTION_END
/* clang-format on */

static const struct option_def list_options[] = {
    {"state", "STATE", NULL,
     "only events in this state for some consumer: pending, in-flight, delivered, failed, expired, "
     "skipped, dropped, "
     "before-start; or unprocessed, processing, abandoned, published",
     set_state, ARG(events)},
    OPTIONS_OF_A_LISTING,
};

static const struct option_def inspect_options[] = {OPTIONS_OF_A_LISTING};

static const struct option_def show_options[] = {OPTION_JSON, OPTION_END};

/* A listing on its way out. (1) failed: err has been filled in by visit. */
struct listing {
    struct libscols_table *tb; /* NULL: JSON */
    struct buf b;
    int64_t seen, limit;
    int64_t last; /* seq */
    bool more;    /* there was one beyond the limit */
    bool failed;
    struct error *err;
};

static bool all_alike(const struct delivery_info *d, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        if (d[i].state != d[0].state)
            return false;
    }
    return true;
}

/* states_text is one word if all consumers agree, else consumer:state of each that wants the
 * event. */
static void states_text(struct buf *b, const struct delivery_info *d, size_t n)
{
    if (n && all_alike(d, n)) {
        buf_adds(b, delivery_state_names[d[0].state]);
        return;
    }
    for (size_t i = 0, shown = 0; i < n; i++) {
        if (d[i].state == STATE_SKIPPED)
            continue;
        buf_addf(b, "%s%s:%s", shown++ ? " " : "", d[i].consumer, delivery_state_names[d[i].state]);
    }
}

static const char *or_dash(struct buf *b)
{
    const char *s = b->n ? buf_cstr(b) : NULL;
    return s ? s : "-";
}

static int add_row(struct listing *l, const struct event *ev, const struct delivery_info *d,
                   size_t n)
{
    char seq[OUTPUT_INT], created[CLOCK_RFC3339_SIZE];
    struct buf key, states;
    buf_init(&key, OUTPUT_MAX);
    buf_init(&states, STATES_MAX);
    output_key(&key, ev);
    states_text(&states, d, n);
    const char *cells[] = {output_int(ev->seq, seq),
                           ev->id.p,
                           ev->type.p,
                           or_dash(&key),
                           or_dash(&states),
                           output_time(ev->created_at, created)};
    int r = key.failed || states.failed ? err_nomem(l->err) : output_row(l->tb, cells, l->err);
    buf_release(&key);
    buf_release(&states);
    return r;
}

static void delivery_json(struct buf *b, const struct delivery_info *d)
{
    buf_addc(b, '{');
    output_string(b, "consumer", d->consumer);
    output_string(b, "state", delivery_state_names[d->state]);
    output_number(b, "attempts", d->attempts);
    output_stamp(b, "due_at", d->due_at);
    output_string(b, "error", d->error);
    output_stamp(b, "delivered_at", d->delivered_at);
    output_string(b, "receipt", d->receipt);
    buf_addc(b, '}');
}

static void event_json(struct buf *b, const struct event *ev, const struct delivery_info *d,
                       size_t n)
{
    buf_addc(b, '{');
    output_event(b, ev);
    output_member(b, "deliveries");
    buf_addc(b, '[');
    for (size_t i = 0; i < n; i++) {
        if (i)
            buf_addc(b, ',');
        delivery_json(b, &d[i]);
    }
    buf_adds(b, "]}");
}

static int visit(void *ctx, const struct event *ev, const struct delivery_info *d, size_t n)
{
    struct listing *l = ctx;
    if (l->seen == l->limit) {
        l->more = true;
        return 1;
    }
    l->last = ev->seq;
    if (l->tb) {
        l->failed = add_row(l, ev, d, n) != 0;
    } else {
        buf_adds(&l->b, l->seen ? ",\n" : "\n");
        event_json(&l->b, ev, d, n);
        l->failed = output_flush(&l->b, l->err) != 0;
    }
    l->seen++;
    return l->failed;
}

static int print_list(struct store *st, const struct event_query *q, struct listing *l,
                      struct error *err)
{
    if (!l->tb)
        buf_addc(&l->b, '[');
    int r = st->ops->events(st, q, visit, l, err);
    if (r != 0 || l->failed)
        return -1;
    if (!l->tb) {
        buf_adds(&l->b, l->seen ? "\n]\n" : "]\n");
        return output_flush(&l->b, err);
    }
    struct libscols_table *tb = l->tb;
    l->tb = NULL;
    if (output_print(tb, err) != 0 || output_end(err) != 0)
        return -1;
    if (l->seen == 0)
        fputs("no events match\n", stderr);
    if (l->more && !q->newest_first) {
        fprintf(stderr, "there are more: --after %lld, or a larger --limit\n", (long long)l->last);
    }
    return 0;
}

static int list(struct cli *cli, struct error *err)
{
    static const struct output_column columns[] = {
        {"SEQ", true, false}, {"ID", false, false},   {"TYPE", false, true},
        {"KEY", false, true}, {"STATE", false, true}, {"CREATED", false, false},
        {NULL, false, false},
    };
    const struct events_args *a = &cli->args.events;
    struct listing l = {.limit = a->limit, .err = err};
    struct event_query q = {
        .type = a->type,
        .aggregate_type = a->key.aggregate_type,
        .aggregate_id = a->key.aggregate_id,
        .consumer = a->consumer,
        .state = a->state,
        .unprocessed = a->unprocessed,
        .after = a->after,
        .limit = (size_t)l.limit + 1,
        .newest_first = a->newest,
    };
    struct store *st;
    if (commands_store(cli, &st, err) != 0)
        return -1;
    buf_init(&l.b, OUTPUT_MAX);
    int r = cli->args.json ? 0
                           : output_table(columns, true, output_color(&cli->settings), &l.tb, err);
    if (r == 0)
        r = print_list(st, &q, &l, err);
    output_discard(l.tb);
    buf_release(&l.b);
    store_close(st);
    return r;
}

static int list_unprocessed(struct cli *cli, struct error *err)
{
    inspection(&cli->args.events, "unprocessed");
    return list(cli, err);
}

static int list_processing(struct cli *cli, struct error *err)
{
    inspection(&cli->args.events, "processing");
    return list(cli, err);
}

static int list_failed(struct cli *cli, struct error *err)
{
    inspection(&cli->args.events, "failed");
    return list(cli, err);
}

static int list_abandoned(struct cli *cli, struct error *err)
{
    inspection(&cli->args.events, "abandoned");
    return list(cli, err);
}

static int list_published(struct cli *cli, struct error *err)
{
    inspection(&cli->args.events, "published");
    return list(cli, err);
}

/* ---- show ---- */

static bool any_receipt(const struct delivery_info *d, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (d[i].delivered_at)
            return true;
    return false;
}

static int add_delivery(struct libscols_table *tb, const struct delivery_info *d, bool receipts,
                        struct error *err)
{
    char attempts[OUTPUT_INT], due[CLOCK_RFC3339_SIZE], delivered[CLOCK_RFC3339_SIZE];
    const char *cells[] = {d->consumer,
                           delivery_state_names[d->state],
                           output_int(d->attempts, attempts),
                           output_time(d->due_at, due),
                           d->error,
                           NULL,
                           NULL};
    if (receipts) {
        cells[4] = output_time(d->delivered_at, delivered);
        cells[5] = d->receipt;
        cells[6] = d->error;
    }
    return output_row(tb, cells, err);
}

/* print_deliveries shows receipts where there are some. */
static int print_deliveries(const struct delivery_info *d, size_t n, struct error *err)
{
    static const struct output_column plain[] = {
        {"CONSUMER", false, false}, {"STATE", false, false}, {"ATTEMPTS", true, false},
        {"DUE", false, false},      {"ERROR", false, true},  {NULL, false, false},
    };
    static const struct output_column with_receipts[] = {
        {"CONSUMER", false, false}, {"STATE", false, false},     {"ATTEMPTS", true, false},
        {"DUE", false, false},      {"DELIVERED", false, false}, {"RECEIPT", false, false},
        {"ERROR", false, true},     {NULL, false, false},
    };
    struct libscols_table *tb;
    bool receipts = any_receipt(d, n);
    if (n == 0)
        return 0;
    if (output_table(receipts ? with_receipts : plain, true, false, &tb, err) != 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        if (add_delivery(tb, &d[i], receipts, err) != 0) {
            output_discard(tb);
            return -1;
        }
    }
    putchar('\n');
    return output_print(tb, err);
}

static int print_event(const struct event *ev, const struct delivery_info *d, size_t n,
                       struct error *err)
{
    struct libscols_table *tb;
    if (output_pairs(&tb, err) != 0)
        return -1;
    if (output_event_pairs(tb, ev, err) != 0) {
        output_discard(tb);
        return -1;
    }
    return output_print(tb, err) == 0 ? print_deliveries(d, n, err) : -1;
}

static int visit_one(void *ctx, const struct event *ev, const struct delivery_info *d, size_t n)
{
    struct listing *l = ctx;
    l->seen++;
    if (l->limit) { /* as text */
        l->failed = print_event(ev, d, n, l->err) != 0;
        return 1;
    }
    event_json(&l->b, ev, d, n);
    buf_addc(&l->b, '\n');
    l->failed = output_flush(&l->b, l->err) != 0;
    return 1;
}

static int show(struct cli *cli, struct error *err)
{
    const char *id = cli->args.pos[0];
    struct event_query q = {.id = id, .limit = 1};
    struct listing l = {.limit = !cli->args.json, .err = err};
    struct store *st;
    if (commands_store(cli, &st, err) != 0)
        return -1;
    buf_init(&l.b, OUTPUT_MAX);
    int r = st->ops->events(st, &q, visit_one, &l, err);
    buf_release(&l.b);
    store_close(st);
    if (r != 0 || l.failed)
        return -1;
    if (l.seen)
        return 0;
    return err_set(
        err, ERR_NOTFOUND,
        "there is no event \"%s\"; it takes an id or a sequence number: outbox events list", id);
}

/* ---- retry ---- */

/* What `events retry` has found about one event. */
struct again {
    struct store *st;
    const char *consumer; /* of this one only; NULL: of all */
    bool known;
    int64_t waited, buried; /* with how many consumers it is tried again */
};

static int retry_waiting(struct again *g, const char *consumer, int64_t seq, struct error *err)
{
    bool waited = false;
    if (g->st->ops->retry_now(g->st, consumer, seq, &waited, err) != 0)
        return -1;
    if (waited)
        g->waited++;
    return 0;
}

/* What failed is collected first: the listing has the connection until it ends. */
struct waiting {
    struct arena arena;
    int64_t seq;
    const char **consumer;
    size_t n;
    bool known, nomem;
};

static void add_waiting(struct waiting *w, const char *consumer)
{
    const char **list = arena_alloc(&w->arena, (w->n + 1) * sizeof *list);
    const char *name = arena_bytes(&w->arena, consumer, strlen(consumer));
    w->nomem = w->nomem || !list || !name;
    if (w->nomem)
        return;
    if (w->n)
        memcpy(list, w->consumer, w->n * sizeof *list);
    list[w->n++] = name;
    w->consumer = list;
}

static int collect_waiting(void *ctx, const struct event *ev, const struct delivery_info *d,
                           size_t n)
{
    struct waiting *w = ctx;
    w->known = true;
    w->seq = ev->seq;
    for (size_t i = 0; i < n; i++)
        if (d[i].state == STATE_FAILED)
            add_waiting(w, d[i].consumer);
    return 1;
}

/* A dead letter that was sent back is tried again, even if its event was trimmed meanwhile: the
 * letter has it whole. */
static int collect_sent_back(void *ctx, const struct dead_letter *d)
{
    struct waiting *w = ctx;
    w->known = true;
    w->seq = d->ev.seq;
    if (d->retrying)
        add_waiting(w, d->consumer);
    return w->nomem;
}

static int retry_event(struct again *g, const char *id, struct error *err)
{
    struct waiting w = {0};
    struct event_query q = {.id = id, .consumer = g->consumer, .limit = 1};
    struct dead_query dead = {.id = id, .consumer = g->consumer};
    arena_init(&w.arena, 0);
    int r = g->st->ops->events(g->st, &q, collect_waiting, &w, err);
    if (r == 0 && !w.known)
        r = g->st->ops->dead(g->st, &dead, collect_sent_back, &w, err);
    if (r == 0 && w.nomem)
        r = err_nomem(err);
    for (size_t i = 0; r == 0 && i < w.n; i++)
        r = retry_waiting(g, w.consumer[i], w.seq, err);
    if (r == 0)
        r = g->st->ops->dead_retry(g->st, &dead, &g->buried, err);
    g->known = w.known || g->buried > 0;
    arena_release(&w.arena);
    return r;
}

static int not_retried(const struct again *g, const char *id, struct error *err)
{
    if (!g->known)
        return err_set(
            err, ERR_NOTFOUND,
            "there is no event \"%s\"; it takes an id or a sequence number: outbox events failed",
            id);
    return err_set(err, ERR_NOTFOUND,
                   "event \"%s\" waits for no attempt%s%s, and is no dead letter; what it is "
                   "instead: outbox events show %s",
                   id, g->consumer ? " of consumer " : "", g->consumer ? g->consumer : "", id);
}

static void report_retry(struct buf *b, const struct args *a, const char *id, const struct again *g,
                         bool first)
{
    if (!a->json) {
        int64_t n = g->waited + g->buried;
        buf_addf(b, "%s: tried again at once for %lld consumer%s", id, (long long)n,
                 n == 1 ? "" : "s");
        if (g->buried)
            buf_addf(b, " (%lld had buried it)", (long long)g->buried);
        buf_addc(b, '\n');
        return;
    }
    buf_adds(b, first ? "\n{" : ",\n{");
    output_string(b, "event", id);
    output_number(b, "waited", g->waited);
    output_number(b, "dead", g->buried);
    buf_addc(b, '}');
}

/* Every event is tried, and what was done is told, also if one of them cannot be; the first of
 * those is the error. */
static int retry(struct cli *cli, struct error *err)
{
    const struct args *a = &cli->args;
    struct store *st;
    struct buf b;
    int r = 0;
    bool first = true;
    if (commands_store(cli, &st, err) != 0)
        return -1;
    buf_init(&b, OUTPUT_MAX);
    if (a->json)
        buf_addc(&b, '[');
    for (int i = 0; i < a->n_pos; i++) {
        struct error why;
        struct again g = {.st = st, .consumer = a->events.consumer};
        bool done = retry_event(&g, a->pos[i], &why) == 0;
        if (done && g.waited + g.buried > 0) {
            report_retry(&b, a, a->pos[i], &g, first);
            first = false;
            continue;
        }
        if (done)
            not_retried(&g, a->pos[i], &why);
        if (r == 0)
            *err = why;
        r = -1;
        if (!done)
            break;
    }
    if (a->json)
        buf_adds(&b, "\n]\n");
    struct error lost;
    int told = output_flush(&b, r == 0 ? err : &lost);
    buf_release(&b);
    store_close(st);
    return r == 0 ? told : -1;
}

static const struct option_def retry_options[] = {
    {"consumer", "NAME", NULL, "only for this consumer", options_consumer_name,
     ARG(events.consumer)},
    OPTION_JSON,
    OPTION_END,
};

const struct command cmd_events[] = {
    {.name = "events",
     .sub = "list",
     .help = "list events and their states",
     .options = list_options,
     .run = list},
    {.name = "events",
     .sub = "show",
     .args = "ID",
     .help = "show an event, by id or sequence number, with its state for each consumer",
     .options = show_options,
     .min = 1,
     .max = 1,
     .run = show},
    {.name = "events",
     .sub = "retry",
     .args = "ID...",
     .help = "retry events now that wait for their next attempt or are dead letters",
     .options = retry_options,
     .min = 1,
     .max = ARGS_MAX,
     .run = retry},
    {.name = "events",
     .sub = "unprocessed",
     .help = "list events a worker would get: pending, due for a retry, or with an expired claim",
     .options = inspect_options,
     .run = list_unprocessed},
    {.name = "events",
     .sub = "processing",
     .help = "list events that a worker has claimed",
     .options = inspect_options,
     .run = list_processing},
    {.name = "events",
     .sub = "failed",
     .help = "list events that failed and will be retried",
     .options = inspect_options,
     .run = list_failed},
    {.name = "events",
     .sub = "abandoned",
     .help = "list events that were given up: dead letters whose events are still kept",
     .options = inspect_options,
     .run = list_abandoned},
    {.name = "events",
     .sub = "published",
     .help = "list events that were delivered",
     .options = inspect_options,
     .run = list_published},
    {.name = NULL},
};
