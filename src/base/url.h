/* url.h: the parts that all kinds of URL share: %XX, parameters, hosts; and passwords, which no URL
 * contains. */
#ifndef BASE_URL_H
#define BASE_URL_H

#include "base/err.h"
#include "base/str.h"

#define URL_PART_MAX 256 /* for user, host and port, with the NUL */

/* url_decode copies `from` into `to` and decodes every %XX. Control characters are not allowed
 * anywhere in a URL. Errors are ERR_CONFIG here and below, and never repeat the URL. */
int url_decode(struct str from, char *to, size_t size, struct error *err);

/* url_decoded returns a copy of `from` with every %XX decoded, which the caller frees; NULL if it
 * is malformed, contains a control character, or memory is short. */
char *url_decoded(struct str from);

/* url_after returns the rest of s after the character at p, which points into s. */
struct str url_after(struct str s, const char *p);

/* A url_set_fn takes one parameter; name and value are decoded. */
typedef int url_set_fn(void *ctx, const char *name, const char *value, struct error *err);

/* url_parameters passes the parameters name=value&... to `set`, one by one. A parameter named
 * password is refused, with an error that points to password_env and password-file. */
int url_parameters(const char *query, const char *password_env, url_set_fn *set, void *ctx,
                   struct error *err);

/* url_user decodes the user before the @, and refuses a password there. "" if there is none. */
int url_user(struct str s, const char *password_env, char to[URL_PART_MAX], struct error *err);

/* url_host_port parses host[:port] into two texts that the caller owns. An IPv6 address is written
 * in brackets. An empty host means 127.0.0.1. */
int url_host_port(struct str s, const char *default_port, char **ret_host, char **ret_port,
                  struct error *err);

/* url_password returns a copy of the password that the caller wipes and frees: the content of
 * `file` without its line end, read each time so that a password can be rotated; else a copy of
 * `given`. NULL with err->code 0 if both are NULL, else if it could not be read. */
char *url_password(const char *file, const char *given, struct error *err);

/* url_password_env copies the password from that environment variable into *ret; if it is not set,
 * *ret is unchanged. */
int url_password_env(const char *name, char **ret, struct error *err);

#endif
