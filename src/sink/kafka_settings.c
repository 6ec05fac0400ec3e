/* kafka_settings.c: the parameters in the URL of a Kafka sink. */
#include <stdlib.h>

#include "base/text.h"
#include "sink/kafka_impl.h"

#define PASSWORD_ENV "OUTBOX_KAFKA_PASSWORD"
#define DEFAULT_PORT "9092"
#define PARTITIONS_MAX 10000
#define REPLICAS_MAX 100

static const char *const mechanisms[] = {"default", "plain", "scram-sha-256", "scram-sha-512",
                                         NULL};

/* Properties that cannot be set, by prefix, and the reason. */
static const struct {
    const char *begins, *why;
} refused[] = {
    {"acks", "every event is confirmed by all replicas in sync"},
    {"request.required.acks", "every event is confirmed by all replicas in sync"},
    {"enable.idempotence", "without it, events would be repeated and reordered"},
    {"enable.gapless.guarantee", "without it, events would overtake a failed event"},
    {"message.timeout.ms", "the consumer's timeout applies instead"},
    {"delivery.timeout.ms", "the consumer's timeout applies instead"},
    {"max.in.flight", "more requests in flight would change the order of events"},
    {"retries", "fewer retries would break up batches"},
    {"message.send.max.retries", "fewer retries would break up batches"},
    {"queuing.strategy", "another strategy would change the order of events"},
    {"delivery.report.only.error", "no event would ever count as delivered"},
    {"transactional.id", "a producer with the same name elsewhere would end ours"},
    {"bootstrap.servers", "the hosts of the URL apply instead"},
    {"metadata.broker.list", "the hosts of the URL apply instead"},
    {"security.protocol", "use kafka+ssl:// for TLS, and USER@ to log in"},
    {"sasl.username", "write USER@ before the host"},
    {"sasl.password", "a password belongs in password-file=FILE or " PASSWORD_ENV},
    {"sasl.mechanism", "write sasl=MECHANISM"},
    {"enable.ssl.certificate.verification", "certificates are always verified; ca=FILE names our "
                                            "CA"},
    {"ssl.endpoint.identification.algorithm", "the host names in certificates are always verified"},
    {"ssl.key.p", "a secret does not belong in a URL; use cert=FILE and key=FILE"},
    {"ssl.keystore.password", "a secret does not belong in a URL; use cert=FILE and key=FILE"},
    {"sasl.oauthbearer.client.secret", "a secret does not belong in a URL"},
    {"plugin.library.paths", "plugins would run other code in this process"},
    {"test.", "simulated brokers would deliver nothing"},
    {"log", "the relay does the logging"},
    {"opaque", "the property is internal"},
    {"enabled_events", "the property is internal"},
};

static int check_property(const char *name, const char *value, struct error *err)
{
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        if (strncmp(name, refused[i].begins, strlen(refused[i].begins)) == 0)
            return err_set(err, ERR_CONFIG, "%s cannot be set: %s", name, refused[i].why);
    }
    bool random = strcmp(name, "partitioner") == 0 && strcmp(value, "random") == 0;
    if (random)
        return err_set(err, ERR_CONFIG,
                       "partitioner=random would put events with the same key into several "
                       "partitions");
    return 0;
}

/* Parses "linger.ms=5", the rest of a parameter whose name starts with "rdkafka.". */
static int set_property(void *field, const char *value, const struct option_def *o,
                        struct error *err)
{
    (void)o;
    char name[200];
    const char *equals = strchr(value, '=');
    if (!equals || equals == value || (size_t)(equals - value) >= sizeof name)
        return err_set(err, ERR_CONFIG, "write rdkafka.PROPERTY=VALUE");
    memcpy(name, value, (size_t)(equals - value));
    name[equals - value] = '\0';

    if (check_property(name, equals + 1, err) != 0)
        return -1;
    char said[KAFKA_TEXT]; /* the library validates name and value */
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_res_t known = rd_kafka_conf_set(conf, name, equals + 1, said, sizeof said);
    rd_kafka_conf_destroy(conf);
    if (known != RD_KAFKA_CONF_OK) {
        text_clean(said, sizeof said, said, strlen(said));
        return err_set(err, ERR_CONFIG, "librdkafka: %s", said);
    }

    struct kafka_properties *all = field;
    struct kafka_property *more = reallocarray(all->list, all->n + 1, sizeof *more);
    if (!more)
        return err_nomem(err);
    all->list = more;
    struct kafka_property *one = &more[all->n++];
    *one = (struct kafka_property){strdup(name), strdup(equals + 1)};
    if (!one->name || !one->value)
        return err_nomem(err);
    return 0;
}

static const struct option_def options[] = {
    BROKER_OPTIONS(kafka_settings, "plain"),
    {"sasl", "MECHANISM", "default",
     "login mechanism: plain, scram-sha-256 or scram-sha-512; default: plain with TLS, "
     "scram-sha-512 without",
     option_choice, .at = offsetof(struct kafka_settings, sasl), .names = mechanisms},
    {"create", "on|off", "off", "create a missing topic", option_bool,
     .at = offsetof(struct kafka_settings, create)},
    {"dedupe", "on|off", "off",
     "look up an event that a vanished relay may have written, and do not write it twice",
     option_bool, .at = offsetof(struct kafka_settings, dedupe)},
    {"partitions", "N", "1", "number of partitions of a created topic", option_int,
     .at = offsetof(struct kafka_settings, partitions), .min = 1, .max = PARTITIONS_MAX},
    {"replicas", "N", "0", "number of replicas of a created topic; 0: the brokers' default",
     option_int, .at = offsetof(struct kafka_settings, replicas), .max = REPLICAS_MAX},
    {"rdkafka.*", "VALUE", NULL, "any librdkafka property that does not weaken the guarantees",
     set_property, .at = offsetof(struct kafka_settings, properties)},
    {NULL},
};

static int check_settings(const struct kafka_settings *s, struct url *u, struct error *err)
{
    bool routed = s->format == MESSAGE_DEBEZIUM && u->path[0] == '\0';
    if (routed && option_copy(&u->path, BROKER_DEBEZIUM_ROUTE, NULL, err) != 0)
        return -1;
    if (u->path[0] == '\0')
        return err_set(err, ERR_CONFIG,
                       "the URL names no topic: write kafka://HOST:PORT/TOPIC, where TOPIC may "
                       "have " TEMPLATE_FIELDS ": kafka://HOST/events.{aggregate_type}");
    bool has_password = u->password_file || u->password;
    if (u->user && !has_password)
        return err_set(err, ERR_CONFIG,
                       "a user requires a password, from password-file=FILE or " PASSWORD_ENV);
    return broker_check_url(u, "kafka+ssl", err);
}

int kafka_settings_read(const char *url, struct kafka_settings *s, struct url *u, struct error *err)
{
    int rc = url_parse(url, DEFAULT_PORT, PASSWORD_ENV, options, s, u, err);
    if (rc == 0)
        rc = check_settings(s, u, err);
    if (rc != 0)
        return err_prefix(err, "kafka sink");
    return 0;
}

void kafka_settings_release(struct kafka_settings *s)
{
    for (size_t i = 0; i < s->properties.n; i++) {
        free(s->properties.list[i].name);
        free(s->properties.list[i].value);
    }
    free(s->properties.list);
    s->properties = (struct kafka_properties){0};
    broker_settings_release(options, s);
}
