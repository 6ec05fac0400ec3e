#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "event/event.h"

#define NOW INT64_C(1700000000000)

static const struct event_limits limits = {EVENT_PAYLOAD_MAX, NOW};
static char long_text[EVENT_KEY_MAX + 1];

static struct new_event sound(void)
{
    return (struct new_event){
        .type = STR("order.created"),
        .aggregate_type = STR("order"),
        .aggregate_id = STR("17"),
        .payload = STR("{\"total\": 5}"),
        .headers = STR("{\"trace\":\"abc\"}"),
        .idempotency_key = STR("k-1"),
        .tenant = STR("acme"),
    };
}

static void accepted(const struct new_event *ev)
{
    struct error err;
    if (event_check(ev, &limits, &err) != 0)
        fail_msg("%s", err.text);
}

static void refused(const struct new_event *ev, const char *want)
{
    struct error err = {.code = 0};
    assert_int_equal(event_check(ev, &limits, &err), -1);
    assert_int_equal(err.code, ERR_INVALID);
    assert_string_equal(err.text, want);
    assert_int_equal(event_check(ev, &limits, NULL), -1);
}

#define WITH(field, value, want) \
    do { \
        struct new_event ev_ = sound(); \
        ev_.field = value; \
        refused(&ev_, want); \
    } while (0)

#define FINE(field, value) \
    do { \
        struct new_event ev_ = sound(); \
        ev_.field = value; \
        accepted(&ev_); \
    } while (0)

static const struct str absent = {NULL, 0};

static void full_and_minimal_events_are_accepted(void **state)
{
    (void)state;
    struct new_event ev = sound(), bare = {.type = STR("x")};
    accepted(&ev);
    accepted(&bare);
}

static void missing_empty_or_overlong_type_is_refused(void **state)
{
    (void)state;
    WITH(type, absent, "type is missing");
    WITH(type, STR(""), "type is empty");
    WITH(type, ((struct str){long_text, 256}), "type is 256 bytes; the limit is 255");
    FINE(type, ((struct str){long_text, 255}));
}

static void type_with_white_space_is_refused(void **state)
{
    (void)state;
    WITH(type, STR("a b"), "type has white space at byte 1");
    WITH(type, STR(" a"), "type has white space at byte 0");
    WITH(type, STR("ab\xc2\xa0"), "type has white space at byte 2");
    WITH(type, STR("a\xe2\x80\xa8z"), "type has white space at byte 1");
    WITH(type, STR("a\xe2\x80\xa9z"), "type has white space at byte 1");
    WITH(type, STR("\xe3\x80\x80"), "type has white space at byte 0");
    FINE(type, STR("\xe3\x81\x82.\xc3\xa4/\"*"));
}

static void control_characters_are_refused_everywhere(void **state)
{
    (void)state;
    WITH(type, STR("a\tb"), "type has a control character at byte 1");
    WITH(type, STR("a\0b"), "type has a control character at byte 1");
    WITH(type, STR("a\x7f"), "type has a control character at byte 1");
    WITH(type, STR("a\xc2\x85"), "type has a control character at byte 1");
    WITH(aggregate_type, STR("a\n"), "aggregate type has a control character at byte 1");
    WITH(aggregate_id, STR("\xc2\x80"), "aggregate id has a control character at byte 0");
    WITH(idempotency_key, STR("a\x01"), "idempotency key has a control character at byte 1");
    WITH(tenant, STR("\x1f"), "tenant has a control character at byte 0");
}

static void invalid_utf8_is_refused_everywhere(void **state)
{
    (void)state;
    WITH(type, STR("ab\xff"), "type is not valid UTF-8 at byte 2");
    WITH(aggregate_type, STR("\xed\xa0\x80"), "aggregate type is not valid UTF-8 at byte 0");
    WITH(aggregate_id, STR("a\xc3"), "aggregate id is not valid UTF-8 at byte 1");
    WITH(idempotency_key, STR("\xc0\x80"), "idempotency key is not valid UTF-8 at byte 0");
    WITH(tenant, STR("\x80"), "tenant is not valid UTF-8 at byte 0");
    WITH(payload, STR("\"\xff\""), "payload is not JSON: invalid UTF-8 at byte 1");
}

