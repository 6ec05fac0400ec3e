/* listen.c: the receiver of `webhook listen`: for trying things, and for playing an endpoint that misbehaves. One thread,
 * one loop; answers that are to come late wait in a queue. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <microhttpd.h>

#include "base/json.h"
#include "cli/cli.h"
#include "sink/signature.h"

#define BODY_MAX ((size_t)65 << 20)
#define PORT 8026
#define STATUS 204

/* One request, from its first line until it was answered. (1) Suspended ones are in the listener's queue. */
struct visit {
    struct visit *next;
    struct MHD_Connection *conn;
    struct buf body;
    int64_t due;
    unsigned status;
    bool complete, answered;
};

/* (1) All answers take the same time, so that first..last are in the order they are due. */
struct listener {
    const struct cli *cli;
    const struct webhook_args *w;
    struct signature_keys *keys;
    struct MHD_Daemon *daemon;
    struct MHD_Response *answer;
    struct visit *first, *last;
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

/* clean_body appends the body as UTF-8 without control characters, whatever it is. */
static void clean_body(struct buf *b, const struct visit *v)
{
    size_t start = b->n, at = 0;
    buf_add(b, v->body.p, v->body.n);
    if (b->failed) return;
    for (size_t i = start; i < b->n; i++)
        if ((unsigned char)b->p[i] < 0x20 || b->p[i] == 0x7f) b->p[i] = ' ';
    while (!utf8_valid((struct str){b->p + start, b->n - start}, &at)) b->p[start + at] = '?';
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
        if (!value) continue;
        buf_addc(&l->line, ' ');
        output_clean(&l->line, value);
    }
    buf_addf(&l->line, " -> %u%s%s\n  ", v->status, l->keys ? ", " : "", l->keys ? verdict : "");
    clean_body(&l->line, v);
    buf_addc(&l->line, '\n');
}

static enum MHD_Result add_header(void *b, enum MHD_ValueKind kind, const char *name, const char *value)
{
    (void)kind;
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
    if (l->w->quiet || l->err.code) return;
    if (l->cli->args.json) print_json(l, v, what, verdict);
    else print_text(l, v, what, verdict);
    if (l->line.failed) { /* a huge one: better nothing than half of it */
        buf_clear(&l->line);
        buf_addf(&l->line, "(%zu bytes)\n", v->body.n);
    }
    if (output_flush(&l->line, &l->err) == 0) output_end(&l->err);
}

/* ---- answering ---- */

