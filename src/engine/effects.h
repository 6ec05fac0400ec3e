/* effects.h: the transaction of named handlers, which run in the store's database so that each
 * event takes effect there once.
 *
 * The work of a batch's handlers, the record of it (the inbox) and the settlement of the batch are
 * one transaction, on a separate store handle. The first call opens it, and it ends with the step,
 * so it never waits for the network or for a retry. */
#ifndef ENGINE_EFFECTS_H
#define ENGINE_EFFECTS_H

#include "engine/inflight.h"
#include "engine/pipeline.h"
#include "sink/handlers.h"

/* ---- the calls of a batch, one for each handler and event ----
 *
 * Fates survive a rollback, so a batch advances further each time it is repeated. */

/* (1) A fate that ends a call is written by calls.c only.
 * (2) RECORDED and DONE hold for the open transaction only: effects_open resets them.
 * (3) ENDED is final. */
enum call_fate {
    CALL_OPEN,     /* undecided */
    CALL_RECORDED, /* the inbox has a record of an earlier effect: skipped */
    CALL_DONE,     /* took effect in this transaction; recorded when that is sealed */
    CALL_ALONE,    /* failed in a transaction without savepoints: has one from now on */
    CALL_LOST,     /* like ALONE, and the connection was lost while the handler ran */
    CALL_FAILED,   /* failed and took the transaction with it: not repeated */
    CALL_ENDED,    /* the handler ended the transaction: the event is refused */
};

struct calls {
    const struct handler *h;
    size_t n_handlers;

    /* The calls of one batch, by handler and event. They live in the arena of that batch. */
    int64_t epoch; /* of the batch; 0: none is loaded */
    size_t n;
    struct inbox_key *key;
    enum call_fate *fate;
    const char **failure; /* why, for CALL_FAILED */
    bool *flag;           /* a question to the inbox, or its answer: one flag per call */
};

/* ---- the transaction ---- */

/* How much one transaction spans. A batch begins with the widest of the first three modes that it
 * may use; when a transaction fails, it is repeated in a narrower one. MODE_PER_CALL is set from
 * the start if any handler is external, and stays. */
enum effects_mode {
    MODE_PER_BATCH,  /* all events; a call that failed in it has a savepoint from then on */
    MODE_SAVEPOINTS, /* all events, with a savepoint around each call */
    MODE_PER_EVENT,  /* one event, with a savepoint around each call; the rest is given back */
    /* One call, committed only if the claim still holds. A call of an external handler has no
     * transaction, and is recorded afterwards. */
    MODE_PER_CALL,
};

enum effects_state {
    EFFECTS_IDLE, /* no transaction is open */
    EFFECTS_OPEN,
    EFFECTS_BROKEN, /* open, but must be undone, and its batch repeated */
    EFFECTS_UNSURE, /* the answer to its commit was lost */
};

/* (1) Only set_mode writes mode, and only effects.c writes state.
 * (2) The members from batch to trouble are meaningful only while state is not IDLE.
 * (3) In MODE_PER_CALL, state is always IDLE: such a transaction ends with its call.
 * (4) With a pool, st is NULL between steps, unless state is UNSURE. */
struct effects {
    struct store *st; /* NULL, and no pool: handlers act outside the store */
    struct tx_pool pool;
    struct calls calls;
    enum effects_mode mode;
    int undone;            /* how often this batch was undone */
    int savepoint_batches; /* how many batches to come begin with MODE_SAVEPOINTS */
    int fresh;             /* batches in a row none of whose calls was recorded before */

    enum effects_state state;
    struct batch_state *batch;
    int64_t opened_at;       /* monotonic */
    const struct slot *last; /* the event of the last call; NULL: no call was made */
    size_t failures;         /* calls that failed and were undone individually */
    struct error trouble;    /* the store's error that broke the transaction; code 0: none */
};

/* effects_init borrows cfg->tx_conn or cfg->tx_pool, and the handlers. */
void effects_init(struct effects *e, const struct pipeline_config *cfg);

/* effects_used returns whether handlers work in the store's database. effects_in_tx returns
 * whether a transaction is open, effects_unsure whether a commit is in doubt. */
static inline bool effects_used(const struct effects *e)
{
    return e->st || e->pool.acquire;
}

static inline bool effects_in_tx(const struct effects *e)
{
    return e->state == EFFECTS_OPEN || e->state == EFFECTS_BROKEN;
}

static inline bool effects_unsure(const struct effects *e)
{
    return e->state == EFFECTS_UNSURE;
}

/* effects_pending returns whether more calls may be made in the open transaction. */
bool effects_pending(const struct pipeline *p, int64_t now);
/* effects_finish ends the transaction, if one is open: it settles the batch and commits, or undoes
 * everything and starts the batch over. */
void effects_finish(struct pipeline *p);
/* effects_drop forgets the batch, and undoes the transaction if it belongs to the batch. */
void effects_drop(struct pipeline *p, const struct batch_state *b);
/* effects_resolve determines the outcome of a commit whose answer was lost. Returns whether it is
 * known now. */
bool effects_resolve(struct pipeline *p);

/* effects_release returns the connection to the pool, unless a transaction is open on it or in
 * doubt. effects_acquire acquires one if st is NULL. */
void effects_release(struct effects *e);
/* effects_close undoes an open transaction and returns the connection, before the pipeline is
 * freed. */
void effects_close(struct effects *e);
int effects_acquire(struct effects *e, struct error *err);

/* For calls.c. effects_open opens the transaction of the batch. effects_break notes that it must be
 * undone, with the store's error (NULL: none). effects_refused returns whether a commit failed
 * because of the handlers' changes. */
int effects_open(struct pipeline *p, struct batch_state *b, struct error *err);
void effects_break(struct effects *e, const struct error *why);
bool effects_refused(struct effects *e, const struct error *err);
/* effects_freeze tells the lease renewer that the handlers' transaction has begun or ended. In a
 * store with one writer, no claim can be taken over or extended while it is open. */
void effects_freeze(struct pipeline *p, bool frozen);

/* effects_load lists the calls of a batch and chooses the mode that it begins with; once, however
 * often the batch is repeated. Fails when out of memory. */
int effects_load(struct effects *e, struct batch_state *b, struct error *err);

/* ---- calls.c ---- */

/* calls_place returns the index of a call in the arrays of struct calls. */
static inline size_t calls_place(size_t handler, const struct slot *slot)
{
    size_t event = (size_t)(slot - slot->batch->slots);
    return handler * slot->batch->claim.n + event;
}

/* calls_fail makes the call count as failed when the batch is repeated. If out of memory for the
 * reason, the call is repeated instead. */
void calls_fail(struct calls *c, struct batch_state *b, size_t at, const char *why);

/* calls_enter and calls_leave are called before and after each call of a handler: see struct
 * handler_guard. ctx is the pipeline. */
enum handler_entry calls_enter(void *ctx, size_t handler, struct delivery *d,
                               struct handler_call *call);
enum sink_status calls_leave(void *ctx, size_t handler, struct delivery *d, enum sink_status said,
                             struct handler_call *call);

#endif
