/* url.h: the parts of a URL that every kind of address shares: %XX, parameters, hosts, and
 * passwords, which are never in it. */
#ifndef BASE_URL_H
#define BASE_URL_H

#include "base/err.h"
#include "base/str.h"

#define URL_PART_MAX 256 /* of the user, the host and the port, with the NUL */

/* url_decode copies `from` into `to` with every %XX undone. Control characters have no place in any
 * part of a URL. Errors are ERR_CONFIG here and below, and never repeat the URL. */
int url_decode(struct str from, char *to, size_t size, struct error *err);

/* url_decoded returns a copy of `from` with every %XX undone, which the caller frees; NULL if it is
 * malformed, has a control character, or memory is short. */
char *url_decoded(struct str from);

/* url_after returns the rest of s after the character at p, which points into s. */
struct str url_after(struct str s, const char *p);

/* A url_set_fn takes one parameter; name and value are decoded. */
typedef int url_set_fn(void *ctx, const char *name, const char *value, struct error *err);

/* url_parameters hands the parameters name=value&... to `set`, one by one. It refuses one that is
 * called password, and says that password_env or password-file is the place for it. */
int url_parameters(const char *query, const char *password_env, url_set_fn *set, void *ctx,
                   struct error *err);

/* url_user decodes what stands before the @, and refuses a password in it. "" if there is none. */
int url_user(struct str s, const char *password_env, char to[URL_PART_MAX], struct error *err);

/* url_host_port reads host[:port] into two texts that the caller owns. An IPv6 address as the host
 * stands in brackets. An empty host is 127.0.0.1. */
int url_host_port(struct str s, const char *default_port, char **ret_host, char **ret_port,
                  struct error *err);

/* url_password returns a copy of the password that the caller wipes and frees: the content of
 * `file` without its line end, read each time, so that a password can be rotated; else a copy of
 * `given`. NULL with err->code 0 if both are NULL; NULL with ERR_UNAVAILABLE or ERR_NOMEM if it
 * could not be read. */
char *url_password(const char *file, const char *given, struct error *err);

/* url_password_env copies the password that the environment has under that name into *ret; if there
 * is none, *ret stays as it is. */
int url_password_env(const char *name, char **ret, struct error *err);

#endif
