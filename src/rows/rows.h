/* rows.h: the claim of rows of any table, behind outbox_claim_rows_* (outbox_rows.h says what it
 * promises).
 *
 *     rows_claim ── check ── path of the dialect: rows_postgres_claim  one statement
 *                                                 rows_sqlite_claim    one transaction
 *                                                 rows_portable_claim  every other: candidates,
 *                                                 then guarded updates
 *
 * A new dialect fills in a struct rows_dialect and claims portably. A path of its own is a line in
 * rows.c. */
#ifndef ROWS_ROWS_H
#define ROWS_ROWS_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "outbox_rows.h"

#define ROWS_LIMIT_MAX 100000
#define ROWS_PARAMS_MAX 256
#define ROWS_NAME_MAX 63 /* PostgreSQL cuts longer names, and would then hit another table */

enum rows_kind { ROWS_NULL, ROWS_TEXT, ROWS_BLOB, ROWS_INT, ROWS_REAL };

/* A value on its way into the database or out of it. (1) Out of it, text is set unless kind is
 * ROWS_NULL, ends with a NUL and lives in the arena of its outbox_rows. (2) Into it, what kind
 * names is set. */
struct rows_value {
    enum rows_kind kind;
    struct str text;
    int64_t number;
    double real;
};

/* (1) cells has n * n_columns values, row by row. */
struct outbox_rows {
    size_t n, cap, n_columns;
    struct rows_value *cells;
    struct arena a;
};

void rows_init(struct outbox_rows *rows, size_t n_columns);
void rows_release(struct outbox_rows *rows);
/* rows_add gives the cells of a new row, all NULL, until the next call; NULL if there is no
 * memory. */
struct rows_value *rows_add(struct outbox_rows *rows);

/* A statement in the making. (1) params[i] belongs to the placeholder i + 1, which occurs once. (2)
 * After a failure `failed` stays set: callers append freely and rows_sql_text checks once. */
struct rows_sql {
    const struct rows_dialect *d;
    struct buf text;
    struct rows_value params[ROWS_PARAMS_MAX];
    size_t n;
    bool failed;
};

/* What the portable path needs to know of a database. */
struct rows_dialect {
    const char *name;
    char mark; /* of a placeholder: mark and number */
    /* opens a transaction whose UPDATE sees what is committed when it gets the row */
    const char *begin;
    const char *rowid; /* the key of a table without one, or NULL */
    /* Around the placeholder for an offset in milliseconds: the database's time, see enum
     * outbox_value_kind. */
    struct {
        const char *before, *after;
    } now, now_ms;

    /* ready refuses a connection on which a claim could not commit: none, one that is broken, in
     * use, or inside a transaction. */
    int (*ready)(void *conn, struct error *err);
    /* run runs one statement. Its rows are added to *ret, which may be NULL if there are none;
     * *ret_changed (may be NULL) is how many rows an UPDATE has changed. */
    int (*run)(void *conn, struct rows_sql *sql, struct outbox_rows *ret, int64_t *ret_changed,
               struct error *err);
};

extern const struct rows_dialect rows_postgres, rows_sqlite;

typedef int (*rows_path)(const struct rows_dialect *d, void *conn, const outbox_row_claim *c,
                         struct outbox_rows *ret, struct error *err);

/* rows_claim checks the request and claims by the path of its dialect. On success the caller owns
 * *ret. */
int rows_claim(const struct rows_dialect *d, void *conn, const outbox_row_claim *c,
               struct outbox_rows **ret, struct error *err);
/* rows_path_of is the path a dialect takes by itself. */
rows_path rows_path_of(const struct rows_dialect *d);

int rows_portable_claim(const struct rows_dialect *d, void *conn, const outbox_row_claim *c,
                        struct outbox_rows *ret, struct error *err);
int rows_postgres_claim(const struct rows_dialect *d, void *conn, const outbox_row_claim *c,
                        struct outbox_rows *ret, struct error *err);
int rows_sqlite_claim(const struct rows_dialect *d, void *conn, const outbox_row_claim *c,
                      struct outbox_rows *ret, struct error *err);

/* sql.c. rows_check refuses a claim that could not mean what it says. */
int rows_check(const struct rows_dialect *d, const outbox_row_claim *c, struct error *err);

void rows_sql_init(struct rows_sql *sql, const struct rows_dialect *d);
void rows_sql_release(struct rows_sql *sql);
/* rows_sql_text is the finished statement; NULL, with the reason in *err, if it could not be
 * made. */
const char *rows_sql_text(struct rows_sql *sql, struct error *err);
void rows_sql_add(struct rows_sql *sql, const char *text);
void rows_sql_param(struct rows_sql *sql, const struct rows_value *v);
/* Parts of statements. Columns are qualified with the table's name: SQLite takes a quoted name that
 * it does not know for a string, unless it is qualified. */
void rows_sql_table(struct rows_sql *sql, const outbox_row_claim *c);
void rows_sql_key(struct rows_sql *sql, const outbox_row_claim *c);
void rows_sql_columns(struct rows_sql *sql, const outbox_row_claim *c);
void rows_sql_set(struct rows_sql *sql, const outbox_row_claim *c);
void rows_sql_where(struct rows_sql *sql, const outbox_row_claim *c);
/* rows_sql_candidates: the keys of the rows to claim, in order, at most as many as wanted. */
void rows_sql_candidates(struct rows_sql *sql, const outbox_row_claim *c);

#endif
