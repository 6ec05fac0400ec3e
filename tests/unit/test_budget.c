#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/claim_quota.h"

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

    /* Each settles its oldest batch and takes another, in turn. */
    for (int round = 0; round < 200; round++) {
        for (size_t i = 0; i < MANY; i++) {
            claim_quota_hold(&p[i], p[i].held - p[i].held / 4);
            while (take(&p[i], 2 * MIB) > 0)
                continue;
        }
    }
    for (size_t i = 0; i < MANY; i++)
        assert_in_range(p[i].held, MIB / 2, 2 * MIB); /* of 64 / 51 */
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

    /* That applies once nothing is left, not to memory it never had. */
    claim_quota_hold(&rich, 5 * MIB);
    assert_int_equal(claim_quota_reserve(&p, 200 * 1024, false), 100 * 1024);
    assert_int_equal(p.held, 300 * 1024);
    p.bytes = 200 * 1024;
    assert_int_equal(claim_quota_reserve(&p, 200 * 1024, false), 100 * 1024);
    assert_int_equal(claim_quota_reserve(&p, 0, false), 0);
}

static void held_is_the_sum_of_all_parts_and_the_peak_is_remembered(void **state)
{
    (void)state;
    struct budget b = {.limit = 8 * MIB};
    struct claim_quota p = {.budget = &b}, q = {.budget = &b};
    size_t got = take(&p, MIB);
    assert_int_equal(atomic_load(&b.held), 2 * got); /* events in blocks of memory */
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
        cmocka_unit_test(without_a_budget_batches_are_unlimited),
        cmocka_unit_test(sole_consumer_is_unlimited_up_to_half_the_budget),
        cmocka_unit_test(greedy_consumers_get_equal_shares),
        cmocka_unit_test(consumer_without_memory_always_gets_a_little),
        cmocka_unit_test(memory_kept_by_a_consumer_is_not_counted_twice),
        cmocka_unit_test(held_is_the_sum_of_all_parts_and_the_peak_is_remembered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
