/* Access to a relay's HTTP server and its time limits. Connections are socket pairs, and the test
 * supplies the clock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "admin/access.h"
#include "admin/admin.h"
#include "admin/connections.h"
#include "base/ipnet.h"

#define TOKEN "0123456789abcdef0123456789abcdef"
#define OTHER "fedcba9876543210fedcba9876543210"
#define SECOND (1000 * MS_NS)

/* ---- tokens ---- */

static struct tokens *tokens_of(const char *words)
{
    struct tokens *t;
    struct error err;
    setenv("TEST_TOKENS", words, 1);
    if (access_tokens_load(NULL, "TEST_TOKENS", &t, &err) != 0)
        fail_msg("%s", err.text);
    return t;
}

static void only_a_whole_token_matches(void **state)
{
    static const char *const wrong[] = {"",
                                        "0",
                                        "0123456789abcdef",
                                        "0123456789abcdef0123456789abcde",
                                        TOKEN "0",
                                        TOKEN TOKEN,
                                        "1123456789abcdef0123456789abcdef",
                                        "0123456789abcdef0123456789abcdeF",
                                        "0123456789ABCDEF0123456789ABCDEF",
                                        OTHER};
    struct tokens *t = tokens_of(TOKEN);
    char longest[ACCESS_TOKEN_MAX + 2];
    (void)state;
    assert_true(access_token_matches(t, STR(TOKEN)));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (access_token_matches(t, str_of(wrong[i])))
            fail_msg("%s was accepted", wrong[i]);
    assert_false(access_token_matches(t, (struct str){TOKEN "\0\0\0", 35}));
    assert_false(access_token_matches(t, (struct str){NULL, 0}));
    access_tokens_free(t);

    memset(longest, 'x', sizeof longest);
    longest[ACCESS_TOKEN_MAX] = '\0';
    t = tokens_of(longest);
    assert_true(access_token_matches(t, (struct str){longest, ACCESS_TOKEN_MAX}));
    longest[ACCESS_TOKEN_MAX] = 'x';
    assert_false(access_token_matches(t, (struct str){longest, ACCESS_TOKEN_MAX + 1}));
    access_tokens_free(t);
}

static void several_tokens_are_valid_at_once(void **state)
{
    struct tokens *t = tokens_of("  " TOKEN " \n# a comment " OTHER "x\n\t" OTHER "\r\n");
    (void)state;
    assert_true(access_token_matches(t, STR(TOKEN)));
    assert_true(access_token_matches(t, STR(OTHER)));
    assert_false(access_token_matches(t, STR(OTHER "x")));
    access_tokens_free(t);
}

static void invalid_tokens_are_refused_without_being_echoed(void **state)
{
    static const char *const bad[] = {"short-s3cret", TOKEN " s3cret", "s3cret-with-a-b\x01ll",
                                      "s3cret-with-umlaut-\xc3\xbc", "# s3cret-0123456789abcdef"};
    static char many[9 * 40], too_long[ACCESS_TOKEN_MAX + 10];
    struct tokens *t;
    struct error err;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        setenv("TEST_TOKENS", bad[i], 1);
        if (access_tokens_load(NULL, "TEST_TOKENS", &t, &err) == 0)
            fail_msg("%s was accepted", bad[i]);
        assert_int_equal(err.code, ERR_CONFIG);
        assert_null(strstr(err.text, "s3cret"));
    }
    for (int i = 0; i < 9; i++)
        strcat(many, TOKEN " ");
    memset(too_long, 'x', ACCESS_TOKEN_MAX + 1);
    setenv("TEST_TOKENS", many, 1);
    assert_int_equal(access_tokens_load(NULL, "TEST_TOKENS", &t, &err), -1);
    setenv("TEST_TOKENS", too_long, 1);
    assert_int_equal(access_tokens_load(NULL, "TEST_TOKENS", &t, &err), -1);
    assert_int_equal(access_tokens_load("/nonexistent/token", NULL, &t, &err), -1);
    assert_non_null(strstr(err.text, "/nonexistent/token"));
    assert_int_equal(access_token_variable(TOKEN, &err), -1);
    assert_null(strstr(err.text, TOKEN));
    assert_int_equal(access_token_variable("LISTEN_TOKEN", &err), 0);
}

/* ---- Host ---- */

