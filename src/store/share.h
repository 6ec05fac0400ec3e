/* share.h: many consumers on a few connections.
 *
 * A share is the store of a whole relay. It has a few handles, whatever the number of consumers.
 * Each consumer has a seat: a store whose operations (turn, extend and the others that a pipeline
 * calls) borrow a handle for as long as they last. Turns that are asked for at the same time, and
 * are simple, are made together (store_ops.turns).
 *
 * One more handle belongs to the lookout (lookout.c). It alone listens for the bell, and rings the
 * seats that a commit concerns. */
#ifndef STORE_SHARE_H
#define STORE_SHARE_H

#include "store/store.h"

struct share;

struct share_config {
    const struct clock *clock;
    int connections;  /* handles at most, with that of the lookout; at least 2 */
    int64_t sweep_ms; /* ring everybody at least this often */

    /* told is called by the lookout's thread when its looks begin to fail, when they fail for
     * another reason, and, with why == NULL, when they no longer do. May be NULL. */
    void (*told)(void *ctx, const struct error *why);
    void *ctx;
};

/* share_possible says whether so many workers can share the store, and gain by it. A store that
 * writes one at a time is shared from SHARE_WORKERS on: fewer have a handle each, so that they can
 * read at the same time. */
#define SHARE_WORKERS 5
bool share_possible(const struct store *st, size_t workers);

/* share_open makes a share of the outbox that st is a handle of. It borrows st, of which it makes
 * duplicates. share_listen starts the lookout: until then, no seat is rung. share_close stops it;
 * all seats must be closed by then. */
int share_open(struct store *st, const struct share_config *cfg, struct share **ret,
               struct error *err);
int share_listen(struct share *sh, struct error *err);
void share_close(struct share *sh);

/* share_seat makes a seat, which the caller closes like any store. It is rung for events that pass
 * the patterns and the predicate, which are as for filter_new; without `wants` it is never rung. It
 * has only the operations that a relay needs: turn, extend, the bell, consumer_put, consumer_pause,
 * consumer_report and trim. Any thread. */
struct share_wants {
    const char *events, *where;
};
int share_seat(struct share *sh, const struct share_wants *wants, struct store **ret,
               struct error *err);

#endif
