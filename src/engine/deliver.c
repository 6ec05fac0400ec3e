/* deliver.c: events to the sink, and its answers back. */
#include <stdio.h>

#include "engine/pipeline_impl.h"

#define OFFER 256
#define SUBMIT_SLICE (50 * MS_NS) /* then leases and the wish to stop are looked at */
#define NOT_MINE_WAIT_MS 1000
#define NOT_NOW_MIN_MS 1000

static const char *reason(const char *text)
{
    return text ? text : "no reason given";
}

static void event_rejected(struct pipeline *p, struct item *it, const struct sink_result *r,
                           enum burial why)
{
    int attempts = it->d.ev->attempts + 1;
    const char *text = reason(r->text);
    snprintf(p->failure, sizeof p->failure, "%s: %s", it->d.ev->type.p, text);
    judge_buried(p, it->d.ev, attempts, text, why);
    item_end(it, &(struct outcome){.kind = OUTCOME_DEAD, .attempts = attempts, .error = text}, true,
             &p->hand.ready);
}

/* event_failed ends it for now; whether that counts against it is decided when the batch is
 * settled, for by then it is known what became of the others. */
static void event_failed(struct pipeline *p, struct item *it, const struct sink_result *r)
{
    const char *text = reason(r->text);
    int64_t now = pipeline_now(p);
    snprintf(p->failure, sizeof p->failure, "%s: %s", it->d.ev->type.p, text);
    struct outcome out = {.kind = OUTCOME_RETRY,
                          .attempts = it->d.ev->attempts,
                          .delay_ms = r->retry_after_ms,
                          .error = text};
    item_end(it, &out, true, &p->hand.ready);
    it->unjudged = true;

    if (p->c->retry.outage_ms == 0) {
        outage_passed(p, it); /* it answered, and whatever it says is about the event */
        return;
    }
    bool known = it->d.ev->proven || evidence_found(&p->evidence, it->d.ev->seq);
    if (known)
        return; /* that it fails is no news, and nothing is to be learnt from it */
    evidence_failed(&p->evidence, it->d.ev->seq, it->sent_at, now);
    bool still_down = circuit_open(&p->circuit);
    if (still_down || evidence_down(&p->evidence, now))
        outage_suspected(p, text, r->retry_after_ms);
}

/* ---- answers ---- */

static void event_delivered(struct pipeline *p, struct item *it, const struct sink_result *r)
{
    p->stats.delivered++;
    p->stats.stalled_since = p->stats.ended_at;
    if (!r->unasked)
        outage_passed(p, it);
    item_end(it, &(struct outcome){.kind = OUTCOME_DELIVERED, .receipt = r->receipt},
             p->c->receipts, &p->hand.ready);
}

/* not_mine leaves it to a worker that knows what to do with it, after a moment in which one may
 * come. */
static void not_mine(struct pipeline *p, struct item *it, const struct sink_result *r)
{
    int64_t delay = NOT_MINE_WAIT_MS + (int64_t)rng_below(p->cfg.rng, NOT_MINE_WAIT_MS);
    const char *text = reason(r->text);
    char key[JUDGE_KEY];
    struct log_about of = judge_about(it->d.ev, it->d.attempt, key);
    log_about(p->cfg.log, LOG_INFO_, p->c->name, &of, "event %s (%s) is left to another worker: %s",
              it->d.ev->id.p, it->d.ev->type.p, text);
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
    char key[JUDGE_KEY];
    struct log_about of = judge_about(it->d.ev, it->d.attempt, key);
    log_about(p->cfg.log, LOG_WARN_, p->c->name, &of,
              "event %s (%s) has to wait, no attempt is counted: %s; next in %lld ms",
              it->d.ev->id.p, it->d.ev->type.p, text, (long long)delay);
    snprintf(p->failure, sizeof p->failure, "%s: %s", it->d.ev->type.p, text);
    item_end(it,
             &(struct outcome){.kind = OUTCOME_RETRY,
                               .attempts = it->d.ev->attempts,
                               .delay_ms = delay,
                               .error = text},
             true, &p->hand.ready);
}

static void sink_is_gone(struct pipeline *p, const struct sink_result *r)
{
    struct error err;
    err_fate(&err, ERR_UNAVAILABLE, FATE_FATAL, r->native, "%s",
             r->text ? r->text : "the sink gave up");
    pipeline_fail(p, &err, pipeline_now(p));
}

/* sink_says_stop pauses the consumer, once. If that is impossible the sink counts as down: then it
 * is asked again. Handlers never say it, so that no transaction of theirs is open. */
static void sink_says_stop(struct pipeline *p, const struct sink_result *r)
{
    const char *text = r->text ? r->text : "the sink wants no more";
    struct error err;
    hand_want_back(&p->hand);
    if (p->stats.paused)
        return; /* one of many that were in flight */
    if (p->cfg.st->ops->consumer_pause(p->cfg.st, p->c->name, true, &err) != 0) {
        outage_down(p, reason(r->text), r->retry_after_ms);
        return;
    }
    p->stats.paused = true;
    log_at(p->cfg.log, LOG_ERROR_, p->c->name, "paused: %s; outbox consumers resume %s goes on",
           text, p->c->name);
    report_paused(&p->report, text);
}

/* not_tried: a careful event goes back to the store, with the attempt that was counted for it:
 * holding it would keep the careful events of other consumers waiting, and a crash of theirs would
 * count against it. */
static void not_tried(struct pipeline *p, struct item *it)
{
    if (it->live->b.careful) {
        item_hold(it, &p->hand.ready);
        return;
    }
    item_land(it);
    hand_disturb(&p->hand);
}

