/* deliver.c: events to the sink, and its answers back. */
#include <stdio.h>

#include "base/bug.h"
#include "engine/pipeline_impl.h"

#define OFFER 256
#define SUBMIT_SLICE (50 * MS_NS) /* then leases and the wish to stop are looked at */
#define NOT_MINE_WAIT_MS 1000
#define PROBES 4    /* of a sink that answers: with one event each time it might always be one that it does not like */
#define LOG_KEY 256 /* of a key, in the fields of a log */
#define NOT_NOW_MIN_MS 1000

void deliver_report(struct pipeline *p)
{
    struct error err;
    if (!p->report_due) return;
    p->report_due = false;
    /* A note for operators: the next one will do. But what the store says of itself is said once. */
    if (p->cfg.st->ops->consumer_report(p->cfg.st, p->c->name, p->report[0] ? p->report : NULL, &err) != 0)
        log_at(p->cfg.log, LOG_WARN_, p->c->name, "store: %s", err.text);
}

static const char *reason(const char *text)
{
    return text ? text : "no reason given";
}

/* say_down tells operators that the sink is down, and why. */
static void say_down(struct pipeline *p, const char *what, const char *next)
{
    bool first = !p->stats.down;
    snprintf(p->stats.why, sizeof p->stats.why, "%s", what);
    log_at(p->cfg.log, first ? LOG_WARN_ : LOG_DEBUG_, p->c->name, "%s; %s", what, next);
    if (!first) return;
    p->stats.down = true;
    p->stats.down_since = pipeline_now(p);
    p->stats.meter.openings++;
    snprintf(p->report, sizeof p->report, "%s", what);
    p->report_due = true;
}

/* let_others_try: it may be that only we cannot reach the sink. So events are not kept for longer than a lease: another relay
 * can have them. Handlers are no place that only others can reach. */
static void let_others_try(struct pipeline *p, int64_t now)
{
    bool for_long = now - p->stats.down_since >= p->c->lease_ms * MS_NS;
    if (for_long && !effects_used(&p->effects)) hand_want_back(&p->hand);
}

/* open_circuit: nothing is sent for a while but a probe now and then. */
static void open_circuit(struct pipeline *p, const char *what, int64_t retry_after_ms, size_t probes)
{
    int64_t now = pipeline_now(p);
    bool waits = circuit_open(&p->circuit) && now < p->circuit.until; /* this is one of many that were in flight */
    circuit_down(&p->circuit, now, retry_after_ms, p->cfg.rng);
    circuit_probes(&p->circuit, probes);
    if (waits) return;
    char next[64];
    snprintf(next, sizeof next, "trying again in %lld ms", (long long)((p->circuit.until - now) / MS_NS));
    say_down(p, what, next);
    let_others_try(p, now);
}

static void sink_is_down(struct pipeline *p, const struct sink_result *r)
{
    char what[sizeof p->report];
    snprintf(what, sizeof what, "sink is down: %s", reason(r->text));
    open_circuit(p, what, r->retry_after_ms, 1);
}

/* nothing_passes: event after event fails, and nothing gets through: it is the sink, whatever it answers. A single event that
 * fails may be the only one there is to try: then its own retries are the probes, and no other has to wait for them. */
static void nothing_passes(struct pipeline *p, const struct sink_result *r)
{
    char what[sizeof p->report];
    snprintf(what, sizeof what, "sink is down: every delivery fails: %s", reason(r->text));
    if (evidence_many(&p->evidence)) open_circuit(p, what, r->retry_after_ms, PROBES);
    else if (!p->stats.down) say_down(p, what, "only one event was there to try it with");
}

/* sink_answers: it is there, which proves nothing about what it would do with other events. */
static void sink_answers(struct pipeline *p)
{
    circuit_up(&p->circuit);
    bool was_down = p->stats.down;
    bool resumed = p->stop_said && !p->stats.paused;
    if (was_down) {
        p->stats.down = false;
        p->stats.down_since = 0;
        p->stats.why[0] = 0;
        log_at(p->cfg.log, LOG_INFO_, p->c->name, "sink is back");
    }
    if (resumed) p->stop_said = false;
    /* What another relay had to say before it vanished is over, too. */
    bool over = was_down || resumed || !p->proved;
    p->proved = true;
    if (!over || p->stop_said) return; /* why it is paused stays to be read */
    p->report[0] = '\0';
    p->report_due = true;
}

