#include "http_peer.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <microhttpd.h>

#include "base/buf.h"

#define REQUEST_MAX ((size_t)64 << 20)

struct seen {
    struct buf head, body;
    char id[64];
    bool good;
};

/* (1) Everything below the lock is shared with the server's thread. (2) hung[0..n_hung) are
 *   suspended. */
struct http_peer {
    struct MHD_Daemon *daemon;
    unsigned port;
    char url[200];
    pthread_mutex_t lock;
    struct http_reply reply;
    struct seen **seen;
    size_t n, connections;
    struct MHD_Connection *hung[256];
    size_t n_hung;
};

static enum MHD_Result add_line(void *seen, enum MHD_ValueKind kind, const char *name,
                                const char *value)
{
    struct seen *s = seen;
    (void)kind;
    for (const char *p = name; *p; p++)
        buf_addc(&s->head, (char)tolower((unsigned char)*p));
    buf_addf(&s->head, ": %s\n", value ? value : "");
    if (strcasecmp(name, "webhook-id") == 0)
        snprintf(s->id, sizeof s->id, "%s", value);
    return MHD_YES;
}

static struct seen *seen_new(struct MHD_Connection *conn, const char *method, const char *url)
{
    struct seen *s = calloc(1, sizeof *s);
    buf_init(&s->head, REQUEST_MAX);
    buf_init(&s->body, REQUEST_MAX);
    buf_addf(&s->head, "%s %s\n", method, url);
    MHD_get_connection_values(conn, MHD_HEADER_KIND, add_line, s);
    const char *token = MHD_lookup_connection_value(conn, MHD_GET_ARGUMENT_KIND, "token");
    buf_addf(&s->head, "?token=%s\n", token ? token : "");
    return s;
}

static enum MHD_Result reply(struct MHD_Connection *conn, const struct http_reply *r)
{
    size_t n = r->body ? strlen(r->body) : r->size;
    char *text = malloc(n + 1);
    if (r->body)
        memcpy(text, r->body, n);
    else
        memset(text, 'x', n);
    struct MHD_Response *answer = MHD_create_response_from_buffer(n, text, MHD_RESPMEM_MUST_FREE);
    if (r->name)
        MHD_add_response_header(answer, r->name, r->value);
    enum MHD_Result ok = MHD_queue_response(conn, r->status ? r->status : 204, answer);
    MHD_destroy_response(answer);
    return ok;
}

/* keep records a complete request and returns the response. */
static struct http_reply keep(struct http_peer *p, struct seen *s, struct MHD_Connection *conn)
{
    pthread_mutex_lock(&p->lock);
    struct http_reply r = p->reply;
    s->good = !r.hang && (r.status == 0 || r.status / 100 == 2);
    p->seen = realloc(p->seen, (p->n + 1) * sizeof(struct seen *));
    p->seen[p->n++] = s;
    if (r.hang)
        p->hung[p->n_hung++] = conn;
    pthread_mutex_unlock(&p->lock);
    return r;
}

static enum MHD_Result take(void *peer, struct MHD_Connection *conn, const char *url,
                            const char *method, const char *version, const char *data, size_t *size,
                            void **state)
{
    struct seen *s = *state;
    (void)version;
    if (!s) {
        *state = seen_new(conn, method, url);
        return MHD_YES;
    }
    if (*size) {
        buf_add(&s->body, data, *size);
        *size = 0;
        return MHD_YES;
    }
    if (s->body.max == 0)
        return MHD_NO; /* it hung and is resumed now: close it */
    struct http_reply r = keep(peer, s, conn);
    if (!r.hang)
        return reply(conn, &r);
    s->body.max = 0;
    MHD_suspend_connection(conn);
    return MHD_YES;
}

static void seen_free(struct seen *s)
{
    buf_release(&s->head);
    buf_release(&s->body);
    free(s);
}

