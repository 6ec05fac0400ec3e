/* events.c: listing events by their attributes and states. */
#include <stdlib.h>

#include "base/num.h"
#include "store/db/db.h"
#include "store/db/inspect.h"
#include "store_sql.h"

#define LIST_EVENTS 100 /* unless the query says otherwise */
/* Deciding states takes longer with more consumers: this many take twice as long. */
#define CHEAP_CONSUMERS 8
/* Querying the records of one event costs as much as examining this many. */
#define QUERY_COST 4
/* Rows per query: few enough to be kept in memory, with their payloads. Recorded states take longer
 * to find. */
#define ANSWER_EVENTS 100
#define ANSWER_RECORDED 1000

static bool matches(const struct event_query *q, const struct event *ev)
{
    if (q->type && !filter_matches(str_of(q->type), ev->type))
        return false;
    if (q->aggregate_type.p && !str_eq(q->aggregate_type, ev->aggregate_type))
        return false;
    return !q->aggregate_id.p || str_eq(q->aggregate_id, ev->aggregate_id);
}

/* Whether the current event is in the requested state for any consumer. Without consumers every
 * event is pending. */
static bool in_state(const struct viewer *v, const struct event_query *q)
{
    if (!q->state && !q->unprocessed)
        return true;
    for (size_t i = 0; i < v->n; i++)
        if (store_in_state(q, &v->d[i], v->now))
            return true;
    bool pending = q->unprocessed || q->state == STATE_PENDING + 1;
    return v->n == 0 && pending;
}

/* A listing in progress. Events in the requested state are past low, up to high; up to low, only
 * those with a record of their own are. */
struct listing {
    const struct event_query *q;
    event_visit *visit;
    void *ctx;
    int64_t low, high;
    int64_t budget; /* events that may still be examined without a match */
    struct event_look looked;
    size_t left; /* events still to be shown */
    bool done;
};

/* ---- which events can be in the requested state ---- */

/* The number of a consumer's lanes; a tampered database may have others. */
static int lanes_of(const struct viewer *v, size_t i)
{
    int lanes = v->list[i].spec.lanes;
    return lanes < STORE_LANES_MAX ? lanes : STORE_LANES_MAX;
}

/* Decides which events have to be examined. Without consumers all events are pending. */
static void bound_look(const struct viewer *v, struct listing *l)
{
    const struct event_query *q = l->q;
    bool any_state = !q->state && !q->unprocessed;
    bool pending = q->unprocessed || q->state == STATE_PENDING + 1;
    if (any_state)
        return;
    if (v->n == 0) {
        l->done = !pending;
        return;
    }

    /* The lowest and the highest position of any lane, and the latest start of a consumer. */
    int64_t by_all = INT64_MAX, by_any = 0, last_start = 0;
    for (size_t i = 0; i < v->n; i++) {
        last_start = max_i64(last_start, v->c[i].start);
        for (int lane = 0; lane < lanes_of(v, i); lane++) {
            by_all = min_i64(by_all, v->c[i].positions[lane]);
            by_any = max_i64(by_any, v->c[i].positions[lane]);
        }
    }
    if (pending) {
        l->low = by_all;
        return;
    }
    switch ((enum delivery_state)(q->state - 1)) {
    case STATE_FAILED:
    case STATE_EXPIRED:
    case STATE_DROPPED:
    case STATE_INFLIGHT: l->low = INT64_MAX; break;
    case STATE_DELIVERED: l->high = by_any; break;
    case STATE_BEFORE_START: l->high = last_start; break;
    default: break;
    }
}

/* ---- going through them ---- */

/* Shows the event of a row if it matches the query; it lives in `a`. */
static int list_row(struct viewer *v, struct listing *l, const struct db_rows *row, struct arena *a,
                    struct error *err)
{
    struct event ev;
    if (!db_event_row(row, a, &ev))
        return err_nomem(err);
    if (!matches(l->q, &ev))
        return 0;
    for (size_t i = 0; i < v->n; i++)
        if (db_viewer_event(v, i, &ev, a, err) != 0)
            return -1;
    if (!in_state(v, l->q))
        return 0;
    bool stopped = l->visit(l->ctx, &ev, v->d, v->n) != 0;
    l->left--;
    l->done = stopped || l->left == 0;
    return 0;
}

/* A row_visit handles one row of a listing. -1: it failed. */
typedef int row_visit(struct viewer *v, struct listing *l, const struct db_rows *row,
                      struct arena *a, struct error *err);

/* The progress of a listing that is read in pages: it continues between low and high. */
struct going {
    int64_t low, high;
    int64_t max; /* rows per page */
    bool more;   /* the last page was full */
};

static struct going going_from(const struct viewer *v, int64_t low, int64_t high, int64_t rows)
{
    return (struct going){.low = low, .high = high, .max = db_page(v->st, rows), .more = true};
}

/* Visits the rows of a page until the listing is done, and moves g past them. */
static int each_row(struct viewer *v, struct listing *l, struct db_rows *rows, struct going *g,
                    row_visit *visit, struct error *err)
{
    struct arena a;
    int r = 0;
    int64_t n = 0;
    arena_init(&a, 0);
    while (!l->done && (r = db_step(rows, err)) == 1) {
        int64_t seq = db_int(rows, 0);
        if (l->q->newest_first)
            g->high = seq - 1;
        else
            g->low = seq;
        n++;
        r = visit(v, l, rows, &a, err);
        arena_reset(&a);
        if (r != 0)
            break;
    }
    g->more = n == g->max;
    db_done(rows);
    arena_release(&a);
    return r < 0 ? -1 : 0;
}

