/* window.h: reading fresh events, and keeping them for several lanes.
 *
 * A turn reads before it takes the write lock, so that producers need not wait for it. Events never
 * change and seq is commit order, so the result is still valid if the position is unchanged under
 * the lock.
 *
 * All lanes go through the same events, and each wants its share of them. A worker with several
 * lanes keeps what it has read, within a bound on memory, so that the claims of the other lanes
 * find their events there. Events of lanes that other workers hold are not kept. */
#ifndef STORE_SQLITE_WINDOW_H
#define STORE_SQLITE_WINDOW_H

#include "store/sqlite/sqlite.h"

/* sqlite_prefetch reads what will probably be claimed into t->prefetched, before the write lock is
 * taken. */
int sqlite_prefetch(struct turn *t, struct error *err);
/* sqlite_window_forget frees the window. */
void sqlite_window_forget(struct sqlite_store *st);

#endif
