/* handle.h: what of the PostgreSQL store is not behind store_ops. */
#ifndef STORE_POSTGRES_HANDLE_H
#define STORE_POSTGRES_HANDLE_H

#include "store/store.h"

struct pg_conn;

/* postgres_handle gives the connection of a PostgreSQL store; NULL for another kind. */
struct pg_conn *postgres_handle(struct store *st);

#endif
