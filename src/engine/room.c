/* room.c: whether a pipeline has room for another batch, and how large that may be. */
#include "engine/pipeline_impl.h"

#include "base/num.h"

#define PROBE_EVENTS 16 /* events to claim while the sink is down */

/* batches_at_once returns how many batches may be in hand. A fail-stop sink keeps the order of what
 * it is given, which holds only while it sees one batch at a time. Handlers share one transaction,
 * and that belongs to one batch. */
static size_t batches_at_once(const struct pipeline *p)
{
    if (pipeline_failstop(p))
        return 1;
    if (effects_used(&p->effects))
        return 1;
    return HAND_MAX;
}

/* may_join says whether a batch may be claimed beside those in hand. */
static bool may_join(const struct pipeline *p)
{
    /* Once settled, the events given back can be claimed by anybody. Claiming now could fetch a
     * later event of a key without the earlier one that it must wait for. */
    if (p->hand.gave_back)
        return false;

    /* While a suspect is being delivered, or is about to be, nothing else starts. So if the process
     * dies, that event is to blame. */
    const struct live *newest = p->hand.live[p->hand.n - 1];
    return !p->suspect.due && !newest->b.suspect;
}

/* wish says what memory the next batch needs. A batch that is about to be settled has its own until
 * that is done. So where memory is short, the next is claimed afterwards, in another turn. */
static struct budget_wish wish(struct pipeline *p)
{
    return (struct budget_wish){
        .most = p->batch_size.bytes, .have = hand_spare_bytes(&p->hand), .first = p->hand.n == 0};
}

bool room_for_batch(struct pipeline *p, int64_t now, size_t settling)
{
    size_t others = p->hand.n - settling;
    if (p->state != PIPELINE_RUNNING || !pipeline_our_turn(p))
        return false;
    if (p->hand.ready.head)
        return false; /* deliver what is in hand first */
    if (others >= batches_at_once(p))
        return false;
    if (others > 0 && !may_join(p))
        return false;
    if (circuit_room(&p->circuit, now, hand_flying(&p->hand)) == 0)
        return false;

    struct budget_wish w = wish(p);
    return budget_room(&p->memory, &w) > 0;
}

size_t room_bytes(struct pipeline *p)
{
    struct budget_wish w = wish(p);
    return budget_take(&p->memory, &w);
}

size_t room_events(const struct pipeline *p, size_t bytes)
{
    /* More could not be in it, see event_bytes; and stores have a place for each. */
    size_t fit = bytes / sizeof(struct event) + 1;
    size_t most = min_size(p->batch_size.n, fit);
    bool probing = circuit_open(&p->circuit);
    if (probing)
        return min_size(most, PROBE_EVENTS);
    return most;
}

void room_count(struct pipeline *p)
{
    budget_hold(&p->memory, hand_bytes(&p->hand));
    p->stats.held_bytes = (int64_t)p->memory.held;
}

void room_tidy(struct pipeline *p)
{
    if (budget_tight(&p->memory))
        hand_shrink(&p->hand);
    room_count(p);
}
