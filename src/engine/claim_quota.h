/* claim_quota.h: whether a pipeline may claim another batch, and its limits in events and bytes.
 *
 * The number of events follows the speed of the sink: small batches for a slow one, so that events
 * in flight can soon be given back, and large ones for a fast one. The memory follows the usage of
 * recent batches.
 *
 * All pipelines of a process share a budget of memory for events in flight. A pipeline may hold as
 * much as remains free: the more pipelines are busy, the smaller the equal share of each. None
 * waits for another, because a pipeline with nothing in flight may always claim a minimum, or one
 * event, however large. So the limit can be exceeded by one event per pipeline. */
#ifndef ENGINE_CLAIM_QUOTA_H
#define ENGINE_CLAIM_QUOTA_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct claim_request;
struct pipeline;

#define QUOTA_BYTES ((size_t)2 * 1024 * 1024) /* ceiling on the events of one batch */
#define QUOTA_BYTES_LEAST ((size_t)16 * 1024)
#define BUDGET_LEAST ((size_t)16 * 1024) /* minimum for a pipeline with nothing in flight */
#define BUDGET_MORE ((size_t)64 * 1024)  /* less than this is not worth another batch */

/* Any thread may use it. (1) held is the sum of all quotas. (2) peak is the maximum of held. */
struct budget {
    size_t limit;
    atomic_size_t held, peak;
};

/* What one pipeline may claim; only its own thread uses it. (1) Only claim_quota.c writes these.
 * (2) 1 <= n <= most. (3) QUOTA_BYTES_LEAST <= bytes <= QUOTA_BYTES.
 * (4) held bytes of the budget are counted as its own. */
struct claim_quota {
    size_t n;              /* how many events to claim now */
    size_t least;          /* deliveries in flight at once: fewer would not keep the sink busy */
    size_t most;           /* the consumer's limit; wins over least */
    size_t bytes;          /* how many bytes of events to claim at most */
    struct budget *budget; /* NULL: no limit */
    size_t held;
};

/* claim_quota_init starts with 64 events, within the bounds of in_flight and most. `all_lanes`: the
 * first batch may span all lanes, and workers that join later must wait for it before they receive
 * any, so it starts with 8 events. */
void claim_quota_init(struct claim_quota *q, size_t in_flight, size_t most, bool all_lanes,
                      struct budget *budget);

/* claim_quota_tune learns from a batch of `got` events that was settled `took` ns after it was
 * claimed. claim_quota_halve follows a batch that was not finished in time. claim_quota_one claims
 * events one by one, to tell them apart. The latter two may go below `least`. */
void claim_quota_tune(struct claim_quota *q, size_t got, int64_t took);
void claim_quota_halve(struct claim_quota *q);
void claim_quota_one(struct claim_quota *q);
/* claim_quota_learn notes how many bytes of memory a batch took. The next may have twice as many,
 * since batches grow by doubling, and at least half of this one's limit. */
void claim_quota_learn(struct claim_quota *q, size_t bytes);

/* claim_quota_reserve returns how many bytes of events the next batch may have, and reserves memory
 * for them, until claim_quota_hold sets how many bytes the pipeline holds. 0: the pipeline has to
 * finish a batch in flight first. `spare` is memory kept from an earlier batch, which is counted
 * already; `first`: nothing is in flight. */
size_t claim_quota_reserve(struct claim_quota *q, size_t spare, bool first);
void claim_quota_hold(struct claim_quota *q, size_t bytes);
/* claim_quota_tight returns whether so much memory is in use that none should be kept for later. */
bool claim_quota_tight(const struct claim_quota *q);

/* ---- for a pipeline ---- */

/* claim_quota_allows returns whether another batch may be claimed, while `settling` (0 or 1) of
 * those in flight are about to be settled. */
bool claim_quota_allows(struct pipeline *p, int64_t now, size_t settling);
/* claim_quota_take reserves memory for another batch, and sets the limits of the claim accordingly.
 * Returns whether there is any. */
bool claim_quota_take(struct pipeline *p, struct claim_request *req);
/* claim_quota_count counts the memory of the batches in flight. claim_quota_tidy also frees memory
 * kept for later batches if memory is short; every claimed batch must be known to p->inflight. */
void claim_quota_count(struct pipeline *p);
void claim_quota_tidy(struct pipeline *p);

#endif
