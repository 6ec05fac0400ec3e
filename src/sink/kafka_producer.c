/* kafka_producer.c: a librdkafka producer and its threads: creation, and destruction in the
 * background. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>

#include "base/fd.h"
#include "base/num.h"
#include "base/text.h"
#include "sink/kafka_impl.h"

#define LINGER_MS "2"           /* how long a message waits to be batched */
#define RECONNECT_MAX_MS "1000" /* between attempts to connect */
#define ASK_MIN_MS 1000
#define ASK_MAX_MS 15000
#define NO_TOPIC_MS "3000"      /* how long a topic may be unknown: it may just be being created */
#define MESSAGE_MAX "200000000" /* bytes; only the brokers' limits count */

/* A property of the library; without a value it is left at its default. */
struct property {
    const char *name, *value;
};

static int set_all(rd_kafka_conf_t *conf, const struct property *all, size_t n, struct error *err)
{
    char said[KAFKA_TEXT];
    for (size_t i = 0; i < n; i++) {
        if (!all[i].value)
            continue;
        if (rd_kafka_conf_set(conf, all[i].name, all[i].value, said, sizeof said) ==
            RD_KAFKA_CONF_OK)
            continue;
        text_clean(said, sizeof said, said, strlen(said));
        return err_set(err, ERR_CONFIG, "kafka sink: librdkafka: %s", said);
    }
    return 0;
}

static const char *list_hosts(struct buf *list, const struct broker_url *u)
{
    buf_init(list, 64 << 10);
    for (size_t i = 0; i < u->n_hosts; i++) {
        bool v6 = strchr(u->hosts[i].host, ':') != NULL;
        buf_addf(list, v6 ? "%s[%s]:%s" : "%s%s:%s", i ? "," : "", u->hosts[i].host,
                 u->hosts[i].port);
    }
    return buf_cstr(list);
}

/* Returns the SASL mechanism. Without TLS, PLAIN would expose the password to the network. */
static const char *mechanism(enum kafka_sasl sasl, bool tls)
{
    switch (sasl) {
    case KAFKA_SASL_PLAIN: return "PLAIN";
    case KAFKA_SASL_256: return "SCRAM-SHA-256";
    case KAFKA_SASL_512: return "SCRAM-SHA-512";
    case KAFKA_SASL_DEFAULT: break;
    }
    return tls ? "PLAIN" : "SCRAM-SHA-512";
}

/* Keeps the library from writing to stderr. Connection errors arrive as events. */
static void say_nothing(const rd_kafka_t *rk, int level, const char *facility, const char *text)
{
    (void)rk;
    (void)level;
    (void)facility;
    (void)text;
}

int64_t kafka_producer_patience_ms(const struct kafka_sink *k)
{
    int64_t limit = k->b.base.cfg.timeout_ms > 0 ? k->b.base.cfg.timeout_ms : 3 * ASK_MAX_MS;
    return max_i64(ASK_MIN_MS, min_i64(limit / 2, ASK_MAX_MS));
}

int kafka_producer_conf(const struct kafka_sink *k, rd_kafka_conf_t *conf, struct error *err)
{
    const struct broker_url *u = &k->url;
    bool tls = strcmp(u->scheme, "kafka+ssl") == 0;
    const char *protocol = tls ? "ssl" : "plaintext";
    if (u->user)
        protocol = tls ? "sasl_ssl" : "sasl_plaintext";
    char client[80], patience[24];
    struct buf list;
    const char *hosts = list_hosts(&list, u);
    snprintf(client, sizeof client, "outbox:%s", k->b.base.cfg.consumer);
    snprintf(patience, sizeof patience, "%lld", (long long)kafka_producer_patience_ms(k));

    rd_kafka_conf_set_log_cb(conf, say_nothing);
    char *password = NULL;
    err->code = ERR_NONE;
    if (u->user)
        password = broker_url_password(u, err);
    int rc = -1;
    if (!hosts) {
        err_nomem(err);
    } else if (err->code) {
        err_prefix(err, "%s", u->label);
    } else {
        const struct property all[] = {
            {"client.id", client},
            {"bootstrap.servers", hosts},
            {"security.protocol", protocol},
            {"sasl.mechanism", u->user ? mechanism(k->set.sasl, tls) : NULL},
            {"sasl.username", u->user},
            {"sasl.password", password},
            {"ssl.ca.location", u->ca},
            {"ssl.certificate.location", u->cert},
            {"ssl.key.location", u->key},
            {"ssl.endpoint.identification.algorithm", tls ? "https" : NULL},
            {"socket.timeout.ms", patience},
            {"socket.connection.setup.timeout.ms", patience},
            {"reconnect.backoff.max.ms", RECONNECT_MAX_MS},
        };
        rc = set_all(conf, all, sizeof all / sizeof all[0], err);
    }
    if (password)
        explicit_bzero(password, strlen(password));
    free(password);
    buf_release(&list);
    return rc;
}

