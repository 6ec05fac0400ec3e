/* backlog.c: counts of a consumer's undelivered events: unclaimed, in flight and parked. The cost
 * grows only with the number in flight, which workers hold in memory. */
#include "store/db/db.h"
#include "store/topics.h"
#include "store_sql.h"

/* The columns of @counted_columns@. */
enum { SEQ, TYPE, CREATED_AT, AGGREGATE_TYPE, AGGREGATE_ID, NOT_BEFORE, PAYLOAD };

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

/* Moves *to back to `at`; 0 is no time. */
static void earlier(int64_t *to, int64_t at)
{
    if (!*to || at < *to)
        *to = at;
}

/* Notes when an event could first have been delivered, unless that is still in the future. */
static void note_overdue(struct counting *k, int64_t since)
{
    if (since <= k->now)
        earlier(&k->b->overdue_at, since);
}

/* Notes the age and the type of an undelivered event. */
static int note_event(struct counting *k, enum topic_place place, struct str type, int64_t at,
                      struct error *err)
{
    struct topic_find one = {.place = place, .type = type, .n = 1, .oldest_at = at};
    earlier(&k->b->oldest_at, at);
    if (!k->b->topics)
        return 0;
    return topics_add(k->b->topics, &one, err);
}

/* Counts an event that is not parked: in a live claim, or unclaimed. */
static int count_event(struct counting *k, enum topic_place place, const struct db_rows *q,
                       struct error *err)
{
    int64_t at = db_int(q, CREATED_AT), not_before = db_int(q, NOT_BEFORE);
    if (place == TOPIC_CLAIMED) {
        k->b->inflight++;
    } else {
        k->b->unclaimed++;
        earlier(&k->b->unclaimed_at, at);
    }
    note_overdue(k, not_before > at ? not_before : at);
    return note_event(k, place, db_text(q, TYPE), at, err);
}

/* Extrapolates to `end` from `n` found between first and last. */
static int64_t project(int64_t n, int64_t first, int64_t last, int64_t end)
{
    if (end <= last)
        return n;
    return (int64_t)((double)n * (double)(end - first + 1) / (double)(last - first + 1));
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

/* Examines up to b->max events after the lowest position. */
static int count_fresh(struct counting *k, struct error *err)
{
    int64_t first = 0, last = 0, head = 0;
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
        if (count_event(k, TOPIC_UNCLAIMED, &q, err) != 0) {
            db_done(&q);
            return -1;
        }
    }
    if (r < 0)
        return -1;
    if (k->b->scanned < k->b->max)
        return 0;
    if (db_value(k->st, err, &head, SQL(last_event)) != 0)
        return -1;
    k->b->unclaimed = project(k->b->unclaimed, first, last, head);
    return 0;
}

/* ---- in claims ---- */

/* A fresh claim. */
struct range {
    int64_t epoch;
    int lane;
    int64_t from, to;
    bool live;
};

/* Counts the events of a claim: in flight, or unclaimed if it expired. */
static int count_range(struct counting *k, const struct range *c, struct error *err)
{
    int r;
    bool payload = filter_has_where(k->filter);
    enum topic_place place = c->live ? TOPIC_CLAIMED : TOPIC_UNCLAIMED;
    struct db_rows q = db_rows(
        k->st, err, SQL(claimed_events, .from_seq = c->from, .to_seq = c->to, .payload = payload));
    while ((r = db_step(&q, err)) == 1) {
        bool its_own = c->lane == STORE_ALL_LANES || lane_of(k, &q) == c->lane;
        if (!its_own || !wants(k, &q))
            continue;
        if (count_event(k, place, &q, err) != 0) {
            db_done(&q);
            return -1;
        }
    }
    return r;
}

/* Moves *c to the next fresh claim. 1: done; 0: there is none left; -1: it failed. */
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
    int r;
    while ((r = next_range(k, &c, err)) == 1)
        if (count_range(k, &c, err) != 0)
            return -1;
    if (r < 0)
        return -1;

    if (db_value(k->st, err, &k->b->parked_inflight,
                 SQL(count_parked_in_flight, .consumer = k->b->spec->name, .now = k->now)) != 0)
        return -1;
    k->b->inflight += k->b->parked_inflight;
    return 0;
}

/* ---- parked ---- */

static int count_rows(struct counting *k, struct error *err)
{
    struct db_rows q;
    int r = db_row(k->st, &q, err,
                   SQL(count_parked_rows, .consumer = k->b->spec->name, .max = STORE_PROBE_ROWS));
    if (r <= 0)
        return r;
    int64_t n = db_int(&q, 0);
    k->b->parked_exact = n < STORE_PROBE_ROWS;
    k->b->parked_rows = project(n, db_int(&q, 1), db_int(&q, 2), db_int(&q, 3));
    db_done(&q);
    return 0;
}

/* Notes the ages and types of the first parked events. */
static int note_parked(struct counting *k, struct error *err)
{
    int r;
    struct db_rows q = db_rows(
        k->st, err, SQL(parked_events, .consumer = k->b->spec->name, .max = STORE_PROBE_EVENTS));
    while ((r = db_step(&q, err)) == 1) {
        if (db_null(&q, 0))
            continue; /* the event and its dead letter were deleted by hand */
        if (note_event(k, TOPIC_PARKED, db_text(&q, 0), db_int(&q, 1), err) != 0) {
            db_done(&q);
            return -1;
        }
    }
    return r;
}

/* Reads the parked event that is overdue for longest. */
static int read_first(struct counting *k, struct error *err)
{
    bool ok = true;
    struct db_rows q;
    int r = db_row(
        k->st, &q, err,
        SQL(first_parked, .consumer = k->b->spec->name, .now = k->now, .max = STORE_PROBE_EVENTS));
    if (r <= 0)
        return r;
    k->b->first_parked = (struct parked_info){
        .seq = db_int(&q, 0),
        .attempts = (int)db_int(&q, 1),
        .due_at = db_int(&q, 2),
        .error = db_copy(&q, 3, k->b->a, &ok).p,
        .since = db_int(&q, 4),
    };
    db_done(&q);
    note_overdue(k, k->b->first_parked.since);
    return ok ? 0 : err_nomem(err);
}

static int count_parked(struct counting *k, struct error *err)
{
    if (count_rows(k, err) != 0)
        return -1;
    if (k->b->parked_rows == 0)
        return 0;
    if (note_parked(k, err) != 0)
        return -1;
    return read_first(k, err);
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
    if (r == 0)
        r = count_parked(&k, err);
    filter_free(k.filter);
    return r;
}
