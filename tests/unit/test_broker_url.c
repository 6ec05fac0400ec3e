#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/str.h"
#include "base/url.h"

#define ENV "OUTBOX_TEST_PASSWORD"

struct target {
    int64_t number;
};

static const struct option_def table[] = {
    {"number", "N", NULL, "a number", option_long, .at = offsetof(struct target, number)},
    {NULL},
};

static struct url u;
static struct target target;

static void reads(const char *text)
{
    struct error err = {0};
    url_release(&u);
    if (url_parse(text, "9092", ENV, table, &target, &u, &err) != 0)
        fail_msg("%s: %s", text, err.text);
}

static void host(size_t i, const char *name, const char *port)
{
    assert_true(i < u.n_hosts);
    assert_string_equal(u.hosts[i].host, name);
    assert_string_equal(u.hosts[i].port, port);
}

static void hosts_ports_path_and_parameters_are_read(void **state)
{
    (void)state;
    reads("kafka://ann@a,b:1,[::1]:2,[fe80::1]/some%2fpath/here?number=7&ca=/x.pem");
    assert_string_equal(u.scheme, "kafka");
    assert_string_equal(u.user, "ann");
    assert_int_equal(u.n_hosts, 4);
    host(0, "a", "9092");
    host(1, "b", "1");
    host(2, "::1", "2");
    host(3, "fe80::1", "9092");
    assert_string_equal(u.path, "some/path/here");
    assert_string_equal(u.ca, "/x.pem");
    assert_int_equal(target.number, 7);
    assert_string_equal(u.label, "kafka at a:9092 and 3 others");
}

static void minimal_url_is_enough(void **state)
{
    (void)state;
    reads("nats://");
    host(0, "127.0.0.1", "9092");
    assert_string_equal(u.path, "");
    assert_null(u.user);
    assert_string_equal(u.label, "nats at 127.0.0.1:9092");
    reads("nats://a,b?user=joe");
    assert_string_equal(u.label, "nats at a:9092 and 1 other");
    assert_string_equal(u.user, "joe");
}

static void password_in_the_url_is_refused_and_never_echoed(void **state)
{
    (void)state;
    static const char *const bad[] = {"amqp://joe:hunter2@a/", "amqp://a/?password=hunter2",
                                      "amqp://a,b/?number=1&pass%77ord=hunter2"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct error err = {0};
        url_release(&u);
        assert_int_equal(url_parse(bad[i], "1", ENV, table, &target, &u, &err), -1);
        assert_int_equal(err.code, ERR_CONFIG);
        assert_non_null(strstr(err.text, ENV));
        assert_null(strstr(err.text, "hunter2"));
    }
}

static void rest_of_an_unescaped_password_is_never_echoed(void **state)
{
    (void)state;
    static const char *const bad[] = {"amqp://joe:1/2?hunter2=x@a/",
                                      "amqp://joe:1/2?number=hunter2@a"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct error err = {0};
        url_release(&u);
        assert_int_equal(url_parse(bad[i], "1", ENV, table, &target, &u, &err), -1);
        assert_non_null(strstr(err.text, "%40"));
        assert_null(strstr(err.text, "hunter2"));
    }
}

static void password_comes_from_the_environment(void **state)
{
    (void)state;
    struct error err = {0};
    setenv(ENV, "from-env", 1);
    reads("amqp://a/");
    unsetenv(ENV);
    char *password = url_password(u.password_file, u.password, &err);
    assert_string_equal(password, "from-env");
    free(password);
    reads("amqp://a/");
    assert_null(url_password(u.password_file, u.password, &err));
    assert_int_equal(err.code, 0);
    reads("amqp://a/?password-file=/nonexistent/file");
    assert_null(url_password(u.password_file, u.password, &err));
    assert_int_equal(err.code, ERR_UNAVAILABLE);
}

static void bad_urls_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "kafka",
        "kafka:a",
        "kafka:/a",
        "kafka://a,",
        "kafka://,a",
        "kafka://a,,b",
        "kafka://a:0",
        "kafka://a:",
        "kafka://a:b",
        "kafka://a/%",
        "kafka://a/%0a",
        "kafka://a?x=1",
        "kafka://a?number",
        "kafka://a?number=x",
        "kafka://a?cert=x",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct error err = {0};
        url_release(&u);
        if (url_parse(bad[i], "1", ENV, table, &target, &u, &err) == 0)
            fail_msg("%s", bad[i]);
        assert_int_equal(err.code, ERR_CONFIG);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts_ports_path_and_parameters_are_read),
        cmocka_unit_test(minimal_url_is_enough),
        cmocka_unit_test(password_in_the_url_is_refused_and_never_echoed),
        cmocka_unit_test(rest_of_an_unescaped_password_is_never_echoed),
        cmocka_unit_test(password_comes_from_the_environment),
        cmocka_unit_test(bad_urls_are_refused),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    url_release(&u);
    return failed;
}
