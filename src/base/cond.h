/* cond.h: condition variables that time out by the monotonic clock, which cannot be set. */
#ifndef BASE_COND_H
#define BASE_COND_H

#include <pthread.h>
#include <time.h>

#include "base/clock.h"

static inline void cond_init(pthread_cond_t *c)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(c, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

/* cond_wait waits until `until`, in ns of clock_system; CLOCK_NEVER: indefinitely. Spurious
 * wake-ups are possible, as with pthread_cond_wait. */
static inline void cond_wait(pthread_cond_t *c, pthread_mutex_t *locked, int64_t until)
{
    struct timespec ts = {until / 1000000000, until % 1000000000};
    if (until == CLOCK_NEVER)
        pthread_cond_wait(c, locked);
    else
        pthread_cond_timedwait(c, locked, &ts);
}

#endif
