/* receive_check.h: compares what was received with what the store says was emitted. */
#ifndef RECEIVE_RECEIVE_CHECK_H
#define RECEIVE_RECEIVE_CHECK_H

#include "base/str.h"
#include "store/store.h"

/* What came of it. */
struct receive_counts {
    int64_t received; /* messages */
    int64_t events;   /* different ones among them */
    int64_t repeats;  /* messages whose event came before */
    int64_t strange;  /* messages that hold no event in any format of ours */
    /* Of the store. */
    int64_t expected;   /* events that should have come */
    int64_t lost;       /* of these, those that did not */
    int64_t misordered; /* events that came after a later one of their key, at the same place */
    int64_t unknown;    /* events that came, and that the store does not have */
    char lost_id[UUID_TEXT + 1], misordered_id[UUID_TEXT + 1]; /* the first of each; "": none */
};

struct receive_check;

/* receive_check_new returns NULL without memory. */
struct receive_check *receive_check_new(void);
void receive_check_free(struct receive_check *c);

/* receive_check_add notes an event that came, with its id (36 characters) and its place. Returns -1
 * without memory. */
int receive_check_add(struct receive_check *c, struct str id, struct str place);
/* receive_check_strange notes a message that holds no event. */
void receive_check_strange(struct receive_check *c);

/* receive_check_store goes through all events that the store keeps. With a consumer, those that it
 * has as delivered are expected; without one, all are. An order is only judged for events of one
 * key at one place, by their sequence numbers. */
int receive_check_store(struct receive_check *c, struct store *st, const char *consumer,
                        struct error *err);

const struct receive_counts *receive_check_counts(const struct receive_check *c);

#endif
