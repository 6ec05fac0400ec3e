/* nats_impl.h: private to the NATS sink: nats.c (deliveries in flight, and the meaning of replies),
 * nats_message.c (the messages), and its connection, a link: nats_link.c (the thread and its
 * queues), nats_connect.c (the URL, TLS and the login), nats_prepare.c (queries about the stream)
 * and nats_stream.c (parses what the server says).
 *
 * libnats blocks in many places: connecting includes the login and the TLS handshake, and with TLS
 * even a read or a write may block. Only the thread of a link therefore calls functions that may
 * block. The sink's thread passes messages and receives replies under a lock that no thread holds
 * while it waits. libnats never reconnects automatically: messages that it had buffered for
 * resending would overtake those that the engine has sent since. A link that is lost, or dropped,
 * sends nothing more. */
#ifndef SINK_NATS_IMPL_H
#define SINK_NATS_IMPL_H

#include <nats/nats.h>
#include <pthread.h>
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
    char *subject; /* pattern of the events' subjects: "orders.>" */
    bool fixed;    /* all events have this one subject */
    char *creds_file, *nkey, *nkey_file, *token_file;
    enum message_format format;
    enum nats_msg_id msg_id;
    bool create;    /* create the stream if it does not exist */
    bool exclusive; /* no other client writes to the stream */
    int64_t replicas, window;
    int64_t lookback; /* number of the stream's last messages to check */
};

/* The settings shared by all links of a sink, reference-counted because a thread stuck in libnats
 * may outlive its sink. Immutable, apart from the atomic fields. */
struct nats_plan {
    atomic_int refs, threads;
    atomic_uint host; /* index of the host that the next link tries first */
    struct url url;
    struct nats_settings set;
    bool tls;
    char *token;   /* from the environment; owned */
    char api[300]; /* "$JS.API" */
    char client[80];
    int64_t timeout_ms; /* time limit for connecting to one host, and for one request */
};

/* nats_plan_read parses the URL of a sink. The caller releases *ret, even after an error. It reads
 * only the URL, the consumer and the time limit of cfg. Errors: ERR_CONFIG, ERR_NOMEM. */
int nats_plan_read(const struct sink_config *cfg, struct nats_plan **ret, struct error *err);
/* nats_plan_release drops a reference and frees the plan with the last one; accepts NULL. */
void nats_plan_release(struct nats_plan *plan);

/* The stream */

/* The Nats-Msg-Ids of a stream's last messages, by hash. (1) The table has `cap` slots, a power of
 * two, or 0; a slot with seq 0 is free. */
