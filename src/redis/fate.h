/* fate.h: what the errors of a Redis server mean. docs/brokers.md has the same table for people,
 * and a test compares them. */
#ifndef REDIS_FATE_H
#define REDIS_FATE_H

#include <stddef.h>

#include "redis/reply.h"

/* A row of the table. */
struct redis_fate {
    const char *words; /* what the error begins with; the first row that fits counts */
    enum redis_fault fault;
    bool reconnect;     /* see redis_reconnects */
    const char *advice; /* see redis_advice_of */
};

extern const struct redis_fate redis_fates[];
extern const size_t redis_fates_n;

/* redis_fate_of returns the row of an error. For one that is not in the table, what it begins with
 * decides: ERR may be about anything, another code is about the server. */
const struct redis_fate *redis_fate_of(const char *text);

#endif
