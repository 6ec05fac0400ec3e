/* The messages that the broker gets, and the outcome of events that cannot become one. */
#include <stdlib.h>
#include <string.h>

#include "rabbitmq_peer.h"

static const char *header_of(const amqp_message_t *m, const char *name, char out[256])
{
    const amqp_table_t *t = &m->properties.headers;
    for (int i = 0; i < t->num_entries; i++) {
        const amqp_table_entry_t *e = &t->entries[i];
        if (e->key.len != strlen(name) || memcmp(e->key.bytes, name, e->key.len) != 0)
            continue;
        assert_int_equal(e->value.kind, AMQP_FIELD_KIND_UTF8);
        snprintf(out, 256, "%.*s", (int)e->value.value.bytes.len,
                 (const char *)e->value.value.bytes.bytes);
        return out;
    }
    return NULL;
}

static void assert_bytes(amqp_bytes_t got, const char *want)
{
    assert_int_equal(got.len, strlen(want));
    assert_memory_equal(got.bytes, want, got.len);
}

static amqp_message_t only_message(char key[256])
{
    amqp_message_t m;
    assert_true(rabbitmq_server_get(&broker, "q", &m, key));
    assert_int_equal(messages("q"), 0);
    return m;
}

static void plain_message_uses_properties_and_headers(void **state)
{
    struct peer *p = *state;
    char key[256], value[256];
    open_with(p, "");
    struct sink_item *it = sink_rig_add(&p->rig, "{\"n\": 1}", 0);
    it->ev.headers = STR("{\"traceparent\":\"00-ab\",\"CC\":\"q2\",\"BCC\":\"q2\"}");
    sink_rig_run(&p->rig);
    sink_rig_assert_all(&p->rig, SINK_DELIVERED);

    amqp_message_t m = only_message(key);
    assert_string_equal(key, "order.created");
    assert_bytes(m.body, "{\"n\": 1}");
    assert_bytes(m.properties.message_id, it->id);
    assert_bytes(m.properties.type, "order.created");
    assert_bytes(m.properties.content_type, "application/json");
    assert_bytes(m.properties.app_id, "outbox");
    assert_int_equal(m.properties.delivery_mode, 2);
    assert_int_equal(m.properties.timestamp, (uint64_t)(it->ev.created_at / 1000));
    assert_string_equal(header_of(&m, "id", value), it->id);
    assert_string_equal(header_of(&m, "traceparent", value), "00-ab");
    assert_string_equal(header_of(&m, "aggregate_type", value), "order");
    /* The broker acts on these two: no event may choose more queues. */
    assert_null(header_of(&m, "CC", value));
    assert_null(header_of(&m, "BCC", value));
    amqp_destroy_message(&m);
}

static void cloudevents_have_their_attributes_in_headers(void **state)
{
    struct peer *p = *state;
    char value[256];
    open_with(p, "format=cloudevents&source=/shop");
    struct sink_item *it = run_one(p, "{\"n\":1}");
    assert_int_equal(it->status, SINK_DELIVERED);
    amqp_message_t m = only_message(NULL);
    assert_string_equal(header_of(&m, "cloudEvents:id", value), it->id);
    assert_string_equal(header_of(&m, "cloudEvents:specversion", value), "1.0");
    assert_string_equal(header_of(&m, "cloudEvents:source", value), "/shop");
    assert_string_equal(header_of(&m, "cloudEvents:type", value), "order.created");
    assert_bytes(m.body, "{\"n\":1}");
    amqp_destroy_message(&m);
}

static void debezium_routes_by_aggregate_type(void **state)
{
    struct peer *p = *state;
    char key[256], value[256];
    open_with(p, "format=debezium");
    struct sink_item *it = run_one(p, "{\"n\":1}");
    amqp_message_t m = only_message(key);
    assert_string_equal(key, "outbox.event.order");
    assert_string_equal(header_of(&m, "id", value), it->id);
    assert_null(header_of(&m, "type", value));
    assert_bytes(m.body, "{\"n\":1}");
    amqp_destroy_message(&m);
}

