/* server.c: the HTTP server and its pages. Each connection has its own thread, so that neither a
 * slow client nor an unresponsive store blocks others. */
#include <microhttpd.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "admin/access.h"
#include "admin/connections.h"
#include "admin/metrics.h"

#define IDLE_S 5                       /* a connection without traffic for this time is closed */
#define REQUEST_MAX ((size_t)8 * 1024) /* line and headers */
#define PAGE_MAX ((size_t)16 << 20)
#define STACK ((size_t)512 * 1024)
#define STOP_WAIT_MS 2000
#define STORE_WAIT_S 3 /* how long to wait for another scrape to release the store */
#define OK 200
#define UNAVAILABLE 503

/* (1) store_lock protects st, token_lock protects tokens. */
struct admin {
    struct admin_config *cfg;
    struct MHD_Daemon *http;
    struct connections connections;
    struct socket_file file;
    bool local; /* only this machine can reach us */
    atomic_llong refused[METRICS_REFUSALS];
    pthread_mutex_t store_lock, token_lock;
    struct store *st;      /* for scrapes; the first one opens it */
    struct tokens *tokens; /* NULL: none */
};

#define PAGES_TEXT "text/plain; charset=utf-8"

/* How much detail a page shows. */
enum page_detail {
    PAGE_SHORT,
    PAGE_VERBOSE,  /* a line per consumer */
    PAGE_WITHHELD, /* the client requested details, but may not see them */
};

/* A page. (1) make appends its text and returns the status. */
struct page {
    const char *path, *type;
    bool open; /* public, except for its details */
    unsigned (*make)(struct admin *s, enum page_detail detail, struct buf *b);
};

/* ---- pages ---- */

/* Returns the store for scrapes, locked. It returns NULL, with nothing locked, if another scrape
 * occupies the store or the store cannot be opened; the page then omits the store's values. */
static struct store *lock_store(struct admin *s)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += STORE_WAIT_S;
    if (pthread_mutex_timedlock(&s->store_lock, &until) != 0)
        return NULL;
    outbox *ob = atomic_load(&s->cfg->ob);
    bool is_open = s->st ||
                   (ob && ob->st->ops->dup(ob->st, &s->st, NULL) == 0); /* the first opens it */
    if (is_open)
        return s->st;
    pthread_mutex_unlock(&s->store_lock);
    return NULL;
}

static void unlock_store(struct admin *s, const struct store *st)
{
    if (st)
        pthread_mutex_unlock(&s->store_lock);
}

/* Collects everything while it holds the store, and formats it afterwards. */
static unsigned page_metrics(struct admin *s, enum page_detail detail, struct buf *b)
{
    struct metrics m;
    (void)detail;
    struct store *st = lock_store(s);
    int r = metrics_scrape(&m, s->cfg, st, NULL);
    unlock_store(s, st);
    if (r != 0)
        return UNAVAILABLE;

    for (size_t i = 0; i < METRICS_REFUSALS; i++)
        m.refused[i] = atomic_load(&s->refused[i]);
    metrics_add(b, &m);
    metrics_release(&m);
    return OK;
}

/* Returns the buffer for the details of a page, or NULL for none. If access rules withhold them,
 * the page says so. */
static struct buf *details_for(enum page_detail detail, struct buf *b)
{
    if (detail == PAGE_VERBOSE)
        return b;
    if (detail == PAGE_WITHHELD)
        buf_adds(b, "details need the token\n");
    return NULL;
}

static unsigned page_livez(struct admin *s, enum page_detail detail, struct buf *b)
{
    struct buf *details = details_for(detail, b);
    bool alive = admin_health(s->cfg, NULL, details).alive;
    buf_adds(b, alive ? "ok\n" : "a consumer is stuck\n");
    return alive ? OK : UNAVAILABLE;
}

