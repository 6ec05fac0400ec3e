/* live.h: a claimed batch while it is being delivered: the state of each event, and which events
 * wait for others of their key. */
#ifndef ENGINE_LIVE_H
#define ENGINE_LIVE_H

#include "base/arena.h"
#include "engine/keymap.h"
#include "engine/ready.h"
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
 * in any live batch; a->follower == b if and only if b->before == a. (4) Several events of a key
 * fly only as a chain (see SINK_CHAINS), and they are linked until they end. */
struct item {
    struct delivery d;
    struct live *live;
    struct item *follower, *before;
    struct item *next_ready;
    struct item *next_in_bucket;
    uint64_t key;    /* events with the same key stay in order; 0: none in particular */
    int64_t sent_at; /* when it was last offered to the sink, monotonic; no two are equal */
    enum item_state state;
    bool mapped;      /* in the keymap, as the last of its key */
    bool exceptional; /* `out` goes into the settlement */
    bool unjudged;    /* it failed; whose fault that is will be decided when the batch is settled */
    bool refused;     /* it failed, and the sink has said that the sink is not to blame */
    bool released;    /* not tried, and given back by release_from */
    bool held;        /* flying, but the one before it holds its key back: it must not be retried */
    struct outcome out;
};

/* (1) open == number of items that have not ended.
 * (2) While used is false, nothing but the arena has a meaning. */
struct live {
    bool used;
    bool lost;   /* the claim is no longer ours: the batch ends without a settlement */
    bool by_key; /* items that have not ended are in the key map: events of a key go one by one */
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

/* live_load makes items of the events in l->b and queues those that may go. With `chain`, events of
 * a key go one after the other. Without it, the sink keeps their order (SINK_FAILSTOP), and the map
 * is used only where something is held back. Returns -1 when out of memory. */
int live_load(struct live *l, enum order order, bool chain, struct keymap *m, struct ready *q);
/* live_bytes returns about how much memory the events of the batch take. */
size_t live_bytes(const struct live *l);
/* live_by_key makes events of a key go one after the other from now on, behind those that fly. The
 * caller rebuilds its queue. No other batch may be in hand unless it is in the map, too. */
void live_by_key(struct live *l, enum order order, struct keymap *m);
/* live_again starts the batch over, as if nothing of it had been tried. Nothing may be flying. */
void live_again(struct live *l, enum order order, struct keymap *m, struct ready *q);
/* live_remap puts the last flying item of each key back into the map where the key is missing,
 * because the last event of that key was in a batch that was dropped. So later events of the key
 * will wait for it. */
void live_remap(struct live *l, struct keymap *m);
/* live_release forgets the batch. The arena keeps its largest block. */
void live_release(struct live *l, struct keymap *m);

/* live_item_fly notes that an item is handed to the sink: a ready one, or what live_item_chain
 * returned. */
void live_item_fly(struct item *it);
/* live_item_land takes back a flying item that was not tried. It becomes ready, and the caller
 * queues it; or it waits, if it was chained to one that has not ended; or it ends as held back, if
 * that one failed. */
void live_item_land(struct item *it, struct ready *q);
/* live_item_chain returns the item of the same batch that waits for this one and may fly right
 * behind it; NULL: none. */
struct item *live_item_chain(const struct item *it);
/* live_item_end records the outcome, and queues the follower if the event was delivered, or else
 * holds it back. Text in `out` is copied. `exceptional` is false for a plain delivery. */
void live_item_end(struct item *it, const struct outcome *out, bool exceptional, struct ready *q);

/* live_item_hold ends an item that was not tried: it will be parked behind its key, with its
 * attempts unchanged. */
void live_item_hold(struct item *it, struct ready *q);

/* live_give_up ends every item that is not flying as not tried. Those at the end of a fresh batch
 * are given back by release_from and need no outcome; the others are held. The caller empties its
 * queue afterwards. */
void live_give_up(struct live *l, struct ready *q);

/* live_settled tells the sink which events of a settled batch were delivered. */
void live_settled(const struct live *l, struct sink *sk);

/* live_outcomes lists the exceptions in l->out, in batch order, once nothing is open. Returns -1
 * when out of memory. */
int live_outcomes(struct live *l);

#endif
