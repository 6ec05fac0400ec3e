/* former.c: filters that a consumer had. What was handed out while one was in force was judged by it, and is shown so. */
#include "sqlite_sql.h"
#include "store/sqlite/sqlite.h"

int sqlite_former_keep(struct sqlite_store *st, const char *name, struct error *err)
{
    int64_t n = 0, moved = 0;
    if (sqlite_number(st, err, &n, "SELECT max(n) FROM outbox_former_filter WHERE consumer = ?", "s", name) != 0)
        return -1;
    if (sqlite_number(st, err, &moved,
                      "SELECT EXISTS (SELECT 1 FROM outbox_lane l JOIN outbox_consumer c ON c.name = l.consumer WHERE "
                      "l.consumer = ?1 AND NOT EXISTS (SELECT 1 FROM outbox_former_filter f WHERE f.consumer = ?1 AND "
                      "f.n = ?2 AND f.lane = l.lane AND f.lanes = c.lanes AND f.position = l.position))",
                      "si", name, n) != 0)
        return -1;
    if (!moved) return 0;
    return sqlite_exec(
        st, err,
        "INSERT INTO outbox_former_filter (consumer, n, lane, lanes, position, low, high, epoch, events, "
        "predicate) SELECT c.name, ?2 + 1, l.lane, c.lanes, l.position, (SELECT min(position) FROM "
        "outbox_lane WHERE consumer = ?1), (SELECT max(position) FROM outbox_lane WHERE consumer = ?1), "
        "c.epoch, c.events, c.predicate FROM outbox_consumer c JOIN outbox_lane l ON l.consumer = c.name "
        "WHERE c.name = ?1",
        "si", name, n);
}

/* note keeps how an event ends that the former filter would tell wrongly. */
static int note(struct sqlite_store *st, const char *consumer, int64_t seq, const char *state, struct error *err)
{
    return sqlite_exec(st, err, "INSERT OR IGNORE INTO outbox_ended (seq, consumer, state) VALUES (?, ?, ?)", "iss",
                       seq, consumer, state);
}

static bool wants(const struct filter *f, sqlite3_stmt *q)
{
    return filter_type(f, sqlite_text(q, 2)) && filter_payload(f, sqlite_text(q, 6));
}

/* note_range: what the filter of now wants is delivered after all; what only the former one wanted never is. */
static int note_range(struct sqlite_store *st, const struct taken_over *t, const struct filter *former,
                      struct error *err)
{
    int r;
    sqlite3_stmt *q = sqlite_query(st, err,
                                   "SELECT " EVENT_COLUMNS " FROM outbox_event WHERE seq > ? AND seq <= ? ORDER BY seq",
                                   "ii", t->from, t->to);
    if (!q) return -1;
    while ((r = sqlite_step(st, q, err)) == 1) {
        int64_t seq = sqlite3_column_int64(q, 0);
        const char *state = NULL;
        if (event_lane(event_key(sqlite_text(q, 3), sqlite_text(q, 4)), seq, t->lanes) != t->lane) continue;
        if (wants(t->filter, q)) state = "delivered";
        else if (wants(former, q)) state = "skipped";
        if (state && note(st, t->consumer, seq, state, err) != 0) {
            sqlite3_reset(q);
            return -1;
        }
    }
    return r;
}

int sqlite_former_taken_over(struct sqlite_store *st, const struct taken_over *t, struct error *err)
{
    struct filter *former = NULL;
    sqlite3_stmt *q = sqlite_query(
        st, err,
        "SELECT events, predicate FROM outbox_former_filter WHERE consumer = ? AND epoch >= ? "
        "ORDER BY n, lane LIMIT 1",
        "si", t->consumer, t->epoch);
    int r = q ? sqlite_step(st, q, err) : -1;
    if (r <= 0) return r;
    r = filter_new(sqlite_text(q, 0).p, sqlite_text(q, 1).p, &former, err);
    sqlite3_reset(q);
    if (r != 0) return -1;
    r = note_range(st, t, former, err);
    filter_free(former);
    return r;
}
