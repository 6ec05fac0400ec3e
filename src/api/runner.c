#include "api/runner.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/text.h"

#define FDS_MAX 1024
#define TRIM_EVERY_MS (3600 * INT64_C(1000))
#define TRIM_PAUSE_MS 10 /* between small batches, so that producers get in */

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
    struct sink_config cfg = {
        .url = r->consumer->sink,
        .consumer = r->consumer->name,
        .timeout_ms = r->consumer->timeout_ms,
        .concurrency = r->consumer->concurrency,
        .clock = r->crew->clock,
        .done = pipeline_done,
        .done_ctx = r->p,
    };
    if (!cfg.url) {
        struct handler_guard guard = pipeline_guard(r->p);
        return handlers_open(&cfg, r->handlers, r->n_handlers, r->named ? &guard : NULL, &r->sk, err);
    }
    if (sink_find(cfg.url, &kind, err) != 0) return -1;
    return kind->open(&cfg, &r->sk, err);
}

int runner_open(struct runner *r, struct error *err)
{
    struct crew *w = r->crew;
    rng_seed_os(&r->rng);
    make_owner(r);
    if (w->st->ops->dup(w->st, &r->st, err) != 0) return -1;
    if (r->named && (w->st->ops->dup(w->st, &r->work, err) != 0 || r->work->ops->lend(r->work, err) != 0)) {
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
                                  .sweep_ms = w->sweep_ms};
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
    if (r->sk) r->sk->ops->close(r->sk);
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
    if (r->wake_fd >= 0 && write(r->wake_fd, &one, sizeof one) < 0) return; /* full: it is awake already */
}

static void sleep_until(const struct clock *c, struct pollfd *fds, size_t n, int64_t deadline)
{
    int64_t left = deadline == CLOCK_NEVER ? -1 : deadline - clock_mono(c);
    struct timespec ts = {0};
    if (left > 0) ts = (struct timespec){left / 1000000000, left % 1000000000};
    ppoll(fds, n, deadline == CLOCK_NEVER ? NULL : &ts, NULL);
}

/* ---- threads ---- */

static void publish(struct runner *r, uint64_t round)
{
    const struct pipeline_stats *s = pipeline_stats(r->p);
    pthread_mutex_lock(&r->crew->lock);
    bool ended = pipeline_state(r->p) >= PIPELINE_STOPPED;
    bool through = ended || (!pipeline_busy(r->p) && (s->through || s->paused));
    if (r->through != through || r->round_seen != round || r->claims != s->claims || r->ended != ended)
        pthread_cond_signal(&r->crew->changed);
    r->through = through;
    r->round_seen = round;
    r->claims = s->claims;
    r->ended = ended;
    if (ended) r->error = *pipeline_error(r->p);
    pthread_mutex_unlock(&r->crew->lock);
}

static uint64_t round_of(struct crew *w)
{
    pthread_mutex_lock(&w->lock);
    uint64_t round = w->round;
    pthread_mutex_unlock(&w->lock);
    return round;
}

/* wait_turn sleeps until there is something to do; returns whether it was woken by name. */
static bool wait_turn(struct runner *r, struct pollfd *fds)
{
    int64_t deadline;
    uint64_t count;
    bool stopping = pipeline_state(r->p) != PIPELINE_RUNNING;
    size_t n = pipeline_wait(r->p, fds, FDS_MAX, &deadline);
    fds[n] = (struct pollfd){.fd = r->wake_fd, .events = POLLIN};
    fds[n + 1] = (struct pollfd){.fd = stopping ? -1 : r->crew->stop_fd, .events = POLLIN};
    sleep_until(r->crew->clock, fds, n + 2, deadline);
    return read(r->wake_fd, &count, sizeof count) == (ssize_t)sizeof count;
}

static void *runner_main(void *arg)
{
    struct runner *r = arg;
    struct crew *w = r->crew;
    struct pollfd *fds = calloc(FDS_MAX + 2, sizeof *fds);
    struct pollfd few[8];
    uint64_t round = 0;
    while (pipeline_state(r->p) < PIPELINE_STOPPED) {
        if (atomic_load(&w->stop) && pipeline_state(r->p) == PIPELINE_RUNNING)
            pipeline_drain(r->p, clock_mono(w->clock) + w->drain_ms * MS_NS);
        if (pipeline_step(r->p)) continue;
        publish(r, round);
        if (pipeline_state(r->p) >= PIPELINE_STOPPED) break;
        if (fds ? wait_turn(r, fds) : (sleep_until(w->clock, few, 0, clock_mono(w->clock) + 10 * MS_NS), false)) {
            round = round_of(w); /* before looking, so that what is found belongs to the round */
            pipeline_ring(r->p);
        }
    }
    publish(r, round);
    free(fds);
    return NULL;
}