static unsigned page_readyz(struct admin *s, enum page_detail detail, struct buf *b)
{
    struct buf *details = details_for(detail, b);
    bool ready = admin_health(s->cfg, NULL, NULL).ready;
    if (!ready) {
        /* Ask the store: a paused consumer may look stuck. */
        struct store *st = lock_store(s);
        ready = admin_health(s->cfg, st, details).ready;
        unlock_store(s, st);
    } else if (details) {
        ready = admin_health(s->cfg, NULL, details).ready;
    }
    buf_adds(b, ready ? "ready\n" : "not ready\n");
    return ready ? OK : UNAVAILABLE;
}

static unsigned page_index(struct admin *s, enum page_detail detail, struct buf *b)
{
    (void)s;
    (void)detail;
    buf_adds(b, "outbox " OUTBOX_VERSION "\n\n"
                "/metrics           for Prometheus\n"
                "/livez[?verbose]   is it alive?\n"
                "/readyz[?verbose]  is it making progress?\n");
    return OK;
}

static const struct page pages[] = {
    {"/metrics", "text/plain; version=0.0.4; charset=utf-8", false, page_metrics},
    {"/livez", PAGES_TEXT, true, page_livez},
    {"/readyz", PAGES_TEXT, true, page_readyz},
    {"/", PAGES_TEXT, false, page_index},
};

/* ---- connections ---- */

static int descriptor_of(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(
        c, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (!info)
        return -1;
    return info->connect_fd;
}

/* Keeps the list of connections. It wakes the watching thread, which has a new deadline to wait
 * for. */
static void on_connection(void *cls, struct MHD_Connection *c, void **socket_context,
                          enum MHD_ConnectionNotificationCode what)
{
    struct admin *s = cls;
    int fd = descriptor_of(c);
    (void)socket_context;
    if (fd < 0)
        return;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        connections_opened(&s->connections, fd, clock_mono(&clock_system));
        uint64_t one = 1;
        ssize_t written = s->cfg->wake_fd < 0 ? 0 : write(s->cfg->wake_fd, &one, sizeof one);
        (void)written; /* it only fails if the thread is awake already */
    } else {
        connections_closed(&s->connections, fd);
    }
}

int64_t admin_tick(struct admin *s, int64_t now)
{
    if (!s)
        return CLOCK_NEVER;
    return connections_tick(&s->connections, now);
}

/* ---- requests ---- */

/* Handles a header that may occur only once. libmicrohttpd 0.9.75 appends a folded line to the name
 * of the header: "Origin: x", then " y", is a header "Originy", which would go unnoticed. So a name
 * that merely begins with one of ours counts as a repeated header. */
static void note_once(struct access_request *r, const char *name, const char *value)
{
    struct str *const fields[] = {&r->host, &r->origin, &r->authorization};
    static const char *const names[] = {"Host", "Origin", "Authorization"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n = strlen(names[i]);
        if (strncasecmp(name, names[i], n) != 0)
            continue;
        bool whole = name[n] == '\0';
        if (!whole || fields[i]->p)
            r->more++;
        if (whole)
            *fields[i] = str_of(value);
    }
}

static enum MHD_Result note_header(void *request, enum MHD_ValueKind kind, const char *name,
                                   const char *value)
{
    struct access_request *r = request;
    (void)kind;
    if (!value)
        value = "";
    note_once(r, name, value);
    if (strcasecmp(name, "Transfer-Encoding") == 0)
        r->has_body = true;
    if (strcasecmp(name, "Content-Length") == 0 && strcmp(value, "0") != 0)
        r->has_body = true;
    return MHD_YES;
}

/* The answer to a request. */
struct reply {
    unsigned status;
    const char *type;
    struct buf text;
};

