/* postgres.c: claims of rows in PostgreSQL, in one statement:
 *
 *     WITH picked AS MATERIALIZED (
 *         SELECT * FROM unnest(ARRAY(
 *             SELECT key FROM jobs WHERE criteria ORDER BY order_by LIMIT n
 *             FOR NO KEY UPDATE SKIP LOCKED
 *         )) WITH ORDINALITY AS p (key, place)
 *     )
 *     UPDATE jobs SET fields FROM picked WHERE jobs.key = picked.key
 *     RETURNING picked.place, columns
 *
 * The candidates are locked, and rows locked by other sessions are skipped. They are picked once,
 * before the update starts: for a plain `key IN (SELECT ... LIMIT n)` the planner may repeat the
 * subquery for each row, which locks the next n, and claims more rows than wanted. The place
 * preserves their order, which RETURNING does not. NO KEY UPDATE is the lock that an UPDATE of
 * other columns takes; FOR UPDATE would also skip rows that a foreign key is being checked against.
 */
#include <inttypes.h>
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>

#include "extra/rows/rows.h"

/* Turns a SQLSTATE into a code; the first prefix that matches counts. */
static enum err_code code_of(const char *state)
{
    static const struct {
        const char *prefix;
        enum err_code code;
    } codes[] = {
        {"40", ERR_BUSY},        /* serialization failure, deadlock */
        {"55P03", ERR_BUSY},     /* lock_timeout */
        {"57014", ERR_BUSY},     /* statement_timeout, or cancelled */
        {"42501", ERR_READONLY}, /* insufficient privilege */
        {"25006", ERR_READONLY}, /* a replica, or default_transaction_read_only */
        {"53100", ERR_FULL},     {"53200", ERR_NOMEM},
        {"08", ERR_UNAVAILABLE}, {"53", ERR_UNAVAILABLE},
        {"57", ERR_UNAVAILABLE}, {"22", ERR_INVALID}, /* a value of the wrong type */
        {"23", ERR_INVALID},                          /* a constraint */
        {"42", ERR_INVALID},                          /* no such table, no such column */
        {"3F", ERR_INVALID},                          /* no such schema */
    };
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (strncmp(state, codes[i].prefix, strlen(codes[i].prefix)) == 0)
            return codes[i].code;
    return ERR_INTERNAL;
}

static int fail(PGconn *conn, const PGresult *res, struct error *err)
{
    const char *state = PQresultErrorField(res, PG_DIAG_SQLSTATE);
    const char *message = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);
    if (!message)
        message = PQerrorMessage(conn);
    if (!state)
        return err_class(err, ERR_UNAVAILABLE, CLASS_RETRY, 0, "could not claim rows: %s", message);

    enum err_code code = code_of(state);
    if (PQstatus(conn) != CONNECTION_OK)
        code = ERR_UNAVAILABLE;
    bool final = code == ERR_INVALID || code == ERR_READONLY || code == ERR_INTERNAL;
    return err_class(err, code, final ? CLASS_FATAL : CLASS_RETRY, 0,
                     "could not claim rows: %s (SQLSTATE %s)", message, state);
}

static int ready(void *conn, struct error *err)
{
    PGTransactionStatusType status = PQtransactionStatus(conn);
    bool busy = status == PQTRANS_ACTIVE || PQpipelineStatus(conn) != PQ_PIPELINE_OFF;
    if (status == PQTRANS_UNKNOWN)
        return err_class(err, ERR_UNAVAILABLE, CLASS_RETRY, 0,
                         "could not claim rows: the connection is broken");
    if (busy)
        return err_set(err, ERR_MISUSE,
                       "a claim of rows on a connection that is busy with another command");
    if (status != PQTRANS_IDLE)
        return rows_in_transaction(err);
    return 0;
}

#define NUMBER_MAX 32

/* Returns a value as text, written into `number` if necessary. Parameters are sent untyped, so each
 * gets the type of its column. */
static const char *param_text(const struct rows_value *v, char number[NUMBER_MAX])
{
    switch (v->kind) {
    case ROWS_NULL: return NULL;
    case ROWS_TEXT:
    case ROWS_BLOB: return v->text.p;
    case ROWS_INT: snprintf(number, NUMBER_MAX, "%" PRId64, v->number); break;
    case ROWS_REAL: snprintf(number, NUMBER_MAX, "%.17g", v->real); break;
    }
    return number;
}

