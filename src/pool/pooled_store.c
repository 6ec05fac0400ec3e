/* pooled_store.c: the store that each consumer of a pool uses. Each operation acquires a connection
 * and releases it at the end; simple turns of several consumers share a transaction. */
#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "pool/pool_impl.h"

#define BATCH_MAX 256 /* turns in one transaction */
#define SEPARATE_MAX 15
/* With this many consumers or more, batched turns clear a backlog at less cost. */
#define BATCH_BACKLOG 16

static struct pooled_store *pooled_of(struct store *base)
{
    return (struct pooled_store *)base;
}

/* ---- one operation on a connection ---- */

struct use {
    struct pooled_store *ps;
    struct pool_conn *conn;
    struct store *st; /* of conn */
};

static int use_begin(struct store *base, struct use *ret, struct error *err)
{
    struct pooled_store *ps = pooled_of(base);
    struct pool_user user = {.who = ps, .failed = ps->failed};
    ret->ps = ps;
    if (pool_acquire(&ps->pool->turns, &user, &ret->conn, err) != 0)
        return -1;
    ret->st = ret->conn->st;
    return 0;
}

/* Releases the connection, and returns the result of the operation. */
static int use_end(const struct use *u, int result, const struct error *err)
{
    pool_release(&u->ps->pool->turns, u->conn, result != 0 ? err : NULL);
    u->ps->failed = result != 0;
    return result;
}

/* Defines an operation that only passes its arguments on. */
/* clang-format off */
#define POOLED(op, arguments, ...) \
    static int pooled_##op(struct store *base, __VA_ARGS__, struct error *err) \
    { \
        struct use u; \
        if (use_begin(base, &u, err) != 0) \
            return -1; \
        return use_end(&u, u.st->ops->op arguments, err); \
    }
POOLED(extend, (u.st, l, ret_lost, err), const struct claim_lease *l, bool *ret_lost)
POOLED(claims, (u.st, consumer, a, ret, ret_n, err),
       const char *consumer, struct arena *a, struct claim_info **ret, size_t *ret_n)
POOLED(consumer_pause, (u.st, name, paused, err), const char *name, bool paused)
POOLED(consumer_report, (u.st, name, text, err), const char *name, const char *text)
POOLED(trim, (u.st, req, ret, err), const struct trim_request *req, struct trim_result *ret)
/* clang-format on */

/* Notes which consumer the store belongs to. If memory runs out, the connection only remembers the
 * consumer for longer than necessary. */
static int pooled_put(struct store *base, const struct consumer_spec *spec, bool *ret_created,
                      struct error *err)
{
    struct use u;
    struct pooled_store *ps = pooled_of(base);
    if (use_begin(base, &u, err) != 0)
        return -1;
    int result = u.st->ops->consumer_put(u.st, spec, ret_created, err);
    if (result == 0) {
        pthread_mutex_lock(&ps->pool->lock);
        free(ps->consumer);
        ps->consumer = strdup(spec->name);
        pthread_mutex_unlock(&ps->pool->lock);
    }
    return use_end(&u, result, err);
}

/* ---- group commit ----
 *
 * The first thread to arrive takes all waiting turns, including its own; threads that arrive
 * meanwhile wait for the next batch. So no turn waits for others to arrive, and batches grow with
 * the load on the store. */

/* A turn waiting to be taken in one transaction with others; lives on the stack of the calling
 * worker. (1) While its state is TURN_WAITS, only the thread that leads the batch touches it; the
 * semaphore hands it back. */
struct batched {
    struct batched_turn turn;
    struct error *err; /* why it failed */
    bool failed;       /* the store could not be asked */
    enum { TURN_WAITS, TURN_LEADS, TURN_OVER } state;
    sem_t ready; /* posted when state is no longer TURN_WAITS */
    struct batched *next;
};

/* Takes the turns of a list. If the store is unreachable, or another session holds the write lock
 * of a store with one writer, every turn would fail the same way, so all fail. After any other
 * error no turn was taken: each is then taken separately, and has its own error. */
static void make_turns(struct pool *p, struct batched *first, size_t n)
{
    struct error err = {0};
    struct pool_user user = {.urgent = true};
    struct pool_conn *c;
    struct batched_turn *t = calloc(n, sizeof *t);
    if (!t)
        return;
    size_t i = 0;
    for (const struct batched *w = first; w; w = w->next)
        t[i++] = w->turn;
    int result = pool_acquire(&p->turns, &user, &c, &err);
    if (result == 0) {
        result = c->st->ops->turn_many(c->st, t, n, &err);
        pool_release(&p->turns, c, result != 0 ? &err : NULL);
    }

    bool no_writer = err.code == ERR_BUSY && pool_one_writer(p->origin);
    bool same_for_all = result != 0 && (err.code == ERR_UNAVAILABLE || no_writer);
    i = 0;
    for (struct batched *w = first; w; w = w->next, i++) {
        if (result == 0)
            w->turn = t[i];
        if (same_for_all && w->err)
            *w->err = err;
        w->failed = same_for_all;
    }
    free(t);
}

