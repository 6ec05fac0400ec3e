/* redis.c: the sink that appends to Redis Streams: one XADD per event, or one script for a run of
 * events of one key; hundreds in flight, with replies matched one by one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "base/text.h"
#include "base/url.h"
#include "redis/conn.h"
#include "sink/broker.h"
#include "sink/kinds.h"
#include "sink/redis_impl.h"

#define REDIS_SENTINEL_PASSWORD_ENV "OUTBOX_REDIS_SENTINEL_PASSWORD"
#define REPLICAS_MAX 64
#define LEASE_MIN_MS 1000
#define TIME_MAX_MS (INT64_C(10) * 365 * 24 * 3600000)
#define NAME_MAX_BYTES ((size_t)16 << 10) /* of a stream */
#define MESSAGE_MAX ((size_t)2 << 30)     /* limit on an entry: one event may be large */

/* ---- the parameters of the URL ---- */

/* clang-format off */
#define OPTIONS \
    {"stream", "TEMPLATE", NULL, "name of the stream, a template with " TEMPLATE_FIELDS, \
     option_copy, .at = offsetof(struct redis_settings, stream)}, \
    BROKER_OPTIONS(redis_settings, "contract"), \
    {"maxlen", "N", NULL, \
     "let Redis drop entries, read or unread, beyond about this many per stream", option_long, \
     .at = offsetof(struct redis_settings, maxlen), .min = 1}, \
    {"maxage", "DURATION", NULL, \
     "let Redis drop entries, read or unread, older than this", option_span, \
     .at = offsetof(struct redis_settings, maxage_ms), .min = 1000, .max = TIME_MAX_MS}, \
    {"replicas", "N", "0", \
     "number of replicas that must confirm an event before it counts as delivered", option_long, \
     .at = offsetof(struct redis_settings, replicas), .max = REPLICAS_MAX}, \
    {"replicas-wait", "DURATION", "1s", "how long to wait for the replicas", option_span, \
     .at = offsetof(struct redis_settings, replicas_wait_ms), .min = 1, .max = TIME_MAX_MS}, \
    {"dedupe", "on|off", "off", \
     "do not append an event that is already in the stream, after a crash or a lost reply", \
     option_bool, .at = offsetof(struct redis_settings, dedupe)}, \
    {"dedupe-keep", "DURATION", "168h", "maximum time that an event's id is remembered", \
     option_span, .at = offsetof(struct redis_settings, dedupe_ms), .min = 1000, \
     .max = TIME_MAX_MS}, \
    {"lease", "KEY", NULL, \
     "deliver only while holding this key in Redis; saves work, but safety does not depend on it", \
     option_file, .at = offsetof(struct redis_settings, lease)}, \
    {"lease-ttl", "DURATION", "30s", \
     "time to live of that key, which is renewed after half of this time", \
     option_span, .at = offsetof(struct redis_settings, lease_ms), .min = LEASE_MIN_MS, \
     .max = TIME_MAX_MS}
/* clang-format on */

/* The options for a cluster, which has one database; for one server; and for one that Sentinels
 * name. */
static const struct option_def cluster_options[] = {OPTIONS, {NULL}};
static const struct option_def options[] = {OPTIONS, REDIS_DB_OPTION(redis_settings, url), {NULL}};
static const struct option_def sentinel_options[] = {
    OPTIONS,
    REDIS_DB_OPTION(redis_settings, url),
    {"sentinel-user", "NAME", NULL, "user name for logging in to the Sentinels", option_copy,
     .at = offsetof(struct redis_settings, sentinel_user)},
    {"sentinel-password-file", "FILE", NULL,
     "file with the password for the Sentinels; otherwise " REDIS_SENTINEL_PASSWORD_ENV,
     option_copy, .at = offsetof(struct redis_settings, sentinel_password_file)},
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
static int take_login(struct redis_settings *s, const struct url *b, struct error *err)
{
    struct redis_url like = redis_url_login(b, s->url.db);
    const char *secure = s->kind == REDIS_CLUSTER ? "rediss-cluster" : "rediss-sentinel";
    if (broker_check_url(b, secure, err) != 0)
        return -1;
    return redis_url_at(&like, "redis", b->hosts[0].host, b->hosts[0].port, &s->url, err);
}

/* Adds one of the hosts: a server of the cluster, or a Sentinel, which has a separate login. */
static int add_seed(struct redis_settings *s, const struct url_host *h, struct error *err)
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
    url_password_free(password);
    return rc;
}

/* Uses the path as the master's name. A cluster has only one database, so its path is empty or
 * 0. */
static int check_path(struct redis_settings *s, const struct url *b, struct error *err)
{
    bool named = b->path[0] != '\0' && !strchr(b->path, '/');
    if (s->kind == REDIS_SENTINEL && !named)
        return err_set(err, ERR_CONFIG,
                       "the URL names no master: write "
                       "redis-sentinel://HOST:PORT,.../MASTER?stream=NAME with the name that the "
                       "Sentinels monitor");
    bool empty = b->path[0] == '\0' || strcmp(b->path, "0") == 0;
    if (s->kind == REDIS_CLUSTER && !empty)
        return err_set(err, ERR_CONFIG, "a cluster has only database 0");
    return option_copy_maybe(&s->master, b->path, err);
}

