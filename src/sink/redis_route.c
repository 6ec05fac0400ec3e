/* redis_route.c: selects the server for an event: the server of the URL, the master named by
 * Sentinels, or the server of a cluster that, as far as known, has the slot of the stream; and the
 * fate of events whose server is unavailable or redirects them.
 *
 * A server of a cluster without the slot names the one that has it (MOVED, ASK), and the event is
 * resent to that server. No other event of its key is in flight meanwhile, so the order is kept. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "sink/redis_impl.h"

#define WATCH_NS (1000 * MS_NS) /* between attempts to subscribe to changes of the master */
#define OUT_MAX 4096
#define IN_MAX ((size_t)8 << 20)
#define NODES_MAX 1000
#define HOPS_MAX 8
#define ASK_NS (1000 * MS_NS)    /* time limit for a server's list of slots */
#define AGAIN_NS (200 * MS_NS)   /* between two queries */
#define SILENT_NS (1000 * MS_NS) /* a server silent for this long may be down */
#define GREET_NS (1000 * MS_NS)  /* time limit for connecting, while other servers work */
#define STILL_NS (5000 * MS_NS)  /* time limit for a reply, while other servers work */
#define GOOD_NS (10000 * MS_NS)  /* how long a server counts as working after a success */
#define RETRY_MIN_MS 50          /* between connection attempts to an unavailable server */
#define RETRY_MAX_MS 1000

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

static int add_server(struct redis_sink *r, const char *host, const char *port, struct error *err)
{
    struct redis_url url;
    if (redis_url_at(&r->set.url, "redis", host, port, &url, err) != 0)
        return -1;
    return add_node(r, &url, err);
}

/* ---- the servers of a cluster ---- */

/* Returns the index plus one of the node with this address, and adds an unknown node; 0 on
 * error. */
static size_t node_at(struct redis_sink *r, const struct redis_address *a, struct error *err)
{
    for (size_t i = 0; i < r->n_nodes; i++) {
        const struct redis_url *u = &r->node[i]->url;
        bool same = strcmp(u->host, a->host) == 0 && strcmp(u->port, a->port) == 0;
        if (same)
            return i + 1;
    }
    if (r->n_nodes == NODES_MAX) {
        err_set(err, ERR_UNAVAILABLE, "the cluster has named more than %d servers", NODES_MAX);
        return 0;
    }
    if (add_server(r, a->host, a->port, err) != 0)
        return 0;
    return r->n_nodes;
}

/* Exponential backoff for an unreachable server. */
static void back_off(struct redis_node *n)
{
    n->retry_ms *= 2;
    if (n->retry_ms < RETRY_MIN_MS)
        n->retry_ms = RETRY_MIN_MS;
    if (n->retry_ms > RETRY_MAX_MS)
        n->retry_ms = RETRY_MAX_MS;
    n->retry_at = redis_now(n->sink) + n->retry_ms * MS_NS;
}

void redis_route_good(struct redis_node *n)
{
    n->good_at = redis_now(n->sink);
    n->retry_ms = n->retry_at = 0;
}

/* If another server works and the sink has several streams, only this server's events wait. */
enum sink_status redis_route_away(const struct redis_node *n)
{
    const struct redis_sink *r = n->sink;
    int64_t since = redis_now(r) - GOOD_NS;
    if (r->b.fixed)
        return SINK_DOWN;
    for (size_t i = 0; i < r->n_nodes; i++) {
        const struct redis_node *other = r->node[i];
        bool works = other != n && other->good_at > 0 && other->good_at >= since;
        if (works)
            return SINK_LATER;
    }
    return SINK_DOWN;
}

/* Returns whether a server that was unavailable is being retried: one event suffices for that. */
bool redis_route_is_probed(const struct redis_node *n)
{
    bool unsure = n->retry_ms > 0 && n->conn.wire.state != WIRE_READY;
    return unsure && n->window.count > 0;
}

/* ---- querying the slots ---- */

/* The result of one query, with the slots in its reply. */
struct answer {
    struct redis_sink *r;
    bool replied, good;
    uint16_t owner[REDIS_SLOTS];
};

