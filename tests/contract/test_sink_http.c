/* The sink contract on webhooks, and promises that only they make: where they connect to. */
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

#include "http_rig.h"

static void sink_never_connects_to_a_name_that_resolves_to_loopback(void **state)
{
    struct fixture *f = *state;
    open_at(f, "inside.localhost"); /* which curl resolves to 127.0.0.1 on its own */
    struct sink_item *it = deliver(f, "{}");
    assert_int_equal(it->status, SINK_DOWN);
    sink_assert_says(it, "will not connect to");
    sink_assert_says(it, "loopback");
    assert_int_equal(http_peer_connections(f->peer), 0);
}

static void allow_list_permits_an_internal_address(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(http_options_allow(&f->o, "10.0.0.0/8, 127.0.0.1", NULL, NULL), 0);
    open_at(f, "inside.localhost");
    assert_int_equal(deliver(f, "{}")->status, SINK_DELIVERED);
}

static void explicit_loopback_address_is_allowed(void **state)
{
    struct fixture *f = *state;
    open_at(f, "localhost");
    assert_int_equal(deliver(f, "{}")->status, SINK_DELIVERED);
}

static void internal_addresses_are_refused_at_once(void **state)
{
    static const char *const urls[] = {"http://10.0.0.1/",
                                       "https://192.168.1.1/t0ken",
                                       "http://169.254.169.254/latest/t0ken",
                                       "http://0.0.0.0/",
                                       "http://[fe80::1]/",
                                       "http://[::ffff:10.0.0.1]/?t0ken",
                                       "http://[fd00::1]/",
                                       "https://[64:ff9b::169.254.1.1]/x",
                                       "http://0x0a000001/",
                                       "http://100.64.0.1:1/"};
    struct fixture *f = *state;
    for (size_t i = 0; i < COUNT(urls); i++)
        refuses(&f->o, urls[i], "address; to allow it", "t0ken");
}

/* Every notation of an internal address: the check of the settings refuses it, and so would the
 * check at each connection. */
static void internal_address_is_refused_in_any_notation(void **state)
{
    static const char *const hosts[] = {
        "10.0.0.1",
        "0x0a.1",
        "012.0.0.1",
        "167772161",
        "10.1",
        "%31%30.0.0.1",
        "[::ffff:10.0.0.1]",
        "[::ffff:a00:1]",
        "\xef\xbc\x91\xef\xbc\x90.0.0.1", /* wide digits */
        "\xe2\x91\xa9.0.0.1",             /* a ten in a circle */
        "10\xe3\x80\x82"
        "0.0.1", /* an ideographic full stop */
        "\xef\xbc\x90x0a.1",
    };
    struct fixture *f = *state;
    char url[100];
    for (size_t i = 0; i < COUNT(hosts); i++) {
        snprintf(url, sizeof url, "http://%s:1/t0ken", hosts[i]);
        refuses(&f->o, url, "this is a private address; to allow it", "t0ken");

        assert_int_equal(http_options_allow(&f->o, "10.0.0.0/8", NULL, NULL), 0);
        sink_rig_init(&f->rig);
        sink_rig_open(&f->rig,
                      (struct sink_config){.url = url, .timeout_ms = 10000, .http = &f->o});
        f->o.n_allow = 0;
        struct sink_item *it = deliver(f, "{}");
        assert_int_equal(it->status, SINK_DOWN);
        sink_assert_says(it, "will not connect to");
        sink_assert_says(it, "10.0.0.1, a private address");
        sink_rig_release(&f->rig);
    }
    open_here(f);
}

static void invalid_host_name_is_refused_at_once(void **state)
{
    static const char *const inside[] = {"10.0.0.1.",
                                         "0x0a.1.",
                                         "10.0.0.1%2e",
                                         "10.0.0.1..",
                                         "\xef\xbc\x91"
                                         "0.0.0.1.",
                                         "[fe80::1%25lo]"};
    static const char *const neither[] = {"256.1.1.1", "1.2.3.4.5", "1.2.3.09", "0x1ffffffff"};
    struct fixture *f = *state;
    char url[100];
    for (size_t i = 0; i < COUNT(inside); i++) {
        snprintf(url, sizeof url, "http://%s/", inside[i]);
        refuses(&f->o, url, "address; to allow it, set webhook-allow = ", NULL);
    }
    for (size_t i = 0; i < COUNT(neither); i++) {
        snprintf(url, sizeof url, "http://%s/", neither[i]);
        refuses(&f->o, url, "neither an address nor a name", NULL);
    }
    refuses(&f->o, "http://127.0.0.1./", "remove the dot after the address: 127.0.0.1", NULL);
    refuses(&f->o, "https://1.1.1.1./", "remove the dot after the address: 1.1.1.1", NULL);
}

static void bad_urls_are_refused_without_their_secrets(void **state)
{
    struct fixture *f = *state;
    refuses(&f->o, "https://user:s3cr3t@example.com/", "must not contain a user or password",
            "s3cr3t");
    refuses(&f->o, "https://s3cr3t@example.com/", "must not contain a user or password", "s3cr3t");
    refuses(&f->o, "https://", "this is not a URL", NULL);
    refuses(&f->o, "https://exa mple.com/s3cr3t", "this is not a URL", "s3cr3t");
}

static void proxy_variables_are_ignored_unless_enabled(void **state)
{
    struct fixture *f = *state;
    setenv("http_proxy", "http://127.0.0.1:1/", 1);
    setenv("all_proxy", "http://127.0.0.1:1/", 1);
    open_here(f);
    struct sink_item *it = deliver(f, "{}");
    assert_int_equal(it->status, SINK_DELIVERED);
    f->rig.sk->ops->close(f->rig.sk);
    assert_int_equal(http_options_proxy(&f->o.proxy, "env", NULL, NULL), 0);
    open_here(f);
    it = deliver(f, "{}");
    unsetenv("http_proxy");
    unsetenv("all_proxy");
    assert_int_equal(it->status, SINK_DOWN);
    assert_int_equal(http_peer_requests(f->peer), 1);
}

int main(void)
{
    setlocale(LC_CTYPE, "C.UTF-8"); /* international names are in it, as for the relay */
    static const struct CMUnitTest tests[] = {
        ON_A_PEER(sink_never_connects_to_a_name_that_resolves_to_loopback),
        ON_A_PEER(allow_list_permits_an_internal_address),
        ON_A_PEER(explicit_loopback_address_is_allowed),
        ON_A_PEER(internal_addresses_are_refused_at_once),
        ON_A_PEER(internal_address_is_refused_in_any_notation),
        ON_A_PEER(invalid_host_name_is_refused_at_once),
        ON_A_PEER(bad_urls_are_refused_without_their_secrets),
        ON_A_PEER(proxy_variables_are_ignored_unless_enabled),
    };
    const struct suite_part own[] = {http_answers_tests, http_sent_tests, http_secrets_tests,
                                     SUITE_PART(tests)};
    return sink_suite_run(&http_case, own, COUNT(own));
}
