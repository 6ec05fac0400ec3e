#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "engine/claim_quota.h"

#define QUICK (50 * MS_NS)
#define SLOW (1500 * MS_NS)

static void quota_starts_at_64_or_the_flight_limit_within_its_maximum(void **state)
{
    (void)state;
    struct claim_quota b;
    claim_quota_init(&b, 1, 2000, false, NULL);
    assert_int_equal(b.n, 64);
    claim_quota_init(&b, 100, 2000, false, NULL);
    assert_int_equal(b.n, 100);
    claim_quota_init(&b, 1, 10, false, NULL);
    assert_int_equal(b.n, 10);
    claim_quota_init(&b, 100, 10, false, NULL);
    assert_int_equal(b.n, 10);
}

static void small_quota_starts_at_8_or_the_flight_limit(void **state)
{
    (void)state;
    struct claim_quota b;
    claim_quota_init(&b, 1, 2000, true, NULL);
    assert_int_equal(b.n, 8);
    claim_quota_init(&b, 20, 2000, true, NULL);
    assert_int_equal(b.n, 20);
    claim_quota_init(&b, 1, 5, true, NULL);
    assert_int_equal(b.n, 5);
}

static void full_quick_batch_doubles_the_quota_up_to_the_maximum(void **state)
{
    (void)state;
    struct claim_quota b;
    claim_quota_init(&b, 1, 200, false, NULL);
    claim_quota_tune(&b, 63, QUICK);
    assert_int_equal(b.n, 64); /* the batch was not full, so a larger limit is useless */
    claim_quota_tune(&b, 64, QUICK);
    assert_int_equal(b.n, 128);
    claim_quota_tune(&b, 128, QUICK);
    assert_int_equal(b.n, 200);
    claim_quota_tune(&b, 200, 500 * MS_NS);
    assert_int_equal(b.n, 200);
}

static void slow_batch_halves_the_quota_down_to_the_flight_limit(void **state)
{
    (void)state;
    struct claim_quota b;
    claim_quota_init(&b, 20, 2000, false, NULL);
    claim_quota_tune(&b, 64, SLOW);
    assert_int_equal(b.n, 32);
    claim_quota_tune(&b, 1, SLOW);
    assert_int_equal(b.n, 20);
}

static void halving_the_quota_stops_at_one(void **state)
{
    (void)state;
    struct claim_quota b;
    claim_quota_init(&b, 4, 2, false, NULL);
    claim_quota_halve(&b);
    claim_quota_halve(&b);
    assert_int_equal(b.n, 1);
    claim_quota_tune(&b, 1, 500 * MS_NS);
    assert_int_equal(b.n, 2);
    claim_quota_one(&b);
    assert_int_equal(b.n, 1);
}

