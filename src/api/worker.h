/* worker.h: a pipeline with its stores and sink, which runs in its own thread or in the caller's,
 * and the thread that renews the leases of slow handlers. No other file starts threads that
 * deliver. */
#ifndef API_WORKER_H
#define API_WORKER_H

#include <pthread.h>
#include <stdatomic.h>

#include "api/supervisor.h"
#include "base/owner.h"
#include "engine/pipeline.h"
#include "sink/handlers.h"

/* What other threads may see of a worker: a copy, see supervisor_views. */
struct worker_view {
    char consumer[STORE_NAME_MAX + 1];
    enum pipeline_state state;
    struct pipeline_stats stats;
    bool leased; /* the sink takes turns with others: lease is valid */
    struct sink_lease lease;
    struct sink_broker broker; /* kind == NULL: the sink has no broker */
    int64_t held;              /* see pipeline_held */
    int64_t timeout_ms;        /* of one delivery */
    int64_t step_since;        /* when the current step began, monotonic ns; 0: it sleeps */
    char error[sizeof((struct error *)0)
                   ->text]; /* why the worker stopped or stands by; "": neither */
};

/* (1) p == NULL: the worker is not open. */
struct worker {
    struct supervisor *sv;
    struct consumer *consumer;
    const struct handler *handlers; /* for a consumer without a sink URL */
    size_t n_handlers;
    bool named;  /* the handlers have names, and run in transactions */
    bool sole;   /* the consumer has no other worker here */
    int wake_fd; /* see fd.h */

    struct worker *next; /* in supervisor.first */
    atomic_bool stop;    /* stops this worker alone */
    _Atomic int64_t step_since;
    int64_t shown_at; /* when worker_show was last called, monotonic ns */

    struct store *st;
    struct store *tx_st;       /* connection for named handlers; NULL: they share the pool's */
    struct pool_conn *tx_conn; /* a pooled one, during a step */
    struct call_progress call;
    int64_t overdue_since;    /* start of the call reported last; lease_renewer.c only */
    _Atomic int64_t given_up; /* calls whose claims are no longer extended */
    struct pipeline *p;
    struct sink *sk;
    struct rng rng;
    char owner[OWNER_TEXT];
    pthread_t thread;
    int64_t failures; /* of all steps before the current one; see supervisor_step */

    /* Under sv->lock: the state that the thread published last. */
    bool through, ended;
    uint64_t round_seen;
    int64_t claims;
    struct error error;
    struct worker_view view;
};

/* worker_open opens the stores, the pipeline and the sink, after closing what supervisor_step may
 * have left open. It does not register the consumer. For stand_by see pipeline_config. On failure
 * everything is closed again. worker_close closes them; it is safe on a worker that is not open.
 * worker_start starts the thread of an open worker, once the consumer is registered, and adds the
 * worker to sv's list. */
int worker_open(struct worker *w, bool stand_by, struct error *err);
void worker_close(struct worker *w);
int worker_start(struct worker *w, struct error *err);

/* worker_wake makes the worker look for work. Any thread. */
void worker_wake(struct worker *w);
/* worker_show updates the view for other threads. The caller holds sv->lock. */
void worker_show(struct worker *w);

/* worker_finish delivers everything that is due now, in the caller's thread. */
int worker_finish(struct worker *w, struct error *err);
/* worker_leave ends such a step. It drains and closes the worker, unless the worker is healthy and
 * holds no claim: no claim may remain without a worker to deliver it. A failure is stored in *err,
 * with *result = -1, if *result is still 0. */
void worker_leave(struct worker *w, struct error *err, int *result);

/* ---- lease_renewer.c ---- */

/* A thread that extends the claims of slow handlers. Handlers occupy the threads of their
 * consumers, so it has its own thread and store handle. (1) While running is false, only workers
 * and n are meaningful. */
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