/* Without an exchange the routing key is the name of a queue. */
static void default_exchange_reaches_a_queue_by_its_name(void **state)
{
    struct peer *p = *state;
    open_to(p, "", "routing-key=q");
    assert_int_equal(run_one(p, "1")->status, SINK_DELIVERED);
    assert_int_equal(messages("q"), 1);
    sink_rig_release(&p->rig);

    sink_rig_init(&p->rig);
    open_to(p, "", "routing-key=nowhere");
    struct sink_item *it = run_one(p, "1");
    assert_int_equal(it->status, SINK_REFUSED);
    sink_assert_says(it, "no queue 'nowhere'");
}

static void body_is_split_into_frames_of_the_negotiated_size(void **state)
{
    struct peer *p = *state;
    erlang("application:set_env(rabbit, frame_max, 4096).");
    open_with(p, "");
    static const size_t sizes[] = {4087, 4088, 4089, 8176, 8177, 100000};
    for (size_t i = 0; i < COUNT(sizes); i++)
        sink_item_enlarge(sink_rig_add(&p->rig, "1", 0), sizes[i]);
    /* Headers cannot be split. */
    char *headers = malloc(6000);
    snprintf(headers, 6000, "{\"h\":\"%05000d\"}", 1);
    struct sink_item *wide = sink_rig_add(&p->rig, "1", 0);
    wide->ev.headers = str_of(headers);
    sink_rig_run(&p->rig);
    erlang("application:set_env(rabbit, frame_max, 131072).");

    for (size_t i = 0; i < COUNT(sizes); i++) {
        amqp_message_t m;
        assert_int_equal(p->rig.items[i]->status, SINK_DELIVERED);
        assert_true(rabbitmq_server_get(&broker, "q", &m, NULL));
        assert_int_equal(m.body.len, sizes[i]);
        assert_memory_equal(m.body.bytes, p->rig.items[i]->payload, sizes[i]);
        amqp_destroy_message(&m);
    }
    assert_int_equal(wide->status, SINK_REJECT);
    assert_true(wide->unasked);
    sink_assert_says(wide, "the broker's limit for a frame is 4096");
    free(headers);
}

static void overlong_routing_key_is_rejected(void **state)
{
    struct peer *p = *state;
    char id[300];
    memset(id, 'x', sizeof id - 1);
    id[sizeof id - 1] = '\0';
    open_with(p, "routing-key={aggregate_id}");
    struct sink_item *it = sink_rig_add(&p->rig, "1", 0);
    it->ev.aggregate_id = str_of(id);
    sink_rig_run(&p->rig);
    assert_int_equal(it->status, SINK_REJECT);
    sink_assert_says(it, "routing key has 299 bytes; AMQP's limit is 255");
}

static void mark_is_the_last_confirmed_event(void **state)
{
    struct peer *p = *state;
    const struct hwm *marks;
    open_with(p, "");
    sink_rig_add_many(&p->rig, 20, 10);
    sink_rig_run(&p->rig);
    assert_int_equal(p->rig.sk->ops->marks(p->rig.sk, &marks), 1);
    assert_true(str_is(marks[0].stream, "orders"));
    assert_int_equal(marks[0].hi, p->rig.items[19]->ev.seq);
    p->rig.sk->ops->marks_recorded(p->rig.sk);
    assert_int_equal(p->rig.sk->ops->marks(p->rig.sk, &marks), 0);
}

static const struct CMUnitTest tests[] = {
    OWN(plain_message_uses_properties_and_headers),
    OWN(cloudevents_have_their_attributes_in_headers),
    OWN(debezium_routes_by_aggregate_type),
    OWN(default_exchange_reaches_a_queue_by_its_name),
    OWN(body_is_split_into_frames_of_the_negotiated_size),
    OWN(overlong_routing_key_is_rejected),
    OWN(mark_is_the_last_confirmed_event),
};
const struct suite_part rabbitmq_sent_tests = SUITE_PART(tests);
