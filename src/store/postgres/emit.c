/* emit.c: inserting events and inbox rows, on our connection or inside the caller's transaction. */
#include <stdio.h>

#include "store/postgres/postgres.h"

/* On our connection ids are made here, and only grow: to have the database make one and say which
 * costs half as much again as the event. On the caller's the database makes them. */
#define COLUMNS "type, aggregate_type, aggregate_id, version, payload, headers, tenant, not_before"
#define NOT_BEFORE(n) \
    "pg_catalog.timestamptz 'epoch' OPERATOR(pg_catalog.+) ($" n \
    "::pg_catalog.int8 OPERATOR(pg_catalog.*) " \
    "interval '1 millisecond')"
/* They run in transactions of the application's as well, so every name has its schema. */

static const char insert_sql[] = PG_NAMED
    "INSERT INTO @schema@.event (" COLUMNS ", id) VALUES ($1, $2, $3, $4::pg_catalog.int8, $5, $6, "
    "coalesce($7::pg_catalog.text, CASE WHEN "
    "pg_catalog.current_setting('outbox.tenant', true) OPERATOR(pg_catalog.<>) '' THEN "
    "pg_catalog.current_setting('outbox.tenant', true) END), " NOT_BEFORE(
        "8") ", $9::pg_catalog.uuid)";
static const char once_sql[] = PG_NAMED "SELECT id, duplicate FROM @schema@.emit_once($1, $2, $3, "
                                        "$5, $6, $9, $4::pg_catalog.int8, " NOT_BEFORE("8") ", $7)";
static const char handle_sql[] = PG_NAMED "SELECT @schema@.handle_once($1, $2, $3)";
/* Not an INSERT with RETURNING: that would take the right to read events, which a producer does not
 * have. */
static const char *const foreign_sql[] = {
    PG_NAMED
    "SELECT @schema@.emit($1, $2, $3, $5, $6, NULL, $4::pg_catalog.int8, " NOT_BEFORE("8") ", $7)",
    once_sql, handle_sql};
static const char given_sql[] = PG_NAMED
    "SELECT @schema@.emit($1, $2, $3, $5, $6, NULL, $4::pg_catalog.int8, " NOT_BEFORE("8") ", $7)";
enum { FOREIGN_EMIT, FOREIGN_ONCE, FOREIGN_HANDLE };

int pg_emit_texts(struct pg_store *st, struct error *err)
{
    for (int i = 0; i < 3; i++)
        if (!(st->foreign[i] = pg_expand(st, foreign_sql[i])))
            return err_nomem(err);
    return 0;
}

/* in_transaction: the caller's connection must have one open, or the event would not be part of
 * anything. */
static int in_transaction(PGconn *db, struct error *err)
{
    PGTransactionStatusType s = PQtransactionStatus(db);
    if (s == PQTRANS_INTRANS)
        return 0;
    if (s == PQTRANS_INERROR)
        return err_set(
            err, ERR_MISUSE,
            "an earlier statement of this transaction failed: roll it back and begin again");
    if (s == PQTRANS_IDLE)
        return err_set(err, ERR_MISUSE,
                       "no transaction is open on this connection: BEGIN first, so that event and "
                       "data commit together");
    return err_set(err, ERR_MISUSE, "this connection is busy with another command, or was lost");
}

static bool plain(struct str s)
{
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.p[i] >= 128)
            return false;
    return true;
}

/* in_its_encoding: the server takes what comes through a connection for that connection's encoding.
 * Ours is UTF-8: through another one it would be stored as something else, without a word. */
static int in_its_encoding(PGconn *db, const struct str *s, size_t n, struct error *err)
{
    int encoding = PQclientEncoding(db);
    const char *name = encoding >= 0 ? pg_encoding_to_char(encoding) : "";
    if (strcmp(name, "UTF8") == 0 || strcmp(name, "SQL_ASCII") == 0)
        return 0;
    for (size_t i = 0; i < n; i++)
        if (!plain(s[i]))
            return err_set(
                err, ERR_CONFIG,
                "this connection's client_encoding is %.40s, and the event is UTF-8 with more than "
                "ASCII in "
                "it: it would be garbled; call PQsetClientEncoding(conn, \"UTF8\") first",
                name);
    return 0;
}

static const char *number(bool there, int64_t v, char out[24])
{
    if (!there)
        return NULL;
    snprintf(out, 24, "%lld", (long long)v);
    return out;
}

/* make_id makes an id as the database does (sql/postgres/internal/uuid7.sql): behind the
 * milliseconds stands their fraction, 12 bits of it, so that on one machine ids of both come in
 * their order. */
static void make_id(struct pg_store *st, char out[UUID_TEXT + 1])
{
    int64_t now = clock_wall_ns(st->opt.clock);
    uint64_t fraction = (uint64_t)(now % MS_NS) * 4096 / MS_NS;
    uuid7_next(&st->uuid, now / MS_NS, fraction << (UUID7_COUNT_BITS - 12), &st->rng, out);
}

