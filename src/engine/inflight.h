/* inflight.h: the batches that a pipeline has claimed and not settled, the state of their events,
 * and the queue of those that may be submitted next.
 *
 * Events of a key are delivered one after the other, across batches. When one is delivered, its
 * follower is queued; when it fails, its followers are held back, and parked behind it. */
#ifndef ENGINE_INFLIGHT_H
#define ENGINE_INFLIGHT_H

#include "base/arena.h"
#include "engine/consumer.h"
#include "sink/sink.h"
#include "store/store.h"

#define INFLIGHT_BATCHES 4 /* at once, for sinks that answer late */

enum slot_state {
    SLOT_WAITING,   /* behind an event of its key that has not ended */
    SLOT_READY,     /* may be submitted */
    SLOT_IN_FLIGHT, /* with the sink */
    SLOT_ENDED,     /* its outcome is known */
};

struct batch_state;

/* One claimed event. (1) The delivery comes first: the sink hands back a pointer to it.
 * (2) follower is the event of the same key that waits for this one, in any batch;
 *     a->follower == b if and only if b->before == a.
 * (3) Several events of a key are in flight only as a chain (see SINK_CHAINS), and they are linked
 *     until they end. */
struct slot {
    struct delivery d;
    struct batch_state *batch;
    struct slot *follower, *before;
    struct slot *next_ready;
    struct slot *next_in_bucket;
    uint64_t key;    /* events with the same key stay in order; 0: no order */
    int64_t sent_at; /* when it was last offered to the sink, monotonic; no two are equal */
    enum slot_state state;
    bool mapped;      /* in the key map, as the last of its key */
    bool exceptional; /* `out` is part of the settlement */
    bool undecided;   /* it failed; whether that counts is decided when the batch is settled */
    bool refused;     /* it failed, and the sink reported that the event is to blame */
    bool released;    /* not tried, and given back by release_from */
    bool held;        /* in flight, but its predecessor holds the key: it is not retried */
    struct outcome out;
};

/* A claimed batch. (1) open counts the slots that have not ended, in_flight those with the sink.
 * (2) While used is false, only the arena is meaningful. */
struct batch_state {
    bool used;
    bool lost;   /* the claim is no longer ours: the batch ends without a settlement */
    bool by_key; /* slots that have not ended are in the key map: events are sent key by key */
    struct arena a;
    struct batch claim;
    struct slot *slots;
    size_t open, in_flight, exceptions;
    int64_t release_from;      /* for the settlement */
    const struct outcome *out; /* created once all slots have ended; NULL until then */
    size_t n_out;
    int64_t claimed_at; /* monotonic, before the claim was sent */
    int64_t deadline;   /* claimed_at or last extension + lease */
};

enum inflight_queue {
    QUEUE_READY,  /* holds the events that may be submitted, in order */
    QUEUE_STALE,  /* the sink has returned events: the queue must be rebuilt */
    QUEUE_RETURN, /* stale, and unstarted events are returned to the store */
};

/* (1) batch[0..n) are in claim order, and are settled in that order, so whatever holds a key back
 *     is recorded before anything that waits behind it.
 * (2) batch[i] points into pool, and is used.
 * (3) bucket maps each key to its last slot that has not ended, over all batches by key.
 * (4) *ready_tail is NULL, and is where the next ready slot goes.
 * (5) gave_back implies n > 0.
 * (6) Only inflight.c and the functions below write these, and the state of a slot. */
struct inflight {
    const struct consumer *c;
    struct batch_state pool[INFLIGHT_BATCHES];
    struct batch_state *batch[INFLIGHT_BATCHES];
    size_t n;
    struct slot **bucket;
    size_t n_buckets; /* a power of two */
    struct slot *ready, **ready_tail;
    enum inflight_queue queue;
    bool gave_back; /* some events go back to the store when their batch is settled */
    bool forgot;    /* the store may hold a claim of ours that is unknown here, or lost to us */
};

/* inflight_init borrows the consumer. Returns -1 when out of memory; inflight_release is safe even
 * then. */
int inflight_init(struct inflight *f, const struct consumer *c);
void inflight_release(struct inflight *f);

/* ---- batches ---- */

