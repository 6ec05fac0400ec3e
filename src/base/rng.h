/* rng.h: the only source of randomness, seeded by a number in a simulator, otherwise by the
 * kernel. */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stdint.h>

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

#endif
