/* transaction.c: beginning and ending transactions, also where memory or the disk gives out. */
#include "store/sqlite/sqlite.h"

/* The cache compares addresses, so each text stands here once. */
static const char begin_sql[] = "BEGIN IMMEDIATE";
static const char commit_sql[] = "COMMIT";
static const char rollback_sql[] = "ROLLBACK";
static const char read_sql[] = "BEGIN";

int sqlite_tx_prepare(struct sqlite_store *st, struct error *err)
{
    static const char *const all[] = {begin_sql, commit_sql, rollback_sql};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!sqlite_plain(st, all[i], err))
            return -1;
    return 0;
}

int sqlite_unstick(struct sqlite_store *st, struct error *err)
{
    if (!st->stuck)
        return 0;
    int rc = SQLITE_OK;
    if (!sqlite3_get_autocommit(st->db))
        rc = sqlite3_exec(st->db, rollback_sql, NULL, NULL, NULL);
    if (rc != SQLITE_OK)
        return sqlite_fail(st, st->db, rc, err);
    st->stuck = false;
    return 0;
}

int sqlite_tx_gone(struct sqlite_store *st, struct error *err)
{
    if (sqlite_unstick(st, err) != 0)
        return -1;
    bool gone = st->in_tx && sqlite3_get_autocommit(st->db);
    if (!gone)
        return 0;
    return err_set(
        err, ERR_MISUSE,
        "an earlier failure made the database roll this transaction back: begin it again");
}

int sqlite_begin(struct store *base, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    if (st->in_tx)
        return err_set(err, ERR_MISUSE, "a transaction is open already");
    if (sqlite_exec(st, begin_sql, err) != 0)
        return -1;
    st->in_tx = true;
    st->quiet = false;
    st->began = clock_wall(st->opt.clock);
    return 0;
}

/* commit is the COMMIT itself. The commit hook of effects.c lets it pass while committing is
 * set. */
static int commit(struct sqlite_store *st, struct error *err)
{
    if (sqlite_tx_gone(st, err) != 0)
        return -1;
    st->committing = true;
    int r = sqlite_exec(st, commit_sql, err);
    st->committing = false;
    return r;
}

/* commit_counted counts the commit if it is no news to our relay. The counter is set back before
 * the write lock is let go, if it can be. If not, somebody is woken for nothing. */
static int commit_counted(struct sqlite_store *st, struct error *err)
{
    if (!st->quiet)
        return commit(st, err);
    atomic_fetch_add(&st->family->quiet_commits, 1);
    if (commit(st, err) == 0)
        return 0;
    atomic_fetch_sub(&st->family->quiet_commits, 1);
    return -1;
}

int sqlite_commit(struct store *base, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    if (!st->in_tx)
        return err_set(err, ERR_MISUSE, "no transaction is open");
    if (commit_counted(st, err) != 0) {
        sqlite_rollback(base);
        return -1;
    }
    st->in_tx = false;
    return sqlite_home_check(st, err); /* a commit into a file that is gone did not happen */
}

void sqlite_rollback(struct store *base)
{
    struct sqlite_store *st = sqlite_of(base);
    for (size_t i = 0; i < st->n_cached; i++)
        sqlite3_reset(st->cached[i].stmt);
    if (!sqlite3_get_autocommit(st->db))
        sqlite_exec(st, rollback_sql, NULL);
    st->stuck = !sqlite3_get_autocommit(st->db);
    st->in_tx = false;
}

int sqlite_snapshot_begin(struct sqlite_store *st, bool *ret_own, struct error *err)
{
    *ret_own = sqlite3_get_autocommit(st->db) != 0;
    if (!*ret_own)
        return 0;
    return sqlite_exec(st, read_sql, err);
}

void sqlite_snapshot_end(struct sqlite_store *st, bool own)
{
    if (own)
        sqlite_exec(st, rollback_sql, NULL);
}
