#include "redis/url.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/char.h"
#include "base/text.h"

#define PASSWORD_MAX 4096
#define PARAM_MAX 2048
#define DB_MAX 1000000

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

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* decode copies n characters with %XX undone. Control characters have no place in any part of a
 * URL. */
static int decode(const char *from, size_t n, char *to, size_t size, struct error *err)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        int c = (unsigned char)from[i];
        if (c == '%') {
            int hi = i + 2 < n ? hex(from[i + 1]) : -1, lo = hi >= 0 ? hex(from[i + 2]) : -1;
            if (hi < 0 || lo < 0)
                return err_set(err, ERR_CONFIG, "a %% in the URL without two digits behind it");
            c = hi * 16 + lo;
            i += 2;
        }
        if (char_is_control((char)c))
            return err_set(err, ERR_CONFIG, "a control character in the URL");
        if (k + 1 >= size)
            return err_set(err, ERR_CONFIG, "a part of the URL is too long");
        to[k++] = (char)c;
    }
    to[k] = '\0';
    return 0;
}

static int param(const char *p, size_t n, const struct option_def *table, void *target,
                 struct redis_url *u, struct error *err)
{
    char name[64], value[PARAM_MAX];
    const char *eq = memchr(p, '=', n);
    size_t name_n = eq ? (size_t)(eq - p) : n;
    if (decode(p, name_n, name, sizeof name, err) != 0)
        return -1;
    if (strcmp(name, "password") == 0)
        return err_set(err, ERR_CONFIG,
                       "a password has no place in a URL: put it into a file, with "
                       "password-file=FILE, or into "
                       "the environment, as " REDIS_PASSWORD_ENV);
    if (!eq)
        return err_set(err, ERR_CONFIG, "%s needs a value: %s=...", name, name);
    if (decode(eq + 1, n - name_n - 1, value, sizeof value, err) != 0)
        return -1;
    if (option_find(redis_url_options, name))
        return option_set(redis_url_options, u, name, value, err);
    if (table)
        return option_set(table, target, name, value, err);
    return option_set(redis_url_options, u, name, value, err); /* names the nearest */
}

static int params(const char *p, const struct option_def *table, void *target, struct redis_url *u,
                  struct error *err)
{
    while (*p) {
        size_t n = strcspn(p, "&");
        if (n && param(p, n, table, target, u, err) != 0)
            return -1;
        p += n + (p[n] == '&');
    }
    return 0;
}

/* authority reads [user@]host[:port], where host may be [v6]. */
static int authority(const char *p, size_t n, struct redis_url *u, struct error *err)
{
    char part[256];
    const char *at = memrchr(p, '@', n);
    if (at) {
        if (memchr(p, ':', (size_t)(at - p)))
            return err_set(err, ERR_CONFIG,
                           "a password has no place in a URL: write redis://USER@HOST and put it "
                           "into a file, with "
                           "password-file=FILE, or into the environment, as " REDIS_PASSWORD_ENV);
        if (decode(p, (size_t)(at - p), part, sizeof part, err) != 0)
            return -1;
        if (part[0] && option_copy(&u->user, part, NULL, err) != 0)
            return -1;
        n -= (size_t)(at + 1 - p);
        p = at + 1;
    }
    const char *end = *p == '[' ? memchr(p, ']', n) : NULL;
    const char *rest = end ? end + 1 : p, *colon = memchr(rest, ':', n - (size_t)(rest - p));
    size_t host_n = end ? (size_t)(end - p - 1) : colon ? (size_t)(colon - p) : n;
    if (decode(p + (end ? 1 : 0), host_n, part, sizeof part, err) != 0)
        return -1;
    if (option_copy(&u->host, part[0] ? part : "127.0.0.1", NULL, err) != 0)
        return -1;
    if (!colon)
        return option_copy(&u->port, "6379", NULL, err);
    int64_t port;
    if (decode(colon + 1, n - (size_t)(colon + 1 - p), part, sizeof part, err) != 0)
        return -1;
    if (text_int(part, 1, 65535, &port, err) != 0)
        return err_prefix(err, "port");
    return option_copy(&u->port, part, NULL, err);
}

