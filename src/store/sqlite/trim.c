/* trim.c: deleting what is old and needed by nobody, a little at a time. */
#include <stdio.h>

#include "base/bug.h"
#include "store/sqlite/sqlite.h"

#define TRIM_ROWS 1000

/* find_floor: events up to *ret are needed by no consumer; pin says who holds it there. */
static int find_floor(struct sqlite_store *st, int64_t *ret, char pin[160], struct error *err)
{
    struct arena a;
    struct consumer_info *c;
    size_t n;
    arena_init(&a, 0);
    int r = sqlite_consumer_list(&st->base, NULL, &a, &c, &n, err);
    *ret = r == 0 && n > 0 ? INT64_MAX : 0;
    snprintf(pin, 160, "no consumer is registered yet");
    for (size_t i = 0; r == 0 && i < n; i++) {
        if (c[i].floor >= *ret) continue;
        *ret = c[i].floor;
        snprintf(pin, 160, "consumer \"%s\" (%s at %lld%s)", c[i].spec.name, c[i].floor_pin, (long long)c[i].floor,
                 c[i].paused ? ", paused" : "");
    }
    arena_release(&a);
    return r;
}

/* old_end: the last seq such that it and everything before it is older than the cutoff, looking at most `max` rows
 * ahead (0: all). Old means from the old end: seq order is time order but for clocks that were set back. */
static int old_end(struct sqlite_store *st, int64_t cutoff, int64_t max, int64_t *ret_seq, int64_t *ret_n,
                   struct error *err)
{
    sqlite3_stmt *q = sqlite_query(st, err, "SELECT seq, created_at FROM outbox_event ORDER BY seq LIMIT ?", "i",
                                   max ? max : INT64_MAX);
    int r = q ? 1 : -1;
    *ret_seq = *ret_n = 0;
    while (q && (r = sqlite_step(st, q, err)) == 1 && sqlite3_column_int64(q, 1) < cutoff) {
        *ret_seq = sqlite3_column_int64(q, 0);
        ++*ret_n;
    }
    if (q) sqlite3_reset(q);
    return r < 0 ? -1 : 0;
}

static int count_to(struct sqlite_store *st, int64_t seq, int64_t *ret, struct error *err)
{
    *ret = 0;
    return sqlite_number(st, err, ret, "SELECT count(*) FROM outbox_event WHERE seq <= ?", "i", seq);
}

static int64_t inbox_end(const struct sqlite_store *st, const struct trim_request *req)
{
    return sqlite_now(st) - (req->inbox_ms ? req->inbox_ms : req->older_than_ms);
}

static int trim_keys(struct sqlite_store *st, int64_t cutoff, int64_t inbox_cutoff, int64_t max, struct trim_result *t,
                     struct error *err)
{
    if (sqlite_exec(
            st, err,
            "DELETE FROM outbox_idempotency WHERE key IN (SELECT key FROM outbox_idempotency WHERE at < ? ORDER "
            "BY at LIMIT ?)",
            "ii", cutoff, max) != 0)
        return -1;
    t->keys += sqlite3_changes(st->db);
    if (sqlite_exec(
            st, err,
            "DELETE FROM outbox_handled WHERE (handler, key) IN (SELECT handler, key FROM outbox_handled WHERE at "
            "< ? ORDER BY at LIMIT ?)",
            "ii", inbox_cutoff, max) != 0)
        return -1;
    t->keys += sqlite3_changes(st->db);
    if (sqlite_exec(
            st, err,
            "DELETE FROM outbox_receipt WHERE (consumer, seq) IN (SELECT consumer, seq FROM outbox_receipt WHERE "
            "at < ? ORDER BY at LIMIT ?)",
            "ii", cutoff, max) != 0)
        return -1;
    t->keys += sqlite3_changes(st->db);
    return 0;
}

static int dry_run(struct sqlite_store *st, const struct trim_request *req, int64_t cutoff, int64_t floor,
                   struct trim_result *t, struct error *err)
{
    int64_t old_seq, old_n;
    if (old_end(st, cutoff, 0, &old_seq, &old_n, err) != 0) return -1;
    if (count_to(st, old_seq < floor ? old_seq : floor, &t->events, err) != 0) return -1;
    t->kept_for_pin = old_n - t->events;
    if (t->kept_for_pin == 0) t->pin[0] = '\0';
    return sqlite_number(st, err, &t->keys,
                         "SELECT (SELECT count(*) FROM outbox_idempotency WHERE at < ?1) + (SELECT count(*) FROM "
                         "outbox_handled WHERE at < ?2) + (SELECT count(*) FROM outbox_receipt WHERE at < ?1)",
                         "ii", cutoff, inbox_end(st, req));
}

static int trim_some(struct sqlite_store *st, const struct trim_request *req, int64_t cutoff, int64_t floor,
                     struct trim_result *t, struct error *err)
{
    int64_t max = req->max_rows ? (int64_t)req->max_rows : TRIM_ROWS, seq, n;
    if (old_end(st, cutoff, max, &seq, &n, err) != 0) return -1;
    int64_t last = seq < floor ? seq : floor + BUG(RETENTION_EDGE);
    if (n > 0 && sqlite_exec(st, err, "DELETE FROM outbox_event WHERE seq <= ?", "i", last) != 0) return -1;
    t->events = n > 0 ? sqlite3_changes(st->db) : 0;
    t->kept_for_pin = n - t->events;
    if (t->kept_for_pin == 0) t->pin[0] = '\0';
    if (trim_keys(st, cutoff, inbox_end(st, req), max, t, err) != 0) return -1;
    t->more = t->events == max || t->keys >= max;
    return 0;
}

int sqlite_trim(struct store *base, const struct trim_request *req, struct trim_result *ret, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    struct trim_result t = {0};
    int64_t floor, cutoff = sqlite_now(st) - req->older_than_ms;
    if (req->dry_run) {
        if (find_floor(st, &floor, t.pin, err) != 0 || dry_run(st, req, cutoff, floor, &t, err) != 0) return -1;
        *ret = t;
        return 0;
    }
    if (sqlite_begin(base, err) != 0) return -1; /* the floor is found under the lock: nobody moves it meanwhile */
    if (sqlite_numbers_keep(st, err) != 0 || find_floor(st, &floor, t.pin, err) != 0 ||
        trim_some(st, req, cutoff, floor, &t, err) != 0) {
        sqlite_rollback(base);
        return -1;
    }
    if (sqlite_commit(base, err) != 0) return -1;
    *ret = t;
    return 0;
}
