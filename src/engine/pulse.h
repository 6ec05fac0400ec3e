/* pulse.h: what a pipeline says about the call it is in, where the sink works in the pipeline's own
 * thread (handlers), so that somebody else can extend its claim meanwhile. All of it may be read at
 * any time, from any thread. */
#ifndef ENGINE_PULSE_H
#define ENGINE_PULSE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct pulse {
    _Atomic int64_t started; /* monotonic; 0: it is in no call */
    _Atomic int64_t epoch;   /* of the claim */
    _Atomic int64_t
        /* monotonic: when the claim runs out. Who extends it moves this, unless the claim
         * changed */
        deadline;
    atomic_bool frozen; /* no claim can run out now, nor be extended (STORE_ONE_WRITER) */
};

static inline void pulse_begin(struct pulse *u, int64_t epoch, int64_t deadline, int64_t now)
{
    atomic_store_explicit(&u->epoch, epoch, memory_order_relaxed);
    atomic_store_explicit(&u->deadline, deadline, memory_order_relaxed);
    atomic_store_explicit(&u->started, now, memory_order_release);
}

/* pulse_end returns when the claim runs out now. */
static inline int64_t pulse_end(struct pulse *u)
{
    atomic_store_explicit(&u->started, 0, memory_order_relaxed);
    return atomic_load_explicit(&u->deadline, memory_order_acquire);
}

#endif