static int take_range(void *ctx, unsigned first, unsigned last, const struct redis_address *master,
                      struct error *err)
{
    struct answer *a = ctx;
    size_t node = node_at(a->r, master, err);
    if (node == 0)
        return -1;
    for (unsigned slot = first; slot <= last; slot++)
        a->owner[slot] = (uint16_t)node;
    return 0;
}

/* Adopts a server's list of slots if the list is complete. */
static void take_reply(void *ctx, redisReply *reply)
{
    struct answer *a = ctx;
    struct redis_sink *r = a->r;
    struct error err;
    memset(a->owner, 0, sizeof a->owner);
    a->replied = true;
    a->good = redis_cluster_slots(reply, r->map->conn.url->host, take_range, a, &err) == 0;
    freeReplyObject(reply);
    if (!a->good)
        return;

    memcpy(r->map->owner, a->owner, sizeof a->owner);
    for (size_t i = 0; i < r->n_nodes; i++)
        r->node[i]->owns = false;
    for (unsigned slot = 0; slot < REDIS_SLOTS; slot++)
        if (a->owner[slot] > 0)
            r->node[a->owner[slot] - 1]->owns = true;
    r->map->known = true;
}

/* Returns how long the oldest request at a server has been in flight. */
static int64_t waited_at(const struct redis_node *n)
{
    return n->window.first ? redis_now(n->sink) - n->window.first->since : 0;
}

/* Gives up on a server and returns its events. */
static void drop_node(struct redis_node *n, const char *why)
{
    struct error err;
    err_class(&err, ERR_UNAVAILABLE, CLASS_DOWN, 0, "%s %s", n->url.label, why);
    redis_node_lost(n, &err);
}

static void end_query(struct redis_sink *r, bool good)
{
    struct redis_map *map = r->map;
    redis_conn_close(&map->conn);
    map->asking = false;
    map->next = redis_now(r) + AGAIN_NS;
    if (!good) {
        map->at++;
        return;
    }
    map->wanted = false;
    /* Give up on servers that have lost their slots and do not respond, such as a master that was
     * stopped and replaced. */
    for (size_t i = 0; i < r->n_nodes; i++)
        if (!r->node[i]->owns && waited_at(r->node[i]) >= SILENT_NS)
            drop_node(r->node[i], "has lost its slots and does not respond");
}

/* Starts a query, or continues the outstanding one. */
static void query_slots(struct redis_sink *r)
{
    struct redis_map *map = r->map;
    struct error err;
    if (map->asking) {
        struct answer a = {.r = r};
        bool lost = redis_conn_drive(&map->conn, take_reply, &a, &err) != 0;
        bool late = redis_now(r) - map->since >= ASK_NS;
        if (a.replied || lost || late)
            end_query(r, a.good);
        return;
    }

    map->conn.url = &r->node[map->at % r->n_nodes]->url;
    map->asking = true;
    map->since = redis_now(r);
    bool sent = redis_conn_open(&map->conn, &err) == 0 &&
                redis_conn_add(&map->conn, 2, (const char *[]){"CLUSTER", "SLOTS"}) == 0;
    if (!sent)
        end_query(r, false);
}

static void map_drive(struct redis_sink *r)
{
    struct redis_map *map = r->map;
    bool ask = map->wanted;
    for (size_t i = 0; i < r->n_nodes; i++) {
        struct redis_node *n = r->node[i];
        int64_t waited = waited_at(n);
        ask = ask || waited >= SILENT_NS;

        /* Give up on a server that has been silent for a while if others work: its events would
         * delay all others until the timeout. */
        int64_t patience = n->conn.wire.state == WIRE_READY ? STILL_NS : GREET_NS;
        if (waited >= patience && redis_route_away(n) == SINK_LATER) {
            char why[64];
            snprintf(why, sizeof why, "has not answered for %lld ms", (long long)(waited / MS_NS));
            drop_node(n, why);
            back_off(n);
        }
    }
    if (map->asking || (ask && redis_now(r) >= map->next))
        query_slots(r);
}

/* Called while a request is in flight. */
static int64_t map_deadline(const struct redis_sink *r)
{
    const struct redis_map *map = r->map;
    if (map->asking)
        return map->since + ASK_NS;
    if (map->wanted)
        return map->next;
    return redis_now(r) + SILENT_NS;
}

