/* topics.h: counts of undelivered events by type, estimated from samples. */
#ifndef STORE_TOPICS_H
#define STORE_TOPICS_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"
#include "store/operator.h"

/* Where an undelivered event may be; each place is sampled separately. */
enum topic_place {
    TOPIC_UNCLAIMED, /* not handed out yet, or its claim expired */
    TOPIC_CLAIMED,   /* in a live claim of a lane */
    TOPIC_PARKED,    /* claimed or not */
};
#define TOPIC_PLACES 3

/* Events of one type found in one place. */
struct topic_find {
    enum topic_place place;
    struct str type;
    int64_t n;
    int64_t oldest_at; /* created_at of the oldest of them; 0: unknown */
};

struct topic;

/* The types found so far. Initialised with the arena only. */
struct topics {
    struct arena *a;
    struct topic *list;
    size_t n;
};

/* topics_add adds events found. The type is copied. */
int topics_add(struct topics *t, const struct topic_find *f, struct error *err);

/* topics_end gives *g its types, most frequent first. all[place] is the total where the sample
 * covered only part of the events; 0: it covered all of them. A type's share of the sample is then
 * taken as its share of the total. */
int topics_end(struct topics *t, const int64_t all[TOPIC_PLACES], struct consumer_gauge *g,
               struct error *err);

#endif
