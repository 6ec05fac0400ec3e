#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/option.h"
#include "base/text.h"

struct target {
    int64_t lease, size;
    int lanes, order;
    bool drain, shared;
    char seen[16];
    char *owned;
    const char *borrowed, *word;
};

static int set_drain(void *field, const char *value, const struct option_def *o, struct error *err)
{
    struct target *target = field;
    (void)o;
    strncpy(target->seen, value, sizeof target->seen - 1);
    return text_bool(value, &target->drain, err);
}

static const char *const fates[] = {"own", "shared", NULL};
static const char *const orders[] = {"none", "key", "global", NULL};

static const struct option_def table[] = {
    {"lease", "DURATION", "30s", "how long a claim lives", option_span,
     .at = offsetof(struct target, lease), .min = 100},
    {"lanes", "N", "8", "how many lanes", option_int, .at = offsetof(struct target, lanes),
     .min = 1, .max = 256},
    {"drain", NULL, "no", "stop when everything is delivered", set_drain, .at = 0},
    {"size", "SIZE", NULL, "how large", option_size, .at = offsetof(struct target, size), .min = 1,
     .max = 1 << 20},
    {"order", "ORDER", "key", "which order", option_choice, .at = offsetof(struct target, order),
     .names = orders},
    {"word", "ORDER", NULL, "which order, by name", option_word,
     .at = offsetof(struct target, word), .names = orders},
    {"fate", "FATE", "own", "whose", option_either, .at = offsetof(struct target, shared),
     .names = fates},
    {"owned", "TEXT", NULL, "a copy", option_file, .at = offsetof(struct target, owned)},
    {"borrowed", "TEXT", NULL, "no copy", option_name, .at = offsetof(struct target, borrowed)},
    {NULL},
};

static void option_is_found_only_by_its_whole_name(void **state)
{
    (void)state;
    assert_ptr_equal(option_find(table, "lanes"), &table[1]);
    assert_null(option_find(table, "lane"));
    assert_null(option_find(table, "Lanes"));
    assert_null(option_find(table, ""));
}

static void option_sets_a_value(void **state)
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
    assert_string_equal(err.text, "lanes: 500 is out of range: it must be from 1 to 256");
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

static void switch_accepts_every_form_of_yes_and_no(void **state)
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

static void refused(struct target *t, const char *name, const char *value, const char *text)
{
    struct error err;
    assert_int_equal(option_set(table, t, name, value, &err), -1);
    assert_int_equal(err.code, ERR_CONFIG);
    assert_string_equal(err.text, text);
}

static void value_out_of_bounds_is_refused_with_the_bounds(void **state)
{
    (void)state;
    struct target t = {.lease = 7, .size = 7};
    refused(&t, "lease", "99ms", "lease: \"99ms\" is less than 100ms");
    refused(&t, "size", "2MiB", "size: \"2MiB\" is not between 1 and 1MiB");
    assert_int_equal(t.lease, 7);
    assert_int_equal(t.size, 7);
}

static void choice_is_set_by_its_name(void **state)
{
    (void)state;
    struct target t = {.order = 9};
    refused(&t, "order", "kye", "order: \"kye\" is not none, key or global; did you mean key?");
    assert_int_equal(t.order, 9);
    assert_int_equal(option_set(table, &t, "order", "global", NULL), 0);
    assert_int_equal(t.order, 2);
    assert_int_equal(option_set(table, &t, "word", "none", NULL), 0);
    assert_ptr_equal(t.word, orders[0]);
    assert_int_equal(option_set(table, &t, "fate", "shared", NULL), 0);
    assert_true(t.shared);
    assert_int_equal(option_set(table, &t, "fate", "own", NULL), 0);
    assert_false(t.shared);
    refused(&t, "fate", "mine", "fate: \"mine\" is not own or shared");
}

static void owned_text_replaces_the_previous_one(void **state)
{
    (void)state;
    struct target t = {.owned = NULL};
    const char *value = "b";
    assert_int_equal(option_set(table, &t, "owned", "a", NULL), 0);
    assert_int_equal(option_set(table, &t, "owned", value, NULL), 0);
    assert_string_equal(t.owned, "b");
    assert_ptr_not_equal(t.owned, value);
    refused(&t, "owned", "", "owned: the name is empty");
    free(t.owned);
    assert_int_equal(option_set(table, &t, "borrowed", value, NULL), 0);
    assert_ptr_equal(t.borrowed, value);
    refused(&t, "borrowed", "", "borrowed: the name is empty");
}

static void defaults_match_the_table(void **state)
{
    (void)state;
    struct target t = {.size = 7};
    assert_int_equal(option_defaults(table, &t, NULL), 0);
    assert_int_equal(t.lease, 30000);
    assert_int_equal(t.lanes, 8);
    assert_int_equal(t.order, 1);
    assert_int_equal(t.size, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(option_is_found_only_by_its_whole_name),
        cmocka_unit_test(option_sets_a_value),
        cmocka_unit_test(error_names_the_option),
        cmocka_unit_test(unknown_option_names_the_nearest),
        cmocka_unit_test(switch_accepts_every_form_of_yes_and_no),
        cmocka_unit_test(value_out_of_bounds_is_refused_with_the_bounds),
        cmocka_unit_test(choice_is_set_by_its_name),
        cmocka_unit_test(owned_text_replaces_the_previous_one),
        cmocka_unit_test(defaults_match_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
