/* http_setup.c: sets up a webhook sink: its URL, the addresses it may connect to, the curl handles,
 * and the files that may change at runtime: secrets, and extra headers. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/utf8.h"
#include "sink/http_impl.h"

#define EXTRA_MAX 16384
#define EXTRA_LINES 32 /* lines of webhook-header-file */
#define LOOK_NS (INT64_C(1000) * MS_NS)
#define CONNECT_MS 10000
/* How long an idle connection may be reused; later, a firewall may have dropped its state. */
#define KEEP_S 60L
#define SOURCE "/outbox"

/* ---- extra headers ---- */

/* Returns whether a header is reserved: we write it ourselves, or it decides where a request ends.
 * A name that ends with a dash stands for all names with that prefix. */
static bool is_ours(struct str name)
{
    static const char *const names[] = {
        "ce-",  "webhook-",   "content-type", "content-length", "transfer-encoding",
        "host", "connection", "expect",       "traceparent",    "tracestate",
        "te",   "upgrade"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t n = strlen(names[i]);
        bool prefix = names[i][n - 1] == '-';
        bool fits = prefix ? name.n > n : name.n == n;
        if (fits && strncasecmp(name.p, names[i], n) == 0)
            return true;
    }
    return false;
}

/* Adds one line, "Name: value". Errors repeat at most the name, never the value. */
static int add_header(struct buf *b, struct str line, struct error *err)
{
    const char *colon = memchr(line.p, ':', line.n);
    struct str name = {line.p, colon ? (size_t)(colon - line.p) : 0};
    bool is_token = name.n > 0;
    for (size_t i = 0; i < name.n; i++) {
        bool separator = strchr("()<>@,;:\\\"/[]?={}", name.p[i]) != NULL;
        if (separator || !char_is_visible(name.p[i]))
            is_token = false;
    }
    if (!is_token)
        return err_set(err, ERR_CONFIG, "expected Name: value");
    if (is_ours(name))
        return err_set(err, ERR_CONFIG, "%.*s cannot be set here", (int)name.n, name.p);

    struct str value = {colon + 1, line.n - name.n - 1};
    while (value.n && char_is_blank(value.p[0])) {
        value.p++;
        value.n--;
    }
    while (value.n && (char_is_blank(value.p[value.n - 1]) || value.p[value.n - 1] == '\r'))
        value.n--;
    if (value.n == 0)
        return err_set(err, ERR_CONFIG, "%.*s has no value", (int)name.n, name.p);
    for (size_t i = 0; i < value.n; i++) {
        if (char_is_control(value.p[i]))
            return err_set(err, ERR_CONFIG, "the value contains a control character");
    }
    buf_addstr(b, name);
    buf_adds(b, ": ");
    buf_addstr(b, value);
    buf_addc(b, '\0');
    if (b->failed)
        return err_nomem(err);
    return 0;
}

/* Skips empty lines and comments. */
static int add_headers(struct buf *b, struct str text, struct error *err)
{
    for (int number = 1; text.n > 0; number++) {
        const char *eol = memchr(text.p, '\n', text.n);
        struct str line = {text.p, eol ? (size_t)(eol - text.p) : text.n};
        size_t past = eol ? line.n + 1 : line.n;
        text = (struct str){text.p + past, text.n - past};
        if (number > EXTRA_LINES)
            return err_set(err, ERR_CONFIG, "more than %d lines", EXTRA_LINES);
        bool counts = line.n > 0 && line.p[0] != '#' && line.p[0] != '\r';
        if (counts && add_header(b, line, err) != 0)
            return err_prefix(err, "line %d", number);
    }
    return 0;
}

static int read_headers(struct buf *b, const char *path, struct error *err)
{
    char text[EXTRA_MAX];
    ssize_t n = fd_read_file(path, text, sizeof text);
    if (n < 0)
        return err_errno(err, ERR_CONFIG, errno, "%s: could not read the headers", path);
    int r;
    if (n == sizeof text)
        r = err_set(err, ERR_CONFIG, "over 16 KiB");
    else
        r = add_headers(b, (struct str){text, (size_t)n}, err);
    explicit_bzero(text, sizeof text);
    if (r != 0)
        return err_prefix(err, "%s", path);
    return 0;
}

/* ---- files that may change ---- */

/* Returns whether a file has changed since the last check, and records its state. A missing file
 * always counts as changed. */
static bool has_changed(struct http_watch *w, const char *path)
{
    struct stat st;
    struct http_watch before = *w;
    *w = (struct http_watch){.inode = 0};
    if (stat(path, &st) != 0)
        return true;
    *w = (struct http_watch){st.st_mtim, st.st_ino, st.st_size};
    return w->inode != before.inode || w->size != before.size ||
           w->changed.tv_sec != before.changed.tv_sec ||
           w->changed.tv_nsec != before.changed.tv_nsec;
}

