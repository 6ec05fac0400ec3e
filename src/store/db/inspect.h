/* inspect.h: the state of an event for each consumer; see inspect.c. */
#ifndef STORE_DB_INSPECT_H
#define STORE_DB_INSPECT_H

#include "store/db/db.h"

/* A former filter of a consumer, and the positions of its lanes when it was replaced. */
struct former {
    struct former *next;
    struct filter *filter;
    int64_t n;
    int lanes;
    int64_t positions[STORE_LANES_MAX];
};

/* A consumer's data, read once per listing. */
struct viewed {
    struct filter *filter;
    struct former *former; /* oldest first */
    int64_t positions[STORE_LANES_MAX];
    int64_t start;    /* -1: not known */
    int64_t ended;    /* rows of outbox_ended */
    int64_t receipts; /* 0: it has none */
};

/* The consumers of a listing, and the states of the current event. */
struct viewer {
    struct store *st;
    struct arena a;
    struct consumer_info *list;
    struct viewed *c;
    struct delivery_info *d;
    size_t n;
    int64_t claims; /* of any consumer */
    int64_t now;
    int64_t asked; /* queries made for the current event */
};

/* db_viewer_read reads all consumers, or the named one. On failure the viewer still has to be
 * released. */
int db_viewer_read(struct viewer *v, const char *consumer, struct error *err);
void db_viewer_release(struct viewer *v);
/* db_viewer_event decides the state of an event for consumer i, in v->d[i]; texts live in a. */
int db_viewer_event(struct viewer *v, size_t i, const struct event *ev, struct arena *a,
                    struct error *err);

#endif
