/* nats_impl.h: private to the NATS sink: nats.c (what is in flight), nats_settings.c (its URL),
 * nats_message.c (what is sent) and nats_answer.c (the meaning of replies). nats_link.h has the
 * connection. */
#ifndef SINK_NATS_IMPL_H
#define SINK_NATS_IMPL_H

#include "event/template.h"
#include "sink/broker.h"
#include "sink/nats_link.h"

#define NATS_WINDOW_MAX 4096 /* a power of two */

/* What Nats-Msg-Id consists of. */
enum nats_msg_id { NATS_ID_CONSUMER, NATS_ID_EVENT };

/* The URL's settings besides the servers. Strings are owned. */
struct nats_settings {
    char *stream, *source, *domain;
    char *creds_file, *nkey, *nkey_file, *token_file;
    enum message_format format;
    enum nats_msg_id msg_id;
    bool create, exclusive;
    int64_t replicas, lookback, window;
};

void nats_settings_release(struct nats_settings *s);

/* nats_plan_read parses the URL of a sink into *s and *ret, which the caller releases, also after
 * an error. Of cfg it uses the URL, the consumer and the time limit. ERR_CONFIG, ERR_NOMEM. */
int nats_plan_read(const struct sink_config *cfg, struct nats_settings *s, struct nats_plan **ret,
                   struct error *err);

/* An event in flight. */
struct nats_item {
    struct in_flight f;
    uint64_t token; /* 0: not sent yet, because the link is not ready */
    int64_t asked;  /* monotonic: when it was last sent */
};

/* (1) Tokens grow, and by_token[token % NATS_WINDOW_MAX] is the event with the last token assigned.
 * (2) While link is NULL, nothing is in flight. (3) With exclusive=on, chain is what the next
 * message expects. */
struct nats_sink {
    struct broker b;
    struct nats_settings set;
    struct nats_plan *plan;
    struct template *subject;
    bool fixed; /* every event goes to the same subject */
    struct message_style style;

    struct nats_link *link;
    bool ready; /* the link is ready, and `stream` is what it found */
    const struct nats_stream *stream;
    int64_t max_payload;
    size_t doubtful; /* how many more events may already be in the stream */

    struct window window;
    struct nats_item **by_token;
    uint64_t token;   /* the last one assigned */
    int64_t heard_at; /* when the last reply arrived */
    /* Why the stream accepted nothing when last queried. Until that time it is not queried again,
     * and events are refused for the same reason. */
    struct error refused;
    int64_t refused_until;

    struct {
        bool anchored; /* the next message expects the last id, not the last sequence */
        char *id;      /* the last message's id, if anchored */
        uint64_t seq;  /* the last sequence, if not */
    } chain;

    struct buf name, text, header;
};

/* nats_message_make builds the message of an event, with the headers that JetStream uses. *ret is
 * the caller's. ERR_INVALID if it can never be sent; ERR_NOMEM. n->name is then the subject, and
 * n->header its Nats-Msg-Id. */
int nats_message_make(struct nats_sink *n, const struct delivery *d, uint64_t token, natsMsg **ret,
                      struct error *err);
/* nats_message_id writes an event's Nats-Msg-Id into n->header, and returns it; "" if out of
 * memory. */
struct str nats_message_id(struct nats_sink *n, const struct event *ev);
/* nats_message_sent advances the chain to the last message built. Returns -1 if out of memory. */
int nats_message_sent(struct nats_sink *n);

/* nats_answer_end reports an event's result. */
void nats_answer_end(struct nats_sink *n, struct nats_item *it, const struct sink_result *r);
/* nats_answer_all drops the link, and reports this result for everything in flight, in order. */
void nats_answer_all(struct nats_sink *n, const struct sink_result *r);
/* nats_answer_lost does so after an error of the link. */
void nats_answer_lost(struct nats_sink *n, const struct error *err);
/* nats_answer_found reports an event that was found in the stream without being accepted into the
 * window. */
void nats_answer_found(struct nats_sink *n, struct delivery *d, uint64_t seq);
/* nats_answer_stored reports an event that is in the stream. In a chain, so is everything before
 * it, even if its reply was lost. */
void nats_answer_stored(struct nats_sink *n, struct nats_item *it, uint64_t seq);
/* nats_answer_take handles one reply, which may end events, or all of them and the link. */
void nats_answer_take(struct nats_sink *n, const struct nats_answer *a);

#endif
