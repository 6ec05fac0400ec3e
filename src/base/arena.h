/* arena.h: memory that is released all at once, and lists that grow. There is one arena per batch;
 * nothing in it outlives the batch. Not thread-safe. */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stdlib.h>

#include "base/str.h"

struct arena_block;

/* (1) used <= limit. (2) Only the largest block is kept across arena_reset. (3) used <= held. */
struct arena {
    struct arena_block *head;
    size_t used;  /* bytes handed out since the last reset */
    size_t held;  /* bytes of all blocks, in use or not */
    size_t limit; /* ceiling for `used`; 0 means none */
};

/* arena_init makes an empty arena. It allocates nothing. */
void arena_init(struct arena *a, size_t limit);

/* arena_release frees everything; the arena is then empty and can be reused. */
void arena_release(struct arena *a);

/* arena_reset releases all allocations and keeps the largest block for reuse. */
void arena_reset(struct arena *a);

/* arena_alloc returns n bytes, aligned for any type and not zeroed; NULL when out of memory or past
 * the limit. */
void *arena_alloc(struct arena *a, size_t n) __attribute__((warn_unused_result));

/* arena_zalloc returns count * size zeroed bytes; NULL as for arena_alloc, and if the product
 * overflows. */
void *arena_zalloc(struct arena *a, size_t count, size_t size) __attribute__((warn_unused_result));

/* arena_raw returns n bytes for text, neither aligned nor zeroed; NULL as for arena_alloc. */
char *arena_raw(struct arena *a, size_t n) __attribute__((warn_unused_result));

/* arena_grow makes room for one more element, zeroed, after the n elements of a list that has grown
 * this way only (NULL if n is 0). It returns the list, which may have moved; NULL as for
 * arena_alloc. The capacity doubles whenever n is a power of two and is not stored. */
void *arena_grow(struct arena *a, void *list, size_t n, size_t size)
    __attribute__((warn_unused_result));

/* arena_bytes copies n bytes, unaligned, and appends a NUL; NULL as for arena_alloc. */
char *arena_bytes(struct arena *a, const void *p, size_t n) __attribute__((warn_unused_result));

/* array_grow makes room for one more element after the n elements of a list, each of `size` bytes.
 * It returns the list, which may have moved, or NULL when out of memory, with the list unchanged.
 * The capacity is not stored, so a list must not be grown in any other way. */
static inline void *array_grow(void *list, size_t n, size_t size)
{
    bool full = (n & (n - 1)) == 0;
    if (!full)
        return list;
    return reallocarray(list, n > 0 ? 2 * n : 1, size);
}

#endif
