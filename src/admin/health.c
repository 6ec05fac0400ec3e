/* health.c: judges a consumer by the figures of its pipeline. */
#include "admin/health.h"

#include <stdarg.h>
#include <stdio.h>

#define S_NS (1000 * MS_NS)

static struct health say(bool ready, bool alive, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static struct health say(bool ready, bool alive, const char *fmt, ...)
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

/* stuck says why a consumer has made no progress for longer than it may. If the sink reports
 * nothing at all, not even that a delivery timed out, the loop itself has gone wrong. */
static struct health stuck(const struct worker_view *v, int64_t now, int64_t patience)
{
    int64_t silent = now - v->stats.ended_at;
    long long s = (long long)(health_stalled(v, now) / S_NS);
    if (v->stats.why[0])
        return say(false, true, "no progress for %lld s: %s", s, v->stats.why);
    if (silent <= patience)
        return say(false, true, "no progress for %lld s: every delivery fails", s);

    bool alive = silent <= patience + v->timeout_ms * MS_NS;
    return say(false, alive, "no progress for %lld s: no answer from the sink for %lld s", s,
               (long long)(silent / S_NS));
}

struct health health_of(const struct worker_view *v, int64_t now_ns, int64_t patience_ns,
                        bool paused)
{
    int64_t in_step = v->step_since ? now_ns - v->step_since : 0;
    if (v->state == PIPELINE_FAILED)
        return say(false, true, "stopped: %s", v->error);
    if (in_step > patience_ns)
        return say(false, false,
                   "stuck for %lld s: the store does not answer, or a handler does not return",
                   (long long)(in_step / S_NS));
    if (v->state != PIPELINE_RUNNING)
        return say(false, true, "stopping");
    if (v->stats.standby)
        return say(false, true, "standing by: %s", v->error);
    if (paused || v->stats.paused)
        return say(true, true, "paused");

    if (health_stalled(v, now_ns) > patience_ns)
        return stuck(v, now_ns, patience_ns);
    if (v->stats.why[0])
        return say(true, true, "waiting: %s", v->stats.why);
    if (v->stats.stalled_since)
        return say(true, true, "working");
    return say(true, true, "idle");
}
