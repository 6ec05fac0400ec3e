#include "api/runner.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "api/defaults.h"
#include "base/text.h"

#define FDS_MAX 1024
#define TRIM_EVERY_MS (3600 * INT64_C(1000))
#define SHOW_EVERY (100 * MS_NS) /* how often one that does not come to rest shows what it does */
#define TRIM_PAUSE_MS 10         /* between small batches, so that producers get in */

const struct option_def crew_options[] = {
    {"drain-deadline", "DURATION", DEFAULT_DRAIN_DEADLINE, "", option_span, .at = offsetof(struct crew, drain_ms)},
    {"sweep", "DURATION", DEFAULT_SWEEP, "", option_span, .at = offsetof(struct crew, sweep_ms), .min = 1},
    {"retention", "DURATION", DEFAULT_RETENTION, "", option_span, .at = offsetof(struct crew, retention_ms)},
    {"inbox-retention", "DURATION", DEFAULT_INBOX_RETENTION, "", option_span, .at = offsetof(struct crew, inbox_ms),
     .min = 1},
    {NULL},
};

/* Which crews the thread is at work for: a handler of one may step another. */
struct duty {
    const struct crew *crew;
    struct duty *outer;
};
static _Thread_local struct duty *on_duty;

static void duty_begin(struct duty *d, const struct crew *w)
{
    *d = (struct duty){w, on_duty};
    on_duty = d;
}

static void duty_end(const struct duty *d)
{
    on_duty = d->outer;
}

bool crew_mine(const struct crew *w)
{
    for (const struct duty *d = on_duty; d; d = d->outer)
        if (d->crew == w) return true;
    return false;
}

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
        return handlers_open(&cfg, r->handlers, r->n_handlers, r->named ? &guard : NULL, &r->sk, err);
    }
    if (sink_find(cfg.url, &kind, err) != 0) return -1;
    return kind->open(&cfg, &r->sk, err);
}

