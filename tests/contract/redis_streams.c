/* redis_streams.c: which stream an event goes to, and what is in it then. */
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

/* assert_one_stream_waits sends every third event to the stream `bad`, which takes nothing. Only
 * those wait. */
static void assert_one_stream_waits(struct peer *p, const char *words)
{
    open_with(p, "stream={aggregate_type}");
    sink_rig_add_many(&p->rig, 300, 64);
    for (size_t i = 0; i < 300; i += 3)
        p->rig.items[i + 1]->ev.aggregate_type = STR("bad");
    sink_rig_run(&p->rig);
    for (size_t i = 0; i < 300; i++) {
        struct sink_item *it = p->rig.items[i];
        assert_int_equal(it->status, i % 3 == 1 ? SINK_LATER : SINK_DELIVERED);
        if (i % 3 != 1)
            continue;
        sink_assert_says(it, words);
        assert_in_range(it->retry_after_ms, 1000, 60000);
    }
    assert_int_equal(entries("order"), 200);

    /* The longer it lasts, the less often they ask. */
    p->rig.ahead_ns += INT64_C(20000) * MS_NS;
    sink_rig_again(&p->rig);
    sink_rig_run(&p->rig);
    assert_in_range(p->rig.items[299]->retry_after_ms, 20000, 60000);
    redis_set(&server, "DEL bad");
    sink_rig_passes_again(&p->rig);
    assert_int_equal(entries("bad"), 100);
}

static void stream_that_is_none_keeps_only_its_own_events(void **state)
{
    redis_set(&server, "SET bad x");
    assert_one_stream_waits(*state, "rename one of them");
}

static void stream_without_ids_keeps_only_its_own_events(void **state)
{
    redis_set(&server, "XADD bad 18446744073709551615-18446744073709551615 event {}");
    assert_one_stream_waits(*state, "XSETID");
}

static void only_stream_without_ids_is_down(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s");
    redis_set(&server, "XADD s 18446744073709551615-18446744073709551615 event {}");
    down_until(p, "no id is left", "DEL s");
}

/* An event that is in the stream is delivered, however odd its id. */
static void id_beyond_all_clocks_is_a_receipt(void **state)
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

static void stream_with_too_long_a_name_rejects_its_event_alone(void **state)
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

/* An event over the limit of the server is rejected by itself, with hundreds before and behind it.
 * */
static void event_larger_than_the_server_takes_is_rejected_alone(void **state)
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

static void event_that_lacks_a_part_of_the_name_is_rejected(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream={tenant}");
    assert_int_equal(run_one(p, "1")->status, SINK_REJECT);
    sink_assert_says(p->rig.items[0], "it has no tenant");
}

static void maxlen_and_maxage_trim_and_warn(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s");
    assert_null(p->rig.sk->ops->caution(p->rig.sk));
    sink_rig_release(&p->rig);
    open_with(p, "stream=s&maxlen=100");
    assert_non_null(p->rig.sk->ops->caution(p->rig.sk));
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

static void marks_say_how_far_each_stream_has_come(void **state)
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
    p->rig.sk->ops->marks_kept(p->rig.sk);
    assert_int_equal(p->rig.sk->ops->marks(p->rig.sk, &m), 0);
    struct sink_item *it = run_one(p, "1");
    assert_int_equal(p->rig.sk->ops->marks(p->rig.sk, &m), 1);
    snprintf(id, sizeof id, "%lld-%lld", (long long)m->hi, (long long)m->lo);
    assert_string_equal(id, it->receipt);
}

static const struct CMUnitTest tests[] = {
    OWN(entry_has_one_field_with_the_envelope),
    OWN(stream_that_is_none_keeps_only_its_own_events),
    OWN(stream_without_ids_keeps_only_its_own_events),
    OWN(only_stream_without_ids_is_down),
    OWN(id_beyond_all_clocks_is_a_receipt),
    OWN(stream_with_too_long_a_name_rejects_its_event_alone),
    OWN(event_larger_than_the_server_takes_is_rejected_alone),
    OWN(event_that_lacks_a_part_of_the_name_is_rejected),
    OWN(maxlen_and_maxage_trim_and_warn),
    OWN(marks_say_how_far_each_stream_has_come),
};

const struct suite_part redis_streams_tests = SUITE_PART(tests);
