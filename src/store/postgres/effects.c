/* effects.c: transactions that the application's handlers use, and that also settle their claim. */
#include "base/buf.h"
#include "store/postgres/postgres.h"

#define ARRAY_BYTES (16 << 20)

/* ---- a connection that handlers use ---- */

/* clang-format off */
static const char reset_sql[] =
    "RESET search_path;"
    "RESET client_min_messages;"
    "RESET standard_conforming_strings;"
    "RESET enable_seqscan;"
    "RESET enable_bitmapscan;"
    "RESET enable_indexscan;"
    "RESET enable_indexonlyscan;"
    "RESET enable_nestloop;"
    "RESET jit;"
    "RESET plan_cache_mode";
/* clang-format on */

int pg_expose_settings(struct pg_store *st, struct error *err)
{
    return st->pooled ? 0 : pg_simple(st, reset_sql, err);
}

/* Resets what set_up in connect.c set for our own statements. Nothing is prepared from here on,
 * because a handler's DISCARD ALL would drop it. If the connection was exposed before, the session
 * is reset: handlers must not find state left by those of another consumer.
 */
int pg_expose(struct store *base, int64_t idle_ms, struct error *err)
{
    struct pg_store *st = pg_of(base);
    bool again = st->exposed;
    st->exposed = true;
    st->idle_ms = idle_ms;
    if (again && !st->pooled)
        return pg_renew(st, err);
    return pg_expose_settings(st, err);
}

int pg_speak_utf8(struct pg_store *st, struct error *err)
{
    if (!st->exposed)
        return 0;
    if (strcmp(pg_encoding_to_char(PQclientEncoding(st->db)), "UTF8") == 0)
        return 0;
    if (PQsetClientEncoding(st->db, "UTF8") == 0)
        return 0;
    return err_class(err, ERR_UNAVAILABLE, CLASS_RETRY, 0,
                     "%s: a handler changed client_encoding, and it cannot be restored", st->shown);
}

enum tx_state pg_tx_state(struct store *base)
{
    struct pg_store *st = pg_of(base);
    if (PQstatus(st->db) != CONNECTION_OK)
        return TX_LOST;
    if (!st->in_tx)
        return TX_GONE;
    switch (PQtransactionStatus(st->db)) {
    case PQTRANS_INTRANS: return TX_OPEN;
    case PQTRANS_INERROR: return TX_FAILED;
    default: return TX_GONE;
    }
}

/* Recognises by the SQLSTATE that a handler ended the transaction: the message may be in any
 * language. */
int pg_savepoint(struct store *base, enum savepoint what, struct error *err)
{
    static const char *const text[] = {"SAVEPOINT outbox_handler", "RELEASE outbox_handler",
                                       "ROLLBACK TO outbox_handler; RELEASE outbox_handler"};
    struct pg_store *st = pg_of(base);
    struct error why;
    bool ended = pg_tx_state(base) == TX_GONE;
    if (!ended) {
        if (pg_simple(st, text[what], &why) == 0)
            return 0;
        ended = strcmp(st->state, "3B001") == 0; /* no such savepoint */
    }
    if (ended)
        return err_set(err, ERR_MISUSE, "the transaction was ended by a handler");
    if (err)
        *err = why;
    return -1;
}

/* ---- the inbox ---- */

/* Appends a text to an array literal, which goes to the server as a parameter. */
static void add_element(struct buf *b, struct str s)
{
    bool first = b->n == 1;
    if (!first)
        buf_addc(b, ',');
    buf_addc(b, '"');
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] == '"' || s.p[i] == '\\')
            buf_addc(b, '\\');
        buf_addc(b, s.p[i]);
    }
    buf_addc(b, '"');
}

/* Two array literals, of handlers and of their keys. */
struct arrays {
    struct buf handlers, keys;
    size_t n;
};

/* Builds the arrays, without the keys that `skip` marks (NULL: none). arrays_release releases them,
 * also after a failure. */
static int arrays_of(struct arrays *a, const struct inbox_key *k, const bool *skip, size_t n,
                     struct error *err)
{
    a->n = 0;
    buf_init(&a->handlers, ARRAY_BYTES);
    buf_init(&a->keys, ARRAY_BYTES);
    buf_addc(&a->handlers, '{');
    buf_addc(&a->keys, '{');
    for (size_t i = 0; i < n; i++) {
        if (skip && skip[i])
            continue;
        add_element(&a->handlers, k[i].handler);
        add_element(&a->keys, k[i].key);
        a->n++;
    }
    buf_addc(&a->handlers, '}');
    buf_addc(&a->keys, '}');
    bool whole = buf_cstr(&a->handlers) && buf_cstr(&a->keys);
    return whole ? 0 : err_nomem(err);
}

static void arrays_release(struct arrays *a)
{
    buf_release(&a->handlers);
    buf_release(&a->keys);
}

int pg_handled(struct store *base, const struct inbox_key *k, size_t n, bool *ret,
               struct error *err)
{
    struct pg_store *st = pg_of(base);
    struct arrays a;
    PGresult *r = NULL;
    if (arrays_of(&a, k, NULL, n, err) == 0)
        r = pg_query(st, err, PG_NAMED "SELECT @schema@._handled_before($1, $2)", "ss",
                     a.handlers.p, a.keys.p);
    arrays_release(&a);
    if (!r)
        return -1;
    memset(ret, 0, n * sizeof *ret);
    for (int i = 0; i < PQntuples(r); i++) {
        int64_t at = pg_int(r, i, 0);
        if (at >= 1 && (size_t)at <= n)
            ret[at - 1] = true;
    }
    PQclear(r);
    return 0;
}

int pg_handled_put(struct store *base, const struct inbox_key *k, const bool *skip, size_t n,
                   bool *ret_all, struct error *err)
{
    struct pg_store *st = pg_of(base);
    struct arrays a;
    *ret_all = true;
    int result = arrays_of(&a, k, skip, n, err);
    if (result == 0 && a.n > 0) {
        PGresult *r = pg_query(st, err, PG_NAMED "SELECT @schema@._handle_all($1, $2)", "ss",
                               a.handlers.p, a.keys.p);
        if (r)
            *ret_all = pg_true(r, 0, 0);
        else
            result = -1;
        PQclear(r);
    }
    arrays_release(&a);
    return result;
}
