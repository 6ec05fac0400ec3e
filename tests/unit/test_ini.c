#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/buf.h"
#include "cli/ini.h"

/* The visited settings as text: "[section]" for a new section, "section|name|value;" for a
 * setting. */
struct seen {
    struct buf b;
    const char *refuse;
};

static int record(void *ctx, const char *section, const char *name, const char *value,
                  struct error *err)
{
    struct seen *s = ctx;
    if (!name) {
        buf_addf(&s->b, "[%s]", section);
        return 0;
    }
    if (s->refuse && strcmp(name, s->refuse) == 0)
        return err_set(err, ERR_CONFIG, "no such thing");
    buf_addf(&s->b, "%s|%s|%s;", section, name, value);
    return 0;
}

static int parse(struct str text, struct seen *s, struct error *err)
{
    struct ini_reading r = {.visit = record, .ctx = s};
    if (ini_read(&r, text.p, text.n, err) != 0)
        return err_prefix(err, "x.conf:%zu", r.line);
    return 0;
}

static void reads(struct str text, const char *want)
{
    struct seen s = {.refuse = NULL};
    struct error err;
    buf_init(&s.b, 1 << 20);
    if (parse(text, &s, &err) != 0)
        fail_msg("%s", err.text);
    assert_string_equal(buf_cstr(&s.b), want);
    buf_release(&s.b);
}

static void refuses(struct str text, const char *want)
{
    struct seen s = {.refuse = "bad"};
    struct error err = {.code = 0};
    buf_init(&s.b, 1 << 20);
    assert_int_equal(parse(text, &s, &err), -1);
    assert_int_equal(err.code, ERR_CONFIG);
    assert_string_equal(err.text, want);
    buf_release(&s.b);
}

static void sections_and_settings_are_read_in_order(void **state)
{
    (void)state;
    reads(STR("store = sqlite:shop.db\n[outbox]\nlease=2s\n\n[consumer search]\norder = key\n"),
          "|store|sqlite:shop.db;[outbox]outbox|lease|2s;[consumer search]consumer "
          "search|order|key;");
    reads(STR(""), "");
    reads(STR("\n\n"), "");
}

static void white_space_is_trimmed_and_collapsed_in_section_names(void **state)
{
    (void)state;
    reads(STR("  [  consumer \t  search ]  \n \t a\t= \t b  c \t\n"),
          "[consumer search]consumer search|a|b  c;");
    reads(STR("a=1\r\n[s]\r\nb=2\r\n"), "|a|1;[s]s|b|2;");
    reads(STR("a=1"), "|a|1;");
    reads(STR("[s]"), "[s]");
    reads(STR("\xef\xbb\xbf[s]\n"), "[s]");
}

static void comments_may_start_a_line_but_not_end_one(void **state)
{
    (void)state;
    reads(STR("# c\n ; c = d\n#[x]\na = b # no comment; really\n"), "|a|b # no comment; really;");
}

static void values_are_taken_literally(void **state)
{
    (void)state;
    reads(STR("where = a = \"x\" and b != 'y'\n"), "|where|a = \"x\" and b != 'y';");
    reads(STR("url = http://h/?a=b&c=[d]\n"), "|url|http://h/?a=b&c=[d];");
    reads(STR("a =\n"), "|a|;");
    reads(STR("a ==\n"), "|a|=;");
}

static void surrounding_quotes_are_removed_once(void **state)
{
    (void)state;
    reads(STR("a = \"  spaced  \"\n"), "|a|  spaced  ;");
    reads(STR("a = \"\"\n"), "|a|;");
    reads(STR("a = \"\n"), "|a|\";");
    reads(STR("a = \"\"x\"\"\n"), "|a|\"\"x\"\";");
    reads(STR("a = \"b\\n\"\n"), "|a|b\\n;");
    /* quotes inside an expression stay */
    reads(STR("a = \"my key\" = \"x\"\n"), "|a|\"my key\" = \"x\";");
    reads(STR("a = 'x'\n"), "|a|'x';");
}

static void errors_name_file_and_line(void **state)
{
    (void)state;
    refuses(STR("a = 1\n\nnonsense\n"), "x.conf:3: expected name = value");
    refuses(STR(" = 1\n"), "x.conf:1: no name before '='");
    refuses(STR("[open\n"), "x.conf:1: write a section as [name], alone on its line");
    refuses(STR("["), "x.conf:1: write a section as [name], alone on its line");
    refuses(STR("[a] b = c\n"), "x.conf:1: write a section as [name], alone on its line");
    refuses(STR("[]\n"), "x.conf:1: the section has no name");
    refuses(STR("[[a]]\n"), "x.conf:1: the section's name contains a bracket");
    refuses(STR("# fine\r\na\0b = 1\n"), "x.conf:2: the line contains a NUL byte");
    refuses(STR("ok = 1\nbad = 2\nok2 = 3"), "x.conf:2: no such thing");
}

static void duplicate_name_in_a_section_is_refused(void **state)
{
    (void)state;
    refuses(STR("[s]\na = 1\na = 2\n"), "x.conf:3: a is set twice in this section");
    refuses(STR("[s]\na = 1\n[t]\nb = 1\n[ s ]\na = 2\n"),
            "x.conf:6: a is set twice in this section");
    reads(STR("a=1\n[s]\na=2\n[t]\na=3\nA=4\n"), "|a|1;[s]s|a|2;[t]t|a|3;t|A|4;");
}

static void any_number_of_lines_of_any_length_is_read(void **state)
{
    (void)state;
    struct buf text, want;
    buf_init(&text, 1 << 20);
    buf_init(&want, 1 << 20);
    for (int i = 0; i < 1000; i++) {
        buf_addf(&text, "name%d = %0*d\n", i, i % 500 + 1, i);
        buf_addf(&want, "|name%d|%0*d;", i, i % 500 + 1, i);
    }
    reads((struct str){text.p, text.n}, buf_cstr(&want));
    buf_release(&text);
    buf_release(&want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sections_and_settings_are_read_in_order),
        cmocka_unit_test(white_space_is_trimmed_and_collapsed_in_section_names),
        cmocka_unit_test(comments_may_start_a_line_but_not_end_one),
        cmocka_unit_test(values_are_taken_literally),
        cmocka_unit_test(surrounding_quotes_are_removed_once),
        cmocka_unit_test(errors_name_file_and_line),
        cmocka_unit_test(duplicate_name_in_a_section_is_refused),
        cmocka_unit_test(any_number_of_lines_of_any_length_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
