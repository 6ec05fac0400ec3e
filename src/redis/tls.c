#include "redis/tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

struct tls {
    BIO_METHOD *method;
    SSL_CTX *ctx;
    SSL *ssl;
    int fd;
    short events;
};

/* OpenSSL's own socket BIO writes without MSG_NOSIGNAL, and a library may not change its host's
 * signals. */

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

/* complain says what OpenSSL has to say, which never is about keys themselves. */
static int complain(struct error *err, enum err_code code, const char *what, const char *detail)
{
    char text[160];
    unsigned long e = ERR_peek_last_error();
    if (e)
        ERR_error_string_n(e, text, sizeof text);
    const char *reason = e ? ERR_reason_error_string(e) : NULL;
    ERR_clear_error();
    return err_set(err, code, "%s%s%s: %s", what, detail ? " " : "", detail ? detail : "",
                   reason ? reason
                   : e    ? text
                          : "no reason given");
}

static int load_files(struct tls *t, const struct redis_url *u, struct error *err)
{
    if (u->ca && SSL_CTX_load_verify_locations(t->ctx, u->ca, NULL) != 1)
        return complain(err, ERR_UNAVAILABLE, "could not read certificates from", u->ca);
    if (!u->ca && SSL_CTX_set_default_verify_paths(t->ctx) != 1)
        return complain(err, ERR_UNAVAILABLE, "could not read the system's certificates", NULL);
    if (!u->cert)
        return 0;
    if (SSL_CTX_use_certificate_chain_file(t->ctx, u->cert) != 1)
        return complain(err, ERR_UNAVAILABLE, "could not read the certificate", u->cert);
    if (SSL_CTX_use_PrivateKey_file(t->ctx, u->key, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_check_private_key(t->ctx) != 1)
        return complain(err, ERR_UNAVAILABLE, "could not read the key", u->key);
    return 0;
}

static bool is_address(const char *host)
{
    unsigned char a[sizeof(struct in6_addr)];
    return inet_pton(AF_INET, host, a) == 1 || inet_pton(AF_INET6, host, a) == 1;
}

/* expect makes the handshake fail unless the certificate is for this host. */
static int expect(struct tls *t, const char *host)
{
    if (is_address(host))
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(t->ssl), host) == 1 ? 0 : -1;
    SSL_set_hostflags(t->ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return SSL_set1_host(t->ssl, host) == 1 && SSL_set_tlsext_host_name(t->ssl, host) == 1 ? 0 : -1;
}

int tls_new(const struct redis_url *u, int fd, struct tls **ret, struct error *err)
{
    struct tls *t = calloc(1, sizeof *t);
    if (!t)
        return err_nomem(err);
    t->fd = fd;
    t->events = POLLOUT;
    ERR_clear_error();
    t->ctx = SSL_CTX_new(TLS_client_method());
    if (!t->ctx)
        goto nomem;
    SSL_CTX_set_min_proto_version(t->ctx, TLS1_2_VERSION);
    SSL_CTX_set_verify(t->ctx, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_mode(t->ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    if (load_files(t, u, err) != 0)
        goto fail;
    t->ssl = SSL_new(t->ctx);
    BIO *b = t->ssl ? socket_bio(t) : NULL;
    if (!b)
        goto nomem;
    SSL_set_bio(t->ssl, b, b);
    SSL_set_connect_state(t->ssl);
    if (expect(t, u->host) != 0)
        goto nomem;
    *ret = t;
    return 0;
nomem:
    err_nomem(err);
fail:
    tls_free(t);
    return -1;
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

/* judge turns what OpenSSL says into ours. */
static int judge(struct tls *t, int rc, struct error *err)
{
    int saved = errno;
    switch (SSL_get_error(t->ssl, rc)) {
    case SSL_ERROR_WANT_READ: t->events = POLLIN; return 0;
    case SSL_ERROR_WANT_WRITE: t->events = POLLOUT; return 0;
    case SSL_ERROR_ZERO_RETURN: return err_set(err, ERR_UNAVAILABLE, "it closed the connection");
    case SSL_ERROR_SYSCALL:
        if (rc < 0 && saved)
            return err_errno(err, ERR_UNAVAILABLE, saved, "connection lost");
        return err_set(err, ERR_UNAVAILABLE, "it closed the connection");
    default: break;
    }
    long verdict = SSL_get_verify_result(t->ssl);
    if (verdict == X509_V_OK)
        return complain(err, ERR_UNAVAILABLE, "TLS", NULL);
    ERR_clear_error();
    return err_set(err, ERR_UNAVAILABLE, "its certificate is not good: %s",
                   X509_verify_cert_error_string(verdict));
}

static int clamp(size_t n)
{
    return n > INT_MAX ? INT_MAX : (int)n;
}

int tls_handshake(struct tls *t, struct error *err)
{
    ERR_clear_error();
    errno = 0;
    int rc = SSL_do_handshake(t->ssl);
    return rc == 1 ? 1 : judge(t, rc, err);
}

ssize_t tls_read(struct tls *t, void *p, size_t n, struct error *err)
{
    ERR_clear_error();
    errno = 0;
    int rc = SSL_read(t->ssl, p, clamp(n));
    return rc > 0 ? rc : judge(t, rc, err);
}

ssize_t tls_write(struct tls *t, const void *p, size_t n, struct error *err)
{
    ERR_clear_error();
    errno = 0;
    int rc = SSL_write(t->ssl, p, clamp(n));
    return rc > 0 ? rc : judge(t, rc, err);
}

short tls_events(const struct tls *t)
{
    return t->events;
}
