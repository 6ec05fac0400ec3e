/* receive.h: the reading end of what a sink writes to, for people who try it out and for tests. A
 * receiver is no consumer: it keeps no position and acknowledges nothing, so it changes nothing. */
#ifndef SINK_RECEIVE_H
#define SINK_RECEIVE_H

#include "event/message.h"

struct receiver;

/* What a receiver is opened with. Strings live as long as the receiver. */
struct receiver_config {
    const char *url; /* that of the sink; a destination with fields stands for all that fit it */
    /* where to begin: "beginning", "end", or a position as the broker writes it */
    const char *from;
    int wake; /* a descriptor that is readable when it is time to stop; -1: none */
};

/* One message. Its strings are borrowed until the next call of the receiver. */
struct received {
    struct message m;
    struct str place;    /* the stream, subject or queue; "topic/3" with a partition */
    struct str position; /* where it is there: an id, an offset; absent: the broker has none */
};

struct receiver_ops {
    const char *scheme; /* of the sink */

    /* open connects and begins to read. On success the caller owns *ret and releases it with close.
     * Errors: ERR_CONFIG if it can never work, ERR_UNAVAILABLE, ERR_NOMEM. */
    int (*open)(const struct receiver_config *cfg, struct receiver **ret, struct error *err);

    /* next waits up to timeout_ms for the next message. *ret_got says whether there is one; not if
     * the time is over, or cfg.wake is readable. Messages of a place come in the place's order. A
     * broker that is away for a moment is no error as long as nothing is missed. */
    int (*next)(struct receiver *rc, int64_t timeout_ms, struct received *ret, bool *ret_got,
                struct error *err);

    /* close frees everything. */
    void (*close)(struct receiver *rc);
};

/* The base of every receiver; it comes first in the backend's own struct. */
struct receiver {
    const struct receiver_ops *ops;
    struct receiver_config cfg;
};

/* receive_kinds lists the receivers of this build and ends with NULL. */
extern const struct receiver_ops *const receive_kinds[];

/* receive_find finds the kind of a sink's URL. ERR_CONFIG for a sink that cannot be read from; the
 * text lists those that can. */
int receive_find(const char *url, const struct receiver_ops **ret, struct error *err);

#endif
