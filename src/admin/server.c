/* server.c: the HTTP server. Each connection has a thread of its own, so that a slow client, or a
 * store that does not answer, keeps nobody else waiting. */
#include <microhttpd.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "admin/gate.h"
#include "admin/server.h"

#define IDLE_S 5                       /* without a byte, then it is closed */
#define REQUEST_MAX ((size_t)8 * 1024) /* line and headers */
#define PAGE_MAX ((size_t)16 << 20)
#define STACK ((size_t)512 * 1024)
#define STOP_WAIT_MS 2000

bool admin_built(void)
{
    return true;
}

/* ---- connections ---- */

static int descriptor_of(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(
        c, MHD_CONNECTION_INFO_CONNECTION_FD);
    return info ? info->connect_fd : -1;
}

static void wake(struct admin *s)
{
    uint64_t one = 1;
    /* awake already */
    if (s->cfg.wake_fd >= 0 && write(s->cfg.wake_fd, &one, sizeof one) < 0)
        return;
}

static void on_connection(void *cls, struct MHD_Connection *c, void **socket_context,
                          enum MHD_ConnectionNotificationCode what)
{
    struct admin *s = cls;
    int fd = descriptor_of(c);
    (void)socket_context;
    if (fd < 0)
        return;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        guests_arrive(&s->guests, fd, clock_mono(&clock_system));
        wake(s);
    } else {
        guests_leave(&s->guests, fd);
    }
}

int64_t admin_tick(struct admin *s, int64_t now)
{
    return s ? guests_tick(&s->guests, now) : CLOCK_NEVER;
}

/* ---- requests ---- */

/* note keeps what the gate looks at. libmicrohttpd 0.9.75 appends what a folded line says to the
 * header's name ("Origin: x", then " y", is a header "Originy"), which hides it: a name that only
 * begins like one of ours counts as one too many. */
static enum MHD_Result note(void *request, enum MHD_ValueKind kind, const char *name,
                            const char *value)
{
    struct gate_request *r = request;
    struct str *const fields[] = {&r->host, &r->origin, &r->authorization};
    static const char *const names[] = {"Host", "Origin", "Authorization"};
    (void)kind;
    if (!value)
        value = "";
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
    if (strcasecmp(name, "Transfer-Encoding") == 0)
        r->has_body = true;
    if (strcasecmp(name, "Content-Length") == 0 && strcmp(value, "0") != 0)
        r->has_body = true;
    return MHD_YES;
}

static enum MHD_Result answer(struct MHD_Connection *c, unsigned status, const char *type,
                              const struct buf *b)
{
    static const char *const headers[][2] = {
        {"Cache-Control", "no-store"},
        {"X-Content-Type-Options", "nosniff"},
        {"Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"},
        {"X-Frame-Options", "DENY"},
        {"Referrer-Policy", "no-referrer"},
        {"Cross-Origin-Resource-Policy", "same-origin"},
        {"Connection", "close"}, /* nobody keeps a place for later */
    };
    struct MHD_Response *r = MHD_create_response_from_buffer(b->n, b->p, MHD_RESPMEM_MUST_COPY);
    if (!r)
        return MHD_NO;
    MHD_add_response_header(r, "Content-Type", type);
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
        MHD_add_response_header(r, headers[i][0], headers[i][1]);
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(r, "Allow", "GET, HEAD");
    if (status == MHD_HTTP_UNAUTHORIZED)
        MHD_add_response_header(r, "WWW-Authenticate", "Bearer realm=\"outbox\"");
    enum MHD_Result queued = MHD_queue_response(c, status, r);
    MHD_destroy_response(r);
    return queued;
}

/* refusal_of says whether this request is answered at all, and whether one who sent it may see
 * everything. */
static struct gate_refusal refusal_of(struct admin *s, struct MHD_Connection *c,
                                      const struct gate_request *r, struct gate_refusal *ret_knows)
{
    struct sockaddr_storage here = {.ss_family = AF_UNSPEC};
    socklen_t size = sizeof here;
    getsockname(descriptor_of(c), (struct sockaddr *)&here, &size);
    pthread_mutex_lock(&s->token_lock);
    struct gate g = {.hosts = s->cfg.hosts, .tokens = s->tokens, .local = s->local};
    *ret_knows = gate_knows(&g, r);
    pthread_mutex_unlock(&s->token_lock);
    return gate_check(&g, r, (struct sockaddr *)&here);
}

static void count_refusal(struct admin *s, unsigned status)
{
    for (size_t i = 0; i < METRICS_REFUSALS; i++)
        if (metrics_refusals[i] == status)
            atomic_fetch_add(&s->refused[i], 1);
}

