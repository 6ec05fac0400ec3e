#include "api/supervisor.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "api/worker.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/num.h"
#include "base/text.h"
#include "pool/pool.h"

#define TRIM_EVERY_MIN_MS INT64_C(1000)
#define TRIM_EVERY_MAX_MS (30 * INT64_C(1000)) /* like sampling: deletes within a minute */
#define TRIM_WARN_EVERY_MS (3600 * INT64_C(1000))

#define AT(field) .at = offsetof(struct supervisor, field)

const struct option_def supervisor_options[] = {SUPERVISOR_OPTIONS(AT), {NULL}};

int supervisor_init(struct supervisor *sv, const struct clock *clock, const struct log *log,
                    struct error *err)
{
    sv->clock = clock;
    sv->log = log;
    atomic_init(&sv->stop, false);
    pthread_mutex_init(&sv->lock, NULL);
    cond_init(&sv->changed);
    suspect_all_init(&sv->suspects);
    sv->stop_fd = wake_fd_new();
    if (sv->stop_fd < 0)
        return err_errno(err, ERR_UNAVAILABLE, errno, "could not create an eventfd");
    return option_defaults(supervisor_options, sv, err);
}

void supervisor_release(struct supervisor *sv)
{
    if (sv->stop_fd >= 0)
        close(sv->stop_fd);
    pthread_cond_destroy(&sv->changed);
    pthread_mutex_destroy(&sv->lock);
    suspect_all_release(&sv->suspects);
}

static _Thread_local struct supervisor_entry *current; /* the innermost one */

void supervisor_enter(struct supervisor_entry *e, const struct supervisor *sv)
{
    *e = (struct supervisor_entry){sv, current};
    current = e;
}

void supervisor_leave(const struct supervisor_entry *e)
{
    current = e->outer;
}

bool supervisor_is_current(const struct supervisor *sv)
{
    for (const struct supervisor_entry *e = current; e; e = e->outer) {
        if (e->sv == sv)
            return true;
    }
    return false;
}

int supervisor_store(struct supervisor *sv, struct store **ret, struct error *err)
{
    if (sv->pool)
        return pool_store_new(sv->pool, NULL, ret, err);
    return sv->st->ops->dup(sv->st, ret, err);
}

void supervisor_stop(struct supervisor *sv)
{
    atomic_store(&sv->stop, true);
    wake_fd_signal(sv->stop_fd);
}

void supervisor_reload(struct supervisor *sv)
{
    pthread_mutex_lock(&sv->lock);
    sv->reload_wanted = true;
    pthread_cond_signal(&sv->changed);
    pthread_mutex_unlock(&sv->lock);
}

/* ---- trimming ---- */

/* State kept between the batches of trimming. */
struct trimmer {
    struct store *st; /* opened at the first use */
    struct trimming pace;
    int64_t warn_at; /* no further warning before then */
};

/* Limits warnings to one an hour: such problems are rarely fixed within a minute. */
static bool may_warn(const struct supervisor *sv, struct trimmer *t)
{
    int64_t now = clock_mono(sv->clock);
    if (now < t->warn_at)
        return false;
    t->warn_at = now + TRIM_WARN_EVERY_MS * MS_NS;
    return true;
}

/* Deletes one small batch of old rows, and returns how many ns to wait before the next. When no old
 * rows are left, it waits a tenth of retention, at most half a minute, so that events are deleted
 * soon after they expire and never many of them at once. */
