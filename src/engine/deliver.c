/* deliver.c: hands events to the sink and acts on its answers. failure.c handles failed
 * deliveries. */
#include "engine/pipeline_impl.h"

#define OFFER 256     /* maximum number of events to submit at once, as a batch or as a chain */
#define CHAIN_LEAST 4 /* events to offer as a chain, even if only one was taken before */
#define SUBMIT_SLICE (50 * MS_NS) /* then check leases, and whether to stop */
#define NOT_MINE_WAIT_MS 1000     /* up to twice as long, at random */
#define NOT_NOW_MIN_MS 1000

/* ---- answers ---- */

static void event_delivered(struct pipeline *p, struct slot *slot, const struct sink_result *r)
{
    p->stats.delivered++;
    p->stats.stalled_since = p->stats.ended_at;
    if (!r->unasked)
        failure_passed(p, slot);
    struct outcome out = {.kind = OUTCOME_DELIVERED, .receipt = r->receipt};
    inflight_end(&p->inflight, slot, &out, p->c->receipts);
}

/* Leaves the event to a worker that has a handler for it. The event is due again after a random
 * pause. */
static void event_not_mine(struct pipeline *p, struct slot *slot, const struct sink_result *r)
{
    int64_t delay = NOT_MINE_WAIT_MS + (int64_t)rng_below(p->cfg.rng, NOT_MINE_WAIT_MS);
    const char *text = failure_text(r);
    failure_log(p, LOG_INFO_, slot->d.ev, slot->d.attempt, "is left to another worker: %s", text);
    failure_put_off(p, slot, max_i64(delay, r->retry_after_ms), text);
}

/* Postpones the event for a reason that is neither the event's fault nor about the whole sink;
 * other events continue. */
static void event_not_now(struct pipeline *p, struct slot *slot, const struct sink_result *r)
{
    int64_t delay = max_i64(r->retry_after_ms, NOT_NOW_MIN_MS);
    const char *text = failure_text(r);
    failure_log(p, LOG_WARN_, slot->d.ev, slot->d.attempt,
                "must wait; the attempt is not counted: %s; next in %lld ms", text,
                (long long)delay);
    failure_note(p, slot, text);
    failure_put_off(p, slot, delay, text);
}

/* Takes back an event that the sink has not tried. It is queued again, with two exceptions, which
 * end here. A suspect is returned to the store: if it stayed here, it would be in flight together
 * with the suspects of other consumers, and a crash would be blamed on none of them. An event of a
 * lost claim belongs to another worker; the events of its key that wait for it are held back. */
static void event_not_tried(struct pipeline *p, struct slot *slot)
{
    bool goes_back = slot->batch->claim.suspect || slot->batch->lost;
    if (goes_back) {
        inflight_hold(&p->inflight, slot);
        return;
    }
    slot->d.again = true;
    inflight_return(&p->inflight, slot);
}

/* Pauses the consumer. If that fails, the sink counts as down and is tried again later. Handlers
 * never return SINK_PAUSE, so no handlers' transaction is open here. */
static void sink_says_pause(struct pipeline *p, const struct sink_result *r)
{
    const char *text = r->text ? r->text : "the sink asked for a pause";
    struct error err;
    inflight_want_back(&p->inflight);
    if (p->stats.paused)
        return; /* another delivery in flight already reported it */
    if (p->cfg.st->ops->consumer_pause(p->cfg.st, p->c->name, true, &err) != 0) {
        circuit_sink_down(p, failure_text(r), r->retry_after_ms);
        return;
    }
    p->stats.paused = true;
    pipeline_log(p, LOG_ERROR_, "paused: %s; to resume: outbox consumers resume %s", text,
                 p->c->name);
    circuit_report_paused(&p->report, text);
}

/* Counts the end of a delivery. A sink that takes whole batches answers for all events at once, so
 * the clock is read once per batch. */
