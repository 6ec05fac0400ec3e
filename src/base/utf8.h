/* utf8.h: well-formed UTF-8: no surrogates, no overlong forms, nothing past U+10FFFF. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

struct utf8_range {
    unsigned char least, most;
};

/* utf8_size returns the length of a multi-byte character by its first byte; 0 if none starts with
 * that byte. */
static inline size_t utf8_size(unsigned char first)
{
    if (first < 0xC2 || first > 0xF4)
        return 0;
    if (first < 0xE0)
        return 2;
    if (first < 0xF0)
        return 3;
    return 4;
}

/* utf8_second returns the valid range of the second byte, which depends on the first. */
static inline struct utf8_range utf8_second(unsigned char first)
{
    switch (first) {
    case 0xE0: return (struct utf8_range){0xA0, 0xBF}; /* less is overlong */
    case 0xED: return (struct utf8_range){0x80, 0x9F}; /* more is a surrogate */
    case 0xF0: return (struct utf8_range){0x90, 0xBF}; /* less is overlong */
    case 0xF4: return (struct utf8_range){0x80, 0x8F}; /* more is past U+10FFFF */
    default: return (struct utf8_range){0x80, 0xBF};
    }
}

/* utf8_length returns the length of the well-formed multi-byte character at p; 0 if there is none.
 * Inline, because json_parse calls it for every such character of a payload. */
static inline size_t utf8_length(const char *p, const char *end)
{
    const unsigned char *u = (const unsigned char *)p;
    size_t n = utf8_size(u[0]);
    bool whole = n > 0 && (size_t)(end - p) >= n;
    if (!whole)
        return 0;

    struct utf8_range second = utf8_second(u[0]);
    bool begins = u[1] >= second.least && u[1] <= second.most;
    if (!begins)
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
