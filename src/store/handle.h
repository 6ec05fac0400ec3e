/* handle.h: the connections of the stores, which are not behind store_ops. A store keeps its
 * connection and replaces it when it reconnects, so get it each time. */
#ifndef STORE_HANDLE_H
#define STORE_HANDLE_H

#include "store/store.h"

struct pg_conn;
struct sqlite3;
struct st_mysql;

/* pg_handle, sqlite_handle and mdb_handle return the connection of a store (pg_conn is a PGconn);
 * NULL for a store of another kind, and for one of a server without a connection. */
struct pg_conn *pg_handle(struct store *st);
struct sqlite3 *sqlite_handle(struct store *st);
struct st_mysql *mdb_handle(struct store *st);
/* pg_is and mdb_is return whether a store is of that kind, connected or not. Any thread. */
bool pg_is(const struct store *st);
bool mdb_is(const struct store *st);

#endif