/* sink_is_up: it has looked at an event, so that it is known to work. */
static void sink_is_up(struct pipeline *p, const struct item *it)
{
    evidence_passed(&p->evidence, it->sent_at);
    sink_answers(p);
}

/* about says which event a line of the log is about; key must live as long as what it gives. */
static struct log_about about(const struct event *ev, int attempt, char key[LOG_KEY])
{
    key[0] = '\0';
    if (ev->aggregate_id.p) snprintf(key, LOG_KEY, "%s/%s", ev->aggregate_type.p, ev->aggregate_id.p);
    return (struct log_about){ev->id.p, ev->type.p, key, attempt};
}

static void say_buried(struct pipeline *p, const struct event *ev, int attempts, const char *text, enum burial why)
{
    p->stats.buried++;
    meter_buried(&p->stats.meter, ev->type, why, 1);
    p->stats.stalled_since = p->stats.ended_at;
    char key[LOG_KEY];
    struct log_about of = about(ev, attempts, key);
    log_about(p->cfg.log, LOG_ERROR_, p->c->name, &of, "event %s (%s) is a dead letter after %d attempt%s: %s",
              ev->id.p, ev->type.p, attempts, attempts == 1 ? "" : "s", text);
}

static void event_rejected(struct pipeline *p, struct item *it, const struct sink_result *r, enum burial why)
{
    int attempts = it->d.ev->attempts + 1;
    const char *text = reason(r->text);
    snprintf(p->failure, sizeof p->failure, "%s: %s", it->d.ev->type.p, text);
    say_buried(p, it->d.ev, attempts, text, why);
    item_end(it, &(struct outcome){.kind = OUTCOME_DEAD, .attempts = attempts, .error = text}, true, &p->hand.ready);
}

/* event_failed ends it for now; whether that counts against it is decided when the batch is settled, for by then it is known
 * what became of the others. */
static void event_failed(struct pipeline *p, struct item *it, const struct sink_result *r)
{
    const char *text = reason(r->text);
    int64_t now = pipeline_now(p);
    snprintf(p->failure, sizeof p->failure, "%s: %s", it->d.ev->type.p, text);
    struct outcome out = {
        .kind = OUTCOME_RETRY, .attempts = it->d.ev->attempts, .delay_ms = r->retry_after_ms, .error = text};
    item_end(it, &out, true, &p->hand.ready);
    it->unjudged = true;

    if (p->c->retry.outage_ms == 0) {
        sink_is_up(p, it); /* it answered, and whatever it says is about the event */
        return;
    }
    bool known = it->d.ev->proven || evidence_found(&p->evidence, it->d.ev->seq);
    if (known) return; /* that it fails is no news, and nothing is to be learnt from it */
    evidence_failed(&p->evidence, it->d.ev->seq, it->sent_at, now);
    bool still_down = circuit_open(&p->circuit);
    if (still_down || evidence_down(&p->evidence, now)) nothing_passes(p, r);
}

/* ---- whose fault it was ---- */

/* How a failure is judged. (1) attempts == 0: it may be the sink's fault. */
struct judgement {
    int attempts;  /* that are used up by it: this one, and one before, if its guilt came out only afterwards */
    bool proven;   /* others got through, so it is its own fault */
    bool hopeless; /* nobody knows whose fault it is, but it has gone on for long enough */
    int64_t failing_ms;
};

static struct judgement judge(struct pipeline *p, const struct item *it)
{
    const struct event *ev = it->d.ev;
    struct evidence *e = &p->evidence;
    struct judgement j = {.failing_ms = ev->failing_ms};
    if (p->c->retry.outage_ms == 0 || BUG(OUTAGE_COUNTS)) {
        j.attempts = 1;
        return j;
    }
    bool guilty_now = evidence_near(e, it->sent_at);
    bool guilty_before = !ev->proven && evidence_late(e, ev->seq);
    bool known = ev->proven || guilty_before;
    j.proven = known || guilty_now;
    bool sink_down = evidence_many(e) && evidence_down(e, pipeline_now(p));
    if (guilty_now || (known && !sink_down)) j.attempts = 1;
    if (guilty_before && !guilty_now) j.attempts++;

