/* outage.c: what a pipeline knows of its sink as a whole: that it is down, that nothing gets
 * through, that it is back. */
#include <stdio.h>

#include "engine/pipeline_impl.h"

/* How many events probe a sink that answers but takes nothing. A single one might be an event that
 * this sink never takes. */
#define PROBES 4

void outage_report(struct pipeline *p)
{
    const char *text;
    struct error err;
    if (!report_take(&p->report, &text))
        return;
    /* The line is lost, and the next one will do. What the store said is logged, though. */
    if (p->cfg.st->ops->consumer_report(p->cfg.st, p->c->name, text, &err) != 0) {
        log_at(p->cfg.log, LOG_WARN_, p->c->name, "store: %s", err.text);
    }
}

/* say_down notes and logs that the sink is down, and why. */
static void say_down(struct pipeline *p, const char *what, const char *next)
{
    bool first = !p->stats.down;
    enum log_level level = first ? LOG_WARN_ : LOG_DEBUG_;
    snprintf(p->stats.why, sizeof p->stats.why, "%s", what);
    log_at(p->cfg.log, level, p->c->name, "%s; %s", what, next);
    if (!first)
        return;

    p->stats.down = true;
    p->stats.down_since = pipeline_now(p);
    p->stats.meter.openings++;
    report_trouble(&p->report, what);
}

/* let_others_try gives back what is in hand once the sink has been down for as long as a lease:
 * another relay may be able to reach it. Handlers run in this process, so there is no point in that
 * for them. */
static void let_others_try(struct pipeline *p, int64_t now)
{
    bool for_long = now - p->stats.down_since >= p->c->lease_ms * MS_NS;
    if (for_long && !effects_used(&p->effects))
        hand_want_back(&p->hand);
}

/* open_circuit stops sending, except for a probe now and then. Of several deliveries in flight that
 * fail, only the first is logged. */
static void open_circuit(struct pipeline *p, const char *what, int64_t retry_after_ms,
                         size_t probes)
{
    int64_t now = pipeline_now(p);
    bool open_already = circuit_open(&p->circuit) && now < p->circuit.until;
    circuit_down(&p->circuit, now, retry_after_ms, p->cfg.rng);
    circuit_probes(&p->circuit, probes);
    if (open_already)
        return;

    char next[64];
    snprintf(next, sizeof next, "trying again in %lld ms",
             (long long)((p->circuit.until - now) / MS_NS));
    say_down(p, what, next);
    let_others_try(p, now);
}

void outage_down(struct pipeline *p, const char *why, int64_t retry_after_ms)
{
    char what[REPORT_TEXT];
    snprintf(what, sizeof what, "sink is down: %s", why);
    open_circuit(p, what, retry_after_ms, 1);
}

/* outage_suspected opens the circuit only if several events fail. A single one may be the only one
 * there is to try: then its own retries are the probes, and no other event has to wait for them. */
void outage_suspected(struct pipeline *p, const char *why, int64_t retry_after_ms)
{
    char what[REPORT_TEXT];
    snprintf(what, sizeof what, "sink is down: every delivery fails: %s", why);
    if (evidence_many(&p->evidence)) {
        open_circuit(p, what, retry_after_ms, PROBES);
    } else if (!p->stats.down) {
        say_down(p, what, "only one event was there to try it with");
    }
}

void outage_answered(struct pipeline *p)
{
    bool was_down = p->stats.down;
    circuit_up(&p->circuit);
    if (was_down) {
        p->stats.down = false;
        p->stats.down_since = 0;
        p->stats.why[0] = '\0';
        log_at(p->cfg.log, LOG_INFO_, p->c->name, "sink is back");
    }
    report_answered(&p->report, was_down, p->stats.paused);
}

void outage_passed(struct pipeline *p, const struct item *it)
{
    evidence_passed(&p->evidence, it->sent_at);
    outage_answered(p);
}
