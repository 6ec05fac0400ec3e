#include "api/runner.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "api/crew.h"
#include "pool/pool.h"

#define FDS_MAX 1024
#define SHOW_EVERY (100 * MS_NS)    /* between updates of the view while it never comes to rest */
#define NO_MEMORY_WAIT (10 * MS_NS) /* between looks where there is no memory to poll */
#define SETTLE_WAIT_MS 20           /* see pipeline_config.settle_wait_ms */

/* ---- opening and closing ---- */

static int open_handlers(struct runner *r, const struct sink_config *cfg, struct error *err)
{
    struct handler_guard guard = pipeline_guard(r->p);
    const struct handler_guard *in_tx = NULL;
    if (r->named) {
        in_tx = &guard;
    }
    return handlers_open(cfg, r->handlers, r->n_handlers, in_tx, &r->sk, err);
}

static int open_sink(struct runner *r, struct error *err)
{
    const struct sink_ops *kind;
    struct sink_config cfg = consumer_sink_config(r->consumer);
    cfg.clock = r->crew->clock;
    cfg.done = pipeline_done;
    cfg.done_ctx = r->p;
    if (!cfg.url)
        return open_handlers(r, &cfg, err);
    if (sink_find(cfg.url, &kind, err) != 0)
        return -1;
    return kind->open(&cfg, &r->sk, err);
}

/* open_stores opens the runner's own handle, or a pooled one, and a second one for named handlers,
 * unless those share connections. */
static int open_stores(struct runner *r, struct error *err)
{
    struct store *st = r->crew->st;
    struct pool *pool = r->crew->pool;
    struct pool_wants wants = {.events = r->consumer->events, .where = r->consumer->where};
    int result;
    if (pool)
        result = pool_store_new(pool, &wants, &r->st, err);
    else
        result = st->ops->dup(st, &r->st, err);

    bool own_tx = r->named && !(pool && pool_shares_tx(pool));
    if (result != 0 || !own_tx)
        return result;
    if (st->ops->dup(st, &r->tx_st, err) != 0)
        return -1;
    return r->tx_st->ops->expose_connection(r->tx_st, r->consumer->timeout_ms, err);
}

static int acquire_tx(void *runner, struct store **ret, struct error *err)
{
    struct runner *r = runner;
    struct pool_tx_user who = {.consumer = r->consumer, .idle_ms = r->consumer->timeout_ms};
    return pool_tx_acquire(r->crew->pool, &who, &r->tx_conn, ret, err);
}

static void release_tx(void *runner, struct store *st)
{
    struct runner *r = runner;
    (void)st;
    pool_tx_release(r->crew->pool, r->tx_conn);
    r->tx_conn = NULL;
}

/* sweep_of returns how often a pipeline looks by itself. A pool sweeps for all consumers; then the
 * pipeline does so only if the pool fails to. */
static int64_t sweep_of(const struct crew *w)
{
    if (w->pool)
        return w->sweep_ms + w->sweep_ms / 2;
    return w->sweep_ms;
}

/* open_pipeline opens the pipeline on those stores, and its sink. */
static int open_pipeline(struct runner *r, bool stand_by, struct error *err)
{
    struct crew *w = r->crew;
    struct pipeline_config cfg = {.consumer = r->consumer,
                                  .owner = r->owner,
                                  .st = r->st,
                                  .clock = w->clock,
                                  .work = r->tx_st,
                                  .handlers = r->handlers,
                                  .n_handlers = r->n_handlers,
                                  .rng = &r->rng,
                                  .log = w->log,
                                  .suspects = &w->suspects,
                                  .gone = owner_gone,
                                  .budget = &w->budget,
                                  .sweep_ms = sweep_of(w),
                                  .stand_by = stand_by,
                                  .sole = r->sole};
    if (r->named && !r->tx_st)
        cfg.tx_pool = (struct tx_pool){acquire_tx, release_tx, r};
    if (r->n_handlers > 0) {
        cfg.pulse = &r->pulse;
    }
    /* Only a relay that runs on waits for what comes next. Others want to be through. */
    if (stand_by) {
        cfg.settle_wait_ms = SETTLE_WAIT_MS;
    }
    if (pipeline_new(&cfg, &r->p, err) != 0)
        return -1;
    if (open_sink(r, err) != 0)
        return -1;
    pipeline_attach(r->p, r->sk);
    return 0;
}

int runner_open(struct runner *r, bool stand_by, struct error *err)
{
    rng_seed_os(&r->rng);
    owner_make(r->owner, rng_next(&r->rng) >> 32);
    if (open_stores(r, err) != 0)
        goto fail;
    if (open_pipeline(r, stand_by, err) != 0) {
        err_prefix(err, "consumer \"%s\"", r->consumer->name);
        goto fail;
    }
    return 0;
fail:
    runner_close(r);
    return -1;
}