/* Sends the reply with headers that keep browsers from caching, sniffing or framing it. */
static enum MHD_Result send_reply(struct MHD_Connection *c, const struct reply *reply)
{
    static const char *const headers[][2] = {
        {"Cache-Control", "no-store"},
        {"X-Content-Type-Options", "nosniff"},
        {"Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"},
        {"X-Frame-Options", "DENY"},
        {"Referrer-Policy", "no-referrer"},
        {"Cross-Origin-Resource-Policy", "same-origin"},
        {"Connection", "close"}, /* makes room for the next client */
    };
    struct MHD_Response *r = MHD_create_response_from_buffer(reply->text.n, reply->text.p,
                                                             MHD_RESPMEM_MUST_COPY);
    if (!r)
        return MHD_NO;
    MHD_add_response_header(r, "Content-Type", reply->type);
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
        MHD_add_response_header(r, headers[i][0], headers[i][1]);
    if (reply->status == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(r, "Allow", "GET, HEAD");
    if (reply->status == MHD_HTTP_UNAUTHORIZED)
        MHD_add_response_header(r, "WWW-Authenticate", "Bearer realm=\"outbox\"");
    enum MHD_Result queued = MHD_queue_response(c, reply->status, r);
    MHD_destroy_response(r);
    return queued;
}

/* Applies the rules of access. *ret_knows has the reason if the client may not see all details. */
static struct access_refusal refusal_of(struct admin *s, struct MHD_Connection *c,
                                        const struct access_request *r,
                                        struct access_refusal *ret_knows)
{
    struct sockaddr_storage here = {.ss_family = AF_UNSPEC};
    socklen_t size = sizeof here;
    getsockname(descriptor_of(c), (struct sockaddr *)&here, &size);
    /* Tokens are only compared under the lock: a reload may replace them at any moment. */
    pthread_mutex_lock(&s->token_lock);
    struct access_rules rules = {.hosts = s->cfg->hosts, .tokens = s->tokens, .local = s->local};
    *ret_knows = access_details(&rules, r);
    pthread_mutex_unlock(&s->token_lock);
    return access_check(&rules, r, (struct sockaddr *)&here);
}

static void make_reply(struct admin *s, struct MHD_Connection *c, const char *url,
                       const struct access_request *r, struct reply *ret)
{
    struct access_refusal knows;
    struct access_refusal refused = refusal_of(s, c, r, &knows);
    const struct page *page = NULL;
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        if (strcmp(pages[i].path, url) == 0)
            page = &pages[i];
    }
    bool open = page && page->open;
    if (!refused.status && !open)
        refused = knows;

    if (refused.status) {
        for (size_t i = 0; i < METRICS_REFUSALS; i++)
            if (metrics_refusals[i] == refused.status)
                atomic_fetch_add(&s->refused[i], 1);
        ret->status = refused.status;
        buf_adds(&ret->text, refused.text);
        return;
    }
    if (!page) {
        ret->status = MHD_HTTP_NOT_FOUND;
        buf_adds(&ret->text, "not found; the paths are /metrics, /livez and /readyz\n");
        return;
    }

    /* Details are for clients that know the token. */
    enum page_detail detail = PAGE_SHORT;
    bool verbose = MHD_lookup_connection_value_n(c, MHD_GET_ARGUMENT_KIND, "verbose", 7, NULL,
                                                 NULL) == MHD_YES;
    if (verbose)
        detail = knows.status ? PAGE_WITHHELD : PAGE_VERBOSE;
    ret->type = page->type;
    ret->status = page->make(s, detail, &ret->text);
    if (ret->text.failed)
        ret->status = MHD_HTTP_INTERNAL_SERVER_ERROR;
}

/* Answers once the headers have arrived: no accepted request has a body. */
static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *data_size, void **state)
{
    struct admin *s = cls;
    struct access_request r = {.method = str_of(method),
                               .old = strcmp(version, MHD_HTTP_VERSION_1_0) == 0};
    struct reply reply = {.type = PAGES_TEXT};
    (void)data;
    if (*state || *data_size > 0)
        return MHD_NO;
    *state = s; /* any value but NULL means answered */
    connections_request_complete(&s->connections, descriptor_of(c), clock_mono(&clock_system));
    MHD_get_connection_values(c, MHD_HEADER_KIND, note_header, &r);

    buf_init(&reply.text, PAGE_MAX);
    make_reply(s, c, url, &r, &reply);
    enum MHD_Result done = send_reply(c, &reply);
    buf_release(&reply.text);
    return done;
}

