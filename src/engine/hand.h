/* hand.h: the batches a pipeline has in hand, and the queue of events that may be submitted next.
 * */
#ifndef ENGINE_HAND_H
#define ENGINE_HAND_H

#include "engine/consumer.h"
#include "engine/live.h"

#define HAND_MAX 4 /* batches at once, for sinks that answer late */

/* The state of the queue. */
enum hand_queue {
    QUEUE_READY,  /* it holds the events that may go, in order */
    QUEUE_STALE,  /* events have come back from the sink: it must be rebuilt */
    QUEUE_RETURN, /* stale, and what was not started goes back to the store */
};

/* (1) live[0..n) are in claim order, and are settled in that order, so whatever holds a key back is
 *     recorded before anything that waits behind it.
 * (2) live[i] points into pool, and is used.
 * (3) gave_back implies n > 0.
 * (4) Only hand.c writes these, except that deliver.c takes items off the queue and puts back those
 *     that the sink did not take. */
struct hand {
    const struct consumer *c;
    struct live pool[HAND_MAX];
    struct live *live[HAND_MAX];
    size_t n;
    struct keymap keys;
    struct ready ready;
    enum hand_queue queue;
    bool gave_back; /* some events go back to the store when their batch is settled */
    bool forgot;    /* the store may have a claim of ours that is not in hand, or is lost to us */
};

/* hand_init makes an empty hand for the consumer, which it borrows. Returns -1 when out of memory;
 * hand_release is safe even then. */
int hand_init(struct hand *h, const struct consumer *c);
void hand_release(struct hand *h);

/* hand_spare returns a place for one more batch, or NULL if all are in use. hand_spare_bytes
 * returns how much memory it has from an earlier batch. */
struct live *hand_spare(struct hand *h);
size_t hand_spare_bytes(struct hand *h);
/* hand_take takes such a place in hand once a claim has filled it, and queues what may go. For
 * `chain` see live_load. Returns -1 when out of memory: then the batch is forgotten, and will be
 * claimed again when its lease has expired. */
int hand_take(struct hand *h, struct live *l, bool chain);
/* hand_drop forgets live[i]. */
void hand_drop(struct hand *h, size_t i);

/* hand_bytes returns how much memory all places take, in use or not. hand_shrink frees that of
 * places that are not in use. */
size_t hand_bytes(const struct hand *h);
void hand_shrink(struct hand *h);

/* hand_flying returns how many events are with the sink. */
size_t hand_flying(const struct hand *h);
/* hand_next returns the index of the batch to settle next, or 0 if none is in hand. That is the
 * oldest one, unless nothing of the newest one was tried: the store can then simply move its
 * position back to before that batch, as nothing was claimed behind it. If there may be a claim
 * that we don't know of, the store might have to park the newest batch instead, and would hand it
 * out before older ones; so then it is the oldest after all. */
size_t hand_next(const struct hand *h);

/* hand_disturb notes that events came back from the sink. hand_want_back notes, too, that what was
 * not started is to go back to the store. hand_tidy then does what is necessary; hand_untidy says
 * whether anything is. */
void hand_disturb(struct hand *h);
/* hand_by_key has the events of a key in a batch sent one after the other from now on: see
 * live_by_key. */
void hand_by_key(struct hand *h, struct live *l);
void hand_want_back(struct hand *h);
bool hand_untidy(const struct hand *h);
void hand_tidy(struct hand *h);

/* hand_give_back ends every event that was not started. They go back to the store when their batch
 * is settled. The queue is empty afterwards. */
void hand_give_back(struct hand *h);
/* hand_again starts a batch over, as if nothing of it had been tried. It must be the only batch in
 * hand, and none of its events may be with the sink. */
void hand_again(struct hand *h, struct live *l);
/* hand_lose marks a batch whose claim is no longer ours. Its deliveries in flight may end, but it
 * is never settled. */
void hand_lose(struct hand *h, struct live *l);
/* hand_remap puts events in flight back into the key map, after batches with later events of their
 * keys were dropped. */
void hand_remap(struct hand *h);
/* hand_forgot notes that a claim may have been made whose answer was lost. */
void hand_forgot(struct hand *h);

#endif
