#include "api/worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/fd.h"
#include "pool/pool.h"

#define FDS_MAX 1024
#define SHOW_EVERY (100 * MS_NS)    /* between updates of the view of a worker that never sleeps */
#define NO_MEMORY_WAIT (10 * MS_NS) /* between steps if memory for the poll list runs out */
#define SETTLE_WAIT_MS 20           /* see pipeline_config.settle_wait_ms */

/* ---- opening and closing ---- */

static int open_sink(struct worker *w, struct error *err)
{
    const struct sink_ops *kind;
    struct sink_config cfg = consumer_sink_config(w->consumer);
    cfg.clock = w->sv->clock;
    cfg.done = pipeline_done;
    cfg.done_ctx = w->p;
    if (cfg.url) {
        if (sink_find(cfg.url, &kind, err) != 0)
            return -1;
        return kind->open(&cfg, &w->sk, err);
    }

    struct handler_guard guard = pipeline_guard(w->p);
    const struct handler_guard *in_tx = w->named ? &guard : NULL;
    return handlers_open(&cfg, w->handlers, w->n_handlers, in_tx, &w->sk, err);
}

/* Opens the worker's own handle, or a pooled one, and a second one for named handlers, unless those
 * share connections. */
static int open_stores(struct worker *w, struct error *err)
{
    struct store *st = w->sv->st;
    struct pool *pool = w->sv->pool;
    struct pool_wants wants = {.events = w->consumer->events, .where = w->consumer->where};
    int result;
    if (pool)
        result = pool_store_new(pool, &wants, &w->st, err);
    else
        result = st->ops->dup(st, &w->st, err);

    bool own_tx = w->named && !(pool && pool_shares_tx(pool));
    if (result != 0 || !own_tx)
        return result;
    if (st->ops->dup(st, &w->tx_st, err) != 0)
        return -1;
    return w->tx_st->ops->expose_connection(w->tx_st, w->consumer->timeout_ms, err);
}

static int acquire_tx(void *worker, struct store **ret, struct error *err)
{
    struct worker *w = worker;
    return pool_tx_acquire(w->sv->pool, w->consumer, w->consumer->timeout_ms, &w->tx_conn, ret,
                           err);
}

static void release_tx(void *worker, struct store *st)
{
    struct worker *w = worker;
    (void)st;
    pool_tx_release(w->sv->pool, w->tx_conn);
    w->tx_conn = NULL;
}

static int open_pipeline(struct worker *w, bool stand_by, struct error *err)
{
    struct supervisor *sv = w->sv;
    struct pipeline_config cfg = {.consumer = w->consumer,
                                  .owner = w->owner,
                                  .st = w->st,
                                  .clock = sv->clock,
                                  .tx_conn = w->tx_st,
                                  .handlers = w->handlers,
                                  .n_handlers = w->n_handlers,
                                  .rng = &w->rng,
                                  .log = sv->log,
                                  .suspects = &sv->suspects,
                                  .gone = owner_gone,
                                  .budget = &sv->budget,
                                  .sweep_ms = sv->sweep_ms,
                                  .stand_by = stand_by,
                                  .sole = w->sole};
    if (sv->pool)
        cfg.sweep_ms += sv->sweep_ms / 2; /* the pool sweeps for all workers; this is a fallback */
    if (w->named && !w->tx_st)
        cfg.tx_pool = (struct tx_pool){acquire_tx, release_tx, w};
    if (w->n_handlers > 0)
        cfg.progress = &w->call;
    /* Only a relay that keeps running waits for the next claim; other runs are meant to end. */
    if (stand_by)
        cfg.settle_wait_ms = SETTLE_WAIT_MS;
    return pipeline_new(&cfg, &w->p, err);
}

void worker_close(struct worker *w)
{
    if (w->sk)
        w->sk->ops->close(w->sk);
    pipeline_free(w->p);
    store_close(w->st);
    store_close(w->tx_st);
    w->sk = NULL;
    w->p = NULL;
    w->st = NULL;
    w->tx_st = NULL;
}

