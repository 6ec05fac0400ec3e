/* handle.h: the connection of a MariaDB store, for the public API. */
#ifndef STORE_MARIADB_HANDLE_H
#define STORE_MARIADB_HANDLE_H

struct st_mysql;
struct store;

/* mdb_handle gives the connection; NULL if the store is of another kind, or not connected. */
struct st_mysql *mdb_handle(struct store *st);

#endif
