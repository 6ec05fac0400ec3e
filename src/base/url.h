/* url.h: the URL of a server or of several, for brokers; %XX, for all kinds of URL; and passwords,
 * which no URL contains. */
#ifndef BASE_URL_H
#define BASE_URL_H

#include "base/err.h"
#include "base/option.h"
#include "base/str.h"

/* url_decode copies `from` into `to` and decodes every %XX. Control characters are not allowed
 * anywhere in a URL. Errors are ERR_CONFIG here and below, and never repeat the URL. */
int url_decode(struct str from, char *to, size_t size, struct error *err);

/* url_decoded returns a copy of `from` with every %XX decoded, which the caller frees; NULL if it
 * is malformed, contains a control character, or memory is short. */
char *url_decoded(struct str from);

/* SCHEME://[USER@]HOST[:PORT][,HOST[:PORT]...]/PATH?option=value&... */

#define URL_HOSTS_MAX 64

struct url_host {
    char *host, *port;
};

/* (1) Strings are owned; NULL if not given. (2) n_hosts > 0. */
struct url {
    char *scheme, *user;
    struct url_host *hosts;
    size_t n_hosts;
    char *path; /* decoded, without the leading slash; "" if absent */
    char *password_file;
    char *password;        /* from the environment; password_file overrides it */
    char *ca, *cert, *key; /* TLS: PEM files */
    char label[300];       /* "kafka at host:9092 and 2 others", for messages */
};

/* url_parse parses a URL. The defaults of `table`, which may be NULL, and all parameters other than
 * user, password-file, ca, cert and key are stored in `target`. A row whose name ends with a star
 * matches every name with that prefix; its setter receives the rest: "linger.ms=5" for
 * rdkafka.linger.ms=5 and "rdkafka.*". A host without a port uses default_port, and a URL without a
 * host means 127.0.0.1; an IPv6 address is written in brackets. A password in the URL is refused,
 * because it would show up in ps, in the configuration and in copies of it: it belongs in a file or
 * in the environment variable password_env. The caller checks whether ca, cert and key suit the
 * scheme; cert requires key, and key requires cert. Errors: ERR_CONFIG, ERR_NOMEM. The caller
 * releases *ret, even after an error. */
int url_parse(const char *text, const char *default_port, const char *password_env,
              const struct option_def *table, void *target, struct url *ret, struct error *err);
/* url_query is the part of url_parse after the path, for a URL with an address of another form. */
int url_query(const char *text, const char *password_env, const struct option_def *table,
              void *target, struct url *ret, struct error *err);
void url_release(struct url *u);

/* url_password returns a copy of the password that the caller wipes and frees: the content of
 * `file` without its trailing newline, read each time so that a password can be rotated; else a
 * copy of `given`. NULL if it could not be read or, with err->code 0, if both are NULL. */
char *url_password(const char *file, const char *given, struct error *err);

/* url_password_free wipes and frees a password; NULL is fine. */
void url_password_free(char *password);

/* url_password_env copies the password from that environment variable into *ret; if it is not set,
 * *ret is unchanged. */
int url_password_env(const char *name, char **ret, struct error *err);

#endif
