#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "event/filter.h"

static bool matches(const char *pattern, const char *type)
{
    return filter_matches(str_of(pattern), str_of(type));
}

static void star_matches_any_run_including_dots(void **state)
{
    (void)state;
    assert_true(matches("*", "order.created"));
    assert_true(matches("*", ""));
    assert_true(matches("order.*", "order.created"));
    assert_true(matches("order.*", "order.item.added"));
    assert_true(matches("order.*", "order."));
    assert_true(matches("*.created", "a.b.created"));
    assert_true(matches("a*b*c", "a--b--b--c"));
    assert_true(matches("a**c", "ac"));
    assert_true(matches("*ab*", "aab"));
    assert_false(matches("order.*", "order"));
    assert_false(matches("order.*", "orders.created"));
    assert_false(matches("*.created", "created"));
    assert_false(matches("a*b", "abc"));
    assert_false(matches("", "a"));
}

static void other_characters_match_themselves(void **state)
{
    (void)state;
    assert_true(matches("order.created", "order.created"));
    assert_true(matches("", ""));
    assert_false(matches("order.created", "order.create"));
    assert_false(matches("order.create", "order.created"));
    assert_false(matches("order.created", "orderXcreated"));
    assert_false(matches("a?c", "abc"));
    assert_false(matches("[a]", "a"));
    assert_false(matches("A", "a"));
    assert_false(matches("%", "abc"));
}

static void many_stars_match_in_polynomial_time(void **state)
{
    (void)state;
    char type[256], pattern[101];
    memset(type, 'a', 255);
    type[255] = '\0';
    for (int i = 0; i < 100; i += 2)
        memcpy(pattern + i, "*a", 2);
    pattern[100] = '\0';
    assert_true(matches(pattern, type));
    type[254] = 'b';
    assert_false(matches(pattern, type));
}

static struct filter *compiled(const char *events, const char *where)
{
    struct filter *f = NULL;
    struct error err;
    if (filter_new(events, where, &f, &err) != 0)
        fail_msg("%s", err.text);
    return f;
}

static void refused(const char *events, const char *where, const char *want)
{
    struct filter *f = NULL;
    struct error err = {.code = 0};
    if (filter_new(events, where, &f, &err) == 0)
        fail_msg("accepted \"%s\" \"%s\"", events, where);
    assert_int_equal(err.code, ERR_CONFIG);
    assert_string_equal(err.text, want);
    assert_null(f);
}

static void no_filter_passes_everything(void **state)
{
    (void)state;
    static const char *const blanks[] = {NULL, "", " \t"};
    assert_true(filter_type(NULL, STR("x")));
    assert_true(filter_payload(NULL, STR("not json")));
    assert_false(filter_has_where(NULL));
    filter_free(NULL);
    for (size_t i = 0; i < 3; i++) {
        struct filter *f = compiled(blanks[i], blanks[i]);
        assert_true(filter_type(f, STR("x")));
        assert_false(filter_has_where(f));
        assert_true(filter_payload(f, STR("not json")));
        filter_free(f);
    }
}

static void filter_reports_whether_types_matter(void **state)
{
    (void)state;
    static const struct {
        const char *events;
        bool matter;
    } cases[] = {{NULL, false}, {"*", false}, {"a.*, *", false}, {"a.*", true}, {"**", true}};
    assert_false(filter_has_types(NULL));
    for (size_t i = 0; i < 5; i++) {
        struct filter *f = compiled(cases[i].events, NULL);
        assert_int_equal(filter_has_types(f), cases[i].matter);
        filter_free(f);
    }
}

static void any_matching_pattern_is_enough(void **state)
{
    (void)state;
    struct filter *f = compiled(" order.created ,invoice.* ", NULL);
    assert_true(filter_type(f, STR("order.created")));
    assert_true(filter_type(f, STR("invoice.paid")));
    assert_false(filter_type(f, STR("order.paid")));
    filter_free(f);
}

static void bad_patterns_are_reported_with_their_position(void **state)
{
    (void)state;
    refused("a,,b", NULL, "events: expected a pattern at byte 2, found ','");
    refused("a,", NULL, "events: expected a pattern at byte 2, found the end");
    refused(",", NULL, "events: expected a pattern at byte 0, found ','");
    refused("a b", NULL, "events: expected a comma at byte 2, found 'b'");
    refused("a\xff", NULL, "events: invalid UTF-8 at byte 1");
}

static bool passes(const char *where, const char *payload)
{
    struct filter *f = compiled(NULL, where);
    assert_true(filter_has_where(f));
    bool r = filter_payload(f, str_of(payload));
    filter_free(f);
    return r;
}

