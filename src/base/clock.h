/* clock.h: the only source of time, so that a simulator can substitute its own. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define MS_NS INT64_C(1000000)
#define CLOCK_NEVER INT64_MAX

/* A source of time: a monotonic clock for deadlines, and a wall clock for people. */
struct clock {
    int64_t (*mono_ns)(void *ctx); /* never runs backwards; used for deadlines */
    int64_t (*wall_ms)(void *ctx); /* milliseconds since 1970; "now" of a store without a server */
    void *ctx;
    int64_t (*wall_ns)(void *ctx); /* wall_ms in nanoseconds; NULL: whole milliseconds only */
    /* Milliseconds since boot, which nothing can set; NULL: unknown. */
    int64_t (*boot_ms)(void *ctx);
};

/* clock_system is the machine's own clock. Any thread. */
extern const struct clock clock_system;

static inline int64_t clock_mono(const struct clock *c)
{
    return c->mono_ns(c->ctx);
}

static inline int64_t clock_wall(const struct clock *c)
{
    return c->wall_ms(c->ctx);
}

static inline int64_t clock_wall_ns(const struct clock *c)
{
    if (c->wall_ns)
        return c->wall_ns(c->ctx);
    return clock_wall(c) * MS_NS;
}

/* clock_boot returns a number identifying the boot that boot_ms counts from: processes with the
 * same number share boot_ms. 0 if unknown. */
int64_t clock_boot(const struct clock *c);

/* clock_since returns how long ago `then` was, in the unit of both. The result saturates, because
 * times read from a database may have any value. */
static inline int64_t clock_since(int64_t now, int64_t then)
{
    int64_t span;
    if (!__builtin_sub_overflow(now, then, &span))
        return span;
    return then < 0 ? INT64_MAX : INT64_MIN;
}

#define CLOCK_RFC3339_SIZE 32

/* clock_rfc3339 writes 2026-01-02T03:04:05.678Z (always UTC, always milliseconds) and returns its
 * length. */
size_t clock_rfc3339(int64_t wall_ms, char out[CLOCK_RFC3339_SIZE]);

/* ---- condition variables ---- */

/* cond_init makes a condition variable that times out by the monotonic clock, which cannot be set.
 */
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
