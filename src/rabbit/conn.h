/* conn.h: one non-blocking connection to an AMQP 0-9-1 broker. It logs in, keeps the heartbeat, and
 * knows when the broker blocks publishers; what happens on channels is for its user. */
#ifndef RABBIT_CONN_H
#define RABBIT_CONN_H

#include "base/clock.h"
#include "net/wire.h"
#include "rabbit/frame.h"

#define RABBIT_TEXT 200 /* of what a broker says, with its NUL */

/* How far a connection has got. */
enum rabbit_state {
    RABBIT_CLOSED,
    RABBIT_CONNECTING, /* the socket, and TLS */
    RABBIT_GREETING,   /* login, limits and virtual host are being agreed on */
    RABBIT_READY,
};

/* Where to connect, and as whom. Everything is borrowed while the connection lives. */
struct rabbit_config {
    const struct wire_peer *peers; /* the nodes of one broker; tried in turn */
    size_t n_peers;
    const char *vhost;
    const char *name; /* shown by the broker */
    const char *user;
    bool external; /* the client certificate says who we are: SASL EXTERNAL instead of PLAIN */
    /* password returns a copy, which is wiped and freed here; NULL with err->code 0: none, NULL
     * with an error: it could not be read. It is asked at each login. */
    char *(*password)(void *ctx, struct error *err);
    void *password_ctx;
    int heartbeat_s; /* 0: none */
    const struct clock *clock;
    size_t out_max; /* ceiling of what is queued */
};

/* (1) state == RABBIT_CLOSED if and only if the wire is closed. (2) out[sent..n) is still to be
 * written, and is kept back until RABBIT_READY. (3) greet[greet_sent..n) is what is to be written
 * of the login. (4) in[0..n) has not made a whole frame yet. */
struct rabbit_conn {
    struct rabbit_config cfg;
    enum rabbit_state state;
    struct wire wire;
    size_t peer;  /* the node we are at, or try next */
    size_t tries; /* how many have been tried since rabbit_conn_open */
    struct buf in, out, greet;
    size_t sent, greet_sent;
    amqp_pool_t pool;
    size_t frame_max;
    int64_t heartbeat;         /* ns; 0: none */
    int64_t heard, told;       /* monotonic: when something was last read, and written */
    int64_t since;             /* monotonic: when it began to connect to this node */
    bool blocked;              /* the broker takes no messages now */
    char reason[RABBIT_TEXT];  /* why */
    char product[RABBIT_TEXT]; /* "RabbitMQ 3.10.8" */
};

/* rabbit_conn_init prepares a closed connection. */
void rabbit_conn_init(struct rabbit_conn *c, const struct rabbit_config *cfg);
void rabbit_conn_release(struct rabbit_conn *c);

/* rabbit_conn_open starts to connect to one of the nodes. Frames may be queued at once; they are
 * sent after the login. It blocks while a host's name is looked up, and for nothing else. On
 * failure the connection is closed: ERR_UNAVAILABLE or ERR_NOMEM, with CLASS_DOWN. */
int rabbit_conn_open(struct rabbit_conn *c, struct error *err);
/* rabbit_conn_close drops the connection and everything that was queued. A broker that is listening
 * is told, without waiting for it. */
void rabbit_conn_close(struct rabbit_conn *c);

/* rabbit_conn_label names the node that we are at, for messages. */
const char *rabbit_conn_label(const struct rabbit_conn *c);

/* rabbit_conn_send queues a method on a channel; -1 without memory, or at the ceiling. A caller may
 * append to c->out instead, in whole frames. */
int rabbit_conn_send(struct rabbit_conn *c, uint16_t channel, amqp_method_number_t id, void *m);
static inline size_t rabbit_conn_queued(const struct rabbit_conn *c)
{
    return c->out.n - c->sent;
}

/* A rabbit_frame_fn takes a frame on a channel; m is the method if it is one, else NULL. Both are
 * borrowed for the call. It may queue frames, and not close the connection. -1 gives the connection
 * up, with err. */
typedef int rabbit_frame_fn(void *ctx, const struct rabbit_frame *f, const amqp_method_t *m,
                            struct error *err);

/* rabbit_conn_drive writes and reads what it can without waiting, hands every frame of a channel
 * to `frame`, and keeps the heartbeat. It returns -1 when the connection is lost or the login
 * was refused. Then err has a retry class and, as its native code, what the broker said; the
 * caller closes the connection. */
int rabbit_conn_drive(struct rabbit_conn *c, rabbit_frame_fn *frame, void *ctx, struct error *err);

/* rabbit_conn_poll returns what to poll for before the next drive, rabbit_conn_deadline the
 * monotonic time at which drive wants to be called anyway; CLOCK_NEVER if it does not. */
struct pollfd rabbit_conn_poll(const struct rabbit_conn *c);
int64_t rabbit_conn_deadline(const struct rabbit_conn *c);

/* rabbit_conn_text cleans what a broker said, for messages. Returns out. */
const char *rabbit_conn_text(amqp_bytes_t said, char out[RABBIT_TEXT]);

#endif
