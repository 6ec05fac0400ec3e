/* kafka_producer.c: a librdkafka producer: its creation, the check of its topic, and its
 * destruction in the background. */
#include <stdio.h>
#include <stdlib.h>

#include "base/fd.h"
#include "base/num.h"
#include "base/text.h"
#include "base/url.h"
#include "sink/kafka_impl.h"

#define LINGER_MS "2"           /* how long a message waits to be batched */
#define RECONNECT_MAX_MS "1000" /* between attempts to connect */
#define ASK_MIN_MS 1000
#define ASK_MAX_MS 15000
#define NO_TOPIC_MS "3000" /* grace period for an unknown topic: its creation may be in progress */
#define MESSAGE_MAX "200000000" /* bytes: no limit besides those of the brokers */
#define SLICE_MS 100            /* polling interval, to check whether to stop */

/* A property of the library. Without a value, the library's default applies. */
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

static const char *list_hosts(struct buf *list, const struct url *u)
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
static void discard_log(const rd_kafka_t *rk, int level, const char *facility, const char *text)
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
    const struct url *u = &k->url;
    bool tls = strcmp(u->scheme, "kafka+ssl") == 0;
    const char *protocol = tls ? "ssl" : "plaintext";
    if (u->user)
        protocol = tls ? "sasl_ssl" : "sasl_plaintext";
    char client[80], patience[24];
    struct buf list;
    const char *hosts = list_hosts(&list, u);
    snprintf(client, sizeof client, "outbox:%s", k->b.base.cfg.consumer);
    snprintf(patience, sizeof patience, "%lld", (long long)kafka_producer_patience_ms(k));

    rd_kafka_conf_set_log_cb(conf, discard_log);
    char *password = NULL;
    err->code = ERR_NONE;
    if (u->user)
        password = url_password(u->password_file, u->password, err);
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
    url_password_free(password);
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
    /* The settings that the guarantees depend on come last, so that no other setting can override
     * them. The sink enforces time limits itself: a message that times out inside the library would
     * leave a gap, and later messages would overtake it. */
    const struct property last[] = {
        {"batch.size", k->batch_bytes ? batch : NULL},
        {"linger.ms", kafka_one_by_one(k) ? "0" : NULL},
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

/* Waits for the threads of a producer and destroys it, but does not free its memory. */
static void *destroy_producer(void *producer)
{
    struct kafka_producer *p = producer;
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
    atomic_store(&p->gone, true);
    return NULL;
}

/* The topic */

/* Returns whether the check must end: its producer is being destroyed, or the check took too
 * long. */
static bool check_is_over(const struct kafka_producer *p, int64_t began)
{
    int64_t ms = (clock_mono(&clock_system) - began) / MS_NS;
    return atomic_load(&p->quit) || ms >= p->patience_ms;
}

/* Sends an admin request, to create the topic or to describe its settings, and returns the reply;
 * NULL if none arrives. */
static rd_kafka_event_t *ask_admin(struct kafka_producer *p, rd_kafka_admin_op_t op)
{
    char said[KAFKA_TEXT];
    rd_kafka_AdminOptions_t *how = rd_kafka_AdminOptions_new(p->rk, op);
    rd_kafka_queue_t *queue = rd_kafka_queue_new(p->rk);
    rd_kafka_AdminOptions_set_request_timeout(how, (int)p->patience_ms, said, sizeof said);
    if (op == RD_KAFKA_ADMIN_OP_CREATETOPICS) {
        int replicas = p->set->replicas > 0 ? p->set->replicas : -1;
        rd_kafka_NewTopic_t *t = rd_kafka_NewTopic_new(p->topic_name, p->set->partitions, replicas,
                                                       said, sizeof said);
        if (t) {
            rd_kafka_CreateTopics(p->rk, &t, 1, how, queue);
            rd_kafka_NewTopic_destroy(t);
        }
    } else {
        rd_kafka_ConfigResource_t *c = rd_kafka_ConfigResource_new(RD_KAFKA_RESOURCE_TOPIC,
                                                                   p->topic_name);
        rd_kafka_DescribeConfigs(p->rk, &c, 1, how, queue);
        rd_kafka_ConfigResource_destroy(c);
    }

    int64_t began = clock_mono(&clock_system);
    rd_kafka_event_t *answer = NULL;
    while (!answer && !check_is_over(p, began))
        answer = rd_kafka_queue_poll(queue, SLICE_MS);
    rd_kafka_queue_destroy(queue);
    rd_kafka_AdminOptions_destroy(how);
    return answer;
}

/* Creates the topic. Succeeds if another relay has just created it. */
static rd_kafka_resp_err_t create_topic(struct kafka_producer *p)
{
    rd_kafka_event_t *answer = ask_admin(p, RD_KAFKA_ADMIN_OP_CREATETOPICS);
    if (!answer)
        return RD_KAFKA_RESP_ERR__TIMED_OUT;
    rd_kafka_resp_err_t code = rd_kafka_event_error(answer);
    const rd_kafka_CreateTopics_result_t *made = rd_kafka_event_CreateTopics_result(answer);
    size_t n = 0;
    const rd_kafka_topic_result_t **each = NULL;
    if (made)
        each = rd_kafka_CreateTopics_result_topics(made, &n);
    if (n > 0)
        code = rd_kafka_topic_result_error(each[0]);
    rd_kafka_event_destroy(answer);
    if (code == RD_KAFKA_RESP_ERR_TOPIC_ALREADY_EXISTS)
        return RD_KAFKA_RESP_ERR_NO_ERROR;
    return code;
}

static rd_kafka_resp_err_t read_topic(struct kafka_producer *p, struct kafka_topic_facts *f)
{
    const rd_kafka_metadata_t *md;
    int64_t began = clock_mono(&clock_system);
    rd_kafka_resp_err_t code;
    do
        code = rd_kafka_metadata(p->rk, 0, p->topic, &md, SLICE_MS);
    while (code != RD_KAFKA_RESP_ERR_NO_ERROR && !check_is_over(p, began));
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR)
        return code;
    f->brokers = md->broker_cnt;
    kafka_producer_read_leaders(&f->leaders, md);
    if (md->topic_cnt > 0) {
        code = md->topics[0].err;
        const rd_kafka_metadata_topic_t *t = &md->topics[0];
        f->replicas = 0;
        for (int i = 0; i < t->partition_cnt; i++) {
            int replicas = t->partitions[i].replica_cnt;
            if (i == 0 || replicas < f->replicas)
                f->replicas = replicas;
        }
    }
    rd_kafka_metadata_destroy(md);
    return code;
}

