/* gate.h: which requests the HTTP server of a relay answers. Nothing here touches a socket.
 *
 * The checks of Host and Origin are against DNS rebinding: a web page can make the browser of its
 * visitor send us requests under a name that the author of the page controls. Such a request has
 * that name in Host, so only known names are answered, and no request from another origin. */
#ifndef ADMIN_GATE_H
#define ADMIN_GATE_H

#include <stdbool.h>
#include <sys/socket.h>

#include "admin/token.h"
#include "base/err.h"

/* The host that a request was sent to. (1) name is never empty; it is in lower case, without a
 * trailing dot or brackets. (2) address is valid if is_address is set. */
struct gate_host {
    char name[256];
    bool is_address;
    struct sockaddr_storage address;
};

/* gate_host_parse reads NAME, NAME:PORT, 127.0.0.1:PORT or [::1]:PORT and ignores the port. It
 * returns false for anything else. */
bool gate_host_parse(struct str text, struct gate_host *ret);
/* gate_hosts_check checks a list of names and addresses, separated by commas or blanks; "*" stands
 * for all. */
int gate_hosts_check(const char *list, struct error *err);

/* What the gate looks at in a request. A header that is missing has p == NULL. `more` counts the
 * headers that may occur only once and came again, or folded. */
struct gate_request {
    struct str method, host, origin, authorization;
    size_t more;
    bool has_body;
    bool old; /* HTTP/1.0, which needs no Host */
};

/* The rules of the gate. */
struct gate {
    const char *hosts;           /* names and addresses besides our own; NULL: none */
    const struct tokens *tokens; /* NULL: no token is required */
    bool local;                  /* only this machine can reach us */
};

/* The answer to a request that is refused. */
struct gate_refusal {
    unsigned status; /* 0: it is not refused */
    const char *text;
};

/* gate_check checks everything but the token. `here` is the local address of the connection. */
struct gate_refusal gate_check(const struct gate *g, const struct gate_request *r,
                               const struct sockaddr *here);
/* gate_knows checks whether the client may see more than whether we are alive and ready: it has
 * sent a token, or none is required and only this machine can reach us. */
struct gate_refusal gate_knows(const struct gate *g, const struct gate_request *r);

#endif
