/* pipeline.h: the front door of the engine: claim -> deliver -> settle, for one consumer.
 *
 * A pipeline borrows everything it is given (store, sink, clock, generator, log), starts no thread
 * and never waits. The host calls pipeline_step whenever something may have changed, and sleeps as
 * long as pipeline_wait allows in between. Only one thread at a time may use a pipeline. */
#ifndef ENGINE_PIPELINE_H
#define ENGINE_PIPELINE_H

#include <poll.h>
#include <stdatomic.h>

#include "base/log.h"
#include "engine/claim_quota.h"
#include "engine/consumer.h"
#include "engine/meter.h"
#include "engine/suspect.h"
#include "sink/handlers.h"
#include "store/store.h"

struct pipeline;

/* Where the handlers of a pipeline obtain the connection for their transactions, for one step at a
 * time; no transaction is open between steps. acquire may wait; NULL: there is no pool. */
struct tx_pool {
    int (*acquire)(void *ctx, struct store **ret, struct error *err);
    void (*release)(void *ctx, struct store *st);
    void *ctx;
};

/* The handler call that a pipeline is in. Handlers run in the pipeline's thread, so the lease
 * renewer, another thread, extends its claim. Any thread may read it. */
struct call_progress {
    _Atomic int64_t started;  /* when the call began, monotonic; 0: there is none */
    _Atomic int64_t epoch;    /* of the claim */
    _Atomic int64_t deadline; /* when the claim expires, monotonic; the lease renewer moves it */
    atomic_bool frozen; /* claims can neither expire nor be extended now: see effects_freeze */
};

struct pipeline_config {
    const struct consumer *consumer;
    const char *owner;
    struct store *st;
    const struct clock *clock;
    struct rng *rng;
    const struct log *log; /* may be NULL */
    /* Shared by all pipelines of a process: which events may kill it. NULL: this is the only
     * pipeline. It must outlive the pipeline. */
    struct suspects *suspects;
    /* gone returns whether the process of an owner has certainly ended, so that its claims need not
     * expire first. NULL: unknown. */
    bool (*gone)(const char *owner);
    /* The memory for events in flight, shared by all pipelines of a process. NULL: no limit but
     * that of batches. It must outlive the pipeline. */
    struct budget *budget;
    /* For named handlers: a dedicated connection for their transactions, or the pool that it comes
     * from; and the handlers themselves, as given to the sink. Neither: handlers act outside the
     * store. */
    struct store *tx_conn;
    struct tx_pool tx_pool;
    const struct handler *handlers;
    size_t n_handlers;
    struct call_progress *progress; /* NULL: claims are not extended while a handler runs */
    /* Look at least this often even without a wake-up, unless the consumer has a poll_ms; 0: 30 s.
     */
    int64_t sweep_ms;
    int64_t poll_ms; /* how often to look when the store has no wake-ups; 0: 500 ms */
    /* How long a batch that was delivered whole may wait to be settled, so that it can be settled
     * together with the next claim. 0: it is settled at once. */
    int64_t settle_wait_ms;
    /* If the consumer is given newer settings, stand by until ours are in force again,
     * instead of failing. */
    bool stand_by;
    bool sole; /* the process has no other pipeline for this consumer */
};

enum pipeline_state {
    PIPELINE_RUNNING,
    PIPELINE_DRAINING, /* claims nothing more */
    PIPELINE_STOPPED,  /* nothing in flight, nothing claimed; pipeline_step does nothing */
    PIPELINE_FAILED,   /* like STOPPED, but because of pipeline_error */
};

#define PIPELINE_WHY 200

/* What a pipeline reports about itself. An error has code 0 if there is none. */
struct pipeline_stats {
    enum pipeline_state state;
    struct error error;       /* why the pipeline failed */
    struct error store_error; /* why the last turn with the store failed */
    struct error standby_why; /* why the pipeline stands by: the consumer has newer settings than
                                 ours, so nothing is claimed */
    char failure[256];        /* the last failure of an event, as "type: reason"; "": none */
    int64_t delivered, retried, buried, behind, claims, lost, crashed;
    struct meter meter;
    /* Since when, in monotonic ns, the pipeline has had work without delivering or burying any
     * event. An unreachable store counts as work. 0: it has nothing to do. */
    int64_t stalled_since;
    int64_t held_bytes;     /* memory of the batches in flight */
    int64_t ended_at;       /* when the sink last answered, monotonic ns */
    char why[PIPELINE_WHY]; /* the sink's or store's error when it went down; "" once it is back */
    bool through;           /* the last look found no work left (see claim_hint.through) */
    bool paused;
    bool down;          /* the sink is down, or no delivery succeeds */
    int64_t down_since; /* monotonic ns; 0: the sink is up */
};

/* pipeline_new makes a pipeline, which the caller frees. pipeline_attach then attaches its sink,
 * which must have been opened with pipeline_done and this pipeline as its done function.
 * pipeline_register is called last: it registers the consumer in the store, which must have no
 * trace of a consumer that failed to start. It fails with ERR_CONFLICT if other settings are in
 * force (see consumer_put) and cfg->stand_by is false. */
int pipeline_new(const struct pipeline_config *cfg, struct pipeline **ret, struct error *err);
void pipeline_attach(struct pipeline *p, struct sink *sk);
int pipeline_register(struct pipeline *p, struct error *err);
void pipeline_free(struct pipeline *p);
/* pipeline_guard returns the guard that the sink of named handlers is opened with. */
struct handler_guard pipeline_guard(struct pipeline *p);
/* pipeline_done is the done function of the pipeline's sink. */
void pipeline_done(void *pipeline, struct delivery *d, const struct sink_result *r);

/* pipeline_step does everything that can be done now: it settles, claims, submits, drives the sink
 * and extends leases. Returns whether to call it again at once. Errors of the store are logged. */
bool pipeline_step(struct pipeline *p);

/* pipeline_wait fills in at most max entries to poll for, and returns their number. *ret_deadline
 * is when to wake up at the latest, monotonic; CLOCK_NEVER: no limit. */
size_t pipeline_wait(struct pipeline *p, struct pollfd *fds, size_t max, int64_t *ret_deadline);

/* pipeline_wake makes the next step look for work, as a wake-up does. */
void pipeline_wake(struct pipeline *p);

/* pipeline_drain stops claiming and gives back unstarted events. Deliveries in flight may continue
 * until the monotonic deadline, and are then cancelled. */
void pipeline_drain(struct pipeline *p, int64_t deadline);

/* pipeline_busy returns whether the pipeline holds a claim. */
bool pipeline_busy(const struct pipeline *p);
const struct pipeline_stats *pipeline_stats(const struct pipeline *p);
/* pipeline_held returns how many events are claimed and have not ended. */
size_t pipeline_held(const struct pipeline *p);
/* pipeline_sink_lease returns the lease of a sink that takes turns with others; NULL for any other
 * sink. */
const struct sink_lease *pipeline_sink_lease(const struct pipeline *p);
#endif
