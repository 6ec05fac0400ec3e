/* deliver.c: hands events to the sink, and acts on its answers. */
#include <stdio.h>

#include "base/num.h"

#include "engine/pipeline_impl.h"

#define OFFER 256     /* events to submit at once, as a batch or as a chain */
#define CHAIN_LEAST 4 /* events to offer as a chain, even if only one was taken before */
#define SUBMIT_SLICE (50 * MS_NS) /* then it is time to look after leases, and for a stop */
#define NOT_MINE_WAIT_MS 1000     /* up to twice as long, at random */
#define NOT_NOW_MIN_MS 1000

/* ---- answers ---- */

static const char *reason(const char *text)
{
    return text ? text : "no reason given";
}

/* note_failure remembers how an event failed, for pipeline_failure. */
static void note_failure(struct pipeline *p, const struct item *it, const char *text)
{
    snprintf(p->failure, sizeof p->failure, "%s: %s", it->d.ev->type.p, text);
}

/* end_for_now ends an item that is to be tried again after delay_ms, without using up an attempt.
 * */
static void end_for_now(struct pipeline *p, struct item *it, int64_t delay_ms, const char *text)
{
    struct outcome out = {
        .kind = OUTCOME_RETRY, .attempts = it->d.ev->attempts, .delay_ms = delay_ms, .error = text};
    live_item_end(it, &out, true, &p->hand.ready);
}

static void event_rejected(struct pipeline *p, struct item *it, const struct sink_result *r,
                           enum burial why)
{
    int attempts = it->d.ev->attempts + 1;
    const char *text = reason(r->text);
    note_failure(p, it, text);
    judge_buried(p, it->d.ev, attempts, text, why);
    live_item_end(it, &(struct outcome){.kind = OUTCOME_DEAD, .attempts = attempts, .error = text},
                  true, &p->hand.ready);
}

/* learn_from_failure takes a failure as evidence about the sink. */
static void learn_from_failure(struct pipeline *p, const struct item *it,
                               const struct sink_result *r)
{
    int64_t now = pipeline_now(p);
    bool every_failure_counts = p->c->retry.outage_ms == 0;
    if (every_failure_counts) {
        outage_passed(p, it); /* the sink answered, and whatever it said is about the event */
        return;
    }
    bool known = it->d.ev->proven || evidence_found(&p->evidence, it->d.ev->seq);
    if (known)
        return; /* this event is known to fail, so nothing is learnt about the sink */

    evidence_failed(&p->evidence, it->d.ev->seq, it->sent_at, now);
    bool still_down = circuit_open(&p->circuit);
    if (still_down || evidence_down(&p->evidence, now))
        outage_suspected(p, reason(r->text), r->retry_after_ms);
}

/* event_failed ends an event that failed, for now. Whether that counts as an attempt is decided
 * when its batch is settled, because by then it is known what became of the others. */
static void event_failed(struct pipeline *p, struct item *it, const struct sink_result *r)
{
    const char *text = reason(r->text);
    note_failure(p, it, text);
    end_for_now(p, it, r->retry_after_ms, text);
    it->unjudged = true;
    learn_from_failure(p, it, r);
}

/* event_refused ends an event that a working sink refuses: the attempt counts, whatever becomes of
 * others. A fail-stop sink has had later events of the key as well, which must not overtake this
 * one; so from now on the batch goes key by key. One of those that comes back is only behind. */
static void event_refused(struct pipeline *p, struct item *it, const struct sink_result *r)
{
    const char *text = reason(r->text);
    if (it->held) {
        live_item_hold(it, &p->hand.ready);
        return;
    }
    if (pipeline_failstop(p))
        hand_by_key(&p->hand, it->live);
    note_failure(p, it, text);
    end_for_now(p, it, r->retry_after_ms, text);
    it->unjudged = true;
    it->refused = true;
}

static void event_delivered(struct pipeline *p, struct item *it, const struct sink_result *r)
{
    p->stats.delivered++;
    p->stats.stalled_since = p->stats.ended_at;
    if (!r->unasked)
        outage_passed(p, it);
    live_item_end(it, &(struct outcome){.kind = OUTCOME_DELIVERED, .receipt = r->receipt},
                  p->c->receipts, &p->hand.ready);
}

/* not_mine leaves the event to a worker that has a handler for it, after a random pause in which
 * such a worker may claim it. */
static void not_mine(struct pipeline *p, struct item *it, const struct sink_result *r)
{
    int64_t delay = NOT_MINE_WAIT_MS + (int64_t)rng_below(p->cfg.rng, NOT_MINE_WAIT_MS);
    const char *text = reason(r->text);
    char key[JUDGE_KEY];
    struct log_about of = judge_about(it->d.ev, it->d.attempt, key);
    log_about(p->cfg.log, LOG_INFO_, p->c->name, &of, "event %s (%s) is left to another worker: %s",
              it->d.ev->id.p, it->d.ev->type.p, text);
    end_for_now(p, it, max_i64(delay, r->retry_after_ms), text);
}

