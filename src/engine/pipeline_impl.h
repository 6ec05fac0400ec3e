/* pipeline_impl.h: what the files of a pipeline share. They are pipeline.c (the front door),
 * deliver.c (to the sink and back), exchange.c (to the store and back), room.c (whether to claim
 * more), lease.c (keeps claims), judge.c (whose fault a failure was), outage.c (the sink as a
 * whole), effects.c and calls.c (handlers' transactions) and standby.c (registers the consumer, and
 * waits while newer settings are in force). No other file includes it. */
#ifndef ENGINE_PIPELINE_IMPL_H
#define ENGINE_PIPELINE_IMPL_H

#include "engine/batch_size.h"
#include "engine/budget.h"
#include "engine/circuit.h"
#include "engine/effects.h"
#include "engine/evidence.h"
#include "engine/hand.h"
#include "engine/pipeline.h"
#include "engine/report.h"
#include "engine/schedule.h"

struct pipeline {
    struct pipeline_config cfg;
    const struct consumer *c;
    struct filter *filter;
    struct sink *sk;
    enum pipeline_state state;
    struct error error; /* why it failed; code 0: it has not */
    struct pipeline_stats stats;

    struct hand hand;
    struct circuit circuit;
    struct evidence evidence;
    struct effects effects;

    struct batch_size batch_size;
    struct budget_part memory;
    int lane;          /* the lane the next claim tries first */
    bool parked_turn;  /* the next claim tries parked events first, if it is time to */
    int64_t parked_at; /* when it is, monotonic; 0: at once */
    struct suspect suspect;
    struct schedule schedule;
    int64_t stepped_at;       /* when the last step began, monotonic */
    struct error store_error; /* of the last turn; code 0: it went well */

    bool marking;      /* the settlement under way brings the sink's high-water marks */
    int64_t marked_at; /* when one last did, monotonic */

    struct error standby;  /* why it stands by; code 0: it does not */
    int64_t standby_at;    /* when to try to register again, monotonic */
    int64_t standby_delay; /* the last wait between two tries; 0: none yet */

    int64_t last_sent;      /* sent_at of the last delivery; no two are equal */
    bool answered;          /* the sink has answered since it was last offered something */
    int64_t wall_ahead_ms;  /* wall clock minus monotonic clock, at the last claim */
    char wake_blocker[200]; /* who blocks the doorbell, as last logged; "": nobody */
    size_t chain;           /* how many events of a chain to offer; see chain_length */
    const char *caution;    /* what the sink warned of last; NULL: nothing */
    char failure[256];      /* how the last event that failed did: "type: why" */
    struct report report;   /* for operators */
};

static inline int64_t pipeline_now(const struct pipeline *p)
{
    return clock_mono(p->cfg.clock);
}

/* pipeline_failstop says whether the sink takes whole batches and keeps their order itself: see
 * SINK_FAILSTOP. */
static inline bool pipeline_failstop(const struct pipeline *p)
{
    return (sink_caps(p->sk) & SINK_FAILSTOP) != 0;
}

/* pipeline_in_process says whether an event can kill this process: see SINK_IN_PROCESS. */
static inline bool pipeline_in_process(const struct pipeline *p)
{
    return (sink_caps(p->sk) & SINK_IN_PROCESS) != 0;
}

/* pipeline_lease is the lease of a claim in hand, to be extended. */
static inline struct claim_lease pipeline_lease(const struct pipeline *p, const struct batch *b)
{
    return (struct claim_lease){.consumer = p->c->name,
                                .owner = p->cfg.owner,
                                .epoch = b->epoch,
                                .lease_ms = p->c->lease_ms};
}

/* pipeline_chains says whether an event may be submitted along with those of its key that wait for
 * it: see SINK_CHAINS. */
static inline bool pipeline_chains(const struct pipeline *p)
{
    return (sink_caps(p->sk) & SINK_CHAINS) != 0;
}

/* pipeline_frozen tells whoever extends claims that the handlers' transaction has begun or ended.
 * In a store with one writer, no claim can be taken over or extended while it is open. */
static inline void pipeline_frozen(struct pipeline *p, bool frozen)
{
    bool one_writer = (p->cfg.st->caps & STORE_ONE_WRITER) != 0;
    if (p->cfg.call && one_writer)
        atomic_store(&p->cfg.call->frozen, frozen);
}

/* pipeline_leased returns the sink's lease if the sink takes turns with others, else NULL. Such a
 * sink must be driven even when it is idle. */
static inline const struct sink_lease *pipeline_leased(const struct pipeline *p)
{
    if (!p->sk->ops->lease)
        return NULL;
    return p->sk->ops->lease(p->sk);
}

/* pipeline_our_turn says whether we may deliver: we do not stand by, and the sink is not leased to
 * somebody else. */
static inline bool pipeline_our_turn(const struct pipeline *p)
{
    if (p->standby.code)
        return false;
    const struct sink_lease *l = pipeline_leased(p);
    return !l || l->held;
}

/* pipeline_half_lease returns when half of the claim's lease is over, which is when to extend it.
 * */
