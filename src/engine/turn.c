/* turn.c: what a pipeline does with its store: claims, extends, settles. */
#include <stdio.h>

#include "base/bug.h"
#include "engine/pipeline_impl.h"

#define BATCH_BYTES (2 * 1024 * 1024) /* of events in a batch; what bounds memory */
#define PROBE_EVENTS 16               /* to claim while the sink is down */
#define CAREFUL_AGAIN (20 * MS_NS)    /* when another pipeline of this process is at a careful event */

static void abandon(struct pipeline *p, struct live *l, const char *why)
{
    if (l->lost) return;
    hand_lose(&p->hand, l);
    p->stats.lost++;
    log_at(p->cfg.log, LOG_WARN_, p->c->name, "claim %lld is lost: %s; what it held will be delivered again: %zu",
           (long long)l->b.epoch, why, l->b.n);
}

/* extend_all goes from the newest claim to the oldest and stops at a failure, so that of two claims of a lane the earlier
 * never outlives the later one: whoever takes over finds them in order. */
static void extend_all(struct pipeline *p)
{
    for (size_t i = p->hand.n; i-- > 0;) {
        struct live *l = p->hand.live[i];
        int64_t now = pipeline_now(p);
        struct error err;
        bool lost;
        if (l->lost) continue;
        if (p->cfg.st->ops->extend(p->cfg.st, p->c->name, p->cfg.owner, &l->b, p->c->lease_ms, &lost, &err) != 0) {
            schedule_store_pause(&p->schedule, now);
            p->stats.meter.renewals[RENEWAL_ERROR]++;
            log_at(p->cfg.log, LOG_WARN_, p->c->name, "could not extend a claim: %s", err.text);
            return;
        }
        p->stats.meter.renewals[lost ? RENEWAL_LOST : RENEWAL_OK]++;
        if (lost && !BUG(LOST_CLAIM_GOES_ON)) abandon(p, l, "another worker has taken it over");
        else l->deadline = now + p->c->lease_ms * MS_NS;
    }
}

/* turn_keep_leases: past its deadline a claim may be someone else's. Nothing of it is submitted then (see deliver_submit) until the
 * store has said that it is still ours. */
void turn_keep_leases(struct pipeline *p)
{
    int64_t now = pipeline_now(p);
    if (schedule_store_away(&p->schedule, now)) return;
    for (size_t i = 0; i < p->hand.n; i++) {
        if (p->hand.live[i]->lost || now < pipeline_half_lease(p, p->hand.live[i])) continue;
        extend_all(p);
        return;
    }
}

/* ---- settle and claim ---- */

void turn_drop(struct pipeline *p, size_t i)
{
    if (p->hand.live[i]->b.careful) careful_leave(&p->careful);
    effects_drop(p, p->hand.live[i]);
    hand_drop(&p->hand, i);
}

/* turn_may_claim: with a sink that keeps order by itself one batch at a time is enough, and it is what makes that safe. While
 * a careful event is on its way, or waits to be, nothing else is started: if the process dies, it was that event. */
bool turn_may_claim(struct pipeline *p, int64_t now, size_t settling)
{
    size_t live = p->hand.n - settling;
    if (p->state != PIPELINE_RUNNING || p->hand.ready.head || !pipeline_our_turn(p)) return false;
    if (live >= (pipeline_failstop(p) || effects_used(&p->effects) ? 1 : HAND_MAX)) return false;
    /* What went back is somebody else's once it is settled. Claimed again, the last of a key would know of nothing before it. */
    if (live > 0 && p->hand.gave_back) return false;
    if (live > 0 && !BUG(CAREFUL_NOT_ALONE) && (p->careful.due || p->hand.live[p->hand.n - 1]->b.careful)) return false;
    return circuit_room(&p->circuit, now, hand_flying(&p->hand)) > 0;
}

