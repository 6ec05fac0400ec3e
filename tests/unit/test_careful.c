#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/careful.h"

static void careful_event_waits_for_other_batches(void **state)
{
    (void)state;
    atomic_flag flag = ATOMIC_FLAG_INIT;
    struct careful_token t;
    careful_init(&t, &flag);
    assert_int_equal(careful_mode(&t, 1), CAREFUL_WAIT);
    assert_false(atomic_flag_test_and_set(&flag)); /* and nothing was taken */
}

static void one_pipeline_of_a_process_has_the_permission(void **state)
{
    (void)state;
    atomic_flag flag = ATOMIC_FLAG_INIT;
    struct careful_token a, b;
    careful_init(&a, &flag);
    careful_init(&b, &flag);
    assert_int_equal(careful_mode(&a, 0), CAREFUL_TAKE);
    assert_int_equal(careful_mode(&a, 0), CAREFUL_TAKE);
    assert_int_equal(careful_mode(&b, 0), CAREFUL_SKIP);
    careful_leave(&b); /* what is not ours is left alone */
    assert_int_equal(careful_mode(&b, 0), CAREFUL_SKIP);
    careful_leave(&a);
    assert_int_equal(careful_mode(&b, 0), CAREFUL_TAKE);
}

static void only_pipeline_may_always(void **state)
{
    (void)state;
    struct careful_token t;
    careful_init(&t, NULL);
    assert_int_equal(careful_mode(&t, 0), CAREFUL_TAKE);
    careful_leave(&t);
    assert_int_equal(careful_mode(&t, 0), CAREFUL_TAKE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(careful_event_waits_for_other_batches),
        cmocka_unit_test(one_pipeline_of_a_process_has_the_permission),
        cmocka_unit_test(only_pipeline_may_always),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