static int64_t trim_batch(struct supervisor *sv, struct trimmer *t)
{
    struct trim_request req = {.older_than_ms = sv->retention_ms, .inbox_ms = sv->inbox_ms};
    struct trim_result res;
    struct error err;
    int result = 0;
    if (!t->st)
        result = supervisor_store(sv, &t->st, &err);
    if (result == 0)
        result = store_trim_step(&t->pace, t->st, sv->clock, &req, &res, &err);
    if (result != 0) {
        if (may_warn(sv, t))
            log_at(sv->log, LOG_WARN_, NULL, "could not trim: %s; trying again", err.text);
        return TRIM_EVERY_MAX_MS * MS_NS;
    }

    if (res.more)
        return t->pace.pause_ns;
    t->pace.rows = 0;
    if (res.kept_for_pin && may_warn(sv, t))
        log_at(sv->log, LOG_WARN_, NULL, "old events are kept because of %s", res.pin);
    int64_t every = max_i64(sv->retention_ms / 10, TRIM_EVERY_MIN_MS);
    return min_i64(every, TRIM_EVERY_MAX_MS) * MS_NS;
}

/* ---- supervising ---- */

/* Whether nothing is left to do for any consumer. It is not enough that each found nothing when it
 * last looked: a handler may since have emitted an event for a consumer that looked earlier. So
 * when all seem to be through, a round begins in which each looks once more. They are through if
 * none made a claim in that round; otherwise another round begins. */
static bool all_through(struct supervisor *sv, int64_t *claims_before)
{
    bool in_round = sv->round > 0;
    int64_t claims = 0;
    for (const struct worker *w = sv->first; w; w = w->next) {
        bool looked = !in_round || w->ended || w->round_seen == sv->round;
        if (!w->through || !looked)
            return false;
        claims += w->claims;
    }
    if (in_round && claims == *claims_before)
        return true;

    *claims_before = claims;
    sv->round++;
    for (struct worker *w = sv->first; w; w = w->next)
        worker_wake(w);
    return false;
}

static bool all_ended(const struct supervisor *sv)
{
    for (const struct worker *w = sv->first; w; w = w->next) {
        if (!w->ended)
            return false;
    }
    return true;
}

/* Waits until all workers have ended. Meanwhile it reloads and trims. With until_through it stops
 * them once nothing is left to do; then it does not trim. */
static void supervise(struct supervisor *sv, bool until_through)
{
    struct trimmer trimmer = {0};
    int64_t claims = -1;
    int64_t trim_at = CLOCK_NEVER;
    bool trims = sv->retention_ms > 0 && !until_through;
    if (trims)
        trim_at = clock_mono(sv->clock);

    pthread_mutex_lock(&sv->lock);
    sv->until_through = until_through;
    while (!all_ended(sv)) {
        bool stopping = atomic_load(&sv->stop);
        if (sv->reload_wanted) {
            /* The host adds and removes workers. A reload requested meanwhile starts another
             * one. */
            sv->reload_wanted = false;
            pthread_mutex_unlock(&sv->lock);
            if (sv->reload && !stopping)
                sv->reload(sv->hook_ctx);
            pthread_mutex_lock(&sv->lock);
            continue;
        }
        if (until_through && !stopping && all_through(sv, &claims))
            supervisor_stop(sv);
        if (clock_mono(sv->clock) >= trim_at) {
            pthread_mutex_unlock(&sv->lock);
            int64_t pause = trim_batch(sv, &trimmer);
            trim_at = clock_mono(sv->clock) + pause;
            pthread_mutex_lock(&sv->lock);
            continue;
        }
        cond_wait(&sv->changed, &sv->lock, trim_at);
    }
    pthread_mutex_unlock(&sv->lock);
    store_close(trimmer.st);
}

/* ---- starting and ending workers ---- */

/* Registers the consumer of an open worker. This is the last step that can fail: the store keeps
 * events for every registered consumer, even one that no worker runs. With `strict` it fails if the
 * consumer would stand by. */
static int register_consumer(struct worker *w, bool strict, struct error *err)
{
    if (pipeline_register(w->p, err) != 0)
        return -1;
    const struct error *why = &pipeline_stats(w->p)->standby_why;
    bool stands_by = why->code != 0;
    if (!strict || !stands_by)
        return 0;
    return err_copy(err, why);
}

int supervisor_add(struct worker *w, bool strict, struct error *err)
{
    if (worker_open(w, true, err) != 0)
        return -1;
    int result = register_consumer(w, strict, err);
    if (result == 0)
        result = worker_start(w, err);
    if (result != 0)
        worker_close(w);
    return result;
}

