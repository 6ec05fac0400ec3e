#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "event/message.h"

static struct cloudevents_headers found;

static void find(const char *headers)
{
    struct event ev = {.headers = str_of(headers)};
    assert_int_equal(cloudevents_headers(&ev, &found, NULL), 0);
}

static void binary_has(const char *headers, const char *want)
{
    struct event ev = {.id = STR("1"), .type = STR("t"), .headers = str_of(headers)};
    struct buf b;
    buf_init(&b, 1 << 20);
    assert_int_equal(cloudevents_headers(&ev, &found, NULL), 0);
    cloudevents_binary(&b, &ev, STR("/s"), &found);
    cloudevents_trace(&b, &found);
    assert_false(b.failed);
    for (size_t i = 0; i < b.n; i++)
        if (!b.p[i])
            b.p[i] = '\n';
    const char *text = buf_cstr(&b), *tail = strstr(text, "time: ");
    assert_non_null(tail);
    assert_string_equal(strchr(tail, '\n') + 1, want);
    buf_release(&b);
}

static void headers_become_attributes(void **state)
{
    (void)state;
    binary_has("{\"region\":\"eu\",\"Upper\":\"x\",\"id\":\"7\",\"n1\":\"a b\"}",
               "ce-region: eu\nce-n1: a%20b\n");
    binary_has("{\"tracestate\":\"a=1\"}", "ce-tracestate: a=1\ntracestate: a=1\n");
    binary_has("{\"traceparent\":\"00\\r\\nX: 1\",\"tracestate\":\"a\\u0000\"}", "");
    binary_has("{\"n\":1,\"o\":{\"p\":\"q\"},\"a12345678901234567890\":\"long\"}", "");
    binary_has("[\"a\"]", "");
}

static void last_of_duplicate_header_names_wins(void **state)
{
    (void)state;
    binary_has("{\"a\":\"1\",\"b\":\"2\",\"a\":\"3\"}", "ce-a: 3\nce-b: 2\n");
    binary_has("{\"a\":\"1\",\"\\u0061\":\"3\"}", "ce-a: 3\n");
    binary_has("{\"a\":\"1\",\"a\":3}", "");
}

/* Returns n headers named "name0", "name1" and so on, or all "name"; the caller frees them. */
static char *headers_of(const char *name, bool numbered, size_t n)
{
    struct buf b;
    buf_init(&b, 1 << 24);
    for (size_t i = 0; i < n; i++) {
        char number[24] = "";
        if (numbered)
            snprintf(number, sizeof number, "%zu", i);
        buf_addf(&b, "%s\"%s%s\":\"v\"", i ? "," : "{", name, number);
    }
    buf_adds(&b, "}");
    assert_non_null(buf_cstr(&b));
    return b.p;
}

static void too_many_attributes_are_refused(void **state)
{
    (void)state;
    char *most = headers_of("h", true, EVENT_HEADERS_COUNT),
         *more = headers_of("h", true, EVENT_HEADERS_COUNT + 1);
    struct event ev = {.headers = str_of(more)};
    struct error err = {0};
    find(most);
    assert_int_equal(found.n, EVENT_HEADERS_COUNT);
    assert_int_equal(cloudevents_headers(&ev, &found, &err), -1);
    assert_int_equal(err.code, ERR_INVALID);
    free(most);
    free(more);
}

/* Returns the shortest time of several runs, in ns. */
static int64_t cost(const char *headers)
{
    int64_t least = INT64_MAX;
    for (int i = 0; i < 7; i++) {
        struct timespec from, to;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
        find(headers);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
        int64_t ns = (int64_t)(to.tv_sec - from.tv_sec) * 1000000000 + to.tv_nsec - from.tv_nsec;
        if (ns < least)
            least = ns;
    }
    return least;
}

/* An older version accepted any number of headers, up to 64 KiB. The cost must grow linearly: eight
 * times as many headers may cost eight times as much, not sixty-four times. */
static void headers_are_converted_in_one_pass(void **state)
{
    static const char *const names[] = {"Upper", "same", "x-"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        bool numbered = i != 1;
        char *few = headers_of(names[i], numbered, 1000),
             *many = headers_of(names[i], numbered, 8000);
        int64_t one = cost(few), eight = cost(many);
        if (eight > 24 * one)
            fail_msg("%s: %lld ns, eight times as many %lld ns", names[i], (long long)one,
                     (long long)eight);
        free(few);
        free(many);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers_become_attributes),
        cmocka_unit_test(last_of_duplicate_header_names_wins),
        cmocka_unit_test(too_many_attributes_are_refused),
        cmocka_unit_test(headers_are_converted_in_one_pass),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
