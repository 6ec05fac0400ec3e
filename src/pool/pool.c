/* pool.c: connections, and how they are assigned. Waiters queue FIFO; a released connection is
 * handed to the first eligible waiter, to avoid a thundering herd. */
#include "pool/pool.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/num.h"
#include "pool/pool_impl.h"

#define CONNECTIONS_MAX 64
#define BAD_WAIT (1000 * MS_NS) /* how long a failed connection is avoided */
#define SLOW (1000 * MS_NS)     /* a handler that keeps an exposed connection for longer is slow */
#define SLOW_POLL (100 * MS_NS) /* between checks for slow handlers */

/* Lives on the stack of the waiting thread. */
struct pool_waiter {
    const struct pool_user *user;
    struct pool_conn *conn; /* the connection assigned to it; NULL: none yet */
    pthread_cond_t served;
    struct pool_waiter *next;
};

/* ---- under the lock of a set ---- */

static bool set_grow(struct pool_set *set)
{
    struct pool_conn **end = &set->first;
    struct pool_conn *c = calloc(1, sizeof *c);
    if (!c)
        return false;
    while (*end)
        end = &(*end)->next;
    *end = c;
    set->n++;
    return true;
}

/* Returns how many connections the set may have now: slow ones do not count, except while being
 * opened, so that a slow server is not asked for more and more of them. */
static size_t set_room(const struct pool_set *set, int64_t now)
{
    size_t room = set->size;
    if (!set->exposed)
        return room;
    for (const struct pool_conn *c = set->first; c; c = c->next) {
        bool slow = c->opened && c->acquired_at && now - c->acquired_at > SLOW;
        room += slow;
    }
    return room;
}

/* Whether any connection, free or not, is not known to be broken. */
static bool is_any_good(const struct pool_set *set, int64_t now, bool only_opened)
{
    for (const struct pool_conn *c = set->first; c; c = c->next) {
        bool counts = c->opened || !only_opened;
        if (counts && now >= c->bad_until)
            return true;
    }
    return false;
}

/* Prefers the user's previous connection, where the store may have read ahead for it, then any open
 * one, then any other. While some connection is good, no bad one is chosen: a server may have no
 * slot left to replace a broken connection and still serve the others. NULL: none is free. */
static struct pool_conn *choose_free(struct pool_set *set, const struct pool_user *user,
                                     int64_t now)
{
    struct pool_conn *found = NULL;
    bool skip_bad = is_any_good(set, now, false);
    for (struct pool_conn *c = set->first; c; c = c->next) {
        bool bad = skip_bad && now < c->bad_until;
        if (c->acquired_at || bad)
            continue;
        if (c->opened && user->who && c->user == user->who)
            return c;
        bool better = !found || (c->opened && !found->opened);
        if (better)
            found = c;
    }
    return found;
}

static void hand_over(struct pool_set *set, struct pool_waiter *w, struct pool_conn *c, int64_t now)
{
    c->acquired_at = max_i64(now, 1);
    c->failing = w->user->failed;
    set->n_failing += c->failing;
    if (w->user->who)
        c->user = w->user->who;
    w->conn = c;
    pthread_cond_signal(&w->served);
}

/* Hands free connections to waiters. Called whenever a connection is released or a waiter
 * arrives. */
static void serve_waiters(struct pool_set *set)
{
    struct pool_waiter **at = &set->waiters;
    int64_t now = clock_mono(set->clock);
    while (*at) {
        struct pool_waiter *w = *at;
        struct pool_conn *c = choose_free(set, w->user, now);
        if (!c && set->n < set_room(set, now) && set_grow(set))
            c = choose_free(set, w->user, now);
        if (!c)
            return;

        /* A user whose last operation failed is not assigned the last connection: it may have
         * waited a second for its consumer's lock, and waiting again would block all others. */
        bool is_last = set->n > 1 && set->n_failing + 1 >= set->n;
        if (w->user->failed && is_last) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        if (!*at)
            set->end = at;
        hand_over(set, w, c, now);
    }
}

/* ---- acquiring and releasing ---- */

static void enqueue(struct pool_set *set, struct pool_waiter *w)
{
    struct pool_waiter **at = w->user->urgent ? &set->waiters : set->end;
    w->next = *at;
    *at = w;
    if (!w->next)
        set->end = &w->next;
}

static struct pool_conn *wait_for_conn(struct pool_set *set, const struct pool_user *user)
{
    struct pool_waiter w = {.user = user};
    cond_init(&w.served);

    pthread_mutex_lock(&set->lock);
    enqueue(set, &w);
    serve_waiters(set);

    /* In an exposed set, a user that becomes slow makes room for a new connection. No event signals
     * that, so poll. */
    while (!w.conn) {
        int64_t until = CLOCK_NEVER;
        if (set->exposed)
            until = clock_mono(&clock_system) + SLOW_POLL;
        cond_wait(&w.served, &set->lock, until);
        if (set->exposed && !w.conn)
            serve_waiters(set);
    }
    pthread_mutex_unlock(&set->lock);

    pthread_cond_destroy(&w.served);
    return w.conn;
}

/* Opens a connection if need be. An exposed connection is reset, to leave no trace of another
 * consumer's handlers, or closed. */
