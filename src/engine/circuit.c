#include "engine/circuit.h"

#include "base/clock.h"

#define DELAY_MIN_MS 100
#define DELAY_MAX_MS 30000
#define PROBES_MS 2000 /* with delays up to this there may be several probes at once */

void circuit_init(struct circuit *c)
{
    *c = (struct circuit){.window = CIRCUIT_FULL};
}

size_t circuit_room(struct circuit *c, int64_t now, size_t inflight)
{
    if (c->until && now < c->until)
        return 0;
    if (c->window >= CIRCUIT_FULL)
        return SIZE_MAX;
    return c->window > inflight ? c->window - inflight : 0;
}

bool circuit_down(struct circuit *c, int64_t now, int64_t retry_after_ms, struct rng *r)
{
    if (c->until && now < c->until)
        return false; /* one of many that were in flight */
    bool opened = c->until == 0;
    c->delay_ms = c->delay_ms ? c->delay_ms * 2 : DELAY_MIN_MS;
    if (c->delay_ms > DELAY_MAX_MS)
        c->delay_ms = DELAY_MAX_MS;
    int64_t wait = c->delay_ms / 2 + (int64_t)rng_below(r, (uint64_t)c->delay_ms / 2 + 1);
    if (retry_after_ms > wait)
        wait = retry_after_ms;
    c->until = now + wait * MS_NS;
    c->window = 1;
    return opened;
}

void circuit_probes(struct circuit *c, size_t n)
{
    if (c->until && c->window == 1 && c->delay_ms <= PROBES_MS)
        c->window = n;
}

bool circuit_up(struct circuit *c)
{
    bool was_down = c->until != 0;
    c->until = 0;
    if (c->window < CIRCUIT_FULL)
        c->window *= 2;
    /* the next outage begins with a long wait unless the sink has proved itself */
    if (c->window >= CIRCUIT_FULL)
        c->delay_ms = 0;
    return was_down;
}
