/* turn.h: internals of a turn, shared by turn.c, claim.c, fresh.c, parked.c, held_keys.c and the
 * drivers. Everything here runs inside the transaction of a turn, which has locked the consumer's
 * row, except for the driver's before_turns and after_turns. */
#ifndef STORE_DB_TURN_H
#define STORE_DB_TURN_H

#include "store/db/db.h"

/* A claim of the consumer, by any owner. from == to: it has no events, and reserves a lane. */
struct db_claim {
    int64_t epoch, from, to, until, lease;
    int64_t boot, ahead; /* the clock of `until`; see shorten in claim.c */
    int lane;
    bool parked;
    bool blamed; /* if its worker vanishes, its event is charged an attempt */
    bool others; /* its owner is not the caller */
    bool known;  /* the caller still holds it, and may settle it, however late */
    bool over;   /* it was settled or taken over in this turn */
    bool ours;   /* the turn settles it */
};

/* The position of a lane, and whether the consumer has parked events. */
struct found {
    bool known; /* it was read, and the turn has not changed it since */
    int lane;
    int64_t position;
    bool parked;
};

/* Events read in seq order. */
struct chunk {
    struct event *ev; /* the wanted events */
    size_t n, scanned, bytes;
    int lane;         /* or STORE_ALL_LANES */
    int64_t from, to; /* examined (from, to], by seq */
    /* id of the event `to`, if this was read in advance; "": it was read just now */
    char to_id[UUID_TEXT + 1];
};

/* A turn: it settles, claims, or does both. (1) b->n > 0 once something was claimed. */
struct turn {
    struct store *st;
    const char *consumer;
    const struct claim_request *req; /* NULL: neither claim nor take over */
    const struct settlement *s;      /* NULL: nothing is settled */
    bool batched;                    /* the turn shares its transaction with others */
    struct arena *a;                 /* memory of the batch */
    struct batch *b;
    struct claim_hint *hint;
    struct chunk prefetched; /* the driver's; scanned == 0: none */

    /* Read together with the consumer's row. */
    bool registered;
    int64_t now;
    int64_t epoch; /* of the new claim */
    int64_t version;
    bool marks; /* this consumer marks rows of adopted tables */
    struct db_claim *claims;
    size_t n_claims;
    struct found found;

    bool lost;         /* the claim that s settles was no longer ours */
    int64_t delivered; /* events of s delivered */
};

/* ---- claim.c ---- */

/* db_claim_list reads the rows of all_claims into t->claims, which the turn frees. */
int db_claim_list(struct turn *t, struct db_rows *q, struct error *err);
/* db_claim_is_ours returns whether the owner still holds the claim that the turn settles. */
bool db_claim_is_ours(const struct turn *t);
void db_claim_over(struct turn *t, int64_t epoch);
/* db_claim_blocks returns whether a claim blocks the caller from a lane, or from all lanes. */
bool db_claim_blocks(const struct db_claim *c, int lane);
/* db_claim_next_epoch returns the epoch after `last`. */
int64_t db_claim_next_epoch(struct store *st, int64_t last);
/* db_claim_record records the claim t->b. The turn writes its epoch to the consumer's row. */
int db_claim_record(struct turn *t, struct error *err);
/* db_claim_wait lowers the hint's wait to that time, if it is later. */
void db_claim_wait(struct turn *t, int64_t at);
/* db_take_over ends every expired claim and parks its events as suspects. Where order matters, a
 * claim waits until the earlier ones of its lane are over. */
int db_take_over(struct turn *t, struct error *err);

/* ---- fresh.c ---- */

#define FRESH_SCAN_MIN 10000 /* events examined per claim at least, however few the filter wants */

/* db_fresh_claim claims fresh events into t->b, if there are any. */
int db_fresh_claim(struct turn *t, struct error *err);
/* db_fresh_claim_after claims those after the position of a lane, or of all, and advances it. */
int db_fresh_claim_after(struct turn *t, int lane, int64_t position, struct error *err);
/* db_fresh_lane_free returns whether no claim blocks the caller; if one does, the hint says so. */
bool db_fresh_lane_free(struct turn *t, int lane);
/* db_fresh_find reads t->found for a lane, unless it is known. */
int db_fresh_find(struct turn *t, int lane, struct error *err);
/* db_fresh_first returns the lane to try first. */
int db_fresh_first(const struct claim_request *req);
/* db_fresh_wants returns whether the filter matches this row, without copying anything. */
bool db_fresh_wants(const struct db_rows *q, const struct filter *f);
/* db_fresh_add adds the rows of q that the lane and the filter want to c, which has room for `max`:
 * until it is full, has max_bytes, or q ends. It ends q, which may have failed to start. */
int db_fresh_add(struct turn *t, struct db_rows *q, int lane, size_t max, struct chunk *c,
                 struct error *err);
/* db_fresh_inline returns how large a payload may be to be read with its row. */
int64_t db_fresh_inline(const struct claim_request *req);
int db_fresh_payload(struct turn *t, struct event *ev, struct error *err);
/* db_fresh_unparked returns whether the consumer is known to have no parked events. */
bool db_fresh_unparked(const struct turn *t);

/* ---- parked.c ---- */

/* db_parked_claim claims parked events that are due into t->b, if there are any. */
int db_parked_claim(struct turn *t, struct error *err);
/* db_parked_due says whether a parked event is due; before the transaction this is a guess. */
int db_parked_due(struct turn *t, bool *ret, struct error *err);

/* ---- held_keys.c ---- */

/* (1) Unless `whole`, the set is unknown: any key may be held. (2) The number of slots is a power
 * of two, at least twice the number of keys; 0 is an empty slot, and never a key. (3) The set is
 * valid while the consumer has this stamp. */
struct held_keys {
    bool whole;
    int64_t *slot;
    size_t places, n;
    int64_t stamp;
    size_t asked,
        read_at; /* separate queries since the last read; the number at which a read pays off */
    char *consumer;
    struct held_keys *next;
};

/* held_keys_check notes the current stamp, and drops a set that is out of date. */
void held_keys_check(struct store *st, const char *consumer, int64_t stamp);
/* held_keys_read returns the set of a consumer, reading it first if that pays off for this many
 * events. The set is unknown if memory ran out or there are too many keys. *ret may be NULL. */
int held_keys_read(struct store *st, const char *consumer, size_t events, struct held_keys **ret,
                   struct error *err);
/* held_keys_change must accompany any change to parked events. This handle's set stays valid. */
int held_keys_change(struct store *st, const char *consumer, struct error *err);
/* held_keys_forget drops the set of a consumer; held_keys_release all sets, with the handle. */
void held_keys_forget(struct store *st, const char *consumer);
void held_keys_release(struct store *st);

/* held_keys_may returns whether an event of this key may be parked; exact if h is whole. */
bool held_keys_may(const struct held_keys *h, int64_t key);
/* held_keys_add notes that an event of the consumer with this key is now parked. */
void held_keys_add(struct store *st, const char *consumer, int64_t key);

#endif
