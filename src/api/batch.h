/* batch.h: a batch that an application claimed and delivers itself. claim.c fills it, batch.c hands
 * out its events and takes the verdicts, batch_settle.c settles it and extends its lease. */
#ifndef API_BATCH_H
#define API_BATCH_H

#include "api/api_impl.h"
#include "base/rng.h"

#define BATCH_WORKER_MAX 255

/* What the application said about an event. */
enum said { SAID_NOTHING, SAID_DONE, SAID_RETRY, SAID_REJECT, SAID_DOWN, SAID_NOT_MINE };

/* One event of a batch. (1) The delivery comes first: the application sees it as outbox_event. */
struct item {
    struct delivery d;
    enum said said;
    int64_t delay_ms;
    const char *why;
};

/* One consumer's claim. The parts of a batch are a list, because the application has pointers to
 * their items. */
struct part {
    struct part *next;
    const char *consumer;
    enum order order;
    struct retry_policy retry;
    struct batch b;
    struct item *items; /* one for each of b.ev */
    size_t held_back;   /* items that make others wait */
    bool settled, lost;
};

/* The batch that the application holds. (1) Parts and items live in the arena. */
struct outbox_batch {
    struct outbox *ob;
    struct arena a;
    struct rng rng;
    char worker[BATCH_WORKER_MAX + 1];
    struct part *first, *last;
    struct part *at; /* outbox_batch_next continues in this part */
    size_t i;        /* with this item */
    size_t n;        /* events that may be delivered */
    int64_t wait_ms; /* when there may be more; -1: not known */
};

/* api_batch_may_deliver says whether the event may go out now. The others of a claim wait behind an
 * earlier event of their key, or for the end of their delay; settling puts them back. */
static inline bool api_batch_may_deliver(const struct event *ev)
{
    return !ev->behind && !ev->delayed;
}

/* api_batch_settle_part settles one consumer's claim, in the application's transaction if in_tx is
 * set, and otherwise in one of its own. *ret_lost: the lease had run out, and another worker has
 * the events. The caller holds the handle's lock. */
int api_batch_settle_part(outbox_batch *b, struct part *p, bool in_tx, bool *ret_lost,
                          struct error *err);
/* api_batch_check_lease fails with ERR_INVALID if a lease is not between 1 ms and a day. */
int api_batch_check_lease(int64_t lease_ms, struct error *err);

#endif
