#include "sink/nats_tls.h"

#include <openssl/ssl.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/time.h>

/* What the thread that connects has set; 0 in all others, so that their connections stay as they
 * are. */
static _Thread_local int64_t handshake_ms;

static void set_limit(int fd, int64_t ms)
{
    struct timeval limit = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

static void on_info(const SSL *ssl, int where, int value)
{
    (void)value;
    bool begins = (where & SSL_CB_HANDSHAKE_START) != 0;
    if (begins && handshake_ms > 0)
        set_limit(SSL_get_fd(ssl), handshake_ms);
}

/* on_new is called for every SSL object of the process, those of others included. */
static void on_new(void *ssl, void *data, CRYPTO_EX_DATA *all, int index, long number, void *arg)
{
    (void)data;
    (void)all;
    (void)index;
    (void)number;
    (void)arg;
    if (handshake_ms > 0)
        SSL_set_info_callback(ssl, on_info);
}

static void ask_openssl(void)
{
    SSL_get_ex_new_index(0, NULL, on_new, NULL, NULL);
}

void nats_tls_begin(int64_t limit_ms)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, ask_openssl);
    handshake_ms = limit_ms;
}

void nats_tls_end(void)
{
    handshake_ms = 0;
}

void nats_tls_done(int fd)
{
    set_limit(fd, 0);
}
