/* calls.h: the calls of a batch, one for each handler and event, and the fate of each.
 *
 * Fates survive a rollback, so a batch gets further each time it is repeated.
 */
#ifndef ENGINE_CALLS_H
#define ENGINE_CALLS_H

#include "engine/inflight.h"
#include "sink/handlers.h"

/* (1) Only calls.c writes a fate.
 * (2) RECORDED and DONE hold for the open transaction only: calls_renew resets them.
 * (3) ENDED is final. */
enum call_fate {
    CALL_OPEN,     /* nothing is known about it */
    CALL_RECORDED, /* the inbox has a record of an earlier effect: skipped */
    CALL_DONE,     /* took effect in this transaction; recorded when that is sealed */
    CALL_ALONE,    /* failed in a transaction without savepoints: gets one from now on */
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

/* calls_init borrows h[0..n). */
void calls_init(struct calls *c, const struct handler *h, size_t n);
/* calls_load lists the calls of the batch, unless they are loaded already (see calls_loaded). Fails
 * when out of memory. calls_forget drops them if they belong to b, whose arena is about to be
 * freed. */
int calls_load(struct calls *c, struct batch_state *b, struct error *err);
bool calls_loaded(const struct calls *c, const struct batch_state *b);
void calls_forget(struct calls *c, const struct batch_state *b);

/* calls_renew prepares the fates for a new transaction. */
void calls_renew(struct calls *c);
/* calls_flagged reads the answer of the inbox from c->flag. Returns whether any call was already
 * recorded. */
bool calls_flagged(struct calls *c);
/* calls_not_done fills c->flag with the calls that must not be recorded when the transaction is
 * sealed, and returns it. */
const bool *calls_not_done(struct calls *c);
/* calls_fail_event makes every call for this event count as failed from now on. */
void calls_fail_event(struct calls *c, const struct slot *slot, const char *why);

/* calls_enter and calls_leave are called before and after each call of a handler: see struct
 * handler_guard. ctx is the pipeline. */
enum handler_entry calls_enter(void *ctx, size_t handler, struct delivery *d,
                               struct handler_call *call);
enum sink_status calls_leave(void *ctx, size_t handler, struct delivery *d, enum sink_status said,
                             struct handler_call *call);

#endif
