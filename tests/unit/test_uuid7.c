#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "base/rng.h"

static void id_has_version_7_variant_2_and_starts_with_the_time(void **state)
{
    (void)state;
    struct uuid7 g = {0};
    struct rng r;
    char id[UUID_TEXT + 1];
    rng_seed(&r, 1);
    rng_uuid7(&g, INT64_C(0x0123456789ab), 0xcdefff5, &r, id);
    assert_true(rng_uuid_valid(str_of(id)));
    assert_memory_equal(id, "01234567-89ab-7def-", 19);
    assert_memory_equal(id + 19, "bfd", 3); /* 10, then 1111 1111 0101, then two random bits */
    assert_non_null(strchr("4567", id[22]));
}

static void fifty_bits_are_random(void **state)
{
    (void)state;
    struct rng r;
    char first[UUID_TEXT + 1], id[UUID_TEXT + 1];
    bool differs[UUID_TEXT] = {0};
    rng_seed(&r, 4);
    for (int round = 0; round < 200; round++) {
        struct uuid7 g = {0};
        rng_uuid7(&g, 1000, 7, &r, id);
        if (round == 0)
            strcpy(first, id);
        for (int i = 0; i < UUID_TEXT; i++)
            differs[i] |= id[i] != first[i];
    }
    for (int i = 0; i < UUID_TEXT; i++)
        assert_int_equal(differs[i], i == 22 || i > 23);
}

static void ids_of_one_generator_ascend(void **state)
{
    (void)state;
    static const int64_t times[] = {1000, 1000, 1000, 999, 500, 1001, 1001, 1000};
    static const uint64_t counts[] = {0, 0, 5, 4, 0xfffff0, 0, UINT64_C(1) << 40};
    struct uuid7 g = {0};
    struct rng r;
    char last[UUID_TEXT + 1] = "", id[UUID_TEXT + 1];
    rng_seed(&r, 2);
    for (int round = 0; round < 20000; round++) {
        rng_uuid7(&g, times[round % 8] + round / 8, counts[round % 7] + (uint64_t)round, &r, id);
        assert_true(strcmp(last, id) < 0);
        strcpy(last, id);
    }
}

static void counter_orders_ids_across_generators(void **state)
{
    (void)state;
    struct rng r;
    char last[UUID_TEXT + 1] = "", id[UUID_TEXT + 1];
    rng_seed(&r, 5);
    for (uint64_t count = 0; count < 10000; count++) {
        struct uuid7 g = {0};
        rng_uuid7(&g, 1000, count, &r, id);
        assert_true(strcmp(last, id) < 0);
        strcpy(last, id);
    }
}

static void full_counter_advances_the_time(void **state)
{
    (void)state;
    struct uuid7 g = {.last_ms = 5, .last_count = (UINT32_C(1) << UUID7_COUNT_BITS) - 1};
    struct rng r;
    char id[UUID_TEXT + 1];
    rng_seed(&r, 3);
    rng_uuid7(&g, 5, 3, &r, id);
    assert_int_equal(g.last_ms, 6);
    assert_memory_equal(id, "00000000-0006-7000-800", 22);
}

static void uuid_valid_refuses_other_shapes(void **state)
{
    (void)state;
    assert_false(rng_uuid_valid(STR("")));
    assert_false(rng_uuid_valid(STR("01234567-89ab-7def-8123-456789abcde")));
    assert_false(rng_uuid_valid(STR("01234567x89ab-7def-8123-456789abcdef")));
    assert_false(rng_uuid_valid(STR("0123456g-89ab-7def-8123-456789abcdef")));
    assert_true(rng_uuid_valid(STR("01234567-89AB-7def-8123-456789abcdef")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(id_has_version_7_variant_2_and_starts_with_the_time),
        cmocka_unit_test(fifty_bits_are_random),
        cmocka_unit_test(ids_of_one_generator_ascend),
        cmocka_unit_test(counter_orders_ids_across_generators),
        cmocka_unit_test(full_counter_advances_the_time),
        cmocka_unit_test(uuid_valid_refuses_other_shapes),
    };
    return cmocka_run_group_tests_name("uuid7", tests, NULL, NULL);
}
