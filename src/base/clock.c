#include "base/clock.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"

static int64_t read_ns(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000 * MS_NS + t.tv_nsec;
}

static int64_t system_mono_ns(void *ctx)
{
    (void)ctx;
    return read_ns(CLOCK_MONOTONIC);
}

static int64_t system_wall_ms(void *ctx)
{
    (void)ctx;
    return read_ns(CLOCK_REALTIME) / MS_NS;
}

static int64_t system_wall_ns(void *ctx)
{
    (void)ctx;
    return read_ns(CLOCK_REALTIME);
}

static int64_t system_boot_ms(void *ctx)
{
    (void)ctx;
    return read_ns(CLOCK_BOOTTIME) / MS_NS;
}

const struct clock clock_system = {
    .mono_ns = system_mono_ns,
    .wall_ms = system_wall_ms,
    .wall_ns = system_wall_ns,
    .boot_ms = system_boot_ms,
};

int64_t clock_boot(const struct clock *c)
{
    char id[64], space[64];
    if (!c->boot_ms)
        return 0;
    ssize_t n = fd_read_file("/proc/sys/kernel/random/boot_id", id, sizeof id);
    if (n <= 0)
        return 0;

    /* A time namespace has its own boot time. Before Linux 5.6 there are none. */
    ssize_t m = readlink("/proc/self/ns/time", space, sizeof space);
    uint64_t h = hash_add(HASH_INIT, (struct str){id, (size_t)n});
    h = hash_add(h, (struct str){space, m > 0 ? (size_t)m : 0});
    return (int64_t)hash_end(h);
}

#define DAY_MS INT64_C(86400000)
#define DAYS_400Y 146097    /* the calendar repeats after this many days */
#define DAYS_TO_1970 719468 /* from 0000-03-01: years starting then end with the leap day */

/* A day of the Gregorian calendar. */
struct date {
    int64_t year;
    int month, day;
};

/* Converts days since 1970 to a date. gmtime would do, but this runs for every delivered event. */
static struct date date_of(int64_t days)
{
    days += DAYS_TO_1970;
    int64_t cycle = days / DAYS_400Y - (days % DAYS_400Y < 0);
    int rest = (int)(days - cycle * DAYS_400Y);

    /* Subtract the leap days (one in 4 years, none in 100, one at the very end of 400); a year then
     * has 365 days. */
    int year = (rest - rest / 1460 + rest / 36524 - rest / 146096) / 365;
    rest -= year * 365 + year / 4 - year / 100;

    /* From March on, month lengths repeat as 31 30 31 30 31: 153 days in five months. */
    int month = (5 * rest + 2) / 153;
    int day = rest - (153 * month + 2) / 5 + 1;
    month += month < 10 ? 3 : -9;
    return (struct date){cycle * 400 + year + (month <= 2), month, day};
}

/* Writes v with leading zeros. */
static void put_digits(char *to, unsigned v, int width)
{
    for (int i = width - 1; i >= 0; i--) {
        to[i] = (char)('0' + v % 10);
        v /= 10;
    }
}

size_t clock_rfc3339(int64_t wall_ms, char out[CLOCK_RFC3339_SIZE])
{
    int64_t days = wall_ms / DAY_MS - (wall_ms % DAY_MS < 0);
    int64_t rest = wall_ms % DAY_MS; /* wall_ms - days * DAY_MS overflows close to INT64_MIN */
    if (rest < 0)
        rest += DAY_MS;
    unsigned ms = (unsigned)rest;
    struct date d = date_of(days);

    char *p = out;
    if (d.year < 0)
        *p++ = '-';
    unsigned year = (unsigned)(d.year < 0 ? -d.year : d.year);
    int width = 4;
    for (unsigned more = year / 10000; more; more /= 10)
        width++;
    put_digits(p, year, width);
    p += width;
    memcpy(p, "-00-00T00:00:00.000Z", sizeof "-00-00T00:00:00.000Z");
    put_digits(p + 1, (unsigned)d.month, 2);
    put_digits(p + 4, (unsigned)d.day, 2);
    put_digits(p + 7, ms / 3600000, 2);
    put_digits(p + 10, ms / 60000 % 60, 2);
    put_digits(p + 13, ms / 1000 % 60, 2);
    put_digits(p + 16, ms % 1000, 3);
    return (size_t)(p - out) + strlen(p);
}
