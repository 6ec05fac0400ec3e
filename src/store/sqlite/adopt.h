/* adopt.h: what the files share that turn rows of an application's table into events: adopt.c,
 * adopt_rows.c and adopt_mark.c. Everything here runs inside a transaction. */
#ifndef STORE_SQLITE_ADOPT_H
#define STORE_SQLITE_ADOPT_H

#include "store/db/adopt.h"
#include "store/sqlite/sqlite.h"

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

/* sqlite_mark_stamp gives the SQL expression that marks a row; it is a string constant. */
int sqlite_mark_stamp(const struct source *s, const char *column, const char **ret,
                      struct error *err);

#endif
