/* sqlite.c: claims of rows in SQLite. SQLite has one writer at a time, so one BEGIN IMMEDIATE
 * transaction suffices: no other session can change rows between the query for candidates and their
 * updates. */
#include <sqlite3.h>

#include "extra/rows/rows.h"
#include "store/sqlite/sqlite.h"

static int fail(sqlite3 *db, int rc, struct error *err)
{
    bool unknown_name = rc == SQLITE_ERROR; /* no such table, no such column */
    if (unknown_name)
        return err_class(err, ERR_INVALID, CLASS_FATAL, rc, "could not claim rows: %s",
                         sqlite3_errmsg(db));
    sqlite_fail(NULL, db, rc, err);
    return err_prefix(err, "could not claim rows");
}

static int ready(void *conn, struct error *err)
{
    if (!sqlite3_get_autocommit(conn))
        return rows_in_transaction(err);
    return 0;
}

static int bind(sqlite3_stmt *q, int at, const struct rows_value *v)
{
    switch (v->kind) {
    case ROWS_NULL: return sqlite3_bind_null(q, at);
    case ROWS_TEXT:
        return sqlite3_bind_text64(q, at, v->text.p, v->text.n, SQLITE_STATIC, SQLITE_UTF8);
    case ROWS_BLOB: return sqlite3_bind_blob64(q, at, v->text.p, v->text.n, SQLITE_STATIC);
    case ROWS_INT: return sqlite3_bind_int64(q, at, v->number);
    case ROWS_REAL: return sqlite3_bind_double(q, at, v->real);
    }
    return SQLITE_MISUSE;
}

/* Returns the statement with its parameters bound, which it borrows from sql; NULL on failure. */
static sqlite3_stmt *prepare(sqlite3 *db, struct rows_sql *sql, struct error *err)
{
    const char *text = rows_sql_text(sql, err);
    if (!text)
        return NULL;

    sqlite3_stmt *q;
    int rc = sqlite3_prepare_v2(db, text, -1, &q, NULL);
    for (size_t i = 0; rc == SQLITE_OK && i < sql->n; i++)
        rc = bind(q, (int)i + 1, &sql->params[i]);
    if (rc == SQLITE_OK)
        return q;

    fail(db, rc, err);
    sqlite3_finalize(q);
    return NULL;
}

/* Copies a cell of the current row; false when out of memory. */
static bool take_cell(sqlite3_stmt *q, int col, struct rows_value *v, struct arena *a)
{
    static const enum rows_kind kinds[] = {
        [SQLITE_INTEGER] = ROWS_INT, [SQLITE_FLOAT] = ROWS_REAL, [SQLITE_TEXT] = ROWS_TEXT,
        [SQLITE_BLOB] = ROWS_BLOB,   [SQLITE_NULL] = ROWS_NULL,
    };
    v->kind = kinds[sqlite3_column_type(q, col)];
    if (v->kind == ROWS_NULL)
        return true;
    if (v->kind == ROWS_INT)
        v->number = sqlite3_column_int64(q, col);
    if (v->kind == ROWS_REAL)
        v->real = sqlite3_column_double(q, col);

    const void *p; /* an empty blob has no pointer */
    if (v->kind == ROWS_BLOB)
        p = sqlite3_column_blob(q, col);
    else
        p = sqlite3_column_text(q, col);
    size_t n = (size_t)sqlite3_column_bytes(q, col);
    if (!p && n > 0)
        return false;
    v->text = (struct str){arena_bytes(a, p, n), n};
    return v->text.p != NULL;
}

static int take_row(sqlite3_stmt *q, struct outbox_rows *ret, struct error *err)
{
    struct rows_value *row = rows_add(ret);
    if (!row)
        return err_nomem(err);
    for (size_t i = 0; i < ret->n_columns; i++)
        if (!take_cell(q, (int)i, &row[i], &ret->a))
            return err_nomem(err);
    return 0;
}

/* Runs the statement to its end and adds its rows to *ret. */
static int step(sqlite3 *db, sqlite3_stmt *q, struct outbox_rows *ret, struct error *err)
{
    int rc;
    while ((rc = sqlite3_step(q)) == SQLITE_ROW)
        if (take_row(q, ret, err) != 0)
            return -1;
    if (rc != SQLITE_DONE)
        return fail(db, rc, err);
    return 0;
}

static int run(void *conn, struct rows_sql *sql, struct outbox_rows *ret, int64_t *ret_changed,
               struct error *err)
{
    sqlite3_stmt *q = prepare(conn, sql, err);
    if (!q)
        return -1;
    int r = step(conn, q, ret, err);
    if (r == 0 && ret_changed)
        *ret_changed = sqlite3_changes64(conn);
    sqlite3_finalize(q);
    return r;
}

const struct rows_dialect rows_sqlite = {
    .name = "sqlite",
    .mark = '?',
    .begin = "BEGIN IMMEDIATE",
    .rowid = "rowid",
    .now = {"strftime('%Y-%m-%d %H:%M:%f', 'now', (", " / 1000.0) || ' seconds')"},
    .now_ms = {"(CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) + ", ")"},
    .ready = ready,
    .run = run,
};

/* ---- the claim ---- */

/* Updates row by row to keep the order, because the order of RETURNING is undefined. The key is the
 * last parameter, bound again for each row. */
static int update_keys(sqlite3 *db, const outbox_row_claim *c, const struct outbox_rows *keys,
                       struct outbox_rows *ret, struct error *err)
{
    struct rows_sql sql;
    rows_sql_init(&sql, &rows_sqlite);
    rows_sql_update_by_key(&sql, c);
    rows_sql_add(&sql, " = ");
    rows_sql_param(&sql, &(struct rows_value){.kind = ROWS_NULL});
    rows_sql_add(&sql, " RETURNING ");
    rows_sql_columns(&sql, c);

    sqlite3_stmt *q = prepare(db, &sql, err);
    int r = q ? 0 : -1;
    for (size_t i = 0; r == 0 && i < keys->n; i++) {
        sqlite3_reset(q);
        int rc = bind(q, (int)sql.n, &keys->cells[i]);
        if (rc == SQLITE_OK)
            r = step(db, q, ret, err);
        else
            r = fail(db, rc, err);
    }
    sqlite3_finalize(q);
    rows_sql_release(&sql);
    return r;
}

/* Returns the rows only after the commit; before it, they are not claimed. */
int rows_sqlite_claim(const struct rows_dialect *d, void *conn, const outbox_row_claim *c,
                      struct outbox_rows *ret, struct error *err)
{
    sqlite3 *db = conn;
    struct outbox_rows keys;
    rows_init(&keys, 1);
    int r = rows_run_text(d, db, d->begin, err);
    if (r == 0)
        r = rows_pick(d, db, c, "", &keys, err);
    if (r == 0)
        r = update_keys(db, c, &keys, ret, err);
    if (r == 0)
        r = rows_run_text(d, db, "COMMIT", err);

    /* A full disk rolls back automatically. After a commit refused because of a reader's lock, we
     * must roll back. */
    if (r != 0 && !sqlite3_get_autocommit(db))
        rows_run_text(d, db, "ROLLBACK", NULL);
    rows_release(&keys);
    return r;
}
