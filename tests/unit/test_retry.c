#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "engine/consumer.h"

static struct retry_policy parsed(const char *s)
{
    struct retry_policy p;
    struct error err;
    assert_int_equal(retry_parse(s, &p, &err), 0);
    return p;
}

static void slow_preset_makes_its_fifth_retry_after_sixteen_minutes(void **state)
{
    (void)state;
    static const int minutes[] = {1, 2, 4, 8, 16};
    struct retry_policy p = parsed("slow");
    struct rng r;
    rng_seed(&r, 1);
    assert_int_equal(p.attempts, 6); /* one attempt and five retries */
    assert_int_equal(p.base_ms, 60000);
    assert_int_equal(p.cap_ms, 3600000);
    for (int i = 0; i < 5; i++)
        assert_int_equal(retry_delay(&p, i + 1, &r), minutes[i] * 60000);
    assert_int_equal(retry_delay(&p, 7, &r), 3600000);
    assert_int_equal(retry_delay(&p, 1000, &r), 3600000);
}

static void fast_jitters_over_the_whole_range_and_is_capped(void **state)
{
    (void)state;
    struct retry_policy p = parsed("fast");
    struct rng r;
    int64_t low = INT64_MAX, high = 0;
    rng_seed(&r, 1);
    assert_int_equal(p.attempts, 5);
    for (int i = 0; i < 200; i++)
        assert_in_range(retry_delay(&p, 1, &r), 0, 1000);
    for (int i = 0; i < 2000; i++) {
        int64_t d = retry_delay(&p, 3, &r);
        assert_in_range(d, 0, 4000);
        if (d < low)
            low = d;
        if (d > high)
            high = d;
    }
    assert_true(low < 200 && high > 3800);
    for (int i = 0; i < 200; i++)
        assert_in_range(retry_delay(&p, 40, &r), 0, 300000);
}

static void every_retry_parameter_can_be_set(void **state)
{
    (void)state;
    struct retry_policy p = parsed("base=250ms,cap=2s,attempts=9,jitter=none");
    assert_int_equal(p.base_ms, 250);
    assert_int_equal(p.cap_ms, 2000);
    assert_int_equal(p.attempts, 9);
    assert_false(p.jitter);
    assert_int_equal(p.outage_ms, 24 * 3600000);
    p = parsed("fast,outage=30m");
    assert_int_equal(p.outage_ms, 30 * 60000);
    p = parsed("slow,attempts=2");
    assert_int_equal(p.base_ms, 60000);
    assert_int_equal(p.attempts, 2);
}

static void hold_removes_the_attempt_limit_unless_explicit(void **state)
{
    (void)state;
    struct retry_policy p = parsed("slow"), said = parsed("slow,attempts=9");
    int usual = p.attempts;
    retry_hold(&p, true);
    retry_hold(&said, true);
    assert_int_equal(p.attempts, RETRY_FOREVER);
    assert_int_equal(said.attempts, 9);
    assert_int_equal(retry_horizon(&p), 0);
    /* the waits stay as in the policy */
    assert_int_equal(retry_delay(&p, 1000000, NULL), p.cap_ms);
    retry_hold(&p, false);
    assert_int_equal(p.attempts, usual);
}

static void shown_policy_can_be_parsed_again(void **state)
{
    (void)state;
    static const char *const texts[] = {"fast",
                                        "slow",
                                        "patient",
                                        "base=250ms,cap=2s,attempts=9,jitter=none,outage=1h30m",
                                        "base=1s,cap=5m,attempts=5,jitter=full,outage=0s",
                                        "base=1s,cap=5m,attempts=forever,jitter=full,outage=1d"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct retry_policy p = parsed(texts[i]);
        char shown[RETRY_TEXT];
        retry_show(&p, shown);
        assert_string_equal(shown, texts[i]);
    }
}

static void invalid_parameters_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const bad[] = {"",           "fats",        "base=", "base=5",
                                      "attempts=0", "jitter=some", "cap=x", "slow=1",
                                      "outage=",    "outage=x"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct retry_policy p;
        struct error err = {0};
        assert_int_equal(retry_parse(bad[i], &p, &err), -1);
        assert_int_equal(err.code, ERR_CONFIG);
        assert_true(strlen(err.text) > 5);
    }
    struct retry_policy p;
    struct error err;
    retry_parse("fats", &p, &err);
    assert_non_null(strstr(err.text, "did you mean fast"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slow_preset_makes_its_fifth_retry_after_sixteen_minutes),
        cmocka_unit_test(fast_jitters_over_the_whole_range_and_is_capped),
        cmocka_unit_test(every_retry_parameter_can_be_set),
        cmocka_unit_test(hold_removes_the_attempt_limit_unless_explicit),
        cmocka_unit_test(shown_policy_can_be_parsed_again),
        cmocka_unit_test(invalid_parameters_are_refused_by_name),
    };
    return cmocka_run_group_tests_name("retry", tests, NULL, NULL);
}