/* Runs the statement in one round trip; the caller clears the result. */
static PGresult *send(PGconn *conn, struct rows_sql *sql, struct error *err)
{
    const char *text = rows_sql_text(sql, err);
    if (!text)
        return NULL;

    const char *values[ROWS_PARAMS_MAX];
    char numbers[ROWS_PARAMS_MAX][NUMBER_MAX];
    for (size_t i = 0; i < sql->n; i++)
        values[i] = param_text(&sql->params[i], numbers[i]);
    PGresult *res = PQexecParams(conn, text, (int)sql->n, NULL, values, NULL, NULL, 0);
    ExecStatusType status = PQresultStatus(res);
    bool done = status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK;
    if (done)
        return res;

    fail(conn, res, err);
    PQclear(res);
    return NULL;
}

/* Adds row `at` of the result to *ret, from its column `first` on. */
static int take_row(const PGresult *res, int at, int first, struct outbox_rows *ret,
                    struct error *err)
{
    struct rows_value *row = rows_add(ret);
    if (!row)
        return err_nomem(err);
    for (int i = 0; i < (int)ret->n_columns; i++) {
        if (PQgetisnull(res, at, first + i))
            continue;
        size_t n = (size_t)PQgetlength(res, at, first + i);
        row[i].kind = ROWS_TEXT;
        row[i].text = (struct str){arena_bytes(&ret->a, PQgetvalue(res, at, first + i), n), n};
        if (!row[i].text.p)
            return err_nomem(err);
    }
    return 0;
}

static int run(void *conn, struct rows_sql *sql, struct outbox_rows *ret, int64_t *ret_changed,
               struct error *err)
{
    PGresult *res = send(conn, sql, err);
    if (!res)
        return -1;
    int r = 0;
    int n = ret ? PQntuples(res) : 0;
    for (int i = 0; r == 0 && i < n; i++)
        r = take_row(res, i, 0, ret, err);
    if (r == 0 && ret_changed)
        *ret_changed = strtoll(PQcmdTuples(res), NULL, 10);
    PQclear(res);
    return r;
}

const struct rows_dialect rows_postgres = {
    .name = "postgres",
    .mark = '$',
    .begin = "BEGIN ISOLATION LEVEL READ COMMITTED",
    .now = {"(pg_catalog.statement_timestamp() OPERATOR(pg_catalog.+) (",
            "::float8 OPERATOR(pg_catalog.*) interval '1 millisecond'))"},
    .now_ms = {"((extract(epoch FROM pg_catalog.statement_timestamp()) OPERATOR(pg_catalog.*) "
               "1000)::bigint OPERATOR(pg_catalog.+) ",
               "::bigint)"},
    .ready = ready,
    .run = run,
};

/* ---- the claim ---- */

/* A row of the result and its place among the candidates. */
struct place {
    int64_t place;
    int at;
};

static int by_place(const void *a, const void *b)
{
    int64_t x = ((const struct place *)a)->place, y = ((const struct place *)b)->place;
    return (x > y) - (x < y);
}

/* Adds the rows in the order of the candidates. */
static int take_in_order(const PGresult *res, struct outbox_rows *ret, struct error *err)
{
    int n = PQntuples(res);
    struct place *places = calloc((size_t)n + 1, sizeof *places);
    if (!places)
        return err_nomem(err);
    for (int i = 0; i < n; i++)
        places[i] = (struct place){strtoll(PQgetvalue(res, i, 0), NULL, 10), i};
    qsort(places, (size_t)n, sizeof *places, by_place);

    int r = 0;
    for (int i = 0; r == 0 && i < n; i++)
        r = take_row(res, places[i].at, 1, ret, err);
    free(places);
    return r;
}

int rows_postgres_claim(const struct rows_dialect *d, void *conn, const outbox_row_claim *c,
                        struct outbox_rows *ret, struct error *err)
{
    struct rows_sql sql;
    rows_sql_init(&sql, d);
    rows_sql_add(&sql,
                 "WITH outbox_picked AS MATERIALIZED (SELECT * FROM pg_catalog.unnest(ARRAY(");
    rows_sql_candidates(&sql, c);
    rows_sql_add(&sql,
                 " FOR NO KEY UPDATE SKIP LOCKED)) WITH ORDINALITY AS p (key, place)) UPDATE ");
    rows_sql_table(&sql, c);
    rows_sql_set(&sql, c);
    rows_sql_add(&sql, " FROM outbox_picked WHERE ");
    rows_sql_key(&sql, c);
    rows_sql_add(&sql, " = outbox_picked.key RETURNING outbox_picked.place, ");
    rows_sql_columns(&sql, c);
    PGresult *res = send(conn, &sql, err);
    rows_sql_release(&sql);
    if (!res)
        return -1;
    int r = take_in_order(res, ret, err);
    PQclear(res);
    return r;
}