void supervisor_remove(struct worker *w)
{
    struct supervisor *sv = w->sv;
    struct worker **at = &sv->first;
    while (*at && *at != w)
        at = &(*at)->next;
    if (!*at)
        return;

    atomic_store(&w->stop, true);
    worker_wake(w);
    pthread_join(w->thread, NULL);

    pthread_mutex_lock(&sv->lock);
    *at = w->next;
    pthread_mutex_unlock(&sv->lock);
    worker_close(w);
}

int supervisor_views(struct supervisor *sv, struct worker_view **ret, size_t *ret_n,
                     struct error *err)
{
    size_t n = 0;
    pthread_mutex_lock(&sv->lock);
    for (const struct worker *w = sv->first; w; w = w->next)
        n++;
    struct worker_view *list = calloc(n + 1, sizeof *list);
    struct worker_view *v = list;
    for (const struct worker *w = sv->first; w && list; w = w->next, v++) {
        *v = w->view;
        v->step_since = atomic_load_explicit(&w->step_since, memory_order_relaxed);
    }
    pthread_mutex_unlock(&sv->lock);

    if (!list)
        return err_nomem(err);
    *ret = list;
    *ret_n = n;
    return 0;
}

/* ---- running ---- */

static void log_watch_status(void *ctx, const struct error *why)
{
    const struct supervisor *sv = ctx;
    if (why)
        log_at(sv->log, LOG_WARN_, NULL,
               "could not watch for new events: %s; every consumer polls twice a second",
               why->text);
    else
        log_at(sv->log, LOG_INFO_, NULL, "watching for new events again");
}

/* Waits for all threads. Their first error becomes the caller's, if `result` is 0. */
static int end_workers(struct supervisor *sv, int result, struct error *err)
{
    pthread_mutex_lock(&sv->lock);
    struct worker *w = sv->first;
    sv->first = NULL;
    pthread_mutex_unlock(&sv->lock);

    for (struct worker *next; w; w = next) {
        next = w->next;
        pthread_join(w->thread, NULL);
        bool first_error = result == 0 && w->error.code;
        if (first_error) {
            result = -1;
            if (err)
                *err = w->error;
            err_prefix(err, "consumer \"%s\"", w->consumer->name);
        }
        worker_close(w);
    }
    return result;
}

/* Warns if the inbox forgets an event that may still be delivered again. */
static void warn_of_inbox(const struct supervisor *sv, const struct worker *w)
{
    char inbox[32], need[32];
    int64_t horizon = sv->retention_ms + retry_horizon(&w->consumer->retry);
    if (!w->named || sv->inbox_ms >= horizon)
        return;
    text_duration_show(sv->inbox_ms, inbox);
    text_duration_show(horizon, need);
    log_at(sv->log, LOG_WARN_, w->consumer->name,
           "inbox-retention is %s, but an event can be delivered again for %s (retention and "
           "retries); raise inbox-retention, or a handler can take effect twice",
           inbox, need);
}

int supervisor_run(struct supervisor *sv, struct worker *const *w, size_t n, bool until_through,
                   struct error *err)
{
    struct lease_renewer renewer = {0};
    int result = 0;
    sv->round = 0;
    sv->budget.limit = (size_t)sv->memory;
    if (pool_possible(sv->st, n)) {
        struct pool_config cfg = {.clock = sv->clock,
                                  .connections = sv->connections,
                                  .sweep_ms = sv->sweep_ms,
                                  .watch_status = log_watch_status,
                                  .ctx = sv};
        for (size_t i = 0; i < n; i++)
            cfg.tx_workers += w[i]->named;
        result = pool_open(sv->st, &cfg, &sv->pool, err);
    }

