/* statement.c: prepared statements, result codes, and rows as events. */
#include <stdio.h>

#include "store/sqlite/sqlite.h"

/* code_of maps a result code, extended or not. A missing table is an error in SQL to SQLite; to us
 * it means that there is no outbox. */
static enum err_code code_of(int rc, const char *message)
{
    static const struct {
        int rc;
        enum err_code code;
    } codes[] = {
        {SQLITE_BUSY, ERR_BUSY},
        {SQLITE_LOCKED, ERR_BUSY},
        {SQLITE_FULL, ERR_FULL},
        {SQLITE_NOMEM, ERR_NOMEM},
        {SQLITE_READONLY, ERR_READONLY},
        {SQLITE_PERM, ERR_READONLY},
        {SQLITE_AUTH, ERR_READONLY},
        {SQLITE_NOTADB, ERR_NOTOURS},
        {SQLITE_CORRUPT, ERR_NOTOURS},
        {SQLITE_CONSTRAINT, ERR_INVALID},
        {SQLITE_TOOBIG, ERR_INVALID},
        {SQLITE_MISMATCH, ERR_INVALID},
        {SQLITE_CANTOPEN, ERR_UNAVAILABLE},
        {SQLITE_IOERR, ERR_UNAVAILABLE},
    };
    int primary = rc & 0xff;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i].rc == primary)
            return codes[i].code;

    bool no_table = primary == SQLITE_ERROR && strstr(message, "no such table: ");
    return no_table ? ERR_NOTOURS : ERR_INTERNAL;
}

int sqlite_fail(struct sqlite_store *st, sqlite3 *db, int rc, struct error *err)
{
    const char *message = db ? sqlite3_errmsg(db) : sqlite3_errstr(rc);
    const char *where = st ? st->shown : "sqlite";
    enum err_code code = code_of(rc, message);
    enum retry_class fate = code == ERR_INTERNAL ? CLASS_FATAL : CLASS_RETRY;
    bool no_table = code == ERR_NOTOURS && (rc & 0xff) == SQLITE_ERROR;

    if (code == ERR_BUSY)
        return err_class(err, code, CLASS_RETRY, rc,
                         "%s: locked by another process for too long; try again", where);
    if (no_table)
        return err_class(err, code, CLASS_FATAL, rc,
                         "%s: no outbox in this database (%s); make one with `outbox init`", where,
                         message);
    if (strstr(message, "unsafe use of "))
        return err_class(err, ERR_CONFIG, CLASS_FATAL, rc,
                         "%s: this connection has `PRAGMA trusted_schema = OFF`, and the outbox's "
                         "tables check events with SQLite's JSON functions: turn it on there (%s)",
                         where, message);
    if (code == ERR_FULL)
        return err_class(err, code, CLASS_RETRY, rc, "%s: no space left on the device", where);
    return err_class(err, code, fate, rc, "%s: %s", where, message);
}

/* ---- preparing and binding ---- */

static sqlite3_stmt *prepare(struct sqlite_store *st, const char *sql, struct error *err)
{
    for (size_t i = 0; i < st->n_cached; i++)
        if (st->cached[i].sql == sql)
            return st->cached[i].stmt;

    if (st->n_cached == STATEMENTS_MAX) {
        err_set(err, ERR_INTERNAL, "statement cache is full");
        return NULL;
    }
    sqlite3_stmt *q;
    int rc = sqlite3_prepare_v3(st->db, sql, -1, SQLITE_PREPARE_PERSISTENT, &q, NULL);
    if (rc != SQLITE_OK) {
        sqlite_fail(st, st->db, rc, err);
        return NULL;
    }
    st->cached[st->n_cached].sql = sql;
    st->cached[st->n_cached++].stmt = q;
    return q;
}

sqlite3_stmt *sqlite_plain(struct sqlite_store *st, const char *sql, struct error *err)
{
    if (sqlite_unstick(st, err) != 0)
        return NULL;
    if (sqlite_home_check(st, err) != 0)
        return NULL;
    sqlite3_stmt *q = prepare(st, sql, err);
    if (q)
        sqlite3_reset(q);
    return q;
}

static void bind_str(sqlite3_stmt *q, int i, struct str s)
{
    if (s.p)
        sqlite3_bind_text64(q, i, s.p, s.n, SQLITE_STATIC, SQLITE_UTF8);
    else
        sqlite3_bind_null(q, i);
}

