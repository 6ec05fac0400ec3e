#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/circuit.h"

static void first_answer_clears_reports_of_another_relay(void **state)
{
    (void)state;
    struct circuit_report r = {0};
    const char *text = "?";
    circuit_report_answered(&r, false, false);
    assert_true(circuit_report_take(&r, &text));
    assert_null(text);
    circuit_report_answered(&r, false, false);
    assert_false(circuit_report_take(&r, &text)); /* it is not news */
}

static void problem_is_reported_once_and_cleared_when_solved(void **state)
{
    (void)state;
    struct circuit_report r = {0};
    const char *text;
    circuit_report_trouble(&r, "sink is down");
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_answer_clears_reports_of_another_relay),
        cmocka_unit_test(problem_is_reported_once_and_cleared_when_solved),
        cmocka_unit_test(reason_for_a_pause_stays_until_resumed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
