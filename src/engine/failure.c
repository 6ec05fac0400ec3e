#include "engine/failure.h"

#include <stdarg.h>
#include <stdio.h>

#include "engine/pipeline_impl.h"

/* Minimum failures before a sink counts as down, and before an event is given up without proof. */
#define DOWN_FAILURES 3
#define USUAL 512 /* deliveries behind the usual failure rate */

/* ---- is the sink down? ---- */

/* Returns how many failures in a row are unlikely to be chance (1 in `odds`), given the usual
 * failure rate. */
static size_t surprising(const struct failure_detector *d, size_t least, double odds)
{
    double usual = d->usual_fails / (d->usual_fails + d->usual_passes + 1.0);
    double chance = 1.0;
    size_t n = 0;
    while (n < FAILURE_FAILING) {
        bool likely = chance > 1.0 / odds;
        if (n >= least && !likely)
            break;
        chance *= usual;
        n++;
    }
    return n;
}

/* Whether the sink is down beyond doubt: no event is given up then, however long that lasts. */
static bool certainly_down(const struct failure_detector *d)
{
    return d->n_failing >= surprising(d, FAILURE_CERTAIN, 1e6);
}

static bool fails_for_long(const struct failure_detector *d, int64_t ns)
{
    return d->failures >= surprising(d, DOWN_FAILURES, 1e3) && ns >= FAILURE_PATIENCE;
}

static bool counts_as_down(const struct failure_detector *d, int64_t now)
{
    return certainly_down(d) || fails_for_long(d, now - d->failing_since);
}

/* Whether a delivery was sent during the last completed outage. */
static bool sent_in_outage(const struct failure_detector *d, int64_t sent_at)
{
    return sent_at >= d->out_from && sent_at < d->out_to;
}

/* ---- successful deliveries ---- */

static bool is_near(int64_t failed_sent, int64_t passed_sent)
{
    return passed_sent > failed_sent && passed_sent <= failed_sent + FAILURE_NEAR;
}

/* Whether another delivery sent soon after sent_at got through. */
static bool passed_near(const struct failure_detector *d, int64_t sent_at)
{
    int64_t number = sent_at / FAILURE_SLICE;
    if (sent_in_outage(d, sent_at))
        return false;
    for (int64_t n = number; n <= number + FAILURE_NEAR / FAILURE_SLICE; n++) {
        const struct passed_slice *s = &d->passed[n % FAILURE_SLICES];
        if (s->number != n)
            continue;
        if (is_near(sent_at, s->first) || is_near(sent_at, s->last))
            return true;
    }
    return false;
}

/* Adds a success, and the failures before it, to the usual failure rate. Halving both counts gives
 * older deliveries less weight. */
static void note_usual(struct failure_detector *d)
{
    d->usual_passes++;
    d->usual_fails += (double)d->failures;
    if (d->usual_passes + d->usual_fails < USUAL)
        return;
    d->usual_passes /= 2;
    d->usual_fails /= 2;
}

/* Notes the end of a series of failures. If it was an outage, all of them are the sink's fault,
 * however soon the sink recovered. */
static void end_failures(struct failure_detector *d, int64_t sent_at)
{
    bool certain = certainly_down(d);
    bool for_long = fails_for_long(d, sent_at - d->first_sent);
    bool outage = certain || (d->n_failing > 1 && for_long);
    if (!outage) {
        note_usual(d);
        return;
    }
    d->out_from = d->first_sent;
    d->out_to = sent_at;
    d->out_least = certain ? 0 : FAILURE_PATIENCE;
}

/* Called when a delivery sent during the outage got through after all: its answer arrived after the
 * one that ended the outage. The longer part of the outage may still count as one. */
static void correct_outage(struct failure_detector *d, int64_t sent_at)
{
    bool late = sent_at - d->out_from > d->out_to - sent_at;
    if (late)
        d->out_to = sent_at;
    else
        d->out_from = sent_at + 1;
    if (d->out_to - d->out_from >= d->out_least)
        return;
    d->out_from = 0;
    d->out_to = 0;
}

/* Notes that deliveries sent soon after sent_at are evidence about a failure. */
static void leave_open(struct failure_detector *d, int64_t sent_at)
{
    d->open_until = max_i64(d->open_until, sent_at + FAILURE_NEAR);
}

/* Finds the open failures sent shortly before a delivery that got through: those are the event's
 * fault. */
