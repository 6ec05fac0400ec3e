/* access.c: decides which requests are answered, by their token, Host and Origin. Tokens are wiped
 * from memory after use. */
#include "admin/access.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/ipnet.h"
#include "base/text.h"
#include "base/utf8.h"

/* ---- tokens ---- */

#define FILE_MAX 16384

/* (1) text is padded with NULs, which no token contains: two tokens equal in every byte are equal
 * in length. */
struct token {
    unsigned char text[ACCESS_TOKEN_MAX];
};

/* All valid tokens. (1) The unused ones are all NULs, and are compared like the others. */
struct tokens {
    struct token token[ACCESS_TOKENS_MAX];
    size_t n;
};

void access_tokens_free(struct tokens *t)
{
    if (!t)
        return;
    explicit_bzero(t, sizeof *t);
    free(t);
}

/* Adds one token. Errors give the number of the token and never quote it. */
static int add_token(struct tokens *t, struct str word, struct error *err)
{
    if (t->n == ACCESS_TOKENS_MAX)
        return err_set(err, ERR_CONFIG, "more than %d tokens", ACCESS_TOKENS_MAX);
    for (size_t i = 0; i < word.n; i++)
        if (!char_is_visible(word.p[i]))
            return err_set(err, ERR_CONFIG, "token %zu is not printable ASCII", t->n + 1);
    if (word.n < ACCESS_TOKEN_MIN || word.n > ACCESS_TOKEN_MAX)
        return err_set(
            err, ERR_CONFIG,
            "token %zu must have %d to %d characters; generate one with openssl rand -hex 32",
            t->n + 1, ACCESS_TOKEN_MIN, ACCESS_TOKEN_MAX);
    memcpy(t->token[t->n++].text, word.p, word.n);
    return 0;
}

/* Adds the tokens of a file's text. A line that starts with # is a comment. */
static int add_lines(struct tokens *t, struct str text, struct error *err)
{
    const char *p = text.p, *end = text.p + text.n;
    bool line_starts = true;
    while (p < end) {
        if (line_starts && *p == '#') {
            const char *eol = memchr(p, '\n', (size_t)(end - p));
            p = eol ? eol : end;
            continue;
        }
        const char *from = p;
        while (p < end && !char_is_space(*p))
            p++;
        struct str word = {from, (size_t)(p - from)};
        if (word.n > 0 && add_token(t, word, err) != 0)
            return -1;
        if (p < end) {
            line_starts = *p == '\n';
            p++;
        }
    }
    return 0;
}

/* Reads up to `size` bytes of a file and returns their number; -1, with errno, on failure. It
 * refuses a pipe, which could block, and could be read only once. */
static ssize_t read_token_file(const char *path, char *text, size_t size)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return -1;
    bool regular = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    if (!regular) {
        close(fd);
        errno = EINVAL;
        return -1;
    }

    ssize_t n = fd_read_all(fd, text, size);
    int e = errno;
    close(fd);
    errno = e;
    return n;
}

/* Adds the tokens of a file, and wipes the copy in memory. */
static int add_file(struct tokens *t, const char *path, struct error *err)
{
    char text[FILE_MAX];
    ssize_t n = read_token_file(path, text, sizeof text);
    if (n < 0)
        return err_errno(err, ERR_CONFIG, errno, "%s: could not read the token", path);

    size_t before = t->n;
    int r;
    if (n == sizeof text)
        r = err_set(err, ERR_CONFIG, "larger than 16 KiB");
    else
        r = add_lines(t, (struct str){text, (size_t)n}, err);
    explicit_bzero(text, sizeof text);

    if (r == 0 && t->n == before)
        r = err_set(err, ERR_CONFIG,
                    "the file contains no token; generate one with openssl rand -hex 32");
    if (r != 0)
        return err_prefix(err, "%s", path);
    return 0;
}

static int add_variable(struct tokens *t, const char *name, struct error *err)
{
    const char *value = getenv(name);
    size_t before = t->n;
    if (!value || !*value)
        return err_set(err, ERR_CONFIG, "the environment variable %s is not set", name);
    if (add_lines(t, str_of(value), err) != 0)
        return err_prefix(err, "%s", name);
    if (t->n == before)
        return err_set(err, ERR_CONFIG, "%s: contains no token", name);
    return 0;
}

