#include "net/tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/num.h"

#define REASON_SIZE 160

/* TLS over one socket. (1) ctx and method are per connection, since certificates are read for
 * each. */
struct tls {
    BIO_METHOD *method;
    SSL_CTX *ctx;
    SSL *ssl;
    int fd;       /* borrowed */
    short events; /* the events that the last call that returned 0 waits for */
};

/* We need our own BIO: OpenSSL's writes without MSG_NOSIGNAL, and a library may not change the
 * signal handling of its host. */

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

/* Removes OpenSSL's reason for the last failure from its queue. A reason never contains key
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

int tls_new(const struct tls_files *files, const char *host, int fd, struct tls **ret,
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

void tls_free(struct tls *t)
{
    if (!t)
        return;
    SSL_free(t->ssl);
    SSL_CTX_free(t->ctx);
    BIO_meth_free(t->method);
    free(t);
}

/* Interprets rc, returned by a failed OpenSSL call: 0 if the call is to be repeated once t->events
 * are ready, else -1. */
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
    return err_set(err, ERR_UNAVAILABLE, "its certificate is not valid: %s",
                   X509_verify_cert_error_string(verdict));
}

/* Clears OpenSSL's queue, so that call_failed sees only errors of the next call. */
static void forget_errors(void)
{
    ERR_clear_error();
    errno = 0;
}

int tls_handshake(struct tls *t, struct error *err)
{
    forget_errors();
    int rc = SSL_do_handshake(t->ssl);
    if (rc != 1)
        return call_failed(t, rc, err);
    return 1;
}

ssize_t tls_read(struct tls *t, void *p, size_t n, struct error *err)
{
    forget_errors();
    int rc = SSL_read(t->ssl, p, (int)min_size(n, INT_MAX));
    if (rc <= 0)
        return call_failed(t, rc, err);
    return rc;
}

ssize_t tls_write(struct tls *t, const void *p, size_t n, struct error *err)
{
    forget_errors();
    int rc = SSL_write(t->ssl, p, (int)min_size(n, INT_MAX));
    if (rc <= 0)
        return call_failed(t, rc, err);
    return rc;
}

short tls_events(const struct tls *t)
{
    return t->events;
}
