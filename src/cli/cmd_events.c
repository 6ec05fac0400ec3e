/* cmd_events.c: outbox events, which lists and shows events. `events retry` is in
 * cmd_events_retry.c. */
#include "cli/cmd_events.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"

#define STATES_MAX 4096 /* bytes of the STATE column */

/* The inspections: states under the names that other descriptions of an outbox use. Each is also a
 * subcommand. `unprocessed` is what a worker would get: pending, or failed and due again. */
static const struct {
    const char *name;
    enum delivery_state state;
    bool unprocessed; /* instead of the state */
} inspections[] = {
    {"unprocessed", STATE_PENDING, true},  {"processing", STATE_INFLIGHT, false},
    {"failed", STATE_FAILED, false},       {"abandoned", STATE_EXPIRED, false},
    {"published", STATE_DELIVERED, false},
};
#define N_INSPECTIONS ((int)(sizeof inspections / sizeof *inspections))

/* choose_inspection restricts the listing to what an inspection shows. False: there is none of that
 * name. */
static bool choose_inspection(struct events_args *a, const char *name)
{
    for (int i = 0; i < N_INSPECTIONS; i++) {
        if (strcmp(inspections[i].name, name) != 0)
            continue;
        a->unprocessed = inspections[i].unprocessed;
        a->state = 0;
        if (!a->unprocessed)
            a->state = (int)inspections[i].state + 1;
        return true;
    }
    return false;
}

/* set_state takes the name of a state or of an inspection. An error suggests among both. */
static int set_state(void *field, const char *value, const struct option_def *o, struct error *err)
{
    struct events_args *a = field;
    (void)o;
    if (choose_inspection(a, value))
        return 0;

    const char *names[STATE_COUNT + N_INSPECTIONS + 1];
    int i, n = 0;
    for (i = 0; i < STATE_COUNT; i++)
        names[n++] = delivery_state_names[i];
    for (i = 0; i < N_INSPECTIONS; i++) {
        bool other_name = strcmp(inspections[i].name, delivery_state_names[inspections[i].state]);
        if (other_name)
            names[n++] = inspections[i].name;
    }
    names[n] = NULL;

    if (option_index(value, names, &i, err) != 0)
        return -1;
    a->state = i + 1; /* a state: inspections were chosen above */
    a->unprocessed = false;
    return 0;
}

/* clang-format off */
#define LISTING_OPTIONS \
    {"type", "PATTERN", NULL, "only event types that match; * matches anything", \
     option_text, ARG(events.type)}, \
    {"key", "AGGTYPE/AGGID", NULL, "only events with this key", options_key, ARG(events.key)}, \
    {"consumer", "NAME", NULL, "only the states for this consumer", \
     options_consumer_name, ARG(events.consumer)}, \
    {"after", "SEQ", "0", "only events after this sequence number; with --newest, before it", \
     option_long, ARG(events.after)}, \
    {"newest", NULL, "no", "newest first", option_bool, ARG(events.newest), .env = true}, \
    {"limit", "N", "100", "maximum number to list", \
     option_long, ARG(events.limit), .min = 1, .max = INT32_MAX, .env = true}, \
    {"look", "N", "200000", "how many sequence numbers without a match to look at, at most", \
     option_long, ARG(events.look), .min = 1, .max = INT64_MAX - 1, .env = true}, \
    {"all", NULL, "no", "look at all events, however long it takes", option_bool, ARG(events.all), \
     .env = true}, \
    OPTION_JSON, \
    OPTION_END
/* clang-format on */

static const struct option_def list_options[] = {
    {"state", "STATE", NULL,
     "only events in this state for some consumer: pending, in-flight, delivered, failed, expired, "
     "skipped, dropped, before-start; or unprocessed, processing, abandoned, published",
     set_state, ARG(events)},
    LISTING_OPTIONS,
};

static const struct option_def inspect_options[] = {LISTING_OPTIONS};

static const struct option_def show_options[] = {
    {"all", NULL, "no", "look for an unusual id among all events, however long it takes",
     option_bool, ARG(events.all)},
    OPTION_JSON,
    OPTION_END,
};

static const struct option_def retry_options[] = {
    {"consumer", "NAME", NULL, "only for this consumer", options_consumer_name,
     ARG(events.consumer)},
    OPTION_JSON,
    OPTION_END,
};

/* ---- list ---- */

