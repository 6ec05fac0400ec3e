#include "base/ipnet.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

/* A bare address: n is 4 or 16; 0: neither IPv4 nor IPv6. */
struct bytes {
    unsigned char b[16];
    size_t n;
};

/* An address range and its purpose. IPv4 addresses use the first four bytes. */
struct range {
    unsigned char addr[16];
    int bits;
    const char *what;
};

/* The registries of special addresses (RFC 6890 and what IANA has added since), of IPv4 ... */
static const struct range ranges4[] = {
    {{0}, 8, "unspecified"},
    {{10}, 8, "private"},
    {{100, 64}, 10, "shared (carrier-grade NAT)"},
    {{127}, 8, IPNET_LOOPBACK},
    {{169, 254}, 16, "link-local"},
    {{172, 16}, 12, "private"},
    {{192, 0, 0}, 24, "reserved"},
    {{192, 0, 2}, 24, "documentation"},
    {{192, 88, 99}, 24, "reserved"},
    {{192, 168}, 16, "private"},
    {{198, 18}, 15, "benchmarking"},
    {{198, 51, 100}, 24, "documentation"},
    {{203, 0, 113}, 24, "documentation"},
    {{224}, 4, "multicast"},
    {{240}, 4, "reserved"},
};

/* ... and of IPv6. Nothing outside 2000::/3 is public; ranges listed here from outside it merely
 * have a better name than "reserved". */
static const struct range ranges6[] = {
    {{0}, 128, "unspecified"},
    {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, 128, IPNET_LOOPBACK},
    {{0xfc}, 7, "private"},
    {{0xfe, 0x80}, 10, "link-local"},
    {{0xfe, 0xc0}, 10, "site-local"},
    {{0xff}, 8, "multicast"},
    {{0x20, 0x01}, 23, "reserved"}, /* Teredo, benchmarking, ORCHID, ... */
    {{0x20, 0x01, 0x0d, 0xb8}, 32, "documentation"},
    {{0x3f, 0xff}, 20, "documentation"},
};

/* Prefixes of IPv6 addresses that embed the IPv4 address where the packets end up. */
static const struct {
    struct range in;
    size_t at;
} carriers[] = {
    {{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}, 96, NULL}, 12}, /* mapped */
    {{{0, 0x64, 0xff, 0x9b}, 96, NULL}, 12},                      /* NAT64 */
    {{{0x20, 0x02}, 16, NULL}, 2},                                /* 6to4 */
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static bool same_bits(const unsigned char *a, const unsigned char *b, int bits)
{
    int whole = bits / 8, rest = bits % 8;
    if (memcmp(a, b, (size_t)whole) != 0)
        return false;
    if (rest == 0)
        return true;
    return (a[whole] ^ b[whole]) >> (8 - rest) == 0;
}

static struct bytes bytes_of(const struct sockaddr *sa)
{
    struct bytes r = {.n = 0};
    if (sa->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, sa, sizeof in);
        memcpy(r.b, &in.sin_addr, sizeof in.sin_addr);
        r.n = sizeof in.sin_addr;
    } else if (sa->sa_family == AF_INET6) {
        struct sockaddr_in6 in6;
        memcpy(&in6, sa, sizeof in6);
        memcpy(r.b, &in6.sin6_addr, sizeof in6.sin6_addr);
        r.n = sizeof in6.sin6_addr;
    }
    return r;
}

/* Returns the IPv4 address embedded by one of the first `kinds` prefixes, or the address itself. */
static struct bytes inner(struct bytes a, size_t kinds)
{
    for (size_t i = 0; a.n == 16 && i < kinds; i++) {
        if (!same_bits(a.b, carriers[i].in.addr, carriers[i].in.bits))
            continue;
        struct bytes r = {.n = 4};
        memcpy(r.b, a.b + carriers[i].at, 4);
        return r;
    }
    return a;
}

/* Returns the name of the range that contains an address; NULL if none does. */
static const char *find(const struct range *r, size_t n, const unsigned char *addr)
{
    for (size_t i = 0; i < n; i++)
        if (same_bits(addr, r[i].addr, r[i].bits))
            return r[i].what;
    return NULL;
}

