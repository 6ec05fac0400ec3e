/* streams.h: the streams a sink writes to, and the last id it got in each: the high-water marks. */
#ifndef SINK_STREAMS_H
#define SINK_STREAMS_H

#include <stdbool.h>

#include "event/hwm.h"

/* (1) flying counts the events on their way to it; while there are any, it stays. (2) dirty: the
 *   mark has moved since it was
 * last kept. */
struct stream {
    struct stream *next, *next_dirty;
    size_t flying;
    bool dirty;
    int64_t hi, lo;
    int64_t refused_since; /* monotonic: nothing could be added since then; 0: it can */
    size_t n;
    char name[]; /* with a NUL behind it */
};

/* (1) count streams in the buckets; n_dirty of them are in the list that begins with dirty. (2)
 *   Once there are many, those that are neither flying nor dirty
 * are forgotten: the store has their marks. */
struct streams {
    struct stream **bucket;
    size_t count, n_dirty;
    struct stream *dirty;
    struct hwm *list;
    size_t list_cap;
};

int streams_init(struct streams *s);
void streams_release(struct streams *s);

/* streams_get finds or makes the stream of that name; NULL when out of memory. */
struct stream *streams_get(struct streams *s, struct str name);
/* streams_note moves the mark, if the id is past it. */
void streams_note(struct streams *s, struct stream *st, int64_t hi, int64_t lo);
/* streams_dirty lists the marks that moved since streams_kept; borrowed until the next call. */
size_t streams_dirty(struct streams *s, const struct hwm **ret);
void streams_kept(struct streams *s);

#endif
