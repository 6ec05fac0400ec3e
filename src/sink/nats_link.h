/* nats_link.h: a connection to NATS, in its own thread.
 *
 * libnats blocks in many places: it connects, logs in and performs the TLS handshake before it
 * returns, and with TLS even a read or a write may block. So only the thread of a link calls
 * what could block. The sink's thread passes messages and receives replies under a lock that is
 * held only for that. libnats never reconnects on its own: what it buffered for resending would
 * overtake what the engine has sent since. A link that is lost, or dropped, sends nothing more. */
#ifndef SINK_NATS_LINK_H
#define SINK_NATS_LINK_H

#include <nats/nats.h>
#include <stdatomic.h>

#include "sink/broker.h"
#include "sink/nats_stream.h"
#include "sink/sink.h"

#define NATS_PASSWORD_ENV "OUTBOX_NATS_PASSWORD"
#define NATS_TOKEN_ENV "OUTBOX_NATS_TOKEN"
#define NATS_LINKS_MAX 8 /* threads of one sink that may be stuck in libnats at a time */

/* The settings shared by all links of a sink, reference-counted because a thread that is stuck in
 * libnats may outlive its sink. (1) It does not change, apart from the atomic fields. (2) Strings
 * are owned. */
struct nats_plan {
    atomic_int refs, threads;
    atomic_uint host; /* index of the host that the next link tries first */
    struct broker_url url;
    bool tls;
    char *creds_file, *nkey, *nkey_file, *token_file, *token;
    char *api;      /* "$JS.API" */
    char *template; /* of the subject */
    char client[80];
    int64_t timeout_ms; /* for connecting to one host, and for one request */
    struct nats_wanted stream;
};

/* nats_plan_release drops a reference, and frees the plan with the last one; NULL is fine. */
void nats_plan_release(struct nats_plan *plan);

/* What a refusal of JetStream means for an event; a row of the table of replies. */
struct nats_meaning {
    int code;         /* err_code of the server; 0 ends the table */
    const char *says; /* its description contains this; NULL: any */
    enum sink_status status;
    const char *meaning;
};

/* nats_answer_meaning returns the first matching row for a code and the server's text. What is not
 * in the table may concern one event only: SINK_RETRY, so that the engine decides by what happens
 * to others. */
const struct nats_meaning *nats_answer_meaning(int code, const char *words);

enum nats_link_state { NATS_CONNECTING, NATS_READY, NATS_LOST };

/* Outcome of one message. */
enum nats_answer_kind {
    NATS_STORED,
    NATS_REFUSED,      /* the server gave a reason: code and text */
    NATS_NO_STREAM,    /* no stream accepts the subject at the moment */
    NATS_TOO_LARGE,    /* libnats refused it: larger than the server's max_payload */
    NATS_NOT_ALLOWED,  /* the user may not publish to `text`, a subject; token is 0 */
    NATS_NOT_ANSWERED, /* the reply is not from a stream */
};

/* (1) text is owned by the holder of the reply, and may be NULL. */
struct nats_answer {
    uint64_t token;
    enum nats_answer_kind kind;
    bool duplicate;
    uint64_t seq;
    int code;
    char *text;
};

/* News from a link. (1) answers[0..n) are in order of arrival; they are ours until the next call of
 * nats_link_news. (2) stream is valid from NATS_READY on, for as long as the link is. */
struct nats_news {
    enum nats_link_state state;
    struct nats_answer *answers;
    size_t n;
    struct error lost; /* why, with NATS_LOST */
    const struct nats_stream *stream;
    int64_t max_payload;
};

struct nats_link;

/* nats_link_start starts connecting and returns at once. The caller finally drops the link.
 * ERR_NOMEM; ERR_UNAVAILABLE if too many threads of this plan are stuck. */
int nats_link_start(struct nats_plan *plan, struct nats_link **ret, struct error *err);
/* nats_link_drop abandons a link in any state, and waits at most wait_ms for its end. What was not
 * sent by then never will be. NULL is fine. */
void nats_link_drop(struct nats_link *l, int64_t wait_ms);

/* nats_link_fd returns a descriptor that is readable when there is news. */
int nats_link_fd(const struct nats_link *l);
/* nats_link_news collects the news and resets nats_link_fd. */
void nats_link_news(struct nats_link *l, struct nats_news *ret);

/* nats_link_reply writes the subject on which the reply to a token will arrive. */
#define NATS_REPLY_MAX 96
void nats_link_reply(const struct nats_link *l, uint64_t token, char out[NATS_REPLY_MAX]);
/* nats_link_send queues a message, taking ownership; the link must be NATS_READY, and the token not
 * 0. It is sent once nats_link_flush is called. Returns -1 if out of memory; the message then stays
 * the caller's. */
int nats_link_send(struct nats_link *l, uint64_t token, natsMsg *msg);
/* nats_link_flush wakes the thread of the link. */
void nats_link_flush(struct nats_link *l);

#endif