static void bind_optional(sqlite3_stmt *q, int i, const int64_t *number)
{
    if (number)
        sqlite3_bind_int64(q, i, *number);
    else
        sqlite3_bind_null(q, i);
}

void sqlite_bind(sqlite3_stmt *q, const struct sql *sql, const void *args)
{
    const struct sql_text *own = &sql->in[SQL_SQLITE];
    for (size_t i = 0; i < own->n; i++) {
        const struct sql_parameter *p = &own->parameter[i];
        const void *arg = (const char *)args + p->at;
        int at = (int)i + 1;
        switch (p->type) {
        case 'i': sqlite3_bind_int64(q, at, *(const int64_t *)arg); break;
        case 'o': bind_optional(q, at, *(const int64_t *const *)arg); break;
        case 's': sqlite3_bind_text(q, at, *(const char *const *)arg, -1, SQLITE_STATIC); break;
        case 't': bind_str(q, at, *(const struct str *)arg); break;
        }
    }
}

/* ---- running ---- */

sqlite3_stmt *sqlite_rows(struct sqlite_store *st, struct error *err, const struct sql *sql,
                          const void *args)
{
    sqlite3_stmt *q = sqlite_plain(st, sql->in[SQL_SQLITE].text, err);
    if (q)
        sqlite_bind(q, sql, args);
    return q;
}

int sqlite_step(struct sqlite_store *st, sqlite3_stmt *q, struct error *err)
{
    if (!q)
        return -1;
    int rc = sqlite3_step(q);
    if (rc == SQLITE_ROW)
        return 1;
    if (rc != SQLITE_DONE)
        sqlite_fail(st, st->db, rc, err); /* before the reset: that forgets the message */
    sqlite3_reset(q);
    return rc == SQLITE_DONE ? 0 : -1;
}

int sqlite_row(struct sqlite_store *st, sqlite3_stmt **ret, struct error *err,
               const struct sql *sql, const void *args)
{
    *ret = sqlite_rows(st, err, sql, args);
    return sqlite_step(st, *ret, err);
}

static int finish(struct sqlite_store *st, sqlite3_stmt *q, struct error *err)
{
    int r;
    do
        r = sqlite_step(st, q, err);
    while (r == 1);
    return r;
}

int sqlite_run(struct sqlite_store *st, struct error *err, const struct sql *sql, const void *args)
{
    return finish(st, sqlite_rows(st, err, sql, args), err);
}

int sqlite_exec(struct sqlite_store *st, const char *sql, struct error *err)
{
    return finish(st, sqlite_plain(st, sql, err), err);
}

int sqlite_value(struct sqlite_store *st, struct error *err, int64_t *ret, const struct sql *sql,
                 const void *args)
{
    sqlite3_stmt *q;
    int r = sqlite_row(st, &q, err, sql, args);
    if (r <= 0)
        return r;
    if (sqlite3_column_type(q, 0) != SQLITE_NULL)
        *ret = sqlite3_column_int64(q, 0);
    sqlite3_reset(q);
    return 0;
}

/* ---- rows ---- */

struct str sqlite_copy(sqlite3_stmt *q, int col, struct arena *a, bool *ok)
{
    struct str s = sqlite_text(q, col);
    if (!s.p)
        return s;
    s.p = arena_bytes(a, s.p, s.n);
    if (!s.p)
        *ok = false;
    return s;
}

bool sqlite_event_row(sqlite3_stmt *q, struct arena *a, struct event *ev)
{
    *ev = (struct event){
        .seq = sqlite3_column_int64(q, 0),
        .id = sqlite_text(q, 1),
        .type = sqlite_text(q, 2),
        .aggregate_type = sqlite_text(q, 3),
        .aggregate_id = sqlite_text(q, 4),
        .has_version = sqlite3_column_type(q, 5) != SQLITE_NULL,
        .version = sqlite3_column_int64(q, 5),
        .payload = sqlite_text(q, 6),
        .headers = sqlite_text(q, 7),
        .tenant = sqlite_text(q, 8),
        .created_at = sqlite3_column_int64(q, 9),
        .not_before = sqlite3_column_int64(q, 10),
        .idempotency_key = sqlite_text(q, 11),
    };
    return db_event_keep(ev, a);
}
