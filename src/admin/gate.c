/* gate.c: decides which requests are answered. */
#include "admin/gate.h"

#include <ctype.h>
#include <netinet/in.h>
#include <string.h>
#include <strings.h>

#include "base/char.h"
#include "base/ipnet.h"

static const struct gate_refusal welcome = {0, ""};

/* ---- Host ---- */

#define PORT_MAX 6 /* a colon and five digits */

/* is_port reports whether [p, end) may follow a host: it is empty, or a colon and digits. */
static bool is_port(const char *p, const char *end)
{
    if (p == end)
        return true;
    bool plausible = *p == ':' && end - p <= PORT_MAX;
    if (!plausible)
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

/* set_name takes the n bytes at p for the name, in lower case, and sees whether they are an
 * address. It returns false if there are none, or too many. */
static bool set_name(struct gate_host *h, const char *p, size_t n)
{
    if (n == 0 || n >= sizeof h->name)
        return false;
    for (size_t i = 0; i < n; i++)
        h->name[i] = (char)tolower((unsigned char)p[i]);
    h->name[n] = '\0';
    h->is_address = ipnet_of_text(h->name, &h->address);
    return true;
}

/* parse_brackets reads [::1] or [::1]:PORT. */
static bool parse_brackets(struct str text, struct gate_host *ret)
{
    const char *close = memchr(text.p, ']', text.n);
    bool has_nul = memchr(text.p, '\0', text.n);
    if (!close || has_nul)
        return false;
    if (!is_port(close + 1, text.p + text.n))
        return false;
    if (!set_name(ret, text.p + 1, (size_t)(close - text.p) - 1))
        return false;
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

    bool trailing_dot = n > 1 && text.p[n - 1] == '.';
    if (trailing_dot)
        n--;
    return set_name(ret, text.p, n);
}

static bool is_loopback(const struct sockaddr *sa)
{
    const char *what = ipnet_special(sa);
    return what && strcmp(what, IPNET_LOOPBACK) == 0;
}

/* same_address compares two addresses. An IPv4 address mapped into IPv6 is the IPv4 address. */
static bool same_address(const struct sockaddr *a, const struct sockaddr *b)
{
    struct ipnet net = {.family = a->sa_family};
    if (a->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, a, sizeof in);
        memcpy(net.addr, &in.sin_addr, 4);
        net.bits = 32;
    } else {
        struct sockaddr_in6 in6;
        memcpy(&in6, a, sizeof in6);
        memcpy(net.addr, &in6.sin6_addr, 16);
        net.bits = 128;
    }
    return ipnet_holds(&net, b);
}

/* next_host cuts the next word off a list. It returns false at the end. */
static bool next_host(const char **list, struct str *ret)
{
    *list += strspn(*list, ", \t");
    *ret = (struct str){*list, strcspn(*list, ", \t")};
    *list += ret->n;
    return ret->n > 0;
}

/* read_listed reads a word of listen-hosts. It is like Host, but has no port, and an IPv6 address
 * needs no brackets. */
static bool read_listed(struct str word, struct gate_host *ret)
{
    *ret = (struct gate_host){.is_address = false};
    if (set_name(ret, word.p, word.n) && ret->is_address)
        return true;

    bool brackets = word.p[0] == '[' && word.p[word.n - 1] == ']';
    bool has_port = !brackets && memchr(word.p, ':', word.n);
    if (has_port)
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
            "\"%.*s\" is not a name or address; write them without a port: relay.example, 10.0.0.7",
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

/* is_listed reports whether a host is in the list of listen-hosts, which may be NULL. */
static bool is_listed(const char *list, const struct gate_host *h)
{
    struct gate_host one;
    struct str word;
    if (!list)
        return false;
    while (next_host(&list, &word)) {
        bool matches = str_is(word, "*") || (read_listed(word, &one) && same_host(&one, h));
        if (matches)
            return true;
    }
    return false;
}

/* is_ours reports whether a host is one that nobody else can own: localhost, a loopback address, or
 * the address we were reached at. */
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

/* check_host refuses a request under a name that is not ours: see gate.h. */
static struct gate_refusal check_host(const struct gate *g, const struct gate_request *r,
                                      const struct sockaddr *here)
{
    struct gate_host h;
    if (!r->host.p && r->old)
        return welcome; /* browsers do not use HTTP/1.0 */
    if (!r->host.p)
        return (struct gate_refusal){400, "no Host header\n"};
    if (!gate_host_parse(r->host, &h))
        return (struct gate_refusal){400, "Host is not a name or address\n"};
    if (is_ours(&h, here) || is_listed(g->hosts, &h))
        return welcome;
    return (struct gate_refusal){403,
                                 "this host name is not accepted here; listen-hosts adds names\n"};
}

/* ---- Origin ---- */

/* without_scheme returns what follows http:// or https:// in an origin; p == NULL: neither does. */
static struct str without_scheme(struct str origin)
{
    static const char *const schemes[] = {"http://", "https://"};
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        size_t n = strlen(schemes[i]);
        if (origin.n > n && strncasecmp(origin.p, schemes[i], n) == 0)
            return (struct str){origin.p + n, origin.n - n};
    }
    return (struct str){NULL, 0};
}

/* is_own_origin reports whether an origin is exactly the host of the request. */
static bool is_own_origin(struct str origin, struct str host)
{
    struct str from = without_scheme(origin);
    if (!from.p || from.n != host.n)
        return false;
    return strncasecmp(from.p, host.p, host.n) == 0;
}

struct gate_refusal gate_check(const struct gate *g, const struct gate_request *r,
                               const struct sockaddr *here)
{
    if (r->more > 0)
        return (struct gate_refusal){400, "Host, Origin and Authorization may occur only once\n"};

    struct gate_refusal host = check_host(g, r, here);
    if (host.status)
        return host;
    bool foreign = r->origin.p && !is_own_origin(r->origin, r->host);
    if (foreign)
        return (struct gate_refusal){403, "requests from other origins are refused\n"};

    bool get = str_is(r->method, "GET") || str_is(r->method, "HEAD");
    if (!get)
        return (struct gate_refusal){405, "only GET and HEAD are allowed\n"};
    if (r->has_body)
        return (struct gate_refusal){413, "a request must have no body\n"};
    return welcome;
}

/* ---- Authorization ---- */

/* bearer returns the token after "Bearer"; p == NULL: the header has another scheme. */
static struct str bearer(struct str authorization)
{
    static const char scheme[] = "Bearer ";
    size_t n = sizeof scheme - 1;
    bool is_bearer = authorization.n > n && strncasecmp(authorization.p, scheme, n) == 0;
    if (!is_bearer)
        return (struct str){NULL, 0};

    struct str token = {authorization.p + n, authorization.n - n};
    while (token.n && token.p[0] == ' ') {
        token.p++;
        token.n--;
    }
    while (token.n && char_is_blank(token.p[token.n - 1]))
        token.n--;
    return token;
}

struct gate_refusal gate_knows(const struct gate *g, const struct gate_request *r)
{
    if (!g->tokens && g->local)
        return welcome;
    if (!g->tokens)
        return (struct gate_refusal){403, "other machines can only read /livez and /readyz, "
                                          "unless listen-token-file is set\n"};

    struct str token = bearer(r->authorization);
    if (token.p && token_matches(g->tokens, token))
        return welcome;
    return (struct gate_refusal){401, "this needs Authorization: Bearer and the token\n"};
}
