/* http_sent.c: how an event becomes a request. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "http_rig.h"

static struct sink_item *odd_event(struct fixture *f)
{
    struct sink_item *it = sink_rig_add(&f->rig, "{\"total\": 99}", 0);
    it->ev.type = STR("a\r\nx-evil: 1");
    it->ev.aggregate_type = STR("\"q\" %");
    it->ev.aggregate_id = STR("\xc3\xa9\0\n");
    it->ev.tenant = STR("t\r\n\r\nx-evil: 2");
    it->ev.has_version = true;
    it->ev.version = -7;
    it->ev.headers = STR(
        "{\"corr\":\"1\\r\\nx-evil: 3\",\"x-Evil: "
        "4\\r\\n\":\"v\",\"id\":\"mine\",\"content-length\":\"0\","
        "\"traceparent\":\"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\","
        "\"tracestate\":\"a=1\\r\\nx-evil: 5\"}");
    sink_rig_run(&f->rig);
    return it;
}

static void attributes_become_headers_and_cannot_inject_others(void **state)
{
    struct fixture *f = *state;
    open_here(f);
    struct sink_item *it = odd_event(f);
    assert_int_equal(it->status, SINK_DELIVERED);
    assert_head_has(f, 0, "POST /hook\n");
    assert_head_has(f, 0, "?token=t0ken\n");
    assert_head_has(f, 0, "\ncontent-type: application/json\n");
    assert_head_has(f, 0, "\nce-specversion: 1.0\n");
    assert_head_has(f, 0, "\nce-source: /outbox\n");
    assert_head_has(f, 0, "\nce-id: 00000000-0000-7000-8000-000000000001\n");
    assert_head_has(f, 0, "\nce-type: a%0D%0Ax-evil:%201\n");
    assert_head_has(f, 0, "\nce-subject: %22q%22%20%25/%C3%A9%00%0A\n");
    assert_head_has(f, 0, "\nce-tenant: t%0D%0A%0D%0Ax-evil:%202\n");
    assert_head_has(f, 0, "\nce-time: 2026-01-02T03:04:05.678Z\n");
    assert_head_has(f, 0, "\nce-aggregateversion: -7\n");
    assert_head_has(f, 0, "\nce-corr: 1%0D%0Ax-evil:%203\n");
    assert_head_has(f, 0,
                    "\ntraceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\n");
    assert_head_has(f, 0, "\noutbox-attempt: 1\n");
    assert_head_has(f, 0, "\ncontent-length: 13\n");
    assert_head_lacks(f, 0, "\nx-evil");
    assert_head_lacks(f, 0, "tracestate");
    assert_head_lacks(f, 0, "mine");
    char *body = http_peer_body(f->peer, 0, NULL);
    assert_string_equal(body, "{\"total\": 99}");
    free(body);
}

static void structured_mode_puts_everything_in_the_body(void **state)
{
    struct fixture *f = *state;
    f->o.mode = HTTP_STRUCTURED;
    assert_int_equal(http_options_source(&f->o.source, "https://shop.example/orders", NULL, NULL),
                     0);
    open_here(f);
    assert_int_equal(odd_event(f)->status, SINK_DELIVERED);
    assert_head_has(f, 0, "\ncontent-type: application/cloudevents+json\n");
    assert_head_has(f, 0, "\ntraceparent: 00-4bf92f");
    assert_head_lacks(f, 0, "\nce-");
    assert_head_lacks(f, 0, "\nx-evil");
    size_t n;
    char *body = http_peer_body(f->peer, 0, &n);
    static const struct {
        const char *name, *raw;
    } want[] = {
        {"specversion", "\"1.0\""},
        {"id", "\"00000000-0000-7000-8000-000000000001\""},
        {"source", "\"https://shop.example/orders\""},
        {"type", "\"a\\r\\nx-evil: 1\""},
        {"datacontenttype", "\"application/json\""},
        {"corr", "\"1\\r\\nx-evil: 3\""},
        {"data", "{\"total\": 99}"},
    };
    struct json all, v;
    assert_int_equal(json_parse((struct str){body, n}, &all, NULL, NULL), 0);
    for (size_t i = 0; i < COUNT(want); i++) {
        assert_true(json_get(all, str_of(want[i].name), &v));
        if (!str_is(v.raw, want[i].raw))
            fail_msg("%s is %.*s", want[i].name, (int)v.raw.n, v.raw.p);
    }
    free(body);
}

static void only_the_event_with_too_many_headers_is_rejected(void **state)
{
    char headers[4096] = "{";
    struct fixture *f = *state;
    open_here(f);
    for (int i = 0; i < 100; i++) {
        size_t n = strlen(headers);
        snprintf(headers + n, sizeof headers - n, "%s\"h%d\":\"v\"", i ? "," : "", i);
    }
    strcat(headers, "}");
    struct sink_item *bad = sink_rig_add(&f->rig, "1", 0), *good = sink_rig_add(&f->rig, "2", 0);
    bad->ev.headers = str_of(headers);
    sink_rig_run(&f->rig);
    assert_int_equal(bad->status, SINK_REJECT);
    assert_int_equal(good->status, SINK_DELIVERED);
}

/* A value too long for a header fits into JSON. */
static void long_key_is_not_truncated_in_structured_mode(void **state)
{
    struct fixture *f = *state;
    size_t n;
    f->o.mode = HTTP_STRUCTURED;
    open_here(f);
    static char key[200 * 1024];
    memset(key, 'k', sizeof key);
    struct sink_item *it = sink_rig_add(&f->rig, "{}", 0);
    it->ev.aggregate_id = (struct str){key, sizeof key};
    sink_rig_run(&f->rig);
    assert_int_equal(it->status, SINK_DELIVERED);
    char *body = http_peer_body(f->peer, 0, &n);
    char *subject = strstr(body, "\"subject\":\"order/kkk");
    assert_non_null(subject);
    assert_true(n > sizeof key);
    free(body);
}

