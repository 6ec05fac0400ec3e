#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/text.h"

static int64_t duration(const char *s)
{
    struct error err;
    int64_t ms = -1;
    if (text_duration(s, &ms, &err) != 0)
        fail_msg("%s", err.text);
    return ms;
}

static void durations_and_their_sums_are_read(void **state)
{
    (void)state;
    assert_int_equal(duration("0"), 0);
    assert_int_equal(duration("0s"), 0);
    assert_int_equal(duration("250ms"), 250);
    assert_int_equal(duration("30s"), 30000);
    assert_int_equal(duration("5m"), 300000);
    assert_int_equal(duration("168h"), 604800000);
    assert_int_equal(duration("7d"), 604800000);
    assert_int_equal(duration("1h30m"), 5400000);
    assert_int_equal(duration("1d2h3m4s5ms"), 93784005);
    assert_true(duration("36525d") == INT64_C(3155760000000));
}

static void duration_without_a_unit_is_refused_and_the_units_are_listed(void **state)
{
    (void)state;
    struct error err;
    int64_t ms = 7;
    assert_int_equal(text_duration("30", &ms, &err), -1);
    assert_int_equal(err.code, ERR_CONFIG);
    assert_string_equal(err.text, "\"30\" has no unit: write ms, s, m, h or d after the number");
    assert_int_equal(text_duration("1h30", &ms, &err), -1);
    assert_int_equal(ms, 7);
}

static void invalid_durations_are_refused(void **state)
{
    (void)state;
    static const char *const no[] = {"",    " ",  "s",   "-1s", "+1s",  "1.5h", "5 m",
                                     "5m ", "1x", "1hh", "1S",  "1sec", "00"};
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) {
        int64_t ms = 7;
        struct error err = {.code = 0};
        if (text_duration(no[i], &ms, &err) == 0)
            fail_msg("accepted \"%s\"", no[i]);
        assert_int_equal(err.code, ERR_CONFIG);
        assert_int_equal(ms, 7);
        assert_int_equal(text_duration(no[i], &ms, NULL), -1);
    }
}

static void durations_over_a_hundred_years_are_refused(void **state)
{
    (void)state;
    static const char *const no[] = {"36526d", "36525d1ms", "99999999999999999999ms",
                                     "9223372036854775807d", "9223372036854775807ms1ms"};
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) {
        int64_t ms;
        struct error err;
        if (text_duration(no[i], &ms, &err) == 0)
            fail_msg("accepted \"%s\"", no[i]);
        assert_non_null(strstr(err.text, "is more than 100 years"));
    }
}

static void shows_a_duration(int64_t ms, const char *want)
{
    char out[32];
    text_duration_show(ms, out);
    assert_string_equal(out, want);
    if (ms >= 0 && ms < INT64_C(3155760000000))
        assert_true(duration(out) == ms);
}

static void durations_round_trip(void **state)
{
    (void)state;
    shows_a_duration(0, "0s");
    shows_a_duration(1, "1ms");
    shows_a_duration(250, "250ms");
    shows_a_duration(30000, "30s");
    shows_a_duration(5400000, "1h30m");
    shows_a_duration(604800000, "7d");
    shows_a_duration(1500, "1s500ms");
    shows_a_duration(-1500, "-1s500ms");
    shows_a_duration(INT64_MAX, "106751991167d7h12m55s807ms");
    shows_a_duration(INT64_MIN, "-106751991167d7h12m55s808ms");
}

static int64_t size(const char *s)
{
    struct error err;
    int64_t n = -1;
    if (text_size(s, &n, &err) != 0)
        fail_msg("%s", err.text);
    return n;
}

static void sizes_are_read_in_powers_of_1024(void **state)
{
    (void)state;
    assert_int_equal(size("0"), 0);
    assert_int_equal(size("512"), 512);
    assert_int_equal(size("64KiB"), 65536);
    assert_int_equal(size("64K"), 65536);
    assert_int_equal(size("64kB"), 65536);
    assert_int_equal(size("64KB"), 65536);
    assert_int_equal(size("1MiB"), 1 << 20);
    assert_int_equal(size("1M"), 1 << 20);
    assert_int_equal(size("1GiB"), 1 << 30);
    assert_int_equal(size("2G"), INT64_C(2) << 30);
}

static void bad_sizes_are_refused(void **state)
{
    (void)state;
    static const char *const no[] = {"",
                                     "K",
                                     "-1",
                                     "1.5M",
                                     "1 M",
                                     "1TiB",
                                     "1Mi",
                                     "1MiBs",
                                     "99999999999999999999",
                                     "9223372036854775807G"};
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) {
        int64_t n = 7;
        struct error err = {.code = 0};
        if (text_size(no[i], &n, &err) == 0)
            fail_msg("accepted \"%s\"", no[i]);
        assert_int_equal(err.code, ERR_CONFIG);
        assert_int_equal(n, 7);
    }
}

