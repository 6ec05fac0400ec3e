/* emit.c: inserting events and inbox rows, on our connection or inside the caller's transaction.
 *
 * On our own connection ids are generated here, in ascending order: if the database generated and
 * returned them, an emit would cost half as much again. On the application's connection the
 * database generates them. */
#include <stdio.h>

#include "store/postgres/postgres.h"

#define NUMBER_TEXT 24

/* ---- the statements ---- */

/* They also run in the application's transactions, so every name is schema-qualified. */
/* clang-format off */
#define NOT_BEFORE(n) \
    "pg_catalog.timestamptz 'epoch' OPERATOR(pg_catalog.+) " \
    "($" n "::pg_catalog.int8 OPERATOR(pg_catalog.*) interval '1 millisecond')"

static const char insert_sql[] = PG_NAMED
    "INSERT INTO @schema@.event ("
        "type, aggregate_type, aggregate_id, version, payload, headers, tenant, not_before, id) "
    "VALUES ($1, $2, $3, $4::pg_catalog.int8, $5, $6, "
            "coalesce($7::pg_catalog.text, "
                     "CASE WHEN pg_catalog.current_setting('outbox.tenant', true) "
                               "OPERATOR(pg_catalog.<>) '' "
                          "THEN pg_catalog.current_setting('outbox.tenant', true) END), "
            NOT_BEFORE("8") ", "
            "$9::pg_catalog.uuid)";

/* Not INSERT ... RETURNING, which requires the right to read events; a producer does not have it.
 */
static const char emit_sql[] = PG_NAMED
    "SELECT @schema@.emit($1, $2, $3, $5, $6, NULL, $4::pg_catalog.int8, " NOT_BEFORE("8") ", $7)";

static const char once_sql[] = PG_NAMED
    "SELECT id, duplicate "
    "FROM @schema@.emit_once($1, $2, $3, $5, $6, $9, $4::pg_catalog.int8, " NOT_BEFORE("8") ", $7)";

static const char handle_sql[] = PG_NAMED
    "SELECT @schema@.handle_once($1, $2, $3)";

static const char allow_large_sql[] = PG_NAMED
    "SELECT pg_catalog.set_config('outbox.max_payload', $1, true)";
/* clang-format on */

/* Statements for the application's connections; pg_store.foreign has their texts. */
enum { FOREIGN_EMIT, FOREIGN_ONCE, FOREIGN_HANDLE, FOREIGN_COUNT };
static const char *const foreign_sql[FOREIGN_COUNT] = {emit_sql, once_sql, handle_sql};

int pg_emit_texts(struct pg_store *st, struct error *err)
{
    for (int i = 0; i < FOREIGN_COUNT; i++) {
        st->foreign[i] = pg_expand(st, foreign_sql[i]);
        if (!st->foreign[i])
            return err_nomem(err);
    }
    return 0;
}

/* ---- the caller's connection ---- */

/* Requires the caller's connection to have a transaction open: the event must commit together with
 * the application's data. */
static int check_transaction(PGconn *db, struct error *err)
{
    PGTransactionStatusType s = PQtransactionStatus(db);
    if (s == PQTRANS_INTRANS)
        return 0;
    if (s == PQTRANS_INERROR)
        return err_set(err, ERR_MISUSE,
                       "an earlier statement of this transaction failed: roll it back and begin "
                       "again");
    if (s == PQTRANS_IDLE)
        return err_set(err, ERR_MISUSE,
                       "no transaction is open on this connection: BEGIN first, so that event and "
                       "data commit together");
    return err_set(err, ERR_MISUSE, "this connection is busy with another command, or was lost");
}

/* Rejects text that the caller's connection would garble: ours is UTF-8, but the server assumes the
 * connection's encoding. */
