/* exchange.c: how a pipeline talks to its store. It settles the batch that has ended and claims the
 * next one, both in one exchange, and renews the leases of its claims. */
#include <stdio.h>

#include "engine/pipeline_impl.h"

#define NO_MEMORY_WAIT (1000 * MS_NS) /* pause after memory for a claimed batch ran out */
#define PARKED_PAUSE (20 * MS_NS) /* between claims of few parked events, while fresh ones wait */
#define FEW_MARKS 16              /* always recorded at once */
#define MANY_MARKS 16384          /* never postponed, because they occupy memory */
#define MARKS_PAUSE (1000 * MS_NS)

/* One exchange with the store: what to settle, what to claim, and the answer. The store does both
 * in one transaction. This holds the whole request and the whole answer. */
struct exchange {
    int64_t at; /* when it was made, monotonic */

    struct batch_state *settled; /* the batch to settle; NULL: none */
    size_t place;                /* settled == inflight.batch[place] */
    struct settlement settlement;

    struct batch_state *claimed; /* receives the claimed batch; NULL: nothing is claimed */
    struct claim_request request;
    int64_t known[INFLIGHT_BATCHES]; /* request.known points here */

    /* The answer. */
    bool lost; /* the claim of `settled` is no longer ours */
    struct batch batch;
    struct claim_hint hint;
};

/* ---- the store's health ---- */

void exchange_store_failed(struct pipeline *p, const struct error *err)
{
    p->stats.store_error = *err;
    p->stats.meter.store_errors++;
    if (!p->stats.stalled_since)
        p->stats.stalled_since = pipeline_now(p);
    snprintf(p->stats.why, sizeof p->stats.why, "store: %s", err->text);

    if (err->retry_class == CLASS_FATAL) {
        pipeline_fail(p, err, pipeline_now(p));
        return;
    }
    int64_t delay = schedule_store_failed(&p->schedule, pipeline_now(p));
    pipeline_log(p, LOG_WARN_, "store: %s; trying again in %lld ms", err->text,
                 (long long)(delay / MS_NS));
}

void exchange_store_back(struct pipeline *p)
{
    schedule_store_back(&p->schedule);
    if (!p->stats.store_error.code)
        return;
    p->stats.store_error.code = 0;
    if (!p->stats.down)
        p->stats.why[0] = '\0';
    pipeline_log(p, LOG_INFO_, "store is back");
}

/* ---- leases ---- */

/* Marks a claim as no longer ours. */
static void lose_claim(struct pipeline *p, struct batch_state *b, const char *why)
{
    if (b->lost)
        return;
    inflight_lose(&p->inflight, b);
    p->stats.lost++;
    pipeline_log(p, LOG_WARN_, "claim %lld is lost: %s; events to be delivered again: %zu",
                 (long long)b->claim.epoch, why, b->claim.n);
}

int64_t exchange_renewal_at(const struct pipeline *p)
{
    int64_t at = CLOCK_NEVER;
    for (size_t i = 0; i < p->inflight.n; i++) {
        const struct batch_state *b = p->inflight.batch[i];
        if (!b->lost)
            at = min_i64(at, lease_renewal_at(p, b));
    }
    return at;
}

/* Asks the store for a lease that begins now. Returns -1 if the store fails. */
static int renew(struct pipeline *p, struct batch_state *b)
{
    int64_t now = pipeline_now(p);
    struct error err;
    bool lost;
    struct claim_lease lease = lease_of(p, &b->claim);
    if (p->cfg.st->ops->extend(p->cfg.st, &lease, &lost, &err) != 0) {
        schedule_store_pause(&p->schedule, now);
        p->stats.meter.renewals[RENEWAL_ERROR]++;
        pipeline_log(p, LOG_WARN_, "could not extend a claim: %s", err.text);
        return -1;
    }
    if (lost) {
        p->stats.meter.renewals[RENEWAL_LOST]++;
        lose_claim(p, b, "another worker has taken it over");
        return 0;
    }
    p->stats.meter.renewals[RENEWAL_OK]++;
    lease_start(p, b, now);
    return 0;
}

/* All leases are renewed together, from the newest claim to the oldest, up to the first failure. So
 * of two claims of a lane, the older never expires after the newer, and a worker that takes over
 * receives their events in order. A claim past its deadline may belong to another worker: none of
 * its events are submitted (see may_submit in deliver.c) until the store confirms that it is
 * ours. */
