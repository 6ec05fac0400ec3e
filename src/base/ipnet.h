/* ipnet.h: networks, and which addresses are not on the public internet. */
#ifndef BASE_IPNET_H
#define BASE_IPNET_H

#include <stdbool.h>
#include <sys/socket.h>

#include "base/err.h"

/* (1) The first `bits` bits of addr count; all others are 0. (2) family is AF_INET (4 bytes) or
 * AF_INET6 (16 bytes). */
struct ipnet {
    int family;
    int bits;
    unsigned char addr[16];
};

/* ipnet_parse reads 10.0.0.0/8, fd00::/8, or an address alone. An address with bits set after its
 * prefix is refused with ERR_CONFIG: it is a typo, and we do not guess what was meant. */
int ipnet_parse(const char *text, struct ipnet *ret, struct error *err);

/* ipnet_holds says whether an address is in the network. A mapped IPv4 address (::ffff:10.0.0.1)
 * counts as the IPv4 address that it is. */
bool ipnet_holds(const struct ipnet *net, const struct sockaddr *sa);

/* ipnet_special names the kind of an address that is not public: "loopback", "private", ...; NULL
 * if it is public. An address that carries an IPv4 address (mapped, NAT64, 6to4) is judged by that
 * one. Unknown kinds are not public. */
const char *ipnet_special(const struct sockaddr *sa);
#define IPNET_LOOPBACK "loopback"

/* ipnet_of_text turns a numeric address into a socket address; false if it is not one. */
bool ipnet_of_text(const char *text, struct sockaddr_storage *ret);

/* What the host of a URL is. */
enum ipnet_host {
    IPNET_NAME,
    IPNET_ADDRESS,
    /* it ends in a number, as no name does, and is no address: 256.1.1.1, 1.2.3.4.5 */
    IPNET_NEITHER,
};

/* ipnet_of_host says what the host of a URL is. Of an address, *ret is what a resolver would make
 * of it, however it is written: in brackets and with a zone, with dots behind it, in parts that are
 * hexadecimal, octal or left out (0x0a.1, 012.0.0.1, 2130706433). It must be ASCII. */
enum ipnet_host ipnet_of_host(const char *host, struct sockaddr_storage *ret);

#endif