static void aggregate_needs_both_type_and_id(void **state)
{
    (void)state;
    WITH(aggregate_id, absent, "aggregate type is given without an aggregate id");
    WITH(aggregate_type, absent, "aggregate id is given without an aggregate type");
    WITH(aggregate_id, STR(""), "aggregate id is empty");
    WITH(aggregate_type, STR(""), "aggregate type is empty");
}

static void only_aggregate_ids_may_contain_a_slash(void **state)
{
    (void)state;
    WITH(aggregate_type, STR("a/b"),
         "aggregate type has a '/' at byte 1: keys are written as type/id");
    FINE(aggregate_id, STR("a/b/c"));
}

static void aggregates_may_contain_quotes_and_spaces(void **state)
{
    (void)state;
    FINE(aggregate_type, STR("it's a \"type\""));
    FINE(aggregate_id, STR("'; drop table event; -- \\ \xf0\x9f\x98\x80"));
}

static void empty_or_overlong_keys_are_refused(void **state)
{
    (void)state;
    struct str full = {long_text, EVENT_KEY_MAX}, over = {long_text, EVENT_KEY_MAX + 1};
    FINE(aggregate_type, full);
    FINE(aggregate_id, full);
    FINE(idempotency_key, full);
    FINE(tenant, full);
    WITH(aggregate_type, over, "aggregate type is 1025 bytes; the limit is 1024");
    WITH(aggregate_id, over, "aggregate id is 1025 bytes; the limit is 1024");
    WITH(idempotency_key, over, "idempotency key is 1025 bytes; the limit is 1024");
    WITH(tenant, over, "tenant is 1025 bytes; the limit is 1024");
    WITH(idempotency_key, STR(""), "idempotency key is empty");
    WITH(tenant, STR(""), "tenant is empty");
}

static void payload_is_json_within_its_limit(void **state)
{
    (void)state;
    FINE(payload, absent);
    FINE(payload, STR("null"));
    FINE(payload, STR(" [1,\n2] "));
    WITH(payload, STR("{\"total\": 5 x}"), "payload is not JSON: unexpected 'x' at byte 12");
    WITH(payload, STR(""), "payload is not JSON: unexpected end at byte 0");
    WITH(payload, STR("\"a\0\""), "payload is not JSON: control character in a string at byte 2");
}

static void payload_size_is_checked_before_its_syntax(void **state)
{
    (void)state;
    char *large = malloc(EVENT_PAYLOAD_MAX + 1);
    memset(large, 'x', EVENT_PAYLOAD_MAX + 1);
    WITH(payload, ((struct str){large, EVENT_PAYLOAD_MAX + 1}),
         "payload is 1048577 bytes; the limit is 1048576");
    memset(large, ' ', EVENT_PAYLOAD_MAX);
    large[0] = '1';
    FINE(payload, ((struct str){large, EVENT_PAYLOAD_MAX}));
    free(large);
    struct new_event ev = sound();
    struct error err;
    assert_int_equal(event_check(&ev, &(struct event_limits){11, NOW}, &err), -1);
    assert_string_equal(err.text, "payload is 12 bytes; the limit is 11");
    assert_int_equal(event_check(&ev, &(struct event_limits){12, NOW}, &err), 0);
}

static void headers_are_an_object_of_strings(void **state)
{
    (void)state;
    FINE(headers, absent);
    FINE(headers, STR("{}"));
    FINE(headers, STR("{\"a\":\"\", \"b\\u00e4\":\"\\n\\\\u0000\\ud83d\\ude00\"}"));
    WITH(headers, STR("[]"), "headers is not a JSON object");
    WITH(headers, STR("{"), "headers is not JSON: unexpected end at byte 1");
    WITH(headers, STR("{\"a\":\"b\",\"c\":1}"),
         "headers has a value that is not a string at byte 13");
    WITH(headers, STR("{\"a\":null}"), "headers has a value that is not a string at byte 5");
    WITH(headers, STR("{\"a\":\"b\",\"a\":{}}"),
         "headers has a value that is not a string at byte 13");
    WITH(headers, STR("{\"a\":\"\\\\\\u0000\"}"), "headers has a NUL at byte 8");
    WITH(headers, STR("{\"a\":\"\\ud800\"}"), "headers has half a surrogate pair at byte 6");
    WITH(headers, STR("{\"a\":\"\\udc00\\ud800\"}"), "headers has half a surrogate pair at byte 6");
}

