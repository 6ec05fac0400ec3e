/* rabbitmq_impl.h: private to the RabbitMQ sink: rabbitmq.c (settings and deliveries in flight) and
 * rabbitmq_answer.c (the setup of the channel, and the meaning of replies). */
#ifndef SINK_RABBITMQ_IMPL_H
#define SINK_RABBITMQ_IMPL_H

#include "rabbit/conn.h"
#include "sink/broker.h"

#define RABBITMQ_PASSWORD_ENV "OUTBOX_RABBITMQ_PASSWORD"
#define RABBITMQ_WINDOW 2048 /* events in the sink; a power of two */
#define RABBITMQ_CHANNEL 1   /* we use only one */
#define RABBITMQ_TEXT 512    /* length of a text about the broker's reply, including the NUL */

/* The treatment of an event for which no queue is bound, in the order of the option's names. */
enum rabbitmq_unroutable { UNROUTABLE_RETRY, UNROUTABLE_REJECT, UNROUTABLE_IGNORE };

enum rabbitmq_auth { AUTH_AUTO, AUTH_PLAIN, AUTH_EXTERNAL };

/* The URL's settings besides the address of the broker. Strings are owned. */
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

/* rabbitmq_settings_read parses a URL into *s, which the caller has zeroed, and *u. The caller
 * releases both, even after an error. Errors: ERR_CONFIG, ERR_NOMEM. */
int rabbitmq_settings_read(const char *url, struct rabbitmq_settings *s, struct url *u,
                           struct error *err);
void rabbitmq_settings_release(struct rabbitmq_settings *s);

/* rabbitmq_settings_conn returns how to connect, as a client named after `who`. The result borrows
 * from the settings and the URL. */
struct rabbit_config rabbitmq_settings_conn(const struct rabbitmq_settings *s, const struct url *u,
                                            const char *who, const struct clock *clock);

/* The subject of a broker's reply. */
enum rabbitmq_reply {
    REPLY_ACK,
    REPLY_NACK,
    REPLY_RETURN,
    REPLY_SETUP,      /* channel.close because of the channel, the exchange or the queue */
    REPLY_PUBLISH,    /* channel.close because of a message */
    REPLY_CONNECTION, /* connection.close */
};

/* A row of the table of replies. */
struct rabbitmq_meaning {
    enum rabbitmq_reply reply;
    int code;         /* 0: any code without its own row */
    const char *says; /* text contained in the reply; NULL: any */
    enum sink_status status;
    bool about_one; /* the broker refuses a single message, whatever else is in flight */
    const char *meaning;
};

/* rabbitmq_answer_meaning returns the meaning of the broker's reply for events. */
const struct rabbitmq_meaning *rabbitmq_answer_meaning(enum rabbitmq_reply reply, int code,
                                                       const char *words);

/* An event in the sink. */
struct rabbitmq_item {
    struct in_flight f;
    uint64_t tag; /* its delivery tag; 0: not published yet */
    int returned; /* reply code of basic.return; 0 if it was not returned */
};

/* Channel states, in order. */
enum rabbitmq_channel {
    CHANNEL_NONE,
    CHANNEL_SETUP, /* being opened, with exchange and queue being checked */
    CHANNEL_READY,
};

/* The message being returned: its header and body follow basic.return. */
struct rabbitmq_returning {
    enum { RETURNING_NOTHING, RETURNING_HEADER, RETURNING_BODY } what;
    int code;
    uint64_t rest; /* bytes missing from the body */
};

/* (1) In the window, published events precede waiting ones; `waiting` is the first waiting event,
 * `published` the number of published ones. (2) by_tag[tag % RABBITMQ_WINDOW] is the published
 * event with that tag, first_tag <= tag < next_tag; NULL: its result was reported. (3) Events are
 * published only while the channel is CHANNEL_READY. (4) While one_by_one > 0, events are published
 * one at a time, so that the broker's refusal can be attributed to one of them. */
struct rabbitmq_sink {
    struct broker b;
    struct rabbitmq_settings set;
    struct url url;
    struct rabbit_conn conn;
    enum rabbitmq_channel channel;
    size_t step;        /* current step of the setup */
    bool passive;       /* only check: the existing exchange or queue differs from ours */
    bool has_connected; /* has connected, or tried to */
    struct rabbitmq_item *waiting, **by_tag;
    uint64_t first_tag, next_tag;
    size_t published, one_by_one;
    struct rabbitmq_returning returning;
    int64_t nacked;  /* time of the first nack on this channel; 0 if none */
    int64_t renewed; /* when a channel was last replaced because of nacks */
    struct message message;
    struct error refused; /* why the last attempt to open a channel failed; for probe */
};

static inline struct rabbitmq_item **rabbitmq_tag(const struct rabbitmq_sink *r, uint64_t tag)
{
    return &r->by_tag[tag & (RABBITMQ_WINDOW - 1)];
}

/* rabbitmq_answer_setup opens the channel, possibly before the connection is established. */
int rabbitmq_answer_setup(struct rabbitmq_sink *r, struct error *err);

/* rabbitmq_answer_frame handles a frame on our channel. It is a rabbit_frame_fn. */
int rabbitmq_answer_frame(void *sink, const struct rabbit_frame *f, const amqp_method_t *m,
                          struct error *err);
/* rabbitmq_answer_all ends all events in the sink. The broker may have stored published messages
 * anyway: they will be resent with the same id. */
void rabbitmq_answer_all(struct rabbitmq_sink *r, const struct sink_result *res);
/* rabbitmq_answer_waiting ends the events that were not published yet. */
void rabbitmq_answer_waiting(struct rabbitmq_sink *r, const struct sink_result *res);
/* rabbitmq_answer_lost ends all events because the connection failed, and closes the connection. */
void rabbitmq_answer_lost(struct rabbitmq_sink *r, const struct error *err);

#endif
