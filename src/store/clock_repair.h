/* clock_repair.h: when a store looks for events that a wrong clock has parked for longer than they
 * were told to wait.
 *
 * The search covers all parked events of a consumer, so it is not made at every turn. A worker that
 * waits for a parked event comes back in time for the next search: such a clock may have set the
 * time it waits for. Times here are monotonic. */
#ifndef STORE_CLOCK_REPAIR_H
#define STORE_CLOCK_REPAIR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"

#define CLOCK_REPAIR_EVERY (10000 * MS_NS)

struct clock_repair {
    int64_t at; /* when to search again; 0: at once */
};

/* clock_repair_due says whether it is time to search; clock_repair_done that it was done. */
static inline bool clock_repair_due(const struct clock_repair *p, int64_t now)
{
    return now >= p->at;
}

static inline void clock_repair_done(struct clock_repair *p, int64_t now)
{
    p->at = now + CLOCK_REPAIR_EVERY;
}

/* clock_repair_left_ms is the time until the next search, if none is due. */
static inline int64_t clock_repair_left_ms(const struct clock_repair *p, int64_t now)
{
    return (p->at - now) / MS_NS + 1;
}

#endif
