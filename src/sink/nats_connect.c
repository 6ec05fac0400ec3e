/* nats_connect.c: the URL of a NATS sink, the plan shared by its links, and connecting a link to a
 * server: the TLS handshake, with a time limit, and the login. */
#include <errno.h>
#include <fcntl.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/text.h"
#include "base/url.h"
#include "sink/nats_impl.h"

#define TAIL_MAX 100000
#define CONNECT_MS 5000 /* time limit for one host, and for one request */

/* The URL */

static const char *const msg_ids[] = {
    [NATS_ID_CONSUMER] = "consumer", [NATS_ID_EVENT] = "event", NULL};

static const struct option_def options[] = {
    {"stream", "NAME", NULL, "the JetStream stream that stores the events", option_copy,
     .at = offsetof(struct nats_settings, stream)},
    BROKER_OPTIONS(nats_settings, "plain"),
    {"create", "on|off", "off", "create the stream if it does not exist", option_bool,
     .at = offsetof(struct nats_settings, create)},
    {"replicas", "N", "1", "number of replicas of a created stream", option_long,
     .at = offsetof(struct nats_settings, replicas), .min = 1, .max = 5},
    {"exclusive", "on|off", "off",
     "no other client writes to the stream, so many events of one key can be in flight, and none "
     "is stored twice",
     option_bool, .at = offsetof(struct nats_settings, exclusive)},
    {"msg-id", "consumer|event", "consumer",
     "Nats-Msg-Id: the event's id and the consumer's name, or only the event's id", option_choice,
     .at = offsetof(struct nats_settings, msg_id), .names = msg_ids},
    {"lookback", "N", "8192", "number of the stream's last messages in which to look up events",
     option_long, .at = offsetof(struct nats_settings, lookback), .max = TAIL_MAX},
    {"window", "N", "1024", "maximum number of events in flight", option_long,
     .at = offsetof(struct nats_settings, window), .min = 1, .max = NATS_WINDOW_MAX},
    {"domain", "NAME", NULL, "JetStream domain", option_copy,
     .at = offsetof(struct nats_settings, domain)},
    {"creds-file", "FILE", NULL, "credentials: a JWT and its key, reread for each connection",
     option_file, .at = offsetof(struct nats_settings, creds_file)},
    {"nkey", "KEY", NULL, "public key of a user; requires nkey-file", option_copy,
     .at = offsetof(struct nats_settings, nkey)},
    {"nkey-file", "FILE", NULL, "file with the seed of that key, reread for each connection",
     option_file, .at = offsetof(struct nats_settings, nkey_file)},
    {"token-file", "FILE", NULL,
     "file with the login token, reread for each connection; otherwise " NATS_TOKEN_ENV,
     option_file, .at = offsetof(struct nats_settings, token_file)},
    {NULL},
};

/* Rejects names that cannot be a stream or domain: the name becomes a token of a subject. */
static int check_name(const char *what, const char *name, struct error *err)
{
    size_t n = strlen(name);
    bool bad = n == 0 || n > 255 || strpbrk(name, " .*>/\\") || !text_plain(str_of(name));
    if (bad)
        return err_set(err, ERR_CONFIG, "%s must be a name without blanks, dots, slashes, * and >",
                       what);
    return 0;
}

/* Rejects two login methods at once, and TLS files without TLS. */
static int check_login(const struct nats_settings *s, const struct url *u, struct error *err)
{
    int ways = (u->user != NULL) + (s->creds_file != NULL) + (s->nkey != NULL) +
               (s->token_file != NULL);
    if (ways > 1)
        return err_set(err, ERR_CONFIG, "use only one of USER@, creds-file, nkey and token-file");
    if (!s->nkey != !s->nkey_file)
        return err_set(err, ERR_CONFIG, "nkey and nkey-file go together");
    bool needs_user = u->password_file && !u->user;
    if (needs_user)
        return err_set(err, ERR_CONFIG,
                       "password-file requires a user: write nats://USER@HOST, or use token-file "
                       "for a token");
    const char *const files[] = {s->creds_file, s->nkey_file, s->token_file};
    if (broker_check_url(u, "nats+tls", err) != 0)
        return -1;
    return broker_check_files(files, sizeof files / sizeof files[0], err);
}

