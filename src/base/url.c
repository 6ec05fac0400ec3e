#include "base/url.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/text.h"
#include "base/utf8.h"

#define PASSWORD_MAX 4096
#define PARAM_MAX 2048
#define PATH_MAX_BYTES 2048
#define PART_MAX 256 /* for user, host and port, with the NUL */
#define NO_PASSWORD "a password does not belong in a URL: "
#define ELSEWHERE "into a file, with password-file=FILE, or into the environment, as %s"

/* Returns the rest of s after the character at p, which points into s. */
static struct str after(struct str s, const char *p)
{
    const char *from = p + 1;
    return (struct str){from, s.n - (size_t)(from - s.p)};
}

/* Decodes the %XX at the start of s; -1 if malformed. */
static int decode_escape(struct str s)
{
    if (s.n < 3)
        return -1;

    int high = char_hex(s.p[1]);
    int low = char_hex(s.p[2]);
    if (high < 0 || low < 0)
        return -1;
    return high * 16 + low;
}

int url_decode(struct str from, char *to, size_t size, struct error *err)
{
    size_t k = 0;
    for (size_t i = 0; i < from.n; i++) {
        int c = (unsigned char)from.p[i];
        if (c == '%') {
            c = decode_escape((struct str){from.p + i, from.n - i});
            if (c < 0)
                return err_set(err, ERR_CONFIG,
                               "a %% in the URL must be followed by two hex digits");
            i += 2;
        }
        if (char_is_control((char)c))
            return err_set(err, ERR_CONFIG, "the URL contains a control character");
        if (k + 1 >= size)
            return err_set(err, ERR_CONFIG, "a part of the URL is too long");
        to[k++] = (char)c;
    }
    to[k] = '\0';
    return 0;
}

char *url_decoded(struct str from)
{
    struct error ignored;
    char *to = malloc(from.n + 1);
    if (!to)
        return NULL;
    if (url_decode(from, to, from.n + 1, &ignored) == 0)
        return to;
    free(to);
    return NULL;
}

/* Returns a copy of the content of a password file, without the trailing newline. */
static char *read_password(const char *path, struct error *err)
{
    char text[PASSWORD_MAX + 2], *copy = NULL;
    ssize_t size = fd_read_file(path, text, sizeof text - 1);
    size_t n = size < 0 ? 0 : (size_t)size;
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r'))
        n--;

    if (size < 0) {
        err_errno(err, ERR_UNAVAILABLE, errno, "could not read the password from %s", path);
    } else if (n == 0) {
        err_set(err, ERR_UNAVAILABLE, "the password file %s is empty", path);
    } else if (n > PASSWORD_MAX) {
        err_set(err, ERR_UNAVAILABLE, "the password file %s is too long: over %d bytes", path,
                PASSWORD_MAX);
    } else {
        copy = strndup(text, n);
        if (!copy)
            err_nomem(err);
    }
    explicit_bzero(text, sizeof text);
    return copy;
}

char *url_password(const char *file, const char *given, struct error *err)
{
    *err = (struct error){0};
    if (file)
        return read_password(file, err);
    if (!given)
        return NULL;
    char *copy = strdup(given);
    if (!copy)
        err_nomem(err);
    return copy;
}

void url_password_free(char *password)
{
    if (password)
        explicit_bzero(password, strlen(password));
    free(password);
}

int url_password_env(const char *name, char **ret, struct error *err)
{
    const char *password = getenv(name);
    bool given = password && *password;
    if (!given)
        return 0;
    return option_copy(ret, password, NULL, err);
}

/* The whole URL */

static const struct option_def connection_options[] = {
    {"user", "NAME", NULL, "user name to log in with", option_copy,
     .at = offsetof(struct url, user)},
    {"password-file", "FILE", NULL, "file with the password, reread for each connection",
     option_file, .at = offsetof(struct url, password_file)},
    {"ca", "FILE", NULL, "trusted CA certificates; default: the system's", option_file,
     .at = offsetof(struct url, ca)},
    {"cert", "FILE", NULL, "client certificate, for a broker that requires one", option_file,
     .at = offsetof(struct url, cert)},
    {"key", "FILE", NULL, "private key of the client certificate", option_file,
     .at = offsetof(struct url, key)},
    {NULL},
};

/* The targets of a URL's parts, and how to parse them. */
struct reading {
    struct url *url;
    const char *default_port, *password_env;
    const struct option_def *table;
    void *target;
};

/* Returns the row whose name ends with a star and matches `name`, as "rdkafka.*" matches
 * "rdkafka.linger.ms"; NULL if none does. */
