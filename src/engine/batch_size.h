/* batch_size.h: how many events to claim at once, and how much memory to set aside for them. The
 * number follows the sink: small batches for a slow one, so that what is in hand can soon be given
 * back, and large ones for a fast one. The memory follows what the last batches took. Nobody has to
 * tune either. */
#ifndef ENGINE_BATCH_SIZE_H
#define ENGINE_BATCH_SIZE_H

#include <stddef.h>
#include <stdint.h>

#define BATCH_BYTES ((size_t)2 * 1024 * 1024) /* ceiling on the events of one batch */
#define BATCH_BYTES_LEAST ((size_t)16 * 1024)

/* (1) Only batch_size.c writes these. (2) 1 <= n <= most.
 * (3) BATCH_BYTES_LEAST <= bytes <= BATCH_BYTES. */
struct batch_size {
    size_t n;     /* how many to claim now */
    size_t least; /* deliveries in flight at once: with fewer, the sink would not be kept busy */
    size_t most;  /* the consumer's limit; wins over least */
    size_t bytes; /* how many bytes of events to claim at most */
};

/* batch_size_init starts with 64, within the bounds of in_flight and most. */
void batch_size_init(struct batch_size *b, size_t in_flight, size_t most);
/* batch_size_start_small is for a worker whose first batch may be of all lanes: it starts with 8,
 * because others that come to share the lanes wait for that batch. */
void batch_size_start_small(struct batch_size *b);
/* batch_size_tune learns from a batch of `got` events that was settled `took` ns after it was
 * claimed. */
void batch_size_tune(struct batch_size *b, size_t got, int64_t took);
/* batch_size_took learns that a batch took so many bytes of memory. The next may have twice as
 * many, since batches grow by doubling, and at least half as many as this one might: batches of
 * retries are small, and come between large ones. */
void batch_size_took(struct batch_size *b, size_t bytes);
/* batch_size_halve follows a batch that was not finished in time. batch_size_one claims events one
 * by one, to tell them apart. Both may go below `least`. */
void batch_size_halve(struct batch_size *b);
void batch_size_one(struct batch_size *b);

#endif
