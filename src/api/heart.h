/* heart.h: a thread that keeps the claims of slow handlers alive. */
#ifndef API_HEART_H
#define API_HEART_H

#include "api/crew.h"

/* (1) While beats is false, nothing else but r and n has a meaning. */
struct heart {
    struct crew *crew;
    struct runner *const *r;
    size_t n;
    struct store *st; /* opened when it is first needed; NULL: not yet */
    pthread_t thread;
    bool beats; /* the thread is at work */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop; /* under lock */
};

/* heart_start extends the claims of r[0..n) while their handlers run, up to the time limit of each
 * call, until heart_stop. r is borrowed until then. Without handlers it does nothing. */
int heart_start(struct heart *h, struct crew *w, struct runner *const *r, size_t n,
                struct error *err);
void heart_stop(struct heart *h);

#endif