/* not_now puts the event off for a reason that is neither its own fault nor concerns the whole
 * sink, so other events go on. */
static void not_now(struct pipeline *p, struct item *it, const struct sink_result *r)
{
    int64_t delay = max_i64(r->retry_after_ms, NOT_NOW_MIN_MS);
    const char *text = reason(r->text);
    char key[JUDGE_KEY];
    struct log_about of = judge_about(it->d.ev, it->d.attempt, key);
    log_about(p->cfg.log, LOG_WARN_, p->c->name, &of,
              "event %s (%s) has to wait, no attempt is counted: %s; next in %lld ms",
              it->d.ev->id.p, it->d.ev->type.p, text, (long long)delay);
    note_failure(p, it, text);
    end_for_now(p, it, delay, text);
}

static void sink_is_gone(struct pipeline *p, const struct sink_result *r)
{
    const char *text = r->text ? r->text : "the sink gave up";
    struct error err;
    err_class(&err, ERR_UNAVAILABLE, CLASS_FATAL, r->native, "%s", text);
    pipeline_fail(p, &err, pipeline_now(p));
}

/* sink_says_stop pauses the consumer. If that fails, the sink counts as down, so that it is asked
 * again later. Handlers never say SINK_PAUSE, so no transaction of theirs is open here. */
static void sink_says_stop(struct pipeline *p, const struct sink_result *r)
{
    const char *text = r->text ? r->text : "the sink wants no more";
    struct error err;
    hand_want_back(&p->hand);
    if (p->stats.paused)
        return; /* one of several in flight has said so before */
    if (p->cfg.st->ops->consumer_pause(p->cfg.st, p->c->name, true, &err) != 0) {
        outage_down(p, reason(r->text), r->retry_after_ms);
        return;
    }
    p->stats.paused = true;
    log_at(p->cfg.log, LOG_ERROR_, p->c->name, "paused: %s; outbox consumers resume %s goes on",
           text, p->c->name);
    report_paused(&p->report, text);
}

/* not_tried takes back an event that the sink has not tried. It is queued again, with two
 * exceptions, which end here. A careful event goes back to the store: if it stayed here, it would
 * be in flight beside the careful events of other consumers, and a crash would be held against
 * none. An event of a lost claim belongs to another worker; those of its key that wait for it are
 * held back. */
static void not_tried(struct pipeline *p, struct item *it)
{
    bool goes_back = it->live->b.suspect || it->live->lost;
    if (goes_back) {
        live_item_hold(it, &p->hand.ready);
        return;
    }
    it->d.again = true;
    live_item_land(it, &p->hand.ready);
    hand_disturb(&p->hand);
}

/* count counts the end of a delivery. A sink that takes whole batches answers for a batch at once,
 * so the clock is read once per batch. */