/* ---- the crew ---- */

/* trim_some deletes one small batch of what is old; returns how long to wait before the next. */
static int64_t trim_some(struct crew *w, struct store *st)
{
    struct trim_request req = {.older_than_ms = w->retention_ms, .inbox_ms = w->inbox_ms};
    struct trim_result res;
    struct error err;
    if (st->ops->trim(st, &req, &res, &err) != 0) {
        log_at(w->log, LOG_WARN_, NULL, "could not trim: %s; trying again in an hour", err.text);
        return TRIM_EVERY_MS;
    }
    if (res.more) return TRIM_PAUSE_MS;
    if (res.kept_for_pin) log_at(w->log, LOG_WARN_, NULL, "old events are kept because of %s", res.pin);
    return TRIM_EVERY_MS;
}

static void wait_changed(struct crew *w, int64_t until)
{
    struct timespec ts = {until / 1000000000, until % 1000000000};
    if (until == CLOCK_NEVER) pthread_cond_wait(&w->changed, &w->lock);
    else pthread_cond_timedwait(&w->changed, &w->lock, &ts);
}

/* all_through: every consumer found nothing left in this round, in which nobody took anything. One look each is not
 * enough, because the last one's handlers may have emitted for the first; so a round is asked for when all seem to be
 * through, and counts only if no claim was made in it. */
static bool all_through(struct crew *w, struct runner *const *r, size_t n, int64_t *claims_before)
{
    int64_t claims = 0;
    bool seen = w->round > 0;
    for (size_t i = 0; i < n; i++) {
        if (!r[i]->through) return false;
        claims += r[i]->claims;
        if (!r[i]->ended && r[i]->round_seen != w->round) seen = false;
    }
    if (seen && claims == *claims_before) return true;
    if (w->round == 0 || seen) {
        w->round++;
        *claims_before = claims;
        for (size_t i = 0; i < n; i++) runner_wake(r[i]);
    }
    return false;
}

static bool all_ended(struct runner *const *r, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!r[i]->ended) return false;
    return true;
}

static void stop_crew(struct crew *w)
{
    uint64_t one = 1;
    atomic_store(&w->stop, true);
    if (write(w->stop_fd, &one, sizeof one) < 0) return;
}

static void supervise(struct crew *w, struct runner *const *r, size_t n, bool until_through)
{
    struct store *st = NULL;
    struct error err;
    int64_t claims = -1;
    int64_t trim_at = CLOCK_NEVER;
    if (w->retention_ms > 0 && !until_through && w->st->ops->dup(w->st, &st, &err) == 0) trim_at = clock_mono(w->clock);
    pthread_mutex_lock(&w->lock);
    while (!all_ended(r, n)) {
        if (until_through && !atomic_load(&w->stop) && all_through(w, r, n, &claims)) stop_crew(w);
        if (clock_mono(w->clock) >= trim_at) {
            pthread_mutex_unlock(&w->lock);
            trim_at = clock_mono(w->clock) + trim_some(w, st) * MS_NS;
            pthread_mutex_lock(&w->lock);
            continue;
        }
        wait_changed(w, trim_at);
    }
    pthread_mutex_unlock(&w->lock);
    store_close(st);
}

static int open_all(struct runner *const *r, size_t n, struct error *err)
{
    for (size_t i = 0; i < n; i++) {
        runner_close(r[i]); /* one that outbox_step left open has the wrong state */
        r[i]->through = r[i]->ended = false;
        r[i]->round_seen = 0;
        r[i]->claims = 0;
        r[i]->error = (struct error){0};
        if (runner_open(r[i], err) != 0) return -1;
    }
    return 0;
}

/* warn_of_inbox: what is delivered again after the inbox has forgotten it takes effect again. */
static void warn_of_inbox(const struct crew *w, const struct runner *r)
{
    char inbox[32], need[32];
    int64_t horizon = w->retention_ms + retry_horizon(&r->consumer->retry);
    if (!r->named || w->inbox_ms >= horizon) return;
    text_duration_show(w->inbox_ms, inbox);
    text_duration_show(horizon, need);
    log_at(
        w->log, LOG_WARN_, r->consumer->name,
        "inbox-retention is %s, but an event may be delivered again for %s (retention and retries): make it longer, or a "
        "handler may take effect twice",
        inbox, need);
}

