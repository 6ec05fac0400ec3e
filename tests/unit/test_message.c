#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/json.h"
#include "event/event_json.h"
#include "event/message.h"
#include "full_event.h"

static struct buf text;
static struct message m;

static void make(enum message_format format, const struct event *ev)
{
    struct error err = {0};
    struct message_style style = {format, STR("/shop"), "ce_"};
    buf_release(&text);
    buf_init(&text, 1 << 20);
    if (message_make(&style, ev, STR("orders"), STR("search"), 2, &text, &m, &err) != 0)
        fail_msg("%s", err.text);
}

static void is(struct str got, const char *want)
{
    if (!str_is(got, want))
        fail_msg("%.*s instead of %s", (int)got.n, got.p, want);
}

static void header(const char *name, const char *want)
{
    struct str got = message_header_of(&m, str_of(name));
    if (!got.p)
        fail_msg("no header %s", name);
    is(got, want);
}

static void plain_has_the_payload_and_the_rest_in_headers(void **state)
{
    (void)state;
    make(MESSAGE_PLAIN, &full);
    is(m.value, "{\"total\": 5.00}");
    assert_ptr_equal(m.value.p, full.payload.p); /* not copied, so identical byte for byte */
    is(m.key, "17");
    is(m.content_type, "application/json");
    header("id", "0197c9a2-5b1e-7c3a-9f00-1234567890ab");
    header("type", "order.created");
    header("aggregate_type", "order");
    header("aggregate_id", "17");
    header("key", "order/17");
    header("seq", "42");
    header("version", "3");
    header("time", "2026-01-02T03:04:05.678Z");
    header("tenant", "acme");
    header("trace", "abc");
    assert_int_equal(m.n, 10);
}

static void absent_event_fields_are_omitted(void **state)
{
    (void)state;
    struct event ev = {.seq = 7, .id = full.id, .type = STR("x")};
    make(MESSAGE_PLAIN, &ev);
    assert_null(m.key.p);
    is(m.value, "null");
    assert_int_equal(m.n, 4); /* id, type, seq, time */
}

static void our_headers_override_the_events(void **state)
{
    (void)state;
    struct event ev = full;
    ev.headers = STR(
        "{\"id\":\"forged\",\"\\u0074ype\":\"forged\",\"a\":\"1\",\"a\":\"\\u00e9\\n\","
        "\"\":\"empty\",\"n\":1.50}");
    make(MESSAGE_PLAIN, &ev);
    header("id", "0197c9a2-5b1e-7c3a-9f00-1234567890ab");
    header("type", "order.created");
    header("a", "\xc3\xa9\n"); /* the last one wins; escapes are decoded */
    header("", "empty");
    header("n", "1.50");
    assert_int_equal(m.n, 12);
}

static void message_has_room_for_all_headers_of_an_event(void **state)
{
    (void)state;
    struct event ev = full;
    struct buf all;
    buf_init(&all, 1 << 16);
    for (int i = 0; i < EVENT_HEADERS_COUNT; i++)
        buf_addf(&all, "%s\"h%d\":\"%d\"", i ? "," : "{", i, i);
    buf_addc(&all, '}');
    ev.headers = (struct str){all.p, all.n};
    make(MESSAGE_PLAIN, &ev);
    assert_int_equal(m.n, 9 + EVENT_HEADERS_COUNT);
    header("h0", "0");
    header("h63", "63");
    make(MESSAGE_CLOUDEVENTS, &ev);
    header("ce_h63", "63");
    buf_release(&all);
}

static void too_many_headers_are_refused(void **state)
{
    (void)state;
    struct event ev = full;
    struct error err = {0};
    struct message_style style = {.format = MESSAGE_PLAIN};
    struct buf all;
    buf_init(&all, 1 << 16);
    for (int i = 0; i < 2 * MESSAGE_HEADERS; i++)
        buf_addf(&all, "%s\"h%d\":\"\"", i ? "," : "{", i);
    buf_addc(&all, '}');
    ev.headers = (struct str){all.p, all.n};
    buf_clear(&text);
    assert_int_equal(message_make(&style, &ev, STR("o"), STR("c"), 1, &text, &m, &err), -1);
    assert_int_equal(err.code, ERR_INVALID);
    buf_release(&all);
}