/* ---- redirections ---- */

/* Reports events that could not be redirected: the first one with the reason, the rest of its chain
 * as cancelled. */
static void return_events(struct redis_sink *r, struct delivery *const *d, size_t count,
                          enum sink_status status, const char *why)
{
    for (size_t i = 0; i < count; i++) {
        struct sink_result res = {.status = i == 0 ? status : SINK_CANCELLED, .text = why};
        if (res.status == SINK_LATER)
            res.retry_after_ms = REDIS_AWAY_MS;
        sink_done(&r->b.base, d[i], &res);
    }
}

/* Resends events to the server named by another server. */
static void send_on(struct redis_node *to, struct delivery *const *d, size_t count,
                    struct stream *st, const struct redis_redirect *how, unsigned hops)
{
    struct redis_sink *r = to->sink;
    struct error err;
    size_t sent = 0;
    if (redis_node_connect(to, &err) != 0) {
        return_events(r, d, count, redis_route_away(to), err.text);
        return;
    }
    if (!redis_node_has_room(to, d[0]->ev)) {
        return_events(r, d, count, SINK_CANCELLED,
                      "the stream moved to another server, which is busy");
        return;
    }
    if (how->ask) {
        if (redis_conn_add(&to->conn, 1, (const char *[]){"ASKING"}) != 0) {
            return_events(r, d, count, SINK_CANCELLED, "out of memory");
            return;
        }
        redis_node_push(to, REQUEST_ASKING, NULL, NULL);
    }
    const struct in_flight *last = to->window.last;
    if (redis_node_send(to, d, count, st, &sent, &err) != 0) {
        return_events(r, d, count, redis_route_away(to), err.text);
        return;
    }
    struct in_flight *first = last ? last->next : to->window.first;
    ((struct redis_request *)first)->hops = hops;
    return_events(r, d + sent, count - sent, SINK_CANCELLED,
                  "held back behind an earlier event of its chain");
}

bool redis_route_redirect(struct redis_node *n, struct redis_request *first, size_t count,
                          const char *said)
{
    struct redis_sink *r = n->sink;
    struct redis_redirect how;
    struct error err;
    bool in_circles = first->hops >= HOPS_MAX;
    if (in_circles || !redis_cluster_redirect(said, n->url.host, &how))
        return false;
    size_t to = node_at(r, &how.to, &err);
    bool elsewhere = to > 0 && r->node[to - 1] != n;
    if (!elsewhere)
        return false;
    if (!how.ask) {
        r->map->owner[how.slot] = (uint16_t)to;
        r->map->wanted = true;
    }
    redis_route_good(n);

    struct delivery *d[REDIS_RUN] = {0};
    struct stream *st = first->f.mark;
    unsigned hops = first->hops + 1;
    struct in_flight *f = &first->f;
    st->in_flight++; /* counted until it is resent */
    for (size_t i = 0; i < count; i++) {
        struct in_flight *next = f->next;
        d[i] = f->d;
        window_remove(&n->window, f);
        f = next;
    }
    send_on(r->node[to - 1], d, count, st, &how, hops);
    st->in_flight--;
    return true;
}

static int map_probe(struct redis_sink *r, int64_t timeout_ms, struct error *err)
{
    const char *argv[] = {"CLUSTER", "SLOTS"};
    for (size_t i = 0; i < r->n_nodes; i++) {
        struct redis_conn *c = &r->node[i]->conn;
        redisReply *reply = NULL;
        if (redis_conn_call(c, 2, argv, timeout_ms, -1, &reply, err) != 0)
            continue;
        int rc = 0;
        if (reply->type == REDIS_REPLY_ERROR) {
            char said[REDIS_TEXT];
            redis_conn_text(c, reply, said);
            rc = err_set(err, ERR_UNAVAILABLE, "%s: %s", r->node[i]->url.label, said);
        }
        freeReplyObject(reply);
        return rc;
    }
    return -1;
}

/* ---- all kinds of URL ---- */

