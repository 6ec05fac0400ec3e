/* statement.c: prepared statements, result codes, and rows as events. */
#include <ctype.h>
#include <stdio.h>

#include "store/sqlite/sqlite.h"

static enum err_code code_of(int rc, const char *message)
{
    switch (rc & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED: return ERR_BUSY;
    case SQLITE_FULL: return ERR_FULL;
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH: return ERR_READONLY;
    case SQLITE_NOMEM: return ERR_NOMEM;
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT: return ERR_NOTOURS;
    case SQLITE_CONSTRAINT:
    case SQLITE_TOOBIG:
    case SQLITE_MISMATCH: return ERR_INVALID;
    case SQLITE_CANTOPEN:
    case SQLITE_IOERR: return ERR_UNAVAILABLE;
    case SQLITE_ERROR: return strstr(message, "no such table: ") ? ERR_NOTOURS : ERR_INTERNAL;
    default: return ERR_INTERNAL;
    }
}

int sqlite_fail(struct sqlite_store *st, sqlite3 *db, int rc, struct error *err)
{
    const char *message = db ? sqlite3_errmsg(db) : sqlite3_errstr(rc);
    enum err_code code = code_of(rc, message);
    const char *where = st ? st->shown : "sqlite";
    if (code == ERR_BUSY)
        return err_fate(err, code, FATE_RETRY, rc,
                        "%s: locked by another process for too long; try again", where);
    if (code == ERR_NOTOURS && (rc & 0xff) == SQLITE_ERROR)
        return err_fate(err, code, FATE_FATAL, rc,
                        "%s: no outbox in this database (%s); make one with `outbox init`", where,
                        message);
    if (strstr(message, "unsafe use of "))
        return err_fate(err, ERR_CONFIG, FATE_FATAL, rc,
                        "%s: this connection has `PRAGMA trusted_schema = OFF`, and the outbox's "
                        "tables check events with "
                        "SQLite's JSON functions: turn it on there (%s)",
                        where, message);
    if (code == ERR_FULL)
        return err_fate(err, code, FATE_RETRY, rc, "%s: no space left on the device", where);
    return err_fate(err, code, code == ERR_INTERNAL ? FATE_FATAL : FATE_RETRY, rc, "%s: %s", where,
                    message);
}

static sqlite3_stmt *prepare(struct sqlite_store *st, const char *sql, struct error *err)
{
    for (size_t i = 0; i < st->n_cached; i++)
        if (st->cached[i].sql == sql)
            return st->cached[i].stmt;
    sqlite3_stmt *q;
    if (st->n_cached == STATEMENTS_MAX) {
        err_set(err, ERR_INTERNAL, "statement cache is full");
        return NULL;
    }
    int rc = sqlite3_prepare_v3(st->db, sql, -1, SQLITE_PREPARE_PERSISTENT, &q, NULL);
    if (rc != SQLITE_OK) {
        sqlite_fail(st, st->db, rc, err);
        return NULL;
    }
    st->cached[st->n_cached].sql = sql;
    st->cached[st->n_cached++].stmt = q;
    return q;
}

static void bind_str(sqlite3_stmt *q, int i, struct str s)
{
    if (s.p)
        sqlite3_bind_text64(q, i, s.p, s.n, SQLITE_STATIC, SQLITE_UTF8);
    else
        sqlite3_bind_null(q, i);
}

void sqlite_bind(sqlite3_stmt *q, const char *fmt, va_list ap)
{
    for (int i = 1; *fmt; fmt++, i++) {
        if (*fmt == 'i') {
            sqlite3_bind_int64(q, i, va_arg(ap, int64_t));
        } else if (*fmt == 's') {
            sqlite3_bind_text(q, i, va_arg(ap, const char *), -1, SQLITE_STATIC);
        } else {
            bind_str(q, i, va_arg(ap, struct str));
        }
    }
}

/* ready gives a statement that nobody is at, on a connection where it may be run. */
static sqlite3_stmt *ready(struct sqlite_store *st, const char *sql, struct error *err)
{
    if (sqlite_unstick(st, err) != 0 || sqlite_home_check(st, err) != 0)
        return NULL;
    sqlite3_stmt *q = prepare(st, sql, err);
    if (q)
        sqlite3_reset(q);
    return q;
}

static sqlite3_stmt *query(struct sqlite_store *st, struct error *err, const char *sql,
                           const char *fmt, va_list ap)
{
    sqlite3_stmt *q = ready(st, sql, err);
    if (q)
        sqlite_bind(q, fmt, ap);
    return q;
}

