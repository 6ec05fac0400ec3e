/* circuit.h: leaves a sink that is down alone, probes it now and then, and comes back gently. */
#ifndef ENGINE_CIRCUIT_H
#define ENGINE_CIRCUIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rng.h"

/* (1) until != 0 if and only if the circuit is open.
 * (2) window is how many deliveries may be in flight. It is 1 while probing (or what circuit_probes
 *     says) and doubles with every success; from CIRCUIT_FULL on there is no limit. */
struct circuit {
    int64_t until;    /* no delivery starts before this time, monotonic ns */
    int64_t delay_ms; /* the last wait, before jitter; 0: the sink has proved itself since */
    size_t window;
};

#define CIRCUIT_FULL 1024

void circuit_init(struct circuit *c);
/* circuit_room returns how many more deliveries may start now, while `inflight` are under way. */
size_t circuit_room(struct circuit *c, int64_t now, size_t inflight);
/* circuit_down notes that the sink is down. Returns whether that opened the circuit. Waits grow
 * from 100 ms to 30 s, or are as long as the sink asked for, if that is longer. */
bool circuit_down(struct circuit *c, int64_t now, int64_t retry_after_ms, struct rng *r);
/* circuit_probes lets up to n deliveries start when the next probe is due, as long as the waits are
 * short. Call it right after circuit_down. */
void circuit_probes(struct circuit *c, size_t n);
/* circuit_up notes that a delivery got through. Returns whether the circuit was open. */
bool circuit_up(struct circuit *c);
static inline bool circuit_open(const struct circuit *c)
{
    return c->until != 0;
}

#endif
