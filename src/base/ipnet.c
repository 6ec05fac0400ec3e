#include "base/ipnet.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

/* An address without its wrapping: n is 4 or 16; 0: neither IPv4 nor IPv6. */
struct bytes {
    unsigned char b[16];
    size_t n;
};

struct range {
    unsigned char addr[16];
    int bits;
    const char *what;
};

/* The registries of special addresses (RFC 6890 and what IANA added since), of IPv4 ... */
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

/* ... and of IPv6. What is not in 2000::/3 is not public at all, so that only names are missing for
 * the rest. */
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

/* Where IPv6 addresses carry an IPv4 address that the packets end up at. */
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
    return rest == 0 || ((a[whole] ^ b[whole]) >> (8 - rest)) == 0;
}

static struct bytes bytes_of(const struct sockaddr *sa)
{
    struct bytes r = {.n = 0};
    if (sa->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, sa, sizeof in);
        memcpy(r.b, &in.sin_addr, r.n = 4);
    } else if (sa->sa_family == AF_INET6) {
        struct sockaddr_in6 in6;
        memcpy(&in6, sa, sizeof in6);
        memcpy(r.b, &in6.sin6_addr, r.n = 16);
    }
    return r;
}

/* inner takes the first `kinds` kinds of clothes off an IPv4 address. */
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
    return what || (a.b[0] & 0xe0) == 0x20 ? what : "reserved";
}

bool ipnet_holds(const struct ipnet *net, const struct sockaddr *sa)
{
    struct bytes a = bytes_of(sa);
    if (net->family == AF_INET)
        a = inner(a, 1);
    return a.n == (net->family == AF_INET ? 4 : 16) && same_bits(a.b, net->addr, net->bits);
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

static bool bits_behind(const struct ipnet *n, size_t bytes)
{
    for (size_t i = (size_t)n->bits; i < bytes * 8; i++)
        if (n->addr[i / 8] & (0x80 >> (i % 8)))
            return true;
    return false;
}

int ipnet_parse(const char *text, struct ipnet *ret, struct error *err)
{
    char addr[64];
    const char *slash = strchr(text, '/');
    size_t n = slash ? (size_t)(slash - text) : strlen(text);
    struct sockaddr_storage sa;
    snprintf(addr, sizeof addr, "%.*s", (int)(n < sizeof addr ? n : sizeof addr - 1), text);
    if (n >= sizeof addr || !ipnet_of_text(addr, &sa))
        return err_set(err, ERR_CONFIG,
                       "\"%s\" is no network; write one as 10.0.0.0/8, fd00::/8 or 192.0.2.7",
                       text);
    struct bytes a = bytes_of((struct sockaddr *)&sa);
    struct ipnet net = {.family = sa.ss_family, .bits = (int)a.n * 8};
    int64_t bits;
    memcpy(net.addr, a.b, a.n);
    if (slash) {
        if (text_int(slash + 1, 0, net.bits, &bits, err) != 0)
            return err_prefix(err, "prefix length");
        net.bits = (int)bits;
    }
    if (bits_behind(&net, a.n))
        return err_set(
            err, ERR_CONFIG,
            "\"%s\" has bits set behind its first %d; zero them, or take a longer prefix", text,
            net.bits);
    *ret = net;
    return 0;
}