    int64_t since_claim = (pipeline_now(p) - it->live->claimed_at) / MS_NS;
    if (ev->failing_ms && __builtin_add_overflow(j.failing_ms, since_claim, &j.failing_ms)) j.failing_ms = INT64_MAX;
    bool long_enough = j.failing_ms >= p->c->retry.outage_ms && !evidence_certain(e);
    if (j.attempts > 0 || !long_enough) return j;
    j.hopeless = evidence_tried(e, it->sent_at);
    /* Others get through now and then, only never close enough to prove anything: it is not tried for ever. */
    if (!j.hopeless && evidence_between(e, it->sent_at)) j.attempts = 1;
    return j;
}

static void wait_for_retry(struct pipeline *p, struct item *it, const struct judgement *j)
{
    const struct event *ev = it->d.ev;
    struct outcome *out = &it->out;
    int64_t least = out->delay_ms;
    if (j->attempts > 0) out->delay_ms = retry_delay(&p->c->retry, out->attempts, p->cfg.rng);
    else out->delay_ms = retry_delay_in_doubt(&p->c->retry, j->failing_ms, p->cfg.rng);
    if (out->delay_ms < least) out->delay_ms = least;
    p->stats.retried++;
    char key[LOG_KEY];
    struct log_about of = about(ev, it->d.attempt, key);
    if (j->attempts > 0 && p->c->retry.attempts == RETRY_FOREVER)
        log_about(p->cfg.log, LOG_WARN_, p->c->name, &of,
                  "event %s (%s) failed, attempt %d, and is held until it succeeds: %s; next in %lld ms", ev->id.p,
                  ev->type.p, out->attempts, out->error, (long long)out->delay_ms);
    else if (j->attempts > 0)
        log_about(p->cfg.log, LOG_WARN_, p->c->name, &of, "event %s (%s) failed, attempt %d of %d: %s; next in %lld ms",
                  ev->id.p, ev->type.p, out->attempts, p->c->retry.attempts, out->error, (long long)out->delay_ms);
    else
        log_about(p->cfg.log, LOG_WARN_, p->c->name, &of,
                  "event %s (%s) failed, and nothing got through after it, so it is not counted: %s; next in %lld ms",
                  ev->id.p, ev->type.p, out->error, (long long)out->delay_ms);
}

static void judge_item(struct pipeline *p, struct item *it)
{
    struct outcome *out = &it->out;
    struct judgement j = judge(p, it);
    it->unjudged = false;
    out->proven = j.proven;
    if (!BUG(ATTEMPTS_NOT_COUNTED)) out->attempts = it->d.ev->attempts + j.attempts;
    bool used_up = j.attempts > 0 && out->attempts >= p->c->retry.attempts;
    bool given_up = j.hopeless && p->c->retry.attempts != RETRY_FOREVER;
    if (!used_up && !given_up) {
        wait_for_retry(p, it, &j);
        return;
    }
    out->kind = OUTCOME_DEAD;
    say_buried(p, it->d.ev, out->attempts, out->error, used_up ? BURIAL_ATTEMPTS : BURIAL_OUTAGE);
}

void deliver_judge(struct pipeline *p, struct live *l)
{
    if (l->lost || l->exceptions == 0) return;
    for (size_t i = 0; i < l->b.n; i++)
        if (l->items[i].unjudged) judge_item(p, &l->items[i]);
}

/* ---- answers ---- */

static void event_delivered(struct pipeline *p, struct item *it, const struct sink_result *r)
{
    p->stats.delivered++;
    p->stats.stalled_since = p->stats.ended_at;
    if (!r->unasked) sink_is_up(p, it);
    item_end(it, &(struct outcome){.kind = OUTCOME_DELIVERED, .receipt = r->receipt}, p->c->receipts, &p->hand.ready);
}

/* not_mine leaves it to a worker that knows what to do with it, after a moment in which one may come. */
static void not_mine(struct pipeline *p, struct item *it, const struct sink_result *r)
{
    int64_t delay = NOT_MINE_WAIT_MS + (int64_t)rng_below(p->cfg.rng, NOT_MINE_WAIT_MS);
    const char *text = reason(r->text);
    char key[LOG_KEY];
    struct log_about of = about(it->d.ev, it->d.attempt, key);
    log_about(p->cfg.log, LOG_INFO_, p->c->name, &of, "event %s (%s) is left to another worker: %s", it->d.ev->id.p,
              it->d.ev->type.p, text);
    item_end(it,
             &(struct outcome){.kind = OUTCOME_RETRY,
                               .attempts = it->d.ev->attempts,
                               .delay_ms = delay > r->retry_after_ms ? delay : r->retry_after_ms,
                               .error = text},
             true, &p->hand.ready);
}

