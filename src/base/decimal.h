/* decimal.h: numbers as JSON writes them, compared and converted by value, however long they are.
 * All of these take the text of one number that json_parse accepted. */
#ifndef BASE_DECIMAL_H
#define BASE_DECIMAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

/* decimal_equal says whether two numbers have the same value: 1.50 equals 15e-1. */
bool decimal_equal(struct str a, struct str b);

/* decimal_int converts a number that is an integer and fits; false otherwise, and *ret is
 * untouched. */
bool decimal_int(struct str number, int64_t *ret);

#endif
