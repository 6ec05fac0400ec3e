/* api.c: the public claim of rows of any table, over rows/rows.h. */
#include <stdlib.h>

#include "extra/rows/rows.h"
#include "outbox_rows.h"

/* Leaves fields missing from a caller's older header at their defaults. */
static int claim_rows(const struct rows_dialect *d, void *conn, const outbox_row_claim *given,
                      outbox_rows **ret, struct error *err)
{
    if (given->size == 0)
        return err_set(err, ERR_MISUSE, "claim was not initialised with OUTBOX_ROW_CLAIM_INIT");
    outbox_row_claim c = OUTBOX_ROW_CLAIM_INIT;
    size_t known = given->size < sizeof c ? given->size : sizeof c;
    memcpy(&c, given, known);
    return rows_claim(d, conn, &c, ret, err);
}

OUTBOX_API int outbox_claim_rows_sqlite(struct sqlite3 *db, const outbox_row_claim *claim,
                                        outbox_rows **ret, outbox_error *err)
{
    return claim_rows(&rows_sqlite, db, claim, ret, (struct error *)err);
}

OUTBOX_API int outbox_claim_rows_pg(struct pg_conn *conn, const outbox_row_claim *claim,
                                    outbox_rows **ret, outbox_error *err)
{
    return claim_rows(&rows_postgres, conn, claim, ret, (struct error *)err);
}

OUTBOX_API int outbox_claim_rows_mariadb(struct st_mysql *conn, const outbox_row_claim *claim,
                                         outbox_rows **ret, outbox_error *err)
{
#ifdef OUTBOX_MARIADB
    return claim_rows(&rows_mariadb, conn, claim, ret, (struct error *)err);
#else
    (void)conn;
    (void)claim;
    (void)ret;
    return err_set((struct error *)err, ERR_CONFIG,
                   "MariaDB is not part of this build, which found no libmariadb-dev");
#endif
}

OUTBOX_API size_t outbox_rows_count(const outbox_rows *rows)
{
    return rows->n;
}

/* Returns NULL if the row or the column does not exist. */
static const struct rows_value *cell(const outbox_rows *rows, size_t row, size_t column)
{
    bool exists = row < rows->n && column < rows->n_columns;
    if (!exists)
        return NULL;
    return &rows->cells[row * rows->n_columns + column];
}

OUTBOX_API const char *outbox_rows_text(const outbox_rows *rows, size_t row, size_t column,
                                        size_t *ret_size)
{
    const struct rows_value *v = cell(rows, row, column);
    struct str text = {NULL, 0};
    if (v)
        text = v->text;
    if (ret_size)
        *ret_size = text.n;
    return text.p;
}

OUTBOX_API int64_t outbox_rows_int(const outbox_rows *rows, size_t row, size_t column)
{
    const char *text = outbox_rows_text(rows, row, column, NULL);
    if (!text)
        return 0;
    return strtoll(text, NULL, 10);
}

OUTBOX_API void outbox_rows_free(outbox_rows *rows)
{
    if (!rows)
        return;
    rows_release(rows);
    free(rows);
}