/* not_now: what keeps it is neither the event nor the whole sink, so others go on. */
static void not_now(struct pipeline *p, struct item *it, const struct sink_result *r)
{
    const char *text = r->text ? r->text : "no reason given";
    int64_t delay = r->retry_after_ms > NOT_NOW_MIN_MS ? r->retry_after_ms : NOT_NOW_MIN_MS;
    char key[LOG_KEY];
    struct log_about of = about(it->d.ev, it->d.attempt, key);
    log_about(p->cfg.log, LOG_WARN_, p->c->name, &of,
              "event %s (%s) has to wait, no attempt is counted: %s; next in %lld ms", it->d.ev->id.p, it->d.ev->type.p,
              text, (long long)delay);
    snprintf(p->failure, sizeof p->failure, "%s: %s", it->d.ev->type.p, text);
    item_end(it,
             &(struct outcome){.kind = OUTCOME_RETRY, .attempts = it->d.ev->attempts, .delay_ms = delay, .error = text},
             true, &p->hand.ready);
}

static void sink_is_gone(struct pipeline *p, const struct sink_result *r)
{
    struct error err;
    err_fate(&err, ERR_UNAVAILABLE, FATE_FATAL, r->native, "%s", r->text ? r->text : "the sink gave up");
    pipeline_fail(p, &err, pipeline_now(p));
}

/* sink_says_stop pauses the consumer, once. If that is impossible the sink counts as down: then it is asked again. Handlers
 * never say it, so that no transaction of theirs is open. */
static void sink_says_stop(struct pipeline *p, const struct sink_result *r)
{
    const char *text = r->text ? r->text : "the sink wants no more";
    struct error err;
    hand_want_back(&p->hand);
    if (p->stats.paused) return; /* one of many that were in flight */
    if (p->cfg.st->ops->consumer_pause(p->cfg.st, p->c->name, true, &err) != 0) {
        sink_is_down(p, r);
        return;
    }
    p->stats.paused = p->stop_said = true;
    log_at(p->cfg.log, LOG_ERROR_, p->c->name, "paused: %s; outbox consumers resume %s goes on", text, p->c->name);
    snprintf(p->report, sizeof p->report, "paused: %s", text);
    p->report_due = true;
}

/* not_tried: a careful event goes back to the store, with the attempt that was counted for it: holding it would keep the
 * careful events of other consumers waiting, and a crash of theirs would count against it. */
static void not_tried(struct pipeline *p, struct item *it)
{
    if (it->live->b.careful) {
        item_hold(it, &p->hand.ready);
        return;
    }
    item_land(it);
    hand_disturb(&p->hand);
}

/* count: a sink that takes whole batches answers for them at once, so one look at the clock per batch will do. */
static void count(struct pipeline *p, const struct item *it, const struct sink_result *r)
{
    if (!p->answered || !pipeline_failstop(p)) p->stats.ended_at = pipeline_now(p);
    p->answered = true;
    int64_t now = p->stats.ended_at;
    meter_ended(&p->stats.meter,
                &(struct meter_end){.type = it->d.ev->type,
                                    .status = r->status,
                                    .call_ns = now - it->sent_at,
                                    .age_ms = clock_since(now / MS_NS + p->wall_ahead_ms, it->d.ev->created_at)});
}

void deliver_done(struct pipeline *p, struct item *it, const struct sink_result *r)
{
    count(p, it, r);
    switch (r->status) {
    case SINK_DELIVERED: event_delivered(p, it, r); break;
    case SINK_RETRY: event_failed(p, it, r); break;
    case SINK_REJECT:
        if (!r->unasked) sink_is_up(p, it); /* it looked at the event, and found something wrong with it */
        event_rejected(p, it, r, BURIAL_REJECTED);
        break;
    case SINK_NOT_MINE:
        sink_is_up(p, it);
        not_mine(p, it, r);
        break;
    case SINK_LATER:
        if (!evidence_down(&p->evidence, pipeline_now(p))) sink_answers(p);
        not_now(p, it, r);
        break;
    case SINK_DOWN:
        not_tried(p, it);
        sink_is_down(p, r);
        break;
    case SINK_FATAL:
        not_tried(p, it);
        sink_is_gone(p, r);
        break;
    case SINK_PAUSE:
        not_tried(p, it);
        sink_says_stop(p, r);
        break;
    case SINK_CANCELLED: not_tried(p, it); break;
    }
}

