/* decimal.h: numbers as JSON writes them, compared and converted by value, however long they are.
 * decimal_equal and decimal_int take the text of one number that json_parse accepted. */
#ifndef BASE_DECIMAL_H
#define BASE_DECIMAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

/* decimal_push appends a digit to *v, a negative one to a negative number: *v = *v * 10 + digit. It
 * returns false, with *v undefined, if that does not fit. */
static inline bool decimal_push(int64_t *v, int digit)
{
    if (__builtin_mul_overflow(*v, 10, v))
        return false;
    return !__builtin_add_overflow(*v, digit, v);
}

/* decimal_equal says whether two numbers have the same value: 1.50 equals 15e-1. */
bool decimal_equal(struct str a, struct str b);

/* decimal_int converts a number that is an integer and fits; false otherwise, and *ret is
 * untouched. */
bool decimal_int(struct str number, int64_t *ret);

#endif
