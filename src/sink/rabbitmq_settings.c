/* rabbitmq_settings.c: the URL of a RabbitMQ sink: the settings, and the connection. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/rabbitmq_impl.h"

#define OUT_MAX ((size_t)1 << 30) /* limit on queued bytes: one event may be large */
#define BEAT_MIN_MS 1000
#define BEAT_MAX_MS 3600000

static const char *const unroutable_names[] = {"retry", "reject", "ignore", NULL};
static const char *const auth_names[] = {"auto", "plain", "external", NULL};
static const char *const exchange_types[] = {"topic", "direct", "fanout", "headers", NULL};
static const char *const queue_types[] = {"quorum", "classic", "stream", NULL};

static const struct option_def options[] = {
    {"routing-key", "TEMPLATE", NULL,
     "routing key of an event, a template with " TEMPLATE_FIELDS "; default: {type}", option_copy,
     .at = offsetof(struct rabbitmq_settings, routing_key)},
    BROKER_OPTIONS(rabbitmq_settings, "plain"),
    {"ce-prefix", "TEXT", "cloudEvents:", "prefix of CloudEvents headers", option_copy,
     .at = offsetof(struct rabbitmq_settings, ce_prefix)},
    {"unroutable", "WHAT", "retry", "treatment of an event for which no queue is bound",
     option_choice, .at = offsetof(struct rabbitmq_settings, unroutable),
     .names = unroutable_names},
    {"auth", "HOW", "auto", "SASL mechanism: plain, or external for the client certificate",
     option_choice, .at = offsetof(struct rabbitmq_settings, auth), .names = auth_names},
    {"heartbeat", "DURATION", "30s", "heartbeat interval of both sides; 0s: none", option_span,
     .at = offsetof(struct rabbitmq_settings, heartbeat_ms), .max = BEAT_MAX_MS},
    {"create", "on|off", "off", "declare the exchange, and the queue if one is named", option_bool,
     .at = offsetof(struct rabbitmq_settings, create)},
    {"exchange-type", "TYPE", "topic", "type of the exchange that create declares", option_word,
     .at = offsetof(struct rabbitmq_settings, exchange_type), .names = exchange_types},
    {"queue", "NAME", NULL, "a queue that must exist, or that create declares and binds",
     option_file, .at = offsetof(struct rabbitmq_settings, queue)},
    {"queue-type", "TYPE", "quorum", "type of the queue that create declares", option_word,
     .at = offsetof(struct rabbitmq_settings, queue_type), .names = queue_types},
    {"binding", "KEY", "#", "binding key of that queue", option_copy,
     .at = offsetof(struct rabbitmq_settings, binding)},
    {NULL},
};

/* Splits VHOST/EXCHANGE at the last slash. An empty VHOST means the usual virtual host, which is
 * itself named by a slash. */
static int split_path(const char *path, struct rabbitmq_settings *s, struct error *err)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return err_set(err, ERR_CONFIG,
                       "write amqp://USER@HOST/VHOST/EXCHANGE, with the virtual host / written "
                       "as %%2F");
    if (slash == path)
        s->vhost = strdup("/");
    else
        s->vhost = strndup(path, (size_t)(slash - path));
    s->exchange = strdup(slash + 1);
    if (!s->vhost || !s->exchange)
        return err_nomem(err);
    bool too_long = strlen(s->vhost) > RABBIT_SHORT_MAX || strlen(s->exchange) > RABBIT_SHORT_MAX;
    if (too_long)
        return err_set(err, ERR_CONFIG, "a name in AMQP has at most %d bytes", RABBIT_SHORT_MAX);
    return 0;
}

/* Fills in defaults that depend on the rest of the URL: the routing key, and SASL EXTERNAL if only
 * a certificate is given. */
static int choose_defaults(struct rabbitmq_settings *s, const struct url *u, struct error *err)
{
    bool only_cert = u->cert && !u->user && !u->password_file;
    if (s->auth == AUTH_AUTO)
        s->auth = only_cert ? AUTH_EXTERNAL : AUTH_PLAIN;
    if (s->routing_key)
        return 0;
    bool names_queue = s->exchange[0] == '\0';
    if (names_queue)
        return err_set(err, ERR_CONFIG,
                       "the URL names no queue: without an exchange, add ?routing-key=QUEUE, or "
                       "name an exchange: amqp://USER@HOST/VHOST/EXCHANGE");
    const char *usual = s->format == MESSAGE_DEBEZIUM ? BROKER_DEBEZIUM_ROUTE : "{type}";
    return option_copy(&s->routing_key, usual, NULL, err);
}

static int check_settings(const struct rabbitmq_settings *s, const struct url *u, struct error *err)
{
    bool external = s->auth == AUTH_EXTERNAL;
    if (external && strcmp(u->scheme, "amqps") != 0)
        return err_set(err, ERR_CONFIG, "auth=external requires amqps://");
    if (external && !u->cert)
        return err_set(err, ERR_CONFIG, "auth=external requires cert=FILE and key=FILE");
    if (s->heartbeat_ms > 0 && s->heartbeat_ms < BEAT_MIN_MS)
        return err_set(err, ERR_CONFIG, "heartbeat must be 0s or at least 1s");

    bool long_queue = s->queue && strlen(s->queue) > RABBIT_SHORT_MAX;
    bool long_binding = strlen(s->binding) > RABBIT_SHORT_MAX;
    if (long_queue || long_binding)
        return err_set(err, ERR_CONFIG, "a name in AMQP has at most %d bytes", RABBIT_SHORT_MAX);
    if (s->queue && s->exchange[0] == '\0')
        return err_set(err, ERR_CONFIG, "queue requires an exchange to bind it to");
    return broker_check_url(u, "amqps", err);
}

int rabbitmq_settings_read(const char *url, struct rabbitmq_settings *s, struct url *u,
                           struct error *err)
{
    const char *port = strncmp(url, "amqps:", 6) == 0 ? "5671" : "5672";
    int rc = url_parse(url, port, RABBITMQ_PASSWORD_ENV, options, s, u, err);
    if (rc == 0)
        rc = split_path(u->path, s, err);
    if (rc == 0)
        rc = choose_defaults(s, u, err);
    if (rc == 0)
        rc = check_settings(s, u, err);
    if (rc != 0)
        return err_prefix(err, "rabbitmq sink");
    return 0;
}

void rabbitmq_settings_release(struct rabbitmq_settings *s)
{
    free(s->vhost);
    free(s->exchange);
    s->vhost = s->exchange = NULL;
    broker_settings_release(options, s);
}

struct rabbit_config rabbitmq_settings_conn(const struct rabbitmq_settings *s, const struct url *u,
                                            const char *who, const struct clock *clock)
{
    struct rabbit_config c = {
        .url = u,
        .tls = strcmp(u->scheme, "amqps") == 0,
        .vhost = s->vhost,
        .external = s->auth == AUTH_EXTERNAL,
        .heartbeat_s = (int)(s->heartbeat_ms / 1000),
        .clock = clock,
        .out_max = OUT_MAX,
    };
    snprintf(c.name, sizeof c.name, "outbox:%s", who);
    return c;
}