/* submit: handlers do their work in here, and the claim may be extended meanwhile. */
static size_t submit(struct pipeline *p, struct delivery *const *d, size_t n, int64_t now)
{
    if (!p->cfg.pulse) return p->sk->ops->submit(p->sk, d, n);
    struct live *l = ((struct item *)d[0])->live;
    pulse_begin(p->cfg.pulse, l->b.epoch, l->deadline, now);
    size_t took = p->sk->ops->submit(p->sk, d, n);
    l->deadline = pulse_end(p->cfg.pulse);
    return took;
}

/* next_sent gives each delivery a time of its own, so that it is known which of two was sent first. */
static int64_t next_sent(struct pipeline *p, int64_t now)
{
    p->last_sent = now > p->last_sent ? now : p->last_sent + 1;
    return p->last_sent;
}

/* bury_malformed: what no sink can be given is a dead letter at once, and what is behind it goes on. */
static bool bury_malformed(struct pipeline *p, struct item *it)
{
    struct error why;
    if (event_check_stored(it->d.ev, &why) == 0) return false;
    event_rejected(p, it, &(struct sink_result){.status = SINK_REJECT, .text = why.text}, BURIAL_MALFORMED);
    return true;
}

/* offer hands up to `room` queued items to the sink; returns how many it took, or buried as malformed. */
static size_t offer(struct pipeline *p, size_t room, int64_t now)
{
    struct delivery *d[OFFER];
    d[0] = NULL;
    size_t n = 0, max = pipeline_failstop(p) ? OFFER : 1;
    if (room < max) max = room;
    size_t buried = 0;
    while (n < max && p->hand.ready.head) {
        struct item *it = ready_pop(&p->hand.ready);
        if (bury_malformed(p, it)) buried++;
        else d[n++] = &it->d;
    }
    if (n == 0) return buried;
    /* They fly before the sink has said so, because it may answer from within submit. */
    for (size_t i = 0; i < n; i++) {
        item_fly((struct item *)d[i]);
        ((struct item *)d[i])->sent_at = next_sent(p, now);
    }
    p->answered = false;
    size_t took = submit(p, d, n, now);
    for (size_t i = n; i > took; i--) {
        item_land((struct item *)d[i - 1]);
        ready_unshift(&p->hand.ready, (struct item *)d[i - 1]);
    }
    return took + buried;
}

/* lease_allows: nothing is submitted of a claim past its deadline, nor past half of its lease while it can be extended
 * first: handlers take their time inside submit. */
static bool lease_allows(const struct pipeline *p, const struct live *l, int64_t now)
{
    bool frozen = effects_in_tx(&p->effects) && (p->cfg.st->caps & STORE_ONE_WRITER);
    if (frozen) return true;
    if (BUG(SUBMITTED_PAST_LEASE)) return true;
    return now < l->deadline && (now < pipeline_half_lease(p, l) || schedule_store_away(&p->schedule, now));
}

bool deliver_submit(struct pipeline *p)
{
    bool any = false;
    int64_t now = pipeline_now(p), until = now + SUBMIT_SLICE;
    if (effects_used(&p->effects) && schedule_store_away(&p->schedule, now))
        return false; /* what they did would be undone, and again, and again */
    for (; p->hand.ready.head && p->state == PIPELINE_RUNNING; now = pipeline_now(p)) {
        bool slice_over = now >= until;
        if (effects_in_tx(&p->effects)) slice_over = !effects_pending(p, now);
        if (slice_over) break;
        if (!lease_allows(p, p->hand.ready.head->live, now)) break;
        size_t room = circuit_room(&p->circuit, now, hand_flying(&p->hand));
        if (room == 0 || offer(p, room, now) == 0) break;
        any = true;
        if (hand_untidy(&p->hand)) break;
    }
    if (!effects_in_tx(&p->effects)) hand_tidy(&p->hand);
    effects_finish(p);
    return any;
}