static void cloudevents_has_its_attributes_in_headers(void **state)
{
    (void)state;
    struct event ev = full;
    ev.headers = STR("{\"traceparent\":\"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\","
                     "\"trace\":\"\xc3\xa9\",\"X-Other\":\"1\"}");
    make(MESSAGE_CLOUDEVENTS, &ev);
    is(m.value, "{\"total\": 5.00}");
    is(m.content_type, "application/json");
    is(m.key, "17");
    header("ce_specversion", "1.0");
    header("ce_id", "0197c9a2-5b1e-7c3a-9f00-1234567890ab");
    header("ce_source", "/shop");
    header("ce_type", "order.created");
    header("ce_subject", "order/17");
    header("ce_time", "2026-01-02T03:04:05.678Z");
    header("ce_tenant", "acme");
    header("ce_aggregateversion", "3");
    header("ce_trace", "\xc3\xa9"); /* unchanged: a broker's headers may hold any text */
    header("ce_traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    assert_int_equal(m.n, 11);
}

static void structured_is_one_cloudevent(void **state)
{
    (void)state;
    struct json o, v;
    make(MESSAGE_STRUCTURED, &full);
    is(m.content_type, "application/cloudevents+json");
    assert_int_equal(m.n, 0);
    assert_int_equal(json_parse(m.value, &o, NULL, NULL), 0);
    assert_true(json_get(o, STR("data"), &v));
    is(v.raw, "{\"total\": 5.00}");
    assert_true(json_get(o, STR("source"), &v));
    is(v.raw, "\"/shop\"");
}

/* Debezium's outbox event router emits the payload, the aggregate's id as the key, and one
 * header. */
static void debezium_has_only_the_id_header(void **state)
{
    (void)state;
    make(MESSAGE_DEBEZIUM, &full);
    is(m.value, "{\"total\": 5.00}");
    is(m.key, "17");
    assert_null(m.content_type.p);
    header("id", "0197c9a2-5b1e-7c3a-9f00-1234567890ab");
    assert_int_equal(m.n, 1);
}

static void json_is_the_line_and_contract_is_the_envelope(void **state)
{
    (void)state;
    struct buf want;
    buf_init(&want, 10000);
    event_line_write(&want, &full, STR("search"), 2);
    make(MESSAGE_JSON, &full);
    assert_true(str_eq(m.value, (struct str){want.p, want.n - 1}));
    assert_int_equal(m.n, 0);

    buf_clear(&want);
    event_envelope_write(&want, &full, STR("orders"));
    make(MESSAGE_CONTRACT, &full);
    assert_true(str_eq(m.value, (struct str){want.p, want.n}));
    buf_release(&want);
}

static void oversized_message_is_refused(void **state)
{
    (void)state;
    struct error err = {0};
    struct message_style style = {.format = MESSAGE_JSON};
    struct buf little;
    buf_init(&little, 100);
    assert_int_equal(message_make(&style, &full, STR("o"), STR("c"), 1, &little, &m, &err), -1);
    assert_int_equal(err.code, ERR_INVALID);
    buf_release(&little);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_has_the_payload_and_the_rest_in_headers),
        cmocka_unit_test(absent_event_fields_are_omitted),
        cmocka_unit_test(our_headers_override_the_events),
        cmocka_unit_test(message_has_room_for_all_headers_of_an_event),
        cmocka_unit_test(too_many_headers_are_refused),
        cmocka_unit_test(cloudevents_has_its_attributes_in_headers),
        cmocka_unit_test(structured_is_one_cloudevent),
        cmocka_unit_test(debezium_has_only_the_id_header),
        cmocka_unit_test(json_is_the_line_and_contract_is_the_envelope),
        cmocka_unit_test(oversized_message_is_refused),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    buf_release(&text);
    return failed;
}