void runner_close(struct runner *r)
{
    if (r->sk)
        r->sk->ops->close(r->sk);
    pipeline_free(r->p);
    store_close(r->st);
    store_close(r->tx_st);
    r->sk = NULL;
    r->p = NULL;
    r->st = NULL;
    r->tx_st = NULL;
}

/* ---- what others see of it ---- */

static void show_lease(struct runner_view *v, const struct pipeline *p)
{
    const struct sink_lease *lease = pipeline_sink_lease(p);
    v->leased = lease != NULL;
    if (lease) {
        v->lease = *lease;
    }
}

static void show_error(struct runner_view *v, const struct pipeline *p)
{
    const struct error *why = pipeline_error(p);
    if (!why->code) {
        why = pipeline_standby(p);
    }
    snprintf(v->error, sizeof v->error, "%s", why->code ? why->text : "");
}

void runner_show(struct runner *r)
{
    struct runner_view *v = &r->view;
    v->state = pipeline_state(r->p);
    v->stats = *pipeline_stats(r->p);
    show_lease(v, r->p);
    v->broker = pipeline_broker(r->p);
    v->held = (int64_t)pipeline_held(r->p);
    show_error(v, r->p);
    r->shown_at = clock_mono(r->crew->clock);
}

static void show_now_and_then(struct runner *r, int64_t now)
{
    if (now - r->shown_at < SHOW_EVERY)
        return;
    pthread_mutex_lock(&r->crew->lock);
    runner_show(r);
    pthread_mutex_unlock(&r->crew->lock);
}

/* stopped says whether the pipeline has ended, for good or because it failed. */
static bool stopped(const struct runner *r)
{
    return pipeline_state(r->p) >= PIPELINE_STOPPED;
}

/* is_through says whether nothing is left to do for the runner now. */
static bool is_through(const struct runner *r)
{
    const struct pipeline_stats *s = pipeline_stats(r->p);
    if (stopped(r))
        return true;
    if (pipeline_busy(r->p))
        return false;
    return s->through || s->paused;
}

/* publish tells the crew how far the runner has come in this round, and wakes the crew's thread if
 * that is news to it. A thread that only waits for the end of all is left asleep: it would be woken
 * by each event, and by each consumer. */
static void publish(struct runner *r, uint64_t round)
{
    int64_t claims = pipeline_stats(r->p)->claims;
    bool through = is_through(r);
    bool ended = stopped(r);

    pthread_mutex_lock(&r->crew->lock);
    runner_show(r);
    bool got_on = r->claims != claims || r->round_seen != round || r->through != through;
    bool news = r->ended != ended || (r->crew->until_through && got_on);
    if (news)
        pthread_cond_signal(&r->crew->changed);
    r->through = through;
    r->round_seen = round;
    r->claims = claims;
    r->ended = ended;
    if (ended) {
        r->error = *pipeline_error(r->p);
    }
    pthread_mutex_unlock(&r->crew->lock);
}

/* ---- sleeping and waking ---- */

void runner_wake(struct runner *r)
{
    uint64_t one = 1;
    if (r->wake_fd < 0)
        return;
    /* A write fails only where the counter is full, and then the runner is being woken anyway. */
    if (write(r->wake_fd, &one, sizeof one) < 0)
        return;
}

static bool woken(struct runner *r)
{
    uint64_t count;
    return read(r->wake_fd, &count, sizeof count) == (ssize_t)sizeof count;
}

static void sleep_until(const struct clock *c, struct pollfd *fds, size_t n, int64_t deadline)
{
    struct timespec ts = {0};
    if (deadline == CLOCK_NEVER) {
        ppoll(fds, n, NULL, NULL);
        return;
    }
    int64_t left = deadline - clock_mono(c);
    if (left > 0) {
        ts = (struct timespec){left / 1000000000, left % 1000000000};
    }
    ppoll(fds, n, &ts, NULL);
}

/* wait_turn sleeps until there is something to do. Returns whether runner_wake was called. Without
 * memory for the list of descriptors (fds == NULL) it looks every 10 ms. */
static bool wait_turn(struct runner *r, struct pollfd *fds)
{
    int64_t deadline;
    const struct clock *clock = r->crew->clock;
    if (!fds) {
        sleep_until(clock, NULL, 0, clock_mono(clock) + NO_MEMORY_WAIT);
        return woken(r);
    }

    size_t n = pipeline_wait(r->p, fds, FDS_MAX, &deadline);
    struct pollfd *wake = &fds[n++];
    *wake = (struct pollfd){.fd = r->wake_fd, .events = POLLIN};
    bool running = pipeline_state(r->p) == PIPELINE_RUNNING;
    if (running)
        fds[n++] = (struct pollfd){.fd = r->crew->stop_fd, .events = POLLIN};
    sleep_until(clock, fds, n, deadline);
    return wake->revents != 0 && woken(r);
}

/* ---- its thread ---- */

