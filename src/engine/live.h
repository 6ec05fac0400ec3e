/* live.h: a claimed batch while it is being delivered: where each event stands, and what its key
 * allows. */
#ifndef ENGINE_LIVE_H
#define ENGINE_LIVE_H

#include "base/arena.h"
#include "sink/sink.h"
#include "store/store.h"

enum item_state {
    ITEM_WAITING, /* behind an event of its key that has not ended */
    ITEM_READY,   /* may be submitted */
    ITEM_FLYING,  /* with the sink */
    ITEM_ENDED,   /* its outcome is known */
};

struct live;

/* One event on its way. (1) The delivery comes first: the sink hands back a pointer to it. (2) A
 * state changes only in live.c. (3) follower is the event of the same key that waits for this one,
 * in any live batch; a->follower == b if and only if b->before == a. */
struct item {
    struct delivery d;
    struct live *live;
    struct item *follower, *before;
    struct item *next_ready;
    struct item *next_in_bucket;
    uint64_t key;    /* what order goes by; 0: nothing */
    int64_t sent_at; /* monotonic: when the sink was last offered it; no two have the same */
    enum item_state state;
    bool mapped;      /* the last of its key: in the keymap */
    bool exceptional; /* `out` goes into the settlement */
    bool unjudged;    /* it failed, and whose fault that is is decided when the batch is settled */
    bool released;    /* not tried, and given back by release_from */
    struct outcome out;
};

/* (1) open == number of items that have not ended. (2) used == false: everything else is
 *   meaningless but the arena. */
struct live {
    bool used;
    bool lost; /* the claim is not ours any more: ends without a settlement */
    struct arena a;
    struct batch b;
    struct item *items;
    size_t open, flying, exceptions;
    int64_t release_from;      /* for the settlement */
    const struct outcome *out; /* made once, when everything has ended; NULL until then */
    size_t n_out;
    int64_t claimed_at; /* monotonic, before the claim was sent */
    int64_t deadline;   /* claimed_at or last extension + lease */
};

/* The last event of every key that is on its way, over all live batches of a pipeline. */
struct keymap {
    struct item **bucket;
    size_t n; /* a power of two */
};

/* A queue of items in submission order. */
struct ready {
    struct item *head, **tail;
};

int keymap_init(struct keymap *m, size_t items);
void keymap_release(struct keymap *m);

void ready_init(struct ready *q);
void ready_push(struct ready *q, struct item *it);
void ready_unshift(struct ready *q, struct item *it);
struct item *ready_pop(struct ready *q);

/* live_load makes items of l->b and queues those that may go. With `chain`, events of one key go
 * one after the other; without, the sink keeps their order (SINK_FAILSTOP) and the map is used only
 * where something is held back. -1: out of memory. */
int live_load(struct live *l, enum order order, bool chain, struct keymap *m, struct ready *q);
/* live_again starts the batch over, as if nothing of it had been tried. Nothing may be flying. */
void live_again(struct live *l, enum order order, struct keymap *m, struct ready *q);
/* live_remap has what flies wait for by its key again, where the last of that key was in a batch
 * that was forgotten. */
void live_remap(struct live *l, struct keymap *m);
/* live_release forgets the batch; the arena keeps its largest block. */
void live_release(struct live *l, struct keymap *m);

void item_fly(struct item *it);
/* item_land takes a flying item back: it was not tried. The caller queues it again. */
void item_land(struct item *it);
/* item_end records the outcome, and queues or holds back the follower: only a delivered event lets
 * it go. Text in `out` is copied. `exceptional` is false for a plain delivery. */
void item_end(struct item *it, const struct outcome *out, bool exceptional, struct ready *q);

/* item_hold ends an item as not tried: it goes behind its key, its attempts as they were. */
void item_hold(struct item *it, struct ready *q);

/* live_give_up ends everything that is not flying as not tried. What of it is a tail of a fresh
 * batch is left to release_from, without outcomes. The caller empties its queue afterwards. */
void live_give_up(struct live *l, struct ready *q);

/* live_outcomes lists the exceptions, in batch order, in l->out; once nothing is open. Returns -1
 * when out of memory. */
int live_outcomes(struct live *l);

#endif
