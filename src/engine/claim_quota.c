#include "engine/claim_quota.h"

#include "base/clock.h"
#include "base/num.h"
#include "engine/pipeline_impl.h"

#define START 64
#define START_SMALL 8
#define START_BYTES ((size_t)64 * 1024)
#define QUICK (100 * MS_NS) /* if a full batch took less, double the next one */
#define SLOW (1000 * MS_NS) /* if a batch took more, halve the next one */
#define PROBE_EVENTS 16     /* events to claim while the sink is down */

/* ---- how many events, how many bytes ---- */

static void keep_in_bounds(struct claim_quota *q)
{
    q->n = max_size(q->n, q->least);
    q->n = min_size(q->n, q->most);
}

void claim_quota_init(struct claim_quota *q, size_t in_flight, size_t most, bool all_lanes,
                      struct budget *budget)
{
    *q = (struct claim_quota){.n = all_lanes ? START_SMALL : START,
                              .least = in_flight,
                              .most = most,
                              .bytes = START_BYTES,
                              .budget = budget};
    keep_in_bounds(q);
}

void claim_quota_tune(struct claim_quota *q, size_t got, int64_t took)
{
    bool full = got >= q->n;
    if (full && took < QUICK)
        q->n *= 2;
    else if (took > SLOW)
        claim_quota_halve(q);
    keep_in_bounds(q);
}

void claim_quota_halve(struct claim_quota *q)
{
    q->n = max_size(q->n / 2, 1);
}

void claim_quota_one(struct claim_quota *q)
{
    q->n = 1;
}

void claim_quota_learn(struct claim_quota *q, size_t bytes)
{
    size_t next = max_size(q->bytes / 2, QUOTA_BYTES_LEAST);
    if (bytes > next / 2)
        next = bytes < QUOTA_BYTES / 2 ? 2 * bytes : QUOTA_BYTES;
    q->bytes = next;
}

/* ---- the budget ---- */

static size_t left_of(size_t whole, size_t part)
{
    return whole > part ? whole - part : 0;
}

/* Memory blocks double in size, so a batch may occupy up to twice the bytes of its events. */
#define BLOCKS 2

/* Returns the room for a batch, given what all quotas hold together. A pipeline may take half of
 * the free memory beyond its own, so it never holds more than what then remains free. */
static size_t room_beside(const struct claim_quota *q, size_t held, size_t spare, bool first)
{
    size_t free = left_of(q->budget->limit, held);
    size_t more = left_of(free, q->held) / 2;
    size_t room = min_size(q->bytes, (spare + more) / BLOCKS);
    if (first)
        return max_size(room, min_size(q->bytes, BUDGET_LEAST));
    return room >= min_size(q->bytes, BUDGET_MORE) ? room : 0;
}

/* Raises the peak to `held` bytes, unless it is higher already. */
static void note_peak(struct budget *b, size_t held)
{
    size_t peak = atomic_load(&b->peak);
    while (held > peak) {
        if (atomic_compare_exchange_weak(&b->peak, &peak, held))
            return;
    }
}

/* Computes and reserves the room in one step: two pipelines never reserve the same bytes. */
size_t claim_quota_reserve(struct claim_quota *q, size_t spare, bool first)
{
    struct budget *b = q->budget;
    if (!b)
        return q->bytes;
    size_t held = atomic_load(&b->held);
    size_t room, more;
    do {
        room = room_beside(q, held, spare, first);
        more = left_of(BLOCKS * room, spare);
    } while (!atomic_compare_exchange_weak(&b->held, &held, held + more));
    q->held += more;
    note_peak(b, held + more);
    return room;
}

void claim_quota_hold(struct claim_quota *q, size_t bytes)
{
    if (!q->budget)
        return;
    /* Unsigned arithmetic wraps, so one addition handles growing and shrinking. */
    size_t change = bytes - q->held;
    size_t held = atomic_fetch_add(&q->budget->held, change) + change;
    q->held = bytes;
    note_peak(q->budget, held);
}

bool claim_quota_tight(const struct claim_quota *q)
{
    return q->budget && atomic_load(&q->budget->held) > q->budget->limit / 2;
}

/* ---- for a pipeline ---- */

/* Whether a batch may be claimed beside those in flight. */
static bool may_join(const struct pipeline *p)
{
    /* Once settled, the events given back can be claimed by any worker. Claiming now could fetch a
     * later event of a key without the earlier one that it must wait for. */
    if (p->inflight.gave_back)
        return false;

    /* While a suspect is being delivered, or is about to be, nothing else starts: if the process
     * dies then, that event is to blame. */
    const struct batch_state *newest = p->inflight.batch[p->inflight.n - 1];
    return !p->suspect.due && !newest->claim.suspect;
}

static size_t spare_bytes(struct pipeline *p)
{
    const struct batch_state *spare = inflight_spare(&p->inflight);
    return spare ? spare->a.held : 0;
}

bool claim_quota_allows(struct pipeline *p, int64_t now, size_t settling)
{
    /* A fail-stop sink keeps the order of events only within one batch, so it receives one batch at
     * a time. Handlers share one transaction, which belongs to one batch. */
    bool one_by_one = pipeline_failstop(p) || effects_used(&p->effects);
    size_t most = one_by_one ? 1 : INFLIGHT_BATCHES;
    size_t others = p->inflight.n - settling;
    if (p->stats.state != PIPELINE_RUNNING || !pipeline_our_turn(p))
        return false;
    if (p->inflight.ready)
        return false; /* deliver the claimed events first */
    if (others >= most)
        return false;
    if (others > 0 && !may_join(p))
        return false;
    if (circuit_room(&p->circuit, now, inflight_deliveries(&p->inflight)) == 0)
        return false;

    /* A batch that is about to be settled keeps its memory until then. So when memory is short, the
     * next batch is claimed afterwards, in another turn. */
    if (!p->quota.budget)
        return true;
    size_t held = atomic_load(&p->quota.budget->held);
    return room_beside(&p->quota, held, spare_bytes(p), p->inflight.n == 0) > 0;
}

bool claim_quota_take(struct pipeline *p, struct claim_request *req)
{
    size_t bytes = claim_quota_reserve(&p->quota, spare_bytes(p), p->inflight.n == 0);
    /* More events cannot fit (see event_bytes), and stores allocate a slot for each. While the sink
     * is down a few events are enough: they are only probes. */
    size_t events = min_size(p->quota.n, bytes / sizeof(struct event) + 1);
    if (circuit_open(&p->circuit))
        events = min_size(events, PROBE_EVENTS);
    req->max_bytes = bytes;
    req->max_events = events;
    return bytes > 0;
}

void claim_quota_count(struct pipeline *p)
{
    claim_quota_hold(&p->quota, inflight_bytes(&p->inflight));
    p->stats.held_bytes = (int64_t)p->quota.held;
}

void claim_quota_tidy(struct pipeline *p)
{
    if (claim_quota_tight(&p->quota))
        inflight_shrink(&p->inflight);
    claim_quota_count(p);
}
