/* cmd_events.c: outbox events, which lists, shows and retries events. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

struct events_args {
    struct key_arg key;
    const char *type, *consumer;
    int64_t after, limit;
    int state;        /* enum delivery_state + 1; 0: any */
    bool unprocessed; /* instead of a state */
    bool newest;
    int64_t look;
    bool all;
};

/* The inspections: states under the names that other outbox implementations use. Each is also a
 * subcommand. `unprocessed` selects the events a worker could claim: pending, or failed and due
 * again. */
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

/* Restricts the listing to the inspection of that name; false: there is none. */
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

/* Accepts the name of a state or of an inspection. An error suggests names of both. */
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
     option_text, OWN(events_args, type)}, \
    {"key", "AGGTYPE/AGGID", NULL, "only events with this key", \
     commands_key, OWN(events_args, key)}, \
    {"consumer", "NAME", NULL, "only the states for this consumer", \
     option_checked, OWN(events_args, consumer), .check = store_name_check}, \
    {"after", "SEQ", "0", "only events after this sequence number; with --newest, before it", \
     option_long, OWN(events_args, after)}, \
    {"newest", NULL, "no", "list the newest events first", option_bool, OWN(events_args, newest), \
     .env = true}, \
    {"limit", "N", "100", "maximum number to list", \
     option_long, OWN(events_args, limit), .min = 1, .max = INT32_MAX, .env = true}, \
    {"look", "N", "200000", \
     "maximum number of sequence numbers to search without a match", \
     option_long, OWN(events_args, look), .min = 1, .max = INT64_MAX - 1, .env = true}, \
    {"all", NULL, "no", "search all events, however long it takes", \
     option_bool, OWN(events_args, all), .env = true}, \
    OPTION_JSON, \
    OPTION_END
/* clang-format on */

static const struct option_def list_options[] = {
    {"state", "STATE", NULL,
     "only events in this state for some consumer: pending, in-flight, delivered, failed, expired, "
     "skipped, dropped, before-start; or unprocessed, processing, abandoned, published",
     set_state, OWN_ALL},
    LISTING_OPTIONS,
};

static const struct option_def inspect_options[] = {LISTING_OPTIONS};

static const struct option_def show_options[] = {
    {"all", NULL, "no", "search all events for an unusual id, however long it takes", option_bool,
     OWN(events_args, all)},
    OPTION_JSON,
    OPTION_END,
};

static const struct option_def retry_options[] = {
    {"consumer", "NAME", NULL, "retry only for this consumer", option_checked,
     OWN(events_args, consumer), .check = store_name_check},
    OPTION_JSON,
    OPTION_END,
};

/* ---- list ---- */

/* A listing being printed. */
struct gathering {
    struct listing listing;
    int64_t limit;
    int64_t last; /* seq of the event listed last */
    bool more;    /* an event beyond the limit matches */
    struct event_look looked;
    struct output_progress progress;
};

/* Called for one event more than the limit, to detect that more events match. */
static int visit_event(void *ctx, const struct event *ev, const struct delivery_info *d, size_t n)
{
    struct gathering *g = ctx;
    if (g->listing.n == g->limit) {
        g->more = true;
        return 1;
    }
    struct listed_event row = fields_event_row(ev, d, n);
    g->last = ev->seq;
    return listing_add(&g->listing, &row);
}

static void show_progress(void *ctx, int64_t numbers)
{
    struct gathering *g = ctx;
    output_progress_step(&g->progress, numbers, numbers);
}

/* Lists the events that match. Progress is shown only for long searches that print nothing else. */
static int list_events(const struct cli *cli, const struct event_query *q, struct gathering *g,
                       struct error *err)
{
    struct store *st = cli->st;
    struct store_info info;
    if (q->look == LOOK_ALL && !cli->args.json) {
        if (st->ops->info(st, &info, err) != 0)
            return -1;
        output_progress_start(&g->progress, info.events);
    }
    int r = st->ops->events(st, q, visit_event, g, err);
    output_progress_end(&g->progress);
    if (r != 0)
        return -1;