static const struct option_def *pattern_of(const struct option_def *table, const char *name)
{
    for (; table && table->name; table++) {
        size_t n = strlen(table->name) - 1;
        bool pattern = table->name[n] == '*';
        if (pattern && strncmp(name, table->name, n) == 0)
            return table;
    }
    return NULL;
}

/* Passes the rest of the name and the value to such a row, as in "linger.ms=5". */
static int set_pattern(const struct option_def *o, void *target, const char *name,
                       const char *value, struct error *err)
{
    struct buf text;
    buf_init(&text, PATH_MAX_BYTES);
    buf_addf(&text, "%s=%s", name + strlen(o->name) - 1, value);
    const char *pair = buf_cstr(&text);
    int rc;
    if (pair)
        rc = option_apply(o, target, pair, err);
    else
        rc = err_nomem(err);
    buf_release(&text);
    if (rc != 0)
        return err_prefix(err, "%s", name);
    return 0;
}

/* Passes one name=value to our table if it has the name, otherwise to the caller's table. Without a
 * caller's table, ours suggests the nearest name. */
static int set_one(const struct reading *r, const char *name, const char *value, struct error *err)
{
    bool ours = option_find(connection_options, name) != NULL;
    if (ours || !r->table)
        return option_set(connection_options, r->url, name, value, err);
    const struct option_def *pattern = pattern_of(r->table, name);
    if (pattern)
        return set_pattern(pattern, r->target, name, value, err);
    return option_set(r->table, r->target, name, value, err);
}

/* Decodes one name=value and passes it on. */
static int set_parameter(const struct reading *r, struct str s, struct error *err)
{
    char name[64], value[PARAM_MAX];
    const char *equals = memchr(s.p, '=', s.n);
    struct str name_part = s;
    if (equals)
        name_part.n = (size_t)(equals - s.p);

    if (url_decode(name_part, name, sizeof name, err) != 0)
        return -1;
    if (strcmp(name, "password") == 0)
        return err_set(err, ERR_CONFIG, NO_PASSWORD "put it " ELSEWHERE, r->password_env);
    if (!equals)
        return err_set(err, ERR_CONFIG, "%s needs a value: %s=...", name, name);
    if (url_decode(after(s, equals), value, sizeof value, err) != 0)
        return -1;
    return set_one(r, name, value, err);
}

static int set_parameters(const struct reading *r, const char *query, struct error *err)
{
    for (const char *p = query; *p;) {
        struct str one = {p, strcspn(p, "&")};
        if (one.n && set_parameter(r, one, err) != 0) {
            /* It may be the rest of a password with an unescaped ?. */
            bool may_be_secret = memchr(one.p, '@', one.n) != NULL;
            if (may_be_secret)
                err_set(err, ERR_CONFIG,
                        "an option of the URL that contains @ is not understood; write @ as %%40");
            return -1;
        }
        p += one.n;
        if (*p == '&')
            p++;
    }
    return 0;
}

/* Parses host[:port] into two owned texts. An IPv6 address is written in brackets. An empty host
 * means 127.0.0.1. */
static int read_host(struct str s, const char *default_port, char **ret_host, char **ret_port,
                     struct error *err)
{
    struct str host = s, rest = s;
    const char *bracket = NULL;
    if (s.n && *s.p == '[')
        bracket = memchr(s.p, ']', s.n);
    if (bracket) {
        host = (struct str){s.p + 1, (size_t)(bracket - s.p - 1)};
        rest = after(s, bracket);
    }
    const char *colon = memchr(rest.p, ':', rest.n);
    if (colon && !bracket)
        host.n = (size_t)(colon - s.p);

    char text[PART_MAX];
    if (url_decode(host, text, sizeof text, err) != 0)
        return -1;
    if (option_copy(ret_host, text[0] ? text : "127.0.0.1", NULL, err) != 0)
        return -1;
    if (!colon)
        return option_copy(ret_port, default_port, NULL, err);

    int64_t n;
    if (url_decode(after(s, colon), text, sizeof text, err) != 0)
        return -1;
    if (text_int(text, 1, 65535, &n, err) != 0)
        return err_prefix(err, "port");
    return option_copy(ret_port, text, NULL, err);
}

static int add_host(const struct reading *r, struct str s, struct error *err)
{
    struct url *u = r->url;
    if (u->n_hosts == URL_HOSTS_MAX)
        return err_set(err, ERR_CONFIG, "more than %d hosts; a few bootstrap hosts are enough",
                       URL_HOSTS_MAX);
    struct url_host *more = reallocarray(u->hosts, u->n_hosts + 1, sizeof *more);
    if (!more)
        return err_nomem(err);
    u->hosts = more;

    struct url_host *h = &more[u->n_hosts++];
    *h = (struct url_host){0};
    return read_host(s, r->default_port, &h->host, &h->port, err);
}

