/* rabbitmq_impl.h: what the files of the RabbitMQ sink share: rabbitmq.c (sending),
 * rabbitmq_settings.c, rabbitmq_login.c, rabbitmq_setup.c (the channel and what it needs),
 * rabbitmq_publish.c (what is sent), rabbitmq_answer.c (what comes back), rabbitmq_fate.c (what
 * that means) and rabbitmq_receive.c, the reading end. */
#ifndef SINK_RABBITMQ_IMPL_H
#define SINK_RABBITMQ_IMPL_H

#include "event/message.h"
#include "event/template.h"
#include "rabbit/conn.h"
#include "sink/broker_url.h"
#include "sink/sink.h"
#include "sink/streams.h"

#define RABBITMQ_PASSWORD_ENV "OUTBOX_RABBITMQ_PASSWORD"
#define RABBITMQ_WINDOW 2048 /* events in the sink; a power of two */
#define RABBITMQ_CHANNEL 1   /* we need one */
#define RABBITMQ_SAID 512    /* of a text about what the broker said, with its NUL */

/* What becomes of an event that no queue is bound for. The order is that of the option's names. */
enum rabbitmq_unroutable { UNROUTABLE_RETRY, UNROUTABLE_REJECT, UNROUTABLE_IGNORE };

enum rabbitmq_auth { AUTH_AUTO, AUTH_PLAIN, AUTH_EXTERNAL };

/* What the URL says besides where the broker is. Strings are owned. */
struct rabbitmq_settings {
    char *vhost, *exchange;
    char *routing_key; /* template */
    enum message_format format;
    char *source; /* of CloudEvents; NULL: the default */
    char *ce_prefix;
    enum rabbitmq_unroutable unroutable;
    enum rabbitmq_auth auth;
    int64_t heartbeat_ms; /* 0: none */
    bool create;
    const char *exchange_type, *queue_type;
    char *queue;   /* NULL: none */
    char *binding; /* of that queue */
};

/* rabbitmq_settings_read reads a URL into *s and *u, which the caller releases, also after an
 * error. Errors: ERR_CONFIG, ERR_NOMEM. */
int rabbitmq_settings_read(const char *url, struct rabbitmq_settings *s, struct broker_url *u,
                           struct error *err);
void rabbitmq_settings_release(struct rabbitmq_settings *s);

/* What a connection is made of besides. */
struct rabbitmq_login {
    struct wire_peer *peers;
    char (*labels)[300];
    char client[80]; /* our name, for the broker */
};

/* rabbitmq_login_make says where to connect and as whom. *ret borrows from the others, and has the
 * system's clock. ERR_NOMEM. The caller releases *l, also after an error. */
int rabbitmq_login_make(struct rabbitmq_login *l, const struct rabbitmq_settings *s,
                        struct broker_url *u, const char *who, struct rabbit_config *ret,
                        struct error *err);
void rabbitmq_login_release(struct rabbitmq_login *l);

/* What a broker's word is about. */
enum rabbitmq_said {
    SAID_ACK,
    SAID_NACK,
    SAID_RETURN,
    SAID_SETUP,      /* channel.close over the channel, the exchange or the queue */
    SAID_PUBLISH,    /* channel.close over a message */
    SAID_CONNECTION, /* connection.close */
};

struct rabbitmq_fate {
    enum rabbitmq_said said;
    int code;         /* 0: any other */
    const char *says; /* the words have this in them; NULL: whatever they are */
    enum sink_status status;
    bool about_one; /* it is one message that the broker refuses, whatever else is on its way */
    const char *meaning;
};

/* rabbitmq_fate_of looks up what the broker's answer, with these words, means for events. */
const struct rabbitmq_fate *rabbitmq_fate_of(enum rabbitmq_said said, int code, const char *words);

/* An event in the sink. (1) d == NULL: it has been answered for. */
struct rabbitmq_item {
    struct delivery *d;
    struct stream *mark;
    int64_t since; /* monotonic: when it was taken */
    int returned;  /* what basic.return said; 0: it was not returned */
};

/* How far the channel has got. */
enum rabbitmq_channel {
    CHANNEL_NONE,
    CHANNEL_SETUP, /* being opened; exchange and queue are being looked at */
    CHANNEL_READY,
};

/* The message that the broker is returning: a header and a body follow basic.return. */
struct rabbitmq_returning {
    enum { RETURNING_NOTHING, RETURNING_HEADER, RETURNING_BODY } what;
    int code;
    uint64_t rest; /* bytes of the body */
};

/* An event that was alone in flight when the connection was cut or fell silent, and how often that
 * has happened in a row. */
struct rabbitmq_suspect {
    int64_t seq;
    int cuts;
};