int redis_route_init(struct redis_sink *r, struct error *err)
{
    struct redis_url url = r->set.url;
    int rc = 0;
    switch (r->set.kind) {
    case REDIS_SINGLE:
        r->set.url = (struct redis_url){0}; /* owned by the node, as it may have a socket's path */
        return add_node(r, &url, err);
    case REDIS_SENTINEL: /* the Sentinels will name the master's address */
        redis_sentinel_init(&r->sentinel, r->set.seed, r->set.n_seeds, r->set.master, r->client);
        if (add_server(r, r->set.master, "0", err) != 0)
            return -1;
        r->node[0]->conn.master_only = true;
        return 0;
    case REDIS_CLUSTER:
        r->map = calloc(1, sizeof *r->map);
        if (!r->map)
            return err_nomem(err);
        redis_conn_init(&r->map->conn, NULL, r->client, OUT_MAX, IN_MAX);
        r->map->wanted = true;
        for (size_t i = 0; i < r->set.n_seeds && rc == 0; i++)
            rc = add_server(r, r->set.seed[i].host, r->set.seed[i].port, err);
        break;
    }
    return rc;
}

void redis_route_release(struct redis_sink *r)
{
    for (size_t i = 0; i < r->n_nodes; i++)
        redis_node_free(r->node[i]);
    free(r->node);
    if (r->sentinel.n > 0)
        redis_sentinel_release(&r->sentinel);
    if (r->map)
        redis_conn_release(&r->map->conn);
    free(r->map);
}

struct redis_node *redis_route_of(struct redis_sink *r, struct str key)
{
    if (!r->map)
        return r->node[0];
    size_t owner = r->map->owner[redis_cluster_slot(key)];
    if (owner > 0)
        return r->node[owner - 1];
    return r->node[r->map->at % r->n_nodes]; /* any server will redirect */
}

/* ---- Sentinels ---- */

/* Sets the address of the master's node. The node's connection must be closed or held. */
static int set_master(struct redis_node *n, const char *host, const char *port, struct error *err)
{
    struct redis_url url;
    if (redis_url_at(&n->sink->set.url, "redis", host, port, &url, err) != 0)
        return -1;
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
    if (n->conn.wire.state == WIRE_CLOSED)
        return;
    if (n->conn.wire.state == WIRE_HELD) {
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
    if (redis_now(r) < n->retry_at)
        return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0, "%s", n->why);
    if (r->set.kind != REDIS_SENTINEL) {
        int rc = redis_conn_open(&n->conn, err);
        if (rc != 0)
            redis_route_lost(n, err);
        return rc;
    }

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
    if (!r->map)
        return;
    if (n->conn.wire.state !=
        WIRE_READY) /* one that worked may just have been dropped: retry at once */
        back_off(n);
    n->good_at = 0;
    snprintf(n->why, sizeof n->why, "%.290s", err->text);
    r->map->wanted = true;
    if (!r->map->known)
        r->map->at++; /* query another server */
}

void redis_route_drive(struct redis_sink *r)
{
    if (r->set.kind == REDIS_SENTINEL)
        drive_sentinel(r);
    for (size_t i = 0; i < r->n_nodes; i++)
        redis_node_drive(r->node[i]);
    if (r->map)
        map_drive(r);
}

static size_t add_fd(const struct redis_conn *c, struct pollfd *out, size_t n, size_t max)
{
    bool open = c->wire.state > WIRE_HELD && n < max;
    if (open)
        out[n++] = wire_poll(&c->wire);
    return n;
}

size_t redis_fds(struct sink *sk, struct pollfd *out, size_t max)
{
    const struct redis_sink *r = (const struct redis_sink *)sk;
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
        return min_i64(due, map_deadline(r));
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
void redis_broker(struct sink *sk, struct sink_broker *ret)
{
    const struct redis_sink *r = (const struct redis_sink *)sk;
    static const char *const kinds[] = {[REDIS_SINGLE] = "redis",
                                        [REDIS_SENTINEL] = "redis-sentinel",
                                        [REDIS_CLUSTER] = "redis-cluster"};
    const struct redis_sentinel *s = &r->sentinel;
    ret->kind = kinds[r->set.kind];
    for (size_t i = 0; i < r->n_nodes; i++) {
        const struct redis_node *n = r->node[i];
        bool ready = n->conn.wire.state == WIRE_READY;
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
        struct pollfd fd = wire_poll(&s->conn.wire);
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
        return map_probe(r, timeout_ms, err);
    return 0;
}