int worker_open(struct worker *w, bool stand_by, struct error *err)
{
    worker_close(w); /* supervisor_step may have left it open, in another state */
    rng_seed_os(&w->rng);
    owner_make(w->owner, rng_next(&w->rng) >> 32);
    int result = open_stores(w, err);
    if (result == 0 && (open_pipeline(w, stand_by, err) != 0 || open_sink(w, err) != 0))
        result = err_prefix(err, "consumer \"%s\"", w->consumer->name);
    if (result == 0)
        pipeline_attach(w->p, w->sk);
    else
        worker_close(w);
    return result;
}

/* ---- the view for other threads ---- */

void worker_show(struct worker *w)
{
    struct worker_view *v = &w->view;
    v->stats = *pipeline_stats(w->p);
    v->state = v->stats.state;
    v->broker = sink_broker_of(w->sk);
    v->held = (int64_t)pipeline_held(w->p);

    const struct sink_lease *lease = pipeline_sink_lease(w->p);
    v->leased = lease != NULL;
    if (lease)
        v->lease = *lease;

    const struct error *why = &v->stats.error;
    if (!why->code)
        why = &v->stats.standby_why;
    snprintf(v->error, sizeof v->error, "%s", why->code ? why->text : "");
    w->shown_at = clock_mono(w->sv->clock);
}

/* Whether the pipeline has ended, after a drain or a failure. */
static bool has_stopped(const struct worker *w)
{
    return pipeline_stats(w->p)->state >= PIPELINE_STOPPED;
}

/* Publishes the worker's progress in this round, and wakes the supervisor's thread if it changed. A
 * supervisor that only waits for the end of all workers is not woken: otherwise it would wake for
 * each event of each consumer. */
static void publish_progress(struct worker *w, uint64_t round)
{
    struct supervisor *sv = w->sv;
    const struct pipeline_stats *s = pipeline_stats(w->p);
    int64_t claims = s->claims;
    bool ended = has_stopped(w);
    bool idle = !pipeline_busy(w->p) && (s->through || s->paused);
    bool through = ended || idle;

    pthread_mutex_lock(&sv->lock);
    worker_show(w);
    bool progress = w->claims != claims || w->round_seen != round || w->through != through;
    bool news = w->ended != ended || (sv->until_through && progress);
    if (news)
        pthread_cond_signal(&sv->changed);
    w->through = through;
    w->round_seen = round;
    w->claims = claims;
    w->ended = ended;
    if (ended)
        w->error = pipeline_stats(w->p)->error;
    pthread_mutex_unlock(&sv->lock);
}

/* ---- the worker's thread ---- */

void worker_wake(struct worker *w)
{
    wake_fd_signal(w->wake_fd);
}

static void poll_until(const struct clock *c, struct pollfd *fds, size_t n, int64_t deadline)
{
    struct timespec ts = {0};
    if (deadline == CLOCK_NEVER) {
        ppoll(fds, n, NULL, NULL);
        return;
    }
    int64_t left = deadline - clock_mono(c);
    if (left > 0)
        ts = (struct timespec){left / 1000000000, left % 1000000000};
    ppoll(fds, n, &ts, NULL);
}

/* Sleeps until work may be due. Returns whether worker_wake was called. Without memory for the list
 * of descriptors (fds == NULL) it only sleeps for 10 ms. */
