/* careful.h: the permission to deliver a careful event, one that was with a worker when that one
 * vanished.
 *
 * There is one permission in a process: if the process dies while a careful event is being
 * delivered, it was that event. So whoever wants to deliver one takes the permission first, has
 * nothing else on its way meanwhile, and gives it back once nothing of the event is with the sink
 * any more. */
#ifndef ENGINE_CAREFUL_H
#define ENGINE_CAREFUL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "store/store.h"

/* (1) Only careful.c writes these. (2) held implies that *shared is set, and that it was set by
 * us. */
struct careful_token {
    atomic_flag *shared; /* by all pipelines of the process; NULL: there is only this one */
    bool held;
    bool due; /* a careful event waits for the batches in hand to end */
};

void careful_init(struct careful_token *t, atomic_flag *shared);

/* careful_mode says what the store shall do with careful events in the next claim, `others` batches
 * being in hand beside it. It takes the permission where it can; then careful_leave must follow, at
 * once or when the careful event has ended. */
enum careful careful_mode(struct careful_token *t, size_t others);
/* careful_leave gives the permission back, if we have it. */
void careful_leave(struct careful_token *t);

/* careful_note_due notes whether the last look left a careful event behind because other batches
 * were in hand. */
void careful_note_due(struct careful_token *t, bool due);

#endif
