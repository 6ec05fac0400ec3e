/* pull.h: when a store looks for events that a wrong clock has parked for longer than they were
 * told to wait.
 *
 * The look covers all parked events of a consumer, so it is not made at every turn. A worker that
 * waits for a parked event comes back in time for the next look: the time it waits for may be due
 * to such a clock. Times here are monotonic. */
#ifndef STORE_PULL_H
#define STORE_PULL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"

#define PULL_EVERY (10000 * MS_NS)

struct pull {
    int64_t at; /* when to look again; 0: at once */
};

/* pull_due says whether it is time for a look; pull_done that one was made. */
static inline bool pull_due(const struct pull *p, int64_t now)
{
    return now >= p->at;
}

static inline void pull_done(struct pull *p, int64_t now)
{
    p->at = now + PULL_EVERY;
}

/* pull_left_ms is the time until the next look, if none is due. */
static inline int64_t pull_left_ms(const struct pull *p, int64_t now)
{
    return (p->at - now) / MS_NS + 1;
}

#endif
