#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "admin/admin.h"
#include "base/text.h"

static int refuse(const char *text, struct error *err)
{
    return err_set(err, ERR_CONFIG,
                   "\"%s\" is no address to listen at; write 127.0.0.1:8025, [::1]:8025, "
                   "localhost:8025 or unix:PATH",
                   text);
}

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

int admin_address_parse(const char *text, struct admin_address *ret, struct error *err)
{
    static const char unix_scheme[] = "unix:";
    char host[ADMIN_ADDRESS];
    int64_t port;
    if (strncmp(text, unix_scheme, sizeof unix_scheme - 1) == 0)
        return parse_path(text, text + sizeof unix_scheme - 1, ret, err);
    const char *colon = strrchr(text, ':');
    size_t n = colon ? (size_t)(colon - text) : 0;
    if (n == 0 || n >= sizeof host || text_int(colon + 1, 0, 65535, &port, NULL) != 0)
        return refuse(text, err);
    snprintf(host, sizeof host, "%.*s", (int)n, text);
    bool v6 = host[0] == '[' && host[n - 1] == ']';
    if (strcmp(host, "localhost") == 0)
        snprintf(host, sizeof host, "127.0.0.1");
    *ret = (struct admin_address){0};
    if (v6) {
        host[n - 1] = 0;
        ret->at.v6 = (struct sockaddr_in6){.sin6_family = AF_INET6,
                                           .sin6_port = htons((uint16_t)port)};
        ret->size = sizeof ret->at.v6;
        return inet_pton(AF_INET6, host + 1, &ret->at.v6.sin6_addr) == 1 ? 0 : refuse(text, err);
    }
    ret->at.v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    ret->size = sizeof ret->at.v4;
    return inet_pton(AF_INET, host, &ret->at.v4.sin_addr) == 1 ? 0 : refuse(text, err);
}

bool admin_loopback(const struct admin_address *a)
{
    if (a->at.any.sa_family == AF_UNIX)
        return true;
    if (a->at.any.sa_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&a->at.v6.sin6_addr);
    return ntohl(a->at.v4.sin_addr.s_addr) >> 24 == 127;
}
