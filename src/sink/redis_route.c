/* redis_route.c: selects the server for an event: the server of the URL, the master named by
 * Sentinels, or the cluster's server for the slot of the stream. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "sink/redis_impl.h"

#define WATCH_NS (1000 * MS_NS) /* between attempts to subscribe to changes of the master */

/* ---- nodes ---- */

static int add_node(struct redis_sink *r, struct redis_url *url, struct error *err)
{
    struct redis_node **more = reallocarray(r->node, r->n_nodes + 1, sizeof *more);
    if (!more) {
        redis_url_release(url);
        return err_nomem(err);
    }
    r->node = more;
    if (redis_node_new(r, url, &more[r->n_nodes], err) != 0)
        return -1;
    r->n_nodes++;
    return 0;
}

int redis_route_add(struct redis_sink *r, const char *host, const char *port, struct error *err)
{
    struct redis_url url;
    if (redis_url_at(&r->set.url, "redis", host, port, &url, err) == 0)
        return add_node(r, &url, err);
    redis_url_release(&url);
    return -1;
}

int redis_route_init(struct redis_sink *r, struct error *err)
{
    struct redis_url url = r->set.url;
    switch (r->set.kind) {
    case REDIS_SINGLE:
        r->set.url = (struct redis_url){0}; /* owned by the node, as it may have a socket's path */
        return add_node(r, &url, err);
    case REDIS_SENTINEL: /* the Sentinels will name the master's address */
        redis_sentinel_init(&r->sentinel, r->set.seed, r->set.n_seeds, r->set.master, r->client);
        if (redis_route_add(r, r->set.master, "0", err) != 0)
            return -1;
        r->node[0]->conn.master_only = true;
        return 0;
    case REDIS_CLUSTER: break;
    }
    return redis_map_init(r, err);
}

void redis_route_release(struct redis_sink *r)
{
    for (size_t i = 0; i < r->n_nodes; i++)
        redis_node_free(r->node[i]);
    free(r->node);
    if (r->sentinel.n > 0)
        redis_sentinel_release(&r->sentinel);
    redis_map_release(r);
}

struct redis_node *redis_route_of(struct redis_sink *r, struct str key)
{
    if (r->map)
        return redis_map_of(r, redis_cluster_slot(key));
    return r->node[0];
}

/* ---- Sentinels ---- */

/* Sets the address of the master's node. The node's connection must be closed or held. */
static int set_master(struct redis_node *n, const char *host, const char *port, struct error *err)
{
    struct redis_url url;
    if (redis_url_at(&n->sink->set.url, "redis", host, port, &url, err) != 0) {
        redis_url_release(&url);
        return -1;
    }
    redis_url_release(&n->url);
    n->url = url;
    return 0;
}

/* Connects to the master named by a Sentinel. */
static int open_told(struct redis_node *n, struct error *err)
{
    const struct redis_sentinel *s = &n->sink->sentinel;
    if (set_master(n, s->told.host, s->told.port, err) != 0)
        return -1;
    return redis_conn_open(&n->conn, err);
}

static void drive_sentinel(struct redis_sink *r)
{
    struct redis_node *n = r->node[0];
    struct redis_sentinel *s = &r->sentinel;
    struct error err;
    int64_t now = redis_now(r);
    redis_sentinel_drive(s, now);
    if (n->conn.state == REDIS_CLOSED)
        return;
    if (n->conn.state == REDIS_HELD) {
        /* Held commands are sent once the address is known, or else returned. */
        if (s->state == SENTINEL_NOBODY)
            redis_node_lost(n, &s->why);
        else if (s->state == SENTINEL_TOLD && open_told(n, &err) != 0)
            redis_node_lost(n, &err);
        return;
    }

    bool elsewhere = strcmp(n->url.host, s->told.host) != 0 ||
                     strcmp(n->url.port, s->told.port) != 0;
    if (s->state == SENTINEL_TOLD && elsewhere) {
        /* The master was replaced, so requests in flight may be lost with it: they are resent. */
        err_class(&err, ERR_UNAVAILABLE, CLASS_DOWN, 0,
                  "%s is no longer the master; the new master is %.200s:%s", n->url.label,
                  s->told.host, s->told.port);
        redis_node_lost(n, &err);
        return;
    }
    /* If the connection to our Sentinel is lost, query another one. */
    bool unsubscribed = s->state == SENTINEL_SILENT || s->state == SENTINEL_NOBODY;
    if (unsubscribed && now >= r->watch_at) {
        r->watch_at = now + WATCH_NS;
        redis_sentinel_ask(s, now);
    }
}

/* ---- all kinds of URL ---- */

int redis_route_open(struct redis_node *n, struct error *err)
{
    struct redis_sink *r = n->sink;
    struct redis_sentinel *s = &r->sentinel;
    if (r->set.kind == REDIS_CLUSTER)
        return redis_map_open(n, err);
    if (r->set.kind == REDIS_SINGLE)
        return redis_conn_open(&n->conn, err);

    redis_sentinel_drive(s, redis_now(r));
    redis_sentinel_ask(s, redis_now(r));
    switch (s->state) {
    case SENTINEL_TOLD: return open_told(n, err);
    case SENTINEL_NOBODY: *err = s->why; return -1;
    case SENTINEL_SILENT:
    case SENTINEL_ASKING: break;
    }
    redis_conn_hold(&n->conn); /* until the address is known */
    return 0;
}