/* ---- start and stop ---- */

/* Starts the HTTP server on a listening socket. The limits bound the resources that clients can
 * occupy. */
static struct MHD_Daemon *start_daemon(struct admin *s, int fd)
{
    unsigned flags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL;
    int per_address = CONNECTIONS_PER_ADDRESS;
    if (s->local)
        per_address = CONNECTIONS_MAX; /* on this machine all clients have the same address */

    struct MHD_OptionItem options[] = {
        {MHD_OPTION_LISTEN_SOCKET, fd, NULL},
        {MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS_MAX, NULL},
        {MHD_OPTION_PER_IP_CONNECTION_LIMIT, per_address, NULL},
        {MHD_OPTION_CONNECTION_TIMEOUT, IDLE_S, NULL},
        {MHD_OPTION_CONNECTION_MEMORY_LIMIT, REQUEST_MAX, NULL},
        {MHD_OPTION_THREAD_STACK_SIZE, STACK, NULL},
        {MHD_OPTION_STRICT_FOR_CLIENT, 1, NULL},
        {MHD_OPTION_NOTIFY_CONNECTION, (intptr_t)on_connection, s},
        {MHD_OPTION_END, 0, NULL},
    };
    return MHD_start_daemon(flags, 0, NULL, NULL, on_request, s, MHD_OPTION_ARRAY, options,
                            MHD_OPTION_END);
}

int admin_start(struct admin_config *cfg, const struct admin_door *door, struct admin **ret,
                char ret_url[ADMIN_ADDRESS], struct error *err)
{
    struct admin *s = calloc(1, sizeof *s);
    if (!s) {
        access_tokens_free(door->tokens);
        return err_nomem(err);
    }
    s->cfg = cfg;
    s->tokens = door->tokens;
    s->local = admin_loopback(&door->address);
    pthread_mutex_init(&s->store_lock, NULL);
    pthread_mutex_init(&s->token_lock, NULL);
    connections_init(&s->connections);

    int fd = -1;
    struct socket_wish wish = {
        .address = &door->address, .backlog = CONNECTIONS_MAX, .mode = cfg->socket_mode};
    if (connections_listen(&wish, &s->file, &fd, err) != 0)
        goto fail;
    connections_url(fd, ret_url);
    s->http = start_daemon(s, fd); /* on success it owns the socket */
    if (!s->http) {
        close(fd);
        err_set(err, ERR_UNAVAILABLE, "could not start the HTTP server");
        goto fail;
    }
    *ret = s;
    return 0;
fail:
    admin_stop(s);
    return -1;
}

void admin_set_tokens(struct admin *s, struct tokens *t)
{
    pthread_mutex_lock(&s->token_lock);
    struct tokens *former = s->tokens;
    s->tokens = t;
    pthread_mutex_unlock(&s->token_lock);
    access_tokens_free(former);
}

bool admin_stop(struct admin *s)
{
    if (!s)
        return true;
    /* Remove the file first, so that the next relay can listen there at once. */
    connections_unlisten(&s->file);
    if (s->http) {
        /* Wait briefly for scrapes to end. A scrape that waits for an unresponsive store must not
         * block the stop. */
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += STOP_WAIT_MS / 1000;
        if (pthread_mutex_timedlock(&s->store_lock, &until) != 0)
            return false;
        pthread_mutex_unlock(&s->store_lock);
        MHD_stop_daemon(s->http);
    }
    store_close(s->st);
    access_tokens_free(s->tokens);
    connections_release(&s->connections);
    pthread_mutex_destroy(&s->store_lock);
    pthread_mutex_destroy(&s->token_lock);
    free(s);
    return true;
}
