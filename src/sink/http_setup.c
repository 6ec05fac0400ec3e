#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/char.h"
#include "base/fd.h"
#include "sink/http_impl.h"

#define CONNECT_MS 10000
/* an unused connection is used again until then; what is between may have forgotten it later */
#define KEEP_S 60L
#define EXTRA_MAX 16384
#define EXTRA_LINES 32 /* of webhook-header-file */
#define LOOK_NS (INT64_C(1000) * MS_NS)
#define SOURCE "/outbox"

static const struct http_options defaults = {.connect_ms = CONNECT_MS};

/* ---- whom we may connect to ---- */

const char *http_refused(const struct http *h, const struct sockaddr *sa)
{
    const char *what = ipnet_special(sa);
    /* with a proxy, that is what we connect to, and it does the choosing */
    if (!what || h->proxy)
        return NULL;
    if (h->loopback && strcmp(what, IPNET_LOOPBACK) == 0)
        return NULL;
    for (size_t i = 0; i < h->o->n_allow; i++)
        if (ipnet_holds(&h->o->allow[i], sa))
            return NULL;
    return what;
}

static void note_refusal(struct request *r, const char *what, const struct sockaddr *sa)
{
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
    memcpy(&in, sa, sizeof in);
    if (sa->sa_family == AF_INET6)
        memcpy(&in6, sa, sizeof in6);
    r->refused = what;
    inet_ntop(sa->sa_family,
              sa->sa_family == AF_INET6 ? (void *)&in6.sin6_addr : (void *)&in.sin_addr, r->address,
              sizeof r->address);
}

/* open_socket sees the very address that will be connected to, whatever the name resolved to a
 * moment ago. */
static curl_socket_t open_socket(void *request, curlsocktype purpose, struct curl_sockaddr *a)
{
    struct request *r = request;
    const char *what = http_refused(r->h, &a->addr);
    if (what)
        note_refusal(r, what, &a->addr);
    if (what || purpose != CURLSOCKTYPE_IPCXN)
        return CURL_SOCKET_BAD;
    int fd = fd_above_stdio(socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol));
    if (fd < 0)
        r->no_socket = errno;
    return fd;
}

/* ---- the URL ---- */

static int check_host(struct http *h, const char *host, struct error *err)
{
    char bare[256];
    struct sockaddr_storage sa;
    size_t n = strlen(host);
    bool brackets = host[0] == '[';
    snprintf(bare, sizeof bare, "%.*s", (int)(n - (brackets ? 2 : 0)), host + (brackets ? 1 : 0));
    h->loopback = strcasecmp(bare, "localhost") == 0;
    if (!ipnet_of_text(bare, &sa))
        return 0;
    const char *what = ipnet_special((struct sockaddr *)&sa);
    h->loopback = what && strcmp(what, IPNET_LOOPBACK) == 0;
    what = http_refused(h, (struct sockaddr *)&sa);
    if (!what)
        return 0;
    return err_set(err, ERR_CONFIG,
                   "%s: this is a %s address; if it is what you mean, say webhook-allow = %s",
                   h->where, what, bare);
}

/* check_url never repeats more than scheme, host and port: tokens stand in paths and queries. */
static int check_url(struct http *h, struct error *err)
{
    CURLU *u = curl_url();
    char *host = NULL, *port = NULL;
    if (!u)
        return err_nomem(err);
    int r = 0;
    CURLUcode rc = curl_url_set(u, CURLUPART_URL, h->base.cfg.url, CURLU_DISALLOW_USER);
    if (rc == CURLUE_USER_NOT_ALLOWED)
        r = err_set(
            err, ERR_CONFIG,
            "a webhook's URL holds no user or password: anyone who can see our arguments could "
            "read them; put an Authorization header into webhook-header-file");
    else if (rc)
        r = err_set(err, ERR_CONFIG, "this is no URL: %s", curl_url_strerror(rc));
    else if (curl_url_get(u, CURLUPART_HOST, &host, 0))
        r = err_set(err, ERR_CONFIG, "the URL names no host");
    if (r == 0) {
        bool given = curl_url_get(u, CURLUPART_PORT, &port, 0) == CURLUE_OK;
        snprintf(h->where, sizeof h->where, "%s://%s%s%s", h->base.ops->scheme, host,
                 given ? ":" : "", given ? port : "");
        r = check_host(h, host, err);
    }
    curl_free(host);
    curl_free(port);
    curl_url_cleanup(u);
    return r;
}