/* Wakes the thread of a turn; w may be gone afterwards. */
static void resume_turn(struct batched *w, int state)
{
    w->state = state;
    sem_post(&w->ready);
}

/* Takes up to BATCH_MAX waiting turns, then hands the lead to the first thread that arrived
 * meanwhile. Threads are woken one by one, outside the lock, so that they do not queue for it. */
static void lead_batch(struct pool *p)
{
    struct batcher *b = &p->batcher;
    size_t n = 0;
    pthread_mutex_lock(&p->lock);
    struct batched *first = b->first, **end = &first;
    for (; *end && n < BATCH_MAX; n++)
        end = &(*end)->next;
    b->first = *end;
    *end = NULL;
    pthread_mutex_unlock(&p->lock);
    make_turns(p, first, n);

    pthread_mutex_lock(&p->lock);
    struct batched *leads_next = b->first;
    b->led = leads_next != NULL;
    pthread_mutex_unlock(&p->lock);
    if (leads_next)
        resume_turn(leads_next, TURN_LEADS);

    while (first) {
        struct batched *w = first;
        first = w->next;
        resume_turn(w, TURN_OVER);
    }
}

static void wait_resumed(struct batched *w)
{
    while (sem_wait(&w->ready) != 0)
        continue; /* interrupted by a signal */
}

/* Takes a turn in one transaction with others requested at the same time. If t->made is false
 * afterwards, the turn has to be taken separately. -1: the store could not be asked. */
static int batcher_turn(struct pool *p, struct batched_turn *t, struct error *err)
{
    struct batcher *b = &p->batcher;
    struct batched w = {.turn = *t, .err = err, .state = TURN_WAITS};
    w.turn.made = false;
    sem_init(&w.ready, 0, 0);

    pthread_mutex_lock(&p->lock);
    if (!b->first)
        b->end = &b->first;
    *b->end = &w;
    b->end = &w.next;
    if (!b->led) {
        b->led = true;
        resume_turn(&w, TURN_LEADS);
    }
    pthread_mutex_unlock(&p->lock);

    wait_resumed(&w);
    if (w.state == TURN_LEADS) {
        lead_batch(p);
        wait_resumed(&w);
    }
    sem_destroy(&w.ready);
    *t = w.turn;
    return w.failed ? -1 : 0;
}

/* ---- turns ---- */

/* Batches a turn with those of other consumers if it is simple, and then sets t->made. After one
 * that was not simple, the next few are taken separately. */
static int turn_batched(struct pooled_store *ps, struct batched_turn *t, struct error *err)
{
    bool nothing_to_do = !t->s && t->req->max_events == 0;
    if (nothing_to_do)
        return 0;
    if (ps->separate > 0) {
        ps->separate--;
        return 0;
    }
    if (batcher_turn(ps->pool, t, err) != 0)
        return -1;
    if (t->made) {
        ps->failed = false;
        ps->separate_last = 0;
        return 0;
    }
    if (ps->separate_last < SEPARATE_MAX)
        ps->separate_last = 2 * ps->separate_last + 1;
    ps->separate = ps->separate_last;
    return 0;
}

/* While there is a backlog, the next turn is taken separately: if only a few consumers are behind,
 * each uses a connection in turn, and larger batches. With many consumers, batched turns are
 * faster. */
static void note_backlog(struct pooled_store *ps, const struct batched_turn *t)
{
    bool backlog = t->batch.n > 0 && !t->hint.quiet;
    bool separately = backlog && !t->req->batch_backlog;
    if (separately && ps->separate == 0)
        ps->separate = 1;
    if (!backlog && ps->separate_last <= 1)
        ps->separate = 0;
}

static int pooled_turn(struct store *base, const struct settlement *s, bool *ret_lost,
                       const struct claim_request *req, struct arena *a, struct batch *ret_batch,
                       struct claim_hint *ret_hint, struct error *err)
{
    struct pooled_store *ps = pooled_of(base);
    struct pool *p = ps->pool;
    pthread_mutex_lock(&p->lock);
    size_t consumers = p->n_consumers;
    pthread_mutex_unlock(&p->lock);

