/* char.h: classes of ASCII characters, independent of the locale; C1 control characters; text eight
 * bytes at a time. */
#ifndef BASE_CHAR_H
#define BASE_CHAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline bool char_is_between(char c, char least, char most)
{
    return c >= least && c <= most;
}

static inline bool char_is_digit(char c)
{
    return char_is_between(c, '0', '9');
}

static inline bool char_is_lower(char c)
{
    return char_is_between(c, 'a', 'z');
}

static inline bool char_is_letter(char c)
{
    return char_is_lower(c) || char_is_between(c, 'A', 'Z');
}

static inline bool char_is_blank(char c)
{
    return c == ' ' || c == '\t';
}

/* char_is_space returns whether c is white space: a blank, \t, \n, \v, \f or \r. */
static inline bool char_is_space(char c)
{
    return c == ' ' || char_is_between(c, '\t', '\r');
}

/* char_is_name returns whether c is allowed in the name of an environment variable. */
static inline bool char_is_name(char c)
{
    return char_is_letter(c) || char_is_digit(c) || c == '_';
}

/* char_hex returns the value of a hexadecimal digit, -1 for any other character. */
static inline int char_hex(char c)
{
    if (char_is_digit(c))
        return c - '0';
    if (char_is_between(c, 'a', 'f'))
        return c - 'a' + 10;
    if (char_is_between(c, 'A', 'F'))
        return c - 'A' + 10;
    return -1;
}

/* char_is_control returns whether c is a C0 control character or DEL. */
static inline bool char_is_control(char c)
{
    return (unsigned char)c < 0x20 || c == 0x7f;
}

/* char_is_c1 returns whether the UTF-8 character at p is a C1 control character, which a terminal
 * treats as an escape sequence. p[1] must be readable, if only as the terminating NUL. */
static inline bool char_is_c1(const char *p)
{
    return (unsigned char)p[0] == 0xc2 && (unsigned char)p[1] < 0xa0;
}

/* char_is_visible returns whether c is printable ASCII other than a blank. */
static inline bool char_is_visible(char c)
{
    return (unsigned char)c > ' ' && (unsigned char)c < 0x7f;
}

/* ---- eight bytes at a time ---- */

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
