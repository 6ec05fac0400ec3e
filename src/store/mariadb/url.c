/* url.c: parsing a mariadb: URL, and reading the password. */
#include "store/mariadb/mariadb.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

#include "base/fd.h"
#include "base/text.h"
#include "base/url.h"

#define ANSWER_MS 60000
#define PASSWORD_MAX 1024
#define DATABASE_MAX 64 /* characters of a name in MariaDB */

static int not_understood(struct error *err)
{
    return err_set(err, ERR_CONFIG,
                   "the mariadb: URL cannot be understood: write mariadb://USER@HOST:PORT/DB, "
                   "with special characters as %%XX (even in a password), and ?socket=PATH "
                   "instead of HOST:PORT for a server on this machine");
}

/* ---- the parts ---- */

/* Sets a parameter to a value, and takes ownership of the value. */
static int take_value(struct mdb_url *u, const char *name, size_t n, char *value, struct error *err)
{
    static const char *const names[] = {"socket", "password-file", "tls-ca", "tls-cert", "tls-key"};
    char **const to[] = {&u->socket, &u->password_file, &u->ca, &u->cert, &u->key};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!str_is((struct str){name, n}, names[i]))
            continue;
        free(*to[i]);
        *to[i] = value;
        return 0;
    }

    static const char *const modes[] = {
        [MDB_TLS_OFF] = "off", [MDB_TLS_ON] = "on", [MDB_TLS_VERIFY] = "verify"};
    const struct str key = {name, n};
    int r = 0;
    if (str_is(key, "tls")) {
        u->tls = MDB_TLS_DEFAULT;
        for (int i = MDB_TLS_OFF; i <= MDB_TLS_VERIFY; i++)
            if (strcmp(value, modes[i]) == 0)
                u->tls = (enum mdb_tls)i;
        if (u->tls == MDB_TLS_DEFAULT)
            r = err_set(err, ERR_CONFIG,
                        "tls=%.40s in the store's URL: it must be off, on (encrypted, certificate "
                        "not checked) or verify (encrypted and certificate checked)",
                        value);
    } else if (str_is(key, "answer-timeout")) {
        r = text_duration(value, &u->answer_ms, err);
    } else if (str_is(key, "tenant")) {
        r = err_set(err, ERR_CONFIG,
                    "tenant= in the store's URL: MariaDB has no row-level security, so a tenant "
                    "cannot be isolated there; give each tenant a database, or use PostgreSQL");
    } else {
        r = err_set(err, ERR_CONFIG,
                    "unknown parameter \"%.*s\" in the store's URL; a mariadb: URL takes socket, "
                    "password-file, tls, tls-ca, tls-cert, tls-key and answer-timeout",
                    n < 40 ? (int)n : 40, name);
    }
    free(value);
    return r;
}

static int read_query(struct mdb_url *u, const char *p, struct error *err)
{
    while (*p) {
        size_t n = strcspn(p, "&");
        size_t name = strcspn(p, "=&");
        char *value = name < n ? url_decoded((struct str){p + name + 1, n - name - 1}) : NULL;
        bool usable = value && *value;
        if (!usable) {
            free(value);
            return not_understood(err);
        }
        if (take_value(u, p, name, value, err) != 0) {
            /* It may be the rest of a password with an unescaped ?. */
            bool may_be_secret = memchr(p, '@', n) != NULL;
            return may_be_secret ? not_understood(err) : -1;
        }
        p += n;
        if (*p == '&')
            p++;
    }
    return 0;
}

/* Reads USER or USER:PASSWORD. */
static int read_user(struct mdb_url *u, const char *p, size_t n, struct error *err)
{
    const char *colon = memchr(p, ':', n);
    size_t user = colon ? (size_t)(colon - p) : n;
    u->user = url_decoded((struct str){p, user});
    if (colon)
        u->password = url_decoded((struct str){colon + 1, n - user - 1});
    bool whole = u->user && *u->user && (!colon || u->password);
    return whole ? 0 : not_understood(err);
}