/* Parses host[:port][,host[:port]...]. An empty list means the local host; an empty entry in a
 * longer list is an error. */
static int read_hosts(const struct reading *r, struct str s, struct error *err)
{
    const char *comma;
    while ((comma = memchr(s.p, ',', s.n))) {
        struct str one = {s.p, (size_t)(comma - s.p)};
        if (one.n == 0)
            return err_set(err, ERR_CONFIG, "a host is missing before a comma");
        if (add_host(r, one, err) != 0)
            return -1;
        s = after(s, comma);
    }
    if (s.n == 0 && r->url->n_hosts > 0)
        return err_set(err, ERR_CONFIG, "a host is missing after the last comma");
    return add_host(r, s, err);
}

/* Parses [user@]hosts. */
static int read_authority(const struct reading *r, struct str s, struct error *err)
{
    char user[PART_MAX];
    const char *at = memrchr(s.p, '@', s.n);
    if (!at)
        return read_hosts(r, s, err);
    struct str login = {s.p, (size_t)(at - s.p)};
    if (memchr(login.p, ':', login.n))
        return err_set(err, ERR_CONFIG, NO_PASSWORD "write USER@HOST and put it " ELSEWHERE,
                       r->password_env);
    if (url_decode(login, user, sizeof user, err) != 0)
        return -1;
    if (user[0] != '\0' && option_copy(&r->url->user, user, NULL, err) != 0)
        return -1;
    return read_hosts(r, after(s, at), err);
}

static void make_label(struct url *u)
{
    const struct url_host *first = &u->hosts[0];
    char others[40] = "";
    if (u->n_hosts == 2)
        snprintf(others, sizeof others, " and 1 other");
    if (u->n_hosts > 2)
        snprintf(others, sizeof others, " and %zu others", u->n_hosts - 1);
    snprintf(u->label, sizeof u->label, "%.30s at %.200s:%.10s%s", u->scheme, first->host,
             first->port, others);
}

/* Parses the part before the parameters. */
static int read_address(const struct reading *r, const char *text, struct error *err)
{
    char scheme[32], path[PATH_MAX_BYTES] = "";
    size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789+-");
    const char *colon = text + n;
    bool named = n > 0 && n < sizeof scheme && strncmp(colon, "://", 3) == 0;
    if (!named)
        return err_set(err, ERR_CONFIG, "write KIND://HOST:PORT/...");
    snprintf(scheme, sizeof scheme, "%.*s", (int)n, text);
    if (option_copy(&r->url->scheme, scheme, NULL, err) != 0)
        return -1;

    struct str authority = {colon + 3, strcspn(colon + 3, "/?")};
    const char *slash = authority.p + authority.n;
    if (read_authority(r, authority, err) != 0)
        return -1;
    struct str rest = {slash, strcspn(slash, "?")};
    if (rest.n > 1 && url_decode(after(rest, slash), path, sizeof path, err) != 0)
        return -1;
    if (option_copy(&r->url->path, path, NULL, err) != 0)
        return -1;
    make_label(r->url);
    return 0;
}

int url_query(const char *text, const char *password_env, const struct option_def *table,
              void *target, struct url *ret, struct error *err)
{
    struct reading r = {ret, NULL, password_env, table, target};
    if (table && option_defaults(table, target, err) != 0)
        return -1;
    const char *query = strchr(text, '?');
    if (query && set_parameters(&r, query + 1, err) != 0)
        return -1;
    bool has_cert = ret->cert != NULL, has_key = ret->key != NULL;
    if (has_cert != has_key)
        return err_set(err, ERR_CONFIG, "cert and key must be given together");
    return url_password_env(password_env, &ret->password, err);
}

int url_parse(const char *text, const char *default_port, const char *password_env,
              const struct option_def *table, void *target, struct url *ret, struct error *err)
{
    struct reading r = {ret, default_port, password_env, table, target};
    *ret = (struct url){0};
    if (read_address(&r, text, err) != 0)
        return -1;
    return url_query(text, password_env, table, target, ret, err);
}

void url_release(struct url *u)
{
    char *const all[] = {u->scheme, u->user, u->path, u->password_file, u->ca, u->cert, u->key};
    url_password_free(u->password);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
    for (size_t i = 0; i < u->n_hosts; i++) {
        free(u->hosts[i].host);
        free(u->hosts[i].port);
    }
    free(u->hosts);
    *u = (struct url){0};
}
