/* kafka_tool.c: makes, changes, deletes and reads topics of Kafka, for the tests in Python.
 *
 *     kafka_tool HOSTS create TOPIC PARTITIONS REPLICAS [NAME=VALUE...]
 *     kafka_tool HOSTS delete TOPIC
 *     kafka_tool HOSTS config TOPIC NAME=VALUE...
 *     kafka_tool HOSTS grow TOPIC PARTITIONS
 *     kafka_tool HOSTS deny TOPIC USER           revokes the user's right to write to it
 *     kafka_tool HOSTS permit TOPIC USER         undoes that
 *     kafka_tool HOSTS count TOPIC               the number of messages
 *     kafka_tool HOSTS read TOPIC [committed]    a line of JSON per message
 *
 * Exit status 0, or 1 with the reason on the standard error output. */
#include <librdkafka/rdkafka.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"

#define PATIENCE_MS 30000

static void fail(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
static void fail(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    exit(1);
}

static rd_kafka_t *connect_to(const char *hosts, rd_kafka_type_t type, const char *isolation)
{
    const char *const settings[][2] = {
        {"bootstrap.servers", hosts},
        {"fetch.wait.max.ms", "10"},
        {"log_level", "2"},
        {"group.id", "kafka_tool"},
        {"enable.partition.eof", "true"},
        {"enable.auto.commit", "false"},
        {"isolation.level", isolation},
        {"auto.offset.reset", "earliest"},
        {"fetch.message.max.bytes", "20000000"},
        {"fetch.max.bytes", "50000000"},
        {"receive.message.max.bytes", "200000000"},
    };
    char said[256];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        if (rd_kafka_conf_set(conf, settings[i][0], settings[i][1], said, sizeof said) != 0)
            fail("%s", said);
    rd_kafka_t *rk = rd_kafka_new(type, conf, said, sizeof said);
    if (!rk)
        fail("%s", said);
    return rk;
}

/* ---- topics ---- */

static void check_topics(const rd_kafka_topic_result_t **each, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (rd_kafka_topic_result_error(each[i]))
            fail("%s", rd_kafka_topic_result_error_string(each[i]));
}

/* check waits for the answer to an admin request, and checks it. */
static void check(rd_kafka_queue_t *queue)
{
    size_t n = 0;
    rd_kafka_event_t *ev = rd_kafka_queue_poll(queue, PATIENCE_MS);
    if (!ev)
        fail("no answer");
    if (rd_kafka_event_error(ev))
        fail("%s", rd_kafka_event_error_string(ev));
    const rd_kafka_CreateTopics_result_t *made = rd_kafka_event_CreateTopics_result(ev);
    const rd_kafka_DeleteTopics_result_t *deleted = rd_kafka_event_DeleteTopics_result(ev);
    const rd_kafka_CreatePartitions_result_t *grown = rd_kafka_event_CreatePartitions_result(ev);
    const rd_kafka_AlterConfigs_result_t *altered = rd_kafka_event_AlterConfigs_result(ev);
    if (made)
        check_topics(rd_kafka_CreateTopics_result_topics(made, &n), n);
    if (deleted)
        check_topics(rd_kafka_DeleteTopics_result_topics(deleted, &n), n);
    if (grown)
        check_topics(rd_kafka_CreatePartitions_result_topics(grown, &n), n);
    const rd_kafka_CreateAcls_result_t *denied = rd_kafka_event_CreateAcls_result(ev);
    if (denied) {
        const rd_kafka_acl_result_t **each = rd_kafka_CreateAcls_result_acls(denied, &n);
        if (n > 0 && rd_kafka_acl_result_error(each[0]))
            fail("%s", rd_kafka_error_string(rd_kafka_acl_result_error(each[0])));
    }
    if (altered) {
        const rd_kafka_ConfigResource_t **each = rd_kafka_AlterConfigs_result_resources(altered,
                                                                                        &n);
        if (n > 0 && rd_kafka_ConfigResource_error(each[0]))
            fail("%s", rd_kafka_ConfigResource_error_string(each[0]));
    }
    rd_kafka_event_destroy(ev);
}

/* split cuts NAME=VALUE in two and returns the value. */
static char *split(char *pair)
{
    char *equals = strchr(pair, '=');
    if (!equals)
        fail("expected NAME=VALUE, not %s", pair);
    *equals = '\0';
    return equals + 1;
}

static void create(rd_kafka_t *rk, rd_kafka_queue_t *queue, char **argv)
{
    char said[256];
    rd_kafka_NewTopic_t *t = rd_kafka_NewTopic_new(argv[0], atoi(argv[1]), atoi(argv[2]), said,
                                                   sizeof said);
    if (!t)
        fail("%s", said);
    for (argv += 3; *argv; argv++) {
        char *value = split(*argv);
        rd_kafka_NewTopic_set_config(t, *argv, value);
    }
    rd_kafka_CreateTopics(rk, &t, 1, NULL, queue);
    check(queue);
    rd_kafka_NewTopic_destroy(t);
}

static void grow(rd_kafka_t *rk, rd_kafka_queue_t *queue, char **argv)
{
    char said[256];
    rd_kafka_NewPartitions_t *p = rd_kafka_NewPartitions_new(argv[0], (size_t)atoi(argv[1]), said,
                                                             sizeof said);
    rd_kafka_CreatePartitions(rk, &p, 1, NULL, queue);
    check(queue);
    rd_kafka_NewPartitions_destroy(p);
}

static void delete_topic(rd_kafka_t *rk, rd_kafka_queue_t *queue, const char *topic)
{
    rd_kafka_DeleteTopic_t *t = rd_kafka_DeleteTopic_new(topic);
    rd_kafka_DeleteTopics(rk, &t, 1, NULL, queue);
    check(queue);
    rd_kafka_DeleteTopic_destroy(t);
}

static void configure(rd_kafka_t *rk, rd_kafka_queue_t *queue, char **argv)
{
    rd_kafka_ConfigResource_t *c = rd_kafka_ConfigResource_new(RD_KAFKA_RESOURCE_TOPIC, argv[0]);
    for (argv++; *argv; argv++) {
        char *value = split(*argv);
        rd_kafka_ConfigResource_set_config(c, *argv, value);
    }
    rd_kafka_AlterConfigs(rk, &c, 1, NULL, queue);
    check(queue);
    rd_kafka_ConfigResource_destroy(c);
}

/* writing is the rule, or the pattern of rules, that a user may not write to a topic. */
static rd_kafka_AclBinding_t *writing(bool pattern, char **argv)
{
    char said[256], who[256];
    snprintf(who, sizeof who, "User:%s", argv[1]);
    rd_kafka_AclBinding_t *acl;
    if (pattern)
        acl = rd_kafka_AclBindingFilter_new(
            RD_KAFKA_RESOURCE_TOPIC, argv[0], RD_KAFKA_RESOURCE_PATTERN_LITERAL, who, "*",
            RD_KAFKA_ACL_OPERATION_WRITE, RD_KAFKA_ACL_PERMISSION_TYPE_DENY, said, sizeof said);
    else
        acl = rd_kafka_AclBinding_new(
            RD_KAFKA_RESOURCE_TOPIC, argv[0], RD_KAFKA_RESOURCE_PATTERN_LITERAL, who, "*",
            RD_KAFKA_ACL_OPERATION_WRITE, RD_KAFKA_ACL_PERMISSION_TYPE_DENY, said, sizeof said);
    if (!acl)
        fail("%s", said);
    return acl;
}

static void deny(rd_kafka_t *rk, rd_kafka_queue_t *queue, char **argv)
{
    rd_kafka_AclBinding_t *acl = writing(false, argv);
    rd_kafka_CreateAcls(rk, &acl, 1, NULL, queue);
    check(queue);
    rd_kafka_AclBinding_destroy(acl);
}

static void permit(rd_kafka_t *rk, rd_kafka_queue_t *queue, char **argv)
{
    rd_kafka_AclBindingFilter_t *acl = writing(true, argv);
    rd_kafka_DeleteAcls(rk, &acl, 1, NULL, queue);
    check(queue);
    rd_kafka_AclBinding_destroy(acl);
}

static int administrate(const char *hosts, const char *verb, char **argv)
{
    rd_kafka_t *rk = connect_to(hosts, RD_KAFKA_PRODUCER, "read_uncommitted");
    rd_kafka_queue_t *queue = rd_kafka_queue_new(rk);
    if (strcmp(verb, "create") == 0)
        create(rk, queue, argv);
    else if (strcmp(verb, "grow") == 0)
        grow(rk, queue, argv);
    else if (strcmp(verb, "delete") == 0)
        delete_topic(rk, queue, argv[0]);
    else if (strcmp(verb, "deny") == 0)
        deny(rk, queue, argv);
    else if (strcmp(verb, "permit") == 0)
        permit(rk, queue, argv);
    else
        configure(rk, queue, argv);
    rd_kafka_queue_destroy(queue);
    rd_kafka_destroy(rk);
    return 0;
}

/* ---- reading ---- */

static void print_headers(struct buf *b, const rd_kafka_message_t *m)
{
    rd_kafka_headers_t *all;
    const char *name;
    const void *value;
    size_t n;
    buf_adds(b, ",\"headers\":[");
    if (rd_kafka_message_headers(m, &all) == 0)
        for (size_t i = 0; rd_kafka_header_get_all(all, i, &name, &value, &n) == 0; i++) {
            buf_adds(b, i ? ",[" : "[");
            json_quote(b, str_of(name));
            buf_addc(b, ',');
            json_quote(b, (struct str){value, n});
            buf_addc(b, ']');
        }
    buf_addc(b, ']');
}

static void print_message(struct buf *b, const rd_kafka_message_t *m)
{
    buf_clear(b);
    buf_addf(b, "{\"partition\":%d,\"offset\":%lld,\"key\":", m->partition, (long long)m->offset);
    if (m->key)
        json_quote(b, (struct str){m->key, m->key_len});
    else
        buf_adds(b, "null");
    buf_adds(b, ",\"value\":");
    json_quote(b, (struct str){m->payload, m->len});
    print_headers(b, m);
    buf_adds(b, "}");
    puts(buf_cstr(b));
}

static int partitions_of(rd_kafka_t *rk, const char *topic)
{
    const rd_kafka_metadata_t *md;
    rd_kafka_topic_t *rkt = rd_kafka_topic_new(rk, topic, NULL);
    rd_kafka_resp_err_t code = rd_kafka_metadata(rk, 0, rkt, &md, PATIENCE_MS);
    if (!code)
        code = md->topics[0].err;
    if (code)
        fail("%s", rd_kafka_err2str(code));
    int n = md->topics[0].partition_cnt;
    rd_kafka_metadata_destroy(md);
    rd_kafka_topic_destroy(rkt);
    return n;
}

/* assign_all starts reading all partitions of a topic, and returns their number. */
static int assign_all(rd_kafka_t *rk, const char *topic)
{
    int n = partitions_of(rk, topic);
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(n);
    for (int i = 0; i < n; i++)
        rd_kafka_topic_partition_list_add(list, topic, i)->offset = RD_KAFKA_OFFSET_BEGINNING;
    rd_kafka_assign(rk, list);
    rd_kafka_topic_partition_list_destroy(list);
    return n;
}

static int read_topic(const char *hosts, const char *topic, const char *isolation)
{
    struct buf b;
    rd_kafka_t *rk = connect_to(hosts, RD_KAFKA_CONSUMER, isolation);
    rd_kafka_poll_set_consumer(rk);
    buf_init(&b, 200 << 20);
    for (int left = assign_all(rk, topic); left > 0;) {
        rd_kafka_message_t *m = rd_kafka_consumer_poll(rk, PATIENCE_MS);
        if (!m)
            fail("no message arrived");
        if (m->err == RD_KAFKA_RESP_ERR__PARTITION_EOF)
            left--;
        if (!m->err)
            print_message(&b, m);
        rd_kafka_message_destroy(m);
    }
    buf_release(&b);
    rd_kafka_destroy_flags(rk, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
    return 0;
}

static int count_topic(const char *hosts, const char *topic)
{
    rd_kafka_t *rk = connect_to(hosts, RD_KAFKA_PRODUCER, "read_uncommitted");
    int64_t all = 0, low, high;
    int n = partitions_of(rk, topic);
    for (int i = 0; i < n; i++) {
        if (rd_kafka_query_watermark_offsets(rk, topic, i, &low, &high, PATIENCE_MS) != 0)
            fail("no answer");
        all += high - low;
    }
    printf("%lld\n", (long long)all);
    rd_kafka_destroy(rk);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        fail("usage: kafka_tool HOSTS VERB TOPIC ...");
    if (strcmp(argv[2], "count") == 0)
        return count_topic(argv[1], argv[3]);
    if (strcmp(argv[2], "read") != 0)
        return administrate(argv[1], argv[2], argv + 3);
    return read_topic(argv[1], argv[3], argc > 4 ? "read_committed" : "read_uncommitted");
}
