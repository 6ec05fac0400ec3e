#include "sink/nats_tls.h"

#include <fcntl.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "sink/nats_link_impl.h"

/* What the thread that connects has set; nothing in all others, so that their connections stay as
 * they are. */
static _Thread_local int64_t handshake_ms;
static _Thread_local struct nats_link *shaking_link;

static void set_limit(int fd, int64_t ms)
{
    struct timeval limit = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

/* keep_shaking replaces the link's own descriptor of the socket; -1: there is none any more. A link
 * that was dropped meanwhile gets no further. */
static void keep_shaking(struct nats_link *l, int fd)
{
    pthread_mutex_lock(&l->lock);
    if (l->shaking >= 0)
        close(l->shaking);
    l->shaking = fd;
    if (l->dropped && fd >= 0)
        shutdown(fd, SHUT_RDWR);
    pthread_mutex_unlock(&l->lock);
}

static void on_info(const SSL *ssl, int where, int value)
{
    (void)value;
    bool begins = (where & SSL_CB_HANDSHAKE_START) != 0;
    if (!begins || handshake_ms == 0)
        return;
    int fd = SSL_get_fd(ssl);
    set_limit(fd, handshake_ms);
    if (shaking_link)
        keep_shaking(shaking_link, fcntl(fd, F_DUPFD_CLOEXEC, 0));
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

void nats_tls_begin(struct nats_link *l, int64_t limit_ms)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, ask_openssl);
    handshake_ms = limit_ms;
    shaking_link = l;
}

void nats_tls_end(void)
{
    if (shaking_link)
        keep_shaking(shaking_link, -1);
    handshake_ms = 0;
    shaking_link = NULL;
}

void nats_tls_done(int fd)
{
    set_limit(fd, 0);
}
