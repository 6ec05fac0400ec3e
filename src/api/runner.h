/* runner.h: a pipeline with everything it needs, in a thread or in the caller's. The only place that makes threads. */
#ifndef API_RUNNER_H
#define API_RUNNER_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/log.h"
#include "engine/pipeline.h"
#include "sink/handlers.h"

/* What the runners of one outbox share. (1) Everything below `lock` is protected by it. */
struct crew {
    struct store *st; /* the outbox; each runner dups it */
    const struct log *log;
    const struct clock *clock;
    int64_t drain_ms, sweep_ms, retention_ms, inbox_ms;
    atomic_flag careful; /* see pipeline_config */
    atomic_bool stop;
    int stop_fd; /* eventfd: readable once stop is set */

    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t round; /* see crew_run */
};

/* One consumer at work. */
struct runner {
    struct crew *crew;
    struct consumer *consumer;
    const struct handler *handlers; /* when the consumer has no sink URL */
    size_t n_handlers;
    bool named;  /* the handlers work in transactions */
    int wake_fd; /* eventfd */

    struct store *st;
    struct store *work; /* what such handlers work on */
    struct pulse pulse;
    int64_t hung_since;   /* the heart's own: the call it gave up, by when it started */
    _Atomic int64_t hung; /* calls given up so far */
    struct pipeline *p;
    struct sink *sk;
    struct rng rng;
    char owner[128];
    pthread_t thread;
    int64_t failures; /* before this step */

    /* Under crew->lock: what the thread last said. */
    bool through, ended;
    uint64_t round_seen;
    int64_t claims;
    struct error error;
};

int runner_open(struct runner *r, struct error *err);
void runner_close(struct runner *r); /* fine on one that is not open */

/* crew_run runs all until stop, or until all are through; see outbox_run. */
int crew_run(struct crew *w, struct runner *const *r, size_t n, bool until_through, struct error *err);

/* crew_step is one synchronous turn of all; see outbox_step. */
int crew_step(struct crew *w, struct runner *const *r, size_t n, size_t *ret_delivered, struct error *err);

/* The heart keeps the claims of handlers alive that take long, up to their time limit, while the crew is at work. heart_start
 * does nothing where there are no handlers. */
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
int heart_start(struct heart *h, struct crew *w, struct runner *const *r, size_t n, struct error *err);
void heart_stop(struct heart *h);

/* runner_wake is safe from any thread. */
void runner_wake(struct runner *r);

#endif
