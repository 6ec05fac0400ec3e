#include "engine/inflight.h"

#include <assert.h>
#include <stdlib.h>

#define BUCKETS_MIN 64
#define SETTLED_AT_ONCE 256 /* settled events reported to a sink per call */

static void clear_queue(struct inflight *f)
{
    f->ready = NULL;
    f->ready_tail = &f->ready;
}

int inflight_init(struct inflight *f, const struct consumer *c)
{
    *f = (struct inflight){.c = c, .n_buckets = BUCKETS_MIN};
    clear_queue(f);
    for (size_t i = 0; i < INFLIGHT_BATCHES; i++)
        arena_init(&f->pool[i].a, 0);

    size_t keys = (size_t)c->batch * 2;
    while (f->n_buckets < keys)
        f->n_buckets *= 2;
    f->bucket = calloc(f->n_buckets, sizeof(struct slot *));
    return f->bucket ? 0 : -1;
}

void inflight_release(struct inflight *f)
{
    for (size_t i = 0; i < INFLIGHT_BATCHES; i++)
        arena_release(&f->pool[i].a);
    free(f->bucket);
    f->bucket = NULL;
}

/* ---- the key map ---- */

/* Returns where the pointer to the last slot of the key is, or would be. */
static struct slot **key_place(struct inflight *f, uint64_t key)
{
    struct slot **p = &f->bucket[key & (f->n_buckets - 1)];
    while (*p && (*p)->key != key)
        p = &(*p)->next_in_bucket;
    return p;
}

/* Makes the slot the last of its key, and returns the one it replaces; NULL: none. */
static struct slot *map_key(struct inflight *f, struct slot *slot)
{
    struct slot **p = key_place(f, slot->key);
    struct slot *last = *p;
    slot->next_in_bucket = NULL;
    slot->mapped = true;
    if (last) {
        slot->next_in_bucket = last->next_in_bucket;
        last->mapped = false;
    }
    *p = slot;
    return last;
}

/* ---- the queue ---- */

static void queue_slot(struct inflight *f, struct slot *slot)
{
    slot->next_ready = NULL;
    *f->ready_tail = slot;
    f->ready_tail = &slot->next_ready;
}

struct slot *inflight_pop(struct inflight *f)
{
    struct slot *slot = f->ready;
    if (!slot)
        return NULL;
    f->ready = slot->next_ready;
    if (!f->ready)
        f->ready_tail = &f->ready;
    return slot;
}

/* ---- ending an event ---- */

/* Whether an ended event keeps later events of its key from being tried. Even a dead letter does,
 * until it is settled: if a crash undid its burial, it would be retried after them. */
static bool holds_key(const struct slot *slot)
{
    return slot->released || (slot->exceptional && slot->out.kind != OUTCOME_DELIVERED);
}

static const char *copy_text(struct arena *a, const char *text)
{
    return text ? arena_bytes(a, text, strlen(text)) : NULL;
}

static void record_end(struct slot *slot, const struct outcome *out, bool exceptional)
{
    struct batch_state *b = slot->batch;
    assert(slot->state != SLOT_ENDED);
    if (slot->state == SLOT_IN_FLIGHT)
        b->in_flight--;
    b->open--;
    if (exceptional)
        b->exceptions++;

    slot->state = SLOT_ENDED;
    slot->exceptional = exceptional;
    slot->out = *out;
    slot->out.ev = slot->d.ev;
    slot->out.error = copy_text(&b->a, out->error);
    slot->out.receipt = copy_text(&b->a, out->receipt);
}

static void unlink_follower(struct slot *slot)
{
    if (slot->follower)
        slot->follower->before = NULL;
    slot->follower = NULL;
}

/* Unlinks and returns the slot that waits for this one, which has ended; NULL: none waits. For a
 * follower in flight in the same chain, notes whether its key is held back. */
static struct slot *take_follower(struct slot *slot)
{
    struct slot *next = slot->follower;
    unlink_follower(slot);
    if (!next)
        return NULL;
    if (next->state == SLOT_IN_FLIGHT)
        next->held = holds_key(slot);
    if (next->state != SLOT_WAITING)
        return NULL;
    return next;
}

/* Decides the state of a slot: it waits for the previous slot of its key (NULL: there is none), is
 * held back, is postponed because it is not due yet, or is queued. */