static int refresh_secrets(struct http *h, struct error *err)
{
    const struct http_options *o = h->o;
    struct signature_source from = {o->secret_file, o->secret_env, SIGNATURE_SIGN};
    struct signature_keys *keys;
    bool wanted = o->secret_file || o->secret_env;
    bool changed = !h->keys; /* the environment does not change */
    if (o->secret_file)
        changed = has_changed(&h->secrets, o->secret_file);
    if (!wanted || !changed)
        return 0;

    if (signature_keys_load(&from, &keys, err) != 0) {
        h->secrets.inode = 0; /* check it again next time */
        return -1;
    }
    signature_keys_free(h->keys);
    h->keys = keys;
    return 0;
}

static int refresh_headers(struct http *h, struct error *err)
{
    const char *path = h->o->header_file;
    struct buf b;
    if (!path || !has_changed(&h->headers, path))
        return 0;

    buf_init(&b, EXTRA_MAX);
    if (read_headers(&b, path, err) != 0) {
        h->headers.inode = 0; /* check it again next time */
        buf_wipe(&b);
        buf_release(&b);
        return -1;
    }
    buf_wipe(&h->extra);
    buf_release(&h->extra);
    h->extra = b;
    return 0;
}

int http_setup_refresh(struct http *h, struct error *err)
{
    int64_t now = clock_mono(h->base.cfg.clock);
    if (now < h->look_at)
        return 0;
    if (refresh_secrets(h, err) != 0)
        return -1;
    if (refresh_headers(h, err) != 0)
        return -1;
    h->look_at = now + LOOK_NS;
    return 0;
}

static const struct http_options defaults = {.connect_ms = CONNECT_MS};

/* ---- access control ---- */

/* Returns the kind of address, if h may not connect to it; otherwise NULL. */
static const char *refused_as(const struct http *h, const struct sockaddr *sa)
{
    const char *what = ipnet_special(sa);
    if (!what)
        return NULL;
    /* With a proxy, we connect only to the proxy, which chooses the address. */
    if (h->proxy)
        return NULL;
    if (h->loopback && strcmp(what, IPNET_LOOPBACK) == 0)
        return NULL;
    for (size_t i = 0; i < h->o->n_allow; i++)
        if (ipnet_holds(&h->o->allow[i], sa))
            return NULL;
    return what;
}

