/* server.c: the HTTP server. Each connection has a thread of its own, so that a slow client, or a store that does not
 * answer, keeps nobody else waiting. */
#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "admin/look.h"
#include "base/fd.h"

#define CONNECTIONS 32
#define IDLE_S 5                       /* without a byte, then it is closed */
#define LIFE_NS (30 * 1000 * MS_NS)    /* however busy */
#define REQUEST_MAX ((size_t)8 * 1024) /* line and headers */
#define PAGE_MAX ((size_t)16 << 20)
#define STACK ((size_t)512 * 1024)
#define STORE_WAIT_S 3 /* for another scrape to be done with the store; then without it */
#define STOP_WAIT_MS 2000

/* (1) since == 0: the place is free. */
struct guest {
    int fd;
    int64_t since;
};

/* (1) st is used under store_lock, guests under guest_lock. */
struct admin {
    struct admin_config cfg;
    struct MHD_Daemon *http;
    pthread_mutex_t store_lock, guest_lock;
    struct store *st; /* for scrapes; opened by the first */
    struct guest guest[CONNECTIONS];
};

bool admin_built(void)
{
    return true;
}

/* ---- guests ---- */

static void arrive(struct admin *s, int fd)
{
    uint64_t one = 1;
    pthread_mutex_lock(&s->guest_lock);
    for (size_t i = 0; i < CONNECTIONS; i++) {
        if (s->guest[i].since) continue;
        s->guest[i] = (struct guest){fd, clock_mono(&clock_system)};
        break;
    }
    pthread_mutex_unlock(&s->guest_lock);
    if (s->cfg.wake_fd >= 0 && write(s->cfg.wake_fd, &one, sizeof one) < 0) return; /* awake already */
}

static void leave(struct admin *s, int fd)
{
    pthread_mutex_lock(&s->guest_lock);
    for (size_t i = 0; i < CONNECTIONS; i++)
        if (s->guest[i].since && s->guest[i].fd == fd) s->guest[i].since = 0;
    pthread_mutex_unlock(&s->guest_lock);
}

static void on_connection(void *cls, struct MHD_Connection *c, void **socket_context,
                          enum MHD_ConnectionNotificationCode what)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    (void)socket_context;
    if (!info) return;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) arrive(cls, info->connect_fd);
    else leave(cls, info->connect_fd); /* before the descriptor is closed */
}

int64_t admin_tick(struct admin *s, int64_t now)
{
    int64_t next = CLOCK_NEVER;
    if (!s) return next;
    pthread_mutex_lock(&s->guest_lock);
    for (size_t i = 0; i < CONNECTIONS; i++) {
        const struct guest *g = &s->guest[i];
        if (!g->since) continue;
        if (now >= g->since + LIFE_NS) shutdown(g->fd, SHUT_RDWR); /* its thread sees that, and ends it */
        int64_t at = now >= g->since + LIFE_NS ? now + 1000 * MS_NS : g->since + LIFE_NS;
        if (at < next) next = at;
    }
    pthread_mutex_unlock(&s->guest_lock);
    return next;
}

/* ---- pages ---- */

/* lock_store gives the store for scrapes; NULL if it cannot be had, and then there is nothing to unlock. */
static struct store *lock_store(struct admin *s)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += STORE_WAIT_S;
    if (pthread_mutex_timedlock(&s->store_lock, &until) != 0) return NULL;
    outbox *ob = atomic_load(&s->cfg.ob);
    if (s->st || (ob && manage_store(ob, &s->st, NULL) == 0)) return s->st;
    pthread_mutex_unlock(&s->store_lock);
    return NULL;
}

static void unlock_store(struct admin *s, const struct store *st)
{
    if (st) pthread_mutex_unlock(&s->store_lock);
}

static unsigned page_metrics(struct admin *s, bool verbose, struct buf *b)
{
    struct look l;
    (void)verbose;
    struct store *st = lock_store(s);
    int r = look_take(&l, &s->cfg, st, NULL);
    unlock_store(s, st);
    if (r != 0) return MHD_HTTP_SERVICE_UNAVAILABLE;
    metrics_add(b, &l.m);
    look_release(&l);
    return MHD_HTTP_OK;
}

static unsigned page_livez(struct admin *s, bool verbose, struct buf *b)
{
    bool alive = admin_health(&s->cfg, NULL, verbose ? b : NULL).alive;
    buf_adds(b, alive ? "ok\n" : "a consumer stands still\n");
    return alive ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE;
}

static unsigned page_readyz(struct admin *s, bool verbose, struct buf *b)
{
    bool ready = admin_health(&s->cfg, NULL, NULL).ready;
    if (!ready || verbose) {
        struct store *st = ready ? NULL : lock_store(s); /* one that is paused may look as if it were stuck */
        ready = admin_health(&s->cfg, st, verbose ? b : NULL).ready;
        unlock_store(s, st);
    }
    buf_adds(b, ready ? "ready\n" : "not ready\n");
    return ready ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE;
}

static unsigned page_index(struct admin *s, bool verbose, struct buf *b)
{
    (void)s;
    (void)verbose;
    buf_adds(b, "outbox " OUTBOX_VERSION "\n\n"
                "/metrics           for Prometheus\n"
                "/livez[?verbose]   does it turn?\n"
                "/readyz[?verbose]  does it get on with its work?\n");
    return MHD_HTTP_OK;
}

