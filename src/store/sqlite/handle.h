/* handle.h: the one thing of the SQLite store that is not behind store_ops. */
#ifndef STORE_SQLITE_HANDLE_H
#define STORE_SQLITE_HANDLE_H

#include "store/store.h"

struct sqlite3;

/* sqlite_handle gives the connection of a SQLite store; NULL for another kind. */
struct sqlite3 *sqlite_handle(struct store *st);

#endif