    /* Open all workers before the first consumer is registered, so that nothing is registered if
     * one of them cannot be opened. */
    for (size_t i = 0; result == 0 && i < n; i++)
        result = worker_open(w[i], !until_through, err);
    for (size_t i = 0; result == 0 && i < n; i++)
        result = register_consumer(w[i], until_through, err);
    if (result == 0 && sv->pool)
        result = pool_watch(sv->pool, err);
    if (result == 0)
        result = lease_renewer_start(&renewer, sv, w, n, err);
    for (size_t i = 0; result == 0 && i < n; i++)
        result = worker_start(w[i], err);

    if (result == 0) {
        for (size_t i = 0; i < n; i++)
            warn_of_inbox(sv, w[i]);
        log_at(sv->log, LOG_INFO_, NULL, "started, consumers: %zu", n);
        if (sv->started)
            sv->started(sv->hook_ctx);
        supervise(sv, until_through);
        result = end_workers(sv, 0, err);
    } else {
        supervisor_stop(sv);
        end_workers(sv, -1, NULL);
        for (size_t i = 0; i < n; i++)
            worker_close(w[i]);
    }
    lease_renewer_stop(&renewer);
    pool_close(sv->pool);
    sv->pool = NULL;

    /* Ready to run again. */
    atomic_store(&sv->stop, false);
    wake_fd_clear(sv->stop_fd);
    return result;
}

/* ---- one step in the caller's thread ---- */

static int64_t delivered_by(struct worker *const *w, size_t n)
{
    int64_t total = 0;
    for (size_t i = 0; i < n; i++)
        total += pipeline_stats(w[i]->p)->delivered;
    return total;
}

static int64_t failures_of(const struct worker *w)
{
    return pipeline_stats(w->p)->retried + pipeline_stats(w->p)->buried;
}

static int step_open(struct supervisor *sv, struct worker *const *w, size_t n,
                     size_t *ret_delivered, struct error *err)
{
    struct lease_renewer renewer;
    if (lease_renewer_start(&renewer, sv, w, n, err) != 0)
        return -1;
    int64_t before = delivered_by(w, n), round_before;
    int result = 0;
    do {
        /* Repeat until a whole round delivers nothing: a handler may emit events for a consumer
         * that has already had its turn. */
        round_before = delivered_by(w, n);
        for (size_t i = 0; result == 0 && i < n; i++) {
            pipeline_wake(w[i]->p);
            result = worker_finish(w[i], err);
        }
    } while (result == 0 && delivered_by(w, n) != round_before);
    lease_renewer_stop(&renewer);

    pthread_mutex_lock(&sv->lock);
    for (size_t i = 0; i < n; i++)
        worker_show(w[i]);
    pthread_mutex_unlock(&sv->lock);
    if (ret_delivered)
        *ret_delivered = (size_t)(delivered_by(w, n) - before);

    for (size_t i = 0; i < n; i++) {
        bool failed = failures_of(w[i]) > w[i]->failures;
        if (result == 0 && failed)
            result = err_class(err, ERR_UNAVAILABLE, CLASS_RETRY, 0, "consumer \"%s\": %s",
                               w[i]->consumer->name, pipeline_stats(w[i]->p)->failure);
        worker_leave(w[i], err, &result);
    }
    return result;
}

int supervisor_step(struct supervisor *sv, struct worker *const *w, size_t n, size_t *ret_delivered,
                    struct error *err)
{
    struct supervisor_entry entry;
    int result = 0;
    supervisor_enter(&entry, sv);
    sv->budget.limit = (size_t)sv->memory;
    for (size_t i = 0; result == 0 && i < n; i++) {
        bool left_open = w[i]->p != NULL; /* by an earlier step */
        if (!left_open) {
            result = worker_open(w[i], false, err);
            if (result == 0 && pipeline_register(w[i]->p, err) != 0) {
                worker_close(w[i]);
                result = -1;
            }
        }
        if (result == 0)
            w[i]->failures = failures_of(w[i]);
    }
    if (result == 0)
        result = step_open(sv, w, n, ret_delivered, err);
    supervisor_leave(&entry);
    return result;
}
