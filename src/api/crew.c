#include "api/crew.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "api/defaults.h"
#include "api/heart.h"
#include "api/runner.h"
#include "base/text.h"
#include "pool/pool.h"
#include "store/trimming.h"

#define TRIM_EVERY_MIN_MS INT64_C(1000)
#define TRIM_EVERY_MAX_MS (30 * INT64_C(1000)) /* as samples are: an event goes within a minute */
#define TRIM_WARN_EVERY_MS (3600 * INT64_C(1000))

#define AT(field) .at = offsetof(struct crew, field)

const struct option_def crew_options[] = {DEFAULTS_ROWS(AT), {NULL}};

static _Thread_local struct crew_duty *on_duty; /* the innermost one */

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

int crew_handle(struct crew *w, struct store **ret, struct error *err)
{
    if (w->pool)
        return pool_store_new(w->pool, NULL, ret, err);
    return w->st->ops->dup(w->st, ret, err);
}

/* ---- trimming ---- */

/* What is known between the batches of a crew's trimming. */
struct trimmer {
    struct store *st; /* a handle of its own, opened at the first use */
    struct trimming pace;
    int64_t warn_at; /* not before this does it warn again */
};

/* trim_every gives the ms between looks for what is old: a tenth of retention, half a minute at
 * most, so that events go soon after their time and never many of them at once. */
static int64_t trim_every(const struct crew *w)
{
    int64_t every = w->retention_ms / 10;
    if (every < TRIM_EVERY_MIN_MS)
        return TRIM_EVERY_MIN_MS;
    if (every > TRIM_EVERY_MAX_MS)
        return TRIM_EVERY_MAX_MS;
    return every;
}

/* may_warn limits warnings to one an hour: what is wrong is seldom mended within a minute. */
static bool may_warn(const struct crew *w, struct trimmer *t)
{
    int64_t now = clock_mono(w->clock);
    if (now < t->warn_at)
        return false;
    t->warn_at = now + TRIM_WARN_EVERY_MS * MS_NS;
    return true;
}

/* trim deletes one small batch of what is old. */
static int trim(struct crew *w, struct trimmer *t, struct trim_result *ret, struct error *err)
{
    if (!t->st && crew_handle(w, &t->st, err) != 0)
        return -1;

    struct trim_request req = {
        .older_than_ms = w->retention_ms,
        .inbox_ms = w->inbox_ms,
    };
    return trimming_step(&t->pace, t->st, w->clock, &req, ret, err);
}

/* trim_some deletes one small batch, and returns how many ns to wait before the next. */
static int64_t trim_some(struct crew *w, struct trimmer *t)
{
    struct trim_result res;
    struct error err;
    if (trim(w, t, &res, &err) != 0) {
        if (may_warn(w, t))
            log_at(w->log, LOG_WARN_, NULL, "could not trim: %s; trying again", err.text);
        return TRIM_EVERY_MAX_MS * MS_NS;
    }

    if (res.more)
        return t->pace.pause_ns;
    t->pace.rows = 0;
    if (res.kept_for_pin && may_warn(w, t))
        log_at(w->log, LOG_WARN_, NULL, "old events are kept because of %s", res.pin);
    return trim_every(w) * MS_NS;
}

/* ---- supervising ---- */

static void wait_changed(struct crew *w, int64_t until)
{
    struct timespec ts = {until / 1000000000, until % 1000000000};
    if (until == CLOCK_NEVER)
        pthread_cond_wait(&w->changed, &w->lock);
    else
        pthread_cond_timedwait(&w->changed, &w->lock, &ts);
}

static bool each_through(const struct crew *w)
{
    for (const struct runner *r = w->first; r; r = r->next) {
        if (!r->through)
            return false;
    }
    return true;
}

/* round_over says whether each runner has looked for work since the round began. */
static bool round_over(const struct crew *w)
{
    for (const struct runner *r = w->first; r; r = r->next) {
        bool looked = r->ended || r->round_seen == w->round;
        if (!looked)
            return false;
    }
    return true;
}

static int64_t claims_of(const struct crew *w)
{
    int64_t claims = 0;
    for (const struct runner *r = w->first; r; r = r->next)
        claims += r->claims;
    return claims;
}

static void begin_round(struct crew *w)
{
    w->round++;
    for (struct runner *r = w->first; r; r = r->next)
        runner_wake(r);
}

