/* redis_streams.c: which stream an event goes to, and which fields it has. */
#include <stdio.h>
#include <string.h>

#include "redis_peer.h"

static void entry_has_one_field_with_the_envelope(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=tenant.{type[1]}");
    struct sink_item *it = sink_rig_add(&p->rig, "{ \"a\": 1 }", 0);
    it->ev.headers = STR("{\"traceparent\":\"00-ab\"}");
    it->ev.has_version = true;
    it->ev.version = 7;
    it->ev.aggregate_id = STR("4\r\n2\"\xc3\xab");
    sink_rig_run(&p->rig);
    assert_int_equal(it->status, SINK_DELIVERED);
    redisReply *r = redis_do(&server, "XRANGE tenant.created - +");
    assert_int_equal(r->elements, 1);
    assert_string_equal(r->element[0]->element[0]->str, it->receipt);
    assert_string_equal(
        r->element[0]->element[1]->element[1]->str,
        "{\"event_id\":\"00000000-0000-7000-8000-000000000001\",\"topic\":\"order.created\","
        "\"aggregate_kind\":\"order\","
        "\"aggregate_id\":\"4\\r\\n2\\\"\xc3\xab\",\"entity_version\":7,\"payload\":{ \"a\": 1 "
        ",\"_telemetry\":{\"traceparent\":\"00-ab\"}},\"stream_id\":\"tenant.created\","
        "\"committed_at\":\"2026-01-02T03:04:05.678Z\"}");
    freeReplyObject(r);
}

/* field finds a field of an entry; the test fails if there is not exactly one. */
static const char *field(const redisReply *entry, const char *name)
{
    const redisReply *fields = entry->element[1];
    const char *found = NULL;
    for (size_t i = 0; i < fields->elements; i += 2) {
        if (strcmp(fields->element[i]->str, name) != 0)
            continue;
        assert_null(found);
        found = fields->element[i + 1]->str;
    }
    assert_non_null(found);
    return found;
}

/* sends_as sends two events, one alone and several as a script, and returns the stream. */
static redisReply *sends_as(struct peer *p, const char *query, size_t chain)
{
    open_with(p, query);
    for (size_t i = 0; i < 1 + chain; i++) {
        struct sink_item *it = sink_rig_add(&p->rig, "{ \"a\": 1 }", 0);
        it->ev.headers = STR("{\"trace\":\"x\",\"value\":\"no\",\"id\":\"no\"}");
        it->d.chained = i > 1;
    }
    sink_rig_run(&p->rig);
    sink_rig_assert_all(&p->rig, SINK_DELIVERED);
    redisReply *r = redis_do(&server, "XRANGE s - +");
    assert_int_equal(r->elements, 1 + chain);
    for (size_t i = 0; i < r->elements; i++)
        assert_string_equal(r->element[i]->element[0]->str, p->rig.items[i]->receipt);
    return r;
}

/* Every format but the contract's has the value and the headers as fields, whether entries are
 * added one by one or by script. */
static void formats_use_value_and_headers_as_fields(void **state)
{
    struct peer *p = *state;
    redisReply *r = sends_as(p, "stream=s&format=plain", 5);
    for (size_t i = 0; i < r->elements; i++) {
        assert_string_equal(field(r->element[i], "value"), "{ \"a\": 1 }");
        assert_string_equal(field(r->element[i], "content-type"), "application/json");
        assert_string_equal(field(r->element[i], "id"), p->rig.items[i]->id);
        assert_string_equal(field(r->element[i], "type"), "order.created");
        assert_string_equal(field(r->element[i], "trace"), "x");
    }
    freeReplyObject(r);
}

static void entry_carries_a_cloudevent(void **state)
{
    struct peer *p = *state;
    redisReply *r = sends_as(p, "stream=s&format=cloudevents&source=/shop&maxlen=1000", 5);
    for (size_t i = 0; i < r->elements; i++) {
        assert_string_equal(field(r->element[i], "value"), "{ \"a\": 1 }");
        assert_string_equal(field(r->element[i], "ce_id"), p->rig.items[i]->id);
        assert_string_equal(field(r->element[i], "ce_source"), "/shop");
        assert_string_equal(field(r->element[i], "ce_trace"), "x");
    }
    freeReplyObject(r);
}