static void header_names_are_checked_after_unescaping(void **state)
{
    (void)state;
    WITH(headers, STR("{\"\":\"x\"}"), "header name is empty");
    WITH(headers, STR("{\"a\\nb\":\"x\"}"), "header name has a control character at byte 1");
    WITH(headers, STR("{\"\\u0000\":\"x\"}"), "header name has a control character at byte 0");
    WITH(headers, STR("{\"a\\u0085\":\"x\"}"), "header name has a control character at byte 1");
    WITH(headers, STR("{\"\x7f\":\"x\"}"), "header name has a control character at byte 0");
}

static void headers_have_a_limit(void **state)
{
    (void)state;
    char *text = malloc(EVENT_HEADERS_MAX + 1);
    memset(text, ' ', EVENT_HEADERS_MAX + 1);
    text[0] = '{';
    text[1] = '}';
    FINE(headers, ((struct str){text, EVENT_HEADERS_MAX}));
    WITH(headers, ((struct str){text, EVENT_HEADERS_MAX + 1}),
         "headers is 65537 bytes; the limit is 65536");
    free(text);
}

static void time_too_far_ahead_is_refused(void **state)
{
    (void)state;
    FINE(not_before, NOW + EVENT_AHEAD_MAX_MS);
    WITH(not_before, -1, "not_before is before 1970: -1");
    WITH(not_before, INT64_MIN, "not_before is before 1970: -9223372036854775808");
    WITH(not_before, NOW + EVENT_AHEAD_MAX_MS + 1,
         "not_before is more than ten years ahead: 2015619200001");
    WITH(not_before, INT64_MAX, "not_before is more than ten years ahead: 9223372036854775807");
}

#define STORED(field, value, want) \
    do { \
        struct event ev_ = {.id = STR("01a1e6cc-983c-7158-af96-d5a854ba8ad7"), \
                            .type = STR("a"), \
                            .payload = STR("1")}; \
        struct error err_ = {.code = 0}; \
        assert_int_equal(event_check_stored(&ev_, &err_), 0); \
        ev_.field = value; \
        const char *want_ = want; \
        assert_int_equal(event_check_stored(&ev_, &err_), want_ ? -1 : 0); \
        if (want_) \
            assert_string_equal(err_.text, want_); \
    } while (0)

static void stored_event_that_no_sink_can_express_is_refused(void **state)
{
    (void)state;
    STORED(id, STR("7"), "malformed: id is not a UUID");
    STORED(type, STR("a\xff"), "malformed: type is not valid UTF-8 at byte 1");
    STORED(type, STR("a\nb"), "malformed: type has a control character at byte 1");
    STORED(aggregate_type, STR("\0"),
           "malformed: aggregate type has a control character at byte 0");
    STORED(aggregate_id, STR("\x80"), "malformed: aggregate id is not valid UTF-8 at byte 0");
    STORED(tenant, STR("\x1f"), "malformed: tenant has a control character at byte 0");
    STORED(payload, STR("{}\0{}"), "malformed: payload has a NUL at byte 2");
    STORED(payload, STR("\"\xc3\""), "malformed: payload is not valid UTF-8 at byte 1");
    STORED(headers, STR("[1]"), "malformed: headers is not a JSON object");
}

/* Older versions accepted these, and sinks can deliver them. */
static void stored_event_that_breaks_newer_rules_is_delivered(void **state)
{
    (void)state;
    STORED(aggregate_type, STR("a/b"), NULL);
    STORED(type, STR("a b"), NULL);
    STORED(aggregate_id, ((struct str){long_text, EVENT_KEY_MAX + 1}), NULL);
    STORED(headers, STR("{\"a\":{\"b\":1}}"), NULL);
    STORED(not_before, INT64_MAX, NULL);
}

