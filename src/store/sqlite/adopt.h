/* adopt.h: what the files share that turn rows of an application's table into events: adopt.c,
 * adopt_source.c, adopt_rows.c and adopt_mark.c. Everything here runs inside a transaction. */
#ifndef STORE_SQLITE_ADOPT_H
#define STORE_SQLITE_ADOPT_H

#include "base/buf.h"
#include "store/sqlite/sqlite.h"

/* What a column of the table can be for an event. */
enum field {
    F_ID,
    F_TYPE,
    F_PAYLOAD,
    F_CREATED,
    F_PROCESSED,
    F_AGG_TYPE,
    F_AGG_ID,
    F_TENANT,
    FIELDS
};
extern const char *const sqlite_source_fields[FIELDS]; /* as --column and the mapping name them */

/* The table, and which of its columns is what. (1) of[f] is a column's name, a text in single
 * quotes, or NULL: none. (2) mapping is of[] as JSON, once sqlite_source_map succeeded. */
struct source {
    struct sqlite_store *st;
    const struct adopt_request *req;
    struct arena a; /* the strings below live there */
    const char *name;
    const char **column, **type; /* in the order of the table */
    size_t n;
    bool rowid; /* it has one */
    const char *of[FIELDS];
    struct buf mapping;
};

/* ---- adopt_source.c ---- */

/* sqlite_source_find finds the table and its columns. ERR_NOTFOUND: there is none; ERR_CONFIG: it
 * cannot be adopted. */
int sqlite_source_find(struct source *s, struct error *err);
/* sqlite_source_map finds out which column is what, by the request and the table's shape. */
int sqlite_source_map(struct source *s, struct error *err);
/* sqlite_source_column finds a column as SQLite does, whatever its case; -1: there is none. */
int sqlite_source_column(const struct source *s, const char *name);
/* sqlite_source_literal says whether a text stands in single quotes. */
bool sqlite_source_literal(const char *text);

/* ---- adopt_rows.c: statements that are put together ---- */

#define ADOPT_TRIGGER "outbox_adopted_" /* and the table's name */
#define NOW_MS "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"

/* sqlite_adopt_prepare prepares the statement in q, which it frees; the caller finalizes it. NULL
 * on failure. */
sqlite3_stmt *sqlite_adopt_prepare(struct sqlite_store *st, sqlite3_str *q, struct error *err);
/* sqlite_adopt_add_open appends the condition that row r is not processed yet; column is its flag,
 * a time or a truth value, or NULL: no row is. */
void sqlite_adopt_add_open(sqlite3_str *q, const char *column, const char *r);
/* sqlite_adopt_trigger makes the trigger that turns each new row into an event; marked: it also
 * notes which row became which event. sqlite_adopt_untrigger drops it. */
int sqlite_adopt_trigger(const struct source *s, bool marked, struct error *err);
int sqlite_adopt_untrigger(const struct source *s, struct error *err);
/* sqlite_adopt_count counts the rows that are not processed; sqlite_adopt_copy makes events of
 * them, and *ret counts those. */
int sqlite_adopt_count(const struct source *s, int64_t *ret, struct error *err);
int sqlite_adopt_copy(const struct source *s, bool marked, int64_t *ret, struct error *err);

/* ---- adopt_mark.c ---- */

/* sqlite_mark_check refuses a mark that cannot be: its column is missing, or rows cannot be told
 * apart. */
int sqlite_mark_check(const struct source *s, struct error *err);
/* sqlite_mark_stamp gives the SQL expression that marks a row; it is a string constant. */
int sqlite_mark_stamp(const struct source *s, const char *column, const char **ret,
                      struct error *err);

#endif
