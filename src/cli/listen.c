/* listen.c: the receiver of `webhook listen`, for trying things out and for playing an endpoint
 * that misbehaves. It runs one loop in one thread; answers that are to come late wait in a queue.
 * Clients cannot exhaust it: connections, the bytes of all uploads together, and the time of each
 * connection are limited. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <microhttpd.h>

#include "base/json.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/replay.h"
#include "sink/signature.h"

#define HEAD_MAX ((size_t)32 * 1024)
#define PLACES 2048      /* connections */
#define BETWEEN_MS 30000 /* added to the time for a head, which counts from the last request */
#define IDLE_S 75        /* without a byte; a relay reuses a connection for 60 s */
#define ID_MAX 1024

/* A connection. (1) deadline == 0: the place is free; CLOCK_NEVER: it is our turn, not the
 * client's. (2) half_closed: the client has closed its half. */
struct place {
    int fd;
    int64_t deadline;
    bool half_closed;
};

/* A request, from its head until it was answered. (1) Suspended ones are in the listener's queue.
 * (2) refused is the status to answer with, and the body is dropped; 0: it is not refused. */
struct visit {
    struct visit *next;
    struct MHD_Connection *conn;
    struct place *place;
    struct buf body;
    int64_t due;
    unsigned status, refused;
    bool complete, answered;
};

/* (1) All answers are delayed by the same time, so first..last are in the order they are due.
 * (2) held is the size of the bodies of all visits. */
struct listener {
    const struct cli *cli;
    const struct webhook_args *w;
    struct signature_keys *keys;
    struct replay_memory *memory; /* with keys */
    struct MHD_Daemon *daemon;
    struct MHD_Response *answer;
    struct visit *first, *last;
    struct place place[PLACES];
    int64_t look_at; /* the earliest deadline of a place, or before it */
    int halves;      /* epoll of all connections: who has closed its half */
    bool any_half;   /* a place may be half_closed */
    size_t body_max, bodies_max, held;
    struct buf line;
    int64_t answered;
    struct error err;
};

static volatile sig_atomic_t stopped;

static void on_signal(int number)
{
    (void)number;
    stopped = 1;
}

/* ---- printing ---- */

static const char *header(struct visit *v, const char *name)
{
    return MHD_lookup_connection_value(v->conn, MHD_HEADER_KIND, name);
}

/* clean_body appends the body as one line that is safe for a terminal. It works in place and in one
 * pass, since a hostile body may have 64 MiB. */
static void clean_body(struct buf *b, const struct visit *v)
{
    size_t start = b->n;
    buf_add(b, v->body.p, v->body.n);
    buf_addc(b, '\0'); /* text_clean ends its output with a NUL */
    if (b->failed)
        return;
    b->n = start + text_clean(b->p + start, v->body.n + 1, b->p + start, v->body.n);
}

/* print_text prints a line about the request and one with its body. All of it comes from
 * strangers. */
static void print_text(struct listener *l, struct visit *v, const char *what, const char *verdict)
{
    static const char *const names[] = {"ce-type", "ce-subject", "webhook-id"};
    char now[CLOCK_RFC3339_SIZE];
    clock_rfc3339(clock_wall(&clock_system), now);
    buf_addf(&l->line, "%s ", now);
    output_clean(&l->line, what);
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        const char *value = header(v, names[i]);
        if (!value)
            continue;
        buf_addc(&l->line, ' ');
        output_clean(&l->line, value);
    }
    buf_addf(&l->line, " -> %u", v->status);
    if (l->keys)
        buf_addf(&l->line, ", %s", verdict);
    buf_adds(&l->line, "\n  ");
    clean_body(&l->line, v);
    buf_addc(&l->line, '\n');
}

/* add_header adds a header to the JSON object b. A name that is not UTF-8 is made so. */
static enum MHD_Result add_header(void *b, enum MHD_ValueKind kind, const char *name,
                                  const char *value)
{
    char clean[256];
    (void)kind;
    if (!utf8_valid(str_of(name), NULL)) {
        text_clean(clean, sizeof clean, name, strlen(name));
        name = clean;
    }
    output_string(b, name, value ? value : "");
    return MHD_YES;
}