static bool wants_work(struct pipeline *p, int64_t now, size_t settling)
{
    return schedule_look_due(&p->schedule, now) && turn_may_claim(p, now, settling);
}

void turn_store_failed(struct pipeline *p, const struct error *err)
{
    p->store_error = *err;
    p->stats.meter.store_errors++;
    if (!p->stats.stalled_since) p->stats.stalled_since = pipeline_now(p);
    snprintf(p->stats.why, sizeof p->stats.why, "store: %s", err->text);
    if (err->fate == FATE_FATAL) {
        pipeline_fail(p, err, pipeline_now(p));
        return;
    }
    int64_t delay = schedule_store_failed(&p->schedule, pipeline_now(p));
    log_at(p->cfg.log, LOG_WARN_, p->c->name, "store: %s; trying again in %lld ms", err->text,
           (long long)(delay / MS_NS));
}

void turn_store_back(struct pipeline *p)
{
    schedule_store_back(&p->schedule);
    if (!p->store_error.code) return;
    p->store_error.code = 0;
    if (!p->stats.down) p->stats.why[0] = 0;
    log_at(p->cfg.log, LOG_INFO_, p->c->name, "store is back");
}

/* say_who_is_in_the_way: once, and again when it is somebody else. */
static void say_who_is_in_the_way(struct pipeline *p, const char *who)
{
    bool same = strncmp(p->in_the_way, who ? who : "", sizeof p->in_the_way - 1) == 0;
    if (same) return;
    snprintf(p->in_the_way, sizeof p->in_the_way, "%s", who ? who : "");
    if (who)
        log_at(
            p->cfg.log, LOG_WARN_, p->c->name,
            "nobody can wake this relay: a lock of the doorbell is held by %s, who has no business with it; looking every second "
            "until that ends",
            who);
    else log_at(p->cfg.log, LOG_INFO_, p->c->name, "the doorbell works again");
}

static void found_nothing(struct pipeline *p, const struct claim_hint *h, int64_t now)
{
    int64_t wait = p->cfg.sweep_ms;
    if (p->cfg.st->ops->bell_fd(p->cfg.st) < 0 && p->cfg.poll_ms < wait) wait = p->cfg.poll_ms;
    if (h->wait_ms >= 0 && h->wait_ms < wait) wait = h->wait_ms;
    if (h->nap_ms > 0 && h->nap_ms < wait) wait = h->nap_ms;
    say_who_is_in_the_way(p, h->in_the_way);
    careful_note_due(&p->careful, h->careful); /* then turn_may_claim waits for the live batches to end */
    bool more = h->skipped > 0 || h->careful;
    if (more) schedule_look_now(&p->schedule);
    else schedule_rest(&p->schedule, now, wait * MS_NS, h->busy);
    p->stats.paused = h->paused;
    p->stats.through = h->through && p->hand.n == 0;
    if (p->stats.through) p->stats.stalled_since = 0; /* no work that could get stuck */
}

static void took_batch(struct pipeline *p, struct live *l)
{
    p->stats.claims++;
    if (!p->stats.stalled_since) p->stats.stalled_since = p->stats.ended_at = l->claimed_at;
    p->wall_ahead_ms = clock_wall(p->cfg.clock) - pipeline_now(p) / MS_NS;
    p->stats.through = p->stats.paused = false;
    careful_note_due(&p->careful, false);
    schedule_look_now(&p->schedule);
    p->lane = (l->b.lane + 1) % p->c->lanes;
    p->parked_turn = !p->parked_turn;
    if (hand_take(&p->hand, l, !pipeline_failstop(p)) != 0) {
        careful_leave(&p->careful);
        schedule_rest(&p->schedule, pipeline_now(p), 1000 * MS_NS, false);
    }
}