static void place_slot(struct inflight *f, struct slot *slot, struct slot *before)
{
    const struct event *ev = slot->d.ev;
    bool must_wait = before && before->state != SLOT_ENDED;
    bool held = ev->behind || (before && holds_key(before));
    if (must_wait) {
        before->follower = slot;
        slot->before = before;
        slot->state = SLOT_WAITING;
    } else if (held) {
        inflight_hold(f, slot);
    } else if (ev->delayed) {
        struct outcome delay = {.kind = OUTCOME_DELAY, .attempts = ev->attempts};
        inflight_end(f, slot, &delay, true);
    } else {
        slot->state = SLOT_READY;
        queue_slot(f, slot);
    }
}

/* A loop instead of recursion, because chains of held-back followers can be long. */
void inflight_end(struct inflight *f, struct slot *slot, const struct outcome *out,
                  bool exceptional)
{
    struct slot *next;
    record_end(slot, out, exceptional);
    while ((next = take_follower(slot))) {
        bool held = holds_key(slot) || next->d.ev->behind;
        if (!held) {
            place_slot(f, next, NULL);
            return;
        }
        struct outcome behind = {.kind = OUTCOME_BEHIND, .attempts = next->d.ev->attempts};
        record_end(next, &behind, true);
        slot = next;
    }
}

void inflight_hold(struct inflight *f, struct slot *slot)
{
    struct outcome behind = {.kind = OUTCOME_BEHIND, .attempts = slot->d.ev->attempts};
    inflight_end(f, slot, &behind, true);
}

/* ---- to the sink and back ---- */

void inflight_begin(struct slot *slot)
{
    assert(slot->state == SLOT_READY || slot->before);
    slot->state = SLOT_IN_FLIGHT;
    slot->batch->in_flight++;
}

struct slot *inflight_chained(const struct slot *slot)
{
    struct slot *next = slot->follower;
    if (!next || next->state != SLOT_WAITING)
        return NULL;
    bool same_batch = next->batch == slot->batch;
    bool may_go = !next->d.ev->behind && !next->d.ev->delayed;
    if (!same_batch || !may_go)
        return NULL;
    return next;
}

/* Takes back a slot that was not tried. */
static void land_slot(struct inflight *f, struct slot *slot)
{
    assert(slot->state == SLOT_IN_FLIGHT);
    if (slot->held) {
        inflight_hold(f, slot);
        return;
    }
    slot->state = slot->before ? SLOT_WAITING : SLOT_READY;
    slot->batch->in_flight--;
}

void inflight_undo(struct inflight *f, struct slot *slot)
{
    land_slot(f, slot);
    if (slot->state != SLOT_READY)
        return;
    slot->next_ready = f->ready;
    f->ready = slot;
    if (!slot->next_ready)
        f->ready_tail = &slot->next_ready;
}

static void make_stale(struct inflight *f)
{
    if (f->queue == QUEUE_READY)
        f->queue = QUEUE_STALE;
}

void inflight_return(struct inflight *f, struct slot *slot)
{
    land_slot(f, slot);
    make_stale(f);
}

/* Queues events in claim order, so that a returned event precedes those claimed after it. */
static void rebuild_queue(struct inflight *f)
{
    clear_queue(f);
    for (size_t i = 0; i < f->n; i++) {
        struct batch_state *b = f->batch[i];
        for (size_t k = 0; !b->lost && k < b->claim.n; k++) {
            if (b->slots[k].state == SLOT_READY)
                queue_slot(f, &b->slots[k]);
        }
    }
    f->queue = QUEUE_READY;
}

void inflight_tidy(struct inflight *f)
{
    switch (f->queue) {
    case QUEUE_READY: break;
    case QUEUE_STALE: rebuild_queue(f); break;
    case QUEUE_RETURN: inflight_give_back(f); break;
    }
}

/* ---- giving back ---- */

static bool is_untried(const struct slot *slot)
{
    return slot->state == SLOT_READY || slot->state == SLOT_WAITING;
}

/* Ends the run of untried slots at the end of a fresh batch, last one first; release_from gives
 * them back. A follower in another batch is held back. Returns where the run begins. */
