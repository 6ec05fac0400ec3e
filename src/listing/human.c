/* human.c: human-readable times, ages and numbers. */
#include "listing/listing.h"

#include <stdio.h>

const char *human_write_age(int64_t ms, char out[HUMAN_SIZE])
{
    static const struct {
        int64_t ms;
        const char *unit;
    } units[] = {{86400000, "d"}, {3600000, "h"}, {60000, "m"}, {1000, "s"}};
    size_t last = sizeof(units) / sizeof(*units) - 1, i = 0;
    if (ms < 0)
        ms = 0;
    if (ms < units[last].ms) {
        snprintf(out, HUMAN_SIZE, "%lldms", (long long)ms);
        return out;
    }

    while (ms < units[i].ms)
        i++;
    int n = snprintf(out, HUMAN_SIZE, "%lld%s", (long long)(ms / units[i].ms), units[i].unit);
    if (i == last)
        return out;
    int64_t rest = ms % units[i].ms / units[i + 1].ms;
    if (rest)
        snprintf(out + n, (size_t)(HUMAN_SIZE - n), "%lld%s", (long long)rest, units[i + 1].unit);
    return out;
}

const char *human_write_time(int64_t wall_ms, char out[HUMAN_SIZE])
{
    out[0] = 0;
    if (wall_ms)
        clock_rfc3339(wall_ms, out);
    return out;
}

const char *human_write_count(int64_t n, const char *noun, char out[HUMAN_SIZE])
{
    snprintf(out, HUMAN_SIZE, "%lld %s%s", (long long)n, noun, n == 1 ? "" : "s");
    return out;
}

const char *human_write_events_wait(int64_t n, bool exact, char out[HUMAN_SIZE])
{
    snprintf(out, HUMAN_SIZE, "%s%lld %s", exact ? "" : "about ", (long long)n,
             n == 1 ? "event waits" : "events wait");
    return out;
}
