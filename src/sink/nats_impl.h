/* nats_impl.h: what the files of the NATS sink share: nats.c (submitting and driving),
 * nats_message.c (what is sent), nats_answer.c (what answers mean) and nats_settings.c. */
#ifndef SINK_NATS_IMPL_H
#define SINK_NATS_IMPL_H

#include "event/message.h"
#include "event/template.h"
#include "sink/nats_link.h"
#include "sink/sink.h"
#include "sink/streams.h"

#define NATS_WINDOW_MAX 4096 /* a power of two */

/* How Nats-Msg-Id is made. */
enum nats_msg_id { NATS_ID_CONSUMER, NATS_ID_EVENT };

/* What the URL says besides where the servers are. Strings are owned. */
struct nats_settings {
    char *stream, *source, *domain;
    char *creds_file, *nkey, *nkey_file, *token_file;
    int format; /* enum message_format */
    int msg_id; /* enum nats_msg_id */
    bool create, exclusive;
    int64_t replicas, lookback, window;
};

/* nats_settings_read reads a URL into *s and *u, which the caller releases, also after an error.
 * ERR_CONFIG, ERR_NOMEM. */
int nats_settings_read(const char *url, struct nats_settings *s, struct broker_url *u,
                       struct error *err);
void nats_settings_release(struct nats_settings *s);

/* nats_plan_read reads the URL of a sink into *s and *ret, which the caller releases, also after an
 * error. Of cfg it takes the URL, the consumer and the time limit. ERR_CONFIG, ERR_NOMEM. */
int nats_plan_read(const struct sink_config *cfg, struct nats_settings *s, struct nats_plan **ret,
                   struct error *err);

/* An event that was taken. (1) token 0: it is not sent yet, because the link is not ready. (2) The
 * flights of a sink are a list in the order they were taken, which is also that of their
 * deadlines. */
struct flight {
    struct flight *prev, *next; /* or the next free one */
    struct delivery *d;
    uint64_t token;
    int64_t since, asked; /* monotonic: when it was taken, and last sent */
    size_t bytes;
};

/* (1) `count` flights are in the list first..last; the others are free. (2) Tokens grow, and
 * by_token[token % NATS_WINDOW_MAX] is the flight of the last one that was given. (3) While link is
 * NULL, nothing is in flight. (4) With exclusive=on, chain says what the next message expects. */
struct nats_sink {
    struct sink base;
    struct nats_settings set;
    struct nats_plan *plan;
    struct template *subject;
    bool fixed; /* every event goes to the same subject */
    struct message_style style;

    struct nats_link *link;
    bool ready; /* the link is, and `stream` is what it found */
    const struct nats_stream *stream;
    int64_t max_payload;
    size_t doubtful; /* how many more events may be among the stream's last messages */

    struct flight *flights, *free, *first, *last;
    struct flight **by_token;
    size_t count, bytes;
    uint64_t token;   /* the last one given */
    int64_t heard_at; /* monotonic: when the last answer came */
    /* Why the stream took nothing when a link last looked at it. Until that time no other link
     * looks, and events are refused for the same reason. */
    struct error refused;
    int64_t refused_until;

    struct {
        bool anchored; /* the next message names the last id, not the last sequence */
        char *id;      /* the last message's id, if anchored */
        uint64_t seq;  /* the last sequence, if not */
    } chain;

    struct streams streams;
    struct buf name, text, header;
    char caution[2][900]; /* the one in use, and the one before it */
    int cautions;
};

static inline int64_t nats_now(const struct nats_sink *n)
{
    return clock_mono(n->base.cfg.clock);
}

/* nats_message_make makes the message of an event, with the headers that JetStream goes by. *ret is
 * the caller's. ERR_INVALID if it can never be sent; ERR_NOMEM. n->name is the subject then, and
 * n->header its Nats-Msg-Id. */
int nats_message_make(struct nats_sink *n, const struct delivery *d, uint64_t token, natsMsg **ret,
                      struct error *err);
/* nats_message_id writes an event's Nats-Msg-Id into n->header, and returns it. */
struct str nats_message_id(struct nats_sink *n, const struct event *ev);
/* nats_message_sent moves the chain on to the message that was made last. Returns -1 without
 * memory. */
int nats_message_sent(struct nats_sink *n);

/* nats_end answers for a flight, and frees it. */
void nats_end(struct nats_sink *n, struct flight *f, const struct sink_result *r);
/* nats_end_all answers for everything in flight, in order. */
void nats_end_all(struct nats_sink *n, enum sink_status status, int native, const char *text);
/* nats_give_up ends everything in flight because of the link, and drops it. */
void nats_give_up(struct nats_sink *n, const struct error *err);
/* nats_found answers for an event that is in the stream already. */
void nats_found(struct nats_sink *n, struct delivery *d, uint64_t seq);
/* nats_answer_take takes one answer, which may end flights, or all of them and the link. */
void nats_answer_take(struct nats_sink *n, const struct nats_answer *a);

#endif
