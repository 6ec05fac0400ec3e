/* adopt.h: internals of adoption, shared by adopt.c and adopt_mark.c. */
#ifndef STORE_MARIADB_ADOPT_H
#define STORE_MARIADB_ADOPT_H

#include "store/db/adopt.h"
#include "store/mariadb/mariadb.h"

/* ---- building statements ---- */

/* The kinds of columns, by their data types. */
enum mdb_kind { MDB_KIND_TEXT, MDB_KIND_BYTES, MDB_KIND_NUMBER, MDB_KIND_TIME };

enum mdb_kind mdb_adopt_kind(const struct source *s, const char *column);
void mdb_adopt_add_name(struct buf *b, const char *name);
/* mdb_adopt_add_text appends the value of a column in row r, as text. */
void mdb_adopt_add_text(struct buf *b, const char *column, enum mdb_kind kind, const char *r);
/* mdb_adopt_add_open appends the condition that row r is unprocessed, by the flag in a column,
 * which may be text. */
void mdb_adopt_add_open(struct buf *b, const char *column, bool text, const char *r);

/* ---- adopt_mark.c ---- */

/* mdb_mark_put records that rows are to be marked from now on, as requested; inside a
 * transaction. */
int mdb_mark_put(const struct source *s, struct error *err);
/* mdb_mark_check refuses a column that cannot be set, and a change of the column by which rows are
 * found. */
int mdb_mark_check(const struct source *s, struct error *err);

#endif
