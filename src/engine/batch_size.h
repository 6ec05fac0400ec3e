/* batch_size.h: how many events to claim at once. The number follows the sink: small batches for a
 * slow one, so that what is in hand can soon be given back, and large ones for a fast one. Nobody
 * has to tune it. */
#ifndef ENGINE_BATCH_SIZE_H
#define ENGINE_BATCH_SIZE_H

#include <stddef.h>
#include <stdint.h>

/* (1) Only batch_size.c writes these. (2) 1 <= n <= most. */
struct batch_size {
    size_t n;     /* how many to claim now */
    size_t least; /* deliveries in flight at once: with fewer, the sink would not be kept busy */
    size_t most;  /* the consumer's limit; wins over least */
};

/* batch_size_init starts with 64, within the bounds of in_flight and most. */
void batch_size_init(struct batch_size *b, size_t in_flight, size_t most);
/* batch_size_tune learns from a batch of `got` events that was settled `took` ns after it was
 * claimed. */
void batch_size_tune(struct batch_size *b, size_t got, int64_t took);
/* batch_size_halve follows a batch that was not finished in time. batch_size_one claims events one
 * by one, to tell them apart. Both may go below `least`. */
void batch_size_halve(struct batch_size *b);
void batch_size_one(struct batch_size *b);

#endif