static void note_hint(struct pipeline *p, const struct claim_hint *h)
{
    p->stats.crashed += (int64_t)h->crashed;
    p->stats.buried += (int64_t)h->buried;
    meter_buried(&p->stats.meter, STR(""), BURIAL_CRASHED, (int64_t)h->buried);
    if (h->crashed)
        log_at(p->cfg.log, LOG_WARN_, p->c->name,
               "took over %zu event%s of a worker that vanished; delivering one at a time", h->crashed,
               h->crashed == 1 ? "" : "s");
    if (h->buried)
        log_at(p->cfg.log, LOG_ERROR_, p->c->name,
               "dead letters, because the process died on each attempt to deliver: %zu", h->buried);
}

/* request_of: known has room for HAND_MAX epochs and must live as long as the request. */
static struct claim_request request_of(struct pipeline *p, int64_t *known)
{
    size_t n = 0;
    for (size_t i = 0; i < p->hand.n; i++)
        if (!p->hand.live[i]->lost) known[n++] = p->hand.live[i]->b.epoch;
    size_t most = p->batch_size.n;
    if (circuit_open(&p->circuit) && most > PROBE_EVENTS) most = PROBE_EVENTS;
    return (struct claim_request){
        .events = p->c->events,
        .where = p->c->where,
        .known = known,
        .n_known = n,
        .consumer = p->c->name,
        .owner = p->cfg.owner,
        .order = p->c->order,
        .lanes = p->c->lanes,
        .lane_hint = p->lane,
        .parked_first = p->parked_turn,
        .filter = p->filter,
        .max_events = most,
        .max_bytes = BATCH_BYTES,
        .lease_ms = p->c->lease_ms,
        .max_attempts = p->c->retry.attempts,
    };
}

/* superseded: another worker has registered the consumer with other settings, and those count. */
static void superseded(struct pipeline *p)
{
    struct error err;
    if (p->cfg.stand_by) {
        standby_enter(p);
        return;
    }
    err_fate(
        &err, ERR_CONFLICT, FATE_FATAL, 0,
        "this consumer was given another order, number of lanes or filter meanwhile (outbox consumers history %s); "
        "start it again with those",
        p->c->name);
    pipeline_fail(p, &err, pipeline_now(p) + p->c->lease_ms * MS_NS); /* what is with the sink may end */
}

struct settlement turn_settlement(const struct pipeline *p, const struct live *l)
{
    struct settlement s = {.consumer = p->c->name,
                           .owner = p->cfg.owner,
                           .order = p->c->order,
                           .b = &l->b,
                           .out = l->out,
                           .n = l->n_out,
                           .release_from = l->release_from};
    if (p->sk->ops->marks) s.n_marks = p->sk->ops->marks(p->sk, &s.marks);
    return s;
}

/* turn_settled forgets a batch whose settlement was handed in. */
void turn_settled(struct pipeline *p, size_t i, bool lost)
{
    if (p->sk->ops->marks_kept) p->sk->ops->marks_kept(p->sk);
    struct live *l = p->hand.live[i];
    if (lost) abandon(p, l, "another worker has taken it over, or its lease ran out");
    batch_size_tune(&p->batch_size, l->b.n, pipeline_now(p) - l->claimed_at);
    turn_drop(p, i);
    schedule_look_now(&p->schedule); /* for what it leaves behind, a retry or the next of a key */
}

/* claimed takes what the claiming part of a turn gave: a batch, or word when to ask again. */
static void claimed(struct pipeline *p, struct live *next, enum careful mode, struct claim_hint *h, int64_t now)
{
    next->claimed_at = now;
    next->deadline = now + p->c->lease_ms * MS_NS;
    if (!next->b.careful) careful_leave(&p->careful);
    if (next->b.n > 0) {
        took_batch(p, next);
        return;
    }
    arena_reset(&next->a);
    bool again = mode == CAREFUL_SKIP && h->careful; /* another consumer of this process is at a careful event */
    if (mode == CAREFUL_SKIP) h->careful = false;
    found_nothing(p, h, now);
    if (again) schedule_look_by(&p->schedule, now + CAREFUL_AGAIN);
}

