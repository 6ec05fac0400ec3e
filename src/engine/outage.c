/* outage.c: what a pipeline knows of its sink as a whole: that it is away, that nothing gets
 * through, that it is back. */
#include <stdio.h>

#include "engine/pipeline_impl.h"

/* of a sink that answers: with one event each time it might always be one that it does not like */
#define PROBES 4

void outage_report(struct pipeline *p)
{
    const char *text;
    struct error err;
    if (!report_take(&p->report, &text))
        return;
    /* A note for operators: the next one will do. But what the store says of itself is said
     * once. */
    if (p->cfg.st->ops->consumer_report(p->cfg.st, p->c->name, text, &err) != 0) {
        log_at(p->cfg.log, LOG_WARN_, p->c->name, "store: %s", err.text);
    }
}

/* say_down tells operators that the sink is down, and why. */
static void say_down(struct pipeline *p, const char *what, const char *next)
{
    bool first = !p->stats.down;
    snprintf(p->stats.why, sizeof p->stats.why, "%s", what);
    log_at(p->cfg.log, first ? LOG_WARN_ : LOG_DEBUG_, p->c->name, "%s; %s", what, next);
    if (!first)
        return;
    p->stats.down = true;
    p->stats.down_since = pipeline_now(p);
    p->stats.meter.openings++;
    report_trouble(&p->report, what);
}

/* let_others_try: it may be that only we cannot reach the sink. So events are not kept for longer
 * than a lease: another relay can have them. Handlers are no place that only others can reach. */
static void let_others_try(struct pipeline *p, int64_t now)
{
    bool for_long = now - p->stats.down_since >= p->c->lease_ms * MS_NS;
    if (for_long && !effects_used(&p->effects))
        hand_want_back(&p->hand);
}

/* open_circuit sends nothing for a while but a probe now and then. Of many deliveries that were in
 * flight the first one says so. */
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

/* A single event that fails may be the only one there is to try. Then its own retries are the
 * probes, and no other has to wait for them. */
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