static void print_json(struct listener *l, struct visit *v, const char *what, const char *verdict)
{
    buf_adds(&l->line, "{");
    output_string(&l->line, "request", what);
    output_number(&l->line, "status", v->status);
    output_string(&l->line, "verdict", l->keys ? verdict : NULL);
    output_member(&l->line, "headers");
    buf_addc(&l->line, '{');
    MHD_get_connection_values(v->conn, MHD_HEADER_KIND, add_header, &l->line);
    buf_addc(&l->line, '}');
    output_str(&l->line, "body", (struct str){v->body.p ? v->body.p : "", v->body.n});
    buf_adds(&l->line, "}\n");
}

static void print(struct listener *l, struct visit *v, const char *what, const char *verdict)
{
    if (l->w->quiet || l->err.code)
        return;
    if (l->cli->args.json)
        print_json(l, v, what, verdict);
    else
        print_text(l, v, what, verdict);
    if (l->line.failed) { /* too large to print: half of it would mislead */
        buf_clear(&l->line);
        buf_addf(&l->line, "(%zu bytes)\n", v->body.n);
    }
    if (output_flush(&l->line, &l->err) == 0)
        output_end(&l->err);
}

/* ---- answering ---- */

/* The headers that a signature is checked with. p == NULL: the header is missing. */
struct claims {
    struct str id, timestamp;
    struct buf signatures; /* of all signature headers, separated by blanks */
    bool twice;            /* there was a second id or timestamp */
};

/* claim_once takes a header that may occur only once. */
static void claim_once(struct claims *c, struct str *field, struct str value)
{
    if (field->p)
        c->twice = true;
    *field = value;
}

/* note_claim collects the headers of a signature. Names of headers ignore case. */
static enum MHD_Result note_claim(void *claims, enum MHD_ValueKind kind, const char *name,
                                  const char *value)
{
    struct claims *c = claims;
    struct str text = str_of(value ? value : "");
    (void)kind;
    if (strcasecmp(name, "webhook-id") == 0)
        claim_once(c, &c->id, text);
    if (strcasecmp(name, "webhook-timestamp") == 0)
        claim_once(c, &c->timestamp, text);
    if (strcasecmp(name, "webhook-signature") == 0) {
        if (c->signatures.n)
            buf_addc(&c->signatures, ' ');
        buf_addstr(&c->signatures, text);
    }
    return MHD_YES;
}

/* What to answer a request, and what to print about it. */
struct verdict {
    unsigned status;
    const char *text;
};

/* judge_genuine refuses a replay of what was accepted before. A sender whose first attempt got lost
 * tries again with a new timestamp, so that is no replay. */
static struct verdict judge_genuine(struct listener *l, const struct signature_message *m,
                                    int64_t now)
{
    unsigned status = (unsigned)l->w->status;
    enum replay known = replay_known(l->memory, m, now);
    if (known == REPLAY_REPLAY)
        return (struct verdict){MHD_HTTP_CONFLICT,
                                "a replay: this very request was accepted before"};

    bool accepted = status < 300;
    if (accepted)
        replay_accept(l->memory, m, now);
    if (known == REPLAY_REPEAT)
        return (struct verdict){status, "genuine, but a repeat: this id was accepted before"};
    return (struct verdict){status, "genuine"};
}

/* missing_in says what is wrong with the headers, before any signature is checked; NULL: nothing.
 * It reads the timestamp into *ret. */
static const char *missing_in(const struct claims *c, int64_t *ret)
{
    if (c->twice)
        return "more than one webhook-id or webhook-timestamp";
    if (!c->id.n)
        return "no webhook-id";
    if (c->id.n > ID_MAX)
        return "webhook-id is too long";
    if (!c->timestamp.n)
        return "no webhook-timestamp";
    if (!signature_timestamp(c->timestamp, ret))
        return "webhook-timestamp is not a number of seconds";
    return NULL;
}

static struct verdict judge_claims(struct listener *l, struct visit *v, const struct claims *c)
{
    int64_t now = clock_wall(&clock_system) / 1000;
    struct signature_message m = {.id = c->id, .body = {v->body.p, v->body.n}};
    struct str signatures = {c->signatures.p, c->signatures.n};
    const char *why = missing_in(c, &m.timestamp);
    if (!why)
        why = signature_check(l->keys, &m, signatures, now);
    if (why)
        return (struct verdict){MHD_HTTP_UNAUTHORIZED, why};
    return judge_genuine(l, &m, now);
}

/* judge decides how to answer a complete request. Without keys there is nothing to check. */
static struct verdict judge(struct listener *l, struct visit *v)
{
    struct claims c = {.twice = false};
    if (v->refused)
        return (struct verdict){v->refused, "too large, or too much at once"};
    if (!l->keys)
        return (struct verdict){(unsigned)l->w->status, ""};

