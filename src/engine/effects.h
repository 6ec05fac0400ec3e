/* effects.h: handlers that work in the database of the store, so that each event takes effect there
 * once.
 *
 * What the handlers of a batch do, the record that they did it (the inbox) and the settlement of
 * the batch are one transaction, on a handle of its own. The first call opens it, and it ends
 * before the step is over, so nothing waits for the network or for a retry inside it. Its mode says
 * what it spans: see below. calls.h has what becomes of each call. */
#ifndef ENGINE_EFFECTS_H
#define ENGINE_EFFECTS_H

#include "engine/calls.h"
#include "engine/live.h"
#include "sink/handlers.h"

struct pipeline;

/* How much one transaction spans. A batch begins with the first three as wide as it may, and is
 * done again in a narrower one when a wider one has failed; it never goes back. */
enum effects_mode {
    /* all events share it. A call that failed in it has a savepoint from then on */
    MODE_PER_BATCH,
    MODE_SAVEPOINTS, /* all events share it, with a savepoint around each call */
    /* one event, with a savepoint around each call; the rest of the batch is given back */
    MODE_PER_EVENT,
    /* one call, which is committed only if the claim still holds; a call of an external handler
     * has none, and is recorded afterwards. So it is from the start if any handler is external */
    MODE_PER_CALL,
};

enum effects_state {
    EFFECTS_IDLE,
    EFFECTS_OPEN,
    EFFECTS_BROKEN, /* open, but it must be undone, and its batch done again */
    EFFECTS_UNSURE, /* the answer to its commit got lost */
};

/* (1) mode is written by set_mode, and state by effects.c. (2) batch and what follows it up to
 *   trouble mean something while
 * state is not IDLE. (3) With MODE_PER_CALL state is always IDLE: such a transaction is over before
 * the call has ended. */
struct effects {
    struct store *st; /* NULL: handlers act on their own */
    struct calls calls;
    enum effects_mode mode;
    int undone;            /* how often this batch was undone */
    int savepoint_batches; /* so many batches to come begin with MODE_SAVEPOINTS */
    int fresh;             /* batches in a row of which nothing was recorded before */

    enum effects_state state;
    struct live *batch;
    int64_t opened_at;       /* monotonic */
    const struct item *last; /* the event that was last called for; NULL: none was */
    size_t failures;         /* calls that failed, and were undone alone */
    struct error trouble;    /* why it is BROKEN, if the store said so; code 0: it did not */
};

/* effects_init borrows h[0..n). effects_guard is what the handlers' sink is opened with. */
void effects_init(struct effects *e, struct store *st, const struct handler *h, size_t n);
struct handler_guard effects_guard(struct pipeline *p);

/* effects_used says whether handlers work in the database of the store at all. effects_in_tx: a
 * transaction is open. effects_unsure: nobody knows whether one was committed. */
static inline bool effects_used(const struct effects *e)
{
    return e->st != NULL;
}

static inline bool effects_in_tx(const struct effects *e)
{
    return e->state == EFFECTS_OPEN || e->state == EFFECTS_BROKEN;
}

static inline bool effects_unsure(const struct effects *e)
{
    return e->state == EFFECTS_UNSURE;
}

/* effects_pending says whether the batch may go on in the transaction that is open. */
bool effects_pending(const struct pipeline *p, int64_t now);
/* effects_finish ends the transaction, if one is open: it settles and commits, or undoes it and has
 * the batch done again. */
void effects_finish(struct pipeline *p);
/* effects_drop undoes it, if it is that of l, and forgets l. */
void effects_drop(struct pipeline *p, const struct live *l);
/* effects_resolve finds out what became of a commit whose answer got lost. Returns whether it is
 * known now. */
bool effects_resolve(struct pipeline *p);

/* What calls.c needs of the transaction. effects_open opens that of l. effects_break: it must be
 * undone, because of what the store said (NULL: nothing). effects_refused tells an error of a
 * commit that is about what handlers did. */
int effects_open(struct pipeline *p, struct live *l, struct error *err);
void effects_break(struct effects *e, const struct error *why);
bool effects_refused(struct effects *e, const struct error *err);

#endif
