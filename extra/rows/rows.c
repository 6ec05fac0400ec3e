/* rows.c: claims of rows of any table: checks a claim, builds its SQL, in which values are always
 * parameters and names are quoted, and implements the portable path and the result. */
#include "extra/rows/rows.h"

#include <stdlib.h>

#define TEXT_MAX (1 << 20)
/* How often the portable path searches again after losing all of its candidates to other sessions.
 * Without a limit, rows that are visible but not updatable (row-level security, a trigger) would
 * cause an endless loop. */
#define ROUNDS_MAX 10

static const char *const operators[] = {" = ",  " <> ",  " < ",      " <= ",        " > ",
                                        " >= ", " IN (", " IS NULL", " IS NOT NULL"};
#define N_OPERATORS ((int)(sizeof operators / sizeof *operators))

/* ---- checking ---- */

static int check_name(const char *what, const char *name, struct error *err)
{
    size_t n = str_of(name).n;
    if (n == 0)
        return err_set(err, ERR_MISUSE, "a claim of rows requires the name of its %s", what);
    if (n > ROWS_NAME_MAX)
        return err_set(err, ERR_MISUSE, "%s \"%s\" has a name of more than %d bytes", what, name,
                       ROWS_NAME_MAX);
    return 0;
}

static int check_value(const char *column, const outbox_value *v, struct error *err)
{
    if (v->kind < OUTBOX_VALUE_NULL || v->kind > OUTBOX_VALUE_PLUS)
        return err_set(err, ERR_MISUSE, "column \"%s\": %d is not a kind of value", column,
                       v->kind);
    if (v->kind == OUTBOX_VALUE_TEXT && !v->text)
        return err_set(
            err, ERR_MISUSE,
            "column \"%s\": the text of its value is NULL; use OUTBOX_VALUE_NULL for NULL", column);
    return 0;
}

static int check_criterion(const outbox_criterion *k, struct error *err)
{
    if (check_name("column", k->column, err) != 0)
        return -1;
    if (k->op < 0 || k->op >= N_OPERATORS)
        return err_set(err, ERR_MISUSE, "criterion on \"%s\": %d is not an operator", k->column,
                       k->op);
    if (k->op > OUTBOX_IN)
        return 0; /* the operator compares no value */
    if (k->op == OUTBOX_IN && k->n_values == 0)
        return err_set(err, ERR_MISUSE, "criterion on \"%s\": IN without values", k->column);

    const outbox_value *values = k->op == OUTBOX_IN ? k->values : &k->value;
    size_t n = k->op == OUTBOX_IN ? k->n_values : 1;
    for (size_t i = 0; i < n; i++) {
        if (check_value(k->column, &values[i], err) != 0)
            return -1;
        if (values[i].kind == OUTBOX_VALUE_NULL)
            return err_set(err, ERR_MISUSE,
                           "criterion on \"%s\": nothing equals NULL; use OUTBOX_IS_NULL",
                           k->column);
        if (values[i].kind == OUTBOX_VALUE_PLUS)
            return err_set(err, ERR_MISUSE,
                           "criterion on \"%s\": OUTBOX_VALUE_PLUS is for claim fields", k->column);
    }
    return 0;
}

/* Checks the criteria, the fields, the order and the columns of a claim. */
static int check_lists(const outbox_row_claim *c, struct error *err)
{
    for (size_t i = 0; i < c->n_criteria; i++)
        if (check_criterion(&c->criteria[i], err) != 0)
            return -1;
    for (size_t i = 0; i < c->n_fields; i++) {
        const char *column = c->fields[i].column;
        if (check_name("column", column, err) != 0)
            return -1;
        if (c->key && strcmp(c->key, column) == 0)
            return err_set(err, ERR_MISUSE, "a claim cannot change the key \"%s\" of its rows",
                           c->key);
        if (check_value(column, &c->fields[i].value, err) != 0)
            return -1;
    }
    for (size_t i = 0; i < c->n_order_by; i++)
        if (check_name("column", c->order_by[i].column, err) != 0)
            return -1;
    for (size_t i = 0; i < c->n_columns; i++)
        if (check_name("column", c->columns[i], err) != 0)
            return -1;
    return 0;
}

/* Rejects an invalid request with ERR_MISUSE. */
static int check_claim(const struct rows_dialect *d, const outbox_row_claim *c, struct error *err)
{
    if (check_name("table", c->table, err) != 0)
        return -1;
    if (c->schema && check_name("schema", c->schema, err) != 0)
        return -1;
    bool by_rowid = !c->key && d->rowid;
    if (!by_rowid && check_name("key column", c->key, err) != 0)
        return -1;
    if (c->n_criteria == 0 || c->n_fields == 0)
        return err_set(
            err, ERR_MISUSE,
            "a claim of rows of \"%s\" requires criteria, and fields that make them false: "
            "without both, the next caller would claim the same rows",
            c->table);
    if (c->limit < 1 || c->limit > ROWS_LIMIT_MAX)
        return err_set(err, ERR_MISUSE, "the limit of a claim of rows is 1 to %d, not %zu",
                       ROWS_LIMIT_MAX, c->limit);
    return check_lists(c, err);
}

