#include "redis/conn.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/text.h"
#include "redis/greeting.h"
#include "redis/reply.h"

#define GREET_MAX 16384 /* bytes of the greeting, and of each reply to it */
/* A text that contains this many bytes of the password's beginning counts as repeating it. */
#define SECRET_TOLD 16
#define READ_SIZE 65536
#define SEND_BUFFER (4 << 20)  /* or what the system allows */
#define READS_MAX 64           /* per call of redis_conn_drive */
#define ELEMENTS_MAX (1 << 20) /* of an array in a reply */
#define WAIT_MAX_MS 60000      /* of one poll */

void redis_conn_init(struct redis_conn *c, const struct redis_url *url, const char *name,
                     size_t out_max, size_t in_max)
{
    *c = (struct redis_conn){.url = url, .name = name, .fd = -1, .in_max = in_max};
    buf_init(&c->out, out_max);
    buf_init(&c->greet, GREET_MAX);
}

static void forget_addrs(struct redis_conn *c)
{
    if (c->addrs)
        freeaddrinfo(c->addrs);
    c->addrs = c->next = NULL;
}

/* change_state is the only function that sets the state. A connection only moves forward, or is
 * closed. */
static void change_state(struct redis_conn *c, enum redis_state to)
{
    assert(to == REDIS_CLOSED || to > c->state);
    c->state = to;
}

static void close_socket(struct redis_conn *c)
{
    tls_free(c->tls);
    c->tls = NULL;
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    change_state(c, REDIS_CLOSED);
}

static void forget_secret(struct redis_conn *c)
{
    if (c->secret)
        explicit_bzero(c->secret, strlen(c->secret));
    free(c->secret);
    c->secret = NULL;
}

void redis_conn_close(struct redis_conn *c)
{
    close_socket(c);
    forget_secret(c);
    forget_addrs(c);
    if (c->reader)
        redisReaderFree(c->reader);
    c->reader = NULL;
    buf_clear(&c->out);
    if (c->greet.p)
        explicit_bzero(c->greet.p, c->greet.cap); /* it held the password */
    buf_clear(&c->greet);
    c->sent = c->greet_sent = c->n_asked = c->greeted = c->coming = 0;
}

void redis_conn_release(struct redis_conn *c)
{
    redis_conn_close(c);
    buf_release(&c->out);
    buf_release(&c->greet);
}

/* Connecting */

int redis_conn_format(struct buf *b, int argc, const char **argv, const size_t *lens)
{
    char *text = NULL;
    int n = redisFormatCommandArgv(&text, argc, argv, lens);
    if (n < 0)
        return -1;
    buf_add(b, text, (size_t)n);
    explicit_bzero(text, (size_t)n); /* it may be AUTH */
    redisFreeCommand(text);
    if (b->failed)
        return -1;
    return 0;
}

int redis_conn_add(struct redis_conn *c, int argc, const char **argv, const size_t *lens)
{
    return redis_conn_format(&c->out, argc, argv, lens);
}

static void set_socket_options(int fd, int family)
{
    int on = 1, send_buffer = SEND_BUFFER;
    if (family == AF_UNIX) {
        /* The server works on what the kernel holds while we do something else. For TCP the kernel
         * finds a good size by itself. */
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

/* start_socket begins to connect to an address; -1 with errno. */
static int start_socket(struct redis_conn *c, const struct sockaddr *sa, socklen_t n)
{
    int type = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
    c->fd = fd_above_stdio(socket(sa->sa_family, type, 0));
    if (c->fd < 0)
        return -1;
    set_socket_options(c->fd, sa->sa_family);

    bool started = connect(c->fd, sa, n) == 0 || errno == EINPROGRESS;
    if (started) {
        change_state(c, REDIS_CONNECTING);
        return 0;
    }
    int saved = errno;
    close_socket(c);
    errno = saved;
    return -1;
}

static int unreachable(const struct redis_conn *c, int error, struct error *err)
{
    err_errno(err, ERR_UNAVAILABLE, error, "could not reach %s", c->url->label);
    err->fate = FATE_DOWN;
    return -1;
}

/* try_next starts to connect to the next address of the host, after `error` at the one before. */
static int try_next(struct redis_conn *c, int error, struct error *err)
{
    close_socket(c);
    while (c->next) {
        const struct addrinfo *a = c->next;
        c->next = a->ai_next;
        if (start_socket(c, a->ai_addr, a->ai_addrlen) == 0)
            return 0;
        error = errno;
    }
    return unreachable(c, error, err);
}

static int open_network(struct redis_conn *c, struct error *err)
{
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};
    int rc = getaddrinfo(c->url->host, c->url->port, &hints, &c->addrs);
    if (rc != 0) {
        /* Without any network, AI_ADDRCONFIG leaves out even loopback addresses. Try without it. */
        hints.ai_flags = 0;
        rc = getaddrinfo(c->url->host, c->url->port, &hints, &c->addrs);
    }
    if (rc != 0)
        return err_fate(err, ERR_UNAVAILABLE, FATE_DOWN, 0, "could not look up %s: %s",
                        c->url->host, gai_strerror(rc));
    c->next = c->addrs;
    return try_next(c, EADDRNOTAVAIL, err);
}

static int open_local(struct redis_conn *c, struct error *err)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    memcpy(sa.sun_path, c->url->path, strlen(c->url->path) + 1);
    if (start_socket(c, (const struct sockaddr *)&sa, sizeof sa) == 0)
        return 0;
    return unreachable(c, errno, err);
}

