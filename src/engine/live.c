#include "engine/live.h"

#include <assert.h>

#define SETTLED_AT_ONCE 256 /* events that a sink is told of at once */

/* holds says whether an ended event keeps later events of its key from being tried. Even a dead
 * letter does, until it is settled: if a crash undid its burial, it would be tried again, and after
 * them. */
static bool holds(const struct item *it)
{
    return it->released || (it->exceptional && it->out.kind != OUTCOME_DELIVERED);
}

void live_item_hold(struct item *it, struct ready *q)
{
    live_item_end(it, &(struct outcome){.kind = OUTCOME_BEHIND, .attempts = it->d.ev->attempts},
                  true, q);
}

static void wait_for(struct item *it, struct item *before)
{
    before->follower = it;
    it->before = before;
    it->state = ITEM_WAITING;
}

/* place decides what becomes of an item: it waits for the one before it of its key (NULL: there is
 * none), is held back, is put off because it is not due yet, or is queued. */
static void place(struct item *it, struct item *before, struct ready *q)
{
    const struct event *ev = it->d.ev;
    bool must_wait = before && before->state != ITEM_ENDED;
    bool held = ev->behind || (before && holds(before));
    if (must_wait) {
        wait_for(it, before);
    } else if (held) {
        live_item_hold(it, q);
    } else if (ev->delayed) {
        live_item_end(it, &(struct outcome){.kind = OUTCOME_DELAY, .attempts = ev->attempts}, true,
                      q);
    } else {
        it->state = ITEM_READY;
        ready_push(q, it);
    }
}

static void unlink_follower(struct item *it)
{
    if (it->follower)
        it->follower->before = NULL;
    it->follower = NULL;
}

static bool any_held(const struct batch *b)
{
    for (size_t i = 0; i < b->n; i++) {
        if (b->ev[i].behind || b->ev[i].delayed)
            return true;
    }
    return false;
}

/* start makes the items anew, and queues those that may go. */
static void start(struct live *l, enum order order, bool chain, struct keymap *m, struct ready *q)
{
    l->used = true;
    l->open = l->b.n;
    l->lost = false;
    l->flying = 0;
    l->exceptions = 0;
    l->release_from = 0;
    l->out = NULL;
    l->n_out = 0;

    l->by_key = chain || any_held(&l->b);
    for (size_t i = 0; i < l->b.n; i++) {
        struct item *it = &l->items[i];
        struct item *before = NULL;
        *it = (struct item){.live = l, .d = {.ev = &l->b.ev[i]}, .state = ITEM_READY};
        it->d.attempt = it->d.ev->attempts + 1;
        it->d.again = it->d.ev->crashed;
        if (l->by_key)
            it->key = store_order_key(order, it->d.ev->key);
        if (it->key)
            before = keymap_put(m, it);
        place(it, before, q);
    }
}

int live_load(struct live *l, enum order order, bool chain, struct keymap *m, struct ready *q)
{
    l->items = arena_alloc(&l->a, l->b.n * sizeof *l->items);
    if (!l->items)
        return -1;
    start(l, order, chain, m, q);
    return 0;
}

void live_by_key(struct live *l, enum order order, struct keymap *m)
{
    if (l->by_key)
        return;
    l->by_key = true;
    for (size_t i = 0; i < l->b.n; i++) {
        struct item *it = &l->items[i];
        if (it->state == ITEM_ENDED)
            continue;
        it->key = store_order_key(order, it->d.ev->key);
        if (!it->key)
            continue;
        struct item *before = keymap_put(m, it);
        if (!before)
            continue;
        before->follower = it;
        it->before = before;
        if (it->state == ITEM_READY)
            it->state = ITEM_WAITING;
    }
}

size_t live_bytes(const struct live *l)
{
    size_t bytes = 0;
    for (size_t i = 0; i < l->b.n; i++)
        bytes += event_bytes(&l->b.ev[i]) + sizeof l->items[i];
    return bytes;
}

static void unlink_all(struct live *l, struct keymap *m)
{
    for (size_t i = 0; i < l->b.n; i++) {
        struct item *it = &l->items[i];
        keymap_drop(m, it);
        unlink_follower(it);
        /* A lost batch can be dropped while it still waits for an earlier one. */
        if (it->before)
            unlink_follower(it->before);
    }
}

void live_remap(struct live *l, struct keymap *m)
{
    if (l->flying == 0)
        return;
    for (size_t i = l->b.n; i-- > 0;) {
        struct item *it = &l->items[i];
        bool flies = it->state == ITEM_FLYING && it->key;
        if (flies && !keymap_has(m, it->key))
            keymap_put(m, it);
    }
}

void live_again(struct live *l, enum order order, struct keymap *m, struct ready *q)
{
    assert(l->flying == 0);
    unlink_all(l, m);
    start(l, order, true, m, q);
}

void live_release(struct live *l, struct keymap *m)
{
    unlink_all(l, m);
    l->used = false;
    l->b = (struct batch){0};
    l->items = NULL;
    arena_reset(&l->a);
}