/* count: a sink that takes whole batches answers for them at once, so one look at the clock per
 * batch will do. */
static void count(struct pipeline *p, const struct item *it, const struct sink_result *r)
{
    if (!p->answered || !pipeline_failstop(p))
        p->stats.ended_at = pipeline_now(p);
    p->answered = true;
    int64_t now = p->stats.ended_at;
    meter_ended(&p->stats.meter,
                &(struct meter_end){
                    .type = it->d.ev->type,
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
        /* it looked at the event, and found something wrong with it */
        if (!r->unasked)
            outage_passed(p, it);
        event_rejected(p, it, r, BURIAL_REJECTED);
        break;
    case SINK_NOT_MINE:
        outage_passed(p, it);
        not_mine(p, it, r);
        break;
    case SINK_LATER:
        if (!evidence_down(&p->evidence, pipeline_now(p)))
            outage_answered(p);
        not_now(p, it, r);
        break;
    case SINK_DOWN:
        not_tried(p, it);
        outage_down(p, reason(r->text), r->retry_after_ms);
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
    if (!p->cfg.pulse)
        return p->sk->ops->submit(p->sk, d, n);
    struct live *l = ((struct item *)d[0])->live;
    pulse_begin(p->cfg.pulse, l->b.epoch, l->deadline, now);
    size_t took = p->sk->ops->submit(p->sk, d, n);
    l->deadline = pulse_end(p->cfg.pulse);
    return took;
}

/* next_sent gives each delivery a time of its own, so that it is known which of two was sent
 * first. */
static int64_t next_sent(struct pipeline *p, int64_t now)
{
    p->last_sent = now > p->last_sent ? now : p->last_sent + 1;
    return p->last_sent;
}

/* bury_malformed: what no sink can be given is a dead letter at once, and what is behind it goes
 * on. */
static bool bury_malformed(struct pipeline *p, struct item *it)
{
    struct error why;
    if (event_check_stored(it->d.ev, &why) == 0)
        return false;
    event_rejected(p, it, &(struct sink_result){.status = SINK_REJECT, .text = why.text},
                   BURIAL_MALFORMED);
    return true;
}

/* gather takes up to max items off the queue that can be given to a sink. *ret_buried: those that
 * no sink can be given. */
static size_t gather(struct pipeline *p, struct delivery **d, size_t max, size_t *ret_buried)
{
    size_t n = 0;
    *ret_buried = 0;
    while (n < max && p->hand.ready.head) {
        struct item *it = ready_pop(&p->hand.ready);
        if (bury_malformed(p, it)) {
            ++*ret_buried;
        } else {
            d[n++] = &it->d;
        }
    }
    return n;
}

/* offer hands up to `room` queued items to the sink; returns how many it took, or buried as
 * malformed. The items fly before the sink has said so, because it may answer from within
 * submit. */
static size_t offer(struct pipeline *p, size_t room, int64_t now)
{
    struct delivery *d[OFFER];
    d[0] = NULL;
    size_t max = pipeline_failstop(p) ? OFFER : 1;
    size_t buried;
    size_t n = gather(p, d, room < max ? room : max, &buried);
    if (n == 0)
        return buried;

    for (size_t i = 0; i < n; i++) {
        struct item *it = (struct item *)d[i];
        item_fly(it);
        it->sent_at = next_sent(p, now);
    }
    p->answered = false;
    size_t took = submit(p, d, n, now);
    for (size_t i = n; i > took; i--) {
        struct item *it = (struct item *)d[i - 1];
        item_land(it);
        ready_unshift(&p->hand.ready, it);
    }
    return took + buried;
}

/* lease_allows: nothing is submitted of a claim past its deadline, nor past half of its lease while
 * it can be extended first: handlers take their time inside submit. */
static bool lease_allows(const struct pipeline *p, const struct live *l, int64_t now)
{
    bool frozen = effects_in_tx(&p->effects) && (p->cfg.st->caps & STORE_ONE_WRITER);
    if (frozen)
        return true;
    return now < l->deadline &&
           (now < pipeline_half_lease(p, l) || schedule_store_away(&p->schedule, now));
}

/* time_left says whether more may be submitted in this step. A transaction of handlers has its own
 * limit. */
static bool time_left(const struct pipeline *p, int64_t now, int64_t until)
{
    if (effects_in_tx(&p->effects))
        return effects_pending(p, now);
    return now < until;
}

/* offer_next offers what is first in the queue, as far as its claim and the circuit allow; returns
 * whether anything went. */
static bool offer_next(struct pipeline *p, int64_t now)
{
    const struct item *first = p->hand.ready.head;
    if (!lease_allows(p, first->live, now))
        return false;
    size_t room = circuit_room(&p->circuit, now, hand_flying(&p->hand));
    if (room == 0)
        return false;
    return offer(p, room, now) > 0;
}

bool deliver_submit(struct pipeline *p)
{
    bool any = false;
    int64_t now = pipeline_now(p);
    int64_t until = now + SUBMIT_SLICE;
    bool in_vain = effects_used(&p->effects) && schedule_store_away(&p->schedule, now);
    if (in_vain)
        return false; /* what handlers did would be undone, and again, and again */

    while (p->hand.ready.head && p->state == PIPELINE_RUNNING) {
        if (!time_left(p, now, until))
            break;
        if (!offer_next(p, now))
            break;
        any = true;
        if (hand_untidy(&p->hand))
            break;
        now = pipeline_now(p);
    }
    if (!effects_in_tx(&p->effects))
        hand_tidy(&p->hand);
    effects_finish(p);
    return any;
}
