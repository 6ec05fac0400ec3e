/* handlers.h: the sink that calls functions in this process. */
#ifndef SINK_HANDLERS_H
#define SINK_HANDLERS_H

#include "sink/sink.h"

/* What a handler is given besides the event. */
struct handler_call {
    char text[256];   /* why it failed; the handler may fill it in */
    int64_t delay_ms; /* how long to wait at least before the next attempt */
    void *tx;         /* the transaction that the guard lends; NULL: none */
};

/* A handler runs in the pipeline's thread. It returns SINK_DELIVERED, SINK_RETRY, SINK_REJECT,
 * SINK_DOWN or SINK_NOT_MINE. */
typedef enum sink_status handler_fn(struct handler_call *call, const struct delivery *d, void *ctx);

/* A function, and which events it gets. */
struct handler {
    const char *name;    /* borrowed; NULL without a guard */
    const char *pattern; /* of event types, or several with commas; borrowed */
    bool external;       /* acts outside of the database, so the guard lends it nothing */
    handler_fn *fn;
    void *ctx;
};

/* What a guard says about a handler that is about to be called. */
enum handler_entry {
    HANDLER_RUN,
    HANDLER_SKIP,   /* it has taken effect for this event before */
    HANDLER_FAIL,   /* it has failed, as call->text says, and is not called now */
    HANDLER_REFUSE, /* it must no longer be called for this event; call->text says why */
    HANDLER_WAIT,   /* not now; call->text says why */
};

/* A guard stands between handlers and what they do, so that each takes effect once. enter is asked
 * before each call. leave is called after every HANDLER_RUN with what the handler returned, and
 * returns what counts; SINK_CANCELLED means that the event will be tried again from the start. */
struct handler_guard {
    void *ctx;
    enum handler_entry (*enter)(void *ctx, size_t handler, struct delivery *d,
                                struct handler_call *call);
    enum sink_status (*leave)(void *ctx, size_t handler, struct delivery *d, enum sink_status said,
                              struct handler_call *call);
};

/* handlers_open makes a sink that calls, for each event, every handler whose pattern matches, in
 * order. An event that none matches counts as delivered. Without a guard it stops at the first
 * handler that does not return SINK_DELIVERED, and that is the result. With a guard handlers
 * succeed on their own, so it goes on, and the result is the most hopeful of the failures. h[0..n)
 * and *guard are copied. Errors: ERR_CONFIG, ERR_NOMEM. The sink is not in sink_kinds. */
int handlers_open(const struct sink_config *cfg, const struct handler *h, size_t n,
                  const struct handler_guard *guard, struct sink **ret, struct error *err);

#endif