struct nats_tail {
    struct nats_tail_entry {
        uint64_t hash[2];
        uint64_t seq;
    } * at;
    size_t cap, n;
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
int nats_stream_read(struct str json, const struct nats_settings *set, struct nats_stream *ret,
                     struct error *err);
void nats_stream_release(struct nats_stream *st);
/* nats_stream_request writes the body of a request to create the stream. */
void nats_stream_request(struct buf *b, const struct nats_settings *set);
/* nats_stream_caution writes, as one line, which settings of the stream may lose or repeat events;
 * "" if none does. resend_ms is the maximum delay before an event may be resent. */
void nats_stream_caution(const struct nats_stream *st, const struct nats_settings *set,
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

struct nats_link;

/* nats_link_start starts connecting and returns at once. The caller must eventually drop the link.
 * Errors: ERR_NOMEM; ERR_UNAVAILABLE if too many threads of this plan are stuck. */
int nats_link_start(struct nats_plan *plan, struct nats_link **ret, struct error *err);
/* nats_link_drop abandons a link in any state and waits at most wait_ms for its thread to end.
 * Unsent messages are discarded. Accepts NULL. */
void nats_link_drop(struct nats_link *l, int64_t wait_ms);

/* nats_link_poll returns the state, and the replies since the last poll in l->reading. It resets
 * update_fd, which is readable while there is news. From NATS_READY on, `stream` and `max_payload`
 * are known; at NATS_LOST, so is `lost`. */
enum nats_link_state nats_link_poll(struct nats_link *l);

/* nats_link_send queues a message and takes ownership of it. The link must be NATS_READY, and the
 * token not 0. nats_link_flush sends the queued messages. Returns -1 if out of memory; the caller
 * then still owns the message. */
int nats_link_send(struct nats_link *l, uint64_t token, natsMsg *msg);
/* nats_link_flush wakes the thread of the link. */
void nats_link_flush(struct nats_link *l);

/* The inside of a link */

/* at[first..n) are not sent yet. */
struct nats_queue {
    struct nats_outgoing {
        uint64_t token;
        natsMsg *msg;
    } * at;
    size_t first, n, cap;
};

struct nats_answers {
    struct nats_answer *at;
    size_t n, cap;
};

/* (1) `refs` counts the sink, the thread, and outstanding callbacks of libnats. (2) `lock` guards
 * the fields below it; those above it do not change, or belong to the thread alone. (3) fd >= 0
 * while libnats may use the socket, which is closed only after fd is -1. */
struct nats_link {
    struct nats_plan *plan;
    int update_fd, wake_fd; /* eventfds: for the sink, and for the thread */
    char inbox[64];         /* replies arrive on inbox.TOKEN */
    natsConnection *nc;
    natsSubscription *sub;
    struct nats_queue sending;   /* messages moved from `outgoing` */
    struct nats_answers reading; /* replies in order of arrival, for the sink */
    unsigned request;            /* number of the last request */

    pthread_mutex_t lock;
    pthread_cond_t ended_cond;
    int refs;
    int fd;
    int handshake_fd; /* duplicate of the descriptor of a connecting socket; -1: none */
    bool want_write, dropped, ended;
    enum nats_link_state state;
    struct error lost;
    struct nats_queue outgoing;
    struct nats_answers answers;
    natsMsg *reply; /* reply to the last request */
    /* the last request has a reply, or no_responders: its subject has no subscriber */
    bool replied;
    bool no_responders;
    struct nats_tail *tail;
    bool tail_done;
    struct nats_stream stream;
    int64_t max_payload;
};

/* A time limit for libnats' TLS handshake, which has none. libnats performs the handshake on a
 * blocking socket, and does not reveal the socket before the handshake is complete; a server that
 * stalls would block the thread forever. OpenSSL reveals it: its callback runs in the connecting
 * thread when the handshake begins.
 *
 * nats_tls_begin limits each read and write of the handshakes that this thread begins before
 * nats_tls_end. A read that takes longer fails, and the handshake with it. Meanwhile
 * l->handshake_fd is a duplicate of the socket's descriptor, with which another thread can shut it
 * down; l may be NULL. */
void nats_tls_begin(struct nats_link *l, int64_t limit_ms);
void nats_tls_end(void);

/* nats_connect_host connects to one of the plan's hosts. Errors: ERR_UNAVAILABLE. */
int nats_connect_host(struct nats_link *l, const struct url_host *h, struct error *err);
/* nats_connect_options sets the address and the login; fails with ERR_UNAVAILABLE.
 * nats_connect_failed reports why a connection attempt failed, with advice. */
int nats_connect_options(const struct nats_plan *p, const struct url_host *h, natsOptions *o,
                         struct error *err);
int nats_connect_failed(const struct nats_plan *p, const struct url_host *h, natsStatus s,
                        struct error *err);
/* nats_prepare queries the stream once the link is connected. Errors: ERR_UNAVAILABLE,
 * ERR_NOMEM. */
int nats_prepare(struct nats_link *l, struct error *err);

/* nats_link_process waits at most timeout_ms (-1: indefinitely) for the socket or a wake-up, and
 * lets libnats read and write. Fails with ERR_UNAVAILABLE once the connection is lost or
 * dropped. */
int nats_link_process(struct nats_link *l, int timeout_ms, struct error *err);
/* nats_link_ref adds a reference for a callback; nats_link_unref drops one. */
void nats_link_ref(struct nats_link *l);
void nats_link_unref(struct nats_link *l);
/* nats_link_push queues a reply for the sink and takes ownership of its text. */
void nats_link_push(struct nats_link *l, struct nats_answer a);
/* nats_link_text writes libnats' error text, safe for a log. */
void nats_link_text(natsStatus s, char *out, size_t size);
/* nats_link_failed fails with libnats' text for a status, preceded by "LABEL: WHAT: ", with
 * ERR_UNAVAILABLE and CLASS_DOWN. */
int nats_link_failed(const struct nats_plan *p, natsStatus s, const char *what, struct error *err);

/* The sink */

#define NATS_WINDOW_MAX 4096  /* a power of two */
#define NATS_SUBJECT_MAX 3000 /* bytes; the server accepts lines of up to 4 KiB */

/* An event in flight. */
struct nats_item {
    struct in_flight f;
    uint64_t token;  /* 0: not sent yet, because the link is not ready */
    int64_t sent_at; /* monotonic time of the last send */
};

/* (1) Tokens increase, and by_token[token % NATS_WINDOW_MAX] is the event with the last token
 * assigned. (2) While `link` is NULL, no event is in flight. (3) With exclusive=on, `chain` is the
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

/* nats_message_subject returns an event's subject, borrowed until the next call; NULL with an
 * error. */
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

#endif
