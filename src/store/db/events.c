/* events.c: listing events, and the state of an event for each consumer. Most events have no record
 * besides their row: their state follows from positions, claims and filters. */
#include <stdlib.h>

#include "base/num.h"
#include "store/db/db.h"
#include "store_sql.h"

/* ---- read once per listing ---- */

/* A former filter of a consumer, and the positions of its lanes when it was replaced. */
struct former {
    struct former *next;
    struct filter *filter;
    int64_t n;
    int lanes;
    int64_t positions[STORE_LANES_MAX];
};

/* A consumer's data, read once per listing. */
struct viewed {
    struct filter *filter;
    struct former *former; /* oldest first */
    int64_t positions[STORE_LANES_MAX];
    int64_t start;    /* -1: not known */
    int64_t ended;    /* rows of outbox_ended */
    int64_t receipts; /* 0: it has none */
};

/* The consumers of a listing, and the states of the current event. */
struct viewer {
    struct store *st;
    struct arena a;
    struct consumer_info *list;
    struct viewed *c;
    struct delivery_info *d;
    size_t n;
    int64_t claims; /* of any consumer */
    int64_t now;
    int64_t asked; /* queries made for the current event */
};

static void viewer_release(struct viewer *v)
{
    for (size_t i = 0; v->c && i < v->n; i++) {
        filter_free(v->c[i].filter);
        for (struct former *f = v->c[i].former; f; f = f->next)
            filter_free(f->filter);
    }
    arena_release(&v->a);
}

/* A tampered database may have lanes out of range. */
static bool is_lane(int64_t lane)
{
    return lane >= 0 && lane < STORE_LANES_MAX;
}

/* Appends the filter of this row, the first of n rows that have it. */
static struct former *add_former(struct viewer *v, struct former **end, const struct db_rows *q,
                                 struct error *err)
{
    bool ok = true;
    struct former *f = arena_zalloc(&v->a, 1, sizeof *f);
    const char *events = db_copy(q, 4, &v->a, &ok).p;
    const char *where = db_copy(q, 5, &v->a, &ok).p;
    if (!f || !ok) {
        err_nomem(err);
        return NULL;
    }
    f->n = db_int(q, 0);
    f->lanes = (int)db_int(q, 2);
    if (filter_new(events, where, &f->filter, err) != 0)
        return NULL;
    *end = f;
    return f;
}

/* Reads the former filters; each has a row per lane. */
static int read_former(struct viewer *v, const char *name, struct former **end, struct error *err)
{
    struct former *f = NULL;
    int r;
    struct db_rows q = db_rows(v->st, err, SQL(former_filters, .consumer = name));
    while ((r = db_step(&q, err)) == 1) {
        bool next = !f || f->n != db_int(&q, 0);
        if (next) {
            f = add_former(v, end, &q, err);
            if (!f) {
                db_done(&q);
                return -1;
            }
            end = &f->next;
        }
        if (is_lane(db_int(&q, 1)))
            f->positions[db_int(&q, 1)] = db_int(&q, 3);
    }
    return r;
}

/* Reads the data that decides the state of most events without a query. */
static int view_consumer(struct viewer *v, const struct consumer_spec *spec, struct viewed *c,
                         struct error *err)
{
    const char *name = spec->name;
    int r;
    c->start = -1;
    if (filter_new(spec->events, spec->where, &c->filter, err) != 0)
        return -1;
    struct db_rows q = db_rows(v->st, err, SQL(lane_positions, .consumer = name));
    while ((r = db_step(&q, err)) == 1)
        if (is_lane(db_int(&q, 0)))
            c->positions[db_int(&q, 0)] = db_int(&q, 1);
    if (r < 0)
        return -1;
    if (read_former(v, name, &c->former, err) != 0)
        return -1;
    return DB_VALUES(v->st, err, {&c->start, SQL(consumer_start, .consumer = name)},
                     {&c->receipts, SQL(has_receipts, .consumer = name)},
                     {&c->ended, SQL(count_ended, .consumer = name)});
}

