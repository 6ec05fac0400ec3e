/* array.h: lists that grow by one element at a time. */
#ifndef BASE_ARRAY_H
#define BASE_ARRAY_H

#include <stdbool.h>
#include <stdlib.h>

/* array_grow makes room for one more element after the n elements of a list, each of `size` bytes.
 * It returns the list, which may have moved, or NULL when out of memory, with the list unchanged.
 * The capacity doubles whenever n is a power of two and is not stored; a list that grows this way
 * must not be grown in any other. */
static inline void *array_grow(void *list, size_t n, size_t size)
{
    bool full = (n & (n - 1)) == 0;
    if (!full)
        return list;
    return reallocarray(list, n > 0 ? 2 * n : 1, size);
}

#endif
