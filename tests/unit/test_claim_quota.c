#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "engine/claim_quota.h"

#define QUICK (50 * MS_NS)
#define SLOW (1500 * MS_NS)

static void starts_at_64_or_the_flight_limit_within_its_maximum(void **state)
{
    (void)state;
    struct claim_quota b;
    claim_quota_init(&b, 1, 2000, NULL);
    assert_int_equal(b.n, 64);
    claim_quota_init(&b, 100, 2000, NULL);
    assert_int_equal(b.n, 100);
    claim_quota_init(&b, 1, 10, NULL);
    assert_int_equal(b.n, 10);
    claim_quota_init(&b, 100, 10, NULL);
    assert_int_equal(b.n, 10);
}

static void quota_starts_at_8_or_the_flight_limit_within_its_maximum(void **state)
{
    (void)state;
    struct claim_quota b;
    claim_quota_init(&b, 1, 2000, NULL);
    claim_quota_start_small(&b);
    assert_int_equal(b.n, 8);
    claim_quota_init(&b, 20, 2000, NULL);
    claim_quota_start_small(&b);
    assert_int_equal(b.n, 20);
    claim_quota_init(&b, 1, 5, NULL);
    claim_quota_start_small(&b);
    assert_int_equal(b.n, 5);
}

static void full_quick_batch_doubles_up_to_the_maximum(void **state)
{
    (void)state;
    struct claim_quota b;
    claim_quota_init(&b, 1, 200, NULL);
    claim_quota_tune(&b, 63, QUICK);
    assert_int_equal(b.n, 64); /* it was not full, so a larger one would not have held more */
    claim_quota_tune(&b, 64, QUICK);
    assert_int_equal(b.n, 128);
    claim_quota_tune(&b, 128, QUICK);
    assert_int_equal(b.n, 200);
    claim_quota_tune(&b, 200, 500 * MS_NS);
    assert_int_equal(b.n, 200);
}

static void slow_batch_halves_down_to_the_flight_limit(void **state)
{
    (void)state;
    struct claim_quota b;
    claim_quota_init(&b, 20, 2000, NULL);
    claim_quota_tune(&b, 64, SLOW);
    assert_int_equal(b.n, 32);
    claim_quota_tune(&b, 1, SLOW);
    assert_int_equal(b.n, 20);
}

static void halving_ends_at_one(void **state)
{
    (void)state;
    struct claim_quota b;
    claim_quota_init(&b, 4, 2, NULL);
    claim_quota_halve(&b);
    claim_quota_halve(&b);
    assert_int_equal(b.n, 1);
    claim_quota_tune(&b, 1, 500 * MS_NS);
    assert_int_equal(b.n, 2);
    claim_quota_one(&b);
    assert_int_equal(b.n, 1);
}

static void memory_is_twice_the_usage_within_bounds(void **state)
{
    (void)state;
    struct claim_quota b;
    claim_quota_init(&b, 1, 1000, NULL);
    claim_quota_learn(&b, 100 * 1024);
    assert_int_equal(b.bytes, 200 * 1024);
    claim_quota_learn(&b, 200 * 1024);
    assert_int_equal(b.bytes, 400 * 1024);
    claim_quota_learn(&b, 64 * 1024 * 1024);
    assert_int_equal(b.bytes, QUOTA_BYTES);
    for (int i = 0; i < 20; i++)
        claim_quota_learn(&b, 100);
    assert_int_equal(b.bytes, QUOTA_BYTES_LEAST);
}

/* Retries are claimed in turns with new events, and are few. */
static void memory_is_not_forgotten_after_one_small_batch(void **state)
{
    (void)state;
    struct claim_quota b;
    claim_quota_init(&b, 1, 1000, NULL);
    for (int i = 0; i < 10; i++) {
        claim_quota_learn(&b, 400 * 1024);
        assert_int_equal(b.bytes, 800 * 1024);
        claim_quota_learn(&b, 100);
        assert_true(b.bytes >= 400 * 1024);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(starts_at_64_or_the_flight_limit_within_its_maximum),
        cmocka_unit_test(quota_starts_at_8_or_the_flight_limit_within_its_maximum),
        cmocka_unit_test(full_quick_batch_doubles_up_to_the_maximum),
        cmocka_unit_test(slow_batch_halves_down_to_the_flight_limit),
        cmocka_unit_test(halving_ends_at_one),
        cmocka_unit_test(memory_is_twice_the_usage_within_bounds),
        cmocka_unit_test(memory_is_not_forgotten_after_one_small_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