static int viewer_read(struct viewer *v, const char *consumer, struct error *err)
{
    size_t n;
    if (db_consumer_list(v->st, consumer, &v->a, &v->list, &n, err) != 0)
        return -1;
    if (db_value(v->st, err, &v->claims, SQL(count_claims)) != 0)
        return -1;
    v->now = db_now(v->st);
    v->c = arena_zalloc(&v->a, n + 1, sizeof *v->c);
    v->d = arena_zalloc(&v->a, n + 1, sizeof *v->d);
    if (!v->c || !v->d)
        return err_nomem(err);
    for (size_t i = 0; i < n; i++) {
        v->n++; /* so that a partly read consumer is released too */
        if (view_consumer(v, &v->list[i].spec, &v->c[i], err) != 0)
            return -1;
    }
    return 0;
}

/* ---- the state of one event for consumer i ---- */

/* Reads the parked row or the dead letter: *ret_found. The error text lives in `a`. */
static int read_exception(struct viewer *v, size_t i, int64_t seq, struct arena *a, bool *ret_found,
                          struct error *err)
{
    enum { ATTEMPTS, DUE_AT, CLAIMED, WHY, DEAD, FAILING };
    struct delivery_info *d = &v->d[i];
    struct db_rows q;
    v->asked++;
    int r = db_row(v->st, &q, err,
                   SQL(exception_of, .consumer = d->consumer, .seq = seq, .now = v->now));
    *ret_found = r == 1;
    if (r <= 0)
        return r;

    d->attempts = (int)db_int(&q, ATTEMPTS);
    d->due_at = db_int(&q, DUE_AT);
    bool tried = d->attempts > 0 || (int)db_int(&q, FAILING);
    if ((int)db_int(&q, DEAD))
        d->state = STATE_EXPIRED;
    else if ((int)db_int(&q, CLAIMED))
        d->state = STATE_INFLIGHT;
    else
        d->state = tried ? STATE_FAILED : STATE_PENDING;

    bool ok = true;
    d->error = db_copy(&q, WHY, a, &ok).p;
    db_done(&q);
    return ok ? 0 : err_nomem(err);
}

/* Reads the delivery time and the sink's receipt of an event, where recorded. */
static int read_receipt(struct viewer *v, struct delivery_info *d, const struct event *ev,
                        struct arena *a, struct error *err)
{
    struct db_rows q;
    v->asked++;
    int r = db_row(v->st, &q, err,
                   SQL(receipt_of, .consumer = d->consumer, .seq = ev->seq, .event_id = ev->id));
    if (r <= 0)
        return r;
    bool ok = true;
    d->delivered_at = db_int(&q, 0);
    d->receipt = db_copy(&q, 1, a, &ok).p;
    db_done(&q);
    return ok ? 0 : err_nomem(err);
}

/* Reads how an event ended, if that is recorded. */
static int read_ended(struct viewer *v, struct delivery_info *d, int64_t seq, struct error *err)
{
    struct db_rows q;
    v->asked++;
    int r = db_row(v->st, &q, err, SQL(ended_state, .consumer = d->consumer, .seq = seq));
    if (r <= 0)
        return r;
    for (int s = 0; s < STATE_COUNT; s++)
        if (str_is(db_text(&q, 0), delivery_state_names[s]))
            d->state = (enum delivery_state)s;
    db_done(&q);
    return 0;
}

static bool wants(const struct filter *f, const struct event *ev)
{
    return filter_type(f, ev->type) && filter_payload(f, ev->payload);
}

/* Returns the filter in force when an event was handed out: the first one replaced after that. */
static const struct filter *filter_of(const struct viewed *c, const struct event *ev)
{
    for (const struct former *f = c->former; f; f = f->next)
        if (ev->seq <= f->positions[event_lane(ev->key, ev->seq, f->lanes)])
            return f->filter;
    return c->filter;
}

/* Decides the state of an event that its lane has passed and that is neither parked nor dead. */
static int handed_out(struct viewer *v, size_t i, const struct event *ev, int lane,
                      struct error *err)
{
    const struct viewed *c = &v->c[i];
    struct delivery_info *d = &v->d[i];
    if (ev->seq <= c->start) {
        bool concerned = filter_type(c->filter, ev->type);
        d->state = concerned ? STATE_BEFORE_START : STATE_SKIPPED;
        return 0;
    }

