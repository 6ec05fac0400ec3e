/* nats_link_impl.h: private to a link: nats_link.c (the thread and its queues), nats_connect.c (TLS
 * and the login) and nats_prepare.c (queries about the stream). */
#ifndef SINK_NATS_LINK_IMPL_H
#define SINK_NATS_LINK_IMPL_H

#include <pthread.h>

#include "sink/nats_link.h"

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
    struct nats_answers reading; /* replies lent to the sink; see nats_update */
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
int nats_connect_host(struct nats_link *l, const struct broker_host *h, struct error *err);
/* nats_connect_options sets the address and the login; fails with ERR_UNAVAILABLE.
 * nats_connect_failed reports why a connection attempt failed, with advice. */
int nats_connect_options(const struct nats_plan *p, const struct broker_host *h, natsOptions *o,
                         struct error *err);
int nats_connect_failed(const struct nats_plan *p, const struct broker_host *h, natsStatus s,
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

#endif