static void invalid_utf_8_is_rejected_in_structured_mode(void **state)
{
    struct fixture *f = *state;
    f->o.mode = HTTP_STRUCTURED;
    open_here(f);
    sink_rig_add_many(&f->rig, 3, 64);
    f->rig.items[1]->ev.aggregate_id = STR("k\xff");
    sink_rig_run(&f->rig);
    assert_int_equal(f->rig.items[0]->status, SINK_DELIVERED);
    assert_int_equal(f->rig.items[1]->status, SINK_REJECT);
    sink_assert_says(f->rig.items[1], "aggregate_id is not UTF-8");
    assert_int_equal(f->rig.items[2]->status, SINK_DELIVERED);
}

/* The event is as large as events may be, and every byte is percent-encoded. The endpoint
 * decides. */
static void headers_within_the_event_limits_are_sent(void **state)
{
    struct fixture *f = *state;
    char *headers = malloc(EVENT_HEADERS_MAX + 1), key[EVENT_KEY_MAX];
    memset(headers, 0x7f, EVENT_HEADERS_MAX);
    memcpy(headers, "{\"h\":\"", 6);
    memcpy(headers + EVENT_HEADERS_MAX - 2, "\"}", 3);
    memset(key, 0x7f, sizeof key);
    open_here(f);
    struct sink_item *it = sink_rig_add(&f->rig, "{}", 0);
    it->ev.headers = str_of(headers);
    it->ev.aggregate_id = it->ev.aggregate_type = it->ev.tenant = (struct str){key, sizeof key};
    sink_rig_run(&f->rig);
    /* The server of this test accepts 32 KiB of headers and answers with an error beyond that. */
    if (it->status != SINK_DELIVERED && it->status != SINK_RETRY)
        fail_msg("%d %s", it->status, it->text);
    free(headers);
}

static const struct CMUnitTest tests[] = {
    ON_A_PEER(attributes_become_headers_and_cannot_inject_others),
    ON_A_PEER(structured_mode_puts_everything_in_the_body),
    ON_A_PEER(only_the_event_with_too_many_headers_is_rejected),
    ON_A_PEER(long_key_is_not_truncated_in_structured_mode),
    ON_A_PEER(invalid_utf_8_is_rejected_in_structured_mode),
    ON_A_PEER(headers_within_the_event_limits_are_sent),
};

const struct suite_part http_sent_tests = SUITE_PART(tests);