    /* The caller did not ask for events beyond the limit. */
    if (g->more)
        g->looked.partial = false;
    if (!g->looked.partial || !cli->args.json)
        return 0;
    struct listed_look row = {g->looked, q->newest_first ? g->looked.from : g->looked.to};
    listing_remark(&g->listing, fields_looked, &row);
    return 0;
}

/* Notes on stderr that more events match, or that not all were searched. */
static void tell_rest(const struct cli *cli, const struct event_query *q, const struct gathering *g)
{
    const struct event_look *k = &g->looked;
    bool none = g->listing.n == 0 && !k->partial;
    if (none && !cli->args.json)
        fputs("no events match\n", stderr);
    if (g->more && !q->newest_first && !cli->args.json)
        output_note("more events match: use --after %lld, or a larger --limit\n",
                    (long long)g->last);
    if (k->partial)
        output_note("searched only sequence numbers %lld to %lld, not all events: use --after %lld "
                    "to continue%s, or --all to search everything\n",
                    (long long)k->from, (long long)k->to,
                    (long long)(q->newest_first ? k->from : k->to),
                    q->newest_first ? "" : ", --newest to begin at the other end");
}

/* Also `events unprocessed` and the other inspections, which the subcommand names. Queries one
 * event more than the limit, to report whether more events match. */
static int events_list(struct cli *cli, struct error *err)
{
    struct events_args a = *(const struct events_args *)cli_own(cli);
    choose_inspection(&a, cli->cmd->sub);
    struct gathering g = {.limit = a.limit};
    struct event_query q = {
        .type = a.type,
        .aggregate_type = a.key.aggregate_type,
        .aggregate_id = a.key.aggregate_id,
        .consumer = a.consumer,
        .state = a.state,
        .unprocessed = a.unprocessed,
        .after = a.after,
        .limit = (size_t)g.limit + 1,
        .newest_first = a.newest,
        .look = a.all ? LOOK_ALL : a.look,
        .looked = &g.looked,
        .looking = show_progress,
    };
    const char *columns = "seq id~~ type key- states-~ created_at";
    if (a.state == STATE_FAILED + 1)
        columns = "seq id~~ type key- states-~ next error~";

    int r = output_listing(cli, &g.listing, fields_listed_event, columns, err);
    if (r == 0)
        r = listing_end(&g.listing, list_events(cli, &q, &g, err), err);
    if (r == 0)
        r = output_end(err);
    if (r == 0)
        tell_rest(cli, &q, &g);
    return r;
}

/* ---- show ---- */

/* Prints a row for each consumer. Receipts have columns only if there are any. */
static int print_deliveries(const struct listed_event *row, struct error *err)
{
    struct listing_form form = {.fields = fields_delivery,
                                .columns = "consumer state attempts due_at error~",
                                .out = stdout};
    for (size_t i = 0; i < row->n; i++) {
        if (row->d[i].delivered_at)
            form.columns = "consumer state attempts due_at delivered_at receipt error~";
    }
    if (row->n == 0)
        return 0;
    putchar('\n');
    return listing_rows(&form, row->d, row->n, sizeof *row->d, err);
}

/* One event to show. (1) If failed, the visit has filled in err. */
struct shown {
    const struct cli *cli;
    bool seen, failed;
    struct error *err;
};

static int visit_shown(void *ctx, const struct event *ev, const struct delivery_info *d, size_t n)
{
    struct shown *s = ctx;
    struct listed_event row = fields_event_row(ev, d, n);
    int r = output_pairs(s->cli, fields_listed_event, PAIRS_EVENT, &row, s->err);
    if (r == 0 && !s->cli->args.json)
        r = print_deliveries(&row, s->err);
    s->seen = true;
    s->failed = r != 0;
    return 1;
}

