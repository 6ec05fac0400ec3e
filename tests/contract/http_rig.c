#include "http_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *peer_setup(void)
{
    return http_peer_new();
}

static void peer_teardown(void *peer)
{
    http_peer_free(peer);
}

static const char *peer_url(void *peer)
{
    return http_peer_url(peer, "127.0.0.1");
}

static void peer_arrived(void *peer, struct sink_arrivals *got)
{
    http_peer_arrived(peer, got);
}

static void peer_break(void *peer)
{
    http_peer_stop(peer);
}

static void peer_heal(void *peer)
{
    http_peer_start(peer);
}

static char large[200 * 1024], many[4096]; /* the values that peer_spoil writes into events */

static const char *peer_spoil(void *peer, struct sink_item *it, size_t way)
{
    (void)peer;
    memset(large, way ? 'k' : 1, sizeof large);
    switch (way) {
    case 0: /* a key that grows to three times its size in a header */
    case 1:
        it->ev.aggregate_id = (struct str){large, sizeof large};
        return "aggregate_id has 204800 bytes";
    case 2: it->ev.tenant = (struct str){large, 2000}; return "tenant has 2000 bytes";
    case 3: it->ev.type = (struct str){large, 300}; return "type has 300 bytes";
    case 4: it->ev.id = STR("1\r\nX-Evil: 1"); return "the event's id cannot be written";
    case 5:
        strcpy(many, "{");
        for (int i = 0; i < 70; i++)
            sprintf(many + strlen(many), "%s\"h%d\":\"v\"", i ? "," : "", i);
        strcat(many, "}");
        it->ev.headers = str_of(many);
        return "too many headers; a request may have 64";
    default: return NULL;
    }
}

const struct sink_case http_case = {
    .name = "http",
    .many = 2000,
    .concurrency = 32,
    SINK_PEER,
    SINK_PEER_BREAKS,
    .spoil = peer_spoil,
};

int http_rig_setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    f->peer = http_peer_new();
    sink_rig_init(&f->rig);
    sink_tmp_new(f->dir);
    snprintf(f->secrets, sizeof f->secrets, "%s/secrets", f->dir);
    *state = f;
    return 0;
}

int http_rig_teardown(void **state)
{
    struct fixture *f = *state;
    sink_rig_release(&f->rig);
    http_peer_free(f->peer);
    sink_tmp_remove(f->dir);
    http_options_release(&f->o);
    free(f);
    return 0;
}

void open_at(struct fixture *f, const char *host)
{
    sink_rig_open(&f->rig, (struct sink_config){.url = http_peer_url(f->peer, host),
                                                .timeout_ms = 30000,
                                                .concurrency = 8,
                                                .http = &f->o});
}

void open_here(struct fixture *f)
{
    open_at(f, "127.0.0.1");
}

struct sink_item *deliver(struct fixture *f, const char *payload)
{
    return sink_rig_deliver(&f->rig, payload);
}

void refuses(struct http_options *o, const char *url, const char *why, const char *secret)
{
    struct sink_config cfg = {.url = url, .timeout_ms = 1000, .concurrency = 1, .http = o};
    sink_assert_refused(cfg, why, secret);
}

void assert_head_has(struct fixture *f, size_t i, const char *line)
{
    char *head = http_peer_head(f->peer, i);
    if (!strstr(head, line))
        fail_msg("\"%s\" is missing from\n%s", line, head);
    free(head);
}

void assert_head_lacks(struct fixture *f, size_t i, const char *text)
{
    char *head = http_peer_head(f->peer, i);
    if (strstr(head, text))
        fail_msg("unexpected \"%s\" in\n%s", text, head);
    free(head);
}
