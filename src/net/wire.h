/* wire.h: one non-blocking connection over TCP or a Unix socket, with or without TLS, for any
 * protocol that begins with a login, and what is queued for it. */
#ifndef NET_WIRE_H
#define NET_WIRE_H

#include <netdb.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/err.h"

/* Connection states, in order. */
enum wire_state {
    WIRE_CLOSED,
    WIRE_HELD,       /* the address is not known yet, but bytes may be queued */
    WIRE_CONNECTING, /* the socket */
    WIRE_SECURING,   /* TLS */
    WIRE_LOGIN,      /* the login is being written, and its replies are read */
    WIRE_READY,
};

/* Trusted certificates and our identity: PEM files, NULL if none. */
struct tls_files {
    const char *ca;         /* NULL: the system's certificates */
    const char *cert, *key; /* both or neither */
};

/* A peer. (1) Either path is set, for a Unix socket, or host and port are. */
struct wire_peer {
    const char *label; /* "redis at host:port", for messages */
    const char *path;
    const char *host, *port;
    bool tls;
    struct tls_files files;
};

/* (1) fd >= 0 if and only if state > WIRE_HELD. (2) out[sent..n) is not written yet, and is held
 * back until WIRE_READY. (3) login[login_sent..n) is the unwritten part of the login. The owner of
 * the connection appends to both. */
struct wire {
    struct wire_peer peer;
    enum wire_state state;
    int fd;
    struct addrinfo *addrs, *next; /* the addresses of the host, and the next to try */
    struct tls *tls;
    struct buf out, login;
    size_t sent, login_sent;
};

/* wire_init prepares a closed connection. At most out_max bytes may be queued, and login_max bytes
 * of the login. */
void wire_init(struct wire *w, size_t out_max, size_t login_max);
void wire_release(struct wire *w);

/* wire_open starts connecting a closed or held connection, and keeps what is queued. The peer's
 * strings are borrowed until the connection is closed. The call blocks only while the host name is
 * resolved. On failure nothing is connected: ERR_UNAVAILABLE with CLASS_DOWN; the caller closes the
 * connection. */
int wire_open(struct wire *w, const struct wire_peer *peer, struct error *err);
/* wire_drop drops the connection, and wipes the login, which may have contained a password. It
 * keeps what is queued. wire_close discards that too. A closed connection is valid. */
void wire_drop(struct wire *w);
void wire_close(struct wire *w);
/* wire_hold closes the connection, but allows bytes to be queued for a later wire_open. */
void wire_hold(struct wire *w);

/* wire_advance continues connecting and the TLS handshake as far as possible without blocking, up
 * to WIRE_LOGIN. Returns -1 with CLASS_DOWN if the peer is unreachable; the caller then closes the
 * connection. */
int wire_advance(struct wire *w, struct error *err);
/* wire_accepted ends the login: the peer has accepted it. */
void wire_accepted(struct wire *w);

/* wire_read returns the number of bytes read, 0 if it would block, -1 if the connection is lost,
 * which includes the end of the stream. For this and the following functions, the connection must
 * be at WIRE_LOGIN or WIRE_READY. The error lacks the peer's label: see wire_lost. */
ssize_t wire_read(struct wire *w, char *p, size_t n, struct error *err);
/* wire_flush writes as much as possible of the login or, at WIRE_READY, of what is queued. */
int wire_flush(struct wire *w, struct error *err);
/* wire_queued returns the number of queued bytes that are not written yet. */
static inline size_t wire_queued(const struct wire *w)
{
    return w->out.n - w->sent;
}
/* wire_drained returns whether a wire_read that returned n of at most `max` bytes has emptied the
 * socket. */
bool wire_drained(const struct wire *w, size_t n, size_t max);
/* wire_lost adds the peer's label and CLASS_DOWN to the error of a lost connection. Returns -1. */
int wire_lost(const struct wire *w, struct error *err);

/* wire_poll returns the events to poll for before the next call. */
struct pollfd wire_poll(const struct wire *w);

/* wire_stirs returns whether a peer that should be silent has closed the connection or sent
 * unsolicited data. */
bool wire_stirs(const struct wire *w);

#endif
