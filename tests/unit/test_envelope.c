#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/json.h"
#include "event/event_json.h"
#include "extra/streams/envelope.h"
#include "full_event.h"

static void writes(const struct event *ev, const char *want)
{
    struct buf b;
    buf_init(&b, 10000);
    event_envelope_write(&b, ev, STR("orders"));
    assert_string_equal(buf_cstr(&b), want);
    assert_int_equal(json_parse((struct str){b.p, b.n}, NULL, NULL, NULL), 0);
    buf_release(&b);
}

/* The format is public (C3.4). */
static void envelope_has_exactly_these_keys_in_this_order(void **state)
{
    (void)state;
    writes(&full, "{\"event_id\":\"0197c9a2-5b1e-7c3a-9f00-1234567890ab\",\"topic\":\"order."
                  "created\",\"aggregate_kind\":"
                  "\"order\",\"aggregate_id\":\"17\",\"entity_version\":3,\"payload\":{\"total\": "
                  "5.00,\"_telemetry\":"
                  "{\"trace\":\"abc\"}},\"stream_id\":\"orders\",\"committed_at\":\"2026-01-02T03:"
                  "04:05.678Z\"}");
}

static void absent_parts_are_null(void **state)
{
    (void)state;
    struct event ev = {.id = full.id, .type = STR("x"), .headers = full.headers};
    writes(
        &ev,
        "{\"event_id\":\"0197c9a2-5b1e-7c3a-9f00-1234567890ab\",\"topic\":\"x\",\"aggregate_kind\":"
        "null,"
        "\"aggregate_id\":null,\"entity_version\":null,\"payload\":null,\"stream_id\":\"orders\","
        "\"committed_at\":\"1970-01-01T00:00:00.000Z\"}");
}

/* Checks the payload only. The event has the headers of `full` unless `headers` is given. */
static void payload_becomes(const char *payload, const char *headers, const char *want)
{
    struct event ev = full;
    struct buf b, text;
    struct event back;
    struct error err = {0};
    buf_init(&b, 10000);
    buf_init(&text, 10000);
    ev.payload = str_of(payload);
    if (headers)
        ev.headers = *headers ? str_of(headers) : (struct str){0};
    event_envelope_write(&b, &ev, STR("orders"));
    assert_int_equal(envelope_read((struct str){b.p, b.n}, &text, &back, &err), 0);
    if (!str_is(back.payload, want))
        fail_msg("%.*s", (int)back.payload.n, back.payload.p);
    buf_release(&b);
    buf_release(&text);
}

static void telemetry_only_adds_a_last_member(void **state)
{
    (void)state;
    payload_becomes("{}", NULL, "{\"_telemetry\":{\"trace\":\"abc\"}}");
    payload_becomes("{ \n }", NULL, "{ \n \"_telemetry\":{\"trace\":\"abc\"}}");
    payload_becomes("{\"a\":{}}", NULL, "{\"a\":{},\"_telemetry\":{\"trace\":\"abc\"}}");
    payload_becomes("{\"a\":1\r\n}", NULL, "{\"a\":1\r\n,\"_telemetry\":{\"trace\":\"abc\"}}");
    payload_becomes("{\"a\":\"}\"}", NULL, "{\"a\":\"}\",\"_telemetry\":{\"trace\":\"abc\"}}");
    payload_becomes("{\"a\": 1.50e+3, \"a\":2}", "", "{\"a\": 1.50e+3, \"a\":2}");
    payload_becomes("{\"a\":1}", "{}", "{\"a\":1}");
    payload_becomes("[{}]", NULL, "[{}]");
    payload_becomes("\"{}\"", NULL, "\"{}\"");
    /* A member with that name stays as the producer wrote it. A nested one is not ours. */
    payload_becomes("{\"_telemetry\":1}", NULL, "{\"_telemetry\":1}");
    payload_becomes("{\"\\u005ftelemetry\":1}", NULL, "{\"\\u005ftelemetry\":1}");
    payload_becomes("{\"a\":{\"_telemetry\":1}}", NULL,
                    "{\"a\":{\"_telemetry\":1},\"_telemetry\":{\"trace\":\"abc\"}}");
}

static void envelope_round_trips(void **state)
{
    (void)state;
    struct event ev = full, back;
    struct buf b, text;
    struct error err = {0};
    buf_init(&b, 10000);
    buf_init(&text, 10000);
    ev.aggregate_id = STR("o'Brien \"\\ \xe2\x98\x83");
    event_envelope_write(&b, &ev, STR("orders"));
    assert_int_equal(envelope_read((struct str){b.p, b.n}, &text, &back, &err), 0);
    assert_true(str_eq(back.id, ev.id) && str_eq(back.type, ev.type) &&
                str_eq(back.aggregate_id, ev.aggregate_id));
    assert_true(back.has_version && back.version == 3);
    assert_true(back.created_at == ev.created_at);
    assert_int_equal(back.payload.p[back.payload.n], 0);
    assert_true(str_eq(back.headers, ev.headers));
    assert_true(back.key == event_key(ev.aggregate_type, ev.aggregate_id));
    buf_release(&b);
    buf_release(&text);
}

/* Any client may write to a stream. */
static void invalid_event_fields_are_refused(void **state)
{
    static const char *const fields[] = {
        "\"event_id\":\"7\",\"topic\":\"t\"",
        "\"event_id\":\"0197c9a2-5b1e-7c3a-9f00-1234567\\r\\nA:b\",\"topic\":\"t\"",
        "\"event_id\":\"0197c9a2-5b1e-7c3a-9f00-1234567890ab\",\"topic\":\"t\\u0000LD_PRELOAD=x\"",
        "\"event_id\":\"0197c9a2-5b1e-7c3a-9f00-1234567890ab\",\"topic\":\"t\",\"aggregate_kind\":"
        "\"a\\nb\"",
        "\"event_id\":\"0197c9a2-5b1e-7c3a-9f00-1234567890ab\",\"topic\":\"t\",\"aggregate_id\":"
        "\"\\u0000\"",
    };
    (void)state;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        char text[300];
        struct event ev;
        struct error err = {0};
        struct buf b;
        buf_init(&b, 10000);
        snprintf(text, sizeof text, "{%s,\"payload\":{}}", fields[i]);
        assert_int_equal(envelope_read(str_of(text), &b, &ev, &err), -1);
        assert_int_equal(err.code, ERR_INVALID);
        buf_release(&b);
    }
}

static void non_envelopes_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "x",
                                      "[]",
                                      "{}",
                                      "{\"event_id\":1,\"topic\":\"t\",\"payload\":1}",
                                      "{\"event_id\":\"i\",\"topic\":\"t\"}"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct buf text;
        struct event back;
        struct error err = {0};
        buf_init(&text, 10000);
        assert_int_equal(envelope_read(str_of(bad[i]), &text, &back, &err), -1);
        assert_int_equal(err.code, ERR_INVALID);
        buf_release(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(envelope_has_exactly_these_keys_in_this_order),
        cmocka_unit_test(absent_parts_are_null),
        cmocka_unit_test(telemetry_only_adds_a_last_member),
        cmocka_unit_test(envelope_round_trips),
        cmocka_unit_test(non_envelopes_are_refused),
        cmocka_unit_test(invalid_event_fields_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