    d->state = wants(filter_of(c, ev), ev) ? STATE_DELIVERED : STATE_SKIPPED;
    if (c->ended && read_ended(v, d, ev->seq, err) != 0)
        return -1;
    if (d->state == STATE_SKIPPED || !v->claims)
        return 0;

    /* If a fresh claim spans the event, its worker still holds it, or another may claim it
     * again. */
    int64_t state = d->state;
    v->asked++;
    if (db_value(v->st, err, &state,
                 SQL(claim_over, .consumer = d->consumer, .lane = lane, .seq = ev->seq,
                     .now = v->now, .live = STATE_INFLIGHT, .expired = STATE_PENDING)) != 0)
        return -1;
    d->state = (enum delivery_state)state;
    return 0;
}

static int viewer_event(struct viewer *v, size_t i, const struct event *ev, struct arena *a,
                        struct error *err)
{
    struct delivery_info *d = &v->d[i];
    const struct consumer_info *c = &v->list[i];
    *d = (struct delivery_info){.consumer = c->spec.name};
    if (v->c[i].receipts && read_receipt(v, d, ev, a, err) != 0)
        return -1;

    /* Most consumers have no exceptions: then a million events cost no query. */
    bool exceptional = c->parked + c->inflight + c->dead > 0;
    if (exceptional && read_exception(v, i, ev->seq, a, &exceptional, err) != 0)
        return -1;
    if (exceptional)
        return 0;

    int lane = event_lane(ev->key, ev->seq, c->spec.lanes);
    if (ev->seq <= v->c[i].positions[lane])
        return handed_out(v, i, ev, lane, err);
    d->state = wants(v->c[i].filter, ev) ? STATE_PENDING : STATE_SKIPPED;
    return 0;
}

#define LIST_EVENTS 100 /* unless the query says otherwise */
/* The time to determine states grows with the consumers: it doubles with this many. */
#define CHEAP_CONSUMERS 8
/* A query for the records of one event costs as much as examining this many events. */
#define QUERY_COST 4
/* Rows per query, with payloads. Recorded states take longer to find. */
#define ANSWER_EVENTS 100
#define ANSWER_RECORDED 1000
#define NEW_PAYLOAD 8192 /* bytes: a poll for new events reads no larger payload */

static bool matches(const struct event_query *q, const struct event *ev)
{
    if (q->type && !filter_matches(str_of(q->type), ev->type))
        return false;
    if (q->aggregate_type.p && !str_eq(q->aggregate_type, ev->aggregate_type))
        return false;
    return !q->aggregate_id.p || str_eq(q->aggregate_id, ev->aggregate_id);
}

/* Returns whether the event is in the state for any consumer. Without consumers it is pending. */
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
 * events with a record can be. */
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

