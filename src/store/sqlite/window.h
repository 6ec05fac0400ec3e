/* window.h: events that were read once for several lanes of a consumer.
 *
 * Lanes go through the same events, and each wants its share of them. A worker that has several
 * lanes keeps what it has read on its way, as long as that is little memory: the claims of the
 * other lanes find their events there. Events of lanes that other workers have are not kept. */
#ifndef STORE_SQLITE_WINDOW_H
#define STORE_SQLITE_WINDOW_H

#include "store/sqlite/claim.h"

/* sqlite_window_read reads events of one lane after `from`, as sqlite_fresh_read does, out of the
 * window or through it. *ret_read is false, and nothing is read, if the window is not for this lane
 * or this place. What was read is true only if the event with the number ret->to still has the id
 * ret->to_id: the numbers may have been given anew since the window was read. */
int sqlite_window_read(struct claiming *k, int lane, int64_t from, struct chunk *ret,
                       bool *ret_read, struct error *err);

/* sqlite_window_note notes what a lane found that was read by itself: many events, and the next
 * reads go through the window. */
void sqlite_window_note(struct claiming *k, const struct chunk *c);

/* sqlite_window_lane notes whether the worker may claim from a lane. */
void sqlite_window_lane(struct claiming *k, int lane, bool ours);

/* sqlite_window_forget frees the window. */
void sqlite_window_forget(struct sqlite_store *st);

#endif
