/* address.c: the address of --listen. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "admin/admin.h"
#include "base/text.h"

static int refuse(const char *text, struct error *err)
{
    return err_set(err, ERR_CONFIG,
                   "\"%s\" is not an address to listen on; use 127.0.0.1:8025, [::1]:8025, "
                   "localhost:8025 or unix:PATH",
                   text);
}

/* parse_path reads the path of a unix socket. text is the whole address, for the message. */
static int parse_path(const char *text, const char *path, struct admin_address *ret,
                      struct error *err)
{
    size_t n = strlen(path);
    *ret = (struct admin_address){.at.un = {.sun_family = AF_UNIX}, .size = sizeof ret->at.un};
    if (n == 0)
        return refuse(text, err);
    if (n >= sizeof ret->at.un.sun_path)
        return err_set(err, ERR_CONFIG, "the path of a unix socket has at most %zu bytes, not %zu",
                       sizeof ret->at.un.sun_path - 1, n);

    memcpy(ret->at.un.sun_path, path, n);
    return 0;
}

static bool parse_v4(const char *host, uint16_t port, struct admin_address *ret)
{
    *ret = (struct admin_address){.at.v4 = {.sin_family = AF_INET, .sin_port = htons(port)},
                                  .size = sizeof ret->at.v4};
    return inet_pton(AF_INET, host, &ret->at.v4.sin_addr) == 1;
}

static bool parse_v6(const char *host, uint16_t port, struct admin_address *ret)
{
    *ret = (struct admin_address){.at.v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)},
                                  .size = sizeof ret->at.v6};
    return inet_pton(AF_INET6, host, &ret->at.v6.sin6_addr) == 1;
}

/* parse_host reads 127.0.0.1, localhost or [::1], of n bytes. */
static bool parse_host(const char *text, size_t n, uint16_t port, struct admin_address *ret)
{
    char host[ADMIN_ADDRESS];
    if (n == 0 || n >= sizeof host)
        return false;
    memcpy(host, text, n);
    host[n] = '\0';

    if (strcmp(host, "localhost") == 0)
        return parse_v4("127.0.0.1", port, ret);
    if (host[0] == '[' && host[n - 1] == ']') {
        host[n - 1] = '\0';
        return parse_v6(host + 1, port, ret);
    }
    return parse_v4(host, port, ret);
}

int admin_address_parse(const char *text, struct admin_address *ret, struct error *err)
{
    static const char unix_scheme[] = "unix:";
    size_t scheme = sizeof unix_scheme - 1;
    if (strncmp(text, unix_scheme, scheme) == 0)
        return parse_path(text, text + scheme, ret, err);

    int64_t port;
    const char *colon = strrchr(text, ':');
    if (!colon || text_int(colon + 1, 0, 65535, &port, NULL) != 0)
        return refuse(text, err);
    if (!parse_host(text, (size_t)(colon - text), (uint16_t)port, ret))
        return refuse(text, err);
    return 0;
}

bool admin_loopback(const struct admin_address *a)
{
    if (a->at.any.sa_family == AF_UNIX)
        return true;
    if (a->at.any.sa_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&a->at.v6.sin6_addr);
    return ntohl(a->at.v4.sin_addr.s_addr) >> 24 == 127;
}
