/* human.h: human-readable times, ages and numbers. */
#ifndef LISTING_HUMAN_H
#define LISTING_HUMAN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"

#define HUMAN_AGE 32
/* human_age writes a duration in two units at most: 350ms, 12s, 3m10s, 2h, 4d6h. */
const char *human_age(int64_t ms, char out[HUMAN_AGE]);
/* human_time writes a time in RFC 3339, or "" for 0. */
const char *human_time(int64_t wall_ms, char out[CLOCK_RFC3339_SIZE]);
#define HUMAN_INT 24
const char *human_int(int64_t n, char out[HUMAN_INT]);
#define HUMAN_COUNT 64
/* human_count writes a number and its noun, in the plural unless n is 1. */
const char *human_count(int64_t n, const char *noun, char out[HUMAN_COUNT]);
/* human_events_wait writes "1 event waits" or "about 30 events wait". */
const char *human_events_wait(int64_t n, bool exact, char out[HUMAN_COUNT]);

#endif
