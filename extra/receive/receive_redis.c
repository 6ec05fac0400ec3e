/* receive_redis.c: reads Redis streams from a given position, without a consumer group. Unlike the
 * sink, it may block; it therefore follows Sentinels and clusters with simpler code. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "extra/receive/receive.h"
#include "redis/conn.h"
#include "sink/redis_impl.h"

#define PATTERN_MAX ((size_t)1 << 20)
#define COUNT_TEXT "200"         /* entries per XREAD */
#define PAUSE_MS 20              /* between polls of streams without new entries */
#define SEARCH_NS (1000 * MS_NS) /* between searches for new streams */
#define AGAIN_MS 200             /* before a retry after a failure */
#define OUT_MAX ((size_t)1 << 20)
#define IN_MAX ((size_t)256 << 20)
#define ANSWER_MS 10000 /* time limit of a command */
#define LOCATE_MS 2000  /* time limit of a query for addresses */
#define HOPS_MAX 5
#define NAME "outbox:receive"

/* A server. */
struct redis_peer {
    struct redis_url url;
    struct redis_conn conn;
    bool owns; /* the only server, or a master of the cluster */
};

/* (1) peer[0..n) are the known servers. (2) If `located`, `owns` marks the masters, and owner[slot]
 * - 1 is the index of the slot's server; 0 if unknown. */
struct redis_peers {
    const struct redis_settings *set; /* borrowed */
    struct redis_peer **peer;
    size_t n;
    uint16_t owner[REDIS_SLOTS];
    bool located;
    int wake; /* a descriptor that becomes readable when the receiver must stop; -1 if unused */
};

/* Servers */

static void peers_release(struct redis_peers *p)
{
    for (size_t i = 0; i < p->n; i++) {
        redis_conn_release(&p->peer[i]->conn);
        redis_url_release(&p->peer[i]->url);
        free(p->peer[i]);
    }
    free(p->peer);
}

/* Takes ownership of the URL, even on failure. */
static int add_peer(struct redis_peers *p, struct redis_url *url, struct error *err)
{
    struct redis_peer **more = reallocarray(p->peer, p->n + 1, sizeof *more);
    if (more)
        p->peer = more;
    struct redis_peer *peer = more ? calloc(1, sizeof *peer) : NULL;
    if (!peer) {
        redis_url_release(url);
        return err_nomem(err);
    }
    peer->url = *url;
    redis_conn_init(&peer->conn, &peer->url, NAME, OUT_MAX, IN_MAX);
    p->peer[p->n++] = peer;
    return 0;
}

/* Returns the index plus one of the peer with this address, and adds an unknown peer; 0 on
 * error. */
static size_t peer_at(struct redis_peers *p, const char *host, const char *port, struct error *err)
{
    struct redis_url url;
    for (size_t i = 0; i < p->n; i++) {
        const struct redis_url *u = &p->peer[i]->url;
        bool same = u->host && strcmp(u->host, host) == 0 && strcmp(u->port, port) == 0;
        if (same)
            return i + 1;
    }
    if (redis_url_at(&p->set->url, "redis", host, port, &url, err) != 0)
        return 0;
    return add_peer(p, &url, err) == 0 ? p->n : 0;
}

static int locate_single(struct redis_peers *p, struct error *err)
{
    struct redis_url url;
    if (p->n > 0)
        return 0;
    int rc = redis_url_at(&p->set->url, "redis", p->set->url.host ? p->set->url.host : "",
                          p->set->url.port ? p->set->url.port : "", &url, err);
    if (rc == 0 && p->set->url.path)
        rc = option_copy(&url.path, p->set->url.path, NULL, err);
    if (rc != 0) {
        redis_url_release(&url);
        return -1;
    }
    memcpy(url.label, p->set->url.label, sizeof url.label);
    if (add_peer(p, &url, err) != 0)
        return -1;
    p->peer[0]->owns = true;
    return 0;
}