/* ---- building ---- */

void rows_sql_init(struct rows_sql *sql, const struct rows_dialect *d)
{
    sql->d = d;
    sql->n = 0;
    sql->failed = false;
    buf_init(&sql->text, TEXT_MAX);
}

void rows_sql_release(struct rows_sql *sql)
{
    buf_release(&sql->text);
}

const char *rows_sql_text(struct rows_sql *sql, struct error *err)
{
    if (sql->failed) {
        err_set(err, ERR_MISUSE, "a claim of rows with more than %d values", ROWS_PARAMS_MAX);
        return NULL;
    }
    const char *text = buf_cstr(&sql->text);
    if (!text)
        err_nomem(err);
    return text;
}

void rows_sql_add(struct rows_sql *sql, const char *text)
{
    buf_adds(&sql->text, text);
}

static void add_name(struct rows_sql *sql, const char *name)
{
    char quote = sql->d->quote ? sql->d->quote : '"';
    buf_addc(&sql->text, quote);
    for (const char *p = name; *p; p++) {
        if (*p == quote)
            buf_addc(&sql->text, quote);
        buf_addc(&sql->text, *p);
    }
    buf_addc(&sql->text, quote);
}

static void add_column(struct rows_sql *sql, const outbox_row_claim *c, const char *column)
{
    add_name(sql, c->table);
    rows_sql_add(sql, ".");
    add_name(sql, column);
}

void rows_sql_param(struct rows_sql *sql, const struct rows_value *v)
{
    if (sql->n == ROWS_PARAMS_MAX) {
        sql->failed = true;
        return;
    }
    sql->params[sql->n] = *v;
    sql->n++;
    buf_addf(&sql->text, "%c%zu", sql->d->mark, sql->n);
}

static void add_number(struct rows_sql *sql, int64_t number)
{
    rows_sql_param(sql, &(struct rows_value){.kind = ROWS_INT, .number = number});
}

/* Adds the value of a criterion on the column, or the new value of the column. */
static void add_value(struct rows_sql *sql, const outbox_row_claim *c, const char *column,
                      const outbox_value *v)
{
    static const enum rows_kind kinds[] = {ROWS_NULL, ROWS_TEXT, ROWS_INT, ROWS_REAL};
    switch (v->kind) {
    case OUTBOX_VALUE_NOW:
        rows_sql_add(sql, sql->d->now.before);
        add_number(sql, v->number);
        rows_sql_add(sql, sql->d->now.after);
        break;
    case OUTBOX_VALUE_NOW_MS:
        rows_sql_add(sql, sql->d->now_ms.before);
        add_number(sql, v->number);
        rows_sql_add(sql, sql->d->now_ms.after);
        break;
    case OUTBOX_VALUE_PLUS:
        rows_sql_add(sql, "COALESCE(");
        add_column(sql, c, column);
        rows_sql_add(sql, ", 0) + ");
        add_number(sql, v->number);
        break;
    default:
        rows_sql_param(sql,
                       &(struct rows_value){kinds[v->kind], str_of(v->text), v->number, v->real});
    }
}

void rows_sql_table(struct rows_sql *sql, const outbox_row_claim *c)
{
    if (c->schema) {
        add_name(sql, c->schema);
        rows_sql_add(sql, ".");
    }
    add_name(sql, c->table);
}

void rows_sql_key(struct rows_sql *sql, const outbox_row_claim *c)
{
    if (c->key) {
        add_column(sql, c, c->key);
    } else {
        add_name(sql, c->table);
        buf_addf(&sql->text, ".%s", sql->d->rowid);
    }
}

void rows_sql_columns(struct rows_sql *sql, const outbox_row_claim *c)
{
    if (c->n_columns == 0)
        rows_sql_key(sql, c);
    for (size_t i = 0; i < c->n_columns; i++) {
        rows_sql_add(sql, i == 0 ? "" : ", ");
        add_column(sql, c, c->columns[i]);
    }
}

void rows_sql_set(struct rows_sql *sql, const outbox_row_claim *c)
{
    for (size_t i = 0; i < c->n_fields; i++) {
        rows_sql_add(sql, i == 0 ? " SET " : ", ");
        add_name(sql, c->fields[i].column);
        rows_sql_add(sql, " = ");
        add_value(sql, c, c->fields[i].column, &c->fields[i].value);
    }
}