    struct claim_request pooled = *req;
    pooled.no_listen = true;
    pooled.no_readahead = consumers > 1;
    pooled.batch_backlog = consumers >= BATCH_BACKLOG || pool_one_writer(p->origin);
    pooled.cache = &ps->cache;
    struct batched_turn t = {.s = s, .req = &pooled, .a = a, .hint.wait_ms = -1};
    if (turn_batched(ps, &t, err) != 0)
        return -1;
    if (!t.made) {
        struct use u;
        if (use_begin(base, &u, err) != 0)
            return -1;
        int result = u.st->ops->turn(u.st, s, &t.lost, t.req, a, &t.batch, &t.hint, err);
        if (use_end(&u, result, err) != 0)
            return -1;
    }
    note_backlog(ps, &t);

    if (t.batch.n == 0) {
        pthread_mutex_lock(&p->lock);
        memcpy(ps->wake_blocker, p->wake_blocker, sizeof ps->wake_blocker);
        pthread_mutex_unlock(&p->lock);
        t.hint.wake_blocker = *ps->wake_blocker ? ps->wake_blocker : NULL;
    }
    if (ret_lost)
        *ret_lost = t.lost;
    *ret_batch = t.batch;
    *ret_hint = t.hint;
    return 0;
}

/* ---- the wake-up ---- */

static int pooled_wake_fd(struct store *base)
{
    return pooled_of(base)->wake_fd;
}

static void pooled_wake_clear(struct store *base)
{
    wake_fd_clear(pooled_of(base)->wake_fd);
}

/* ---- opening and closing ---- */

/* Makes the connection forget a consumer if no other store belongs to it. A store that remembers
 * consumers has only one connection: see turn_connections in pool.c. */
static void forget_consumer(struct pool *p, const char *consumer)
{
    struct pool_user user = {.urgent = true};
    struct pool_conn *c;
    bool used = false;
    if (!consumer || !p->origin->ops->consumer_forget)
        return;
    pthread_mutex_lock(&p->lock);
    for (const struct pooled_store *ps = p->stores; ps && !used; ps = ps->next)
        used = ps->consumer && strcmp(ps->consumer, consumer) == 0;
    pthread_mutex_unlock(&p->lock);
    if (used)
        return;
    if (pool_acquire(&p->turns, &user, &c, NULL) != 0)
        return; /* a connection that cannot be opened remembers no consumers */
    c->st->ops->consumer_forget(c->st, consumer);
    pool_release(&p->turns, c, NULL);
}

static void pooled_close(struct store *base)
{
    struct pooled_store *ps = pooled_of(base);
    struct pool *p = ps->pool;
    pthread_mutex_lock(&p->lock);
    struct pooled_store **at = &p->stores;
    while (*at != ps)
        at = &(*at)->next;
    *at = ps->next;
    if (ps->filter)
        p->n_consumers--;
    pthread_mutex_unlock(&p->lock);

    forget_consumer(p, ps->consumer);
    free(ps->consumer);
    filter_free(ps->filter);
    close(ps->wake_fd);
    free(ps);
}

int pool_store_new(struct pool *p, const struct pool_wants *wants, struct store **ret,
                   struct error *err)
{
    struct pooled_store *ps = calloc(1, sizeof *ps);
    if (!ps)
        return err_nomem(err);
    ps->base = (struct store){.ops = &p->store_ops, .caps = p->origin->caps};
    ps->pool = p;
    ps->wake_fd = wake_fd_new();
    int result = 0;
    if (ps->wake_fd < 0)
        result = err_errno(err, ERR_UNAVAILABLE, errno, "could not create an eventfd");
    else if (wants)
        result = filter_new(wants->events, wants->where, &ps->filter, err);
    if (result != 0) {
        if (ps->wake_fd >= 0)
            close(ps->wake_fd);
        free(ps);
        return -1;
    }

    pthread_mutex_lock(&p->lock);
    ps->next = p->stores;
    p->stores = ps;
    if (ps->filter)
        p->n_consumers++;
    pthread_mutex_unlock(&p->lock);
    *ret = &ps->base;
    return 0;
}

void pool_store_ops(const struct store *origin, struct store_ops *ret)
{
    *ret = (struct store_ops){
        .scheme = origin->ops->scheme,
        .caps = origin->ops->caps,
        .close = pooled_close,
        .turn = pooled_turn,
        .extend = pooled_extend,
        .claims = pooled_claims,
        .consumer_put = pooled_put,
        .consumer_pause = pooled_consumer_pause,
        .consumer_report = pooled_consumer_report,
        .trim = pooled_trim,
        .wake_fd = pooled_wake_fd,
        .wake_clear = pooled_wake_clear,
    };
}
