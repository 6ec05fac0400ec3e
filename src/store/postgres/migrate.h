/* migrate.h: bringing an outbox up to date: its tables in steps (migrate.c), its functions and
 * views at once (install.c). */
#ifndef STORE_POSTGRES_MIGRATE_H
#define STORE_POSTGRES_MIGRATE_H

#include "store/store.h"

#define PG_FINGERPRINT 17 /* 16 digits and a NUL */

struct pg_store;
struct buf;

/* pg_install makes everything from version `from` on in st's schema, inside the open
 * transaction. */
int pg_install(struct pg_store *st, int64_t from, struct error *err);

/* pg_functions_install puts functions and views in place, inside the open transaction;
 * pg_functions_ddl appends the SQL for it. */
int pg_functions_install(struct pg_store *st, struct error *err);
void pg_functions_ddl(struct buf *to);

/* pg_fingerprint names the functions and views that this program carries; pg_functions_status
 * compares with those in place. */
void pg_fingerprint(char out[PG_FINGERPRINT]);
int pg_functions_status(struct pg_store *st, enum functions_status *ret, struct error *err);

#endif
