#include "engine/failure.h"

#include <stdio.h>

#include "base/clock.h"
#include "engine/pipeline_impl.h"

#define DELAY_MIN_MS 100
#define DELAY_MAX_MS 30000
#define PROBES_MS 2000 /* with delays up to this there may be several probes at once */
/* How many events probe a sink that answers but accepts nothing. A single probe might be an event
 * that this sink never accepts. */
#define PROBES 4

/* ---- the circuit ---- */

void circuit_init(struct circuit *c)
{
    *c = (struct circuit){.window = CIRCUIT_FULL};
}

size_t circuit_room(struct circuit *c, int64_t now, size_t inflight)
{
    if (c->until && now < c->until)
        return 0;
    if (c->window >= CIRCUIT_FULL)
        return SIZE_MAX;
    return c->window > inflight ? c->window - inflight : 0;
}

bool circuit_down(struct circuit *c, int64_t now, int64_t retry_after_ms, size_t probes,
                  struct rng *r)
{
    bool waits = c->until && now < c->until; /* one of many deliveries in flight */
    if (!waits) {
        c->delay_ms = min_i64(max_i64(2 * c->delay_ms, DELAY_MIN_MS), DELAY_MAX_MS);
        int64_t wait = c->delay_ms / 2 + (int64_t)rng_below(r, (uint64_t)c->delay_ms / 2 + 1);
        c->until = now + max_i64(wait, retry_after_ms) * MS_NS;
        c->window = 1;
    }
    if (c->window == 1 && c->delay_ms <= PROBES_MS)
        c->window = probes;
    return !waits;
}

void circuit_up(struct circuit *c)
{
    c->until = 0;
    if (c->window < CIRCUIT_FULL)
        c->window *= 2;
    /* Unless the sink has proved itself, the next outage begins with a long wait. */
    if (c->window >= CIRCUIT_FULL)
        c->delay_ms = 0;
}

/* ---- the line for operators ---- */

void circuit_report_note(struct circuit_report *r, const char *text)
{
    snprintf(r->text, sizeof r->text, "%s", text);
    r->due = true;
}

void circuit_report_paused(struct circuit_report *r, const char *why)
{
    char text[CIRCUIT_REPORT_TEXT];
    snprintf(text, sizeof text, "paused: %s", why);
    circuit_report_note(r, text);
    r->paused = true;
}

void circuit_report_answered(struct circuit_report *r, bool was_down, bool paused)
{
    bool resumed = r->paused && !paused;
    bool first = !r->answered;
    r->answered = true;
    if (resumed)
        r->paused = false;
    if (r->paused)
        return; /* operators must still see the reason for the pause */

    bool may_have_line = was_down || resumed || first;
    if (may_have_line)
        circuit_report_note(r, "");
}

bool circuit_report_take(struct circuit_report *r, const char **ret_text)
{
    if (!r->due)
        return false;
    r->due = false;
    *ret_text = r->text[0] ? r->text : NULL;
    return true;
}

void circuit_report_write(struct pipeline *p)
{
    const char *text;
    struct error err;
    if (!circuit_report_take(&p->report, &text))
        return;
    /* If that fails, the line is lost; the next one replaces it anyway. */
    if (p->cfg.st->ops->consumer_report(p->cfg.st, p->c->name, text, &err) != 0)
        pipeline_log(p, LOG_WARN_, "store: %s", err.text);
}

/* ---- the sink of a pipeline ---- */

/* Notes and logs that the sink is down, and the consequence. */
static void note_down(struct pipeline *p, const char *what, const char *next)
{
    bool first = !p->stats.down;
    enum log_level level = first ? LOG_WARN_ : LOG_DEBUG_;
    snprintf(p->stats.why, sizeof p->stats.why, "%s", what);
    pipeline_log(p, level, "%s; %s", what, next);
    if (!first)
        return;

    p->stats.down = true;
    p->stats.down_since = pipeline_now(p);
    p->stats.meter.openings++;
    circuit_report_note(&p->report, what);
}

/* Stops sending, except for an occasional probe. If several deliveries in flight fail, only the
 * first is logged. */
static void open_circuit(struct pipeline *p, const char *what, int64_t retry_after_ms,
                         size_t probes)
{
    int64_t now = pipeline_now(p);
    if (!circuit_down(&p->circuit, now, retry_after_ms, probes, p->cfg.rng))
        return;

    char next[64];
    snprintf(next, sizeof next, "trying again in %lld ms",
             (long long)((p->circuit.until - now) / MS_NS));
    note_down(p, what, next);

    /* Another relay may be able to reach the sink; but handlers run in this process. */
    bool for_a_lease = now - p->stats.down_since >= p->c->lease_ms * MS_NS;
    if (for_a_lease && !effects_used(&p->effects))
        inflight_want_back(&p->inflight);
}

void circuit_sink_down(struct pipeline *p, const char *why, int64_t retry_after_ms)
{
    char what[CIRCUIT_REPORT_TEXT];
    snprintf(what, sizeof what, "sink is down: %s", why);
    open_circuit(p, what, retry_after_ms, 1);
}

void circuit_sink_fails(struct pipeline *p, const char *why, int64_t retry_after_ms, bool several)
{
    char what[CIRCUIT_REPORT_TEXT];
    snprintf(what, sizeof what, "sink is down: every delivery fails: %s", why);
    if (several) {
        open_circuit(p, what, retry_after_ms, PROBES);
    } else if (!p->stats.down) {
        note_down(p, what, "based on a single event");
    }
}

void circuit_sink_answered(struct pipeline *p)
{
    bool was_down = p->stats.down;
    circuit_up(&p->circuit);
    if (was_down) {
        p->stats.down = false;
        p->stats.down_since = 0;
        p->stats.why[0] = '\0';
        pipeline_log(p, LOG_INFO_, "sink is back");
    }
    circuit_report_answered(&p->report, was_down, p->stats.paused);
}