/* Parses a URL with several hosts. */
static int read_many(const char *url, struct redis_settings *s, struct error *err)
{
    struct url b;
    const char *port = "6379";
    const struct option_def *table = cluster_options;
    if (s->kind == REDIS_SENTINEL) {
        port = "26379";
        table = sentinel_options;
    }
    int rc = url_parse(url, port, REDIS_PASSWORD_ENV, table, s, &b, err);
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
    url_release(&b);
    return rc;
}

int redis_settings_read(const char *url, struct redis_settings *s, struct error *err)
{
    *s = (struct redis_settings){.kind = kind_of(url)};
    int rc;
    if (s->kind == REDIS_SINGLE)
        rc = redis_url_parse(url, options, s, &s->url, err);
    else
        rc = read_many(url, s, err);
    if (rc != 0)
        return err_prefix(err, "redis sink");
    if (!s->stream)
        return err_set(err, ERR_CONFIG,
                       "redis sink: the URL names no stream: add ?stream=NAME, "
                       "where NAME may have " TEMPLATE_FIELDS ": ?stream=tenant.{type[1]}");
    if (s->maxlen && s->maxage_ms)
        return err_set(err, ERR_CONFIG,
                       "redis sink: use maxlen or maxage, not both: XADD accepts only one of them");
    return 0;
}

void redis_settings_release(struct redis_settings *s)
{
    broker_settings_release(sentinel_options, s);
    free(s->master);
    redis_url_release(&s->url);
    for (size_t i = 0; i < s->n_seeds; i++)
        redis_url_release(&s->seed[i]);
    free(s->seed);
    *s = (struct redis_settings){0};
}

/* Sending */

/* Returns the stream of an event; NULL with ERR_INVALID if the name is not valid. */
static struct stream *find_stream(struct redis_sink *r, const struct event *ev, struct error *err)
{
    struct str name = broker_name(&r->b, ev, err);
    if (!name.p)
        return NULL;
    struct stream *st = window_marks_get(&r->b.marks, name);
    if (!st)
        err_nomem(err);
    return st;
}

/* Queues the first delivery, with as much of its chain as fits into one script. *ret is the number
 * of queued deliveries; 0 if the server has no room now. */
static int queue_events(struct redis_sink *r, struct delivery *const *d, size_t n, size_t *ret,
                        struct error *err)
{
    if (!redis_lease_held(r))
        return err_set(err, ERR_LOST, "this relay does not hold the lease %s", r->set.lease);
    struct stream *st = find_stream(r, d[0]->ev, err);
    if (!st)
        return -1;

    struct redis_node *node = redis_route_of(r, (struct str){st->name, st->n});
    *ret = 0;
    bool others_first = r->map && redis_route_is_probed(node) &&
                        redis_route_away(node) == SINK_LATER;
    if (others_first)
        return err_set(err, ERR_BUSY, "%s", node->why);
    if (!redis_node_has_room(node, d[0]->ev))
        return 0;
    if (redis_node_connect(node, err) != 0) {
        if (r->map && redis_route_away(node) == SINK_LATER)
            err->code = ERR_BUSY;
        return -1;
    }
    return redis_node_send(node, d, n, st, ret, err);
}

static size_t redis_submit(struct sink *sk, struct delivery *const *d, size_t n)
{
    struct redis_sink *r = (struct redis_sink *)sk;
    size_t i = 0;
    while (i < n) {
        struct error err = {0};
        size_t took = 0;
        if (d[i]->chained)
            return i; /* the rest of a chain waits until its beginning has ended */
        if (queue_events(r, d + i, n - i, &took, &err) != 0) {
            struct sink_result res = sink_unsent(&err);
            if (err.code == ERR_LOST)
                res.status = SINK_CANCELLED;
            if (err.code == ERR_BUSY) { /* other servers work: see queue_events */
                res.status = SINK_LATER;
                res.retry_after_ms = REDIS_AWAY_MS;
            }
            sink_done(sk, d[i], &res);
            took = 1;
        }
        if (took == 0)
            return i;
        i += took;
    }
    return n;
}

static void redis_drive(struct sink *sk)
{
    struct redis_sink *r = (struct redis_sink *)sk;
    redis_lease_drive(r);
    redis_route_drive(r);
}

static int64_t redis_deadline(struct sink *sk)
{
    const struct redis_sink *r = (const struct redis_sink *)sk;
    return min_i64(redis_route_deadline(r), redis_lease_deadline(r));
}

static void redis_cancel(struct sink *sk)
{
    struct redis_sink *r = (struct redis_sink *)sk;
    for (size_t i = 0; i < r->n_nodes; i++)
        redis_node_cancel(r->node[i]);
}

static const struct sink_lease *redis_lease(struct sink *sk)
{
    struct redis_sink *r = (struct redis_sink *)sk;
    if (!r->set.lease)
        return NULL;
    redis_lease_held(r); /* updates the counts */
    return &r->lease.counts;
}

