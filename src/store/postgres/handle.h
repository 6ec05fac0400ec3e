/* handle.h: the part of the PostgreSQL store that is not behind store_ops. */
#ifndef STORE_POSTGRES_HANDLE_H
#define STORE_POSTGRES_HANDLE_H

#include "store/store.h"

struct pg_conn;

/* pg_handle returns the connection of a PostgreSQL store, a PGconn that the store keeps; NULL
 * for a store of another kind. */
struct pg_conn *pg_handle(struct store *st);

#endif
