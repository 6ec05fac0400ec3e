/* wire.h: one non-blocking connection over TCP or a Unix socket, with or without TLS, for any
 * protocol. */
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
    WIRE_CONNECTING, /* the socket */
    WIRE_SECURING,   /* TLS */
    WIRE_OPEN,
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

/* (1) state == WIRE_CLOSED if and only if fd < 0. */
struct wire {
    struct wire_peer peer;
    enum wire_state state;
    int fd;
    struct addrinfo *addrs, *next; /* the addresses of the host, and the next to try */
    struct tls *tls;
};

/* wire_init prepares a closed connection. */
void wire_init(struct wire *w);

/* wire_open starts connecting, after closing any open connection. The peer's strings are borrowed
 * until the connection is closed. The call blocks only while the host name is resolved. On failure
 * the connection is closed: ERR_UNAVAILABLE with CLASS_DOWN. */
int wire_open(struct wire *w, const struct wire_peer *peer, struct error *err);
/* wire_close drops the connection. A closed connection is valid. */
void wire_close(struct wire *w);

/* wire_advance continues connecting and the TLS handshake as far as possible without blocking; at
 * WIRE_OPEN it does nothing. Returns -1 with CLASS_DOWN if the peer is unreachable; the caller then
 * closes the connection. */
int wire_advance(struct wire *w, struct error *err);

/* wire_read returns the number of bytes read, 0 if it would block, -1 if the connection is lost,
 * which includes the end of the stream. For this and the following functions, the connection must
 * be WIRE_OPEN. The error lacks the peer's label: see wire_lost. */
ssize_t wire_read(struct wire *w, char *p, size_t n, struct error *err);
/* wire_flush writes as much as possible of b, whose first *sent bytes are already written, and
 * clears b once all bytes are written. */
int wire_flush(struct wire *w, struct buf *b, size_t *sent, struct error *err);
/* wire_drained returns whether a wire_read that returned n of at most `max` bytes has emptied the
 * socket. */
bool wire_drained(const struct wire *w, size_t n, size_t max);
/* wire_lost adds the peer's label and CLASS_DOWN to the error of a lost connection. Returns -1. */
int wire_lost(const struct wire *w, struct error *err);

/* wire_poll returns the events to poll for before the next call. `unsent`: the caller still has
 * bytes to write. */
struct pollfd wire_poll(const struct wire *w, bool unsent);

/* wire_stirs returns whether a peer that should be silent has closed the connection or sent
 * unsolicited data. */
bool wire_stirs(const struct wire *w);

#endif
