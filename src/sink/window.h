/* window.h: the deliveries in flight of a sink that may have many: their age, exactly one result
 * for each, and the high-water marks of their streams. */
#ifndef SINK_WINDOW_H
#define SINK_WINDOW_H

#include "sink/sink.h"

/* A stream that a sink writes to. (1) `in_flight` counts the events in flight to this stream, which
 * is kept until the count is 0. (2) `hi` and `lo` are the high-water mark: the last id assigned.
 * (3) `dirty`: the mark has moved since it was last recorded. */
struct stream {
    struct stream *next, *next_dirty;
    size_t in_flight;
    bool dirty;
    int64_t hi, lo;
    unsigned plain; /* number of events to append one by one before the next script */
    size_t n;
    char name[]; /* followed by a NUL */
};

/* (1) The buckets hold `count` streams; `n_dirty` of them are in the list that begins at `dirty`.
 * (2) Above a limit, idle streams that are not dirty are dropped: the store has their marks. */
struct window_marks {
    struct stream **bucket;
    size_t count, n_dirty;
    struct stream *dirty;
    struct hwm *list; /* returned by window_marks_list */
    size_t list_cap;
};

/* window_marks_init returns -1 if out of memory. */
int window_marks_init(struct window_marks *s);
void window_marks_release(struct window_marks *s);

/* window_marks_get finds or adds the stream with this name; returns NULL if out of memory. The
 * stream stays valid while it is in flight or dirty, and until the next call to
 * window_marks_get. */
struct stream *window_marks_get(struct window_marks *s, struct str name);
/* window_marks_advance moves the mark to the id hi-lo if this id is higher. */
void window_marks_advance(struct window_marks *s, struct stream *st, int64_t hi, int64_t lo);
/* window_marks_list lists the marks that have moved since window_marks_recorded and returns their
 * number; 0 if out of memory. The list is borrowed until the next call. */
size_t window_marks_list(struct window_marks *s, const struct hwm **ret);
/* window_marks_recorded confirms that the marks of the last list are recorded. */
void window_marks_recorded(struct window_marks *s);

/* An event in flight, or another request that awaits a reply (d == NULL). It is the first member of
 * the sink's own struct. */
struct in_flight {
    struct in_flight *prev, *next; /* a free struct uses only `next` */
    struct delivery *d;
    struct stream *mark; /* the high-water mark that the event moves; may be NULL */
    int64_t since;       /* when it was accepted */
    size_t bytes;        /* size of the event */
};

/* (1) first..last are in order of acceptance, and thus of their deadlines; `count` is their number,
 * `events` the number of those with a delivery, `bytes` their total size. (2) count <= max. (3) A
 * delivery gets exactly one result, from window_end, which removes it. (4) `suspect` is the event
 * that was alone in flight when connections ended, with the number of consecutive connections. */
struct window {
    struct sink *sk;
    struct in_flight *first, *last, *free;
    size_t count, events, bytes, max;
    char *items; /* of `size` bytes each; memory beyond the first `used` is untouched */
    size_t size, used;
    struct {
        int64_t seq;
        int cuts;
    } suspect;
};

/* window_init allocates `max` zeroed structs of `size` bytes. Errors: ERR_NOMEM. */
int window_init(struct window *w, struct sink *sk, size_t max, size_t size, struct error *err);
void window_release(struct window *w);

/* window_add appends a delivery, or a request if d is NULL, to a window that has room. The sink
 * then sets the struct's other fields. */
struct in_flight *window_add(struct window *w, struct delivery *d, struct stream *mark);
/* window_remove removes a request, or an event that moves to another window, without a result. */
void window_remove(struct window *w, struct in_flight *f);
/* window_end removes an event and reports its result. */
void window_end(struct window *w, struct in_flight *f, const struct sink_result *r);
/* window_end_all ends all events in order, with the same result, and removes requests. */
void window_end_all(struct window *w, const struct sink_result *r);

/* window_due returns when the oldest entry exceeds the time limit of a delivery; CLOCK_NEVER if the
 * window is empty or no limit is set. */
int64_t window_due(const struct window *w);
/* window_blame records that an established connection ended while only this event was in flight.
 * Returns whether the event is the likely reason, which it is the third time in a row. Every
 * suspect is eventually alone: after a failure the circuit lets events through one at a time. */
bool window_blame(struct window *w, const struct event *ev);
/* window_describe fills in the fields about unconfirmed events. */
void window_describe(const struct window *w, struct sink_broker *ret);

#endif