static size_t give_back_tail(struct inflight *f, struct batch_state *b)
{
    size_t tail = b->claim.n;
    while (tail > 0 && is_untried(&b->slots[tail - 1])) {
        tail--;
        struct slot *slot = &b->slots[tail];
        slot->state = SLOT_ENDED;
        slot->released = true;
        b->open--;
        struct slot *next = take_follower(slot);
        if (next)
            inflight_hold(f, next);
    }
    if (tail == b->claim.n)
        return tail;

    if (tail == 0)
        b->release_from = b->claim.from + 1;
    else
        b->release_from = b->slots[tail].d.ev->seq;
    return tail;
}

/* Ends every slot that is not with the sink. Slots at the end of a fresh batch need no outcome; the
 * others are held. */
static void end_untried(struct inflight *f, struct batch_state *b)
{
    size_t tail = b->claim.n;
    if (!b->claim.parked)
        tail = give_back_tail(f, b);
    for (size_t i = 0; i < tail; i++) {
        if (is_untried(&b->slots[i]))
            inflight_hold(f, &b->slots[i]);
    }
}

void inflight_give_back(struct inflight *f)
{
    for (size_t i = f->n; i-- > 0;)
        end_untried(f, f->batch[i]);
    clear_queue(f);
    f->queue = QUEUE_READY;
    f->gave_back = f->n > 0;
}

/* ---- batches ---- */

struct batch_state *inflight_spare(struct inflight *f)
{
    for (size_t i = 0; i < INFLIGHT_BATCHES; i++) {
        if (!f->pool[i].used)
            return &f->pool[i];
    }
    return NULL;
}

static bool any_held(const struct batch *claim)
{
    for (size_t i = 0; i < claim->n; i++) {
        if (claim->ev[i].behind || claim->ev[i].delayed)
            return true;
    }
    return false;
}

/* Resets the slots, and queues those that may be submitted. */
static void start_batch(struct inflight *f, struct batch_state *b, bool chain)
{
    *b = (struct batch_state){.used = true,
                              .by_key = chain || any_held(&b->claim),
                              .a = b->a,
                              .claim = b->claim,
                              .slots = b->slots,
                              .open = b->claim.n,
                              .claimed_at = b->claimed_at,
                              .deadline = b->deadline};
    for (size_t i = 0; i < b->claim.n; i++) {
        struct slot *slot = &b->slots[i];
        struct slot *before = NULL;
        *slot = (struct slot){.batch = b, .d = {.ev = &b->claim.ev[i]}, .state = SLOT_READY};
        slot->d.attempt = slot->d.ev->attempts + 1;
        slot->d.again = slot->d.ev->crashed;
        if (b->by_key)
            slot->key = store_order_key(f->c->order, slot->d.ev->key);
        if (slot->key)
            before = map_key(f, slot);
        place_slot(f, slot, before);
    }
}

int inflight_add(struct inflight *f, struct batch_state *b, bool chain)
{
    /* If the store held a claim unknown to us, the lane would not have been free. With several
     * lanes, that claim might be in another. */
    bool lane_was_free = !b->claim.parked && f->c->lanes == 1;
    if (lane_was_free)
        f->forgot = false;

    b->slots = arena_alloc(&b->a, b->claim.n * sizeof *b->slots);
    if (!b->slots) {
        f->forgot = true;
        b->used = false;
        arena_reset(&b->a);
        return -1;
    }
    start_batch(f, b, chain);
    f->batch[f->n++] = b;
    return 0;
}

static void unlink_batch(struct inflight *f, struct batch_state *b)
{
    for (size_t i = 0; i < b->claim.n; i++) {
        struct slot *slot = &b->slots[i];
        if (slot->mapped)
            *key_place(f, slot->key) = slot->next_in_bucket;
        slot->mapped = false;
        unlink_follower(slot);
        /* A lost batch can be dropped while it still waits for an earlier one. */
        if (slot->before)
            unlink_follower(slot->before);
    }
}

void inflight_drop(struct inflight *f, size_t i)
{
    struct batch_state *b = f->batch[i];
    unlink_batch(f, b);
    b->used = false;
    b->claim = (struct batch){0};
    b->slots = NULL;
    arena_reset(&b->a);

    f->n--;
    for (; i < f->n; i++)
        f->batch[i] = f->batch[i + 1];
    if (f->n == 0)
        f->gave_back = false;
}

