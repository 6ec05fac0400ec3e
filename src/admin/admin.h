/* admin.h: the view of a relay from outside: /metrics, /livez and /readyz over HTTP. */
#ifndef ADMIN_ADMIN_H
#define ADMIN_ADMIN_H

#include <netinet/in.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "api/api_impl.h"
#include "base/buf.h"

/* ---- health ---- */

#define HEALTH_TEXT 320

/* The health of a consumer. (1) ready implies alive. A consumer is ready if it makes progress, has
 * no work, or is paused. It is alive if its loop runs. If the sink or the store is unreachable it
 * is not ready, but still alive: it waits and retries, and a restart would not help. */
struct health {
    bool ready, alive;
    char text[HEALTH_TEXT]; /* why, in a few words */
};

/* health_of judges a consumer at the monotonic time now_ns. A consumer without progress for longer
 * than patience_ns is stuck. `paused` is read from the store, and may be newer than the view. */
struct health health_of(const struct worker_view *v, int64_t now_ns, int64_t patience_ns,
                        bool paused);

/* health_stalled returns how long a consumer has had work without making progress, in ns. */
int64_t health_stalled(const struct worker_view *v, int64_t now_ns);

/* ---- the HTTP server ---- */

#define ADMIN_ADDRESS 128
#define ADMIN_SOCKET_MODE 0660

/* An address to listen on: 127.0.0.1:8025, [::1]:8025, localhost:8025,
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

/* admin_address_parse reads an address; ERR_CONFIG if it is not one. Port 0 stands for any free
 * port. */
int admin_address_parse(const char *text, struct admin_address *ret, struct error *err);
/* admin_loopback reports whether only this machine can reach an address. */
bool admin_loopback(const struct admin_address *a);

/* The relay as an admin sees it. It, and all objects that it points to, must outlive the admin. (1)
 * lock protects waits. */
struct admin_config {
    _Atomic(outbox *) ob;    /* NULL: the store is not open yet */
    const char *store;       /* kind: "sqlite" */
    int64_t patience_ms;     /* how long a consumer may make no progress */
    atomic_llong reloads[2]; /* ok, failed */
    int wake_fd;             /* eventfd, written when admin_tick has to be called; -1: none */
    const char *hosts;       /* further hosts to accept (access.h); NULL: none */
    mode_t socket_mode;      /* of a unix socket */
    pthread_mutex_t lock;
    char waits[HEALTH_TEXT]; /* why it waits before its consumers can run; "": it does not */
};

struct admin;
struct tokens;

/* Where to listen, and which tokens to require. (1) admin_start owns the tokens from then on, even
 * if it fails; NULL: none are required. See access.h. */
struct admin_door {
    struct admin_address address;
    struct tokens *tokens;
};

/* admin_start listens, and serves on its own threads until admin_stop. Clients can occupy only a
 * fixed number of connections, each for a fixed time. ret_url receives the address with the port in
 * use. For a unix socket it changes the umask of the process for a moment: no other thread may
 * create files then. */
int admin_start(struct admin_config *cfg, const struct admin_door *door, struct admin **ret,
                char ret_url[ADMIN_ADDRESS], struct error *err);
/* admin_set_tokens replaces the tokens to require, and owns t from then on. */
void admin_set_tokens(struct admin *s, struct tokens *t);
/* admin_stop ends the server and frees it. It returns false if a thread is still waiting for a
 * store that does not answer: then none of the objects in its config may be freed. s may be NULL.
 */
bool admin_stop(struct admin *s);
/* admin_tick ends connections that have lasted too long. It returns when to call it again, or
 * CLOCK_NEVER. s may be NULL. */
int64_t admin_tick(struct admin *s, int64_t now);

/* admin_health judges all running consumers. It asks the store (unless st is NULL) only about a
 * consumer that seems to be stuck. The text is about the first consumer that is not ready; "" if
 * all are. With `verbose`, which may be NULL, it appends a line per consumer. Any thread. */
struct health admin_health(struct admin_config *cfg, struct store *st, struct buf *verbose);

#endif
