#include "redis/url.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "base/text.h"
#include "base/url.h"

#define DB_MAX 1000000

const struct option_def redis_url_options[] = {
    {"user", "NAME", NULL, "user name to log in with; default: the default user", option_copy,
     .at = offsetof(struct redis_url, user)},
    {"password-file", "FILE", NULL,
     "file with the password, reread for each connection; otherwise " REDIS_PASSWORD_ENV,
     option_copy, .at = offsetof(struct redis_url, password_file)},
    {"db", "N", "0", "database number", option_long, .at = offsetof(struct redis_url, db),
     .max = DB_MAX},
    {"ca", "FILE", NULL, "trusted CA certificates; default: the system's", option_copy,
     .at = offsetof(struct redis_url, ca)},
    {"cert", "FILE", NULL, "client certificate, for a server that requires one", option_copy,
     .at = offsetof(struct redis_url, cert)},
    {"key", "FILE", NULL, "private key of the client certificate", option_copy,
     .at = offsetof(struct redis_url, key)},
    {NULL},
};

/* The targets of a URL's parameters: those about the connection go into `url`, all others into
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

/* Passes one name=value to our table if it has the name, otherwise to the caller's table. Without a
 * caller's table, an unknown name goes to our table, because option_set then suggests the nearest
 * name. */
static int set_parameter(void *ctx, const char *name, const char *value, struct error *err)
{
    const struct destination *to = ctx;
    bool ours = option_find(redis_url_options, name) != NULL;
    if (ours || !to->table)
        return option_set(redis_url_options, to->url, name, value, err);
    return option_set(to->table, to->target, name, value, err);
}

/* Parses //[user@]host[:port][/db], up to the parameters. */
static int read_network(const char *p, struct redis_url *u, struct error *err)
{
    if (!begins_with(p, "//"))
        return err_set(err, ERR_CONFIG, "write redis://HOST:PORT/DB?stream=NAME");

    struct str authority = {p + 2, strcspn(p + 2, "/?")};
    const char *slash = authority.p + authority.n;
    struct str path = {slash, strcspn(slash, "?")};
    const char *at = memrchr(authority.p, '@', authority.n);
    if (at) {
        char user[URL_PART_MAX];
        struct str login = {authority.p, (size_t)(at - authority.p)};
        if (url_user(login, REDIS_PASSWORD_ENV, user, err) != 0)
            return -1;
        if (user[0] != '\0' && option_copy(&u->user, user, NULL, err) != 0)
            return -1;
        authority = url_after(authority, at);
    }
    if (url_host_port(authority, "6379", &u->host, &u->port, err) != 0)
        return -1;
    if (path.n > 1) {
        char db[16];
        int rc = url_decode(url_after(path, slash), db, sizeof db, err);
        if (rc == 0)
            rc = text_int(db, 0, DB_MAX, &u->db, err);
        if (rc != 0)
            return err_prefix(err, "database number");
    }

    snprintf(u->label, sizeof u->label, "redis at %.200s:%s", u->host, u->port);
    return 0;
}

/* Parses the path of a Unix socket, up to the parameters. */
static int read_local(const char *p, struct redis_url *u, struct error *err)
{
    char path[sizeof((struct sockaddr_un *)0)->sun_path];
    if (begins_with(p, "//"))
        p += 2;
    struct str text = {p, strcspn(p, "?")};
    if (url_decode(text, path, sizeof path, err) != 0)
        return err_prefix(err, "path of the socket (at most %zu bytes)", sizeof path - 1);
    if (path[0] != '/')
        return err_set(err, ERR_CONFIG, "write unix:/PATH/TO/SOCKET?stream=NAME");

    snprintf(u->label, sizeof u->label, "redis at %s", path);
    return option_copy(&u->path, path, NULL, err);
}

/* Parses the part before the parameters. */
static int read_address(const char *text, struct redis_url *u, struct error *err)
{
    const char *colon = strchr(text, ':');
    if (!colon)
        return err_set(err, ERR_CONFIG, "write redis://HOST:PORT/DB?stream=NAME");

    bool several = begins_with(text, "redis-") || begins_with(text, "rediss-");
    if (several)
        return err_set(err, ERR_CONFIG,
                       "use the URL of one server: redis://HOST:PORT/DB?stream=NAME");
    u->tls = begins_with(text, "rediss:");
    bool local = begins_with(text, "unix:") || begins_with(text, "redis+unix:");
    if (local)
        return read_local(colon + 1, u, err);
    return read_network(colon + 1, u, err);
}

int redis_url_parse(const char *text, const struct option_def *table, void *target,
                    struct redis_url *ret, struct error *err)
{
    struct destination to = {ret, table, target};
    *ret = (struct redis_url){0};

    if (read_address(text, ret, err) != 0)
        return -1;
    const char *query = strchr(text, '?');
    if (query && url_parameters(query + 1, REDIS_PASSWORD_ENV, set_parameter, &to, err) != 0)
        return -1;

    bool has_files = ret->ca || ret->cert || ret->key;
    if (has_files && !ret->tls)
        return err_set(err, ERR_CONFIG,
                       "ca, cert and key require rediss://, which is redis:// with TLS");
    if ((ret->cert != NULL) != (ret->key != NULL))
        return err_set(err, ERR_CONFIG, "cert and key go together");
    return url_password_env(REDIS_PASSWORD_ENV, &ret->password, err);
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

int redis_url_at(const struct redis_url *like, const char *kind, const char *host, const char *port,
                 struct redis_url *ret, struct error *err)
{
    *ret = (struct redis_url){.tls = like->tls, .db = like->db};
    const struct {
        char **to;
        const char *from;
    } texts[] = {
        {&ret->host, host},
        {&ret->port, port},
        {&ret->user, like->user},
        {&ret->password_file, like->password_file},
        {&ret->password, like->password},
        {&ret->ca, like->ca},
        {&ret->cert, like->cert},
        {&ret->key, like->key},
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (option_copy_maybe(texts[i].to, texts[i].from, err) != 0) {
            redis_url_release(ret);
            return -1;
        }
    snprintf(ret->label, sizeof ret->label, "%s at %.200s:%.10s", kind, host, port);
    return 0;
}

bool redis_address_set(struct redis_address *a, struct str host, const char *port)
{
    struct error err;
    int64_t number;
    bool sound = host.n > 0 && host.n < sizeof a->host && text_plain(host);
    if (!sound || text_int(port, 1, 65535, &number, &err) != 0)
        return false;
    memcpy(a->host, host.p, host.n);
    a->host[host.n] = '\0';
    snprintf(a->port, sizeof a->port, "%d", (int)number);
    return true;
}
