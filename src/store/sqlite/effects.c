/* effects.c: a transaction in which the application's handlers work, and which also settles their
 * claim. */
#include "base/hash.h"
#include "store/sqlite/sqlite.h"
#include "store_sql.h"

/* refuse_commit is the commit hook. Only we may end a transaction that we opened: somebody else's
 * COMMIT becomes a rollback, so that no effect is kept without the record of it. */
static int refuse_commit(void *ctx)
{
    const struct sqlite_store *st = ctx;
    return st->in_tx && !st->committing;
}

int sqlite_lend(struct store *base, int64_t idle_ms, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    (void)idle_ms; /* no server could end the transaction of a process that stands still */
    (void)err;
    st->lent = true;
    sqlite3_commit_hook(st->db, refuse_commit, st);
    return 0;
}

static int not_ours(struct error *err)
{
    return err_set(err, ERR_MISUSE, "the transaction was ended by somebody else");
}

int sqlite_savepoint(struct store *base, enum savepoint what, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    struct error why;
    if (sqlite_tx_state(base) == TX_GONE)
        return not_ours(err);
    if (what == SAVEPOINT_SET)
        return sqlite_exec(st, "SAVEPOINT outbox_handler", err);

    st->quiet = false;
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
    bool open = st->in_tx && !sqlite3_get_autocommit(st->db);
    return open ? TX_OPEN : TX_GONE;
}

/* sqlite_settle_here settles as of the time the transaction began. We have held the write lock
 * since then, so nobody can have taken a claim over, and none runs out meanwhile. */
int sqlite_settle_here(struct store *base, const struct settlement *s, bool *ret_lost,
                       struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    if (!st->in_tx)
        return err_set(err, ERR_MISUSE,
                       "no transaction is open: effects and outcomes must commit together");
    if (sqlite_tx_gone(st, err) != 0)
        return -1;
    st->turn_now = st->began;
    int r = sqlite_settle(st, s, ret_lost, err);
    st->turn_now = 0;
    st->quiet = r == 0 && !*ret_lost; /* its claim is gone: something was written */
    return r;
}

int sqlite_handled(struct store *base, const struct inbox_key *k, size_t n, bool *ret,
                   struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    for (size_t i = 0; i < n; i++) {
        sqlite3_stmt *q;
        int r = sqlite_row(st, &q, err, SQL(is_handled, .handler = k[i].handler, .key = k[i].key));
        if (r < 0)
            return -1;
        ret[i] = r == 1;
        sqlite3_reset(q);
    }
    return 0;
}

int sqlite_handled_put(struct store *base, const struct inbox_key *k, const bool *skip, size_t n,
                       bool *ret_all, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    int64_t hash = (int64_t)hash_end(hash_add(HASH_INIT, STR("")));
    *ret_all = true;
    for (size_t i = 0; i < n; i++) {
        if (skip[i])
            continue;
        if (sqlite_run(st, err,
                       SQL(put_handled, .handler = k[i].handler, .key = k[i].key, .hash = hash,
                           .now = sqlite_now(st))) != 0)
            return -1;
        if (sqlite3_changes(st->db) == 0)
            *ret_all = false;
    }
    return 0;
}