/* Records the topic settings that decide whether a confirmed event can be lost. Without permission
 * to read them, the check skips them. */
static void read_config(struct kafka_producer *p, struct kafka_topic_facts *f)
{
    rd_kafka_event_t *answer = ask_admin(p, RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS);
    if (!answer)
        return;
    size_t n = 0, n_entries = 0;
    const rd_kafka_DescribeConfigs_result_t *all = rd_kafka_event_DescribeConfigs_result(answer);
    const rd_kafka_ConfigResource_t **each = NULL;
    if (all)
        each = rd_kafka_DescribeConfigs_result_resources(all, &n);
    const rd_kafka_ConfigEntry_t **entries = NULL;
    if (n > 0)
        entries = rd_kafka_ConfigResource_configs(each[0], &n_entries);
    for (size_t i = 0; i < n_entries; i++) {
        const char *name = rd_kafka_ConfigEntry_name(entries[i]);
        const char *value = rd_kafka_ConfigEntry_value(entries[i]);
        if (value && strcmp(name, "min.insync.replicas") == 0)
            f->min_insync = atoi(value);
        if (value && strcmp(name, "unclean.leader.election.enable") == 0)
            f->unclean = strcmp(value, "true") == 0;
    }
    rd_kafka_event_destroy(answer);
}

/* Queries the topic, creates it if configured, and fills p->facts. Runs in its own thread, because
 * queries block. */
static void *check_topic(void *producer)
{
    struct kafka_producer *p = producer;
    struct kafka_topic_facts *f = &p->facts;
    f->err = read_topic(p, f);
    bool missing = f->err == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART ||
                   f->err == RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC;
    if (missing && p->set->create) {
        f->err = create_topic(p);
        if (f->err == RD_KAFKA_RESP_ERR_NO_ERROR)
            f->err = read_topic(p, f);
    }
    if (f->err == RD_KAFKA_RESP_ERR_NO_ERROR)
        read_config(p, f);
    atomic_store(&p->checked, true);
    wake_fd_signal(p->fd);
    return NULL;
}

