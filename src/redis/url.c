#include "redis/url.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "base/char.h"
#include "base/small_file.h"
#include "base/text.h"

#define PASSWORD_MAX 4096
#define PARAM_MAX 2048
#define PART_MAX 256 /* of the user, the host and the port, with the NUL */
#define DB_MAX 1000000
#define NO_PASSWORD "a password does not belong in a URL: "
#define ELSEWHERE \
    "into a file, with password-file=FILE, or into the environment, as " REDIS_PASSWORD_ENV

const struct option_def redis_url_options[] = {
    {"user", "NAME", NULL, "user to authenticate as; the default one if not given", option_copy,
     .at = offsetof(struct redis_url, user)},
    {"password-file", "FILE", NULL,
     "file with the password, read at each connection; else " REDIS_PASSWORD_ENV, option_copy,
     .at = offsetof(struct redis_url, password_file)},
    {"db", "N", "0", "number of the database", option_long, .at = offsetof(struct redis_url, db),
     .max = DB_MAX},
    {"ca", "FILE", NULL, "certificates to trust; the system's if not given", option_copy,
     .at = offsetof(struct redis_url, ca)},
    {"cert", "FILE", NULL, "our own certificate, for a server that asks for one", option_copy,
     .at = offsetof(struct redis_url, cert)},
    {"key", "FILE", NULL, "the key of our certificate", option_copy,
     .at = offsetof(struct redis_url, key)},
    {NULL},
};

/* Where the parts of a URL go: what is about the connection into `url`, all other parameters into
 * `target` through `table`, which may be NULL. */
struct destination {
    struct redis_url *url;
    const struct option_def *table;
    void *target;
};

