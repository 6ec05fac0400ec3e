/* num.h: the smaller and the larger of two numbers; decimal numbers of any length. */
#ifndef BASE_NUM_H
#define BASE_NUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

static inline int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* num_push appends a digit to *v: *v = *v * 10 + digit. The digit of a negative number is negative.
 * Returns false, with *v undefined, on overflow. */
static inline bool num_push(int64_t *v, int digit)
{
    return !__builtin_mul_overflow(*v, 10, v) && !__builtin_add_overflow(*v, digit, v);
}

/* num_equal returns whether two JSON numbers have the same value: 1.50 equals 15e-1. num_int
 * converts one that is an integer and fits; otherwise it returns false and leaves *ret untouched.
 * Both take a text that json_parse accepted. */
bool num_equal(struct str a, struct str b);
bool num_int(struct str number, int64_t *ret);

#endif
