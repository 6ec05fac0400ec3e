#include "redis_peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "redis/url.h"

struct redis_server server;
bool secured, clustered;

static void clean(void)
{
    static const char *const settings[][2] = {
        {"maxmemory", "0"}, {"client-query-buffer-limit", "1gb"}, {"proto-max-bulk-len", "512mb"}};
    server.cluster = clustered;
    if (!server.pid)
        redis_server_start(&server, true);
    if (!clustered)
        redis_set(&server, "REPLICAOF NO ONE");
    for (size_t i = 0; i < COUNT(settings); i++)
        redis_set(&server, "CONFIG SET %s %s", settings[i][0], settings[i][1]);
    redis_set(&server, "ACL SETUSER default on nopass ~* &* +@all");
    redis_set(&server, "FLUSHALL");
    unsetenv(REDIS_PASSWORD_ENV);
}

static void set_url(struct peer *p, const char *query)
{
    if (clustered)
        snprintf(p->url, sizeof p->url, "rediss-cluster://127.0.0.1:%d/?ca=%s/ca.crt&%s",
                 server.port, server.dir, query);
    else if (secured)
        snprintf(p->url, sizeof p->url, "rediss://127.0.0.1:%d/0?ca=%s/ca.crt&%s", server.port,
                 server.dir, query);
    else
        snprintf(p->url, sizeof p->url, "unix:%s?%s", server.socket, query);
}

static void *peer_setup(void)
{
    struct peer *p = calloc(1, sizeof *p);
    clean();
    set_url(p, "stream=s");
    sink_rig_init(&p->rig);
    return p;
}

static void peer_teardown(void *peer)
{
    struct peer *p = peer;
    sink_rig_release(&p->rig);
    free(p);
}

static const char *peer_url(void *peer)
{
    return ((struct peer *)peer)->url;
}

static void add_entries(struct sink_arrivals *got, const redisReply *r)
{
    for (size_t i = 0; i < r->elements; i++) {
        const redisReply *fields = r->element[i]->element[1];
        struct json o, id, payload;
        assert_int_equal(fields->elements, 2);
        assert_string_equal(fields->element[0]->str, "event");
        struct str text = {fields->element[1]->str, fields->element[1]->len};
        assert_int_equal(json_parse(text, &o, NULL, NULL), 0);
        assert_true(json_get(o, STR("event_id"), &id) && json_get(o, STR("payload"), &payload));
        sink_arrivals_add(got, (struct str){id.raw.p + 1, id.raw.n - 2}, payload.raw);
    }
}

static void peer_arrived(void *peer, struct sink_arrivals *got)
{
    (void)peer;
    redisReply *r = redis_do(&server, "XRANGE s - +");
    add_entries(got, r);
    freeReplyObject(r);
}

static void peer_break(void *peer)
{
    (void)peer;
    redis_server_kill(&server);
}

static void peer_heal(void *peer)
{
    (void)peer;
    redis_server_start(&server, true);
}

static const char *peer_spoil(void *peer, struct sink_item *it, size_t way)
{
    (void)peer;
    if (way >= 3)
        return NULL;
    redis_set(&server, "CONFIG SET proto-max-bulk-len 1mb");
    sink_item_enlarge(it, 3 << 20);
    return "proto-max-bulk-len";
}

const struct sink_case redis_case = {
    .name = "redis",
    .many = 5000,
    .concurrency = 4,
    SINK_PEER,
    SINK_PEER_BREAKS,
    .spoil = peer_spoil,
    .peer_rejects = true,
};

int redis_peer_setup(void **state)
{
    *state = peer_setup();
    return 0;
}

int redis_peer_teardown(void **state)
{
    peer_teardown(*state);
    return 0;
}

void open_with(struct peer *p, const char *query)
{
    set_url(p, query);
    sink_rig_open(&p->rig,
                  (struct sink_config){.url = p->url, .timeout_ms = 10000, .concurrency = 4});
}

struct sink_item *run_one(struct peer *p, const char *payload)
{
    return sink_rig_send(&p->rig, payload);
}

size_t entries(const char *stream)
{
    redisReply *r = redis_do(&server, "XLEN %s", stream);
    size_t n = (size_t)r->integer;
    freeReplyObject(r);
    return n;
}

void down_until(struct peer *p, const char *words, const char *cure)
{
    struct sink_item *it = run_one(p, "{\"n\":1}");
    assert_int_equal(it->status, SINK_DOWN);
    sink_assert_says(it, words);
    redis_set(&server, cure);
    sink_rig_passes_again(&p->rig);
}

long connection_number(void)
{
    redisReply *r = redis_do(&server, "CLIENT LIST");
    long number = 0;
    for (char *save, *line = strtok_r(r->str, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save))
        if (strstr(line, "name=outbox:search"))
            number = atol(line + strlen("id="));
    freeReplyObject(r);
    return number;
}