static int check_settings(const struct nats_settings *s, const struct url *u, struct error *err)
{
    if (!s->stream)
        return err_set(err, ERR_CONFIG,
                       "the URL names no stream: add ?stream=NAME; without one, NATS drops "
                       "messages without a subscriber");
    if (check_name("stream", s->stream, err) != 0)
        return -1;
    if (s->domain && check_name("domain", s->domain, err) != 0)
        return -1;
    if (s->exclusive && s->lookback < s->window)
        return err_set(err, ERR_CONFIG, "exclusive=on requires a lookback of at least window, %lld",
                       (long long)s->window);
    return check_login(s, u, err);
}

/* Reads the template of the subject, and derives the pattern that matches all its subjects. */
static int read_subject(struct nats_plan *p, struct error *err)
{
    struct template *t = NULL;
    bool routed = p->set.format == MESSAGE_DEBEZIUM && p->url.path[0] == '\0';
    if (routed && option_copy(&p->url.path, BROKER_DEBEZIUM_ROUTE, NULL, err) != 0)
        return -1;
    const char *text = p->url.path;
    if (*text && template_new(text, &t, err) != 0)
        return err_prefix(err, "subject");
    p->set.fixed = t && template_fixed(t);
    template_free(t);
    if (nats_subject_check(text, err) != 0)
        return -1;

    struct buf pattern;
    buf_init(&pattern, NATS_SUBJECT_MAX);
    nats_subject_pattern(text, &pattern);
    const char *subject = buf_cstr(&pattern);
    p->set.subject = subject ? strdup(subject) : NULL;
    buf_release(&pattern);
    return p->set.subject ? 0 : err_nomem(err);
}

static int read_plan(struct nats_plan *p, const char *url, struct error *err)
{
    struct nats_settings *s = &p->set;
    if (url_parse(url, "4222", NATS_PASSWORD_ENV, options, s, &p->url, err) != 0)
        return -1;
    if (check_settings(s, &p->url, err) != 0)
        return -1;
    if (read_subject(p, err) != 0)
        return -1;

    snprintf(p->api, sizeof p->api, s->domain ? "$JS.%s.API" : "$JS%s.API",
             s->domain ? s->domain : "");
    p->tls = strcmp(p->url.scheme, "nats") != 0;
    bool other_login = p->url.user || s->creds_file || s->nkey || s->token_file;
    if (!other_login && option_copy_maybe(&p->token, getenv(NATS_TOKEN_ENV), err) != 0)
        return -1;
    return 0;
}

int nats_plan_read(const struct sink_config *cfg, struct nats_plan **ret, struct error *err)
{
    struct nats_plan *p = calloc(1, sizeof *p);
    *ret = p;
    if (!p)
        return err_nomem(err);
    atomic_store(&p->refs, 1);
    p->timeout_ms = CONNECT_MS;
    if (cfg->timeout_ms > 0 && cfg->timeout_ms < CONNECT_MS)
        p->timeout_ms = cfg->timeout_ms;
    snprintf(p->client, sizeof p->client, "outbox:%s", cfg->consumer);
    if (read_plan(p, cfg->url, err) != 0)
        return err_prefix(err, "nats sink");
    return 0;
}

void nats_plan_release(struct nats_plan *p)
{
    if (!p || atomic_fetch_sub(&p->refs, 1) > 1)
        return;
    broker_settings_release(options, &p->set);
    url_release(&p->url);
    free(p->set.subject);
    url_password_free(p->token);
    free(p);
}

/* TLS handshake */

/* Thread-local, so that connections of other threads are not affected. */
static _Thread_local int64_t handshake_ms;
static _Thread_local struct nats_link *handshake_link;

