/* backlog.c: what waits for a consumer, and what is in flight, counted at a price that has a
 * bound. */
#include "sqlite_sql.h"
#include "store/sqlite/sqlite.h"

struct counting {
    struct sqlite_store *st;
    struct backlog *b;
    struct filter *filter;
    int64_t positions[STORE_LANES_MAX];
    int64_t low, now;
};

static bool wants(const struct counting *k, sqlite3_stmt *q)
{
    if (!filter_type(k->filter, sqlite_text(q, 1)))
        return false;
    return !filter_has_where(k->filter) || filter_payload(k->filter, sqlite_text(q, 5));
}

static int lane_of(const struct counting *k, sqlite3_stmt *q)
{
    if (k->b->spec->lanes <= 1)
        return 0;
    uint64_t key = event_key(sqlite_text(q, 3), sqlite_text(q, 4));
    return event_lane(key, sqlite3_column_int64(q, 0), k->b->spec->lanes);
}

/* found counts one that waits. */
static int found(struct counting *k, sqlite3_stmt *q, struct error *err)
{
    int64_t at = sqlite3_column_int64(q, 2);
    k->b->behind++;
    if (!k->b->oldest_at || at < k->b->oldest_at)
        k->b->oldest_at = at;
    if (!k->b->visit)
        return 0;
    return k->b->visit(k->b->ctx, q, err);
}

static int read_lanes(struct counting *k, struct error *err)
{
    int r;
    sqlite3_stmt *q = sqlite_rows(k->st, err, SQL(lane_positions, .consumer = k->b->spec->name));
    if (!q)
        return -1;
    k->low = INT64_MAX;
    while ((r = sqlite_step(k->st, q, err)) == 1) {
        int lane = sqlite3_column_int(q, 0);
        int64_t position = sqlite3_column_int64(q, 1);
        if (position < k->low)
            k->low = position;
        if (lane >= 0 && lane < STORE_LANES_MAX)
            k->positions[lane] = position;
    }
    return r;
}

/* count_fresh looks at what is behind the position that is furthest back. */
static int count_fresh(struct counting *k, struct error *err)
{
    int64_t first = 0, last = 0, head = 0;
    int r;
    bool payload = filter_has_where(k->filter);
    sqlite3_stmt *q = sqlite_rows(
        k->st, err, SQL(waiting_events, .position = k->low, .max = k->b->max, .payload = payload));
    if (!q)
        return -1;
    while ((r = sqlite_step(k->st, q, err)) == 1) {
        last = sqlite3_column_int64(q, 0);
        if (!first)
            first = last;
        k->b->scanned++;
        if (last <= k->positions[lane_of(k, q)] || !wants(k, q))
            continue;
        if (found(k, q, err) != 0) {
            sqlite3_reset(q);
            return -1;
        }
    }
    if (r < 0)
        return -1;
    if (k->b->scanned < k->b->max)
        return 0;
    if (sqlite_value(k->st, err, &head, SQL(last_event)) != 0)
        return -1;
    if (head > last)
        k->b->behind = (int64_t)((double)k->b->behind * (double)(head - first + 1) /
                                 (double)(last - first + 1));
    return 0;
}

/* count_range counts what a claim holds: in flight, or waiting again if it ran out. */
static int count_range(struct counting *k, int lane, int64_t from, int64_t to, bool live,
                       struct error *err)
{
    int r;
    bool payload = filter_has_where(k->filter);
    sqlite3_stmt *q = sqlite_rows(
        k->st, err, SQL(claimed_events, .from_seq = from, .to_seq = to, .payload = payload));
    if (!q)
        return -1;
    while ((r = sqlite_step(k->st, q, err)) == 1) {
        if (lane_of(k, q) != lane || !wants(k, q))
            continue;
        if (live)
            k->b->inflight++;
        else if (found(k, q, err) != 0) {
            sqlite3_reset(q);
            return -1;
        }
    }
    return r;
}

static int count_claims(struct counting *k, struct error *err)
{
    int64_t after = -1, parked = 0;
    for (;;) {
        sqlite3_stmt *q = sqlite_rows(
            k->st, err,
            SQL(next_claim, .consumer = k->b->spec->name, .epoch = after, .now = k->now));
        int r = q ? sqlite_step(k->st, q, err) : -1;
        if (r < 0)
            return -1;
        if (r == 0)
            break;
        after = sqlite3_column_int64(q, 0);
        int lane = sqlite3_column_int(q, 1);
        int64_t from = sqlite3_column_int64(q, 2), to = sqlite3_column_int64(q, 3);
        bool live = sqlite3_column_int(q, 4) != 0;
        sqlite3_reset(q);
        if (count_range(k, lane, from, to, live, err) != 0)
            return -1;
    }
    if (sqlite_value(k->st, err, &parked,
                     SQL(count_parked_in_flight, .consumer = k->b->spec->name, .now = k->now)) != 0)
        return -1;
    k->b->inflight += parked;
    return 0;
}

int sqlite_backlog(struct sqlite_store *st, struct backlog *b, struct error *err)
{
    struct counting k = {.st = st, .b = b, .now = sqlite_now(st)};
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