/* Reads HOST, HOST:PORT or [ADDRESS]:PORT; may be empty. */
static int read_host(struct mdb_url *u, const char *p, size_t n, struct error *err)
{
    size_t host = n;
    const char *close = n && *p == '[' ? memchr(p, ']', n) : NULL;
    const char *from = close ? close : p;
    const char *colon = memrchr(from, ':', n - (size_t)(from - p));
    if (colon) {
        host = (size_t)(colon - p);
        char digits[8] = {0};
        int64_t port;
        size_t n_port = n - host - 1;
        memcpy(digits, colon + 1, n_port < sizeof digits ? n_port : 0);
        if (text_int(digits, 1, 65535, &port, NULL) != 0)
            return not_understood(err);
        u->port = (unsigned)port;
    }
    if (close) {
        p++;
        host = (size_t)(close - p);
    }
    if (host == 0)
        return 0;
    u->host = url_decoded((struct str){p, host});
    return u->host ? 0 : not_understood(err);
}

static int read_database(struct mdb_url *u, const char *p, size_t n, struct error *err)
{
    u->database = url_decoded((struct str){p, n});
    bool usable = u->database && *u->database;
    if (!usable)
        return err_set(err, ERR_CONFIG,
                       "the mariadb: URL names no database: write mariadb://USER@HOST/DB, with "
                       "the database that holds your own tables");
    if (strlen(u->database) > (size_t)DATABASE_MAX * 4)
        return err_set(err, ERR_CONFIG, "the database's name in the store's URL is too long");
    return 0;
}

static int read_parts(struct mdb_url *u, const char *p, struct error *err)
{
    size_t n = strcspn(p, "?");
    const char *at = memrchr(p, '@', n);
    if (at) {
        if (read_user(u, p, (size_t)(at - p), err) != 0)
            return -1;
        n -= (size_t)(at + 1 - p);
        p = at + 1;
    }
    const char *slash = memchr(p, '/', n);
    if (!slash)
        return read_database(u, p, 0, err);
    if (read_host(u, p, (size_t)(slash - p), err) != 0)
        return -1;
    if (read_database(u, slash + 1, n - (size_t)(slash + 1 - p), err) != 0)
        return -1;
    return p[n] == '?' ? read_query(u, p + n + 1, err) : 0;
}

int mdb_url_read(const char *url, struct mdb_url *ret, struct error *err)
{
    static const char start[] = "mariadb://";
    struct mdb_url u = {.answer_ms = ANSWER_MS};
    int r = not_understood(err);
    if (strncmp(url, start, strlen(start)) == 0)
        r = read_parts(&u, url + strlen(start), err);
    if (r == 0 && u.host && u.socket)
        r = err_set(err, ERR_CONFIG, "the mariadb: URL names both a host and a socket: use one");
    if (r != 0) {
        mdb_url_release(&u);
        return -1;
    }
    *ret = u;
    return 0;
}

void mdb_url_release(struct mdb_url *u)
{
    char *const owned[] = {u->user,          u->host, u->socket, u->database,
                           u->password_file, u->ca,   u->cert,   u->key};
    url_password_free(u->password);
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
    *u = (struct mdb_url){0};
}

/* ---- the password ---- */

static int read_password_file(const char *path, char **ret, struct error *err)
{
    char text[PASSWORD_MAX + 1];
    ssize_t n = fd_read_file(path, text, PASSWORD_MAX);
    if (n < 0)
        return err_errno(err, ERR_CONFIG, errno, "could not read the password file %s", path);
    if (n == PASSWORD_MAX)
        return err_set(err, ERR_CONFIG, "the password in %s is too long", path);
    text[n] = '\0';
    text[strcspn(text, "\r\n")] = '\0';
    *ret = strdup(text);
    explicit_bzero(text, sizeof text);
    return *ret ? 0 : err_nomem(err);
}

int mdb_url_password(const struct mdb_url *u, char **ret, struct error *err)
{
    static const char *const variables[] = {"OUTBOX_MARIADB_PASSWORD", "MYSQL_PWD"};
    const char *found = u->password;
    *ret = NULL;
    if (!found && u->password_file)
        return read_password_file(u->password_file, ret, err);
    for (size_t i = 0; !found && i < 2; i++)
        found = getenv(variables[i]);
    if (!found)
        return 0;
    *ret = strdup(found);
    return *ret ? 0 : err_nomem(err);
}
