#include "base/uuid7.h"

#include <ctype.h>

#define COUNT_MAX ((UINT32_C(1) << UUID7_COUNT_BITS) - 1)

/* Writes the low digits of v and returns the end. */
static char *hex(char *out, uint64_t v, int digits)
{
    for (int i = digits - 1; i >= 0; i--)
        out[digits - 1 - i] = "0123456789abcdef"[(v >> (4 * i)) & 15];
    return out + digits;
}

/* Advances the generator to the next (time, count), which is always past the last one, whatever the
 * clock and the count are. */
static void step(struct uuid7 *g, int64_t wall_ms, uint32_t count)
{
    if (wall_ms > g->last_ms) {
        g->last_ms = wall_ms;
        g->last_count = count;
    } else if (count > g->last_count) {
        g->last_count = count;
    } else if (g->last_count < COUNT_MAX) {
        g->last_count++;
    } else {
        g->last_ms++;
        g->last_count = 0;
    }
}

/* Layout: 48 bits of time, 4 of version, 12 of count, 2 of variant, 12 of count and 50 random ones.
 * The same as in sql/sqlite/0001_outbox.sql. */
void uuid7_next(struct uuid7 *g, int64_t wall_ms, uint64_t count, struct rng *r,
                char out[UUID_TEXT + 1])
{
    step(g, wall_ms, (uint32_t)(count & COUNT_MAX));
    uint64_t ms = (uint64_t)g->last_ms & UINT64_C(0xffffffffffff);
    uint64_t random = rng_next(r);
    uint64_t variant = UINT64_C(2) << 14, low_count = (uint64_t)(g->last_count & 0xfff) << 2;

    char *p = hex(out, ms >> 16, 8);
    *p++ = '-';
    p = hex(p, ms & 0xffff, 4);
    *p++ = '-';
    p = hex(p, 0x7000 | (g->last_count >> 12), 4);
    *p++ = '-';
    p = hex(p, variant | low_count | (random >> 62), 4);
    *p++ = '-';
    p = hex(p, random & UINT64_C(0xffffffffffff), 12);
    *p = '\0';
}

bool uuid7_valid(struct str s)
{
    static const char form[] = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
    if (s.n != UUID_TEXT)
        return false;

    for (size_t i = 0; i < s.n; i++) {
        bool digit = isxdigit((unsigned char)s.p[i]);
        bool dash = s.p[i] == '-';
        bool fits = form[i] == '-' ? dash : digit;
        if (!fits)
            return false;
    }
    return true;
}
