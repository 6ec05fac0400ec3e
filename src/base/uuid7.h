/* uuid7.h: time-ordered ids (RFC 9562, version 7). */
#ifndef BASE_UUID7_H
#define BASE_UUID7_H

#include <stdbool.h>
#include <stdint.h>

#include "base/random.h"
#include "base/str.h"

#define UUID_TEXT 36

/* (1) Ids of one generator only grow: within a millisecond, and when the clock goes back, a counter in the bits
 * behind the time stamp is stepped. */
struct uuid7 {
    int64_t last_ms;
    uint64_t seq; /* 42 bits: 12 of rand_a, 30 of rand_b */
};

/* uuid7_next writes 36 lower-case characters and a NUL. */
void uuid7_next(struct uuid7 *g, int64_t wall_ms, struct rng *r, char out[UUID_TEXT + 1]);
/* uuid_valid says whether s is a UUID in its 36-character form, any version, any case. */
bool uuid_valid(struct str s);

#endif