static bool wait_for_work(struct worker *w, struct pollfd *fds)
{
    int64_t deadline;
    const struct clock *clock = w->sv->clock;
    if (!fds) {
        poll_until(clock, NULL, 0, clock_mono(clock) + NO_MEMORY_WAIT);
        return wake_fd_clear(w->wake_fd);
    }

    size_t n = pipeline_wait(w->p, fds, FDS_MAX, &deadline);
    struct pollfd *wake = &fds[n++];
    *wake = (struct pollfd){.fd = w->wake_fd, .events = POLLIN};
    bool running = pipeline_stats(w->p)->state == PIPELINE_RUNNING;
    if (running)
        fds[n++] = (struct pollfd){.fd = w->sv->stop_fd, .events = POLLIN};
    poll_until(clock, fds, n, deadline);
    return wake->revents != 0 && wake_fd_clear(w->wake_fd);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct supervisor *sv = w->sv;
    struct pollfd *fds = calloc(FDS_MAX + 2, sizeof *fds);
    uint64_t round = 0;
    struct supervisor_entry entry;
    supervisor_enter(&entry, sv);

    while (!has_stopped(w)) {
        int64_t now = clock_mono(sv->clock);
        atomic_store_explicit(&w->step_since, now, memory_order_relaxed);
        bool stop = atomic_load(&sv->stop) || atomic_load(&w->stop);
        if (stop && pipeline_stats(w->p)->state == PIPELINE_RUNNING)
            pipeline_drain(w->p, now + sv->drain_ms * MS_NS);
        if (pipeline_step(w->p)) {
            if (now - w->shown_at >= SHOW_EVERY) {
                pthread_mutex_lock(&sv->lock);
                worker_show(w);
                pthread_mutex_unlock(&sv->lock);
            }
            continue;
        }

        publish_progress(w, round);
        atomic_store_explicit(&w->step_since, 0, memory_order_relaxed);
        if (has_stopped(w) || !wait_for_work(w, fds))
            continue;
        /* Read the round before the next step, so that the claims it makes count in the round. */
        pthread_mutex_lock(&sv->lock);
        round = sv->round;
        pthread_mutex_unlock(&sv->lock);
        pipeline_wake(w->p);
    }

    publish_progress(w, round);
    atomic_store(&w->step_since, 0);
    supervisor_leave(&entry);
    free(fds);
    return NULL;
}

int worker_start(struct worker *w, struct error *err)
{
    struct worker **end = &w->sv->first;
    while (*end)
        end = &(*end)->next;
    w->through = false;
    w->ended = false;
    w->round_seen = 0;
    w->claims = 0;
    w->error = (struct error){0};
    w->next = NULL;
    atomic_store(&w->stop, false);
    atomic_store(&w->step_since, 0);
    w->view = (struct worker_view){.timeout_ms = w->consumer->timeout_ms};
    snprintf(w->view.consumer, sizeof w->view.consumer, "%s", w->consumer->name);
    int e = pthread_create(&w->thread, NULL, worker_main, w);
    if (e != 0)
        return err_errno(err, ERR_UNAVAILABLE, e,
                         "could not start a thread (out of memory, or too many)");
    pthread_mutex_lock(&w->sv->lock);
    *end = w;
    pthread_mutex_unlock(&w->sv->lock);
    return 0;
}

/* ---- one step in the caller's thread ---- */

static void step_while_busy(struct pipeline *p)
{
    while (pipeline_step(p))
        continue;
}

/* Whether the worker holds a claim whose end the step must await. */
static bool waits_for_sink(const struct worker *w)
{
    if (has_stopped(w) || !pipeline_busy(w->p))
        return false;
    bool sink_down = pipeline_stats(w->p)->down;
    bool store_down = pipeline_stats(w->p)->store_error.code != 0;
    return !sink_down && !store_down;
}

int worker_finish(struct worker *w, struct error *err)
{
    int64_t deadline;
    struct pollfd *fds = calloc(FDS_MAX, sizeof *fds);
    if (!fds)
        return err_nomem(err);

    step_while_busy(w->p);
    while (waits_for_sink(w)) {
        size_t n = pipeline_wait(w->p, fds, FDS_MAX, &deadline);
        poll_until(w->sv->clock, fds, n, deadline);
        step_while_busy(w->p);
    }
    free(fds);
    return 0;
}

/* Makes `why` the caller's error, unless an earlier error is set or `why` holds no error. */
static void keep_first(const struct error *why, struct error *err, int *result)
{
    if (*result != 0 || !why->code)
        return;
    *result = -1;
    if (err)
        *err = *why;
}

void worker_leave(struct worker *w, struct error *err, int *result)
{
    bool down = pipeline_stats(w->p)->down;
    keep_first(&pipeline_stats(w->p)->store_error, err, result);
    if (down && *result == 0)
        *result = err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0, "consumer \"%s\": sink is down",
                            w->consumer->name);

    bool healthy = pipeline_stats(w->p)->state == PIPELINE_RUNNING && !down;
    if (healthy && !pipeline_busy(w->p))
        return;
    pipeline_drain(w->p, clock_mono(w->sv->clock));
    step_while_busy(w->p);
    if (pipeline_stats(w->p)->state == PIPELINE_FAILED)
        keep_first(&pipeline_stats(w->p)->error, err, result);
    worker_close(w);
}