static const struct page {
    const char *path, *type;
    unsigned (*make)(struct admin *s, bool verbose, struct buf *b);
} pages[] = {
    {"/metrics", "text/plain; version=0.0.4; charset=utf-8", page_metrics},
    {"/livez", "text/plain; charset=utf-8", page_livez},
    {"/readyz", "text/plain; charset=utf-8", page_readyz},
    {"/", "text/plain; charset=utf-8", page_index},
};

static const struct page *page_of(const char *path)
{
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
        if (strcmp(pages[i].path, path) == 0) return &pages[i];
    return NULL;
}

static enum MHD_Result answer(struct MHD_Connection *c, unsigned status, const char *type, const struct buf *b)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(b->n, b->p, MHD_RESPMEM_MUST_COPY);
    if (!r) return MHD_NO;
    MHD_add_response_header(r, "Content-Type", type);
    MHD_add_response_header(r, "Cache-Control", "no-store");
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(r, "Connection", "close"); /* nobody keeps a place for later */
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED) MHD_add_response_header(r, "Allow", "GET, HEAD");
    enum MHD_Result queued = MHD_queue_response(c, status, r);
    MHD_destroy_response(r);
    return queued;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *url, const char *method,
                                  const char *version, const char *data, size_t *data_size, void **state)
{
    static int seen;
    struct buf b;
    const struct page *page = page_of(url);
    bool get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    unsigned status;
    (void)version;
    (void)data;
    if (*data_size > 0) return MHD_NO; /* a body where none belongs */
    if (get && !*state) {
        *state = &seen; /* the headers are there; the next call is the request */
        return MHD_YES;
    }
    buf_init(&b, PAGE_MAX);
    if (!get) {
        status = MHD_HTTP_METHOD_NOT_ALLOWED;
        buf_adds(&b, "only GET and HEAD\n");
    } else if (!page) {
        status = MHD_HTTP_NOT_FOUND;
        buf_adds(&b, "there is /metrics, /livez and /readyz\n");
    } else {
        bool verbose = MHD_lookup_connection_value_n(c, MHD_GET_ARGUMENT_KIND, "verbose", 7, NULL, NULL) == MHD_YES;
        status = page->make(cls, verbose, &b);
        if (b.failed) status = MHD_HTTP_INTERNAL_SERVER_ERROR;
    }
    enum MHD_Result r = answer(c, status, page && get ? page->type : "text/plain; charset=utf-8", &b);
    buf_release(&b);
    return r;
}

/* ---- start and stop ---- */

static int listen_at(const struct admin_address *a, int *ret, struct error *err)
{
    int one = 1, fd = fd_above_stdio(socket(a->at.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd < 0) return err_errno(err, ERR_UNAVAILABLE, errno, "could not make a socket");
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, &a->at.any, a->size) == 0 && listen(fd, CONNECTIONS) == 0) {
        *ret = fd;
        return 0;
    }
    err_errno(err, ERR_UNAVAILABLE, errno, "could not listen there");
    close(fd);
    return -1;
}

static void say_where(int fd, char out[ADMIN_ADDRESS])
{
    struct admin_address a = {.size = sizeof a.at};
    char host[INET6_ADDRSTRLEN] = "";
    getsockname(fd, &a.at.any, &a.size);
    bool v6 = a.at.any.sa_family == AF_INET6;
    const void *from = v6 ? (const void *)&a.at.v6.sin6_addr : (const void *)&a.at.v4.sin_addr;
    inet_ntop(a.at.any.sa_family, from, host, sizeof host);
    snprintf(out, ADMIN_ADDRESS, v6 ? "http://[%s]:%d" : "http://%s:%d", host,
             ntohs(v6 ? a.at.v6.sin6_port : a.at.v4.sin_port));
}

int admin_start(const struct admin_config *cfg, const struct admin_address *a, struct admin **ret,
                char ret_url[ADMIN_ADDRESS], struct error *err)
{
    int fd = -1;
    struct admin *s = calloc(1, sizeof *s);
    if (!s) return err_nomem(err);
    s->cfg = *cfg;
    pthread_mutex_init(&s->store_lock, NULL);
    pthread_mutex_init(&s->guest_lock, NULL);
    if (listen_at(a, &fd, err) != 0) goto fail;
    say_where(fd, ret_url);
    s->http = MHD_start_daemon(MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL, 0, NULL,
                               NULL, on_request, s, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
                               (unsigned)CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_S,
                               MHD_OPTION_CONNECTION_MEMORY_LIMIT, REQUEST_MAX, MHD_OPTION_THREAD_STACK_SIZE, STACK,
                               MHD_OPTION_NOTIFY_CONNECTION, on_connection, s, MHD_OPTION_END);
    if (s->http) {
        *ret = s;
        return 0;
    }
    close(fd);
    err_set(err, ERR_UNAVAILABLE, "could not start the HTTP server");
fail:
    admin_stop(s);
    return -1;
}

void admin_attach(struct admin *s, outbox *ob)
{
    if (s) atomic_store(&s->cfg.ob, ob);
}

/* idle_soon: a scrape that waits for a store which does not answer would keep us from stopping for as long. */
static bool idle_soon(struct admin *s)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += STOP_WAIT_MS / 1000;
    if (pthread_mutex_timedlock(&s->store_lock, &until) != 0) return false;
    pthread_mutex_unlock(&s->store_lock);
    return true;
}

bool admin_stop(struct admin *s)
{
    if (!s) return true;
    if (s->http && !idle_soon(s)) return false;
    if (s->http) MHD_stop_daemon(s->http);
    store_close(s->st);
    pthread_mutex_destroy(&s->store_lock);
    pthread_mutex_destroy(&s->guest_lock);
    free(s);
    return true;
}
