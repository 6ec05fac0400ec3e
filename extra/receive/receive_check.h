/* receive_check.h: compares received messages with the events in the store. */
#ifndef RECEIVE_RECEIVE_CHECK_H
#define RECEIVE_RECEIVE_CHECK_H

#include "base/str.h"
#include "store/store.h"

/* The result. */
struct receive_counts {
    int64_t received; /* messages */
    int64_t events;   /* different ones among them */
    int64_t repeats;  /* messages with an event received before */
    int64_t strange;  /* messages that hold no event in any format of ours */
    /* Of the store. */
    int64_t expected;   /* events that should have been received */
    int64_t lost;       /* expected events not received */
    int64_t misordered; /* events received after a later one of their key, at the same place */
    int64_t unknown;    /* received events that the store does not have */
    char lost_id[UUID_TEXT + 1], misordered_id[UUID_TEXT + 1]; /* the first of each; "": none */
};

struct receive_check;

/* receive_check_new returns NULL if out of memory. */
struct receive_check *receive_check_new(void);
void receive_check_free(struct receive_check *c);

/* receive_check_add notes a received event, with its id (36 characters) and its place. Returns -1
 * if out of memory. */
int receive_check_add(struct receive_check *c, struct str id, struct str place);
/* receive_check_strange notes a message that holds no event. */
void receive_check_strange(struct receive_check *c);

/* receive_check_store goes through all events that the store keeps. With a consumer, the events it
 * has delivered are expected; without one, all are. Order is checked only among events of one key
 * at one place, by their sequence numbers. */
int receive_check_store(struct receive_check *c, struct store *st, const char *consumer,
                        struct error *err);

const struct receive_counts *receive_check_counts(const struct receive_check *c);

#endif