static void host_header_is_parsed_as_browsers_write_it(void **state)
{
    static const char *const good[][2] = {{"localhost", "localhost"},
                                          {"LocalHost.:8025", "localhost"},
                                          {"127.0.0.1:80", "127.0.0.1"},
                                          {"[::1]:8025", "::1"},
                                          {"[::FFFF:1.2.3.4]", "::ffff:1.2.3.4"},
                                          {"a-b_c.example:", "a-b_c.example"},
                                          {"xn--bcher-kva.example:65535", "xn--bcher-kva.example"}};
    static const char *const bad[] = {"",
                                      ":80",
                                      ".:x",
                                      "a b",
                                      "a\tb",
                                      "user@localhost",
                                      "localhost/",
                                      "localhost:8o",
                                      "localhost:80:80",
                                      "localhost:123456",
                                      "[::1",
                                      "::1",
                                      "[]",
                                      "[localhost]",
                                      "[127.0.0.1]",
                                      "[fe80::1%25eth0]",
                                      "http://localhost",
                                      "a,b",
                                      "b\xc3\xbc"
                                      "cher",
                                      "localhost\\",
                                      "[::1]x",
                                      "[::1]]:80"};
    struct access_host h;
    char longest[400];
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        if (!access_host_parse(str_of(good[i][0]), &h))
            fail_msg("%s was refused", good[i][0]);
        assert_string_equal(h.name, good[i][1]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (access_host_parse(str_of(bad[i]), &h))
            fail_msg("%s was mistaken for %s", bad[i], h.name);
    memset(longest, 'a', sizeof longest);
    assert_false(access_host_parse((struct str){longest, 256}, &h));
    assert_true(access_host_parse((struct str){longest, 255}, &h));
    assert_false(access_host_parse((struct str){"local\0host", 10}, &h));
}

struct asked {
    const char *at, *host, *hosts;
    unsigned status;
};

static void only_requests_to_our_own_host_names_are_answered(void **state)
{
    static const struct asked asked[] = {
        {"127.0.0.1", "localhost:8025", NULL, 0},
        {"127.0.0.1", "127.0.0.1:8025", NULL, 0},
        {"127.0.0.1", "127.9.9.9", NULL, 0},
        {"127.0.0.1", "[::1]:1", NULL, 0},
        {"10.0.0.7", "localhost", NULL, 0}, /* through a tunnel */
        {"10.0.0.7", "10.0.0.7:8025", NULL, 0},
        {"::ffff:10.0.0.7", "10.0.0.7", NULL, 0},
        {"fd00::7", "[fd00:0::7]:8025", NULL, 0},
        {"127.0.0.1", "evil.example:8025", NULL, 403},
        {"127.0.0.1", "localhost.evil.example", NULL, 403},
        {"127.0.0.1", "127.0.0.1.evil.example", NULL, 403},
        {"127.0.0.1", "10.0.0.7", NULL, 403},
        {"127.0.0.1", "0.0.0.0", NULL, 403},
        {"127.0.0.1", "2130706433", NULL, 403}, /* some parsers read this as 127.0.0.1 */
        {"127.0.0.1", "0x7f.1", NULL, 403},
        {"10.0.0.7", "10.0.0.8", NULL, 403},
        {"fd00::7", "[fd00::8]", NULL, 403},
        {"127.0.0.1", "lo calhost", NULL, 400},
        {"127.0.0.1", "", NULL, 400},
        {"127.0.0.1", "relay.example:9", "a, Relay.Example. b", 0},
        {"127.0.0.1", "relay.example", "a.example", 403},
        {"127.0.0.1", "relay.example", "", 403},
        {"127.0.0.1", "10.0.0.8:1", "10.0.0.8", 0},
        {"127.0.0.1", "[fd00::8]", "fd00:0::8", 0},
        {"127.0.0.1", "evil.example", "*", 0},
        {"127.0.0.1", "evil/example", "*", 400},
        {NULL, "localhost", NULL, 0},
        {NULL, "evil.example", NULL, 403},
    };
    (void)state;
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        struct sockaddr_storage here = {.ss_family = AF_UNIX};
        struct access_rules g = {.hosts = asked[i].hosts, .local = true};
        struct access_request r = {.method = STR("GET"), .host = str_of(asked[i].host)};
        if (asked[i].at)
            assert_true(ipnet_of_text(asked[i].at, &here));
        unsigned status = access_check(&g, &r, (struct sockaddr *)&here).status;
        if (status != asked[i].status)
            fail_msg("%s: status %u, expected %u", asked[i].host, status, asked[i].status);
    }
}

