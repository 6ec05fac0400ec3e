#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/json.h"
#include "event/event_json.h"
#include "full_event.h"

static void writes(const struct event *ev, const char *want)
{
    struct buf b;
    buf_init(&b, 10000);
    event_line_write(&b, ev, STR("search"), 2);
    assert_string_equal(buf_cstr(&b), want);
    assert_int_equal(json_parse((struct str){b.p, b.n}, NULL, NULL, NULL), 0);
    buf_release(&b);
}

/* A public format: keys may be appended, never changed. */
static void every_key_is_written_in_its_order(void **state)
{
    (void)state;
    writes(&full,
           "{\"id\":\"0197c9a2-5b1e-7c3a-9f00-1234567890ab\",\"seq\":42,\"type\":\"order.created\","
           "\"aggregate_type\":\"order\",\"aggregate_id\":\"17\",\"version\":3,\"payload\":{"
           "\"total\": 5.00},"
           "\"headers\":{\"trace\":\"abc\"},\"created_at\":\"2026-01-02T03:04:05.678Z\","
           "\"consumer\":\"search\","
           "\"attempt\":2}\n");
}

static void absent_parts_are_null_and_headers_empty(void **state)
{
    (void)state;
    struct event ev = {.seq = 1, .id = full.id, .type = STR("x")};
    writes(&ev,
           "{\"id\":\"0197c9a2-5b1e-7c3a-9f00-1234567890ab\",\"seq\":1,\"type\":\"x\",\"aggregate_"
           "type\":null,"
           "\"aggregate_id\":null,\"version\":null,\"payload\":null,\"headers\":{},"
           "\"created_at\":\"1970-01-01T00:00:00.000Z\",\"consumer\":\"search\",\"attempt\":2}\n");
}

static void line_breaks_of_the_payload_become_spaces(void **state)
{
    (void)state;
    struct event ev = full;
    struct buf b;
    ev.payload = STR("{\r\n  \"a\": \"x\\ny\",\n  \"n\": 1.50e+3\n}");
    ev.headers = STR("{\n}");
    buf_init(&b, 10000);
    event_line_write(&b, &ev, STR("c"), 1);
    const char *line = buf_cstr(&b);
    assert_non_null(
        strstr(line, "\"payload\":{    \"a\": \"x\\ny\",   \"n\": 1.50e+3 },\"headers\":{ },"));
    assert_ptr_equal(strchr(line, '\n'), line + b.n - 1);
    buf_release(&b);
}

static void strings_are_escaped_and_read_back_the_same(void **state)
{
    (void)state;
    struct event ev = full;
    struct buf b, back;
    struct json line, v;
    ev.aggregate_id = STR("a\"b\\c/\xf0\x9f\x98\x80\t");
    buf_init(&b, 10000);
    buf_init(&back, 100);
    event_line_write(&b, &ev, STR("con\"sumer"), 1);
    assert_int_equal(json_parse((struct str){b.p, b.n}, &line, NULL, NULL), 0);
    assert_true(json_get(line, STR("aggregate_id"), &v));
    json_unescape(v.raw, &back);
    assert_true(str_eq((struct str){back.p, back.n}, ev.aggregate_id));
    assert_true(json_get(line, STR("consumer"), &v) && str_is(v.raw, "\"con\\\"sumer\""));
    buf_release(&b);
    buf_release(&back);
}

static void line_needs_exactly_its_length(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 10000);
    event_line_write(&b, &full, STR("search"), 1);
    size_t n = b.n;
    buf_release(&b);
    buf_init(&b, 2 * n);
    event_line_write(&b, &full, STR("search"), 1);
    event_line_write(&b, &full, STR("search"), 1);
    assert_false(b.failed);
    assert_int_equal(b.n, 2 * n);
    assert_memory_equal(b.p, b.p + n, n);
    buf_release(&b);
    buf_init(&b, 2 * n - 1);
    event_line_write(&b, &full, STR("search"), 1);
    event_line_write(&b, &full, STR("search"), 1);
    assert_true(b.failed);
    buf_truncate(&b, n);
    assert_int_equal(buf_cstr(&b)[n - 1], '\n');
    buf_release(&b);
}