static void memory_estimate_is_twice_the_usage_within_bounds(void **state)
{
    (void)state;
    struct claim_quota b;
    claim_quota_init(&b, 1, 1000, false, NULL);
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

/* Claims of few retries alternate with claims of many new events. */
static void memory_estimate_survives_one_small_batch(void **state)
{
    (void)state;
    struct claim_quota b;
    claim_quota_init(&b, 1, 1000, false, NULL);
    for (int i = 0; i < 10; i++) {
        claim_quota_learn(&b, 400 * 1024);
        assert_int_equal(b.bytes, 800 * 1024);
        claim_quota_learn(&b, 100);
        assert_true(b.bytes >= 400 * 1024);
    }
}

#define MIB ((size_t)1024 * 1024)
#define MANY 50

static size_t take(struct claim_quota *p, size_t most)
{
    p->bytes = most;
    return claim_quota_reserve(p, 0, p->held == 0);
}

static void without_a_budget_batches_are_unlimited(void **state)
{
    (void)state;
    struct claim_quota p = {0};
    assert_int_equal(take(&p, 2 * MIB), 2 * MIB);
    claim_quota_hold(&p, 3 * MIB);
    assert_false(claim_quota_tight(&p));
}

static void sole_consumer_is_unlimited_up_to_half_the_budget(void **state)
{
    (void)state;
    struct budget b = {.limit = 64 * MIB};
    struct claim_quota p = {.budget = &b};
    for (int i = 0; i < 4; i++)
        assert_int_equal(take(&p, 2 * MIB), 2 * MIB);
    while (take(&p, 2 * MIB) > 0)
        continue;
    assert_in_range(p.held, 31 * MIB, 32 * MIB);
}

static void greedy_consumers_get_equal_shares(void **state)
{
    (void)state;
    struct budget b = {.limit = 64 * MIB};
    struct claim_quota p[MANY];
    for (size_t i = 0; i < MANY; i++)
        p[i] = (struct claim_quota){.budget = &b};

    /* In each round, every consumer settles its oldest batch and claims another. */
    for (int round = 0; round < 200; round++) {
        for (size_t i = 0; i < MANY; i++) {
            claim_quota_hold(&p[i], p[i].held - p[i].held / 4);
            while (take(&p[i], 2 * MIB) > 0)
                continue;
        }
    }
    for (size_t i = 0; i < MANY; i++)
        assert_in_range(p[i].held, MIB / 2, 2 * MIB); /* the equal share is 64 / 51 MiB */
    assert_true(atomic_load(&b.held) <= b.limit);
}

static void consumer_without_memory_always_gets_a_little(void **state)
{
    (void)state;
    struct budget b = {.limit = MIB};
    struct claim_quota rich = {.budget = &b}, poor = {.budget = &b};
    claim_quota_hold(&rich, 5 * MIB); /* one large event */
    assert_int_equal(take(&rich, 2 * MIB), 0);
    assert_int_equal(take(&poor, 2 * MIB), BUDGET_LEAST);
    assert_int_equal(take(&poor, 2 * MIB), 0);
    assert_true(claim_quota_tight(&poor));
}

static void memory_kept_by_a_consumer_is_not_counted_twice(void **state)
{
    (void)state;
    struct budget b = {.limit = MIB};
    struct claim_quota p = {.budget = &b}, rich = {.budget = &b};
    p.bytes = 100 * 1024;
    claim_quota_hold(&p, 300 * 1024);
    assert_int_equal(claim_quota_reserve(&p, 200 * 1024, false), 100 * 1024);
    assert_int_equal(p.held, 300 * 1024);

    /* Spare memory may be reused even when the budget is exhausted; new memory may not be taken. */
    claim_quota_hold(&rich, 5 * MIB);
    assert_int_equal(claim_quota_reserve(&p, 200 * 1024, false), 100 * 1024);
    assert_int_equal(p.held, 300 * 1024);
    p.bytes = 200 * 1024;
    assert_int_equal(claim_quota_reserve(&p, 200 * 1024, false), 100 * 1024);
    assert_int_equal(claim_quota_reserve(&p, 0, false), 0);
}

static void held_memory_is_summed_and_its_peak_is_remembered(void **state)
{
    (void)state;
    struct budget b = {.limit = 8 * MIB};
    struct claim_quota p = {.budget = &b}, q = {.budget = &b};
    size_t got = take(&p, MIB);
    assert_int_equal(atomic_load(&b.held),
                     2 * got); /* blocks may be twice as large as their events */
    claim_quota_hold(&p, 3 * MIB);
    claim_quota_hold(&q, MIB);
    assert_int_equal(atomic_load(&b.held), 4 * MIB);
    claim_quota_hold(&p, 0);
    assert_int_equal(atomic_load(&b.held), MIB);
    assert_int_equal(atomic_load(&b.peak), 4 * MIB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quota_starts_at_64_or_the_flight_limit_within_its_maximum),
        cmocka_unit_test(small_quota_starts_at_8_or_the_flight_limit),
        cmocka_unit_test(full_quick_batch_doubles_the_quota_up_to_the_maximum),
        cmocka_unit_test(slow_batch_halves_the_quota_down_to_the_flight_limit),
        cmocka_unit_test(halving_the_quota_stops_at_one),
        cmocka_unit_test(memory_estimate_is_twice_the_usage_within_bounds),
        cmocka_unit_test(memory_estimate_survives_one_small_batch),
        cmocka_unit_test(without_a_budget_batches_are_unlimited),
        cmocka_unit_test(sole_consumer_is_unlimited_up_to_half_the_budget),
        cmocka_unit_test(greedy_consumers_get_equal_shares),
        cmocka_unit_test(consumer_without_memory_always_gets_a_little),
        cmocka_unit_test(memory_kept_by_a_consumer_is_not_counted_twice),
        cmocka_unit_test(held_memory_is_summed_and_its_peak_is_remembered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
