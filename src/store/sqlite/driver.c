/* driver.c: what store/db asks of SQLite. */
#include "store/sqlite/sqlite.h"

static void *start(struct store *st, const struct sql *sql, const void *args, struct error *err)
{
    return sqlite_rows(sqlite_of(st), err, sql, args);
}

static int step(struct db_rows *q, struct error *err)
{
    return sqlite_step(sqlite_of(q->st), q->at, err);
}

static void done(struct db_rows *q)
{
    sqlite3_reset(q->at);
}

static bool null(const struct db_rows *q, int col)
{
    return sqlite3_column_type(q->at, col) == SQLITE_NULL;
}

static int64_t integer(const struct db_rows *q, int col)
{
    return sqlite3_column_int64(q->at, col);
}

static struct str text(const struct db_rows *q, int col)
{
    return sqlite_text(q->at, col);
}

static bool event_row(const struct db_rows *q, struct arena *a, struct event *ev)
{
    return sqlite_event_row(q->at, a, ev);
}

static int64_t changed(struct store *st)
{
    return sqlite3_changes(sqlite_of(st)->db);
}

static int64_t now(struct store *st)
{
    return sqlite_now(sqlite_of(st));
}

static int snapshot_begin(struct store *st, bool *ret_own, struct error *err)
{
    return sqlite_snapshot_begin(sqlite_of(st), ret_own, err);
}

static void snapshot_end(struct store *st, bool own)
{
    sqlite_snapshot_end(sqlite_of(st), own);
}

static int keep_numbers(struct store *st, struct error *err)
{
    return sqlite_numbers_keep(sqlite_of(st), err);
}

const struct db_driver sqlite_driver = {
    .dialect = SQL_SQLITE,
    .streams = true,
    .rows = start,
    .step = step,
    .done = done,
    .null = null,
    .integer = integer,
    .text = text,
    .event_row = event_row,
    .changed = changed,
    .begin = sqlite_begin,
    .commit = sqlite_commit,
    .rollback = sqlite_rollback,
    .now = now,
    .snapshot_begin = snapshot_begin,
    .snapshot_end = snapshot_end,
    .keep_numbers = keep_numbers,
};
