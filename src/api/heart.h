/* heart.h: keeps the claims of slow handlers alive. */
#ifndef API_HEART_H
#define API_HEART_H

#include "api/crew.h"

/* The heart keeps the claims of handlers alive that take long, up to their time limit, while the
 * crew is at work. heart_start does nothing where there are no handlers. */
struct heart {
    struct crew *crew;
    struct runner *const *r;
    size_t n;
    struct store *st;
    pthread_t thread;
    bool beats;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop; /* under lock */
};
int heart_start(struct heart *h, struct crew *w, struct runner *const *r, size_t n,
                struct error *err);
void heart_stop(struct heart *h);

#endif
