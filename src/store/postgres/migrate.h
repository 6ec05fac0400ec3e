/* migrate.h: upgrading an outbox: its tables step by step (migrate.c), its functions and views all
 * at once (install.c). */
#ifndef STORE_POSTGRES_MIGRATE_H
#define STORE_POSTGRES_MIGRATE_H

#include "store/store.h"

struct pg_store;
struct buf;

/* pg_install creates everything after version `from` in st's schema, inside the open
 * transaction. */
int pg_install(struct pg_store *st, int64_t from, struct error *err);

/* pg_functions_install installs functions and views, inside the open transaction. pg_functions_ddl
 * appends the SQL that does so, with its marks. */
int pg_functions_install(struct pg_store *st, struct error *err);
void pg_functions_ddl(struct buf *to);

/* pg_functions_status compares the installed functions and views with this program's. */
int pg_functions_status(struct pg_store *st, enum functions_status *ret, struct error *err);

#endif
