/* handlers.h: the sink that calls functions in this process. */
#ifndef SINK_HANDLERS_H
#define SINK_HANDLERS_H

#include "sink/sink.h"

/* What a handler receives besides the event. */
struct handler_call {
    char text[256];   /* why it failed; may be filled in by the handler */
    int64_t delay_ms; /* minimum delay before the next attempt */
    void *tx;         /* the guard's transaction; NULL: none */
};

/* A handler runs in the pipeline's thread. It returns SINK_DELIVERED, SINK_RETRY, SINK_REJECT,
 * SINK_DOWN or SINK_NOT_MINE. */
typedef enum sink_status handler_fn(struct handler_call *call, const struct delivery *d, void *ctx);

/* A function, and which events it gets. */
struct handler {
    const char *name;    /* borrowed; NULL without a guard */
    const char *pattern; /* of event types; several are separated by commas; borrowed */
    bool external;       /* acts outside the database, so it gets no transaction */
    handler_fn *fn;
    void *ctx;
};

/* The guard's decision about a handler that is about to be called. */
enum handler_entry {
    HANDLER_RUN,
    HANDLER_SKIP,   /* it already took effect for this event */
    HANDLER_FAIL,   /* it has failed for the reason in call->text, and is not called now */
    HANDLER_REFUSE, /* it must no longer be called for this event; call->text has the reason */
    HANDLER_WAIT,   /* not now; call->text has the reason */
};

/* A guard makes each handler take effect exactly once. enter is called before each handler. leave
 * is called after every HANDLER_RUN with the handler's status and returns the status that counts;
 * SINK_CANCELLED means that the event will be retried from the start. */
struct handler_guard {
    void *ctx;
    enum handler_entry (*enter)(void *ctx, size_t handler, struct delivery *d,
                                struct handler_call *call);
    enum sink_status (*leave)(void *ctx, size_t handler, struct delivery *d, enum sink_status said,
                              struct handler_call *call);
};

/* handlers_open makes a sink that calls every handler whose pattern matches an event, in order. An
 * event that matches none counts as delivered. Without a guard it stops at the first handler that
 * does not return SINK_DELIVERED, and that is the result. With a guard each handler succeeds on its
 * own, so it continues, and the result is the most hopeful of the failures. h[0..n) and *guard are
 * copied. Errors: ERR_CONFIG, ERR_NOMEM. The sink is not in sink_kinds. */
int handlers_open(const struct sink_config *cfg, const struct handler *h, size_t n,
                  const struct handler_guard *guard, struct sink **ret, struct error *err);

#endif