int crew_run(struct crew *w, struct runner *const *r, size_t n, bool until_through, struct error *err)
{
    struct heart heart = {0};
    size_t started = 0;
    uint64_t count;
    int result = open_all(r, n, err);
    if (result == 0) result = heart_start(&heart, w, r, n, err);
    w->round = 0;
    for (; result == 0 && started < n; started++)
        if ((errno = pthread_create(&r[started]->thread, NULL, runner_main, r[started])) != 0) {
            result = err_errno(err, ERR_UNAVAILABLE, errno, "could not start a thread");
            break;
        }
    for (size_t i = 0; result == 0 && i < n; i++) warn_of_inbox(w, r[i]);
    if (result == 0) log_at(w->log, LOG_INFO_, NULL, "started, consumers: %zu", n);
    if (result != 0) stop_crew(w);
    else supervise(w, r, n, until_through);
    for (size_t i = 0; i < started; i++) {
        pthread_join(r[i]->thread, NULL);
        if (result == 0 && r[i]->error.code) {
            result = -1;
            if (err) *err = r[i]->error;
            err_prefix(err, "consumer \"%s\"", r[i]->consumer->name);
        }
    }
    heart_stop(&heart);
    for (size_t i = 0; i < n; i++) runner_close(r[i]);
    atomic_store(&w->stop, false);
    if (read(w->stop_fd, &count, sizeof count) < 0) return result; /* nobody stopped it */
    return result;
}

/* ---- one turn ---- */

/* finish delivers everything of one consumer that is due now. */
static void finish(struct runner *r, struct pollfd *fds)
{
    int64_t deadline;
    for (;;) {
        while (pipeline_step(r->p)) continue;
        const struct pipeline_stats *s = pipeline_stats(r->p);
        if (!pipeline_busy(r->p) || s->down || pipeline_state(r->p) >= PIPELINE_STOPPED) return;
        if (pipeline_store_error(r->p)->code) return;
        size_t n = pipeline_wait(r->p, fds, FDS_MAX, &deadline);
        sleep_until(r->crew->clock, fds, n, deadline);
    }
}

/* leave makes sure that nothing stays claimed while nobody is at work. */
static void leave(struct runner *r, struct error *err, int *result)
{
    const struct pipeline_stats *s = pipeline_stats(r->p);
    if (pipeline_store_error(r->p)->code && *result == 0) {
        *result = -1;
        if (err) *err = *pipeline_store_error(r->p);
    }
    if (s->down && *result == 0)
        *result = err_fate(err, ERR_UNAVAILABLE, FATE_DOWN, 0, "consumer \"%s\": sink is down", r->consumer->name);
    if (pipeline_state(r->p) == PIPELINE_RUNNING && !s->down && !pipeline_busy(r->p)) return;
    pipeline_drain(r->p, clock_mono(r->crew->clock));
    while (pipeline_step(r->p)) continue;
    if (pipeline_state(r->p) == PIPELINE_FAILED && *result == 0) {
        *result = -1;
        if (err) *err = *pipeline_error(r->p);
    }
    runner_close(r);
}

static int64_t delivered_by(struct runner *const *r, size_t n)
{
    int64_t total = 0;
    for (size_t i = 0; i < n; i++) total += pipeline_stats(r[i]->p)->delivered;
    return total;
}

static int64_t failures_of(const struct runner *r)
{
    return pipeline_stats(r->p)->retried + pipeline_stats(r->p)->buried;
}

/* step_all goes round until a whole round delivers nothing: handlers may emit for consumers that had their turn. */
static void step_all(struct runner *const *r, size_t n, struct pollfd *fds)
{
    int64_t before;
    do {
        before = delivered_by(r, n);
        for (size_t i = 0; i < n; i++) {
            pipeline_ring(r[i]->p);
            finish(r[i], fds);
        }
    } while (delivered_by(r, n) != before);
}

int crew_step(struct crew *w, struct runner *const *r, size_t n, size_t *ret_delivered, struct error *err)
{
    struct heart heart;
    struct pollfd *fds = calloc(FDS_MAX, sizeof *fds);
    int result = fds ? 0 : err_nomem(err);
    for (size_t i = 0; result == 0 && i < n; i++) {
        if (!r[i]->p) result = runner_open(r[i], err);
        if (result == 0) r[i]->failures = failures_of(r[i]);
    }
    if (result == 0) result = heart_start(&heart, w, r, n, err);
    if (result == 0) {
        int64_t before = delivered_by(r, n);
        step_all(r, n, fds);
        heart_stop(&heart);
        if (ret_delivered) *ret_delivered = (size_t)(delivered_by(r, n) - before);
        for (size_t i = 0; i < n; i++) {
            if (result == 0 && failures_of(r[i]) > r[i]->failures)
                result = err_fate(err, ERR_UNAVAILABLE, FATE_RETRY, 0, "consumer \"%s\": %s", r[i]->consumer->name,
                                  pipeline_failure(r[i]->p));
            leave(r[i], err, &result);
        }
    }
    free(fds);
    return result;
}