static void every_kind_of_literal_can_be_compared(void **state)
{
    (void)state;
    assert_true(passes("authorType = \"user\"", "{\"authorType\":\"user\"}"));
    assert_false(passes("authorType = \"user\"", "{\"authorType\":\"bot\"}"));
    assert_true(passes("a='x\"\\n'", "{\"a\":\"x\\\"\\\\n\"}"));
    assert_true(passes("a = \"\\u0078\\n\"", "{\"a\":\"x\\u000a\"}"));
    assert_true(passes("n=10", "{\"n\":1e1}"));
    assert_true(passes("n = -1.50", "{\"n\":-1.5}"));
    assert_true(passes("b = true", "{\"b\":true}"));
    assert_false(passes("b = true", "{\"b\":\"true\"}"));
    assert_true(passes("b=false", "{\"b\":false}"));
    assert_true(passes("b = null", "{\"b\":null}"));
    assert_false(passes("b = null", "{}"));
    assert_false(passes("n = 1", "{\"n\":\"1\"}"));
    assert_true(passes("n = ''", "{\"n\":\"\"}"));
}

static void not_equal_is_the_exact_negation_of_equal(void **state)
{
    (void)state;
    assert_false(passes("a != 1", "{\"a\":1}"));
    assert_true(passes("a != 1", "{\"a\":2}"));
    assert_true(passes("a != 1", "{}"));
    assert_true(passes("a != 1", "[]"));
    assert_true(passes("a!=1", "{\"a\":{}}"));
}

static void exists_may_precede_or_follow_its_path(void **state)
{
    (void)state;
    assert_true(passes("a exists", "{\"a\":null}"));
    assert_true(passes("exists a", "{\"a\":0}"));
    assert_false(passes("a exists", "{\"b\":0}"));
    assert_false(passes("exists a.b", "{\"a\":1}"));
    assert_true(passes("exists a.b and c exists", "{\"a\":{\"b\":1},\"c\":1}"));
    assert_false(passes("a exists", "null"));
}

static void paths_traverse_objects_and_arrays(void **state)
{
    (void)state;
    static const char payload[] =
        "{\"a\":{\"b\":[10,{\"c\":\"x\"},[]]},\"0\":\"zero\",\"d.e\":1,\"\":{\"\":2},\"x-y_z\":3}";
    assert_true(passes("a.b.0 = 10", payload));
    assert_true(passes("a.b.1.c = 'x'", payload));
    assert_true(passes("a.b.2 exists", payload));
    assert_false(passes("a.b.3 exists", payload));
    assert_false(passes("a.b.c exists", payload));
    assert_false(passes("a.b.\"0\" exists", payload));
    assert_false(passes("a.b.99999999999999999999 exists", payload));
    assert_true(passes("0 = 'zero'", payload));
    assert_true(passes("\"d.e\" = 1", payload));
    assert_false(passes("d.e = 1", payload));
    assert_true(passes("\"\".\"\" = 2", payload));
    assert_true(passes("x-y_z = 3", payload));
    assert_true(passes("1.0 = 5", "[1,[5]]"));
    assert_false(passes("a.b.0.x exists", payload));
}

static void keywords_may_be_names_if_quoted_or_behind_a_dot(void **state)
{
    (void)state;
    assert_true(passes("\"not\" = 1", "{\"not\":1}"));
    assert_true(passes("a.exists = 1", "{\"a\":{\"exists\":1}}"));
    assert_true(passes("order = 1", "{\"order\":1}"));
    assert_true(passes("notes = 1 or android = 1", "{\"notes\":1}"));
    refused(NULL, "not = 1", "where: expected a name or a \"quoted name\" at byte 4, found '='");
    refused(NULL, "and = 1",
            "where: expected a path (quote a name that is a keyword) at byte 0, found 'a'");
}

static void and_binds_tighter_than_or(void **state)
{
    (void)state;
    assert_true(passes("a=1 or b=1 and c=1", "{\"a\":1}"));
    assert_false(passes("(a=1 or b=1) and c=1", "{\"a\":1}"));
    assert_true(passes("b=1 and c=1 or a=1", "{\"a\":1}"));
    assert_true(passes("not a=1 and b=1", "{\"b\":1}"));
    assert_false(passes("not (a=1 or b=1)", "{\"b\":1}"));
    assert_true(passes("not not a=1", "{\"a\":1}"));
    assert_true(passes("not a exists", "{}"));
    assert_true(passes("((a=1))and(b=2)", "{\"a\":1,\"b\":2}"));
}

static void non_json_payload_fails_every_predicate(void **state)
{
    (void)state;
    assert_false(passes("a != 1", "{"));
    assert_false(passes("not a exists", ""));
}

static void absent_payload_is_null(void **state)
{
    (void)state;
    struct filter *f = compiled(NULL, "a != 1");
    assert_true(filter_payload(f, (struct str){NULL, 0}));
    filter_free(f);
}

