#include "base/rng.h"

#include <ctype.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define COUNT_MAX ((UINT32_C(1) << UUID7_COUNT_BITS) - 1)

/* Expands one seed into several (splitmix64). */
static uint64_t splitmix(uint64_t *x)
{
    *x += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = *x;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static uint64_t rotl(uint64_t x, int k)
{
    return (x << k) | (x >> (64 - k));
}

void rng_seed(struct rng *r, uint64_t seed)
{
    for (int i = 0; i < 4; i++)
        r->s[i] = splitmix(&seed);
}

void rng_seed_os(struct rng *r)
{
    if (getrandom(r->s, sizeof r->s, 0) == (ssize_t)sizeof r->s)
        return;

    /* On a kernel without getrandom, at least differ from other processes. */
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    rng_seed(r, (uint64_t)ts.tv_nsec ^ ((uint64_t)ts.tv_sec << 30) ^ ((uint64_t)getpid() << 20));
}

uint64_t rng_next(struct rng *r)
{
    uint64_t *s = r->s, result = rotl(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

uint64_t rng_below(struct rng *r, uint64_t n)
{
    if (n == 0)
        return 0;
    return (uint64_t)(((unsigned __int128)rng_next(r) * n) >> 64);
}

/* ---- ids ---- */

/* Writes the low hexadecimal digits of v and returns the end. */
static char *hex(char *out, uint64_t v, int digits)
{
    for (int i = digits - 1; i >= 0; i--)
        out[digits - 1 - i] = "0123456789abcdef"[(v >> (4 * i)) & 15];
    return out + digits;
}

/* Advances the generator to the next (time, count), which is always past the last one, whatever the
 * clock and the count are. */
static void step_uuid(struct uuid7 *g, int64_t wall_ms, uint32_t count)
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
void rng_uuid7(struct uuid7 *g, int64_t wall_ms, uint64_t count, struct rng *r,
               char out[UUID_TEXT + 1])
{
    step_uuid(g, wall_ms, (uint32_t)(count & COUNT_MAX));
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

bool rng_uuid_valid(struct str s)
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
