#include "nats_peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define S_CONFIG "{\"subjects\":[\"s\",\"s.>\"]}"

struct nats_server server;
enum suite_way way;

static const char *config(void)
{
    static char text[1024];
    if (way != WAY_TLS)
        return ACCOUNTS;
    snprintf(text, sizeof text,
             "%stls { cert_file: \"%s/server.crt\", key_file: \"%s/server.key\" }", ACCOUNTS,
             server.dir, server.dir);
    return text;
}

/* start creates the folder first, because the configuration names it. */
static void start(void)
{
    bool fresh = !server.dir[0];
    if (fresh && way == WAY_TLS) {
        nats_server_start(&server, ACCOUNTS);
        nats_server_kill(&server);
    }
    nats_server_start(&server, config());
}

static void set_url(struct peer *p, const char *subject, const char *query)
{
    if (way == WAY_TLS)
        snprintf(p->url, sizeof p->url, "nats+tls://127.0.0.1:%d/%s?ca=%s/ca.crt&%s", server.port,
                 subject, server.dir, query);
    else
        snprintf(p->url, sizeof p->url, "nats://127.0.0.1:%d/%s?%s", server.port, subject, query);
}

static void *peer_setup(void)
{
    struct peer *p = calloc(1, sizeof *p);
    if (!server.pid)
        start();
    nats_server_stream(&server, "S", S_CONFIG);
    set_url(p, "s", way == WAY_EXCLUSIVE ? "stream=S&exclusive=on" : "stream=S");
    sink_rig_init(&p->rig);
    unsetenv("OUTBOX_NATS_PASSWORD");
    unsetenv("OUTBOX_NATS_TOKEN");
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

static void peer_arrived(void *peer, struct sink_arrivals *got)
{
    (void)peer;
    size_t n = nats_server_count(&server, "S");
    for (uint64_t seq = 1; seq <= n; seq++) {
        natsMsg *msg = nats_server_get(&server, "S", seq);
        const char *id = NULL;
        assert_int_equal(natsMsgHeader_Get(msg, "id", &id), NATS_OK);
        sink_arrivals_add(got, str_of(id),
                          (struct str){natsMsg_GetData(msg), (size_t)natsMsg_GetDataLength(msg)});
        natsMsg_Destroy(msg);
    }
}

static void peer_break(void *peer)
{
    (void)peer;
    nats_server_kill(&server);
}

static void peer_heal(void *peer)
{
    (void)peer;
    start();
}

static const char *peer_spoil(void *peer, struct sink_item *it, size_t spoilt)
{
    (void)peer;
    switch (spoilt) {
    case 0: sink_item_enlarge(it, 3 << 20); return "the server's max_payload";
    case 1: /* every byte of a control character becomes three */
        it->ev.headers = STR("{\"a\":\"\"}");
        {
            static char text[66000];
            memset(text, 'a', sizeof text - 1);
            memcpy(text, "{\"a\":\"", 6);
            memcpy(text + 65990, "\"}", 3);
            it->ev.headers = str_of(text);
        }
        return "the message's headers take";
    default: return NULL;
    }
}

const struct sink_case nats_case = {
    .name = "nats",
    .many = 3000,
    .concurrency = 4,
    SINK_PEER,
    SINK_PEER_BREAKS,
    .spoil = peer_spoil,
};

int nats_peer_setup(void **state)
{
    *state = peer_setup();
    return 0;
}

int nats_peer_teardown(void **state)
{
    peer_teardown(*state);
    return 0;
}

void open_timed(struct peer *p, const char *subject, const char *query, int64_t timeout_ms)
{
    set_url(p, subject, query);
    sink_rig_open(&p->rig,
                  (struct sink_config){.url = p->url, .timeout_ms = timeout_ms, .concurrency = 4});
}

void open_with(struct peer *p, const char *subject, const char *query)
{
    open_timed(p, subject, query, 10000);
}

struct sink_item *run_one(struct peer *p, const char *payload)
{
    return sink_rig_send(&p->rig, payload);
}

void drive_until_answered(struct peer *p, size_t count)
{
    while (p->rig.answered < count) {
        p->rig.sk->ops->drive(p->rig.sk);
        if (p->rig.answered < count)
            sink_rig_wait(&p->rig);
    }
}

void header_is(uint64_t seq, const char *name, const char *want)
{
    natsMsg *msg = nats_server_get(&server, "S", seq);
    const char *value = NULL;
    natsStatus s = natsMsgHeader_Get(msg, name, &value);
    if (!want)
        assert_int_equal(s, NATS_NOT_FOUND);
    else if (s != NATS_OK || strcmp(value, want) != 0)
        fail_msg("%s is %s, expected %s", name, value ? value : "absent", want);
    natsMsg_Destroy(msg);
}
