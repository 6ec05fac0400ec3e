/* health.h: whether a consumer makes progress. */
#ifndef ADMIN_HEALTH_H
#define ADMIN_HEALTH_H

#include "api/worker.h"

#define HEALTH_TEXT 320

/* The health of a consumer. (1) ready implies alive. A consumer is ready if it makes progress, has
 * no work, or is paused. It is alive if its loop turns. If the sink or the store is unreachable it
 * is not ready, but still alive: it waits and retries, and a restart would not help. */
struct health {
    bool ready, alive;
    char text[HEALTH_TEXT]; /* why, in a few words */
};

/* health_of judges a consumer at the monotonic time now_ns. One that has made no progress for
 * longer than patience_ns is stuck. paused comes from the store, and may be newer than the view. */
struct health health_of(const struct worker_view *v, int64_t now_ns, int64_t patience_ns,
                        bool paused);

/* health_stalled returns for how long a consumer has had work and made no progress, in ns. */
int64_t health_stalled(const struct worker_view *v, int64_t now_ns);

#endif
