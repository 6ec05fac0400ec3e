/* emit.c: inserting events, on our connection or inside the caller's transaction. */
#include <errmsg.h>
#include <mysqld_error.h>
#include <string.h>

#include "store/mariadb/mariadb.h"
#include "store_sql.h"

#define STATEMENT_MAX (1 << 28) /* 64 MiB of payload in hexadecimal digits, and other fields */
#define TRIES 3
#define PARAMETERS_MAX 16
#define BOUND_MAX (64 * 1024) /* bytes of a bound text; a longer one is sent in the statement */

int mdb_target(struct store *base, void *foreign, struct db_target *t, struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    *t = (struct db_target){.st = base, .db = foreign, .foreign = foreign != NULL};
    if (foreign) {
        if (mdb_is_open(foreign))
            return 0;
        return err_set(err, ERR_MISUSE,
                       "no transaction is open on this connection: START TRANSACTION first, so "
                       "that event and data commit together");
    }
    if (mdb_connect(st, err) != 0)
        return -1;
    t->db = st->db;
    return mdb_tx_gone(base, err);
}

/* The application uses this connection, and may have changed its character set. */
static bool is_shared(const struct db_target *t)
{
    return t->foreign || db_of(t->st)->lent;
}

/* Passes on the error of a statement, and drops our connection if it broke. */
static int target_failed(const struct db_target *t, const struct error *why, struct error *err)
{
    bool ours = !t->foreign && !db_of(t->st)->in_tx;
    if (ours && mdb_is_lost((unsigned)why->native))
        mdb_disconnect(mdb_of(t->st));
    if (err)
        *err = *why;
    return -1;
}

/* On the caller's connection it does not touch the handle, which another thread may be using. */
struct db_rows mdb_target_rows(const struct db_target *t, const struct sql *sql, const void *args,
                               struct error *err)
{
    const struct mdb_store *st = mdb_of(t->st);
    struct db_rows q = {0};
    struct buf b;
    struct error why;
    buf_init(&b, STATEMENT_MAX);
    mdb_write(st, is_shared(t) ? MDB_HEX : MDB_QUOTED, sql, args, &b);
    int r;
    if (b.failed)
        r = err_nomem(&why);
    else
        r = mdb_ask(st, t->db, b.p, b.n, &q, &why);
    buf_release(&b);
    if (r != 0)
        target_failed(t, &why, err);
    return q;
}

int64_t mdb_target_changed(const struct db_target *t)
{
    return (int64_t)mysql_affected_rows(t->db);
}

/* ---- prepared statements ---- */

void mdb_prepared_release(struct mdb_prepared *p)
{
    if (p->q)
        mysql_stmt_close(p->q);
    *p = (struct mdb_prepared){0};
}

/* Prepares the statement, with placeholders for its values. */
static bool prepare(struct mdb_store *st, struct mdb_prepared *p, const struct sql *sql)
{
    struct buf b;
    buf_init(&b, 4096);
    mdb_write(st, MDB_OPEN, sql, NULL, &b);
    p->q = mysql_stmt_init(st->db);
    bool done = !b.failed && p->q && mysql_stmt_prepare(p->q, b.p, b.n) == 0;
    buf_release(&b);
    if (done)
        return true;
    mdb_prepared_release(p);
    p->refused = true;
    return false;
}

/* Binds the arguments; false if one has an unsupported size or type. */
static bool bind_values(MYSQL_BIND *to, const struct sql_text *sql, const void *args)
{
    for (size_t i = 0; i < sql->n; i++) {
        const char *arg = (const char *)args + sql->parameter[i].at;
        struct str text = {0};
        to[i].buffer_type = MYSQL_TYPE_LONGLONG;
        switch (sql->parameter[i].type) {
        case 'i': to[i].buffer = (void *)arg; break;
        case 'o': to[i].buffer = *(void *const *)arg; break;
        case 't':
            text = *(const struct str *)arg;
            to[i].buffer_type = MYSQL_TYPE_STRING;
            to[i].buffer = (void *)text.p;
            to[i].buffer_length = text.n;
            break;
        default: return false;
        }
        if (!to[i].buffer)
            to[i].buffer_type = MYSQL_TYPE_NULL;
        if (text.n > BOUND_MAX)
            return false;
    }
    return true;
}

/* Reads the id of the inserted event; empty if there is no row. */
static int read_id(MYSQL_STMT *q, char id[UUID_TEXT + 1])
{
    unsigned long size = 0;
    MYSQL_BIND to = {
        .buffer_type = MYSQL_TYPE_STRING,
        .buffer = id,
        .buffer_length = UUID_TEXT,
        .length = &size,
    };
    id[0] = '\0';
    if (mysql_stmt_bind_result(q, &to) != 0 || mysql_stmt_store_result(q) != 0)
        return -1;
    bool whole = mysql_stmt_fetch(q) == 0 && size <= UUID_TEXT;
    if (whole)
        id[size] = '\0';
    mysql_stmt_free_result(q);
    return 0;
}