void exchange_renew(struct pipeline *p)
{
    int64_t now = pipeline_now(p);
    if (schedule_store_away(&p->schedule, now) || now < exchange_renewal_at(p))
        return;
    for (size_t i = p->inflight.n; i-- > 0;) {
        struct batch_state *b = p->inflight.batch[i];
        if (!b->lost && renew(p, b) != 0)
            return;
    }
}

/* ---- dropping batches ---- */

void exchange_drop(struct pipeline *p, size_t i)
{
    struct batch_state *b = p->inflight.batch[i];
    if (b->lost)
        failure_forget(p, b);
    if (b->claim.suspect)
        suspect_end(&p->suspect);
    effects_drop(p, b);
    inflight_drop(&p->inflight, i);
    claim_quota_count(p);
}

void exchange_drop_lost(struct pipeline *p)
{
    size_t before = p->inflight.n;
    for (size_t i = 0; i < p->inflight.n;) {
        const struct batch_state *b = p->inflight.batch[i];
        bool over = b->lost && b->in_flight == 0;
        if (over)
            exchange_drop(p, i);
        else
            i++;
    }
    if (p->inflight.n < before)
        inflight_remap(&p->inflight);
}

/* ---- the request ---- */

static void exchange_init(const struct pipeline *p, struct exchange *x)
{
    *x = (struct exchange){.at = pipeline_now(p)};

    /* If the store holds another claim of ours, the answer to that claim was lost, and its events
     * must be delivered first. */
    size_t n_known = 0;
    for (size_t i = 0; i < p->inflight.n; i++) {
        const struct batch_state *b = p->inflight.batch[i];
        if (!b->lost)
            x->known[n_known++] = b->claim.epoch;
    }
    x->request = (struct claim_request){
        .consumer = p->c->name,
        .owner = p->cfg.owner,
        .events = p->c->events,
        .where = p->c->where,
        .filter = p->filter,
        .order = p->c->order,
        .lanes = p->c->lanes,
        .lane_hint = p->next.lane,
        .sole = p->cfg.sole,
        .parked_first = p->next.parked && x->at >= p->next.parked_at,
        .known = x->known,
        .n_known = n_known,
        .lease_ms = p->c->lease_ms,
        .max_attempts = p->c->retry.attempts,
    };
}

/* Adds the sink's high-water marks to the settlement. A mark is a row to write, which costs the
 * store as much as several events. If there are few streams, every settlement carries marks. If
 * there are many, they are postponed for up to a second as long as another batch is in flight whose
 * settlement can take them: a stale mark is still correct, because it is a lower bound. */
static void add_marks(struct pipeline *p, struct settlement *s)
{
    const struct hwm *marks = NULL;
    p->next.marking = false;
    if (!p->sk->ops->marks)
        return;
    size_t n = p->sk->ops->marks(p->sk, &marks);
    bool another = p->inflight.n > 1;
    bool in_between = n > FEW_MARKS && n < MANY_MARKS;
    bool recent = pipeline_now(p) - p->next.marked_at < MARKS_PAUSE;
    if (another && in_between && recent)
        return;
    s->marks = marks;
    s->n_marks = n;
    p->next.marking = true;
}

struct settlement exchange_settlement(struct pipeline *p, const struct batch_state *b)
{
    struct settlement s = {.consumer = p->c->name,
                           .owner = p->cfg.owner,
                           .order = p->c->order,
                           .b = &b->claim,
                           .out = b->out,
                           .n = b->n_out,
                           .release_from = b->release_from};
    add_marks(p, &s);
    return s;
}

/* Adds the settlement of batch[i], whose events have all ended. Returns -1 when out of memory. */
static int add_settlement(struct pipeline *p, struct exchange *x, size_t i, struct error *err)
{
    struct batch_state *b = p->inflight.batch[i];
    failure_classify(p, b);
    if (inflight_outcomes(b) != 0)
        return err_nomem(err);

    x->settled = b;
    x->place = i;
    x->settlement = exchange_settlement(p, b);
    if (b->claim.suspect) {
        suspect_end(&p->suspect);
        b->claim.suspect = false;
    }
    schedule_look_now(&p->schedule); /* settling may make a retry or a follower due */
    return 0;
}

static bool wants_claim(struct pipeline *p, int64_t now, size_t settling)
{
    return schedule_look_due(&p->schedule, now) && claim_quota_allows(p, now, settling);
}

/* Adds a claim of the next batch, if there is room for one and it is time to look. Clears the
 * wake-up before asking the store, never after: one in between must not be missed. */
