/* health.h: whether a relay gets on with its work. */
#ifndef ADMIN_HEALTH_H
#define ADMIN_HEALTH_H

#include "api/runner.h"

#define HEALTH_TEXT 320

/* What is to be said of a consumer. (1) ready implies alive. ready: it gets on with its work, has
 * none, or was told to pause. alive: its loop turns. A sink or a store that is away makes a
 * consumer not ready, but it stays alive: it waits and asks again, and starting it anew would help
 * nobody. */
struct health {
    bool ready, alive;
    char text[HEALTH_TEXT]; /* why, in a few words */
};

/* health_of judges by what is seen at the monotonic time now_ns. Without progress for longer than
 * patience_ns is stuck. paused: the store says so (what is in view may be older). */
struct health health_of(const struct runner_view *v, int64_t now_ns, int64_t patience_ns,
                        bool paused);

/* health_stalled is for how long it has had work and got none of it done, in ns. */
int64_t health_stalled(const struct runner_view *v, int64_t now_ns);

#endif
