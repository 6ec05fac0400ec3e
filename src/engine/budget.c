#include "engine/budget.h"

#include "base/num.h"

static size_t left_of(size_t whole, size_t part)
{
    return whole > part ? whole - part : 0;
}

/* Blocks of memory double, so that events may take twice as much as they have. */
#define BLOCKS 2

/* room_of gives how many bytes of events a part may have more, where `held` is in use by all. If a
 * part takes half of what is free beyond its own, it has no more than what is free then. */
static size_t room_of(const struct budget_part *p, const struct budget_wish *w, size_t held)
{
    size_t free = left_of(p->b->limit, held);
    size_t more = left_of(free, p->held) / 2;
    size_t room = min_size(w->most, (w->have + more) / BLOCKS);
    if (w->first)
        return room > BUDGET_LEAST ? room : min_size(w->most, BUDGET_LEAST);
    return room >= min_size(w->most, BUDGET_MORE) ? room : 0;
}

size_t budget_room(const struct budget_part *p, const struct budget_wish *w)
{
    if (!p->b)
        return w->most;
    return room_of(p, w, atomic_load(&p->b->held));
}

/* note_peak is called with what was in use just now. */
static void note_peak(struct budget *b, size_t held)
{
    size_t peak = atomic_load(&b->peak);
    while (held > peak) {
        if (atomic_compare_exchange_weak(&b->peak, &peak, held))
            return;
    }
}

/* budget_take looks and takes at once, so that two pipelines do not take the same bytes. */
size_t budget_take(struct budget_part *p, const struct budget_wish *w)
{
    if (!p->b)
        return w->most;
    size_t held = atomic_load(&p->b->held);
    size_t room, more;
    do {
        room = room_of(p, w, held);
        more = left_of(BLOCKS * room, w->have);
    } while (!atomic_compare_exchange_weak(&p->b->held, &held, held + more));
    p->held += more;
    note_peak(p->b, held + more);
    return room;
}

void budget_hold(struct budget_part *p, size_t bytes)
{
    if (!p->b)
        return;
    /* Unsigned numbers wrap, so that one addition does for both more and less. */
    size_t change = bytes - p->held;
    size_t held = atomic_fetch_add(&p->b->held, change) + change;
    p->held = bytes;
    note_peak(p->b, held);
}

bool budget_tight(const struct budget_part *p)
{
    return p->b && atomic_load(&p->b->held) > p->b->limit / 2;
}
