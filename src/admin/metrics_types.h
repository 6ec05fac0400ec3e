/* metrics_types.h: what waits for a consumer, by the type of the events. */
#ifndef ADMIN_METRICS_TYPES_H
#define ADMIN_METRICS_TYPES_H

#include "admin/metrics.h"

/* The events of a type that wait. (1) oldest_at == 0: none does. */
struct by_type {
    const char *name;
    int64_t depth, oldest_at;
};

/* The types of a consumer: those that it has delivered, then those that wait. (1) The first n have
 * names of their own; the last one of the array is for all others. */
struct by_types {
    struct by_type type[METER_TYPES + 1];
    size_t n;
};

/* metrics_types collects the types of a consumer. Names are borrowed from c. */
void metrics_types(const struct metrics_consumer *c, struct by_types *t);

#endif