static void invalid_hosts_are_refused_in_the_settings(void **state)
{
    struct error err;
    (void)state;
    assert_int_equal(access_hosts_check("", &err), 0);
    assert_int_equal(access_hosts_check("*", &err), 0);
    assert_int_equal(access_hosts_check(" a.example,10.0.0.7 fd00::1, [fd00::2] ", &err), 0);
    assert_int_equal(access_hosts_check("a.example:80", &err), -1);
    assert_int_equal(access_hosts_check("http://a.example", &err), -1);
    assert_int_equal(access_hosts_check("a*.example", &err), -1);
}

/* ---- the rest of a request ---- */

static unsigned checked(struct access_request r)
{
    struct sockaddr_storage here;
    struct access_rules g = {.hosts = "relay.example", .local = true};
    assert_true(ipnet_of_text("127.0.0.1", &here));
    return access_check(&g, &r, (struct sockaddr *)&here).status;
}

static void pages_of_other_origins_are_not_answered(void **state)
{
    static const char *const foreign[] = {"null",
                                          "",
                                          "http://evil.example",
                                          "http://localhost",
                                          "http://localhost:80250",
                                          "localhost:8025",
                                          "ftp://localhost:8025",
                                          "http://localhost:8025/",
                                          "http://x@localhost:8025",
                                          "http://localhost:8025.evil.example",
                                          "http://relay.example",
                                          "http://"};
    struct access_request r = {.method = STR("GET"), .host = STR("localhost:8025")};
    (void)state;
    assert_int_equal(checked(r), 0);
    r.origin = STR("http://localhost:8025");
    assert_int_equal(checked(r), 0);
    r.origin = STR("https://LOCALHOST:8025");
    assert_int_equal(checked(r), 0);
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        r.origin = str_of(foreign[i]);
        if (checked(r) != 403)
            fail_msg("%s was answered", foreign[i]);
    }
}

static void malformed_requests_are_not_answered(void **state)
{
    struct access_request r = {.method = STR("GET"), .host = STR("localhost")};
    (void)state;
    r.method = STR("POST");
    assert_int_equal(checked(r), 405);
    r.method = STR("get");
    assert_int_equal(checked(r), 405);
    r.method = STR("HEAD");
    assert_int_equal(checked(r), 0);
    r.has_body = true;
    assert_int_equal(checked(r), 413);
    r.has_body = false;
    r.more = 1;
    assert_int_equal(checked(r), 400);
    r.more = 0;
    r.host = (struct str){NULL, 0};
    assert_int_equal(checked(r), 400);
    r.old = true;
    assert_int_equal(checked(r), 0);
    r.origin = STR("http://localhost");
    assert_int_equal(checked(r), 403);
}

static void clients_with_the_token_get_details(void **state)
{
    struct tokens *t = tokens_of(TOKEN);
    struct access_rules local = {.local = true}, remote = {.local = false},
                        asking = {.local = true, .tokens = t};
    struct access_request r = {.method = STR("GET"), .host = STR("localhost")};
    (void)state;
    assert_int_equal(access_details(&local, &r).status, 0);
    assert_int_equal(access_details(&remote, &r).status, 403);
    assert_int_equal(access_details(&asking, &r).status, 401);
    static const char *const wrong[] = {"",
                                        "Bearer",
                                        "Bearer ",
                                        "Bearer " OTHER,
                                        "Basic " TOKEN,
                                        TOKEN,
                                        "Bearer" TOKEN,
                                        "Bearer " TOKEN " " TOKEN,
                                        "Bearer " TOKEN ",",
                                        "Bearer \"" TOKEN "\""};
    static const char *const right[] = {"Bearer " TOKEN, "bearer " TOKEN, "BEARER   " TOKEN " \t"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        r.authorization = str_of(wrong[i]);
        if (access_details(&asking, &r).status != 401)
            fail_msg("%s was admitted", wrong[i]);
    }
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        r.authorization = str_of(right[i]);
        if (access_details(&asking, &r).status != 0)
            fail_msg("%s was not admitted", right[i]);
    }
    assert_int_equal(access_details(&remote, &r).status, 403);
    asking.local = false;
    assert_int_equal(access_details(&asking, &r).status, 0);
    access_tokens_free(t);
}

