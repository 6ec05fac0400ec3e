#include "base/utf8.h"

/* Returns the first byte of 0x80 or above. Runs over every payload before delivery. */
static inline const char *skip_ascii(const char *p, const char *end)
{
    for (; end - p >= WORD_SIZE; p += WORD_SIZE) {
        uint64_t high = word_load(p) & WORD_HIGH;
        if (high)
            return p + word_first(high);
    }
    while (p < end && (unsigned char)*p < 0x80)
        p++;
    return p;
}

bool utf8_valid(struct str s, size_t *at)
{
    if (!s.n)
        return true; /* s.p may be NULL: computing its end is undefined */

    const char *end = s.p + s.n;
    const char *p = skip_ascii(s.p, end);
    while (p < end) {
        size_t n = utf8_length(p, end);
        if (n == 0) {
            if (at)
                *at = (size_t)(p - s.p);
            return false;
        }
        p = skip_ascii(p + n, end);
    }
    return true;
}

size_t utf8_put(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }

    size_t n = 4;
    if (c < 0x800)
        n = 2;
    else if (c < 0x10000)
        n = 3;
    for (size_t i = n - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (c & 0x3F));
        c >>= 6;
    }
    out[0] = (char)((0xF00u >> n & 0xFF) | c); /* as many leading one bits as there are bytes */
    return n;
}
