/*
** outbox_rows.h: claims rows of any table, each row for one caller only. The database needs no
** outbox.
*/
#ifndef OUTBOX_ROWS_H
#define OUTBOX_ROWS_H

#include "outbox.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
** CAPI: Claiming rows of any table
**
** A claim selects up to `limit` rows that match some criteria, marks them and returns them. However
** many callers claim at once, each row is returned to only one of them. Outboxes, job queues and
** sweeps need this.
**
**     outbox_value open[] = {outbox_value_text("pending"), outbox_value_text("failed")};
**     outbox_criterion criteria[] = {
**         {"status", OUTBOX_IN, outbox_value_null(), open, 2, 1},
**         {"status", OUTBOX_EQ, outbox_value_text("processing"), 0, 0, 2},
**         {"locked_until", OUTBOX_LT, outbox_value_now(0), 0, 0, 2}};
**     outbox_claim_field set[] = {{"status", outbox_value_text("processing")},
**                                 {"locked_until", outbox_value_now(30000)},
**                                 {"attempts", outbox_value_plus(1)}};
**     outbox_claim_order order[] = {{"priority", 1}, {"id", 0}};
**     const char *columns[] = {"id", "payload", "attempts"};
**     outbox_row_claim c = OUTBOX_ROW_CLAIM_INIT;
**     c.table = "jobs"; c.key = "id"; c.limit = 100;
**     c.criteria = criteria; c.n_criteria = 3;
**     ... and so on
**     if (outbox_claim_rows_pg(conn, &c, &rows, &err) != 0) die(err.text);
**     for (size_t i = 0; i < outbox_rows_count(rows); i++)
**         work(outbox_rows_text(rows, i, 1, NULL));
**     outbox_rows_free(rows);
**
** The fields that the claim sets must make the criteria false for its rows (for some time, if it is
** a lease), or the next caller claims them again. Nothing enforces a lease: an UPDATE that
** completes a row should have a condition in its WHERE on a column that each claim changes
** (attempts, an owner), so that it fails after the lease has passed to another caller.
*/

/* A value. NOW is the database's time plus `number` milliseconds: a timestamptz in PostgreSQL, the
** text 'YYYY-MM-DD HH:MM:SS.SSS' (UTC) in SQLite. NOW_MS is the same in milliseconds since 1970, an
** integer. PLUS, for a claim field only, is the column's value (0 if NULL) plus `number`. The other
** kinds are sent as parameters and have the type of their column, so a text can also be a uuid or
** an enum. outbox_value_null(), outbox_value_text(text), outbox_value_int(number),
** outbox_value_real(number), outbox_value_now(plus_ms), outbox_value_now_ms(plus_ms) and
** outbox_value_plus(number) build them. */
enum outbox_value_kind {
    OUTBOX_VALUE_NULL = 0,
    OUTBOX_VALUE_TEXT = 1,
    OUTBOX_VALUE_INT = 2,
    OUTBOX_VALUE_REAL = 3,
    OUTBOX_VALUE_NOW = 4,
    OUTBOX_VALUE_NOW_MS = 5,
    OUTBOX_VALUE_PLUS = 6
};

typedef struct outbox_value {
    int kind; /* enum outbox_value_kind */
    int64_t number;
    double real;
    const char *text;
} outbox_value;

#define OUTBOX_VALUE_OF(name, param, kind, number, real, text) \
    static inline outbox_value outbox_value_##name(param) \
    { \
        outbox_value v = {kind, number, real, text}; \
        return v; \
    }
OUTBOX_VALUE_OF(null, void, OUTBOX_VALUE_NULL, 0, 0, 0)
OUTBOX_VALUE_OF(text, const char *text, OUTBOX_VALUE_TEXT, 0, 0, text)
OUTBOX_VALUE_OF(int, int64_t number, OUTBOX_VALUE_INT, number, 0, 0)
OUTBOX_VALUE_OF(real, double real, OUTBOX_VALUE_REAL, 0, real, 0)
OUTBOX_VALUE_OF(now, int64_t plus_ms, OUTBOX_VALUE_NOW, plus_ms, 0, 0)
OUTBOX_VALUE_OF(now_ms, int64_t plus_ms, OUTBOX_VALUE_NOW_MS, plus_ms, 0, 0)
OUTBOX_VALUE_OF(plus, int64_t number, OUTBOX_VALUE_PLUS, number, 0, 0)
#undef OUTBOX_VALUE_OF

