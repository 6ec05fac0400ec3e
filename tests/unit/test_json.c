#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/json.h"

static struct json parsed(const char *text)
{
    struct json v;
    const char *why;
    size_t at;
    if (json_parse(str_of(text), &v, &why, &at) != 0)
        fail_msg("%s: %s at byte %zu", text, why, at);
    return v;
}

static void refused(struct str text, const char *reason, size_t where)
{
    const char *why = NULL;
    size_t at = 9999;
    struct json v = {JSON_TRUE, {"kept", 4}};
    if (json_parse(text, &v, &why, &at) == 0)
        fail_msg("accepted: %.*s", (int)text.n, text.p);
    assert_string_equal(why, reason);
    assert_int_equal(at, where);
    assert_string_equal(v.raw.p, "kept");
    assert_int_equal(json_parse(text, NULL, NULL, NULL), -1);
}

#define REFUSED(literal, why, at) refused(STR(literal), why, at)
#define ACCEPTED(literal) assert_int_equal(json_parse(STR(literal), NULL, NULL, NULL), 0)

static void every_kind_of_value_is_accepted(void **state)
{
    (void)state;
    assert_int_equal(parsed("null").type, JSON_NULL);
    assert_int_equal(parsed("true").type, JSON_TRUE);
    assert_int_equal(parsed("false").type, JSON_FALSE);
    assert_int_equal(parsed("-0.5e+10").type, JSON_NUMBER);
    assert_int_equal(parsed("\"\"").type, JSON_STRING);
    assert_int_equal(parsed("[]").type, JSON_ARRAY);
    assert_int_equal(parsed("{ }").type, JSON_OBJECT);
    ACCEPTED("{\"a\":[1,2,{\"b\":[]},[[]]],\"\":{}}");
    ACCEPTED("[0,-0,0.0,1E5,1e-5,123456789012345678901234567890]");
    ACCEPTED("\"\\u0000\\uD800\\/\\b\\f\\n\\r\\t\\\"\\\\\"");
    ACCEPTED("\"\x7f \xc2\x80 \xdf\xbf \xe0\xa0\x80 \xed\x9f\xbf \xee\x80\x80 \xf0\x90\x80\x80 "
             "\xf4\x8f\xbf\xbf\"");
}

static void value_excludes_surrounding_white_space(void **state)
{
    (void)state;
    struct json v = parsed(" \r\n\t{\"a\" : 1 } \n");
    assert_true(str_is(v.raw, "{\"a\" : 1 }"));
}

static void anything_but_one_value_is_refused(void **state)
{
    (void)state;
    REFUSED("", "unexpected end", 0);
    REFUSED("  ", "unexpected end", 2);
    refused((struct str){NULL, 0}, "unexpected end", 0);
    REFUSED("1 2", "unexpected '2'", 2);
    REFUSED("{}x", "unexpected 'x'", 2);
    REFUSED("nul", "unexpected end", 3);
    REFUSED("nulx", "unexpected 'x'", 3);
    REFUSED("True", "unexpected 'T'", 0);
    REFUSED("truee", "unexpected 'e'", 4);
    REFUSED("NaN", "unexpected 'N'", 0);
    REFUSED("'a'", "unexpected '''", 0);
    REFUSED("\"a\"\0", "unexpected control character", 3);
    REFUSED("\xef\xbb\xbf{}", "unexpected character", 0);
    REFUSED("\xff", "invalid UTF-8", 0);
    REFUSED("1\v", "unexpected control character", 1);
    REFUSED("// c\n1", "unexpected '/'", 0);
}

