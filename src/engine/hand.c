#include "engine/hand.h"

int hand_init(struct hand *h, const struct consumer *c)
{
    *h = (struct hand){.c = c};
    ready_init(&h->ready);
    for (size_t i = 0; i < HAND_MAX; i++)
        arena_init(&h->pool[i].a, 0);
    return keymap_init(&h->keys, (size_t)c->batch * 2);
}

void hand_release(struct hand *h)
{
    for (size_t i = 0; i < HAND_MAX; i++)
        arena_release(&h->pool[i].a);
    keymap_release(&h->keys);
}

struct live *hand_spare(struct hand *h)
{
    for (size_t i = 0; i < HAND_MAX; i++) {
        if (!h->pool[i].used)
            return &h->pool[i];
    }
    return NULL;
}

size_t hand_spare_bytes(struct hand *h)
{
    const struct live *spare = hand_spare(h);
    return spare ? spare->a.held : 0;
}

int hand_take(struct hand *h, struct live *l, bool chain)
{
    /* If the store had a claim that we don't know of, the lane would not have been free. With more
     * than one lane, that claim might be in another. */
    bool lane_was_free = !l->b.parked && h->c->lanes == 1;
    if (lane_was_free) {
        h->forgot = false;
    }

    if (live_load(l, h->c->order, chain, &h->keys, &h->ready) != 0) {
        h->forgot = true;
        l->used = false;
        arena_reset(&l->a);
        return -1;
    }
    h->live[h->n++] = l;
    return 0;
}

void hand_drop(struct hand *h, size_t i)
{
    live_release(h->live[i], &h->keys);
    h->n--;
    for (; i < h->n; i++)
        h->live[i] = h->live[i + 1];
    if (h->n == 0) {
        h->gave_back = false;
    }
}

size_t hand_bytes(const struct hand *h)
{
    size_t bytes = 0;
    for (size_t i = 0; i < HAND_MAX; i++)
        bytes += h->pool[i].a.held;
    return bytes;
}

void hand_shrink(struct hand *h)
{
    for (size_t i = 0; i < HAND_MAX; i++) {
        if (!h->pool[i].used)
            arena_release(&h->pool[i].a);
    }
}

size_t hand_flying(const struct hand *h)
{
    size_t flying = 0;
    for (size_t i = 0; i < h->n; i++)
        flying += h->live[i]->flying;
    return flying;
}

size_t hand_next(const struct hand *h)
{
    if (h->n < 2 || h->forgot)
        return 0;
    const struct live *newest = h->live[h->n - 1];
    bool untried = newest->release_from == newest->b.from + 1;
    if (untried)
        return h->n - 1;
    return 0;
}

void hand_disturb(struct hand *h)
{
    if (h->queue == QUEUE_READY) {
        h->queue = QUEUE_STALE;
    }
}

void hand_by_key(struct hand *h, struct live *l)
{
    if (l->by_key)
        return;
    live_by_key(l, h->c->order, &h->keys);
    hand_disturb(h);
}

void hand_want_back(struct hand *h)
{
    h->queue = QUEUE_RETURN;
}

bool hand_untidy(const struct hand *h)
{
    return h->queue != QUEUE_READY;
}

static void queue_ready(struct ready *q, struct live *l)
{
    for (size_t i = 0; i < l->b.n; i++) {
        struct item *it = &l->items[i];
        if (it->state == ITEM_READY)
            ready_push(q, it);
    }
}

/* requeue rebuilds the queue in claim order, so that an event that came back goes before those
 * claimed after it. */
static void requeue(struct hand *h)
{
    ready_init(&h->ready);
    for (size_t i = 0; i < h->n; i++) {
        if (!h->live[i]->lost)
            queue_ready(&h->ready, h->live[i]);
    }
    h->queue = QUEUE_READY;
}

void hand_tidy(struct hand *h)
{
    switch (h->queue) {
    case QUEUE_READY: break;
    case QUEUE_STALE: requeue(h); break;
    case QUEUE_RETURN: hand_give_back(h); break;
    }
}

void hand_give_back(struct hand *h)
{
    for (size_t i = h->n; i-- > 0;)
        live_give_up(h->live[i], &h->ready);
    ready_init(&h->ready);
    h->queue = QUEUE_READY;
    h->gave_back = h->n > 0;
}

void hand_again(struct hand *h, struct live *l)
{
    ready_init(&h->ready);
    h->queue = QUEUE_READY;
    live_again(l, h->c->order, &h->keys, &h->ready);
}

void hand_lose(struct hand *h, struct live *l)
{
    l->lost = true;
    h->forgot = true; /* the store may have it until somebody takes it over */
    live_give_up(l, &h->ready);
    hand_disturb(h);
    hand_tidy(h);
}

void hand_remap(struct hand *h)
{
    for (size_t i = 0; i < h->n; i++)
        live_remap(h->live[i], &h->keys);
}

void hand_forgot(struct hand *h)
{
    h->forgot = true;
}