/* Tells Redis to forget the ids of events that will not be resent, with one command per stream. */
static void redis_settled(struct sink *sk, const struct event *const *ev, size_t n)
{
    struct redis_sink *r = (struct redis_sink *)sk;
    struct error err;
    size_t i = 0;
    if (!r->set.dedupe)
        return;
    while (i < n) {
        struct stream *st = find_stream(r, ev[i], &err);
        size_t first = i++;
        if (!st)
            continue;
        while (i < n && redis_node_goes_to(r, ev[i], st))
            i++;
        struct str name = {st->name, st->n};
        redis_node_forget(redis_route_of(r, name), ev + first, i - first, name);
    }
    for (size_t k = 0; k < r->n_nodes; k++)
        redis_conn_flush(&r->node[k]->conn);
}

/* Opening */

static void redis_close(struct sink *sk)
{
    struct redis_sink *r = (struct redis_sink *)sk;
    if (r->n_nodes > 0)
        redis_lease_release(r);
    redis_route_release(r);
    buf_release(&r->args);
    buf_release(&r->seen);
    redis_settings_release(&r->set);
    broker_close(sk);
}

static int redis_set_up(struct sink *sk, struct error *err)
{
    struct redis_sink *r = (struct redis_sink *)sk;
    const struct redis_settings *set = &r->set;
    buf_init(&r->args, MESSAGE_MAX);
    buf_init(&r->seen, 2 * NAME_MAX_BYTES + 256);
    snprintf(r->client, sizeof r->client, "outbox:%s", sk->cfg.consumer);
    if (redis_settings_read(sk->cfg.url, &r->set, err) != 0)
        return -1;
    const char *const files[] = {set->url.password_file, set->sentinel_password_file, set->url.ca,
                                 set->url.cert, set->url.key};
    if (broker_check_files(files, sizeof files / sizeof files[0], err) != 0)
        return err_prefix(err, "redis sink");
    struct message_style style = {set->format, str_of(set->source), "ce_"};
    if (broker_route(&r->b, set->stream, style, err) != 0)
        return -1;

    bool fails_over = set->kind != REDIS_SINGLE;
    if (redis_limited(r))
        broker_set_caution(&r->b,
                           "%s lets Redis drop unread entries: a reader that falls behind loses "
                           "events",
                           set->maxlen ? "maxlen" : "maxage");
    else if (fails_over && set->replicas == 0)
        broker_set_caution(&r->b, "an event counts as delivered before any replica has it, and "
                                  "may be lost with the master; set replicas=1 to wait for a "
                                  "replica");
    if (redis_lease_init(r, err) != 0)
        return -1;
    return redis_route_init(r, err);
}

static const struct broker_kind redis_kind = {
    .name = "redis",
    .destination = "stream",
    .size = sizeof(struct redis_sink),
    .name_max = NAME_MAX_BYTES,
    .message_max = MESSAGE_MAX,
    .set_up = redis_set_up,
};
BROKER_OPEN(redis)

static int redis_probe(struct sink *sk, int64_t timeout_ms, struct error *err)
{
    struct redis_sink *r = (struct redis_sink *)sk;
    const char *ping[] = {"PING"};
    redisReply *reply;
    if (redis_route_probe(r, timeout_ms, err) != 0)
        return -1;
    if (redis_conn_call(&r->node[0]->conn, 1, ping, timeout_ms, -1, &reply, err) != 0)
        return -1;
    int rc = 0;
    if (reply->type == REDIS_REPLY_ERROR)
        rc = err_set(err, ERR_UNAVAILABLE, "redis sink: %s", reply->str);
    freeReplyObject(reply);
    return rc;
}

#define REDIS_OPS(name, scheme_, synopsis_, help_) \
    const struct sink_ops name = {BROKER_OPS(redis, scheme_, synopsis_, help_), \
                                  .caps = SINK_CHAINS, .lease = redis_lease, \
                                  .settled = redis_settled}

REDIS_OPS(redis_ops, "redis", "redis://HOST:PORT/DB?stream=NAME",
          "append to a Redis stream; see docs/brokers.md");
REDIS_OPS(redis_tls_ops, "rediss", "rediss://HOST:PORT/DB?stream=NAME", "the same with TLS");
REDIS_OPS(redis_unix_ops, "unix", "unix:SOCKET?stream=NAME", "the same through a unix socket");
REDIS_OPS(redis_plus_unix_ops, "redis+unix", "redis+unix:SOCKET?stream=NAME", "the same as unix:");
REDIS_OPS(redis_sentinel_ops, "redis-sentinel", "redis-sentinel://HOST,.../MASTER?stream=NAME",
          "the same, for the master named by Redis Sentinels");
REDIS_OPS(redis_sentinel_tls_ops, "rediss-sentinel",
          "rediss-sentinel://HOST,.../MASTER?stream=NAME", "the same with TLS");
REDIS_OPS(redis_cluster_ops, "redis-cluster", "redis-cluster://HOST,.../?stream=NAME",
          "append to the streams of a Redis Cluster");
REDIS_OPS(redis_cluster_tls_ops, "rediss-cluster", "rediss-cluster://HOST,.../?stream=NAME",
          "the same with TLS");
