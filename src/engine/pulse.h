/* pulse.h: which handler call a pipeline is in. Handlers work in the pipeline's own thread, so
 * another thread (see heart.h) extends its claim meanwhile. Any thread may read a pulse at any
 * time. */
#ifndef ENGINE_PULSE_H
#define ENGINE_PULSE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct pulse {
    _Atomic int64_t started;  /* when the call began, monotonic; 0: there is none */
    _Atomic int64_t epoch;    /* of the claim */
    _Atomic int64_t deadline; /* when the claim expires, monotonic; whoever extends it moves this */
    atomic_bool frozen; /* claims can neither expire nor be extended now: see pipeline_frozen */
};

/* pulse_begin notes that a call begins, under the claim `epoch`. */
static inline void pulse_begin(struct pulse *u, int64_t epoch, int64_t deadline, int64_t now)
{
    atomic_store_explicit(&u->epoch, epoch, memory_order_relaxed);
    atomic_store_explicit(&u->deadline, deadline, memory_order_relaxed);
    atomic_store_explicit(&u->started, now, memory_order_release);
}

/* pulse_end notes that the call has ended, and returns when the claim expires by now. */
static inline int64_t pulse_end(struct pulse *u)
{
    atomic_store_explicit(&u->started, 0, memory_order_relaxed);
    return atomic_load_explicit(&u->deadline, memory_order_acquire);
}

#endif