/* Asks one Sentinel for the master's address. */
static int ask_sentinel(struct redis_peers *p, size_t i, struct error *err)
{
    struct redis_conn c;
    redisReply *r = NULL;
    const char *argv[] = {"SENTINEL", "GET-MASTER-ADDR-BY-NAME", p->set->master};
    redis_conn_init(&c, &p->set->seed[i], NAME, OUT_MAX, IN_MAX);
    int rc = redis_conn_call(&c, 3, argv, LOCATE_MS, p->wake, &r, err);
    redis_conn_release(&c);
    if (rc != 0)
        return -1;

    bool pair = r->type == REDIS_REPLY_ARRAY && r->elements == 2 &&
                r->element[0]->type == REDIS_REPLY_STRING &&
                r->element[1]->type == REDIS_REPLY_STRING;
    size_t at = 0;
    if (pair)
        at = peer_at(p, r->element[0]->str, r->element[1]->str, err);
    else
        err_set(err, ERR_UNAVAILABLE, "%s does not know a master \"%.100s\"", p->set->seed[i].label,
                p->set->master);
    freeReplyObject(r);
    if (at == 0)
        return -1;
    for (size_t k = 0; k < p->n; k++)
        p->peer[k]->owns = k == at - 1;
    p->peer[at - 1]->conn.master_only = true;
    return 0;
}

static int locate_master(struct redis_peers *p, struct error *err)
{
    for (size_t i = 0; i < p->set->n_seeds; i++)
        if (ask_sentinel(p, i, err) == 0)
            return 0;
    return -1;
}

static int take_range(void *ctx, unsigned first, unsigned last, const struct redis_address *master,
                      struct error *err)
{
    struct redis_peers *p = ctx;
    size_t at = peer_at(p, master->host, master->port, err);
    if (at == 0)
        return -1;
    p->peer[at - 1]->owns = true;
    for (unsigned slot = first; slot <= last; slot++)
        p->owner[slot] = (uint16_t)at;
    return 0;
}

/* Asks one server of the cluster for the owners of the slots. */
static int ask_slots(struct redis_peers *p, size_t i, struct error *err)
{
    redisReply *r = NULL;
    const char *argv[] = {"CLUSTER", "SLOTS"};
    struct redis_peer *peer = p->peer[i];
    if (redis_conn_call(&peer->conn, 2, argv, LOCATE_MS, p->wake, &r, err) != 0)
        return -1;
    for (size_t k = 0; k < p->n; k++)
        p->peer[k]->owns = false;
    memset(p->owner, 0, sizeof p->owner);
    int rc = redis_cluster_slots(r, peer->url.host, take_range, p, err);
    freeReplyObject(r);
    return rc;
}

static int locate_cluster(struct redis_peers *p, struct error *err)
{
    for (size_t i = 0; i < p->set->n_seeds; i++)
        if (peer_at(p, p->set->seed[i].host, p->set->seed[i].port, err) == 0)
            return -1;
    size_t known = p->n;
    for (size_t i = 0; i < known; i++)
        if (ask_slots(p, i, err) == 0)
            return 0;
    return -1;
}

/* Locates the servers unless they are already located. */
static int peers_locate(struct redis_peers *p, struct error *err)
{
    int rc = -1;
    if (p->located)
        return 0;
    switch (p->set->kind) {
    case REDIS_SINGLE: rc = locate_single(p, err); break;
    case REDIS_SENTINEL: rc = locate_master(p, err); break;
    case REDIS_CLUSTER: rc = locate_cluster(p, err); break;
    }
    p->located = rc == 0;
    return rc;
}

/* Sends a command to one server and waits for the reply. An error reply fails with ERR_UNAVAILABLE,
 * a request to stop with ERR_BUSY. The caller frees *ret. */
