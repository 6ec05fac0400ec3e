/* pipeline_impl.h: what the files of a pipeline share: pipeline.c (the front door), deliver.c (to
 * the sink and back), turn.c (to the store and back), lease.c (keeping claims), effects.c and
 * calls.c (handlers' transactions), standby.c (registering, and waiting while others have the say).
 * Nobody else includes it. */
#ifndef ENGINE_PIPELINE_IMPL_H
#define ENGINE_PIPELINE_IMPL_H

#include "engine/batch_size.h"
#include "engine/careful.h"
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
    struct error error; /* why it failed */
    struct pipeline_stats stats;

    struct hand hand;
    struct circuit circuit;
    struct evidence evidence;
    struct effects effects;

    struct batch_size batch_size;
    int lane;
    bool parked_turn;
    struct careful_token careful;
    struct schedule schedule;
    struct error store_error; /* of the last turn; code 0: it went well */
    struct error standby;     /* why we stand by; code 0: we don't */
    int64_t standby_at, standby_delay;
    int64_t last_sent; /* sent_at of the last delivery; no two have the same */
    bool answered;     /* since the sink was last offered something */
    /* of the monotonic clock, at the last claim: saves asking the clock twice per event */
    int64_t wall_ahead_ms;
    char in_the_way[200]; /* who keeps us from being woken, as last said; "": nobody */
    char failure[256];    /* the last failure of an event */
    struct report report; /* for operators */
};

static inline int64_t pipeline_now(const struct pipeline *p)
{
    return clock_mono(p->cfg.clock);
}

static inline bool pipeline_failstop(const struct pipeline *p)
{
    return (p->sk->ops->caps & SINK_FAILSTOP) != 0;
}

/* pipeline_frozen: while the own transaction of a store with one writer is open, no claim can run
 * out or be extended. */
static inline void pipeline_frozen(struct pipeline *p, bool frozen)
{
    if (p->cfg.pulse && (p->cfg.st->caps & STORE_ONE_WRITER))
        atomic_store(&p->cfg.pulse->frozen, frozen);
}

/* pipeline_leased: the sink takes turns with others, and wants to be driven when idle, too.
 * pipeline_our_turn: it is ours, and so are the settings that count. */
static inline const struct sink_lease *pipeline_leased(const struct pipeline *p)
{
    return p->sk->ops->lease ? p->sk->ops->lease(p->sk) : NULL;
}

static inline bool pipeline_our_turn(const struct pipeline *p)
{
    if (p->standby.code)
        return false;
    const struct sink_lease *l = pipeline_leased(p);
    return !l || l->held;
}

/* pipeline_half_lease: when the claim wants to be extended. */
static inline int64_t pipeline_half_lease(const struct pipeline *p, const struct live *l)
{
    return l->deadline - p->c->lease_ms * MS_NS / 2;
}

/* pipeline_fail stops the consumer for good, because of err, letting what is with the sink end
 * until the deadline. */
void pipeline_fail(struct pipeline *p, const struct error *err, int64_t deadline);

/* deliver_submit hands what may go to the sink; returns whether it took anything. deliver_done
 * takes the sink's answer. */
bool deliver_submit(struct pipeline *p);
void deliver_done(struct pipeline *p, struct item *it, const struct sink_result *r);

/* judge_batch decides for each failure in a batch that is about to be settled whether it is held
 * against the event. judge_buried counts a dead letter and says so. judge_about is what a line of
 * the log is about; key must live as long. */
#define JUDGE_KEY 256
void judge_batch(struct pipeline *p, struct live *l);
void judge_buried(struct pipeline *p, const struct event *ev, int attempts, const char *text,
                  enum burial why);
struct log_about judge_about(const struct event *ev, int attempt, char key[JUDGE_KEY]);

/* outage_down: the sink is away, it says so itself. outage_suspected: event after event fails and
 * nothing gets through, so it is the sink, whatever it answers. */
void outage_down(struct pipeline *p, const char *why, int64_t retry_after_ms);
void outage_suspected(struct pipeline *p, const char *why, int64_t retry_after_ms);
/* outage_answered: the sink is there, which proves nothing about what it would do with other
 * events. outage_passed: it has looked at an event, so it is known to work. */
void outage_answered(struct pipeline *p);
void outage_passed(struct pipeline *p, const struct item *it);
/* outage_report writes down what operators should know of the sink, if there is news. No
 * transaction may be open. */
void outage_report(struct pipeline *p);

/* turn_store settles what has ended, or claims, if it is time for either; returns whether anything
 * happened. While it is not known whether a batch's effects were committed it does nothing: see
 * effects_resolve. turn_settle settles live[i], all of which has ended, and claims the next batch
 * in the same transaction if this is a time for new work; returns whether the store took it.
 * turn_may_claim says whether it is such a time, `settling` of the batches in hand being about to
 * go. */
bool turn_store(struct pipeline *p);
bool turn_settle(struct pipeline *p, size_t i);
bool turn_may_claim(struct pipeline *p, int64_t now, size_t settling);
/* turn_drop forgets live[i]. turn_drop_lost forgets the batches that are not ours any more, once
 * nothing of them is with the sink. */
void turn_drop(struct pipeline *p, size_t i);
void turn_drop_lost(struct pipeline *p);

/* lease_keep extends the claims in hand in time. lease_lose says that a claim is not ours any more,
 * and why. */
void lease_keep(struct pipeline *p);
void lease_lose(struct pipeline *p, struct live *l, const char *why);

/* standby_enter: others have given the consumer other settings. standby_try registers ours again,
 * if it is time to; returns whether we may go on. */
void standby_enter(struct pipeline *p);
bool standby_try(struct pipeline *p);

/* turn_settlement is what to record of a batch. turn_settled forgets live[i], whose settlement the
 * store has taken, or refused because the claim was `lost`. effects.c settles in its own
 * transaction, and needs both. */
struct settlement turn_settlement(const struct pipeline *p, const struct live *l);
void turn_settled(struct pipeline *p, size_t i, bool lost);
/* turn_store_failed notes that the store gave no answer, or an error: it is left alone for a while.
 * turn_store_back notes that it has answered. */
void turn_store_failed(struct pipeline *p, const struct error *err);
void turn_store_back(struct pipeline *p);

#endif
