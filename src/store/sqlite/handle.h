/* handle.h: what the SQLite store offers beside store_ops. */
#ifndef STORE_SQLITE_HANDLE_H
#define STORE_SQLITE_HANDLE_H

#include "store/store.h"

struct sqlite3;

/* sqlite_handle gives the connection of a SQLite store, which stays the store's; NULL for a store
 * of another kind. It may change when the file is replaced, so ask for it each time. */
struct sqlite3 *sqlite_handle(struct store *st);

#endif
