#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "engine/failure.h"

static struct rng rng;

static void closed_circuit_has_no_limit(void **state)
{
    (void)state;
    struct circuit c;
    circuit_init(&c);
    assert_true(circuit_room(&c, 0, 100000) == SIZE_MAX);
    assert_false(circuit_open(&c));
}

static void open_circuit_allows_one_delivery_after_its_wait(void **state)
{
    (void)state;
    struct circuit c;
    circuit_init(&c);
    assert_true(circuit_down(&c, 1000, 0, 1, &rng));
    assert_true(circuit_open(&c));
    assert_int_equal(circuit_room(&c, 1000, 0), 0);
    assert_int_equal(circuit_room(&c, c.until - 1, 0), 0);
    assert_int_equal(circuit_room(&c, c.until, 0), 1);
    assert_int_equal(circuit_room(&c, c.until, 1), 0);
}

static void many_failures_in_flight_count_as_one(void **state)
{
    (void)state;
    struct circuit c;
    circuit_init(&c);
    circuit_down(&c, 1000, 0, 1, &rng);
    int64_t until = c.until;
    assert_false(circuit_down(&c, 1001, 0, 1, &rng));
    assert_int_equal(c.until, until);
}

static void wait_grows_to_thirty_seconds(void **state)
{
    (void)state;
    struct circuit c;
    int64_t now = 0, wait = 0;
    circuit_init(&c);
    for (int i = 0; i < 20; i++) {
        circuit_down(&c, now, 0, 1, &rng);
        wait = c.until - now;
        assert_true(wait <= 30000 * MS_NS);
        now = c.until;
    }
    assert_true(wait >= 15000 * MS_NS);
}

static void longer_requested_wait_is_kept(void **state)
{
    (void)state;
    struct circuit c;
    circuit_init(&c);
    circuit_down(&c, 0, 120000, 1, &rng);
    assert_true(c.until == 120000 * MS_NS);
}

static void limit_recovers_by_doubling(void **state)
{
    (void)state;
    struct circuit c;
    circuit_init(&c);
    circuit_down(&c, 0, 0, 1, &rng);
    circuit_up(&c);
    assert_false(circuit_open(&c));
    assert_int_equal(circuit_room(&c, 1, 0), 2);
    circuit_up(&c);
    assert_int_equal(circuit_room(&c, 1, 0), 4);
    for (int i = 0; i < 10; i++)
        circuit_up(&c);
    assert_true(circuit_room(&c, 1, 5000) == SIZE_MAX);
}

static void first_answer_clears_reports_of_another_relay(void **state)
{
    (void)state;
    struct circuit_report r = {0};
    const char *text = "?";
    circuit_report_answered(&r, false, false);
    assert_true(circuit_report_take(&r, &text));
    assert_null(text);
    circuit_report_answered(&r, false, false);
    assert_false(circuit_report_take(&r, &text)); /* already known */
}

static void problem_is_reported_once_and_cleared_once_solved(void **state)
{
    (void)state;
    struct circuit_report r = {0};
    const char *text;
    circuit_report_note(&r, "sink is down");
    assert_true(circuit_report_take(&r, &text));
    assert_string_equal(text, "sink is down");
    assert_false(circuit_report_take(&r, &text));
    circuit_report_answered(&r, true, false);
    assert_true(circuit_report_take(&r, &text));
    assert_null(text);
}

static void reason_for_a_pause_stays_until_resumed(void **state)
{
    (void)state;
    struct circuit_report r = {0};
    const char *text;
    circuit_report_paused(&r, "stream is full");
    assert_true(circuit_report_take(&r, &text));
    assert_string_equal(text, "paused: stream is full");
    circuit_report_answered(&r, true, true);
    assert_false(circuit_report_take(&r, &text));
    circuit_report_answered(&r, false, false);
    assert_true(circuit_report_take(&r, &text));
    assert_null(text);
}

int main(void)
{
    rng_seed(&rng, 7);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closed_circuit_has_no_limit),
        cmocka_unit_test(open_circuit_allows_one_delivery_after_its_wait),
        cmocka_unit_test(many_failures_in_flight_count_as_one),
        cmocka_unit_test(wait_grows_to_thirty_seconds),
        cmocka_unit_test(longer_requested_wait_is_kept),
        cmocka_unit_test(limit_recovers_by_doubling),
        cmocka_unit_test(first_answer_clears_reports_of_another_relay),
        cmocka_unit_test(problem_is_reported_once_and_cleared_once_solved),
        cmocka_unit_test(reason_for_a_pause_stays_until_resumed),
    };
    return cmocka_run_group_tests_name("circuit", tests, NULL, NULL);
}
