/* str.h: a borrowed run of bytes, and its hash. */
#ifndef BASE_STR_H
#define BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* (1) p == NULL means absent (SQL NULL); n is 0 then. (2) p[n] need not be a NUL. */
struct str {
    const char *p;
    size_t n;
};

#define STR(literal) ((struct str){(literal), sizeof(literal) - 1})

static inline struct str str_of(const char *s)
{
    return (struct str){s, s ? strlen(s) : 0};
}

static inline bool str_eq(struct str a, struct str b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

static inline bool str_is(struct str a, const char *s)
{
    return str_eq(a, str_of(s));
}

/* A 64-bit hash that is the same on every machine and in every version, because databases store it.
 * Not for secrets. Start with HASH_INIT, hash_add each text, then hash_end. */
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