/* ---- headers to send along ---- */

static bool is_token(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bool separator = strchr("()<>@,;:\\\"/[]?={}", s[i]) != NULL;
        if (separator || !char_is_visible(s[i]))
            return false;
    }
    return n > 0;
}

/* is_ours: headers that we write, or that decide where a request ends. */
static bool is_ours(const char *name, size_t n)
{
    static const char *const names[] = {
        "content-type", "content-length", "transfer-encoding", "host", "connection",
        "expect",       "traceparent",    "tracestate",        "te",   "upgrade"};
    if (n > 3 && strncasecmp(name, "ce-", 3) == 0)
        return true;
    if (n > 8 && strncasecmp(name, "webhook-", 8) == 0)
        return true;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strlen(names[i]) == n && strncasecmp(name, names[i], n) == 0)
            return true;
    return false;
}

static int add_header(struct buf *b, const char *line, size_t n, int number, struct error *err)
{
    const char *colon = memchr(line, ':', n);
    size_t name = colon ? (size_t)(colon - line) : 0;
    if (!colon || !is_token(line, name))
        return err_set(err, ERR_CONFIG, "line %d is not Name: value", number);
    if (is_ours(line, name))
        return err_set(err, ERR_CONFIG, "line %d: %.*s is not yours to set", number, (int)name,
                       line);
    const char *value = colon + 1, *end = line + n;
    while (value < end && (*value == ' ' || *value == '\t'))
        value++;
    while (end > value && (end[-1] == ' ' || end[-1] == '\t' || end[-1] == '\r'))
        end--;
    if (value == end)
        return err_set(err, ERR_CONFIG, "line %d: %.*s has no value", number, (int)name, line);
    for (const char *p = value; p < end; p++)
        if (char_is_control(*p))
            return err_set(err, ERR_CONFIG, "line %d: a control character in the value", number);
    buf_add(b, line, name);
    buf_adds(b, ": ");
    buf_add(b, value, (size_t)(end - value));
    buf_addc(b, '\0');
    return b->failed ? err_nomem(err) : 0;
}

static int read_headers(struct buf *b, const char *path, struct error *err)
{
    char text[EXTRA_MAX];
    int number = 0, r = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text);
    int e = errno;
    if (fd >= 0)
        close(fd);
    if (got < 0)
        return err_errno(err, ERR_CONFIG, e, "%s: could not read the headers", path);
    if (got == sizeof text)
        return err_set(err, ERR_CONFIG, "%s: over 16 KiB", path);
    for (const char *p = text, *end = text + got; p < end && r == 0; number++) {
        const char *eol = memchr(p, '\n', (size_t)(end - p));
        size_t n = (size_t)((eol ? eol : end) - p);
        if (n && p[0] != '#' && p[0] != '\r')
            r = add_header(b, p, n, number + 1, err);
        p += n + 1;
        if (number == EXTRA_LINES)
            r = err_set(err, ERR_CONFIG, "more than %d lines", EXTRA_LINES);
    }
    explicit_bzero(text, sizeof text);
    return r == 0 ? 0 : err_prefix(err, "%s", path);
}

static void forget(struct buf *b)
{
    if (b->p)
        explicit_bzero(b->p, b->cap);
    buf_release(b);
}

/* ---- files that may change ---- */

/* has_changed says whether a file is another one than last time, and remembers it; a file that is
 * not there has, always. */
static bool has_changed(struct http_watch *w, const char *path)
{
    struct stat st;
    struct http_watch now = {.inode = 0};
    if (stat(path, &st) == 0)
        now = (struct http_watch){st.st_mtim, st.st_ino, st.st_size};
    bool same = now.inode && now.inode == w->inode && now.size == w->size &&
                now.changed.tv_sec == w->changed.tv_sec &&
                now.changed.tv_nsec == w->changed.tv_nsec;
    *w = now;
    return !same;
}

static int refresh_secrets(struct http *h, struct error *err)
{
    struct signature_keys *keys;
    struct signature_source from = {h->o->secret_file, h->o->secret_env, SIGNATURE_SIGN};
    if (h->o->secret_file && !has_changed(&h->secrets, h->o->secret_file))
        return 0;
    if (!h->o->secret_file && h->keys)
        return 0; /* an environment does not change */
    if (signature_keys_load(&from, &keys, err) != 0) {
        h->secrets.inode = 0; /* look again */
        return -1;
    }
    signature_keys_free(h->keys);
    h->keys = keys;
    return 0;
}

