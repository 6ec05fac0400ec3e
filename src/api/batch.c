/* batch.c: what an application does with a batch it has claimed: it goes through the events and
 * says what became of each. */
#include <stdlib.h>

#include "api/batch.h"

#define WHY_MAX 255
/* Not every database can add a longer delay to a time: the settlement would fail. */
#define DELAY_MAX_MS (INT64_C(365) * 24 * 3600000)

OUTBOX_API void outbox_batch_free(outbox_batch *b)
{
    if (!b)
        return;
    arena_release(&b->a);
    free(b);
}

OUTBOX_API size_t outbox_batch_count(const outbox_batch *b)
{
    return b->n;
}

OUTBOX_API int64_t outbox_batch_wait(const outbox_batch *b)
{
    return b->wait_ms;
}

/* makes_wait says whether an item will come again, so that later ones must not overtake it. */
static bool makes_wait(const struct item *it)
{
    return it->said != SAID_NOTHING && it->said != SAID_DONE && it->said != SAID_REJECT;
}

/* same_key says whether item i orders item k: always with a global order, else if both have one
 * key. */
static bool same_key(const struct part *p, size_t i, size_t k)
{
    if (p->order == ORDER_GLOBAL)
        return true;
    return p->b.ev[i].key && p->b.ev[i].key == p->b.ev[k].key;
}

/* must_wait says whether an earlier item that this one must not overtake will come again. */
static bool must_wait(const struct part *p, size_t at)
{
    if (p->order == ORDER_NONE || p->held_back == 0)
        return false;
    for (size_t i = 0; i < at; i++) {
        if (same_key(p, i, at) && makes_wait(&p->items[i]))
            return true;
    }
    return false;
}

/* outbox_batch_next passes over events that must not go out now. They are settled as untried. */
OUTBOX_API const outbox_event *outbox_batch_next(outbox_batch *b)
{
    while (b->at) {
        struct part *p = b->at;
        while (b->i < p->b.n) {
            size_t i = b->i++;
            if (api_batch_may_deliver(&p->b.ev[i]) && !must_wait(p, i))
                return (const outbox_event *)&p->items[i].d;
        }
        b->at = p->next;
        b->i = 0;
    }
    return NULL;
}

/* part_of finds the part by the address of the event, which is an item of it; NULL: it is not of
 * this batch. */
static struct part *part_of(const outbox_batch *b, const outbox_event *ev)
{
    uintptr_t at = (uintptr_t)ev;
    for (struct part *p = b->first; p; p = p->next) {
        uintptr_t begin = (uintptr_t)p->items;
        uintptr_t end = (uintptr_t)(p->items + p->b.n);
        if (at >= begin && at < end)
            return p;
    }
    return NULL;
}

OUTBOX_API const char *outbox_batch_consumer(const outbox_batch *b, const outbox_event *ev)
{
    const struct part *p = part_of(b, ev);
    if (!p)
        return NULL;
    return p->consumer;
}

/* outbox_batch_verdict may be called again for the same event: the last verdict counts. held_back
 * is adjusted before and after, so that it always is the number of items that make others wait. */
OUTBOX_API int outbox_batch_verdict(outbox_batch *b, const outbox_event *ev, outbox_verdict verdict,
                                    int64_t delay_ms, const char *why, outbox_error *public_err)
{
    static const enum said meaning[] = {[OUTBOX_DONE] = SAID_DONE,
                                        [OUTBOX_RETRY] = SAID_RETRY,
                                        [OUTBOX_REJECT] = SAID_REJECT,
                                        [OUTBOX_DOWN] = SAID_DOWN,
                                        [OUTBOX_NOT_MINE] = SAID_NOT_MINE};
    struct error *err = err_of(public_err);
    struct part *p = part_of(b, ev);
    struct item *it = (struct item *)(uintptr_t)ev;
    char *text = NULL;
    if (!p)
        return err_set(err, ERR_MISUSE, "the event is not part of this batch");
    if ((unsigned)verdict > OUTBOX_NOT_MINE)
        return err_set(err, ERR_MISUSE, "%d is not a verdict", (int)verdict);
    if (why && *why) {
        size_t n = strnlen(why, WHY_MAX);
        text = arena_bytes(&b->a, why, n);
        if (!text)
            return err_nomem(err);
    }

    p->held_back -= makes_wait(it);
    it->said = meaning[verdict];
    it->delay_ms = delay_ms;
    if (it->delay_ms > DELAY_MAX_MS)
        it->delay_ms = DELAY_MAX_MS;
    it->why = text;
    p->held_back += makes_wait(it);
    return 0;
}