#define NOW INT64_C(1700000000000)

static struct arena arena;

static struct new_event read_line(struct str line)
{
    struct error err;
    struct new_event ev;
    if (event_line_read(line, NOW, &arena, &ev, &err) != 0)
        fail_msg("%s", err.text);
    return ev;
}

static void refused(struct str line, const char *want)
{
    struct error err = {.code = 0};
    struct new_event ev = {.version = 77};
    assert_int_equal(event_line_read(line, NOW, &arena, &ev, &err), -1);
    assert_int_equal(err.code, ERR_INVALID);
    assert_string_equal(err.text, want);
    assert_int_equal(ev.version, 77);
    assert_null(ev.type.p);
    assert_int_equal(event_line_read(line, NOW, &arena, &ev, NULL), -1);
}

static void every_key_is_read(void **state)
{
    (void)state;
    struct str line = STR(
        "{\"type\":\"a.b\",\"aggregate_type\":\"order\",\"aggregate_id\":\"1\\/2\",\"version\":7,"
        "\"payload\":{\"x\": [1]},\"headers\":{\"h\":\"v\"},\"idempotency_key\":\"k\","
        "\"tenant\":\"t\",\"delay\":\"1m30s\"}\n");
    struct new_event ev = read_line(line);
    assert_true(str_is(ev.type, "a.b"));
    assert_true(str_is(ev.aggregate_type, "order"));
    assert_true(str_is(ev.aggregate_id, "1/2"));
    assert_true(ev.has_version);
    assert_int_equal(ev.version, 7);
    assert_true(str_is(ev.payload, "{\"x\": [1]}"));
    assert_true(ev.payload.p > line.p && ev.payload.p < line.p + line.n);
    assert_true(str_is(ev.headers, "{\"h\":\"v\"}"));
    assert_true(str_is(ev.idempotency_key, "k"));
    assert_true(str_is(ev.tenant, "t"));
    assert_true(ev.not_before == NOW + 90000);
}

static void missing_and_null_keys_are_absent(void **state)
{
    (void)state;
    struct new_event ev = read_line(STR("{}"));
    assert_null(ev.type.p);
    assert_null(ev.payload.p);
    assert_false(ev.has_version);
    ev = read_line(
        STR("{\"type\":\"x\",\"aggregate_type\":null,\"aggregate_id\":null,\"version\":null,"
            "\"headers\":null,"
            "\"idempotency_key\":null,\"tenant\":null,\"delay\":null,\"payload\":null}"));
    assert_null(ev.aggregate_type.p);
    assert_null(ev.aggregate_id.p);
    assert_null(ev.headers.p);
    assert_null(ev.idempotency_key.p);
    assert_null(ev.tenant.p);
    assert_false(ev.has_version);
    assert_int_equal(ev.not_before, 0);
    assert_true(str_is(ev.payload, "null"));
}

static void empty_strings_stay_empty_strings(void **state)
{
    (void)state;
    struct new_event ev = read_line(STR("{\"type\":\"\",\"tenant\":\"\"}"));
    assert_non_null(ev.type.p);
    assert_non_null(ev.tenant.p);
    assert_int_equal(ev.type.n, 0);
}

static void escapes_are_undone_in_strings_and_names(void **state)
{
    (void)state;
    struct new_event ev = read_line(STR("{\"t\\u0079pe\":\"\\u0061\\\"\\ud83d\\ude00\\u0000z\"}"));
    assert_true(str_eq(ev.type, STR("a\"\xf0\x9f\x98\x80\0z")));
}

static void missing_delay_means_now(void **state)
{
    (void)state;
    assert_int_equal(read_line(STR("{\"delay\":\"0s\"}")).not_before, 0);
    assert_true(read_line(STR("{\"delay\":\"1ms\"}")).not_before == NOW + 1);
}

