/* meter.h: the counters of a pipeline for the metrics. One thread counts, without a lock and
 * without allocating; other threads receive copies. */
#ifndef ENGINE_METER_H
#define ENGINE_METER_H

#include <stddef.h>
#include <stdint.h>

#include "base/str.h"
#include "sink/sink.h"

#define METER_TYPES 32   /* event types counted by name; all others are counted as "other" */
#define METER_NAME 80    /* types with longer names always count as "other" */
#define METER_BUCKETS 14 /* with an upper bound; one more for the rest */

/* Upper bounds of the buckets of each histogram, in nanoseconds. */
extern const int64_t meter_delivery_bounds[METER_BUCKETS], meter_call_bounds[METER_BUCKETS];

/* (1) bucket[i] counts values above bound i-1 and not above bound i. */
struct histogram {
    int64_t bucket[METER_BUCKETS + 1];
    int64_t sum_ns;
};

/* Why an event became a dead letter. */
enum burial {
    BURIAL_ATTEMPTS,  /* its attempts are used up */
    BURIAL_REJECTED,  /* the sink will never accept it */
    BURIAL_OUTAGE,    /* the fault is unknown, but it has failed for `outage` */
    BURIAL_MALFORMED, /* no sink could accept it */
    BURIAL_CRASHED,   /* the process died at each attempt; buried by the store, type unknown */
    BURIALS
};

enum renewal { RENEWAL_OK, RENEWAL_LOST, RENEWAL_ERROR, RENEWALS };

struct meter_type {
    char name[METER_NAME];
    int64_t ends[SINK_CANCELLED + 1]; /* by enum sink_status */
    int64_t buried[BURIALS];
};

/* (1) type[0..n_types) have names, and type[METER_TYPES] is for the rest.
 * (2) slot is a hash table of the names: an index of type + 1, or 0.
 * (3) Numbers only grow. */
struct meter {
    struct meter_type type[METER_TYPES + 1];
    size_t n_types;
    size_t last; /* the index of the type that was counted last */
    uint8_t slot[2 * METER_TYPES];
    struct histogram delivery; /* from created_at to delivered */
    struct histogram call;     /* from submit to done, however it ended */
    int64_t renewals[RENEWALS];
    int64_t store_errors, openings; /* openings of the circuit */
};

/* meter_ended counts the end of a delivery: how it ended, how long the sink took and, if it was
 * delivered, how old the event was. */
struct meter_end {
    struct str type;
    enum sink_status status;
    int64_t call_ns, age_ms;
};
void meter_ended(struct meter *m, const struct meter_end *e);
/* meter_buried counts n dead letters of a type; "" counts as "other". */
void meter_buried(struct meter *m, struct str type, enum burial why, int64_t n);

#endif