static void bad_numbers_are_refused(void **state)
{
    (void)state;
    REFUSED("01", "leading zero", 0);
    REFUSED("-01", "leading zero", 1);
    REFUSED("-", "unexpected end", 1);
    REFUSED("-x", "unexpected 'x'", 1);
    REFUSED("+1", "unexpected '+'", 0);
    REFUSED(".5", "unexpected '.'", 0);
    REFUSED("1.", "unexpected end", 2);
    REFUSED("1.e5", "unexpected 'e'", 2);
    REFUSED("1e", "unexpected end", 2);
    REFUSED("1e+", "unexpected end", 3);
    REFUSED("0x10", "unexpected 'x'", 1);
    REFUSED("-Infinity", "unexpected 'I'", 1);
}

static void bad_brackets_are_refused(void **state)
{
    (void)state;
    REFUSED("[", "unexpected end", 1);
    REFUSED("[1", "unexpected end", 2);
    REFUSED("[1,]", "unexpected ']'", 3);
    REFUSED("[,1]", "unexpected ','", 1);
    REFUSED("[1}", "unexpected '}'", 2);
    REFUSED("[1 2]", "unexpected '2'", 3);
    REFUSED("{\"a\":1]", "unexpected ']'", 6);
    REFUSED("{\"a\":1,}", "unexpected '}'", 7);
    REFUSED("{\"a\"}", "unexpected '}'", 4);
    REFUSED("{\"a\":}", "unexpected '}'", 5);
    REFUSED("{a:1}", "unexpected 'a'", 1);
    REFUSED("{1:1}", "unexpected '1'", 1);
    REFUSED("{\"a\" 1}", "unexpected '1'", 5);
    REFUSED("{\"a\":1 \"b\":2}", "unexpected '\"'", 7);
    REFUSED("]", "unexpected ']'", 0);
    REFUSED("[[1],[2}]", "unexpected '}'", 7);
}

static void bad_strings_are_refused(void **state)
{
    (void)state;
    REFUSED("\"abc", "unfinished string", 4);
    REFUSED("\"abcdefgh", "unfinished string", 9);
    REFUSED("\"\\\"", "unfinished string", 3);
    REFUSED("\"a\nb\"", "control character in a string", 2);
    REFUSED("\"a\0b\"", "control character in a string", 2);
    REFUSED("\"0123456789\x1f\"", "control character in a string", 11);
    REFUSED("\"\\x41\"", "invalid escape", 1);
    REFUSED("\"\\\0\"", "invalid escape", 1);
    REFUSED("\"\\u12g4\"", "invalid escape", 1);
    REFUSED("\"\\u12\"", "invalid escape", 1);
    REFUSED("\"\\", "invalid escape", 1);
    REFUSED("{\"\\q\":1}", "invalid escape", 2);
}

static void lone_surrogate_bytes_are_refused(void **state)
{
    (void)state;
    REFUSED("\"\xed\xa0\x80\"", "invalid UTF-8", 1);
    REFUSED("\"\xed\xbf\xbf\"", "invalid UTF-8", 1);
}

static void overlong_truncated_and_too_large_utf8_is_refused(void **state)
{
    (void)state;
    REFUSED("\"\xc0\x80\"", "invalid UTF-8", 1);
    REFUSED("\"\xc1\xbf\"", "invalid UTF-8", 1);
    REFUSED("\"\xe0\x9f\xbf\"", "invalid UTF-8", 1);
    REFUSED("\"\xf0\x8f\xbf\xbf\"", "invalid UTF-8", 1);
    REFUSED("\"\xf4\x90\x80\x80\"", "invalid UTF-8", 1);
    REFUSED("\"\xf5\x80\x80\x80\"", "invalid UTF-8", 1);
    REFUSED("\"\x80\"", "invalid UTF-8", 1);
    REFUSED("\"abcdefghij\xe2\x82\"", "invalid UTF-8", 11);
    REFUSED("\"\xc3", "invalid UTF-8", 1);
}

/* The fast loop reads eight bytes at a time, so a special byte must be found at every offset, next
 * to any neighbour. */
