/* runner.h: a pipeline with everything it needs, run in a thread of its own or in the caller's. No
 * other file starts threads that deliver. */
#ifndef API_RUNNER_H
#define API_RUNNER_H

#include <pthread.h>
#include <stdatomic.h>

#include "api/crew.h"
#include "base/owner.h"
#include "engine/pipeline.h"
#include "sink/handlers.h"

/* What others may see of a runner: a copy, see crew_views. */
struct runner_view {
    char consumer[STORE_NAME_MAX + 1];
    enum pipeline_state state;
    struct pipeline_stats stats;
    bool leased; /* the sink takes turns with others: lease is valid */
    struct sink_lease lease;
    struct sink_broker broker; /* kind == NULL: the sink has no broker */
    int64_t held;              /* see pipeline_held */
    int64_t timeout_ms;        /* of one delivery */
    int64_t step_since;        /* when the current step began, monotonic ns; 0: it sleeps */
    char error[sizeof((struct error *)0)->text]; /* why it stopped or stands by; "": neither */
};

/* One consumer at work. (1) p == NULL: it is not open. */
struct runner {
    struct crew *crew;
    struct consumer *consumer;
    const struct handler *handlers; /* for a consumer without a sink URL */
    size_t n_handlers;
    bool named;  /* the handlers have names, and work in transactions */
    bool sole;   /* the consumer has no other worker here */
    int wake_fd; /* eventfd; -1: it cannot be woken */

    struct runner *next; /* in crew.first */
    atomic_bool stop;    /* stops this runner alone */
    _Atomic int64_t step_since;
    int64_t shown_at; /* when runner_show was last called, monotonic ns */

    struct store *st;
    struct store *tx_st;       /* what named handlers work on; NULL: they share connections */
    struct pool_conn *tx_conn; /* one of those, during a step */
    struct pulse pulse;
    int64_t hung_since;   /* when the call that the heart gave up last began; heart.c only */
    _Atomic int64_t hung; /* calls that the heart has given up */
    struct pipeline *p;
    struct sink *sk;
    struct rng rng;
    char owner[OWNER_TEXT];
    pthread_t thread;
    int64_t failures; /* of all steps before the current one; see crew_step */

    /* Under crew->lock: what the thread last published. */
    bool through, ended;
    uint64_t round_seen;
    int64_t claims;
    struct error error;
    struct runner_view view;
};

/* runner_open opens the stores, the pipeline and the sink. It does not register the consumer. For
 * stand_by see pipeline_config. On failure everything is closed again. */
int runner_open(struct runner *r, bool stand_by, struct error *err);
/* runner_close closes them; it is safe on a runner that is not open. */
void runner_close(struct runner *r);
/* runner_begin opens a runner for crew_run, with everything reset; one that crew_step left open is
 * closed first. */
int runner_begin(struct runner *r, bool stand_by, struct error *err);
/* runner_start starts the thread of a runner that is open and registered. */
int runner_start(struct runner *r, struct error *err);
/* runner_wake makes the runner look for work. Any thread. */
void runner_wake(struct runner *r);
/* runner_show updates the view that others may see. The caller holds crew->lock. */
void runner_show(struct runner *r);

/* runner_finish delivers everything that is due now, in the caller's thread. */
int runner_finish(struct runner *r, struct error *err);
/* runner_leave ends such a turn: unless the runner is healthy and holds no claim, it is drained and
 * closed, so that nothing stays claimed while nobody works on it. What went wrong becomes *err, and
 * *result -1, if *result is still 0. */
void runner_leave(struct runner *r, struct error *err, int *result);

#endif