static void count_answer(struct pipeline *p, const struct slot *slot, const struct sink_result *r)
{
    bool same_batch = p->offers.answered && pipeline_failstop(p);
    if (!same_batch)
        p->stats.ended_at = pipeline_now(p);
    p->offers.answered = true;
    int64_t now = p->stats.ended_at;
    meter_ended(&p->stats.meter,
                &(struct meter_end){
                    .type = slot->d.ev->type,
                    .status = r->status,
                    .call_ns = now - slot->sent_at,
                    .age_ms = clock_since(now / MS_NS + p->wall_ahead_ms, slot->d.ev->created_at)});
}

void deliver_done(struct pipeline *p, struct slot *slot, const struct sink_result *r)
{
    struct error err;
    count_answer(p, slot, r);
    switch (r->status) {
    case SINK_DELIVERED: event_delivered(p, slot, r); break;
    case SINK_RETRY: failure_retry(p, slot, r); break;
    case SINK_REJECT:
        /* the sink examined the event and found it faulty */
        if (!r->unasked)
            failure_passed(p, slot);
        failure_rejected(p, slot, r, BURIAL_REJECTED);
        break;
    case SINK_NOT_MINE:
        failure_passed(p, slot);
        event_not_mine(p, slot, r);
        break;
    case SINK_LATER:
        failure_answered(p);
        event_not_now(p, slot, r);
        break;
    case SINK_REFUSED:
        failure_answered(p);
        failure_refused(p, slot, r);
        break;
    case SINK_DOWN:
        event_not_tried(p, slot);
        circuit_sink_down(p, failure_text(r), r->retry_after_ms);
        break;
    case SINK_FATAL:
        event_not_tried(p, slot);
        err_class(&err, ERR_UNAVAILABLE, CLASS_FATAL, r->native, "%s",
                  r->text ? r->text : "the sink gave up");
        pipeline_fail(p, &err, pipeline_now(p));
        break;
    case SINK_PAUSE:
        event_not_tried(p, slot);
        sink_says_pause(p, r);
        break;
    case SINK_CANCELLED: event_not_tried(p, slot); break;
    }
}

/* ---- submitting ---- */

/* Takes up to max events off the queue. Malformed ones, which cannot be given to any sink, become
 * dead letters; *ret_buried counts them. */
static size_t gather(struct pipeline *p, struct delivery **d, size_t max, size_t *ret_buried)
{
    size_t n = 0;
    *ret_buried = 0;
    while (n < max && p->inflight.ready) {
        struct slot *slot = inflight_pop(&p->inflight);
        struct error why;
        if (event_check_stored(slot->d.ev, &why) != 0) {
            struct sink_result r = {.status = SINK_REJECT, .text = why.text};
            failure_rejected(p, slot, &r, BURIAL_MALFORMED);
            ++*ret_buried;
            continue;
        }
        slot->d.chained = false;
        d[n++] = &slot->d;
    }
    return n;
}

/* Adds the chain of events that wait for d[0], up to `max` in all. Stops before a malformed one,
 * which is buried when its turn comes. */
static size_t gather_chain(struct delivery **d, size_t max)
{
    struct error malformed;
    struct slot *slot = (struct slot *)d[0];
    size_t n = 1;
    while (n < max && (slot = inflight_chained(slot))) {
        if (event_check_stored(slot->d.ev, &malformed) != 0)
            break;
        slot->d.chained = true;
        d[n++] = &slot->d;
    }
    return n;
}

/* Submits deliveries to the sink, and returns how many it took. They are marked in flight first,
 * since the sink may answer from within submit; those it did not take return to the head of the
 * queue. The lease renewer may move the deadline while handlers run inside submit. */
