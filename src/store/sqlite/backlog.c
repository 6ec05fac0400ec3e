/* backlog.c: what waits for a consumer, and what is in flight, counted at a price that has a bound. */
#include "store/sqlite/sqlite.h"

/* seq, type, created_at, key, and the payload only where a predicate asks for it. */
#define COUNT_COLUMNS "seq, type, created_at, aggregate_type, aggregate_id, CASE WHEN ?3 THEN payload END"

struct counting {
    struct sqlite_store *st;
    struct backlog *b;
    struct filter *filter;
    int64_t positions[STORE_LANES_MAX];
    int64_t low, now;
};

static bool wants(const struct counting *k, sqlite3_stmt *q)
{
    if (!filter_type(k->filter, sqlite_text(q, 1))) return false;
    return !filter_has_where(k->filter) || filter_payload(k->filter, sqlite_text(q, 5));
}

static int lane_of(const struct counting *k, sqlite3_stmt *q)
{
    if (k->b->spec->lanes <= 1) return 0;
    uint64_t key = event_key(sqlite_text(q, 3), sqlite_text(q, 4));
    return event_lane(key, sqlite3_column_int64(q, 0), k->b->spec->lanes);
}

/* found counts one that waits. */
static int found(struct counting *k, sqlite3_stmt *q, struct error *err)
{
    int64_t at = sqlite3_column_int64(q, 2);
    k->b->behind++;
    if (!k->b->oldest_at || at < k->b->oldest_at) k->b->oldest_at = at;
    if (!k->b->visit) return 0;
    return k->b->visit(k->b->ctx, q, err);
}

static int read_lanes(struct counting *k, struct error *err)
{
    int r;
    sqlite3_stmt *q = sqlite_query(k->st, err, "SELECT lane, position FROM outbox_lane WHERE consumer = ?", "s",
                                   k->b->spec->name);
    if (!q) return -1;
    k->low = INT64_MAX;
    while ((r = sqlite_step(k->st, q, err)) == 1) {
        int lane = sqlite3_column_int(q, 0);
        int64_t position = sqlite3_column_int64(q, 1);
        if (position < k->low) k->low = position;
        if (lane >= 0 && lane < STORE_LANES_MAX) k->positions[lane] = position;
    }
    return r;
}

/* count_fresh looks at what is behind the position that is furthest back. */
static int count_fresh(struct counting *k, struct error *err)
{
    int64_t first = 0, last = 0, head = 0;
    int r;
    sqlite3_stmt *q = sqlite_query(k->st, err,
                                   "SELECT " COUNT_COLUMNS " FROM outbox_event WHERE seq > ?1 ORDER BY seq LIMIT ?2",
                                   "iii", k->low, k->b->max, (int64_t)filter_has_where(k->filter));
    if (!q) return -1;
    while ((r = sqlite_step(k->st, q, err)) == 1) {
        last = sqlite3_column_int64(q, 0);
        if (!first) first = last;
        k->b->scanned++;
        if (last <= k->positions[lane_of(k, q)] || !wants(k, q)) continue;
        if (found(k, q, err) != 0) {
            sqlite3_reset(q);
            return -1;
        }
    }
    if (r < 0) return -1;
    if (k->b->scanned < k->b->max) return 0;
    if (sqlite_number(k->st, err, &head, "SELECT max(seq) FROM outbox_event", "") != 0) return -1;
    if (head > last)
        k->b->behind = (int64_t)((double)k->b->behind * (double)(head - first + 1) / (double)(last - first + 1));
    return 0;
}

/* count_range counts what a claim holds: in flight, or waiting again if it ran out. */
static int count_range(struct counting *k, int lane, int64_t from, int64_t to, bool live, struct error *err)
{
    int r;
    sqlite3_stmt *q = sqlite_query(
        k->st, err, "SELECT " COUNT_COLUMNS " FROM outbox_event WHERE seq > ?1 AND seq <= ?2 ORDER BY seq", "iii", from,
        to, (int64_t)filter_has_where(k->filter));
    if (!q) return -1;
    while ((r = sqlite_step(k->st, q, err)) == 1) {
        if (lane_of(k, q) != lane || !wants(k, q)) continue;
        if (live) k->b->inflight++;
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
        sqlite3_stmt *q = sqlite_query(
            k->st, err,
            "SELECT epoch, lane, from_seq, to_seq, locked_until > ?3 FROM outbox_claim WHERE "
            "consumer = ?1 AND epoch > ?2 AND parked = 0 ORDER BY epoch LIMIT 1",
            "sii", k->b->spec->name, after, k->now);
        int r = q ? sqlite_step(k->st, q, err) : -1;
        if (r < 0) return -1;
        if (r == 0) break;
        after = sqlite3_column_int64(q, 0);
        int lane = sqlite3_column_int(q, 1);
        int64_t from = sqlite3_column_int64(q, 2), to = sqlite3_column_int64(q, 3);
        bool live = sqlite3_column_int(q, 4) != 0;
        sqlite3_reset(q);
        if (count_range(k, lane, from, to, live, err) != 0) return -1;
    }
    if (sqlite_number(
            k->st, err, &parked,
            "SELECT count(*) FROM outbox_parked p JOIN outbox_claim c ON c.consumer = p.consumer AND c.epoch = "
            "p.claim WHERE p.consumer = ? AND c.locked_until > ?",
            "si", k->b->spec->name, k->now) != 0)
        return -1;
    k->b->inflight += parked;
    return 0;
}

int sqlite_backlog(struct sqlite_store *st, struct backlog *b, struct error *err)
{
    struct counting k = {.st = st, .b = b, .now = sqlite_now(st)};
    if (filter_new(b->spec->events, b->spec->where, &k.filter, err) != 0) return -1;
    int r = read_lanes(&k, err);
    if (r == 0) r = count_fresh(&k, err);
    if (r == 0) r = count_claims(&k, err);
    filter_free(k.filter);
    return r;
}
