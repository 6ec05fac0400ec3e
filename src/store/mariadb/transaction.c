/* transaction.c: beginning and ending transactions. */
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
    if (st->in_tx || !in_transaction(st->db))
        return 0;
    return err_set(err, ERR_MISUSE,
                   "a transaction was begun by hand on this connection: what is done in it would "
                   "not be durable: refused");
}

int mdb_tx_gone(struct mdb_store *st, struct error *err)
{
    if (!st->in_tx || st->later.begins || in_transaction(st->db))
        return 0;
    return err_set(err, ERR_MISUSE,
                   "an earlier failure made the server roll this transaction back: begin it again");
}

static int begin(struct mdb_store *st, bool hurry, struct error *err)
{
    if (st->in_tx)
        return err_set(err, ERR_MISUSE, "a transaction is open already");
    if (mdb_by_hand(st, err) != 0)
        return -1;
    if (mdb_hurry(st, hurry, err) != 0)
        return -1;
    if (mdb_exec_later(st, "START TRANSACTION READ WRITE", err) != 0)
        return -1;
    st->later.begins = st->later.n > 0;
    st->in_tx = true;
    st->wrote = false;
    st->savepoints = 0;
    st->dirty = st->lent;
    return 0;
}

int mdb_begin(struct store *base, struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    if (mdb_group(st, true, err) != 0)
        return -1;
    return begin(st, true, err);
}

int mdb_begin_open(struct store *base, struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    if (mdb_group(st, false, err) != 0)
        return -1;
    return begin(st, false, err);
}

int mdb_commit(struct store *base, struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    if (!st->in_tx)
        return err_set(err, ERR_MISUSE, "no transaction is open");
    if (mdb_tx_gone(st, err) != 0 || mdb_exec(st, "COMMIT", err) != 0) {
        mdb_rollback(base);
        return -1;
    }
    st->in_tx = false;
    return 0;
}

/* mdb_rollback drops a connection on which the rollback fails, since what was begun there ends with
 * it, and one that leads to a server that may only be read. */
void mdb_rollback(struct store *base)
{
    struct mdb_store *st = mdb_of(base);
    st->in_tx = false;
    mdb_forget_later(st);
    if (!st->db)
        return;
    if (mysql_rollback(st->db) != 0 || st->moved)
        mdb_disconnect(st);
}

int mdb_snapshot_begin(struct mdb_store *st, bool *ret_own, struct error *err)
{
    *ret_own = !st->in_tx;
    if (!*ret_own)
        return 0;
    if (mdb_exec(st, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", err) != 0)
        return -1;
    return mdb_exec(st, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY", err);
}

void mdb_snapshot_end(struct mdb_store *st, bool own)
{
    if (own && st->db)
        mdb_exec(st, "COMMIT", NULL);
}