static void classify_open(struct failure_detector *d)
{
    d->open_until = 0;
    for (size_t i = 0; i < FAILURE_OPEN; i++) {
        struct open_failure *f = &d->open[i];
        if (!f->seq || f->event_fault)
            continue;
        f->event_fault = passed_near(d, f->sent_at);
        if (!f->event_fault)
            leave_open(d, f->sent_at);
    }
}

static void note_passed(struct failure_detector *d, int64_t sent_at)
{
    int64_t number = sent_at / FAILURE_SLICE;
    struct passed_slice *s = &d->passed[number % FAILURE_SLICES];
    if (s->number != number)
        *s = (struct passed_slice){.number = number, .first = sent_at, .last = sent_at};
    s->first = min_i64(s->first, sent_at);
    s->last = max_i64(s->last, sent_at);
    d->passed_sent = max_i64(d->passed_sent, sent_at);
    if (sent_in_outage(d, sent_at))
        correct_outage(d, sent_at);

    /* A delivery sent before the series of failures does not end it. */
    bool back = d->failures > 0 && sent_at >= d->first_sent;
    if (back)
        end_failures(d, sent_at);
    else if (d->failures == 0)
        note_usual(d);
    if (sent_at <= d->open_until)
        classify_open(d);
    if (back) {
        d->failing_since = 0;
        d->failures = 0;
        d->n_failing = 0;
    }
}

void failure_passed(struct pipeline *p, const struct slot *slot)
{
    note_passed(&p->detector, slot->sent_at);
    circuit_sink_answered(p);
}

void failure_answered(struct pipeline *p)
{
    if (!counts_as_down(&p->detector, pipeline_now(p)))
        circuit_sink_answered(p);
}

/* ---- failed deliveries ---- */

static struct open_failure *find_open(struct failure_detector *d, int64_t seq)
{
    for (size_t i = 0; i < FAILURE_OPEN; i++) {
        if (d->open[i].seq == seq)
            return &d->open[i];
    }
    return NULL;
}

bool failure_is_events(const struct failure_detector *d, int64_t seq)
{
    const struct open_failure *f = find_open((struct failure_detector *)d, seq);
    return f && f->event_fault;
}

static void forget_open(struct failure_detector *d, int64_t seq)
{
    struct open_failure *f = find_open(d, seq);
    if (f)
        *f = (struct open_failure){0};
}

void failure_forget(struct pipeline *p, const struct batch_state *b)
{
    for (size_t i = 0; i < b->claim.n; i++)
        forget_open(&p->detector, b->claim.ev[i].seq);
}

/* Notes a failure of an event not known to be at fault. If a delivery sent later has already got
 * through, it is no evidence against the sink. */
static void note_failed(struct failure_detector *d, int64_t seq, int64_t sent_at, int64_t now)
{
    struct open_failure *f = find_open(d, seq);
    if (!f)
        f = &d->open[d->next_open++ % FAILURE_OPEN];
    *f = (struct open_failure){.seq = seq, .sent_at = sent_at};
    leave_open(d, sent_at);

    bool sink_worked_since = sent_at < d->passed_sent;
    if (sink_worked_since) {
        if (!sent_in_outage(d, sent_at))
            d->usual_fails++;
        return;
    }

    if (d->failures == 0) {
        d->failing_since = now;
        d->first_sent = sent_at;
    }
    d->failures++;
    for (size_t i = 0; i < d->n_failing; i++) {
        if (d->failing[i] == seq)
            return;
    }
    if (d->n_failing < FAILURE_FAILING)
        d->failing[d->n_failing++] = seq;
}

/* ---- ending a failed event ---- */

void failure_note(struct pipeline *p, const struct slot *slot, const char *text)
{
    snprintf(p->stats.failure, sizeof p->stats.failure, "%s: %s", slot->d.ev->type.p, text);
}

void failure_put_off(struct pipeline *p, struct slot *slot, int64_t delay_ms, const char *text)
{
    struct outcome out = {.kind = OUTCOME_RETRY,
                          .attempts = slot->d.ev->attempts,
                          .delay_ms = delay_ms,
                          .error = text};
    inflight_end(&p->inflight, slot, &out, true);
}

