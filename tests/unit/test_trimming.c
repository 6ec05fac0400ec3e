/* test_trimming.c: the size of trimming steps, where they begin, and the pauses between them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/store.h"

#define AT INT64_C(1000000000)

static void took(struct trimming *t, bool one_writer, int64_t ms, bool more, int64_t upto)
{
    struct trim_result res = {.more = more, .upto = upto};
    store_trim_took(t, one_writer, AT, ms * MS_NS, &res);
}

static void steps_grow_while_quick_and_shrink_when_slow(void **state)
{
    (void)state;
    struct trimming t = {.rows = 1000};
    for (int i = 0; i < 10; i++)
        took(&t, false, 5, true, 1);
    assert_int_equal(t.rows, 16000);
    took(&t, false, 20, true, 1);
    assert_int_equal(t.rows, 16000);
    for (int i = 0; i < 10; i++)
        took(&t, false, 100, true, 1);
    assert_int_equal(t.rows, 1000);
}

static void with_one_writer_steps_are_short_and_pauses_equal(void **state)
{
    (void)state;
    struct trimming t = {.rows = 1000};
    took(&t, true, 5, true, 1);
    assert_int_equal(t.rows, 500);
    assert_int_equal(t.pause_ns, 5 * MS_NS);
    for (int i = 0; i < 10; i++)
        took(&t, true, 5, true, 1);
    assert_true(t.rows >= 200 && t.rows < 400);
}

static void step_continues_where_the_last_one_ended(void **state)
{
    (void)state;
    struct trimming t = {.rows = 1000};
    took(&t, false, 0, true, 70);
    assert_int_equal(t.after, 70);
    took(&t, false, 0, true, 90);
    assert_int_equal(t.after, 90);
    took(&t, false, 0, false, 95);
    assert_int_equal(t.after, 0);
}

/* A session holds a transaction open, so each full scan reads all deleted rows. */
static void slow_full_scans_are_rare(void **state)
{
    (void)state;
    struct trimming t = {.rows = 1000};
    struct trim_result through = {.upto = 50};
    store_trim_took(&t, false, AT, 1000 * MS_NS, &through);
    assert_int_equal(t.after, 50);
    store_trim_took(&t, false, AT + 30000 * MS_NS, 5 * MS_NS, &through);
    assert_int_equal(t.after, 50);
    store_trim_took(&t, false, AT + 101000 * MS_NS, 5 * MS_NS, &through);
    assert_int_equal(t.after, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_grow_while_quick_and_shrink_when_slow),
        cmocka_unit_test(with_one_writer_steps_are_short_and_pauses_equal),
        cmocka_unit_test(step_continues_where_the_last_one_ended),
        cmocka_unit_test(slow_full_scans_are_rare),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
