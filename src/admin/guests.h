/* guests.h: the open connections, and how long each may last. Their number is limited: when it gets
 * crowded, a client that has not sent its request yet has to make room. */
#ifndef ADMIN_GUESTS_H
#define ADMIN_GUESTS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GUESTS_MAX 32
#define GUESTS_PER_ADDRESS 8

/* A connection. (1) since == 0: the place is free. */
struct guest {
    int fd;
    int64_t since; /* when the connection was opened or, if asked, its request was complete */
    bool asked;
};

/* (1) lock protects guest. */
struct guests {
    pthread_mutex_t lock;
    struct guest guest[GUESTS_MAX];
};

/* All functions may be called from any thread; `now` is monotonic, in ns. */
void guests_init(struct guests *g);
void guests_release(struct guests *g);
/* guests_arrive adds a connection. If most places are taken, it ends the oldest connection whose
 * request is not complete. */
void guests_arrive(struct guests *g, int fd, int64_t now);
/* guests_ask notes that a request is complete and about to be answered. */
void guests_ask(struct guests *g, int fd, int64_t now);
/* guests_leave removes a connection. Call it before the descriptor is closed. */
void guests_leave(struct guests *g, int fd);
/* guests_tick ends connections that have lasted too long. It returns when to call it again, or
 * CLOCK_NEVER. */
int64_t guests_tick(struct guests *g, int64_t now);

#endif