static void show_address(const struct sockaddr *sa, char out[INET6_ADDRSTRLEN])
{
    const void *address = &((const struct sockaddr_in *)(const void *)sa)->sin_addr;
    if (sa->sa_family == AF_INET6)
        address = &((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr;
    inet_ntop(sa->sa_family, address, out, INET6_ADDRSTRLEN);
}

/* Checks the address that curl is about to connect to: earlier, the name may have resolved to
 * another address. */
static curl_socket_t open_socket(void *request, curlsocktype purpose, struct curl_sockaddr *a)
{
    struct request *r = request;
    const char *what = refused_as(r->h, &a->addr);
    if (what) {
        r->refused = what;
        show_address(&a->addr, r->address);
        return CURL_SOCKET_BAD;
    }
    if (purpose != CURLSOCKTYPE_IPCXN)
        return CURL_SOCKET_BAD;

    int fd = fd_above_stdio(socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol));
    if (fd < 0)
        r->no_socket = errno;
    return fd;
}

/* ---- the URL ---- */

/* Rejects an address that no request could connect to, and records whether the host is this
 * machine. For each connection, refused_as also checks the address that a name resolves to. */
static int check_host(struct http *h, const char *host, struct error *err)
{
    char address[INET6_ADDRSTRLEN];
    struct sockaddr_storage storage;
    const struct sockaddr *sa = (const struct sockaddr *)&storage;
    switch (ipnet_of_host(host, &storage)) {
    case IPNET_NAME:
        h->loopback = strcasecmp(host, "localhost") == 0 || strcasecmp(host, "localhost.") == 0;
        return 0;
    case IPNET_NEITHER:
        return err_set(err, ERR_CONFIG, "%s: the host is neither an address nor a name", h->where);
    case IPNET_ADDRESS: break;
    }

    const char *special = ipnet_special(sa);
    h->loopback = special && strcmp(special, IPNET_LOOPBACK) == 0;
    const char *refused = refused_as(h, sa);
    show_address(sa, address);
    if (refused)
        return err_set(err, ERR_CONFIG,
                       "%s: this is a %s address; to allow it, set webhook-allow = %s", h->where,
                       refused, address);
    if (host[strlen(host) - 1] == '.') /* resolvers treat such an address as a name */
        return err_set(err, ERR_CONFIG, "%s: remove the dot after the address: %s", h->where,
                       address);
    return 0;
}

/* Returns the host of a URL in ASCII, as curl will resolve it; NULL if the URL has none. The caller
 * frees it with curl_free. The rules for international names also convert wide or circled digits,
 * possibly into 10.0.0.1. */
static char *host_of(CURLU *u)
{
    char *host;
    unsigned flags = 0;
#ifdef CURLU_PUNYCODE
    flags = CURLU_PUNYCODE;
#endif
    if (curl_url_get(u, CURLUPART_HOST, &host, flags) != CURLUE_OK)
        return NULL;
    for (const char *p = host; *p; p++) {
        if ((unsigned char)*p >= 0x80) {
            curl_free(host);
            return NULL;
        }
    }
    return host;
}

/* Reads the URL. Errors repeat no more than scheme, host and port, because paths and queries may
 * hold tokens. */
static int read_url(struct http *h, CURLU *u, struct error *err)
{
    CURLUcode rc = curl_url_set(u, CURLUPART_URL, h->base.cfg.url, CURLU_DISALLOW_USER);
    if (rc == CURLUE_USER_NOT_ALLOWED)
        return err_set(err, ERR_CONFIG,
                       "a webhook's URL must not contain a user or password, because the "
                       "arguments of a process are visible to others; put an Authorization "
                       "header into webhook-header-file");
    if (rc != CURLUE_OK)
        return err_set(err, ERR_CONFIG, "this is not a URL: %s", curl_url_strerror(rc));
    char *host = host_of(u);
    if (!host)
        return err_set(err, ERR_CONFIG,
                       "the URL has no host, or an invalid international name: write it in ASCII");

    char *port = NULL;
    const char *scheme = h->base.ops->scheme;
    bool has_port = curl_url_get(u, CURLUPART_PORT, &port, 0) == CURLUE_OK;
    snprintf(h->where, sizeof h->where, has_port ? "%s://%s:%s" : "%s://%s", scheme, host, port);
    curl_free(port);
    int r = check_host(h, host, err);
    curl_free(host);
    return r;
}

/* ---- the whole sink ---- */

/* Reads the same proxy variables as curl, but ignores no_proxy. */
static const char *proxy_from_environment(bool tls)
{
    static const char *const for_http[] = {"http_proxy", "all_proxy", "ALL_PROXY", NULL};
    static const char *const for_https[] = {"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY",
                                            NULL};
    for (const char *const *name = tls ? for_https : for_http; *name; name++) {
        const char *value = getenv(*name);
        if (value && *value)
            return value;
    }
    return NULL;
}

/* curl's callback for the socket events that it waits for. */
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
    curl_multi_setopt(h->multi, CURLMOPT_MAX_HOST_CONNECTIONS, (long)h->window.max);
    curl_multi_setopt(h->multi, CURLMOPT_MAXCONNECTS, (long)h->window.max);
    curl_multi_setopt(h->multi, CURLMOPT_MAX_CONCURRENT_STREAMS, (long)h->window.max);
    return 0;
}

int http_setup(struct http *h, struct error *err)
{
    h->o = h->base.cfg.http;
    if (!h->o)
        h->o = &defaults;
    /* libcurl 7.88, as in Debian 12, cannot send a second request over an HTTP/2 connection without
     * TLS, but keeps trying until the connection closes (its pull request 10643). */
    unsigned version = curl_version_info(CURLVERSION_NOW)->version_num;
    bool affected = version >= 0x075800 && version < 0x080000;
    h->no_reuse = affected && h->o->version == HTTP_2 && !h->tls;
    h->shares = h->o->version == HTTP_2 && !h->no_reuse;
    if (h->o->version == HTTP_AUTO)
        h->shares = h->tls;
    h->source = str_of(h->o->source ? h->o->source : SOURCE);
    buf_init(&h->extra, EXTRA_MAX);

    if (make_multi(h, err) != 0)
        return -1;
    const char *proxy = h->o->proxy;
    if (proxy && strcmp(proxy, "env") == 0)
        proxy = proxy_from_environment(h->tls);
    if (option_copy_maybe(&h->proxy, proxy, err) != 0)
        return -1;
    CURLU *u = curl_url();
    if (!u)
        return err_nomem(err);
    int rc = read_url(h, u, err);
    curl_url_cleanup(u);
    if (rc != 0)
        return -1;
    if (http_setup_refresh(h, err) != 0)
        return -1;

    const char *ca = h->o->ca_file;
    if (ca && access(ca, R_OK) != 0)
        return err_errno(err, ERR_CONFIG, errno, "%s: could not read the certificates", ca);
    return 0;
}