    buf_init(&c.signatures, HEAD_MAX);
    MHD_get_connection_values(v->conn, MHD_HEADER_KIND, note_claim, &c);
    struct verdict verdict = judge_claims(l, v, &c);
    buf_release(&c.signatures);
    return verdict;
}

static enum MHD_Result answer(struct listener *l, struct visit *v)
{
    v->answered = true;
    l->answered++;
    return MHD_queue_response(v->conn, v->status, l->answer);
}

/* enqueue suspends the connection until its answer is due. */
static enum MHD_Result enqueue(struct listener *l, struct visit *v)
{
    v->due = clock_mono(&clock_system) + l->w->delay_ms * MS_NS;
    v->next = NULL;
    if (l->last)
        l->last->next = v;
    else
        l->first = v;
    l->last = v;
    MHD_suspend_connection(v->conn);
    return MHD_YES;
}

static void drop_body(struct listener *l, struct visit *v)
{
    l->held -= v->body.n;
    buf_release(&v->body);
}

/* complete deals with a request whose last byte has come: it is judged, printed and answered, now
 * or later. */
static enum MHD_Result complete(struct listener *l, struct visit *v, const char *method,
                                const char *url)
{
    char what[512];
    v->complete = true;
    if (v->place)
        v->place->deadline = CLOCK_NEVER;

    struct verdict verdict = judge(l, v);
    v->status = verdict.status;
    snprintf(what, sizeof(what), "%s %s", method, url);
    print(l, v, what, verdict.text);

    drop_body(l, v);
    if (l->w->delay_ms)
        return enqueue(l, v);
    return answer(l, v);
}

/* refuse drops what has come of the body; the rest is ignored. */
static void refuse(struct listener *l, struct visit *v, unsigned status)
{
    v->refused = status;
    drop_body(l, v);
}

/* keep adds a piece to the body, unless that or all bodies together become too large. */
static void keep(struct listener *l, struct visit *v, const char *data, size_t n)
{
    if (v->refused)
        return;
    if (n > l->body_max - v->body.n) {
        refuse(l, v, MHD_HTTP_CONTENT_TOO_LARGE);
        return;
    }
    if (n > l->bodies_max - l->held) {
        refuse(l, v, MHD_HTTP_SERVICE_UNAVAILABLE);
        return;
    }
    buf_add(&v->body, data, n);
    if (v->body.failed)
        refuse(l, v, MHD_HTTP_SERVICE_UNAVAILABLE);
    else
        l->held += n;
}

static struct place *place_of(struct MHD_Connection *conn)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(
        conn, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

/* give_time gives the client of a connection so much time from now on. p may be NULL. */
static void give_time(struct listener *l, struct place *p, int64_t ms)
{
    if (!p)
        return;
    p->deadline = clock_mono(&clock_system) + ms * MS_NS;
    if (p->deadline < l->look_at)
        l->look_at = p->deadline;
}

/* arrive starts a visit when the head of a request is there. If the announced body is too large, it
 * answers before the client sends it. */
static enum MHD_Result arrive(struct listener *l, struct MHD_Connection *conn, void **state)
{
    struct visit *v = calloc(1, sizeof(*v));
    *state = v;
    if (!v)
        return MHD_NO;
    v->conn = conn;
    v->place = place_of(conn);
    give_time(l, v->place, l->w->request_ms);
    buf_init(&v->body, l->body_max);

    const char *announced = header(v, "Content-Length");
    bool too_large = announced && strtoull(announced, NULL, 10) > l->body_max;
    if (!too_large)
        return MHD_YES;
    v->complete = true;
    v->status = MHD_HTTP_CONTENT_TOO_LARGE;
    return answer(l, v);
}

/* take is called for the head of a request, for each piece of its body, once more at its end, and
 * again when a suspended request is resumed. */
static enum MHD_Result take(void *ctx, struct MHD_Connection *conn, const char *url,
                            const char *method, const char *version, const char *data, size_t *size,
                            void **state)
{
    struct listener *l = ctx;
    struct visit *v = *state;
    (void)version;
    if (!v)
        return arrive(l, conn, state);
    if (*size) {
        keep(l, v, data, *size);
        *size = 0;
        return MHD_YES;
    }
    if (!v->complete)
        return complete(l, v, method, url);
    if (!v->answered)
        return answer(l, v);
    return MHD_YES;
}

/* forget is called when a request is done with. The client gets time for its next one. */
static void forget(void *ctx, struct MHD_Connection *conn, void **state,
                   enum MHD_RequestTerminationCode why)
{
    struct listener *l = ctx;
    struct visit *v = *state;
    (void)conn;
    (void)why;
    if (!v)
        return;
    give_time(l, v->place, l->w->request_ms + BETWEEN_MS);
    drop_body(l, v);
    free(v);
    *state = NULL;
}

/* ---- clients that never finish ---- */

/* watch_half makes epoll report once when the client closes its half. If the last bytes and the end
 * arrive together, the daemon reads the bytes and misses the end: the connection would stay until
 * its time is up. */
static void watch_half(struct listener *l, struct place *p)
{
    struct epoll_event ev = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.ptr = p};
    p->half_closed = false;
    epoll_ctl(l->halves, EPOLL_CTL_ADD, p->fd, &ev);
}