int access_tokens_load(const char *file, const char *variable, struct tokens **ret,
                       struct error *err)
{
    struct tokens *t = calloc(1, sizeof *t);
    if (!t)
        return err_nomem(err);
    int r = 0;
    if (file)
        r = add_file(t, file, err);
    if (r == 0 && variable)
        r = add_variable(t, variable, err);
    if (r != 0) {
        access_tokens_free(t);
        return -1;
    }
    *ret = t;
    return 0;
}

/* Constant time: compares every byte regardless of earlier differences. */
static unsigned tokens_differ(const struct token *a, const struct token *b)
{
    volatile unsigned found = 0;
    for (size_t i = 0; i < ACCESS_TOKEN_MAX; i++)
        found |= (unsigned)(a->text[i] ^ b->text[i]);
    return found;
}

bool access_token_matches(const struct tokens *t, struct str given)
{
    struct token g = {{0}};
    unsigned matching = 0;
    bool possible = given.n >= ACCESS_TOKEN_MIN && given.n <= ACCESS_TOKEN_MAX;
    possible = possible && !memchr(given.p, '\0', given.n);
    if (possible)
        memcpy(g.text, given.p, given.n);
    /* Unused ones are compared as well, so that the time does not reveal their number. */
    for (size_t i = 0; i < ACCESS_TOKENS_MAX; i++) {
        unsigned same = tokens_differ(&t->token[i], &g) == 0;
        matching |= same & (i < t->n);
    }
    explicit_bzero(&g, sizeof g);
    return possible && matching;
}

int access_token_variable(const char *name, struct error *err)
{
    if (text_is_variable(str_of(name)))
        return 0;
    return err_set(err, ERR_CONFIG,
                   "this must be the name of an environment variable, not a token");
}

/* ---- requests ---- */

static const struct access_refusal allowed = {0, ""};

/* ---- Host ---- */

#define PORT_MAX 6 /* a colon and five digits */

/* Whether [p, end) may follow a host: it must be empty, or a colon and digits. */
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

/* Stores the n bytes at p as the name, in lower case, and checks whether they are an address.
 * Returns false if there are none, or too many. */
static bool set_name(struct access_host *h, const char *p, size_t n)
{
    if (n == 0 || n >= sizeof h->name)
        return false;
    for (size_t i = 0; i < n; i++)
        h->name[i] = (char)tolower((unsigned char)p[i]);
    h->name[n] = '\0';
    h->is_address = ipnet_of_text(h->name, &h->address);
    return true;
}

/* Reads [::1] or [::1]:PORT. */
static bool parse_brackets(struct str text, struct access_host *ret)
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