void failure_retry(struct pipeline *p, struct slot *slot, const struct sink_result *r)
{
    const struct event *ev = slot->d.ev;
    const char *text = failure_text(r);
    int64_t now = pipeline_now(p);
    failure_note(p, slot, text);
    failure_put_off(p, slot, r->retry_after_ms, text);
    slot->undecided = true;

    bool every_failure_counts = p->c->retry.outage_ms == 0;
    if (every_failure_counts) {
        failure_passed(p, slot); /* the sink answered, and its answer is about the event */
        return;
    }
    bool known = ev->proven || failure_is_events(&p->detector, ev->seq);
    if (known)
        return; /* known to fail: no evidence about the sink */

    note_failed(&p->detector, ev->seq, slot->sent_at, now);
    bool still_down = circuit_open(&p->circuit);
    if (still_down || counts_as_down(&p->detector, now))
        circuit_sink_fails(p, text, r->retry_after_ms, p->detector.n_failing > 1);
}

/* A fail-stop sink already has later events of the key, which must not overtake this one, so from
 * now on the batch is sent key by key. A later event that the sink returns waits behind it. */
void failure_refused(struct pipeline *p, struct slot *slot, const struct sink_result *r)
{
    const char *text = failure_text(r);
    if (slot->held) {
        inflight_hold(&p->inflight, slot);
        return;
    }
    if (pipeline_failstop(p))
        inflight_by_key(&p->inflight, slot->batch);
    failure_note(p, slot, text);
    failure_put_off(p, slot, r->retry_after_ms, text);
    slot->undecided = true;
    slot->refused = true;
}

void failure_log(const struct pipeline *p, enum log_level level, const struct event *ev,
                 int attempt, const char *fmt, ...)
{
    char key[256] = "", text[1024];
    if (ev->aggregate_id.p)
        snprintf(key, sizeof key, "%s/%s", ev->aggregate_type.p, ev->aggregate_id.p);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    struct log_about of = {ev->id.p, ev->type.p, key, attempt};
    log_about(p->cfg.log, level, p->c->name, &of, "event %s (%s) %s", ev->id.p, ev->type.p, text);
}

/* Counts and logs a dead letter. */
static void count_burial(struct pipeline *p, const struct event *ev, int attempts, const char *text,
                         enum burial why)
{
    p->stats.buried++;
    meter_buried(&p->stats.meter, ev->type, why, 1);
    p->stats.stalled_since = p->stats.ended_at;

    failure_log(p, LOG_ERROR_, ev, attempts, "is a dead letter after %d attempt%s: %s", attempts,
                attempts == 1 ? "" : "s", text);
}

void failure_rejected(struct pipeline *p, struct slot *slot, const struct sink_result *r,
                      enum burial why)
{
    const char *text = failure_text(r);
    struct outcome out = {
        .kind = OUTCOME_DEAD, .attempts = slot->d.ev->attempts + 1, .error = text};
    failure_note(p, slot, text);
    count_burial(p, slot->d.ev, out.attempts, text, why);
    inflight_end(&p->inflight, slot, &out, true);
}

/* ---- the verdict ---- */

struct verdict {
    /* Attempts used up: this one and, if only now it turned out that the previous failure was the
     * event's fault, that one too. 0: the sink may be at fault. */
    int attempts;
    bool proven;   /* other events got through, so this one is at fault */
    bool hopeless; /* the fault is unknown, but it has failed for long enough */
    int64_t failing_ms;
};

/* Returns how long the event has been failing; 0: this is the first time. */
static int64_t failing_ms(const struct pipeline *p, const struct slot *slot)
{
    int64_t before = slot->d.ev->failing_ms;
    int64_t since_claim = (pipeline_now(p) - slot->batch->claimed_at) / MS_NS;
    int64_t all;
    if (before == 0)
        return 0;
    if (__builtin_add_overflow(before, since_claim, &all))
        return INT64_MAX;
    return all;
}

/* Decides about an event without proof of fault, which cannot be retried forever. Once it has
 * failed for long enough, it is given up; or the attempt counts, if other events get through
 * occasionally. While the sink is down beyond doubt, nothing is given up. */
