/* receive.h: the reading end of what a sink writes to, for outbox receive and for tests. No
 * delivery needs it. A receiver is no consumer: it keeps no position, acknowledges nothing, and so
 * changes nothing. */
#ifndef RECEIVE_RECEIVE_H
#define RECEIVE_RECEIVE_H

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

/* A backend. */
struct receiver_ops {
    const char *const *schemes; /* of the sink's URLs; ends with NULL */
    size_t size;                /* of its own struct, which begins with struct receiver */

    /* begin connects and begins to read; *rc is zeroed but for its base. Errors: ERR_CONFIG if it
     * can never work, ERR_UNAVAILABLE, ERR_NOMEM. */
    int (*begin)(struct receiver *rc, struct error *err);
    /* step hands out a message that has come, or makes progress and waits for about wait_ms.
     * *ret_got is set only for a message. */
    int (*step)(struct receiver *rc, int64_t wait_ms, struct received *ret, bool *ret_got,
                struct error *err);
    /* end releases what is in *rc, also after begin has failed. */
    void (*end)(struct receiver *rc);
    bool patient; /* a step that failed is tried again until the time is over */
};

/* The base of every receiver; it comes first in the backend's own struct. */
struct receiver {
    const struct receiver_ops *ops;
    struct receiver_config cfg;
};

/* receive_find finds the backend for a sink's URL. ERR_CONFIG for a sink that cannot be read from;
 * the text lists those that can. */
int receive_find(const char *url, const struct receiver_ops **ret, struct error *err);

/* receive_open connects and begins to read. The caller closes *ret. Errors as those of begin. */
int receive_open(const struct receiver_config *cfg, struct receiver **ret, struct error *err);

/* receive_next waits up to timeout_ms for the next message. *ret_got says whether there is one; not
 * if the time is over, or cfg.wake is readable. Messages of a place come in the place's order. A
 * broker that is away for a moment is no error as long as nothing is missed. */
int receive_next(struct receiver *rc, int64_t timeout_ms, struct received *ret, bool *ret_got,
                 struct error *err);
/* receive_close frees everything; NULL is fine. */
void receive_close(struct receiver *rc);

/* receive_stop waits for up to wait_ms, and says whether cfg.wake became readable. */
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