static void special_byte_is_found_at_every_offset(void **state)
{
    (void)state;
    static const unsigned char fillers[] = {' ', '!', '#', '[', ']', 'a', 0x7F};
    for (size_t f = 0; f < sizeof fillers; f++) {
        for (size_t at = 1; at < 30; at++) {
            char text[32];
            memset(text, fillers[f], sizeof text);
            text[0] = '"';
            text[31] = '"';
            assert_int_equal(json_parse((struct str){text, 32}, NULL, NULL, NULL), 0);
            text[at] = 0x1F;
            refused((struct str){text, 32}, "control character in a string", at);
            text[at] = (char)0x80;
            refused((struct str){text, 32}, "invalid UTF-8", at);
            text[at] = '\\';
            text[at + 1] = 'q';
            refused((struct str){text, 32}, "invalid escape", at);
        }
    }
}

static void nesting_is_limited_to_256_levels(void **state)
{
    (void)state;
    char text[2 * JSON_MAX_DEPTH + 2];
    memset(text, '[', JSON_MAX_DEPTH);
    memset(text + JSON_MAX_DEPTH, ']', JSON_MAX_DEPTH);
    assert_int_equal(json_parse((struct str){text, 2 * JSON_MAX_DEPTH}, NULL, NULL, NULL), 0);
    memset(text, '[', JSON_MAX_DEPTH + 1);
    memset(text + JSON_MAX_DEPTH + 1, ']', JSON_MAX_DEPTH + 1);
    refused((struct str){text, sizeof text}, "nested too deeply", JSON_MAX_DEPTH);
}

static void each_bracket_is_remembered_at_any_depth(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 4096);
    for (int i = 0; i < 120; i++)
        buf_adds(&b, "[{\"a\":");
    buf_adds(&b, "1");
    for (int i = 0; i < 120; i++)
        buf_adds(&b, "}]");
    assert_int_equal(json_parse((struct str){b.p, b.n}, NULL, NULL, NULL), 0);
    b.p[b.n - 100] = b.p[b.n - 100] == ']' ? '}' : ']';
    assert_int_equal(json_parse((struct str){b.p, b.n}, NULL, NULL, NULL), -1);
    buf_release(&b);
}

static void get_finds_the_last_of_repeated_names(void **state)
{
    (void)state;
    struct json v, o = parsed("{\"a\":1, \"b\" : {\"a\":2}, \"a\":[3 , 4], \"c\":\"}\\\"{\"}");
    assert_true(json_get(o, STR("a"), &v));
    assert_true(str_is(v.raw, "[3 , 4]"));
    assert_true(json_get(o, STR("b"), &v));
    assert_true(str_is(v.raw, "{\"a\":2}"));
    assert_true(json_get(o, STR("c"), &v));
    assert_true(str_is(v.raw, "\"}\\\"{\""));
    assert_true(json_get(o, STR("c"), NULL));
    assert_false(json_get(o, STR("d"), &v));
    assert_false(json_get(o, STR(""), &v));
    assert_false(json_get(parsed("[1]"), STR("a"), &v));
    assert_false(json_get(parsed("{}"), STR("a"), &v));
}

static void get_compares_names_after_unescaping(void **state)
{
    (void)state;
    struct json v, o = parsed("{\"\\u0061b\":1,\"\\ud83d\\ude00\":2,\"x\\n\":3,\"\\u0000\":4}");
    assert_true(json_get(o, STR("ab"), &v) && str_is(v.raw, "1"));
    assert_true(json_get(o, STR("\xf0\x9f\x98\x80"), &v) && str_is(v.raw, "2"));
    assert_true(json_get(o, STR("x\n"), &v) && str_is(v.raw, "3"));
    assert_true(json_get(o, STR("\0"), &v) && str_is(v.raw, "4"));
    assert_false(json_get(o, STR("a"), &v));
    assert_false(json_get(o, STR("abc"), &v));
}