/* inflight_spare returns an unused batch, or NULL if all are in use. */
struct batch_state *inflight_spare(struct inflight *f);
/* inflight_add adds such a batch once a claim has filled it, and queues the events that may be
 * submitted: with `chain` those of a key one after the other; else the sink keeps their order
 * (SINK_FAILSTOP), until one is held back. Returns -1 when out of memory: the batch is forgotten
 * then, and claimed again when its lease has expired. */
int inflight_add(struct inflight *f, struct batch_state *b, bool chain);
/* inflight_drop forgets batch[i]. */
void inflight_drop(struct inflight *f, size_t i);
/* inflight_lose marks a batch whose claim is no longer ours. Its deliveries in flight may end, but
 * it is never settled. */
void inflight_lose(struct inflight *f, struct batch_state *b);
/* inflight_remap puts events in flight back into the key map after batches with later events of
 * their keys were dropped. */
void inflight_remap(struct inflight *f);
/* inflight_restart starts a batch over, as if none of its events had been tried. It must be the
 * only batch, and none of its events may be with the sink. */
void inflight_restart(struct inflight *f, struct batch_state *b);
/* inflight_by_key sends the rest of a batch key by key from now on, behind the events in flight.
 * Any other batch in flight must already be sent by key. */
void inflight_by_key(struct inflight *f, struct batch_state *b);
/* inflight_forgot notes that a claim may have been made whose answer was lost. */
static inline void inflight_forgot(struct inflight *f)
{
    f->forgot = true;
}

/* inflight_deliveries returns how many events are with the sink, inflight_open how many have not
 * ended. */
size_t inflight_deliveries(const struct inflight *f);
size_t inflight_open(const struct inflight *f);
/* inflight_batch_bytes returns roughly how much memory the events of a batch take, inflight_bytes
 * the memory of all batches, used or not. inflight_shrink frees the memory of unused ones. */
size_t inflight_batch_bytes(const struct batch_state *b);
size_t inflight_bytes(const struct inflight *f);
void inflight_shrink(struct inflight *f);

/* inflight_next_settled returns the index of the batch to settle next: the oldest, unless nothing
 * of the newest was tried. Then the store can simply move its position back to before that batch,
 * if no claim unknown to us was made after it; otherwise the store would have to park the batch and
 * hand it out before older ones. */
size_t inflight_next_settled(const struct inflight *f);
/* inflight_outcomes lists the exceptions of a batch in b->out, in batch order, once all of its
 * events have ended. Returns -1 when out of memory. */
int inflight_outcomes(struct batch_state *b);
/* inflight_tell_settled tells the sink which events of a settled batch were delivered. */
void inflight_tell_settled(const struct batch_state *b, struct sink *sk);

/* ---- events ---- */

/* inflight_pop takes the first slot off the queue of ready ones; NULL: there is none. */
struct slot *inflight_pop(struct inflight *f);
/* inflight_chained returns the slot of the same batch that waits for this one and may be sent right
 * after it; NULL: none. */
struct slot *inflight_chained(const struct slot *slot);

/* inflight_begin notes that a slot from inflight_pop or inflight_chained is handed to the sink. */
void inflight_begin(struct slot *slot);
/* inflight_undo takes back a slot that the sink did not accept: to the head of the queue, or behind
 * its predecessor in the chain. Undo the last one first. inflight_return takes back a slot that the
 * sink accepted but did not try, and ends it if its predecessor has failed; the queue is stale
 * then. */
void inflight_undo(struct inflight *f, struct slot *slot);
void inflight_return(struct inflight *f, struct slot *slot);
/* inflight_end records the outcome, and queues the follower if the event was delivered, or else
 * holds it back. Text in `out` is copied. `exceptional` is false for a plain delivery. */
void inflight_end(struct inflight *f, struct slot *slot, const struct outcome *out,
                  bool exceptional);
/* inflight_hold ends a slot that was not tried: the event will be parked behind an earlier one of
 * its key, its attempts unchanged. */
void inflight_hold(struct inflight *f, struct slot *slot);

/* inflight_want_back requests that unstarted events go back to the store. inflight_tidy does that,
 * and rebuilds a stale queue. */
static inline void inflight_want_back(struct inflight *f)
{
    f->queue = QUEUE_RETURN;
}

void inflight_tidy(struct inflight *f);
/* inflight_give_back ends every event that was not started. They go back to the store when their
 * batch is settled. The queue is empty afterwards. */
void inflight_give_back(struct inflight *f);

#endif
