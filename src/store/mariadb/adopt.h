/* adopt.h: what adopt.c and adopt_rows.c share, which turn rows of an application's table into
 * events. */
#ifndef STORE_MARIADB_ADOPT_H
#define STORE_MARIADB_ADOPT_H

#include "store/db/adopt.h"
#include "store/mariadb/mariadb.h"

#define MDB_TRIGGER_TEXT 65 /* a name of up to 64 characters */

/* mdb_adopt_trigger_name gives the name of the table's trigger. */
void mdb_adopt_trigger_name(const struct source *s, char ret[MDB_TRIGGER_TEXT]);
/* mdb_adopt_check refuses columns of which nothing can be made. */
int mdb_adopt_check(const struct source *s, struct error *err);
/* mdb_adopt_trigger makes the trigger, or puts it in the place of an earlier one, in one step;
 * mdb_adopt_untrigger drops it. MariaDB commits before both. */
int mdb_adopt_trigger(const struct source *s, struct error *err);
int mdb_adopt_untrigger(const struct source *s, struct error *err);
/* mdb_adopt_count counts the rows that are not processed; mdb_adopt_copy makes events of them,
 * inside a transaction, and counts those. */
int mdb_adopt_count(const struct source *s, int64_t *ret, struct error *err);
int mdb_adopt_copy(const struct source *s, int64_t *ret, struct error *err);

#endif