/* open_runner gets everything ready but does not register the consumer. stand_by: see pipeline_config. */
static int open_runner(struct runner *r, bool stand_by, struct error *err)
{
    struct crew *w = r->crew;
    rng_seed_os(&r->rng);
    make_owner(r);
    if (w->st->ops->dup(w->st, &r->st, err) != 0) return -1;
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

/* show puts down what others may see; under crew->lock. */
static void show(struct runner *r)
{
    struct pipeline_held held = pipeline_held(r->p);
    struct runner_view *v = &r->view;
    v->state = pipeline_state(r->p);
    const struct sink_lease *lease = pipeline_sink_lease(r->p);
    v->stats = *pipeline_stats(r->p);
    v->leased = lease != NULL;
    if (lease) v->lease = *lease;
    v->held = (int64_t)held.n;
    v->held_oldest_at = held.oldest_at;
    snprintf(v->held_type, sizeof v->held_type, "%s",
             held.type.n < sizeof v->held_type && held.type.p ? held.type.p : "");
    const struct error *why = pipeline_error(r->p)->code ? pipeline_error(r->p) : pipeline_standby(r->p);
    snprintf(v->error, sizeof v->error, "%s", why->code ? why->text : "");
    r->shown_at = clock_mono(r->crew->clock);
}

static void show_now_and_then(struct runner *r, int64_t now)
{
    if (now - r->shown_at < SHOW_EVERY) return;
    pthread_mutex_lock(&r->crew->lock);
    show(r);
    pthread_mutex_unlock(&r->crew->lock);
}

static void publish(struct runner *r, uint64_t round)
{
    const struct pipeline_stats *s = pipeline_stats(r->p);
    pthread_mutex_lock(&r->crew->lock);
    show(r);
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

static bool woken(struct runner *r)
{
    uint64_t count;
    return read(r->wake_fd, &count, sizeof count) == (ssize_t)sizeof count;
}

/* wait_turn sleeps until there is something to do; returns whether it was woken by name. Without memory for the list of
 * descriptors (fds == NULL) it looks every 10 ms. */
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

static void *runner_main(void *arg)
{
    struct runner *r = arg;
    struct crew *w = r->crew;
    struct pollfd *fds = calloc(FDS_MAX + 2, sizeof *fds);
    uint64_t round = 0;
    struct duty duty;
    duty_begin(&duty, w);
    while (pipeline_state(r->p) < PIPELINE_STOPPED) {
        int64_t now = clock_mono(w->clock);
        atomic_store_explicit(&r->step_since, now, memory_order_relaxed);
        if ((atomic_load(&w->stop) || atomic_load(&r->stop)) && pipeline_state(r->p) == PIPELINE_RUNNING)
            pipeline_drain(r->p, now + w->drain_ms * MS_NS);
        if (pipeline_step(r->p)) {
            show_now_and_then(r, now);
            continue;
        }
        publish(r, round);
        atomic_store_explicit(&r->step_since, 0, memory_order_relaxed);
        if (pipeline_state(r->p) >= PIPELINE_STOPPED) break;
        if (wait_turn(r, fds)) {
            round = round_of(w); /* before looking, so that what is found belongs to the round */
            pipeline_ring(r->p);
        }
    }
    publish(r, round);
    atomic_store(&r->step_since, 0);
    duty_end(&duty);
    free(fds);
    return NULL;
}

/* ---- the crew ---- */

/* trim_some deletes one small batch of what is old, by a store of its own, opened when it is first needed; returns how
 * long to wait before the next. */
static int64_t trim_some(struct crew *w, struct store **st)
{
    struct trim_request req = {.older_than_ms = w->retention_ms, .inbox_ms = w->inbox_ms};
    struct trim_result res;
    struct error err;
    bool trimmed = *st || w->st->ops->dup(w->st, st, &err) == 0;
    if (trimmed) trimmed = (*st)->ops->trim(*st, &req, &res, &err) == 0;
    if (!trimmed) {
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
static bool all_through(struct crew *w, int64_t *claims_before)
{
    int64_t claims = 0;
    bool seen = w->round > 0;
    for (const struct runner *r = w->first; r; r = r->next) {
        if (!r->through) return false;
        claims += r->claims;
        if (!r->ended && r->round_seen != w->round) seen = false;
    }
    if (seen && claims == *claims_before) return true;
    if (w->round == 0 || seen) {
        w->round++;
        *claims_before = claims;
        for (struct runner *r = w->first; r; r = r->next) runner_wake(r);
    }
    return false;
}

static bool all_ended(const struct crew *w)
{
    for (const struct runner *r = w->first; r; r = r->next)
        if (!r->ended) return false;
    return true;
}

static void stop_crew(struct crew *w)
{
    uint64_t one = 1;
    atomic_store(&w->stop, true);
    if (write(w->stop_fd, &one, sizeof one) < 0) return;
}

/* reload lets the host change the crew. Asked for again meanwhile, it is done again. */
static void reload(struct crew *w)
{
    w->reload_wanted = false;
    pthread_mutex_unlock(&w->lock);
    if (w->reload && !atomic_load(&w->stop)) w->reload(w->hook_ctx);
    pthread_mutex_lock(&w->lock);
}

static void supervise(struct crew *w, bool until_through)
{
    struct store *st = NULL;
    int64_t claims = -1;
    int64_t trim_at = CLOCK_NEVER;
    if (w->retention_ms > 0 && !until_through) trim_at = clock_mono(w->clock);
    pthread_mutex_lock(&w->lock);
    while (!all_ended(w)) {
        if (w->reload_wanted) {
            reload(w);
            continue;
        }
        if (until_through && !atomic_load(&w->stop) && all_through(w, &claims)) stop_crew(w);
        if (clock_mono(w->clock) >= trim_at) {
            pthread_mutex_unlock(&w->lock);
            trim_at = clock_mono(w->clock) + trim_some(w, &st) * MS_NS;
            pthread_mutex_lock(&w->lock);
            continue;
        }
        wait_changed(w, trim_at);
    }
    pthread_mutex_unlock(&w->lock);
    store_close(st);
}

static int begin(struct runner *r, bool stand_by, struct error *err)
{
    runner_close(r); /* one that outbox_step left open has the wrong state */
    r->through = r->ended = false;
    r->round_seen = 0;
    r->claims = 0;
    r->error = (struct error){0};
    r->next = NULL;
    atomic_store(&r->stop, false);
    atomic_store(&r->step_since, 0);
    if (open_runner(r, stand_by, err) != 0) return -1;
    r->view = (struct runner_view){.timeout_ms = r->consumer->timeout_ms};
    snprintf(r->view.consumer, sizeof r->view.consumer, "%s", r->consumer->name);
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

/* set_to_work starts the thread of a runner that is open, and appends it to the list. */
static int set_to_work(struct crew *w, struct runner *r, struct error *err)
{
    struct runner **end = &w->first;
    while (*end) end = &(*end)->next;
    int e = pthread_create(&r->thread, NULL, runner_main, r);
    if (e != 0) return err_errno(err, ERR_UNAVAILABLE, e, "could not start a thread");
    pthread_mutex_lock(&w->lock);
    *end = r;
    pthread_mutex_unlock(&w->lock);
    return 0;
}

void crew_reload(struct crew *w)
{
    pthread_mutex_lock(&w->lock);
    w->reload_wanted = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

/* admit registers the consumer of a runner that is open: once nothing else can go wrong, or the store would keep events for
 * one that nobody runs. One that may stand by later is still refused now if `strict`. */
static int admit(struct runner *r, bool strict, struct error *err)
{
    if (pipeline_register(r->p, err) != 0) return -1;
    const struct error *why = pipeline_standby(r->p);
    if (!strict || !why->code) return 0;
    if (err) *err = *why;
    return -1;
}

int crew_add(struct crew *w, struct runner *r, bool strict, struct error *err)
{
    if (begin(r, true, err) != 0) return -1;
    if (admit(r, strict, err) == 0 && set_to_work(w, r, err) == 0) return 0;
    runner_close(r);
    return -1;
}

void crew_remove(struct crew *w, struct runner *r)
{
    struct runner **at = &w->first;
    while (*at && *at != r) at = &(*at)->next;
    if (!*at) return;
    atomic_store(&r->stop, true);
    runner_wake(r);
    pthread_join(r->thread, NULL);
    pthread_mutex_lock(&w->lock);
    *at = r->next;
    pthread_mutex_unlock(&w->lock);
    runner_close(r);
}

int crew_views(struct crew *w, struct runner_view **ret, size_t *ret_n, struct error *err)
{
    size_t n = 0, i = 0;
    pthread_mutex_lock(&w->lock);
    for (const struct runner *r = w->first; r; r = r->next) n++;
    struct runner_view *list = calloc(n + 1, sizeof *list);
    for (const struct runner *r = w->first; list && r; r = r->next, i++) {
        list[i] = r->view;
        list[i].step_since = atomic_load_explicit(&r->step_since, memory_order_relaxed);
    }
    pthread_mutex_unlock(&w->lock);
    if (!list) return err_nomem(err);
    *ret = list;
    *ret_n = n;
    return 0;
}

/* end_all waits for all threads; the first error among them is the crew's. */
static int end_all(struct crew *w, int result, struct error *err)
{
    struct runner *next;
    pthread_mutex_lock(&w->lock);
    struct runner *r = w->first;
    w->first = NULL;
    pthread_mutex_unlock(&w->lock);
    for (; r; r = next) {
        next = r->next;
        pthread_join(r->thread, NULL);
        if (result == 0 && r->error.code) {
            result = -1;
            if (err) *err = r->error;
            err_prefix(err, "consumer \"%s\"", r->consumer->name);
        }
        runner_close(r);
    }
    return result;
}

int crew_run(struct crew *w, struct runner *const *r, size_t n, bool until_through, struct error *err)
{
    struct heart heart = {0};
    int result = 0;
    uint64_t count;
    w->round = 0;
    for (size_t i = 0; result == 0 && i < n; i++) result = begin(r[i], !until_through, err);
    for (size_t i = 0; result == 0 && i < n; i++) result = admit(r[i], until_through, err);
    if (result == 0) result = heart_start(&heart, w, r, n, err);
    for (size_t i = 0; result == 0 && i < n; i++) result = set_to_work(w, r[i], err);
    if (result == 0) {
        for (size_t i = 0; i < n; i++) warn_of_inbox(w, r[i]);
        log_at(w->log, LOG_INFO_, NULL, "started, consumers: %zu", n);
        if (w->started) w->started(w->hook_ctx);
        supervise(w, until_through);
        result = end_all(w, 0, err);
    } else {
        stop_crew(w);
        end_all(w, result, NULL);
        for (size_t i = 0; i < n; i++) runner_close(r[i]);
    }
    heart_stop(&heart);
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

static int open_to_step(struct runner *r, struct error *err)
{
    if (open_runner(r, false, err) != 0) return -1;
    if (pipeline_register(r->p, err) == 0) return 0;
    runner_close(r);
    return -1;
}

int crew_step(struct crew *w, struct runner *const *r, size_t n, size_t *ret_delivered, struct error *err)
{
    struct heart heart;
    struct duty duty;
    struct pollfd *fds = calloc(FDS_MAX, sizeof *fds);
    int result = fds ? 0 : err_nomem(err);
    duty_begin(&duty, w);
    for (size_t i = 0; result == 0 && i < n; i++) {
        if (!r[i]->p) result = open_to_step(r[i], err);
        if (result == 0) r[i]->failures = failures_of(r[i]);
    }
    if (result == 0) result = heart_start(&heart, w, r, n, err);
    if (result == 0) {
        int64_t before = delivered_by(r, n);
        step_all(r, n, fds);
        heart_stop(&heart);
        pthread_mutex_lock(&w->lock);
        for (size_t i = 0; i < n; i++) show(r[i]);
        pthread_mutex_unlock(&w->lock);
        if (ret_delivered) *ret_delivered = (size_t)(delivered_by(r, n) - before);
        for (size_t i = 0; i < n; i++) {
            if (result == 0 && failures_of(r[i]) > r[i]->failures)
                result = err_fate(err, ERR_UNAVAILABLE, FATE_RETRY, 0, "consumer \"%s\": %s", r[i]->consumer->name,
                                  pipeline_failure(r[i]->p));
            leave(r[i], err, &result);
        }
    }
    duty_end(&duty);
    free(fds);
    return result;
}
