/* batch_size.h: how many events to claim at once. It follows the sink: what a slow one has in hand
 * can soon be given back, and a fast one is asked to take much at a time; nobody has to tune it. */
#ifndef ENGINE_BATCH_SIZE_H
#define ENGINE_BATCH_SIZE_H

#include <stddef.h>
#include <stdint.h>

/* (1) Only batch_size.c writes these. (2) 1 <= n <= most. */
struct batch_size {
    size_t n;
    /* with fewer the sink could not have in flight what it was told to; but never more than most */
    size_t least;
    size_t most;
};

/* batch_size_init starts with 64, or as many as may be in flight, or at the most. */
void batch_size_init(struct batch_size *b, size_t in_flight, size_t most);
/* batch_size_tune learns from a batch of `got` events that was settled `took` ns after it was
 * claimed. */
void batch_size_tune(struct batch_size *b, size_t got, int64_t took);
/* batch_size_halve: a batch was not finished in its time. batch_size_one: events have to be told
 * apart. Neither minds `least`. */
void batch_size_halve(struct batch_size *b);
void batch_size_one(struct batch_size *b);

#endif
