/* call_progress.h: which handler call a pipeline is in. Handlers work in the pipeline's own thread,
 * so another one (lease_renewer.h) extends its claim meanwhile. Any thread may read it at any
 * time. */
#ifndef ENGINE_CALL_PROGRESS_H
#define ENGINE_CALL_PROGRESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct call_progress {
    _Atomic int64_t started;  /* when the call began, monotonic; 0: there is none */
    _Atomic int64_t epoch;    /* of the claim */
    _Atomic int64_t deadline; /* when the claim expires, monotonic; moved when it is extended */
    atomic_bool frozen; /* claims can neither expire nor be extended now: see pipeline_frozen */
};

/* call_progress_begin notes that a call begins, under the claim `epoch`. */
static inline void call_progress_begin(struct call_progress *c, int64_t epoch, int64_t deadline,
                                       int64_t now)
{
    atomic_store_explicit(&c->epoch, epoch, memory_order_relaxed);
    atomic_store_explicit(&c->deadline, deadline, memory_order_relaxed);
    atomic_store_explicit(&c->started, now, memory_order_release);
}

/* call_progress_end notes that the call has ended, and returns when the claim expires by now. */
static inline int64_t call_progress_end(struct call_progress *c)
{
    atomic_store_explicit(&c->started, 0, memory_order_relaxed);
    return atomic_load_explicit(&c->deadline, memory_order_acquire);
}

#endif
