/* url.h: where a Redis is and how to get in: redis://[user@]host[:port][/db]?name=value&...,
 * rediss:// with TLS, redis+unix:/path?... or unix:/path?... */
#ifndef REDIS_URL_H
#define REDIS_URL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/option.h"

#define REDIS_PASSWORD_ENV "OUTBOX_REDIS_PASSWORD"

/* (1) Strings are owned; NULL when not given. (2) path is set for a unix socket, else host and
 *   port. */
struct redis_url {
    bool tls;
    char *host, *port, *path;
    char *user, *password_file;
    /* from the environment; what the file says counts more, and is read at each connection */
    char *password;
    int64_t db;
    char *ca, *cert, *key; /* TLS: files in PEM */
    char label[300];       /* "redis at host:port": how errors call it */
};

/* redis_url_parse reads a URL. Parameters that are not about the connection go into `target`
 * through `table` (may be NULL). A password in the URL is refused: it would be seen in ps, in the
 * configuration and in its copies. ERR_CONFIG, without repeating the URL. Release what was filled
 * in also after an error. */
int redis_url_parse(const char *text, const struct option_def *table, void *target,
                    struct redis_url *ret, struct error *err);
void redis_url_release(struct redis_url *u);

/* redis_url_options are the parameters about the connection. */
extern const struct option_def redis_url_options[];

/* redis_url_password gives a copy of the password, NULL with err->code 0 if there is none. Wipe and
 * free it. */
char *redis_url_password(const struct redis_url *u, struct error *err);

#endif
