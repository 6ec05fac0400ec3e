#include "api/crew.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "api/defaults.h"
#include "api/heart.h"
#include "api/runner.h"
#include "base/text.h"

#define TRIM_EVERY_MS (3600 * INT64_C(1000))
#define TRIM_PAUSE_MS 10 /* between small batches, so that producers get in */

#define AT(field) .at = offsetof(struct crew, field)

const struct option_def crew_options[] = {DEFAULTS_ROWS(AT), {NULL}};

static _Thread_local struct crew_duty *on_duty; /* of the innermost crew */

void crew_duty_begin(struct crew_duty *d, const struct crew *w)
{
    *d = (struct crew_duty){w, on_duty};
    on_duty = d;
}

void crew_duty_end(const struct crew_duty *d)
{
    on_duty = d->outer;
}

bool crew_mine(const struct crew *w)
{
    for (const struct crew_duty *d = on_duty; d; d = d->outer)
        if (d->crew == w)
            return true;
    return false;
}

/* ---- watching over it ---- */

/* trim_some deletes one small batch of what is old, by a store of its own, opened when it is first
 * needed; returns how long to wait before the next. */
static int64_t trim_some(struct crew *w, struct store **st)
{
    struct trim_request req = {.older_than_ms = w->retention_ms, .inbox_ms = w->inbox_ms};
    struct trim_result res;
    struct error err;
    bool trimmed = *st || w->st->ops->dup(w->st, st, &err) == 0;
    if (trimmed)
        trimmed = (*st)->ops->trim(*st, &req, &res, &err) == 0;
    if (!trimmed) {
        log_at(w->log, LOG_WARN_, NULL, "could not trim: %s; trying again in an hour", err.text);
        return TRIM_EVERY_MS;
    }
    if (res.more)
        return TRIM_PAUSE_MS;
    if (res.kept_for_pin)
        log_at(w->log, LOG_WARN_, NULL, "old events are kept because of %s", res.pin);
    return TRIM_EVERY_MS;
}

static void wait_changed(struct crew *w, int64_t until)
{
    struct timespec ts = {until / 1000000000, until % 1000000000};
    if (until == CLOCK_NEVER)
        pthread_cond_wait(&w->changed, &w->lock);
    else
        pthread_cond_timedwait(&w->changed, &w->lock, &ts);
}

/* all_through: every consumer found nothing left in this round, in which nobody took anything. One
 * look each is not enough, because the last one's handlers may have emitted for the first; so a
 * round is asked for when all seem to be through, and counts only if no claim was made in it. */
static bool all_through(struct crew *w, int64_t *claims_before)
{
    int64_t claims = 0;
    bool seen = w->round > 0;
    for (const struct runner *r = w->first; r; r = r->next) {
        if (!r->through)
            return false;
        claims += r->claims;
        if (!r->ended && r->round_seen != w->round)
            seen = false;
    }
    if (seen && claims == *claims_before)
        return true;
    if (w->round == 0 || seen) {
        w->round++;
        *claims_before = claims;
        for (struct runner *r = w->first; r; r = r->next)
            runner_wake(r);
    }
    return false;
}

static bool all_ended(const struct crew *w)
{
    for (const struct runner *r = w->first; r; r = r->next)
        if (!r->ended)
            return false;
    return true;
}

static void stop_crew(struct crew *w)
{
    uint64_t one = 1;
    atomic_store(&w->stop, true);
    if (write(w->stop_fd, &one, sizeof one) < 0)
        return;
}

/* reload lets the host change the crew. Asked for again meanwhile, it is done again. */
static void reload(struct crew *w)
{
    w->reload_wanted = false;
    pthread_mutex_unlock(&w->lock);
    if (w->reload && !atomic_load(&w->stop))
        w->reload(w->hook_ctx);
    pthread_mutex_lock(&w->lock);
}

