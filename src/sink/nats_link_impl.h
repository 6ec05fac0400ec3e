/* nats_link_impl.h: private to a link: nats_link.c (the thread and its queues), nats_connect.c (TLS
 * and logging in) and nats_prepare.c (queries about the stream). */
#ifndef SINK_NATS_LINK_IMPL_H
#define SINK_NATS_LINK_IMPL_H

#include <pthread.h>

#include "sink/nats_link.h"

/* at[first..n) is still to be sent. */
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

/* (1) `refs` counts the sink, the thread, and outstanding callbacks of libnats. (2) Fields below
 * `lock` are guarded by it; those above do not change, or belong to the thread alone. (3) fd >= 0
 * while libnats may use the socket; it is closed only after fd is -1. */
struct nats_link {
    struct nats_plan *plan;
    int update_fd, wake_fd; /* eventfds: for the sink, and for the thread */
    char inbox[64];         /* replies arrive on inbox.TOKEN */
    natsConnection *nc;
    natsSubscription *sub;
    struct nats_queue sending;   /* moved here from `outgoing` */
    struct nats_answers reading; /* the sink's, see nats_update */
    unsigned request;            /* number of the last request */

    pthread_mutex_t lock;
    pthread_cond_t ended_cond;
    int refs;
    int fd;
    int handshake_fd; /* our duplicate of a socket that is still connecting; -1: none */
    bool want_write, dropped, ended;
    enum nats_link_state state;
    struct error lost;
    struct nats_queue outgoing;
    struct nats_answers answers;
    natsMsg *reply; /* to the last request */
    bool replied;   /* to the last request, or no_responders: nothing answers on its subject */
    bool no_responders;
    struct nats_tail *tail;
    bool tail_done;
    struct nats_stream stream;
    int64_t max_payload;
};

/* A time limit for libnats' TLS handshake, which has none of its own. libnats performs the
 * handshake on a blocking socket, and does not reveal which one until it is done; a server that
 * stalls during it would block the thread forever. OpenSSL does: it calls us when the handshake
 * begins, in the connecting thread.
 *
 * nats_tls_begin limits every read and write of a handshake that this thread begins until
 * nats_tls_end. A read that takes longer fails, and the handshake with it. Meanwhile
 * l->handshake_fd is our duplicate of that socket's descriptor, by which another thread can end
 * it; l may be NULL. */
void nats_tls_begin(struct nats_link *l, int64_t limit_ms);
void nats_tls_end(void);

/* nats_connect_host connects to one of the plan's hosts. ERR_UNAVAILABLE. */
int nats_connect_host(struct nats_link *l, const struct broker_host *h, struct error *err);
/* nats_connect_options sets the address and the login; ERR_UNAVAILABLE. nats_connect_failed reports
 * why connecting failed, with advice. */
int nats_connect_options(const struct nats_plan *p, const struct broker_host *h, natsOptions *o,
                         struct error *err);
int nats_connect_failed(const struct nats_plan *p, const struct broker_host *h, natsStatus s,
                        struct error *err);
/* nats_prepare queries the stream, once connected. ERR_UNAVAILABLE, ERR_NOMEM. */
int nats_prepare(struct nats_link *l, struct error *err);

/* nats_link_process lets libnats read and write, and waits at most timeout_ms (-1: indefinitely)
 * for something to do. ERR_UNAVAILABLE once the connection is gone or dropped. */
int nats_link_process(struct nats_link *l, int timeout_ms, struct error *err);
/* nats_link_ref adds a reference for a callback, nats_link_unref drops one. */
void nats_link_ref(struct nats_link *l);
void nats_link_unref(struct nats_link *l);
/* nats_link_push queues a reply for the sink. It takes ownership of the text. */
void nats_link_push(struct nats_link *l, struct nats_answer a);
/* nats_link_text writes libnats' error text, safe for a log. */
void nats_link_text(natsStatus s, char *out, size_t size);
/* nats_link_failed fails with the text of libnats for a status, after "LABEL: WHAT: ".
 * ERR_UNAVAILABLE, CLASS_DOWN. */
int nats_link_failed(const struct nats_plan *p, natsStatus s, const char *what, struct error *err);

#endif
