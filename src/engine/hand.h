/* hand.h: the batches a pipeline has in hand, and the queue of their events that may go to the sink
 * next. */
#ifndef ENGINE_HAND_H
#define ENGINE_HAND_H

#include "engine/consumer.h"
#include "engine/live.h"

#define HAND_MAX 4 /* batches at once, for sinks that answer late */

/* Whether the queue is as it should be. */
enum hand_queue {
    QUEUE_READY,  /* it has what may go, in order */
    QUEUE_STALE,  /* items have come back from the sink: it must be made anew */
    QUEUE_RETURN, /* the same, and what was not started goes back to the store */
};

/* (1) live[0..n) are in the order they were claimed. They are settled in that order, so whatever
 *   holds a key back is recorded
 * before anything that waits behind it. (2) live[i] points into pool, and is used. (3) gave_back
 * implies n > 0. (4) Only hand.c writes these; deliver.c takes items off the queue, and puts back
 * what the sink did not take. */
struct hand {
    const struct consumer *c;
    struct live pool[HAND_MAX];
    struct live *live[HAND_MAX];
    size_t n;
    struct keymap keys;
    struct ready ready;
    enum hand_queue queue;
    bool gave_back; /* some of it is on its way back to the store */
    /* the store may have a claim of ours that is not in hand, or that counts as lost here */
    bool forgot;
};

/* hand_init makes an empty hand for a consumer, which is borrowed. -1: out of memory. hand_release
 * is safe after either. */
int hand_init(struct hand *h, const struct consumer *c);
void hand_release(struct hand *h);

/* hand_spare gives a place for one more batch, NULL if all are in use. hand_take takes it in hand
 * once it has been filled by a claim, and queues what may go; for `chain` see live_load. -1: out of
 * memory, the batch is forgotten; it comes again when its lease has run out. hand_drop forgets
 * live[i]. */
struct live *hand_spare(struct hand *h);
int hand_take(struct hand *h, struct live *l, bool chain);
void hand_drop(struct hand *h, size_t i);

/* hand_flying is how many events are with the sink. */
size_t hand_flying(const struct hand *h);
/* hand_next is the batch to settle next, if any is in hand: the oldest, or the newest if nothing of
 * it was tried. That one's range can simply be handed out again, once nothing stands behind it.
 * Where a claim may have been made behind it that we don't know of, it would be parked instead, and
 * handed out before what comes before it; so then it is the oldest. */
size_t hand_next(const struct hand *h);

/* hand_disturb says that items came back from the sink. hand_want_back says, too, that others shall
 * have what was not started. hand_tidy does what follows from either; hand_untidy says whether
 * there is anything to do. */
void hand_disturb(struct hand *h);
void hand_want_back(struct hand *h);
bool hand_untidy(const struct hand *h);
void hand_tidy(struct hand *h);

/* hand_give_back ends everything that was not started; it goes back to the store with the
 * settlement of its batch. The queue is empty afterwards. */
void hand_give_back(struct hand *h);
/* hand_again starts a batch over, as if nothing of it had been tried. Nothing may be with the sink,
 * and no other be in hand. */
void hand_again(struct hand *h, struct live *l);
/* hand_lose: the claim is not ours any more. What is with the sink may end; the batch is never
 * settled. */
void hand_lose(struct hand *h, struct live *l);
/* hand_remap puts the keys of what flies back on the map, after batches with later events of those
 * keys were dropped. */
void hand_remap(struct hand *h);
/* hand_forgot: a claim may have been made of which we don't know, because the answer got lost. */
void hand_forgot(struct hand *h);

#endif