static void add_claim(struct pipeline *p, struct exchange *x)
{
    size_t settling = x->settled ? 1 : 0;
    struct batch_state *spare = inflight_spare(&p->inflight);
    if (!spare || !wants_claim(p, x->at, settling))
        return;
    if (!claim_quota_take(p, &x->request))
        return; /* another pipeline took the memory first */

    x->claimed = spare;
    p->cfg.st->ops->wake_clear(p->cfg.st);
    x->request.suspect = SUSPECT_ANY;
    if (pipeline_in_process(p))
        x->request.suspect = suspect_ask(&p->suspect, p->inflight.n - settling);
}

/* Releases what add_claim has reserved. */
static void withdraw_claim(struct pipeline *p, struct exchange *x)
{
    if (x->claimed)
        arena_reset(&x->claimed->a);
    suspect_withdraw(&p->suspect);
}

/* ---- the answer about the settlement ---- */

void exchange_settled(struct pipeline *p, size_t i, bool lost)
{
    struct batch_state *b = p->inflight.batch[i];
    if (p->next.marking) {
        p->sk->ops->marks_recorded(p->sk);
        p->next.marked_at = pipeline_now(p);
        p->next.marking = false;
    }
    if (lost)
        lose_claim(p, b,
                   "another worker took it over, its lease expired, or the store was restored");
    else
        inflight_tell_settled(b, p->sk);

    /* Time with the sink, without the settlement delay. */
    bool alone = p->inflight.n == 1 && p->stats.ended_at >= b->claimed_at;
    int64_t end = alone ? p->stats.ended_at : pipeline_now(p);
    claim_quota_tune(&p->quota, b->claim.n, end - b->claimed_at);
    exchange_drop(p, i);
    schedule_look_now(&p->schedule); /* settling may have made a retry or a follower due */
}

/* ---- the answer about the claim ---- */

/* Counts and logs claims taken over from workers that vanished. */
static void note_crashes(struct pipeline *p, const struct claim_hint *h)
{
    p->stats.crashed += (int64_t)h->crashed;
    p->stats.buried += (int64_t)h->buried;
    meter_buried(&p->stats.meter, STR(""), BURIAL_CRASHED, (int64_t)h->buried);
    if (h->crashed) {
        pipeline_log(p, LOG_WARN_, "took over %zu event%s from a worker that vanished%s",
                     h->crashed, h->crashed == 1 ? "" : "s",
                     pipeline_in_process(p) ? "; delivering one at a time" : "");
    }
    if (h->buried) {
        pipeline_log(p, LOG_ERROR_,
                     "dead letters, because the process died on each attempt to deliver: %zu",
                     h->buried);
    }
}

/* Stops claiming, because another worker has registered the consumer with newer settings. The
 * pipeline stands by if configured to, and fails otherwise. */
static void note_superseded(struct pipeline *p)
{
    if (p->cfg.stand_by) {
        pipeline_stand_by(p);
        return;
    }
    struct error err;
    err_class(&err, ERR_CONFLICT, CLASS_FATAL, 0,
              "the order, number of lanes or filter of this consumer has been changed (outbox "
              "consumers history %s); restart with the new settings",
              p->c->name);
    /* Deliveries in flight may end within their lease. */
    pipeline_fail(p, &err, pipeline_now(p) + p->c->lease_ms * MS_NS);
}

/* Logs which session blocks the wake-ups of this relay, once for each such session; NULL: none. */
static void log_wake_blocker(struct pipeline *p, const char *who)
{
    const char *now = who ? who : "";
    char *logged = p->next.wake_blocker;
    const size_t room = sizeof p->next.wake_blocker;
    bool same = strncmp(logged, now, room - 1) == 0;
    if (same)
        return;
    snprintf(logged, room, "%s", now);
    if (!who) {
        pipeline_log(p, LOG_INFO_, "wake-ups work again");
        return;
    }
    pipeline_log(
        p, LOG_WARN_,
        "wake-ups disabled: the advisory lock for them is held by an unrelated session, %s; "
        "polling every second",
        who);
}

/* Returns the longest time until the next look; a wake-up may come first. */
static int64_t idle_ms(const struct pipeline *p, const struct claim_hint *h)
{
    bool has_wake_ups = p->cfg.st->ops->wake_fd(p->cfg.st) >= 0;
    int64_t wait = p->cfg.sweep_ms;
    if (!has_wake_ups)
        wait = min_i64(wait, p->cfg.poll_ms);
    if (h->wait_ms >= 0)
        wait = min_i64(wait, h->wait_ms);
    if (h->poll_in_ms > 0)
        wait = min_i64(wait, h->poll_in_ms);
    return wait;
}

