/* http_answers.c: how the webhook sink judges responses, silence and broken connections. */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "http_rig.h"

static void every_status_has_the_expected_outcome(void **state)
{
    static const struct {
        unsigned code;
        enum sink_status retry, reject; /* with webhook-client-errors = retry, and = reject */
    } cases[] = {
        {200, SINK_DELIVERED, SINK_DELIVERED}, {201, SINK_DELIVERED, SINK_DELIVERED},
        {202, SINK_DELIVERED, SINK_DELIVERED}, {204, SINK_DELIVERED, SINK_DELIVERED},
        {206, SINK_DELIVERED, SINK_DELIVERED}, {299, SINK_DELIVERED, SINK_DELIVERED},
        {300, SINK_RETRY, SINK_RETRY},         {301, SINK_RETRY, SINK_RETRY},
        {302, SINK_RETRY, SINK_RETRY},         {303, SINK_RETRY, SINK_RETRY},
        {304, SINK_RETRY, SINK_RETRY},         {307, SINK_RETRY, SINK_RETRY},
        {308, SINK_RETRY, SINK_RETRY},         {400, SINK_RETRY, SINK_REJECT},
        {401, SINK_RETRY, SINK_RETRY},         {402, SINK_RETRY, SINK_RETRY},
        {403, SINK_RETRY, SINK_RETRY},         {404, SINK_RETRY, SINK_RETRY},
        {405, SINK_RETRY, SINK_RETRY},         {406, SINK_RETRY, SINK_REJECT},
        {407, SINK_RETRY, SINK_RETRY},         {408, SINK_RETRY, SINK_RETRY},
        {409, SINK_RETRY, SINK_REJECT},        {410, SINK_PAUSE, SINK_PAUSE},
        {411, SINK_RETRY, SINK_REJECT},        {412, SINK_RETRY, SINK_REJECT},
        {413, SINK_RETRY, SINK_REJECT},        {414, SINK_RETRY, SINK_REJECT},
        {415, SINK_RETRY, SINK_REJECT},        {416, SINK_RETRY, SINK_REJECT},
        {417, SINK_RETRY, SINK_RETRY},         {418, SINK_RETRY, SINK_RETRY},
        {421, SINK_RETRY, SINK_RETRY},         {422, SINK_RETRY, SINK_REJECT},
        {423, SINK_RETRY, SINK_RETRY},         {424, SINK_RETRY, SINK_RETRY},
        {425, SINK_RETRY, SINK_RETRY},         {426, SINK_RETRY, SINK_RETRY},
        {428, SINK_RETRY, SINK_RETRY},         {429, SINK_DOWN, SINK_DOWN},
        {431, SINK_RETRY, SINK_REJECT},        {451, SINK_RETRY, SINK_RETRY},
        {498, SINK_RETRY, SINK_RETRY},         {499, SINK_RETRY, SINK_RETRY},
        {500, SINK_RETRY, SINK_RETRY},         {501, SINK_RETRY, SINK_RETRY},
        {502, SINK_RETRY, SINK_RETRY},         {503, SINK_DOWN, SINK_DOWN},
        {504, SINK_RETRY, SINK_RETRY},         {505, SINK_RETRY, SINK_RETRY},
        {507, SINK_RETRY, SINK_RETRY},         {511, SINK_RETRY, SINK_RETRY},
        {520, SINK_RETRY, SINK_RETRY},         {599, SINK_RETRY, SINK_RETRY},
    };
    struct fixture *f = *state;
    open_here(f);
    for (size_t i = 0; i < 2 * COUNT(cases); i++) {
        f->o.reject_4xx = i % 2;
        http_peer_reply(f->peer, (struct http_reply){.status = cases[i / 2].code});
        struct sink_item *it = deliver(f, "{}");
        enum sink_status want = i % 2 ? cases[i / 2].reject : cases[i / 2].retry;
        if (it->status != want)
            fail_msg("HTTP %u has outcome %d, expected %d", cases[i / 2].code, it->status, want);
        assert_int_equal(it->native, want == SINK_DELIVERED ? it->native : (int)cases[i / 2].code);
    }
}

