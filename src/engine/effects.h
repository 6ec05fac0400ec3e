/* effects.h: handlers that work in the store's own database, so that each event takes effect there once.
 *
 * What the handlers of a batch do, that they did it (the inbox) and how the batch ended (its settlement) are one
 * transaction, on a handle of its own. It is opened by the first handler called and ended before the step is over, so
 * nothing waits for the network or a retry inside it. All events of a batch share it. If a call fails it is undone, and the
 * batch done again with a savepoint around that call; if that happens more often, around each of them. If it is the commit
 * that the database refuses, one event gets a transaction, and the rest is given back.
 *
 * A handler that acts outside (external) is called without a transaction and recorded afterwards; where there is one, each
 * call of the others is a transaction of its own, which asks whether the claim still holds before it commits. */
#ifndef ENGINE_EFFECTS_H
#define ENGINE_EFFECTS_H

#include "engine/live.h"
#include "sink/handlers.h"

struct pipeline;

struct effects {
    struct store *st; /* NULL: handlers act on their own */
    const struct handler *h;
    size_t n;
    bool each; /* a transaction for each call */

    struct live *open; /* whose transaction is open */
    int64_t opened_at; /* monotonic */
    bool single;       /* with a savepoint around each call */
    int undone_times;  /* of this batch */
    bool broken;       /* it must be undone, and the batch done again */
    bool failed;       /* a call among several did */
    bool called;       /* in this transaction; the last one for event `last` */
    size_t last;
    bool lone;            /* one event to a transaction, until this batch is over */
    struct error trouble; /* what the store said, where that is why it is broken; code 0: nothing */
    int single_left;      /* batches until all events share a transaction again */
    int fresh;            /* batches in a row of which nothing was recorded before */

    /* Of the batch with this epoch, by handler and event; they live in its arena. */
    int64_t epoch;
    struct inbox_key *key;
    bool *before;         /* was recorded before */
    bool *undone;         /* did not take effect in this transaction */
    bool *alone;          /* failed: with a savepoint around it */
    bool *ended;          /* ended the transaction by itself: never again */
    bool *lost;           /* lost the connection once */
    const char **failure; /* failed, for this reason, in a way that took the transaction along: not called again */

    struct live *unsure; /* the answer to its commit got lost */
};

/* effects_init: h[0..n) is borrowed. effects_guard is what to open the handlers with. */
void effects_init(struct effects *e, struct store *st, const struct handler *h, size_t n);
struct handler_guard effects_guard(struct pipeline *p);

/* effects_pending: the transaction is open, and its batch may go on in it. */
bool effects_pending(const struct pipeline *p, int64_t now);
/* effects_finish ends the transaction, if one is open: settles and commits, or undoes it and has the batch done again. */
void effects_finish(struct pipeline *p);
/* effects_drop undoes it if it is l's. */
void effects_drop(struct pipeline *p, const struct live *l);
/* effects_resolve finds out what became of a commit whose answer got lost. Returns whether it is known now. */
bool effects_resolve(struct pipeline *p);

#endif