static void set_limit(int fd, int64_t ms)
{
    struct timeval limit = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

/* Replaces the link's duplicate of the socket descriptor; -1 removes it. If the link was dropped in
 * the meantime, shuts the socket down. */
static void set_handshake_fd(struct nats_link *l, int fd)
{
    pthread_mutex_lock(&l->lock);
    if (l->handshake_fd >= 0)
        close(l->handshake_fd);
    l->handshake_fd = fd;
    if (l->dropped && fd >= 0)
        shutdown(fd, SHUT_RDWR);
    pthread_mutex_unlock(&l->lock);
}

static void on_info(const SSL *ssl, int where, int value)
{
    (void)value;
    bool begins = (where & SSL_CB_HANDSHAKE_START) != 0;
    if (!begins || handshake_ms == 0)
        return;
    int fd = SSL_get_fd(ssl);
    set_limit(fd, handshake_ms);
    if (handshake_link)
        set_handshake_fd(handshake_link, fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

/* OpenSSL calls this for every SSL object of the process, including those of other code. */
static void on_new(void *ssl, void *data, CRYPTO_EX_DATA *all, int index, long number, void *arg)
{
    (void)data;
    (void)all;
    (void)index;
    (void)number;
    (void)arg;
    if (handshake_ms > 0)
        SSL_set_info_callback(ssl, on_info);
}

static void hook_openssl(void)
{
    SSL_get_ex_new_index(0, NULL, on_new, NULL, NULL);
}

void nats_tls_begin(struct nats_link *l, int64_t limit_ms)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, hook_openssl);
    handshake_ms = limit_ms;
    handshake_link = l;
}

void nats_tls_end(void)
{
    if (handshake_link)
        set_handshake_fd(handshake_link, -1);
    handshake_ms = 0;
    handshake_link = NULL;
}

/* Connecting */

/* libnats calls these when it starts using the socket, stops using it, or waits to write. */

static natsStatus attached(void **user, void *loop, natsConnection *nc, natsSock fd)
{
    struct nats_link *l = loop;
    (void)nc;
    *user = l;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    set_limit(fd, 0); /* the handshake is complete */
    pthread_mutex_lock(&l->lock);
    l->fd = fd;
    l->want_write = false;
    pthread_mutex_unlock(&l->lock);
    return NATS_OK;
}

/* Called before the socket is closed; its number may be reused afterwards. */
static natsStatus stops_reading(void *user, bool add)
{
    struct nats_link *l = user;
    if (add)
        return NATS_OK;
    pthread_mutex_lock(&l->lock);
    l->fd = -1;
    pthread_mutex_unlock(&l->lock);
    return NATS_OK;
}

static natsStatus wants_write(void *user, bool add)
{
    struct nats_link *l = user;
    pthread_mutex_lock(&l->lock);
    l->want_write = add;
    pthread_mutex_unlock(&l->lock);
    return NATS_OK;
}

static natsStatus detached(void *user)
{
    (void)user;
    return NATS_OK;
}

/* Called by a thread of libnats. Permission errors are reported only here; every other error also
 * ends the connection. */
static void on_error(natsConnection *nc, natsSubscription *sub, natsStatus s, void *closure)
{
    struct nats_link *l = closure;
    const char *said = NULL;
    (void)sub;
    if (s != NATS_NOT_PERMITTED || natsConnection_GetLastError(nc, &said) == NATS_OK)
        return;
    char *subject = nats_reply_subject(said);
    if (subject)
        nats_link_push(l, (struct nats_answer){.kind = NATS_NOT_ALLOWED, .text = subject});
}

static void on_closed(natsConnection *nc, void *closure)
{
    (void)nc;
    nats_link_unref(closure);
}

/* Sets the login. Files are reread for each connection. */
static int set_login(const struct nats_plan *p, natsOptions *o, struct error *err)
{
    natsStatus s = NATS_OK;
    const char *what = "credentials";
    char *secret = NULL;
    err->code = ERR_NONE;
    if (p->url.user)
        secret = url_password(p->url.password_file, p->url.password, err);
    else
        secret = url_password(p->set.token_file, p->token, err);
    if (!secret && err->code)
        return -1;
    if (secret && p->set.token_file) { /* the token is the first line */
        char *rest = secret + strcspn(secret, "\r\n");
        explicit_bzero(rest, strlen(rest));
    }

    if (p->set.creds_file) {
        s = natsOptions_SetUserCredentialsFromFiles(o, p->set.creds_file, NULL);
    } else if (p->set.nkey) {
        s = natsOptions_SetNKeyFromSeed(o, p->set.nkey, p->set.nkey_file);
    } else if (p->url.user) {
        what = "user";
        s = natsOptions_SetUserInfo(o, p->url.user, secret ? secret : "");
    } else if (secret) {
        what = "token";
        s = natsOptions_SetToken(o, secret);
    }
    url_password_free(secret);
    return s == NATS_OK ? 0 : nats_link_failed(p, s, what, err);
}

/* Requires a certificate valid for this host name. libnats checks the name only if it is set
 * explicitly. */
static int set_tls(const struct nats_plan *p, natsOptions *o, const char *host, struct error *err)
{
    const struct url *u = &p->url;
    if (!p->tls)
        return 0;
    natsStatus s = natsOptions_SetSecure(o, true);
    if (s == NATS_OK)
        s = natsOptions_SetExpectedHostname(o, host);
    if (s == NATS_OK && u->ca)
        s = natsOptions_LoadCATrustedCertificates(o, u->ca);
    if (s == NATS_OK && u->cert)
        s = natsOptions_LoadCertificatesChain(o, u->cert, u->key);
    if (s != NATS_OK)
        return nats_link_failed(p, s, "TLS", err);
    return 0;
}

/* Checks the results of several option setters and reports the first failure. */
static int set_all(const struct nats_plan *p, const natsStatus *all, size_t n, struct error *err)
{
    for (size_t i = 0; i < n; i++)
        if (all[i] != NATS_OK)
            return nats_link_failed(p, all[i], "options", err);
    return 0;
}

int nats_connect_options(const struct nats_plan *p, const struct url_host *h, natsOptions *o,
                         struct error *err)
{
    char address[300];
    bool is_v6 = strchr(h->host, ':') != NULL;
    snprintf(address, sizeof address, is_v6 ? "nats://[%.250s]:%.10s" : "nats://%.250s:%.10s",
             h->host, h->port);
    const natsStatus all[] = {
        natsOptions_SetURL(o, address),
        natsOptions_SetName(o, p->client),
        natsOptions_SetTimeout(o, p->timeout_ms),
        natsOptions_SetIgnoreDiscoveredServers(o, true),
    };
    if (set_all(p, all, sizeof all / sizeof all[0], err) != 0)
        return -1;
    if (set_tls(p, o, h->host, err) != 0)
        return -1;
    return set_login(p, o, err);
}

int nats_connect_failed(const struct nats_plan *p, const struct url_host *h, natsStatus s,
                        struct error *err)
{
    char said[200];
    const char *advice = "";
    nats_link_text(s, said, sizeof said);
    bool wants_tls = s == NATS_SECURE_CONNECTION_REQUIRED || s == NATS_SSL_ERROR;
    if (wants_tls && !p->tls) /* libnats then tries TLS with the system's certificates */
        advice = "; use nats+tls://";
    if (s == NATS_SECURE_CONNECTION_WANTED)
        advice = "; the server has no TLS: use nats://, or enable TLS on the server";
    return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, (int)s, "nats at %.200s:%.10s: %s%s",
                     h->host, h->port, said, advice);
}

