/* handlers.h: the sink that calls functions in this process. */
#ifndef SINK_HANDLERS_H
#define SINK_HANDLERS_H

#include "sink/sink.h"

/* What a handler is given besides the event. */
struct handler_call {
    char text[256]; /* why it failed; the handler may fill it in */
};

/* A handler runs in the pipeline's thread. It returns SINK_DELIVERED, SINK_RETRY, SINK_REJECT or SINK_DOWN. */
typedef enum sink_status handler_fn(struct handler_call *call, const struct delivery *d, void *ctx);

struct handler {
    const char *pattern; /* of event types; borrowed */
    handler_fn *fn;
    void *ctx;
};

/* handlers_open makes a sink that calls, for each event, every handler whose pattern matches, in order, until one does
 * not return SINK_DELIVERED: that is the result. No match counts as delivered. h[0..n) is copied. Not in sink_kinds. */
int handlers_open(const struct sink_config *cfg, const struct handler *h, size_t n, struct sink **ret,
                  struct error *err);

#endif