static int check_encoding(PGconn *db, const struct str *s, size_t n, struct error *err)
{
    const char *name = "";
    int encoding = PQclientEncoding(db);
    if (encoding >= 0)
        name = pg_encoding_to_char(encoding);
    bool passes_utf8 = strcmp(name, "UTF8") == 0 || strcmp(name, "SQL_ASCII") == 0;
    if (passes_utf8)
        return 0;

    bool ascii = true;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < s[i].n; k++)
            if ((unsigned char)s[i].p[k] >= 128)
                ascii = false;
    if (!ascii)
        return err_set(err, ERR_CONFIG,
                       "this connection's client_encoding is %.40s, which would garble the "
                       "event: it is UTF-8 and not all ASCII; call "
                       "PQsetClientEncoding(conn, \"UTF8\") first",
                       name);
    return 0;
}

/* ---- emitting ---- */

/* An event with its defaults filled in, as the statements take it. */
struct row {
    const struct new_event *ev;
    struct str payload, tenant;
    const char *version, *not_before; /* NULL, or the texts below */
    char version_text[NUMBER_TEXT], not_before_text[NUMBER_TEXT];
};

static const char *number_text(int64_t v, char out[NUMBER_TEXT])
{
    snprintf(out, NUMBER_TEXT, "%lld", (long long)v);
    return out;
}

/* Generates an id like the database (sql/postgres/internal/values.sql): 12 bits of the
 * millisecond's fraction follow the milliseconds, so that on one machine the ids of both are in
 * order. */
static void make_id(struct pg_store *st, char out[UUID_TEXT + 1])
{
    int64_t now = clock_wall_ns(st->opt.clock);
    uint64_t fraction = (uint64_t)(now % MS_NS) * 4096 / MS_NS;
    rng_uuid7(&st->uuid, now / MS_NS, fraction << (UUID7_COUNT_BITS - 12), &st->rng, out);
}

static PGresult *emit_foreign(struct pg_store *st, PGconn *db, const struct row *w,
                              struct error *err)
{
    const struct new_event *ev = w->ev;
    const struct str texts[] = {
        ev->type,    ev->aggregate_type, ev->aggregate_id,    w->payload,
        ev->headers, w->tenant,          ev->idempotency_key, str_of(st->schema)};
    if (check_encoding(db, texts, sizeof texts / sizeof *texts, err) != 0)
        return NULL;
    if (ev->idempotency_key.p)
        return pg_query_on(st, db, err, st->foreign[FOREIGN_ONCE], "tttstttst", ev->type,
                           ev->aggregate_type, ev->aggregate_id, w->version, w->payload,
                           ev->headers, w->tenant, w->not_before, ev->idempotency_key);
    return pg_query_on(st, db, err, st->foreign[FOREIGN_EMIT], "tttsttts", ev->type,
                       ev->aggregate_type, ev->aggregate_id, w->version, w->payload, ev->headers,
                       w->tenant, w->not_before);
}

/* Emits on our own connection. Writes the id if it is generated here; otherwise the result has
 * it. */
static PGresult *emit_own(struct pg_store *st, const struct row *w, char id[UUID_TEXT + 1],
                          struct error *err)
{
    const struct new_event *ev = w->ev;
    if (ev->idempotency_key.p)
        return pg_query(st, err, once_sql, "tttstttst", ev->type, ev->aggregate_type,
                        ev->aggregate_id, w->version, w->payload, ev->headers, w->tenant,
                        w->not_before, ev->idempotency_key);
    if (st->given_ids)
        return pg_query(st, err, emit_sql, "tttsttts", ev->type, ev->aggregate_type,
                        ev->aggregate_id, w->version, w->payload, ev->headers, w->tenant,
                        w->not_before);
    make_id(st, id);
    return pg_query(st, err, insert_sql, "tttstttss", ev->type, ev->aggregate_type,
                    ev->aggregate_id, w->version, w->payload, ev->headers, w->tenant, w->not_before,
                    id);
}

