/* listen.c: the receiver of `webhook listen`: for trying things, and for playing an endpoint that
 * misbehaves. One thread, one loop; answers that are to come late wait in a queue. What others can
 * take up is bounded: connections, the bytes of all uploads together, and the time for each. */
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
#define BETWEEN_MS 30000 /* and so much more for a head, from the end of the request before it */
#define IDLE_S 75        /* without a byte; a relay uses a connection again for 60 s */
#define ID_MAX 1024

/* A connection. (1) deadline == 0: the place is free; CLOCK_NEVER: it is our turn. (2) said_all:
 * its other side has closed its half. */
struct place {
    int fd;
    int64_t deadline;
    bool said_all;
};

/* One request, from its first line until it was answered. (1) Suspended ones are in the listener's
 * queue. (2) refused != 0: its body is not wanted any more. */
struct visit {
    struct visit *next;
    struct MHD_Connection *conn;
    struct place *place;
    struct buf body;
    int64_t due;
    unsigned status, refused;
    bool complete, answered;
};

/* (1) All answers take the same time, so that first..last are in the order they are due. (2) held
 *   is how many bytes the bodies of all
 * visits have. */
struct listener {
    const struct cli *cli;
    const struct webhook_args *w;
    struct signature_keys *keys;
    struct replay_memory *memory; /* with keys */
    struct MHD_Daemon *daemon;
    struct MHD_Response *answer;
    struct visit *first, *last;
    struct place place[PLACES];
    int64_t look_at; /* when the first of them may be too late */
    int halves;      /* an epoll of all of them, for who has said all */
    bool any_half;
    size_t body_max, bodies_max, held;
    struct buf line;
    int64_t seen, answered;
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

/* clean_body appends the body as one line that a terminal survives, whatever it is. In one pass: it
 * may be 64 MiB of nothing good. */
static void clean_body(struct buf *b, const struct visit *v)
{
    size_t start = b->n;
    buf_add(b, v->body.p, v->body.n);
    buf_addc(b, '\0'); /* the room that text_clean wants for its own */
    if (b->failed)
        return;
    b->n = start + text_clean(b->p + start, v->body.n + 1, b->p + start, v->body.n);
}

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
    buf_addf(&l->line, " -> %u%s%s\n  ", v->status, l->keys ? ", " : "", l->keys ? verdict : "");
    clean_body(&l->line, v);
    buf_addc(&l->line, '\n');
}

static enum MHD_Result add_header(void *b, enum MHD_ValueKind kind, const char *name,
                                  const char *value)
{
    char clean[256]; /* of a name that is no text */
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
    if (l->line.failed) { /* a huge one: better nothing than half of it */
        buf_clear(&l->line);
        buf_addf(&l->line, "(%zu bytes)\n", v->body.n);
    }
    if (output_flush(&l->line, &l->err) == 0)
        output_end(&l->err);
}

/* ---- answering ---- */

/* What a request says to be believed. p == NULL: nothing. */
struct claims {
    struct str id, timestamp;
    struct buf signatures; /* of all such headers, with blanks between */
    bool twice;            /* what may stand there once came again */
};

static enum MHD_Result note_claim(void *claims, enum MHD_ValueKind kind, const char *name,
                                  const char *value)
{
    struct claims *c = claims;
    struct str text = str_of(value ? value : "");
    (void)kind;
    if (strcasecmp(name, "webhook-signature") == 0) {
        if (c->signatures.n)
            buf_addc(&c->signatures, ' ');
        buf_addstr(&c->signatures, text);
    } else if (strcasecmp(name, "webhook-id") == 0) {
        c->twice = c->twice || c->id.p;
        c->id = text;
    } else if (strcasecmp(name, "webhook-timestamp") == 0) {
        c->twice = c->twice || c->timestamp.p;
        c->timestamp = text;
    }
    return MHD_YES;
}

/* What is to be answered, and said. */
struct verdict {
    unsigned status;
    const char *text;
};

/* judge_genuine: one who replays what was accepted is refused; one whose first try got lost sends a
 * new timestamp. */
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

static struct verdict judge_claims(struct listener *l, struct visit *v, const struct claims *c)
{
    int64_t now = clock_wall(&clock_system) / 1000;
    struct signature_message m = {.id = c->id, .body = {v->body.p, v->body.n}};
    const char *why = NULL;
    if (c->twice)
        why = "webhook-id or webhook-timestamp stands there twice";
    else if (!c->id.n)
        why = "no webhook-id";
    else if (c->id.n > ID_MAX)
        why = "webhook-id is too long";
    else if (!c->timestamp.n)
        why = "no webhook-timestamp";
    else if (!signature_timestamp(c->timestamp, &m.timestamp))
        why = "webhook-timestamp is no number of seconds";
    else
        why = signature_check(l->keys, &m, (struct str){c->signatures.p, c->signatures.n}, now);
    if (why)
        return (struct verdict){MHD_HTTP_UNAUTHORIZED, why};
    return judge_genuine(l, &m, now);
}

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

