/* schedule.h: the timers of a pipeline: when it looks for work, reacts to wake-ups, retries a
 * failed store, gives up a drain. Nothing here reads a clock: every time is monotonic, in ns, and
 * comes from the caller. */
#ifndef ENGINE_SCHEDULE_H
#define ENGINE_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/num.h"

#define TAKEN_WAIT (50 * MS_NS) /* between looks while another worker has the lane */
#define STORE_WAIT_MIN (100 * MS_NS)
#define STORE_WAIT_MAX (5000 * MS_NS)
#define STORE_PAUSE (200 * MS_NS)

/* (1) Only the functions below write these.
 * (2) ignore_until matters only while look_at lies ahead.
 * (3) store_at lies ahead during the store's backoff.
 * (4) drain_by only ever moves to an earlier time. */
struct schedule {
    int64_t look_at;      /* when to ask the store for work; 0: at once */
    int64_t ignore_until; /* wake-ups are ignored until then */
    int64_t store_at;     /* end of the store's backoff; 0: none */
    int64_t store_delay;  /* last backoff; 0: the store has answered since */
    int64_t drain_by;     /* when deliveries in flight are cancelled; CLOCK_NEVER: no drain */
};

/* schedule_init starts with a look at once, and no drain. */
static inline void schedule_init(struct schedule *s)
{
    *s = (struct schedule){.drain_by = CLOCK_NEVER};
}

/* ---- looking for work ---- */

/* schedule_look_now makes a look due at once. */
static inline void schedule_look_now(struct schedule *s)
{
    s->look_at = 0;
    s->ignore_until = 0;
}

/* schedule_rest makes the next look due in `wait`, or at a wake-up. `lane_taken`: another worker
 * has the lane. Every commit of that worker is a wake-up, and each look would find the lane taken,
 * so the next look is at least 50 ms away, wake-up or not. */
static inline void schedule_rest(struct schedule *s, int64_t now, int64_t wait, bool lane_taken)
{
    s->ignore_until = 0;
    if (lane_taken) {
        wait = max_i64(wait, TAKEN_WAIT);
        s->ignore_until = now + TAKEN_WAIT;
    }
    s->look_at = now + wait;
}

/* schedule_woken makes a look due at once, and ends the store's backoff. */
static inline void schedule_woken(struct schedule *s)
{
    schedule_look_now(s);
    s->store_at = 0;
}

/* schedule_look_due returns whether a look is due, schedule_listens whether wake-ups count now.
 * schedule_look_wake returns when either will change. */
static inline bool schedule_look_due(const struct schedule *s, int64_t now)
{
    return now >= s->look_at;
}

static inline bool schedule_listens(const struct schedule *s, int64_t now)
{
    return now >= s->ignore_until;
}

static inline int64_t schedule_look_wake(const struct schedule *s, int64_t now)
{
    bool ignored_first = now < s->ignore_until && s->ignore_until < s->look_at;
    return ignored_first ? s->ignore_until : s->look_at;
}

/* ---- the store's backoff ---- */

/* schedule_store_failed starts a backoff and returns its length: 100 ms, doubled with each failure
 * in a row, up to 5 s. */
static inline int64_t schedule_store_failed(struct schedule *s, int64_t now)
{
    int64_t delay = max_i64(2 * s->store_delay, STORE_WAIT_MIN);
    s->store_delay = min_i64(delay, STORE_WAIT_MAX);
    s->store_at = now + s->store_delay;
    return s->store_delay;
}

/* schedule_store_pause backs off for 200 ms without counting a failure. */
static inline void schedule_store_pause(struct schedule *s, int64_t now)
{
    s->store_at = now + STORE_PAUSE;
}

/* schedule_store_back notes that the store has answered. */
static inline void schedule_store_back(struct schedule *s)
{
    s->store_at = 0;
    s->store_delay = 0;
}

/* schedule_store_away returns whether a backoff is running. */
static inline bool schedule_store_away(const struct schedule *s, int64_t now)
{
    return now < s->store_at;
}

/* schedule_wake_at returns when a pipeline that wants to wake up at `at` should do so. During the
 * store's backoff, work that is already due can only be waiting for the store. */
static inline int64_t schedule_wake_at(const struct schedule *s, int64_t now, int64_t at)
{
    bool waits_for_store = schedule_store_away(s, now) && (at <= now || s->store_at < at);
    return waits_for_store ? s->store_at : at;
}

/* ---- the drain ---- */

/* schedule_drain sets the deadline of a drain, unless an earlier one is set. */
static inline void schedule_drain(struct schedule *s, int64_t deadline)
{
    s->drain_by = min_i64(s->drain_by, deadline);
}

/* schedule_drain_over returns whether the deadline has passed. */
static inline bool schedule_drain_over(const struct schedule *s, int64_t now)
{
    return now >= s->drain_by;
}

#endif