const char *ipnet_special(const struct sockaddr *sa)
{
    struct bytes a = inner(bytes_of(sa), COUNT(carriers));
    if (a.n == 4)
        return find(ranges4, COUNT(ranges4), a.b);
    if (a.n != 16)
        return "not an internet";

    const char *what = find(ranges6, COUNT(ranges6), a.b);
    bool in_use = (a.b[0] & 0xe0) == 0x20; /* 2000::/3 */
    if (!what && !in_use)
        return "reserved";
    return what;
}

bool ipnet_holds(const struct ipnet *net, const struct sockaddr *sa)
{
    struct bytes a = bytes_of(sa);
    size_t n = 16;
    if (net->family == AF_INET) {
        a = inner(a, 1);
        n = 4;
    }
    return a.n == n && same_bits(a.b, net->addr, net->bits);
}

bool ipnet_of_text(const char *text, struct sockaddr_storage *ret)
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
    memset(ret, 0, sizeof *ret);
    if (inet_pton(AF_INET, text, &in.sin_addr) == 1) {
        memcpy(ret, &in, sizeof in);
        return true;
    }
    if (inet_pton(AF_INET6, text, &in6.sin6_addr) != 1)
        return false;
    memcpy(ret, &in6, sizeof in6);
    return true;
}

/* Copies a host without brackets, zone and trailing dots. */
static void bare_host(const char *host, char *out, size_t size)
{
    if (host[0] == '[')
        host++;
    size_t n = strcspn(host, "]%");
    while (n > 0 && host[n - 1] == '.')
        n--;
    snprintf(out, size, "%.*s", (int)n, host);
}

/* Whether a label is a number as in an address: decimal, octal or hexadecimal. */
static bool is_number(const char *label)
{
    if (label[0] == '0' && (label[1] == 'x' || label[1] == 'X'))
        return strspn(label + 2, "0123456789abcdefABCDEF") == strlen(label + 2);
    return label[0] != '\0' && strspn(label, "0123456789") == strlen(label);
}

enum ipnet_host ipnet_of_host(const char *host, struct sockaddr_storage *ret)
{
    char bare[256];
    struct sockaddr_in in = {.sin_family = AF_INET};
    bare_host(host, bare, sizeof bare);
    if (ipnet_of_text(bare, ret))
        return IPNET_ADDRESS;
    if (host[0] == '[')
        return IPNET_NEITHER;

    const char *dot = strrchr(bare, '.');
    if (!is_number(dot ? dot + 1 : bare))
        return IPNET_NAME;
    if (inet_aton(bare, &in.sin_addr) == 0)
        return IPNET_NEITHER;
    memcpy(ret, &in, sizeof in);
    return IPNET_ADDRESS;
}

int ipnet_parse(const char *text, struct ipnet *ret, struct error *err)
{
    struct sockaddr_storage sa;
    char address[64];
    size_t n = strcspn(text, "/");
    bool fits = n < sizeof address;
    if (fits)
        snprintf(address, sizeof address, "%.*s", (int)n, text);
    if (!fits || !ipnet_of_text(address, &sa))
        return err_set(err, ERR_CONFIG,
                       "\"%s\" is not a network; write 10.0.0.0/8, fd00::/8 or 192.0.2.7", text);

    struct bytes a = bytes_of((struct sockaddr *)&sa);
    struct ipnet net = {.family = sa.ss_family, .bits = (int)a.n * 8};
    memcpy(net.addr, a.b, a.n);
    if (text[n] == '/') {
        int64_t bits;
        if (text_int(text + n + 1, 0, net.bits, &bits, err) != 0)
            return err_prefix(err, "prefix length");
        net.bits = (int)bits;
    }

    for (size_t i = (size_t)net.bits; i < a.n * 8; i++) {
        bool set = net.addr[i / 8] & (0x80 >> (i % 8));
        if (set)
            return err_set(
                err, ERR_CONFIG,
                "\"%s\" has bits set after the first %d; clear them, or use a longer prefix", text,
                net.bits);
    }
    *ret = net;
    return 0;
}
