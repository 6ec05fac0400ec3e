/* runner.h: a pipeline with everything it needs, in a thread or in the caller's. Nobody else makes threads to deliver. */
#ifndef API_RUNNER_H
#define API_RUNNER_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/log.h"
#include "base/option.h"
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
    struct runner
        *first;         /* at work; only the thread of crew_run changes the list, so it may read it without the lock */
    bool reload_wanted; /* see crew_reload */

    /* Called in the thread of crew_run, without the lock; may be NULL. Set before crew_run. started: all are at work. */
    void (*started)(void *ctx), (*reload)(void *ctx);
    void *hook_ctx;
};

extern const struct option_def crew_options[]; /* their target is a struct crew */

/* What there is to see of a runner from outside. (1) held_oldest_at == 0 if and only if held == 0. */
struct runner_view {
    char consumer[STORE_NAME_MAX + 1];
    enum pipeline_state state;
    struct pipeline_stats stats;
    bool leased; /* its sink takes turns with others: */
    struct sink_lease lease;
    int64_t held, held_oldest_at;                /* see pipeline_held */
    char held_type[METER_NAME];                  /* "" if its name is longer */
    int64_t timeout_ms;                          /* of one delivery */
    int64_t step_since;                          /* monotonic ns: when the step it is in began; 0: it sleeps */
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

void runner_close(struct runner *r); /* fine on one that is not open */

/* crew_run runs all until stop, or until all are through; see outbox_run. */
int crew_run(struct crew *w, struct runner *const *r, size_t n, bool until_through, struct error *err);

/* For whoever runs a crew and wants to change it meanwhile. crew_reload, from any thread, has crew.reload called soon in
 * the thread of crew_run, where crew_add and crew_remove may be called: the one opens a runner and sets it to work, the
 * other lets it drain, waits for its end and closes it. The others go on undisturbed. With `strict` crew_add fails where the
 * consumer would stand by (ERR_CONFLICT). */
void crew_reload(struct crew *w);
int crew_add(struct crew *w, struct runner *r, bool strict, struct error *err);
void crew_remove(struct crew *w, struct runner *r);

/* crew_views copies what there is to see of all; the caller frees *ret. Any thread. */
int crew_views(struct crew *w, struct runner_view **ret, size_t *ret_n, struct error *err);

/* crew_step is one synchronous turn of all; see outbox_step. */
int crew_step(struct crew *w, struct runner *const *r, size_t n, size_t *ret_delivered, struct error *err);

/* crew_mine: the calling thread is at work for w, so it is a handler that calls. */
bool crew_mine(const struct crew *w);

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
