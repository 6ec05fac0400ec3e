/* former.c: filters that a consumer had. What was handed out while one was in force was judged by
 * it, and is shown so. */
#include "sqlite_sql.h"
#include "store/sqlite/sqlite.h"

int sqlite_former_keep(struct sqlite_store *st, const char *name, struct error *err)
{
    int64_t n = 0, moved = 0;
    if (sqlite_value(st, err, &n, SQL(last_former, .consumer = name)) != 0)
        return -1;
    if (sqlite_value(st, err, &moved, SQL(moved_since_former, .consumer = name, .n = n)) != 0)
        return -1;
    if (!moved)
        return 0;
    return sqlite_run(st, err, SQL(put_former, .consumer = name, .n = n));
}

static bool wants(const struct filter *f, sqlite3_stmt *q)
{
    return filter_type(f, sqlite_text(q, 2)) && filter_payload(f, sqlite_text(q, 6));
}

/* note_range: what the filter of now wants is delivered after all; what only the former one wanted
 * never is. */
static int note_range(struct sqlite_store *st, const struct taken_over *t,
                      const struct filter *former, struct error *err)
{
    int r;
    sqlite3_stmt *q = sqlite_rows(st, err,
                                  SQL(taken_over_events, .from_seq = t->from, .to_seq = t->to));
    if (!q)
        return -1;
    while ((r = sqlite_step(st, q, err)) == 1) {
        int64_t seq = sqlite3_column_int64(q, 0);
        const char *state = NULL;
        if (event_lane(event_key(sqlite_text(q, 3), sqlite_text(q, 4)), seq, t->lanes) != t->lane)
            continue;
        if (wants(t->filter, q))
            state = "delivered";
        else if (wants(former, q))
            state = "skipped";
        if (state &&
            sqlite_run(st, err,
                       SQL(put_ended, .consumer = t->consumer, .seq = seq, .state = state)) != 0) {
            sqlite3_reset(q);
            return -1;
        }
    }
    return r;
}

int sqlite_former_taken_over(struct sqlite_store *st, const struct taken_over *t, struct error *err)
{
    struct filter *former = NULL;
    sqlite3_stmt *q = sqlite_rows(st, err,
                                  SQL(former_of_claim, .consumer = t->consumer, .epoch = t->epoch));
    int r = q ? sqlite_step(st, q, err) : -1;
    if (r <= 0)
        return r;
    r = filter_new(sqlite_text(q, 0).p, sqlite_text(q, 1).p, &former, err);
    sqlite3_reset(q);
    if (r != 0)
        return -1;
    r = note_range(st, t, former, err);
    filter_free(former);
    return r;
}
