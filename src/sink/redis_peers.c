#include "sink/redis_peers.h"

#include <stdlib.h>
#include <string.h>

#define OUT_MAX ((size_t)1 << 20)
#define IN_MAX ((size_t)256 << 20)
#define ANSWER_MS 10000 /* of one command */
#define LOCATE_MS 2000  /* of one question about where to */
#define HOPS_MAX 5
#define NAME "outbox:receive"

void redis_peers_init(struct redis_peers *p, const struct redis_settings *set, int wake)
{
    *p = (struct redis_peers){.set = set, .wake = wake};
}

static void free_peer(struct redis_peer *peer)
{
    redis_conn_release(&peer->conn);
    redis_url_release(&peer->url);
    free(peer);
}

void redis_peers_release(struct redis_peers *p)
{
    for (size_t i = 0; i < p->n; i++)
        free_peer(p->peer[i]);
    free(p->peer);
    p->peer = NULL;
    p->n = 0;
}

/* add_peer takes the URL over, also on failure. */
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

/* peer_at finds or makes the peer with that address: its index plus one, or 0. */
static size_t peer_at(struct redis_peers *p, const char *host, const char *port, struct error *err)
{
    struct redis_url url;
    for (size_t i = 0; i < p->n; i++) {
        const struct redis_url *u = &p->peer[i]->url;
        bool same = u->host && strcmp(u->host, host) == 0 && strcmp(u->port, port) == 0;
        if (same)
            return i + 1;
    }
    if (redis_url_at(&p->set->url, "redis", host, port, &url, err) != 0) {
        redis_url_release(&url);
        return 0;
    }
    return add_peer(p, &url, err) == 0 ? p->n : 0;
}

/* Where they are */

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

/* ask_sentinel asks one Sentinel where the master is. */
static int ask_sentinel(struct redis_peers *p, size_t i, struct error *err)
{
    struct redis_conn c;
    redisReply *r = NULL;
    const char *argv[] = {"SENTINEL", "GET-MASTER-ADDR-BY-NAME", p->set->master};
    redis_conn_init(&c, &p->set->seed[i], NAME, OUT_MAX, IN_MAX);
    int rc = redis_conn_call(&c, 3, argv, NULL, LOCATE_MS, p->wake, &r, err);
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

/* ask_slots asks one server of the cluster who has which slots. */
static int ask_slots(struct redis_peers *p, size_t i, struct error *err)
{
    redisReply *r = NULL;
    const char *argv[] = {"CLUSTER", "SLOTS"};
    struct redis_peer *peer = p->peer[i];
    if (redis_conn_call(&peer->conn, 2, argv, NULL, LOCATE_MS, p->wake, &r, err) != 0)
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

int redis_peers_locate(struct redis_peers *p, struct error *err)
{
    int rc;
    if (p->located)
        return 0;
    switch (p->set->kind) {
    case REDIS_SINGLE: rc = locate_single(p, err); break;
    case REDIS_SENTINEL: rc = locate_master(p, err); break;
    case REDIS_CLUSTER: rc = locate_cluster(p, err); break;
    default: rc = -1; break;
    }
    p->located = rc == 0;
    return rc;
}

/* Asking */

int redis_peers_ask_at(struct redis_peers *p, size_t i, int argc, const char **argv,
                       redisReply **ret, struct error *err)
{
    struct redis_peer *peer = p->peer[i];
    char said[REDIS_TEXT];
    if (redis_conn_call(&peer->conn, argc, argv, NULL, ANSWER_MS, p->wake, ret, err) != 0) {
        p->located = p->set->kind == REDIS_SINGLE;
        return -1;
    }
    if ((*ret)->type != REDIS_REPLY_ERROR)
        return 0;
    redis_conn_text(&peer->conn, *ret, said);
    if (redis_reconnects((*ret)->str))
        redis_conn_close(&peer->conn);
    p->located = p->set->kind == REDIS_SINGLE;
    freeReplyObject(*ret);
    *ret = NULL;
    return err_set(err, ERR_UNAVAILABLE, "%s: %s", peer->url.label, said);
}

/* owner_of returns the index of the server that a key belongs to. */
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

int redis_peers_ask(struct redis_peers *p, const char *key, int argc, const char **argv,
                    redisReply **ret, struct error *err)
{
    for (int hop = 0; hop < HOPS_MAX; hop++) {
        if (redis_peers_locate(p, err) != 0)
            return -1;
        if (redis_peers_ask_at(p, owner_of(p, key), argc, argv, ret, err) == 0)
            return 0;
        bool again = p->set->kind != REDIS_SINGLE && err->code != ERR_BUSY;
        if (!again)
            return -1;
    }
    return -1;
}
