/* ipnet.h: networks, and which addresses are not of the public internet. */
#ifndef BASE_IPNET_H
#define BASE_IPNET_H

#include <stdbool.h>
#include <sys/socket.h>

#include "base/err.h"

/* (1) addr has `bits` leading bits that count, all others 0. (2) family is AF_INET (4 bytes) or
 *   AF_INET6 (16). */
struct ipnet {
    int family;
    int bits;
    unsigned char addr[16];
};

/* ipnet_parse reads 10.0.0.0/8, fd00::/8, or an address alone. An address with bits set behind the
 * prefix is refused: it is a typing mistake, and which way is not ours to guess. ERR_CONFIG. */
int ipnet_parse(const char *text, struct ipnet *ret, struct error *err);

/* ipnet_holds says whether an address is in the network. An IPv4 address in IPv6 clothes
 * (::ffff:10.0.0.1) counts as the IPv4 address it is. */
bool ipnet_holds(const struct ipnet *net, const struct sockaddr *sa);

/* ipnet_special says what an address is that is not a public one: "loopback", "private", ...; NULL:
 * it is public. Addresses that carry an IPv4 address (mapped, NAT64, 6to4) are what that one is.
 * What it does not know is not public. */
const char *ipnet_special(const struct sockaddr *sa);
#define IPNET_LOOPBACK "loopback"

/* ipnet_of_text makes a socket address of an address in numbers; false if it is none. */
bool ipnet_of_text(const char *text, struct sockaddr_storage *ret);

#endif