bool turn_settle(struct pipeline *p, int i)
{
    struct live *l = i >= 0 ? p->hand.live[i] : NULL, *next = NULL;
    struct settlement s;
    int64_t known[HAND_MAX], now = pipeline_now(p);
    struct claim_request req = request_of(p, known);
    struct claim_hint hint = {0};
    struct batch b = {0};
    struct error err = {0};
    bool lost = false;
    if (l) deliver_judge(p, l);
    if (l && live_outcomes(l) != 0) {
        err_nomem(&err);
        goto failed;
    }
    if (l) s = turn_settlement(p, l);
    if (l && l->b.careful) {
        careful_leave(&p->careful); /* nothing of it is on its way any more */
        l->b.careful = false;
    }
    if (l) schedule_look_now(&p->schedule); /* for what it leaves behind, a retry or the next of a key */
    if (wants_work(p, now, l ? 1 : 0)) next = hand_spare(&p->hand);
    if (next) {
        p->cfg.st->ops->bell_clear(p->cfg.st);
        size_t others = p->hand.n - (l ? 1 : 0);
        req.careful = careful_mode(&p->careful, others);
    } else {
        req.max_events = 0;
    }
    if (p->cfg.st->ops->turn(p->cfg.st, l ? &s : NULL, &lost, &req, next ? &next->a : NULL, &b, &hint, &err) != 0)
        goto failed;
    turn_store_back(p);
    if (l) turn_settled(p, (size_t)i, lost);
    note_hint(p, &hint);
    if (hint.changed && p->state == PIPELINE_RUNNING) {
        if (next) arena_reset(&next->a);
        careful_leave(&p->careful);
        superseded(p);
    } else if (next) {
        next->b = b;
        claimed(p, next, req.careful, &hint, now);
    }
    if (p->hand.n == 0 && !p->stats.down) p->stats.stalled_since = 0;
    return b.n > 0 || l || hint.skipped;
failed:
    if (next) {
        arena_reset(&next->a);
        hand_forgot(&p->hand); /* it may have been done, and the answer got lost */
    }
    careful_leave(&p->careful);
    turn_store_failed(p, &err);
    return false;
}

/* turn_drop_lost forgets batches that are not ours any more once nothing of them is with the sink. */
void turn_drop_lost(struct pipeline *p)
{
    size_t before = p->hand.n;
    for (size_t i = 0; i < p->hand.n;) {
        if (p->hand.live[i]->lost && p->hand.live[i]->flying == 0) turn_drop(p, i);
        else i++;
    }
    if (p->hand.n < before) hand_remap(&p->hand);
}

static void hear_bell(struct pipeline *p, int64_t now)
{
    struct pollfd bell = {.fd = p->cfg.st->ops->bell_fd(p->cfg.st), .events = POLLIN};
    if (bell.fd < 0) return;
    if (schedule_look_due(&p->schedule, now) || !schedule_listens(&p->schedule, now)) return;
    bool rang = poll(&bell, 1, 0) == 1;
    if (rang) schedule_look_now(&p->schedule);
}

/* turn_store: while it is not known whether a batch's effects were committed, nothing is settled: see effects_resolve. */
bool turn_store(struct pipeline *p)
{
    int64_t now = pipeline_now(p);
    if (effects_unsure(&p->effects) && !BUG(UNSURE_IS_SETTLED)) return false;
    if (schedule_store_away(&p->schedule, now)) return false;
    turn_drop_lost(p);
    for (size_t i = 1; BUG(SETTLED_OUT_OF_ORDER) && i < p->hand.n; i++)
        if (p->hand.live[i]->open == 0) return turn_settle(p, (int)i);
    size_t next = hand_next(&p->hand);
    if (p->hand.n > 0 && p->hand.live[next]->open == 0) return turn_settle(p, (int)next);
    hear_bell(p, now);
    return wants_work(p, now, 0) && turn_settle(p, -1);
}
