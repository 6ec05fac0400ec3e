#include "engine/meter.h"

#include "base/clock.h"
#include "base/str.h"

#define US_NS INT64_C(1000)
#define S_NS INT64_C(1000000000)

const int64_t meter_delivery_bounds[METER_BUCKETS] = {
    5 * MS_NS, 10 * MS_NS,   25 * MS_NS, 50 * MS_NS, 100 * MS_NS, 250 * MS_NS, 500 * MS_NS,
    1 * S_NS,  2500 * MS_NS, 5 * S_NS,   10 * S_NS,  60 * S_NS,   300 * S_NS,  1800 * S_NS,
};
const int64_t meter_call_bounds[METER_BUCKETS] = {
    100 * US_NS, 250 * US_NS, 500 * US_NS, 1 * MS_NS,   2500 * US_NS, 5 * MS_NS, 10 * MS_NS,
    25 * MS_NS,  50 * MS_NS,  100 * MS_NS, 250 * MS_NS, 1 * S_NS,     5 * S_NS,  30 * S_NS,
};

static void observe(struct histogram *h, const int64_t *bounds, int64_t ns)
{
    size_t i = 0;
    if (ns < 0)
        ns = 0; /* the clocks of two machines may differ */
    while (i < METER_BUCKETS && ns > bounds[i])
        i++;
    h->bucket[i]++;
    if (__builtin_add_overflow(h->sum_ns, ns, &h->sum_ns))
        h->sum_ns = INT64_MAX;
}

static bool named(const struct meter *m, size_t i, struct str type)
{
    const char *name = m->type[i].name;
    if (type.n >= METER_NAME)
        return false;
    return memcmp(name, type.p, type.n) == 0 && name[type.n] == '\0';
}

/* Finds the type, or adds it while there is room. METER_TYPES: there is none. */
static size_t index_of(struct meter *m, struct str type)
{
    bool same_as_last = m->last < m->n_types && named(m, m->last, type);
    if (same_as_last)
        return m->last;
    if (type.n >= METER_NAME)
        return METER_TYPES;

    /* Find its slot, or a free one. Half of the slots are always free, so the search ends. */
    const size_t slots = sizeof m->slot / sizeof *m->slot;
    size_t at = (size_t)hash_end(hash_add(HASH_INIT, type)) % slots;
    while (m->slot[at] && !named(m, m->slot[at] - 1u, type))
        at = (at + 1) % slots;
    if (m->slot[at])
        return m->slot[at] - 1u;
    if (m->n_types == METER_TYPES)
        return METER_TYPES;

    memcpy(m->type[m->n_types].name, type.p, type.n); /* the rest of the name is 0 already */
    m->slot[at] = (uint8_t)(m->n_types + 1);
    return m->n_types++;
}

void meter_buried(struct meter *m, struct str type, enum burial why, int64_t n)
{
    size_t at = METER_TYPES;
    if (type.n > 0)
        at = index_of(m, type);
    m->type[at].buried[why] += n;
}

void meter_ended(struct meter *m, const struct meter_end *e)
{
    if (e->status == SINK_CANCELLED)
        return;
    m->last = index_of(m, e->type);
    m->type[m->last].ends[e->status]++;
    observe(&m->call, meter_call_bounds, e->call_ns);
    if (e->status != SINK_DELIVERED)
        return;
    int64_t age_ns;
    if (__builtin_mul_overflow(e->age_ms, MS_NS, &age_ns))
        age_ns = e->age_ms < 0 ? INT64_MIN : INT64_MAX;
    observe(&m->delivery, meter_delivery_bounds, age_ns);
}
