/* runner.h: a pipeline with everything it needs, in a thread or in the caller's. Nobody else makes
 * threads to deliver. */
#ifndef API_RUNNER_H
#define API_RUNNER_H

#include <pthread.h>
#include <stdatomic.h>

#include "api/crew.h"
#include "engine/pipeline.h"
#include "sink/handlers.h"

/* What there is to see of a runner from outside. (1) held_oldest_at == 0 if and only if held ==
 * 0. */
struct runner_view {
    char consumer[STORE_NAME_MAX + 1];
    enum pipeline_state state;
    struct pipeline_stats stats;
    bool leased; /* its sink takes turns with others: */
    struct sink_lease lease;
    int64_t held, held_oldest_at; /* see pipeline_held */
    char held_type[METER_NAME];   /* "" if its name is longer */
    int64_t timeout_ms;           /* of one delivery */
    /* monotonic ns: when the step it is in began; 0: it sleeps */
    int64_t step_since;
    char error[sizeof((struct error *)0)->text]; /* why it stopped, or stands by; "" */
};

/* One consumer at work. */
struct runner {
    struct crew *crew;
    struct consumer *consumer;
    const struct handler *handlers; /* when the consumer has no sink URL */
    size_t n_handlers;
    bool named;  /* the handlers work in transactions */
    int wake_fd; /* eventfd */

    struct runner *next; /* of crew.first */
    atomic_bool stop;    /* this one only */
    _Atomic int64_t step_since;
    int64_t shown_at;

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
    struct runner_view view;
};

/* runner_open gets everything ready but does not register the consumer. stand_by: see
 * pipeline_config. */
int runner_open(struct runner *r, bool stand_by, struct error *err);
void runner_close(struct runner *r); /* fine on one that is not open */
/* runner_begin opens one as new, whatever a step has left open. */
int runner_begin(struct runner *r, bool stand_by, struct error *err);
/* runner_start starts the thread of one that is open and registered. */
int runner_start(struct runner *r, struct error *err);
/* runner_wake is safe from any thread. */
void runner_wake(struct runner *r);
/* runner_show puts down what others may see; under crew->lock. */
void runner_show(struct runner *r);

/* In the caller's thread: runner_finish delivers everything that is due now. runner_leave makes
 * sure that nothing stays claimed while nobody is at work; what went wrong becomes *err, unless
 * *result says that something else did before. */
int runner_finish(struct runner *r, struct error *err);
void runner_leave(struct runner *r, struct error *err, int *result);

#endif
