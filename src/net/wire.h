/* wire.h: one non-blocking connection over TCP or a Unix socket, with or without TLS, to a server
 * that speaks a protocol of its own. */
#ifndef NET_WIRE_H
#define NET_WIRE_H

#include <netdb.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/err.h"
#include "net/tls.h"

/* How far a connection has got. */
enum wire_state {
    WIRE_CLOSED,
    WIRE_CONNECTING, /* the socket */
    WIRE_SECURING,   /* TLS */
    WIRE_OPEN,
};

/* Whom to connect to. (1) Either path is set, for a Unix socket, or host and port are. */
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

/* wire_open starts to connect, after closing what was open. The strings of the peer are borrowed
 * until the connection is closed. It blocks while the host's name is looked up, and for nothing
 * else. On failure the connection is closed: ERR_UNAVAILABLE with CLASS_DOWN. */
int wire_open(struct wire *w, const struct wire_peer *peer, struct error *err);
/* wire_close drops the connection. One that is closed stays so. */
void wire_close(struct wire *w);

/* wire_advance goes on with connecting and TLS as far as it can without waiting; at WIRE_OPEN there
 * is nothing left to do. It returns -1 with CLASS_DOWN when the peer cannot be reached; the caller
 * then closes the connection. */
int wire_advance(struct wire *w, struct error *err);

/* wire_read returns the bytes read, 0 if it would have to wait, -1 if the connection is lost, also
 * at the end of the stream. The connection is WIRE_OPEN, here and below. The error is without the
 * peer's label: see wire_lost. */
ssize_t wire_read(struct wire *w, char *p, size_t n, struct error *err);
/* wire_flush writes what it can of b, of which *sent bytes are out, and clears it once all are. */
int wire_flush(struct wire *w, struct buf *b, size_t *sent, struct error *err);
/* wire_drained says whether a wire_read of n bytes into room for max has emptied the socket. */
bool wire_drained(const struct wire *w, size_t n, size_t max);
/* wire_lost names the peer in an error of a connection that is lost: CLASS_DOWN. Returns -1. */
int wire_lost(const struct wire *w, struct error *err);

/* wire_poll returns what to poll for before the next call; unsent says whether the caller has bytes
 * that it could not write. */
struct pollfd wire_poll(const struct wire *w, bool unsent);

/* wire_stirs says, of a peer that has no reason to speak, whether it has: it closed the connection,
 * or said something unasked. */
bool wire_stirs(const struct wire *w);

#endif
