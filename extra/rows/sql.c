/* sql.c: checks a claim of rows, and writes it as SQL. Values are always parameters; names are
 * quoted. */
#include "extra/rows/rows.h"

#define TEXT_MAX (1 << 20)

static const char *const operators[] = {" = ",  " <> ",  " < ",      " <= ",        " > ",
                                        " >= ", " IN (", " IS NULL", " IS NOT NULL"};
#define N_OPERATORS ((int)(sizeof operators / sizeof *operators))

/* ---- checking ---- */

static int check_name(const char *what, const char *name, struct error *err)
{
    size_t n = str_of(name).n;
    if (n == 0)
        return err_set(err, ERR_MISUSE, "a claim of rows needs the name of its %s", what);
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
        return err_set(err, ERR_MISUSE,
                       "column \"%s\": a text value without text; use OUTBOX_VALUE_NULL for NULL",
                       column);
    return 0;
}

/* Checks the value of a criterion. */
static int check_compared(const char *column, const outbox_value *v, struct error *err)
{
    if (check_value(column, v, err) != 0)
        return -1;
    if (v->kind == OUTBOX_VALUE_NULL)
        return err_set(err, ERR_MISUSE,
                       "criterion on \"%s\": nothing equals NULL; use OUTBOX_IS_NULL", column);
    if (v->kind == OUTBOX_VALUE_PLUS)
        return err_set(err, ERR_MISUSE,
                       "criterion on \"%s\": OUTBOX_VALUE_PLUS is for claim fields", column);
    return 0;
}

static int check_in(const outbox_criterion *k, struct error *err)
{
    if (k->n_values == 0)
        return err_set(err, ERR_MISUSE, "criterion on \"%s\": IN without values", k->column);
    for (size_t i = 0; i < k->n_values; i++)
        if (check_compared(k->column, &k->values[i], err) != 0)
            return -1;
    return 0;
}

static int check_criterion(const outbox_criterion *k, struct error *err)
{
    if (check_name("column", k->column, err) != 0)
        return -1;
    if (k->op < 0 || k->op >= N_OPERATORS)
        return err_set(err, ERR_MISUSE, "criterion on \"%s\": %d is not an operator", k->column,
                       k->op);
    if (k->op < OUTBOX_IN)
        return check_compared(k->column, &k->value, err);
    if (k->op == OUTBOX_IN)
        return check_in(k, err);
    return 0;
}

static int check_field(const outbox_row_claim *c, const outbox_claim_field *f, struct error *err)
{
    if (check_name("column", f->column, err) != 0)
        return -1;
    if (c->key && strcmp(c->key, f->column) == 0)
        return err_set(err, ERR_MISUSE, "a claim cannot change the key \"%s\" of its rows", c->key);
    return check_value(f->column, &f->value, err);
}

/* Checks the lists of a claim: criteria, fields, columns. */
static int check_parts(const outbox_row_claim *c, struct error *err)
{
    for (size_t i = 0; i < c->n_criteria; i++)
        if (check_criterion(&c->criteria[i], err) != 0)
            return -1;
    for (size_t i = 0; i < c->n_fields; i++)
        if (check_field(c, &c->fields[i], err) != 0)
            return -1;
    for (size_t i = 0; i < c->n_order_by; i++)
        if (check_name("column", c->order_by[i].column, err) != 0)
            return -1;
    for (size_t i = 0; i < c->n_columns; i++)
        if (check_name("column", c->columns[i], err) != 0)
            return -1;
    return 0;
}

/* Checks the table, its schema, and its key, which may be left to the dialect. */
static int check_names(const struct rows_dialect *d, const outbox_row_claim *c, struct error *err)
{
    if (check_name("table", c->table, err) != 0)
        return -1;
    if (c->schema && check_name("schema", c->schema, err) != 0)
        return -1;
    bool by_rowid = !c->key && d->rowid;
    if (by_rowid)
        return 0;
    return check_name("key column", c->key, err);
}

int rows_check(const struct rows_dialect *d, const outbox_row_claim *c, struct error *err)
{
    if (check_names(d, c, err) != 0)
        return -1;
    if (c->n_criteria == 0 || c->n_fields == 0)
        return err_set(err, ERR_MISUSE,
                       "a claim of rows of \"%s\" needs criteria, and fields that end them: "
                       "without both, the next caller would get the same rows",
                       c->table);
    if (c->limit < 1 || c->limit > ROWS_LIMIT_MAX)
        return err_set(err, ERR_MISUSE, "the limit of a claim of rows is 1 to %d, not %zu",
                       ROWS_LIMIT_MAX, c->limit);
    return check_parts(c, err);
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

/* Appends `before` for the first item, `between` for all others. */
static void add_separator(struct rows_sql *sql, size_t i, const char *before, const char *between)
{
    const char *separator = i == 0 ? before : between;
    rows_sql_add(sql, separator);
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
        add_separator(sql, i, "", ", ");
        add_column(sql, c, c->columns[i]);
    }
}

void rows_sql_set(struct rows_sql *sql, const outbox_row_claim *c)
{
    for (size_t i = 0; i < c->n_fields; i++) {
        add_separator(sql, i, " SET ", ", ");
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
        add_separator(sql, i, "", ", ");
        add_value(sql, c, k->column, &k->values[i]);
    }
    rows_sql_add(sql, ")");
}

/* Whether criterion i is the first of its alternative. */
static bool is_first(const outbox_row_claim *c, size_t i)
{
    for (size_t j = 0; j < i; j++)
        if (c->criteria[j].alternative == c->criteria[i].alternative)
            return false;
    return true;
}

/* Joins the criteria of the alternative whose first is at i. */
static void add_alternative(struct rows_sql *sql, const outbox_row_claim *c, size_t i)
{
    for (size_t j = i; j < c->n_criteria; j++) {
        if (c->criteria[j].alternative != c->criteria[i].alternative)
            continue;
        add_separator(sql, j - i, "(", " AND ");
        add_criterion(sql, c, &c->criteria[j]);
    }
    rows_sql_add(sql, ")");
}

void rows_sql_where(struct rows_sql *sql, const outbox_row_claim *c)
{
    rows_sql_add(sql, "(");
    for (size_t i = 0; i < c->n_criteria; i++) {
        if (!is_first(c, i))
            continue;
        add_separator(sql, i, "", " OR ");
        add_alternative(sql, c, i);
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
        add_separator(sql, i, " ORDER BY ", ", ");
        add_column(sql, c, c->order_by[i].column);
        if (c->order_by[i].descending)
            rows_sql_add(sql, " DESC");
    }
    rows_sql_add(sql, " LIMIT ");
    add_number(sql, (int64_t)c->limit);
}