static void entry_carries_debezium_or_json(void **state)
{
    struct peer *p = *state;
    redisReply *r = sends_as(p, "stream=s&format=debezium", 0);
    assert_int_equal(r->element[0]->element[1]->elements, 4);
    assert_string_equal(field(r->element[0], "id"), p->rig.items[0]->id);
    freeReplyObject(r);
    sink_rig_release(&p->rig);

    redis_set(&server, "DEL s");
    r = sends_as(p, "stream=s&format=json", 0);
    assert_int_equal(r->element[0]->element[1]->elements, 4);
    assert_non_null(strstr(field(r->element[0], "value"), "\"attempt\":1}"));
    freeReplyObject(r);
}

/* assert_one_stream_refuses sends every third event to the stream `bad`, which accepts nothing.
 * Only those are refused. */
static void assert_one_stream_refuses(struct peer *p, const char *words)
{
    open_with(p, "stream={aggregate_type}");
    sink_rig_add_many(&p->rig, 300, 64);
    for (size_t i = 0; i < 300; i += 3)
        p->rig.items[i + 1]->ev.aggregate_type = STR("bad");
    sink_rig_run(&p->rig);
    for (size_t i = 0; i < 300; i++) {
        struct sink_item *it = p->rig.items[i];
        assert_int_equal(it->status, i % 3 == 1 ? SINK_REFUSED : SINK_DELIVERED);
        if (i % 3 == 1)
            sink_assert_says(it, words);
    }
    assert_int_equal(entries("order"), 200);
    redis_set(&server, "DEL bad");
    sink_rig_passes_again(&p->rig);
    assert_int_equal(entries("bad"), 100);
}

static void key_of_the_wrong_type_fails_only_events_of_that_stream(void **state)
{
    redis_set(&server, "SET bad x");
    assert_one_stream_refuses(*state, "rename one of them");
}

static void stream_with_exhausted_ids_refuses_only_its_own_events(void **state)
{
    redis_set(&server, "XADD bad 18446744073709551615-18446744073709551615 event {}");
    assert_one_stream_refuses(*state, "XSETID");
}

static void only_stream_refuses_events_once_its_ids_are_exhausted(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s");
    redis_set(&server, "XADD s 18446744073709551615-18446744073709551615 event {}");
    assert_int_equal(run_one(p, "1")->status, SINK_REFUSED);
    sink_assert_says(p->rig.items[0], "no id is left");
    redis_set(&server, "DEL s");
    sink_rig_passes_again(&p->rig);
}

/* An event that is in the stream is delivered, however odd its id. */
static void id_far_in_the_future_is_a_valid_receipt(void **state)
{
    struct peer *p = *state;
    const struct hwm *m;
    open_with(p, "stream=s");
    redis_set(&server, "XADD s 18446744073709551610-3 event {}");
    struct sink_item *it = run_one(p, "1");
    assert_int_equal(it->status, SINK_DELIVERED);
    assert_string_equal(it->receipt, "18446744073709551610-4");
    assert_int_equal(p->rig.sk->ops->marks(p->rig.sk, &m), 0);
    assert_int_equal(entries("s"), 2);
}

static void overlong_stream_name_rejects_only_its_event(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream={aggregate_id}");
    sink_rig_add_many(&p->rig, 3, 64);
    static char name[200 * 1024];
    memset(name, 'k', sizeof name);
    p->rig.items[1]->ev.aggregate_id = (struct str){name, sizeof name};
    sink_rig_run(&p->rig);
    assert_int_equal(p->rig.items[0]->status, SINK_DELIVERED);
    assert_int_equal(p->rig.items[1]->status, SINK_REJECT);
    sink_assert_says(p->rig.items[1], "204800 bytes");
    assert_int_equal(p->rig.items[2]->status, SINK_DELIVERED);
}

/* An event over the limit of the server is rejected alone, among hundreds of others.
 * */