/* make_array is the function of hiredis with a ceiling, because it allocates room for all the
 * elements that a reply announces before any of them has arrived. */
#if HIREDIS_MAJOR >= 1
static void *make_array(const redisReadTask *task, size_t n)
#else
static void *make_array(const redisReadTask *task, int n)
#endif
{
    const redisReplyObjectFunctions *theirs = task->privdata;
    if (n > ELEMENTS_MAX)
        return NULL;
    return theirs->createArray(task, n);
}

static redisReader *new_reader(struct redis_conn *c)
{
    redisReader *reader = redisReaderCreate();
    if (!reader)
        return NULL;
    reader->privdata = reader->fn;
    c->objects = *reader->fn;
    c->objects.createArray = make_array;
    reader->fn = &c->objects;
    return reader;
}

static int start(struct redis_conn *c, struct error *err)
{
    c->reader = new_reader(c);
    if (!c->reader)
        return err_nomem(err);
    if (redis_greeting_make(c, err) != 0)
        return -1;
    if (c->url->path)
        return open_local(c, err);
    return open_network(c, err);
}

int redis_conn_open(struct redis_conn *c, struct error *err)
{
    redis_conn_close(c);
    if (start(c, err) == 0)
        return 0;
    if (!err->fate)
        err->fate = FATE_DOWN;
    redis_conn_close(c);
    return -1;
}

/* Reading and writing */

static int lost(const struct redis_conn *c, struct error *err)
{
    err_prefix(err, "%s", c->url->label);
    err->fate = FATE_DOWN;
    return -1;
}

/* socket_failed returns 0 if a call on the socket would only have had to wait. */
static int socket_failed(struct error *err)
{
    bool would_wait = errno == EAGAIN || errno == EINTR;
    if (would_wait)
        return 0;
    return err_errno(err, ERR_UNAVAILABLE, errno, "connection lost");
}

/* write_some and read_some return the bytes written or read, 0 if they would have to wait, -1 if
 * the connection is lost. */
static ssize_t write_some(struct redis_conn *c, struct str s, struct error *err)
{
    if (c->tls)
        return tls_write(c->tls, s.p, s.n, err);
    ssize_t k = send(c->fd, s.p, s.n, MSG_NOSIGNAL);
    if (k < 0)
        return socket_failed(err);
    return k;
}

static ssize_t read_some(struct redis_conn *c, char *p, size_t n, struct error *err)
{
    if (c->tls)
        return tls_read(c->tls, p, n, err);
    ssize_t k = recv(c->fd, p, n, 0);
    if (k < 0)
        return socket_failed(err);
    if (k == 0)
        return err_set(err, ERR_UNAVAILABLE, "the server closed the connection");
    return k;
}

/* flush writes what it can of b, of which *sent bytes are out, and clears it once all are. */
static int flush(struct redis_conn *c, struct buf *b, size_t *sent, struct error *err)
{
    while (*sent < b->n) {
        struct str rest = {b->p + *sent, b->n - *sent};
        ssize_t k = write_some(c, rest, err);
        if (k < 0)
            return -1;
        if (k == 0)
            return 0;
        *sent += (size_t)k;
    }
    buf_clear(b);
    *sent = 0;
    return 0;
}

/* repeats_secret only looks for the beginning of the password: Redis cuts off long arguments when
 * it repeats them. */