static int network(const char *p, struct redis_url *u, struct error *err)
{
    char db[16];
    if (strncmp(p, "//", 2) != 0)
        return err_set(err, ERR_CONFIG, "write redis://HOST:PORT/DB?stream=NAME");
    p += 2;
    size_t n = strcspn(p, "/?"), rest = strcspn(p + n, "?");
    if (authority(p, n, u, err) != 0)
        return -1;
    if (rest > 1) {
        if (decode(p + n + 1, rest - 1, db, sizeof db, err) != 0 ||
            text_int(db, 0, DB_MAX, &u->db, err) != 0)
            return err_prefix(err, "database number");
    }
    snprintf(u->label, sizeof u->label, "redis at %.200s:%s", u->host, u->port);
    return 0;
}

static int local(const char *p, struct redis_url *u, struct error *err)
{
    char path[sizeof((struct sockaddr_un *)0)->sun_path];
    if (strncmp(p, "//", 2) == 0)
        p += 2;
    if (decode(p, strcspn(p, "?"), path, sizeof path, err) != 0)
        return err_prefix(err, "path of the socket (at most %zu bytes)", sizeof path - 1);
    if (path[0] != '/')
        return err_set(err, ERR_CONFIG, "write unix:/PATH/TO/SOCKET?stream=NAME");
    snprintf(u->label, sizeof u->label, "redis at %s", path);
    return option_copy(&u->path, path, NULL, err);
}

static int parse(const char *text, const struct option_def *table, void *target,
                 struct redis_url *u, struct error *err)
{
    const char *colon = strchr(text, ':'), *query = strchr(text, '?');
    if (!colon)
        return err_set(err, ERR_CONFIG, "write redis://HOST:PORT/DB?stream=NAME");
    u->tls = strncmp(text, "rediss:", 7) == 0;
    bool unix_socket = strncmp(text, "unix:", 5) == 0 || strncmp(text, "redis+unix:", 11) == 0;
    if ((unix_socket ? local : network)(colon + 1, u, err) != 0)
        return -1;
    if (query && params(query + 1, table, target, u, err) != 0)
        return -1;
    if (!u->tls && (u->ca || u->cert || u->key))
        return err_set(err, ERR_CONFIG,
                       "ca, cert and key are for rediss://, which is redis:// with TLS");
    if (!u->cert != !u->key)
        return err_set(err, ERR_CONFIG, "cert and key go together");
    const char *env = getenv(REDIS_PASSWORD_ENV);
    return env && *env ? option_copy(&u->password, env, NULL, err) : 0;
}

int redis_url_parse(const char *text, const struct option_def *table, void *target,
                    struct redis_url *ret, struct error *err)
{
    *ret = (struct redis_url){0};
    return parse(text, table, target, ret, err);
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

static char *read_password(const char *path, struct error *err)
{
    char text[PASSWORD_MAX + 2];
    size_t n = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t k = fd < 0 ? -1 : 1;
    while (k > 0 && n < sizeof text - 1) {
        k = read(fd, text + n, sizeof text - 1 - n);
        if (k > 0)
            n += (size_t)k;
    }
    if (k < 0)
        err_errno(err, ERR_UNAVAILABLE, errno, "could not read the password from %s", path);
    if (fd >= 0)
        close(fd);
    if (k < 0)
        return NULL;
    while (n && (text[n - 1] == '\n' || text[n - 1] == '\r'))
        n--;
    text[n] = '\0';
    char *copy = n && n <= PASSWORD_MAX ? strdup(text) : NULL;
    if (n == 0)
        err_set(err, ERR_UNAVAILABLE, "the password file %s is empty", path);
    else if (n > PASSWORD_MAX)
        err_set(err, ERR_UNAVAILABLE, "the password file %s is no password file", path);
    else if (!copy)
        err_nomem(err);
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
