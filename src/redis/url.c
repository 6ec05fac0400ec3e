#include "redis/url.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "base/text.h"

static bool begins_with(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

struct redis_url redis_url_login(const struct url *u, int64_t db)
{
    return (struct redis_url){
        .tls = u->scheme && begins_with(u->scheme, "rediss"),
        .user = u->user,
        .password_file = u->password_file,
        .password = u->password,
        .db = db,
        .ca = u->ca,
        .cert = u->cert,
        .key = u->key,
    };
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

/* Parses a URL of one server. A parameter of the table that sets ret->db overrides the path. */
static int read_network(const char *text, const struct option_def *table, void *target,
                        struct url *u, struct redis_url *ret, struct error *err)
{
    const char *scheme = strchr(text, ':');
    bool several = begins_with(text, "redis-") || begins_with(text, "rediss-");
    if (several)
        return err_set(err, ERR_CONFIG,
                       "use the URL of one server: redis://HOST:PORT/DB?stream=NAME");
    if (!scheme || !begins_with(scheme, "://"))
        return err_set(err, ERR_CONFIG, "write redis://HOST:PORT/DB?stream=NAME");

    ret->db = -1;
    if (url_parse(text, "6379", REDIS_PASSWORD_ENV, table, target, u, err) != 0)
        return -1;
    if (u->n_hosts > 1)
        return err_set(err, ERR_CONFIG,
                       "a redis URL names one server; for several, see "
                       "redis-sentinel:// and redis-cluster://");
    int64_t db = 0;
    if (u->path[0] != '\0' && text_int(u->path, 0, REDIS_DB_MAX, &db, err) != 0)
        return err_prefix(err, "database number");
    struct redis_url like = redis_url_login(u, ret->db >= 0 ? ret->db : db);
    return redis_url_at(&like, "redis", u->hosts[0].host, u->hosts[0].port, ret, err);
}

int redis_url_parse(const char *text, const struct option_def *table, void *target,
                    struct redis_url *ret, struct error *err)
{
    struct url u = {0};
    *ret = (struct redis_url){0};
    bool local = begins_with(text, "unix:") || begins_with(text, "redis+unix:");
    int rc;
    if (local) {
        rc = url_query(text, REDIS_PASSWORD_ENV, table, target, &u, err);
        struct redis_url like = redis_url_login(&u, ret->db);
        if (rc == 0)
            rc = redis_url_at(&like, "redis", NULL, NULL, ret, err);
        if (rc == 0)
            rc = read_local(strchr(text, ':') + 1, ret, err);
    } else {
        rc = read_network(text, table, target, &u, ret, err);
    }
    url_release(&u);
    if (rc != 0)
        return -1;

    bool has_files = ret->ca || ret->cert || ret->key;
    if (has_files && !ret->tls)
        return err_set(err, ERR_CONFIG,
                       "ca, cert and key require rediss://, which is redis:// with TLS");
    return 0;
}

void redis_url_release(struct redis_url *u)
{
    char *const all[] = {u->host,          u->port, u->path, u->user,
                         u->password_file, u->ca,   u->cert, u->key};
    url_password_free(u->password);
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
    if (host)
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
