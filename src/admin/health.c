/* health.c: derives a consumer's health from its pipeline's metrics, and the relay's from its
 * consumers. */
#include "admin/admin.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define S_NS (1000 * MS_NS)

static struct health health_text(bool ready, bool alive, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static struct health health_text(bool ready, bool alive, const char *fmt, ...)
{
    struct health h = {.ready = ready, .alive = alive};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(h.text, sizeof h.text, fmt, ap);
    va_end(ap);
    return h;
}

int64_t health_stalled(const struct worker_view *v, int64_t now_ns)
{
    int64_t since = v->stats.stalled_since;
    bool stalled = v->state == PIPELINE_RUNNING && since && since < now_ns;
    if (!stalled)
        return 0;
    return now_ns - since;
}

/* Returns the health of a consumer that has been stalled for longer than the limit. If the sink
 * reports nothing, not even a timeout, the loop itself is broken. */
static struct health stuck_health(const struct worker_view *v, int64_t now, int64_t patience)
{
    int64_t silent = now - v->stats.ended_at;
    long long s = (long long)(health_stalled(v, now) / S_NS);
    if (v->stats.why[0])
        return health_text(false, true, "no progress for %lld s: %s", s, v->stats.why);
    if (silent <= patience)
        return health_text(false, true, "no progress for %lld s: every delivery fails", s);

    bool alive = silent <= patience + v->timeout_ms * MS_NS;
    return health_text(false, alive, "no progress for %lld s: no answer from the sink for %lld s",
                       s, (long long)(silent / S_NS));
}

struct health health_of(const struct worker_view *v, int64_t now_ns, int64_t patience_ns,
                        bool paused)
{
    int64_t in_step = v->step_since ? now_ns - v->step_since : 0;
    if (v->state == PIPELINE_FAILED)
        return health_text(false, true, "stopped: %s", v->error);
    if (in_step > patience_ns)
        return health_text(
            false, false,
            "stuck for %lld s: the store does not answer, or a handler does not return",
            (long long)(in_step / S_NS));
    if (v->state != PIPELINE_RUNNING)
        return health_text(false, true, "stopping");
    if (v->stats.standby_why.code)
        return health_text(false, true, "standing by: %s", v->error);
    if (paused || v->stats.paused)
        return health_text(true, true, "paused");

    if (health_stalled(v, now_ns) > patience_ns)
        return stuck_health(v, now_ns, patience_ns);
    if (v->stats.why[0])
        return health_text(true, true, "waiting: %s", v->stats.why);
    if (v->stats.stalled_since)
        return health_text(true, true, "working");
    return health_text(true, true, "idle");
}

/* ---- all consumers ---- */

/* Asks the store whether a consumer is paused. No answer counts as no. */
static bool store_says_paused(struct store *st, const char *name)
{
    struct consumer_gauge g;
    struct arena a;
    if (!st)
        return false;
    arena_init(&a, 0);
    bool paused = st->ops->consumer_gauge(st, name, &a, &g, NULL) == 0 && g.paused;
    arena_release(&a);
    return paused;
}

/* The health of a relay without consumers: it waits for its store, or all its consumers have
 * stopped. A restart would not help, so it counts as alive. */
static struct health none_running(struct admin_config *cfg, struct buf *verbose)
{
    struct health h = {.ready = false, .alive = true};
    pthread_mutex_lock(&cfg->lock);
    memcpy(h.text, cfg->waits, sizeof h.text);
    pthread_mutex_unlock(&cfg->lock);
    if (verbose)
        buf_addf(verbose, "[-] %s\n", h.text[0] ? h.text : "no consumer is running");
    return h;
}

struct health admin_health(struct admin_config *cfg, struct store *st, struct buf *verbose)
{
    struct health all = {.ready = true, .alive = true};
    struct worker_view *v;
    size_t n;
    int64_t now = clock_mono(&clock_system), patience = cfg->patience_ms * MS_NS;
    outbox *ob = atomic_load(&cfg->ob);
    if (!ob)
        return none_running(cfg, verbose);
    if (supervisor_views(&ob->sv, &v, &n, NULL) != 0)
        return all; /* out of memory: a restart would not help */

    for (size_t i = 0; i < n; i++) {
        /* Ask the store only about a consumer that seems to be stuck: it may have been paused with
         * work in hand. */
        struct health h = health_of(&v[i], now, patience, false);
        bool seems_stuck = !h.ready && v[i].state == PIPELINE_RUNNING && !v[i].stats.paused;
        if (seems_stuck && store_says_paused(st, v[i].consumer))
            h = health_of(&v[i], now, patience, true);

        if (verbose)
            buf_addf(verbose, "[%c] %s: %s\n", h.ready ? '+' : '-', v[i].consumer, h.text);
        if (all.ready && !h.ready)
            memcpy(all.text, h.text, sizeof all.text);
        all.ready = all.ready && h.ready;
        all.alive = all.alive && h.alive;
    }
    free(v);
    if (n == 0)
        return none_running(cfg, verbose);
    return all;
}
