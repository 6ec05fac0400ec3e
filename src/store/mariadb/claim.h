/* claim.h: what the files share that hand out work: turn.c, claim.c, claim_fresh.c, claim_parked.c
 * and take_over.c. Everything here runs inside the transaction of a turn, which has the consumer's
 * row. */
#ifndef STORE_MARIADB_CLAIM_H
#define STORE_MARIADB_CLAIM_H

#include "store/mariadb/mariadb.h"

#define TOGETHER 64 /* events that are asked for at once */

/* A claim of the consumer, whoever has it. */
struct claim {
    int64_t epoch, from, to, until, lease;
    int lane;
    bool parked;
    bool blamed; /* if its worker vanishes, that is an attempt of its event */
    bool others; /* its owner is not the caller */
    bool known;  /* the caller still has it in hand: it may settle it, however late */
    bool over;   /* it was settled or taken over in this turn */
    bool ours;   /* it is the one that the turn settles */
};

/* The keys of which something is parked. */
struct parked_keys {
    int64_t *key;
    size_t n;
    bool too_many; /* they are asked for one by one */
    bool known;    /* they were read in this turn */
};

/* What a turn was told together with the lock: of one lane, and whether anything is parked. */
struct found {
    bool known; /* it was asked for, and nothing that the turn did since has changed it */
    int lane;
    int64_t position;
    bool parked;
};

/* A chunk of events that were read in seq order. */
struct chunk {
    struct event *ev; /* those that are wanted */
    size_t n, scanned;
    size_t bytes;
    int64_t from, to; /* looked at (from, to], by seq */
};

/* A claim in the making. (1) b->n > 0 once something was claimed. */
struct claiming {
    struct mdb_store *st;
    const struct claim_request *req;
    struct arena *a; /* the batch lives there; NULL if nothing is to be claimed */
    struct batch *b;
    struct claim_hint *hint;
    int64_t now;
    int64_t epoch;              /* of the claim that is being made */
    const struct settlement *s; /* what the turn settles; NULL: nothing */
    struct claim *claims;       /* freed at the end of the turn */
    size_t n_claims;
    struct found found;
    struct parked_keys keys;
};

/* mdb_claim_list reads the consumer's claims from the rows of all_claims, which it releases. */
int mdb_claim_list(struct claiming *k, struct mdb_rows *q, struct error *err);
/* mdb_claim_is_ours says whether the claim that the turn settles is still its owner's. */
bool mdb_claim_is_ours(const struct claiming *k);
/* mdb_claim_over notes that a claim is over. */
void mdb_claim_over(struct claiming *k, int64_t epoch);
/* mdb_claim_record writes the claim k->b, whose epoch the turn writes to the consumer's row. */
int mdb_claim_record(struct claiming *k, struct error *err);
/* mdb_claim_unparked says whether it is known that nothing of the consumer is parked. */
bool mdb_claim_unparked(const struct claiming *k);
/* mdb_claim_next_epoch gives the epoch after last. */
int64_t mdb_claim_next_epoch(struct mdb_store *st, int64_t last);
/* mdb_claim_wait has the hint say that it pays to ask again at that time, or earlier. */
void mdb_claim_wait(struct claiming *k, int64_t at);

/* mdb_fresh_claim claims fresh events into k->b, if there are any. */
int mdb_fresh_claim(struct claiming *k, struct error *err);
/* mdb_fresh_wanted adds the rows of q that the lane and the filter want to c: until there are max
 * of them, or they have max_bytes. Releases q, which may be NULL: it failed. The events live in
 * k->a. */
int mdb_fresh_wanted(struct claiming *k, struct mdb_rows *q, int lane, size_t max, struct chunk *c,
                     struct error *err);
/* mdb_fresh_next is what a turn reads first, for a lane at that position. */
struct mdb_after mdb_fresh_next(const struct claim_request *req, int64_t position);
/* mdb_fresh_inline is how large a payload may be that comes with its row. mdb_fresh_payload reads a
 * larger one. */
int64_t mdb_fresh_inline(const struct claim_request *req);
int mdb_fresh_payload(struct claiming *k, struct event *ev, struct error *err);

/* mdb_parked_claim claims parked events that are due into k->b, if there are any. */
int mdb_parked_claim(struct claiming *k, struct error *err);

/* mdb_take_over dissolves every claim whose lease ran out into careful parked events. Where order
 * matters, a claim waits until the earlier ones of its lane are over. */
int mdb_take_over(struct claiming *k, struct error *err);

#endif
