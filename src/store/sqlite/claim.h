/* claim.h: what the files share that hand out work: turn.c, claim.c, claim_fresh.c, claim_parked.c,
 * lanes.c and take_over.c. Everything here runs inside the transaction of a turn, except
 * sqlite_fresh_prefetch and sqlite_parked_due. */
#ifndef STORE_SQLITE_CLAIM_H
#define STORE_SQLITE_CLAIM_H

#include "store/sqlite/sqlite.h"

/* Events that a claim looks at, at least, so that a filter that rarely matches still gets on. */
#define SQLITE_SCAN_MIN 10000

/* A chunk of events that were read in seq order. */
struct chunk {
    struct event *ev; /* those that are wanted */
    size_t n, scanned;
    int lane;         /* or STORE_ALL_LANES */
    int64_t from, to; /* looked at (from, to], by seq */
    /* of the event `to`, if this was read some time ago: see window.h; "": it was read just now */
    char to_id[UUID_TEXT + 1];
};

/* A claim in the making. (1) b->n > 0 once something was claimed. */
struct claiming {
    struct sqlite_store *st;
    const struct claim_request *req;
    struct arena *a; /* the batch lives there */
    struct batch *b;
    struct claim_hint *hint;
    int64_t now;
    int64_t epoch;      /* of the claim that is being made */
    struct chunk ahead; /* prefetched; scanned == 0: nothing */
};

/* sqlite_claim_record writes the claim k->b with its new epoch. */
int sqlite_claim_record(struct claiming *k, struct error *err);
/* sqlite_claim_next_epoch gives the epoch after last. */
int64_t sqlite_claim_next_epoch(struct sqlite_store *st, int64_t last);
/* sqlite_claim_known says whether the caller still has the fresh claim of this epoch in hand. */
bool sqlite_claim_known(const struct claim_request *req, int64_t epoch);
/* sqlite_claim_wait has the hint say that it pays to ask again at that time, or earlier. */
void sqlite_claim_wait(struct claiming *k, int64_t at);

/* sqlite_fresh_prefetch reads what will probably be claimed into k->ahead, before the write lock is
 * taken. */
int sqlite_fresh_prefetch(struct claiming *k, struct error *err);
/* sqlite_fresh_claim claims fresh events into k->b, if there are any. */
int sqlite_fresh_claim(struct claiming *k, struct error *err);
/* sqlite_fresh_read reads rows of q that the lane and the filter want into c: until there are max
 * of them, they have max_bytes, or q ends. Resets q, which may be NULL: it failed. The events live
 * in k->a, which may have grown even on failure. */
int sqlite_fresh_read(struct claiming *k, sqlite3_stmt *q, int lane, size_t max, struct chunk *c,
                      struct error *err);

/* sqlite_lanes_together finds where all lanes of the consumer stand, if this worker may claim from
 * them as from one; -1 if not. Whether somebody else has one of them is another question. */
int sqlite_lanes_together(struct claiming *k, int64_t *ret, struct error *err);
/* sqlite_lanes_ask is for a worker that has found nothing. If another one has claimed from all
 * lanes at once and there is more to do, a lane is set aside for this one, and the other claims
 * from single lanes from then on. */
int sqlite_lanes_ask(struct claiming *k, struct error *err);
/* sqlite_lanes_asked forgets what was set aside, once the worker has found something to do, or
 * nobody is in its way. */
int sqlite_lanes_asked(struct claiming *k, struct error *err);

/* sqlite_fresh_wanted says whether the filter wants the event of the row, of which nothing is
 * copied. */
bool sqlite_fresh_wanted(sqlite3_stmt *q, const struct filter *filter);

/* sqlite_parked_due says whether a parked event is due now. Before the write lock is taken, that is
 * a guess at what sqlite_parked_claim will find. */
int sqlite_parked_due(struct claiming *k, bool *ret, struct error *err);
/* sqlite_parked_claim claims parked events that are due into k->b, if there are any. */
int sqlite_parked_claim(struct claiming *k, struct error *err);

/* sqlite_take_over dissolves every claim whose lease ran out into careful parked events. Where
 * order matters, a claim waits until the earlier ones of its lane are over. */
int sqlite_take_over(struct claiming *k, struct error *err);

#endif
