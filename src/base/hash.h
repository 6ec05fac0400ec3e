/* hash.h: a 64-bit hash that is the same on every machine and in every version, because databases
 * store it. Not for secrets. Start with HASH_INIT, hash_add each text, then hash_end. */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stdint.h>

#include "base/str.h"

#define HASH_INIT UINT64_C(0xcbf29ce484222325)

/* hash_add adds the bytes and a separator, so that ("ab", "c") differs from ("a", "bc"), and an
 * absent text from an empty one. */
static inline uint64_t hash_add(uint64_t h, struct str s)
{
    for (size_t i = 0; i < s.n; i++)
        h = (h ^ (unsigned char)s.p[i]) * UINT64_C(0x100000001b3);
    unsigned mark = s.p ? 0x100 : 0x200;
    return (h ^ mark) * UINT64_C(0x100000001b3);
}

/* hash_end mixes the bits, so that the low ones are as random as the high ones. */
static inline uint64_t hash_end(uint64_t h)
{
    h = (h ^ (h >> 33)) * UINT64_C(0xff51afd7ed558ccd);
    h = (h ^ (h >> 33)) * UINT64_C(0xc4ceb9fe1a85ec53);
    return h ^ (h >> 33);
}

#endif
