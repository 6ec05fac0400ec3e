#include "base/url.h"

#include <errno.h>
#include <stdlib.h>

#include "base/fd.h"
#include "base/option.h"
#include "base/text.h"
#include "base/utf8.h"

#define PASSWORD_MAX 4096
#define PARAM_MAX 2048
#define NO_PASSWORD "a password does not belong in a URL: "
#define ELSEWHERE "into a file, with password-file=FILE, or into the environment, as %s"

struct str url_after(struct str s, const char *p)
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

/* Passes on one name=value. */
static int set_parameter(struct str s, const char *password_env, url_set_fn *set, void *ctx,
                         struct error *err)
{
    char name[64], value[PARAM_MAX];
    const char *equals = memchr(s.p, '=', s.n);
    struct str name_part = s;
    if (equals)
        name_part.n = (size_t)(equals - s.p);

    if (url_decode(name_part, name, sizeof name, err) != 0)
        return -1;
    if (strcmp(name, "password") == 0)
        return err_set(err, ERR_CONFIG, NO_PASSWORD "put it " ELSEWHERE, password_env);
    if (!equals)
        return err_set(err, ERR_CONFIG, "%s needs a value: %s=...", name, name);
    if (url_decode(url_after(s, equals), value, sizeof value, err) != 0)
        return -1;
    return set(ctx, name, value, err);
}

int url_parameters(const char *query, const char *password_env, url_set_fn *set, void *ctx,
                   struct error *err)
{
    for (const char *p = query; *p;) {
        struct str one = {p, strcspn(p, "&")};
        if (one.n && set_parameter(one, password_env, set, ctx, err) != 0)
            return -1;
        p += one.n;
        if (*p == '&')
            p++;
    }
    return 0;
}

int url_user(struct str s, const char *password_env, char to[URL_PART_MAX], struct error *err)
{
    if (memchr(s.p, ':', s.n))
        return err_set(err, ERR_CONFIG, NO_PASSWORD "write USER@HOST and put it " ELSEWHERE,
                       password_env);
    return url_decode(s, to, URL_PART_MAX, err);
}

int url_host_port(struct str s, const char *default_port, char **ret_host, char **ret_port,
                  struct error *err)
{
    struct str host = s, rest = s;
    const char *bracket = NULL;
    if (s.n && *s.p == '[')
        bracket = memchr(s.p, ']', s.n);
    if (bracket) {
        host = (struct str){s.p + 1, (size_t)(bracket - s.p - 1)};
        rest = url_after(s, bracket);
    }
    const char *colon = memchr(rest.p, ':', rest.n);
    if (colon && !bracket)
        host.n = (size_t)(colon - s.p);

    char text[URL_PART_MAX];
    if (url_decode(host, text, sizeof text, err) != 0)
        return -1;
    if (option_copy(ret_host, text[0] ? text : "127.0.0.1", NULL, err) != 0)
        return -1;
    if (!colon)
        return option_copy(ret_port, default_port, NULL, err);

    int64_t n;
    if (url_decode(url_after(s, colon), text, sizeof text, err) != 0)
        return -1;
    if (text_int(text, 1, 65535, &n, err) != 0)
        return err_prefix(err, "port");
    return option_copy(ret_port, text, NULL, err);
}

/* Returns a copy of the content of a password file, without the line end. */
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

int url_password_env(const char *name, char **ret, struct error *err)
{
    const char *password = getenv(name);
    bool given = password && *password;
    if (!given)
        return 0;
    return option_copy(ret, password, NULL, err);
}
