/* inspect.c: events, and the state each is in for each consumer. Most events are not recorded
 * anywhere but in outbox_event: their state follows from positions, claims and filters. */
#include <stdlib.h>

#include "sqlite_sql.h"
#include "store/sqlite/sqlite.h"

#define LIST_EVENTS 100 /* unless the query says otherwise */
/* To tell states takes longer the more consumers there are: so many take twice as long. */
#define CHEAP_CONSUMERS 8
/* To ask for what is recorded about an event costs as much as to look at so many. */
#define QUERY_COST 4

/* A filter that a consumer had, and how far its lanes had come when it was replaced. */
struct former {
    struct former *next;
    struct filter *filter;
    int64_t n;
    int lanes;
    int64_t positions[STORE_LANES_MAX];
};

/* What is known of a consumer for the whole listing. */
struct viewed {
    struct filter *filter;
    struct former *former; /* oldest first */
    int64_t positions[STORE_LANES_MAX];
    int64_t start;    /* -1: not known */
    int64_t ended;    /* rows of outbox_ended */
    int64_t receipts; /* 0: it has none */
};

/* The consumers of a listing, and the states of the event at hand. */
struct viewer {
    struct sqlite_store *st;
    struct arena a;
    struct consumer_info *list;
    struct viewed *c;
    struct delivery_info *d;
    size_t n;
    int64_t claims; /* of any consumer */
    int64_t now;
    int64_t asked; /* queries about the event at hand */
};

/* ---- what is read once ---- */

static void viewer_release(struct viewer *v)
{
    for (size_t i = 0; v->c && i < v->n; i++) {
        filter_free(v->c[i].filter);
        for (struct former *f = v->c[i].former; f; f = f->next)
            filter_free(f->filter);
    }
    arena_release(&v->a);
}

/* put_position notes the position of a lane; a file that was tampered with may have others. */
static void put_position(int64_t positions[STORE_LANES_MAX], int lane, int64_t position)
{
    bool valid = lane >= 0 && lane < STORE_LANES_MAX;
    if (valid)
        positions[lane] = position;
}

static int read_positions(struct sqlite_store *st, const char *name,
                          int64_t positions[STORE_LANES_MAX], struct error *err)
{
    int r;
    sqlite3_stmt *q = sqlite_rows(st, err, SQL(lane_positions, .consumer = name));
    while ((r = sqlite_step(st, q, err)) == 1)
        put_position(positions, sqlite3_column_int(q, 0), sqlite3_column_int64(q, 1));
    return r;
}

/* add_former appends the filter of this row, the first of its n. */
static struct former *add_former(struct viewer *v, struct former **end, sqlite3_stmt *q,
                                 struct error *err)
{
    bool ok = true;
    struct former *f = arena_zalloc(&v->a, 1, sizeof *f);
    const char *events = sqlite_copy(q, 4, &v->a, &ok).p;
    const char *where = sqlite_copy(q, 5, &v->a, &ok).p;
    if (!f || !ok) {
        err_nomem(err);
        return NULL;
    }
    f->n = sqlite3_column_int64(q, 0);
    f->lanes = sqlite3_column_int(q, 2);
    if (filter_new(events, where, &f->filter, err) != 0)
        return NULL;
    *end = f;
    return f;
}

/* read_former reads the former filters; each has a row per lane. */
static int read_former(struct viewer *v, const char *name, struct former **end, struct error *err)
{
    struct former *f = NULL;
    int r;
    sqlite3_stmt *q = sqlite_rows(v->st, err, SQL(former_filters, .consumer = name));
    while ((r = sqlite_step(v->st, q, err)) == 1) {
        bool next = !f || f->n != sqlite3_column_int64(q, 0);
        if (next) {
            f = add_former(v, end, q, err);
            if (!f) {
                sqlite3_reset(q);
                return -1;
            }
            end = &f->next;
        }
        put_position(f->positions, sqlite3_column_int(q, 1), sqlite3_column_int64(q, 3));
    }
    return r;
}

