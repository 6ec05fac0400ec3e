#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/circuit.h"

static void first_answer_wipes_what_another_relay_left(void **state)
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

static void trouble_is_told_once_and_wiped_when_it_is_over(void **state)
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

static void why_it_is_paused_stays_until_it_goes_on(void **state)
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
        cmocka_unit_test(first_answer_wipes_what_another_relay_left),
        cmocka_unit_test(trouble_is_told_once_and_wiped_when_it_is_over),
        cmocka_unit_test(why_it_is_paused_stays_until_it_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
