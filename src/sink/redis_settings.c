/* redis_settings.c: the parameters in the URL of a Redis sink. */
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "base/url.h"
#include "sink/broker.h"
#include "sink/redis_impl.h"

#define REDIS_SENTINEL_PASSWORD_ENV "OUTBOX_REDIS_SENTINEL_PASSWORD"
#define DB_MAX 1000000

#define REPLICAS_MAX 64
#define LEASE_MIN_MS 1000
#define TIME_MAX_MS (INT64_C(10) * 365 * 24 * 3600000)

static int set_lease(void *field, const char *value, const struct option_def *o, struct error *err)
{
    if (!*value)
        return err_set(err, ERR_CONFIG, "this must be the name of a key, such as lock:outbox:shop");
    return option_copy(field, value, o, err);
}

/* clang-format off */
#define OPTIONS \
    {"stream", "TEMPLATE", NULL, "name of the stream an event goes to, made of " TEMPLATE_FIELDS, \
     option_copy, .at = offsetof(struct redis_settings, stream)}, \
    BROKER_OPTIONS(redis_settings, "contract"), \
    {"maxlen", "N", NULL, \
     "let Redis drop entries of a stream beyond about this many, read or not", option_long, \
     .at = offsetof(struct redis_settings, maxlen), .min = 1}, \
    {"maxage", "DURATION", NULL, \
     "let Redis drop entries of a stream that are older than this, read or not", option_span, \
     .at = offsetof(struct redis_settings, maxage_ms), .min = 1000, .max = TIME_MAX_MS}, \
    {"replicas", "N", "0", "an event is delivered once this many replicas have it", option_long, \
     .at = offsetof(struct redis_settings, replicas), .max = REPLICAS_MAX}, \
    {"replicas-wait", "DURATION", "1s", "how long to wait for them", option_span, \
     .at = offsetof(struct redis_settings, replicas_wait_ms), .min = 1, .max = TIME_MAX_MS}, \
    {"dedupe", "on|off", "off", \
     "append no event again that may be there after a crash, or a lost answer", option_bool, \
     .at = offsetof(struct redis_settings, dedupe)}, \
    {"dedupe-keep", "DURATION", "168h", "how long an event's id is remembered at most", \
     option_span, .at = offsetof(struct redis_settings, dedupe_ms), .min = 1000, \
     .max = TIME_MAX_MS}, \
    {"lease", "KEY", NULL, \
     "deliver only while this key in Redis is ours; saves work, but safety does not depend on it", \
     set_lease, .at = offsetof(struct redis_settings, lease)}, \
    {"lease-ttl", "DURATION", "30s", "how long that key lives unless renewed, at half of it", \
     option_span, .at = offsetof(struct redis_settings, lease_ms), .min = LEASE_MIN_MS, \
     .max = TIME_MAX_MS}
/* clang-format on */

static const struct option_def options[] = {OPTIONS, {NULL}};

/* For a server named by Sentinels. */
static const struct option_def sentinel_options[] = {
    OPTIONS,
    {"db", "N", "0", "number of the database", option_long,
     .at = offsetof(struct redis_settings, db), .max = DB_MAX},
    {"sentinel-user", "NAME", NULL, "user to authenticate as at the Sentinels", option_copy,
     .at = offsetof(struct redis_settings, sentinel_user)},
    {"sentinel-password-file", "FILE", NULL,
     "file with the password of the Sentinels; else " REDIS_SENTINEL_PASSWORD_ENV, option_copy,
     .at = offsetof(struct redis_settings, sentinel_password_file)},
    {NULL},
};