static int list_one(struct viewer *v, struct listing *l, struct error *err)
{
    struct going g = {0};
    char *end;
    long long seq = strtoll(l->q->id, &end, 10);
    bool number = *l->q->id && !*end;
    struct db_rows rows;
    if (number)
        rows = db_rows(v->st, err, SQL(event_by_seq, .seq = seq));
    else
        rows = db_rows(v->st, err, SQL(event_by_id, .id = l->q->id));
    return each_row(v, l, &rows, &g, list_row, err);
}

/* Reads the next page of events with records of their own. */
static struct db_rows next_exceptional(const struct viewer *v, const struct listing *l,
                                       const struct going *g, struct error *err)
{
    const struct event_query *q = l->q;
    const char *state = "unprocessed";
    if (!q->unprocessed)
        state = delivery_state_names[q->state - 1];
    if (q->newest_first)
        return db_rows(v->st, err,
                       SQL(exceptional_backwards, .low = g->low, .high = g->high, .state = state,
                           .consumer = q->consumer, .now = v->now, .max = g->max));
    return db_rows(v->st, err,
                   SQL(exceptional_forwards, .low = g->low, .high = g->high, .state = state,
                       .consumer = q->consumer, .now = v->now, .max = g->max));
}

/* Shows events with records of their own, with low < seq <= high. */
static int list_exceptional(struct viewer *v, struct listing *l, int64_t low, int64_t high,
                            struct error *err)
{
    struct going g = going_from(v, low, high, ANSWER_RECORDED);
    bool any_state = !l->q->state && !l->q->unprocessed;
    if (any_state)
        return 0;
    while (!l->done && g.low < g.high && g.more) {
        struct db_rows rows = next_exceptional(v, l, &g, err);
        if (each_row(v, l, &rows, &g, list_row, err) != 0)
            return -1;
    }
    return 0;
}

/* Notes that an event was examined, and reports progress now and then. */
static void note_looked(struct listing *l, int64_t seq)
{
    enum { EVERY = 10000 };
    struct event_look *k = &l->looked;
    bool first = k->to == 0;
    if (first || seq < k->from)
        k->from = seq;
    if (seq > k->to)
        k->to = seq;
    int64_t numbers = k->to - k->from + 1;
    if (l->q->looking && numbers % EVERY == 0)
        l->q->looking(l->ctx, numbers);
}

/* Examines one more event, if the budget allows. */
static int look_at(struct viewer *v, struct listing *l, const struct db_rows *row, struct arena *a,
                   struct error *err)
{
    size_t left = l->left;
    if (l->budget <= 0) {
        l->looked.partial = true;
        l->done = true;
        return 0;
    }
    v->asked = 0;
    note_looked(l, db_int(row, 0));
    if (list_row(v, l, row, a, err) != 0)
        return -1;
    bool in_vain = l->left == left && l->q->look != LOOK_ALL;
    if (in_vain)
        l->budget -= 1 + (int64_t)v->n / CHEAP_CONSUMERS + v->asked * QUERY_COST;
    return 0;
}

/* Examines the events with low < seq <= high, as far as the budget allows. */
static int search_events(struct viewer *v, struct listing *l, int64_t low, int64_t high,
                         struct error *err)
{
    struct going g = going_from(v, low, high, ANSWER_EVENTS);
    while (!l->done && g.low < g.high && g.more) {
        struct db_rows rows;
        if (l->q->newest_first)
            rows = db_rows(v->st, err,
                           SQL(events_backwards, .low = g.low, .high = g.high, .max = g.max));
        else
            rows = db_rows(v->st, err,
                           SQL(events_forwards, .low = g.low, .high = g.high, .max = g.max));
        if (each_row(v, l, &rows, &g, look_at, err) != 0)
            return -1;
    }
    return 0;
}

static int list_events(struct viewer *v, struct listing *l, struct error *err)
{
    const struct event_query *q = l->q;
    bound_look(v, l);
    if (!q->newest_first) {
        if (list_exceptional(v, l, q->after, l->low, err) != 0)
            return -1;
        return search_events(v, l, max_i64(q->after, l->low), l->high, err);
    }
    int64_t last = q->after ? q->after - 1 : INT64_MAX;
    if (search_events(v, l, l->low, min_i64(last, l->high), err) != 0)
        return -1;
    return list_exceptional(v, l, 0, min_i64(last, l->low), err);
}

int db_events(struct store *st, const struct event_query *q, event_visit *visit, void *ctx,
              struct error *err)
{
    struct viewer v = {.st = st};
    struct listing l = {.q = q,
                        .visit = visit,
                        .ctx = ctx,
                        .high = INT64_MAX,
                        .budget = q->look ? q->look : STORE_LOOK,
                        .left = q->limit ? q->limit : LIST_EVENTS};
    arena_init(&v.a, 0);
    int r = db_give_numbers(st, err);
    if (r == 0)
        r = db_viewer_read(&v, q->consumer, err);
    if (r == 0 && q->id)
        r = list_one(&v, &l, err);
    else if (r == 0)
        r = list_events(&v, &l, err);
    db_viewer_release(&v);
    if (r == 0 && q->looked)
        *q->looked = l.looked;
    return r;
}