/* see_halves marks the connections whose client has closed its half. */
static void see_halves(struct listener *l)
{
    struct epoll_event evs[64];
    int n = epoll_wait(l->halves, evs, 64, 0);
    for (int i = 0; i < n; i++) {
        struct place *p = evs[i].data.ptr;
        p->half_closed = true;
        l->any_half = true;
    }
}

/* shut ends a connection. The daemon notices, and cleans up. */
static void shut(struct place *p)
{
    shutdown(p->fd, SHUT_RDWR);
    p->deadline = CLOCK_NEVER;
    p->half_closed = false;
}

/* waits_in_vain reports whether we wait for a client that will send nothing more. */
static bool waits_in_vain(const struct place *p)
{
    int unread = 0;
    if (p->deadline == CLOCK_NEVER)
        return false; /* our answer is still to go out */
    return ioctl(p->fd, FIONREAD, &unread) == 0 && unread == 0;
}

/* drop_halves shuts connections that wait for a client which has closed its half, once the daemon
 * has dealt with everything that came. */
static void drop_halves(struct listener *l)
{
    MHD_UNSIGNED_LONG_LONG mhd;
    bool busy = MHD_get_timeout(l->daemon, &mhd) == MHD_YES && mhd == 0;
    if (!l->any_half || busy)
        return;

    l->any_half = false;
    for (size_t i = 0; i < PLACES; i++) {
        struct place *p = &l->place[i];
        if (!p->deadline || !p->half_closed)
            continue;
        if (waits_in_vain(p))
            shut(p);
        else
            l->any_half = true;
    }
}

static struct place *free_place(struct listener *l)
{
    for (size_t i = 0; i < PLACES; i++)
        if (!l->place[i].deadline)
            return &l->place[i];
    return NULL;
}

/* on_connection gives a new connection a place, and frees the place of one that is closed. There
 * are as many places as connections. */
static void on_connection(void *ctx, struct MHD_Connection *conn, void **place,
                          enum MHD_ConnectionNotificationCode what)
{
    struct listener *l = ctx;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(
        conn, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct place *p = *place;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (p)
            p->deadline = 0;
        return;
    }

    p = free_place(l);
    if (!info || !p)
        return;
    p->fd = info->connect_fd;
    give_time(l, p, l->w->request_ms + BETWEEN_MS);
    watch_half(l, p);
    *place = p;
}

/* drop_late shuts connections whose time is up, and finds the next deadline. */
static void drop_late(struct listener *l, int64_t now)
{
    if (now < l->look_at)
        return;
    l->look_at = CLOCK_NEVER;
    for (size_t i = 0; i < PLACES; i++) {
        struct place *p = &l->place[i];
        if (!p->deadline || p->deadline == CLOCK_NEVER)
            continue;
        if (now >= p->deadline)
            shut(p);
        else if (p->deadline < l->look_at)
            l->look_at = p->deadline;
    }
}

/* resume answers whatever is due, or with `all` everything that waits. */
static void resume(struct listener *l, bool all)
{
    int64_t now = clock_mono(&clock_system);
    while (l->first && (all || l->first->due <= now)) {
        struct visit *v = l->first;
        l->first = v->next;
        if (!l->first)
            l->last = NULL;
        MHD_resume_connection(v->conn);
    }
}

/* ---- the loop ---- */

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
        {MHD_OPTION_NOTIFY_COMPLETED, (intptr_t)forget, l},
        {MHD_OPTION_NOTIFY_CONNECTION, (intptr_t)on_connection, l},
        {MHD_OPTION_CONNECTION_LIMIT, PLACES, NULL},
        {MHD_OPTION_CONNECTION_TIMEOUT, IDLE_S, NULL},
        {MHD_OPTION_CONNECTION_MEMORY_LIMIT, HEAD_MAX, NULL},
        {MHD_OPTION_END, 0, NULL},
    };
    return MHD_start_daemon(flags, 0, NULL, NULL, take, l, MHD_OPTION_ARRAY, options,
                            MHD_OPTION_END);
}