static void unknown_keys_are_refused_with_the_nearest(void **state)
{
    (void)state;
    refused(STR("{\"typ\":\"x\"}"), "unknown key \"typ\"; did you mean \"type\"?");
    refused(STR("{\"agregate_id\":\"x\"}"),
            "unknown key \"agregate_id\"; did you mean \"aggregate_id\"?");
    refused(STR("{\"type\":\"x\",\"seq\":1}"), "unknown key \"seq\"");
    refused(STR("{\"\":1}"), "unknown key \"\"");
    refused(STR("{\"a\\nb\":1}"), "unknown key \"a b\"");
}

static void wrong_types_are_refused(void **state)
{
    (void)state;
    refused(STR("{\"type\":1}"), "type must be a string, not a number");
    refused(STR("{\"aggregate_id\":17}"), "aggregate_id must be a string, not a number");
    refused(STR("{\"aggregate_type\":{}}"), "aggregate_type must be a string, not an object");
    refused(STR("{\"idempotency_key\":true}"), "idempotency_key must be a string, not true");
    refused(STR("{\"tenant\":[]}"), "tenant must be a string, not an array");
    refused(STR("{\"headers\":\"x\"}"), "headers must be an object, not a string");
    refused(STR("{\"version\":\"1\"}"), "version must be a whole number, not a string");
    refused(STR("{\"version\":1.5}"), "version must be a 64-bit whole number");
    refused(STR("{\"version\":9223372036854775808}"), "version must be a 64-bit whole number");
    refused(STR("{\"delay\":5}"), "delay must be a duration such as \"5m\", not a number");
    refused(STR("{\"delay\":\"5\"}"),
            "delay: \"5\" has no unit: write ms, s, m, h or d after the number");
    refused(STR("{\"delay\":\"5m\\u0000\"}"), "delay has a NUL character");
}

static void duplicate_key_is_refused(void **state)
{
    (void)state;
    refused(STR("{\"type\":\"a\",\"type\":\"b\"}"), "type is given twice");
    refused(STR("{\"payload\":1,\"p\\u0061yload\":2}"), "payload is given twice");
}

static void lines_other_than_objects_are_refused(void **state)
{
    (void)state;
    refused(STR(""), "not JSON: unexpected end at byte 0");
    refused(STR("{\"type\":\"x\",}"), "not JSON: unexpected '}' at byte 12");
    refused(STR("{} {}"), "not JSON: unexpected '{' at byte 3");
    refused(STR("[1]"), "must be a JSON object, not an array");
    refused(STR("\"x\""), "must be a JSON object, not a string");
}

static void full_arena_is_reported_as_out_of_memory(void **state)
{
    (void)state;
    struct arena tiny;
    struct new_event ev;
    struct error err;
    arena_init(&tiny, 8);
    assert_int_equal(
        event_line_read(STR("{\"type\":\"\\u0061bcdefghijkl\"}"), NOW, &tiny, &ev, &err), -1);
    assert_int_equal(err.code, ERR_NOMEM);
    arena_release(&tiny);
}

static int start(void **state)
{
    (void)state;
    arena_init(&arena, 0);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    arena_release(&arena);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_is_written_in_its_order),
        cmocka_unit_test(absent_parts_are_null_and_headers_empty),
        cmocka_unit_test(line_breaks_of_the_payload_become_spaces),
        cmocka_unit_test(strings_are_escaped_and_read_back_the_same),
        cmocka_unit_test(line_needs_exactly_its_length),
        cmocka_unit_test(every_key_is_read),
        cmocka_unit_test(missing_and_null_keys_are_absent),
        cmocka_unit_test(empty_strings_stay_empty_strings),
        cmocka_unit_test(escapes_are_undone_in_strings_and_names),
        cmocka_unit_test(missing_delay_means_now),
        cmocka_unit_test(unknown_keys_are_refused_with_the_nearest),
        cmocka_unit_test(wrong_types_are_refused),
        cmocka_unit_test(duplicate_key_is_refused),
        cmocka_unit_test(lines_other_than_objects_are_refused),
        cmocka_unit_test(full_arena_is_reported_as_out_of_memory),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
