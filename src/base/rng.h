/* rng.h: the only source of randomness, seeded by a number in a simulator, otherwise by the kernel;
 * and the ids generated from it. */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

/* xoshiro256**: fast, seedable, not for secrets. One per thread. */
struct rng {
    uint64_t s[4];
};

/* rng_seed starts a sequence that depends on the seed alone. */
void rng_seed(struct rng *r, uint64_t seed);

/* rng_seed_os seeds from the kernel. */
void rng_seed_os(struct rng *r);

/* rng_next returns 64 random bits. */
uint64_t rng_next(struct rng *r);

/* rng_below returns a number in [0, n); 0 for n == 0. */
uint64_t rng_below(struct rng *r, uint64_t n);

#define UUID_TEXT 36

/* Makes time-ordered ids (RFC 9562, version 7). (1) The ids of one generator always ascend, within
 * a millisecond and even when the clock goes back. */
struct uuid7 {
    int64_t last_ms;
    uint32_t last_count;
};

#define UUID7_COUNT_BITS 24

/* rng_uuid7 writes 36 lower-case characters and a NUL. The low 24 bits of `count` follow the time
 * and order the ids of one millisecond: pass a number that grows with every event and is shared by
 * all generators for the same store. The last 50 bits are random. */
void rng_uuid7(struct uuid7 *g, int64_t wall_ms, uint64_t count, struct rng *r,
               char out[UUID_TEXT + 1]);

/* rng_uuid_valid returns whether s is a UUID in its 36-character form, any version, any case. */
bool rng_uuid_valid(struct str s);

#endif
