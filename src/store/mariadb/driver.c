/* driver.c: what store/db asks of MariaDB. */
#include <mysqld_error.h>

#include "store/mariadb/mariadb.h"

static void *start(struct store *st, const struct sql *sql, const void *args, struct error *err)
{
    return mdb_rows(mdb_of(st), err, sql, args);
}

static int step(struct db_rows *q, struct error *err)
{
    struct mdb_rows *at = q->at;
    (void)err; /* all rows are here */
    return mdb_step(&at);
}

static void done(struct db_rows *q)
{
    mdb_done(q->at);
}

static bool null(const struct db_rows *q, int col)
{
    return mdb_null(q->at, col);
}

static int64_t integer(const struct db_rows *q, int col)
{
    return mdb_int(q->at, col);
}

static struct str text(const struct db_rows *q, int col)
{
    return mdb_text(q->at, col);
}

static bool event_row(const struct db_rows *q, struct arena *a, struct event *ev)
{
    return mdb_event_row(q->at, a, ev);
}

static int64_t changed(struct store *st)
{
    return mdb_of(st)->changed;
}

static int64_t now(struct store *st)
{
    return mdb_now(mdb_of(st));
}

static int snapshot_begin(struct store *st, bool *ret_own, struct error *err)
{
    return mdb_snapshot_begin(mdb_of(st), ret_own, err);
}

static void snapshot_end(struct store *st, bool own)
{
    mdb_snapshot_end(mdb_of(st), own);
}

/* number does nothing inside a transaction: what was committed before it has its numbers. */
static int number(struct store *st, struct error *err)
{
    if (mdb_of(st)->in_tx)
        return 0;
    return mdb_sequence(mdb_of(st), err);
}

static void news(struct store *st)
{
    mdb_news(mdb_of(st));
}

static bool again(const struct error *why)
{
    return why->native == ER_DUP_ENTRY || why->native == ER_LOCK_DEADLOCK;
}

const struct db_driver mdb_driver = {
    .dialect = SQL_MARIADB,
    .rows = start,
    .step = step,
    .done = done,
    .null = null,
    .integer = integer,
    .text = text,
    .event_row = event_row,
    .changed = changed,
    .begin = mdb_begin,
    .commit = mdb_commit,
    .rollback = mdb_rollback,
    .now = now,
    .snapshot_begin = snapshot_begin,
    .snapshot_end = snapshot_end,
    .number = number,
    .news = news,
    .again = again,
};
