/* pool_impl.h: internals of the pool: pool.c (connections), pooled_store.c (the store that a
 * consumer sees, and turns of several consumers in one transaction) and watcher.c (which consumers
 * are woken). */
#ifndef POOL_POOL_IMPL_H
#define POOL_POOL_IMPL_H

#include <pthread.h>

#include "pool/pool.h"

#define POOL_BLOCKER 200 /* bytes of a session's description */

/* A shared connection. (1) Only its current user touches st and exposed_to. (2) st is NULL until it
 * is first needed. */
struct pool_conn {
    struct store *st;
    const void *exposed_to; /* the consumer whose handlers used it last; NULL: none */

    /* Under the lock of its set. */
    struct pool_conn *next;
    bool opened;         /* st is not NULL */
    bool failing;        /* in use by a user whose last operation failed */
    const void *user;    /* the last to acquire it */
    int64_t acquired_at; /* monotonic, or when it was opened if that is later; 0: free */
    int64_t bad_until;   /* it failed, or could not be opened: avoid it until this time */
};

struct pool_waiter;

/* Interchangeable connections, and the queue for them. Everything below `lock` is protected by it.
 * (1) n >= size, and greater only while some are slow. (2) Waiters are FIFO, except urgent ones,
 * which go first. (3) *end is the last `next`. */
struct pool_set {
    struct store *origin;
    const struct clock *clock;
    size_t size;
    bool exposed; /* to handlers: slow connections do not count */

    pthread_mutex_t lock;
    struct pool_conn *first;
    size_t n;
    size_t n_failing; /* connections in use by users whose last operation failed */
    struct pool_waiter *waiters, **end;
};

/* A user of connections. */
struct pool_user {
    const void *who; /* prefers its previous connection; NULL: no preference */
    bool urgent;     /* many turns depend on it, so it is served first */
    bool failed;     /* its last operation failed */
    int64_t idle_ms; /* of an exposed connection */
};

/* pool_acquire waits for a connection, and opens it if need be. pool_release returns it; `why` is
 * the error of the failed operation, or NULL. */
int pool_acquire(struct pool_set *set, const struct pool_user *user, struct pool_conn **ret,
                 struct error *err);
void pool_release(struct pool_set *set, struct pool_conn *c, const struct error *why);

struct batched;

/* Turns waiting to be taken in one transaction. (1) At most one thread leads. It takes all turns
 * that were waiting when it began. */
struct batcher {
    struct batched *first, **end;
    bool led;
};

struct pooled_store {
    struct store base;
    struct pool *pool;
    struct pooled_store *next;
    struct filter *filter; /* NULL: never woken */
    char *consumer;        /* registered through this store; NULL: none */
    int wake_fd;           /* -1: none */
    /* How many turns to take separately before batching the next, and how many it was last time.
     * The reason why a turn is not simple usually persists for a while. */
    unsigned separate, separate_last;
    bool failed; /* the last operation failed */
    struct turn_cache cache;
    char wake_blocker[POOL_BLOCKER]; /* backs the last hint */
};

struct watcher {
    struct store *st;
    pthread_t thread;
    int stop_fd; /* readable when the watcher is to stop */
    bool running;
    struct error reported; /* the last reported error; only used by the thread */
};

/* Everything below `lock` is protected by it. */
struct pool {
    struct store *origin;
    struct pool_config cfg;
    struct store_ops store_ops; /* of pooled stores */
    struct watcher watcher;
    struct pool_set turns; /* connections for the operations of pooled stores */
    struct pool_set tx;    /* connections for handlers' transactions; size == 0: not shared */

    pthread_mutex_t lock;
    struct batcher batcher;
    struct pooled_store *stores;
    size_t n_consumers; /* pooled stores with a filter, which are woken */
    /* the unrelated session that holds the lock for wake-ups; "": none */
    char wake_blocker[POOL_BLOCKER];
};

/* pool_store_ops fills in the operations of pooled stores. */
void pool_store_ops(const struct store *origin, struct store_ops *ret);

void watcher_stop(struct pool *p);

static inline bool pool_one_writer(const struct store *st)
{
    return (st->caps & STORE_ONE_WRITER) != 0;
}

#endif