static bool begins_with(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

static enum redis_kind kind_of(const char *url)
{
    if (begins_with(url, "redis-sentinel:") || begins_with(url, "rediss-sentinel:"))
        return REDIS_SENTINEL;
    if (begins_with(url, "redis-cluster:") || begins_with(url, "rediss-cluster:"))
        return REDIS_CLUSTER;
    return REDIS_SINGLE;
}

/* Fills s->url with the login from the URL. */
static int take_login(struct redis_settings *s, const struct broker_url *b, struct error *err)
{
    struct redis_url like = {.tls = begins_with(b->scheme, "rediss"),
                             .user = b->user,
                             .password_file = b->password_file,
                             .password = b->password,
                             .db = s->db,
                             .ca = b->ca,
                             .cert = b->cert,
                             .key = b->key};
    bool has_files = b->ca || b->cert;
    if (has_files && !like.tls)
        return err_set(err, ERR_CONFIG, "ca, cert and key are for %.20s, which has TLS",
                       s->kind == REDIS_CLUSTER ? "rediss-cluster://" : "rediss-sentinel://");
    return redis_url_at(&like, "redis", b->hosts[0].host, b->hosts[0].port, &s->url, err);
}

/* Adds one of the hosts: a server of the cluster, or a Sentinel, which has its own login. */
static int add_seed(struct redis_settings *s, const struct broker_host *h, struct error *err)
{
    struct redis_url like = s->url;
    const char *kind = "redis";
    char *password = NULL;
    if (s->kind == REDIS_SENTINEL) {
        kind = "sentinel";
        like.db = 0;
        like.user = s->sentinel_user;
        like.password_file = s->sentinel_password_file;
        if (url_password_env(REDIS_SENTINEL_PASSWORD_ENV, &password, err) != 0)
            return -1;
        like.password = password;
    }
    int rc = redis_url_at(&like, kind, h->host, h->port, &s->seed[s->n_seeds++], err);
    if (password)
        explicit_bzero(password, strlen(password));
    free(password);
    return rc;
}

/* Uses the path as the name of the master; a cluster has only one database. */
static int check_path(struct redis_settings *s, const struct broker_url *b, struct error *err)
{
    bool named = b->path[0] != '\0' && !strchr(b->path, '/');
    if (s->kind == REDIS_SENTINEL && !named)
        return err_set(err, ERR_CONFIG,
                       "which master? write redis-sentinel://HOST:PORT,.../MASTER?stream=NAME with "
                       "the name that the Sentinels monitor");
    bool empty = b->path[0] == '\0' || strcmp(b->path, "0") == 0;
    if (s->kind == REDIS_CLUSTER && !empty)
        return err_set(err, ERR_CONFIG, "a cluster has database 0 only");
    return option_copy_maybe(&s->master, b->path, err);
}

/* Parses a URL with several hosts. */
static int read_many(const char *url, struct redis_settings *s, struct error *err)
{
    struct broker_url b;
    const char *port = "6379";
    const struct option_def *table = options;
    if (s->kind == REDIS_SENTINEL) {
        port = "26379";
        table = sentinel_options;
    }
    int rc = option_defaults(table, s, err);
    if (rc == 0)
        rc = broker_url_parse(url, port, REDIS_PASSWORD_ENV, table, s, &b, err);
    if (rc == 0)
        rc = check_path(s, &b, err);
    if (rc == 0)
        rc = take_login(s, &b, err);
    if (rc == 0)
        s->seed = calloc(b.n_hosts, sizeof *s->seed);
    if (rc == 0 && !s->seed)
        rc = err_nomem(err);
    for (size_t i = 0; i < b.n_hosts && rc == 0; i++)
        rc = add_seed(s, &b.hosts[i], err);
    broker_url_release(&b);
    return rc;
}

int redis_settings_read(const char *url, struct redis_settings *s, struct error *err)
{
    *s = (struct redis_settings){.kind = kind_of(url)};
    int rc = 0;
    if (s->kind != REDIS_SINGLE)
        rc = read_many(url, s, err);
    else
        rc = option_defaults(options, s, err);
    if (rc == 0 && s->kind == REDIS_SINGLE)
        rc = redis_url_parse(url, options, s, &s->url, err);
    if (rc != 0)
        return err_prefix(err, "redis sink");
    if (!s->stream)
        return err_set(
            err, ERR_CONFIG,
            "redis sink: which stream? add ?stream=NAME, where NAME may have " TEMPLATE_FIELDS
            ": ?stream=tenant.{type[1]}");
    if (s->maxlen && s->maxage_ms)
        return err_set(err, ERR_CONFIG,
                       "redis sink: use maxlen or maxage, not both; XADD takes only one of them");
    return 0;
}

void redis_settings_release(struct redis_settings *s)
{
    char *const all[] = {s->stream, s->lease,         s->source,
                         s->master, s->sentinel_user, s->sentinel_password_file};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
    redis_url_release(&s->url);
    for (size_t i = 0; i < s->n_seeds; i++)
        redis_url_release(&s->seed[i]);
    free(s->seed);
    *s = (struct redis_settings){0};
}