static bool repeats_secret(const struct redis_conn *c, struct str said)
{
    struct str secret = str_of(c->secret);
    if (secret.n == 0)
        return false;
    if (secret.n > SECRET_TOLD)
        secret.n = SECRET_TOLD;
    return memmem(said.p, said.n, secret.p, secret.n) != NULL;
}

void redis_conn_text(const struct redis_conn *c, const redisReply *r, char out[REDIS_TEXT])
{
    struct str said = STR("");
    if (r->str)
        said = (struct str){r->str, r->len};
    if (repeats_secret(c, said))
        snprintf(out, REDIS_TEXT, "an error that repeats our password, and is not shown");
    else
        text_clean(out, REDIS_TEXT, said.p, said.n);
}

/* next_reply returns the next reply that has arrived completely; NULL if there is none. */
static int next_reply(struct redis_conn *c, redisReply **ret, struct error *err)
{
    void *r = NULL;
    if (redisReaderGetReply(c->reader, &r) != REDIS_OK)
        return err_fate(err, ERR_UNAVAILABLE, FATE_DOWN, 0,
                        "%s does not speak the Redis protocol: %s", c->url->label,
                        c->reader->errstr);
    if (r)
        c->coming = 0;
    *ret = r;
    return 0;
}

/* check_coming gives up on a reply that is longer than any we could have asked for. */
static int check_coming(const struct redis_conn *c, struct error *err)
{
    size_t max = c->in_max;
    if (c->state == REDIS_GREETING)
        max = GREET_MAX;
    if (c->coming <= max)
        return 0;
    return err_fate(err, ERR_UNAVAILABLE, FATE_DOWN, 0, "%s sends a reply that does not end",
                    c->url->label);
}

/* take_greeting takes the reply to the next command of the greeting. The connection is ready only
 * once all are accepted, because a sink may blame its event if a ready connection ends. */
static int take_greeting(struct redis_conn *c, redisReply *r, struct error *err)
{
    int rc = redis_greeting_answered(c, r, err);
    freeReplyObject(r);
    if (rc != 0)
        return -1;
    if (c->greeted == c->n_asked)
        change_state(c, REDIS_READY);
    return 0;
}

/* take_replies hands out the replies that have arrived completely. */
static int take_replies(struct redis_conn *c, redis_reply_fn *reply, void *ctx, struct error *err)
{
    for (;;) {
        redisReply *r = NULL;
        if (next_reply(c, &r, err) != 0)
            return -1;
        if (!r)
            return check_coming(c, err);
        if (c->state != REDIS_GREETING) {
            reply(ctx, r);
            continue;
        }
        if (take_greeting(c, r, err) != 0)
            return -1;
    }
}

/* read_replies reads what there is, up to READS_MAX times: a server that never pauses must not keep
 * us here. */
static int read_replies(struct redis_conn *c, redis_reply_fn *reply, void *ctx, struct error *err)
{
    char chunk[READ_SIZE];
    for (int i = 0; i < READS_MAX; i++) {
        ssize_t k = read_some(c, chunk, sizeof chunk, err);
        if (k < 0)
            return lost(c, err);
        if (k == 0)
            return 0;
        if (redisReaderFeed(c->reader, chunk, (size_t)k) != REDIS_OK)
            return err_nomem(err);
        c->coming += (size_t)k;
        if (take_replies(c, reply, ctx, err) != 0)
            return -1;
        bool drained = (size_t)k < sizeof chunk && !c->tls;
        if (drained)
            return 0;
    }
    return 0;
}

/* connect_failed tries the next address, if there can be another. */
static int connect_failed(struct redis_conn *c, int error, struct error *err)
{
    if (c->url->path)
        return unreachable(c, error, err);
    return try_next(c, error, err);
}

/* drive_connecting checks whether the socket is connected. */
static int drive_connecting(struct redis_conn *c, struct error *err)
{
    struct pollfd fd = {.fd = c->fd, .events = POLLOUT};
    int error = 0;
    socklen_t n = sizeof error;
    if (poll(&fd, 1, 0) != 1)
        return 0;
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &n) != 0)
        error = errno;
    if (error)
        return connect_failed(c, error, err);

    forget_addrs(c);
    if (!c->url->tls) {
        change_state(c, REDIS_GREETING);
        return 0;
    }
    change_state(c, REDIS_SECURING);
    if (tls_new(c->url, c->fd, &c->tls, err) != 0)
        return lost(c, err);
    return 0;
}

