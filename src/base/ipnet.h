/* ipnet.h: IP networks, and which addresses are not on the public internet. */
#ifndef BASE_IPNET_H
#define BASE_IPNET_H

#include <stdbool.h>
#include <sys/socket.h>

#include "base/err.h"

/* (1) Only the first `bits` bits of addr count; the rest are 0. (2) family is AF_INET (4 bytes) or
 * AF_INET6 (16 bytes). */
struct ipnet {
    int family;
    int bits;
    unsigned char addr[16];
};

/* ipnet_parse reads 10.0.0.0/8, fd00::/8 or a single address. Bits set after the prefix are refused
 * with ERR_CONFIG as a typo. */
int ipnet_parse(const char *text, struct ipnet *ret, struct error *err);

/* ipnet_holds returns whether an address is in the network. A mapped IPv4 address (::ffff:10.0.0.1)
 * counts as IPv4. */
bool ipnet_holds(const struct ipnet *net, const struct sockaddr *sa);

/* ipnet_special returns the kind of an address that is not public: "loopback", "private", ...; NULL
 * if it is public. An address that embeds an IPv4 address (mapped, NAT64, 6to4) is classified by
 * the embedded address. Unknown ranges are not public. */
const char *ipnet_special(const struct sockaddr *sa);
#define IPNET_LOOPBACK "loopback"

/* ipnet_of_text converts a numeric address to a socket address; false if it is not one. */
bool ipnet_of_text(const char *text, struct sockaddr_storage *ret);

/* Kinds of host in a URL. */
enum ipnet_host {
    IPNET_NAME,
    IPNET_ADDRESS,
    /* it ends in a number, which no name does, but is not an address: 256.1.1.1, 1.2.3.4.5 */
    IPNET_NEITHER,
};

/* ipnet_of_host classifies the host of a URL. For an address, *ret is what a resolver would make of
 * it in any notation: in brackets, with a zone, with trailing dots, with hexadecimal, octal or
 * omitted parts (0x0a.1, 012.0.0.1, 2130706433). The host must be ASCII. */
enum ipnet_host ipnet_of_host(const char *host, struct sockaddr_storage *ret);

#endif