static void each_walks_members_and_elements_in_order(void **state)
{
    (void)state;
    size_t it = 0;
    struct str name;
    struct json v, o = parsed("{ \"a\" : true , \"b\":-1.5E3,\"c\":[] }");
    assert_true(json_each(o, &it, &name, &v) && str_is(name, "\"a\"") && str_is(v.raw, "true"));
    assert_true(json_each(o, &it, &name, &v) && str_is(name, "\"b\"") && str_is(v.raw, "-1.5E3"));
    assert_true(json_each(o, &it, &name, &v) && str_is(name, "\"c\"") && str_is(v.raw, "[]"));
    assert_false(json_each(o, &it, &name, &v));
    it = 0;
    o = parsed("[ \"]\" ,{\"k\":[1,2]}, null ]");
    assert_true(json_each(o, &it, &name, &v) && !name.p && str_is(v.raw, "\"]\""));
    assert_true(json_each(o, &it, NULL, &v) && str_is(v.raw, "{\"k\":[1,2]}"));
    assert_true(json_each(o, &it, &name, &v) && v.type == JSON_NULL);
    assert_false(json_each(o, &it, &name, &v));
    it = 0;
    assert_false(json_each(parsed(" [ ] "), &it, &name, &v));
    assert_false(json_each(parsed("\"s\""), &it, &name, &v));
}

static void unescapes(const char *raw, struct str want)
{
    struct buf b;
    buf_init(&b, 100);
    json_unescape(parsed(raw).raw, &b);
    assert_false(b.failed);
    assert_int_equal(b.n, want.n);
    if (want.n)
        assert_memory_equal(b.p, want.p, want.n);
    buf_release(&b);
}

static void unescape_undoes_every_escape(void **state)
{
    (void)state;
    unescapes("\"\"", STR(""));
    unescapes("\"plain\"", STR("plain"));
    unescapes("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", STR("\"\\/\b\f\n\r\t"));
    unescapes("\"a\\u0000b\"", STR("a\0b"));
    unescapes("\"\\u00e4\\u20AC\\ud83d\\ude00\"", STR("\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"));
    unescapes("\"\\udbff\\udfff\"", STR("\xf4\x8f\xbf\xbf"));
}

static void unescape_replaces_lone_surrogates(void **state)
{
    (void)state;
    unescapes("\"\\ud800\"", STR("\xef\xbf\xbd"));
    unescapes("\"\\udc00x\"", STR("\xef\xbf\xbdx"));
    unescapes("\"\\ud800\\u0041\"", STR("\xef\xbf\xbd\101"));
    unescapes("\"\\ud800\\ud83d\\ude00\"", STR("\xef\xbf\xbd\xf0\x9f\x98\x80"));
    unescapes("\"\\ud800\\n\"", STR("\xef\xbf\xbd\n"));
}

static void reads_an_integer(const char *text, int64_t want)
{
    int64_t got = 77;
    if (!json_int(parsed(text), &got))
        fail_msg("%s is an integer", text);
    assert_true(got == want);
}

static void int_reads_integers_in_any_notation(void **state)
{
    (void)state;
    reads_an_integer("0", 0);
    reads_an_integer("-0", 0);
    reads_an_integer("0e5", 0);
    reads_an_integer("42", 42);
    reads_an_integer("-42", -42);
    reads_an_integer("1.0", 1);
    reads_an_integer("1.5e1", 15);
    reads_an_integer("1200e-2", 12);
    reads_an_integer("0.0012e4", 12);
    reads_an_integer("9223372036854775807", INT64_MAX);
    reads_an_integer("-9223372036854775808", INT64_MIN);
}

static void int_refuses_non_integers_and_overflow(void **state)
{
    (void)state;
    static const char *const no[] = {"1.5",
                                     "0.1",
                                     "1e-1",
                                     "9223372036854775808",
                                     "-9223372036854775809",
                                     "1e19",
                                     "1e99999999999999999999",
                                     "1e-99999999999999999999",
                                     "\"1\"",
                                     "true",
                                     "[1]"};
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) {
        int64_t got = 77;
        if (json_int(parsed(no[i]), &got))
            fail_msg("%s is not an integer", no[i]);
        assert_int_equal(got, 77);
    }
}