static int drive_securing(struct redis_conn *c, struct error *err)
{
    int rc = tls_handshake(c->tls, err);
    if (rc < 0)
        return lost(c, err);
    if (rc > 0)
        change_state(c, REDIS_GREETING);
    return 0;
}

/* drive_ready reads even after a failed write: replies that the server sent before it went away
 * still count. */
static int drive_ready(struct redis_conn *c, redis_reply_fn *reply, void *ctx, struct error *err)
{
    struct error cut;
    int written = flush(c, &c->out, &c->sent, &cut);
    if (read_replies(c, reply, ctx, err) != 0)
        return -1;
    if (written == 0)
        return 0;
    *err = cut;
    return lost(c, err);
}

/* redis_conn_drive tries the states in order, because each step may leave the connection ready for
 * the next one: with a fast peer one call does it all. */
int redis_conn_drive(struct redis_conn *c, redis_reply_fn *reply, void *ctx, struct error *err)
{
    if (c->state == REDIS_CONNECTING && drive_connecting(c, err) != 0)
        return -1;
    if (c->state == REDIS_SECURING && drive_securing(c, err) != 0)
        return -1;
    if (c->state == REDIS_GREETING) {
        if (flush(c, &c->greet, &c->greet_sent, err) != 0)
            return lost(c, err);
        if (read_replies(c, reply, ctx, err) != 0)
            return -1;
    }
    if (c->state == REDIS_READY)
        return drive_ready(c, reply, ctx, err);
    return 0;
}

bool redis_conn_idle_gone(const struct redis_conn *c)
{
    struct pollfd fd = {.fd = c->fd, .events = POLLIN};
    return c->state == REDIS_READY && poll(&fd, 1, 0) == 1;
}

static short poll_events(const struct redis_conn *c)
{
    bool unsent = false;
    switch (c->state) {
    case REDIS_CONNECTING: return POLLOUT;
    case REDIS_SECURING: return tls_events(c->tls);
    case REDIS_GREETING: unsent = c->greet_sent < c->greet.n; break;
    case REDIS_READY: unsent = c->sent < c->out.n; break;
    case REDIS_CLOSED: break;
    }
    return unsent ? POLLIN | POLLOUT : POLLIN;
}

struct pollfd redis_conn_poll(const struct redis_conn *c)
{
    return (struct pollfd){.fd = c->fd, .events = poll_events(c)};
}

/* Calling */

static void keep_first(void *ctx, redisReply *r)
{
    redisReply **answer = ctx;
    if (*answer)
        freeReplyObject(r); /* nobody asked for it */
    else
        *answer = r;
}

/* wait_for waits until the connection can be driven again; -1 past the deadline, or when `wake` is
 * readable. */
static int wait_for(struct redis_conn *c, int64_t deadline, int wake, struct error *err)
{
    struct pollfd fds[2] = {redis_conn_poll(c), {.fd = wake, .events = POLLIN}};
    int64_t left = (deadline - clock_mono(&clock_system)) / MS_NS;
    if (left <= 0)
        return err_fate(err, ERR_UNAVAILABLE, FATE_DOWN, 0, "%s has not answered in time",
                        c->url->label);

    int wait_ms = left < WAIT_MAX_MS ? (int)left + 1 : WAIT_MAX_MS;
    int rc = poll(fds, 2, wait_ms);
    if (rc < 0 && errno != EINTR)
        return err_errno(err, ERR_INTERNAL, errno, "poll");
    if (fds[1].revents)
        return err_set(err, ERR_BUSY, "told to stop");
    return 0;
}

int redis_conn_call(struct redis_conn *c, int argc, const char **argv, const size_t *lens,
                    int64_t timeout_ms, int wake, redisReply **ret, struct error *err)
{
    redisReply *answer = NULL;
    int64_t deadline = clock_mono(&clock_system) + timeout_ms * MS_NS;
    if (c->state == REDIS_CLOSED && redis_conn_open(c, err) != 0)
        return -1;
    if (redis_conn_add(c, argc, argv, lens) != 0) {
        err_nomem(err);
        goto fail;
    }
    while (!answer) {
        if (redis_conn_drive(c, keep_first, &answer, err) != 0)
            goto fail;
        if (!answer && wait_for(c, deadline, wake, err) != 0)
            goto fail;
    }
    *ret = answer;
    return 0;
fail:
    if (answer)
        freeReplyObject(answer);
    redis_conn_close(c);
    return -1;
}