void http_teardown(struct http *h)
{
    curl_multi_cleanup(h->multi);
    if (h->global)
        curl_global_cleanup();
    signature_keys_free(h->keys);
    buf_wipe(&h->extra);
    buf_release(&h->extra);
    free(h->proxy);
}

/* ---- a request's handle ---- */

/* Counts the bytes of a response and keeps its beginning, which the reason quotes. Aborts a
 * response that is too long. */
static size_t keep(char *p, size_t size, size_t n, void *request)
{
    struct request *r = request;
    (void)size; /* always 1 */
    if (r->got < HTTP_HEARD) {
        size_t room = HTTP_HEARD - r->got;
        memcpy(r->heard + r->got, p, n < room ? n : room);
    }
    r->got += n;
    if (r->got >= HTTP_ANSWER_MAX)
        return 0;
    return n;
}

/* Parses the status in a line such as HTTP/1.1 200 or HTTP/2 200, with any number of blanks in
 * between; returns 0 if it has none. */
static long status_of(const char *p, size_t n)
{
    static const char digits[] = "0123456789";
    char line[32];
    if (n >= sizeof line)
        n = sizeof line - 1;
    snprintf(line, sizeof line, "%.*s", (int)n, p);
    if (strncmp(line, "HTTP/", 5) != 0)
        return 0;

    const char *at = line + 5;
    size_t major = strspn(at, digits);
    if (major == 0)
        return 0;
    at += major;
    if (*at == '.')
        at += 1 + strspn(at + 1, digits);

    size_t blanks = strspn(at, " ");
    at += blanks;
    bool has_status = blanks > 0 && strspn(at, digits) == 3;
    if (!has_status)
        return 0;
    return strtol(at, NULL, 10);
}

/* Parses status lines, because curl treats an unreadable status as 200. Also receives trailers.
 * Limits the total size of header lines, because curl keeps them all in memory. */
static size_t see_line(char *p, size_t size, size_t n, void *request)
{
    struct request *r = request;
    (void)size; /* always 1 */
    if (n > 5 && strncasecmp(p, "HTTP/", 5) == 0)
        r->said = status_of(p, n);
    r->got_headers += n;
    if (r->got_headers > HTTP_HEADERS_MAX)
        return 0;
    return n;
}

/* Sets the options whose strings curl copies, which fails if memory runs out. */
static CURLcode set_peer(CURL *e, const struct http *h)
{
    CURLcode rc = curl_easy_setopt(e, CURLOPT_URL, h->base.cfg.url);
    /* "" prevents curl from reading the environment. */
    if (rc == CURLE_OK)
        rc = curl_easy_setopt(e, CURLOPT_PROXY, h->proxy ? h->proxy : "");
    if (rc == CURLE_OK)
        rc = curl_easy_setopt(e, CURLOPT_NOPROXY, "");
    if (rc == CURLE_OK && h->o->ca_file)
        rc = curl_easy_setopt(e, CURLOPT_CAINFO, h->o->ca_file);
    return rc;
}

bool http_setup_easy(struct request *r)
{
    const struct http *h = r->h;
    CURL *e = curl_easy_init();
    if (!e)
        return false;
    if (set_peer(e, h) != CURLE_OK) {
        curl_easy_cleanup(e);
        return false;
    }

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
    long version = CURL_HTTP_VERSION_2TLS;
    if (h->o->version == HTTP_1_1)
        version = CURL_HTTP_VERSION_1_1;
    else if (h->o->version == HTTP_2 && !h->tls)
        version = CURL_HTTP_VERSION_2_PRIOR_KNOWLEDGE;
    curl_easy_setopt(e, CURLOPT_HTTP_VERSION, version);
    curl_easy_setopt(e, CURLOPT_PIPEWAIT, (long)h->shares);
    curl_easy_setopt(e, CURLOPT_FORBID_REUSE, (long)h->no_reuse);
    curl_easy_setopt(e, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS, (long)h->o->connect_ms);
    if (h->o->idle_ms) {
        curl_easy_setopt(e, CURLOPT_LOW_SPEED_LIMIT, 1L);
        curl_easy_setopt(e, CURLOPT_LOW_SPEED_TIME, (long)((h->o->idle_ms + 999) / 1000));
    }
    curl_easy_setopt(e, CURLOPT_MAXAGE_CONN, KEEP_S);
    curl_easy_setopt(e, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(e, CURLOPT_BUFFERSIZE, 16384L);
    r->easy = e;
    return true;
}