static void retry_after_is_honoured(void **state)
{
    char date[64];
    struct fixture *f = *state;
    time_t later = time(NULL) + 100;
    struct tm tm;
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&later, &tm));
    const struct {
        const char *value;
        int64_t least, most;
    } cases[] = {{"7", 7000, 7000}, {date, 90000, 100000}, {"999999999", 3600000, 3600000},
                 {"0", 0, 0},       {"soon", 0, 0},        {"-5", 0, 0}};
    open_here(f);
    for (size_t i = 0; i < COUNT(cases); i++) {
        http_peer_reply(f->peer, (struct http_reply){.status = i % 2 ? 503 : 429,
                                                     .name = "Retry-After",
                                                     .value = cases[i].value});
        struct sink_item *it = deliver(f, "{}");
        assert_int_equal(it->status, SINK_DOWN);
        assert_in_range(it->retry_after_ms, cases[i].least, cases[i].most);
        f->rig.ahead_ns += 3601 * SECOND;
    }
}

static void nothing_is_sent_before_retry_after_expires(void **state)
{
    struct fixture *f = *state;
    open_here(f);
    http_peer_reply(f->peer,
                    (struct http_reply){.status = 429, .name = "Retry-After", .value = "60"});
    assert_int_equal(deliver(f, "{}")->status, SINK_DOWN);
    http_peer_reply(f->peer, (struct http_reply){0});
    struct sink_item *early = deliver(f, "{}");
    assert_int_equal(early->status, SINK_DOWN);
    assert_in_range(early->retry_after_ms, 1, 60001);
    assert_int_equal(http_peer_requests(f->peer), 1);
    f->rig.ahead_ns += 61 * SECOND;
    assert_int_equal(deliver(f, "{}")->status, SINK_DELIVERED);
}

static void redirect_is_not_followed(void **state)
{
    struct fixture *f = *state;
    open_here(f);
    http_peer_reply(f->peer,
                    (struct http_reply){.status = 307, .name = "Location", .value = "/elsewhere"});
    struct sink_item *it = deliver(f, "{}");
    assert_int_equal(it->status, SINK_RETRY);
    sink_assert_says(it, "redirects are not followed");
    assert_int_equal(http_peer_requests(f->peer), 1);
}

static void huge_response_is_truncated_and_never_echoed(void **state)
{
    struct fixture *f = *state;
    open_here(f);
    http_peer_reply(f->peer, (struct http_reply){.status = 200, .size = 8 << 20});
    assert_int_equal(deliver(f, "{}")->status, SINK_DELIVERED);
    http_peer_reply(f->peer, (struct http_reply){.status = 500, .size = 8 << 20});
    struct sink_item *it = deliver(f, "{}");
    assert_int_equal(it->status, SINK_RETRY);
    assert_in_range(strlen(it->text), 20, 300);
    http_peer_reply(f->peer,
                    (struct http_reply){.status = 500, .body = "no\r\n\x1b[31mway \xff\xfe"});
    it = deliver(f, "{}");
    sink_assert_says(it, "HTTP 500: no   [31mway ??");
}

static void silent_endpoint_times_out(void **state)
{
    struct fixture *f = *state;
    open_here(f);
    http_peer_reply(f->peer, (struct http_reply){.hang = true});
    struct sink_item *it = sink_rig_add(&f->rig, "{}", 0);
    sink_rig_submit(&f->rig);
    while (http_peer_requests(f->peer) == 0) {
        f->rig.sk->ops->drive(f->rig.sk);
        sink_rig_wait(&f->rig);
    }
    f->rig.ahead_ns += 29 * SECOND;
    f->rig.sk->ops->drive(f->rig.sk);
    assert_int_equal(it->answers, 0);
    f->rig.ahead_ns += 2 * SECOND;
    sink_rig_run(&f->rig);
    assert_int_equal(it->status, SINK_RETRY);
    sink_assert_says(it, "no complete response within 30s");
}

static void requests_in_flight_stay_within_the_limit(void **state)
{
    struct fixture *f = *state;
    open_here(f);
    http_peer_reply(f->peer, (struct http_reply){.hang = true});
    sink_rig_add_many(&f->rig, 20, 16);
    assert_int_equal(sink_rig_submit(&f->rig), 8);
    while (http_peer_requests(f->peer) < 8) {
        f->rig.sk->ops->drive(f->rig.sk);
        sink_rig_wait(&f->rig);
    }
    assert_int_equal(sink_rig_submit(&f->rig), 0);
    f->rig.sk->ops->cancel(f->rig.sk);
    assert_int_equal(f->rig.answered, 8);
}

