/* rabbitmq_settings.c: the URL of a RabbitMQ sink. */
#include <stdlib.h>
#include <string.h>

#include "sink/rabbitmq_impl.h"

#define BEAT_MIN_MS 1000
#define BEAT_MAX_MS 3600000

static const char *const unroutable_names[] = {"retry", "reject", "ignore", NULL};
static const char *const auth_names[] = {"auto", "plain", "external", NULL};
static const char *const exchange_types[] = {"topic", "direct", "fanout", "headers", NULL};
static const char *const queue_types[] = {"quorum", "classic", "stream", NULL};

static const struct option_def options[] = {
    {"routing-key", "TEMPLATE", NULL,
     "routing key of an event, made of " TEMPLATE_FIELDS "; {type} if not given", option_copy,
     .at = offsetof(struct rabbitmq_settings, routing_key)},
    {"format", "NAME", "plain", "how an event becomes a message", option_choice,
     .at = offsetof(struct rabbitmq_settings, format), .names = message_formats},
    {"source", "URI", NULL, "source of CloudEvents", option_copy,
     .at = offsetof(struct rabbitmq_settings, source)},
    {"ce-prefix", "TEXT", "cloudEvents:", "what begins the names of a CloudEvent's headers",
     option_copy, .at = offsetof(struct rabbitmq_settings, ce_prefix)},
    {"unroutable", "WHAT", "retry", "what becomes of an event that no queue is bound for",
     option_choice, .at = offsetof(struct rabbitmq_settings, unroutable),
     .names = unroutable_names},
    {"auth", "HOW", "auto", "SASL: plain, or external by the client certificate", option_choice,
     .at = offsetof(struct rabbitmq_settings, auth), .names = auth_names},
    {"heartbeat", "DURATION", "30s", "how often both sides say that they live; 0s: never",
     option_span, .at = offsetof(struct rabbitmq_settings, heartbeat_ms), .max = BEAT_MAX_MS},
    {"create", "on|off", "off", "declare the exchange, and the queue if one is named", option_bool,
     .at = offsetof(struct rabbitmq_settings, create)},
    {"exchange-type", "TYPE", "topic", "of the exchange that create declares", option_word,
     .at = offsetof(struct rabbitmq_settings, exchange_type), .names = exchange_types},
    {"queue", "NAME", NULL, "a queue that must exist, or that create declares and binds",
     option_file, .at = offsetof(struct rabbitmq_settings, queue)},
    {"queue-type", "TYPE", "quorum", "of the queue that create declares", option_word,
     .at = offsetof(struct rabbitmq_settings, queue_type), .names = queue_types},
    {"binding", "KEY", "#", "binding key of that queue", option_copy,
     .at = offsetof(struct rabbitmq_settings, binding)},
    {NULL},
};

/* split_path takes VHOST/EXCHANGE apart at the last slash, since the usual virtual host is a slash
 * itself. An empty VHOST means that one. */
static int split_path(const char *path, struct rabbitmq_settings *s, struct error *err)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return err_set(err, ERR_CONFIG,
                       "write amqp://USER@HOST/VHOST/EXCHANGE; the virtual host / is written %%2F");
    if (slash == path)
        s->vhost = strdup("/");
    else
        s->vhost = strndup(path, (size_t)(slash - path));
    s->exchange = strdup(slash + 1);
    if (!s->vhost || !s->exchange)
        return err_nomem(err);
    bool too_long = strlen(s->vhost) > RABBIT_SHORT_MAX || strlen(s->exchange) > RABBIT_SHORT_MAX;
    if (too_long)
        return err_set(err, ERR_CONFIG, "names in AMQP have at most %d bytes", RABBIT_SHORT_MAX);
    return 0;
}

/* set_key chooses the routing key where the URL has none. */
static int set_key(struct rabbitmq_settings *s, struct error *err)
{
    if (s->routing_key)
        return 0;
    bool names_queue = s->exchange[0] == '\0';
    if (names_queue)
        return err_set(err, ERR_CONFIG,
                       "which queue? without an exchange, add ?routing-key=QUEUE, or name an "
                       "exchange: amqp://USER@HOST/VHOST/EXCHANGE");
    const char *usual = s->format == MESSAGE_DEBEZIUM ? "outbox.event.{aggregate_type}" : "{type}";
    return option_copy(&s->routing_key, usual, NULL, err);
}

/* check_login checks what takes TLS. */
static int check_login(const struct rabbitmq_settings *s, const struct broker_url *u,
                       struct error *err)
{
    bool tls = strcmp(u->scheme, "amqps") == 0;
    bool external = s->auth == AUTH_EXTERNAL;
    bool takes_tls = u->ca || u->cert || external;
    if (takes_tls && !tls)
        return err_set(err, ERR_CONFIG, "ca, cert, key and auth=external take amqps://");
    if (external && !u->cert)
        return err_set(err, ERR_CONFIG, "auth=external takes cert=FILE and key=FILE");
    return 0;
}

/* check_queue checks the queue that is named, and how it is bound. */
static int check_queue(const struct rabbitmq_settings *s, struct error *err)
{
    bool long_queue = s->queue && strlen(s->queue) > RABBIT_SHORT_MAX;
    bool long_binding = strlen(s->binding) > RABBIT_SHORT_MAX;
    if (long_queue || long_binding)
        return err_set(err, ERR_CONFIG, "names in AMQP have at most %d bytes", RABBIT_SHORT_MAX);
    bool bindable = s->exchange[0] != '\0';
    if (s->queue && !bindable)
        return err_set(err, ERR_CONFIG, "queue takes an exchange to bind it to");
    return 0;
}

static int check(const struct rabbitmq_settings *s, const struct broker_url *u, struct error *err)
{
    if (check_login(s, u, err) != 0)
        return -1;
    bool beats = s->heartbeat_ms == 0 || s->heartbeat_ms >= BEAT_MIN_MS;
    if (!beats)
        return err_set(err, ERR_CONFIG, "heartbeat is 0s or at least 1s");
    return check_queue(s, err);
}

/* set_auth chooses EXTERNAL if all we have is a certificate. */
static void set_auth(struct rabbitmq_settings *s, const struct broker_url *u)
{
    if (s->auth != AUTH_AUTO)
        return;
    bool only_cert = u->cert && !u->user && !u->password_file;
    s->auth = only_cert ? AUTH_EXTERNAL : AUTH_PLAIN;
}

static int read_url(const char *url, struct rabbitmq_settings *s, struct broker_url *u,
                    struct error *err)
{
    const char *port = strncmp(url, "amqps:", 6) == 0 ? "5671" : "5672";
    if (broker_url_parse(url, port, RABBITMQ_PASSWORD_ENV, options, s, u, err) != 0)
        return -1;
    if (split_path(u->path, s, err) != 0)
        return -1;
    if (set_key(s, err) != 0)
        return -1;
    set_auth(s, u);
    return check(s, u, err);
}

int rabbitmq_settings_read(const char *url, struct rabbitmq_settings *s, struct broker_url *u,
                           struct error *err)
{
    *s = (struct rabbitmq_settings){0};
    *u = (struct broker_url){0};
    if (option_defaults(options, s, err) != 0)
        return -1;
    if (read_url(url, s, u, err) != 0)
        return err_prefix(err, "rabbitmq sink");
    return 0;
}

void rabbitmq_settings_release(struct rabbitmq_settings *s)
{
    free(s->vhost);
    free(s->exchange);
    free(s->routing_key);
    free(s->source);
    free(s->ce_prefix);
    free(s->queue);
    free(s->binding);
    *s = (struct rabbitmq_settings){0};
}
