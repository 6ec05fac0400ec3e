/* rabbitmq_impl.h: what the files of the RabbitMQ sink share: rabbitmq.c (what is in flight),
 * rabbitmq_settings.c (the URL and the login), rabbitmq_channel.c (the channel and what it
 * needs), rabbitmq_message.c (what is sent) and rabbitmq_answer.c (what comes back, and what
 * that means). */
#ifndef SINK_RABBITMQ_IMPL_H
#define SINK_RABBITMQ_IMPL_H

#include "event/template.h"
#include "rabbit/conn.h"
#include "sink/broker.h"
#include "sink/broker_url.h"

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

/* What a broker's answer is about. */
enum rabbitmq_said {
    SAID_ACK,
    SAID_NACK,
    SAID_RETURN,
    SAID_SETUP,      /* channel.close over the channel, the exchange or the queue */
    SAID_PUBLISH,    /* channel.close over a message */
    SAID_CONNECTION, /* connection.close */
};

/* A row of the table of answers. */
struct rabbitmq_meaning {
    enum rabbitmq_said said;
    int code;         /* 0: any other */
    const char *says; /* the words have this in them; NULL: whatever they are */
    enum sink_status status;
    bool about_one; /* it is one message that the broker refuses, whatever else is in flight */
    const char *meaning;
};

/* rabbitmq_answer_meaning looks up what the broker's answer, with these words, means for events. */
const struct rabbitmq_meaning *rabbitmq_answer_meaning(enum rabbitmq_said said, int code,
                                                       const char *words);

/* An event in the sink. */
struct rabbitmq_item {
    struct flight f;
    uint64_t tag; /* its delivery tag; 0: it is still to be published */
    int returned; /* what basic.return said; 0: it was not returned */
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

/* (1) In the window, what is published stands before what is waiting; `waiting` is the first of
 * those, `published` counts the others. (2) by_tag[tag % RABBITMQ_WINDOW] is the published event
 * with that tag, first_tag <= tag < next_tag; NULL: it has been answered for. (3) Nothing is
 * published unless the channel is CHANNEL_READY. (4) While solo > 0, one event is published at a
 * time, so that the broker's refusal can be blamed on it. */
struct rabbitmq_sink {
    struct broker b;
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
    struct window window;
    struct rabbitmq_item *waiting, **by_tag;
    uint64_t first_tag, next_tag;
    size_t published, solo;
    struct rabbitmq_returning returning;
    int64_t nacked;        /* monotonic: of the first nack on this channel; 0: none */
    int64_t renewed;       /* monotonic: when a channel was last given up for its nacks */
    struct buf name, text; /* the routing key, and what message_make writes */
    struct message message;
    struct error refused; /* why there was no channel, or no connection, the last time; for probe */
};

static inline struct rabbitmq_item **rabbitmq_tag(const struct rabbitmq_sink *r, uint64_t tag)
{
    return &r->by_tag[tag & (RABBITMQ_WINDOW - 1)];
}

/* rabbitmq_message_publish writes the frames of an event; its tag is r->next_tag. ERR_INVALID: it
 * can never be expressed; ERR_NOMEM. In either case nothing is written. */
int rabbitmq_message_publish(struct rabbitmq_sink *r, const struct delivery *d, struct error *err);
/* rabbitmq_message_mark finds what high-water mark an event moves. NULL with ERR_NOMEM, or with
 * ERR_INVALID if it has no routing key. */
struct stream *rabbitmq_message_mark(struct rabbitmq_sink *r, const struct event *ev,
                                     struct error *err);

/* rabbitmq_channel_open opens the channel on a connection that may still be on its way.
 * rabbitmq_channel_reply takes the broker's answer to a step, and rabbitmq_channel_refused the
 * close of the channel instead: -1 with a retry class if there is no way on. */
int rabbitmq_channel_open(struct rabbitmq_sink *r, struct error *err);
int rabbitmq_channel_reply(struct rabbitmq_sink *r, const amqp_method_t *m, struct error *err);
int rabbitmq_channel_refused(struct rabbitmq_sink *r, const amqp_channel_close_t *m,
                             struct error *err);

/* rabbitmq_answer_frame takes a frame of our channel. It is a rabbit_frame_fn. */
int rabbitmq_answer_frame(void *sink, const struct rabbit_frame *f, const amqp_method_t *m,
                          struct error *err);
/* rabbitmq_answer_all ends everything in the sink. What was published may have been stored
 * nevertheless: it will come again with the same id. */
void rabbitmq_answer_all(struct rabbitmq_sink *r, const struct sink_result *res);
/* rabbitmq_answer_waiting ends what was not published yet. */
void rabbitmq_answer_waiting(struct rabbitmq_sink *r, const struct sink_result *res);
/* rabbitmq_answer_lost ends everything because the connection failed, and closes it. */
void rabbitmq_answer_lost(struct rabbitmq_sink *r, const struct error *err);

#endif