static int make_conf(const struct kafka_sink *k, rd_kafka_conf_t **ret, struct error *err)
{
    static const struct property usual[] = {
        {"partitioner", "murmur2_random"},
        {"linger.ms", LINGER_MS},
        {"message.max.bytes", MESSAGE_MAX},
        {"topic.metadata.propagation.max.ms", NO_TOPIC_MS},
    };
    char batch[24];
    snprintf(batch, sizeof batch, "%lld", (long long)k->batch_bytes);
    /* The settings that the guarantees depend on come last, so that nothing can override them. The
     * sink enforces time limits: a message that times out inside the library would leave a gap, and
     * those behind it would overtake it. */
    const struct property last[] = {
        {"batch.size", k->batch_bytes ? batch : NULL},
        {"linger.ms", kafka_singly(k) ? "0" : NULL},
        {"enable.idempotence", "true"},
        {"enable.gapless.guarantee", "true"},
        {"message.timeout.ms", "0"},
    };
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    if (!conf)
        return err_nomem(err);
    int rc = kafka_producer_conf(k, conf, err);
    if (rc == 0)
        rc = set_all(conf, usual, sizeof usual / sizeof usual[0], err);
    for (size_t i = 0; i < k->set.properties.n && rc == 0; i++) {
        const struct kafka_property *p = &k->set.properties.list[i];
        rc = set_all(conf, &(struct property){p->name, p->value}, 1, err);
    }
    if (rc == 0)
        rc = set_all(conf, last, sizeof last / sizeof last[0], err);
    if (rc != 0) {
        rd_kafka_conf_destroy(conf);
        return -1;
    }
    rd_kafka_conf_set_events(conf, RD_KAFKA_EVENT_DR | RD_KAFKA_EVENT_ERROR);
    *ret = conf;
    return 0;
}

/* Frees a producer. Waits for its threads. */
static void destroy_producer(struct kafka_producer *p)
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

void kafka_producer_wake(const struct kafka_producer *p)
{
    uint64_t one = 1;
    (void)!write(p->fd, &one, sizeof one);
}

static void *check_topic(void *producer)
{
    struct kafka_producer *p = producer;
    kafka_topic_check(p);
    atomic_store(&p->checked, true);
    kafka_producer_wake(p);
    return NULL;
}

static int open_producer(struct kafka_sink *k, struct kafka_producer *p, struct error *err)
{
    static const uint64_t one = 1;
    char said[KAFKA_TEXT];
    rd_kafka_conf_t *conf = NULL;
    p->fd = fd_above_stdio(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (p->fd < 0)
        return err_set(err, ERR_UNAVAILABLE, "kafka sink: out of file descriptors");
    if (make_conf(k, &conf, err) != 0)
        return -1;
    p->rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, said, sizeof said);
    if (!p->rk) {
        rd_kafka_conf_destroy(conf);
        text_clean(said, sizeof said, said, strlen(said));
        return err_set(err, ERR_CONFIG, "kafka sink: librdkafka: %s", said);
    }
    p->queue = rd_kafka_queue_get_main(p->rk);
    rd_kafka_queue_io_event_enable(p->queue, p->fd, &one, sizeof one);
    if (k->fixed)
        p->topic = rd_kafka_topic_new(p->rk, k->topic, NULL);
    if (k->fixed && !p->topic)
        return err_set(err, ERR_CONFIG, "kafka sink: librdkafka rejects the topic %s", k->topic);
    return 0;
}

int kafka_producer_new(struct kafka_sink *k, struct kafka_producer **ret, struct error *err)
{
    struct kafka_producer *p = calloc(1, sizeof *p);
    if (!p)
        return err_nomem(err);
    p->fd = -1;
    if (open_producer(k, p, err) != 0) {
        destroy_producer(p);
        return -1;
    }
    p->single = kafka_singly(k);
    k->told_facts = false;
    k->answered = false;
    if (k->fixed) {
        /* The topic is checked in parallel with the first deliveries. If no thread can be started
         * it is not checked, which costs advice and cautions but no event. */
        p->set = &k->set;
        p->patience_ms = ASK_MAX_MS;
        snprintf(p->topic_name, sizeof p->topic_name, "%s", k->topic);
        p->checking = pthread_create(&p->check, NULL, check_topic, p) == 0;
    }
    *ret = p;
    return 0;
}

/* The end of a producer */

static void *destroy_retired(void *retired)
{
    struct kafka_retired *r = retired;
    destroy_producer(r->p);
    atomic_store(&r->gone, true);
    return NULL;
}

static void join_retired(struct kafka_retired *r)
{
    pthread_join(r->thread, NULL);
    *r = (struct kafka_retired){0};
}

static struct kafka_retired *free_place(struct kafka_sink *k)
{
    for (size_t i = 0; i < KAFKA_RETIRED; i++) {
        struct kafka_retired *r = &k->retired[i];
        if (r->used && atomic_load(&r->gone))
            join_retired(r);
        if (!r->used)
            return r;
    }
    return NULL;
}

bool kafka_producer_room(struct kafka_sink *k)
{
    return free_place(k) != NULL;
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

    struct kafka_retired *r = free_place(k);
    if (r) {
        *r = (struct kafka_retired){.used = true, .p = p};
        if (pthread_create(&r->thread, NULL, destroy_retired, r) == 0)
            return;
        *r = (struct kafka_retired){0};
    }
    destroy_producer(p); /* no thread available: block here */
}

void kafka_producer_join(struct kafka_sink *k)
{
    for (size_t i = 0; i < KAFKA_RETIRED; i++) {
        if (k->retired[i].used)
            join_retired(&k->retired[i]);
    }
}
