#include "redis/conn.h"

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
#include "redis/reply.h"

#define GREET_MAX 16384 /* of what is said in the greeting, and of each answer to it */
/* bytes of a password: a text that has them repeats it, if only the beginning */
#define SECRET_TOLD 16
#define READ_SIZE 65536
#define SEND_BUFFER (4 << 20)  /* or what the system allows */
#define READS_MAX 64           /* per visit */
#define ELEMENTS_MAX (1 << 20) /* of a list in a reply */

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

static void close_socket(struct redis_conn *c)
{
    tls_free(c->tls);
    c->tls = NULL;
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    c->state = REDIS_CLOSED;
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
        explicit_bzero(c->greet.p, c->greet.cap); /* it had the password */
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

static int add_command(struct buf *b, int argc, const char **argv, const size_t *lens)
{
    char *text = NULL;
    int n = redisFormatCommandArgv(&text, argc, argv, lens);
    if (n < 0)
        return -1;
    buf_add(b, text, (size_t)n);
    explicit_bzero(text, (size_t)n); /* AUTH comes this way, too */
    redisFreeCommand(text);
    return b->failed ? -1 : 0;
}

int redis_conn_add(struct redis_conn *c, int argc, const char **argv, const size_t *lens)
{
    return add_command(&c->out, argc, argv, lens);
}

static int greet(struct redis_conn *c, enum redis_greeting what, int argc, const char **argv)
{
    c->asked[c->n_asked++] = what;
    return add_command(&c->greet, argc, argv, NULL);
}

static int make_greeting(struct redis_conn *c, struct error *err)
{
    char db[24];
    int bad = 0;
    const char *password = c->secret = redis_url_password(c->url, err);
    if (!password && err->code)
        return -1;
    if (password && c->url->user)
        bad = greet(c, GREET_AUTH, 3, (const char *[]){"AUTH", c->url->user, password});
    else if (password)
        bad = greet(c, GREET_AUTH, 2, (const char *[]){"AUTH", password});
    snprintf(db, sizeof db, "%lld", (long long)c->url->db);
    if (!bad && c->url->db)
        bad = greet(c, GREET_SELECT, 2, (const char *[]){"SELECT", db});
    if (!bad)
        bad = greet(c, GREET_NAME, 3, (const char *[]){"CLIENT", "SETNAME", c->name});
    return bad ? err_nomem(err) : 0;
}

static int start_socket(struct redis_conn *c, int family, const struct sockaddr *sa, socklen_t n)
{
    int on = 1;
    c->fd = fd_above_stdio(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (c->fd < 0)
        return -1;
    if (family == AF_UNIX) {
        /* What is with the kernel is worked on while we do something else. Of TCP it takes care by
         * itself. */
        setsockopt(c->fd, SOL_SOCKET, SO_SNDBUF, &(int){SEND_BUFFER}, sizeof(int));
    } else {
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        setsockopt(c->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    }
    if (connect(c->fd, sa, n) == 0 || errno == EINPROGRESS) {
        c->state = REDIS_CONNECTING;
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

/* try_next goes through the addresses of a name. */
static int try_next(struct redis_conn *c, int error, struct error *err)
{
    close_socket(c);
    while (c->next) {
        const struct addrinfo *a = c->next;
        c->next = a->ai_next;
        if (start_socket(c, a->ai_family, a->ai_addr, a->ai_addrlen) == 0)
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
    /* ADDRCONFIG leaves out loopback addresses where there is no network at all. */
    hints.ai_flags = 0;
    if (rc != 0)
        rc = getaddrinfo(c->url->host, c->url->port, &hints, &c->addrs);
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
    if (start_socket(c, AF_UNIX, (const struct sockaddr *)&sa, sizeof sa) == 0)
        return 0;
    return unreachable(c, errno, err);
}

/* make_array is hiredis', up to a size: room is made for what a reply only says that it will
 * have. */
#if HIREDIS_MAJOR >= 1
static void *make_array(const redisReadTask *task, size_t n)
#else
static void *make_array(const redisReadTask *task, int n)
#endif
{
    const redisReplyObjectFunctions *theirs = task->privdata;
    return n > ELEMENTS_MAX ? NULL : theirs->createArray(task, n);
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

int redis_conn_open(struct redis_conn *c, struct error *err)
{
    redis_conn_close(c);
    c->reader = new_reader(c);
    if (!c->reader)
        return err_nomem(err);
    if (make_greeting(c, err) == 0 && (c->url->path ? open_local : open_network)(c, err) == 0)
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

static ssize_t write_some(struct redis_conn *c, const char *p, size_t n, struct error *err)
{
    if (c->tls)
        return tls_write(c->tls, p, n, err);
    ssize_t k = send(c->fd, p, n, MSG_NOSIGNAL);
    if (k >= 0)
        return k;
    return errno == EAGAIN || errno == EINTR
               ? 0
               : err_errno(err, ERR_UNAVAILABLE, errno, "connection lost");
}

static ssize_t read_some(struct redis_conn *c, char *p, size_t n, struct error *err)
{
    if (c->tls)
        return tls_read(c->tls, p, n, err);
    ssize_t k = recv(c->fd, p, n, 0);
    if (k > 0)
        return k;
    if (k == 0)
        return err_set(err, ERR_UNAVAILABLE, "it closed the connection");
    return errno == EAGAIN || errno == EINTR
               ? 0
               : err_errno(err, ERR_UNAVAILABLE, errno, "connection lost");
}

static int flush(struct redis_conn *c, struct buf *b, size_t *sent, struct error *err)
{
    while (*sent < b->n) {
        ssize_t k = write_some(c, b->p + *sent, b->n - *sent, err);
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

/* repeats_secret: Redis itself repeats the beginning of long arguments only. */
static bool repeats_secret(const struct redis_conn *c, const redisReply *r)
{
    size_t n = c->secret ? strlen(c->secret) : 0;
    if (n > SECRET_TOLD)
        n = SECRET_TOLD;
    return n && r->str && memmem(r->str, r->len, c->secret, n);
}

void redis_conn_text(const struct redis_conn *c, const redisReply *r, char out[REDIS_TEXT])
{
    if (repeats_secret(c, r))
        snprintf(out, REDIS_TEXT, "an error that repeats our password, and is not shown");
    else
        text_clean(out, REDIS_TEXT, r->str ? r->str : "", r->str ? r->len : 0);
}

/* greeted takes an answer of the greeting. A name that could not be set is nobody's loss, unless
 * the reason is that the server would say the same to everything. */
static int greeted(struct redis_conn *c, const redisReply *r, struct error *err)
{
    static const char *const names[] = {
        [GREET_AUTH] = "AUTH", [GREET_SELECT] = "SELECT", [GREET_NAME] = "CLIENT SETNAME"};
    enum redis_greeting what = c->asked[c->greeted++];
    if (c->greeted == c->n_asked)
        c->state = REDIS_READY;
    if (r->type != REDIS_REPLY_ERROR)
        return 0;
    enum redis_fault fault = redis_fault_of(r->str);
    bool to_everything = fault == REDIS_FAULT_AWAY || fault == REDIS_FAULT_LOGIN;
    bool may_not = strncmp(r->str, "NOPERM", 6) == 0; /* CLIENT is not what we came for */
    if (what == GREET_NAME && (!to_everything || may_not))
        return 0;
    char text[REDIS_TEXT];
    redis_conn_text(c, r, text);
    enum fate fate = what == GREET_SELECT && fault == REDIS_FAULT_UNKNOWN ? FATE_FATAL : FATE_DOWN;
    return err_fate(err, ERR_UNAVAILABLE, fate, 0, "%s refused %s: %s", c->url->label, names[what],
                    text);
}

/* take_replies hands out what has come in whole. */
static int take_replies(struct redis_conn *c, redis_reply_fn *reply, void *ctx, struct error *err)
{
    for (;;) {
        void *r = NULL;
        if (redisReaderGetReply(c->reader, &r) != REDIS_OK)
            return err_fate(err, ERR_UNAVAILABLE, FATE_DOWN, 0,
                            "%s does not speak Redis's protocol: %s", c->url->label,
                            c->reader->errstr);
        if (!r)
            break;
        c->coming = 0;
        if (c->state != REDIS_GREETING) {
            reply(ctx, r);
            continue;
        }
        int rc = greeted(c, r, err);
        freeReplyObject(r);
        if (rc != 0)
            return -1;
    }
    bool greeting = c->state == REDIS_GREETING;
    if (c->coming <= (greeting ? GREET_MAX : c->in_max))
        return 0;
    return err_fate(err, ERR_UNAVAILABLE, FATE_DOWN, 0, "%s gives an answer that does not end",
                    c->url->label);
}

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
        if ((size_t)k < sizeof chunk && !c->tls)
            return 0; /* what came is all there was */
    }
    return 0;
}

/* connected sees whether the socket has got through. */
static int connected(struct redis_conn *c, struct error *err)
{
    struct pollfd fd = {.fd = c->fd, .events = POLLOUT};
    int error = 0;
    socklen_t n = sizeof error;
    if (poll(&fd, 1, 0) != 1)
        return 0;
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &n) != 0)
        error = errno;
    if (error)
        return c->url->path ? unreachable(c, error, err) : try_next(c, error, err);
    forget_addrs(c);
    c->state = c->url->tls ? REDIS_SECURING : REDIS_GREETING;
    if (c->url->tls && tls_new(c->url, c->fd, &c->tls, err) != 0)
        return lost(c, err);
    return 0;
}

static int secured(struct redis_conn *c, struct error *err)
{
    int rc = tls_handshake(c->tls, err);
    if (rc < 0)
        return lost(c, err);
    if (rc > 0)
        c->state = REDIS_GREETING;
    return 0;
}

int redis_conn_drive(struct redis_conn *c, redis_reply_fn *reply, void *ctx, struct error *err)
{
    if (c->state == REDIS_CONNECTING && connected(c, err) != 0)
        return -1;
    if (c->state == REDIS_SECURING && secured(c, err) != 0)
        return -1;
    if (c->state == REDIS_GREETING) {
        if (flush(c, &c->greet, &c->greet_sent, err) != 0)
            return lost(c, err);
        if (read_replies(c, reply, ctx, err) != 0)
            return -1;
    }
    if (c->state != REDIS_READY)
        return 0;
    struct error cut;
    /* What the other side said before it went counts: so read also after a failed write. */
    int written = flush(c, &c->out, &c->sent, &cut);
    if (read_replies(c, reply, ctx, err) != 0)
        return -1;
    if (written == 0)
        return 0;
    *err = cut;
    return lost(c, err);
}

bool redis_conn_idle_gone(const struct redis_conn *c)
{
    struct pollfd fd = {.fd = c->fd, .events = POLLIN};
    return c->state == REDIS_READY && poll(&fd, 1, 0) == 1;
}

struct pollfd redis_conn_poll(const struct redis_conn *c)
{
    bool greets = c->state == REDIS_GREETING && c->greet_sent < c->greet.n;
    bool sends = c->state == REDIS_READY && c->sent < c->out.n;
    short events = POLLIN;
    if (greets || sends)
        events |= POLLOUT;
    if (c->state == REDIS_CONNECTING)
        events = POLLOUT;
    if (c->state == REDIS_SECURING)
        events = tls_events(c->tls);
    return (struct pollfd){.fd = c->fd, .events = events};
}

/* Calling */

static void keep(void *ctx, redisReply *r)
{
    redisReply **answer = ctx;
    if (*answer)
        freeReplyObject(r); /* nobody asked */
    else
        *answer = r;
}

static int wait_for(struct redis_conn *c, int64_t deadline, int wake, struct error *err)
{
    struct pollfd fds[2] = {redis_conn_poll(c), {.fd = wake, .events = POLLIN}};
    int64_t left = (deadline - clock_mono(&clock_system)) / MS_NS;
    if (left <= 0)
        return err_fate(err, ERR_UNAVAILABLE, FATE_DOWN, 0, "%s has not answered in time",
                        c->url->label);
    if (poll(fds, 2, left > 60000 ? 60000 : (int)left + 1) < 0 && errno != EINTR)
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
        if (redis_conn_drive(c, keep, &answer, err) != 0)
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