/* view_consumer reads what judging events takes, so that most of them cost no query. */
static int view_consumer(struct viewer *v, const struct consumer_spec *spec, struct viewed *c,
                         struct error *err)
{
    const char *name = spec->name;
    c->start = -1;
    if (filter_new(spec->events, spec->where, &c->filter, err) != 0)
        return -1;
    if (read_positions(v->st, name, c->positions, err) != 0)
        return -1;
    if (read_former(v, name, &c->former, err) != 0)
        return -1;
    const struct sqlite_number wanted[] = {
        {&c->start, SQL(consumer_start, .consumer = name)},
        {&c->receipts, SQL(has_receipts, .consumer = name)},
        {&c->ended, SQL(count_ended, .consumer = name)},
    };
    return sqlite_values(v->st, err, wanted, sizeof wanted / sizeof *wanted);
}

/* view_all reads all consumers, or the one named. On failure the viewer still has to be
 * released. */
static int view_all(struct viewer *v, const char *consumer, struct error *err)
{
    size_t n;
    if (sqlite_consumer_list(&v->st->base, consumer, &v->a, &v->list, &n, err) != 0)
        return -1;
    if (sqlite_value(v->st, err, &v->claims, SQL(count_claims)) != 0)
        return -1;
    v->now = sqlite_now(v->st);
    v->c = arena_zalloc(&v->a, n + 1, sizeof *v->c);
    v->d = arena_zalloc(&v->a, n + 1, sizeof *v->d);
    if (!v->c || !v->d)
        return err_nomem(err);
    for (size_t i = 0; i < n; i++) {
        v->n++; /* a consumer that was read only half is released as well */
        if (view_consumer(v, &v->list[i].spec, &v->c[i], err) != 0)
            return -1;
    }
    return 0;
}

/* ---- the state of one event for consumer i ---- */

/* read_exception reads the parked row or the dead letter, if there is one: *ret_found. The error
 * text lives in `a`. */
static int read_exception(struct viewer *v, size_t i, int64_t seq, struct arena *a, bool *ret_found,
                          struct error *err)
{
    enum { ATTEMPTS, DUE_AT, CLAIMED, WHY, DEAD, FAILING };
    struct delivery_info *d = &v->d[i];
    sqlite3_stmt *q;
    v->asked++;
    int r = sqlite_row(v->st, &q, err,
                       SQL(exception_of, .consumer = d->consumer, .seq = seq, .now = v->now));
    *ret_found = r == 1;
    if (r <= 0)
        return r;

    d->attempts = sqlite3_column_int(q, ATTEMPTS);
    d->due_at = sqlite3_column_int64(q, DUE_AT);
    bool tried = d->attempts > 0 || sqlite3_column_int(q, FAILING);
    if (sqlite3_column_int(q, DEAD))
        d->state = STATE_EXPIRED;
    else if (sqlite3_column_int(q, CLAIMED))
        d->state = STATE_INFLIGHT;
    else
        d->state = tried ? STATE_FAILED : STATE_PENDING;

    bool ok = true;
    d->error = sqlite_copy(q, WHY, a, &ok).p;
    sqlite3_reset(q);
    return ok ? 0 : err_nomem(err);
}

/* read_receipt reads when an event was delivered and what the sink called it, where that was
 * recorded. */
static int read_receipt(struct viewer *v, size_t i, const struct event *ev, struct arena *a,
                        struct error *err)
{
    struct delivery_info *d = &v->d[i];
    if (!v->c[i].receipts)
        return 0;
    sqlite3_stmt *q;
    v->asked++;
    int r = sqlite_row(
        v->st, &q, err,
        SQL(receipt_of, .consumer = d->consumer, .seq = ev->seq, .event_id = ev->id));
    if (r <= 0)
        return r;
    bool ok = true;
    d->delivered_at = sqlite3_column_int64(q, 0);
    d->receipt = sqlite_copy(q, 1, a, &ok).p;
    sqlite3_reset(q);
    return ok ? 0 : err_nomem(err);
}