/* Decides when to look again after a claim that returned no events. A suspect that the store left
 * behind waits for our own batches to end. */
static void took_nothing(struct pipeline *p, const struct exchange *x)
{
    const struct claim_hint *h = &x->hint;
    bool look_on = h->skipped > 0 || h->suspect;

    log_wake_blocker(p, h->wake_blocker);
    p->suspect.due = h->suspect;
    if (look_on)
        schedule_look_now(&p->schedule);
    else
        schedule_rest(&p->schedule, x->at, idle_ms(p, h) * MS_NS, h->busy);

    p->stats.paused = h->paused;
    p->stats.through = h->through && p->inflight.n == 0;
    if (p->stats.through)
        p->stats.stalled_since = 0; /* there was no work to be stuck */
}

static void took_batch(struct pipeline *p, struct batch_state *b, const struct claim_hint *h)
{
    p->stats.claims++;
    p->stats.through = false;
    p->stats.paused = false;
    if (!p->stats.stalled_since) {
        p->stats.stalled_since = b->claimed_at;
        p->stats.ended_at = b->claimed_at;
    }
    p->wall_ahead_ms = clock_wall(p->cfg.clock) - pipeline_now(p) / MS_NS;

    /* The next claim starts at the next lane, alternating between parked and fresh events. But
     * retries become due one by one, and claiming a few costs as much as claiming a full batch, so
     * while fresh events wait, parked ones accumulate, though only briefly: until they are claimed,
     * new events of their keys must be parked as well. */
    bool few = 4 * b->claim.n < p->quota.n;
    p->next.lane = (b->claim.lane + 1) % p->c->lanes;
    p->next.parked = !p->next.parked;
    if (b->claim.parked && few && !b->claim.suspect)
        p->next.parked_at = b->claimed_at + PARKED_PAUSE;

    p->suspect.due = b->claim.suspect; /* probably not the only suspect */
    if (h->quiet)
        schedule_rest(&p->schedule, b->claimed_at, p->cfg.sweep_ms * MS_NS, false);
    else
        schedule_look_now(&p->schedule);

    if (inflight_add(&p->inflight, b, !pipeline_failstop(p)) != 0) {
        suspect_end(&p->suspect);
        schedule_rest(&p->schedule, pipeline_now(p), NO_MEMORY_WAIT, false);
        return;
    }
    claim_quota_learn(&p->quota, inflight_batch_bytes(b));
}

/* Begins the delivery of a suspect. If others of this process are in flight as well, a crash is
 * blamed on none of them; if the store cannot be told, one crash too many is counted at worst. */
static void begin_suspect(struct pipeline *p, const struct batch *claim)
{
    struct suspect_claim cleared[2];
    struct claim_lease ours = lease_of(p, claim);
    size_t n = suspect_begin(&p->suspect, &ours, claim->blamed, cleared);
    for (size_t i = 0; i < n; i++) {
        struct claim_lease l = suspect_lease(&cleared[i]);
        struct error err;
        bool gone;
        if (p->cfg.st->ops->extend(p->cfg.st, &l, &gone, &err) != 0)
            pipeline_log(p, LOG_WARN_, "store: %s", err.text);
    }
}

/* Handles the answer to a claim: a batch, or a hint when to try again. */
static void take_claimed(struct pipeline *p, const struct exchange *x)
{
    struct batch_state *b = x->claimed;
    b->claim = x->batch;
    b->claimed_at = x->at;
    lease_start(p, b, x->at);
    if (b->claim.suspect)
        begin_suspect(p, &b->claim);
    else
        suspect_withdraw(&p->suspect);

    if (b->claim.n > 0) {
        took_batch(p, b, &x->hint);
        return;
    }
    arena_reset(&b->a);
    took_nothing(p, x);
}

/* ---- the exchange ---- */

static void exchange_failed(struct pipeline *p, struct exchange *x, const struct error *err)
{
    if (x->claimed)
        inflight_forgot(&p->inflight); /* the claim may have been made and only its answer lost */
    withdraw_claim(p, x);
    claim_quota_tidy(p);
    exchange_store_failed(p, err);
}

