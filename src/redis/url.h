/* url.h: address and login of a Redis server: redis://[user@]host[:port][/db]?name=value&...,
 * rediss:// for TLS, redis+unix:/path?... or unix:/path?... for a Unix socket. */
#ifndef REDIS_URL_H
#define REDIS_URL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/url.h"

#define REDIS_PASSWORD_ENV "OUTBOX_REDIS_PASSWORD"
#define REDIS_DB_MAX 1000000

/* The row of an option table for the parameter db; `settings` has the struct redis_url. */
#define REDIS_DB_OPTION(settings, url) \
    { \
        "db", "N", NULL, "database number; default: 0", option_long, \
            .at = offsetof(struct settings, url) + offsetof(struct redis_url, db), \
            .max = REDIS_DB_MAX \
    }

/* (1) Strings are owned; NULL if not given. (2) Either path is set, for a Unix socket, or host and
 * port are. */
struct redis_url {
    bool tls;
    char *host, *port, *path;
    char *user;
    char *password_file; /* reread for each connection, so that it can be rotated */
    char *password;      /* from the environment; password_file overrides it */
    int64_t db;
    char *ca, *cert, *key; /* TLS: PEM files */
    char label[300];       /* "redis at host:port", for messages */
};

/* redis_url_parse parses a URL; see url_parse for table and target. The database is given by the
 * path, or by a row of the table, which sets ret->db. Errors: ERR_CONFIG, ERR_NOMEM. No error
 * repeats the URL. The caller releases *ret, even after an error. */
int redis_url_parse(const char *text, const struct option_def *table, void *target,
                    struct redis_url *ret, struct error *err);
void redis_url_release(struct redis_url *u);

/* redis_url_login returns a URL without an address, with the login of `u`, borrowed. */
struct redis_url redis_url_login(const struct url *u, int64_t db);
/* redis_url_at builds the URL of another server with the same login, such as one named by a cluster
 * or a Sentinel. `kind` is for the label: "redis" or "sentinel". Errors: ERR_NOMEM. On
 * success the caller releases *ret. */
int redis_url_at(const struct redis_url *like, const char *kind, const char *host, const char *port,
                 struct redis_url *ret, struct error *err);

#define REDIS_HOST_MAX 256

/* An address named by a server of a cluster, or by a Sentinel. */
struct redis_address {
    char host[REDIS_HOST_MAX], port[8];
};

/* redis_address_set stores a valid address. For an invalid one it returns false and leaves *a
 * unchanged. */
bool redis_address_set(struct redis_address *a, struct str host, const char *port);

#endif
