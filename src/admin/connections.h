/* connections.h: the socket that the HTTP server of a relay listens on, and its open connections.
 */
#ifndef ADMIN_CONNECTIONS_H
#define ADMIN_CONNECTIONS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "admin/admin.h"

/* ---- the socket ---- */

/* Our socket in the file system. (1) inode == 0: there is none. */
struct socket_file {
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
    dev_t device;
    ino_t inode;
};

/* Where to listen, and how. */
struct socket_wish {
    const struct admin_address *address;
    int backlog;
    mode_t mode; /* of a unix socket */
};

/* connections_listen returns a listening socket in *ret. In the file system it replaces a socket
 * that no process is listening on, but neither one in use nor any other file. *ret_file is for
 * connections_unlisten at the end. */
int connections_listen(const struct socket_wish *w, struct socket_file *ret_file, int *ret,
                       struct error *err);
/* connections_unlisten removes the socket from the file system, if it is still ours. */
void connections_unlisten(struct socket_file *file);
/* connections_url writes where a socket listens: http://127.0.0.1:8025 or unix:PATH. */
void connections_url(int fd, char out[ADMIN_ADDRESS]);

/* ---- connections ---- */

/* A connection may last for a limited time only, and their number is limited: when few are left,
 * the oldest client that has not sent its request yet is disconnected. */

#define CONNECTIONS_MAX 32
#define CONNECTIONS_PER_ADDRESS 8

/* A connection. (1) since == 0: the place is free. */
struct connection {
    int fd;
    int64_t since; /* when the connection was opened, or its request completed */
    bool complete;
};

/* (1) lock protects connection. */
struct connections {
    pthread_mutex_t lock;
    struct connection connection[CONNECTIONS_MAX];
};

/* All functions may be called from any thread; `now` is monotonic, in ns. */
void connections_init(struct connections *k);
void connections_release(struct connections *k);
/* connections_opened adds a connection. If most places are taken, it ends the oldest connection
 * whose request is not complete. */
void connections_opened(struct connections *k, int fd, int64_t now);
/* connections_request_complete notes that a request is complete and about to be answered. */
void connections_request_complete(struct connections *k, int fd, int64_t now);
/* connections_closed removes a connection. Call it before the descriptor is closed. */
void connections_closed(struct connections *k, int fd);
/* connections_tick ends connections that have lasted too long. It returns when to call it again, or
 * CLOCK_NEVER. */
int64_t connections_tick(struct connections *k, int64_t now);

#endif
