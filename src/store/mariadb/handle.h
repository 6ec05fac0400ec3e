/* handle.h: what the MariaDB store offers beside store_ops, also in a build without it. */
#ifndef STORE_MARIADB_HANDLE_H
#define STORE_MARIADB_HANDLE_H

#include "store/store.h"

struct st_mysql;

/* mdb_is returns whether a store is a MariaDB store. Any thread. */
bool mdb_is(const struct store *st);
/* mdb_handle returns the connection of a MariaDB store, which keeps it; NULL for any other store,
 * and while there is no connection. It changes when the store reconnects, so get it each time. */
struct st_mysql *mdb_handle(struct store *st);

#endif
