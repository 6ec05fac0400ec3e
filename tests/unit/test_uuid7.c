#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "base/uuid7.h"

static void has_version_7_variant_2_and_the_time_in_front(void **state)
{
    (void)state;
    struct uuid7 g = {0};
    struct rng r;
    char id[UUID_TEXT + 1];
    rng_seed(&r, 1);
    uuid7_next(&g, INT64_C(0x0123456789ab), &r, id);
    assert_true(uuid_valid(str_of(id)));
    assert_memory_equal(id, "01234567-89ab-7", 15);
    assert_non_null(strchr("89ab", id[19]));
}

static void ids_of_one_generator_only_grow(void **state)
{
    (void)state;
    static const int64_t times[] = {1000, 1000, 1000, 999, 500, 1001, 1001, 1000};
    struct uuid7 g = {0};
    struct rng r;
    char last[UUID_TEXT + 1] = "", id[UUID_TEXT + 1];
    rng_seed(&r, 2);
    for (int round = 0; round < 20000; round++) {
        uuid7_next(&g, times[round % 8] + round / 8, &r, id);
        assert_true(strcmp(last, id) < 0);
        strcpy(last, id);
    }
}

static void a_full_counter_steps_the_time(void **state)
{
    (void)state;
    struct uuid7 g = {.last_ms = 5, .seq = (UINT64_C(1) << 42) - 1};
    struct rng r;
    char id[UUID_TEXT + 1];
    rng_seed(&r, 3);
    uuid7_next(&g, 5, &r, id);
    assert_int_equal(g.last_ms, 6);
    assert_memory_equal(id, "00000000-0006-7000-8000-0000", 28);
}

static void uuid_valid_refuses_other_shapes(void **state)
{
    (void)state;
    assert_false(uuid_valid(STR("")));
    assert_false(uuid_valid(STR("01234567-89ab-7def-8123-456789abcde")));
    assert_false(uuid_valid(STR("01234567x89ab-7def-8123-456789abcdef")));
    assert_false(uuid_valid(STR("0123456g-89ab-7def-8123-456789abcdef")));
    assert_true(uuid_valid(STR("01234567-89AB-7def-8123-456789abcdef")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(has_version_7_variant_2_and_the_time_in_front),
        cmocka_unit_test(ids_of_one_generator_only_grow),
        cmocka_unit_test(a_full_counter_steps_the_time),
        cmocka_unit_test(uuid_valid_refuses_other_shapes),
    };
    return cmocka_run_group_tests_name("uuid7", tests, NULL, NULL);
}
