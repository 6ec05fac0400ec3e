/* conn.h: one non-blocking connection to an AMQP 0-9-1 broker, and the frames of the protocol. It
 * logs in, sends heartbeats, and tracks whether the broker blocks publishers. The caller opens
 * channels. librabbitmq encodes and decodes methods; the framing is our own, so that a server
 * cannot make us allocate more than one frame. */
#ifndef RABBIT_CONN_H
#define RABBIT_CONN_H

#include <amqp.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/url.h"
#include "net/wire.h"

/* Frames */

#define RABBIT_FRAME_MIN 4096 /* accepted by every peer, and the maximum for one method */
#define RABBIT_SHORT_MAX 255  /* maximum of a short string: names, routing keys, header names */

enum rabbit_frame_type {
    RABBIT_METHOD = 1,
    RABBIT_HEADER = 2,
    RABBIT_BODY = 3,
    RABBIT_HEARTBEAT = 8,
};

/* A received frame. The payload is borrowed from the read buffer. */
struct rabbit_frame {
    enum rabbit_frame_type type;
    uint16_t channel;
    struct str payload;
};

/* The contents of a header frame. Absent strings have p == NULL. */
struct rabbit_header {
    uint64_t body_size;
    struct str content_type, message_id, type;
    struct str table; /* the headers, still encoded */
};

/* rabbit_frame_next parses the first frame of `in`, of at most `max` bytes including its head and
 * end. Returns its size; 0 if it is incomplete; -1 with ERR_INVALID if it is malformed. */
ssize_t rabbit_frame_next(struct str in, size_t max, struct rabbit_frame *ret, struct error *err);

/* rabbit_frame_method decodes the method in a frame; data that it points to lives in the pool.
 * Fails with ERR_INVALID for methods that a client does not expect, or that do not decode. */
int rabbit_frame_method(const struct rabbit_frame *f, amqp_pool_t *pool, amqp_method_t *ret,
                        struct error *err);

/* rabbit_frame_header parses a header frame. Errors: ERR_INVALID. */
int rabbit_frame_header(const struct rabbit_frame *f, struct rabbit_header *ret, struct error *err);

/* A rabbit_field_fn receives one header of a message. The value is a string as received, or the
 * text of a number or boolean. */
typedef void rabbit_field_fn(void *ctx, struct str name, struct str value);

/* rabbit_frame_fields iterates over an encoded table. It skips values without a simple text, such
 * as tables and arrays. Errors: ERR_INVALID. */
int rabbit_frame_fields(struct str table, rabbit_field_fn *field, void *ctx, struct error *err);

/* rabbit_frame_put_* append one or more frames. A failure sets b->failed. */
void rabbit_frame_put_method(struct buf *b, uint16_t channel, amqp_method_number_t id, void *m);
void rabbit_frame_put_heartbeat(struct buf *b);
/* rabbit_frame_put_content appends the header of a message and its body, in frames of at most
 * frame_max bytes. If the properties do not fit into one frame, it appends nothing and returns -1
 * with ERR_INVALID. */
int rabbit_frame_put_content(struct buf *b, uint16_t channel, amqp_basic_properties_t *p,
                             struct str body, size_t frame_max, struct error *err);

static inline amqp_bytes_t rabbit_bytes(struct str s)
{
    return (amqp_bytes_t){.len = s.n, .bytes = (void *)s.p};
}

static inline struct str rabbit_str(amqp_bytes_t b)
{
    return (struct str){b.bytes, b.len};
}

/* The connection */

#define RABBIT_TEXT 200 /* length of a text from the broker, including the NUL */

/* The address and the login. Strings are borrowed while the connection exists. */
struct rabbit_config {
    const struct url *url; /* the nodes of one broker, tried in turn, and the login */
    bool tls;
    const char *vhost;
    char name[80];   /* client name shown by the broker */
    bool external;   /* authenticate with the client certificate: SASL EXTERNAL instead of PLAIN */
    int heartbeat_s; /* 0: none */
    const struct clock *clock;
    size_t out_max; /* limit on queued bytes */
};

/* (1) in[0..n) is an incomplete frame. (2) The login includes the limits and the virtual host. */
struct rabbit_conn {
    struct rabbit_config cfg;
    struct wire wire;
    char label[300]; /* "rabbitmq at host:port", the current node */
    size_t peer;     /* current node, or the next to try */
    size_t tries;    /* nodes tried since rabbit_conn_open */
    struct buf in;
    amqp_pool_t pool;
    size_t frame_max;
    int64_t heartbeat; /* ns; 0: none */
    int64_t last_read, last_write;
    int64_t since;            /* when connecting to this node started */
    bool blocked;             /* connection.blocked: the broker accepts no messages for now */
    char reason[RABBIT_TEXT]; /* why */
};

/* rabbit_conn_init prepares a closed connection. */
void rabbit_conn_init(struct rabbit_conn *c, const struct rabbit_config *cfg);
void rabbit_conn_release(struct rabbit_conn *c);

/* rabbit_conn_open starts connecting to one of the nodes. Frames may be queued at once; they are
 * sent after the login. The call blocks only while a host name is resolved. On failure the
 * connection is closed: ERR_UNAVAILABLE or ERR_NOMEM, with CLASS_DOWN. */
int rabbit_conn_open(struct rabbit_conn *c, struct error *err);
/* rabbit_conn_close drops the connection and all queued frames. It notifies a broker that is
 * listening, without waiting for a reply. */
void rabbit_conn_close(struct rabbit_conn *c);

/* rabbit_conn_send queues a method on a channel; returns -1 if out of memory or at the limit. A
 * caller may instead append whole frames to c->wire.out. */
int rabbit_conn_send(struct rabbit_conn *c, uint16_t channel, amqp_method_number_t id, void *m);

/* A rabbit_frame_fn receives a frame on a channel; m is its method, or NULL if it is not a method
 * frame. Both are borrowed for the call. The function may queue frames but must not close the
 * connection. Returning -1 with err fails the connection. */
typedef int rabbit_frame_fn(void *ctx, const struct rabbit_frame *f, const amqp_method_t *m,
                            struct error *err);

/* rabbit_conn_drive writes and reads as much as it can without blocking, passes every frame of a
 * channel to `frame`, and maintains the heartbeat. Returns -1 if the connection is lost or the
 * login was refused, with a retry class and the broker's reply code as the native code; the caller
 * closes the connection. */
int rabbit_conn_drive(struct rabbit_conn *c, rabbit_frame_fn *frame, void *ctx, struct error *err);

/* rabbit_conn_deadline returns the monotonic time at which drive must be called even without an
 * event; CLOCK_NEVER if none. */
int64_t rabbit_conn_deadline(const struct rabbit_conn *c);

/* rabbit_conn_text cleans a text from the broker for messages. Returns out. */
const char *rabbit_conn_text(amqp_bytes_t said, char out[RABBIT_TEXT]);

#endif
