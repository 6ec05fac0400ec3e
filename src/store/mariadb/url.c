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
                   "the mariadb: URL cannot be understood: it is mariadb://USER@HOST:PORT/DB, with "
                   "special characters as %%XX (also in a password), and ?socket=PATH instead of "
                   "HOST:PORT for a server on this machine");
}

/* ---- the parts ---- */

static int read_tls(const char *value, enum mdb_tls *ret, struct error *err)
{
    if (strcmp(value, "off") == 0)
        *ret = MDB_TLS_OFF;
    else if (strcmp(value, "on") == 0)
        *ret = MDB_TLS_ON;
    else if (strcmp(value, "verify") == 0)
        *ret = MDB_TLS_VERIFY;
    else
        return err_set(err, ERR_CONFIG,
                       "tls=%.40s in the store's URL: it must be off, on (encrypted, certificate "
                       "not checked) or verify (encrypted and certificate checked)",
                       value);
    return 0;
}

/* Sets a parameter to a value, and takes ownership of the value. */
static int take_value(struct mdb_url *u, const char *name, size_t n, char *value, struct error *err)
{
    static const char *const names[] = {"socket", "password-file", "tls-ca", "tls-cert", "tls-key"};
    char **const to[] = {&u->socket, &u->password_file, &u->ca, &u->cert, &u->key};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (n != strlen(names[i]) || strncmp(name, names[i], n) != 0)
            continue;
        free(*to[i]);
        *to[i] = value;
        return 0;
    }

    int r;
    if (n == 3 && strncmp(name, "tls", n) == 0)
        r = read_tls(value, &u->tls, err);
    else if (n == 14 && strncmp(name, "answer-timeout", n) == 0)
        r = text_duration(value, &u->answer_ms, err);
    else if (n == 6 && strncmp(name, "tenant", n) == 0)
        r = err_set(err, ERR_CONFIG,
                    "tenant= in the store's URL: MariaDB has no row-level security, so a tenant "
                    "cannot be isolated there; give each tenant a database, or use PostgreSQL");
    else
        r = err_set(err, ERR_CONFIG,
                    "unknown parameter \"%.*s\" in the store's URL; a mariadb: URL takes socket, "
                    "password-file, tls, tls-ca, tls-cert, tls-key and answer-timeout",
                    n < 40 ? (int)n : 40, name);
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
        if (take_value(u, p, name, value, err) != 0)
            return -1;
        p += n;
        if (*p == '&')
            p++;
    }
    return 0;
}

static int read_port(const char *p, size_t n, unsigned *ret, struct error *err)
{
    char digits[8] = {0};
    char *end;
    if (n == 0 || n >= sizeof digits)
        return not_understood(err);
    memcpy(digits, p, n);
    unsigned long port = strtoul(digits, &end, 10);
    if (*end || port < 1 || port > 65535)
        return not_understood(err);
    *ret = (unsigned)port;
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
        if (read_port(colon + 1, n - host - 1, &u->port, err) != 0)
            return -1;
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
                       "the mariadb: URL names no database: write mariadb://USER@HOST/DB, with the "
                       "database of your own tables");
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
    url_password_free(u->password);
    free(u->user);
    free(u->host);
    free(u->socket);
    free(u->database);
    free(u->password_file);
    free(u->ca);
    free(u->cert);
    free(u->key);
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
