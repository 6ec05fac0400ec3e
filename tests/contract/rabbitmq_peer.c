#include "rabbitmq_peer.h"

#include <stdlib.h>
#include <string.h>

#include "sink/rabbitmq_impl.h"

struct rabbitmq_server broker;
bool secured;

static void clean(void)
{
    rabbitmq_server_start(&broker);
    rabbitmq_server_delete(&broker, "orders", "q");
    rabbitmq_server_declare(&broker, "orders", true);
    rabbitmq_server_queue(&broker, "q", 0);
    rabbitmq_server_bind(&broker, "q", "orders", "#");
    unsetenv(RABBITMQ_PASSWORD_ENV);
}

static void set_url(struct peer *p, const char *exchange, const char *query)
{
    if (secured)
        snprintf(p->url, sizeof p->url, "amqps://127.0.0.1:%d/%%2F/%s?ca=%s/ca.crt&%s",
                 broker.tls_port, exchange, broker.dir, query);
    else
        snprintf(p->url, sizeof p->url, "amqp://127.0.0.1:%d/%%2F/%s?%s", broker.port, exchange,
                 query);
}

static void *peer_setup(void)
{
    struct peer *p = calloc(1, sizeof *p);
    clean();
    set_url(p, "orders", "routing-key=k");
    sink_rig_init(&p->rig);
    return p;
}

static void peer_teardown(void *peer)
{
    struct peer *p = peer;
    sink_rig_release(&p->rig);
    sink_arrivals_release(&p->got);
    free(p);
}

static const char *peer_url(void *peer)
{
    return ((struct peer *)peer)->url;
}

static struct str text_of(amqp_bytes_t b)
{
    return (struct str){b.bytes, b.len};
}

/* peer_arrived drains the queue and returns everything received so far. */
static void peer_arrived(void *peer, struct sink_arrivals *got)
{
    struct peer *p = peer;
    amqp_message_t m;
    while (rabbitmq_server_get(&broker, "q", &m, NULL)) {
        sink_arrivals_add(&p->got, text_of(m.properties.message_id), text_of(m.body));
        amqp_destroy_message(&m);
    }
    for (size_t i = 0; i < p->got.n; i++)
        sink_arrivals_add(got, str_of(p->got.a[i].id),
                          (struct str){p->got.a[i].payload, p->got.a[i].n});
}

/* peer_break acts like an operator before an upgrade: the broker closes its ports and every
 * connection. */
static void peer_break(void *peer)
{
    (void)peer;
    rabbitmq_server_hang_up(&broker);
    erlang("rabbit_maintenance:drain().");
}

static void peer_heal(void *peer)
{
    (void)peer;
    erlang("rabbit_maintenance:revive().");
}

static const char *peer_spoil(void *peer, struct sink_item *it, size_t way)
{
    static char headers[400];
    (void)peer;
    if (way >= 1)
        return NULL;
    snprintf(headers, sizeof headers, "{\"%0300d\":\"x\"}", 1);
    it->ev.headers = str_of(headers);
    return "name of a header has 300 bytes";
}

const struct sink_case rabbitmq_case = {
    .name = "rabbitmq",
    .many = 2000,
    .concurrency = 4,
    SINK_PEER,
    SINK_PEER_BREAKS,
    .spoil = peer_spoil,
};

int rabbitmq_peer_setup(void **state)
{
    *state = peer_setup();
    return 0;
}

int rabbitmq_peer_teardown(void **state)
{
    peer_teardown(*state);
    return 0;
}

void open_to(struct peer *p, const char *exchange, const char *query)
{
    set_url(p, exchange, query);
    sink_rig_open(&p->rig,
                  (struct sink_config){.url = p->url, .timeout_ms = 10000, .concurrency = 4});
}

void open_with(struct peer *p, const char *query)
{
    open_to(p, "orders", query);
}

struct sink_item *run_one(struct peer *p, const char *payload)
{
    return sink_rig_send(&p->rig, payload);
}

size_t messages(const char *queue)
{
    size_t n = 0;
    amqp_message_t m;
    while (rabbitmq_server_get(&broker, queue, &m, NULL)) {
        amqp_destroy_message(&m);
        n++;
    }
    return n;
}
