/* connections.c: the open connections. All functions may be called from any thread. */
#include "admin/server.h"

#include <sys/socket.h>

#include "base/clock.h"

#define REQUEST_NS (10 * 1000 * MS_NS) /* to receive a request, however slow the client */
#define ANSWER_NS (30 * 1000 * MS_NS)  /* to prepare the answer and send it */
#define AGAIN_NS (1000 * MS_NS)        /* until a disconnected connection is checked again */
#define FEW_LEFT (CONNECTIONS_MAX - CONNECTIONS_PER_ADDRESS)

void connections_init(struct connections *k)
{
    *k = (struct connections){.connection = {{0}}};
    pthread_mutex_init(&k->lock, NULL);
}

void connections_release(struct connections *k)
{
    pthread_mutex_destroy(&k->lock);
}

static struct connection *find_connection(struct connections *k, int fd)
{
    for (size_t i = 0; i < CONNECTIONS_MAX; i++)
        if (k->connection[i].since && k->connection[i].fd == fd)
            return &k->connection[i];
    return NULL;
}

/* Ends a connection. The thread that serves it notices, and closes it. */
static void disconnect(const struct connection *one)
{
    shutdown(one->fd, SHUT_RDWR);
}

/* Disconnects the oldest client whose request is not complete, if few places are left. */
static void make_room(const struct connections *k)
{
    size_t open = 0;
    const struct connection *oldest = NULL;
    for (size_t i = 0; i < CONNECTIONS_MAX; i++) {
        const struct connection *one = &k->connection[i];
        if (!one->since)
            continue;
        open++;
        bool waiting = !one->complete;
        if (waiting && (!oldest || one->since < oldest->since))
            oldest = one;
    }
    if (open >= FEW_LEFT && oldest)
        disconnect(oldest);
}

void connections_opened(struct connections *k, int fd, int64_t now)
{
    pthread_mutex_lock(&k->lock);
    make_room(k);
    for (size_t i = 0; i < CONNECTIONS_MAX; i++) {
        if (k->connection[i].since)
            continue;
        k->connection[i] = (struct connection){.fd = fd, .since = now};
        break;
    }
    pthread_mutex_unlock(&k->lock);
}

void connections_request_complete(struct connections *k, int fd, int64_t now)
{
    pthread_mutex_lock(&k->lock);
    struct connection *one = find_connection(k, fd);
    if (one) {
        one->complete = true;
        one->since = now;
    }
    pthread_mutex_unlock(&k->lock);
}

void connections_closed(struct connections *k, int fd)
{
    pthread_mutex_lock(&k->lock);
    struct connection *one = find_connection(k, fd);
    if (one)
        one->since = 0;
    pthread_mutex_unlock(&k->lock);
}

int64_t connections_tick(struct connections *k, int64_t now)
{
    int64_t next = CLOCK_NEVER;
    pthread_mutex_lock(&k->lock);
    for (size_t i = 0; i < CONNECTIONS_MAX; i++) {
        const struct connection *one = &k->connection[i];
        if (!one->since)
            continue;
        int64_t end = one->since + (one->complete ? ANSWER_NS : REQUEST_NS);
        if (now >= end) {
            disconnect(one);
            end = now + AGAIN_NS;
        }
        if (end < next)
            next = end;
    }
    pthread_mutex_unlock(&k->lock);
    return next;
}