void live_item_fly(struct item *it)
{
    assert(it->state == ITEM_READY || it->before);
    it->state = ITEM_FLYING;
    it->live->flying++;
}

void live_item_land(struct item *it, struct ready *q)
{
    assert(it->state == ITEM_FLYING);
    if (it->held) {
        live_item_hold(it, q);
        return;
    }
    it->state = it->before ? ITEM_WAITING : ITEM_READY;
    it->live->flying--;
}

struct item *live_item_chain(const struct item *it)
{
    struct item *next = it->follower;
    if (!next || next->state != ITEM_WAITING)
        return NULL;
    bool same_batch = next->live == it->live;
    bool may_go = !next->d.ev->behind && !next->d.ev->delayed;
    if (!same_batch || !may_go)
        return NULL;
    return next;
}

static const char *keep(struct arena *a, const char *text)
{
    return text ? arena_bytes(a, text, strlen(text)) : NULL;
}

/* note_end ends one item, with this outcome. */
static void note_end(struct item *it, const struct outcome *out, bool exceptional)
{
    struct live *l = it->live;
    assert(it->state != ITEM_ENDED);
    if (it->state == ITEM_FLYING)
        l->flying--;
    l->open--;
    if (exceptional)
        l->exceptions++;

    it->state = ITEM_ENDED;
    it->exceptional = exceptional;
    it->out = *out;
    it->out.ev = it->d.ev;
    it->out.error = keep(&l->a, out->error);
    it->out.receipt = keep(&l->a, out->receipt);
}

/* take_follower unlinks the item that waits for this one, which has ended, and returns it; NULL:
 * none waits. One that flies in the same chain is told whether its key is held back. */
static struct item *take_follower(struct item *it)
{
    struct item *next = it->follower;
    unlink_follower(it);
    if (!next)
        return NULL;
    if (next->state == ITEM_FLYING)
        next->held = holds(it);
    if (next->state != ITEM_WAITING)
        return NULL;
    return next;
}

/* live_item_end goes along the chain of followers until one may go or none is left. It is a loop
 * because chains can be long: ending an item that is held back could otherwise recurse for each of
 * them. */
void live_item_end(struct item *it, const struct outcome *out, bool exceptional, struct ready *q)
{
    struct item *next;
    note_end(it, out, exceptional);
    while ((next = take_follower(it))) {
        bool held = holds(it) || next->d.ev->behind;
        if (!held) {
            place(next, NULL, q);
            return;
        }
        struct outcome behind = {.kind = OUTCOME_BEHIND, .attempts = next->d.ev->attempts};
        note_end(next, &behind, true);
        it = next;
    }
}

static bool untried(const struct item *it)
{
    return it->state == ITEM_READY || it->state == ITEM_WAITING;
}

/* give_back leaves an untried item to release_from. An item of another batch that waits for it is
 * held back. */
static void give_back(struct item *it, struct ready *q)
{
    it->state = ITEM_ENDED;
    it->released = true;
    it->live->open--;
    struct item *next = take_follower(it);
    if (next)
        live_item_hold(next, q);
}

/* give_back_tail gives back the run of untried items at the end of a fresh batch, the last one
 * first, so that none has a follower in its own batch. Returns where the run begins. */
static size_t give_back_tail(struct live *l, struct ready *q)
{
    size_t tail = l->b.n;
    while (tail > 0 && untried(&l->items[tail - 1])) {
        tail--;
        give_back(&l->items[tail], q);
    }
    if (tail == l->b.n)
        return tail;

    if (tail == 0)
        l->release_from = l->b.from + 1;
    else
        l->release_from = l->items[tail].d.ev->seq;
    return tail;
}

void live_give_up(struct live *l, struct ready *q)
{
    size_t tail = l->b.n;
    if (!l->b.parked)
        tail = give_back_tail(l, q);
    for (size_t i = 0; i < tail; i++) {
        if (untried(&l->items[i]))
            live_item_hold(&l->items[i], q);
    }
}

int live_outcomes(struct live *l)
{
    assert(l->open == 0);
    if (l->out)
        return 0; /* settling may have to be tried several times */
    struct outcome *out = arena_alloc(&l->a, (l->exceptions + 1) * sizeof *out);
    if (!out)
        return -1;

    bool any = l->exceptions > 0;
    for (size_t i = 0; any && i < l->b.n; i++) {
        if (l->items[i].exceptional)
            out[l->n_out++] = l->items[i].out;
    }
    l->out = out;
    return 0;
}

void live_settled(const struct live *l, struct sink *sk)
{
    const struct event *some[SETTLED_AT_ONCE];
    size_t n = 0;
    if (!sk->ops->settled)
        return;
    for (size_t i = 0; i < l->b.n; i++) {
        bool delivered = l->items[i].state == ITEM_ENDED && !holds(&l->items[i]);
        if (!delivered)
            continue;
        some[n++] = l->items[i].d.ev;
        if (n == SETTLED_AT_ONCE) {
            sk->ops->settled(sk, some, n);
            n = 0;
        }
    }
    if (n > 0)
        sk->ops->settled(sk, some, n);
}