static void loopback_addresses_are_recognized(void **state)
{
    static const char *const local[] = {"127.0.0.1:0",  "127.1.2.3:80", "[::1]:80",
                                        "localhost:80", "unix:/run/x",  "unix:x"},
                             *const remote[] = {"0.0.0.0:80", "[::]:80", "10.0.0.7:80",
                                                "[::ffff:127.0.0.1]:80"},
                             *const bad[] = {"unix:", "unix", "example.com:80", "1.2.3.4",
                                             "127.1:80"};
    struct admin_address a;
    struct error err;
    (void)state;
    for (size_t i = 0; i < sizeof local / sizeof *local; i++) {
        assert_int_equal(admin_address_parse(local[i], &a, &err), 0);
        if (!admin_loopback(&a))
            fail_msg("%s", local[i]);
    }
    for (size_t i = 0; i < sizeof remote / sizeof *remote; i++) {
        assert_int_equal(admin_address_parse(remote[i], &a, &err), 0);
        if (admin_loopback(&a))
            fail_msg("%s", remote[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (admin_address_parse(bad[i], &a, &err) == 0)
            fail_msg("%s was accepted", bad[i]);
}

/* ---- connections ---- */

/* Whether the server has closed the connection: its other end reads end of file. */
static bool has_been_shown_out(int other)
{
    char c;
    return recv(other, &c, 1, MSG_DONTWAIT) == 0;
}

static void make_pair(int fds[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
}

static void request_and_response_have_deadlines(void **state)
{
    struct connections g;
    int slow[2], busy[2];
    int64_t now = 1000 * SECOND;
    (void)state;
    make_pair(slow);
    make_pair(busy);
    connections_init(&g);
    assert_true(connections_tick(&g, now) == CLOCK_NEVER);
    connections_opened(&g, slow[0], now);
    connections_opened(&g, busy[0], now);
    connections_request_complete(&g, busy[0], now + 9 * SECOND);
    assert_true(connections_tick(&g, now + 9 * SECOND) == now + 10 * SECOND);
    assert_false(has_been_shown_out(slow[1]));
    connections_tick(&g, now + 10 * SECOND);
    assert_true(has_been_shown_out(slow[1]));
    assert_false(has_been_shown_out(busy[1]));
    connections_closed(&g, slow[0]);
    assert_true(connections_tick(&g, now + 38 * SECOND) == now + 39 * SECOND);
    assert_false(has_been_shown_out(busy[1]));
    connections_tick(&g, now + 39 * SECOND);
    assert_true(has_been_shown_out(busy[1]));
    connections_closed(&g, busy[0]);
    assert_true(connections_tick(&g, now + 39 * SECOND) == CLOCK_NEVER);
    connections_release(&g);
    for (int i = 0; i < 2; i++) {
        close(slow[i]);
        close(busy[i]);
    }
}

static void client_without_a_request_is_disconnected_first(void **state)
{
    struct connections g;
    int pair[CONNECTIONS_MAX][2];
    (void)state;
    connections_init(&g);
    for (int i = 0; i < CONNECTIONS_MAX; i++) {
        make_pair(pair[i]);
        connections_opened(&g, pair[i][0], SECOND + i);
        if (i < 4)
            connections_request_complete(&g, pair[i][0], SECOND + i);
    }
    for (int i = 0; i < 4; i++)
        assert_false(has_been_shown_out(pair[i][1]));
    assert_true(has_been_shown_out(pair[4][1]));
    assert_false(has_been_shown_out(pair[CONNECTIONS_MAX - 1][1]));
    connections_release(&g);
    for (int i = 0; i < CONNECTIONS_MAX; i++) {
        close(pair[i][0]);
        close(pair[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_a_whole_token_matches),
        cmocka_unit_test(several_tokens_are_valid_at_once),
        cmocka_unit_test(invalid_tokens_are_refused_without_being_echoed),
        cmocka_unit_test(host_header_is_parsed_as_browsers_write_it),
        cmocka_unit_test(only_requests_to_our_own_host_names_are_answered),
        cmocka_unit_test(invalid_hosts_are_refused_in_the_settings),
        cmocka_unit_test(pages_of_other_origins_are_not_answered),
        cmocka_unit_test(malformed_requests_are_not_answered),
        cmocka_unit_test(clients_with_the_token_get_details),
        cmocka_unit_test(loopback_addresses_are_recognized),
        cmocka_unit_test(request_and_response_have_deadlines),
        cmocka_unit_test(client_without_a_request_is_disconnected_first),
    };
    return cmocka_run_group_tests_name("admin", tests, NULL, NULL);
}