static void supervise(struct crew *w, bool until_through)
{
    struct store *st = NULL;
    int64_t claims = -1;
    int64_t trim_at = CLOCK_NEVER;
    if (w->retention_ms > 0 && !until_through)
        trim_at = clock_mono(w->clock);
    pthread_mutex_lock(&w->lock);
    while (!all_ended(w)) {
        if (w->reload_wanted) {
            reload(w);
            continue;
        }
        if (until_through && !atomic_load(&w->stop) && all_through(w, &claims))
            stop_crew(w);
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

/* warn_of_inbox: what is delivered again after the inbox has forgotten it takes effect again. */
static void warn_of_inbox(const struct crew *w, const struct runner *r)
{
    char inbox[32], need[32];
    int64_t horizon = w->retention_ms + retry_horizon(&r->consumer->retry);
    if (!r->named || w->inbox_ms >= horizon)
        return;
    text_duration_show(w->inbox_ms, inbox);
    text_duration_show(horizon, need);
    log_at(w->log, LOG_WARN_, r->consumer->name,
           "inbox-retention is %s, but an event may be delivered again for %s (retention and "
           "retries): make it longer, or a "
           "handler may take effect twice",
           inbox, need);
}

/* set_to_work starts the thread of a runner that is open, and appends it to the list. */
static int set_to_work(struct crew *w, struct runner *r, struct error *err)
{
    struct runner **end = &w->first;
    while (*end)
        end = &(*end)->next;
    if (runner_start(r, err) != 0)
        return -1;
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

/* admit registers the consumer of a runner that is open: once nothing else can go wrong, or the
 * store would keep events for one that nobody runs. One that may stand by later is still refused
 * now if `strict`. */
static int admit(struct runner *r, bool strict, struct error *err)
{
    if (pipeline_register(r->p, err) != 0)
        return -1;
    const struct error *why = pipeline_standby(r->p);
    if (!strict || !why->code)
        return 0;
    if (err)
        *err = *why;
    return -1;
}

int crew_add(struct crew *w, struct runner *r, bool strict, struct error *err)
{
    if (runner_begin(r, true, err) != 0)
        return -1;
    if (admit(r, strict, err) == 0 && set_to_work(w, r, err) == 0)
        return 0;
    runner_close(r);
    return -1;
}

void crew_remove(struct crew *w, struct runner *r)
{
    struct runner **at = &w->first;
    while (*at && *at != r)
        at = &(*at)->next;
    if (!*at)
        return;
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
    for (const struct runner *r = w->first; r; r = r->next)
        n++;
    struct runner_view *list = calloc(n + 1, sizeof *list);
    for (const struct runner *r = w->first; list && r; r = r->next, i++) {
        list[i] = r->view;
        list[i].step_since = atomic_load_explicit(&r->step_since, memory_order_relaxed);
    }
    pthread_mutex_unlock(&w->lock);
    if (!list)
        return err_nomem(err);
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
            if (err)
                *err = r->error;
            err_prefix(err, "consumer \"%s\"", r->consumer->name);
        }
        runner_close(r);
    }
    return result;
}

int crew_run(struct crew *w, struct runner *const *r, size_t n, bool until_through,
             struct error *err)
{
    struct heart heart = {0};
    int result = 0;
    uint64_t count;
    w->round = 0;
    for (size_t i = 0; result == 0 && i < n; i++)
        result = runner_begin(r[i], !until_through, err);
    for (size_t i = 0; result == 0 && i < n; i++)
        result = admit(r[i], until_through, err);
    if (result == 0)
        result = heart_start(&heart, w, r, n, err);
    for (size_t i = 0; result == 0 && i < n; i++)
        result = set_to_work(w, r[i], err);
    if (result == 0) {
        for (size_t i = 0; i < n; i++)
            warn_of_inbox(w, r[i]);
        log_at(w->log, LOG_INFO_, NULL, "started, consumers: %zu", n);
        if (w->started)
            w->started(w->hook_ctx);
        supervise(w, until_through);
        result = end_all(w, 0, err);
    } else {
        stop_crew(w);
        end_all(w, result, NULL);
        for (size_t i = 0; i < n; i++)
            runner_close(r[i]);
    }
    heart_stop(&heart);
    atomic_store(&w->stop, false);
    if (read(w->stop_fd, &count, sizeof count) < 0)
        return result; /* nobody stopped it */
    return result;
}

/* ---- one turn ---- */

static int64_t delivered_by(struct runner *const *r, size_t n)
{
    int64_t total = 0;
    for (size_t i = 0; i < n; i++)
        total += pipeline_stats(r[i]->p)->delivered;
    return total;
}

static int64_t failures_of(const struct runner *r)
{
    return pipeline_stats(r->p)->retried + pipeline_stats(r->p)->buried;
}

/* step_all goes round until a whole round delivers nothing: handlers may emit for consumers that
 * had their turn. */
static int step_all(struct runner *const *r, size_t n, struct error *err)
{
    int64_t before;
    do {
        before = delivered_by(r, n);
        for (size_t i = 0; i < n; i++) {
            pipeline_ring(r[i]->p);
            if (runner_finish(r[i], err) != 0)
                return -1;
        }
    } while (delivered_by(r, n) != before);
    return 0;
}

static int open_to_step(struct runner *r, struct error *err)
{
    if (runner_open(r, false, err) != 0)
        return -1;
    if (pipeline_register(r->p, err) == 0)
        return 0;
    runner_close(r);
    return -1;
}

/* ready_to_step opens those that no step before has left open. */
static int ready_to_step(struct runner *const *r, size_t n, struct error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (!r[i]->p && open_to_step(r[i], err) != 0)
            return -1;
        r[i]->failures = failures_of(r[i]);
    }
    return 0;
}

/* told_failure is the error of a runner whose events failed in this step, if *result is none
 * yet. */
static void told_failure(const struct runner *r, int *result, struct error *err)
{
    bool failed = failures_of(r) > r->failures;
    if (*result != 0 || !failed)
        return;
    *result = err_fate(err, ERR_UNAVAILABLE, FATE_RETRY, 0, "consumer \"%s\": %s",
                       r->consumer->name, pipeline_failure(r->p));
}

static void show_all(struct crew *w, struct runner *const *r, size_t n)
{
    pthread_mutex_lock(&w->lock);
    for (size_t i = 0; i < n; i++)
        runner_show(r[i]);
    pthread_mutex_unlock(&w->lock);
}

/* step is crew_step on runners that are ready. */
static int step(struct crew *w, struct runner *const *r, size_t n, size_t *ret_delivered,
                struct error *err)
{
    struct heart heart;
    if (heart_start(&heart, w, r, n, err) != 0)
        return -1;
    int64_t before = delivered_by(r, n);
    int result = step_all(r, n, err);
    heart_stop(&heart);

    show_all(w, r, n);
    if (ret_delivered)
        *ret_delivered = (size_t)(delivered_by(r, n) - before);
    for (size_t i = 0; i < n; i++) {
        told_failure(r[i], &result, err);
        runner_leave(r[i], err, &result);
    }
    return result;
}

int crew_step(struct crew *w, struct runner *const *r, size_t n, size_t *ret_delivered,
              struct error *err)
{
    struct crew_duty duty;
    crew_duty_begin(&duty, w);
    int result = ready_to_step(r, n, err);
    if (result == 0)
        result = step(w, r, n, ret_delivered, err);
    crew_duty_end(&duty);
    return result;
}
