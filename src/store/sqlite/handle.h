/* handle.h: what the SQLite store offers beside store_ops. */
#ifndef STORE_SQLITE_HANDLE_H
#define STORE_SQLITE_HANDLE_H

#include "store/store.h"

struct sqlite3;

/* sqlite_handle returns the connection of a SQLite store, which keeps it; NULL for any other store.
 * It may change when the file is replaced, so get it each time. */
struct sqlite3 *sqlite_handle(struct store *st);

#endif