static void add_criterion(struct rows_sql *sql, const outbox_row_claim *c,
                          const outbox_criterion *k)
{
    add_column(sql, c, k->column);
    rows_sql_add(sql, operators[k->op]);
    if (k->op < OUTBOX_IN)
        add_value(sql, c, k->column, &k->value);
    if (k->op != OUTBOX_IN)
        return;
    for (size_t i = 0; i < k->n_values; i++) {
        rows_sql_add(sql, i == 0 ? "" : ", ");
        add_value(sql, c, k->column, &k->values[i]);
    }
    rows_sql_add(sql, ")");
}

/* Joins the criteria of each alternative with AND, and the alternatives with OR. */
void rows_sql_where(struct rows_sql *sql, const outbox_row_claim *c)
{
    rows_sql_add(sql, "(");
    for (size_t i = 0; i < c->n_criteria; i++) {
        int alternative = c->criteria[i].alternative;
        size_t first = 0;
        while (c->criteria[first].alternative != alternative)
            first++;
        if (first < i)
            continue; /* written with the first criterion of its alternative */

        rows_sql_add(sql, i == 0 ? "(" : " OR (");
        add_criterion(sql, c, &c->criteria[i]);
        for (size_t j = i + 1; j < c->n_criteria; j++) {
            if (c->criteria[j].alternative != alternative)
                continue;
            rows_sql_add(sql, " AND ");
            add_criterion(sql, c, &c->criteria[j]);
        }
        rows_sql_add(sql, ")");
    }
    rows_sql_add(sql, ")");
}

void rows_sql_update_by_key(struct rows_sql *sql, const outbox_row_claim *c)
{
    rows_sql_add(sql, "UPDATE ");
    rows_sql_table(sql, c);
    rows_sql_set(sql, c);
    rows_sql_add(sql, " WHERE ");
    rows_sql_key(sql, c);
}

void rows_sql_select_by_key(struct rows_sql *sql, const outbox_row_claim *c)
{
    rows_sql_add(sql, "SELECT ");
    rows_sql_columns(sql, c);
    rows_sql_add(sql, " FROM ");
    rows_sql_table(sql, c);
    rows_sql_add(sql, " WHERE ");
    rows_sql_key(sql, c);
}

void rows_sql_candidates(struct rows_sql *sql, const outbox_row_claim *c)
{
    rows_sql_add(sql, "SELECT ");
    rows_sql_key(sql, c);
    rows_sql_add(sql, " FROM ");
    rows_sql_table(sql, c);
    rows_sql_add(sql, " WHERE ");
    rows_sql_where(sql, c);
    for (size_t i = 0; i < c->n_order_by; i++) {
        rows_sql_add(sql, i == 0 ? " ORDER BY " : ", ");
        add_column(sql, c, c->order_by[i].column);
        if (c->order_by[i].descending)
            rows_sql_add(sql, " DESC");
    }
    rows_sql_add(sql, " LIMIT ");
    add_number(sql, (int64_t)c->limit);
}

/* Dialects with a dedicated path; all others use the portable one. */
static const struct {
    const char *dialect;
    rows_path path;
} paths[] = {
    {"postgres", rows_postgres_claim},
    {"sqlite", rows_sqlite_claim},
#ifdef OUTBOX_MARIADB
    {"mariadb", rows_mariadb_claim},
#endif
};

rows_path rows_path_of(const struct rows_dialect *d)
{
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        if (strcmp(paths[i].dialect, d->name) == 0)
            return paths[i].path;
    return rows_portable_claim;
}

/* Checks the whole request before accessing the database, and returns rows only once they are
 * claimed: the dialect's path has committed. */
int rows_claim(const struct rows_dialect *d, void *conn, const outbox_row_claim *c,
               struct outbox_rows **ret, struct error *err)
{
    if (check_claim(d, c, err) != 0)
        return -1;
    if (!conn)
        return err_set(err, ERR_MISUSE, "a claim of rows requires a connection");
    if (d->ready(conn, err) != 0)
        return -1;
    struct outbox_rows *rows = malloc(sizeof *rows);
    if (!rows)
        return err_nomem(err);
    size_t n_columns = c->n_columns ? c->n_columns : 1; /* without columns, the key is returned */
    rows_init(rows, n_columns);

    rows_path path = rows_path_of(d);
    if (c->flags & OUTBOX_CLAIM_PORTABLE)
        path = rows_portable_claim;
    if (path(d, conn, c, rows, err) != 0) {
        rows_release(rows);
        free(rows);
        return -1;
    }
    *ret = rows;
    return 0;
}

/* ---- the portable path ---- */

int rows_run(void *conn, struct rows_sql *sql, struct outbox_rows *ret, int64_t *ret_changed,
             struct error *err)
{
    int r = sql->d->run(conn, sql, ret, ret_changed, err);
    rows_sql_release(sql);
    return r;
}