static int start(struct listener *l, struct error *err)
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
        printf("listening on http://[%s]:%u/\n", address, port);
    else
        printf("listening on http://%s:%u/\n", address, port);
    return output_end(err);
}

static bool done(const struct listener *l)
{
    bool all_answered = l->w->count && l->answered >= l->w->count;
    return stopped || l->err.code || all_answered;
}

/* sooner returns the smaller of two timeouts in ms, where -1 stands for none. */
static int sooner(int a, int b)
{
    if (a < 0)
        return b;
    if (b < 0)
        return a;
    return a < b ? a : b;
}

static int ms_until(int64_t at, int64_t now)
{
    if (at <= now)
        return 0;
    return (int)((at - now) / MS_NS) + 1;
}

/* timeout returns how long the loop may sleep, in ms; -1: until something happens. */
static int timeout(const struct listener *l)
{
    MHD_UNSIGNED_LONG_LONG mhd;
    int64_t now = clock_mono(&clock_system);
    int ms = -1;
    if (l->first)
        ms = ms_until(l->first->due, now);
    if (l->look_at != CLOCK_NEVER)
        ms = sooner(ms, ms_until(l->look_at, now));
    if (MHD_get_timeout(l->daemon, &mhd) == MHD_YES)
        ms = sooner(ms, (int)mhd);
    return ms;
}

/* loop answers until it is told to stop. Signals are let in only while it waits, so none is
 * missed. */
static void loop(struct listener *l, const sigset_t *waiting)
{
    struct pollfd fds[] = {
        {.fd = MHD_get_daemon_info(l->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd,
         .events = POLLIN},
        {.fd = l->halves, .events = POLLIN},
    };
    while (!done(l)) {
        resume(l, false);
        drop_late(l, clock_mono(&clock_system));
        int ms = timeout(l);
        struct timespec ts = {ms / 1000, (long)(ms % 1000) * 1000000};
        ppoll(fds, 2, ms < 0 ? NULL : &ts, waiting);

        resume(l, false);
        see_halves(l);
        MHD_run(l->daemon);
        drop_halves(l);
    }

    /* Let the last answers go out. */
    for (int i = 0; i < 3; i++) {
        resume(l, true);
        MHD_run(l->daemon);
    }
}

/* make_answer makes the one response that all requests get, apart from the status. */
static int make_answer(struct listener *l, struct error *err)
{
    char seconds[24];
    l->answer = MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    if (!l->answer)
        return err_nomem(err);
    snprintf(seconds, sizeof(seconds), "%lld", (long long)l->w->retry_after.value);
    if (l->w->retry_after.given)
        MHD_add_response_header(l->answer, "Retry-After", seconds);
    return 0;
}

/* load_keys loads the keys for signatures, if there are any, and then the memory for replays. */
static int load_keys(struct listener *l, struct error *err)
{
    struct signature_source from = {l->w->secret_file, l->w->secret_env, SIGNATURE_VERIFY};
    if (!from.file && !from.variable)
        return 0;
    if (signature_keys_load(&from, &l->keys, err) != 0)
        return -1;
    l->memory = replay_new();
    if (!l->memory)
        return err_nomem(err);
    return 0;
}

/* catch_signals blocks the signals that stop us, and returns the mask to wait with. */
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

static int prepare(struct listener *l, struct error *err)
{
    l->halves = epoll_create1(EPOLL_CLOEXEC);
    if (l->halves < 0)
        return err_errno(err, ERR_UNAVAILABLE, errno, "could not create an epoll");
    if (load_keys(l, err) != 0)
        return -1;
    if (make_answer(l, err) != 0)
        return -1;
    return start(l, err);
}

static void release(struct listener *l)
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
    l->w = &cli->args.webhook;
    l->look_at = CLOCK_NEVER;
    l->body_max = (size_t)l->w->body_max;
    l->bodies_max = 2 * l->body_max;
    buf_init(&l->line, OUTPUT_MAX);
    catch_signals(&before);

    int r = prepare(l, err);
    if (r == 0)
        loop(l, &before);
    if (r == 0 && l->err.code) {
        *err = l->err;
        r = -1;
    }
    release(l);
    return r;
}
