/* topics.h: how many events of each type are not delivered, put together from samples. */
#ifndef STORE_TOPICS_H
#define STORE_TOPICS_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"
#include "store/operator.h"

/* Where an event that is not delivered may be; each has a sample of its own. */
enum topic_place {
    TOPIC_UNCLAIMED, /* not handed out yet, or its claim ran out */
    TOPIC_CLAIMED,   /* in a live claim of a lane */
    TOPIC_PARKED,    /* in a claim or not */
};
#define TOPIC_PLACES 3

/* Some events of one type that were found in one place. */
struct topic_find {
    enum topic_place place;
    struct str type;
    int64_t n;
    int64_t oldest_at; /* created_at of the oldest of them; 0: unknown */
};

struct topic;

/* The types found so far. It is initialised with its arena alone. */
struct topics {
    struct arena *a;
    struct topic *list;
    size_t n, room;
};

/* topics_add adds what was found. The type is copied. */
int topics_add(struct topics *t, const struct topic_find *f, struct error *err);

/* topics_end gives *g its types, most frequent first. all[place] is how many events there are in
 * all where the sample had only some of them; 0: it had every one. Then the share of a type in the
 * sample stands for its share of all. */
int topics_end(struct topics *t, const int64_t all[TOPIC_PLACES], struct consumer_gauge *g,
               struct error *err);

#endif
