/* receive.h: reads back what sinks write, for outbox receive and for tests. Deliveries do not
 * depend on it. A receiver is not a consumer: it stores no position and acknowledges nothing, and
 * so changes nothing. */
#ifndef RECEIVE_RECEIVE_H
#define RECEIVE_RECEIVE_H

#include "event/message.h"

struct receiver;

/* Settings of a receiver. Strings live as long as the receiver. */
struct receiver_config {
    const char *url; /* the sink's URL; a destination with fields matches all that fit it */
    /* where to start: "beginning", "end", or a position as the broker writes it */
    const char *from;
    int wake; /* a descriptor that becomes readable when it is time to stop; -1: none */
};

/* One message. Its strings are borrowed until the next call on the receiver. */
struct received {
    struct message m;
    struct str place;    /* the stream, subject or queue; "topic/3" with a partition */
    struct str position; /* position in that place: an id, an offset; absent: the broker has none */
};

/* A backend. */
struct receiver_ops {
    const char *const *schemes; /* of the sink's URLs; ends with NULL */
    size_t size;                /* of its own struct, which begins with struct receiver */

    /* begin connects and starts reading; *rc is zeroed except for its base. Errors: ERR_CONFIG if
     * it can never work, ERR_UNAVAILABLE, ERR_NOMEM. */
    int (*begin)(struct receiver *rc, struct error *err);
    /* step returns a message that has arrived, or makes progress, waiting for about wait_ms.
     * *ret_got is set only for a message. */
    int (*step)(struct receiver *rc, int64_t wait_ms, struct received *ret, bool *ret_got,
                struct error *err);
    /* end releases the contents of *rc, even after begin has failed. */
    void (*end)(struct receiver *rc);
    bool patient; /* retry a failed step until the timeout */
};

/* The base of every receiver; it comes first in the backend's own struct. */
struct receiver {
    const struct receiver_ops *ops;
    struct receiver_config cfg;
};

/* receive_find finds the backend for a sink's URL. ERR_CONFIG for a sink that cannot be read from;
 * the error lists those that can. */
int receive_find(const char *url, const struct receiver_ops **ret, struct error *err);

/* receive_open connects and starts reading. The caller closes *ret. Errors as those of begin. */
int receive_open(const struct receiver_config *cfg, struct receiver **ret, struct error *err);

/* receive_next waits up to timeout_ms for the next message. *ret_got is whether there is one; it is
 * false after the timeout, or if cfg.wake is readable. Messages of a place come in its order. A
 * temporarily unavailable broker is not an error as long as nothing is missed. */
int receive_next(struct receiver *rc, int64_t timeout_ms, struct received *ret, bool *ret_got,
                 struct error *err);
/* receive_close frees everything; NULL is fine. */
void receive_close(struct receiver *rc);

/* receive_stop waits up to wait_ms, and returns whether cfg.wake became readable. */
bool receive_stop(const struct receiver *rc, int64_t wait_ms);

#ifdef OUTBOX_REDIS
extern const struct receiver_ops receive_redis;
#endif
#ifdef OUTBOX_NATS
extern const struct receiver_ops receive_nats;
#endif
#ifdef OUTBOX_RABBITMQ
extern const struct receiver_ops receive_rabbitmq;
#endif
#ifdef OUTBOX_KAFKA
extern const struct receiver_ops receive_kafka;
#endif

#endif
