/* open.c: handles, transactions, and the table of operations. */
#include <stdio.h>
#include <stdlib.h>

#include "store/postgres/postgres.h"

extern const struct store_ops store_postgres;
extern const struct store_ops store_postgresql;

/* ---- handles ---- */

void pg_close(struct store *base)
{
    struct pg_store *st = pg_of(base);
    PQfinish(st->reader);
    PQfinish(st->db);
    for (size_t i = 0; i < st->n_cached; i++)
        free(st->cached[i].text);
    for (int i = 0; i < PG_FOREIGN; i++)
        free(st->foreign[i]);
    pg_wakeup_release(&st->wakeup);
    arena_release(&st->ahead.a);
    arena_release(&st->ahead.kept.a);
    free(st->ahead.seen);
    free(st->ahead.target);
    free(st->path_was);
    free(st->url);
    free(st->conninfo);
    free(st->shown);
    free(st->schema);
    free(st->quoted);
    free(st->literal);
    free(st->tenant);
    free(st);
}

struct pg_store *pg_new(const char *url, const char *schema, const struct store_options *opt,
                        struct error *err)
{
    struct pg_store *st = calloc(1, sizeof *st);
    if (!st) {
        err_nomem(err);
        return NULL;
    }
    st->base.ops = &store_postgres;
    st->base.caps = store_postgres.caps;
    st->opt = *opt;
    if (!st->opt.clock)
        st->opt.clock = &clock_system;
    if (!st->opt.payload_max)
        st->opt.payload_max = EVENT_PAYLOAD_MAX;
    st->wakeup.readable_fd = -1;
    arena_init(&st->ahead.a, 0);
    arena_init(&st->ahead.kept.a, 0);
    rng_seed_os(&st->rng);
    st->url = strdup(url);
    st->schema = strdup(schema);
    if (!st->url || !st->schema)
        err_nomem(err);
    else if (pg_url_read(st, err) == 0)
        return st;
    pg_close(&st->base);
    return NULL;
}

int pg_open(const char *url, const struct store_options *opt, struct store **ret, struct error *err)
{
    struct pg_store *st = pg_new(url, PG_SCHEMA, opt, err);
    if (!st)
        return -1;
    if (pg_emit_texts(st, err) == 0 && pg_ready(st, err) == 0) {
        *ret = &st->base;
        return 0;
    }
    pg_close(&st->base);
    return -1;
}

int pg_dup(struct store *base, struct store **ret, struct error *err)
{
    const struct pg_store *from = pg_of(base);
    return pg_open(from->url, &from->opt, ret, err);
}

/* ---- transactions ---- */

#define BEGIN "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"

/* Opens a transaction with the commands in text. */
static int begin(struct pg_store *st, const char *text, struct error *err)
{
    if (st->in_tx)
        return err_set(err, ERR_MISUSE, "a transaction is already open");
    if (pg_ready(st, err) != 0)
        return -1;
    if (pg_simple(st, text, err) != 0)
        return -1;
    st->in_tx = true;
    return 0;
}

int pg_begin_own(struct store *base, struct error *err)
{
    struct pg_store *st = pg_of(base);
    if (begin(st, BEGIN "; SET LOCAL search_path = " PG_PATH, err) != 0)
        return -1;
    st->tx_shared = false;
    return 0;
}

/* Sets the search_path that the application's statements would have on their own connection. An
 * exposed or pooled connection has it already. */
int pg_begin(struct store *base, struct error *err)
{
    struct pg_store *st = pg_of(base);
    const char *text = BEGIN "; SET LOCAL search_path = DEFAULT";
    char limited[160];
    if (st->exposed || st->pooled)
        text = BEGIN;
    if (st->exposed && st->idle_ms) {
        snprintf(limited, sizeof limited,
                 BEGIN "; SET LOCAL idle_in_transaction_session_timeout = %lld",
                 (long long)st->idle_ms);
        text = limited;
    }
    if (begin(st, text, err) != 0)
        return -1;
    st->tx_shared = true;
    return 0;
}

/* Checks first whether a statement has failed: the server would then answer COMMIT by rolling back
 * without an error. */
int pg_commit(struct store *base, struct error *err)
{
    struct pg_store *st = pg_of(base);
    if (!st->in_tx)
        return err_set(err, ERR_MISUSE, "no transaction is open");
    if (PQtransactionStatus(st->db) == PQTRANS_INERROR) {
        pg_rollback(base);
        return err_set(err, ERR_MISUSE,
                       "an earlier statement failed, so this transaction was rolled back: begin "
                       "it again");
    }
    st->in_tx = false;
    return pg_simple(st, "COMMIT", err);
}

void pg_rollback(struct store *base)
{
    struct pg_store *st = pg_of(base);
    bool open = PQstatus(st->db) == CONNECTION_OK && PQtransactionStatus(st->db) != PQTRANS_IDLE;
    if (open)
        pg_simple(st, "ROLLBACK", NULL);
    st->in_tx = false;
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
        return err_set(err, ERR_MISUSE, "a handler ended the transaction");
    return err_copy(err, &why);
}

/* ---- the operations ---- */

#define OPERATION(op) .op = pg_##op,
/* clang-format off */
#define POSTGRES_OPS(name) { \
    .scheme = name, \
    .synopsis = "postgres://USER@HOST/DB?schema=NAME", \
    .caps = STORE_WAKEUP | STORE_SHARED | STORE_FREE | STORE_REMOTE, \
    PG_OPERATIONS(OPERATION) \
}
/* clang-format on */

const struct store_ops store_postgres = POSTGRES_OPS("postgres");
const struct store_ops store_postgresql = POSTGRES_OPS("postgresql"); /* libpq knows both names */

bool pg_is(const struct store *st)
{
    return st->ops == &store_postgres || st->ops == &store_postgresql;
}

struct pg_conn *pg_handle(struct store *st)
{
    return pg_is(st) ? pg_of(st)->db : NULL;
}
