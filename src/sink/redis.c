/* redis.c: the sink that appends to Redis Streams: one XADD per event, or one script for a run of
 * events of one key, hundreds in flight, replies matched one by one. */
#include <stdio.h>
#include <stdlib.h>

#include "base/num.h"
#include "redis/reply.h"
#include "sink/kinds.h"
#include "sink/redis_impl.h"

#define NAME_MAX_BYTES ((size_t)16 << 10) /* of a stream */
#define MESSAGE_MAX ((size_t)2 << 30)     /* for an entry: one event may be large */

/* Sending */

/* Returns the stream of an event; NULL with ERR_INVALID if no valid name results. */
static struct stream *find_stream(struct redis_sink *r, const struct event *ev, struct error *err)
{
    buf_clear(&r->stream_name);
    if (template_write(r->name, ev, &r->stream_name, err) != 0)
        return NULL;
    struct stream *st = window_marks_get(&r->b.marks,
                                         (struct str){r->stream_name.p, r->stream_name.n});
    if (!st)
        err_nomem(err);
    return st;
}

/* Queues the first delivery, with as much of its chain as fits into one script. *ret is the number
 * queued; 0 if the server has no room now. */
static int queue_events(struct redis_sink *r, struct delivery *const *d, size_t n, size_t *ret,
                        struct error *err)
{
    if (!redis_lease_held(r))
        return err_set(err, ERR_LOST, "the lease %s is not ours", r->set.lease);
    struct stream *st = find_stream(r, d[0]->ev, err);
    if (!st)
        return -1;

    struct redis_node *node = redis_route_of(r, (struct str){st->name, st->n});
    *ret = 0;
    bool others_first = r->map && redis_map_is_probed(node) && redis_map_away(node) == SINK_LATER;
    if (others_first)
        return err_set(err, ERR_BUSY, "%s", node->why);
    if (!redis_node_has_room(node, d[0]->ev))
        return 0;
    if (redis_node_connect(node, err) != 0) {
        if (r->map && redis_map_away(node) == SINK_LATER)
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
            return i; /* the rest of a chain waits for its beginning to end */
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

static size_t redis_fds(struct sink *sk, struct pollfd *out, size_t max)
{
    return redis_route_fds((const struct redis_sink *)sk, out, max);
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

/* Makes Redis forget the ids of events that will not be sent again, one command per stream. */
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
    template_free(r->name);
    buf_release(&r->stream_name);
    buf_release(&r->envelope);
    buf_release(&r->args);
    buf_release(&r->seen);
    redis_settings_release(&r->set);
    broker_close(sk);
}

static int redis_set_up(struct sink *sk, struct error *err)
{
    struct redis_sink *r = (struct redis_sink *)sk;
    const struct redis_settings *set = &r->set;
    buf_init(&r->stream_name, NAME_MAX_BYTES);
    buf_init(&r->envelope, MESSAGE_MAX);
    buf_init(&r->args, MESSAGE_MAX);
    buf_init(&r->seen, 2 * NAME_MAX_BYTES + 256);
    snprintf(r->client, sizeof r->client, "outbox:%s", sk->cfg.consumer);
    if (redis_settings_read(sk->cfg.url, &r->set, err) != 0)
        return -1;
    const char *const files[] = {set->url.password_file, set->sentinel_password_file, set->url.ca,
                                 set->url.cert, set->url.key};
    if (broker_check_files("redis", files, sizeof files / sizeof files[0], err) != 0)
        return -1;
    if (template_new(set->stream, &r->name, err) != 0)
        return err_prefix(err, "redis sink: stream");
    r->fixed = template_fixed(r->name);
    r->style = (struct message_style){set->format, str_of(set->source), "ce_"};

    bool fails_over = set->kind != REDIS_SINGLE;
    if (redis_limited(r))
        broker_set_caution(&r->b,
                           "%s lets Redis drop entries whether they were read or not: a reader "
                           "that falls behind loses events",
                           set->maxlen ? "maxlen" : "maxage");
    else if (fails_over && set->replicas == 0)
        broker_set_caution(&r->b, "an event counts as delivered before any replica has it, and may "
                                  "be lost with the master; replicas=1 waits for a replica");
    if (redis_lease_init(r, err) != 0)
        return -1;
    return redis_route_init(r, err);
}

static int redis_open(const struct sink_config *cfg, struct sink **ret, struct error *err)
{
    return broker_open(cfg, sizeof(struct redis_sink), redis_set_up, ret, err);
}

static int redis_probe(struct sink *sk, int64_t timeout_ms, struct error *err)
{
    struct redis_sink *r = (struct redis_sink *)sk;
    const char *ping[] = {"PING"};
    redisReply *reply;
    if (redis_route_probe(r, timeout_ms, err) != 0)
        return -1;
    if (redis_conn_call(&r->node[0]->conn, 1, ping, NULL, timeout_ms, -1, &reply, err) != 0)
        return -1;
    int rc = 0;
    if (reply->type == REDIS_REPLY_ERROR)
        rc = err_set(err, ERR_UNAVAILABLE, "redis sink: %s", reply->str);
    freeReplyObject(reply);
    return rc;
}

static void redis_broker(struct sink *sk, struct sink_broker *ret)
{
    redis_route_broker((const struct redis_sink *)sk, ret);
}

#define REDIS_OPS(name, scheme_, synopsis_, help_) \
    const struct sink_ops name = { \
        .scheme = scheme_, \
        .synopsis = synopsis_, \
        .help = help_, \
        .caps = SINK_CHAINS, \
        .lease = redis_lease, \
        .settled = redis_settled, \
        BROKER_OPS(redis), \
    }

REDIS_OPS(redis_ops, "redis", "redis://HOST:PORT/DB?stream=NAME",
          "append to a Redis stream; see docs/brokers.md");
REDIS_OPS(redis_tls_ops, "rediss", "rediss://HOST:PORT/DB?stream=NAME", "the same with TLS");
REDIS_OPS(redis_unix_ops, "unix", "unix:SOCKET?stream=NAME", "the same through a unix socket");
REDIS_OPS(redis_plus_unix_ops, "redis+unix", "redis+unix:SOCKET?stream=NAME", "the same as unix:");
REDIS_OPS(redis_sentinel_ops, "redis-sentinel", "redis-sentinel://HOST,.../MASTER?stream=NAME",
          "the same to the master that Redis Sentinels name");
REDIS_OPS(redis_sentinel_tls_ops, "rediss-sentinel",
          "rediss-sentinel://HOST,.../MASTER?stream=NAME", "the same with TLS");
REDIS_OPS(redis_cluster_ops, "redis-cluster", "redis-cluster://HOST,.../?stream=NAME",
          "append to the streams of a Redis Cluster");
REDIS_OPS(redis_cluster_tls_ops, "rediss-cluster", "rediss-cluster://HOST,.../?stream=NAME",
          "the same with TLS");