static const char *check(struct listener *l, struct visit *v)
{
    const char *stamp = header(v, "webhook-timestamp"), *id = header(v, "webhook-id");
    if (!l->keys) return NULL;
    struct signature_message m = {str_of(id), stamp ? strtoll(stamp, NULL, 10) : 0, {v->body.p, v->body.n}};
    return signature_check(l->keys, &m, str_of(header(v, "webhook-signature")), clock_wall(&clock_system) / 1000);
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

static enum MHD_Result complete(struct listener *l, struct visit *v, const char *method, const char *url)
{
    char what[512];
    v->complete = true;
    l->seen++;
    const char *why = v->body.failed ? "too large" : check(l, v);
    v->status = v->body.failed ? MHD_HTTP_CONTENT_TOO_LARGE : why ? MHD_HTTP_UNAUTHORIZED : (unsigned)l->w->status;
    snprintf(what, sizeof(what), "%s %s", method, url);
    print(l, v, what, why ? why : "genuine");
    buf_release(&v->body);
    return l->w->delay_ms ? enqueue(l, v) : answer(l, v);
}

/* take is called for the head of a request, then for each piece of its body, then once more; and again when one that was
 * suspended goes on. */
static enum MHD_Result take(void *ctx, struct MHD_Connection *conn, const char *url, const char *method,
                            const char *version, const char *data, size_t *size, void **state)
{
    struct listener *l = ctx;
    struct visit *v = *state;
    (void)version;
    if (!v) {
        v = *state = calloc(1, sizeof(*v));
        if (!v) return MHD_NO;
        v->conn = conn;
        buf_init(&v->body, BODY_MAX);
        return MHD_YES;
    }
    if (*size) {
        buf_add(&v->body, data, *size);
        *size = 0;
        return MHD_YES;
    }
    if (v->complete) return v->answered ? MHD_YES : answer(l, v);
    return complete(l, v, method, url);
}

static void forget(void *ctx, struct MHD_Connection *conn, void **state, enum MHD_RequestTerminationCode why)
{
    struct visit *v = *state;
    (void)ctx, (void)conn, (void)why;
    if (v) buf_release(&v->body);
    free(v);
    *state = NULL;
}

/* resume lets go on whatever is due (all of it, at the end); returns how long until the next, in ms; -1: none. */
static int resume(struct listener *l, bool all)
{
    int64_t now = clock_mono(&clock_system);
    while (l->first && (all || l->first->due <= now)) {
        struct visit *v = l->first;
        l->first = v->next;
        if (!l->first) l->last = NULL;
        MHD_resume_connection(v->conn);
    }
    return l->first ? (int)((l->first->due - now) / MS_NS) + 1 : -1;
}

/* ---- the loop ---- */

static int start(struct listener *l, struct error *err)
{
    const char *address = l->w->address ? l->w->address : "127.0.0.1";
    struct sockaddr_storage sa;
    unsigned port = l->w->port < 0 ? PORT : (unsigned)l->w->port;
    ipnet_of_text(address, &sa);
    bool six = sa.ss_family == AF_INET6;
    if (six) ((struct sockaddr_in6 *)&sa)->sin6_port = htons((uint16_t)port);
    else ((struct sockaddr_in *)&sa)->sin_port = htons((uint16_t)port);
    l->daemon = MHD_start_daemon(MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC | (six ? MHD_USE_IPv6 : 0), 0,
                                 NULL, NULL, take, l, MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&sa,
                                 MHD_OPTION_NOTIFY_COMPLETED, forget, l, MHD_OPTION_END);
    if (!l->daemon)
        return err_errno(err, ERR_UNAVAILABLE, errno, "could not listen on %s port %u; --port N takes another", address,
                         port);
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(l->daemon, MHD_DAEMON_INFO_BIND_PORT);
    printf("listening on http://%s%s%s:%u/\n", six ? "[" : "", address, six ? "]" : "", info ? info->port : port);
    return output_end(err);
}

static bool done(const struct listener *l)
{
    return stopped || l->err.code || (l->w->count && l->answered >= l->w->count);
}

static void loop(struct listener *l, const sigset_t *waiting)
{
    struct pollfd fd = {.fd = MHD_get_daemon_info(l->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd, .events = POLLIN};
    while (!done(l)) {
        MHD_UNSIGNED_LONG_LONG mhd;
        int ms = resume(l, false);
        if (MHD_get_timeout(l->daemon, &mhd) == MHD_YES && (ms < 0 || mhd < (unsigned)ms)) ms = (int)mhd;
        struct timespec ts = {ms / 1000, (long)(ms % 1000) * 1000000};
        ppoll(&fd, 1, ms < 0 ? NULL : &ts, waiting);
        resume(l, false);
        MHD_run(l->daemon);
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
    if (!l->answer) return err_nomem(err);
    snprintf(seconds, sizeof(seconds), "%lld", (long long)l->w->retry_after);
    if (l->w->retry_after >= 0) MHD_add_response_header(l->answer, "Retry-After", seconds);
    return 0;
}

int listen_run(struct cli *cli, struct error *err)
{
    struct listener l = {.cli = cli, .w = &cli->args.webhook};
    struct sigaction stop = {.sa_handler = on_signal}, ignore = {.sa_handler = SIG_IGN};
    sigset_t block, before;
    const struct webhook_args *w = l.w;
    if (!cli->args.webhook.status) cli->args.webhook.status = STATUS;
    buf_init(&l.line, OUTPUT_MAX);
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGPIPE, &ignore, NULL);
    sigemptyset(&block);
    sigaddset(&block, SIGTERM);
    sigaddset(&block, SIGINT);
    sigprocmask(SIG_BLOCK, &block, &before);
    int r = 0;
    if (w->secret_file || w->secret_env) r = signature_keys_load(w->secret_file, w->secret_env, &l.keys, err);
    if (r == 0) r = make_answer(&l, err);
    if (r == 0) r = start(&l, err);
    if (r == 0) loop(&l, &before);
    if (r == 0 && l.err.code) {
        *err = l.err;
        r = -1;
    }
    if (l.daemon) MHD_stop_daemon(l.daemon);
    if (l.answer) MHD_destroy_response(l.answer);
    signature_keys_free(l.keys);
    buf_release(&l.line);
    return r;
}