/* all_through says whether nothing is left to do for any consumer. It is not enough that each found
 * nothing when it last looked: a handler may have emitted something since for one that looked
 * earlier. So when all seem to be through, a round begins in which each looks once more. They are
 * through if none made a claim in it; otherwise there is another round. */
static bool all_through(struct crew *w, int64_t *claims_before)
{
    if (!each_through(w))
        return false;
    bool in_round = w->round > 0;
    if (in_round && !round_over(w))
        return false;

    int64_t claims = claims_of(w);
    if (in_round && claims == *claims_before)
        return true;
    *claims_before = claims;
    begin_round(w);
    return false;
}

static bool all_ended(const struct crew *w)
{
    for (const struct runner *r = w->first; r; r = r->next) {
        if (!r->ended)
            return false;
    }
    return true;
}

static void stop_crew(struct crew *w)
{
    uint64_t one = 1;
    atomic_store(&w->stop, true);
    /* A write fails only where the counter is full, and then the descriptor is readable anyway. */
    if (write(w->stop_fd, &one, sizeof one) < 0)
        return;
}

/* reload lets the host change the crew. If it is wanted again meanwhile, it will run again. */
static void reload(struct crew *w)
{
    w->reload_wanted = false;
    pthread_mutex_unlock(&w->lock);
    bool stopping = atomic_load(&w->stop);
    if (w->reload && !stopping)
        w->reload(w->hook_ctx);
    pthread_mutex_lock(&w->lock);
}

/* supervise waits until all runners have ended. Meanwhile it reloads and trims. With until_through
 * it stops them once nothing is left to do; then it does not trim. */
static void supervise(struct crew *w, bool until_through)
{
    struct trimmer trimmer = {0};
    int64_t claims = -1;
    int64_t trim_at = CLOCK_NEVER;
    bool trims = w->retention_ms > 0 && !until_through;
    if (trims)
        trim_at = clock_mono(w->clock);

    pthread_mutex_lock(&w->lock);
    w->until_through = until_through;
    while (!all_ended(w)) {
        if (w->reload_wanted) {
            reload(w);
            continue;
        }
        bool running = !atomic_load(&w->stop);
        if (until_through && running && all_through(w, &claims))
            stop_crew(w);
        if (clock_mono(w->clock) >= trim_at) {
            pthread_mutex_unlock(&w->lock);
            trim_at = clock_mono(w->clock) + trim_some(w, &trimmer);
            pthread_mutex_lock(&w->lock);
            continue;
        }
        wait_changed(w, trim_at);
    }
    pthread_mutex_unlock(&w->lock);
    store_close(trimmer.st);
}

/* ---- runners come and go ---- */

/* warn_of_inbox warns if the inbox forgets an event while that may still be delivered again. */
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
           "retries): make it longer, or a handler may take effect twice",
           inbox, need);
}

/* set_to_work starts the thread of an open runner and appends the runner to the list. */
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

/* admit registers the consumer of an open runner. This comes last, when nothing else can go wrong:
 * the store keeps events for every registered consumer, and nobody would run this one. With
 * `strict`, a consumer that would have to stand by is refused. */
static int admit(struct runner *r, bool strict, struct error *err)
{
    if (pipeline_register(r->p, err) != 0)
        return -1;
    const struct error *why = pipeline_standby(r->p);
    bool stands_by = why->code != 0;
    if (!strict || !stands_by)
        return 0;
    if (err)
        *err = *why;
    return -1;
}