/* Lets this transaction emit a payload of more than EVENT_PAYLOAD_MAX, which the database otherwise
 * refuses. */
static int allow_large(struct pg_store *st, PGconn *foreign, struct error *err)
{
    char bytes[NUMBER_TEXT];
    number_text(EVENT_PAYLOAD_CEILING, bytes);
    if (!foreign)
        return pg_exec(st, err, NULL, allow_large_sql, "s", bytes);
    PGresult *r = pg_query_on(st, foreign, err, allow_large_sql, "s", bytes);
    PQclear(r);
    return r ? 0 : -1;
}

/* Emits an event, in the open transaction if any. */
static int insert_event(struct pg_store *st, PGconn *foreign, const struct new_event *ev,
                        char ret_id[UUID_TEXT + 1], bool *ret_duplicate, struct error *err)
{
    struct row w = {.ev = ev, .payload = ev->payload, .tenant = ev->tenant};
    char id[UUID_TEXT + 1];
    PGresult *r;
    if (!w.payload.p)
        w.payload = STR("null");
    if (!w.tenant.p)
        w.tenant = str_of(st->tenant);
    if (ev->has_version)
        w.version = number_text(ev->version, w.version_text);
    if (ev->not_before != 0)
        w.not_before = number_text(ev->not_before, w.not_before_text);
    if (w.payload.n > EVENT_PAYLOAD_MAX && allow_large(st, foreign, err) != 0)
        return -1;
    if (foreign)
        r = emit_foreign(st, foreign, &w, err);
    else
        r = emit_own(st, &w, id, err);
    if (!r)
        return -1;

    if (PQntuples(r) > 0)
        memcpy(id, PQgetvalue(r, 0, 0), sizeof id);
    bool tells_duplicate = PQnfields(r) > 1;
    *ret_duplicate = tells_duplicate && pg_true(r, 0, 1);
    PQclear(r);
    memcpy(ret_id, id, sizeof id);
    return 0;
}

int pg_emit(struct store *base, void *foreign, const struct new_event *ev,
            char ret_id[UUID_TEXT + 1], bool *ret_duplicate, struct error *err)
{
    struct pg_store *st = pg_of(base);
    struct event_limits limits = {st->opt.payload_max, clock_wall(st->opt.clock)};
    if (event_check(ev, &limits, err) != 0)
        return -1;
    if (foreign && check_transaction(foreign, err) != 0)
        return -1;

    bool in_transaction = foreign || st->in_tx;
    bool large = ev->payload.n > EVENT_PAYLOAD_MAX;
    bool own_transaction = large && !in_transaction; /* for allow_large */
    if (own_transaction && pg_begin(base, err) != 0)
        return -1;
    int result = insert_event(st, foreign, ev, ret_id, ret_duplicate, err);
    if (own_transaction && result == 0)
        return pg_commit(base, err);
    if (own_transaction)
        pg_rollback(base);
    return result;
}

/* ---- the inbox ---- */

int pg_handle_once(struct store *base, void *foreign, struct str handler, struct str key,
                   struct str payload, bool *ret_first, struct error *err)
{
    struct pg_store *st = pg_of(base);
    if (!foreign && !st->in_tx)
        return err_set(err, ERR_MISUSE,
                       "no transaction is open: the record must commit together with the effect");
    if (event_check_inbox(handler, key, err) != 0)
        return -1;

    const struct str texts[] = {handler, key, payload};
    PGresult *r;
    if (!foreign) {
        r = pg_query(st, err, handle_sql, "ttt", handler, key, payload);
    } else {
        if (check_transaction(foreign, err) != 0 || check_encoding(foreign, texts, 3, err) != 0)
            return -1;
        r = pg_query_on(st, foreign, err, st->foreign[FOREIGN_HANDLE], "ttt", handler, key,
                        payload);
    }
    if (!r)
        return -1;
    *ret_first = pg_true(r, 0, 0);
    PQclear(r);
    return 0;
}
