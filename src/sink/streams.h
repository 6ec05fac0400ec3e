/* streams.h: the streams a sink writes to, and the last id in each: the high-water marks. */
#ifndef SINK_STREAMS_H
#define SINK_STREAMS_H

#include <stdbool.h>

#include "event/event.h"

/* A stream. (1) flying counts the events in flight to it; while there are any, it is kept. (2) hi
 * and lo are the mark, the last id assigned. (3) dirty: the mark has moved since it was last
 * recorded. */
struct stream {
    struct stream *next, *next_dirty;
    size_t flying;
    bool dirty;
    int64_t hi, lo;
    unsigned plain; /* events still to append one by one before the next script */
    size_t n;
    char name[]; /* followed by a NUL */
};

/* (1) The buckets hold `count` streams; n_dirty of them are in the list starting at `dirty`. (2)
 * Once there are many, those that are neither flying nor dirty are dropped: the store has their
 * marks. */
struct streams {
    struct stream **bucket;
    size_t count, n_dirty;
    struct stream *dirty;
    struct hwm *list; /* what streams_dirty returns */
    size_t list_cap;
};

/* streams_init returns -1 if out of memory. */
int streams_init(struct streams *s);
void streams_release(struct streams *s);

/* streams_get finds or adds the stream of that name; NULL if out of memory. It stays valid while it
 * is flying or dirty, and until the next call of streams_get. */
struct stream *streams_get(struct streams *s, struct str name);
/* streams_note moves the mark if the id hi-lo is past it. */
void streams_note(struct streams *s, struct stream *st, int64_t hi, int64_t lo);
/* streams_dirty lists the marks that have moved since streams_kept, and returns how many; none if
 * out of memory. The list is borrowed until the next call. */
size_t streams_dirty(struct streams *s, const struct hwm **ret);
/* streams_kept confirms that the marks listed last are recorded. */
void streams_kept(struct streams *s);

#endif
