#include "admin/gate.h"

#include <ctype.h>
#include <netinet/in.h>
#include <string.h>
#include <strings.h>

#include "base/ipnet.h"

static const struct gate_refusal welcome = {0, ""};

/* ---- Host ---- */

/* is_port: what follows a host: nothing, or a colon and digits. */
static bool is_port(const char *p, const char *end)
{
    if (p == end)
        return true;
    if (*p != ':' || end - p > 6)
        return false;
    for (p++; p < end; p++)
        if (!isdigit((unsigned char)*p))
            return false;
    return true;
}

static bool in_a_name(char c)
{
    return isalnum((unsigned char)c) || c == '-' || c == '.' || c == '_';
}

static void set_name(struct gate_host *h, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        h->name[i] = (char)tolower((unsigned char)p[i]);
    h->name[n] = '\0';
}

static bool parse_brackets(struct str text, struct gate_host *ret)
{
    const char *close = memchr(text.p, ']', text.n), *end = text.p + text.n;
    if (!close || !is_port(close + 1, end))
        return false;
    size_t n = (size_t)(close - text.p) - 1;
    if (n == 0 || n >= sizeof ret->name || memchr(text.p, '\0', text.n))
        return false;
    set_name(ret, text.p + 1, n);
    ret->is_address = ipnet_of_text(ret->name, &ret->address);
    return ret->is_address && ret->address.ss_family == AF_INET6;
}

bool gate_host_parse(struct str text, struct gate_host *ret)
{
    *ret = (struct gate_host){.is_address = false};
    if (text.n > 0 && text.p[0] == '[')
        return parse_brackets(text, ret);

    size_t n = 0;
    while (n < text.n && in_a_name(text.p[n]))
        n++;
    if (!is_port(text.p + n, text.p + text.n))
        return false;
    if (n > 1 && text.p[n - 1] == '.')
        n--;
    if (n == 0 || n >= sizeof ret->name)
        return false;
    set_name(ret, text.p, n);
    ret->is_address = ipnet_of_text(ret->name, &ret->address);
    return true;
}

static bool is_loopback(const struct sockaddr *sa)
{
    const char *what = ipnet_special(sa);
    return what && strcmp(what, IPNET_LOOPBACK) == 0;
}

/* same_address: an IPv4 address in IPv6 clothes is the IPv4 address. */
static bool same_address(const struct sockaddr *a, const struct sockaddr *b)
{
    struct ipnet net = {.family = a->sa_family, .bits = a->sa_family == AF_INET ? 32 : 128};
    if (a->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, a, sizeof in);
        memcpy(net.addr, &in.sin_addr, 4);
    } else {
        struct sockaddr_in6 in6;
        memcpy(&in6, a, sizeof in6);
        memcpy(net.addr, &in6.sin6_addr, 16);
    }
    return ipnet_holds(&net, b);
}

/* next_host cuts the next word off a list; false: there is none. */
static bool next_host(const char **list, struct str *ret)
{
    *list += strspn(*list, ", \t");
    *ret = (struct str){*list, strcspn(*list, ", \t")};
    *list += ret->n;
    return ret->n > 0;
}

/* read_listed reads one of listen-hosts: as in Host, but without a port, and an IPv6 address needs
 * no brackets. */
static bool read_listed(struct str word, struct gate_host *ret)
{
    if (word.n < sizeof ret->name) {
        *ret = (struct gate_host){.is_address = true};
        memcpy(ret->name, word.p, word.n);
        if (ipnet_of_text(ret->name, &ret->address))
            return true;
    }
    bool brackets = word.p[0] == '[' && word.p[word.n - 1] == ']';
    if (!brackets && memchr(word.p, ':', word.n))
        return false;
    return gate_host_parse(word, ret);
}

int gate_hosts_check(const char *list, struct error *err)
{
    struct gate_host h;
    struct str word;
    while (next_host(&list, &word)) {
        if (str_is(word, "*") || read_listed(word, &h))
            continue;
        return err_set(
            err, ERR_CONFIG,
            "\"%.*s\" is no name or address; write them without a port: relay.example, 10.0.0.7",
            (int)(word.n < 100 ? word.n : 100), word.p);
    }
    return 0;
}