static int refresh_headers(struct http *h, struct error *err)
{
    struct buf b;
    if (!has_changed(&h->headers, h->o->header_file))
        return 0;
    buf_init(&b, EXTRA_MAX);
    if (read_headers(&b, h->o->header_file, err) != 0) {
        h->headers.inode = 0;
        forget(&b);
        return -1;
    }
    forget(&h->extra);
    h->extra = b;
    return 0;
}

int http_refresh(struct http *h, struct error *err)
{
    int64_t now = clock_mono(h->base.cfg.clock);
    if (now < h->look_at)
        return 0;
    if ((h->o->secret_file || h->o->secret_env) && refresh_secrets(h, err) != 0)
        return -1;
    if (h->o->header_file && refresh_headers(h, err) != 0)
        return -1;
    h->look_at = now + LOOK_NS;
    return 0;
}

/* ---- all of it ---- */

/* find_proxy: the environment is asked only where somebody said so, and then for a proxy, not for
 * exceptions to it. */
static int find_proxy(struct http *h, struct error *err)
{
    const char *names[] = {h->tls ? "https_proxy" : "http_proxy",
                           h->tls ? "HTTPS_PROXY" : "http_proxy", "all_proxy", "ALL_PROXY"};
    const char *proxy = h->o->proxy;
    if (proxy && strcmp(proxy, "env") == 0) {
        proxy = NULL;
        for (size_t i = 0; i < 4 && !proxy; i++) {
            const char *value = getenv(names[i]);
            if (value && *value)
                proxy = value;
        }
    }
    if (!proxy)
        return 0;
    h->proxy = strdup(proxy);
    return h->proxy ? 0 : err_nomem(err);
}

static int set_socket(CURL *easy, curl_socket_t fd, int what, void *http, void *unused)
{
    struct http *h = http;
    struct epoll_event ev = {.data.fd = fd};
    (void)easy, (void)unused;
    if (what == CURL_POLL_REMOVE) {
        epoll_ctl(h->epfd, EPOLL_CTL_DEL, fd, NULL);
        return 0;
    }
    if (what & CURL_POLL_IN)
        ev.events |= EPOLLIN;
    if (what & CURL_POLL_OUT)
        ev.events |= EPOLLOUT;
    if (epoll_ctl(h->epfd, EPOLL_CTL_MOD, fd, &ev) == 0)
        return 0;
    return epoll_ctl(h->epfd, EPOLL_CTL_ADD, fd, &ev);
}

static int make_multi(struct http *h, struct error *err)
{
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return err_set(err, ERR_UNAVAILABLE, "could not start libcurl");
    h->global = true;
    h->multi = curl_multi_init();
    if (!h->multi)
        return err_nomem(err);
    curl_multi_setopt(h->multi, CURLMOPT_SOCKETFUNCTION, set_socket);
    curl_multi_setopt(h->multi, CURLMOPT_SOCKETDATA, h);
    curl_multi_setopt(h->multi, CURLMOPT_MAX_HOST_CONNECTIONS, (long)h->n_slots);
    curl_multi_setopt(h->multi, CURLMOPT_MAXCONNECTS, (long)h->n_slots);
    curl_multi_setopt(h->multi, CURLMOPT_MAX_CONCURRENT_STREAMS, (long)h->n_slots);
    return 0;
}

int http_setup(struct http *h, struct error *err)
{
    const struct http_options *o = h->o = h->base.cfg.http ? h->base.cfg.http : &defaults;
    h->tls = strcmp(h->base.ops->scheme, "https") == 0;
    h->source = str_of(o->source ? o->source : SOURCE);
    buf_init(&h->extra, EXTRA_MAX);
    if (make_multi(h, err) != 0 || find_proxy(h, err) != 0 || check_url(h, err) != 0)
        return -1;
    if (http_refresh(h, err) != 0)
        return -1;
    if (o->ca_file && access(o->ca_file, R_OK) != 0)
        return err_errno(err, ERR_CONFIG, errno, "%s: could not read the certificates", o->ca_file);
    return 0;
}

void http_teardown(struct http *h)
{
    curl_multi_cleanup(h->multi);
    if (h->global)
        curl_global_cleanup();
    signature_keys_free(h->keys);
    forget(&h->extra);
    free(h->proxy);
}

