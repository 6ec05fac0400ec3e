/* The parts of a message: subject, headers, payload. */
#include <stdio.h>
#include <string.h>

#include "nats_peer.h"

static struct sink_item *add(struct peer *p, const char *payload, const char *headers)
{
    struct sink_item *it = sink_rig_add(&p->rig, payload, 0);
    it->ev.aggregate_id = STR("7");
    if (headers)
        it->ev.headers = str_of(headers);
    return it;
}

static void value_is(uint64_t seq, const char *want)
{
    natsMsg *msg = nats_server_get(&server, "S", seq);
    struct str value = {natsMsg_GetData(msg), (size_t)natsMsg_GetDataLength(msg)};
    if (!str_is(value, want))
        fail_msg("found %.*s, expected %s", (int)value.n, value.p, want);
    natsMsg_Destroy(msg);
}

static void subject_is(uint64_t seq, const char *want)
{
    natsMsg *msg = nats_server_get(&server, "S", seq);
    assert_string_equal(natsMsg_GetSubject(msg), want);
    natsMsg_Destroy(msg);
}

static void plain_message_has_payload_and_headers(void **state)
{
    struct peer *p = *state;
    open_with(p, "s", "stream=S");
    add(p, "{ \"n\": 1.0 }", "{\"traceparent\":\"00-a\",\"two\":\"a b\"}");
    sink_rig_run(&p->rig);
    value_is(1, "{ \"n\": 1.0 }");
    header_is(1, "id", "00000000-0000-7000-8000-000000000001");
    header_is(1, "type", "order.created");
    header_is(1, "aggregate_type", "order");
    header_is(1, "aggregate_id", "7");
    header_is(1, "key", "order/7");
    header_is(1, "seq", "1");
    header_is(1, "traceparent", "00-a");
    header_is(1, "two", "a b");
    header_is(1, "content-type", "application/json");
    header_is(1, "Nats-Expected-Stream", "S");
    header_is(1, "Nats-Expected-Last-Msg-Id", NULL);
}

/* The producer may only emit: an event's content must not control the server or end a line. */
static void event_headers_cannot_set_nats_headers(void **state)
{
    struct peer *p = *state;
    nats_server_stream(&server, "S", "{\"subjects\":[\"s\"],\"allow_rollup_hdrs\":true}");
    open_with(p, "s", "stream=S");
    add(p, "1", NULL);
    add(p, "2",
        "{\"Nats-Rollup\":\"all\",\"nats-msg-id\":\"1\",\"Nats-Expected-Stream\":\"T\","
        "\"a\":\"x\\r\\nNats-Rollup: all\",\"b: c\\n\":\"y\",\"e\":\"\",\" f\":\" g \"}");
    sink_rig_run(&p->rig);
    sink_rig_assert_all(&p->rig, SINK_DELIVERED);
    assert_int_equal(nats_server_count(&server, "S"), 2);
    header_is(2, "Nats-Rollup", NULL);
    header_is(2, "%4Eats-Rollup", "all");
    header_is(2, "Nats-Msg-Id", "00000000-0000-7000-8000-000000000002:search");
    header_is(2, "%6Eats-msg-id", "1");
    header_is(2, "a", "x%0D%0ANats-Rollup: all");
    header_is(2, "b%3A%20c%0A", "y");
    header_is(2, "e", NULL);
    header_is(2, "%20f", "%20g%20");
}

static void each_format_has_its_documented_value_and_headers(void **state)
{
    struct peer *p = *state;
    open_with(p, "s", "stream=S&format=cloudevents&source=/shop%20%25");
    struct sink_item *it = add(p, "{}", NULL);
    it->ev.aggregate_id = STR("\xc3\xa9 %");
    sink_rig_run(&p->rig);
    value_is(1, "{}");
    header_is(1, "ce-specversion", "1.0");
    header_is(1, "ce-source", "/shop%20%25");
    header_is(1, "ce-datacontenttype", "application/json");
    header_is(1, "ce-subject", "order/%C3%A9%20%25");
    header_is(1, "id", NULL);
    sink_rig_release(&p->rig);

    sink_rig_init(&p->rig);
    open_with(p, "", "stream=S&format=debezium&lookback=0");
    nats_server_stream(&server, "S", "{\"subjects\":[\"outbox.event.*\"]}");
    add(p, "{\"a\":1}", NULL);
    sink_rig_run(&p->rig);
    subject_is(1, "outbox.event.order");
    value_is(1, "{\"a\":1}");
    header_is(1, "id", "00000000-0000-7000-8000-000000000001");
    header_is(1, "type", NULL);
}

static void subject_has_one_token_per_value(void **state)
{
    struct peer *p = *state;
    open_with(p, "s.{type}.{aggregate_id}.{header.h}", "stream=S");
    add(p, "1", "{\"h\":\"x\"}");
    struct sink_item *it = add(p, "2", "{\"h\":\"*.> \\u00e9\"}");
    it->ev.aggregate_id = STR("a.b%");
    it->ev.type = STR(".order..paid");
    sink_rig_run(&p->rig);
    sink_rig_assert_all(&p->rig, SINK_DELIVERED);
    subject_is(1, "s.order.created.7.x");
    subject_is(2, "s.%2Eorder%2E%2Epaid.a%2Eb%25.%2A%2E%3E%20\xc3\xa9");
}

/* No stream accepts a subject with an empty token, so the stream would seem to be away. */
static void empty_subject_value_rejects_only_its_event(void **state)
{
    struct peer *p = *state;
    open_with(p, "s.{header.h}.x", "stream=S");
    struct sink_item *bad = add(p, "1", "{\"h\":\"\"}");
    struct sink_item *good = add(p, "2", "{\"h\":\"7\"}");
    sink_rig_run(&p->rig);
    assert_int_equal(bad->status, SINK_REJECT);
    sink_assert_says(bad, "an empty value leaves the event's subject incomplete: \"s..x\"");
    assert_int_equal(good->status, SINK_DELIVERED);
    subject_is(1, "s.7.x");
}

static const struct CMUnitTest tests[] = {
    OWN(plain_message_has_payload_and_headers),
    OWN(event_headers_cannot_set_nats_headers),
    OWN(each_format_has_its_documented_value_and_headers),
    OWN(subject_has_one_token_per_value),
    OWN(empty_subject_value_rejects_only_its_event),
};
const struct suite_part nats_messages_tests = SUITE_PART(tests);
