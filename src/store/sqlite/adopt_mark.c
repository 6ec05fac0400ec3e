/* adopt_mark.c: marking rows as processed once a consumer has had them, in the transaction that
 * settles their delivery. */
#include <string.h>

#include "store/sqlite/adopt.h"
#include "store_sql.h"

#define IDS_MAX ((size_t)1 << 24) /* bytes of the ids that one settlement marks */

/* ---- how to mark ---- */

/* How a processed row may look. */
enum stamp { STAMP_TIME, STAMP_RFC3339, STAMP_TRUE, STAMP_SECONDS, STAMP_MS, STAMP_JULIAN };
static const char *const stamps[] = {
    [STAMP_TIME] = "datetime('now')",
    [STAMP_RFC3339] = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')",
    [STAMP_TRUE] = "1",
    [STAMP_SECONDS] = "CAST(strftime('%s', 'now') AS INTEGER)",
    [STAMP_MS] = NOW_MS,
    [STAMP_JULIAN] = "julianday('now')",
};

static enum stamp stamp_of_type(const char *type)
{
    if (strcasestr(type, "BOOL"))
        return STAMP_TRUE;
    if (strcasestr(type, "INT"))
        return STAMP_SECONDS;
    return STAMP_TIME;
}

/* select_stamp prepares a query for the stamp that a processed row of the table has; `usual` if
 * its type tells nothing. */
static sqlite3_stmt *select_stamp(const struct source *s, const char *column, enum stamp usual,
                                  struct error *err)
{
    sqlite3_str *q = sqlite3_str_new(sqlite_of(s->st)->db);
    sqlite3_str_appendf(q,
                        "SELECT CASE typeof(x)"
                        " WHEN 'text' THEN CASE WHEN x LIKE '%%T%%' THEN %d ELSE %d END"
                        " WHEN 'integer' THEN CASE WHEN x = 1 THEN %d"
                        " WHEN x > 100000000000 THEN %d ELSE %d END"
                        " WHEN 'real' THEN CASE WHEN x < 10000000 THEN %d ELSE %d END"
                        " ELSE %d END"
                        " FROM (SELECT s.\"%w\" AS x FROM main.\"%w\" AS s WHERE NOT ",
                        STAMP_RFC3339, STAMP_TIME, STAMP_TRUE, STAMP_MS, STAMP_SECONDS,
                        STAMP_JULIAN, STAMP_SECONDS, usual, column, s->name);
    sqlite_adopt_add_open(q, column, "s");
    sqlite3_str_appendall(q, " LIMIT 1)");
    return sqlite_adopt_prepare(sqlite_of(s->st), q, err);
}

/* sqlite_mark_stamp takes a row that is marked already for an example. If there is none, it goes by
 * the declared type of the column. */
int sqlite_mark_stamp(const struct source *s, const char *column, const char **ret,
                      struct error *err)
{
    enum stamp stamp = stamp_of_type(s->type[db_source_column(s, column)]);
    sqlite3_stmt *q = select_stamp(s, column, stamp, err);
    if (!q)
        return -1;
    int rc = sqlite3_step(q);
    if (rc == SQLITE_ROW)
        stamp = (enum stamp)sqlite3_column_int(q, 0);
    sqlite3_finalize(q);
    bool failed = rc != SQLITE_ROW && rc != SQLITE_DONE;
    if (failed)
        return sqlite_fail(sqlite_of(s->st), sqlite_of(s->st)->db, rc, err);
    *ret = stamps[stamp];
    return 0;
}

/* ---- marking ---- */

/* run_mark runs the UPDATE in q, which it frees, for these ids. */
static int run_mark(struct sqlite_store *st, sqlite3_str *q, const char *ids, struct error *err)
{
    sqlite3_stmt *stmt = sqlite_adopt_prepare(st, q, err);
    if (!stmt)
        return -1;
    sqlite3_bind_text(stmt, 1, ids, -1, SQLITE_STATIC);
    int rc = sqlite3_step(stmt);
    sqlite3_finalize(stmt);
    return rc == SQLITE_DONE ? 0 : sqlite_fail(st, st->db, rc, err);
}

/* mark_rows marks the rows of one table, which is a row of marked_tables, with one UPDATE. */
static int mark_rows(struct sqlite_store *st, const struct db_rows *table, const char *ids,
                     struct error *err)
{
    const char *source = db_text(table, 0).p, *mark = db_text(table, 1).p;
    const char *key = db_text(table, 2).p, *stamp = db_text(table, 3).p;
    sqlite3_str *q = sqlite3_str_new(st->db);
    sqlite3_str_appendf(q,
                        "UPDATE main.\"%w\" AS s SET \"%w\" = %s"
                        " WHERE s.\"%w\" IN (SELECT a.row FROM outbox_adopted_row a"
                        " WHERE a.source = %Q"
                        " AND a.event_id IN (SELECT value FROM json_each(?1)))"
                        " AND ",
                        source, mark, stamp, key, source);
    sqlite_adopt_add_open(q, mark, "s");
    if (run_mark(st, q, ids, err) != 0)
        return err_prefix(err, "could not mark rows of %.100s (outbox adopt --drop-mark ends that)",
                          source);
    return 0;
}

/* mark_tables marks rows in each of the tables that q lists, which is at its first row. */
static int mark_tables(struct sqlite_store *st, struct db_rows *q, const char *ids,
                       struct error *err)
{
    int r = 1;
    while (r == 1) {
        if (mark_rows(st, q, ids, err) != 0)
            return -1;
        r = db_step(q, err);
    }
    if (r < 0)
        return -1;
    return db_run(&st->base.store, err, SQL(forget_marked, .ids = ids));
}

int sqlite_adopt_mark(struct store *st, const char *consumer, const struct settlement *s,
                      struct error *err)
{
    struct db_rows q;
    if (!s)
        return 0;
    int r = db_row(st, &q, err, SQL(marked_tables, .consumer = consumer));
    if (r <= 0)
        return r;

    struct buf ids;
    buf_init(&ids, IDS_MAX);
    size_t n = db_delivered_ids(s, &ids);
    r = 0;
    if (!buf_cstr(&ids))
        r = err_nomem(err);
    else if (n > 0)
        r = mark_tables(sqlite_of(st), &q, ids.p, err);
    db_done(&q);
    buf_release(&ids);
    return r;
}
