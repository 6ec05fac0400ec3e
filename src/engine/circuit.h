/* circuit.h: leaves a sink that is down in peace, asks now and then, and comes back gently. */
#ifndef ENGINE_CIRCUIT_H
#define ENGINE_CIRCUIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rng.h"

/* (1) until != 0 if and only if the circuit is open. (2) window is how many deliveries may be in
 *   flight; it is 1 while
 * probing (or what circuit_probes says), doubles with every success, and past CIRCUIT_FULL there is
 * no limit. */
struct circuit {
    int64_t until;    /* monotonic ns: no delivery before */
    int64_t delay_ms; /* of the last opening */
    size_t window;
};

#define CIRCUIT_FULL 1024

void circuit_init(struct circuit *c);
/* circuit_room says how many more deliveries may start now, `inflight` of them being under way. */
size_t circuit_room(struct circuit *c, int64_t now, size_t inflight);
/* circuit_down notes that the sink was away; returns whether that opened the circuit (it was not
 * open yet). Waits grow from 100 ms to 30 s, or are what the other side asked for, if longer. */
bool circuit_down(struct circuit *c, int64_t now, int64_t retry_after_ms, struct rng *r);
/* circuit_probes has up to n deliveries started at once when the next probe is due, as long as the
 * sink is down only for seconds. Right behind circuit_down. */
void circuit_probes(struct circuit *c, size_t n);
/* circuit_up notes a delivery that got through to the sink; returns whether it had been down. */
bool circuit_up(struct circuit *c);
static inline bool circuit_open(const struct circuit *c)
{
    return c->until != 0;
}

#endif
