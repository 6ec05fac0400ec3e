/* careful.h: the permission to deliver a careful event, one that was in flight when a worker
 * vanished.
 *
 * There is one permission per process, so that if the process dies while a careful event is being
 * delivered, that event is to blame. A pipeline takes the permission before it delivers one, has
 * nothing else in flight meanwhile, and gives it back once the event is no longer with the sink. */
#ifndef ENGINE_CAREFUL_H
#define ENGINE_CAREFUL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "store/store.h"

/* (1) Only careful.c writes these. (2) held implies that *shared is set, and that we set it. */
struct careful_token {
    atomic_flag *shared; /* one flag for all pipelines of the process; NULL: this is the only one */
    bool held;
    bool due; /* a careful event waits for the batches in hand to end */
};

void careful_init(struct careful_token *t, atomic_flag *shared);

/* careful_mode returns what the store is to do with careful events in the next claim, while
 * `others` batches are in hand beside it. With CAREFUL_TAKE the permission is taken, and
 * careful_leave must follow: at once, or when the careful event has ended. */
enum careful careful_mode(struct careful_token *t, size_t others);
/* careful_leave gives the permission back, if we have it. */
void careful_leave(struct careful_token *t);

/* careful_note_due notes whether the last look left a careful event behind because other batches
 * were in hand. */
void careful_note_due(struct careful_token *t, bool due);

#endif
