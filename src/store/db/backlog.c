/* backlog.c: what waits for a consumer and what is in flight, counted at a bounded cost. */
#include "store/db/db.h"
#include "store_sql.h"

/* The columns of @counted_columns@. */
enum { SEQ, TYPE, CREATED_AT, AGGREGATE_TYPE, AGGREGATE_ID, PAYLOAD };

struct counting {
    struct store *st;
    struct backlog *b;
    struct filter *filter;
    int64_t positions[STORE_LANES_MAX];
    int64_t low; /* the lowest of them */
    int64_t now;
};

/* ---- one event ---- */

static bool wants(const struct counting *k, const struct db_rows *q)
{
    if (!filter_type(k->filter, db_text(q, TYPE)))
        return false;
    return !filter_has_where(k->filter) || filter_payload(k->filter, db_text(q, PAYLOAD));
}

static int lane_of(const struct counting *k, const struct db_rows *q)
{
    if (k->b->spec->lanes <= 1)
        return 0;
    uint64_t key = event_key(db_text(q, AGGREGATE_TYPE), db_text(q, AGGREGATE_ID));
    return event_lane(key, db_int(q, SEQ), k->b->spec->lanes);
}

/* count_waiting counts an event that waits, and shows it to the visitor. */
static int count_waiting(struct counting *k, const struct db_rows *q, struct error *err)
{
    int64_t at = db_int(q, CREATED_AT);
    bool older = !k->b->oldest_at || at < k->b->oldest_at;
    if (older)
        k->b->oldest_at = at;
    k->b->behind++;
    if (!k->b->visit)
        return 0;
    return k->b->visit(k->b->ctx, q, err);
}

/* ---- after the positions ---- */

static int read_lanes(struct counting *k, struct error *err)
{
    int r;
    k->low = INT64_MAX;
    struct db_rows q = db_rows(k->st, err, SQL(lane_positions, .consumer = k->b->spec->name));
    while ((r = db_step(&q, err)) == 1) {
        int lane = (int)db_int(&q, 0);
        int64_t position = db_int(&q, 1);
        bool valid = lane >= 0 && lane < STORE_LANES_MAX;
        if (position < k->low)
            k->low = position;
        if (valid)
            k->positions[lane] = position;
    }
    return r;
}

/* estimate projects what was found between first and last onto the rest, up to the head. */
static int estimate(struct counting *k, int64_t first, int64_t last, struct error *err)
{
    int64_t head = 0;
    if (db_value(k->st, err, &head, SQL(last_event)) != 0)
        return -1;
    if (head <= last)
        return 0;
    double all = (double)(head - first + 1), seen = (double)(last - first + 1);
    k->b->behind = (int64_t)((double)k->b->behind * all / seen);
    return 0;
}

/* count_fresh looks at what lies after the lowest position, up to b->max events. */
static int count_fresh(struct counting *k, struct error *err)
{
    int64_t first = 0, last = 0;
    int r;
    bool payload = filter_has_where(k->filter);
    struct db_rows q = db_rows(
        k->st, err, SQL(waiting_events, .position = k->low, .max = k->b->max, .payload = payload));
    while ((r = db_step(&q, err)) == 1) {
        last = db_int(&q, SEQ);
        if (!first)
            first = last;
        k->b->scanned++;
        bool handed_out = last <= k->positions[lane_of(k, &q)];
        if (handed_out || !wants(k, &q))
            continue;
        if (count_waiting(k, &q, err) != 0) {
            db_done(&q);
            return -1;
        }
    }
    if (r < 0)
        return -1;
    if (k->b->scanned < k->b->max)
        return 0;
    return estimate(k, first, last, err);
}

/* ---- in claims ---- */

/* A fresh claim, as next_claim gives it. */
struct range {
    int64_t epoch;
    int lane;
    int64_t from, to;
    bool live;
};

/* count_range counts what a claim holds: in flight, or waiting again if it ran out. */
static int count_range(struct counting *k, const struct range *c, struct error *err)
{
    int r;
    bool payload = filter_has_where(k->filter);
    struct db_rows q = db_rows(
        k->st, err, SQL(claimed_events, .from_seq = c->from, .to_seq = c->to, .payload = payload));
    while ((r = db_step(&q, err)) == 1) {
        bool its_own = c->lane == STORE_ALL_LANES || lane_of(k, &q) == c->lane;
        if (!its_own || !wants(k, &q))
            continue;
        if (c->live) {
            k->b->inflight++;
        } else if (count_waiting(k, &q, err) != 0) {
            db_done(&q);
            return -1;
        }
    }
    return r;
}

/* next_range moves *c to the next fresh claim; 1: it did, 0: there is none (left), -1: failed. */
static int next_range(struct counting *k, struct range *c, struct error *err)
{
    struct db_rows q;
    int r = db_row(k->st, &q, err,
                   SQL(next_claim, .consumer = k->b->spec->name, .epoch = c->epoch, .now = k->now));
    if (r <= 0)
        return r;
    *c = (struct range){
        .epoch = db_int(&q, 0),
        .lane = (int)db_int(&q, 1),
        .from = db_int(&q, 2),
        .to = db_int(&q, 3),
        .live = db_int(&q, 4) != 0,
    };
    db_done(&q);
    return 1;
}

static int count_claims(struct counting *k, struct error *err)
{
    struct range c = {.epoch = -1};
    int64_t parked = 0;
    int r;
    while ((r = next_range(k, &c, err)) == 1)
        if (count_range(k, &c, err) != 0)
            return -1;
    if (r < 0)
        return -1;

    if (db_value(k->st, err, &parked,
                 SQL(count_parked_in_flight, .consumer = k->b->spec->name, .now = k->now)) != 0)
        return -1;
    k->b->inflight += parked;
    return 0;
}

int db_backlog(struct store *st, struct backlog *b, struct error *err)
{
    struct counting k = {.st = st, .b = b, .now = db_now(st)};
    if (filter_new(b->spec->events, b->spec->where, &k.filter, err) != 0)
        return -1;
    int r = read_lanes(&k, err);
    if (r == 0)
        r = count_fresh(&k, err);
    if (r == 0)
        r = count_claims(&k, err);
    filter_free(k.filter);
    return r;
}
