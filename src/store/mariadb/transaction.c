/* transaction.c: beginning and ending transactions, including those that the application's handlers
 * use. */
#include <mysqld_error.h>
#include <stdio.h>

#include "store/mariadb/mariadb.h"

bool mdb_is_open(MYSQL *db)
{
    unsigned status = 0;
    if (mariadb_get_infov(db, MARIADB_CONNECTION_SERVER_STATUS, &status) != 0)
        return false;
    bool begun = (status & SERVER_STATUS_IN_TRANS) != 0;
    bool will_begin = (status & SERVER_STATUS_AUTOCOMMIT) == 0;
    return begun || will_begin;
}

static bool in_transaction(MYSQL *db)
{
    unsigned status = 0;
    if (!db || mariadb_get_infov(db, MARIADB_CONNECTION_SERVER_STATUS, &status) != 0)
        return false;
    return (status & SERVER_STATUS_IN_TRANS) != 0;
}

int mdb_by_hand(const struct mdb_store *st, struct error *err)
{
    if (st->base.in_tx || !in_transaction(st->db))
        return 0;
    return err_set(
        err, ERR_MISUSE,
        "this connection has a transaction that the outbox did not begin: work inside it would not "
        "be durable, and is refused");
}

int mdb_tx_gone(struct store *base, struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    if (!st->base.in_tx || st->later.begins || in_transaction(st->db))
        return 0;
    return err_set(err, ERR_MISUSE,
                   "the server rolled this transaction back after an earlier failure: begin it "
                   "again");
}

int mdb_begin(struct store *base, bool ours, struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    if (mdb_group(st, ours, err) != 0)
        return -1;
    if (mdb_by_hand(st, err) != 0)
        return -1;
    if (mdb_hurry(st, ours, err) != 0)
        return -1;
    if (mdb_exec_later(st, "START TRANSACTION READ WRITE", err) != 0)
        return -1;
    st->later.begins = st->later.n > 0;
    st->wrote = false;
    st->dirty = st->base.lent;
    return 0;
}

/* Drops a connection on which the rollback fails, since that ends the transaction, and one to a
 * read-only server. */
void mdb_rollback(struct store *base)
{
    struct mdb_store *st = mdb_of(base);
    mdb_forget_later(st);
    if (!st->db)
        return;
    if (mysql_rollback(st->db) != 0 || st->moved)
        mdb_disconnect(st);
}

int mdb_snapshot_begin(struct store *base, bool *ret_own, struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    *ret_own = !st->base.in_tx;
    if (!*ret_own)
        return 0;
    if (mdb_exec(&st->base.store, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", err) != 0)
        return -1;
    return mdb_exec(&st->base.store, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY", err);
}

void mdb_snapshot_end(struct store *base, bool own)
{
    struct mdb_store *st = mdb_of(base);
    if (own && st->db)
        mdb_exec(&st->base.store, "COMMIT", NULL);
}

/* ---- handlers ---- */

/* Notes that handlers use the connection. From now on the session is set up again before each of
 * our own transactions, since handlers may have changed it, and texts are sent in hexadecimal: a
 * handler may have chosen another character set. */
int mdb_expose(struct store *base, int64_t idle_ms, struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    if (mdb_group(st, false, err) != 0)
        return -1;
    st->base.lent = true;
    st->dirty = true;
    st->idle_ms = idle_ms;
    return mdb_connect(st, err);
}

enum tx_state mdb_tx_state(struct store *base)
{
    struct mdb_store *st = mdb_of(base);
    if (!st->db || mdb_is_lost(mysql_errno(st->db)))
        return TX_LOST;
    if (!st->base.in_tx || mdb_tx_gone(base, NULL) != 0)
        return TX_GONE;
    return TX_OPEN;
}