void inflight_restart(struct inflight *f, struct batch_state *b)
{
    assert(b->in_flight == 0);
    clear_queue(f);
    f->queue = QUEUE_READY;
    unlink_batch(f, b);
    start_batch(f, b, true);
}

void inflight_by_key(struct inflight *f, struct batch_state *b)
{
    if (b->by_key)
        return;
    b->by_key = true;
    for (size_t i = 0; i < b->claim.n; i++) {
        struct slot *slot = &b->slots[i];
        if (slot->state == SLOT_ENDED)
            continue;
        slot->key = store_order_key(f->c->order, slot->d.ev->key);
        if (!slot->key)
            continue;
        struct slot *before = map_key(f, slot);
        if (!before)
            continue;
        before->follower = slot;
        slot->before = before;
        if (slot->state == SLOT_READY)
            slot->state = SLOT_WAITING;
    }
    make_stale(f);
}

void inflight_lose(struct inflight *f, struct batch_state *b)
{
    b->lost = true;
    f->forgot = true; /* the store may keep the claim until another worker takes it over */
    end_untried(f, b);
    make_stale(f);
    inflight_tidy(f);
}

void inflight_remap(struct inflight *f)
{
    for (size_t i = 0; i < f->n; i++) {
        struct batch_state *b = f->batch[i];
        if (b->in_flight == 0)
            continue;
        for (size_t k = b->claim.n; k-- > 0;) {
            struct slot *slot = &b->slots[k];
            bool in_flight = slot->state == SLOT_IN_FLIGHT && slot->key;
            if (in_flight && !*key_place(f, slot->key))
                map_key(f, slot);
        }
    }
}

size_t inflight_deliveries(const struct inflight *f)
{
    size_t n = 0;
    for (size_t i = 0; i < f->n; i++)
        n += f->batch[i]->in_flight;
    return n;
}

size_t inflight_open(const struct inflight *f)
{
    size_t n = 0;
    for (size_t i = 0; i < f->n; i++)
        n += f->batch[i]->open;
    return n;
}

size_t inflight_batch_bytes(const struct batch_state *b)
{
    size_t bytes = 0;
    for (size_t i = 0; i < b->claim.n; i++)
        bytes += event_bytes(&b->claim.ev[i]) + sizeof b->slots[i];
    return bytes;
}

size_t inflight_bytes(const struct inflight *f)
{
    size_t bytes = 0;
    for (size_t i = 0; i < INFLIGHT_BATCHES; i++)
        bytes += f->pool[i].a.held;
    return bytes;
}

void inflight_shrink(struct inflight *f)
{
    for (size_t i = 0; i < INFLIGHT_BATCHES; i++) {
        if (!f->pool[i].used)
            arena_release(&f->pool[i].a);
    }
}

/* ---- settling ---- */

size_t inflight_next_settled(const struct inflight *f)
{
    if (f->n < 2 || f->forgot)
        return 0;
    const struct batch_state *newest = f->batch[f->n - 1];
    bool untried = newest->release_from == newest->claim.from + 1;
    return untried ? f->n - 1 : 0;
}

int inflight_outcomes(struct batch_state *b)
{
    assert(b->open == 0);
    if (b->out)
        return 0; /* settling may have to be tried several times */
    struct outcome *out = arena_alloc(&b->a, (b->exceptions + 1) * sizeof *out);
    if (!out)
        return -1;

    bool any = b->exceptions > 0;
    for (size_t i = 0; any && i < b->claim.n; i++) {
        if (b->slots[i].exceptional)
            out[b->n_out++] = b->slots[i].out;
    }
    b->out = out;
    return 0;
}

void inflight_tell_settled(const struct batch_state *b, struct sink *sk)
{
    const struct event *some[SETTLED_AT_ONCE];
    size_t n = 0;
    if (!sk->ops->settled)
        return;
    for (size_t i = 0; i < b->claim.n; i++) {
        bool delivered = b->slots[i].state == SLOT_ENDED && !holds_key(&b->slots[i]);
        if (!delivered)
            continue;
        some[n++] = b->slots[i].d.ev;
        if (n == SETTLED_AT_ONCE) {
            sk->ops->settled(sk, some, n);
            n = 0;
        }
    }
    if (n > 0)
        sk->ops->settled(sk, some, n);
}
