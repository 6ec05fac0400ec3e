/* metrics_types.h: what a consumer has not delivered, by the type of the events. */
#ifndef ADMIN_METRICS_TYPES_H
#define ADMIN_METRICS_TYPES_H

#include "admin/metrics.h"

/* The events of a type that are not delivered. (1) oldest_at == 0: there is none. */
struct by_type {
    const char *name;
    int64_t depth, oldest_at;
};

/* The types of a consumer: those that it has delivered, then the others that are not delivered. (1)
 * The first n have names of their own; the last one of the array is for all others. */
struct by_types {
    struct by_type type[METER_TYPES + 1];
    size_t n;
};

/* metrics_types collects the types of a consumer. Names are borrowed from c. */
void metrics_types(const struct metrics_consumer *c, struct by_types *t);

#endif