sqlite3_stmt *sqlite_query(struct sqlite_store *st, struct error *err, const char *sql,
                           const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    sqlite3_stmt *q = query(st, err, sql, fmt, ap);
    va_end(ap);
    return q;
}

int sqlite_step(struct sqlite_store *st, sqlite3_stmt *q, struct error *err)
{
    int rc = sqlite3_step(q);
    if (rc == SQLITE_ROW)
        return 1;
    if (rc != SQLITE_DONE)
        sqlite_fail(st, st->db, rc, err);
    sqlite3_reset(q);
    return rc == SQLITE_DONE ? 0 : -1;
}

static int finish(struct sqlite_store *st, sqlite3_stmt *q, struct error *err)
{
    int r = q ? 1 : -1;
    while (r == 1)
        r = sqlite_step(st, q, err);
    return r;
}

int sqlite_exec(struct sqlite_store *st, struct error *err, const char *sql, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    sqlite3_stmt *q = query(st, err, sql, fmt, ap);
    va_end(ap);
    return finish(st, q, err);
}

static int number(struct sqlite_store *st, sqlite3_stmt *q, int64_t *ret, struct error *err)
{
    if (!q)
        return -1;
    int r = sqlite_step(st, q, err);
    if (r < 0)
        return -1;
    if (r == 1) {
        if (sqlite3_column_type(q, 0) != SQLITE_NULL)
            *ret = sqlite3_column_int64(q, 0);
        sqlite3_reset(q);
    }
    return 0;
}

int sqlite_number(struct sqlite_store *st, struct error *err, int64_t *ret, const char *sql,
                  const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    sqlite3_stmt *q = query(st, err, sql, fmt, ap);
    va_end(ap);
    return number(st, q, ret, err);
}

static void bind_member(sqlite3_stmt *q, int i, char type, const void *member)
{
    switch (type) {
    case 'i': sqlite3_bind_int64(q, i, *(const int64_t *)member); break;
    case 's': sqlite3_bind_text(q, i, *(const char *const *)member, -1, SQLITE_STATIC); break;
    case 't': bind_str(q, i, *(const struct str *)member); break;
    }
}

sqlite3_stmt *sqlite_rows(struct sqlite_store *st, struct error *err, const struct sql *sql,
                          const void *args)
{
    sqlite3_stmt *q = ready(st, sql->text, err);
    for (size_t i = 0; q && i < sql->n; i++) {
        const struct sql_parameter *p = &sql->parameter[i];
        bind_member(q, (int)i + 1, p->type, (const char *)args + p->at);
    }
    return q;
}

int sqlite_run(struct sqlite_store *st, struct error *err, const struct sql *sql, const void *args)
{
    return finish(st, sqlite_rows(st, err, sql, args), err);
}

int sqlite_value(struct sqlite_store *st, struct error *err, int64_t *ret, const struct sql *sql,
                 const void *args)
{
    return number(st, sqlite_rows(st, err, sql, args), ret, err);
}

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

/* keep copies one column to *at and steps past it and its NUL. */
static struct str keep(struct str s, char **at)
{
    if (!s.p)
        return s;
    memcpy(*at, s.p, s.n);
    (*at)[s.n] = '\0';
    s.p = *at;
    *at += s.n + 1;
    return s;
}

#define TEXTS 8 /* columns of an event that are text */

/* One allocation for all texts of a row: this is where a drain spends its time. */
bool sqlite_event_row(sqlite3_stmt *q, struct arena *a, struct event *ev)
{
    static const int columns[TEXTS] = {1, 2, 3, 4, 6, 7, 8, 11};
    struct str *to[TEXTS] = {&ev->id,      &ev->type,    &ev->aggregate_type, &ev->aggregate_id,
                             &ev->payload, &ev->headers, &ev->tenant,         &ev->idempotency_key};
    struct str s[TEXTS];
    size_t size = 0;
    for (int i = 0; i < TEXTS; i++) {
        s[i] = sqlite_text(q, columns[i]);
        size += s[i].n + 1;
    }
    *ev = (struct event){
        .seq = sqlite3_column_int64(q, 0),
        .has_version = sqlite3_column_type(q, 5) != SQLITE_NULL,
        .version = sqlite3_column_int64(q, 5),
        .created_at = sqlite3_column_int64(q, 9),
        .not_before = sqlite3_column_int64(q, 10),
    };
    char *at = arena_raw(a, size);
    if (!at)
        return false;
    for (int i = 0; i < TEXTS; i++)
        *to[i] = keep(s[i], &at);
    ev->key = event_key(ev->aggregate_type, ev->aggregate_id);
    return true;
}