/* read_ended reads how a single event ended, where that was recorded: *ret_found. */
static int read_ended(struct viewer *v, size_t i, int64_t seq, bool *ret_found, struct error *err)
{
    *ret_found = false;
    if (v->c[i].ended == 0)
        return 0;
    sqlite3_stmt *q;
    v->asked++;
    int r = sqlite_row(v->st, &q, err, SQL(ended_state, .consumer = v->d[i].consumer, .seq = seq));
    if (r <= 0)
        return r;
    *ret_found = true;
    for (int s = 0; s < STATE_COUNT; s++)
        if (str_is(sqlite_text(q, 0), delivery_state_names[s]))
            v->d[i].state = (enum delivery_state)s;
    sqlite3_reset(q);
    return 0;
}

enum claim_over { CLAIM_NONE, CLAIM_EXPIRED, CLAIM_LIVE };

/* read_claim finds out whether a fresh claim spans the event. */
static int read_claim(struct viewer *v, const char *consumer, int lane, int64_t seq,
                      enum claim_over *ret, struct error *err)
{
    int64_t found = CLAIM_NONE;
    *ret = CLAIM_NONE;
    if (!v->claims)
        return 0;
    v->asked++;
    if (sqlite_value(v->st, err, &found,
                     SQL(claim_over, .consumer = consumer, .lane = lane, .seq = seq, .now = v->now,
                         .live = CLAIM_LIVE, .expired = CLAIM_EXPIRED)) != 0)
        return -1;
    *ret = (enum claim_over)found;
    return 0;
}

static bool wants(const struct filter *f, const struct event *ev)
{
    return filter_type(f, ev->type) && filter_payload(f, ev->payload);
}

/* judge gives the filter an event was handed out under: the first one replaced after that, or the
 * present one. */
static const struct filter *judge(const struct viewed *c, const struct event *ev)
{
    for (const struct former *f = c->former; f; f = f->next)
        if (ev->seq <= f->positions[event_lane(ev->key, ev->seq, f->lanes)])
            return f->filter;
    return c->filter;
}

/* handed_out finds the state of an event that its lane has passed and that is neither parked nor
 * dead. */
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

    bool recorded;
    if (read_ended(v, i, ev->seq, &recorded, err) != 0)
        return -1;
    if (!recorded)
        d->state = wants(judge(c, ev), ev) ? STATE_DELIVERED : STATE_SKIPPED;
    if (d->state == STATE_SKIPPED)
        return 0;

    enum claim_over claim;
    if (read_claim(v, d->consumer, lane, ev->seq, &claim, err) != 0)
        return -1;
    switch (claim) {
    case CLAIM_NONE: break;
    case CLAIM_LIVE: d->state = STATE_INFLIGHT; break;
    case CLAIM_EXPIRED: d->state = STATE_PENDING; break; /* free to be claimed again */
    }
    return 0;
}

/* view_event finds the state of an event for consumer i. */
static int view_event(struct viewer *v, size_t i, const struct event *ev, struct arena *a,
                      struct error *err)
{
    struct delivery_info *d = &v->d[i];
    const struct consumer_info *c = &v->list[i];
    *d = (struct delivery_info){.consumer = c->spec.name};
    if (read_receipt(v, i, ev, a, err) != 0)
        return -1;