/* (1) fly[first..next) was published on the channel: the index of an event, modulo the window, is
 * its delivery tag, and all of these are modulo RABBITMQ_WINDOW. (2) `flying` counts those that are
 * not answered for. (3) wait[head..tail) is still to be published. (4) flying + waiting is less
 * than the window. (5) Nothing flies unless the channel is CHANNEL_READY. (6) While solo > 0, one
 * event flies at a time, so that the broker's refusal can be blamed on it. */
struct rabbitmq_sink {
    struct sink base;
    struct rabbitmq_settings set;
    struct broker_url url;
    struct rabbitmq_login login;
    struct template *key;
    bool fixed; /* every event has the same routing key */
    struct rabbit_conn conn;
    enum rabbitmq_channel channel;
    size_t step;  /* of the set-up */
    bool passive; /* look only: what is there differs from what we would create */
    bool begun;   /* it has connected once */
    struct rabbitmq_item *fly, *wait;
    uint64_t first, next;
    size_t flying, head, tail;
    size_t solo;
    struct rabbitmq_returning returning;
    struct rabbitmq_suspect suspect;
    int64_t nacked;  /* monotonic: of the first nack on this channel; 0: none */
    int64_t renewed; /* monotonic: when a channel was last given up for its nacks */
    struct streams marks;
    struct buf name, text; /* the routing key, and what message_make writes */
    struct message message;
    struct error refused; /* why there was no channel, or no connection, the last time; for probe */
    int cautions;
    char caution[2][RABBITMQ_SAID]; /* the one that counts is caution[cautions & 1] */
};

static inline int64_t rabbitmq_now(const struct rabbitmq_sink *r)
{
    return clock_mono(r->base.cfg.clock);
}

static inline struct rabbitmq_item *rabbitmq_flying(const struct rabbitmq_sink *r, uint64_t tag)
{
    return &r->fly[tag & (RABBITMQ_WINDOW - 1)];
}

static inline struct rabbitmq_item *rabbitmq_waiting(const struct rabbitmq_sink *r, size_t i)
{
    return &r->wait[i & (RABBITMQ_WINDOW - 1)];
}

static inline size_t rabbitmq_held(const struct rabbitmq_sink *r)
{
    return r->flying + (r->tail - r->head);
}

/* rabbitmq_publish writes the frames of an event; its tag is r->next. ERR_INVALID: it can never be
 * expressed; ERR_NOMEM. In either case nothing is written. */
int rabbitmq_publish(struct rabbitmq_sink *r, const struct rabbitmq_item *it, struct error *err);
/* rabbitmq_publish_mark finds what high-water mark an event moves. NULL without memory, or with
 * ERR_INVALID if it has no routing key. */
struct stream *rabbitmq_publish_mark(struct rabbitmq_sink *r, const struct event *ev,
                                     struct error *err);

/* rabbitmq_setup_begin opens the channel on a connection that may still be on its way.
 * rabbitmq_setup_reply takes the broker's answer to a step, and rabbitmq_setup_refused the close of
 * the channel instead: -1 with a fate if there is no way on. */
int rabbitmq_setup_begin(struct rabbitmq_sink *r, struct error *err);
int rabbitmq_setup_reply(struct rabbitmq_sink *r, const amqp_method_t *m, struct error *err);
int rabbitmq_setup_refused(struct rabbitmq_sink *r, const amqp_channel_close_t *m,
                           struct error *err);

/* rabbitmq_caution replaces the line for operators. */
void rabbitmq_caution(struct rabbitmq_sink *r, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* rabbitmq_answer_frame takes a frame of our channel. It is a rabbit_frame_fn. */
int rabbitmq_answer_frame(void *sink, const struct rabbit_frame *f, const amqp_method_t *m,
                          struct error *err);
/* rabbitmq_answer_one ends one event. */
void rabbitmq_answer_one(struct rabbitmq_sink *r, struct rabbitmq_item *it,
                         const struct sink_result *res);
/* rabbitmq_answer_waiting ends what was not published yet; rabbitmq_answer_all also what was, which
 * may have been stored nevertheless: it will come again with the same id. */
void rabbitmq_answer_waiting(struct rabbitmq_sink *r, const struct sink_result *res);
void rabbitmq_answer_all(struct rabbitmq_sink *r, const struct sink_result *res);
/* rabbitmq_answer_lost ends everything because the connection failed, and closes it. */
void rabbitmq_answer_lost(struct rabbitmq_sink *r, const struct error *err);
/* rabbitmq_answer_blocked gives up waiting for a broker that has blocked us for too long. The
 * connection stays: what was written is not published twice over another one. */
void rabbitmq_answer_blocked(struct rabbitmq_sink *r);
/* rabbitmq_answer_why_blocked says what the broker said. Returns out. */
const char *rabbitmq_answer_why_blocked(const struct rabbitmq_sink *r, char out[RABBITMQ_SAID]);

#endif
