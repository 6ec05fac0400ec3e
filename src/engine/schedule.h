/* schedule.h: the timers of a pipeline: when it looks for work, reacts to wake-ups, retries a
 * failed store, gives up a drain. Nothing here reads a clock: every time is monotonic, in ns, and
 * comes from the caller. */
#ifndef ENGINE_SCHEDULE_H
#define ENGINE_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

/* (1) Only schedule.c writes these.
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
void schedule_init(struct schedule *s);

/* schedule_look_now makes a look due at once. */
void schedule_look_now(struct schedule *s);
/* schedule_rest makes the next look due in `wait`, or at a wake-up. `lane_taken` means that another
 * worker has the lane: then the next look is at least 50 ms away, wake-up or not. */
void schedule_rest(struct schedule *s, int64_t now, int64_t wait, bool lane_taken);
/* schedule_woken makes a look due at once, and ends the store's backoff.
 */
void schedule_woken(struct schedule *s);

/* schedule_look_due returns whether a look is due, schedule_listens whether wake-ups count now.
 * schedule_look_wake returns when either will change. */
bool schedule_look_due(const struct schedule *s, int64_t now);
bool schedule_listens(const struct schedule *s, int64_t now);
int64_t schedule_look_wake(const struct schedule *s, int64_t now);

/* schedule_store_failed starts a backoff for the store and returns its length: 100 ms, doubled with
 * each failure in a row, up to 5 s. schedule_store_pause backs off for 200 ms without counting a
 * failure. schedule_store_back notes that it has answered. schedule_store_away returns whether a
 * backoff is running. */
int64_t schedule_store_failed(struct schedule *s, int64_t now);
void schedule_store_pause(struct schedule *s, int64_t now);
void schedule_store_back(struct schedule *s);
bool schedule_store_away(const struct schedule *s, int64_t now);

/* schedule_drain sets the deadline of a drain, unless an earlier one is set. schedule_drain_over
 * returns whether it has passed. */
void schedule_drain(struct schedule *s, int64_t deadline);
bool schedule_drain_over(const struct schedule *s, int64_t now);

/* schedule_wake_at returns when a pipeline that wants to wake up at `at` should do so. During the
 * store's backoff, work that is already due can only be waiting for the store. */
int64_t schedule_wake_at(const struct schedule *s, int64_t now, int64_t at);

#endif
