/* word.h: processing text eight bytes at a time. */
#ifndef BASE_WORD_H
#define BASE_WORD_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define WORD_SIZE 8
#define WORD_ONES UINT64_C(0x0101010101010101)
#define WORD_HIGH (WORD_ONES * 0x80) /* the high bit of each byte */

/* word_load loads the eight bytes at p, the first into the lowest bits. */
static inline uint64_t word_load(const char *p)
{
    uint64_t w;
    memcpy(&w, p, sizeof w);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    w = __builtin_bswap64(w);
#endif
    return w;
}

/* word_first returns the index of the first byte whose high bit is set in marks, which is not 0. */
static inline size_t word_first(uint64_t marks)
{
    return (size_t)__builtin_ctzll(marks) / 8;
}

#endif
