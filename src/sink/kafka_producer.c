/* kafka_producer.c: a producer of librdkafka and its threads: made, and destroyed without waiting
 * for it. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>

#include "base/fd.h"
#include "base/text.h"
#include "sink/kafka_impl.h"

#define LINGER_MS 2           /* how long a message waits for company */
#define RECONNECT_MAX_MS 1000 /* between two tries to connect */
#define ASK_MIN_MS 1000
#define ASK_MAX_MS 15000
#define NO_TOPIC_MS 3000        /* how long a topic may be unknown: it may be on its way */
#define MESSAGE_MAX "200000000" /* bytes; the brokers' limits are what counts */

static int set(rd_kafka_conf_t *conf, const char *name, const char *value, struct error *err)
{
    char said[KAFKA_TEXT];
    if (rd_kafka_conf_set(conf, name, value, said, sizeof said) == RD_KAFKA_CONF_OK)
        return 0;
    text_clean(said, sizeof said, said, strlen(said));
    return err_set(err, ERR_CONFIG, "kafka sink: librdkafka says: %s", said);
}

static int set_number(rd_kafka_conf_t *conf, const char *name, int64_t value, struct error *err)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    return set(conf, name, text, err);
}

static int set_hosts(rd_kafka_conf_t *conf, const struct broker_url *u, struct error *err)
{
    struct buf list;
    buf_init(&list, 64 << 10);
    for (size_t i = 0; i < u->n_hosts; i++) {
        bool v6 = strchr(u->hosts[i].host, ':') != NULL;
        buf_addf(&list, v6 ? "%s[%s]:%s" : "%s%s:%s", i ? "," : "", u->hosts[i].host,
                 u->hosts[i].port);
    }
    const char *hosts = buf_cstr(&list);
    int rc;
    if (hosts)
        rc = set(conf, "bootstrap.servers", hosts, err);
    else
        rc = err_nomem(err);
    buf_release(&list);
    return rc;
}

static int set_password(rd_kafka_conf_t *conf, const struct broker_url *u, struct error *err)
{
    char *password = broker_url_password(u, err);
    if (!password && err->code)
        return err_prefix(err, "%s", u->label);
    if (!password)
        return 0;
    int rc = set(conf, "sasl.password", password, err);
    explicit_bzero(password, strlen(password));
    free(password);
    return rc;
}

static const char *mechanism(enum kafka_sasl sasl, bool tls)
{
    switch (sasl) {
    case KAFKA_SASL_PLAIN: return "PLAIN";
    case KAFKA_SASL_256: return "SCRAM-SHA-256";
    case KAFKA_SASL_512: return "SCRAM-SHA-512";
    case KAFKA_SASL_DEFAULT: break;
    }
    /* PLAIN shows the password to whoever listens. */
    return tls ? "PLAIN" : "SCRAM-SHA-512";
}

static int set_login(rd_kafka_conf_t *conf, const struct kafka_sink *k, bool tls, struct error *err)
{
    const struct broker_url *u = &k->url;
    if (!u->user)
        return set(conf, "security.protocol", tls ? "ssl" : "plaintext", err);
    if (set(conf, "security.protocol", tls ? "sasl_ssl" : "sasl_plaintext", err) != 0)
        return -1;
    if (set(conf, "sasl.mechanism", mechanism(k->set.sasl, tls), err) != 0)
        return -1;
    if (set(conf, "sasl.username", u->user, err) != 0)
        return -1;
    return set_password(conf, u, err);
}

static int set_tls(rd_kafka_conf_t *conf, const struct broker_url *u, struct error *err)
{
    const struct {
        const char *name, *value;
    } files[] = {
        {"ssl.ca.location", u->ca},
        {"ssl.certificate.location", u->cert},
        {"ssl.key.location", u->key},
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        if (files[i].value && set(conf, files[i].name, files[i].value, err) != 0)
            return -1;
    }
    return set(conf, "ssl.endpoint.identification.algorithm", "https", err);
}

/* say_nothing keeps the library from writing to the standard error output. What it has to say about
 * connections comes as events. */
static void say_nothing(const rd_kafka_t *rk, int level, const char *facility, const char *text)
{
    (void)rk;
    (void)level;
    (void)facility;
    (void)text;
}

