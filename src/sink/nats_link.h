/* nats_link.h: a connection to NATS, in a thread of its own.
 *
 * libnats waits in many places: it connects, logs in and shakes hands with TLS before it returns,
 * and with TLS even a read or a write may wait. So only the thread of a link calls what could wait.
 * The sink's thread hands messages over, and takes answers back, under a lock that is held for no
 * longer than that takes. libnats never reconnects on its own: what it kept to send again would
 * overtake what the engine has sent since. A link that is lost, or dropped, sends nothing more. */
#ifndef SINK_NATS_LINK_H
#define SINK_NATS_LINK_H

#include <nats/nats.h>
#include <stdatomic.h>

#include "sink/broker_url.h"
#include "sink/nats_stream.h"
#include "sink/sink.h"

#define NATS_PASSWORD_ENV "OUTBOX_NATS_PASSWORD"
#define NATS_TOKEN_ENV "OUTBOX_NATS_TOKEN"
#define NATS_LINKS_MAX 8 /* threads of one sink that may be stuck in libnats at a time */

/* What all links of a sink are made by. It is shared, because a thread that is stuck in libnats may
 * outlive its sink. (1) It does not change, apart from the atomic fields. (2) Strings are owned. */
struct nats_plan {
    atomic_int refs, threads;
    atomic_uint host; /* where the next link begins with the list of hosts */
    struct broker_url url;
    bool tls;
    char *creds_file, *nkey, *nkey_file, *token_file, *token;
    char *api;      /* "$JS.API" */
    char *template; /* of the subject */
    char client[80];
    int64_t timeout_ms; /* for connecting to one host, and for one question */
    struct nats_wanted stream;
};

/* nats_plan_release frees the plan with the last reference; NULL is fine. */
void nats_plan_release(struct nats_plan *plan);

/* What a refusal of JetStream means for an event; a row of the table of answers. */
struct nats_meaning {
    int code;         /* err_code of the server; 0 ends the table */
    const char *says; /* its description has this in it; NULL: whatever that is */
    enum sink_status status;
    const char *meaning;
};

/* nats_answer_meaning returns the first row that fits a code and the server's words. What is not in
 * the table may concern one event only: SINK_RETRY, so that the engine judges by what happens to
 * others. */
const struct nats_meaning *nats_answer_meaning(int code, const char *words);

enum nats_link_state { NATS_CONNECTING, NATS_READY, NATS_LOST };

/* What became of one message. */
enum nats_answer_kind {
    NATS_STORED,
    NATS_REFUSED,      /* the server said why: code and text */
    NATS_NO_STREAM,    /* no stream takes the subject at the moment */
    NATS_TOO_LARGE,    /* libnats refused it: larger than the server's max_payload */
    NATS_NOT_ALLOWED,  /* the user may not publish to `text`, a subject; token is 0 */
    NATS_NOT_ANSWERED, /* what came back is no answer of a stream */
};

/* (1) text is owned by whoever has the answer, and may be NULL. */
struct nats_answer {
    uint64_t token;
    enum nats_answer_kind kind;
    bool duplicate;
    uint64_t seq;
    int code;
    char *text;
};

/* What a link has to tell. (1) answers[0..n) in order of arrival; they are ours until the next call
 * of nats_link_news. (2) stream is valid from NATS_READY on, for as long as the link is. */
struct nats_news {
    enum nats_link_state state;
    struct nats_answer *answers;
    size_t n;
    struct error lost; /* why, with NATS_LOST */
    const struct nats_stream *stream;
    int64_t max_payload;
};

struct nats_link;

/* nats_link_start begins to connect, and returns at once. The caller drops the link in the end.
 * ERR_NOMEM; ERR_UNAVAILABLE if too many threads of this plan are stuck. */
int nats_link_start(struct nats_plan *plan, struct nats_link **ret, struct error *err);
/* nats_link_drop gives up on a link, whatever its state, and waits for its end for at most wait_ms.
 * What was not sent by then never will be. NULL is fine. */
void nats_link_drop(struct nats_link *l, int64_t wait_ms);

/* nats_link_fd is readable when there is news. */
int nats_link_fd(const struct nats_link *l);
/* nats_link_news takes what is new, and resets nats_link_fd. */
void nats_link_news(struct nats_link *l, struct nats_news *ret);

/* nats_link_reply writes the subject on which the answer to a token is awaited. */
#define NATS_REPLY_MAX 96
void nats_link_reply(const struct nats_link *l, uint64_t token, char out[NATS_REPLY_MAX]);
/* nats_link_send takes a message over; the link must be NATS_READY, and the token not 0. It goes
 * out once nats_link_flush is called. Returns -1 without memory; the message is not taken then. */
int nats_link_send(struct nats_link *l, uint64_t token, natsMsg *msg);
/* nats_link_flush wakes the thread of the link. */
void nats_link_flush(struct nats_link *l);

#endif
