/* migrate.h: bringing the tables of an outbox up to date. */
#ifndef STORE_POSTGRES_MIGRATE_H
#define STORE_POSTGRES_MIGRATE_H

#include "store/store.h"

struct pg_store;

/* pg_migrate_in does it inside the open transaction; *ret_from is the version that was there. */
int pg_migrate_in(struct pg_store *st, int64_t *ret_from, struct error *err);

/* pg_install makes everything from version `from` on in st's schema, inside the open transaction. */
int pg_install(struct pg_store *st, int64_t from, struct error *err);

#endif