static int64_t within(int64_t value, int64_t min, int64_t max)
{
    if (value < min)
        return min;
    return value > max ? max : value;
}

/* set_patience makes the library give up on a silent broker long before the deliveries' own time is
 * up, so that it can try another. */
static int set_patience(rd_kafka_conf_t *conf, const struct kafka_sink *k, struct error *err)
{
    int64_t limit = k->base.cfg.timeout_ms > 0 ? k->base.cfg.timeout_ms : 3 * ASK_MAX_MS;
    if (set_number(conf, "socket.timeout.ms", within(limit / 2, ASK_MIN_MS, ASK_MAX_MS), err) != 0)
        return -1;
    if (set_number(conf, "socket.connection.setup.timeout.ms",
                   within(limit / 2, ASK_MIN_MS, ASK_MAX_MS), err) != 0)
        return -1;
    return set_number(conf, "reconnect.backoff.max.ms", RECONNECT_MAX_MS, err);
}

int kafka_producer_conf(const struct kafka_sink *k, rd_kafka_conf_t *conf, struct error *err)
{
    char client[80];
    bool tls = strcmp(k->url.scheme, "kafka+ssl") == 0;
    snprintf(client, sizeof client, "outbox:%s", k->base.cfg.consumer);
    rd_kafka_conf_set_log_cb(conf, say_nothing);
    if (set(conf, "client.id", client, err) != 0)
        return -1;
    if (set_hosts(conf, &k->url, err) != 0)
        return -1;
    if (set_login(conf, k, tls, err) != 0)
        return -1;
    if (tls && set_tls(conf, &k->url, err) != 0)
        return -1;
    return set_patience(conf, k, err);
}

/* The settings that the guarantees rest on come last, so that nothing else can replace them. Time
 * is kept by the sink: a message that times out inside the library would leave a gap, and those
 * behind it would overtake it. */
static const struct {
    const char *name, *value;
} guarantees[] = {
    {"enable.idempotence", "true"},
    {"enable.gapless.guarantee", "true"},
    {"message.timeout.ms", "0"},
};

static int set_properties(rd_kafka_conf_t *conf, const struct kafka_sink *k, struct error *err)
{
    const struct kafka_properties *more = &k->set.properties;
    if (set(conf, "partitioner", "murmur2_random", err) != 0)
        return -1;
    if (set_number(conf, "linger.ms", LINGER_MS, err) != 0)
        return -1;
    if (set(conf, "message.max.bytes", MESSAGE_MAX, err) != 0)
        return -1;
    if (set_number(conf, "topic.metadata.propagation.max.ms", NO_TOPIC_MS, err) != 0)
        return -1;
    for (size_t i = 0; i < more->n; i++) {
        if (set(conf, more->list[i].name, more->list[i].value, err) != 0)
            return -1;
    }
    if (k->batch_bytes && set_number(conf, "batch.size", k->batch_bytes, err) != 0)
        return -1;
    if (kafka_singly(k) && set(conf, "linger.ms", "0", err) != 0)
        return -1;
    for (size_t i = 0; i < sizeof guarantees / sizeof guarantees[0]; i++) {
        if (set(conf, guarantees[i].name, guarantees[i].value, err) != 0)
            return -1;
    }
    return 0;
}

static int make_conf(const struct kafka_sink *k, rd_kafka_conf_t **ret, struct error *err)
{
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    if (!conf)
        return err_nomem(err);
    if (kafka_producer_conf(k, conf, err) != 0 || set_properties(conf, k, err) != 0) {
        rd_kafka_conf_destroy(conf);
        return -1;
    }
    rd_kafka_conf_set_events(conf, RD_KAFKA_EVENT_DR | RD_KAFKA_EVENT_ERROR);
    *ret = conf;
    return 0;
}

/* destroy frees a producer. It waits for its threads. */
static void destroy(struct kafka_producer *p)
{
    atomic_store(&p->quit, true);
    if (p->checking)
        pthread_join(p->check, NULL);
    if (p->topic)
        rd_kafka_topic_destroy(p->topic);
    if (p->queue)
        rd_kafka_queue_destroy(p->queue);
    if (p->rk)
        rd_kafka_destroy(p->rk);
    if (p->fd >= 0)
        close(p->fd);
    free(p);
}

