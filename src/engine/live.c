#include "engine/live.h"

#include <assert.h>
#include <stdlib.h>

int keymap_init(struct keymap *m, size_t items)
{
    m->n = 64;
    while (m->n < items)
        m->n *= 2;
    m->bucket = calloc(m->n, sizeof(struct item *));
    return m->bucket ? 0 : -1;
}

void keymap_release(struct keymap *m)
{
    free(m->bucket);
    m->bucket = NULL;
}

static struct item **keymap_slot(struct keymap *m, uint64_t key)
{
    struct item **p = &m->bucket[key & (m->n - 1)];
    while (*p && (*p)->key != key)
        p = &(*p)->next_in_bucket;
    return p;
}

/* keymap_put makes it the last of its key and returns the one that was. */
static struct item *keymap_put(struct keymap *m, struct item *it)
{
    struct item **p = keymap_slot(m, it->key), *last = *p;
    it->next_in_bucket = last ? last->next_in_bucket : NULL;
    it->mapped = true;
    if (last)
        last->mapped = false;
    *p = it;
    return last;
}

static void keymap_drop(struct keymap *m, struct item *it)
{
    if (!it->mapped)
        return;
    *keymap_slot(m, it->key) = it->next_in_bucket;
    it->mapped = false;
}

void ready_init(struct ready *q)
{
    q->head = NULL;
    q->tail = &q->head;
}

void ready_push(struct ready *q, struct item *it)
{
    it->next_ready = NULL;
    *q->tail = it;
    q->tail = &it->next_ready;
}

void ready_unshift(struct ready *q, struct item *it)
{
    it->next_ready = q->head;
    q->head = it;
    if (!it->next_ready)
        q->tail = &it->next_ready;
}

struct item *ready_pop(struct ready *q)
{
    struct item *it = q->head;
    if (!it)
        return NULL;
    q->head = it->next_ready;
    if (!q->head)
        q->tail = &q->head;
    return it;
}

/* holds says whether an ended event keeps those of its key behind it from being tried. A dead
 * letter does, too, until it is settled: were its burial lost in a crash, it would be tried again,
 * after them. */
static bool holds(const struct item *it)
{
    return it->released || (it->exceptional && it->out.kind != OUTCOME_DELIVERED);
}

void item_hold(struct item *it, struct ready *q)
{
    item_end(it, &(struct outcome){.kind = OUTCOME_BEHIND, .attempts = it->d.ev->attempts}, true,
             q);
}

static void place(struct item *it, struct item *before, struct ready *q)
{
    const struct event *ev = it->d.ev;
    if (before && before->state != ITEM_ENDED) {
        before->follower = it;
        it->before = before;
        it->state = ITEM_WAITING;
    } else if (ev->behind || (before && holds(before))) {
        item_hold(it, q);
    } else if (ev->delayed) {
        item_end(it, &(struct outcome){.kind = OUTCOME_DELAY, .attempts = ev->attempts}, true, q);
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
    for (size_t i = 0; i < b->n; i++)
        if (b->ev[i].behind || b->ev[i].delayed)
            return true;
    return false;
}

/* start makes the items new, and queues those that may go. */
static void start(struct live *l, enum order order, bool chain, struct keymap *m, struct ready *q)
{
    l->used = true;
    l->open = l->b.n;
    l->lost = false;
    l->flying = l->exceptions = 0;
    l->release_from = 0;
    l->out = NULL;
    l->n_out = 0;
    chain = chain || any_held(&l->b);
    for (size_t i = 0; i < l->b.n; i++) {
        struct item *it = &l->items[i];
        *it = (struct item){.live = l, .d = {.ev = &l->b.ev[i]}, .state = ITEM_READY};
        it->d.attempt = it->d.ev->attempts + 1;
        if (chain)
            it->key = store_order_key(order, it->d.ev->key);
        place(it, it->key ? keymap_put(m, it) : NULL, q);
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

static void unlink_all(struct live *l, struct keymap *m)
{
    for (size_t i = 0; i < l->b.n; i++) {
        struct item *it = &l->items[i];
        keymap_drop(m, it);
        unlink_follower(it);
        /* a lost batch goes before the one it waits for */
        if (it->before)
            unlink_follower(it->before);
    }
}

void live_remap(struct live *l, struct keymap *m)
{
    for (size_t i = 0; l->flying > 0 && i < l->b.n; i++) {
        struct item *it = &l->items[i];
        if (it->state == ITEM_FLYING && it->key && !*keymap_slot(m, it->key))
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

void item_fly(struct item *it)
{
    assert(it->state == ITEM_READY);
    it->state = ITEM_FLYING;
    it->live->flying++;
}

void item_land(struct item *it)
{
    assert(it->state == ITEM_FLYING);
    it->state = ITEM_READY;
    it->live->flying--;
}

static const char *keep(struct arena *a, const char *text)
{
    return text ? arena_bytes(a, text, strlen(text)) : NULL;
}

/* A follower that was waiting goes on as its own flags and the event before it say. Chains can be
 * long, so it is a loop in the one place where it could recurse: hold_back ends an item, whose
 * follower is held back in turn. */
void item_end(struct item *it, const struct outcome *out, bool exceptional, struct ready *q)
{
    for (struct outcome o = *out;;
         o = (struct outcome){.kind = OUTCOME_BEHIND, .attempts = it->d.ev->attempts}) {
        assert(it->state != ITEM_ENDED);
        if (it->state == ITEM_FLYING)
            it->live->flying--;
        it->state = ITEM_ENDED;
        it->live->open--;
        it->exceptional = exceptional;
        it->out = o;
        it->out.ev = it->d.ev;
        it->out.error = keep(&it->live->a, o.error);
        it->out.receipt = keep(&it->live->a, o.receipt);
        if (exceptional)
            it->live->exceptions++;
        struct item *next = it->follower;
        unlink_follower(it);
        if (!next || next->state != ITEM_WAITING)
            return;
        if (!holds(it) && !next->d.ev->behind) {
            place(next, NULL, q);
            return;
        }
        it = next;
        exceptional = true;
    }
}

static bool untried(const struct item *it)
{
    return it->state == ITEM_READY || it->state == ITEM_WAITING;
}

/* give_back leaves an untried item to release_from; what waits for it in another batch is held
 * back. */
static void give_back(struct item *it, struct ready *q)
{
    struct item *next = it->follower;
    it->state = ITEM_ENDED;
    it->released = true;
    it->live->open--;
    unlink_follower(it);
    if (next && next->state == ITEM_WAITING)
        item_hold(next, q);
}

void live_give_up(struct live *l, struct ready *q)
{
    /* from here on nothing was tried: a run at the end, so followers in it go first */
    size_t tail = l->b.n;
    while (!l->b.parked && tail > 0 && untried(&l->items[tail - 1]))
        give_back(&l->items[--tail], q);
    if (tail < l->b.n)
        l->release_from = tail == 0 ? l->b.from + 1 : l->items[tail].d.ev->seq;
    for (size_t i = 0; i < tail; i++)
        if (untried(&l->items[i]))
            item_hold(&l->items[i], q);
}

int live_outcomes(struct live *l)
{
    assert(l->open == 0);
    if (l->out)
        return 0; /* settling may have to be tried many times */
    struct outcome *out = arena_alloc(&l->a, (l->exceptions + 1) * sizeof *out);
    if (!out)
        return -1;
    for (size_t i = 0; l->exceptions && i < l->b.n; i++)
        if (l->items[i].exceptional)
            out[l->n_out++] = l->items[i].out;
    l->out = out;
    return 0;
}