/* enqueue lets the answer wait for its time. */
static enum MHD_Result enqueue(struct listener *l, struct visit *v)
{
    v->due = clock_mono(&clock_system) + l->w->delay_ms * MS_NS;
    v->next = NULL;
    *(l->last ? &l->last->next : &l->first) = v;
    l->last = v;
    MHD_suspend_connection(v->conn);
    return MHD_YES;
}

static void let_go(struct listener *l, struct visit *v)
{
    l->held -= v->body.n;
    buf_release(&v->body);
}

static enum MHD_Result complete(struct listener *l, struct visit *v, const char *method,
                                const char *url)
{
    char what[512];
    v->complete = true;
    if (v->place)
        v->place->deadline = CLOCK_NEVER;
    l->seen++;
    struct verdict verdict = judge(l, v);
    v->status = verdict.status;
    snprintf(what, sizeof(what), "%s %s", method, url);
    print(l, v, what, verdict.text);
    let_go(l, v);
    if (l->w->delay_ms)
        return enqueue(l, v);
    return answer(l, v);
}

/* refuse lets go of what came of a body that is not wanted. */
static void refuse(struct listener *l, struct visit *v, unsigned status)
{
    v->refused = status;
    let_go(l, v);
}

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

/* give_time lets a connection wait for its other side, until then. */
static void give_time(struct listener *l, struct place *p, int64_t ms)
{
    if (!p)
        return;
    p->deadline = clock_mono(&clock_system) + ms * MS_NS;
    if (p->deadline < l->look_at)
        l->look_at = p->deadline;
}

/* arrive: the head is there. One who announces too much is told so before he sends it. */
static enum MHD_Result arrive(struct listener *l, struct MHD_Connection *conn, void **state)
{
    struct visit *v = *state = calloc(1, sizeof(*v));
    const char *announced = MHD_lookup_connection_value(conn, MHD_HEADER_KIND, "Content-Length");
    if (!v)
        return MHD_NO;
    v->conn = conn;
    v->place = place_of(conn);
    give_time(l, v->place, l->w->request_ms);
    buf_init(&v->body, l->body_max);
    bool too_large = announced && strtoull(announced, NULL, 10) > l->body_max;
    if (!too_large)
        return MHD_YES;
    v->complete = true;
    v->status = MHD_HTTP_CONTENT_TOO_LARGE;
    l->seen++;
    return answer(l, v);
}

/* take is called for the head of a request, then for each piece of its body, then once more; and
 * again when one that was suspended goes on. */
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
    if (v->complete)
        return v->answered ? MHD_YES : answer(l, v);
    return complete(l, v, method, url);
}

static void forget(void *ctx, struct MHD_Connection *conn, void **state,
                   enum MHD_RequestTerminationCode why)
{
    struct listener *l = ctx;
    struct visit *v = *state;
    (void)conn, (void)why;
    if (!v)
        return;
    give_time(l, v->place, l->w->request_ms + BETWEEN_MS);
    let_go(l, v);
    free(v);
    *state = NULL;
}

/* ---- those who never finish ---- */

/* The daemon reads what has come, and does not see that nothing will come any more where both came
 * at once: such a connection would stay until its time is up. So we look, too; once for each, as
 * one whose answer is still to go out stays as it is. */
static void watch_half(struct listener *l, struct place *p)
{
    struct epoll_event ev = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.ptr = p};
    p->said_all = false;
    epoll_ctl(l->halves, EPOLL_CTL_ADD, p->fd, &ev);
}

static void see_halves(struct listener *l)
{
    struct epoll_event evs[64];
    int n = epoll_wait(l->halves, evs, 64, 0);
    for (int i = 0; i < n; i++) {
        struct place *p = evs[i].data.ptr;
        p->said_all = l->any_half = true;
    }
}

/* drop_halves shuts those that wait for the other side, once the daemon has read and worked off
 * whatever came. */
static void drop_halves(struct listener *l)
{
    MHD_UNSIGNED_LONG_LONG mhd;
    bool at_work = MHD_get_timeout(l->daemon, &mhd) == MHD_YES && mhd == 0;
    if (!l->any_half || at_work)
        return;
    l->any_half = false;
    for (size_t i = 0; i < PLACES; i++) {
        struct place *p = &l->place[i];
        int unread = 0;
        if (!p->deadline || !p->said_all)
            continue;
        bool waits = p->deadline != CLOCK_NEVER && ioctl(p->fd, FIONREAD, &unread) == 0 &&
                     unread == 0;
        if (!waits) {
            l->any_half = true;
            continue;
        }
        shutdown(p->fd, SHUT_RDWR);
        p->deadline = CLOCK_NEVER;
        p->said_all = false;
    }
}

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
    for (size_t i = 0; info && i < PLACES; i++) {
        if (l->place[i].deadline)
            continue;
        l->place[i].fd = info->connect_fd;
        give_time(l, &l->place[i], l->w->request_ms + BETWEEN_MS);
        watch_half(l, &l->place[i]);
        *place = &l->place[i];
        return;
    }
}