int rows_run_text(const struct rows_dialect *d, void *conn, const char *text, struct error *err)
{
    struct rows_sql sql;
    rows_sql_init(&sql, d);
    rows_sql_add(&sql, text);
    return rows_run(conn, &sql, NULL, NULL, err);
}

int rows_pick(const struct rows_dialect *d, void *conn, const outbox_row_claim *c,
              const char *locking, struct outbox_rows *ret, struct error *err)
{
    struct rows_sql sql;
    rows_sql_init(&sql, d);
    rows_sql_candidates(&sql, c);
    rows_sql_add(&sql, locking);
    return rows_run(conn, &sql, ret, NULL, err);
}

int rows_in_transaction(struct error *err)
{
    return err_set(err, ERR_MISUSE,
                   "a claim of rows inside an open transaction has no effect until the "
                   "transaction commits; commit first, or use another connection");
}

/* Changes the row if it still meets the criteria. */
static int guarded_update(const struct rows_dialect *d, void *conn, const outbox_row_claim *c,
                          const struct rows_value *key, int64_t *ret_changed, struct error *err)
{
    struct rows_sql sql;
    rows_sql_init(&sql, d);
    rows_sql_update_by_key(&sql, c);
    rows_sql_add(&sql, " = ");
    rows_sql_param(&sql, key);
    rows_sql_add(&sql, " AND ");
    rows_sql_where(&sql, c);
    return rows_run(conn, &sql, NULL, ret_changed, err);
}

static int read_back(const struct rows_dialect *d, void *conn, const outbox_row_claim *c,
                     const struct rows_value *key, struct outbox_rows *ret, struct error *err)
{
    struct rows_sql sql;
    rows_sql_init(&sql, d);
    rows_sql_select_by_key(&sql, c);
    rows_sql_add(&sql, " = ");
    rows_sql_param(&sql, key);
    return rows_run(conn, &sql, ret, NULL, err);
}

/* Claims one candidate in a separate transaction: sessions that hold one row at a time cannot
 * deadlock. The row is ours only once the transaction has committed. */
static int claim_one(const struct rows_dialect *d, void *conn, const outbox_row_claim *c,
                     const struct rows_value *key, struct outbox_rows *ret, struct error *err)
{
    size_t before = ret->n;
    int64_t changed = 0;
    if (rows_run_text(d, conn, d->begin, err) != 0)
        return -1;

    int r = guarded_update(d, conn, c, key, &changed, err);
    if (r == 0 && changed > 0)
        r = read_back(d, conn, c, key, ret, err);
    if (r == 0)
        r = rows_run_text(d, conn, "COMMIT", err);
    if (r == 0)
        return 0;

    rows_run_text(d, conn, "ROLLBACK", NULL);
    ret->n = before;
    return -1;
}

/* Claims as many of the first candidates as possible; *ret_found is the number of candidates. */
static int claim_round(const struct rows_dialect *d, void *conn, const outbox_row_claim *c,
                       struct outbox_rows *ret, size_t *ret_found, struct error *err)
{
    struct outbox_rows keys;
    rows_init(&keys, 1);
    int r = rows_pick(d, conn, c, "", &keys, err);
    for (size_t i = 0; r == 0 && i < keys.n; i++)
        r = claim_one(d, conn, c, &keys.cells[i], ret, err);
    *ret_found = keys.n;
    rows_release(&keys);
    return r;
}

int rows_portable_claim(const struct rows_dialect *d, void *conn, const outbox_row_claim *c,
                        struct outbox_rows *ret, struct error *err)
{
    for (int round = 0; round < ROUNDS_MAX; round++) {
        size_t found;
        int r = claim_round(d, conn, c, ret, &found, err);
        if (ret->n > 0)
            return 0; /* even after a failure: these rows are committed and must be returned */
        if (r != 0)
            return -1;
        if (found == 0)
            return 0;
    }
    return 0;
}

/* ---- the result ---- */

void rows_init(struct outbox_rows *rows, size_t n_columns)
{
    *rows = (struct outbox_rows){.n_columns = n_columns};
    arena_init(&rows->a, 0);
}

void rows_release(struct outbox_rows *rows)
{
    free(rows->cells);
    arena_release(&rows->a);
}

struct rows_value *rows_add(struct outbox_rows *rows)
{
    if (rows->n == rows->cap) {
        size_t cap = rows->cap ? rows->cap * 2 : 64;
        struct rows_value *cells = reallocarray(rows->cells, cap * rows->n_columns, sizeof *cells);
        if (!cells)
            return NULL;
        rows->cells = cells;
        rows->cap = cap;
    }

    struct rows_value *row = rows->cells + rows->n * rows->n_columns;
    for (size_t i = 0; i < rows->n_columns; i++)
        row[i] = (struct rows_value){.kind = ROWS_NULL};
    rows->n++;
    return row;
}
