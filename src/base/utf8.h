/* utf8.h: characters: classes of ASCII, independent of the locale; well-formed UTF-8, which has no
 * surrogates, no overlong forms and nothing past U+10FFFF; text eight bytes at a time. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

/* ---- ASCII ---- */

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
    return char_is_lower(c) || char_is_between(c, 'A', 'Z') || char_is_digit(c) || c == '_';
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

/* ---- UTF-8 ---- */

/* utf8_length returns the length of the well-formed multi-byte character at p; 0 if there is none.
 * Inline, because json_parse calls it for every such character of a payload. */
static inline size_t utf8_length(const char *p, const char *end)
{
    const unsigned char *u = (const unsigned char *)p;
    unsigned char least = 0x80, most = 0xBF; /* of the second byte */
    if (u[0] < 0xC2 || u[0] > 0xF4)
        return 0;

    size_t n = 4;
    if (u[0] < 0xE0)
        n = 2;
    else if (u[0] < 0xF0)
        n = 3;
    switch (u[0]) {
    case 0xE0: least = 0xA0; break; /* less is overlong */
    case 0xED: most = 0x9F; break;  /* more is a surrogate */
    case 0xF0: least = 0x90; break; /* less is overlong */
    case 0xF4: most = 0x8F; break;  /* more is past U+10FFFF */
    default: break;
    }
    bool whole = (size_t)(end - p) >= n;
    if (!whole || u[1] < least || u[1] > most)
        return 0;
    for (size_t i = 2; i < n; i++)
        if ((u[i] & 0xC0) != 0x80)
            return 0;
    return n;
}

/* utf8_code returns the code point of the well-formed character of n > 1 bytes at p. */
static inline uint32_t utf8_code(const char *p, size_t n)
{
    uint32_t c = (unsigned char)p[0] & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++)
        c = c << 6 | ((unsigned char)p[i] & 0x3F);
    return c;
}

/* utf8_valid returns whether s is well-formed; if not, *at is the offset of the first bad byte. at
 * may be NULL. */
bool utf8_valid(struct str s, size_t *at);

/* utf8_put encodes the code point, which is not a surrogate, and returns its length in bytes. */
size_t utf8_put(uint32_t c, char out[4]);

#endif
