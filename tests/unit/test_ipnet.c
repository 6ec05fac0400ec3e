#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <arpa/inet.h>
#include <cmocka.h>

#include "base/ipnet.h"

static const char *special(const char *text)
{
    struct sockaddr_storage sa;
    if (!ipnet_of_text(text, &sa))
        fail_msg("%s is not an address", text);
    return ipnet_special((struct sockaddr *)&sa);
}

static void special_networks_have_exact_bounds(void **state)
{
    /* The address before a network, its first, its last, and the next address; NULL if that
     * address is special for another reason. */
    static const char *const edges[][4] = {
        {NULL, "0.0.0.0", "0.255.255.255", "1.0.0.0"},
        {"9.255.255.255", "10.0.0.0", "10.255.255.255", "11.0.0.0"},
        {"100.63.255.255", "100.64.0.0", "100.127.255.255", "100.128.0.0"},
        {"126.255.255.255", "127.0.0.0", "127.255.255.255", "128.0.0.0"},
        {"169.253.255.255", "169.254.0.0", "169.254.255.255", "169.255.0.0"},
        {"172.15.255.255", "172.16.0.0", "172.31.255.255", "172.32.0.0"},
        {"191.255.255.255", "192.0.0.0", "192.0.0.255", "192.0.1.0"},
        {"192.0.1.255", "192.0.2.0", "192.0.2.255", "192.0.3.0"},
        {"192.88.98.255", "192.88.99.0", "192.88.99.255", "192.88.100.0"},
        {"192.167.255.255", "192.168.0.0", "192.168.255.255", "192.169.0.0"},
        {"198.17.255.255", "198.18.0.0", "198.19.255.255", "198.20.0.0"},
        {"198.51.99.255", "198.51.100.0", "198.51.100.255", "198.51.101.0"},
        {"203.0.112.255", "203.0.113.0", "203.0.113.255", "203.0.114.0"},
        {"223.255.255.255", "224.0.0.0", "239.255.255.255", NULL},
        {NULL, "240.0.0.0", "255.255.255.255", NULL},
        {NULL, "::", "1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "2000::"},
        {"2000:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
         "2001::", "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff", "2001:200::"},
        {"2001:db7:ffff:ffff:ffff:ffff:ffff:ffff",
         "2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", "2001:db9::"},
        {"3ffe:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
         "3fff::", "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff", "3fff:1000::"},
        {"3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
         "4000::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++)
        for (size_t k = 0; k < 4; k++) {
            if (!edges[i][k])
                continue;
            bool want = k == 1 || k == 2;
            if ((special(edges[i][k]) != NULL) != want)
                fail_msg("%s is %s", edges[i][k], want ? "special" : "public");
        }
}

static void special_addresses_are_classified(void **state)
{
    static const struct {
        const char *address, *what;
    } cases[] = {
        {"127.0.0.1", "loopback"},
        {"127.255.0.9", "loopback"},
        {"10.1.2.3", "private"},
        {"172.20.0.1", "private"},
        {"192.168.7.7", "private"},
        {"169.254.169.254", "link-local"},
        {"100.100.0.1", "shared (carrier-grade NAT)"},
        {"0.0.0.0", "unspecified"},
        {"224.0.0.1", "multicast"},
        {"255.255.255.255", "reserved"},
        {"::1", "loopback"},
        {"::", "unspecified"},
        {"::2", "reserved"},
        {"::127.0.0.1", "reserved"},
        {"fe80::1", "link-local"},
        {"febf::1", "link-local"},
        {"fec0::1", "site-local"},
        {"fc00::1", "private"},
        {"fdff::1", "private"},
        {"ff02::1", "multicast"},
        {"2001::1", "reserved"},
        {"64:ff9b:1::1", "reserved"},
        {"100::1", "reserved"},
        {"5f00::1", "reserved"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *what = special(cases[i].address);
        if (!what || strcmp(what, cases[i].what) != 0)
            fail_msg("%s is %s", cases[i].address, what ? what : "public");
    }
    assert_null(special("8.8.8.8"));
    assert_null(special("93.184.215.14"));
    assert_null(special("2606:4700::1111"));
    assert_string_equal(ipnet_special(&(struct sockaddr){.sa_family = AF_UNIX}), "not an internet");
}

static void ipv4_mapped_addresses_are_treated_as_ipv4(void **state)
{
    static const char *const inner[] = {"127.0.0.1",   "10.0.0.1",   "169.254.169.254",
                                        "192.168.0.1", "100.64.0.1", "0.0.0.0",
                                        "224.0.0.1",   "8.8.8.8",    "1.1.1.1"};
    (void)state;
    for (size_t i = 0; i < sizeof inner / sizeof inner[0]; i++) {
        unsigned char b[4];
        char text[64];
        const char *want = special(inner[i]);
        inet_pton(AF_INET, inner[i], b);
        snprintf(text, sizeof text, "::ffff:%s", inner[i]);
        assert_ptr_equal(special(text), want);
        snprintf(text, sizeof text, "64:ff9b::%s", inner[i]);
        assert_ptr_equal(special(text), want);
        snprintf(text, sizeof text, "2002:%02x%02x:%02x%02x::1", b[0], b[1], b[2], b[3]);
        assert_ptr_equal(special(text), want);
    }
}

static bool holds(const char *net, const char *address)
{
    struct ipnet n;
    struct sockaddr_storage sa;
    struct error err;
    if (ipnet_parse(net, &n, &err) != 0)
        fail_msg("%s: %s", net, err.text);
    assert_true(ipnet_of_text(address, &sa));
    return ipnet_holds(&n, (struct sockaddr *)&sa);
}

static void address_is_recognized_in_any_notation(void **state)
{
    static const char *const hosts[][2] = {
        {"10.0.0.1", "10.0.0.1"},
        {"10.0.0.1.", "10.0.0.1"},
        {"10.0.0.1..", "10.0.0.1"},
        {"0x0a.1", "10.0.0.1"},
        {"0X0A.1.", "10.0.0.1"},
        {"012.0.0.1", "10.0.0.1"},
        {"2130706433", "127.0.0.1"},
        {"0", "0.0.0.0"},
        {"[::1]", "::1"},
        {"[fe80::1%lo]", "fe80::1"},
        {"[::ffff:10.0.0.1]", "::ffff:10.0.0.1"},
    };
    static const char *const names[] = {
        "example.com", "example.com.", "10.0.0.1.example", "x10", "0xg", "a.0xfz", "", "."};
    static const char *const neither[] = {"256.1.1.1",   "1.2.3.4.5", "08",          "a.1",
                                          "0x1ffffffff", "[x]",       "[10.0.0.1.5]"};
    struct sockaddr_storage sa, want;
    (void)state;
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
        assert_int_equal(ipnet_of_host(hosts[i][0], &sa), IPNET_ADDRESS);
        assert_true(ipnet_of_text(hosts[i][1], &want));
        assert_memory_equal(&sa, &want, sizeof sa);
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        assert_int_equal(ipnet_of_host(names[i], &sa), IPNET_NAME);
    for (size_t i = 0; i < sizeof neither / sizeof neither[0]; i++)
        assert_int_equal(ipnet_of_host(neither[i], &sa), IPNET_NEITHER);
}

static void networks_contain_their_addresses(void **state)
{
    (void)state;
    assert_true(holds("10.0.0.0/8", "10.255.255.255"));
    assert_false(holds("10.0.0.0/8", "11.0.0.0"));
    assert_true(holds("10.1.2.3", "10.1.2.3"));
    assert_false(holds("10.1.2.3", "10.1.2.4"));
    assert_true(holds("0.0.0.0/0", "255.1.2.3"));
    assert_false(holds("0.0.0.0/0", "::1"));
    assert_true(holds("10.0.0.0/9", "10.127.0.1"));
    assert_false(holds("10.0.0.0/9", "10.128.0.1"));
    assert_true(holds("10.0.0.0/8", "::ffff:10.0.0.1"));
    assert_false(holds("10.0.0.0/8", "64:ff9b::10.0.0.1"));
    assert_true(holds("fd00::/8", "fdff::1"));
    assert_false(holds("fd00::/8", "fc00::1"));
    assert_true(holds("::1/128", "::1"));
    assert_true(holds("::/0", "fe80::1"));
    assert_false(holds("::/0", "10.0.0.1"));
}

static void invalid_networks_are_refused(void **state)
{
    static const char *const bad[] = {
        "",           "10",          "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/",
        "10.0.0.1/8", "fd00::1/8",   "::/129",      "example.com", "10.0.0.0/8x",
        "300.0.0.1",  "10.0.0.0 /8", "0x7f.1",      "127.1"};
    struct ipnet n;
    struct error err;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (ipnet_parse(bad[i], &n, &err) == 0)
            fail_msg("\"%s\" was accepted", bad[i]);
        assert_int_equal(err.code, ERR_CONFIG);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(special_networks_have_exact_bounds),
        cmocka_unit_test(special_addresses_are_classified),
        cmocka_unit_test(ipv4_mapped_addresses_are_treated_as_ipv4),
        cmocka_unit_test(address_is_recognized_in_any_notation),
        cmocka_unit_test(networks_contain_their_addresses),
        cmocka_unit_test(invalid_networks_are_refused),
    };
    return cmocka_run_group_tests_name("ipnet", tests, NULL, NULL);
}
