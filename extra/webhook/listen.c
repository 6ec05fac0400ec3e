/* listen.c: the receiver of `webhook listen`, for experiments and for simulating a misbehaving
 * endpoint. One thread runs one loop; delayed answers wait in a queue. Clients cannot exhaust it:
 * connections, the total bytes of all uploads, and the time of each connection are limited. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/num.h"
#include "extra/webhook/listen.h"
#include "extra/webhook/replay.h"
#include "sink/signature.h"

#define IDLE_S 75 /* time limit without a byte; a relay reuses a connection for 60 s */

static volatile sig_atomic_t stopped;

static void on_signal(int number)
{
    (void)number;
    stopped = 1;
}

/* ---- clients ---- */

/* The daemon's own timeout restarts with every byte, so it does not limit a client that sends one
 * byte a minute. The daemon may also miss that a client has closed its half. */

void listen_give_time(struct listener *l, struct client *c, int64_t ms)
{
    if (!c)
        return;
    c->deadline = clock_mono(&clock_system) + ms * MS_NS;
    if (c->deadline < l->look_at)
        l->look_at = c->deadline;
}

/* Records which clients have closed their half. Call it before the daemon runs. */
static void see_halves(struct listener *l)
{
    struct epoll_event evs[64];
    int n = epoll_wait(l->halves, evs, 64, 0);
    for (int i = 0; i < n; i++) {
        struct client *c = evs[i].data.ptr;
        c->half_closed = true;
        l->any_half = true;
    }
}

/* Disconnects a client. The daemon notices and cleans up. */
static void disconnect(struct client *c)
{
    shutdown(c->fd, SHUT_RDWR);
    c->deadline = CLOCK_NEVER;
    c->half_closed = false;
}

/* Disconnects clients that have closed their half, once the daemon has read all their data, unless
 * we owe them an answer. Call it after the daemon has run. */
static void drop_halves(struct listener *l)
{
    MHD_UNSIGNED_LONG_LONG mhd;
    bool busy = MHD_get_timeout(l->daemon, &mhd) == MHD_YES && mhd == 0;
    if (!l->any_half || busy)
        return;

    l->any_half = false;
    for (size_t i = 0; i < LISTEN_CLIENTS; i++) {
        struct client *c = &l->client[i];
        int unread = 0;
        if (!c->deadline || !c->half_closed)
            continue;
        bool owed = c->deadline == CLOCK_NEVER;
        if (!owed && ioctl(c->fd, FIONREAD, &unread) == 0 && unread == 0)
            disconnect(c);
        else
            l->any_half = true;
    }
}

/* Always finds a free slot, because the daemon allows only as many connections as slots exist. */
static void on_connection(void *ctx, struct MHD_Connection *conn, void **client,
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

    c = l->client;
    while (c < l->client + LISTEN_CLIENTS && c->deadline)
        c++;
    if (!info || c == l->client + LISTEN_CLIENTS)
        return;
    c->fd = info->connect_fd;
    c->half_closed = false;
    listen_give_time(l, c, l->w->request_ms + LISTEN_BETWEEN_MS);

    /* epoll reports once when the client closes its half. If the last bytes and the end arrive
     * together, the daemon reads the bytes and misses the end: without this event, the connection
     * would stay until its time is up. */
    struct epoll_event ev = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.ptr = c};
    epoll_ctl(l->halves, EPOLL_CTL_ADD, c->fd, &ev);
    *client = c;
}

/* Disconnects the clients whose time is up, and finds the next deadline. */
static void drop_late(struct listener *l, int64_t now)
{
    if (now < l->look_at)
        return;
    l->look_at = CLOCK_NEVER;
    for (size_t i = 0; i < LISTEN_CLIENTS; i++) {
        struct client *c = &l->client[i];
        bool timed = c->deadline != 0 && c->deadline != CLOCK_NEVER; /* waiting for the client */
        if (!timed)
            continue;
        if (now >= c->deadline)
            disconnect(c);
        else if (c->deadline < l->look_at)
            l->look_at = c->deadline;
    }
}

/* ---- start ---- */

static struct MHD_Daemon *start_daemon(struct listener *l, struct sockaddr_storage *sa)
{
    uint16_t port = htons((uint16_t)l->w->port);
    unsigned flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC;
    if (sa->ss_family == AF_INET6) {
        ((struct sockaddr_in6 *)sa)->sin6_port = port;
        flags |= MHD_USE_IPv6;
    } else {
        ((struct sockaddr_in *)sa)->sin_port = port;
    }

    struct MHD_OptionItem options[] = {
        {MHD_OPTION_SOCK_ADDR, 0, sa},
        {MHD_OPTION_NOTIFY_COMPLETED, (intptr_t)listen_forget, l},
        {MHD_OPTION_NOTIFY_CONNECTION, (intptr_t)on_connection, l},
        {MHD_OPTION_CONNECTION_LIMIT, LISTEN_CLIENTS, NULL},
        {MHD_OPTION_CONNECTION_TIMEOUT, IDLE_S, NULL},
        {MHD_OPTION_CONNECTION_MEMORY_LIMIT, LISTEN_HEAD_MAX, NULL},
        {MHD_OPTION_END, 0, NULL},
    };
    return MHD_start_daemon(flags, 0, NULL, NULL, listen_take, l, MHD_OPTION_ARRAY, options,
                            MHD_OPTION_END);
}

