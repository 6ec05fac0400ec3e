/* pull.h: when a store looks for events that a wrong clock has parked for longer than they were
 * told to wait.
 *
 * The look takes in all parked events of a consumer, so it is not made at every turn. Whoever waits
 * for a parked event comes back in time for the next one: the time it waits for may be such a
 * clock's. Times here are monotonic. */
#ifndef STORE_PULL_H
#define STORE_PULL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"

#define PULL_EVERY (10000 * MS_NS)

struct pull {
    int64_t at; /* when to look again; 0: at once */
};

static inline bool pull_due(const struct pull *p, int64_t now)
{
    return now >= p->at;
}

static inline void pull_done(struct pull *p, int64_t now)
{
    p->at = now + PULL_EVERY;
}

/* pull_left_ms is how long to wait for the next look, if none is due. */
static inline int64_t pull_left_ms(const struct pull *p, int64_t now)
{
    return (p->at - now) / MS_NS + 1;
}

#endif