static uint64_t round_of(struct crew *w)
{
    pthread_mutex_lock(&w->lock);
    uint64_t round = w->round;
    pthread_mutex_unlock(&w->lock);
    return round;
}

/* heed_stop begins to drain if the crew, or this runner alone, is to stop. */
static void heed_stop(struct runner *r, int64_t now)
{
    bool stop = atomic_load(&r->crew->stop) || atomic_load(&r->stop);
    if (stop && pipeline_state(r->p) == PIPELINE_RUNNING)
        pipeline_drain(r->p, now + r->crew->drain_ms * MS_NS);
}

/* rest publishes what was done and sleeps until there is more to do. *round becomes the round that
 * the crew is in, where it has called for one. */
static void rest(struct runner *r, struct pollfd *fds, uint64_t *round)
{
    publish(r, *round);
    atomic_store_explicit(&r->step_since, 0, memory_order_relaxed);
    if (stopped(r))
        return;
    if (wait_turn(r, fds)) {
        *round = round_of(r->crew); /* before the look, so that what it finds counts in the round */
        pipeline_ring(r->p);
    }
}

/* work is the runner's thread. */
static void *work(void *arg)
{
    struct runner *r = arg;
    struct crew *w = r->crew;
    struct pollfd *fds = calloc(FDS_MAX + 2, sizeof *fds);
    uint64_t round = 0;
    struct crew_duty duty;
    crew_duty_begin(&duty, w);

    while (!stopped(r)) {
        int64_t now = clock_mono(w->clock);
        atomic_store_explicit(&r->step_since, now, memory_order_relaxed);
        heed_stop(r, now);
        if (pipeline_step(r->p))
            show_now_and_then(r, now);
        else
            rest(r, fds, &round);
    }

    publish(r, round);
    atomic_store(&r->step_since, 0);
    crew_duty_end(&duty);
    free(fds);
    return NULL;
}

int runner_begin(struct runner *r, bool stand_by, struct error *err)
{
    runner_close(r); /* crew_step may have left it open, in another state */
    r->through = false;
    r->ended = false;
    r->round_seen = 0;
    r->claims = 0;
    r->error = (struct error){0};
    r->next = NULL;
    atomic_store(&r->stop, false);
    atomic_store(&r->step_since, 0);
    if (runner_open(r, stand_by, err) != 0)
        return -1;
    r->view = (struct runner_view){.timeout_ms = r->consumer->timeout_ms};
    snprintf(r->view.consumer, sizeof r->view.consumer, "%s", r->consumer->name);
    return 0;
}

int runner_start(struct runner *r, struct error *err)
{
    int e = pthread_create(&r->thread, NULL, work, r);
    if (e != 0)
        return err_errno(err, ERR_UNAVAILABLE, e,
                         "could not start a thread (out of memory, or too many)");
    return 0;
}

/* ---- one turn in the caller's thread ---- */

/* step_through steps as long as there is something to do at once. */
static void step_through(struct pipeline *p)
{
    while (pipeline_step(p))
        continue;
}

/* waits_for_sink says whether the runner holds a claim that is worth waiting for. */
static bool waits_for_sink(const struct runner *r)
{
    if (stopped(r) || !pipeline_busy(r->p))
        return false;
    bool sink_down = pipeline_stats(r->p)->down;
    bool store_down = pipeline_store_error(r->p)->code != 0;
    return !sink_down && !store_down;
}

int runner_finish(struct runner *r, struct error *err)
{
    int64_t deadline;
    struct pollfd *fds = calloc(FDS_MAX, sizeof *fds);
    if (!fds)
        return err_nomem(err);

    step_through(r->p);
    while (waits_for_sink(r)) {
        size_t n = pipeline_wait(r->p, fds, FDS_MAX, &deadline);
        sleep_until(r->crew->clock, fds, n, deadline);
        step_through(r->p);
    }
    free(fds);
    return 0;
}

/* tell makes why the caller's error, unless there is one before it, or why is none. */
static void tell(const struct error *why, struct error *err, int *result)
{
    if (*result != 0 || !why->code)
        return;
    *result = -1;
    if (err)
        *err = *why;
}

static void tell_down(const struct runner *r, struct error *err, int *result)
{
    if (*result != 0 || !pipeline_stats(r->p)->down)
        return;
    *result = err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0, "consumer \"%s\": sink is down",
                        r->consumer->name);
}

void runner_leave(struct runner *r, struct error *err, int *result)
{
    tell(pipeline_store_error(r->p), err, result);
    tell_down(r, err, result);

    bool healthy = pipeline_state(r->p) == PIPELINE_RUNNING && !pipeline_stats(r->p)->down;
    if (healthy && !pipeline_busy(r->p))
        return;
    pipeline_drain(r->p, clock_mono(r->crew->clock));
    step_through(r->p);
    if (pipeline_state(r->p) == PIPELINE_FAILED)
        tell(pipeline_error(r->p), err, result);
    runner_close(r);
}