/* Prints the address and the actual port, which the kernel chooses with --port 0. */
static int start_listening(struct listener *l, struct error *err)
{
    const char *address = l->w->address;
    struct sockaddr_storage sa;
    unsigned port = (unsigned)l->w->port;
    ipnet_of_text(address, &sa);
    l->daemon = start_daemon(l, &sa);
    if (!l->daemon)
        return err_errno(err, ERR_UNAVAILABLE, errno,
                         "could not listen on %s port %u; --port N uses another", address, port);

    const union MHD_DaemonInfo *info = MHD_get_daemon_info(l->daemon, MHD_DAEMON_INFO_BIND_PORT);
    if (info)
        port = info->port;
    if (sa.ss_family == AF_INET6)
        output_addf(&l->line, "listening on http://[%s]:%u/\n", address, port);
    else
        output_addf(&l->line, "listening on http://%s:%u/\n", address, port);
    if (output_flush(&l->line, err) != 0)
        return -1;
    return output_end(err);
}

/* Returns how long the loop may sleep, in ms; -1: until an event. */
static int loop_timeout(const struct listener *l)
{
    MHD_UNSIGNED_LONG_LONG mhd;
    int64_t now = clock_mono(&clock_system), at = l->look_at;
    if (l->first)
        at = min_i64(at, l->first->due);
    if (MHD_get_timeout(l->daemon, &mhd) == MHD_YES)
        at = min_i64(at, now + (int64_t)mhd * MS_NS);
    if (at == CLOCK_NEVER)
        return -1;
    return at <= now ? 0 : (int)((at - now + MS_NS - 1) / MS_NS);
}

/* Serves requests until told to stop. Signals are unblocked only during a wait, so none is
 * missed. */
static void run_loop(struct listener *l, const sigset_t *waiting)
{
    struct pollfd fds[] = {
        {.fd = MHD_get_daemon_info(l->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd,
         .events = POLLIN},
        {.fd = l->halves, .events = POLLIN},
    };
    for (;;) {
        bool all_answered = l->w->count && l->answered >= l->w->count;
        if (stopped || l->err.code || all_answered)
            break;
        listen_resume(l, false);
        drop_late(l, clock_mono(&clock_system));
        int ms = loop_timeout(l);
        struct timespec ts = {ms / 1000, (long)(ms % 1000) * 1000000};
        ppoll(fds, 2, ms < 0 ? NULL : &ts, waiting);

        listen_resume(l, false);
        see_halves(l);
        MHD_run(l->daemon);
        drop_halves(l);
    }

    /* Send the remaining answers. */
    for (int i = 0; i < 3; i++) {
        listen_resume(l, true);
        MHD_run(l->daemon);
    }
}

/* Blocks the signals that stop us, and returns the mask to wait with. */
static void catch_signals(sigset_t *before)
{
    struct sigaction stop = {.sa_handler = on_signal}, ignore = {.sa_handler = SIG_IGN};
    sigset_t block;
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGPIPE, &ignore, NULL);
    sigemptyset(&block);
    sigaddset(&block, SIGTERM);
    sigaddset(&block, SIGINT);
    sigprocmask(SIG_BLOCK, &block, before);
}

/* Loads the signature keys, if any, and creates the response shared by all requests, apart from the
 * status. */
static int prepare_listener(struct listener *l, struct error *err)
{
    const struct webhook_args *w = l->w;
    struct signature_source from = {w->secret_file, w->secret_env, SIGNATURE_VERIFY};
    l->halves = epoll_create1(EPOLL_CLOEXEC);
    if (l->halves < 0)
        return err_errno(err, ERR_UNAVAILABLE, errno, "could not create an epoll instance");
    if (from.file || from.variable) {
        if (signature_keys_load(&from, &l->keys, err) != 0)
            return -1;
        l->memory = replay_new();
        if (!l->memory)
            return err_nomem(err);
    }

    char seconds[24];
    l->answer = MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    if (!l->answer)
        return err_nomem(err);
    snprintf(seconds, sizeof(seconds), "%lld", (long long)w->retry_after.value);
    if (w->retry_after.given)
        MHD_add_response_header(l->answer, "Retry-After", seconds);
    return start_listening(l, err);
}

/* Stops the daemon first, because it may still call back for open requests. */
static void release_listener(struct listener *l)
{
    if (l->daemon)
        MHD_stop_daemon(l->daemon);
    if (l->halves >= 0)
        close(l->halves);
    if (l->answer)
        MHD_destroy_response(l->answer);
    signature_keys_free(l->keys);
    replay_free(l->memory);
    buf_release(&l->line);
    free(l);
}

int listen_run(struct cli *cli, struct error *err)
{
    struct listener *l = calloc(1, sizeof *l);
    sigset_t before;
    if (!l)
        return err_nomem(err);
    l->cli = cli;
    l->w = cli_own(cli);
    l->look_at = CLOCK_NEVER;
    l->body_max = (size_t)l->w->body_max;
    l->bodies_max = 2 * l->body_max;
    buf_init(&l->line, OUTPUT_MAX);
    catch_signals(&before);

    int r = prepare_listener(l, err);
    if (r == 0)
        run_loop(l, &before);
    if (r == 0 && l->err.code) {
        *err = l->err;
        r = -1;
    }
    release_listener(l);
    return r;
}
