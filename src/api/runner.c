#include "api/runner.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "api/crew.h"

#define FDS_MAX 1024
/* how often a runner that does not come to rest shows what it does */
#define SHOW_EVERY (100 * MS_NS)

static void make_owner(struct runner *r)
{
    char host[65] = "";
    gethostname(host, sizeof host - 1);
    snprintf(r->owner, sizeof r->owner, "%s:%ld:%08llx", host, (long)getpid(),
             (unsigned long long)(rng_next(&r->rng) >> 32));
}

static int open_sink(struct runner *r, struct error *err)
{
    const struct sink_ops *kind;
    struct sink_config cfg = consumer_sink_config(r->consumer);
    cfg.clock = r->crew->clock;
    cfg.done = pipeline_done;
    cfg.done_ctx = r->p;
    if (!cfg.url) {
        struct handler_guard guard = pipeline_guard(r->p);
        return handlers_open(&cfg, r->handlers, r->n_handlers, r->named ? &guard : NULL, &r->sk,
                             err);
    }
    if (sink_find(cfg.url, &kind, err) != 0)
        return -1;
    return kind->open(&cfg, &r->sk, err);
}

int runner_open(struct runner *r, bool stand_by, struct error *err)
{
    struct crew *w = r->crew;
    rng_seed_os(&r->rng);
    make_owner(r);
    if (w->st->ops->dup(w->st, &r->st, err) != 0)
        return -1;
    if (r->named && (w->st->ops->dup(w->st, &r->work, err) != 0 ||
                     r->work->ops->lend(r->work, r->consumer->timeout_ms, err) != 0)) {
        runner_close(r);
        return -1;
    }
    struct pipeline_config cfg = {.consumer = r->consumer,
                                  .owner = r->owner,
                                  .st = r->st,
                                  .clock = w->clock,
                                  .work = r->work,
                                  .handlers = r->handlers,
                                  .n_handlers = r->n_handlers,
                                  .pulse = r->n_handlers ? &r->pulse : NULL,
                                  .rng = &r->rng,
                                  .log = w->log,
                                  .careful = &w->careful,
                                  .sweep_ms = w->sweep_ms,
                                  .stand_by = stand_by};
    if (pipeline_new(&cfg, &r->p, err) != 0 || open_sink(r, err) != 0) {
        err_prefix(err, "consumer \"%s\"", r->consumer->name);
        runner_close(r);
        return -1;
    }
    pipeline_attach(r->p, r->sk);
    return 0;
}

void runner_close(struct runner *r)
{
    if (r->sk)
        r->sk->ops->close(r->sk);
    pipeline_free(r->p);
    store_close(r->st);
    store_close(r->work);
    r->sk = NULL;
    r->p = NULL;
    r->st = r->work = NULL;
}

void runner_wake(struct runner *r)
{
    uint64_t one = 1;
    /* full: it is awake already */
    if (r->wake_fd >= 0 && write(r->wake_fd, &one, sizeof one) < 0)
        return;
}

static void sleep_until(const struct clock *c, struct pollfd *fds, size_t n, int64_t deadline)
{
    int64_t left = deadline == CLOCK_NEVER ? -1 : deadline - clock_mono(c);
    struct timespec ts = {0};
    if (left > 0)
        ts = (struct timespec){left / 1000000000, left % 1000000000};
    ppoll(fds, n, deadline == CLOCK_NEVER ? NULL : &ts, NULL);
}

/* ---- its thread ---- */

