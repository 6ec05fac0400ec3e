/* transaction.c: beginning and ending transactions, including when memory or disk space runs out,
 * and transactions that the application's handlers use. */
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

int sqlite_tx_gone(struct store *base, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    if (sqlite_unstick(st, err) != 0)
        return -1;
    bool gone = st->base.in_tx && sqlite3_get_autocommit(st->db);
    if (!gone)
        return 0;
    return err_set(
        err, ERR_MISUSE,
        "an earlier failure made the database roll this transaction back: begin it again");
}

int sqlite_begin(struct store *base, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    if (st->base.in_tx)
        return err_set(err, ERR_MISUSE, "a transaction is open already");
    if (sqlite_exec(st, begin_sql, err) != 0)
        return -1;
    st->base.in_tx = true;
    st->base.own_commit = false;
    st->base.began = clock_wall(st->base.opt.clock);
    st->changes_before = sqlite3_total_changes64(st->db);
    return 0;
}

/* The commit hook lets it pass while `committing` is set. */
static int commit(struct sqlite_store *st, struct error *err)
{
    if (sqlite_tx_gone(&st->base.store, err) != 0)
        return -1;
    st->committing = true;
    int r = sqlite_exec(st, commit_sql, err);
    st->committing = false;
    return r;
}

int sqlite_commit(struct store *base, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    if (!st->base.in_tx)
        return err_set(err, ERR_MISUSE, "no transaction is open");
    /* If possible, the counter is corrected before the write lock is released. If not, a relay is
     * woken for nothing. */
    if (st->base.own_commit)
        atomic_fetch_add(&st->family->quiet_commits, 1);
    if (commit(st, err) != 0) {
        if (st->base.own_commit)
            atomic_fetch_sub(&st->family->quiet_commits, 1);
        sqlite_rollback(base);
        return -1;
    }
    st->base.in_tx = false;
    return sqlite_file_check(st, err); /* a commit to a file that is gone counts as failed */
}

void sqlite_rollback(struct store *base)
{
    struct sqlite_store *st = sqlite_of(base);
    for (size_t i = 0; i < st->n_cached; i++)
        sqlite3_reset(st->cached[i].stmt);
    if (!sqlite3_get_autocommit(st->db))
        sqlite_exec(st, rollback_sql, NULL);
    st->stuck = !sqlite3_get_autocommit(st->db);
    st->base.in_tx = false;
}

int sqlite_snapshot_begin(struct store *base, bool *ret_own, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    *ret_own = sqlite3_get_autocommit(st->db) != 0;
    if (!*ret_own)
        return 0;
    return sqlite_exec(st, read_sql, err);
}

void sqlite_snapshot_end(struct store *base, bool own)
{
    if (own)
        sqlite_exec(sqlite_of(base), rollback_sql, NULL);
}

/* ---- handlers ---- */

/* The commit hook. Only we may commit a transaction that we opened: a handler's COMMIT becomes a
 * rollback, so that no effect is kept without its record. */
static int refuse_commit(void *ctx)
{
    const struct sqlite_store *st = ctx;
    return st->base.in_tx && !st->committing;
}

int sqlite_lend(struct store *base, int64_t idle_ms, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    (void)idle_ms; /* there is no server to end the transaction of a hung process */
    (void)err;
    st->base.lent = true;
    sqlite3_commit_hook(st->db, refuse_commit, st);
    return 0;
}

static int not_ours(struct error *err)
{
    return err_set(err, ERR_MISUSE, "the transaction was ended by a handler");
}

int sqlite_savepoint(struct store *base, enum savepoint what, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    struct error why;
    if (sqlite_tx_state(base) == TX_GONE)
        return not_ours(err);
    if (what == SAVEPOINT_SET)
        return sqlite_exec(st, "SAVEPOINT outbox_handler", err);

    st->base.own_commit = false;
    if (what == SAVEPOINT_UNDO)
        sqlite_exec(st, "ROLLBACK TO outbox_handler", &why);
    if (sqlite_exec(st, "RELEASE outbox_handler", &why) == 0)
        return 0;
    bool no_such_savepoint = why.native == SQLITE_ERROR;
    if (no_such_savepoint)
        return not_ours(err);
    if (err)
        *err = why;
    return -1;
}

enum tx_state sqlite_tx_state(struct store *base)
{
    struct sqlite_store *st = sqlite_of(base);
    bool open = st->base.in_tx && !sqlite3_get_autocommit(st->db);
    return open ? TX_OPEN : TX_GONE;
}
