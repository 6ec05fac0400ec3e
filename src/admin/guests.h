/* guests.h: the connections that are open, and how long they may last. There are so many places and
 * no more: whoever does not say what he wants gives his to one who may. */
#ifndef ADMIN_GUESTS_H
#define ADMIN_GUESTS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GUESTS_MAX 32
#define GUESTS_PER_ADDRESS 8

/* (1) since == 0: the place is free. */
struct guest {
    int fd;
    int64_t since; /* when he came, or asked */
    bool asked;    /* his request is whole */
};

/* (1) guest is used under lock. */
struct guests {
    pthread_mutex_t lock;
    struct guest guest[GUESTS_MAX];
};

void guests_init(struct guests *g);
void guests_release(struct guests *g);
/* guests_arrive takes note of a connection. When most places are taken, the one who has been asking
 * for the longest has to go. */
void guests_arrive(struct guests *g, int fd, int64_t now);
/* guests_ask: a request is whole, and about to be answered. */
void guests_ask(struct guests *g, int fd, int64_t now);
/* guests_leave must be called before the descriptor is closed. */
void guests_leave(struct guests *g, int fd);
/* guests_tick ends connections that have lasted too long; returns when to call it again,
 * CLOCK_NEVER: no need to. */
int64_t guests_tick(struct guests *g, int64_t now);

#endif