static void errors_report_position_and_expectation(void **state)
{
    (void)state;
    refused(NULL, "a", "where: expected =, != or exists at byte 1, found the end");
    refused(NULL, "a == 1",
            "where: expected a \"string\", a number, true, false or null at byte 3, found '='");
    refused(NULL, "a = user",
            "where: expected a \"string\", a number, true, false or null at byte 4, found 'u'");
    refused(NULL, "a =",
            "where: expected a \"string\", a number, true, false or null at byte 3, found the end");
    refused(NULL, "a = 01",
            "where: expected a \"string\", a number, true, false or null at byte 4, found '0'");
    refused(NULL, "a ! 1", "where: expected =, != or exists at byte 2, found '!'");
    refused(NULL, "a = 1 b = 2", "where: expected and, or or the end at byte 6, found 'b'");
    refused(NULL, "(a = 1", "where: expected and, or or ')' at byte 6, found the end");
    refused(NULL, "a = 1)", "where: expected and, or or the end at byte 5, found ')'");
    refused(NULL, "a = \"x", "where: invalid string: unfinished string at byte 6");
    refused(NULL, "a = \"\\q\"", "where: invalid string: invalid escape at byte 5");
    refused(NULL, "a = 'x", "where: expected a closing apostrophe at byte 6, found the end");
    refused(NULL, "a. = 1", "where: expected a name or a \"quoted name\" at byte 2, found ' '");
    refused(NULL, "a = 1 and",
            "where: expected a name or a \"quoted name\" at byte 9, found the end");
    refused(NULL, "\xc3\xa4 = 1",
            "where: expected a name or a \"quoted name\" at byte 0, found '\xc3\xa4'");
    refused(NULL, "a = [1]",
            "where: expected a \"string\", a number, true, false or null at byte 4, found '['");
    refused(NULL, "a = '\xff'", "where: invalid UTF-8 at byte 5");
}

static void long_chains_work_and_deep_nesting_is_refused(void **state)
{
    (void)state;
    char text[20000] = "a=0";
    size_t n = 3;
    while (n < 18000)
        n += (size_t)sprintf(text + n, " or a=%zu", n);
    assert_true(passes(text, "{\"a\":3}"));
    assert_false(passes(text, "{\"a\":-1}"));
    memset(text, '(', 10000);
    text[10000] = '\0';
    refused(NULL, text, "where: nested too deeply at byte 64");
    for (n = 0; n < 10000; n += 4)
        memcpy(text + n, "not ", 5);
    refused(NULL, text, "where: nested too deeply at byte 255");
}

static void overlong_expressions_are_refused(void **state)
{
    (void)state;
    char *text = malloc(70001);
    memset(text, 'a', 70000);
    text[70000] = '\0';
    refused(text, NULL, "events: is 70000 bytes long; the limit is 65536");
    refused(NULL, text, "where: is 70000 bytes long; the limit is 65536");
    free(text);
}

static void assert_normal(void (*normal)(const char *, struct buf *), const char *given,
                          const char *want)
{
    struct buf b;
    buf_init(&b, 4096);
    normal(given, &b);
    assert_string_equal(buf_cstr(&b), want);
    buf_release(&b);
}

static void equivalent_filters_have_one_normal_form(void **state)
{
    (void)state;
    assert_normal(filter_normal_events, "", "");
    assert_normal(filter_normal_events, "a.*,b.*", "a.*, b.*");
    assert_normal(filter_normal_events, " b.* ,\ta.*,, b.*\n", "a.*, b.*");
    assert_normal(filter_normal_events, "a.**,a.*", "a.*");
    assert_normal(filter_normal_events, "a,*", "");
    assert_normal(filter_normal_events, "**", "");
    assert_normal(filter_normal_events, "B,a,A,b", "A, B, a, b");

    assert_normal(filter_normal_where, "", "");
    assert_normal(filter_normal_where, " a=1 ", "a = 1");
    assert_normal(filter_normal_where, "a  !=\n1 and( not b exists )", "a != 1 and (not b exists)");
    assert_normal(filter_normal_where, "((a=1))or\"b  =\".c='  x=\"'",
                  "((a = 1)) or \"b  =\".c = '  x=\"'");
    assert_normal(filter_normal_where, "a=\"\\\" )\"", "a = \"\\\" )\"");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(star_matches_any_run_including_dots),
        cmocka_unit_test(other_characters_match_themselves),
        cmocka_unit_test(many_stars_match_in_polynomial_time),
        cmocka_unit_test(no_filter_passes_everything),
        cmocka_unit_test(filter_reports_whether_types_matter),
        cmocka_unit_test(any_matching_pattern_is_enough),
        cmocka_unit_test(bad_patterns_are_reported_with_their_position),
        cmocka_unit_test(every_kind_of_literal_can_be_compared),
        cmocka_unit_test(not_equal_is_the_exact_negation_of_equal),
        cmocka_unit_test(exists_may_precede_or_follow_its_path),
        cmocka_unit_test(paths_traverse_objects_and_arrays),
        cmocka_unit_test(keywords_may_be_names_if_quoted_or_behind_a_dot),
        cmocka_unit_test(and_binds_tighter_than_or),
        cmocka_unit_test(non_json_payload_fails_every_predicate),
        cmocka_unit_test(absent_payload_is_null),
        cmocka_unit_test(errors_report_position_and_expectation),
        cmocka_unit_test(long_chains_work_and_deep_nesting_is_refused),
        cmocka_unit_test(overlong_expressions_are_refused),
        cmocka_unit_test(equivalent_filters_have_one_normal_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
