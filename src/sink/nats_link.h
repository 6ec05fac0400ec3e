/* nats_link.h: a connection to NATS, in its own thread, and the facts about the stream that it
 * collects.
 *
 * libnats blocks in many places: connecting includes the login and the TLS handshake, and with TLS
 * even a read or a write may block. Only the thread of a link therefore calls functions that may
 * block. The sink's thread passes messages and receives replies under a lock that no thread holds
 * while it waits. libnats never reconnects automatically: messages that it had buffered for
 * resending would overtake those that the engine has sent since. A link that is lost, or dropped,
 * sends nothing more. */
#ifndef SINK_NATS_LINK_H
#define SINK_NATS_LINK_H

#include <nats/nats.h>
#include <stdatomic.h>

#include "base/json.h"
#include "sink/broker.h"

#define NATS_PASSWORD_ENV "OUTBOX_NATS_PASSWORD"
#define NATS_TOKEN_ENV "OUTBOX_NATS_TOKEN"
#define NATS_LINKS_MAX 8 /* threads of one sink that may be stuck in libnats at the same time */

/* The parts of a Nats-Msg-Id. */
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

/* A stream as requested by the URL. */
struct nats_stream_spec {
    const char *name;
    char *subject; /* pattern of the events' subjects: "orders.>" */
    bool fixed;    /* all events have this one subject */
    bool create;   /* create the stream if it does not exist */
    int64_t replicas;
    bool exclusive;   /* no other client writes to it */
    int64_t lookback; /* number of its last messages to check */
};

/* The settings shared by all links of a sink, reference-counted because a thread stuck in libnats
 * may outlive its sink. Immutable, apart from the atomic fields. */
struct nats_plan {
    atomic_int refs, threads;
    atomic_uint host; /* index of the host that the next link tries first */
    struct broker_url url;
    struct nats_settings set;
    bool tls;
    char *token;   /* from the environment; owned */
    char api[300]; /* "$JS.API" */
    char client[80];
    int64_t timeout_ms; /* time limit for connecting to one host, and for one request */
    struct nats_stream_spec stream;
};

/* nats_plan_read parses the URL of a sink. The caller releases *ret, even after an error. It reads
 * only the URL, the consumer and the time limit of cfg. Errors: ERR_CONFIG, ERR_NOMEM. */
int nats_plan_read(const struct sink_config *cfg, struct nats_plan **ret, struct error *err);
/* nats_plan_release drops a reference and frees the plan with the last one; accepts NULL. */
void nats_plan_release(struct nats_plan *plan);

/* The stream */

/* The Nats-Msg-Ids of a stream's last messages, by hash. (1) The table has `cap` slots, a power of
 * two, or 0; a slot with seq 0 is free. (2) `last` is the highest sequence seen. */
struct nats_tail {
    struct nats_tail_entry {
        uint64_t hash[2];
        uint64_t seq;
    } * at;
    size_t cap, n;
    uint64_t last;
};

/* nats_tail_init allocates space for at most n ids; returns -1 if out of memory. */
int nats_tail_init(struct nats_tail *t, size_t n);
void nats_tail_add(struct nats_tail *t, struct str id, uint64_t seq);
/* nats_tail_find returns the sequence of the message with this id; 0 if it is not in the table. */
uint64_t nats_tail_find(const struct nats_tail *t, struct str id);
void nats_tail_release(struct nats_tail *t);

/* An existing stream. */
struct nats_stream {
    uint64_t first_seq, last_seq;
    int64_t max_msgs, max_bytes, max_age_ms, max_per_subject, max_msg_size; /* 0: no limit */
    int64_t replicas, duplicate_ms;
    bool discards_old, in_memory, no_ack, sealed;
    char retention[16];
    char leader[64]; /* name of the leader's server; "" without a cluster */
    char *subjects;  /* its subject patterns, each followed by a blank; owned */
    struct nats_tail tail;
    char tail_error[160]; /* why the last messages could not be read; "" if they could */
};

/* nats_stream_read parses the server's description of a stream into *ret, which the caller
 * releases. Fails with ERR_UNAVAILABLE if the description is invalid; with CLASS_RETRY if the
 * stream accepts no events, or does not accept the only subject of the events. */
int nats_stream_read(struct str json, const struct nats_stream_spec *spec, struct nats_stream *ret,
                     struct error *err);
void nats_stream_release(struct nats_stream *st);
/* nats_stream_request writes the body of a request to create the stream. */
void nats_stream_request(struct buf *b, const struct nats_stream_spec *spec);
/* nats_stream_caution writes, as one line, which settings of the stream may lose or repeat events;
 * "" if none does. resend_ms is the maximum delay before an event may be resent. */
void nats_stream_caution(const struct nats_stream *st, const struct nats_stream_spec *spec,
                         int64_t resend_ms, char *out, size_t size);