int crew_add(struct crew *w, struct runner *r, bool strict, struct error *err)
{
    if (runner_begin(r, true, err) != 0)
        return -1;
    int result = admit(r, strict, err);
    if (result == 0)
        result = set_to_work(w, r, err);
    if (result != 0)
        runner_close(r);
    return result;
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

static size_t count_runners(const struct crew *w)
{
    size_t n = 0;
    for (const struct runner *r = w->first; r; r = r->next)
        n++;
    return n;
}

static void copy_views(const struct crew *w, struct runner_view *list)
{
    for (const struct runner *r = w->first; r; r = r->next) {
        *list = r->view;
        list->step_since = atomic_load_explicit(&r->step_since, memory_order_relaxed);
        list++;
    }
}

int crew_views(struct crew *w, struct runner_view **ret, size_t *ret_n, struct error *err)
{
    pthread_mutex_lock(&w->lock);
    size_t n = count_runners(w);
    struct runner_view *list = calloc(n + 1, sizeof *list);
    if (list)
        copy_views(w, list);
    pthread_mutex_unlock(&w->lock);

    if (!list)
        return err_nomem(err);
    *ret = list;
    *ret_n = n;
    return 0;
}

/* ---- running ---- */

/* take_all empties the list of runners and returns it. */
static struct runner *take_all(struct crew *w)
{
    pthread_mutex_lock(&w->lock);
    struct runner *first = w->first;
    w->first = NULL;
    pthread_mutex_unlock(&w->lock);
    return first;
}

static int runner_result(const struct runner *r, struct error *err)
{
    if (!r->error.code)
        return 0;
    if (err)
        *err = r->error;
    err_prefix(err, "consumer \"%s\"", r->consumer->name);
    return -1;
}

/* end_all waits for all threads. Their first error becomes the crew's, if `result` is 0. */
static int end_all(struct crew *w, int result, struct error *err)
{
    struct runner *next;
    for (struct runner *r = take_all(w); r; r = next) {
        next = r->next;
        pthread_join(r->thread, NULL);
        if (result == 0)
            result = runner_result(r, err);
        runner_close(r);
    }
    return result;
}

/* begin_all opens all runners before it registers the first consumer, so that nothing is registered
 * if one of them cannot be opened. */
static int begin_all(struct runner *const *r, size_t n, bool until_through, struct error *err)
{
    int result = 0;
    for (size_t i = 0; result == 0 && i < n; i++)
        result = runner_begin(r[i], !until_through, err);
    for (size_t i = 0; result == 0 && i < n; i++)
        result = admit(r[i], until_through, err);
    return result;
}

static int start_all(struct crew *w, struct runner *const *r, size_t n, struct error *err)
{
    int result = 0;
    for (size_t i = 0; result == 0 && i < n; i++)
        result = set_to_work(w, r[i], err);
    return result;
}

/* abandon stops what start_all has started and closes everything that begin_all has opened. */
static void abandon(struct crew *w, struct runner *const *r, size_t n)
{
    stop_crew(w);
    end_all(w, -1, NULL);
    for (size_t i = 0; i < n; i++)
        runner_close(r[i]);
}

static void announce(const struct crew *w, struct runner *const *r, size_t n)
{
    for (size_t i = 0; i < n; i++)
        warn_of_inbox(w, r[i]);
    log_at(w->log, LOG_INFO_, NULL, "started, consumers: %zu", n);
    if (w->started)
        w->started(w->hook_ctx);
}

/* reset_stop makes the crew ready to run again. */
static void reset_stop(struct crew *w)
{
    uint64_t count;
    atomic_store(&w->stop, false);
    if (read(w->stop_fd, &count, sizeof count) < 0)
        return; /* nobody stopped it */
}

static void log_watch_status(void *ctx, const struct error *why)
{
    const struct crew *w = ctx;
    if (why)
        log_at(w->log, LOG_WARN_, NULL,
               "could not look for new events: %s; every consumer looks for itself twice a second",
               why->text);
    else
        log_at(w->log, LOG_INFO_, NULL, "looking for new events again");
}

/* open_pool has the runners share a few connections, if the store can do that. */
static int open_pool(struct crew *w, struct runner *const *r, size_t n, struct error *err)
{
    if (!pool_possible(w->st, n))
        return 0;
    struct pool_config cfg = {.clock = w->clock,
                              .connections = w->connections,
                              .sweep_ms = w->sweep_ms,
                              .watch_status = log_watch_status,
                              .ctx = w};
    for (size_t i = 0; i < n; i++)
        cfg.tx_workers += r[i]->named;
    return pool_open(w->st, &cfg, &w->pool, err);
}

int crew_run(struct crew *w, struct runner *const *r, size_t n, bool until_through,
             struct error *err)
{
    struct heart heart = {0};
    w->round = 0;
    w->budget.limit = (size_t)w->memory;
    int result = open_pool(w, r, n, err);
    if (result == 0)
        result = begin_all(r, n, until_through, err);
    if (result == 0 && w->pool)
        result = pool_watch(w->pool, err); /* only now: all runners are open */
    if (result == 0)
        result = heart_start(&heart, w, r, n, err);
    if (result == 0)
        result = start_all(w, r, n, err);

    if (result == 0) {
        announce(w, r, n);
        supervise(w, until_through);
        result = end_all(w, 0, err);
    } else {
        abandon(w, r, n);
    }
    heart_stop(&heart);
    pool_close(w->pool);
    w->pool = NULL;
    reset_stop(w);
    return result;
}
