/* effects.c: transactions in which the application's handlers work, and which settle their claim as
 * well. */
#include <mysqld_error.h>
#include <stdio.h>

#include "base/hash.h"
#include "store/mariadb/mariadb.h"
#include "store_sql.h"

/* mdb_lend notes that handlers work on the connection. From here on the session is set up anew
 * before each of our own transactions, whatever handlers have set, and texts go as hexadecimal
 * digits: a handler may have chosen another character set. */
int mdb_lend(struct store *base, int64_t idle_ms, struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    if (mdb_group(st, false, err) != 0)
        return -1;
    st->lent = true;
    st->dirty = true;
    st->idle_ms = idle_ms;
    return mdb_connect(st, err);
}

/* say_ended is what is said of a transaction that a handler ended. */
static int say_ended(struct error *err)
{
    return err_set(err, ERR_MISUSE, "the transaction was ended by somebody else");
}

/* savepoint_sql writes the statement for a savepoint. Each depth has a name of its own: the server
 * forgets a savepoint when another of its name is set. */
static void savepoint_sql(char out[64], const char *verb, int depth)
{
    snprintf(out, 64, "%s outbox_handler_%d", verb, depth);
}

int mdb_savepoint(struct store *base, enum savepoint what, struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    char text[64];
    struct error why;
    if (mdb_tx_state(base) == TX_GONE)
        return say_ended(err);
    if (what == SAVEPOINT_SET) {
        savepoint_sql(text, "SAVEPOINT", st->savepoints + 1);
        if (mdb_exec(st, text, err) != 0)
            return -1;
        st->savepoints++;
        return 0;
    }

    int r = 0;
    if (what == SAVEPOINT_UNDO) {
        savepoint_sql(text, "ROLLBACK TO SAVEPOINT", st->savepoints);
        r = mdb_exec(st, text, &why);
    }
    if (r == 0) {
        savepoint_sql(text, "RELEASE SAVEPOINT", st->savepoints);
        r = mdb_exec(st, text, &why);
    }
    if (r == 0) {
        st->savepoints--;
        return 0;
    }
    if (why.native == ER_SP_DOES_NOT_EXIST)
        return say_ended(err);
    if (err)
        *err = why;
    return -1;
}

enum tx_state mdb_tx_state(struct store *base)
{
    struct mdb_store *st = mdb_of(base);
    if (!st->db || mdb_is_lost(mysql_errno(st->db)))
        return TX_LOST;
    if (!st->in_tx || mdb_tx_gone(st, NULL) != 0)
        return TX_GONE;
    return TX_OPEN;
}

int mdb_settle_here(struct store *base, const struct settlement *s, bool *ret_lost,
                    struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    int64_t marks = 0, alive = 0, delivered = 0;
    if (!st->in_tx)
        return err_set(err, ERR_MISUSE,
                       "no transaction is open: effects and outcomes must commit together");
    if (mdb_tx_gone(st, err) != 0)
        return -1;
    if (mdb_value(st, err, &marks, SQL(lock_to_settle, .consumer = s->consumer)) != 0)
        return -1;
    if (mdb_settle_marks(st, s, err) != 0)
        return -1;
    if (mdb_value(
            st, err, &alive,
            SQL(is_claimed, .consumer = s->consumer, .epoch = s->b->epoch, .owner = s->owner)) != 0)
        return -1;
    *ret_lost = !alive;
    if (!alive)
        return 0;
    if (mdb_settle(st, s, &delivered, err) != 0)
        return -1;
    if (marks && (mdb_mark_note(st, s, err) != 0 || mdb_mark(st, s->consumer, err) != 0))
        return -1;
    if (delivered == 0)
        return 0;
    return mdb_run(st, err, SQL(put_progress, .consumer = s->consumer, .n = delivered));
}

int mdb_handled(struct store *base, const struct inbox_key *k, size_t n, bool *ret,
                struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    for (size_t i = 0; i < n; i++) {
        int64_t found = 0;
        if (mdb_value(st, err, &found, SQL(is_handled, .handler = k[i].handler, .key = k[i].key)) !=
            0)
            return -1;
        ret[i] = found != 0;
    }
    return 0;
}

int mdb_handled_put(struct store *base, const struct inbox_key *k, const bool *skip, size_t n,
                    bool *ret_all, struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    int64_t hash = (int64_t)hash_end(hash_add(HASH_INIT, STR("")));
    *ret_all = true;
    for (size_t i = 0; i < n; i++) {
        struct error why;
        if (skip[i])
            continue;
        if (mdb_run(st, &why,
                    SQL(put_handled, .handler = k[i].handler, .key = k[i].key, .hash = hash,
                        .now = mdb_now(st))) == 0)
            continue;
        if (why.native != ER_DUP_ENTRY) {
            if (err)
                *err = why;
            return -1;
        }
        *ret_all = false;
    }
    return 0;
}
