/* wire.c: one non-blocking connection over TCP or a Unix socket, with or without TLS. */
#include "net/wire.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/num.h"

#define REASON_SIZE 160
#define SEND_BUFFER (4 << 20) /* requested size; the system may allow less */

/* ---- TLS ---- */

/* TLS over one socket. (1) ctx and method are per connection, since certificates are read for
 * each. */
struct tls {
    BIO_METHOD *method;
    SSL_CTX *ctx;
    SSL *ssl;
    int fd;       /* borrowed */
    short events; /* events to poll for before repeating the last call */
};

/* OpenSSL's own BIO writes without MSG_NOSIGNAL, and a library must not change the signal handling
 * of its host. */

static int socket_write(BIO *b, const char *p, int n)
{
    const struct tls *t = BIO_get_data(b);
    ssize_t k = send(t->fd, p, (size_t)n, MSG_NOSIGNAL);
    BIO_clear_retry_flags(b);
    if (k < 0 && (errno == EAGAIN || errno == EINTR))
        BIO_set_retry_write(b);
    return (int)k;
}

static int socket_read(BIO *b, char *p, int n)
{
    const struct tls *t = BIO_get_data(b);
    ssize_t k = recv(t->fd, p, (size_t)n, 0);
    BIO_clear_retry_flags(b);
    if (k < 0 && (errno == EAGAIN || errno == EINTR))
        BIO_set_retry_read(b);
    return (int)k;
}

static long socket_ctrl(BIO *b, int cmd, long num, void *ptr)
{
    (void)b, (void)num, (void)ptr;
    return cmd == BIO_CTRL_FLUSH;
}

static BIO *socket_bio(struct tls *t)
{
    t->method = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "socket without signals");
    if (!t->method)
        return NULL;
    BIO_meth_set_write(t->method, socket_write);
    BIO_meth_set_read(t->method, socket_read);
    BIO_meth_set_ctrl(t->method, socket_ctrl);
    BIO *b = BIO_new(t->method);
    if (!b)
        return NULL;
    BIO_set_data(b, t);
    BIO_set_init(b, 1);
    return b;
}

/* Removes OpenSSL's reason for the last failure from its queue. Reasons never contain key
 * material. */
static const char *take_reason(char text[REASON_SIZE])
{
    unsigned long e = ERR_peek_last_error();
    ERR_clear_error();
    if (e == 0)
        return "unknown reason";
    const char *reason = ERR_reason_error_string(e);
    if (reason)
        return reason;
    ERR_error_string_n(e, text, REASON_SIZE);
    return text;
}

/* Reports a failure with OpenSSL's reason. path may be "". */
static int failed(struct error *err, const char *what, const char *path)
{
    char text[REASON_SIZE];
    return err_set(err, ERR_UNAVAILABLE, "%s%s: %s", what, path, take_reason(text));
}

