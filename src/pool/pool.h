/* pool.h: many consumers on a few connections.
 *
 * Each consumer of a relay has a pooled store: a store whose operations (turn, extend, and the
 * others that a pipeline calls) acquire a connection from the pool and release it at the end.
 * Simple turns requested at the same time are taken in one transaction (pooled_store.c). One more
 * connection belongs to the watcher (watcher.c), which alone listens for the store's wake-ups and
 * wakes the consumers that a commit concerns.
 *
 * Named handlers work in transactions on separate connections, which are exposed to the
 * application's code. Consumers share these as well. */
#ifndef POOL_POOL_H
#define POOL_POOL_H

#include "store/store.h"

struct pool;

struct pool_config {
    const struct clock *clock;
    size_t tx_workers; /* workers whose handlers work in transactions */
    int connections;   /* maximum, including the watcher's; at least 2 */
    int64_t sweep_ms;  /* wake every consumer at least this often */

    /* watch_status is called by the watcher's thread when polling starts to fail, when the reason
     * changes, and, with why == NULL, when it succeeds again. May be NULL. */
    void (*watch_status)(void *ctx, const struct error *why);
    void *ctx;
};

/* pool_possible returns whether this many workers can share connections to the store, and benefit
 * from it. With one writer at a time, fewer than POOL_WORKERS workers have a connection each, so
 * that they can read in parallel. */
#define POOL_WORKERS 5
bool pool_possible(const struct store *st, size_t workers);

/* pool_open creates a pool of connections to st's outbox, as duplicates of st, which it borrows.
 * pool_watch starts the watcher: until then, no consumer is woken. pool_close stops it; by then all
 * pooled stores must be closed and all connections released. */
int pool_open(struct store *st, const struct pool_config *cfg, struct pool **ret,
              struct error *err);
int pool_watch(struct pool *p, struct error *err);
void pool_close(struct pool *p);

/* pool_store_new creates a pooled store, which the caller closes like any store. It is woken for
 * events that match the patterns and the predicate (see filter_new); without `wants` it is never
 * woken. It has only the operations that a relay needs: turn, extend, claims, the wake-up,
 * consumer_put, consumer_pause, consumer_report and trim. Any thread. */
struct pool_wants {
    const char *events, *where;
};
int pool_store_new(struct pool *p, const struct pool_wants *wants, struct store **ret,
                   struct error *err);

/* pool_shares_tx returns whether named handlers share connections; otherwise each worker opens its
 * own. pool_tx_acquire waits for one, whose session is reset if another consumer used it before;
 * idle_ms is for store_ops.expose_connection. A handler that keeps its connection for longer than a
 * second does not block the others: an extra connection may be opened in its place, and one is
 * closed when another is released. pool_tx_release returns it, with no transaction open. Any
 * thread. */
struct pool_conn;
bool pool_shares_tx(const struct pool *p);
int pool_tx_acquire(struct pool *p, const void *consumer, int64_t idle_ms, struct pool_conn **ret,
                    struct store **ret_st, struct error *err);
void pool_tx_release(struct pool *p, struct pool_conn *c);

#endif
