/* pipeline_impl.h: what the files of a pipeline share: pipeline.c (the front door, and standing
 * by), deliver.c (to the sink and back), failure.c (what happens when a delivery fails), circuit.c
 * (the sink as a whole), exchange.c (to the store and back), claim_quota.c (whether to claim, and
 * how much), effects.c and calls.c (handlers' transactions). */
#ifndef ENGINE_PIPELINE_IMPL_H
#define ENGINE_PIPELINE_IMPL_H

#include "base/num.h"
#include "engine/claim_quota.h"
#include "engine/effects.h"
#include "engine/failure.h"
#include "engine/inflight.h"
#include "engine/pipeline.h"

/* ---- timers ----
 *
 * When a pipeline looks for work, reacts to wake-ups, retries a failed store, gives up a drain.
 * Nothing here reads a clock: every time is monotonic, in ns, and comes from the caller. */

#define TAKEN_WAIT (50 * MS_NS) /* between looks while another worker holds the lane */
#define STORE_WAIT_MIN (100 * MS_NS)
#define STORE_WAIT_MAX (5000 * MS_NS)
#define STORE_PAUSE (200 * MS_NS)

/* (1) Only the functions below write these.
 * (2) ignore_until matters only while look_at lies ahead.
 * (3) store_at lies ahead during the store's backoff.
 * (4) drain_by only ever moves to an earlier time. */
struct schedule {
    int64_t look_at;      /* when to ask the store for work; 0: at once */
    int64_t ignore_until; /* wake-ups are ignored until then */
    int64_t store_at;     /* end of the store's backoff; 0: none */
    int64_t store_delay;  /* last backoff; 0: the store has answered since */
    int64_t drain_by;     /* when deliveries in flight are cancelled; CLOCK_NEVER: no drain */
};

/* schedule_init starts with a look at once, and no drain. */
static inline void schedule_init(struct schedule *s)
{
    *s = (struct schedule){.drain_by = CLOCK_NEVER};
}

/* schedule_look_now makes a look due at once. */
static inline void schedule_look_now(struct schedule *s)
{
    s->look_at = 0;
    s->ignore_until = 0;
}

/* schedule_rest makes the next look due in `wait`, or at a wake-up. `lane_taken`: another worker
 * holds the lane, and each of its commits is a wake-up, so the next look is at least 50 ms away. */
static inline void schedule_rest(struct schedule *s, int64_t now, int64_t wait, bool lane_taken)
{
    s->ignore_until = 0;
    if (lane_taken) {
        wait = max_i64(wait, TAKEN_WAIT);
        s->ignore_until = now + TAKEN_WAIT;
    }
    s->look_at = now + wait;
}

/* schedule_woken makes a look due at once, and ends the store's backoff. */
static inline void schedule_woken(struct schedule *s)
{
    schedule_look_now(s);
    s->store_at = 0;
}

/* schedule_look_due returns whether a look is due, schedule_listens whether wake-ups count now.
 * schedule_look_wake returns when either will change. */
static inline bool schedule_look_due(const struct schedule *s, int64_t now)
{
    return now >= s->look_at;
}

static inline bool schedule_listens(const struct schedule *s, int64_t now)
{
    return now >= s->ignore_until;
}

static inline int64_t schedule_look_wake(const struct schedule *s, int64_t now)
{
    bool ignored_first = now < s->ignore_until && s->ignore_until < s->look_at;
    return ignored_first ? s->ignore_until : s->look_at;
}

/* schedule_store_failed starts a backoff and returns its length: 100 ms, doubled with each failure
 * in a row, up to 5 s. */
static inline int64_t schedule_store_failed(struct schedule *s, int64_t now)
{
    int64_t delay = max_i64(2 * s->store_delay, STORE_WAIT_MIN);
    s->store_delay = min_i64(delay, STORE_WAIT_MAX);
    s->store_at = now + s->store_delay;
    return s->store_delay;
}