static void connections_are_reused(void **state)
{
    struct fixture *f = *state;
    open_here(f);
    sink_rig_add_many(&f->rig, 500, 16);
    sink_rig_run(&f->rig);
    sink_rig_assert_all(&f->rig, SINK_DELIVERED);
    assert_in_range(http_peer_connections(f->peer), 1, 8);
}

static void connection_closed_while_idle_is_harmless(void **state)
{
    struct fixture *f = *state;
    open_here(f);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(deliver(f, "{}")->status, SINK_DELIVERED);
        http_peer_stop(f->peer);
        http_peer_start(f->peer);
    }
    assert_int_equal(http_peer_connections(f->peer), 5);
}

static void running_out_of_descriptors_is_reported_as_down(void **state)
{
    struct fixture *f = *state;
    struct rlimit old, few;
    open_here(f);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    int next = dup(0);
    close(next);
    few = (struct rlimit){(rlim_t)next, old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    struct sink_item *it = deliver(f, "{}");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_int_equal(it->status, SINK_DOWN);
    sink_assert_says(it, "Too many open files");
    sink_rig_passes_again(&f->rig);
}

static void rate_limit_is_honoured(void **state)
{
    struct fixture *f = *state;
    f->o.rate = 100;
    open_here(f);
    int64_t start = clock_mono(&clock_system);
    sink_rig_add_many(&f->rig, 40, 16);
    sink_rig_run(&f->rig);
    int64_t took = (clock_mono(&clock_system) - start) / MS_NS;
    sink_rig_assert_all(&f->rig, SINK_DELIVERED);
    assert_in_range(took, 290, 60000); /* ten at once, then one every 10 ms */
}

static void single_event_waits_for_the_rate_limit(void **state)
{
    struct fixture *f = *state;
    f->o.rate = 1;
    sink_rig_freeze(&f->rig);
    open_here(f);
    assert_int_equal(deliver(f, "1")->status, SINK_DELIVERED);
    struct sink_item *it = sink_rig_add(&f->rig, "2", 0);
    assert_int_equal(sink_rig_submit(&f->rig), 1);
    f->rig.sk->ops->drive(f->rig.sk);
    assert_int_equal(http_peer_requests(f->peer), 1);
    assert_in_range(f->rig.sk->ops->deadline(f->rig.sk) - clock_mono(&f->rig.clock), 1, SECOND);
    f->rig.ahead_ns += SECOND;
    sink_rig_run(&f->rig);
    assert_int_equal(it->status, SINK_DELIVERED);
}

static void response_text_is_sanitized(void **state)
{
    struct fixture *f = *state;
    open_here(f);
    http_peer_reply(
        f->peer,
        (struct http_reply){.status = 500, .body = "a\x1b[2J \xc2\x9b \xff\r\nb \xe2\x80\xae"});
    struct sink_item *it = deliver(f, "{}");
    sink_assert_says(it, "HTTP 500: a [2J ? ?  b ?");
}

static const struct CMUnitTest tests[] = {
    ON_A_PEER(every_status_has_the_expected_outcome),
    ON_A_PEER(retry_after_is_honoured),
    ON_A_PEER(nothing_is_sent_before_retry_after_expires),
    ON_A_PEER(redirect_is_not_followed),
    ON_A_PEER(huge_response_is_truncated_and_never_echoed),
    ON_A_PEER(silent_endpoint_times_out),
    ON_A_PEER(requests_in_flight_stay_within_the_limit),
    ON_A_PEER(connections_are_reused),
    ON_A_PEER(connection_closed_while_idle_is_harmless),
    ON_A_PEER(running_out_of_descriptors_is_reported_as_down),
    ON_A_PEER(rate_limit_is_honoured),
    ON_A_PEER(single_event_waits_for_the_rate_limit),
    ON_A_PEER(response_text_is_sanitized),
};

const struct suite_part http_answers_tests = SUITE_PART(tests);