static void decide_in_doubt(const struct pipeline *p, const struct slot *slot, struct verdict *v)
{
    const struct failure_detector *d = &p->detector;
    bool long_enough = v->failing_ms >= p->c->retry.outage_ms && !certainly_down(d);
    if (!long_enough)
        return;
    bool fails_still = d->failures > 0 && slot->sent_at >= d->first_sent;
    bool each_tried_often = d->failures >= DOWN_FAILURES * d->n_failing;
    v->hopeless = fails_still && each_tried_often;
    if (v->hopeless)
        return;

    /* Do others get through in between? One sent later did; or none has yet, but one did before,
     * and no failing event has failed twice since. */
    bool others_pass = d->passed_sent > 0 && fails_still && d->failures == d->n_failing;
    if (slot->sent_at < d->passed_sent)
        others_pass = !sent_in_outage(d, slot->sent_at);
    if (others_pass)
        v->attempts = 1;
}

/* Decides whether the event or the sink is at fault. */
static struct verdict find_fault(struct pipeline *p, const struct slot *slot)
{
    const struct event *ev = slot->d.ev;
    struct failure_detector *d = &p->detector;
    struct verdict v = {.failing_ms = ev->failing_ms};
    bool every_failure_counts = p->c->retry.outage_ms == 0;
    if (every_failure_counts || slot->refused) {
        v.attempts = 1;
        v.proven = ev->proven;
        return v;
    }

    bool event_fault = passed_near(d, slot->sent_at);
    bool fault_before = !ev->proven && failure_is_events(d, ev->seq);
    if (fault_before)
        forget_open(d, ev->seq);
    bool known = ev->proven || fault_before;
    bool sink_fault = d->n_failing > 1 && counts_as_down(d, pipeline_now(p));
    v.proven = known || event_fault;
    if (event_fault || (known && !sink_fault))
        v.attempts = 1;
    if (fault_before && !event_fault)
        v.attempts++; /* the previous failure, not counted at the time */

    v.failing_ms = failing_ms(p, slot);
    if (v.attempts == 0)
        decide_in_doubt(p, slot, &v);
    return v;
}

/* Logs the failure, whether it counts, and the time of the next attempt. */
static void log_retry(const struct pipeline *p, const struct slot *slot, bool counts)
{
    const struct event *ev = slot->d.ev;
    const struct outcome *out = &slot->out;
    int attempt = slot->d.attempt;
    long long next_ms = (long long)out->delay_ms;
    if (!counts) {
        failure_log(p, LOG_WARN_, ev, attempt,
                    "failed, and no delivery has succeeded since, so the attempt is not counted: "
                    "%s; next in %lld ms",
                    out->error, next_ms);
    } else if (p->c->retry.attempts == RETRY_FOREVER) {
        failure_log(p, LOG_WARN_, ev, attempt,
                    "failed, attempt %d, and is held until it succeeds: %s; next in %lld ms",
                    out->attempts, out->error, next_ms);
    } else {
        failure_log(p, LOG_WARN_, ev, attempt, "failed, attempt %d of %d: %s; next in %lld ms",
                    out->attempts, p->c->retry.attempts, out->error, next_ms);
    }
}

/* Turns a failure into a retry or a dead letter. A retry waits as long as the policy, or the sink
 * if longer, requires. */
static void classify_failure(struct pipeline *p, struct slot *slot)
{
    struct outcome *out = &slot->out;
    struct verdict v = find_fault(p, slot);
    slot->undecided = false;
    out->proven = v.proven;
    out->attempts = slot->d.ev->attempts + v.attempts;

    bool counts = v.attempts > 0;
    bool used_up = counts && out->attempts >= p->c->retry.attempts;
    bool given_up = v.hopeless && p->c->retry.attempts != RETRY_FOREVER;
    if (used_up || given_up) {
        out->kind = OUTCOME_DEAD;
        count_burial(p, slot->d.ev, out->attempts, out->error,
                     used_up ? BURIAL_ATTEMPTS : BURIAL_OUTAGE);
        return;
    }

    int64_t wait;
    if (counts)
        wait = retry_delay(&p->c->retry, out->attempts, p->cfg.rng);
    else
        wait = retry_delay_in_doubt(&p->c->retry, v.failing_ms, p->cfg.rng);
    out->delay_ms = max_i64(out->delay_ms, wait);
    p->stats.retried++;
    log_retry(p, slot, counts);
}

void failure_classify(struct pipeline *p, struct batch_state *b)
{
    if (b->lost || b->exceptions == 0)
        return;
    for (size_t i = 0; i < b->claim.n; i++) {
        if (b->slots[i].undecided)
            classify_failure(p, &b->slots[i]);
    }
}