/* Acts on the store's answer: first the settlement, then the claim. */
static void note_answer(struct pipeline *p, struct exchange *x)
{
    exchange_store_back(p);
    if (x->settled)
        exchange_settled(p, x->place, x->lost);
    note_crashes(p, &x->hint);
    if (x->hint.unread) {
        inflight_forgot(&p->inflight);
        p->stats.meter.store_errors++;
        pipeline_log(p, LOG_WARN_, "store: claimed events could not be read; trying again");
    }

    bool superseded = x->hint.changed && p->stats.state == PIPELINE_RUNNING;
    if (superseded) {
        withdraw_claim(p, x);
        note_superseded(p);
    } else if (x->claimed) {
        take_claimed(p, x);
    }

    claim_quota_tidy(p);

    bool idle = p->inflight.n == 0 && !p->stats.down;
    if (idle)
        p->stats.stalled_since = 0;
}

/* The only function in which a pipeline settles and claims. Returns whether it made progress:
 * something was settled, claimed or skipped, or a suspect can be claimed next. */
static bool exchange_make(struct pipeline *p, struct exchange *x)
{
    struct store *st = p->cfg.st;
    const struct settlement *s = x->settled ? &x->settlement : NULL;
    struct arena *a = x->claimed ? &x->claimed->a : NULL;
    struct error err = {0};
    if (st->ops->turn(st, s, &x->lost, &x->request, a, &x->batch, &x->hint, &err) != 0) {
        exchange_failed(p, x, &err);
        return false;
    }
    note_answer(p, x);

    bool claimed_any = x->batch.n > 0;
    bool passed_any = x->hint.skipped > 0;
    bool suspect_next = p->suspect.due && p->inflight.n == 0;
    return x->settled || claimed_any || passed_any || suspect_next;
}

bool exchange_settle(struct pipeline *p, size_t i)
{
    struct exchange x;
    struct error err;
    exchange_init(p, &x);
    if (add_settlement(p, &x, i, &err) != 0) {
        exchange_failed(p, &x, &err);
        return false;
    }
    add_claim(p, &x);
    return exchange_make(p, &x);
}

/* ---- a step ---- */

/* Brings the next look forward if a wake-up has come. Skips the check where it would change
 * nothing: a look is due anyway, or another worker holds the lane. */
static void note_wake_up(struct pipeline *p, int64_t now)
{
    if (schedule_look_due(&p->schedule, now) || !schedule_listens(&p->schedule, now))
        return;

    struct pollfd wake = {.fd = p->cfg.st->ops->wake_fd(p->cfg.st), .events = POLLIN};
    if (wake.fd >= 0 && poll(&wake, 1, 0) == 1)
        schedule_look_now(&p->schedule);
}

/* Whether there is a batch[i] and all of its events have ended. */
static bool has_ended(const struct pipeline *p, size_t i)
{
    return i < p->inflight.n && p->inflight.batch[i]->open == 0;
}

/* With the delay, a steady trickle of events costs one turn each instead of two. It applies only
 * while there is nothing to claim: the next event comes with a wake-up, and settlement and claim
 * share one transaction. */
int64_t exchange_settle_delay_until(const struct pipeline *p, int64_t now)
{
    bool alone = p->inflight.n == 1 && has_ended(p, 0);
    if (!alone || p->cfg.settle_wait_ms == 0 || p->stats.state != PIPELINE_RUNNING)
        return 0;
    if (effects_used(&p->effects) || schedule_look_due(&p->schedule, now))
        return 0;
    /* Only the settlement of the batch remains. */
    const struct batch_state *b = p->inflight.batch[0];
    bool plain = !b->claim.parked && !b->claim.suspect && !b->lost;
    bool delivered_whole = plain && b->exceptions == 0 && b->release_from == 0;
    if (!delivered_whole)
        return 0;

    int64_t by = p->stats.ended_at + p->cfg.settle_wait_ms * MS_NS;
    return now < by ? by : 0;
}

bool exchange_step(struct pipeline *p)
{
    int64_t now = pipeline_now(p);
    if (effects_unsure(&p->effects))
        return false;
    if (schedule_store_away(&p->schedule, now))
        return false;

    exchange_drop_lost(p);
    note_wake_up(p, now);
    if (exchange_settle_delay_until(p, now) > 0)
        return false;

    size_t next = inflight_next_settled(&p->inflight);
    if (has_ended(p, next))
        return exchange_settle(p, next);
    if (!wants_claim(p, now, 0))
        return false;
    struct exchange x;
    exchange_init(p, &x);
    add_claim(p, &x);
    if (!x.claimed)
        return false;
    return exchange_make(p, &x);
}
