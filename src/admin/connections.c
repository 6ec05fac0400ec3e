/* connections.c: the open connections. All functions may be called from any thread. */
#include "admin/connections.h"

#include <sys/socket.h>

#include "base/clock.h"

#define REQUEST_NS (10 * 1000 * MS_NS) /* to send a request, however slowly the bytes come */
#define ANSWER_NS (30 * 1000 * MS_NS)  /* to make the answer and to read it */
#define AGAIN_NS (1000 * MS_NS)        /* until a connection that was ended is looked at again */
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

/* disconnect ends a connection. The thread that serves it notices, and closes it. */
static void disconnect(const struct connection *one)
{
    shutdown(one->fd, SHUT_RDWR);
}

static size_t count_open(const struct connections *k)
{
    size_t n = 0;
    for (size_t i = 0; i < CONNECTIONS_MAX; i++)
        if (k->connection[i].since)
            n++;
    return n;
}

/* oldest_waiting returns the oldest connection whose request is not complete, or NULL. */
static const struct connection *oldest_waiting(const struct connections *k)
{
    const struct connection *oldest = NULL;
    for (size_t i = 0; i < CONNECTIONS_MAX; i++) {
        const struct connection *one = &k->connection[i];
        bool waiting = one->since && !one->complete;
        if (!waiting)
            continue;
        if (!oldest || one->since < oldest->since)
            oldest = one;
    }
    return oldest;
}

static void make_room(const struct connections *k)
{
    if (count_open(k) < FEW_LEFT)
        return;
    const struct connection *oldest = oldest_waiting(k);
    if (oldest)
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

static int64_t deadline_of(const struct connection *one)
{
    return one->since + (one->complete ? ANSWER_NS : REQUEST_NS);
}

int64_t connections_tick(struct connections *k, int64_t now)
{
    int64_t next = CLOCK_NEVER;
    pthread_mutex_lock(&k->lock);
    for (size_t i = 0; i < CONNECTIONS_MAX; i++) {
        const struct connection *one = &k->connection[i];
        if (!one->since)
            continue;
        int64_t end = deadline_of(one);
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