static bool begins_with(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

/* str_after returns the rest of s after the character at p, which points into s. */
static struct str str_after(struct str s, const char *p)
{
    const char *from = p + 1;
    return (struct str){from, s.n - (size_t)(from - s.p)};
}

/* decode_escape reads the two digits of the %XX that begins s; -1 if they are not there. */
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

/* decode copies `from` into `to` with every %XX undone. Control characters have no place in any
 * part of a URL. */
static int decode(struct str from, char *to, size_t size, struct error *err)
{
    size_t k = 0;
    for (size_t i = 0; i < from.n; i++) {
        int c = (unsigned char)from.p[i];
        if (c == '%') {
            c = decode_escape((struct str){from.p + i, from.n - i});
            if (c < 0)
                return err_set(err, ERR_CONFIG, "a %% in the URL needs two hex digits after it");
            i += 2;
        }
        if (char_is_control((char)c))
            return err_set(err, ERR_CONFIG, "the URL has a control character in it");
        if (k + 1 >= size)
            return err_set(err, ERR_CONFIG, "a part of the URL is too long");
        to[k++] = (char)c;
    }
    to[k] = '\0';
    return 0;
}

/* set_parameter passes one name=value to our own table if that knows the name, else to the
 * caller's. Without a table of the caller it passes an unknown name to our own, because option_set
 * then suggests the nearest name. */
static int set_parameter(struct str s, const struct destination *to, struct error *err)
{
    char name[64], value[PARAM_MAX];
    const char *equals = memchr(s.p, '=', s.n);
    struct str name_part = s;
    if (equals)
        name_part.n = (size_t)(equals - s.p);

    if (decode(name_part, name, sizeof name, err) != 0)
        return -1;
    if (strcmp(name, "password") == 0)
        return err_set(err, ERR_CONFIG, NO_PASSWORD "put it " ELSEWHERE);
    if (!equals)
        return err_set(err, ERR_CONFIG, "%s needs a value: %s=...", name, name);
    if (decode(str_after(s, equals), value, sizeof value, err) != 0)
        return -1;

    bool ours = option_find(redis_url_options, name) != NULL;
    if (ours || !to->table)
        return option_set(redis_url_options, to->url, name, value, err);
    return option_set(to->table, to->target, name, value, err);
}

static int set_parameters(const char *p, const struct destination *to, struct error *err)
{
    while (*p) {
        struct str one = {p, strcspn(p, "&")};
        if (one.n && set_parameter(one, to, err) != 0)
            return -1;
        p += one.n;
        if (*p == '&')
            p++;
    }
    return 0;
}

static int set_user(struct str s, struct redis_url *u, struct error *err)
{
    char user[PART_MAX];
    if (memchr(s.p, ':', s.n))
        return err_set(err, ERR_CONFIG,
                       NO_PASSWORD "write redis://USER@HOST and put it " ELSEWHERE);
    if (decode(s, user, sizeof user, err) != 0)
        return -1;
    if (user[0] == '\0')
        return 0;
    return option_copy(&u->user, user, NULL, err);
}

static int set_host(struct str s, struct redis_url *u, struct error *err)
{
    char host[PART_MAX];
    if (decode(s, host, sizeof host, err) != 0)
        return -1;
    if (host[0] == '\0')
        return option_copy(&u->host, "127.0.0.1", NULL, err);
    return option_copy(&u->host, host, NULL, err);
}

static int set_port(struct str s, struct redis_url *u, struct error *err)
{
    char port[PART_MAX];
    int64_t n;
    if (decode(s, port, sizeof port, err) != 0)
        return -1;
    if (text_int(port, 1, 65535, &n, err) != 0)
        return err_prefix(err, "port");
    return option_copy(&u->port, port, NULL, err);
}

/* read_host_port reads host[:port]. An IPv6 address as the host stands in brackets, and its colons
 * do not begin a port. */
static int read_host_port(struct str s, struct redis_url *u, struct error *err)
{
    struct str host = s, rest = s;
    const char *bracket = NULL;
    if (s.n && *s.p == '[')
        bracket = memchr(s.p, ']', s.n);
    if (bracket) {
        host = (struct str){s.p + 1, (size_t)(bracket - s.p - 1)};
        rest = str_after(s, bracket);
    }
    const char *colon = memchr(rest.p, ':', rest.n);
    if (colon && !bracket)
        host.n = (size_t)(colon - s.p);

    if (set_host(host, u, err) != 0)
        return -1;
    if (!colon)
        return option_copy(&u->port, "6379", NULL, err);
    return set_port(str_after(s, colon), u, err);
}

/* read_authority reads [user@]host[:port]. */
static int read_authority(struct str s, struct redis_url *u, struct error *err)
{
    const char *at = memrchr(s.p, '@', s.n);
    if (!at)
        return read_host_port(s, u, err);
    struct str user = {s.p, (size_t)(at - s.p)};
    if (set_user(user, u, err) != 0)
        return -1;
    return read_host_port(str_after(s, at), u, err);
}

static int read_db(struct str s, struct redis_url *u, struct error *err)
{
    char db[16];
    if (decode(s, db, sizeof db, err) != 0)
        return err_prefix(err, "database number");
    if (text_int(db, 0, DB_MAX, &u->db, err) != 0)
        return err_prefix(err, "database number");
    return 0;
}

/* read_network reads //authority[/db], up to the parameters. */
static int read_network(const char *p, struct redis_url *u, struct error *err)
{
    if (!begins_with(p, "//"))
        return err_set(err, ERR_CONFIG, "write redis://HOST:PORT/DB?stream=NAME");

    struct str authority = {p + 2, strcspn(p + 2, "/?")};
    const char *slash = authority.p + authority.n;
    struct str path = {slash, strcspn(slash, "?")};
    if (read_authority(authority, u, err) != 0)
        return -1;
    if (path.n > 1 && read_db(str_after(path, slash), u, err) != 0)
        return -1;

    snprintf(u->label, sizeof u->label, "redis at %.200s:%s", u->host, u->port);
    return 0;
}

/* read_local reads the path of a Unix socket, up to the parameters. */
static int read_local(const char *p, struct redis_url *u, struct error *err)
{
    char path[sizeof((struct sockaddr_un *)0)->sun_path];
    if (begins_with(p, "//"))
        p += 2;
    struct str text = {p, strcspn(p, "?")};
    if (decode(text, path, sizeof path, err) != 0)
        return err_prefix(err, "path of the socket (at most %zu bytes)", sizeof path - 1);
    if (path[0] != '/')
        return err_set(err, ERR_CONFIG, "write unix:/PATH/TO/SOCKET?stream=NAME");

    snprintf(u->label, sizeof u->label, "redis at %s", path);
    return option_copy(&u->path, path, NULL, err);
}

/* read_address reads what stands before the parameters. */
static int read_address(const char *text, struct redis_url *u, struct error *err)
{
    const char *colon = strchr(text, ':');
    if (!colon)
        return err_set(err, ERR_CONFIG, "write redis://HOST:PORT/DB?stream=NAME");

    u->tls = begins_with(text, "rediss:");
    bool local = begins_with(text, "unix:") || begins_with(text, "redis+unix:");
    if (local)
        return read_local(colon + 1, u, err);
    return read_network(colon + 1, u, err);
}

static int check_tls(const struct redis_url *u, struct error *err)
{
    bool has_cert = u->cert != NULL, has_key = u->key != NULL;
    bool has_files = u->ca || has_cert || has_key;
    if (has_files && !u->tls)
        return err_set(err, ERR_CONFIG,
                       "ca, cert and key are for rediss://, which is redis:// with TLS");
    if (has_cert != has_key)
        return err_set(err, ERR_CONFIG, "cert and key go together");
    return 0;
}

static int take_password(struct redis_url *u, struct error *err)
{
    const char *password = getenv(REDIS_PASSWORD_ENV);
    bool given = password && *password;
    if (!given)
        return 0;
    return option_copy(&u->password, password, NULL, err);
}

int redis_url_parse(const char *text, const struct option_def *table, void *target,
                    struct redis_url *ret, struct error *err)
{
    struct destination to = {ret, table, target};
    *ret = (struct redis_url){0};

    if (read_address(text, ret, err) != 0)
        return -1;
    const char *query = strchr(text, '?');
    if (query && set_parameters(query + 1, &to, err) != 0)
        return -1;
    if (check_tls(ret, err) != 0)
        return -1;

    return take_password(ret, err);
}

void redis_url_release(struct redis_url *u)
{
    char *const all[] = {u->host,     u->port, u->path, u->user, u->password_file,
                         u->password, u->ca,   u->cert, u->key};
    if (u->password)
        explicit_bzero(u->password, strlen(u->password));
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
    *u = (struct redis_url){0};
}

static bool is_line_end(char c)
{
    return c == '\n' || c == '\r';
}

/* copy_password copies the content of a password file, without the line end. */
static char *copy_password(const char *path, struct str s, struct error *err)
{
    while (s.n && is_line_end(s.p[s.n - 1]))
        s.n--;

    if (s.n == 0) {
        err_set(err, ERR_UNAVAILABLE, "the password file %s is empty", path);
        return NULL;
    }
    if (s.n > PASSWORD_MAX) {
        err_set(err, ERR_UNAVAILABLE, "the password file %s is too long: over %d bytes", path,
                PASSWORD_MAX);
        return NULL;
    }
    char *copy = strndup(s.p, s.n);
    if (!copy)
        err_nomem(err);
    return copy;
}

static char *read_password(const char *path, struct error *err)
{
    char text[PASSWORD_MAX + 2];
    ssize_t n = small_file_read(path, text, sizeof text - 1);
    if (n < 0) {
        err_errno(err, ERR_UNAVAILABLE, errno, "could not read the password from %s", path);
        return NULL;
    }
    char *copy = copy_password(path, (struct str){text, (size_t)n}, err);
    explicit_bzero(text, sizeof text);
    return copy;
}

char *redis_url_password(const struct redis_url *u, struct error *err)
{
    *err = (struct error){0};
    if (u->password_file)
        return read_password(u->password_file, err);
    if (!u->password)
        return NULL;
    char *copy = strdup(u->password);
    if (!copy)
        err_nomem(err);
    return copy;
}