static bool same_host(const struct gate_host *a, const struct gate_host *b)
{
    if (a->is_address != b->is_address)
        return false;
    if (!a->is_address)
        return strcmp(a->name, b->name) == 0;
    return same_address((const struct sockaddr *)&a->address, (const struct sockaddr *)&b->address);
}

static bool is_listed(const char *list, const struct gate_host *h)
{
    struct gate_host one;
    struct str word;
    while (list && next_host(&list, &word)) {
        if (str_is(word, "*"))
            return true;
        if (read_listed(word, &one) && same_host(&one, h))
            return true;
    }
    return false;
}

/* is_ours: nobody else can own the name localhost, a loopback address, or the address we were
 * reached at. */
static bool is_ours(const struct gate_host *h, const struct sockaddr *here)
{
    const struct sockaddr *address = (const struct sockaddr *)&h->address;
    if (!h->is_address)
        return strcmp(h->name, "localhost") == 0;
    if (is_loopback(address))
        return true;
    bool reached_by_address = here->sa_family == AF_INET || here->sa_family == AF_INET6;
    return reached_by_address && same_address(address, here);
}

static struct gate_refusal check_host(const struct gate *g, const struct gate_request *r,
                                      const struct sockaddr *here)
{
    struct gate_host h;
    if (!r->host.p && r->old)
        return welcome; /* no browser */
    if (!r->host.p)
        return (struct gate_refusal){400, "no Host header\n"};
    if (!gate_host_parse(r->host, &h))
        return (struct gate_refusal){400, "Host is no name or address\n"};
    if (is_ours(&h, here) || is_listed(g->hosts, &h))
        return welcome;
    return (struct gate_refusal){
        403, "this name is not served here; listen-hosts names those that are\n"};
}

/* ---- Origin ---- */

/* is_own_origin: http://HOST or https://HOST, with exactly what Host says. */
static bool is_own_origin(struct str origin, struct str host)
{
    static const char *const schemes[] = {"http://", "https://"};
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        size_t n = strlen(schemes[i]);
        bool has_scheme = origin.n > n && strncasecmp(origin.p, schemes[i], n) == 0;
        if (!has_scheme)
            continue;
        return host.n > 0 && origin.n - n == host.n &&
               strncasecmp(origin.p + n, host.p, host.n) == 0;
    }
    return false;
}

struct gate_refusal gate_check(const struct gate *g, const struct gate_request *r,
                               const struct sockaddr *here)
{
    if (r->more > 0)
        return (struct gate_refusal){400, "Host, Origin and Authorization may stand there once\n"};
    struct gate_refusal host = check_host(g, r, here);
    if (host.status)
        return host;
    if (r->origin.p && !is_own_origin(r->origin, r->host))
        return (struct gate_refusal){403, "pages of other origins are not answered\n"};
    bool get = str_is(r->method, "GET") || str_is(r->method, "HEAD");
    if (!get)
        return (struct gate_refusal){405, "only GET and HEAD\n"};
    if (r->has_body)
        return (struct gate_refusal){413, "a request has no body here\n"};
    return welcome;
}

/* ---- who asks ---- */

/* bearer gives what stands behind "Bearer"; p == NULL: it is no such credentials. */
static struct str bearer(struct str authorization)
{
    static const char scheme[] = "Bearer ";
    size_t n = sizeof scheme - 1;
    if (authorization.n <= n || strncasecmp(authorization.p, scheme, n) != 0)
        return (struct str){NULL, 0};

    struct str token = {authorization.p + n, authorization.n - n};
    while (token.n && token.p[0] == ' ') {
        token.p++;
        token.n--;
    }
    while (token.n && (token.p[token.n - 1] == ' ' || token.p[token.n - 1] == '\t'))
        token.n--;
    return token;
}

struct gate_refusal gate_knows(const struct gate *g, const struct gate_request *r)
{
    if (!g->tokens && g->local)
        return welcome;
    if (!g->tokens)
        return (struct gate_refusal){403, "other machines get /livez and /readyz only, as long as "
                                          "listen-token-file is not set\n"};
    struct str token = bearer(r->authorization);
    if (token.p && token_matches(g->tokens, token))
        return welcome;
    return (struct gate_refusal){401, "this wants Authorization: Bearer and the token\n"};
}
