/* kafka_topic.c: whether the topic exists and is safe, and its leaders; creates it if configured.
 * Queries to brokers block, so they run in their own thread, or in a probe. */
#include <stdio.h>
#include <stdlib.h>

#include "base/text.h"
#include "sink/kafka_impl.h"

#define SLICE_MS 100 /* polling interval, to check whether to stop */

/* Whether the check must end: its producer is ending, or it took too long. */
static bool is_over(const struct kafka_producer *p, int64_t began)
{
    int64_t ms = (clock_mono(&clock_system) - began) / MS_NS;
    return atomic_load(&p->quit) || ms >= p->patience_ms;
}

/* ask_admin sends an admin request through `send` and waits for the reply; NULL if none comes. */
typedef void send_fn(struct kafka_producer *p, const rd_kafka_AdminOptions_t *how,
                     rd_kafka_queue_t *queue);

static rd_kafka_event_t *ask_admin(struct kafka_producer *p, rd_kafka_admin_op_t op, send_fn *send)
{
    char said[KAFKA_TEXT];
    rd_kafka_AdminOptions_t *how = rd_kafka_AdminOptions_new(p->rk, op);
    rd_kafka_queue_t *queue = rd_kafka_queue_new(p->rk);
    rd_kafka_AdminOptions_set_request_timeout(how, (int)p->patience_ms, said, sizeof said);
    send(p, how, queue);
    int64_t began = clock_mono(&clock_system);
    rd_kafka_event_t *answer = NULL;
    while (!answer && !is_over(p, began))
        answer = rd_kafka_queue_poll(queue, SLICE_MS);
    rd_kafka_queue_destroy(queue);
    rd_kafka_AdminOptions_destroy(how);
    return answer;
}

/* Creating the topic */

static void send_create(struct kafka_producer *p, const rd_kafka_AdminOptions_t *how,
                        rd_kafka_queue_t *queue)
{
    char said[KAFKA_TEXT];
    int replicas = p->set->replicas > 0 ? p->set->replicas : -1;
    rd_kafka_NewTopic_t *t = rd_kafka_NewTopic_new(p->topic_name, p->set->partitions, replicas,
                                                   said, sizeof said);
    if (!t)
        return;
    rd_kafka_CreateTopics(p->rk, &t, 1, how, queue);
    rd_kafka_NewTopic_destroy(t);
}

/* Creates the topic. One just created by another relay is fine. */
static rd_kafka_resp_err_t create_topic(struct kafka_producer *p)
{
    rd_kafka_event_t *answer = ask_admin(p, RD_KAFKA_ADMIN_OP_CREATETOPICS, send_create);
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

/* Querying the topic */

static rd_kafka_resp_err_t read_topic(struct kafka_producer *p, struct kafka_topic_facts *f)
{
    const rd_kafka_metadata_t *md;
    int64_t began = clock_mono(&clock_system);
    rd_kafka_resp_err_t code;
    do
        code = rd_kafka_metadata(p->rk, 0, p->topic, &md, SLICE_MS);
    while (code != RD_KAFKA_RESP_ERR_NO_ERROR && !is_over(p, began));
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR)
        return code;
    f->brokers = md->broker_cnt;
    kafka_topic_read_leaders(&f->leaders, md);
    if (md->topic_cnt > 0) {
        code = md->topics[0].err;
        const rd_kafka_metadata_topic_t *t = &md->topics[0];
        f->partitions = t->partition_cnt;
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

static void send_describe(struct kafka_producer *p, const rd_kafka_AdminOptions_t *how,
                          rd_kafka_queue_t *queue)
{
    rd_kafka_ConfigResource_t *c = rd_kafka_ConfigResource_new(RD_KAFKA_RESOURCE_TOPIC,
                                                               p->topic_name);
    rd_kafka_DescribeConfigs(p->rk, &c, 1, how, queue);
    rd_kafka_ConfigResource_destroy(c);
}

/* Records the topic's settings that decide whether a confirmed event can be lost. If the user may
 * not read them, nothing is reported about them. */
static void read_config(struct kafka_producer *p, struct kafka_topic_facts *f)
{
    rd_kafka_event_t *answer = ask_admin(p, RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS, send_describe);
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

void kafka_topic_check(struct kafka_producer *p)
{
    struct kafka_topic_facts *f = &p->facts;
    kafka_topic_leaders_init(&f->leaders);
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
}

void kafka_topic_caution(const char *topic, const struct kafka_topic_facts *f,
                         char out[BROKER_CAUTION])
{
    out[0] = '\0';
    if (f->replicas == 1 && f->brokers > 1)
        snprintf(out, BROKER_CAUTION,
                 "topic %s has one replica of a partition: with its broker's disk its events are "
                 "lost (raise the replication factor)",
                 topic);
    else if (f->replicas > 1 && f->min_insync == 1)
        snprintf(out, BROKER_CAUTION,
                 "topic %s has min.insync.replicas=1: an event that only the leader has counts as "
                 "delivered, and is lost with it (set 2)",
                 topic);
    else if (f->unclean)
        snprintf(out, BROKER_CAUTION,
                 "topic %s has unclean.leader.election.enable=true: a replica that is behind may "
                 "become the leader, and delivered events are lost (set false)",
                 topic);
}

/* Leaders. The topic check reports them once; after that, the broker that confirms a message is the
 * leader, so no query is needed. */

void kafka_topic_leaders_init(struct kafka_leaders *l)
{
    l->n_named = 0;
    for (size_t i = 0; i < KAFKA_LED; i++)
        l->leader[i] = -1;
}

void kafka_topic_led(struct kafka_leaders *l, int32_t partition, int32_t broker)
{
    bool is_kept = partition >= 0 && partition < KAFKA_LED;
    if (is_kept)
        l->leader[partition] = broker;
}

void kafka_topic_read_leaders(struct kafka_leaders *l, const rd_kafka_metadata_t *md)
{
    l->n_named = 0;
    for (int i = 0; i < md->broker_cnt && l->n_named < KAFKA_NAMED; i++) {
        struct kafka_named *to = &l->name[l->n_named++];
        const char *host = md->brokers[i].host;
        to->id = md->brokers[i].id;
        text_clean(to->host, sizeof to->host, host, strlen(host));
        snprintf(to->port, sizeof to->port, "%d", md->brokers[i].port % 65536);
    }
    if (md->topic_cnt == 0)
        return;
    const rd_kafka_metadata_topic_t *t = &md->topics[0];
    for (int i = 0; i < t->partition_cnt; i++)
        kafka_topic_led(l, t->partitions[i].id, t->partitions[i].leader);
}

static void add_leader(const struct kafka_leaders *l, int32_t id, char out[SINK_PEERS])
{
    for (size_t i = 0; i < l->n_named; i++) {
        if (l->name[i].id != id)
            continue;
        sink_peer_add(out, l->name[i].host, l->name[i].port);
        return;
    }
    char text[16];
    snprintf(text, sizeof text, "#%d", (int)id);
    sink_peer_add(out, text, NULL);
}

void kafka_topic_list_leaders(const struct kafka_leaders *l, char out[SINK_PEERS])
{
    out[0] = '\0';
    for (size_t i = 0; i < KAFKA_LED; i++)
        if (l->leader[i] >= 0)
            add_leader(l, l->leader[i], out);
}