static enum page_detail detail_of(struct MHD_Connection *c, bool knows)
{
    bool wanted = MHD_lookup_connection_value_n(c, MHD_GET_ARGUMENT_KIND, "verbose", 7, NULL,
                                                NULL) == MHD_YES;
    if (!wanted)
        return PAGE_SHORT;
    return knows ? PAGE_VERBOSE : PAGE_WITHHELD;
}

/* on_request answers at once, when the headers are there: no request that is let in has a body. */
static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *data_size, void **state)
{
    struct admin *s = cls;
    struct gate_request r = {.method = str_of(method),
                             .old = strcmp(version, MHD_HTTP_VERSION_1_0) == 0};
    struct gate_refusal knows;
    struct buf b;
    (void)data;
    if (*state || *data_size > 0)
        return MHD_NO;
    *state = s; /* anything else than NULL: it was answered */
    guests_ask(&s->guests, descriptor_of(c), clock_mono(&clock_system));
    MHD_get_connection_values(c, MHD_HEADER_KIND, note, &r);

    const struct page *page = pages_find(url);
    bool open = page && page->open;
    struct gate_refusal refused = refusal_of(s, c, &r, &knows);
    if (!refused.status && !open)
        refused = knows;

    const char *type = PAGES_TEXT;
    unsigned status = refused.status;
    buf_init(&b, PAGE_MAX);
    if (status) {
        count_refusal(s, status);
        buf_adds(&b, refused.text);
    } else if (!page) {
        status = MHD_HTTP_NOT_FOUND;
        buf_adds(&b, "there is /metrics, /livez and /readyz\n");
    } else {
        type = page->type;
        status = page->make(s, detail_of(c, !knows.status), &b);
        if (b.failed)
            status = MHD_HTTP_INTERNAL_SERVER_ERROR;
    }
    enum MHD_Result done = answer(c, status, type, &b);
    buf_release(&b);
    return done;
}

/* ---- start and stop ---- */

static struct MHD_Daemon *start_daemon(struct admin *s, int fd)
{
    /* On this machine all clients have the same address. */
    unsigned per_address = s->local ? GUESTS_MAX : GUESTS_PER_ADDRESS;
    return MHD_start_daemon(
        MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL, 0, NULL,
        NULL, on_request, s, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)GUESTS_MAX, MHD_OPTION_PER_IP_CONNECTION_LIMIT, per_address,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        REQUEST_MAX, MHD_OPTION_THREAD_STACK_SIZE, STACK, MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, s, MHD_OPTION_END);
}

int admin_start(const struct admin_config *cfg, const struct admin_door *door, struct admin **ret,
                char ret_url[ADMIN_ADDRESS], struct error *err)
{
    int fd = -1;
    struct admin *s = calloc(1, sizeof *s);
    if (!s) {
        token_free(door->tokens);
        return err_nomem(err);
    }
    s->cfg = *cfg;
    s->tokens = door->tokens;
    s->local = admin_loopback(&door->address);
    pthread_mutex_init(&s->store_lock, NULL);
    pthread_mutex_init(&s->token_lock, NULL);
    guests_init(&s->guests);
    struct socket_wish wish = {
        .address = &door->address, .backlog = GUESTS_MAX, .mode = cfg->socket_mode};
    if (socket_listen(&wish, &s->file, &fd, err) != 0)
        goto fail;
    socket_say(fd, ret_url);
    s->http = start_daemon(s, fd);
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
    if (s)
        atomic_store(&s->cfg.ob, ob);
}

void admin_set_tokens(struct admin *s, struct tokens *t)
{
    pthread_mutex_lock(&s->token_lock);
    struct tokens *former = s->tokens;
    s->tokens = t;
    pthread_mutex_unlock(&s->token_lock);
    token_free(former);
}

/* idle_soon: a scrape that waits for a store which does not answer would keep us from stopping for
 * as long. */
static bool idle_soon(struct admin *s)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += STOP_WAIT_MS / 1000;
    if (pthread_mutex_timedlock(&s->store_lock, &until) != 0)
        return false;
    pthread_mutex_unlock(&s->store_lock);
    return true;
}

bool admin_stop(struct admin *s)
{
    if (!s)
        return true;
    socket_remove(&s->file);
    if (s->http && !idle_soon(s))
        return false;
    if (s->http)
        MHD_stop_daemon(s->http);
    store_close(s->st);
    token_free(s->tokens);
    guests_release(&s->guests);
    pthread_mutex_destroy(&s->store_lock);
    pthread_mutex_destroy(&s->token_lock);
    free(s);
    return true;
}
