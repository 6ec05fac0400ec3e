/* uuid7.h: time-ordered ids (RFC 9562, version 7). */
#ifndef BASE_UUID7_H
#define BASE_UUID7_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rng.h"
#include "base/str.h"

#define UUID_TEXT 36

/* (1) The ids of one generator only grow, within a millisecond and even when the clock goes
 * back. */
struct uuid7 {
    int64_t last_ms;
    uint32_t last_count;
};

#define UUID7_COUNT_BITS 24

/* uuid7_next writes 36 lower-case characters and a NUL. The low 24 bits of `count` follow the time
 * and order the ids of one millisecond: pass a number that grows with every event and is shared by
 * all generators for the same store. The last 50 bits are random. */
void uuid7_next(struct uuid7 *g, int64_t wall_ms, uint64_t count, struct rng *r,
                char out[UUID_TEXT + 1]);

/* uuid7_valid returns whether s is a UUID in its 36-character form, any version, any case. */
bool uuid7_valid(struct str s);

#endif