/* A listing on its way out. (1) If failed, the visit has filled in err. */
struct listing {
    struct libscols_table *tb; /* NULL: JSON */
    struct buf b;
    int64_t seen, limit;
    int64_t last; /* seq of the event printed last */
    bool more;    /* there is an event beyond the limit */
    struct event_look looked;
    struct output_progress progress;
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

/* states_text writes one word if all consumers agree, else consumer:state for each that wants the
 * event. */
static void states_text(struct buf *b, const struct delivery_info *d, size_t n)
{
    if (n && all_alike(d, n)) {
        buf_adds(b, delivery_state_names[d[0].state]);
        return;
    }
    const char *space = "";
    for (size_t i = 0; i < n; i++) {
        if (d[i].state == STATE_SKIPPED)
            continue;
        buf_addf(b, "%s%s:%s", space, d[i].consumer, delivery_state_names[d[i].state]);
        space = " ";
    }
}

static const char *or_dash(struct buf *b)
{
    const char *s = buf_cstr(b);
    bool empty = !s || b->n == 0;
    return empty ? "-" : s;
}

/* add_row adds an event to the table of a listing. */
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
    int r;
    if (key.failed || states.failed)
        r = err_nomem(l->err);
    else
        r = output_row(l->tb, cells, l->err);
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

/* event_json adds an event with an object for each of its consumers. */
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

/* visit adds an event to the listing. It is called for one more than the limit, to know whether
 * there are more. */
static int visit(void *ctx, const struct event *ev, const struct delivery_info *d, size_t n)
{
    struct listing *l = ctx;
    if (l->seen == l->limit) {
        l->more = true;
        return 1;
    }

    if (l->tb) {
        l->failed = add_row(l, ev, d, n) != 0;
    } else {
        buf_adds(&l->b, l->seen ? ",\n" : "\n");
        event_json(&l->b, ev, d, n);
        l->failed = output_flush(&l->b, l->err) != 0;
    }
    l->last = ev->seq;
    l->seen++;
    return l->failed;
}

/* looking shows how far a listing has looked. */
static void looking(void *ctx, int64_t numbers)
{
    struct listing *l = ctx;
    output_progress_step(&l->progress, numbers, numbers);
}

/* start_progress shows progress only where the look is long, and nothing else appears meanwhile. */
static int start_progress(struct store *st, const struct event_query *q, struct listing *l,
                          struct error *err)
{
    struct store_info info;
    bool wanted = q->look == LOOK_ALL && l->tb;
    if (!wanted)
        return 0;
    if (st->ops->info(st, &info, err) != 0)
        return -1;
    output_progress_start(&l->progress, info.events);
    return 0;
}

/* gather adds the events that match to the listing. */
static int gather(struct store *st, const struct event_query *q, struct listing *l,
                  struct error *err)
{
    if (start_progress(st, q, l, err) != 0)
        return -1;
    int r = st->ops->events(st, q, visit, l, err);
    output_progress_end(&l->progress);
    if (r != 0 || l->failed)
        return -1;
    /* What is behind the limit is another matter: it was not asked for. */
    if (l->more)
        l->looked.partial = false;
    return 0;
}

/* go_on_after gives the number that --after takes to look at the rest. */
static int64_t go_on_after(const struct event_query *q, const struct event_look *k)
{
    return q->newest_first ? k->from : k->to;
}

/* add_looked adds, behind the events, how far the listing has looked, if that is not to the end: it
 * must not be taken for all there is. */
static void add_looked(const struct event_query *q, struct listing *l)
{
    const struct event_look *k = &l->looked;
    if (!k->partial)
        return;
    buf_adds(&l->b, l->seen ? ",\n" : "\n");
    buf_addc(&l->b, '{');
    output_bool(&l->b, "partial", true);
    output_number(&l->b, "looked_from", k->from);
    output_number(&l->b, "looked_to", k->to);
    output_number(&l->b, "after", go_on_after(q, k));
    buf_addc(&l->b, '}');
}

/* tell_looked says so to people. */
static void tell_looked(const struct event_query *q, const struct listing *l)
{
    const struct event_look *k = &l->looked;
    if (!k->partial)
        return;
    const char *other = q->newest_first ? "" : ", --newest to begin at the other end";
    output_note(
        "looked only at the sequence numbers %lld to %lld, not at all events: use --after %lld "
        "to go on%s, or --all to look at everything\n",
        (long long)k->from, (long long)k->to, (long long)go_on_after(q, k), other);
}

static int list_json(struct store *st, const struct event_query *q, struct listing *l,
                     struct error *err)
{
    buf_init(&l->b, OUTPUT_MAX);
    buf_addc(&l->b, '[');
    int r = gather(st, q, l, err);
    if (r == 0)
        add_looked(q, l);
    if (l->seen || l->looked.partial)
        buf_addc(&l->b, '\n');
    buf_adds(&l->b, "]\n");
    if (r == 0)
        r = output_flush(&l->b, err);
    buf_release(&l->b);
    return r;
}

/* list_table prints the table to stdout, and then what else there is to say to stderr. */
static int list_table(const struct cli *cli, struct store *st, const struct event_query *q,
                      struct listing *l, struct error *err)
{
    static const struct output_column columns[] = {
        {"SEQ", true, false}, {"ID", false, false},   {"TYPE", false, true},
        {"KEY", false, true}, {"STATE", false, true}, {"CREATED", false, false},
        {NULL, false, false},
    };
    if (output_table(columns, true, output_color(&cli->settings), &l->tb, err) != 0)
        return -1;
    if (gather(st, q, l, err) != 0) {
        output_discard(l->tb);
        return -1;
    }
    if (output_print(l->tb, err) != 0)
        return -1;
    if (output_end(err) != 0)
        return -1;

