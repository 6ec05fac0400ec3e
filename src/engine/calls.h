/* calls.h: the calls of a batch, one for each handler and event, and the fate of each.
 *
 * A fate outlives a transaction that is undone: that is how a batch gets further each time it is
 * done again. */
#ifndef ENGINE_CALLS_H
#define ENGINE_CALLS_H

#include "engine/live.h"
#include "sink/handlers.h"

/* (1) A fate is written in calls.c alone. (2) RECORDED and DONE are true of the open transaction
 *   only: calls_renew takes
 * them back. (3) ENDED is final. */
enum call_fate {
    CALL_OPEN,     /* nothing is known of it */
    CALL_RECORDED, /* the inbox says that it took effect before, so it is skipped */
    /* it took effect in this transaction, and will be recorded when that is sealed */
    CALL_DONE,
    /* it failed in a transaction without savepoints, and gets a savepoint from now on */
    CALL_ALONE,
    CALL_LOST, /* as ALONE, and the connection was lost once while its handler was at work */
    /* it failed and took the transaction with it: it counts as failed without being made again */
    CALL_FAILED,
    CALL_ENDED, /* its handler ended the transaction: the event is refused */
};

struct calls {
    const struct handler *h;
    size_t n_handlers;

    /* Of one batch, by handler and event. They live in the arena of that batch. */
    int64_t epoch; /* of the batch; 0: there is none */
    size_t n;
    struct inbox_key *key;
    enum call_fate *fate;
    const char **failure; /* why, for CALL_FAILED */
    bool *flag;           /* room for what is asked of the inbox, or for its answer */
};

/* calls_init borrows h[0..n). */
void calls_init(struct calls *c, const struct handler *h, size_t n);
/* calls_load lists the calls of l. It does nothing if they are listed already. calls_forget drops
 * them if they are those of l, whose arena is about to go. */
int calls_load(struct calls *c, struct live *l, struct error *err);
bool calls_loaded(const struct calls *c, const struct live *l);
void calls_forget(struct calls *c, const struct live *l);

/* calls_renew gets the fates ready for a new transaction. */
void calls_renew(struct calls *c);
/* calls_flagged takes the answer of the inbox from c->flag. It returns whether any call was
 * recorded before. */
bool calls_flagged(struct calls *c);
/* calls_not_done says which calls must not be recorded when the transaction is sealed, in
 * c->flag. */
const bool *calls_not_done(struct calls *c);
/* calls_fail_event makes every call for this event count as failed from now on. */
void calls_fail_event(struct calls *c, const struct item *it, const char *why);

/* calls_enter and calls_leave stand before and after each call: see struct handler_guard. ctx is
 * the pipeline. */
enum handler_entry calls_enter(void *ctx, size_t handler, struct delivery *d,
                               struct handler_call *call);
enum sink_status calls_leave(void *ctx, size_t handler, struct delivery *d, enum sink_status said,
                             struct handler_call *call);

#endif
