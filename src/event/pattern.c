#include "event/pattern.h"

#include <stdint.h>

/* Whether the pattern has character c at i. */
static bool has_at(struct str pattern, size_t i, char c)
{
    return i < pattern.n && pattern.p[i] == c;
}

/* Backtracks to the last star only: anything an earlier star could consume, the last one can as
 * well. So the time is at most the product of both lengths. */
bool pattern_match(struct str pattern, struct str type)
{
    size_t p = 0, t = 0;
    size_t star = SIZE_MAX,
           resume = 0; /* the last star, and the end of what it has consumed so far */
    while (t < type.n) {
        if (has_at(pattern, p, '*')) {
            star = p;
            resume = t;
            p++;
        } else if (has_at(pattern, p, type.p[t])) {
            p++;
            t++;
        } else if (star != SIZE_MAX) {
            resume++; /* let the last star consume one more character */
            p = star + 1;
            t = resume;
        } else {
            return false;
        }
    }

    while (has_at(pattern, p, '*'))
        p++;
    return p == pattern.n;
}
