#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "event/template.h"

static const struct event ev = {
    .type = STR("tenant.user_membership.added"),
    .aggregate_type = STR("user"),
    .aggregate_id = STR("7"),
    .headers = STR("{\"region\":\"eu\",\"n\":1,\"quoted\":\"a\\u00e9\"}"),
};

static void gives(const char *text, const char *want)
{
    struct template *t;
    struct error err = {0};
    struct buf b;
    buf_init(&b, 1000);
    assert_int_equal(template_new(text, &t, &err), 0);
    assert_int_equal(template_write(t, &ev, NULL, &b, &err), 0);
    assert_string_equal(buf_cstr(&b), want);
    buf_release(&b);
    template_free(t);
}

static void fields_and_parts_are_substituted(void **state)
{
    (void)state;
    gives("events", "events");
    gives("tenant.{type[1]}", "tenant.user_membership");
    gives("{type[0]}-{type[2]}", "tenant-added");
    gives("{aggregate_type}:{aggregate_id}", "user:7");
    gives("{type}", "tenant.user_membership.added");
    gives("{{{aggregate_type}}}x", "{user}x");
    gives("{header.region}.{type[2]}", "eu.added");
    gives("{header.quoted}", "a\xc3\xa9");
}

/* Wraps a value to show where it was substituted: [value], or <value> if dots separate levels. */
static void bracket(struct buf *b, struct str value, bool levels)
{
    buf_addc(b, levels ? '<' : '[');
    buf_addstr(b, value);
    buf_addc(b, levels ? '>' : ']');
}

static void only_values_are_escaped(void **state)
{
    (void)state;
    struct template *t;
    struct error err = {0};
    struct buf b;
    buf_init(&b, 1000);
    assert_int_equal(template_new("a.{type}.{type[1]}.{aggregate_id}.{header.region}b", &t, &err),
                     0);
    assert_int_equal(template_write(t, &ev, bracket, &b, &err), 0);
    assert_string_equal(buf_cstr(&b),
                        "a.<tenant.user_membership.added>.[user_membership].[7].[eu]b");
    buf_release(&b);
    template_free(t);
}

static void error_names_the_absent_event_field(void **state)
{
    (void)state;
    static const char *const cases[][2] = {{"{tenant}", "no tenant"},
                                           {"{type[3]}", "no part number 3"},
                                           {"{header.none}", "no header none"},
                                           {"{header.n}", "no header n"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct template *t;
        struct error err = {0};
        struct buf b;
        buf_init(&b, 1000);
        assert_int_equal(template_new(cases[i][0], &t, &err), 0);
        assert_int_equal(template_write(t, &ev, NULL, &b, &err), -1);
        assert_int_equal(err.code, ERR_INVALID);
        assert_non_null(strstr(err.text, cases[i][1]));
        buf_release(&b);
        template_free(t);
    }
}

static void bad_templates_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"",           "{",     "}",         "a{type",
                                      "a}b",        "{typ}", "{type[}",   "{type[x]}",
                                      "{type[1]x}", "{}",    "{header.}", "{headers.x}"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct template *t = NULL;
        struct error err = {0};
        if (template_new(bad[i], &t, &err) == 0)
            fail_msg("%s", bad[i]);
        assert_int_equal(err.code, ERR_CONFIG);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_and_parts_are_substituted),
        cmocka_unit_test(only_values_are_escaped),
        cmocka_unit_test(error_names_the_absent_event_field),
        cmocka_unit_test(bad_templates_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
