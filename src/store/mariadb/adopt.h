/* adopt.h: what the files share that turn rows of an application's table into events: adopt.c
 * and adopt_mark.c. */
#ifndef STORE_MARIADB_ADOPT_H
#define STORE_MARIADB_ADOPT_H

#include "store/db/adopt.h"
#include "store/mariadb/mariadb.h"

/* ---- what statements are put together from ---- */

/* What a column holds, by its data type. */
enum mdb_kind { MDB_KIND_TEXT, MDB_KIND_BYTES, MDB_KIND_NUMBER, MDB_KIND_TIME };

enum mdb_kind mdb_adopt_kind(const struct source *s, const char *column);
void mdb_adopt_add_name(struct buf *b, const char *name);
/* mdb_adopt_add_text appends what a column is in row r, as text. */
void mdb_adopt_add_text(struct buf *b, const char *column, enum mdb_kind kind, const char *r);
/* mdb_adopt_add_open appends the condition that row r is not processed, by the flag in a column,
 * which may be text. */
void mdb_adopt_add_open(struct buf *b, const char *column, bool text, const char *r);

/* ---- adopt_mark.c ---- */

/* mdb_mark_put records that rows are marked from now on, as the request says; inside a
 * transaction. */
int mdb_mark_put(const struct source *s, struct error *err);
/* mdb_mark_check refuses what cannot be: a column that cannot be set, or other columns by which
 * rows would be found. */
int mdb_mark_check(const struct source *s, struct error *err);

#endif
