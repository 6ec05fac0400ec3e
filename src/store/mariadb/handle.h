/* handle.h: what the MariaDB store offers beside store_ops, also in a build without it. */
#ifndef STORE_MARIADB_HANDLE_H
#define STORE_MARIADB_HANDLE_H

#include "store/store.h"

struct st_mysql;

/* mdb_is says whether a store is one in MariaDB. Any thread may ask. */
bool mdb_is(const struct store *st);
/* mdb_handle gives the connection of a MariaDB store, which stays the store's; NULL for a store of
 * another kind, and while there is no connection. It changes when the store connects again, so ask
 * for it each time. */
struct st_mysql *mdb_handle(struct store *st);

#endif