static int unknown_event(const char *id, struct error *err)
{
    return err_set(err, ERR_NOTFOUND,
                   "there is no event \"%s\"; give an id or a sequence number, as shown by `outbox "
                   "events list`",
                   id);
}

static int events_show(struct cli *cli, struct error *err)
{
    const char *id = cli->args.pos[0];
    struct event_look looked = {0};
    struct event_query q = {.id = id, .limit = 1, .looked = &looked};
    if (((const struct events_args *)cli_own(cli))->all)
        q.look = LOOK_ALL;
    struct shown s = {.cli = cli, .err = err};
    int r = cli->st->ops->events(cli->st, &q, visit_shown, &s, err);
    if (r != 0 || s.failed)
        return -1;
    if (s.seen)
        return 0;
    if (!looked.partial)
        return unknown_event(id, err);
    return err_set(err, ERR_NOTFOUND,
                   "no event \"%s\" was found near its time, nor among the newest, from %lld "
                   "to %lld; --all searches all events",
                   id, (long long)looked.from, (long long)looked.to);
}

/* ---- retry ---- */

/* The result of `events retry` for one event: the number of consumers for which it waited for a
 * retry, or was a dead letter. */
struct retried {
    const char *id;
    int64_t waited, dead;
};

static const struct listing_field fields_retried[] = {
    {"event", LISTING_TEXT, .at = offsetof(struct retried, id),
     "the event's id or sequence number, as given"},
    {"waited", LISTING_INT, .at = offsetof(struct retried, waited),
     "consumers for which it waited for a retry"},
    {"dead", LISTING_INT, .at = offsetof(struct retried, dead),
     "consumers for which it was a dead letter"},
    {NULL},
};

/* The consumers for which an event waits for a retry. They are collected first, because the listing
 * occupies the connection until it ends. (1) nomem: memory ran out, and the list is incomplete. */
struct waiting {
    struct arena *arena;
    int64_t seq;
    struct waiter {
        struct waiter *next;
        char consumer[STORE_NAME_MAX + 1];
    } * first;
    bool known; /* the event or a dead letter of it exists */
    bool nomem;
};

static void add_waiting(struct waiting *w, const char *consumer)
{
    struct waiter *one = arena_zalloc(w->arena, 1, sizeof *one);
    if (!one) {
        w->nomem = true;
        return;
    }
    snprintf(one->consumer, sizeof one->consumer, "%s", consumer);
    one->next = w->first;
    w->first = one;
}

static int collect_waiting(void *ctx, const struct event *ev, const struct delivery_info *d,
                           size_t n)
{
    struct waiting *w = ctx;
    w->known = true;
    w->seq = ev->seq;
    for (size_t i = 0; i < n; i++) {
        if (d[i].state == STATE_FAILED)
            add_waiting(w, d[i].consumer);
    }
    return 1;
}

/* Finds a dead letter that is being retried and waits for its next attempt. It holds the whole
 * event, and can be retried even if the event itself was trimmed. */
static int collect_sent_back(void *ctx, const struct dead_letter *d)
{
    struct waiting *w = ctx;
    w->known = true;
    w->seq = d->ev.seq;
    if (d->retrying)
        add_waiting(w, d->consumer);
    return w->nomem;
}

/* Retries an event for every consumer (NULL: any) for which it waits for a retry or is a dead
 * letter. */
static int retry_for(struct store *st, const char *consumer, struct waiting *w, struct retried *ret,
                     struct error *err)
{
    struct event_query q = {.id = ret->id, .consumer = consumer, .limit = 1};
    struct dead_query dead = {.id = ret->id, .consumer = consumer};
    if (st->ops->events(st, &q, collect_waiting, w, err) != 0)
        return -1;
    if (!w->known && st->ops->dead(st, &dead, collect_sent_back, w, err) != 0)
        return -1;
    if (w->nomem)
        return err_nomem(err);

    for (const struct waiter *one = w->first; one; one = one->next) {
        bool waited = false;
        if (st->ops->retry_now(st, one->consumer, w->seq, &waited, err) != 0)
            return -1;
        ret->waited += waited;
    }
    return st->ops->dead_retry(st, &dead, &ret->dead, err);
}

