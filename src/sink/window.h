/* window.h: the deliveries in flight of a sink that has many: their age, and reporting exactly one
 * result for each. */
#ifndef SINK_WINDOW_H
#define SINK_WINDOW_H

#include "sink/sink.h"
#include "sink/streams.h"

/* An event in flight, or another request that awaits a reply (d == NULL). It comes first in the
 * sink's own struct. */
struct flight {
    struct flight *prev, *next; /* in a free one, only next */
    struct delivery *d;
    struct stream *mark; /* the high-water mark that the event moves; may be NULL */
    int64_t since;       /* when it was accepted */
    size_t bytes;        /* size of the event */
};

/* What is in flight. (1) first..last are in the order they were accepted, which is that of their
 * deadlines; there are `count` of them, `events` with a delivery, `bytes` in total. (2) At most
 * `max` are in it. (3) A delivery in it gets exactly one result, by window_end, which removes it.
 * (4) suspect: the event that was alone in flight when connections ended, and how many it has cost
 * in a row. */
struct window {
    struct sink *sk;
    struct flight *first, *last, *free;
    size_t count, events, bytes, max;
    char *items; /* of `size` bytes each; memory beyond the first `used` was never touched */
    size_t size, used;
    struct {
        int64_t seq;
        int cuts;
    } suspect;
};

/* window_init makes room for `max` structs of `size` bytes, zeroed. ERR_NOMEM. */
int window_init(struct window *w, struct sink *sk, size_t max, size_t size, struct error *err);
void window_release(struct window *w);

/* window_take adds a delivery, or with NULL a request, at the end of a window that has room. The
 * sink sets its own fields of the struct. */
struct flight *window_take(struct window *w, struct delivery *d, struct stream *mark);
/* window_drop removes one without a result: a request, or an event that moves elsewhere. */
void window_drop(struct window *w, struct flight *f);
/* window_end removes an event and reports its result. */
void window_end(struct window *w, struct flight *f, const struct sink_result *r);
/* window_end_all does so for everything in it, in order, and drops requests. */
void window_end_all(struct window *w, const struct sink_result *r);

/* window_due returns when the oldest exceeds the time limit of a delivery; CLOCK_NEVER: window
 * empty, or no limit. */
int64_t window_due(const struct window *w);
/* window_blame is called when an established connection has ended while only this event was in
 * flight. Returns whether the event is the likely reason: after three times in a row. It does get
 * to be alone: after a failure the circuit lets single events through. */
bool window_blame(struct window *w, const struct event *ev);
/* window_describe fills in the unconfirmed events. */
void window_describe(const struct window *w, struct sink_broker *ret);

#endif