static void completed(void *peer, struct MHD_Connection *conn, void **state,
                      enum MHD_RequestTerminationCode why)
{
    struct http_peer *p = peer;
    bool kept = false;
    (void)conn, (void)why;
    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < p->n; i++)
        kept = kept || p->seen[i] == *state;
    pthread_mutex_unlock(&p->lock);
    if (*state && !kept)
        seen_free(*state); /* half a request */
    *state = NULL;
}

static void connected(void *peer, struct MHD_Connection *conn, void **state,
                      enum MHD_ConnectionNotificationCode what)
{
    struct http_peer *p = peer;
    (void)conn, (void)state;
    pthread_mutex_lock(&p->lock);
    if (what == MHD_CONNECTION_NOTIFY_STARTED)
        p->connections++;
    pthread_mutex_unlock(&p->lock);
}

void http_peer_start(struct http_peer *p)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)p->port)};
    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    p->daemon = MHD_start_daemon(
        MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL,
        take, p, MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&sa, MHD_OPTION_LISTENING_ADDRESS_REUSE,
        1u, MHD_OPTION_NOTIFY_COMPLETED, completed, p, MHD_OPTION_NOTIFY_CONNECTION, connected, p,
        MHD_OPTION_END);
    assert_non_null(p->daemon);
    p->port = MHD_get_daemon_info(p->daemon, MHD_DAEMON_INFO_BIND_PORT)->port;
}

void http_peer_stop(struct http_peer *p)
{
    if (!p->daemon)
        return;
    pthread_mutex_lock(&p->lock);
    size_t n = p->n_hung;
    p->n_hung = 0;
    pthread_mutex_unlock(&p->lock);
    for (size_t i = 0; i < n; i++)
        MHD_resume_connection(p->hung[i]);
    MHD_stop_daemon(p->daemon);
    p->daemon = NULL;
}

struct http_peer *http_peer_new(void)
{
    struct http_peer *p = calloc(1, sizeof *p);
    pthread_mutex_init(&p->lock, NULL);
    http_peer_start(p);
    return p;
}

void http_peer_free(struct http_peer *p)
{
    http_peer_stop(p);
    for (size_t i = 0; i < p->n; i++)
        seen_free(p->seen[i]);
    free(p->seen);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

void http_peer_reply(struct http_peer *p, struct http_reply r)
{
    pthread_mutex_lock(&p->lock);
    p->reply = r;
    pthread_mutex_unlock(&p->lock);
}

const char *http_peer_url(struct http_peer *p, const char *host)
{
    snprintf(p->url, sizeof p->url, "http://%s:%u/hook?token=t0ken", host, p->port);
    return p->url;
}

static size_t read_locked(struct http_peer *p, const size_t *field)
{
    pthread_mutex_lock(&p->lock);
    size_t n = *field;
    pthread_mutex_unlock(&p->lock);
    return n;
}

size_t http_peer_requests(struct http_peer *p)
{
    return read_locked(p, &p->n);
}

size_t http_peer_connections(struct http_peer *p)
{
    return read_locked(p, &p->connections);
}

char *http_peer_head(struct http_peer *p, size_t i)
{
    pthread_mutex_lock(&p->lock);
    assert_true(i < p->n);
    char *copy = strdup(buf_cstr(&p->seen[i]->head));
    pthread_mutex_unlock(&p->lock);
    return copy;
}

char *http_peer_body(struct http_peer *p, size_t i, size_t *ret_n)
{
    pthread_mutex_lock(&p->lock);
    assert_true(i < p->n);
    size_t n = p->seen[i]->body.n;
    char *copy = malloc(n + 1);
    if (n)
        memcpy(copy, p->seen[i]->body.p, n);
    copy[n] = '\0';
    pthread_mutex_unlock(&p->lock);
    if (ret_n)
        *ret_n = n;
    return copy;
}

void http_peer_arrived(struct http_peer *p, struct sink_arrivals *got)
{
    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < p->n; i++)
        if (p->seen[i]->good)
            sink_arrivals_add(got, str_of(p->seen[i]->id),
                              (struct str){p->seen[i]->body.p, p->seen[i]->body.n});
    pthread_mutex_unlock(&p->lock);
}
