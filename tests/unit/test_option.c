#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/option.h"
#include "base/text.h"

struct target {
    int64_t lease, lanes;
    bool drain;
    char seen[16];
};

static int set_lease(void *t, const char *value, struct error *err)
{
    return text_duration(value, &((struct target *)t)->lease, err);
}

static int set_lanes(void *t, const char *value, struct error *err)
{
    return text_int(value, 1, 256, &((struct target *)t)->lanes, err);
}

static int set_drain(void *t, const char *value, struct error *err)
{
    struct target *target = t;
    strncpy(target->seen, value, sizeof target->seen - 1);
    return text_bool(value, &target->drain, err);
}

static const struct option_def table[] = {
    {"lease", "DURATION", "30s", "how long a claim lives", set_lease},
    {"lanes", "N", "8", "how many lanes", set_lanes},
    {"drain", NULL, "no", "stop when everything is delivered", set_drain},
    {NULL, NULL, NULL, NULL, NULL},
};

static void finds_by_whole_name_only(void **state)
{
    (void)state;
    assert_ptr_equal(option_find(table, "lanes"), &table[1]);
    assert_null(option_find(table, "lane"));
    assert_null(option_find(table, "Lanes"));
    assert_null(option_find(table, ""));
}

static void sets_a_value(void **state)
{
    (void)state;
    struct target t = {.lease = 0};
    assert_int_equal(option_set(table, &t, "lease", "2s", NULL), 0);
    assert_int_equal(t.lease, 2000);
}

static void error_names_the_option(void **state)
{
    (void)state;
    struct target t = {.lanes = 3};
    struct error err;
    assert_int_equal(option_set(table, &t, "lanes", "500", &err), -1);
    assert_int_equal(err.code, ERR_CONFIG);
    assert_string_equal(err.text, "lanes: 500 is out of range: it goes from 1 to 256");
    assert_int_equal(option_set(table, &t, "lanes", NULL, &err), -1);
    assert_string_equal(err.text, "lanes: needs a value: N");
    assert_int_equal(t.lanes, 3);
}

static void unknown_option_names_the_nearest(void **state)
{
    (void)state;
    struct target t = {.lanes = 3};
    struct error err;
    assert_int_equal(option_set(table, &t, "laens", "5", &err), -1);
    assert_int_equal(err.code, ERR_CONFIG);
    assert_string_equal(err.text, "unknown option \"laens\"; did you mean \"lanes\"?");
    assert_int_equal(option_set(table, &t, "colour", "5", &err), -1);
    assert_string_equal(err.text, "unknown option \"colour\"");
}

static void switch_is_told_yes_or_no_however_written(void **state)
{
    (void)state;
    struct target t = {.drain = false};
    struct error err;
    assert_int_equal(option_set(table, &t, "drain", NULL, NULL), 0);
    assert_true(t.drain);
    assert_string_equal(t.seen, "yes");
    assert_int_equal(option_set(table, &t, "drain", "off", NULL), 0);
    assert_false(t.drain);
    assert_string_equal(t.seen, "no");
    assert_int_equal(option_set(table, &t, "drain", "1", NULL), 0);
    assert_true(t.drain);
    assert_int_equal(option_set(table, &t, "drain", "perhaps", &err), -1);
    assert_string_equal(err.text, "drain: \"perhaps\" is neither yes nor no");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_by_whole_name_only),
        cmocka_unit_test(sets_a_value),
        cmocka_unit_test(error_names_the_option),
        cmocka_unit_test(unknown_option_names_the_nearest),
        cmocka_unit_test(switch_is_told_yes_or_no_however_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
