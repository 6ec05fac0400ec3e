/* pool.h: many consumers on a few connections.
 *
 * Each consumer of a relay has a pooled store: a store whose operations (turn, extend, and the
 * others that a pipeline calls) acquire a connection of the pool for as long as they last. Simple
 * turns that are asked for at the same time are made in one transaction (batcher.c). One more
 * connection belongs to the watcher (watcher.c), which alone listens for the store's wake-ups and
 * wakes the consumers that a commit concerns.
 *
 * Named handlers work in transactions on connections of their own kind, which the application's
 * code sees. Many consumers share a few of those as well. */
#ifndef POOL_POOL_H
#define POOL_POOL_H

#include "store/store.h"

struct pool;

struct pool_config {
    const struct clock *clock;
    size_t tx_workers; /* workers whose handlers work in transactions */
    int connections;   /* at most, with that of the watcher; at least 2 */
    int64_t sweep_ms;  /* wake every consumer at least this often */

    /* watch_status is called by the watcher's thread when it cannot poll any more, when that has
     * another reason, and, with why == NULL, when it can again. May be NULL. */
    void (*watch_status)(void *ctx, const struct error *why);
    void *ctx;
};

/* pool_possible says whether that many workers can share connections to the store, and gain by it.
 * Where one session writes at a time, fewer than POOL_WORKERS have a connection each, so that they
 * can read at the same time. */
#define POOL_WORKERS 5
bool pool_possible(const struct store *st, size_t workers);

/* pool_open makes a pool of connections to the outbox that st is a handle of; it borrows st, which
 * it duplicates. pool_watch starts the watcher: until then, no consumer is woken. pool_close stops
 * it; all pooled stores must be closed by then, and all connections released. */
int pool_open(struct store *st, const struct pool_config *cfg, struct pool **ret,
              struct error *err);
int pool_watch(struct pool *p, struct error *err);
void pool_close(struct pool *p);

/* pool_store_new makes a pooled store, which the caller closes like any store. It is woken for
 * events that pass the patterns and the predicate, which are as for filter_new; without `wants` it
 * is never woken. It has only the operations that a relay needs: turn, extend, claims, the wake-up,
 * consumer_put, consumer_pause, consumer_report and trim. Any thread. */
struct pool_wants {
    const char *events, *where;
};
int pool_store_new(struct pool *p, const struct pool_wants *wants, struct store **ret,
                   struct error *err);

/* A consumer whose named handlers need a connection. What they did to its session is gone before
 * another consumer gets it. */
struct pool_tx_user {
    const void *consumer;
    int64_t idle_ms; /* for store_ops.expose_connection */
};

/* pool_shares_tx says whether named handlers share connections; otherwise each worker opens its
 * own. pool_tx_acquire waits for one. A handler that keeps its connection for longer than a second
 * does not hold up the others: another connection may be opened in its place, and is closed when
 * one comes back. pool_tx_release takes it back, with no transaction open. Any thread. */
struct pool_conn;
bool pool_shares_tx(const struct pool *p);
int pool_tx_acquire(struct pool *p, const struct pool_tx_user *who, struct pool_conn **ret,
                    struct store **ret_st, struct error *err);
void pool_tx_release(struct pool *p, struct pool_conn *c);

#endif