static PGresult *emit_foreign(struct pg_store *st, PGconn *db, const struct new_event *ev,
                              const char *version, struct str payload, struct str tenant,
                              const char *at, struct error *err)
{
    struct str texts[] = {ev->type, ev->aggregate_type,  ev->aggregate_id,  payload, ev->headers,
                          tenant,   ev->idempotency_key, str_of(st->schema)};
    if (in_its_encoding(db, texts, sizeof texts / sizeof *texts, err) != 0)
        return NULL;
    if (ev->idempotency_key.p)
        return pg_query_on(st, db, err, st->foreign[FOREIGN_ONCE], "tttstttst", ev->type,
                           ev->aggregate_type, ev->aggregate_id, version, payload, ev->headers,
                           tenant, at, ev->idempotency_key);
    return pg_query_on(st, db, err, st->foreign[FOREIGN_EMIT], "tttsttts", ev->type,
                       ev->aggregate_type, ev->aggregate_id, version, payload, ev->headers, tenant,
                       at);
}

/* allow_large: the database takes no more than EVENT_PAYLOAD_MAX, unless this transaction says that
 * it may be more. */
static int allow_large(struct pg_store *st, PGconn *foreign, struct error *err)
{
    static const char sql[] = PG_NAMED
        "SELECT pg_catalog.set_config('outbox.max_payload', $1, true)";
    char bytes[24];
    number(true, EVENT_PAYLOAD_CEILING, bytes);
    PGresult *r = foreign ? pg_query_on(st, foreign, err, sql, "s", bytes)
                          : pg_query(st, err, sql, "s", bytes);
    PQclear(r);
    return r ? 0 : -1;
}

static int insert(struct pg_store *st, PGconn *foreign, const struct new_event *ev,
                  char ret_id[UUID_TEXT + 1], bool *ret_duplicate, struct error *err)
{
    char id[UUID_TEXT + 1], version[24], not_before[24];
    const char *v = number(ev->has_version, ev->version, version);
    const char *at = number(ev->not_before != 0, ev->not_before, not_before);
    struct str payload = ev->payload.p ? ev->payload : STR("null");
    struct str tenant = ev->tenant.p ? ev->tenant : str_of(st->tenant);
    PGresult *r;
    if (payload.n > EVENT_PAYLOAD_MAX && allow_large(st, foreign, err) != 0)
        return -1;
    if (foreign) {
        r = emit_foreign(st, foreign, ev, v, payload, tenant, at, err);
    } else if (ev->idempotency_key.p) {
        r = pg_query(st, err, once_sql, "tttstttst", ev->type, ev->aggregate_type, ev->aggregate_id,
                     v, payload, ev->headers, tenant, at, ev->idempotency_key);
    } else if (st->given_ids) {
        r = pg_query(st, err, given_sql, "tttsttts", ev->type, ev->aggregate_type, ev->aggregate_id,
                     v, payload, ev->headers, tenant, at);
    } else {
        make_id(st, id);
        r = pg_query(st, err, insert_sql, "tttstttss", ev->type, ev->aggregate_type,
                     ev->aggregate_id, v, payload, ev->headers, tenant, at, id);
    }
    if (!r)
        return -1;
    if (PQntuples(r))
        memcpy(id, PQgetvalue(r, 0, 0), sizeof id);
    *ret_duplicate = PQnfields(r) > 1 && pg_true(r, 0, 1);
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
    if (foreign && in_transaction(foreign, err) != 0)
        return -1;

    bool alone = !foreign && !st->in_tx && ev->payload.n > EVENT_PAYLOAD_MAX; /* for allow_large */
    if (!alone)
        return insert(st, foreign, ev, ret_id, ret_duplicate, err);
    if (pg_begin(base, err) != 0)
        return -1;
    if (insert(st, NULL, ev, ret_id, ret_duplicate, err) == 0)
        return pg_commit(base, err);
    pg_rollback(base);
    return -1;
}

int pg_handle_once(struct store *base, void *foreign, struct str handler, struct str key,
                   struct str payload, bool *ret_first, struct error *err)
{
    struct pg_store *st = pg_of(base);
    if (!foreign && !st->in_tx)
        return err_set(err, ERR_MISUSE,
                       "no transaction is open: the record must commit together with the effect");
    if (event_check_inbox(handler, key, err) != 0)
        return -1;
    struct str texts[] = {handler, key, payload};
    if (foreign &&
        (in_transaction(foreign, err) != 0 || in_its_encoding(foreign, texts, 3, err) != 0))
        return -1;
    PGresult *r = foreign ? pg_query_on(st, foreign, err, st->foreign[FOREIGN_HANDLE], "ttt",
                                        handler, key, payload)
                          : pg_query(st, err, handle_sql, "ttt", handler, key, payload);
    if (!r)
        return -1;
    *ret_first = pg_true(r, 0, 0);
    PQclear(r);
    return 0;
}
