#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "engine/pipeline_impl.h"

#define NOW (1000 * MS_NS)

static struct schedule made(void)
{
    struct schedule s;
    schedule_init(&s);
    return s;
}

static void first_poll_is_due_at_once(void **state)
{
    (void)state;
    struct schedule s = made();
    assert_true(schedule_look_due(&s, NOW));
    assert_false(schedule_store_away(&s, NOW));
    assert_false(schedule_drain_over(&s, INT64_MAX - 1));
}

static void rest_postpones_the_poll_but_allows_wake_ups(void **state)
{
    (void)state;
    struct schedule s = made();
    schedule_rest(&s, NOW, 500 * MS_NS, false);
    assert_false(schedule_look_due(&s, NOW + 500 * MS_NS - 1));
    assert_true(schedule_look_due(&s, NOW + 500 * MS_NS));
    assert_true(schedule_listens(&s, NOW));
    assert_int_equal(schedule_look_wake(&s, NOW), NOW + 500 * MS_NS);
}

static void rest_for_a_taken_lane_ignores_wake_ups_for_50_ms(void **state)
{
    (void)state;
    struct schedule s = made();
    schedule_rest(&s, NOW, 500 * MS_NS, true);
    assert_false(schedule_listens(&s, NOW + 50 * MS_NS - 1));
    assert_true(schedule_listens(&s, NOW + 50 * MS_NS));
    assert_int_equal(schedule_look_wake(&s, NOW), NOW + 50 * MS_NS);
    assert_int_equal(schedule_look_wake(&s, NOW + 50 * MS_NS), NOW + 500 * MS_NS);

    schedule_rest(&s, NOW, 10 * MS_NS, true);
    assert_false(schedule_look_due(&s, NOW + 50 * MS_NS - 1));
    assert_true(schedule_look_due(&s, NOW + 50 * MS_NS));
}

static void rest_without_contention_accepts_wake_ups_again(void **state)
{
    (void)state;
    struct schedule s = made();
    schedule_rest(&s, NOW, 500 * MS_NS, true);
    schedule_rest(&s, NOW, 500 * MS_NS, false);
    assert_true(schedule_listens(&s, NOW));
}

static void store_backoff_doubles_up_to_5_s(void **state)
{
    (void)state;
    static const int64_t ms[] = {100, 200, 400, 800, 1600, 3200, 5000, 5000};
    struct schedule s = made();
    for (size_t i = 0; i < sizeof ms / sizeof *ms; i++) {
        assert_int_equal(schedule_store_failed(&s, NOW), ms[i] * MS_NS);
        assert_true(schedule_store_away(&s, NOW + ms[i] * MS_NS - 1));
        assert_false(schedule_store_away(&s, NOW + ms[i] * MS_NS));
    }
    schedule_store_back(&s);
    assert_false(schedule_store_away(&s, NOW));
    assert_int_equal(schedule_store_failed(&s, NOW), 100 * MS_NS);
}

static void store_pause_does_not_count_as_a_failure(void **state)
{
    (void)state;
    struct schedule s = made();
    schedule_store_pause(&s, NOW);
    assert_true(schedule_store_away(&s, NOW + 200 * MS_NS - 1));
    assert_false(schedule_store_away(&s, NOW + 200 * MS_NS));
    assert_int_equal(schedule_store_failed(&s, NOW), 100 * MS_NS);
}

static void wake_up_polls_at_once(void **state)
{
    (void)state;
    struct schedule s = made();
    schedule_rest(&s, NOW, 500 * MS_NS, true);
    schedule_store_failed(&s, NOW);
    schedule_woken(&s);
    assert_true(schedule_look_due(&s, NOW));
    assert_true(schedule_listens(&s, NOW));
    assert_false(schedule_store_away(&s, NOW));
    assert_int_equal(schedule_store_failed(&s, NOW), 200 * MS_NS); /* it has not answered yet */
}

static void drain_ends_at_the_earliest_deadline(void **state)
{
    (void)state;
    struct schedule s = made();
    schedule_drain(&s, NOW + 10);
    schedule_drain(&s, NOW + 99);
    assert_false(schedule_drain_over(&s, NOW + 9));
    assert_true(schedule_drain_over(&s, NOW + 10));
    schedule_drain(&s, NOW);
    assert_true(schedule_drain_over(&s, NOW));
}

static void due_work_waits_for_an_unreachable_store(void **state)
{
    (void)state;
    struct schedule s = made();
    assert_int_equal(schedule_wake_at(&s, NOW, 0), 0);
    schedule_store_failed(&s, NOW);
    assert_int_equal(schedule_wake_at(&s, NOW, 0), NOW + 100 * MS_NS);
    assert_int_equal(schedule_wake_at(&s, NOW, NOW + 30 * MS_NS), NOW + 30 * MS_NS);
    assert_int_equal(schedule_wake_at(&s, NOW, CLOCK_NEVER), NOW + 100 * MS_NS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_poll_is_due_at_once),
        cmocka_unit_test(rest_postpones_the_poll_but_allows_wake_ups),
        cmocka_unit_test(rest_for_a_taken_lane_ignores_wake_ups_for_50_ms),
        cmocka_unit_test(rest_without_contention_accepts_wake_ups_again),
        cmocka_unit_test(store_backoff_doubles_up_to_5_s),
        cmocka_unit_test(store_pause_does_not_count_as_a_failure),
        cmocka_unit_test(wake_up_polls_at_once),
        cmocka_unit_test(drain_ends_at_the_earliest_deadline),
        cmocka_unit_test(due_work_waits_for_an_unreachable_store),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
