/* emit.c: inserting events and inbox rows, on our connection or inside the caller's transaction.
 *
 * On our own connection ids are generated here, in ascending order: if the database generated and
 * returned them, an emit would cost half as much again. On the application's connection the
 * database generates them. */
#include <stdio.h>

#include "store/postgres/postgres.h"

#define ARRAY_BYTES (16 << 20)

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

static const char *const foreign_sql[PG_FOREIGN] = {emit_sql, once_sql, handle_sql,
                                                    allow_large_sql};

int pg_emit_texts(struct pg_store *st, struct error *err)
{
    for (int i = 0; i < PG_FOREIGN; i++) {
        st->foreign[i] = pg_expand(st, foreign_sql[i]);
        if (!st->foreign[i])
            return err_nomem(err);
    }
    return 0;
}

const char *pg_emit_text(const struct pg_store *st, const char *sql)
{
    int i = 0;
    while (foreign_sql[i] != sql)
        i++;
    return st->foreign[i];
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
                       "this connection's client_encoding is %.40s, which would garble the event: "
                       "its text is UTF-8 and not all ASCII; call PQsetClientEncoding(conn, "
                       "\"UTF8\") first",
                       name);
    return 0;
}

/* ---- emitting ---- */

/* Generates an id like the database (sql/postgres/internal/values.sql): 12 bits of the
 * millisecond's fraction follow the milliseconds, so that on one machine the ids of both are in
 * order. */
static void make_id(struct pg_store *st, char out[UUID_TEXT + 1])
{
    int64_t now = clock_wall_ns(st->opt.clock);
    uint64_t fraction = (uint64_t)(now % MS_NS) * 4096 / MS_NS;
    rng_uuid7(&st->uuid, now / MS_NS, fraction << (UUID7_COUNT_BITS - 12), &st->rng, out);
}

/* Sends an event. Writes its id if it is generated here; otherwise the result has it. */
static PGresult *send_event(struct pg_store *st, PGconn *foreign, const struct new_event *ev,
                            char id[UUID_TEXT + 1], struct error *err)
{
    struct str payload = ev->payload.p ? ev->payload : STR("null");
    struct str tenant = ev->tenant.p ? ev->tenant : str_of(st->tenant);
    const int64_t *version = ev->has_version ? &ev->version : NULL;
    const int64_t *not_before = ev->not_before ? &ev->not_before : NULL;
    const struct str texts[] = {
        ev->type, ev->aggregate_type,  ev->aggregate_id,  payload, ev->headers,
        tenant,   ev->idempotency_key, str_of(st->schema)};
    if (foreign && check_encoding(foreign, texts, sizeof texts / sizeof *texts, err) != 0)
        return NULL;
    if (ev->idempotency_key.p)
        return pg_query_on(st, foreign, err, once_sql, "tttotttot", ev->type, ev->aggregate_type,
                           ev->aggregate_id, version, payload, ev->headers, tenant, not_before,
                           ev->idempotency_key);
    if (foreign || st->given_ids)
        return pg_query_on(st, foreign, err, emit_sql, "tttottto", ev->type, ev->aggregate_type,
                           ev->aggregate_id, version, payload, ev->headers, tenant, not_before);
    make_id(st, id);
    return pg_query(st, err, insert_sql, "tttotttos", ev->type, ev->aggregate_type,
                    ev->aggregate_id, version, payload, ev->headers, tenant, not_before, id);
}

/* Emits an event, in the open transaction if any. A payload of more than EVENT_PAYLOAD_MAX, which
 * the database otherwise refuses, is allowed in this transaction. */
static int insert_event(struct pg_store *st, PGconn *foreign, const struct new_event *ev,
                        char ret_id[UUID_TEXT + 1], bool *ret_duplicate, struct error *err)
{
    char id[UUID_TEXT + 1];
    PGresult *r;
    if (ev->payload.n > EVENT_PAYLOAD_MAX) {
        r = pg_query_on(st, foreign, err, allow_large_sql, "i", (int64_t)EVENT_PAYLOAD_CEILING);
        PQclear(r);
        if (!r)
            return -1;
    }
    r = send_event(st, foreign, ev, id, err);
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
    if (own_transaction && pg_begin_own(base, err) != 0)
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
    if (foreign && check_transaction(foreign, err) != 0)
        return -1;
    if (foreign && check_encoding(foreign, texts, 3, err) != 0)
        return -1;
    PGresult *r = pg_query_on(st, foreign, err, handle_sql, "ttt", handler, key, payload);
    if (!r)
        return -1;
    *ret_first = pg_true(r, 0, 0);
    PQclear(r);
    return 0;
}

/* Appends a text to an array literal, which is sent to the server as a parameter. */
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
 * even after a failure. */
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
    struct arrays a;
    int64_t all = 1;
    int result = arrays_of(&a, k, skip, n, err);
    if (result == 0 && a.n > 0)
        result = pg_query_number(pg_of(base), err, &all,
                                 PG_NAMED "SELECT @schema@._handle_all($1, $2)", "ss", a.handlers.p,
                                 a.keys.p);
    arrays_release(&a);
    *ret_all = all != 0;
    return result;
}