static void inbox_accepts_names_and_keys_within_their_limits(void **state)
{
    (void)state;
    struct error err;
    struct str full = {long_text, EVENT_KEY_MAX}, over = {long_text, EVENT_KEY_MAX + 1};
    assert_int_equal(event_check_inbox(full, full, &err), 0);
    assert_int_equal(event_check_inbox(STR("h"), STR("a\nb"), &err), 0);
    assert_int_equal(event_check_inbox(STR("h"), over, &err), -1);
    assert_string_equal(err.text, "key is 1025 bytes; it must be 1 to 1024");
    assert_int_equal(event_check_inbox(over, STR("k"), &err), -1);
    assert_int_equal(event_check_inbox(STR(""), STR("k"), &err), -1);
    assert_int_equal(event_check_inbox(STR("h"), absent, &err), -1);
    assert_int_equal(event_check_inbox(STR("h"), STR("a\0b"), &err), -1);
    assert_string_equal(err.text, "key has a NUL at byte 1");
}

/* These numbers are stored with every event, so they must not change. */
static void key_hash_is_stable_across_versions(void **state)
{
    (void)state;
    assert_true(event_key(STR("order"), STR("17")) == UINT64_C(0x57F46B3E40C7AEA3));
    assert_true(event_key(STR("customer"), STR("\xc3\xa4/\xf0\x9f\x98\x80")) ==
                UINT64_C(0xB22AB9F08B6A9509));
}

static void key_hash_is_zero_only_without_an_aggregate(void **state)
{
    (void)state;
    assert_true(event_key(absent, absent) == 0);
    assert_true(event_key(STR("order"), absent) == 0);
    assert_true(event_key(STR(""), STR("")) != 0);
}

static void key_hash_separates_type_and_id(void **state)
{
    (void)state;
    assert_true(event_key(STR("ab"), STR("c")) != event_key(STR("a"), STR("bc")));
    assert_true(event_key(STR("a"), STR("b")) != event_key(STR("b"), STR("a")));
    assert_true(event_key(STR("order"), STR("1")) == event_key(STR("order"), STR("1")));
}

/* Ids often differ only in their last digit; lanes must still share them evenly. */
static void similar_ids_spread_over_the_lanes(void **state)
{
    (void)state;
    enum { LANES = 16, IDS = 16000 };
    int share[LANES] = {0};
    for (int i = 0; i < IDS; i++) {
        char id[16];
        int n = snprintf(id, sizeof id, "%d", i);
        share[event_lane(event_key(STR("order"), (struct str){id, (size_t)n}), 0, LANES)]++;
    }
    for (int i = 0; i < LANES; i++)
        assert_in_range(share[i], IDS / LANES * 85 / 100, IDS / LANES * 115 / 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_and_minimal_events_are_accepted),
        cmocka_unit_test(missing_empty_or_overlong_type_is_refused),
        cmocka_unit_test(type_with_white_space_is_refused),
        cmocka_unit_test(control_characters_are_refused_everywhere),
        cmocka_unit_test(invalid_utf8_is_refused_everywhere),
        cmocka_unit_test(aggregate_needs_both_type_and_id),
        cmocka_unit_test(only_aggregate_ids_may_contain_a_slash),
        cmocka_unit_test(aggregates_may_contain_quotes_and_spaces),
        cmocka_unit_test(empty_or_overlong_keys_are_refused),
        cmocka_unit_test(payload_is_json_within_its_limit),
        cmocka_unit_test(payload_size_is_checked_before_its_syntax),
        cmocka_unit_test(headers_are_an_object_of_strings),
        cmocka_unit_test(header_names_are_checked_after_unescaping),
        cmocka_unit_test(headers_have_a_limit),
        cmocka_unit_test(time_too_far_ahead_is_refused),
        cmocka_unit_test(stored_event_that_no_sink_can_express_is_refused),
        cmocka_unit_test(stored_event_that_breaks_newer_rules_is_delivered),
        cmocka_unit_test(inbox_accepts_names_and_keys_within_their_limits),
        cmocka_unit_test(key_hash_is_stable_across_versions),
        cmocka_unit_test(key_hash_is_zero_only_without_an_aggregate),
        cmocka_unit_test(key_hash_separates_type_and_id),
        cmocka_unit_test(similar_ids_spread_over_the_lanes),
    };
    memset(long_text, 'x', sizeof long_text);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
