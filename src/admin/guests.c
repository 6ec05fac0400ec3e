/* guests.c: the open connections. All functions may be called from any thread. */
#include "admin/guests.h"

#include <sys/socket.h>

#include "base/clock.h"

#define ASK_NS (10 * 1000 * MS_NS)    /* to send a request, however slowly the bytes come */
#define ANSWER_NS (30 * 1000 * MS_NS) /* to make the answer and to read it */
#define AGAIN_NS (1000 * MS_NS)       /* until a connection that was ended is looked at again */
#define CROWDED (GUESTS_MAX - GUESTS_PER_ADDRESS)

void guests_init(struct guests *g)
{
    *g = (struct guests){.guest = {{0}}};
    pthread_mutex_init(&g->lock, NULL);
}

void guests_release(struct guests *g)
{
    pthread_mutex_destroy(&g->lock);
}

static struct guest *find(struct guests *g, int fd)
{
    for (size_t i = 0; i < GUESTS_MAX; i++)
        if (g->guest[i].since && g->guest[i].fd == fd)
            return &g->guest[i];
    return NULL;
}

/* show_out ends a connection. The thread that serves it notices, and closes it. */
static void show_out(const struct guest *one)
{
    shutdown(one->fd, SHUT_RDWR);
}

static size_t count(const struct guests *g)
{
    size_t n = 0;
    for (size_t i = 0; i < GUESTS_MAX; i++)
        if (g->guest[i].since)
            n++;
    return n;
}

/* oldest_asking returns the oldest connection whose request is not complete, or NULL. */
static const struct guest *oldest_asking(const struct guests *g)
{
    const struct guest *oldest = NULL;
    for (size_t i = 0; i < GUESTS_MAX; i++) {
        const struct guest *one = &g->guest[i];
        bool asking = one->since && !one->asked;
        if (!asking)
            continue;
        if (!oldest || one->since < oldest->since)
            oldest = one;
    }
    return oldest;
}

static void make_room(const struct guests *g)
{
    if (count(g) < CROWDED)
        return;
    const struct guest *oldest = oldest_asking(g);
    if (oldest)
        show_out(oldest);
}

void guests_arrive(struct guests *g, int fd, int64_t now)
{
    pthread_mutex_lock(&g->lock);
    make_room(g);
    for (size_t i = 0; i < GUESTS_MAX; i++) {
        if (g->guest[i].since)
            continue;
        g->guest[i] = (struct guest){.fd = fd, .since = now};
        break;
    }
    pthread_mutex_unlock(&g->lock);
}

void guests_ask(struct guests *g, int fd, int64_t now)
{
    pthread_mutex_lock(&g->lock);
    struct guest *one = find(g, fd);
    if (one) {
        one->asked = true;
        one->since = now;
    }
    pthread_mutex_unlock(&g->lock);
}

void guests_leave(struct guests *g, int fd)
{
    pthread_mutex_lock(&g->lock);
    struct guest *one = find(g, fd);
    if (one)
        one->since = 0;
    pthread_mutex_unlock(&g->lock);
}

static int64_t deadline_of(const struct guest *one)
{
    return one->since + (one->asked ? ANSWER_NS : ASK_NS);
}

int64_t guests_tick(struct guests *g, int64_t now)
{
    int64_t next = CLOCK_NEVER;
    pthread_mutex_lock(&g->lock);
    for (size_t i = 0; i < GUESTS_MAX; i++) {
        const struct guest *one = &g->guest[i];
        if (!one->since)
            continue;
        int64_t end = deadline_of(one);
        if (now >= end) {
            show_out(one);
            end = now + AGAIN_NS;
        }
        if (end < next)
            next = end;
    }
    pthread_mutex_unlock(&g->lock);
    return next;
}
