/* kafka_messages.c: the parts of a Kafka message: topic, key, partition, headers, receipt. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kafka_peer.h"

struct seen {
    size_t n, without_key, partitions;
    int32_t last;
    char key[64], value[512], type[64], content_type[64];
};

static void note(void *ctx, const rd_kafka_message_t *m)
{
    struct seen *s = ctx;
    struct str type = kafka_header(m, "type"), content = kafka_header(m, "content-type");
    if (s->n == 0 || m->partition != s->last)
        s->partitions++;
    s->last = m->partition;
    s->n++;
    if (!m->key)
        s->without_key++;
    snprintf(s->key, sizeof s->key, "%.*s", (int)m->key_len, m->key ? (char *)m->key : "");
    snprintf(s->value, sizeof s->value, "%.*s", (int)m->len, (char *)m->payload);
    snprintf(s->type, sizeof s->type, "%.*s", (int)type.n, type.p ? type.p : "");
    snprintf(s->content_type, sizeof s->content_type, "%.*s", (int)content.n,
             content.p ? content.p : "");
}

static void event_without_a_key_becomes_a_message_without_a_key(void **state)
{
    struct peer *p = *state;
    struct seen seen = {0};
    char wide[80], path[160];
    snprintf(wide, sizeof wide, "wide-%s", p->topic);
    tell("topic %s 4", wide);
    /* The library would stick to a partition for a while. */
    snprintf(path, sizeof path, "%s?rdkafka.sticky.partitioning.linger.ms=0", wide);
    open_topic(p, path);
    for (int i = 0; i < 200; i++) {
        struct sink_item *it = sink_rig_add(&p->rig, "1", 0);
        it->ev.aggregate_type = it->ev.aggregate_id = (struct str){0};
    }
    sink_rig_run(&p->rig);
    sink_rig_assert_all(&p->rig, SINK_DELIVERED);
    kafka_read(wide, note, &seen);
    assert_int_equal(seen.n, 200);
    assert_int_equal(seen.without_key, 200);
    assert_true(seen.partitions > 1); /* an empty key would put all into one partition */
}

static void receipt_and_mark_hold_partition_and_offset(void **state)
{
    struct peer *p = *state;
    char receipt[96];
    const struct hwm *marks;
    open_topic(p, p->topic);
    for (int i = 0; i < 3; i++) {
        snprintf(receipt, sizeof receipt, "%s/0/%d", p->topic, i);
        assert_string_equal(run_one(p, "1")->receipt, receipt);
    }
    assert_int_equal(p->rig.sk->ops->marks(p->rig.sk, &marks), 1);
    snprintf(receipt, sizeof receipt, "%s/0", p->topic);
    assert_true(str_is(marks[0].stream, receipt));
    assert_int_equal(marks[0].hi, 3); /* where a reader would resume */
    p->rig.sk->ops->marks_recorded(p->rig.sk);
    assert_int_equal(p->rig.sk->ops->marks(p->rig.sk, &marks), 0);
}

static void message_matches_its_format(void **state)
{
    struct peer *p = *state;
    struct seen seen = {0};
    open_with(p, "format=plain");
    struct sink_item *it = sink_rig_add(&p->rig, "{\"a\": 1}", 0);
    it->ev.aggregate_type = STR("order");
    it->ev.aggregate_id = STR("42");
    sink_rig_run(&p->rig);
    kafka_read(p->topic, note, &seen);
    assert_string_equal(seen.key, "42");
    assert_string_equal(seen.value, "{\"a\": 1}");
    assert_string_equal(seen.content_type, "application/json");
    assert_true(str_is(it->ev.type, seen.type));
}

static void templated_topic_has_only_characters_allowed_by_kafka(void **state)
{
    struct peer *p = *state;
    char topic[96];
    snprintf(topic, sizeof topic, "a_20b_2Fc.%s", p->topic);
    tell("topic %s 1", topic);
    open_topic(p, "{tenant}.{type}");
    struct sink_item *it = sink_rig_add(&p->rig, "1", 0);
    it->ev.tenant = STR("a b/c");
    it->ev.type = str_of(p->topic);
    struct sink_item *none = sink_rig_add(&p->rig, "2", 0);
    none->ev.type = str_of(p->topic);
    struct sink_item *far = sink_rig_add(&p->rig, "3", 0);
    char longest[300];
    memset(longest, 'x', sizeof longest);
    far->ev.tenant = (struct str){longest, 250};
    far->ev.type = str_of(p->topic);
    sink_rig_run(&p->rig);
    assert_int_equal(it->status, SINK_DELIVERED);
    assert_int_equal(kafka_count(topic), 1);
    assert_int_equal(none->status, SINK_REJECT);
    assert_int_equal(far->status, SINK_REJECT);
    sink_assert_says(far, "249");
    assert_true(far->unasked && none->unasked);
}

/* The lookup of the topic may end after the first event. The broker that confirmed the event has a
 * number by then; the lookup finds its name. */
static void sink_is_polled_until_its_topic_check_ends(void **state)
{
    struct peer *p = *state;
    open_with(p, "");
    struct sink *sk = p->rig.sk;
    assert_false(sk->ops->attended(sk));
    sink_rig_add(&p->rig, "1", 0);
    sink_rig_submit(&p->rig);
    assert_true(sk->ops->attended(sk));
    sink_rig_run(&p->rig);
    sink_rig_assert_all(&p->rig, SINK_DELIVERED);

    while (sk->ops->attended(sk)) {
        sink_rig_wait(&p->rig);
        sk->ops->drive(sk);
    }
    struct sink_broker b = sink_broker_of(sk);
    assert_non_null(strchr(b.leader, ':'));
    assert_null(strchr(b.leader, '#'));
}

static const struct CMUnitTest tests[] = {
    OWN(sink_is_polled_until_its_topic_check_ends),
    OWN(event_without_a_key_becomes_a_message_without_a_key),
    OWN(receipt_and_mark_hold_partition_and_offset),
    OWN(message_matches_its_format),
    OWN(templated_topic_has_only_characters_allowed_by_kafka),
};

const struct suite_part kafka_messages_tests = SUITE_PART(tests);
