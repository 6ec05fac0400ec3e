/* gate.h: whom a relay's HTTP server answers. Nothing here touches a socket.
 *
 * Against DNS rebinding: a page somebody visits can make his browser ask us under a name that its
 * author controls. Such a request says that name in Host, so only names we know are answered; and
 * no request that a page of another origin caused. */
#ifndef ADMIN_GATE_H
#define ADMIN_GATE_H

#include <stdbool.h>
#include <sys/socket.h>

#include "admin/token.h"
#include "base/err.h"

/* Where a request was sent to: a name or an address. */
struct gate_host {
    /* in small letters, without a dot at its end, or without brackets; never empty */
    char name[256];
    bool is_address; /* then it is in `address` */
    struct sockaddr_storage address;
};

/* gate_host_parse reads NAME, NAME:PORT, 127.0.0.1:PORT or [::1]:PORT; the port does not matter.
 * False: it is none of them. */
bool gate_host_parse(struct str text, struct gate_host *ret);
/* gate_hosts_check checks a list of names and addresses, with commas or blanks between; "*" stands
 * for all. */
int gate_hosts_check(const char *list, struct error *err);

/* What a request says of itself. p == NULL: nothing. `more` counts headers that may stand there
 * once and came again, or folded. */
struct gate_request {
    struct str method, host, origin, authorization;
    size_t more;
    bool has_body;
    bool old; /* HTTP/1.0, which knows no Host */
};

/* What the gate goes by. (1) tokens == NULL: there is none. */
struct gate {
    const char *hosts; /* names and addresses beside our own; NULL: none */
    const struct tokens *tokens;
    bool local; /* only this machine reaches us */
};

/* What is said to one who is not let in. */
struct gate_refusal {
    unsigned status; /* 0: he is */
    const char *text;
};

/* gate_check looks at everything but who is asking; `here` is the address the request came in
 * at. */
struct gate_refusal gate_check(const struct gate *g, const struct gate_request *r,
                               const struct sockaddr *here);
/* gate_knows says whether one may see more than whether we live and are ready: he sent the token;
 * or there is none, and nobody else but this machine can reach us. */
struct gate_refusal gate_knows(const struct gate *g, const struct gate_request *r);

#endif