/* drop_late shuts connections whose time is up; the daemon sees that, and clears up. Returns how
 * long until it should look again, in ms; -1: there is nobody to look for. */
static int drop_late(struct listener *l)
{
    int64_t now = clock_mono(&clock_system), next = CLOCK_NEVER;
    for (size_t i = 0; now >= l->look_at && i < PLACES; i++) {
        struct place *p = &l->place[i];
        if (!p->deadline || p->deadline == CLOCK_NEVER)
            continue;
        if (now >= p->deadline) {
            shutdown(p->fd, SHUT_RDWR);
            p->deadline = CLOCK_NEVER;
        } else if (p->deadline < next) {
            next = p->deadline;
        }
    }
    if (now >= l->look_at)
        l->look_at = next;
    if (l->look_at == CLOCK_NEVER)
        return -1;
    return (int)((l->look_at - now) / MS_NS) + 1;
}

/* resume lets go on whatever is due (all of it, at the end); returns how long until the next, in
 * ms; -1: none. */
static int resume(struct listener *l, bool all)
{
    int64_t now = clock_mono(&clock_system);
    while (l->first && (all || l->first->due <= now)) {
        struct visit *v = l->first;
        l->first = v->next;
        if (!l->first)
            l->last = NULL;
        MHD_resume_connection(v->conn);
    }
    return l->first ? (int)((l->first->due - now) / MS_NS) + 1 : -1;
}

/* ---- the loop ---- */

static int start(struct listener *l, struct error *err)
{
    const char *address = l->w->address;
    struct sockaddr_storage sa;
    unsigned port = (unsigned)l->w->port;
    ipnet_of_text(address, &sa);
    bool six = sa.ss_family == AF_INET6;
    if (six)
        ((struct sockaddr_in6 *)&sa)->sin6_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in *)&sa)->sin_port = htons((uint16_t)port);
    l->daemon = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC | (six ? MHD_USE_IPv6 : 0), 0, NULL,
        NULL, take, l, MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&sa, MHD_OPTION_NOTIFY_COMPLETED,
        forget, l, MHD_OPTION_NOTIFY_CONNECTION, on_connection, l, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)PLACES, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_S,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, HEAD_MAX, MHD_OPTION_END);
    if (!l->daemon)
        return err_errno(err, ERR_UNAVAILABLE, errno,
                         "could not listen on %s port %u; --port N takes another", address, port);
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(l->daemon, MHD_DAEMON_INFO_BIND_PORT);
    printf("listening on http://%s%s%s:%u/\n", six ? "[" : "", address, six ? "]" : "",
           info ? info->port : port);
    return output_end(err);
}

static bool done(const struct listener *l)
{
    return stopped || l->err.code || (l->w->count && l->answered >= l->w->count);
}

static void loop(struct listener *l, const sigset_t *waiting)
{
    struct pollfd fds[] = {
        {.fd = MHD_get_daemon_info(l->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd,
         .events = POLLIN},
        {.fd = l->halves, .events = POLLIN},
    };
    while (!done(l)) {
        MHD_UNSIGNED_LONG_LONG mhd;
        int ms = resume(l, false), late = drop_late(l);
        if (late >= 0 && (ms < 0 || late < ms))
            ms = late;
        if (MHD_get_timeout(l->daemon, &mhd) == MHD_YES && (ms < 0 || mhd < (unsigned)ms))
            ms = (int)mhd;
        struct timespec ts = {ms / 1000, (long)(ms % 1000) * 1000000};
        ppoll(fds, 2, ms < 0 ? NULL : &ts, waiting);
        resume(l, false);
        see_halves(l);
        MHD_run(l->daemon);
        drop_halves(l);
    }
    for (int i = 0; i < 3; i++) { /* what was answered goes out */
        resume(l, true);
        MHD_run(l->daemon);
    }
}

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

/* load_keys: with keys, what was accepted is remembered. */
static int load_keys(struct listener *l, struct error *err)
{
    struct signature_source from = {l->w->secret_file, l->w->secret_env, SIGNATURE_VERIFY};
    if (!from.file && !from.variable)
        return 0;
    if (signature_keys_load(&from, &l->keys, err) != 0)
        return -1;
    l->memory = replay_new();
    return l->memory ? 0 : err_nomem(err);
}

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
    int r = load_keys(l, err);
    l->halves = epoll_create1(EPOLL_CLOEXEC);
    if (r == 0 && l->halves < 0)
        r = err_errno(err, ERR_UNAVAILABLE, errno, "could not get ready to listen");
    if (r == 0)
        r = make_answer(l, err);
    if (r == 0)
        r = start(l, err);
    if (r == 0)
        loop(l, &before);
    if (r == 0 && l->err.code) {
        *err = l->err;
        r = -1;
    }
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
    return r;
}