static bool same(const char *a, const char *b)
{
    bool r = json_equal(parsed(a), parsed(b));
    assert_int_equal(r, json_equal(parsed(b), parsed(a)));
    return r;
}

static void equal_compares_strings_after_unescaping(void **state)
{
    (void)state;
    assert_true(same("\"a\"", "\"a\""));
    assert_true(same("\"\\u0061\\n\"", "\"a\\u000A\""));
    assert_true(same("\"\\ud83d\\ude00\"", "\"\xf0\x9f\x98\x80\""));
    assert_false(same("\"\\u0061\"", "\"ab\""));
    assert_false(same("\"a\"", "\"A\""));
    assert_false(same("\"\\n\"", "\"\""));
}

static void equal_compares_numbers_by_value(void **state)
{
    (void)state;
    assert_true(same("1", "1.0"));
    assert_true(same("100", "1e2"));
    assert_true(same("0.001", "1e-3"));
    assert_true(same("-0", "0.0e7"));
    assert_true(same("12.50", "125e-1"));
    assert_true(same("0.10e1", "1"));
    assert_false(same("1", "-1"));
    assert_false(same("10", "1"));
    assert_false(same("12345678901234567890", "12345678901234567891"));
    assert_false(same("0.1", "0.10000000000000001"));
}

static void equal_never_crosses_types(void **state)
{
    (void)state;
    assert_false(same("1", "\"1\""));
    assert_false(same("true", "false"));
    assert_false(same("null", "false"));
    assert_true(same("null", "null"));
    assert_true(same("[1,2]", " [1,2] "));
    assert_false(same("[1,2]", "[1, 2]"));
}

static void quotes(struct str s, const char *want)
{
    struct buf b;
    buf_init(&b, 1000);
    json_quote(&b, s);
    assert_string_equal(buf_cstr(&b), want);
    assert_int_equal(json_parse((struct str){b.p, b.n}, NULL, NULL, NULL), 0);
    buf_release(&b);
}

static void quote_escapes_only_what_must_be_escaped(void **state)
{
    (void)state;
    quotes(STR(""), "\"\"");
    quotes((struct str){NULL, 0}, "\"\"");
    quotes(STR("order.created/1"), "\"order.created/1\"");
    quotes(STR("a\"b\\c"), "\"a\\\"b\\\\c\"");
    quotes(STR("\b\f\n\r\t"), "\"\\b\\f\\n\\r\\t\"");
    quotes(STR("x\0\x01\x1f\x7f"), "\"x\\u0000\\u0001\\u001f\x7f\"");
    quotes(STR("\xc3\xa4 0123456789 \xe2\x82\xac\""), "\"\xc3\xa4 0123456789 \xe2\x82\xac\\\"\"");
}

static void quote_undoes_unescape_at_every_offset(void **state)
{
    (void)state;
    for (size_t at = 0; at < 20; at++) {
        for (int c = 0; c < 0x80; c++) {
            char text[20];
            memset(text, 'x', sizeof text);
            text[at] = (char)c;
            struct buf quoted, back;
            buf_init(&quoted, 200);
            buf_init(&back, 200);
            json_quote(&quoted, (struct str){text, sizeof text});
            json_unescape((struct str){quoted.p, quoted.n}, &back);
            assert_int_equal(back.n, sizeof text);
            assert_memory_equal(back.p, text, sizeof text);
            buf_release(&quoted);
            buf_release(&back);
        }
    }
}

static void quote_leaves_the_buffer_intact_at_its_ceiling(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 5);
    json_quote(&b, STR("abc"));
    assert_string_equal(buf_cstr(&b), "\"abc\"");
    buf_clear(&b);
    json_quote(&b, STR("abcd"));
    assert_true(b.failed);
    buf_release(&b);
}

