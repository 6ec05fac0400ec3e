/* rabbitmq_login.c: the nodes of a broker, and as whom to connect to them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/rabbitmq_impl.h"

#define OUT_MAX ((size_t)1 << 30) /* ceiling of what is queued: one event may be large */

/* password_of is the password of guest where there is neither user nor password, as every client of
 * AMQP has it: it lets in from this machine only. */
static char *password_of(void *ctx, struct error *err)
{
    const struct broker_url *u = ctx;
    char *password = broker_url_password(u, err);
    bool nobody = !password && !err->code && !u->user;
    if (!nobody)
        return password;
    password = strdup("guest");
    if (!password)
        err_nomem(err);
    return password;
}

static int make_peers(struct rabbitmq_login *l, const struct broker_url *u, struct error *err)
{
    l->peers = calloc(u->n_hosts, sizeof *l->peers);
    l->labels = calloc(u->n_hosts, sizeof *l->labels);
    if (!l->peers || !l->labels)
        return err_nomem(err);
    for (size_t i = 0; i < u->n_hosts; i++) {
        const struct broker_host *h = &u->hosts[i];
        snprintf(l->labels[i], sizeof l->labels[i], "rabbitmq at %.200s:%.10s", h->host, h->port);
        l->peers[i] = (struct wire_peer){
            .label = l->labels[i],
            .host = h->host,
            .port = h->port,
            .tls = strcmp(u->scheme, "amqps") == 0,
            .files = {.ca = u->ca, .cert = u->cert, .key = u->key},
        };
    }
    return 0;
}

int rabbitmq_login_make(struct rabbitmq_login *l, const struct rabbitmq_settings *s,
                        struct broker_url *u, const char *who, struct rabbit_config *ret,
                        struct error *err)
{
    *l = (struct rabbitmq_login){0};
    snprintf(l->client, sizeof l->client, "outbox:%s", who);
    if (make_peers(l, u, err) != 0)
        return -1;
    *ret = (struct rabbit_config){
        .peers = l->peers,
        .n_peers = u->n_hosts,
        .vhost = s->vhost,
        .name = l->client,
        .user = u->user ? u->user : "guest",
        .external = s->auth == AUTH_EXTERNAL,
        .password = password_of,
        .password_ctx = u,
        .heartbeat_s = (int)(s->heartbeat_ms / 1000),
        .clock = &clock_system,
        .out_max = OUT_MAX,
    };
    return 0;
}

void rabbitmq_login_release(struct rabbitmq_login *l)
{
    free(l->peers);
    free(l->labels);
    *l = (struct rabbitmq_login){0};
}