/* A NULL in a column matches only OUTBOX_IS_NULL. A NULL value is refused with every operator. */
enum outbox_op {
    OUTBOX_EQ = 0,         /* = */
    OUTBOX_NE = 1,         /* <> */
    OUTBOX_LT = 2,         /* < */
    OUTBOX_LE = 3,         /* <= */
    OUTBOX_GT = 4,         /* > */
    OUTBOX_GE = 5,         /* >= */
    OUTBOX_IN = 6,         /* one of values */
    OUTBOX_IS_NULL = 7,    /* takes no value */
    OUTBOX_IS_NOT_NULL = 8 /* takes no value */
};

/* Criteria with the same alternative must all hold. Of several alternatives, one is enough. */
typedef struct outbox_criterion {
    const char *column;
    int op; /* enum outbox_op */
    outbox_value value;
    const outbox_value *values; /* for OUTBOX_IN */
    size_t n_values;
    int alternative;
} outbox_criterion;

typedef struct outbox_claim_field {
    const char *column;
    outbox_value value;
} outbox_claim_field;

typedef struct outbox_claim_order {
    const char *column;
    int descending;
} outbox_claim_order;

/*
** The claim. Names have 1 to 63 bytes and are quoted, so they are taken literally. table, key (but
** see below), criteria, fields and limit are required.
**
**   schema, table    schema may be NULL
**   key              a column that is unique and not null; NULL means rowid, in SQLite only. It
**                    must not be a claim field
**   criteria         which rows to claim
**   fields           the columns to set in them
**   order_by         which rows to claim first; without it, and among equals, in any order.
**                    NULLs are sorted as the database sorts them
**   columns          the columns to return; none means only the key
**   limit            maximum number of rows, 1 to 100000
**   flags            OUTBOX_CLAIM_PORTABLE: use no feature that only this database has; slower, for
**                    tests
*/
typedef struct outbox_row_claim {
    size_t size; /* sizeof(outbox_row_claim): set by OUTBOX_ROW_CLAIM_INIT */
    const char *schema;
    const char *table;
    const char *key;
    const outbox_criterion *criteria;
    size_t n_criteria;
    const outbox_claim_field *fields;
    size_t n_fields;
    const outbox_claim_order *order_by;
    size_t n_order_by;
    const char *const *columns;
    size_t n_columns;
    size_t limit;
    int flags;
} outbox_row_claim;

#define OUTBOX_CLAIM_PORTABLE 1

#define OUTBOX_ROW_CLAIM_INIT \
    { \
        sizeof(outbox_row_claim), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 \
    }

typedef struct outbox_rows outbox_rows;

/*
** outbox_claim_rows_sqlite, outbox_claim_rows_pg and outbox_claim_rows_mariadb claim through the
** caller's connection and commit, so they fail with OUTBOX_MISUSE inside an open transaction. When
** they return 0, the claim is as durable as any commit on that connection. Only one thread at a
** time may use the connection; the call leaves nothing on it. On success the caller owns *ret and
** releases it with outbox_rows_free.
**
** The rows have their values after the claim, and the order that order_by gave them before it.
** Returning no rows is a success: none match, except those that others are claiming at this moment.
** After a failure nothing was claimed, with two exceptions. If the connection is lost or memory
** runs out, the claim may have committed. The portable path commits row by row: if a row fails
** after others were claimed, it returns those, and the next call fails for the same reason.
** OUTBOX_BUSY: try again.
**
** PostgreSQL claims in one statement and one round trip, and skips locked rows. MariaDB skips them
** as well, and claims in one transaction, as SQLite does. The portable path selects candidates,
** then updates them one by one if they still match.
*/
OUTBOX_API int outbox_claim_rows_sqlite(struct sqlite3 *db, const outbox_row_claim *claim,
                                        outbox_rows **ret, outbox_error *err);
OUTBOX_API int outbox_claim_rows_pg(struct pg_conn *conn, const outbox_row_claim *claim,
                                    outbox_rows **ret, outbox_error *err);
OUTBOX_API int outbox_claim_rows_mariadb(struct st_mysql *conn, const outbox_row_claim *claim,
                                         outbox_rows **ret, outbox_error *err);

/* Rows and columns are numbered from 0. outbox_rows_text returns a value as the database writes it,
** with a NUL at the end, valid until outbox_rows_free; NULL for a NULL, and if there is no such row
** or column. ret_size may be NULL. outbox_rows_int returns a value as a number; 0 if it is not
** one. */
OUTBOX_API size_t outbox_rows_count(const outbox_rows *rows);
OUTBOX_API const char *outbox_rows_text(const outbox_rows *rows, size_t row, size_t column,
                                        size_t *ret_size);
OUTBOX_API int64_t outbox_rows_int(const outbox_rows *rows, size_t row, size_t column);
OUTBOX_API void outbox_rows_free(outbox_rows *rows);

#ifdef __cplusplus
}
#endif
#endif