/* Decides which events have to be examined. Without consumers all events are pending. */
static void bound_search(const struct viewer *v, struct listing *l)
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
        int lanes = v->list[i].spec.lanes;
        if (lanes > STORE_LANES_MAX)
            lanes = STORE_LANES_MAX; /* the database was tampered with */
        last_start = max_i64(last_start, v->c[i].start);
        for (int lane = 0; lane < lanes; lane++) {
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

/* ---- visiting the events ---- */

/* Shows the event of a row if it matches the query. The event lives in `a`. */
static int list_row(struct viewer *v, struct listing *l, const struct db_rows *row, struct arena *a,
                    struct error *err)
{
    struct event ev;
    if (!db_event_row(row, a, &ev))
        return err_nomem(err);
    if (!matches(l->q, &ev))
        return 0;
    for (size_t i = 0; i < v->n; i++)
        if (viewer_event(v, i, &ev, a, err) != 0)
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

/* Visits rows until the listing is done. *ret_n and *ret_last: how many, and the last seq. */
static int each_row(struct viewer *v, struct listing *l, struct db_rows *rows, row_visit *visit,
                    int64_t *ret_n, int64_t *ret_last, struct error *err)
{
    struct arena a;
    int r = 0;
    arena_init(&a, 0);
    *ret_n = 0;
    while (!l->done && (r = db_step(rows, err)) == 1) {
        *ret_last = db_int(rows, 0);
        ++*ret_n;
        r = visit(v, l, rows, &a, err);
        arena_reset(&a);
        if (r != 0)
            break;
    }
    db_done(rows);
    arena_release(&a);
    return r < 0 ? -1 : 0;
}

static int list_one(struct viewer *v, struct listing *l, struct error *err)
{
    char *end;
    int64_t n, last;
    long long seq = strtoll(l->q->id, &end, 10);
    bool number = *l->q->id && !*end;
    struct db_rows rows;
    if (number)
        rows = db_rows(v->st, err, SQL(event_by_seq, .seq = seq));
    else
        rows = db_rows(v->st, err, SQL(event_by_id, .id = l->q->id));
    return each_row(v, l, &rows, list_row, &n, &last, err);
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

/* A statement that reads a page of events in each direction. The arguments of both are the same. */
struct pages {
    const struct sql *forwards, *backwards;
    const void *args;
    int64_t *low, *high; /* among the arguments: the page has events with low < seq <= high */
    int64_t max;         /* rows per page */
    row_visit *visit;
};

static int each_page(struct viewer *v, struct listing *l, const struct pages *p, struct error *err)
{
    bool more = true;
    while (!l->done && more && *p->low < *p->high) {
        int64_t n, last = 0;
        bool back = l->q->newest_first;
        struct db_rows rows = db_rows(v->st, err, back ? p->backwards : p->forwards, p->args);
        if (each_row(v, l, &rows, p->visit, &n, &last, err) != 0)
            return -1;
        more = n == p->max;
        if (back)
            *p->high = last - 1;
        else
            *p->low = last;
    }
    return 0;
}

/* Shows events with records, with low < seq <= high. */
static int list_exceptional(struct viewer *v, struct listing *l, int64_t low, int64_t high,
                            struct error *err)
{
    const struct event_query *q = l->q;
    bool any_state = !q->state && !q->unprocessed;
    if (any_state)
        return 0;
    struct sql_exceptional_forwards args = {
        .low = low,
        .high = high,
        .state = q->unprocessed ? "unprocessed" : delivery_state_names[q->state - 1],
        .consumer = q->consumer,
        .now = v->now,
        .max = db_page(v->st, ANSWER_RECORDED),
    };
    struct pages p = {&sql_exceptional_forwards,
                      &sql_exceptional_backwards,
                      &args,
                      &args.low,
                      &args.high,
                      args.max,
                      list_row};
    return each_page(v, l, &p, err);
}

/* Examines the events with low < seq <= high, as far as the budget allows. */
static int search_events(struct viewer *v, struct listing *l, int64_t low, int64_t high,
                         struct error *err)
{
    struct sql_events_forwards args = {
        .low = low, .high = high, .max = db_page(v->st, ANSWER_EVENTS)};
    struct pages p = {&sql_events_forwards,
                      &sql_events_backwards,
                      &args,
                      &args.low,
                      &args.high,
                      args.max,
                      look_at};
    return each_page(v, l, &p, err);
}

static int list_events(struct viewer *v, struct listing *l, struct error *err)
{
    const struct event_query *q = l->q;
    bound_search(v, l);
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

int db_new_events(struct store *st, int64_t *seq, bool payloads, new_event_visit *visit, void *ctx,
                  size_t *ret_n, struct error *err)
{
    int64_t most = payloads ? NEW_PAYLOAD : -1;
    int r;
    struct db_rows q = db_rows(
        st, err, SQL(new_events, .seq = *seq, .most = most, .max = DB_NEW_EVENTS + 1));
    *ret_n = 0;
    while ((r = db_step(&q, err)) == 1) {
        struct event ev = {.type = db_text(&q, 1), .payload = db_text(&q, 2)};
        *seq = db_int(&q, 0);
        if (++*ret_n <= DB_NEW_EVENTS)
            visit(ctx, &ev);
    }
    return r;
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
        r = viewer_read(&v, q->consumer, err);
    if (r == 0 && q->id)
        r = list_one(&v, &l, err);
    else if (r == 0)
        r = list_events(&v, &l, err);
    viewer_release(&v);
    if (r == 0 && q->looked)
        *q->looked = l.looked;
    return r;
}