/* Runs an INSERT that returns the event's id, prepared, on our own connection. Producers send the
 * same statement over and over, and the server spends more time parsing its text than executing it.
 * Only for a connection that the application does not use: a prepared statement stays behind, and
 * its values are in the session's character set. 1: it ran; 0: it cannot be prepared, and has to be
 * sent as text; -1: it failed. */
static int run_prepared(struct mdb_store *st, struct mdb_prepared *p, const struct sql *sql,
                        const void *args, char id[UUID_TEXT + 1], struct error *err)
{
    const struct sql_text *text = &sql->in[SQL_MARIADB];
    MYSQL_BIND values[PARAMETERS_MAX] = {0};
    bool closed = p->q && mysql_stmt_errno(p->q) == CR_STMT_CLOSED;
    if (closed)
        mdb_prepared_release(p); /* the connection was reset */
    if (p->refused || text->n > PARAMETERS_MAX || !bind_values(values, text, args))
        return 0;
    if (!p->q && !prepare(st, p, sql))
        return 0;

    int64_t since = clock_mono(&clock_system);
    bool ran = mysql_stmt_bind_param(p->q, values) == 0 && mysql_stmt_execute(p->q) == 0;
    if (!ran && mysql_stmt_errno(p->q) == ER_UNKNOWN_STMT_HANDLER) {
        mdb_prepared_release(p);
        return 0;
    }
    if (!ran || read_id(p->q, id) != 0)
        return mdb_fail_since(st, st->db, since, err);
    return 1;
}

/* ---- the event ---- */

/* Runs an INSERT, which returns the id of the event: prepared unless the application uses the
 * connection or p is NULL, otherwise as text. */
static int run_insert(const struct db_target *t, struct mdb_prepared *p, char id[UUID_TEXT + 1],
                      struct error *err, const struct sql *sql, const void *args)
{
    struct error why;
    struct db_rows q;
    int r = 0;
    if (p && !is_shared(t))
        r = run_prepared(mdb_of(t->st), p, sql, args, id, &why);
    if (r < 0)
        return target_failed(t, &why, err);
    if (r == 0) {
        id[0] = '\0';
        r = db_target_row(t, &q, err, sql, args);
        if (r < 0)
            return -1;
        struct str made = r == 1 ? db_text(&q, 0) : (struct str){0};
        if (made.n == UUID_TEXT)
            memcpy(id, made.p, UUID_TEXT + 1);
        db_done(&q);
    }
    if (id[0])
        return 0;
    return err_set(err, ERR_CONFLICT, "%s: the event was not stored", db_of(t->st)->shown);
}

/* Inserts the event and returns its id. Only tests use a clock other than the server's. */
static int insert_event(const struct db_target *t, const struct new_event *ev,
                        char id[UUID_TEXT + 1], struct error *err)
{
    struct mdb_store *st = mdb_of(t->st);
    bool by_server = mdb_by_server(st);
    bool optional = ev->has_version || ev->headers.p || ev->tenant.p || ev->not_before ||
                    ev->idempotency_key.p;
    if (by_server && !optional) {
        struct sql_insert_plain row = {
            .type = ev->type,
            .aggregate_type = ev->aggregate_type,
            .aggregate_id = ev->aggregate_id,
            .payload = db_emit_payload(ev),
        };
        return run_insert(t, &st->insert_plain, id, err, &sql_insert_plain, &row);
    }

    struct sql_insert_event row = {
        .type = ev->type,
        .aggregate_type = ev->aggregate_type,
        .aggregate_id = ev->aggregate_id,
        .version = ev->has_version ? &ev->version : NULL,
        .payload = db_emit_payload(ev),
        .headers = ev->headers,
        .tenant = ev->tenant,
        .not_before = ev->not_before ? &ev->not_before : NULL,
        .idempotency_key = ev->idempotency_key,
    };
    if (by_server)
        return run_insert(t, &st->insert, id, err, &sql_insert_event, &row);
    struct sql_insert_event_at timed = {
        row.type,    row.aggregate_type, row.aggregate_id, row.version,         row.payload,
        row.headers, row.tenant,         row.not_before,   row.idempotency_key, 0};
    timed.now = clock_wall(db_of(t->st)->opt.clock);
    return run_insert(t, NULL, id, err, &sql_insert_event_at, &timed);
}

/* Inserts the event, or finds the event with its key. If a statement fails, the server undoes only
 * that statement, not the transaction. */
int mdb_insert(const struct db_target *t, const struct new_event *ev, char id[UUID_TEXT + 1],
               bool *ret_duplicate, struct error *err)
{
    struct error why;
    for (int i = 0; i < TRIES; i++) {
        if (insert_event(t, ev, id, &why) == 0)
            return 0;
        bool known = why.native == ER_DUP_ENTRY && ev->idempotency_key.p;
        if (!known)
            break;
        int found = db_emit_find(t, ev, 0, id, err);
        if (found < 0)
            return -1;
        *ret_duplicate = found == 1;
        if (found == 1)
            return 0;
        /* The event was trimmed in between, or its transaction was rolled back. */
    }
    return err_copy(err, &why);
}