static void count(struct pipeline *p, const struct item *it, const struct sink_result *r)
{
    bool same_batch = p->answered && pipeline_failstop(p);
    if (!same_batch)
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

/* sink_answered notes an answer about something other than the sink: it is there. How it would
 * treat other events is not known from that, so if all of those fail, it stays down. */
static void sink_answered(struct pipeline *p)
{
    if (!evidence_down(&p->evidence, pipeline_now(p)))
        outage_answered(p);
}

void deliver_done(struct pipeline *p, struct item *it, const struct sink_result *r)
{
    count(p, it, r);
    switch (r->status) {
    case SINK_DELIVERED: event_delivered(p, it, r); break;
    case SINK_RETRY: event_failed(p, it, r); break;
    case SINK_REJECT:
        /* the sink has examined the event, and found something wrong with it */
        if (!r->unasked)
            outage_passed(p, it);
        event_rejected(p, it, r, BURIAL_REJECTED);
        break;
    case SINK_NOT_MINE:
        outage_passed(p, it);
        not_mine(p, it, r);
        break;
    case SINK_LATER:
        sink_answered(p);
        not_now(p, it, r);
        break;
    case SINK_REFUSED:
        sink_answered(p);
        event_refused(p, it, r);
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

/* ---- submitting ---- */

/* submit hands deliveries to the sink. Handlers do their work in here, so meanwhile the lease
 * renewer may extend the claim, and has then moved its deadline. */
static size_t submit(struct pipeline *p, struct delivery *const *d, size_t n, int64_t now)
{
    if (!p->cfg.call)
        return p->sk->ops->submit(p->sk, d, n);
    struct live *l = ((struct item *)d[0])->live;
    call_progress_begin(p->cfg.call, l->b.epoch, l->deadline, now);
    size_t took = p->sk->ops->submit(p->sk, d, n);
    l->deadline = call_progress_end(p->cfg.call);
    return took;
}

/* next_sent gives each delivery a time of its own, so that it is clear which of two was sent
 * first. */
static int64_t next_sent(struct pipeline *p, int64_t now)
{
    p->last_sent = max_i64(now, p->last_sent + 1);
    return p->last_sent;
}

/* bury_malformed makes an event that cannot be given to any sink a dead letter. Returns whether it
 * did. */
static bool bury_malformed(struct pipeline *p, struct item *it)
{
    struct error why;
    if (event_check_stored(it->d.ev, &why) == 0)
        return false;
    event_rejected(p, it, &(struct sink_result){.status = SINK_REJECT, .text = why.text},
                   BURIAL_MALFORMED);
    return true;
}

/* gather takes up to max deliverable items off the queue. *ret_buried counts the malformed ones
 * that it buried. */
static size_t gather(struct pipeline *p, struct delivery **d, size_t max, size_t *ret_buried)
{
    size_t n = 0;
    *ret_buried = 0;
    while (n < max && p->hand.ready.head) {
        struct item *it = ready_pop(&p->hand.ready);
        if (bury_malformed(p, it)) {
            ++*ret_buried;
        } else {
            it->d.chained = false;
            d[n++] = &it->d;
        }
    }
    return n;
}

/* gather_chain adds the events that wait for d[0], one behind the other, up to `max` in all. It
 * stops before a malformed one, which is buried when its turn comes. */
static size_t gather_chain(struct delivery **d, size_t max)
{
    struct error malformed;
    struct item *it = (struct item *)d[0];
    size_t n = 1;
    while (n < max && (it = live_item_chain(it))) {
        if (event_check_stored(it->d.ev, &malformed) != 0)
            break;
        it->d.chained = true;
        d[n++] = &it->d;
    }
    return n;
}

/* launch marks items as flying, before they are submitted: the sink may answer from within submit.
 * */
static void launch(struct pipeline *p, struct delivery *const *d, size_t n, int64_t now)
{
    for (size_t i = 0; i < n; i++) {
        struct item *it = (struct item *)d[i];
        live_item_fly(it);
        it->sent_at = next_sent(p, now);
    }
}

/* take_back puts items that the sink did not take back at the head of the queue, in their order.
 * Those of a chain wait again for the one before them. */
static void take_back(struct pipeline *p, struct delivery *const *d, size_t n)
{
    while (n > 0) {
        struct item *it = (struct item *)d[--n];
        live_item_land(it, &p->hand.ready);
        if (it->state == ITEM_READY)
            ready_unshift(&p->hand.ready, it);
    }
}

/* chain_length returns how long a chain to offer: as many as the sink took last time, or twice as
 * many if it took all. What it does not take would be gathered in vain, event after event. */
static size_t chain_length(const struct pipeline *p)
{
    if (p->chain < CHAIN_LEAST)
        return CHAIN_LEAST;
    return p->chain < OFFER ? p->chain : OFFER;
}

/* offer hands up to `room` items to the sink: many of the queue, or its first one and the chain of
 * those that wait for it, or its first one, as the sink can take them. Returns how many were taken
 * by the sink or were malformed. */
static size_t offer(struct pipeline *p, size_t room, int64_t now)
{
    struct delivery *d[OFFER];
    d[0] = NULL;
    size_t most = room < OFFER ? room : OFFER;
    size_t buried;
    size_t n = gather(p, d, pipeline_failstop(p) ? most : 1, &buried);
    if (n == 0)
        return buried;
    size_t chain = chain_length(p);
    if (pipeline_chains(p))
        n = gather_chain(d, most < chain ? most : chain);

    launch(p, d, n, now);
    p->answered = false;
    size_t took = submit(p, d, n, now);
    take_back(p, d + took, n - took);
    if (took < n)
        p->chain = took;
    else if (n == chain)
        p->chain = 2 * n;
    return took + buried;
}

/* lease_allows says whether events of the claim may be submitted. Not past its deadline; and not
 * past half of its lease, if it can be extended first, because handlers take their time. */
static bool lease_allows(const struct pipeline *p, const struct live *l, int64_t now)
{
    bool one_writer = (p->cfg.st->caps & STORE_ONE_WRITER) != 0;
    bool frozen = effects_in_tx(&p->effects) && one_writer;
    if (frozen)
        return true;
    if (now >= l->deadline)
        return false;
    bool first_half = now < pipeline_half_lease(p, l);
    return first_half || schedule_store_away(&p->schedule, now);
}

/* time_left says whether more may be submitted in this step. The handlers' transaction has a limit
 * of its own. */
static bool time_left(const struct pipeline *p, int64_t now, int64_t until)
{
    if (effects_in_tx(&p->effects))
        return effects_pending(p, now);
    return now < until;
}

/* offer_next offers the head of the queue to the sink, as far as its claim and the circuit allow.
 * Returns whether anything left the queue. */
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
        return false; /* whatever handlers did would be undone, over and over again */

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
