/* lane_workers.h: workers that share the lanes of consumer "c", for tests that drive each of them
 * turn by turn. */
#ifndef TESTS_CONTRACT_LANE_WORKERS_H
#define TESTS_CONTRACT_LANE_WORKERS_H

#include "store_impl.h"

#define EVENTS 3000
#define KEYS 100

struct worker {
    const char *name;
    int lanes;
    size_t max;
    bool sole;
    struct store *st;
    struct arena a;
    struct batch b; /* the batch it holds; n == 0: none */
    struct claim_hint hint;
};

/* Outcomes of the events, over all workers. */
struct book {
    int64_t last[KEYS]; /* seq of the last event of each key */
    bool seen[EVENTS + 1];
    size_t n;
};

/* hire starts a worker with its own handle, dismiss stops it. */
struct worker hire(struct store_rig *g, const char *name, int lanes, size_t max);
void dismiss(struct worker *w);
/* step settles the worker's batch, from `release` on as not tried (0: all delivered), and claims
 * the next. It returns the size of the new batch. */
size_t step(struct worker *w, int64_t release);
/* enter records a batch that will be settled as delivered; it checks that no event is repeated and
 * each key is in order. */
void enter(struct book *k, const struct batch *b);

#endif
