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

int64_t health_stalled(const struct runner_view *v, int64_t now_ns)
{
    int64_t since = v->stats.stalled_since;
    return v->state == PIPELINE_RUNNING && since && since < now_ns ? now_ns - since : 0;
}

/* stuck: it has had work for longer than it may without getting any done. If the sink says nothing
 * at all, not even that a delivery took too long, then it is the loop that has gone wrong. */
static struct health stuck(const struct runner_view *v, int64_t now, int64_t patience,
                           int64_t stalled)
{
    long long s = (long long)(stalled / S_NS),
              silent = (long long)((now - v->stats.ended_at) / S_NS);
    if (v->stats.why[0])
        return say(false, true, "no progress for %lld s: %s", s, v->stats.why);
    if (now - v->stats.ended_at <= patience)
        return say(false, true, "no progress for %lld s: every delivery fails", s);
    return say(false, now - v->stats.ended_at <= patience + v->timeout_ms * MS_NS,
               "no progress for %lld s: no answer from the sink for %lld s", s, silent);
}

struct health health_of(const struct runner_view *v, int64_t now_ns, int64_t patience_ns,
                        bool paused)
{
    int64_t stalled = health_stalled(v, now_ns);
    if (v->state == PIPELINE_FAILED)
        return say(false, true, "stopped: %s", v->error);
    if (v->step_since && now_ns - v->step_since > patience_ns)
        return say(
            false, false,
            "stands still since %lld s: the store does not answer, or a handler does not return",
            (long long)((now_ns - v->step_since) / S_NS));
    if (v->state != PIPELINE_RUNNING)
        return say(false, true, "stopping");
    if (v->stats.standby)
        return say(false, true, "standing by: %s", v->error);
    if (paused || v->stats.paused)
        return say(true, true, "paused");
    if (stalled > patience_ns)
        return stuck(v, now_ns, patience_ns, stalled);
    if (v->stats.why[0])
        return say(true, true, "waiting: %s", v->stats.why);
    return say(true, true, "%s", v->stats.stalled_since ? "working" : "idle");
}