static int peers_ask_at(struct redis_peers *p, size_t i, int argc, const char **argv,
                        redisReply **ret, struct error *err)
{
    struct redis_peer *peer = p->peer[i];
    char said[REDIS_TEXT];
    if (redis_conn_call(&peer->conn, argc, argv, ANSWER_MS, p->wake, ret, err) != 0) {
        p->located = p->set->kind == REDIS_SINGLE;
        return -1;
    }
    if ((*ret)->type != REDIS_REPLY_ERROR)
        return 0;
    redis_conn_text(&peer->conn, *ret, said);
    if (redis_error_of((*ret)->str)->reconnect)
        redis_conn_close(&peer->conn);
    p->located = p->set->kind == REDIS_SINGLE;
    freeReplyObject(*ret);
    *ret = NULL;
    return err_set(err, ERR_UNAVAILABLE, "%s: %s", peer->url.label, said);
}

/* Returns the index of the server that owns a key. */
static size_t owner_of(const struct redis_peers *p, const char *key)
{
    size_t owner = 0;
    if (p->set->kind == REDIS_CLUSTER)
        owner = p->owner[redis_cluster_slot(str_of(key))];
    if (owner > 0)
        return owner - 1;
    for (size_t i = 0; i < p->n; i++)
        if (p->peer[i]->owns)
            return i;
    return 0;
}

/* Sends a command to the server that owns a key, and follows redirections. */
static int peers_ask(struct redis_peers *p, const char *key, int argc, const char **argv,
                     redisReply **ret, struct error *err)
{
    for (int hop = 0; hop < HOPS_MAX; hop++) {
        if (peers_locate(p, err) != 0)
            return -1;
        if (peers_ask_at(p, owner_of(p, key), argc, argv, ret, err) == 0)
            return 0;
        bool again = p->set->kind != REDIS_SINGLE && err->code != ERR_BUSY;
        if (!again)
            return -1;
    }
    return -1;
}

/* A stream and the id of the last entry returned from it. */
struct source {
    char *name;
    char last[REDIS_ID];
};

/* (1) `entries` points into `reply`; entries->element[at..) of source[turn] has not been returned.
 * (2) `fixed`: source[0] is the only source, and the receiver does not search for others. */
struct redis_receiver {
    struct receiver base;
    struct redis_settings set;
    struct redis_peers peers;
    bool fixed;
    struct buf pattern;
    struct source *source;
    size_t n, turn;
    int64_t search_at; /* monotonic */
    redisReply *reply;
    const redisReply *entries;
    size_t at;
};

/* Returns the number of elements; 0 if the reply is not an array. */
static size_t count_of(const redisReply *r)
{
    return r->type == REDIS_REPLY_ARRAY ? r->elements : 0;
}

static bool is_pair(const redisReply *r)
{
    return count_of(r) == 2 && r->element[0]->type == REDIS_REPLY_STRING;
}

/* Streams */

/* Reads the id of a stream's last entry. Reading from "end" starts after it. */
static int last_of(struct redis_receiver *rc, const char *stream, char id[REDIS_ID],
                   struct error *err)
{
    redisReply *r = NULL;
    const char *argv[] = {"XREVRANGE", stream, "+", "-", "COUNT", "1"};
    if (peers_ask(&rc->peers, stream, 6, argv, &r, err) != 0)
        return -1;
    snprintf(id, REDIS_ID, "0-0");
    if (count_of(r) == 1 && is_pair(r->element[0]))
        snprintf(id, REDIS_ID, "%s", r->element[0]->element[0]->str);
    freeReplyObject(r);
    return 0;
}

/* Starts reading a stream. A stream created after the start is read from its beginning. */
static int add_source(struct redis_receiver *rc, const char *name, const char *from,
                      struct error *err)
{
    struct source s = {.last = "0-0"};
    if (strcmp(from, "end") == 0) {
        if (last_of(rc, name, s.last, err) != 0)
            return -1;
    } else if (strcmp(from, "beginning") != 0) {
        snprintf(s.last, sizeof s.last, "%s", from);
    }

