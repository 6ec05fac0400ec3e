/* connections.h: the open connections, and how long each may last. Their number is limited: when
 * few are left, the oldest client that has not sent its request yet is disconnected. */
#ifndef ADMIN_CONNECTIONS_H
#define ADMIN_CONNECTIONS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
