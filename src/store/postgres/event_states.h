/* event_states.h: the states of the events of a listing, for each consumer. */
#ifndef STORE_POSTGRES_EVENT_STATES_H
#define STORE_POSTGRES_EVENT_STATES_H

#include "store/postgres/postgres.h"

/* The data by which a listing determines the state of an event for each of n consumers. */
struct viewer {
    struct pg_store *st;
    const char *consumer; /* the only one; NULL: all */
    struct arena a;       /* for the whole listing */
    struct consumer_spec *list;
    struct filter **filters;
    struct delivery_info *d; /* of the current event */
    size_t n;
    int64_t now; /* the server's clock, if the query depends on it */
};

/* pg_viewer_init reads the consumer of that name, or all if it is NULL; the name must live as long
 * as the viewer. ERR_NOTFOUND: the consumer does not exist. */
int pg_viewer_init(struct viewer *v, struct pg_store *st, const char *consumer, struct error *err);
void pg_viewer_release(struct viewer *v);

/* pg_viewer_ask queries the states of the events of a page, for pg_viewer_tell; the caller clears
 * *ret. It is NULL if there are no consumers or no events. */
int pg_viewer_ask(struct viewer *v, const struct event *page, size_t n, PGresult **ret,
                  struct error *err);
/* pg_viewer_tell fills in v->d for one event of the page. Its strings live in the arena. */
int pg_viewer_tell(struct viewer *v, const PGresult *states, const struct event *ev,
                   struct arena *a, struct error *err);
/* pg_viewer_shows returns whether that event is in the requested state for some consumer. Without
 * consumers, every event is pending. */
bool pg_viewer_shows(const struct viewer *v, const struct event_query *q);

#endif
