/* url.h: address and login of a Redis server: redis://[user@]host[:port][/db]?name=value&...,
 * rediss:// for TLS, redis+unix:/path?... or unix:/path?... for a Unix socket. */
#ifndef REDIS_URL_H
#define REDIS_URL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/option.h"
#include "base/str.h"

#define REDIS_PASSWORD_ENV "OUTBOX_REDIS_PASSWORD"

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

/* redis_url_parse parses a URL. Parameters that do not concern the connection go into `target`
 * through `table`, which may be NULL. A password in the URL is refused, because it would show up in
 * ps, in the configuration and in copies of it. Errors: ERR_CONFIG, ERR_NOMEM. No error repeats the
 * URL. The caller releases *ret, even after an error. */
int redis_url_parse(const char *text, const struct option_def *table, void *target,
                    struct redis_url *ret, struct error *err);
void redis_url_release(struct redis_url *u);

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

/* redis_url_options lists the parameters about the connection. */
extern const struct option_def redis_url_options[];

#endif
