/* nats_impl.h: private to the NATS sink: nats.c (deliveries in flight), nats_settings.c (its URL),
 * nats_message.c (the messages) and nats_answer.c (the meaning of replies). nats_link.h has the
 * connection. */
#ifndef SINK_NATS_IMPL_H
#define SINK_NATS_IMPL_H

#include "sink/nats_link.h"

#define NATS_WINDOW_MAX 4096  /* a power of two */
#define NATS_SUBJECT_MAX 3000 /* bytes; the server accepts lines of up to 4 KiB */

/* An event in flight. */
struct nats_item {
    struct in_flight f;
    uint64_t token;  /* 0: not sent yet, because the link is not ready */
    int64_t sent_at; /* monotonic time of the last send */
};

/* (1) Tokens grow, and by_token[token % NATS_WINDOW_MAX] is the event with the last token assigned.
 * (2) While `link` is NULL, no event is in flight. (3) With exclusive=on, `chain` is the
 * predecessor that the next message expects. */
struct nats_sink {
    struct broker b;
    struct nats_plan *plan;

    struct nats_link *link;
    bool ready; /* the link is ready, and `stream` describes its stream */
    const struct nats_stream *stream;
    int64_t max_payload;
    size_t lookups_left; /* remaining number of events to look up in the stream's last messages */

    struct nats_item **by_token;
    uint64_t token;     /* the last token assigned */
    int64_t replied_at; /* when the last reply arrived */
    /* The reason why the stream accepted nothing when last queried. Until refused_until, it is not
     * queried again, and events are refused for the same reason. */
    struct error refused;
    int64_t refused_until;

    struct {
        bool by_id;   /* the next message expects the last id instead of the last sequence */
        char *id;     /* the last message's id */
        uint64_t seq; /* the last sequence */
    } chain;

    struct buf header; /* a header being encoded, or the Nats-Msg-Id */
};

/* nats_subject_check rejects a template whose literal text cannot be a subject because of blanks,
 * wildcards or empty tokens. Errors: ERR_CONFIG. */
int nats_subject_check(const char *text, struct error *err);
/* nats_subject_pattern appends a pattern that matches every subject of a template: orders.{type}
 * becomes orders.>, and a.{tenant}.b becomes a.*.b. */
void nats_subject_pattern(const char *text, struct buf *b);
/* nats_subject_escape appends a value as one token or, with `levels`, as non-empty tokens. It is a
 * template_escape: blanks, control characters, * > % and dots become %XX. */
void nats_subject_escape(struct buf *b, struct str value, bool levels);
/* nats_subject_whole returns whether the result of a template is a valid subject: an empty value
 * may leave an empty token. */
bool nats_subject_whole(struct str subject);

/* nats_message_subject writes an event's subject into n->name; returns NULL with an error. */
const char *nats_message_subject(struct nats_sink *n, const struct event *ev, struct error *err);
/* nats_message_make builds the message of an event, with the headers that JetStream uses, and
 * leaves its Nats-Msg-Id in n->header. The caller owns *ret. Fails with ERR_INVALID if the event
 * can never be sent, or with ERR_NOMEM. */
int nats_message_make(struct nats_sink *n, const struct delivery *d, uint64_t token, natsMsg **ret,
                      struct error *err);
/* nats_message_id writes an event's Nats-Msg-Id into n->header and returns it; "" if out of
 * memory. */
struct str nats_message_id(struct nats_sink *n, const struct event *ev);
/* nats_message_sent advances the chain to the last message built. Returns -1 if out of memory. */
int nats_message_sent(struct nats_sink *n);

/* nats_answer_end reports an event's result. */
void nats_answer_end(struct nats_sink *n, struct nats_item *it, const struct sink_result *r);
/* nats_answer_all drops the link and reports this result for all events in flight, in order. */
void nats_answer_all(struct nats_sink *n, const struct sink_result *r);
/* nats_answer_lost does the same after an error of the link. */
void nats_answer_lost(struct nats_sink *n, const struct error *err);
/* nats_answer_found reports an event that was found in the stream before it entered the window. */
void nats_answer_found(struct nats_sink *n, struct delivery *d, uint64_t seq);
/* nats_answer_stored reports an event that is in the stream. In a chain, all earlier events are in
 * the stream too, even if a reply was lost. */
void nats_answer_stored(struct nats_sink *n, struct nats_item *it, uint64_t seq);
/* nats_answer_handle handles one reply. The reply may end events, or all events and the link. */
void nats_answer_handle(struct nats_sink *n, const struct nats_answer *a);

#endif
