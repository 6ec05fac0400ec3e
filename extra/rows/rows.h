/* rows.h: claims of rows of any table, behind outbox_claim_rows_*; outbox_rows.h has the contract.
 *
 *     rows_claim -- check -- the path of the dialect:
 *         rows_postgres_claim   one statement
 *         rows_sqlite_claim     one transaction
 *         rows_mariadb_claim    one transaction, of three statements
 *         rows_portable_claim   any other: candidates, then guarded updates
 *
 * A new dialect fills in a struct rows_dialect and claims portably. A dedicated path is one more
 * line in rows.c. */
#ifndef ROWS_ROWS_H
#define ROWS_ROWS_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "outbox_rows.h"

#define ROWS_LIMIT_MAX 100000
#define ROWS_PARAMS_MAX 256
#define ROWS_NAME_MAX 63 /* PostgreSQL truncates longer names: they could match another table */

/* The kinds of value that a database can return or accept. */
enum rows_kind { ROWS_NULL, ROWS_TEXT, ROWS_BLOB, ROWS_INT, ROWS_REAL };

/* A value for a database or from one. (1) A value from a database has its text set, unless kind is
 * ROWS_NULL. The text is followed by a NUL and lives in the arena of its outbox_rows. (2) A value
 * for a database has the member of its kind set. */
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

/* rows_add adds a row of NULLs and returns its cells, valid until the next call; NULL when out of
 * memory. */
struct rows_value *rows_add(struct outbox_rows *rows);

/* A statement being built. (1) params[i] belongs to placeholder i + 1, which occurs once. (2) After
 * a failure `failed` stays set: callers append without checks, and rows_sql_text checks once. */
struct rows_sql {
    const struct rows_dialect *d;
    struct buf text;
    struct rows_value params[ROWS_PARAMS_MAX];
    size_t n;
    bool failed;
};

/* Properties of a database for the portable path. */
struct rows_dialect {
    const char *name;
    char mark;         /* a placeholder consists of this mark and a number */
    char quote;        /* quotes names; 0: a double quote */
    const char *begin; /* opens a transaction whose UPDATE sees the latest committed rows */
    const char *rowid; /* the key of a table without a primary key; or NULL */

    /* The database's time plus an offset in milliseconds, as the text before and after the
     * placeholder for the offset. See enum outbox_value_kind. */
    struct {
        const char *before, *after;
    } now, now_ms;

    /* ready refuses a connection on which a claim could not commit because it is broken, busy, or
     * inside a transaction. */
    int (*ready)(void *conn, struct error *err);

    /* run runs one statement and adds its rows to *ret, which may be NULL if the statement has
     * none;
     * *ret_changed (may be NULL) is the number of rows that an UPDATE has changed. */
    int (*run)(void *conn, struct rows_sql *sql, struct outbox_rows *ret, int64_t *ret_changed,
               struct error *err);
};

extern const struct rows_dialect rows_postgres, rows_sqlite, rows_mariadb;

/* A rows_path executes a checked request on a ready connection, into *ret. */
typedef int (*rows_path)(const struct rows_dialect *d, void *conn, const outbox_row_claim *c,
                         struct outbox_rows *ret, struct error *err);

/* rows_claim checks the request and claims by the path of its dialect. On success the caller owns
 * *ret. */
int rows_claim(const struct rows_dialect *d, void *conn, const outbox_row_claim *c,
               struct outbox_rows **ret, struct error *err);

/* rows_path_of returns the path that a dialect uses by default. */
rows_path rows_path_of(const struct rows_dialect *d);

int rows_portable_claim(const struct rows_dialect *d, void *conn, const outbox_row_claim *c,
                        struct outbox_rows *ret, struct error *err);
int rows_postgres_claim(const struct rows_dialect *d, void *conn, const outbox_row_claim *c,
                        struct outbox_rows *ret, struct error *err);
int rows_sqlite_claim(const struct rows_dialect *d, void *conn, const outbox_row_claim *c,
                      struct outbox_rows *ret, struct error *err);
int rows_mariadb_claim(const struct rows_dialect *d, void *conn, const outbox_row_claim *c,
                       struct outbox_rows *ret, struct error *err);

/* rows_run_text runs a statement that has neither parameters nor rows. */
int rows_run_text(const struct rows_dialect *d, void *conn, const char *text, struct error *err);

/* rows_run runs a statement and releases it; see rows_dialect.run. */
int rows_run(void *conn, struct rows_sql *sql, struct outbox_rows *ret, int64_t *ret_changed,
             struct error *err);

/* rows_pick adds the keys of the rows to claim, in order. `locking` ends the SELECT. */
int rows_pick(const struct rows_dialect *d, void *conn, const outbox_row_claim *c,
              const char *locking, struct outbox_rows *ret, struct error *err);

/* rows_in_transaction reports a connection that is inside a transaction. Returns -1. */
int rows_in_transaction(struct error *err);

void rows_sql_init(struct rows_sql *sql, const struct rows_dialect *d);
void rows_sql_release(struct rows_sql *sql);

/* rows_sql_text returns the finished statement; NULL with an error if an append failed. */
const char *rows_sql_text(struct rows_sql *sql, struct error *err);

/* rows_sql_add appends SQL. */
void rows_sql_add(struct rows_sql *sql, const char *text);

/* rows_sql_param appends a placeholder and its value, borrowed until the statement has run. */
void rows_sql_param(struct rows_sql *sql, const struct rows_value *v);

/* rows_sql_table and the functions below append parts of statements. Columns are qualified by the
 * table's name: SQLite takes an unknown quoted name for a string, unless it is qualified. */
void rows_sql_table(struct rows_sql *sql, const outbox_row_claim *c);
void rows_sql_key(struct rows_sql *sql, const outbox_row_claim *c);
void rows_sql_columns(struct rows_sql *sql, const outbox_row_claim *c);
void rows_sql_set(struct rows_sql *sql, const outbox_row_claim *c);
void rows_sql_where(struct rows_sql *sql, const outbox_row_claim *c);

/* rows_sql_update_by_key and rows_sql_select_by_key append a statement up to `WHERE key`; the
 * caller appends the keys. */
void rows_sql_update_by_key(struct rows_sql *sql, const outbox_row_claim *c);
void rows_sql_select_by_key(struct rows_sql *sql, const outbox_row_claim *c);

/* rows_sql_candidates appends the query for the keys to claim, in order, at most c->limit. */
void rows_sql_candidates(struct rows_sql *sql, const outbox_row_claim *c);

#endif