void runner_show(struct runner *r)
{
    struct pipeline_held held = pipeline_held(r->p);
    struct runner_view *v = &r->view;
    v->state = pipeline_state(r->p);
    const struct sink_lease *lease = pipeline_sink_lease(r->p);
    v->stats = *pipeline_stats(r->p);
    v->leased = lease != NULL;
    if (lease)
        v->lease = *lease;
    v->held = (int64_t)held.n;
    v->held_oldest_at = held.oldest_at;
    snprintf(v->held_type, sizeof v->held_type, "%s",
             held.type.n < sizeof v->held_type && held.type.p ? held.type.p : "");
    const struct error *why = pipeline_error(r->p)->code ? pipeline_error(r->p)
                                                         : pipeline_standby(r->p);
    snprintf(v->error, sizeof v->error, "%s", why->code ? why->text : "");
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

static void publish(struct runner *r, uint64_t round)
{
    const struct pipeline_stats *s = pipeline_stats(r->p);
    pthread_mutex_lock(&r->crew->lock);
    runner_show(r);
    bool ended = pipeline_state(r->p) >= PIPELINE_STOPPED;
    bool through = ended || (!pipeline_busy(r->p) && (s->through || s->paused));
    if (r->through != through || r->round_seen != round || r->claims != s->claims ||
        r->ended != ended)
        pthread_cond_signal(&r->crew->changed);
    r->through = through;
    r->round_seen = round;
    r->claims = s->claims;
    r->ended = ended;
    if (ended)
        r->error = *pipeline_error(r->p);
    pthread_mutex_unlock(&r->crew->lock);
}

static uint64_t round_of(struct crew *w)
{
    pthread_mutex_lock(&w->lock);
    uint64_t round = w->round;
    pthread_mutex_unlock(&w->lock);
    return round;
}

static bool woken(struct runner *r)
{
    uint64_t count;
    return read(r->wake_fd, &count, sizeof count) == (ssize_t)sizeof count;
}

/* wait_turn sleeps until there is something to do; returns whether it was woken by name. Without
 * memory for the list of descriptors (fds == NULL) it looks every 10 ms. */
static bool wait_turn(struct runner *r, struct pollfd *fds)
{
    int64_t deadline;
    if (!fds) {
        sleep_until(r->crew->clock, NULL, 0, clock_mono(r->crew->clock) + 10 * MS_NS);
        return woken(r);
    }
    bool stopping = pipeline_state(r->p) != PIPELINE_RUNNING;
    size_t n = pipeline_wait(r->p, fds, FDS_MAX, &deadline);
    fds[n] = (struct pollfd){.fd = r->wake_fd, .events = POLLIN};
    fds[n + 1] = (struct pollfd){.fd = stopping ? -1 : r->crew->stop_fd, .events = POLLIN};
    sleep_until(r->crew->clock, fds, n + 2, deadline);
    return woken(r);
}

static void *work(void *arg)
{
    struct runner *r = arg;
    struct crew *w = r->crew;
    struct pollfd *fds = calloc(FDS_MAX + 2, sizeof *fds);
    uint64_t round = 0;
    struct crew_duty duty;
    crew_duty_begin(&duty, w);
    while (pipeline_state(r->p) < PIPELINE_STOPPED) {
        int64_t now = clock_mono(w->clock);
        atomic_store_explicit(&r->step_since, now, memory_order_relaxed);
        if ((atomic_load(&w->stop) || atomic_load(&r->stop)) &&
            pipeline_state(r->p) == PIPELINE_RUNNING)
            pipeline_drain(r->p, now + w->drain_ms * MS_NS);
        if (pipeline_step(r->p)) {
            show_now_and_then(r, now);
            continue;
        }
        publish(r, round);
        atomic_store_explicit(&r->step_since, 0, memory_order_relaxed);
        if (pipeline_state(r->p) >= PIPELINE_STOPPED)
            break;
        if (wait_turn(r, fds)) {
            round = round_of(w); /* before looking, so that what is found belongs to the round */
            pipeline_ring(r->p);
        }
    }
    publish(r, round);
    atomic_store(&r->step_since, 0);
    crew_duty_end(&duty);
    free(fds);
    return NULL;
}

int runner_begin(struct runner *r, bool stand_by, struct error *err)
{
    runner_close(r); /* one that outbox_step left open has the wrong state */
    r->through = r->ended = false;
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
        return err_errno(err, ERR_UNAVAILABLE, e, "could not start a thread");
    return 0;
}

/* ---- one turn ---- */

int runner_finish(struct runner *r, struct error *err)
{
    int64_t deadline;
    struct pollfd *fds = calloc(FDS_MAX, sizeof *fds);
    if (!fds)
        return err_nomem(err);
    for (;;) {
        while (pipeline_step(r->p))
            continue;
        const struct pipeline_stats *s = pipeline_stats(r->p);
        if (!pipeline_busy(r->p) || s->down || pipeline_state(r->p) >= PIPELINE_STOPPED)
            break;
        if (pipeline_store_error(r->p)->code)
            break;
        size_t n = pipeline_wait(r->p, fds, FDS_MAX, &deadline);
        sleep_until(r->crew->clock, fds, n, deadline);
    }
    free(fds);
    return 0;
}

void runner_leave(struct runner *r, struct error *err, int *result)
{
    const struct pipeline_stats *s = pipeline_stats(r->p);
    if (pipeline_store_error(r->p)->code && *result == 0) {
        *result = -1;
        if (err)
            *err = *pipeline_store_error(r->p);
    }
    if (s->down && *result == 0)
        *result = err_fate(err, ERR_UNAVAILABLE, FATE_DOWN, 0, "consumer \"%s\": sink is down",
                           r->consumer->name);
    if (pipeline_state(r->p) == PIPELINE_RUNNING && !s->down && !pipeline_busy(r->p))
        return;
    pipeline_drain(r->p, clock_mono(r->crew->clock));
    while (pipeline_step(r->p))
        continue;
    if (pipeline_state(r->p) == PIPELINE_FAILED && *result == 0) {
        *result = -1;
        if (err)
            *err = *pipeline_error(r->p);
    }
    runner_close(r);
}