/* schedule_store_pause backs off for 200 ms without counting a failure. */
static inline void schedule_store_pause(struct schedule *s, int64_t now)
{
    s->store_at = now + STORE_PAUSE;
}

/* schedule_store_back notes that the store has answered. */
static inline void schedule_store_back(struct schedule *s)
{
    s->store_at = 0;
    s->store_delay = 0;
}

/* schedule_store_away returns whether a backoff is running. */
static inline bool schedule_store_away(const struct schedule *s, int64_t now)
{
    return now < s->store_at;
}

/* schedule_wake_at returns when a pipeline that wants to wake up at `at` should do so. During the
 * store's backoff, work that is already due can only be waiting for the store. */
static inline int64_t schedule_wake_at(const struct schedule *s, int64_t now, int64_t at)
{
    bool waits_for_store = schedule_store_away(s, now) && (at <= now || s->store_at < at);
    return waits_for_store ? s->store_at : at;
}

/* schedule_drain sets the deadline of a drain, unless an earlier one is set. */
static inline void schedule_drain(struct schedule *s, int64_t deadline)
{
    s->drain_by = min_i64(s->drain_by, deadline);
}

/* schedule_drain_over returns whether the deadline has passed. */
static inline bool schedule_drain_over(const struct schedule *s, int64_t now)
{
    return now >= s->drain_by;
}

/* ---- the pipeline ---- */

/* (1) Only pipeline.c writes these. */
struct standby {
    int64_t at;    /* when to try to register again, monotonic */
    int64_t delay; /* the last wait between tries; 0: none yet */
};

/* What the next turn with the store starts from. (1) Only exchange.c writes these. */
struct next_turn {
    int lane;               /* the lane that the next claim tries first */
    bool parked;            /* the next claim tries parked events first, if it is time to */
    int64_t parked_at;      /* when parked events may be claimed again, monotonic; 0: at once */
    bool marking;           /* the settlement under way carries the sink's high-water marks */
    int64_t marked_at;      /* when a settlement last carried them, monotonic */
    char wake_blocker[200]; /* the session that blocks wake-ups, as last logged; "": none */
};

/* How events are offered to the sink. (1) Only deliver.c writes these. */
struct offers {
    int64_t last_sent; /* sent_at of the last delivery; no two are equal */
    bool answered;     /* the sink has answered since it was last offered something */
    size_t chain;      /* events of the last chain that were taken; doubled if all were */
};

/* (1) Only pipeline.c writes stats.state, error and standby_why; the structs are written by the
 * file that they name. (2) stats.error.code != 0 only while draining for good, or once failed. */
struct pipeline {
    struct pipeline_config cfg;
    const struct consumer *c;
    struct filter *filter;
    struct sink *sk;
    struct pipeline_stats stats;

    struct inflight inflight;
    struct circuit circuit;
    struct circuit_report report;
    struct failure_detector detector;
    struct effects effects;
    struct claim_quota quota;
    struct suspect suspect;
    struct schedule schedule;
    struct standby standby;
    struct next_turn next;
    struct offers offers;

    int64_t stepped_at;    /* when the last step began, monotonic */
    int64_t wall_ahead_ms; /* wall clock minus monotonic clock, at the last claim */
    const char *caution;   /* the sink's last warning; NULL: none */
};

static inline int64_t pipeline_now(const struct pipeline *p)
{
    return clock_mono(p->cfg.clock);
}

/* pipeline_log logs a line about the consumer. */
#define pipeline_log(p, level, ...) log_at((p)->cfg.log, level, (p)->c->name, __VA_ARGS__)

/* pipeline_failstop: the sink takes whole batches and keeps their order itself.
 * pipeline_in_process: an event can kill this process. See SINK_FAILSTOP and SINK_IN_PROCESS. */
static inline bool pipeline_failstop(const struct pipeline *p)
{
    return (sink_caps(p->sk) & SINK_FAILSTOP) != 0;
}