    /* Most consumers have no exceptions at all: then a million events cost no query. */
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

/* ---- listing ---- */

static bool matches(const struct event_query *q, const struct event *ev)
{
    if (q->type && !pattern_match(str_of(q->type), ev->type))
        return false;
    if (q->aggregate_type.p && !str_eq(q->aggregate_type, ev->aggregate_type))
        return false;
    return !q->aggregate_id.p || str_eq(q->aggregate_id, ev->aggregate_id);
}

/* in_state says whether the event at hand is in the state asked for, for any consumer. Without a
 * consumer every event is pending. */
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

static sqlite3_stmt *select_by_id(struct sqlite_store *st, const char *id, struct error *err)
{
    char *end;
    long long seq = strtoll(id, &end, 10);
    bool number = *id && !*end;
    if (number)
        return sqlite_rows(st, err, SQL(event_by_id, .seq = seq, .id = ""));
    return sqlite_rows(st, err, SQL(event_by_id, .seq = -1, .id = id));
}

/* A listing on its way. What is asked for is among the events past low, up to high; up to low only
 * what is recorded about single events says so. */
struct listing {
    const struct event_query *q;
    event_visit *visit;
    void *ctx;
    int64_t low, high;
    int64_t budget; /* events that may still be looked at in vain */
    struct event_look looked;
    size_t left; /* events still to be shown */
    bool done;
};

/* ---- which events can be in the state asked for ---- */

static int64_t lower(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t higher(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* lanes_of is the number of a consumer's lanes; a file that was tampered with may have others. */
static int lanes_of(const struct viewer *v, size_t i)
{
    int lanes = v->list[i].spec.lanes;
    return lanes < STORE_LANES_MAX ? lanes : STORE_LANES_MAX;
}

/* passed_by_all tells up to where every lane of every consumer is. */
static int64_t passed_by_all(const struct viewer *v)
{
    int64_t low = INT64_MAX;
    for (size_t i = 0; i < v->n; i++)
        for (int lane = 0; lane < lanes_of(v, i); lane++)
            low = lower(low, v->c[i].positions[lane]);
    return low;
}

/* passed_by_any tells up to where any lane of any consumer is. */
static int64_t passed_by_any(const struct viewer *v)
{
    int64_t high = 0;
    for (size_t i = 0; i < v->n; i++)
        for (int lane = 0; lane < lanes_of(v, i); lane++)
            high = higher(high, v->c[i].positions[lane]);
    return high;
}

/* last_start tells up to where events came before some consumer. */
static int64_t last_start(const struct viewer *v)
{
    int64_t high = 0;
    for (size_t i = 0; i < v->n; i++)
        high = higher(high, v->c[i].start);
    return high;
}

/* bound_look finds out which events have to be looked at. Without a consumer every event is
 * pending, and none is anything else. */
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
    if (pending) {
        l->low = passed_by_all(v);
        return;
    }
    switch ((enum delivery_state)(q->state - 1)) {
    case STATE_FAILED:
    case STATE_EXPIRED:
    case STATE_DROPPED:
    case STATE_INFLIGHT: l->low = INT64_MAX; break;
    case STATE_DELIVERED: l->high = passed_by_any(v); break;
    case STATE_BEFORE_START: l->high = last_start(v); break;
    default: break;
    }
}

/* ---- going through them ---- */

/* list_row shows the event of a row, if the query asks for it; it lives in `a`. */
static int list_row(struct viewer *v, struct listing *l, sqlite3_stmt *row, struct arena *a,
                    struct error *err)
{
    struct event ev;
    if (!sqlite_event_row(row, a, &ev))
        return err_nomem(err);
    if (!matches(l->q, &ev))
        return 0;
    for (size_t i = 0; i < v->n; i++)
        if (view_event(v, i, &ev, a, err) != 0)
            return -1;
    if (!in_state(v, l->q))
        return 0;
    bool stopped = l->visit(l->ctx, &ev, v->d, v->n) != 0;
    l->left--;
    l->done = stopped || l->left == 0;
    return 0;
}

/* A row_visit looks at one row of a listing. It returns -1 on failure. */
typedef int row_visit(struct viewer *v, struct listing *l, sqlite3_stmt *row, struct arena *a,
                      struct error *err);

/* each_row visits the rows until the listing is done. */
static int each_row(struct viewer *v, struct listing *l, sqlite3_stmt *rows, row_visit *visit,
                    struct error *err)
{
    struct arena a;
    int r = 0;
    arena_init(&a, 0);
    while (!l->done && (r = sqlite_step(v->st, rows, err)) == 1) {
        r = visit(v, l, rows, &a, err);
        arena_reset(&a);
        if (r != 0)
            break;
    }
    sqlite3_reset(rows);
    arena_release(&a);
    return r < 0 ? -1 : 0;
}

/* list_rows shows those of the rows that the query asks for. */
static int list_rows(struct viewer *v, struct listing *l, sqlite3_stmt *rows, struct error *err)
{
    return each_row(v, l, rows, list_row, err);
}

static int list_one(struct viewer *v, struct listing *l, struct error *err)
{
    return list_rows(v, l, select_by_id(v->st, l->q->id, err), err);
}

/* list_exceptional shows what is recorded about single events with low < seq <= high. */
static int list_exceptional(struct viewer *v, struct listing *l, int64_t low, int64_t high,
                            struct error *err)
{
    const struct event_query *q = l->q;
    bool any_state = !q->state && !q->unprocessed;
    if (any_state || l->done || low >= high)
        return 0;
    const char *state = "unprocessed";
    if (!q->unprocessed)
        state = delivery_state_names[q->state - 1];
    sqlite3_stmt *rows;
    if (q->newest_first)
        rows = sqlite_rows(v->st, err,
                           SQL(exceptional_backwards, .low = low, .high = high, .state = state,
                               .consumer = q->consumer, .now = v->now));
    else
        rows = sqlite_rows(v->st, err,
                           SQL(exceptional_forwards, .low = low, .high = high, .state = state,
                               .consumer = q->consumer, .now = v->now));
    return list_rows(v, l, rows, err);
}

/* note_looked notes that an event was looked at, and now and then says so. */
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

/* look_at looks at one more event, unless the query does not want that. */
static int look_at(struct viewer *v, struct listing *l, sqlite3_stmt *row, struct arena *a,
                   struct error *err)
{
    size_t left = l->left;
    if (l->budget <= 0) {
        l->looked.partial = true;
        l->done = true;
        return 0;
    }
    v->asked = 0;
    note_looked(l, sqlite3_column_int64(row, 0));
    if (list_row(v, l, row, a, err) != 0)
        return -1;
    bool in_vain = l->left == left && l->q->look != LOOK_ALL;
    if (in_vain)
        l->budget -= 1 + (int64_t)v->n / CHEAP_CONSUMERS + v->asked * QUERY_COST;
    return 0;
}

/* look looks at the events with low < seq <= high, as far as the query says. */
static int look(struct viewer *v, struct listing *l, int64_t low, int64_t high, struct error *err)
{
    sqlite3_stmt *rows;
    if (l->done || low >= high)
        return 0;
    if (l->q->newest_first)
        rows = sqlite_rows(v->st, err, SQL(events_backwards, .low = low, .high = high));
    else
        rows = sqlite_rows(v->st, err, SQL(events_forwards, .low = low, .high = high));
    return each_row(v, l, rows, look_at, err);
}

static int list_events(struct viewer *v, struct listing *l, struct error *err)
{
    const struct event_query *q = l->q;
    bound_look(v, l);
    if (!q->newest_first) {
        if (list_exceptional(v, l, q->after, l->low, err) != 0)
            return -1;
        return look(v, l, higher(q->after, l->low), l->high, err);
    }
    int64_t last = q->after ? q->after - 1 : INT64_MAX;
    if (look(v, l, l->low, lower(last, l->high), err) != 0)
        return -1;
    return list_exceptional(v, l, 0, lower(last, l->low), err);
}

int sqlite_events(struct store *base, const struct event_query *q, event_visit *visit, void *ctx,
                  struct error *err)
{
    struct viewer v = {.st = sqlite_of(base)};
    struct listing l = {.q = q,
                        .visit = visit,
                        .ctx = ctx,
                        .high = INT64_MAX,
                        .budget = q->look ? q->look : STORE_LOOK,
                        .left = q->limit ? q->limit : LIST_EVENTS};
    arena_init(&v.a, 0);
    int r = view_all(&v, q->consumer, err);
    if (r == 0 && q->id)
        r = list_one(&v, &l, err);
    else if (r == 0)
        r = list_events(&v, &l, err);
    viewer_release(&v);
    if (r == 0 && q->looked)
        *q->looked = l.looked;
    return r;
}
