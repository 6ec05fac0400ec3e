/* pool_impl.h: what the files of a pool share. They are pool.c (connections), pooled_store.c (what
 * a consumer sees), batcher.c (turns of several consumers in one transaction) and watcher.c (which
 * consumers are woken). */
#ifndef POOL_POOL_IMPL_H
#define POOL_POOL_IMPL_H

#include <pthread.h>
#include <semaphore.h>

#include "pool/pool.h"

#define POOL_BLOCKER 200 /* bytes of a session's description */

/* A connection that users take turns with. (1) Only its user touches st and exposed_to. (2) st is
 * NULL until it is first needed. */
struct pool_conn {
    struct store *st;
    const void *exposed_to; /* the consumer whose handlers have worked on it; NULL: none */

    /* Under the lock of its set. */
    struct pool_conn *next;
    bool opened;         /* it has st */
    bool failing;        /* in use by a user that failed last time */
    const void *user;    /* who acquired it last */
    int64_t acquired_at; /* monotonic, or when it was opened since; 0: it is free */
    int64_t bad_until;   /* it failed, or could not be opened: others are preferred until then */
};

struct pool_waiter;

/* Connections that are interchangeable, and who waits for one. Everything below `lock` is protected
 * by it. (1) n >= size. There are more only while some are slow. (2) Waiters are FIFO, but for
 * those that are urgent. (3) *end is the last next. */
struct pool_set {
    struct store *origin;
    const struct clock *clock;
    size_t size;
    bool exposed; /* to handlers: connections that one keeps for long do not count */

    pthread_mutex_t lock;
    struct pool_conn *first;
    size_t n;
    size_t n_failing; /* connections in use by users that failed last time */
    struct pool_waiter *waiters, **end;
};

/* Who wants a connection. */
struct pool_user {
    const void *who; /* prefers the connection that it had last; NULL: prefers none */
    bool urgent;     /* many wait for it: it comes before all others */
    bool failed;     /* its last operation failed */
    int64_t idle_ms; /* of an exposed connection */
};

/* pool_acquire waits for a connection, and opens it if need be. pool_release takes it back; `why`
 * is the error that the operation failed with, or NULL. */
int pool_acquire(struct pool_set *set, const struct pool_user *user, struct pool_conn **ret,
                 struct error *err);
void pool_release(struct pool_set *set, struct pool_conn *c, const struct error *why);

/* A turn that waits to be made in one transaction with others; on the stack of the worker that
 * asks. (1) While its state is TURN_WAITS, only the thread that leads the batch touches it; the
 * semaphore hands it back. */
struct batched {
    struct batched_turn turn;
    struct error *err; /* why the store could not be asked */
    bool failed;       /* it could not be */
    enum { TURN_WAITS, TURN_LEADS, TURN_OVER } state;
    sem_t ready; /* state is no longer TURN_WAITS */
    struct batched *next;
};

/* (1) At most one thread leads. It makes the turns of all that waited when it began. */
struct batcher {
    struct batched *first, **end;
    bool led;
};

struct pooled_store {
    struct store base;
    struct pool *pool;
    struct pooled_store *next;
    struct filter *filter; /* NULL: never woken */
    char *consumer;        /* the one registered through it; NULL: none */
    int wake_fd;           /* -1: none */
    /* Turns to make separately before the next one is batched, and how many they were last time.
     * What makes a turn difficult seldom passes at once. */
    unsigned separate, separate_last;
    bool failed; /* the last operation did */
    struct turn_cache cache;
    char wake_blocker[POOL_BLOCKER]; /* what the last hint points to */
};

struct watcher {
    struct store *st;
    pthread_t thread;
    int stop_fd; /* readable once it is to stop */
    bool running;
    struct error reported; /* why it could not poll; the thread's own */
};

/* Everything below `lock` is protected by it. */
struct pool {
    struct store *origin;
    struct pool_config cfg;
    struct store_ops store_ops; /* of pooled stores */
    struct watcher watcher;
    struct pool_set turns; /* connections for the operations of pooled stores */
    struct pool_set tx;    /* for handlers' transactions; size == 0: not shared */

    pthread_mutex_t lock;
    struct batcher batcher;
    struct pooled_store *stores;
    size_t n_consumers; /* pooled stores that are woken */
    /* the unrelated session that holds the lock wake-ups need, as the watcher found; "": none */
    char wake_blocker[POOL_BLOCKER];
};

/* pool_store_ops fills in the operations of pooled stores. */
void pool_store_ops(const struct store *origin, struct store_ops *ret);

/* batcher_turn makes a turn in one transaction with others that are asked for meanwhile. If t->made
 * is false afterwards, it has to be made separately. -1: the store could not be asked. */
int batcher_turn(struct pool *p, struct batched_turn *t, struct error *err);

int watcher_start(struct pool *p, struct error *err);
void watcher_stop(struct pool *p);

static inline bool pool_one_writer(const struct store *st)
{
    return (st->caps & STORE_ONE_WRITER) != 0;
}

#endif