static inline int64_t pipeline_half_lease(const struct pipeline *p, const struct live *l)
{
    return l->deadline - p->c->lease_ms * MS_NS / 2;
}

/* pipeline_fail drains the pipeline until the deadline and then stops it for good, because of err.
 * Only the first error counts. */
void pipeline_fail(struct pipeline *p, const struct error *err, int64_t deadline);

/* deliver_submit hands queued events to the sink, and ends the handlers' transaction if it opened
 * one. Returns whether the sink took anything. deliver_done handles the sink's answer for one
 * event. */
bool deliver_submit(struct pipeline *p);
void deliver_done(struct pipeline *p, struct item *it, const struct sink_result *r);

/* judge_batch decides, for each failure in a batch that is about to be settled, whether it counts
 * as an attempt of the event. judge_buried counts and logs a dead letter. judge_about describes the
 * event for a log line; the result points to `key`. */
#define JUDGE_KEY 256
void judge_batch(struct pipeline *p, struct live *l);
void judge_buried(struct pipeline *p, const struct event *ev, int attempts, const char *text,
                  enum burial why);
struct log_about judge_about(const struct event *ev, int attempt, char key[JUDGE_KEY]);

/* outage_down notes that the sink says it is down. outage_suspected notes that event after event
 * fails while nothing gets through, so the sink counts as down whatever it answers. */
void outage_down(struct pipeline *p, const char *why, int64_t retry_after_ms);
void outage_suspected(struct pipeline *p, const char *why, int64_t retry_after_ms);
/* outage_answered notes that the sink is reachable, which says nothing about how it would treat
 * other events. outage_passed notes that it has examined an event, so it works. */
void outage_answered(struct pipeline *p);
void outage_passed(struct pipeline *p, const struct item *it);
/* outage_report writes the line about the sink that operators read, if it is new. No transaction
 * may be open. */
void outage_report(struct pipeline *p);

/* exchange_step settles the batch that has ended, or claims one, if it is time for either. Returns
 * whether anything happened. It does nothing while it is unknown whether a batch's effects were
 * committed: see effects_resolve. */
bool exchange_step(struct pipeline *p);
/* exchange_settle settles live[i], whose events have all ended, and claims the next batch in the
 * same transaction if room_for_batch and a look is due. Returns whether the store did it. */
bool exchange_settle(struct pipeline *p, size_t i);
/* exchange_company_by returns until when the batch in hand waits for company: it was delivered
 * whole, and will be settled together with the next claim, or then. 0: none waits. */
int64_t exchange_company_by(const struct pipeline *p, int64_t now);
/* exchange_drop forgets live[i]. exchange_drop_lost forgets all batches whose claims are no longer
 * ours and of which nothing is with the sink. */
void exchange_drop(struct pipeline *p, size_t i);
void exchange_drop_lost(struct pipeline *p);

/* room_for_batch says whether there is room for another batch, where `settling` (0 or 1) of those
 * in hand are about to go. */
bool room_for_batch(struct pipeline *p, int64_t now, size_t settling);
/* room_bytes sets memory aside for it and returns how many bytes of events it may have; 0: there
 * are none left. room_events returns how many events to ask for, of so many bytes: while the sink
 * is down a few are enough, because they only probe it. */
size_t room_bytes(struct pipeline *p);
size_t room_events(const struct pipeline *p, size_t bytes);
/* room_count counts the memory of what is in hand. room_tidy also gives back what is only kept for
 * later, if memory is short; no claimed batch may be outside of the hand. */
void room_count(struct pipeline *p);
void room_tidy(struct pipeline *p);

/* lease_keep extends the claims in hand in time. lease_lose marks a claim as no longer ours, and
 * logs why. */
void lease_keep(struct pipeline *p);
void lease_lose(struct pipeline *p, struct live *l, const char *why);

/* standby_register is pipeline_register: it registers the consumer with our settings, or stands by
 * if they were replaced and cfg.stand_by allows it. */
int standby_register(struct pipeline *p, struct error *err);
/* standby_enter stops claiming, because the consumer has been given newer settings than ours.
 * standby_try registers ours again, if it is time to. Returns whether the pipeline may go on. */
void standby_enter(struct pipeline *p);
bool standby_try(struct pipeline *p);

/* marks_add has a settlement bring the high-water marks of the sink, or leaves them to a later one.
 * marks_kept tells the sink that the settlement is recorded, with what marks_add gave it. */
void marks_add(struct pipeline *p, struct settlement *s);
void marks_kept(struct pipeline *p);

/* exchange_settlement returns what to record of a batch; it points into l. exchange_settled forgets
 * live[i], which the store has settled, or refused to because the claim was `lost`. effects.c
 * settles in its own transaction, and needs both. */
struct settlement exchange_settlement(struct pipeline *p, const struct live *l);
void exchange_settled(struct pipeline *p, size_t i, bool lost);
/* exchange_store_failed notes that the store failed or gave no answer, and leaves it alone for a
 * while. exchange_store_back notes that it has answered. */
void exchange_store_failed(struct pipeline *p, const struct error *err);
void exchange_store_back(struct pipeline *p);

#endif
