/* turn.h: what the files share that make turns: turn.c, claim.c, fresh.c, parked.c and take_over.c,
 * and the drivers. Everything here runs inside the transaction of a turn, which has the consumer's
 * row, except for the driver's before_turns and after_turns. */
#ifndef STORE_DB_TURN_H
#define STORE_DB_TURN_H

#include "store/db/db.h"

/* A claim of the consumer, whoever has it. from == to: it has no events, and sets a lane aside. */
struct db_claim {
    int64_t epoch, from, to, until, lease;
    int64_t boot, ahead; /* by which clock `until` is; see shorten in take_over.c */
    int lane;
    bool parked;
    bool blamed; /* if its worker vanishes, that is an attempt of its event */
    bool others; /* its owner is not the caller */
    bool known;  /* the caller still has it in hand: it may settle it, however late */
    bool over;   /* it was settled or taken over in this turn */
    bool ours;   /* it is the one that the turn settles */
};

/* Where a lane is, and whether anything of the consumer is parked. */
struct found {
    bool known; /* it was read, and nothing that the turn did since has changed it */
    int lane;
    int64_t position;
    bool parked;
};

/* A chunk of events that were read in seq order. */
struct chunk {
    struct event *ev; /* those that are wanted */
    size_t n, scanned, bytes;
    int lane;         /* or STORE_ALL_LANES */
    int64_t from, to; /* looked at (from, to], by seq */
    /* of the event `to`, if this was read some time ago; "": it was read just now */
    char to_id[UUID_TEXT + 1];
};

/* A turn: it settles, claims, or does both. (1) b->n > 0 once something was claimed. */
struct turn {
    struct store *st;
    const char *consumer;
    const struct claim_request *req; /* NULL: nothing is to be claimed or taken over */
    const struct settlement *s;      /* NULL: nothing is settled */
    bool batched;                    /* the transaction is not its own */
    struct arena *a;                 /* the batch lives there */
    struct batch *b;
    struct claim_hint *hint;
    struct chunk prefetched; /* the driver's; scanned == 0: nothing */

    /* Read together with the consumer's row. */
    bool registered;
    int64_t now;
    int64_t epoch; /* of the claim that is being made */
    int64_t version;
    bool marks; /* rows of adopted tables are marked once this consumer has had them */
    struct db_claim *claims;
    size_t n_claims;
    struct found found;

    bool lost;         /* the claim that s settles was no longer ours */
    int64_t delivered; /* events of it */
};

/* ---- claim.c ---- */

/* db_claim_list reads the rows of all_claims into t->claims, which the turn frees. */
int db_claim_list(struct turn *t, struct db_rows *q, struct error *err);
/* db_claim_is_ours says whether the claim that the turn settles is still its owner's. */
bool db_claim_is_ours(const struct turn *t);
void db_claim_over(struct turn *t, int64_t epoch);
/* db_claim_blocks says whether a claim keeps the caller from fresh events of a lane, or of all. */
bool db_claim_blocks(const struct db_claim *c, int lane);
/* db_claim_next_epoch gives the epoch after last. */
int64_t db_claim_next_epoch(struct store *st, int64_t last);
/* db_claim_record writes the claim t->b. The turn writes its epoch to the consumer's row. */
int db_claim_record(struct turn *t, struct error *err);
/* db_claim_wait has the hint say that it pays to ask again at that time, or earlier. */
void db_claim_wait(struct turn *t, int64_t at);

/* ---- fresh.c ---- */

#define FRESH_SCAN_MIN 10000 /* events looked at per claim at least, however few the filter wants */

/* db_fresh_claim claims fresh events into t->b, if there are any. */
int db_fresh_claim(struct turn *t, struct error *err);
/* db_fresh_claim_after claims those of a lane, or of all, after the position where it stands. That
 * moves past skipped events even if none is wanted. */
int db_fresh_claim_after(struct turn *t, int lane, int64_t position, struct error *err);
/* db_fresh_lane_free says whether no claim keeps the caller from a lane, or from all; if one does,
 * the hint says so. */
bool db_fresh_lane_free(struct turn *t, int lane);
/* db_fresh_find reads t->found for a lane, unless it is known. */
int db_fresh_find(struct turn *t, int lane, struct error *err);
/* db_fresh_first is the lane that the turn tries first. */
int db_fresh_first(const struct claim_request *req);
/* db_fresh_type says whether the filter wants an event of this row's type and, if the payload came
 * with it, of that payload. Nothing is copied. */
bool db_fresh_wants(const struct db_rows *q, const struct filter *f);
/* db_fresh_add adds the rows of q that the lane and the filter want to c, which has room for `max`:
 * until it is full, has max_bytes, or q ends. It ends q, which may have failed to start. */
int db_fresh_add(struct turn *t, struct db_rows *q, int lane, size_t max, struct chunk *c,
                 struct error *err);
/* db_fresh_inline is how large a payload may be that comes with its row. A larger one is read
 * separately. */
int64_t db_fresh_inline(const struct claim_request *req);
int db_fresh_payload(struct turn *t, struct event *ev, struct error *err);
/* db_fresh_unparked says whether it is known that nothing of the consumer is parked. */
bool db_fresh_unparked(const struct turn *t);

/* ---- parked.c, take_over.c ---- */

/* db_parked_claim claims parked events that are due into t->b, if there are any. */
int db_parked_claim(struct turn *t, struct error *err);
/* db_parked_due says whether a parked event is due now. Before the transaction, that is a guess at
 * what db_parked_claim will find. */
int db_parked_due(struct turn *t, bool *ret, struct error *err);

/* db_take_over dissolves every claim whose lease ran out into suspect parked events. Where order
 * matters, a claim waits until the earlier ones of its lane are over. */
int db_take_over(struct turn *t, struct error *err);

#endif