void redis_route_lost(struct redis_node *n, const struct error *err)
{
    struct redis_sink *r = n->sink;
    if (r->set.kind == REDIS_SENTINEL)
        redis_sentinel_doubt(&r->sentinel);
    if (r->set.kind == REDIS_CLUSTER)
        redis_map_lost(n, err);
}

void redis_route_drive(struct redis_sink *r)
{
    if (r->set.kind == REDIS_SENTINEL)
        drive_sentinel(r);
    for (size_t i = 0; i < r->n_nodes; i++)
        redis_node_drive(r->node[i]);
    if (r->map)
        redis_map_drive(r);
}

static size_t add_fd(const struct redis_conn *c, struct pollfd *out, size_t n, size_t max)
{
    bool open = c->state > REDIS_HELD && n < max;
    if (open)
        out[n++] = redis_conn_poll(c);
    return n;
}

size_t redis_route_fds(const struct redis_sink *r, struct pollfd *out, size_t max)
{
    size_t n = 0;
    if (r->set.kind == REDIS_SENTINEL)
        n = add_fd(&r->sentinel.conn, out, n, max);
    if (r->map)
        n = add_fd(&r->map->conn, out, n, max);
    for (size_t i = 0; i < r->n_nodes; i++)
        n = add_fd(&r->node[i]->conn, out, n, max);
    return n;
}

int64_t redis_route_deadline(const struct redis_sink *r)
{
    int64_t due = CLOCK_NEVER;
    bool busy = false;
    for (size_t i = 0; i < r->n_nodes; i++) {
        due = min_i64(due, redis_node_deadline(r->node[i]));
        busy = busy || r->node[i]->window.count > 0;
    }
    if (!busy)
        return due;
    if (r->map)
        return min_i64(due, redis_map_deadline(r));
    if (r->set.kind == REDIS_SINGLE)
        return due;
    bool unsubscribed = r->sentinel.state == SENTINEL_SILENT ||
                        r->sentinel.state == SENTINEL_NOBODY;
    return min_i64(due, unsubscribed ? r->watch_at : redis_sentinel_deadline(&r->sentinel));
}

/* ---- for operators ---- */

static void add_peer(char list[SINK_PEERS], const struct redis_url *u)
{
    if (u->path)
        sink_peer_add(list, u->path, NULL);
    else
        sink_peer_add(list, u->host, u->port);
}

/* Reports the server; the master, or the Sentinels until they have named one; or the servers of a
 * cluster that we are connected to or that have slots. */
void redis_route_broker(const struct redis_sink *r, struct sink_broker *ret)
{
    static const char *const kinds[] = {[REDIS_SINGLE] = "redis",
                                        [REDIS_SENTINEL] = "redis-sentinel",
                                        [REDIS_CLUSTER] = "redis-cluster"};
    const struct redis_sentinel *s = &r->sentinel;
    ret->kind = kinds[r->set.kind];
    for (size_t i = 0; i < r->n_nodes; i++) {
        const struct redis_node *n = r->node[i];
        bool ready = n->conn.state == REDIS_READY;
        ret->connected = ret->connected || ready;
        window_describe(&n->window, ret);
        bool known = r->set.kind == REDIS_SINGLE || s->told.host[0];
        if (r->set.kind == REDIS_CLUSTER)
            known = ready;
        if (known)
            add_peer(ret->broker, &n->url);
        if (n->owns)
            add_peer(ret->leader, &n->url);
    }
    if (s->told.host[0])
        sink_peer_add(ret->leader, s->told.host, s->told.port);
    bool none_known = ret->broker[0] == '\0';
    for (size_t i = 0; none_known && i < r->set.n_seeds; i++)
        add_peer(ret->broker, &r->set.seed[i]);
}

/* Drives the Sentinels until the master is known. */
static int wait_told(struct redis_sink *r, int64_t deadline, struct error *err)
{
    struct redis_sentinel *s = &r->sentinel;
    redis_sentinel_ask(s, redis_now(r));
    while (s->state == SENTINEL_ASKING) {
        struct pollfd fd = redis_conn_poll(&s->conn);
        if (redis_now(r) >= deadline)
            return err_set(err, ERR_UNAVAILABLE, "%s has not answered in time", s->conn.url->label);
        poll(&fd, 1, 50);
        redis_sentinel_drive(s, redis_now(r));
    }
    if (s->state == SENTINEL_TOLD)
        return set_master(r->node[0], s->told.host, s->told.port, err);
    *err = s->why;
    return -1;
}

int redis_route_probe(struct redis_sink *r, int64_t timeout_ms, struct error *err)
{
    if (r->set.kind == REDIS_SENTINEL)
        return wait_told(r, redis_now(r) + timeout_ms * MS_NS, err);
    if (r->map)
        return redis_map_probe(r, timeout_ms, err);
    return 0;
}
