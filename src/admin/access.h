/* access.h: decides which requests the HTTP server of a relay answers, without touching a socket.
 *
 * The checks of Host and Origin are against DNS rebinding: a web page can make the browser of its
 * visitor send us requests under a name that the author of the page controls. Such a request has
 * that name in Host, so only requests for known names are answered, and none from another origin.
 */
#ifndef ADMIN_ACCESS_H
#define ADMIN_ACCESS_H

#include <stdbool.h>
#include <sys/socket.h>

#include "base/err.h"
#include "base/str.h"

/* ---- tokens ---- */

#define ACCESS_TOKEN_MIN 16
#define ACCESS_TOKEN_MAX 256
#define ACCESS_TOKENS_MAX 8

struct tokens;

/* access_tokens_load reads tokens from a file (separated by blanks or line ends; lines that start
 * with # are ignored) and from an environment variable (separated by blanks). Either may be NULL.
 * Every token is valid, so that one can be replaced without a gap. A token has ACCESS_TOKEN_MIN to
 * ACCESS_TOKEN_MAX printable ASCII characters and no blank. ERR_CONFIG says which token is wrong
 * and why, and never quotes one. The caller frees *ret. */
int access_tokens_load(const char *file, const char *variable, struct tokens **ret,
                       struct error *err);
/* access_tokens_free wipes the tokens and frees them. NULL is fine. */
void access_tokens_free(struct tokens *t);

/* access_token_matches reports whether `given` is one of the tokens. Its running time depends
 * neither on the tokens nor on how many bytes of one match. */
bool access_token_matches(const struct tokens *t, struct str given);
/* access_token_variable checks the name of an environment variable. The error does not quote it: it
 * may be a token given by mistake. */
int access_token_variable(const char *name, struct error *err);

/* ---- requests ---- */

/* The host that a request was sent to. (1) name is never empty; it is in lower case, without a
 * trailing dot or brackets. (2) address is valid if is_address is set. */
struct access_host {
    char name[256];
    bool is_address;
    struct sockaddr_storage address;
};

/* access_host_parse reads NAME, NAME:PORT, 127.0.0.1:PORT or [::1]:PORT and ignores the port. It
 * returns false for anything else. */
bool access_host_parse(struct str text, struct access_host *ret);
/* access_hosts_check checks a list of names and addresses, separated by commas or blanks; "*"
 * stands for all. */
int access_hosts_check(const char *list, struct error *err);

/* The parts of a request that the rules check. A missing header has p == NULL. `more` counts
 * repeated or folded headers that may occur only once. */
struct access_request {
    struct str method, host, origin, authorization;
    size_t more;
    bool has_body;
    bool old; /* HTTP/1.0, which needs no Host */
};

/* The access rules. */
struct access_rules {
    const char *hosts;           /* names and addresses besides our own; NULL: none */
    const struct tokens *tokens; /* NULL: no token is required */
    bool local;                  /* only this machine can reach us */
};

/* The answer to a request that is refused. */
struct access_refusal {
    unsigned status; /* 0: not refused */
    const char *text;
};

/* access_check checks everything but the token. `here` is the local address of the connection. */
struct access_refusal access_check(const struct access_rules *rules, const struct access_request *r,
                                   const struct sockaddr *here);
/* access_details checks whether the client may see more than the answers of /livez and /readyz: it
 * sent a token, or no token is required and only this machine can reach the server. */
struct access_refusal access_details(const struct access_rules *rules,
                                     const struct access_request *r);

#endif
