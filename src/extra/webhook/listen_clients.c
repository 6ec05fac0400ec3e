/* listen_clients.c: the clients of `webhook listen`, and what happens to one that never finishes.
 * The daemon's own timeout starts again with every byte, so it does not bound a client that sends
 * one byte a minute; and the daemon may miss that a client has closed its half. */
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "extra/webhook/listen.h"

void listen_give_time(struct listener *l, struct client *c, int64_t ms)
{
    if (!c)
        return;
    c->deadline = clock_mono(&clock_system) + ms * MS_NS;
    if (c->deadline < l->look_at)
        l->look_at = c->deadline;
}

/* watch_half makes epoll report once when the client closes its half. If the last bytes and the end
 * arrive together, the daemon reads the bytes and misses the end: the connection would stay until
 * its time is up. */
static void watch_half(struct listener *l, struct client *c)
{
    struct epoll_event ev = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.ptr = c};
    c->half_closed = false;
    epoll_ctl(l->halves, EPOLL_CTL_ADD, c->fd, &ev);
}

void listen_see_halves(struct listener *l)
{
    struct epoll_event evs[64];
    int n = epoll_wait(l->halves, evs, 64, 0);
    for (int i = 0; i < n; i++) {
        struct client *c = evs[i].data.ptr;
        c->half_closed = true;
        l->any_half = true;
    }
}

/* shut disconnects a client. The daemon notices, and cleans up. */
static void shut(struct client *c)
{
    shutdown(c->fd, SHUT_RDWR);
    c->deadline = CLOCK_NEVER;
    c->half_closed = false;
}

/* waits_in_vain reports whether we wait for a client that will send nothing more. */
static bool waits_in_vain(const struct client *c)
{
    int unread = 0;
    if (c->deadline == CLOCK_NEVER)
        return false; /* our answer is still to go out */
    return ioctl(c->fd, FIONREAD, &unread) == 0 && unread == 0;
}

void listen_drop_halves(struct listener *l)
{
    MHD_UNSIGNED_LONG_LONG mhd;
    bool busy = MHD_get_timeout(l->daemon, &mhd) == MHD_YES && mhd == 0;
    if (!l->any_half || busy)
        return;

    l->any_half = false;
    for (size_t i = 0; i < LISTEN_CLIENTS; i++) {
        struct client *c = &l->client[i];
        if (!c->deadline || !c->half_closed)
            continue;
        if (waits_in_vain(c))
            shut(c);
        else
            l->any_half = true;
    }
}

static struct client *free_slot(struct listener *l)
{
    for (size_t i = 0; i < LISTEN_CLIENTS; i++)
        if (!l->client[i].deadline)
            return &l->client[i];
    return NULL;
}

/* listen_on_connection always finds a free slot: there are as many as the daemon allows
 * connections. */
void listen_on_connection(void *ctx, struct MHD_Connection *conn, void **client,
                          enum MHD_ConnectionNotificationCode what)
{
    struct listener *l = ctx;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(
        conn, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct client *c = *client;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (c)
            c->deadline = 0;
        return;
    }

    c = free_slot(l);
    if (!info || !c)
        return;
    c->fd = info->connect_fd;
    listen_give_time(l, c, l->w->request_ms + LISTEN_BETWEEN_MS);
    watch_half(l, c);
    *client = c;
}

/* is_timed says whether it is the client's turn. */
static bool is_timed(const struct client *c)
{
    return c->deadline != 0 && c->deadline != CLOCK_NEVER;
}

void listen_drop_late(struct listener *l, int64_t now)
{
    if (now < l->look_at)
        return;
    l->look_at = CLOCK_NEVER;
    for (size_t i = 0; i < LISTEN_CLIENTS; i++) {
        struct client *c = &l->client[i];
        if (!is_timed(c))
            continue;
        if (now >= c->deadline)
            shut(c);
        else if (c->deadline < l->look_at)
            l->look_at = c->deadline;
    }
}
