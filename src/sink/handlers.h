/* handlers.h: the sink that calls functions in this process. */
#ifndef SINK_HANDLERS_H
#define SINK_HANDLERS_H

#include "sink/sink.h"

/* A handler's input besides the event, and its output. */
struct handler_call {
    char text[256];   /* reason for a failure; the handler may fill it in */
    int64_t delay_ms; /* minimum delay before the next attempt */
    void *tx;         /* the guard's transaction; NULL without a guard */
};

/* A handler runs in the pipeline's thread. It returns SINK_DELIVERED, SINK_RETRY, SINK_REJECT,
 * SINK_DOWN or SINK_NOT_MINE. */
typedef enum sink_status handler_fn(struct handler_call *call, const struct delivery *d, void *ctx);

/* A handler function and the events it receives. */
struct handler {
    const char *name;    /* borrowed; NULL without a guard */
    const char *pattern; /* of event types; several patterns are separated by commas; borrowed */
    bool external;       /* has effects outside the database, so it runs without a transaction */
    handler_fn *fn;
    void *ctx;
};

/* The guard's decision before a handler is called. */
enum handler_entry {
    HANDLER_RUN,
    HANDLER_SKIP,   /* the handler has already handled this event */
    HANDLER_FAIL,   /* entering failed for the reason in call->text; do not call the handler now */
    HANDLER_REFUSE, /* never call the handler again for this event; call->text has the reason */
    HANDLER_WAIT,   /* do not call the handler yet; call->text has the reason */
};

/* A guard makes each handler take effect exactly once. The sink calls enter before each handler.
 * After every HANDLER_RUN it calls leave with the handler's status; leave returns the status that
 * counts. SINK_CANCELLED means that the event will be retried from the start. */
struct handler_guard {
    void *ctx;
    enum handler_entry (*enter)(void *ctx, size_t handler, struct delivery *d,
                                struct handler_call *call);
    enum sink_status (*leave)(void *ctx, size_t handler, struct delivery *d, enum sink_status said,
                              struct handler_call *call);
};

/* handlers_open creates a sink that calls, in order, every handler whose pattern matches an event.
 * An event that matches no pattern counts as delivered. Without a guard, the sink stops at the
 * first handler that does not return SINK_DELIVERED, and reports that status. With a guard, each
 * handler's success is recorded separately, so the sink continues, and reports the most hopeful of
 * the failures. h[0..n) and *guard are copied. Errors: ERR_CONFIG, ERR_NOMEM. The sink is not in
 * sink_kinds. */
int handlers_open(const struct sink_config *cfg, const struct handler *h, size_t n,
                  const struct handler_guard *guard, struct sink **ret, struct error *err);

#endif