/* Retries one event. *ret_ends: the store failed, and the rest need not be tried. */
static int retry_one(struct cli *cli, const char *id, struct retried *ret, bool *ret_ends,
                     struct error *err)
{
    const char *consumer = ((const struct events_args *)cli_own(cli))->consumer;
    struct waiting w = {.arena = &cli->arena};
    *ret = (struct retried){.id = id};
    *ret_ends = retry_for(cli->st, consumer, &w, ret, err) != 0;
    if (*ret_ends)
        return -1;
    if (ret->waited + ret->dead > 0)
        return 0;
    if (!w.known)
        return unknown_event(id, err);

    char whose[STORE_NAME_MAX + 32] = "";
    if (consumer)
        snprintf(whose, sizeof whose, " of consumer \"%s\"", consumer);
    return err_set(err, ERR_NOTFOUND,
                   "event \"%s\" neither waits for a retry nor is a dead letter%s; `outbox events "
                   "show %s` shows its state",
                   id, whose, id);
}

static void retried_text(struct buf *b, const struct retried *r)
{
    output_addf(b, "%s: retrying now for %s", r->id, human_count(r->waited + r->dead, "consumer"));
    if (r->dead)
        buf_addf(b, " (%lld of them as a dead letter)", (long long)r->dead);
    buf_addc(b, '\n');
}

/* Tries every event, even after one that cannot be retried, and prints the results even if some
 * failed. Returns the error of the first failure. */
static int events_retry(struct cli *cli, struct error *err)
{
    struct retried done[ARGS_MAX];
    struct error why = {0}; /* of a later failure */
    size_t n = 0;
    bool failed = false, ends = false;
    for (int i = 0; i < cli->args.n_pos && !ends; i++) {
        if (retry_one(cli, cli->args.pos[i], &done[n], &ends, failed ? &why : err) == 0)
            n++;
        else
            failed = true;
    }

    struct buf b;
    int r;
    buf_init(&b, OUTPUT_MAX);
    for (size_t i = 0; i < n; i++)
        retried_text(&b, &done[i]);
    if (cli->args.json)
        r = output_rows(cli, fields_retried, NULL, done, n, sizeof *done, failed ? &why : err);
    else
        r = output_flush(&b, failed ? &why : err);
    buf_release(&b);
    return failed ? -1 : r;
}

static const struct command_json list_json[] = {
    {fields_listed_event, "an array of objects", NULL},
    {fields_looked, "one more object", "if not all events were searched"},
    {NULL},
};

#define LISTS .opens = OPENS_STORE, .json = list_json, .run = events_list
#define INSPECTS .options = inspect_options, LISTS
const struct command cmd_events[] = {
    {"events", "list", NULL, "list events and their states", .options = list_options, LISTS},
    {"events", "show", "ID",
     "show an event, by id or sequence number, and its state for each consumer",
     .options = show_options, .min = 1, .max = 1, .opens = OPENS_STORE,
     .json = JSON_OBJECT(fields_listed_event), .run = events_show},
    {"events", "retry", "ID...",
     "retry events now, whether they wait for their next attempt or are dead letters",
     .options = retry_options, .min = 1, .max = ARGS_MAX, .opens = OPENS_STORE,
     .json = JSON_ARRAY(fields_retried), .run = events_retry},
    {"events", "unprocessed", NULL,
     "list events that a worker can claim: pending, due for a retry, or with an expired claim",
     INSPECTS},
    {"events", "processing", NULL, "list events that a worker has claimed", INSPECTS},
    {"events", "failed", NULL, "list events that failed and will be retried", INSPECTS},
    {"events", "abandoned", NULL,
     "list events that were given up: dead letters whose events are still kept", INSPECTS},
    {"events", "published", NULL, "list events that were delivered", INSPECTS},
    {NULL},
};