static void only_the_event_over_the_servers_limit_is_rejected(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s");
    redis_set(&server, "CONFIG SET proto-max-bulk-len 1mb");
    sink_rig_add_many(&p->rig, 200, 64);
    sink_rig_add_many(&p->rig, 1, 4 << 20);
    sink_rig_add_many(&p->rig, 200, 64);
    sink_rig_run(&p->rig);
    for (size_t i = 0; i < p->rig.n; i++)
        assert_int_equal(p->rig.items[i]->status, i == 200 ? SINK_REJECT : SINK_DELIVERED);
    sink_assert_says(p->rig.items[200], "proto-max-bulk-len");
    assert_int_equal(entries("s"), 400);
}

static void event_missing_a_part_of_the_stream_name_is_rejected(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream={tenant}");
    assert_int_equal(run_one(p, "1")->status, SINK_REJECT);
    sink_assert_says(p->rig.items[0], "the event has no tenant");
}

static void maxlen_and_maxage_trim_with_a_warning(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s");
    if (clustered) /* another one, about replicas */
        assert_non_null(strstr(p->rig.sk->ops->caution(p->rig.sk), "replicas=1"));
    else
        assert_null(p->rig.sk->ops->caution(p->rig.sk));
    sink_rig_release(&p->rig);
    open_with(p, "stream=s&maxlen=100");
    assert_non_null(strstr(p->rig.sk->ops->caution(p->rig.sk), "maxlen"));
    sink_rig_add_many(&p->rig, 1000, 64);
    sink_rig_run(&p->rig);
    assert_in_range(entries("s"), 100, 300);
    sink_rig_release(&p->rig);
    open_with(p, "stream=s&maxage=1h");
    assert_non_null(p->rig.sk->ops->caution(p->rig.sk));
    redis_set(&server, "DEL s");
    for (int i = 0; i < 300; i++)
        redis_set(&server, "XADD s 1000-%d event {}", i + 1);
    run_one(p, "1");
    assert_in_range(entries("s"), 1, 150);
}

static void marks_hold_the_position_of_each_stream(void **state)
{
    struct peer *p = *state;
    const struct hwm *m;
    char id[64];
    open_with(p, "stream={aggregate_type}");
    assert_int_equal(p->rig.sk->ops->marks(p->rig.sk, &m), 0);
    sink_rig_add_many(&p->rig, 500, 64);
    p->rig.items[100]->ev.aggregate_type = STR("other");
    sink_rig_run(&p->rig);
    assert_int_equal(p->rig.sk->ops->marks(p->rig.sk, &m), 2);
    if (!str_is(m[0].stream, "other"))
        m++;
    snprintf(id, sizeof id, "%lld-%lld", (long long)m->hi, (long long)m->lo);
    assert_string_equal(id, p->rig.items[100]->receipt);
    p->rig.sk->ops->marks_recorded(p->rig.sk);
    assert_int_equal(p->rig.sk->ops->marks(p->rig.sk, &m), 0);
    struct sink_item *it = run_one(p, "1");
    assert_int_equal(p->rig.sk->ops->marks(p->rig.sk, &m), 1);
    snprintf(id, sizeof id, "%lld-%lld", (long long)m->hi, (long long)m->lo);
    assert_string_equal(id, it->receipt);
}

static const struct CMUnitTest tests[] = {
    OWN(entry_has_one_field_with_the_envelope),
    OWN(formats_use_value_and_headers_as_fields),
    OWN(entry_carries_a_cloudevent),
    OWN(entry_carries_debezium_or_json),
    OWN(key_of_the_wrong_type_fails_only_events_of_that_stream),
    OWN(stream_with_exhausted_ids_refuses_only_its_own_events),
    OWN(only_stream_refuses_events_once_its_ids_are_exhausted),
    OWN(id_far_in_the_future_is_a_valid_receipt),
    OWN(overlong_stream_name_rejects_only_its_event),
    OWN(only_the_event_over_the_servers_limit_is_rejected),
    OWN(event_missing_a_part_of_the_stream_name_is_rejected),
    OWN(maxlen_and_maxage_trim_with_a_warning),
    OWN(marks_hold_the_position_of_each_stream),
};

const struct suite_part redis_streams_tests = SUITE_PART(tests);