int nats_connect_host(struct nats_link *l, const struct url_host *h, struct error *err)
{
    natsOptions *o = NULL;
    *err = (struct error){0};
    natsStatus s = natsOptions_Create(&o);
    if (s != NATS_OK)
        return nats_link_failed(l->plan, s, "options", err);
    int rc = nats_connect_options(l->plan, h, o, err);
    if (rc == 0) {
        /* Disable automatic reconnection, ping timers and the flusher thread of libnats. */
        const natsStatus all[] = {
            natsOptions_SetAllowReconnect(o, false),
            natsOptions_SetPingInterval(o, 0),
            natsOptions_SetSendAsap(o, true),
            natsOptions_SetErrorHandler(o, on_error, l),
            natsOptions_SetClosedCB(o, on_closed, l),
            natsOptions_SetEventLoop(o, l, attached, stops_reading, wants_write, detached),
        };
        rc = set_all(l->plan, all, sizeof all / sizeof all[0], err);
    }
    if (rc == 0) {
        /* The close callback owns a reference. libnats calls it only if the connection was
         * established. */
        nats_link_ref(l);
        nats_tls_begin(l, l->plan->timeout_ms);
        s = natsConnection_Connect(&l->nc, o);
        nats_tls_end();
        if (s != NATS_OK) {
            nats_link_unref(l);
            l->nc = NULL;
            rc = nats_connect_failed(l->plan, h, s, err);
        }
    }
    natsOptions_Destroy(o);
    return rc;
}