/* nats_stream_accepts returns whether one of the stream's patterns matches the subject. */
bool nats_stream_accepts(const struct nats_stream *st, struct str subject);
/* nats_stream_covers returns whether a pattern, such as orders.*.created or orders.>, matches every
 * subject that another pattern matches. */
bool nats_stream_covers(struct str pattern, struct str other);

/* Replies */

/* The meaning of a JetStream refusal for an event: a row of the table of replies. */
struct nats_meaning {
    int code;         /* err_code of the server; 0 ends the table */
    const char *says; /* text contained in the server's description; NULL: any */
    enum sink_status status;
    const char *meaning;
};

/* nats_answer_meaning returns the first row that matches a code and the server's text. A code
 * missing from the table may concern a single event, so its meaning is SINK_RETRY: the engine then
 * decides by the results of other events. */
const struct nats_meaning *nats_answer_meaning(int code, const char *words);

/* The outcome of one message. */
enum nats_answer_kind {
    NATS_STORED,
    NATS_REFUSED,      /* refused by the server, with a code and a text */
    NATS_NO_STREAM,    /* no stream currently accepts the subject */
    NATS_TOO_LARGE,    /* refused by libnats: larger than the server's max_payload */
    NATS_NOT_ALLOWED,  /* the user may not publish to `text`, a subject; token is 0 */
    NATS_NOT_ANSWERED, /* the reply did not come from a stream */
};

/* `text` is owned by the struct and may be NULL. */
struct nats_answer {
    uint64_t token;
    enum nats_answer_kind kind;
    bool duplicate;
    uint64_t seq;
    int code;
    char *text;
};

/* The parsers of replies treat the server's data as untrusted. */

/* nats_reply_ack parses the reply to a published message: {"stream":"S","seq":1} or
 * {"error":{"err_code":10071,"description":"..."}}. Any other reply is NATS_NOT_ANSWERED. The token
 * is not set. */
struct nats_answer nats_reply_ack(struct str json);
/* nats_reply_error extracts the error from the reply to a request, with a cleaned text. Returns
 * false if the reply has no error. */
bool nats_reply_error(struct json o, int *ret_code, char *text, size_t size);
/* nats_reply_token parses the token, which follows the inbox in the subject of a reply; returns 0
 * if it is invalid. */
uint64_t nats_reply_token(const char *text);
/* nats_reply_position parses the subject for acknowledging a message of a stream:
 * $JS.ACK.STREAM.CONSUMER.DELIVERED.SEQ.CONSUMER-SEQ.TIME.PENDING, or the longer form that begins
 * with domain and account. Returns false for any other subject. */
bool nats_reply_position(const char *text, uint64_t *ret_seq, uint64_t *ret_pending);
/* nats_reply_subject extracts the subject from an error such as: Permissions Violation for Publish
 * to "orders.1". Returns NULL if the error contains no subject, or if out of memory. The caller
 * frees it. */
char *nats_reply_subject(const char *said);

/* The link */

enum nats_link_state { NATS_CONNECTING, NATS_READY, NATS_LOST };

/* The events on a link since the last poll. (1) answers[0..n) are in order of arrival, borrowed
 * until the next call of nats_link_poll. (2) `stream` is valid from NATS_READY until the link is
 * dropped. */
struct nats_update {
    enum nats_link_state state;
    struct nats_answer *answers;
    size_t n;
    struct error lost; /* the reason, if NATS_LOST */
    const struct nats_stream *stream;
    int64_t max_payload;
};

struct nats_link;

/* nats_link_start starts connecting and returns at once. The caller must eventually drop the link.
 * Errors: ERR_NOMEM; ERR_UNAVAILABLE if too many threads of this plan are stuck. */
int nats_link_start(struct nats_plan *plan, struct nats_link **ret, struct error *err);
/* nats_link_drop abandons a link in any state and waits at most wait_ms for its thread to end.
 * Unsent messages are discarded. Accepts NULL. */
void nats_link_drop(struct nats_link *l, int64_t wait_ms);

/* nats_link_fd returns a descriptor that becomes readable when an update is available. */
int nats_link_fd(const struct nats_link *l);
/* nats_link_poll returns the update and resets nats_link_fd. */
void nats_link_poll(struct nats_link *l, struct nats_update *ret);

/* nats_link_reply_subject writes the subject of replies to the message with this token. */
#define NATS_REPLY_MAX 96
void nats_link_reply_subject(const struct nats_link *l, uint64_t token, char out[NATS_REPLY_MAX]);
/* nats_link_send queues a message and takes ownership of it. The link must be NATS_READY, and the
 * token not 0. nats_link_flush sends the queued messages. Returns -1 if out of memory; the caller
 * then still owns the message. */
int nats_link_send(struct nats_link *l, uint64_t token, natsMsg *msg);
/* nats_link_flush wakes the thread of the link. */
void nats_link_flush(struct nats_link *l);

#endif