static inline bool pipeline_in_process(const struct pipeline *p)
{
    return (sink_caps(p->sk) & SINK_IN_PROCESS) != 0;
}

/* pipeline_our_turn returns whether we may deliver: we do not stand by, and the sink is not leased
 * to another relay. */
static inline bool pipeline_our_turn(const struct pipeline *p)
{
    if (p->stats.standby_why.code)
        return false;
    const struct sink_lease *l = pipeline_sink_lease(p);
    return !l || l->held;
}

/* pipeline_one_writer returns whether the store has one writer at a time: see STORE_ONE_WRITER. */
static inline bool pipeline_one_writer(const struct pipeline *p)
{
    return (p->cfg.st->caps & STORE_ONE_WRITER) != 0;
}

/* ---- leases ---- */

/* lease_of returns the lease of a claim, for extending it. */
static inline struct claim_lease lease_of(const struct pipeline *p, const struct batch *claim)
{
    return (struct claim_lease){.consumer = p->c->name,
                                .owner = p->cfg.owner,
                                .epoch = claim->epoch,
                                .lease_ms = p->c->lease_ms};
}

/* lease_start notes that the lease of a batch begins at `now`; lease_renewal_at returns when half
 * of it is over. */
static inline void lease_start(const struct pipeline *p, struct batch_state *b, int64_t now)
{
    b->deadline = now + p->c->lease_ms * MS_NS;
}

static inline int64_t lease_renewal_at(const struct pipeline *p, const struct batch_state *b)
{
    return b->deadline - p->c->lease_ms * MS_NS / 2;
}

/* ---- functions of each file ---- */

/* pipeline_stand_by stops claiming, because the consumer has been given newer settings than ours.
 */
void pipeline_stand_by(struct pipeline *p);
/* pipeline_fail drains the pipeline until the deadline and then stops it for good, with err. Only
 * the first error counts. */
void pipeline_fail(struct pipeline *p, const struct error *err, int64_t deadline);

/* deliver_submit hands queued events to the sink, and ends the handlers' transaction if it opened
 * one. Returns whether the sink took anything. deliver_done handles the sink's answer for one
 * event. */
bool deliver_submit(struct pipeline *p);
void deliver_done(struct pipeline *p, struct slot *slot, const struct sink_result *r);

/* exchange_step settles the batch that has ended, or claims one, if either is due. Returns whether
 * anything happened. It does nothing while a commit of effects is in doubt: see effects_resolve. */
bool exchange_step(struct pipeline *p);
/* exchange_settle settles batch[i], whose events have all ended, and claims the next batch in the
 * same transaction if claim_quota_allows and a look is due. Returns whether the store did it. */
bool exchange_settle(struct pipeline *p, size_t i);
/* exchange_settle_delay_until returns until when the settlement of the only batch, which was
 * delivered whole, waits for the next claim. 0: no delay. */
int64_t exchange_settle_delay_until(const struct pipeline *p, int64_t now);
/* exchange_drop forgets batch[i]. exchange_drop_lost forgets all batches whose claims are no longer
 * ours and that have no event with the sink. */
void exchange_drop(struct pipeline *p, size_t i);
void exchange_drop_lost(struct pipeline *p);
/* exchange_settlement returns the settlement of a batch; it points into b. exchange_settled forgets
 * batch[i], which the store has settled, or has refused because the claim was `lost`. */
struct settlement exchange_settlement(struct pipeline *p, const struct batch_state *b);
void exchange_settled(struct pipeline *p, size_t i, bool lost);
/* exchange_store_failed notes that the store failed or did not answer, and backs off.
 * exchange_store_back notes that it has answered. */
void exchange_store_failed(struct pipeline *p, const struct error *err);
void exchange_store_back(struct pipeline *p);

/* exchange_renew renews the leases of all claims once half of any is over. exchange_renewal_at
 * returns when that is. */
void exchange_renew(struct pipeline *p);
int64_t exchange_renewal_at(const struct pipeline *p);

#endif
