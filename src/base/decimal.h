/* decimal.h: JSON numbers of any length, compared and converted by value. decimal_equal and
 * decimal_int take the text of one number that json_parse accepted. */
#ifndef BASE_DECIMAL_H
#define BASE_DECIMAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

/* decimal_push appends a digit to *v: *v = *v * 10 + digit; for a negative number the digit is
 * negative. Returns false, with *v undefined, on overflow. */
static inline bool decimal_push(int64_t *v, int digit)
{
    if (__builtin_mul_overflow(*v, 10, v))
        return false;
    return !__builtin_add_overflow(*v, digit, v);
}

/* decimal_equal returns whether two numbers have the same value: 1.50 equals 15e-1. */
bool decimal_equal(struct str a, struct str b);

/* decimal_int converts a number that is an integer and fits; otherwise returns false and leaves
 * *ret untouched. */
bool decimal_int(struct str number, int64_t *ret);

#endif
