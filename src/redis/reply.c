#include "redis/reply.h"

#include <stdio.h>
#include <string.h>

#include "redis/fate.h"

#define HALF_MAX 20 /* digits of 64 bits */

enum redis_fault redis_fault_of(const char *text)
{
    return redis_fate_of(text)->fault;
}

const char *redis_advice_of(const char *text)
{
    return redis_fate_of(text)->advice;
}

bool redis_reconnects(const char *text)
{
    return redis_fate_of(text)->reconnect;
}

bool redis_refuses_command(const char *text)
{
    const struct redis_fate *f = redis_fate_of(text);
    bool denied = f->fault == REDIS_FAULT_LOGIN && strncmp(text, "NOPERM", 6) == 0;
    bool unknown = strncmp(text, "ERR unknown command", 19) == 0;
    return denied || unknown;
}

/* number reads digits; false if there are none, or the number does not fit. */
static bool number(const char *s, const char **end, int64_t *ret)
{
    int64_t n = 0;
    const char *p = s;
    for (; *p >= '0' && *p <= '9'; p++) {
        int digit = *p - '0';
        if (n > (INT64_MAX - digit) / 10)
            return false;
        n = 10 * n + digit;
    }
    *end = p;
    *ret = n;
    return p > s;
}

bool redis_id(const char *s, int64_t *hi, int64_t *lo)
{
    const char *end;
    if (!number(s, &end, hi) || *end != '-')
        return false;
    return number(end + 1, &end, lo) && *end == '\0';
}

/* half_of counts the digits at s, if they can be one half of an id; else 0. */
static size_t half_of(const char *s)
{
    size_t n = strspn(s, "0123456789");
    if (n > HALF_MAX)
        return 0;
    return n;
}

bool redis_is_id(const char *s)
{
    size_t high = half_of(s);
    if (high == 0 || s[high] != '-')
        return false;
    const char *behind = s + high + 1;
    size_t low = half_of(behind);
    return low > 0 && behind[low] == '\0';
}
