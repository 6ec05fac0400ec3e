/* schedule.h: when a pipeline does what nobody tells it to do: look for work, listen for the bell,
 * ask a store again that was away, give up a drain. Nothing here reads a clock: every time is
 * monotonic, in ns, and comes from the caller. */
#ifndef ENGINE_SCHEDULE_H
#define ENGINE_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

/* (1) Only schedule.c writes these. (2) deaf_until matters only while look_at lies ahead. (3)
 *   store_at lies ahead while the
 * store is left alone. (4) drain_by never moves back. */
struct schedule {
    int64_t look_at;     /* when to ask the store for work; 0: at once */
    int64_t deaf_until;  /* until then the bell is ignored */
    int64_t store_at;    /* no request before; 0: at once */
    int64_t store_delay; /* how long it was left alone last; 0: it has answered since */
    /* what is with the sink by then is cancelled; CLOCK_NEVER: nobody drains */
    int64_t drain_by;
};

/* schedule_init: look at once, and drain never. */
void schedule_init(struct schedule *s);

/* schedule_look_now asks for a look as soon as there is room for work. schedule_rest puts the next
 * look off by `wait` and listens for the bell until then; `crowded` means that another worker has
 * what we want: then neither the bell nor a shorter wait brings the look forward to less than 50
 * ms. schedule_look_by brings it forward, if it would come later. */
void schedule_look_now(struct schedule *s);
void schedule_rest(struct schedule *s, int64_t now, int64_t wait, bool crowded);
void schedule_look_by(struct schedule *s, int64_t at);
/* schedule_ring is schedule_look_now by somebody who knows better: the store is asked even if it
 * was left alone. */
void schedule_ring(struct schedule *s);

/* schedule_look_due says whether it is time to look. schedule_listens says whether the bell counts
 * now. schedule_look_wake is when to wake up for either. */
bool schedule_look_due(const struct schedule *s, int64_t now);
bool schedule_listens(const struct schedule *s, int64_t now);
int64_t schedule_look_wake(const struct schedule *s, int64_t now);

/* schedule_store_failed leaves the store alone for a while, which doubles with every failure in a
 * row from 100 ms to 5 s, and returns for how long. schedule_store_pause leaves it alone for 200 ms
 * and counts no failure. schedule_store_back says that it has answered. schedule_store_away says
 * whether it is being left alone. */
int64_t schedule_store_failed(struct schedule *s, int64_t now);
void schedule_store_pause(struct schedule *s, int64_t now);
void schedule_store_back(struct schedule *s);
bool schedule_store_away(const struct schedule *s, int64_t now);

/* schedule_drain sets the end of a drain, unless it is to end sooner already. schedule_drain_over
 * says whether it has come. */
void schedule_drain(struct schedule *s, int64_t deadline);
bool schedule_drain_over(const struct schedule *s, int64_t now);

/* schedule_wake adjusts the time a pipeline wants to wake up at: what is due while the store is
 * left alone waits for it. */
int64_t schedule_wake(const struct schedule *s, int64_t now, int64_t at);

#endif