static void sizes_are_shown_in_the_largest_exact_unit(void **state)
{
    (void)state;
    static const struct {
        int64_t n;
        const char *want;
    } cases[] = {{0, "0"},          {1500, "1500"},
                 {1024, "1KiB"},    {1536, "1536"},
                 {1 << 20, "1MiB"}, {3 << 19, "1536KiB"},
                 {1 << 30, "1GiB"}, {INT64_MAX, "9223372036854775807"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char out[32];
        text_size_show(cases[i].n, out);
        assert_string_equal(out, cases[i].want);
        if (cases[i].n < INT64_MAX)
            assert_true(size(out) == cases[i].n);
    }
}

static void whole_numbers_within_bounds_are_read(void **state)
{
    (void)state;
    int64_t n = 0;
    assert_int_equal(text_int("42", 0, 100, &n, NULL), 0);
    assert_int_equal(n, 42);
    assert_int_equal(text_int("-5", -5, 5, &n, NULL), 0);
    assert_int_equal(n, -5);
    assert_int_equal(text_int("-9223372036854775808", INT64_MIN, INT64_MAX, &n, NULL), 0);
    assert_true(n == INT64_MIN);
    assert_int_equal(text_int("9223372036854775807", INT64_MIN, INT64_MAX, &n, NULL), 0);
    assert_true(n == INT64_MAX);
}

static void numbers_out_of_bounds_are_refused(void **state)
{
    (void)state;
    struct error err;
    int64_t n = 7;
    assert_int_equal(text_int("0", 1, 5, &n, &err), -1);
    assert_string_equal(err.text, "0 is out of range: it must be from 1 to 5");
    assert_int_equal(text_int("6", 1, 5, &n, &err), -1);
    assert_int_equal(text_int("9223372036854775808", INT64_MIN, INT64_MAX, &n, &err), -1);
    assert_int_equal(text_int("99999999999999999999999", INT64_MIN, INT64_MAX, &n, &err), -1);
    assert_non_null(strstr(err.text, "out of range"));
    assert_int_equal(n, 7);
}

static void only_whole_numbers_are_accepted(void **state)
{
    (void)state;
    static const char *const no[] = {"",   "-",   "x",    "1x",  " 1", "1 ",
                                     "+1", "1.0", "0x10", "1e3", "--1"};
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) {
        int64_t n;
        struct error err;
        if (text_int(no[i], INT64_MIN, INT64_MAX, &n, &err) == 0)
            fail_msg("accepted \"%s\"", no[i]);
        assert_non_null(strstr(err.text, "is not a whole number"));
    }
}

static void yes_and_no_are_read_in_all_their_forms(void **state)
{
    (void)state;
    static const char *const yes[] = {"yes", "true", "on", "1", "YES"}, *const no[] = {
                                                                            "no", "false", "off",
                                                                            "0", "Off"};
    bool b;
    for (size_t i = 0; i < 5; i++) {
        b = false;
        assert_int_equal(text_bool(yes[i], &b, NULL), 0);
        assert_true(b);
        assert_int_equal(text_bool(no[i], &b, NULL), 0);
        assert_false(b);
    }
    struct error err;
    assert_int_equal(text_bool("maybe", &b, &err), -1);
    assert_string_equal(err.text, "\"maybe\" is neither yes nor no");
    assert_int_equal(text_bool("", &b, &err), -1);
}

static void nearest_finds_the_intended_word(void **state)
{
    (void)state;
    static const char *const names[] = {
        "type", "payload", "aggregate_id", "aggregate_type", "lanes", "lease", NULL};
    assert_string_equal(text_nearest("typ", names), "type");
    assert_string_equal(text_nearest("tpye", names), "type");
    assert_string_equal(text_nearest("paylaod", names), "payload");
    assert_string_equal(text_nearest("agregate_id", names), "aggregate_id");
    assert_string_equal(text_nearest("lane", names), "lanes");
    assert_string_equal(text_nearest("leases", names), "lease");
    assert_string_equal(text_nearest("type", names), "type");
}

static void hint_suggests_the_nearest_word_or_lists_all_words(void **state)
{
    (void)state;
    static const char *const names[] = {"type", "payload", NULL};
    char out[TEXT_HINT];
    assert_string_equal(text_hint("typ", names, (struct text_hint){0}, out),
                        "; did you mean type?");
    assert_string_equal(text_hint("typ", names, (struct text_hint){"{", "}", "there are two"}, out),
                        "; did you mean {type}?");
    assert_string_equal(
        text_hint("colour", names, (struct text_hint){"{", "}", "there are two"}, out),
        "; there are two");
    assert_string_equal(text_hint("colour", names, (struct text_hint){"{", "}", NULL}, out), "");
}