    struct source *more = reallocarray(rc->source, rc->n + 1, sizeof *more);
    if (!more)
        return err_nomem(err);
    rc->source = more;
    s.name = strdup(name);
    if (!s.name)
        return err_nomem(err);
    rc->source[rc->n++] = s;
    return 0;
}

/* Adds a source for each unknown stream in a SCAN reply. */
static int add_found(struct redis_receiver *rc, const redisReply *names, const char *from,
                     struct error *err)
{
    for (size_t i = 0; i < count_of(names); i++) {
        const redisReply *name = names->element[i];
        bool is_new = name->type == REDIS_REPLY_STRING;
        for (size_t k = 0; k < rc->n && is_new; k++)
            is_new = strcmp(rc->source[k].name, name->str) != 0;
        if (is_new && add_source(rc, name->str, from, err) != 0)
            return -1;
    }
    return 0;
}

/* Searches one server for streams whose names match the template. */
static int search_server(struct redis_receiver *rc, size_t peer, const char *from,
                         struct error *err)
{
    char cursor[32] = "0";
    do {
        redisReply *r = NULL;
        const char *argv[] = {"SCAN",  cursor, "MATCH", buf_cstr(&rc->pattern),
                              "COUNT", "1000", "TYPE",  "stream"};
        if (peers_ask_at(&rc->peers, peer, 8, argv, &r, err) != 0)
            return -1;
        int failed = err_set(err, ERR_UNAVAILABLE, "%s sent an invalid reply to SCAN",
                             rc->peers.peer[peer]->url.label);
        snprintf(cursor, sizeof cursor, "0");
        if (is_pair(r)) {
            snprintf(cursor, sizeof cursor, "%s", r->element[0]->str);
            failed = add_found(rc, r->element[1], from, err);
        }
        freeReplyObject(r);
        if (failed)
            return -1;
    } while (strcmp(cursor, "0") != 0);
    return 0;
}

static int search_streams(struct redis_receiver *rc, const char *from, struct error *err)
{
    if (peers_locate(&rc->peers, err) != 0)
        return -1;
    for (size_t i = 0; i < rc->peers.n; i++)
        if (rc->peers.peer[i]->owns && search_server(rc, i, from, err) != 0)
            return -1;
    rc->search_at = clock_mono(&clock_system) + SEARCH_NS;
    return 0;
}

/* Reading */

/* Reads the next entries of source[turn]. */
static int read_source(struct redis_receiver *rc, struct error *err)
{
    const struct source *s = &rc->source[rc->turn];
    const char *argv[] = {"XREAD", "COUNT", COUNT_TEXT, "STREAMS", s->name, s->last};
    if (rc->reply)
        freeReplyObject(rc->reply);
    rc->reply = NULL;
    rc->entries = NULL;
    rc->at = 0;
    if (peers_ask(&rc->peers, s->name, 6, argv, &rc->reply, err) != 0)
        return -1;
    bool some = count_of(rc->reply) == 1 && is_pair(rc->reply->element[0]);
    if (some)
        rc->entries = rc->reply->element[0]->element[1];
    return 0;
}

static bool has_entry(const struct redis_receiver *rc)
{
    return rc->entries && rc->at < count_of(rc->entries);
}

static struct str str_of_reply(const redisReply *r)
{
    if (r->type != REDIS_REPLY_STRING)
        return STR("");
    return (struct str){r->str, r->len};
}

/* Adds one field to the message. An entry in the contract's format has a single field, event. */
static void take_field(struct message *m, struct str name, struct str value)
{
    if (str_is(name, "event") || str_is(name, "value"))
        m->value = value;
    else if (str_is(name, "content-type"))
        m->content_type = value;
    else if (m->n < MESSAGE_HEADERS)
        m->headers[m->n++] = (struct message_header){name, value};
}