/* keep counts what an answer says, and keeps its beginning for a reason to be made of. */
static size_t keep(char *p, size_t size, size_t n, void *request)
{
    struct request *r = request;
    (void)size; /* always 1 */
    size_t room = r->got < HTTP_HEARD ? HTTP_HEARD - r->got : 0;
    memcpy(r->heard + HTTP_HEARD - room, p, n < room ? n : room);
    r->got += n;
    return r->got < HTTP_ANSWER_MAX ? n : 0;
}

/* status_of reads HTTP/1.1 200 or HTTP/2 200; of the blanks there may be more than one. 0: it is
 * neither. */
static long status_of(const char *p, size_t n)
{
    static const char digits[] = "0123456789";
    char line[32];
    snprintf(line, sizeof line, "%.*s", (int)(n < sizeof line ? n : sizeof line - 1), p);
    if (strncmp(line, "HTTP/", 5) != 0)
        return 0;
    size_t at = 5, k = strspn(line + at, digits);
    if (k == 0)
        return 0;
    at += k;
    if (line[at] == '.')
        at += 1 + strspn(line + at + 1, digits);
    k = strspn(line + at, " ");
    at += k;
    return k > 0 && strspn(line + at, digits) == 3 ? strtol(line + at, NULL, 10) : 0;
}

/* see_line: whatever curl cannot make out in a line that begins with HTTP/, it takes for 200; so we
 * read it, too. Lines behind a body come this way as well, and curl keeps them all: of those there
 * must be an end, too. */
static size_t see_line(char *p, size_t size, size_t n, void *request)
{
    struct request *r = request;
    (void)size; /* always 1 */
    if (n > 5 && strncasecmp(p, "HTTP/", 5) == 0)
        r->said = status_of(p, n);
    r->got_headers += n;
    return r->got_headers <= HTTP_HEADERS_MAX ? n : 0;
}

static long version_of(const struct http *h)
{
    if (h->o->version == HTTP_1_1)
        return CURL_HTTP_VERSION_1_1;
    if (h->o->version == HTTP_2 && !h->tls)
        return CURL_HTTP_VERSION_2_PRIOR_KNOWLEDGE;
    return CURL_HTTP_VERSION_2TLS;
}

static void set_limits(CURL *e, const struct http_options *o)
{
    curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS, (long)o->connect_ms);
    if (o->idle_ms) {
        curl_easy_setopt(e, CURLOPT_LOW_SPEED_LIMIT, 1L);
        curl_easy_setopt(e, CURLOPT_LOW_SPEED_TIME, (long)((o->idle_ms + 999) / 1000));
    }
    curl_easy_setopt(e, CURLOPT_MAXAGE_CONN, KEEP_S);
    curl_easy_setopt(e, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(e, CURLOPT_BUFFERSIZE, 16384L);
}

bool http_setup_easy(struct request *r)
{
    const struct http *h = r->h;
    CURL *e = r->easy = curl_easy_init();
    if (!e || curl_easy_setopt(e, CURLOPT_URL, h->base.cfg.url) != CURLE_OK)
        return false;
    curl_easy_setopt(e, CURLOPT_PRIVATE, r);
    curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(e, CURLOPT_POST, 1L);
    curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(e, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(e, CURLOPT_USERAGENT, "outbox/" OUTBOX_VERSION);
    curl_easy_setopt(e, CURLOPT_OPENSOCKETFUNCTION, open_socket);
    curl_easy_setopt(e, CURLOPT_OPENSOCKETDATA, r);
    curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, keep);
    curl_easy_setopt(e, CURLOPT_WRITEDATA, r);
    curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, see_line);
    curl_easy_setopt(e, CURLOPT_HEADERDATA, r);
    curl_easy_setopt(e, CURLOPT_ERRORBUFFER, r->why);
    curl_easy_setopt(e, CURLOPT_HTTP_VERSION, version_of(h));
    curl_easy_setopt(e, CURLOPT_PIPEWAIT,
                     h->o->version != HTTP_1_1 && (h->tls || h->o->version == HTTP_2) ? 1L : 0L);
    curl_easy_setopt(e, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    /* "" keeps curl from asking the environment. */
    CURLcode rc = curl_easy_setopt(e, CURLOPT_PROXY, h->proxy ? h->proxy : "");
    if (rc == CURLE_OK)
        rc = curl_easy_setopt(e, CURLOPT_NOPROXY, "");
    if (rc == CURLE_OK && h->o->ca_file)
        rc = curl_easy_setopt(e, CURLOPT_CAINFO, h->o->ca_file);
    set_limits(e, h->o);
    return rc == CURLE_OK;
}