void kafka_producer_ring(const struct kafka_producer *p)
{
    uint64_t one = 1;
    (void)!write(p->fd, &one, sizeof one);
}

static void *check(void *producer)
{
    struct kafka_producer *p = producer;
    kafka_topic_check(p);
    atomic_store(&p->checked, true);
    kafka_producer_ring(p);
    return NULL;
}

/* begin_check looks at the topic, beside the first deliveries. Without a thread there is no look,
 * which costs advice and cautions but no event. */
static void begin_check(struct kafka_sink *k, struct kafka_producer *p)
{
    if (!k->fixed)
        return;
    p->set = &k->set;
    p->patience_ms = ASK_MAX_MS;
    snprintf(p->topic_name, sizeof p->topic_name, "%s", k->topic);
    p->checking = pthread_create(&p->check, NULL, check, p) == 0;
}

static int open_producer(struct kafka_sink *k, struct kafka_producer *p, struct error *err)
{
    static const uint64_t one = 1;
    char said[KAFKA_TEXT];
    rd_kafka_conf_t *conf = NULL;
    p->fd = fd_above_stdio(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (p->fd < 0)
        return err_set(err, ERR_UNAVAILABLE, "kafka sink: no descriptor is left");
    if (make_conf(k, &conf, err) != 0)
        return -1;
    p->rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, said, sizeof said);
    if (!p->rk) {
        rd_kafka_conf_destroy(conf);
        text_clean(said, sizeof said, said, strlen(said));
        return err_set(err, ERR_CONFIG, "kafka sink: librdkafka says: %s", said);
    }
    p->queue = rd_kafka_queue_get_main(p->rk);
    rd_kafka_queue_io_event_enable(p->queue, p->fd, &one, sizeof one);
    if (k->fixed)
        p->topic = rd_kafka_topic_new(p->rk, k->topic, NULL);
    if (k->fixed && !p->topic)
        return err_set(err, ERR_CONFIG, "kafka sink: librdkafka does not take the topic %s",
                       k->topic);
    return 0;
}

int kafka_producer_new(struct kafka_sink *k, struct kafka_producer **ret, struct error *err)
{
    struct kafka_producer *p = calloc(1, sizeof *p);
    if (!p)
        return err_nomem(err);
    p->fd = -1;
    if (open_producer(k, p, err) != 0) {
        destroy(p);
        return -1;
    }
    p->single = kafka_singly(k);
    k->told_facts = false;
    k->answered = false;
    begin_check(k, p);
    *ret = p;
    return 0;
}

/* ---- the end of a producer ---- */

static void *bury(void *retired)
{
    struct kafka_retired *r = retired;
    destroy(r->p);
    atomic_store(&r->gone, true);
    return NULL;
}

static void reap(struct kafka_retired *r)
{
    pthread_join(r->thread, NULL);
    *r = (struct kafka_retired){0};
}

static struct kafka_retired *place(struct kafka_sink *k)
{
    for (size_t i = 0; i < KAFKA_RETIRED; i++) {
        struct kafka_retired *r = &k->retired[i];
        if (r->used && atomic_load(&r->gone))
            reap(r);
        if (!r->used)
            return r;
    }
    return NULL;
}

bool kafka_producer_room(struct kafka_sink *k)
{
    return place(k) != NULL;
}

void kafka_producer_retire(struct kafka_sink *k)
{
    struct kafka_producer *p = k->p;
    if (!p)
        return;
    k->p = NULL;
    rd_kafka_purge(p->rk, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT |
                              RD_KAFKA_PURGE_F_NON_BLOCKING);
    rd_kafka_queue_io_event_enable(p->queue, -1, NULL, 0);

    struct kafka_retired *r = place(k);
    if (r) {
        *r = (struct kafka_retired){.used = true, .p = p};
        if (pthread_create(&r->thread, NULL, bury, r) == 0)
            return;
        *r = (struct kafka_retired){0};
    }
    destroy(p); /* no thread can be had: it takes its time here */
}

void kafka_producer_join(struct kafka_sink *k)
{
    for (size_t i = 0; i < KAFKA_RETIRED; i++) {
        if (k->retired[i].used)
            reap(&k->retired[i]);
    }
}