/* Leaders */

void kafka_producer_set_leader(struct kafka_leaders *l, int32_t partition, int32_t broker)
{
    bool is_kept = partition >= 0 && partition < KAFKA_LEADERS;
    if (is_kept)
        l->leader[partition] = broker + 1;
}

void kafka_producer_read_leaders(struct kafka_leaders *l, const rd_kafka_metadata_t *md)
{
    l->n_addresses = 0;
    for (int i = 0; i < md->broker_cnt && l->n_addresses < KAFKA_ADDRESSES; i++) {
        struct kafka_broker_address *to = &l->address[l->n_addresses++];
        const char *host = md->brokers[i].host;
        to->id = md->brokers[i].id;
        text_clean(to->host, sizeof to->host, host, strlen(host));
        snprintf(to->port, sizeof to->port, "%d", md->brokers[i].port % 65536);
    }
    if (md->topic_cnt == 0)
        return;
    const rd_kafka_metadata_topic_t *t = &md->topics[0];
    for (int i = 0; i < t->partition_cnt; i++)
        kafka_producer_set_leader(l, t->partitions[i].id, t->partitions[i].leader);
}

static void add_leader(const struct kafka_leaders *l, int32_t id, char out[SINK_PEERS])
{
    for (size_t i = 0; i < l->n_addresses; i++) {
        if (l->address[i].id != id)
            continue;
        sink_peer_add(out, l->address[i].host, l->address[i].port);
        return;
    }
    char text[16];
    snprintf(text, sizeof text, "#%d", (int)id);
    sink_peer_add(out, text, NULL);
}

void kafka_producer_list_leaders(const struct kafka_leaders *l, char out[SINK_PEERS])
{
    out[0] = '\0';
    for (size_t i = 0; i < KAFKA_LEADERS; i++)
        if (l->leader[i] > 0)
            add_leader(l, l->leader[i] - 1, out);
}

/* Starting a producer */

static int open_producer(struct kafka_sink *k, struct kafka_producer *p, struct error *err)
{
    static const uint64_t one = 1;
    char said[KAFKA_TEXT];
    rd_kafka_conf_t *conf = NULL;
    p->fd = wake_fd_new();
    if (p->fd < 0)
        return err_set(err, ERR_UNAVAILABLE, "kafka sink: no file descriptors left");
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
    if (k->b.fixed)
        p->topic = rd_kafka_topic_new(p->rk, k->topic, NULL);
    if (k->b.fixed && !p->topic)
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
        free(p);
        return -1;
    }
    p->one_by_one = kafka_one_by_one(k);
    k->facts_reported = false;
    k->answered = false;
    if (k->b.fixed) {
        /* The topic check runs in parallel with the first deliveries. If its thread cannot start,
         * the sink lacks advice and cautions, but loses no event. */
        p->set = &k->set;
        p->patience_ms = ASK_MAX_MS;
        snprintf(p->topic_name, sizeof p->topic_name, "%s", k->topic);
        p->checking = pthread_create(&p->check, NULL, check_topic, p) == 0;
    }
    *ret = p;
    return 0;
}

/* Ending a producer */

static void join_retired(struct kafka_producer **p)
{
    pthread_join((*p)->closer, NULL);
    free(*p);
    *p = NULL;
}

static struct kafka_producer **free_place(struct kafka_sink *k)
{
    for (size_t i = 0; i < KAFKA_RETIRED; i++) {
        struct kafka_producer **p = &k->retired[i];
        if (*p && atomic_load(&(*p)->gone))
            join_retired(p);
        if (!*p)
            return p;
    }
    return NULL;
}

bool kafka_producer_can_retire(struct kafka_sink *k)
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

    struct kafka_producer **place = free_place(k);
    if (place && pthread_create(&p->closer, NULL, destroy_producer, p) == 0) {
        *place = p;
        return;
    }
    destroy_producer(p); /* no thread available: block */
    free(p);
}

void kafka_producer_join(struct kafka_sink *k)
{
    for (size_t i = 0; i < KAFKA_RETIRED; i++) {
        if (k->retired[i])
            join_retired(&k->retired[i]);
    }
}
