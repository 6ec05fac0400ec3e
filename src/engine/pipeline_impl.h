/* pipeline_impl.h: declarations shared by the files of a pipeline. They are pipeline.c (the front
 * door, and standing by), deliver.c (to the sink and back), failure.c (what happens when a delivery
 * fails), circuit.c (the sink as a whole), exchange.c (to the store and back), claim_quota.c
 * (whether to claim, and how much), effects.c and calls.c (handlers' transactions). Only they
 * include it. */
#ifndef ENGINE_PIPELINE_IMPL_H
#define ENGINE_PIPELINE_IMPL_H

#include "engine/circuit.h"
#include "engine/claim_quota.h"
#include "engine/effects.h"
#include "engine/failure.h"
#include "engine/inflight.h"
#include "engine/pipeline.h"
#include "engine/schedule.h"

/* (1) Only pipeline.c writes these. */
struct standby {
    struct error why; /* why the pipeline stands by; code 0: it does not */
    int64_t at;       /* when to try to register again, monotonic */
    int64_t delay;    /* the last wait between tries; 0: none yet */
};

/* The state from which the next turn with the store starts. (1) Only exchange.c writes these. */
struct next_turn {
    int lane;               /* the lane the next claim tries first */
    bool parked;            /* the next claim tries parked events first, if it is time to */
    int64_t parked_at;      /* when parked events may be claimed again, monotonic; 0: at once */
    bool marking;           /* the settlement under way brings the sink's high-water marks */
    int64_t marked_at;      /* when a settlement last brought them, monotonic */
    char wake_blocker[200]; /* the session that blocks wake-ups, as last logged; "": none */
};

/* How events are offered to the sink. (1) Only deliver.c writes these. */
struct offers {
    int64_t last_sent; /* sent_at of the last delivery; no two are equal */
    bool answered;     /* the sink has answered since it was last offered something */
    size_t chain;      /* events of a chain that were taken; twice as many if all were */
};

/* (1) state and error are written by pipeline.c alone; the other structs by the file that their
 * declaration names. (2) error.code != 0 only while draining for good, or once failed. */
struct pipeline {
    struct pipeline_config cfg;
    const struct consumer *c;
    struct filter *filter;
    struct sink *sk;
    enum pipeline_state state;
    struct error error; /* why the pipeline failed; code 0: it has not */
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

    int64_t stepped_at;       /* when the last step began, monotonic */
    int64_t wall_ahead_ms;    /* wall clock minus monotonic clock, at the last claim */
    struct error store_error; /* of the last turn; code 0: success */
    const char *caution;      /* the sink's last warning; NULL: none */
    char failure[256];        /* the last failure of an event: "type: reason" */
};

static inline int64_t pipeline_now(const struct pipeline *p)
{
    return clock_mono(p->cfg.clock);
}

/* pipeline_failstop returns whether the sink takes whole batches and keeps their order itself: see
 * SINK_FAILSTOP. */
static inline bool pipeline_failstop(const struct pipeline *p)
{
    return (sink_caps(p->sk) & SINK_FAILSTOP) != 0;
}

/* pipeline_in_process returns whether an event can kill this process: see SINK_IN_PROCESS. */
static inline bool pipeline_in_process(const struct pipeline *p)
{
    return (sink_caps(p->sk) & SINK_IN_PROCESS) != 0;
}

/* pipeline_chains returns whether an event may be submitted together with the events of its key
 * that wait for it: see SINK_CHAINS. */
static inline bool pipeline_chains(const struct pipeline *p)
{
    return (sink_caps(p->sk) & SINK_CHAINS) != 0;
}

/* pipeline_our_turn returns whether we may deliver: we do not stand by, and the sink is not leased
 * to another relay. */
static inline bool pipeline_our_turn(const struct pipeline *p)
{
    if (p->standby.why.code)
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

/* lease_start notes that the lease of a batch begins at `now`. */
static inline void lease_start(const struct pipeline *p, struct batch_state *b, int64_t now)
{
    b->deadline = now + p->c->lease_ms * MS_NS;
}

/* lease_renewal_at returns the time when half of the lease is over. */
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
/* exchange_settle_delay_until returns until when the settlement of the only batch is delayed: it
 * was delivered whole, and will be settled with the next claim, or then. 0: no delay. */
int64_t exchange_settle_delay_until(const struct pipeline *p, int64_t now);
/* exchange_drop forgets batch[i]. exchange_drop_lost forgets all batches whose claims are no longer
 * ours and that have no event with the sink. */
void exchange_drop(struct pipeline *p, size_t i);
void exchange_drop_lost(struct pipeline *p);
/* exchange_settlement returns the settlement of a batch; it points into b. exchange_settled forgets
 * batch[i], which the store has settled, or refused to because the claim was `lost`. effects.c
 * settles in its own transaction, and needs both. */
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
