/* receive.h: reads back the messages that sinks write, for outbox receive and for tests. A receiver
 * is not a consumer: it stores no position, acknowledges no message, and so changes no state. */
#ifndef RECEIVE_RECEIVE_H
#define RECEIVE_RECEIVE_H

#include "event/message.h"
#include "store/store.h"

struct receiver;

/* Settings of a receiver. Strings live as long as the receiver. */
struct receiver_config {
    const char *url; /* the sink's URL; a destination with fields matches all its names */
    /* where to start: "beginning", "end", or a position as the broker writes it */
    const char *from;
    int wake; /* a descriptor that becomes readable when the receiver must stop; -1 if unused */
};

/* One message. Its strings are borrowed until the next call on the receiver. */
struct received {
    struct message m;
    struct str place;    /* the stream, subject or queue; "topic/3" with a partition */
    struct str position; /* an id or offset in that place; absent if the broker has none */
};

/* A backend. */
struct receiver_ops {
    const char *const *schemes; /* schemes of the sink's URLs; ends with NULL */
    size_t size; /* size of the backend's struct, which begins with struct receiver */

    /* begin connects and starts reading; *rc is zeroed except for its base. Errors: ERR_CONFIG if
     * the receiver can never work, ERR_UNAVAILABLE, ERR_NOMEM. */
    int (*begin)(struct receiver *rc, struct error *err);
    /* step returns the next message, or makes progress for about wait_ms. It sets *ret_got only for
     * a message. */
    int (*step)(struct receiver *rc, int64_t wait_ms, struct received *ret, bool *ret_got,
                struct error *err);
    /* end releases the contents of *rc, even after begin has failed. */
    void (*end)(struct receiver *rc);
    bool patient; /* a failed step is retried until the timeout */
};

/* The base of every receiver; it comes first in the backend's own struct. */
struct receiver {
    const struct receiver_ops *ops;
    struct receiver_config cfg;
};

/* receive_find finds the backend for a sink's URL. Fails with ERR_CONFIG, and lists the supported
 * sinks, if the sink cannot be read from. */
int receive_find(const char *url, const struct receiver_ops **ret, struct error *err);

/* receive_open connects and starts reading. The caller closes *ret. Errors are those of begin. */
int receive_open(const struct receiver_config *cfg, struct receiver **ret, struct error *err);

/* receive_next waits up to timeout_ms for the next message. *ret_got is whether one arrived; it is
 * false after the timeout, or if cfg.wake is readable. Messages from one place arrive in its order.
 * A temporarily unavailable broker is not an error as long as no message is missed. */
int receive_next(struct receiver *rc, int64_t timeout_ms, struct received *ret, bool *ret_got,
                 struct error *err);
/* receive_close frees the receiver; accepts NULL. */
void receive_close(struct receiver *rc);

/* receive_stop waits up to wait_ms and returns whether cfg.wake became readable. */
bool receive_stop(const struct receiver *rc, int64_t wait_ms);

/* The result of comparing received messages with the events in the store. */
struct receive_counts {
    int64_t received; /* messages */
    int64_t events;   /* different events in these messages */
    int64_t repeats;  /* messages with an event that was received before */
    int64_t strange;  /* messages that contain no event in one of our formats */
    /* Of the store. */
    int64_t expected;   /* events that should have been received */
    int64_t lost;       /* expected events not received */
    int64_t misordered; /* events received after a later event of the same key, at the same place */
    int64_t unknown;    /* received events that are not in the store */
    char lost_id[UUID_TEXT + 1], misordered_id[UUID_TEXT + 1]; /* the first of each; "" if none */
};

struct receive_check;

/* receive_check_new returns NULL if out of memory. */
struct receive_check *receive_check_new(void);
void receive_check_free(struct receive_check *c);

/* receive_check_add records a received event, with its id (36 characters) and its place. Returns -1
 * if out of memory. */
int receive_check_add(struct receive_check *c, struct str id, struct str place);
/* receive_check_strange records a message that contains no event. */
void receive_check_strange(struct receive_check *c);

/* receive_check_store iterates over all events that the store keeps. With a consumer, it expects
 * the events that this consumer has delivered; without one, all events. It checks the order only
 * among events of one key at one place, by their sequence numbers. */
int receive_check_store(struct receive_check *c, struct store *st, const char *consumer,
                        struct error *err);

const struct receive_counts *receive_check_counts(const struct receive_check *c);

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

/* The facts about an event in its message. (1) id is a UUID. (2) type and key are absent if the
 * format lacks them. (3) Strings are borrowed from the message, or live in `text`. */
struct receive_facts {
    enum message_format format;
    struct str id, type;
    struct str key; /* order/42 */
};

/* receive_identify identifies the event in a message of any format, and detects the format by its
 * content. Fails with ERR_INVALID if the message is not ours. */
int receive_identify(const struct message *m, struct buf *text, struct receive_facts *ret,
                     struct error *err);

#endif
