#include "net/wire.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/fd.h"

#define SEND_BUFFER (4 << 20) /* or as much as the system allows */

void wire_init(struct wire *w)
{
    *w = (struct wire){.fd = -1};
}

static void forget_addrs(struct wire *w)
{
    if (w->addrs)
        freeaddrinfo(w->addrs);
    w->addrs = w->next = NULL;
}

/* The only function that sets the state. A connection only moves forward, or is closed. */
static void change_state(struct wire *w, enum wire_state to)
{
    assert(to == WIRE_CLOSED || to > w->state);
    w->state = to;
}

static void close_socket(struct wire *w)
{
    tls_free(w->tls);
    w->tls = NULL;
    if (w->fd >= 0)
        close(w->fd);
    w->fd = -1;
    change_state(w, WIRE_CLOSED);
}

void wire_close(struct wire *w)
{
    close_socket(w);
    forget_addrs(w);
}

/* Connecting */

static void set_socket_options(int fd, int family)
{
    int on = 1, send_buffer = SEND_BUFFER;
    if (family == AF_UNIX) {
        /* A large buffer keeps the server busy while we do other work. For TCP the kernel tunes the
         * size itself. */
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

/* Starts connecting to an address; -1 with errno. */
static int start_socket(struct wire *w, const struct sockaddr *sa, socklen_t n)
{
    int type = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
    w->fd = fd_above_stdio(socket(sa->sa_family, type, 0));
    if (w->fd < 0)
        return -1;
    set_socket_options(w->fd, sa->sa_family);

    bool started = connect(w->fd, sa, n) == 0 || errno == EINPROGRESS;
    if (started) {
        change_state(w, WIRE_CONNECTING);
        return 0;
    }
    int saved = errno;
    close_socket(w);
    errno = saved;
    return -1;
}

static int unreachable(const struct wire *w, int error, struct error *err)
{
    err_errno(err, ERR_UNAVAILABLE, error, "could not reach %s", w->peer.label);
    err->retry_class = CLASS_DOWN;
    return -1;
}

/* Starts connecting to the next address of the host, after `error` at the previous one. */
static int try_next(struct wire *w, int error, struct error *err)
{
    close_socket(w);
    while (w->next) {
        const struct addrinfo *a = w->next;
        w->next = a->ai_next;
        if (start_socket(w, a->ai_addr, a->ai_addrlen) == 0)
            return 0;
        error = errno;
    }
    return unreachable(w, error, err);
}

static int open_network(struct wire *w, struct error *err)
{
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};
    int rc = getaddrinfo(w->peer.host, w->peer.port, &hints, &w->addrs);
    if (rc != 0) {
        /* Without any network, AI_ADDRCONFIG leaves out even loopback addresses. Retry without
         * it. */
        hints.ai_flags = 0;
        rc = getaddrinfo(w->peer.host, w->peer.port, &hints, &w->addrs);
    }
    if (rc != 0)
        return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0, "could not look up %s: %s",
                         w->peer.host, gai_strerror(rc));
    w->next = w->addrs;
    return try_next(w, EADDRNOTAVAIL, err);
}

int wire_open(struct wire *w, const struct wire_peer *peer, struct error *err)
{
    wire_close(w);
    w->peer = *peer;
    int rc = 0;
    if (!peer->path) {
        rc = open_network(w, err);
    } else {
        struct sockaddr_un sa = {.sun_family = AF_UNIX};
        size_t n = strlen(peer->path) + 1;
        if (n > sizeof sa.sun_path)
            return unreachable(w, ENAMETOOLONG, err);
        memcpy(sa.sun_path, peer->path, n);
        if (start_socket(w, (const struct sockaddr *)&sa, sizeof sa) != 0)
            rc = unreachable(w, errno, err);
    }
    if (rc != 0)
        wire_close(w);
    return rc;
}

/* Checks whether the socket is connected. */
static int advance_connecting(struct wire *w, struct error *err)
{
    struct pollfd fd = {.fd = w->fd, .events = POLLOUT};
    int error = 0;
    socklen_t n = sizeof error;
    if (poll(&fd, 1, 0) != 1)
        return 0;
    if (getsockopt(w->fd, SOL_SOCKET, SO_ERROR, &error, &n) != 0)
        error = errno;
    if (error && w->peer.path)
        return unreachable(w, error, err);
    if (error)
        return try_next(w, error, err);

    forget_addrs(w);
    if (!w->peer.tls) {
        change_state(w, WIRE_OPEN);
        return 0;
    }
    change_state(w, WIRE_SECURING);
    if (tls_new(&w->peer.files, w->peer.host, w->fd, &w->tls, err) != 0)
        return wire_lost(w, err);
    return 0;
}

int wire_advance(struct wire *w, struct error *err)
{
    if (w->state == WIRE_CONNECTING && advance_connecting(w, err) != 0)
        return -1;
    if (w->state != WIRE_SECURING)
        return 0;
    int rc = tls_handshake(w->tls, err);
    if (rc < 0)
        return wire_lost(w, err);
    if (rc > 0)
        change_state(w, WIRE_OPEN);
    return 0;
}

/* Reading and writing */

int wire_lost(const struct wire *w, struct error *err)
{
    err_prefix(err, "%s", w->peer.label);
    err->retry_class = CLASS_DOWN;
    return -1;
}

/* Returns 0 if a call on the socket failed only because it would block. */
static int socket_failed(struct error *err)
{
    bool would_wait = errno == EAGAIN || errno == EINTR;
    if (would_wait)
        return 0;
    return err_errno(err, ERR_UNAVAILABLE, errno, "connection lost");
}

ssize_t wire_read(struct wire *w, char *p, size_t n, struct error *err)
{
    if (w->tls)
        return tls_read(w->tls, p, n, err);
    ssize_t k = recv(w->fd, p, n, 0);
    if (k < 0)
        return socket_failed(err);
    if (k == 0)
        return err_set(err, ERR_UNAVAILABLE, "the server closed the connection");
    return k;
}

int wire_flush(struct wire *w, struct buf *b, size_t *sent, struct error *err)
{
    while (*sent < b->n) {
        const char *rest = b->p + *sent;
        size_t n = b->n - *sent;
        ssize_t k;
        if (w->tls) {
            k = tls_write(w->tls, rest, n, err);
        } else {
            k = send(w->fd, rest, n, MSG_NOSIGNAL);
            if (k < 0)
                k = socket_failed(err);
        }
        if (k <= 0)
            return (int)k; /* 0: it would block */
        *sent += (size_t)k;
    }
    buf_clear(b);
    *sent = 0;
    return 0;
}

/* Unknown with TLS: records that OpenSSL has read stay inside it, invisible to poll. */
bool wire_drained(const struct wire *w, size_t n, size_t max)
{
    return n < max && !w->tls;
}

struct pollfd wire_poll(const struct wire *w, bool unsent)
{
    struct pollfd fd = {.fd = w->fd, .events = POLLIN};
    switch (w->state) {
    case WIRE_CONNECTING: fd.events = POLLOUT; break;
    case WIRE_SECURING: fd.events = tls_events(w->tls); break;
    case WIRE_OPEN:
        if (unsent)
            fd.events = POLLIN | POLLOUT;
        break;
    case WIRE_CLOSED: break;
    }
    return fd;
}

bool wire_stirs(const struct wire *w)
{
    struct pollfd fd = {.fd = w->fd, .events = POLLIN};
    return w->state == WIRE_OPEN && poll(&fd, 1, 0) == 1;
}