/* Returns the next entry and advances. */
static bool take_entry(struct redis_receiver *rc, struct received *ret)
{
    struct source *s = &rc->source[rc->turn];
    const redisReply *entry = rc->entries->element[rc->at++];
    if (!is_pair(entry))
        return false;
    snprintf(s->last, sizeof s->last, "%s", entry->element[0]->str);

    const redisReply *fields = entry->element[1];
    ret->place = str_of(s->name);
    ret->position = str_of_reply(entry->element[0]);
    ret->m.value = STR("");
    ret->m.content_type = ret->m.key = (struct str){0};
    ret->m.n = 0;
    for (size_t i = 0; i + 1 < count_of(fields); i += 2)
        take_field(&ret->m, str_of_reply(fields->element[i]), str_of_reply(fields->element[i + 1]));
    ret->m.key = message_header_of(&ret->m, STR("aggregate_id"));
    return true;
}

/* Polls each stream once, starting after the last polled stream, until a stream has entries. */
static int read_next(struct redis_receiver *rc, struct error *err)
{
    bool due = !rc->fixed && clock_mono(&clock_system) >= rc->search_at;
    if (due && search_streams(rc, "beginning", err) != 0)
        return -1;
    for (size_t i = 0; i < rc->n; i++) {
        rc->turn = (rc->turn + 1) % rc->n;
        if (read_source(rc, err) != 0)
            return -1;
        if (has_entry(rc))
            return 0;
    }
    return 0;
}

static int redis_step(struct receiver *base, int64_t wait_ms, struct received *ret, bool *ret_got,
                      struct error *err)
{
    struct redis_receiver *rc = (struct redis_receiver *)base;
    int failed = 0;
    if (!has_entry(rc))
        failed = read_next(rc, err);
    while (has_entry(rc) && !*ret_got)
        *ret_got = take_entry(rc, ret);
    if (!*ret_got)
        receive_stop(base, min_i64(wait_ms, failed ? AGAIN_MS : PAUSE_MS));
    return failed;
}

static void redis_end(struct receiver *base)
{
    struct redis_receiver *rc = (struct redis_receiver *)base;
    if (rc->reply)
        freeReplyObject(rc->reply);
    for (size_t i = 0; i < rc->n; i++)
        free(rc->source[i].name);
    free(rc->source);
    buf_release(&rc->pattern);
    peers_release(&rc->peers);
    redis_settings_release(&rc->set);
}

static int redis_begin(struct receiver *base, struct error *err)
{
    struct redis_receiver *rc = (struct redis_receiver *)base;
    struct template *name;
    const char *from = base->cfg.from;
    bool word = strcmp(from, "beginning") == 0 || strcmp(from, "end") == 0;
    buf_init(&rc->pattern, PATTERN_MAX);
    rc->peers.set = &rc->set;
    rc->peers.wake = base->cfg.wake;
    if (!word && !redis_is_id(from))
        return err_set(err, ERR_CONFIG,
                       "\"%.60s\" is not beginning, end or an id such as 1748100000000-0", from);
    if (redis_settings_read(base->cfg.url, &rc->set, err) != 0)
        return -1;
    if (template_new(rc->set.stream, &name, err) != 0)
        return err_prefix(err, "redis: stream");
    rc->fixed = template_fixed(name);
    int failed = template_pattern(name, rc->fixed ? "" : "\\*?[]", &rc->pattern, err);
    template_free(name);
    if (failed)
        return -1;
    if (rc->fixed)
        return add_source(rc, buf_cstr(&rc->pattern), from, err);
    return search_streams(rc, from, err);
}

const struct receiver_ops receive_redis = {
    .schemes = (const char *const[]){"redis", "rediss", "unix", "redis+unix", "redis-sentinel",
                                     "rediss-sentinel", "redis-cluster", "rediss-cluster", NULL},
    .size = sizeof(struct redis_receiver),
    .begin = redis_begin,
    .step = redis_step,
    .end = redis_end,
    .patient = true,
};