/* Loads the trusted certificates, and our certificate and key if configured. */
static int make_ctx(struct tls *t, const struct tls_files *f, struct error *err)
{
    t->ctx = SSL_CTX_new(TLS_client_method());
    if (!t->ctx)
        return err_nomem(err);
    SSL_CTX_set_min_proto_version(t->ctx, TLS1_2_VERSION);
    SSL_CTX_set_verify(t->ctx, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_mode(t->ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);

    if (f->ca && SSL_CTX_load_verify_locations(t->ctx, f->ca, NULL) != 1)
        return failed(err, "could not read certificates from ", f->ca);
    if (!f->ca && SSL_CTX_set_default_verify_paths(t->ctx) != 1)
        return failed(err, "could not read the system's certificates", "");
    if (!f->cert)
        return 0;
    if (SSL_CTX_use_certificate_chain_file(t->ctx, f->cert) != 1)
        return failed(err, "could not read the certificate ", f->cert);
    if (SSL_CTX_use_PrivateKey_file(t->ctx, f->key, SSL_FILETYPE_PEM) != 1)
        return failed(err, "could not read the key ", f->key);
    if (SSL_CTX_check_private_key(t->ctx) != 1)
        return failed(err, "could not read the key ", f->key);
    return 0;
}

/* Makes the handshake fail unless the certificate is for this host. */
static int make_ssl(struct tls *t, const char *host, struct error *err)
{
    t->ssl = SSL_new(t->ctx);
    if (!t->ssl)
        return err_nomem(err);
    BIO *b = socket_bio(t);
    if (!b)
        return err_nomem(err);
    SSL_set_bio(t->ssl, b, b);
    SSL_set_connect_state(t->ssl);

    unsigned char a[sizeof(struct in6_addr)];
    bool is_address = inet_pton(AF_INET, host, a) == 1 || inet_pton(AF_INET6, host, a) == 1;
    bool expected;
    if (is_address) {
        expected = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(t->ssl), host) == 1;
    } else {
        SSL_set_hostflags(t->ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
        expected = SSL_set1_host(t->ssl, host) == 1 && SSL_set_tlsext_host_name(t->ssl, host) == 1;
    }
    return expected ? 0 : err_nomem(err);
}

static void tls_free(struct tls *t)
{
    if (!t)
        return;
    SSL_free(t->ssl);
    SSL_CTX_free(t->ctx);
    BIO_meth_free(t->method);
    free(t);
}

/* Prepares TLS over fd, which must outlive *ret. Certificates are reread each time, because they
 * may have been renewed. The peer's certificate must be valid for `host`. */
static int tls_new(const struct tls_files *files, const char *host, int fd, struct tls **ret,
                   struct error *err)
{
    struct tls *t = calloc(1, sizeof *t);
    if (!t)
        return err_nomem(err);
    t->fd = fd;
    t->events = POLLOUT;
    ERR_clear_error();

    int rc = make_ctx(t, files, err);
    if (rc == 0)
        rc = make_ssl(t, host, err);
    if (rc != 0) {
        tls_free(t);
        return -1;
    }
    *ret = t;
    return 0;
}

/* Interprets rc, the result of a failed OpenSSL call. Returns 0 if the call must be repeated once
 * the socket is ready for t->events; otherwise -1. */
static int call_failed(struct tls *t, int rc, struct error *err)
{
    int saved = errno;
    switch (SSL_get_error(t->ssl, rc)) {
    case SSL_ERROR_WANT_READ: t->events = POLLIN; return 0;
    case SSL_ERROR_WANT_WRITE: t->events = POLLOUT; return 0;
    case SSL_ERROR_SYSCALL:
        if (rc < 0 && saved)
            return err_errno(err, ERR_UNAVAILABLE, saved, "connection lost");
        /* fall through */
    case SSL_ERROR_ZERO_RETURN:
        return err_set(err, ERR_UNAVAILABLE, "the server closed the connection");
    default: break;
    }
    long verdict = SSL_get_verify_result(t->ssl);
    if (verdict == X509_V_OK)
        return failed(err, "TLS", "");
    ERR_clear_error();
    return err_set(err, ERR_UNAVAILABLE, "the server's certificate is not valid: %s",
                   X509_verify_cert_error_string(verdict));
}

/* Clears OpenSSL's queue, so that call_failed sees only errors of the next call. */
static void forget_errors(void)
{
    ERR_clear_error();
    errno = 0;
}

/* tls_handshake, tls_read and tls_write return 1 or the number of bytes; 0 if they must be called
 * again once the socket is ready for t->events; -1 with err if the connection is no longer usable,
 * which includes the end of the stream. */
static int tls_handshake(struct tls *t, struct error *err)
{
    forget_errors();
    int rc = SSL_do_handshake(t->ssl);
    if (rc != 1)
        return call_failed(t, rc, err);
    return 1;
}

static ssize_t tls_read(struct tls *t, void *p, size_t n, struct error *err)
{
    forget_errors();
    int rc = SSL_read(t->ssl, p, (int)min_size(n, INT_MAX));
    if (rc <= 0)
        return call_failed(t, rc, err);
    return rc;
}

static ssize_t tls_write(struct tls *t, const void *p, size_t n, struct error *err)
{
    forget_errors();
    int rc = SSL_write(t->ssl, p, (int)min_size(n, INT_MAX));
    if (rc <= 0)
        return call_failed(t, rc, err);
    return rc;
}

/* ---- the connection ---- */

void wire_init(struct wire *w, size_t out_max, size_t login_max)
{
    *w = (struct wire){.fd = -1};
    buf_init(&w->out, out_max);
    buf_init(&w->login, login_max);
}

void wire_release(struct wire *w)
{
    wire_close(w);
    buf_release(&w->out);
    buf_release(&w->login);
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

static void wipe_login(struct wire *w)
{
    buf_wipe(&w->login);
    w->login_sent = 0;
}

void wire_drop(struct wire *w)
{
    close_socket(w);
    forget_addrs(w);
    wipe_login(w);
}

void wire_close(struct wire *w)
{
    wire_drop(w);
    buf_clear(&w->out);
    w->sent = 0;
}

void wire_hold(struct wire *w)
{
    wire_close(w);
    change_state(w, WIRE_HELD);
}

/* ---- connecting ---- */

static void set_socket_options(int fd, int family)
{
    int on = 1, send_buffer = SEND_BUFFER;
    if (family == AF_UNIX) {
        /* A large buffer keeps the server busy while we do other work. For TCP the kernel tunes the
         * size automatically. */
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

/* Starts connecting to an address; returns -1 with errno on failure. */
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

/* Starts connecting to the next address of the host, after `error` for the previous one. */
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
        /* Without a network, AI_ADDRCONFIG excludes even loopback addresses. Retry without it. */
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
    w->peer = *peer;
    if (!peer->path)
        return open_network(w, err);
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    size_t n = strlen(peer->path) + 1;
    if (n > sizeof sa.sun_path)
        return unreachable(w, ENAMETOOLONG, err);
    memcpy(sa.sun_path, peer->path, n);
    if (start_socket(w, (const struct sockaddr *)&sa, sizeof sa) != 0)
        return unreachable(w, errno, err);
    return 0;
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
        change_state(w, WIRE_LOGIN);
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
        change_state(w, WIRE_LOGIN);
    return 0;
}

void wire_accepted(struct wire *w)
{
    change_state(w, WIRE_READY);
    wipe_login(w);
}

/* ---- reading and writing ---- */

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

int wire_flush(struct wire *w, struct error *err)
{
    bool ready = w->state == WIRE_READY;
    struct buf *b = ready ? &w->out : &w->login;
    size_t *sent = ready ? &w->sent : &w->login_sent;
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
            return (int)k; /* 0: the call would block */
        *sent += (size_t)k;
    }
    buf_clear(b);
    *sent = 0;
    return 0;
}

/* With TLS the answer is unknown: records that OpenSSL has read stay inside it, invisible to
 * poll. */
bool wire_drained(const struct wire *w, size_t n, size_t max)
{
    return n < max && !w->tls;
}

struct pollfd wire_poll(const struct wire *w)
{
    struct pollfd fd = {.fd = w->fd, .events = POLLIN};
    bool unsent = false;
    switch (w->state) {
    case WIRE_CONNECTING: fd.events = POLLOUT; break;
    case WIRE_SECURING: fd.events = w->tls->events; break;
    case WIRE_LOGIN: unsent = w->login_sent < w->login.n; break;
    case WIRE_READY: unsent = wire_queued(w) > 0; break;
    case WIRE_CLOSED:
    case WIRE_HELD: break;
    }
    if (unsent)
        fd.events |= POLLOUT;
    return fd;
}

bool wire_stirs(const struct wire *w)
{
    struct pollfd fd = {.fd = w->fd, .events = POLLIN};
    return w->state == WIRE_READY && poll(&fd, 1, 0) == 1;
}