bool access_host_parse(struct str text, struct access_host *ret)
{
    *ret = (struct access_host){.is_address = false};
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

/* Compares two addresses. An IPv4 address mapped into IPv6 is the IPv4 address. */
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

/* Cuts the next word off a list. It returns false at the end. */
static bool next_host(const char **list, struct str *ret)
{
    *list += strspn(*list, ", \t");
    *ret = (struct str){*list, strcspn(*list, ", \t")};
    *list += ret->n;
    return ret->n > 0;
}

/* Reads a word of listen-hosts: like Host, but without a port, and with brackets optional around an
 * IPv6 address. */
static bool read_listed(struct str word, struct access_host *ret)
{
    *ret = (struct access_host){.is_address = false};
    if (set_name(ret, word.p, word.n) && ret->is_address)
        return true;

    bool brackets = word.p[0] == '[' && word.p[word.n - 1] == ']';
    bool has_port = !brackets && memchr(word.p, ':', word.n);
    if (has_port)
        return false;
    return access_host_parse(word, ret);
}

int access_hosts_check(const char *list, struct error *err)
{
    struct access_host h;
    struct str word;
    while (next_host(&list, &word)) {
        if (str_is(word, "*") || read_listed(word, &h))
            continue;
        return err_set(err, ERR_CONFIG,
                       "\"%.*s\" is neither a name nor an address; write it without "
                       "a port: relay.example, 10.0.0.7",
                       (int)(word.n < 100 ? word.n : 100), word.p);
    }
    return 0;
}

/* Whether a host is in the list of listen-hosts, which may be NULL. */
static bool is_listed(const char *list, const struct access_host *h)
{
    struct access_host one;
    struct str word;
    while (list && next_host(&list, &word)) {
        if (str_is(word, "*"))
            return true;
        if (!read_listed(word, &one) || one.is_address != h->is_address)
            continue;

        bool same = strcmp(one.name, h->name) == 0;
        if (h->is_address)
            same = same_address((const struct sockaddr *)&one.address,
                                (const struct sockaddr *)&h->address);
        if (same)
            return true;
    }
    return false;
}

/* Whether a host is certainly this machine: localhost, a loopback address, or the address that the
 * client connected to. */
static bool is_ours(const struct access_host *h, const struct sockaddr *here)
{
    const struct sockaddr *address = (const struct sockaddr *)&h->address;
    if (!h->is_address)
        return strcmp(h->name, "localhost") == 0;
    const char *special = ipnet_special(address);
    if (special && strcmp(special, IPNET_LOOPBACK) == 0)
        return true;
    bool reached_by_address = here->sa_family == AF_INET || here->sa_family == AF_INET6;
    return reached_by_address && same_address(address, here);
}

/* Refuses a request under a name that is not ours: see access.h. */
static struct access_refusal check_host(const struct access_rules *rules,
                                        const struct access_request *r, const struct sockaddr *here)
{
    struct access_host h;
    if (!r->host.p && r->old)
        return allowed; /* browsers do not use HTTP/1.0 */
    if (!r->host.p)
        return (struct access_refusal){400, "no Host header\n"};
    if (!access_host_parse(r->host, &h))
        return (struct access_refusal){400, "Host is not a name or address\n"};
    if (is_ours(&h, here) || is_listed(rules->hosts, &h))
        return allowed;
    return (struct access_refusal){403, "this host name is not accepted; add it to listen-hosts\n"};
}

/* ---- Origin ---- */

struct access_refusal access_check(const struct access_rules *rules, const struct access_request *r,
                                   const struct sockaddr *here)
{
    if (r->more > 0)
        return (struct access_refusal){400, "Host, Origin and Authorization may occur only once\n"};

    struct access_refusal host = check_host(rules, r, here);
    if (host.status)
        return host;

    static const char *const schemes[] = {"http://", "https://"};
    bool own = false;
    for (size_t i = 0; r->origin.p && i < sizeof schemes / sizeof *schemes; i++) {
        size_t n = strlen(schemes[i]);
        bool fits = r->origin.n > n && r->origin.n - n == r->host.n;
        if (fits && strncasecmp(r->origin.p, schemes[i], n) == 0 &&
            strncasecmp(r->origin.p + n, r->host.p, r->host.n) == 0)
            own = true;
    }
    if (r->origin.p && !own)
        return (struct access_refusal){403, "requests from other origins are refused\n"};

    bool get = str_is(r->method, "GET") || str_is(r->method, "HEAD");
    if (!get)
        return (struct access_refusal){405, "only GET and HEAD are allowed\n"};
    if (r->has_body)
        return (struct access_refusal){413, "requests with a body are refused\n"};
    return allowed;
}

/* ---- Authorization ---- */

/* Returns the token after "Bearer"; p == NULL: the header has another scheme. */
static struct str bearer_of(struct str authorization)
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

struct access_refusal access_details(const struct access_rules *rules,
                                     const struct access_request *r)
{
    if (!rules->tokens && rules->local)
        return allowed;
    if (!rules->tokens)
        return (struct access_refusal){403, "other machines can only read /livez and /readyz, "
                                            "unless listen-token-file is set\n"};

    struct str token = bearer_of(r->authorization);
    if (token.p && access_token_matches(rules->tokens, token))
        return allowed;
    return (struct access_refusal){401, "this needs the header Authorization: Bearer TOKEN\n"};
}
