#include "base/uuid7.h"

#include <ctype.h>

#define SEQ_BITS 42

static char *hex(char *out, uint64_t v, int digits)
{
    for (int i = digits - 1; i >= 0; i--) out[digits - 1 - i] = "0123456789abcdef"[(v >> (4 * i)) & 15];
    return out + digits;
}

/* Layout: 48 bits time, 4 version, 12 sequence, 2 variant, 30 sequence, 32 random. */
void uuid7_next(struct uuid7 *g, int64_t wall_ms, struct rng *r, char out[UUID_TEXT + 1])
{
    if (wall_ms > g->last_ms) {
        g->last_ms = wall_ms;
        g->seq = rng_next(r) >> (64 - SEQ_BITS + 1); /* top bit clear: room to step */
    } else if (++g->seq >> SEQ_BITS) {
        g->last_ms++;
        g->seq = 0;
    }
    uint64_t ms = (uint64_t)g->last_ms & UINT64_C(0xffffffffffff);
    uint64_t tail = rng_next(r) & UINT64_C(0xffffffff);
    char *p = hex(out, ms >> 16, 8);
    *p++ = '-';
    p = hex(p, ms & 0xffff, 4);
    *p++ = '-';
    p = hex(p, 0x7000 | (g->seq >> 30), 4);
    *p++ = '-';
    p = hex(p, 0x8000 | ((g->seq >> 16) & 0x3fff), 4);
    *p++ = '-';
    p = hex(p, g->seq & 0xffff, 4);
    p = hex(p, tail, 8);
    *p = '\0';
}

bool uuid_valid(struct str s)
{
    if (s.n != UUID_TEXT) return false;
    for (size_t i = 0; i < s.n; i++) {
        bool dash = i == 8 || i == 13 || i == 18 || i == 23;
        if (dash ? s.p[i] != '-' : !isxdigit((unsigned char)s.p[i])) return false;
    }
    return true;
}
