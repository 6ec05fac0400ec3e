/* rows.c: claims of rows of any table: the choice of a path, the portable path, and the result. */
#include "extra/rows/rows.h"

#include <stdlib.h>

/* How often the portable path searches again after losing all of its candidates to other sessions.
 * Without a limit, rows that are visible but not updatable (row-level security, a trigger) would
 * make it loop forever. */
#define ROUNDS_MAX 10

/* The dialects with a path of their own. All others use the portable one. */
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

/* Checks everything before it touches the database, and returns rows only once they are claimed:
 * the dialect's path has committed. */
int rows_claim(const struct rows_dialect *d, void *conn, const outbox_row_claim *c,
               struct outbox_rows **ret, struct error *err)
{
    if (rows_check(d, c, err) != 0)
        return -1;
    if (d->ready(conn, err) != 0)
        return -1;
    struct outbox_rows *rows = malloc(sizeof *rows);
    if (!rows)
        return err_nomem(err);
    size_t n_columns = c->n_columns ? c->n_columns : 1; /* without columns, the key comes back */
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

int rows_run_text(const struct rows_dialect *d, void *conn, const char *text, struct error *err)
{
    struct rows_sql sql;
    rows_sql_init(&sql, d);
    rows_sql_add(&sql, text);
    int r = d->run(conn, &sql, NULL, NULL, err);
    rows_sql_release(&sql);
    return r;
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
    int r = d->run(conn, &sql, NULL, ret_changed, err);
    rows_sql_release(&sql);
    return r;
}

static int read_back(const struct rows_dialect *d, void *conn, const outbox_row_claim *c,
                     const struct rows_value *key, struct outbox_rows *ret, struct error *err)
{
    struct rows_sql sql;
    rows_sql_init(&sql, d);
    rows_sql_select_by_key(&sql, c);
    rows_sql_add(&sql, " = ");
    rows_sql_param(&sql, key);
    int r = d->run(conn, &sql, ret, NULL, err);
    rows_sql_release(&sql);
    return r;
}

/* Claims one candidate in a transaction of its own: claimers that hold one row at a time cannot
 * deadlock. The row is ours only once that has committed. */
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

static int candidates(const struct rows_dialect *d, void *conn, const outbox_row_claim *c,
                      struct outbox_rows *ret, struct error *err)
{
    struct rows_sql sql;
    rows_sql_init(&sql, d);
    rows_sql_candidates(&sql, c);
    int r = d->run(conn, &sql, ret, NULL, err);
    rows_sql_release(&sql);
    return r;
}

/* Claims as many of the first candidates as it can; *ret_found is how many there were. */
static int claim_round(const struct rows_dialect *d, void *conn, const outbox_row_claim *c,
                       struct outbox_rows *ret, size_t *ret_found, struct error *err)
{
    struct outbox_rows keys;
    rows_init(&keys, 1);
    int r = candidates(d, conn, c, &keys, err);
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
            return 0; /* even after a failure: these are committed, and must be returned */
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
