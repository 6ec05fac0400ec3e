/* lease_renewer.h: a thread that extends the claims of slow handlers. Handlers occupy the threads
 * of their consumers, so it has a thread and a store handle of its own. */
#ifndef API_LEASE_RENEWER_H
#define API_LEASE_RENEWER_H

#include "api/supervisor.h"

/* (1) While running is false, only workers and n are meaningful. */
struct lease_renewer {
    struct supervisor *sv;
    struct worker *const *workers;
    size_t n;
    struct store *st; /* opened when it is first needed; NULL: not yet */
    pthread_t thread;
    bool running;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop; /* under lock */
};

/* lease_renewer_start extends the claims of w[0..n) while their handlers run, up to the time limit
 * of each call, until lease_renewer_stop. w is borrowed until then. Without handlers it does
 * nothing. */
int lease_renewer_start(struct lease_renewer *l, struct supervisor *sv, struct worker *const *w,
                        size_t n, struct error *err);
void lease_renewer_stop(struct lease_renewer *l);

#endif
