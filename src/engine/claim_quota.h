/* claim_quota.h: whether a pipeline may claim another batch, and of how many events and bytes.
 *
 * The number of events follows the sink: small batches for a slow one, so that what is in flight
 * can soon be given back, and large ones for a fast one. The memory set aside follows what the last
 * batches took.
 *
 * All pipelines of a process share a budget of memory for events in flight. A pipeline may hold as
 * much as is free: the more of them are busy, the less each may take, and all get the same. None
 * has to wait for another, because one with nothing in flight always gets a little, or one event,
 * however large. So the limit can be exceeded, by an event of each pipeline. Nothing here has to be
 * tuned by hand. */
#ifndef ENGINE_CLAIM_QUOTA_H
#define ENGINE_CLAIM_QUOTA_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pipeline;

#define QUOTA_BYTES ((size_t)2 * 1024 * 1024) /* ceiling on the events of one batch */
#define QUOTA_BYTES_LEAST ((size_t)16 * 1024)
#define BUDGET_LEAST ((size_t)16 * 1024) /* what a pipeline with nothing in flight gets always */
#define BUDGET_MORE ((size_t)64 * 1024)  /* less than this is not worth another batch */

/* Any thread may use it. (1) held is the sum of all quotas. (2) peak is the most that it was. */
struct budget {
    size_t limit;
    atomic_size_t held, peak;
};

/* What one pipeline may claim; only its own thread uses it. (1) Only claim_quota.c writes these.
 * (2) 1 <= n <= most. (3) QUOTA_BYTES_LEAST <= bytes <= QUOTA_BYTES.
 * (4) held bytes of the budget are counted as its own. */
struct claim_quota {
    size_t n;     /* how many events to claim now */
    size_t least; /* deliveries in flight at once: with fewer, the sink would not be kept busy */
    size_t most;  /* the consumer's limit; wins over least */
    size_t bytes; /* how many bytes of events to claim at most */
    struct budget *budget; /* NULL: there is no limit */
    size_t held;
};

/* claim_quota_init starts with 64 events, within the bounds of in_flight and most. */
void claim_quota_init(struct claim_quota *q, size_t in_flight, size_t most, struct budget *budget);
/* claim_quota_start_small is for a worker whose first batch may be of all lanes: it starts with 8,
 * because others that come to share the lanes wait for that batch. */
void claim_quota_start_small(struct claim_quota *q);

/* claim_quota_tune learns from a batch of `got` events that was settled `took` ns after it was
 * claimed. claim_quota_halve follows a batch that was not finished in time. claim_quota_one claims
 * events one by one, to tell them apart. The latter two may go below `least`. */
void claim_quota_tune(struct claim_quota *q, size_t got, int64_t took);
void claim_quota_halve(struct claim_quota *q);
void claim_quota_one(struct claim_quota *q);
/* claim_quota_learn learns that a batch took so many bytes of memory. The next may have twice as
 * many, since batches grow by doubling, and at least half as many as this one might: batches of
 * retries are small, and come between large ones. */
void claim_quota_learn(struct claim_quota *q, size_t bytes);

/* claim_quota_room says how many bytes of events the next batch may have; 0: the pipeline has to
 * end one of those in flight first. `spare` is memory for it that is counted already, kept from an
 * earlier batch; `first`: nothing is in flight. claim_quota_reserve also sets their memory aside,
 * until claim_quota_hold says how many bytes the pipeline has. */
size_t claim_quota_room(const struct claim_quota *q, size_t spare, bool first);
size_t claim_quota_reserve(struct claim_quota *q, size_t spare, bool first);
void claim_quota_hold(struct claim_quota *q, size_t bytes);
/* claim_quota_tight says whether so much is in use that nothing should be kept for later. */
bool claim_quota_tight(const struct claim_quota *q);

/* ---- for a pipeline ---- */

/* claim_quota_allows says whether another batch may be claimed, where `settling` (0 or 1) of those
 * in flight are about to go. */
bool claim_quota_allows(struct pipeline *p, int64_t now, size_t settling);
/* claim_quota_bytes sets memory aside for it and returns how many bytes of events it may have; 0:
 * there are none left. claim_quota_events returns how many events to ask for, of so many bytes. */
size_t claim_quota_bytes(struct pipeline *p);
size_t claim_quota_events(const struct pipeline *p, size_t bytes);
/* claim_quota_count counts the memory of what is in flight. claim_quota_tidy also gives back what
 * is only kept for later, if memory is short; every claimed batch must be known to p->inflight. */
void claim_quota_count(struct pipeline *p);
void claim_quota_tidy(struct pipeline *p);

#endif
