/* former.c: filters a consumer had before. What was handed out under one was judged by it, and is
 * shown so. */
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

/* end_of tells how the event of a row ends that was claimed under the former filter: what the
 * present filter wants is delivered after all, what only the former one wanted never is. NULL:
 * neither wanted it, or it is of another lane. */
static const char *end_of(const struct taken_over *t, const struct filter *former, sqlite3_stmt *q)
{
    uint64_t key = event_key(sqlite_text(q, 3), sqlite_text(q, 4));
    if (event_lane(key, sqlite3_column_int64(q, 0), t->lanes) != t->lane)
        return NULL;
    if (wants(t->filter, q))
        return "delivered";
    if (wants(former, q))
        return "skipped";
    return NULL;
}

static int note_range(struct sqlite_store *st, const struct taken_over *t,
                      const struct filter *former, struct error *err)
{
    int r;
    sqlite3_stmt *q = sqlite_rows(st, err,
                                  SQL(taken_over_events, .from_seq = t->from, .to_seq = t->to));
    while ((r = sqlite_step(st, q, err)) == 1) {
        int64_t seq = sqlite3_column_int64(q, 0);
        const char *state = end_of(t, former, q);
        if (!state)
            continue;
        if (sqlite_run(st, err,
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
    sqlite3_stmt *q;
    int r = sqlite_row(st, &q, err,
                       SQL(former_of_claim, .consumer = t->consumer, .epoch = t->epoch));
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