    bool none = l->seen == 0 && !l->looked.partial;
    if (none)
        fputs("no events match\n", stderr);
    if (l->more && !q->newest_first)
        output_note("there are more: use --after %lld, or a larger --limit\n", (long long)l->last);
    return 0;
}

/* list asks for one event more than the limit, to be able to say that there are more. */
static int list(struct cli *cli, struct error *err)
{
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
        .look = a->all ? LOOK_ALL : a->look,
        .looked = &l.looked,
        .looking = looking,
    };
    struct store *st;
    if (commands_store(cli, &st, err) != 0)
        return -1;

    int r;
    if (cli->args.json)
        r = list_json(st, &q, &l, err);
    else
        r = list_table(cli, st, &q, &l, err);
    if (r == 0)
        tell_looked(&q, &l);
    store_close(st);
    return r;
}

/* inspect is `events unprocessed` and the other inspections: the subcommand names it. */
static int inspect(struct cli *cli, struct error *err)
{
    choose_inspection(&cli->args.events, cli->cmd->sub);
    return list(cli, err);
}

/* ---- show ---- */

static bool any_receipt(const struct delivery_info *d, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (d[i].delivered_at)
            return true;
    }
    return false;
}

/* add_delivery adds a row of either table of print_deliveries. */
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

/* print_deliveries prints a row for each consumer. Receipts have columns only if there are any. */
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
    if (n == 0)
        return 0;

    struct libscols_table *tb;
    bool receipts = any_receipt(d, n);
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
    if (output_print(tb, err) != 0)
        return -1;
    return print_deliveries(d, n, err);
}

static int print_event_json(const struct event *ev, const struct delivery_info *d, size_t n,
                            struct error *err)
{
    struct buf b;
    buf_init(&b, OUTPUT_MAX);
    event_json(&b, ev, d, n);
    buf_addc(&b, '\n');
    int r = output_flush(&b, err);
    buf_release(&b);
    return r;
}

/* One event to show. (1) If failed, the visit has filled in err. */
struct shown {
    bool json, seen, failed;
    struct error *err;
};

static int visit_one(void *ctx, const struct event *ev, const struct delivery_info *d, size_t n)
{
    struct shown *s = ctx;
    s->seen = true;
    if (s->json)
        s->failed = print_event_json(ev, d, n, s->err) != 0;
    else
        s->failed = print_event(ev, d, n, s->err) != 0;
    return 1;
}

int cmd_events_unknown(const char *id, struct error *err)
{
    return err_set(err, ERR_NOTFOUND,
                   "there is no event \"%s\"; give an id or a sequence number, as `outbox events "
                   "list` shows them",
                   id);
}

/* not_found says that there is no such event, or how far it was looked for. */
static int not_found(const char *id, const struct event_look *k, struct error *err)
{
    if (!k->partial)
        return cmd_events_unknown(id, err);
    return err_set(
        err, ERR_NOTFOUND,
        "no event \"%s\" was found where its time puts it, nor among the newest, from %lld "
        "to %lld; with --all, all are looked at",
        id, (long long)k->from, (long long)k->to);
}

static int show(struct cli *cli, struct error *err)
{
    const char *id = cli->args.pos[0];
    struct event_look looked = {0};
    struct event_query q = {.id = id, .limit = 1, .looked = &looked};
    if (cli->args.events.all)
        q.look = LOOK_ALL;
    struct shown s = {.json = cli->args.json, .err = err};
    struct store *st;
    if (commands_store(cli, &st, err) != 0)
        return -1;
    int r = st->ops->events(st, &q, visit_one, &s, err);
    store_close(st);

    if (r != 0 || s.failed)
        return -1;
    if (!s.seen)
        return not_found(id, &looked, err);
    return 0;
}

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
     .help = "retry events now, whether they wait for their next attempt or are dead letters",
     .options = retry_options,
     .min = 1,
     .max = ARGS_MAX,
     .run = cmd_events_retry},
    {.name = "events",
     .sub = "unprocessed",
     .help = "list events a worker would get: pending, due for a retry, or with an expired claim",
     .options = inspect_options,
     .run = inspect},
    {.name = "events",
     .sub = "processing",
     .help = "list events that a worker has claimed",
     .options = inspect_options,
     .run = inspect},
    {.name = "events",
     .sub = "failed",
     .help = "list events that failed and will be retried",
     .options = inspect_options,
     .run = inspect},
    {.name = "events",
     .sub = "abandoned",
     .help = "list events that were given up: dead letters whose events are still kept",
     .options = inspect_options,
     .run = inspect},
    {.name = "events",
     .sub = "published",
     .help = "list events that were delivered",
     .options = inspect_options,
     .run = inspect},
    {.name = NULL},
};
