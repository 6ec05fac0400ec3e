/* fields.h: the fields of all kinds of rows. A row is a struct of the store, or a struct below
 * around it. */
#ifndef LISTING_FIELDS_H
#define LISTING_FIELDS_H

#include "listing/listing.h"
#include "store/store.h"

/* ---- events ---- */

/* An event with its states, as passed to event_visit. (1) next_at and error belong to the failed
 * delivery whose next attempt comes first. */
struct listed_event {
    struct event ev;
    const struct delivery_info *d;
    size_t n;
    int64_t next_at;
    const char *error;
};
struct listed_event fields_event_row(const struct event *ev, const struct delivery_info *d,
                                     size_t n);

extern const struct listing_field fields_event[];        /* struct event */
extern const struct listing_field fields_listed_event[]; /* struct listed_event */
extern const struct listing_field fields_delivery[];     /* struct delivery_info */
extern const struct listing_field fields_looked[];       /* struct listed_look */
extern const struct listing_field fields_dead_letter[];  /* struct dead_letter */

/* How far a listing of events has looked. */
struct listed_look {
    struct event_look looked;
    int64_t after; /* value of --after to continue */
};

/* The high-water mark of a consumer in a stream. */
struct listed_mark {
    const char *stream, *id, *consumer;
    int64_t at;
};
extern const struct listing_field fields_mark[];

/* The names and values of one row, for listing_pairs. */
#define PAIRS_EVENT \
    "id seq type key version idempotency_key tenant created_at not_before headers payload"
#define PAIRS_DEAD_LETTER "consumer attempts dead_at error retrying " PAIRS_EVENT

/* ---- consumers ---- */

/* A consumer. (1) now_ms is the time of the store. (2) The rates are valid if has_rates is set. */
struct listed_consumer {
    struct consumer_info c;
    const char *state;
    int64_t now_ms, down_since;
    bool has_first_parked, has_rates;
    int64_t delivered_per_s, read_per_s;
};
struct listed_consumer fields_consumer_row(const struct consumer_info *c, int64_t now_ms);
extern const struct listing_field fields_consumer[];
#define PAIRS_CONSUMER \
    "name state events where order lanes retry created_at position behind lag_ms in_flight " \
    "delivered claims owner parked first_parked next_due dead down_since last_error " \
    "last_error_at floor"

/* fields_consumer_state names the state of a consumer: paused, down, in-flight, retrying, waiting,
 * behind or idle. */
const char *fields_consumer_state(const struct consumer_info *c);
/* fields_patterns returns patterns of events in readable form: "*" for all. Borrowed. */
const char *fields_patterns(const char *events);

/* Settings that a consumer has or had. */
struct listed_generation {
    struct consumer_settings s;
    bool counts; /* they are in effect */
};
extern const struct listing_field fields_generation[];

/* The store with its consumers. */
struct listed_status {
    const char *url; /* without its password */
    struct store_info info;
    const struct listed_consumer *consumer;
    size_t n;
};
extern const struct listing_field fields_status[];

extern const struct listing_field fields_finding[]; /* struct finding */

#endif
