/* admin.h: a relay seen from outside: /metrics, /livez and /readyz over HTTP. */
#ifndef ADMIN_ADMIN_H
#define ADMIN_ADMIN_H

#include <netinet/in.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "admin/health.h"
#include "api/manage.h"
#include "base/buf.h"

#define ADMIN_ADDRESS 128
#define ADMIN_SOCKET_MODE 0660

/* An address to listen at: 127.0.0.1:8025, [::1]:8025, localhost:8025,
 * unix:/run/outbox/admin.sock. */
struct admin_address {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
        struct sockaddr_un un;
    } at;
    socklen_t size;
};

/* admin_address_parse: ERR_CONFIG for anything else; port 0 is any that is free. */
int admin_address_parse(const char *text, struct admin_address *ret, struct error *err);
/* admin_loopback: only this machine reaches it. */
bool admin_loopback(const struct admin_address *a);

/* What a relay waits for before its consumers can be at work. (1) text is used under lock; "":
 * nothing. */
struct admin_wait {
    pthread_mutex_t lock;
    char text[HEALTH_TEXT];
};

/* What an admin looks at. It must outlive it. */
struct admin_config {
    _Atomic(outbox *) ob;    /* NULL: the store is not open yet */
    struct admin_wait *wait; /* NULL: for nothing */
    const char *store;       /* kind: "sqlite" */
    int64_t patience_ms;
    const atomic_llong *reloads; /* two: ok, failed */
    /* eventfd, written when admin_tick has become necessary; -1: none */
    int wake_fd;
    /* names and addresses beside our own that Host may say (gate.h); NULL: none */
    const char *hosts;
    mode_t socket_mode; /* of a unix socket */
};

struct admin;
struct tokens;

/* Where to listen, and whom to answer. */
struct admin_door {
    struct admin_address address;
    /* to ask for, see token.h; NULL: none. admin_start takes them over, also if it fails */
    struct tokens *tokens;
};

/* admin_built: whether there is an HTTP server in this program. */
bool admin_built(void);
/* admin_start listens and serves, from threads of its own, until admin_stop. Clients can take up a
 * fixed number of connections for a fixed time each, and nothing else. ret_url: where it listens,
 * with the port. It sets the process's umask for a moment when it makes a unix socket, so no other
 * thread may be making files then. */
int admin_start(const struct admin_config *cfg, const struct admin_door *door, struct admin **ret,
                char ret_url[ADMIN_ADDRESS], struct error *err);
/* admin_attach: the store is open now. NULL for s is fine. */
void admin_attach(struct admin *s, outbox *ob);
/* admin_set_tokens takes over the tokens to ask for from now on. */
void admin_set_tokens(struct admin *s, struct tokens *t);
/* admin_stop ends it. False: a thread of it is caught in a store that does not answer, so that
 * nothing it looks at may be freed. NULL is fine. */
bool admin_stop(struct admin *s);
/* admin_tick ends connections that have lasted too long; returns when to call it again,
 * CLOCK_NEVER: no need to. */
int64_t admin_tick(struct admin *s, int64_t now);

/* admin_health judges all consumers at work, without asking the store unless one seems to be stuck.
 * The text, for people, is about the first that is not well; "" if all are. Any thread; st may be
 * NULL. */
struct health admin_health(const struct admin_config *cfg, struct store *st, struct buf *verbose);

#endif