static size_t submit_all(struct pipeline *p, struct delivery *const *d, size_t n, int64_t now)
{
    struct batch_state *b = ((struct slot *)d[0])->batch;
    for (size_t i = 0; i < n; i++) {
        struct slot *slot = (struct slot *)d[i];
        inflight_begin(slot);
        p->offers.last_sent = max_i64(now, p->offers.last_sent + 1);
        slot->sent_at = p->offers.last_sent;
    }

    p->offers.answered = false;
    struct call_progress *progress = p->cfg.progress;
    if (progress) {
        atomic_store_explicit(&progress->epoch, b->claim.epoch, memory_order_relaxed);
        atomic_store_explicit(&progress->deadline, b->deadline, memory_order_relaxed);
        atomic_store_explicit(&progress->started, now, memory_order_release);
    }
    size_t took = p->sk->ops->submit(p->sk, d, n);
    if (progress) {
        atomic_store_explicit(&progress->started, 0, memory_order_relaxed);
        b->deadline = atomic_load_explicit(&progress->deadline, memory_order_acquire);
    }

    while (n > took)
        inflight_undo(&p->inflight, (struct slot *)d[--n]);
    return took;
}

/* Offers up to `room` events to the sink: several from the queue, or the first one with the chain
 * that waits for it, or the first one alone, depending on the sink. A chain is as long as what the
 * sink took last time, or twice as long if that was a whole chain: gathering more than it takes is
 * wasted work. Returns how many the sink took or were malformed. */
static size_t offer(struct pipeline *p, size_t room, int64_t now)
{
    struct delivery *d[OFFER];
    d[0] = NULL;
    size_t most = min_size(room, OFFER);
    size_t buried;
    size_t n = gather(p, d, pipeline_failstop(p) ? most : 1, &buried);
    if (n == 0)
        return buried;
    size_t chain = min_size(p->offers.chain, OFFER);
    if (chain < CHAIN_LEAST)
        chain = CHAIN_LEAST;
    if (sink_caps(p->sk) & SINK_CHAINS)
        n = gather_chain(d, min_size(most, chain));

    size_t took = submit_all(p, d, n, now);
    if (took < n)
        p->offers.chain = took;
    else if (n == chain)
        p->offers.chain = 2 * n;
    return took + buried;
}

/* Whether events of the batch may be submitted: not past its deadline, nor past half of its lease
 * if that can be renewed first, because handlers may be slow. While the handlers' transaction is
 * open in a store with one writer, no claim can be taken over. */
static bool may_submit(const struct pipeline *p, const struct batch_state *b, int64_t now)
{
    bool frozen = effects_in_tx(&p->effects) && pipeline_one_writer(p);
    if (frozen)
        return true;
    if (now >= b->deadline)
        return false;
    bool first_half = now < lease_renewal_at(p, b);
    return first_half || schedule_store_away(&p->schedule, now);
}

/* Whether more may be submitted in this step. The handlers' transaction has its own limit. */
static bool time_left(const struct pipeline *p, int64_t now, int64_t until)
{
    if (effects_in_tx(&p->effects))
        return effects_pending(p, now);
    return now < until;
}

bool deliver_submit(struct pipeline *p)
{
    bool any = false;
    int64_t now = pipeline_now(p);
    int64_t until = now + SUBMIT_SLICE;
    bool in_vain = effects_used(&p->effects) && schedule_store_away(&p->schedule, now);
    if (in_vain)
        return false; /* otherwise the work of handlers would be undone again and again */

    while (p->inflight.ready && p->stats.state == PIPELINE_RUNNING) {
        if (!time_left(p, now, until))
            break;
        if (!may_submit(p, p->inflight.ready->batch, now))
            break;
        size_t room = circuit_room(&p->circuit, now, inflight_deliveries(&p->inflight));
        if (room == 0 || offer(p, room, now) == 0)
            break;
        any = true;
        if (p->inflight.queue != QUEUE_READY)
            break;
        now = pipeline_now(p);
    }

    if (!effects_in_tx(&p->effects))
        inflight_tidy(&p->inflight);
    effects_finish(p);
    return any;
}