static int prepare_conn(struct pool_set *set, struct pool_conn *c, const struct pool_user *user,
                        struct error *err)
{
    if (!c->st) {
        if (set->origin->ops->dup(set->origin, &c->st, err) != 0)
            return -1;
        pthread_mutex_lock(&set->lock);
        c->opened = true;
        c->acquired_at = max_i64(clock_mono(set->clock), 1);
        pthread_mutex_unlock(&set->lock);
    }
    bool same = c->exposed_to == user->who;
    if (!set->exposed || same)
        return 0;
    c->exposed_to = user->who;
    if (c->st->ops->expose_connection(c->st, user->idle_ms, err) == 0)
        return 0;
    store_close(c->st);
    c->st = NULL;
    c->exposed_to = NULL;
    return -1;
}

int pool_acquire(struct pool_set *set, const struct pool_user *user, struct pool_conn **ret,
                 struct error *err)
{
    struct error why;
    bool others_may_do;
    do {
        struct pool_conn *c = wait_for_conn(set, user);
        if (prepare_conn(set, c, user, &why) == 0) {
            *ret = c;
            return 0;
        }
        pool_release(set, c, &why);

        pthread_mutex_lock(&set->lock);
        others_may_do = is_any_good(set, clock_mono(set->clock), true);
        pthread_mutex_unlock(&set->lock);
    } while (others_may_do);
    return err_copy(err, &why);
}

void pool_release(struct pool_set *set, struct pool_conn *c, const struct error *why)
{
    bool bad = why && (why->code == ERR_UNAVAILABLE || !c->st); /* !st: it could not be opened */
    pthread_mutex_lock(&set->lock);
    int64_t now = clock_mono(set->clock);
    c->acquired_at = 0;
    c->bad_until = bad ? now + BAD_WAIT : 0;
    c->opened = c->st != NULL;
    set->n_failing -= c->failing;
    c->failing = false;
    bool surplus = set->n > set_room(set, now);
    if (surplus) {
        struct pool_conn **at = &set->first;
        while (*at != c)
            at = &(*at)->next;
        *at = c->next;
        set->n--;
    } else {
        serve_waiters(set);
    }
    pthread_mutex_unlock(&set->lock);

    if (surplus) {
        store_close(c->st);
        free(c);
    }
}

static int set_init(struct pool_set *set, struct pool *p, size_t size, struct error *err)
{
    *set = (struct pool_set){.origin = p->origin, .clock = p->cfg.clock, .size = size};
    set->end = &set->waiters;
    pthread_mutex_init(&set->lock, NULL);
    for (size_t i = 0; i < size; i++) {
        if (!set_grow(set))
            return err_nomem(err);
    }
    return 0;
}

static void set_free(struct pool_set *set)
{
    for (struct pool_conn *c = set->first, *next; c; c = next) {
        next = c->next;
        store_close(c->st);
        free(c);
    }
    pthread_mutex_destroy(&set->lock);
}

/* ---- connections of named handlers ---- */

bool pool_shares_tx(const struct pool *p)
{
    return p->tx.size > 0;
}

int pool_tx_acquire(struct pool *p, const void *consumer, int64_t idle_ms, struct pool_conn **ret,
                    struct store **ret_st, struct error *err)
{
    struct pool_user user = {.who = consumer, .idle_ms = idle_ms};
    if (pool_acquire(&p->tx, &user, ret, err) != 0)
        return -1;
    *ret_st = (*ret)->st;
    return 0;
}

void pool_tx_release(struct pool *p, struct pool_conn *c)
{
    pool_release(&p->tx, c, NULL);
}

/* ---- the pool ---- */

bool pool_possible(const struct store *st, size_t workers)
{
    bool wakes = (st->caps & STORE_WAKEUP) != 0;
    if (!st->ops->turn_many || !st->ops->poll_new || !wakes)
        return false;
    return !pool_one_writer(st) || workers >= POOL_WORKERS;
}

/* Returns how many connections named handlers share; 0: each worker has its own. A few workers have
 * their own, so that they can work in parallel. With more workers, handlers use half of the
 * connections that do not listen. */
static size_t tx_connections(const struct store *st, const struct pool_config *cfg)
{
    if (pool_one_writer(st) || cfg->tx_workers < POOL_WORKERS)
        return 0;
    if (cfg->connections < 6)
        return 1;
    return ((size_t)cfg->connections - 2) / 2;
}

/* Returns how many connections are for turns: one belongs to the watcher, and one to the handle
 * that opened the outbox. With one writer at a time, a second would only wait for the first. */
static size_t turn_connections(const struct store *st, int connections)
{
    if (pool_one_writer(st) || connections <= 3)
        return 1;
    return min_size((size_t)connections - 2, CONNECTIONS_MAX);
}

int pool_open(struct store *st, const struct pool_config *cfg, struct pool **ret, struct error *err)
{
    struct pool *p = calloc(1, sizeof *p);
    if (!p)
        return err_nomem(err);
    p->origin = st;
    p->cfg = *cfg;
    pool_store_ops(st, &p->store_ops);
    pthread_mutex_init(&p->lock, NULL);
    size_t tx = tx_connections(st, cfg);
    size_t turns = turn_connections(st, cfg->connections - (int)tx);
    int result = set_init(&p->turns, p, turns, err);
    if (set_init(&p->tx, p, tx, err) != 0)
        result = -1;
    p->tx.exposed = true;
    if (result == 0)
        result = st->ops->dup(st, &p->watcher.st, err);
    if (result != 0) {
        pool_close(p);
        return -1;
    }
    *ret = p;
    return 0;
}

void pool_close(struct pool *p)
{
    if (!p)
        return;
    watcher_stop(p);
    store_close(p->watcher.st);
    set_free(&p->turns);
    set_free(&p->tx);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