static void nearest_never_guesses_a_distant_word(void **state)
{
    (void)state;
    static const char *const names[] = {"type", "payload", "id", "x", NULL}, *const none[] = {NULL};
    char lengthy[200];
    memset(lengthy, 't', sizeof lengthy - 1);
    lengthy[sizeof lengthy - 1] = '\0';
    assert_null(text_nearest("colour", names));
    assert_null(text_nearest("", names));
    assert_null(text_nearest("y", names));
    assert_null(text_nearest(lengthy, names));
    assert_null(text_nearest("type", none));
}

static void shows_time(int64_t ms, const char *want)
{
    char out[CLOCK_RFC3339_SIZE];
    assert_int_equal(clock_rfc3339(ms, out), strlen(want));
    assert_string_equal(out, want);
}

static void variable_names_have_letters_digits_and_underscores(void **state)
{
    (void)state;
    assert_true(text_is_variable(STR("SHOP_URL")));
    assert_true(text_is_variable(STR("_a9")));
    static const char *const others[] = {"", "9A", "A-B", "A B", "A=B", "\xc3\xa9"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_false(text_is_variable(str_of(others[i])));
}

static void rfc3339_knows_the_calendar(void **state)
{
    (void)state;
    shows_time(0, "1970-01-01T00:00:00.000Z");
    shows_time(-1, "1969-12-31T23:59:59.999Z");
    shows_time(INT64_C(951782400000), "2000-02-29T00:00:00.000Z");
    shows_time(INT64_C(951868799999), "2000-02-29T23:59:59.999Z");
    shows_time(INT64_C(951868800000), "2000-03-01T00:00:00.000Z");
    shows_time(INT64_C(1767323045678), "2026-01-02T03:04:05.678Z");
    shows_time(INT64_C(4107542400000), "2100-03-01T00:00:00.000Z");
    shows_time(INT64_C(4107542399999), "2100-02-28T23:59:59.999Z");
    shows_time(INT64_C(253402300799999), "9999-12-31T23:59:59.999Z");
    shows_time(INT64_C(-62135596800000), "0001-01-01T00:00:00.000Z");
}

static void rfc3339_fits_its_buffer_at_the_ends_of_time(void **state)
{
    (void)state;
    shows_time(INT64_MAX, "292278994-08-17T07:12:55.807Z");
    shows_time(INT64_MIN, "-292275055-05-16T16:47:04.192Z");
}

/* Compares every day of 400 years with gmtime. */
static void rfc3339_agrees_with_gmtime(void **state)
{
    (void)state;
    for (int64_t day = -80000; day < 80000; day++) {
        time_t t = (time_t)(day * 86400 + 45296);
        struct tm tm;
        char want[64];
        gmtime_r(&t, &tm);
        strftime(want, sizeof want, "%Y-%m-%dT%H:%M:%S.000Z", &tm);
        shows_time(t * 1000, want);
    }
}

static void system_clock_never_moves_backwards(void **state)
{
    (void)state;
    int64_t before = clock_mono(&clock_system), wall = clock_wall(&clock_system);
    assert_true(clock_mono(&clock_system) >= before);
    assert_true(wall > INT64_C(1700000000000));
    int64_t off = wall / 1000 - (int64_t)time(NULL);
    assert_true(off >= -1 && off <= 1);
}

static void cleans(const char *from, size_t n, const char *want)
{
    char out[64];
    size_t got = text_clean(out, sizeof out, from, n);
    assert_string_equal(out, want);
    assert_int_equal(got, strlen(want));
}
#define CLEANS(literal, want) cleans(literal, sizeof(literal) - 1, want)

static void cleaned_text_is_one_terminal_safe_line(void **state)
{
    (void)state;
    CLEANS("", "");
    CLEANS("plain \xc3\xab \xf0\x9f\x8e\x89", "plain \xc3\xab \xf0\x9f\x8e\x89");
    CLEANS(" \t two\nlines\r\n \n", "two lines");
    CLEANS("a\0b", "a b");
    CLEANS("\x1b[31mred\x7f", "[31mred");
    CLEANS("c1 \xc2\x9b"
           "31m",
           "c1 ?31m");
    CLEANS("\u200bhidden\ufeff", "?hidden?");
    CLEANS("turned \xe2\x80\xaegnp.exe \xe2\x81\xa6", "turned ?gnp.exe ?");
    CLEANS("bad \xff \xc3( \xed\xa0\x80 \xe2\x82", "bad ? ?( ??? ??");
    CLEANS("\xc2\xa0"
           "kept",
           "\xc2\xa0"
           "kept");
}

static void shows(const char *from, size_t n, const char *keep, const char *want)
{
    struct buf b;
    struct str s = {from, n};
    buf_init(&b, 256);
    text_show(&b, s, keep);
    assert_string_equal(buf_cstr(&b), want);
    assert_int_equal(text_shown(s, keep), strlen(want) == n && memcmp(from, want, n) == 0);
    buf_release(&b);
}
#define SHOWS(literal, want) shows(literal, sizeof(literal) - 1, "", want)

static void text_is_shown_literally_or_escaped(void **state)
{
    (void)state;
    SHOWS("", "");
    SHOWS("plain \\ ë 🎉 ", "plain \\ ë 🎉 ");
    SHOWS("a\0b\n\x1b[2J\x7f", "a\\u0000b\\u000a\\u001b[2J\\u007f");
    SHOWS("\xc2\x9b\u061c\u200b\u202egnp.exe\u2069", "\\u009b\\u061c\\u200b\\u202egnp.exe\\u2069");
    SHOWS("\U000e0001\U0010ffff", "\\udb40\\udc01\\udbff\\udfff");
    SHOWS("\xff \xc3( \xed\xa0\x80", "\\xff \\xc3( \\xed\\xa0\\x80");
    shows("a\tb\n", 4, "\n", "a\\u0009b\n");
}

static void cleaned_text_is_truncated_at_a_character_boundary(void **state)
{
    char out[8], same[] = "in\tplace\n";
    (void)state;
    assert_int_equal(text_clean(out, sizeof out, "12345678", 8), 7);
    assert_string_equal(out, "1234567");
    assert_int_equal(text_clean(out, sizeof out, "12345\xe2\x82\xac", 8), 5);
    assert_string_equal(out, "12345");
    text_clean(same, sizeof same, same, strlen(same));
    assert_string_equal(same, "in place");
    assert_int_equal(text_clean(out, 1, "x", 1), 0);
    assert_string_equal(out, "");
}

static void error_is_one_line_of_valid_utf8(void **state)
{
    (void)state;
    struct error err;
    err_set(&err, ERR_INVALID, "a\nb \xc3\xa9 \xed\xa0\x80 \xe0\x80\x80 \xff");
    assert_string_equal(err.text, "a b \xc3\xa9 ??? ??? ?");
    assert_true(text_plain(str_of(err.text)));

    /* cut in the middle of a character */
    char long_text[600];
    memset(long_text, 'x', sizeof long_text);
    long_text[sizeof err.text - 2] = '\xc3';
    long_text[sizeof err.text - 1] = '\xa9';
    long_text[sizeof long_text - 1] = '\0';
    err_set(&err, ERR_INVALID, "%s", long_text);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    assert_int_equal(err.text[sizeof err.text - 2], '?');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(durations_and_their_sums_are_read),
        cmocka_unit_test(duration_without_a_unit_is_refused_and_the_units_are_listed),
        cmocka_unit_test(invalid_durations_are_refused),
        cmocka_unit_test(durations_over_a_hundred_years_are_refused),
        cmocka_unit_test(durations_round_trip),
        cmocka_unit_test(sizes_are_read_in_powers_of_1024),
        cmocka_unit_test(bad_sizes_are_refused),
        cmocka_unit_test(sizes_are_shown_in_the_largest_exact_unit),
        cmocka_unit_test(whole_numbers_within_bounds_are_read),
        cmocka_unit_test(numbers_out_of_bounds_are_refused),
        cmocka_unit_test(only_whole_numbers_are_accepted),
        cmocka_unit_test(yes_and_no_are_read_in_all_their_forms),
        cmocka_unit_test(nearest_finds_the_intended_word),
        cmocka_unit_test(hint_suggests_the_nearest_word_or_lists_all_words),
        cmocka_unit_test(nearest_never_guesses_a_distant_word),
        cmocka_unit_test(cleaned_text_is_one_terminal_safe_line),
        cmocka_unit_test(text_is_shown_literally_or_escaped),
        cmocka_unit_test(cleaned_text_is_truncated_at_a_character_boundary),
        cmocka_unit_test(variable_names_have_letters_digits_and_underscores),
        cmocka_unit_test(rfc3339_knows_the_calendar),
        cmocka_unit_test(rfc3339_fits_its_buffer_at_the_ends_of_time),
        cmocka_unit_test(rfc3339_agrees_with_gmtime),
        cmocka_unit_test(system_clock_never_moves_backwards),
        cmocka_unit_test(error_is_one_line_of_valid_utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