static void flat_only_turns_line_breaks_into_spaces(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 100);
    json_flat(&b, STR("{\n\"a\":\r\n\t\"\\n\" }\n"));
    assert_string_equal(buf_cstr(&b), "{ \"a\":  \t\"\\n\" } ");
    buf_clear(&b);
    json_flat(&b, STR("[1, 2]"));
    assert_string_equal(buf_cstr(&b), "[1, 2]");
    json_flat(&b, STR(""));
    assert_int_equal(b.n, 6);
    buf_release(&b);
}

static void utf8_valid_reports_the_first_bad_byte(void **state)
{
    (void)state;
    size_t at = 77;
    assert_true(utf8_valid(STR("a\0\xc3\xa4\xf0\x9f\x98\x80"), &at));
    assert_true(utf8_valid((struct str){NULL, 0}, &at));
    assert_int_equal(at, 77);
    assert_false(utf8_valid(STR("ab\xc3\xa4\xed\xa0\x80"), &at));
    assert_int_equal(at, 4);
    assert_false(utf8_valid(STR("abc\xe2\x82"), &at));
    assert_int_equal(at, 3);
    assert_false(utf8_valid(STR("\xfe"), NULL));
}

static void utf8_valid_sees_every_byte_of_long_text(void **state)
{
    (void)state;
    char text[40];
    for (size_t n = 1; n <= sizeof text; n++) {
        for (size_t bad = 0; bad < n; bad++) {
            size_t at = 0;
            memset(text, 'x', sizeof text);
            assert_true(utf8_valid((struct str){text, n}, NULL));
            text[bad] = '\x80';
            assert_false(utf8_valid((struct str){text, n}, &at));
            assert_int_equal(at, bad);
            if (bad == 0)
                continue;
            text[bad - 1] = '\xc3'; /* makes it the second byte of a character */
            assert_true(utf8_valid((struct str){text, n}, NULL));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_value_is_accepted),
        cmocka_unit_test(value_excludes_surrounding_white_space),
        cmocka_unit_test(anything_but_one_value_is_refused),
        cmocka_unit_test(bad_numbers_are_refused),
        cmocka_unit_test(bad_brackets_are_refused),
        cmocka_unit_test(bad_strings_are_refused),
        cmocka_unit_test(lone_surrogate_bytes_are_refused),
        cmocka_unit_test(overlong_truncated_and_too_large_utf8_is_refused),
        cmocka_unit_test(special_byte_is_found_at_every_offset),
        cmocka_unit_test(nesting_is_limited_to_256_levels),
        cmocka_unit_test(each_bracket_is_remembered_at_any_depth),
        cmocka_unit_test(get_finds_the_last_of_repeated_names),
        cmocka_unit_test(get_compares_names_after_unescaping),
        cmocka_unit_test(each_walks_members_and_elements_in_order),
        cmocka_unit_test(unescape_undoes_every_escape),
        cmocka_unit_test(unescape_replaces_lone_surrogates),
        cmocka_unit_test(int_reads_integers_in_any_notation),
        cmocka_unit_test(int_refuses_non_integers_and_overflow),
        cmocka_unit_test(equal_compares_strings_after_unescaping),
        cmocka_unit_test(equal_compares_numbers_by_value),
        cmocka_unit_test(equal_never_crosses_types),
        cmocka_unit_test(quote_escapes_only_what_must_be_escaped),
        cmocka_unit_test(quote_undoes_unescape_at_every_offset),
        cmocka_unit_test(quote_leaves_the_buffer_intact_at_its_ceiling),
        cmocka_unit_test(flat_only_turns_line_breaks_into_spaces),
        cmocka_unit_test(utf8_valid_reports_the_first_bad_byte),
        cmocka_unit_test(utf8_valid_sees_every_byte_of_long_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
