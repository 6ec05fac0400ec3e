/* pool.h: the connections that named handlers work on, where many consumers have to share a few.
 *
 * A consumer borrows one for a step: a transaction or two, with the calls in it. Handlers are quick
 * as a rule, and so nobody waits for long. One that is not must not hold up the others: for each
 * connection that was lent for longer than a second, another may be opened, and is closed when it
 * comes back. */
#ifndef API_POOL_H
#define API_POOL_H

#include "base/clock.h"
#include "store/store.h"

struct pool;

/* Who borrows: what a handler did to its session is gone before another consumer gets it. */
struct pool_user {
    const void *consumer;
    int64_t idle_ms; /* for store_ops.lend */
};

/* pool_new makes an empty pool of up to `size` handles of the outbox that st is one of; it borrows
 * st and the clock. pool_free closes them; all must have come back. */
int pool_new(struct store *st, const struct clock *clock, size_t size, struct pool **ret,
             struct error *err);
void pool_free(struct pool *p);

/* pool_take lends a handle, and waits if it has to. pool_give takes it back, with no transaction
 * open on it. Any thread. */
int pool_take(struct pool *p, const struct pool_user *who, struct store **ret, struct error *err);
void pool_give(struct pool *p, struct store *st);

#endif
