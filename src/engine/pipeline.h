/* pipeline.h: the front door of the engine: one consumer's claim -> deliver -> settle.
 *
 * A pipeline owns nothing it was given (store, sink, clock, generator, log), starts no thread and
 * never waits: the host calls pipeline_step whenever something may have changed, and sleeps in
 * between until pipeline_wait says. */
#ifndef ENGINE_PIPELINE_H
#define ENGINE_PIPELINE_H

#include <poll.h>
#include <stdatomic.h>

#include "base/log.h"
#include "engine/consumer.h"
#include "engine/meter.h"
#include "engine/pulse.h"
#include "sink/handlers.h"
#include "store/store.h"

struct pipeline;

struct pipeline_config {
    const struct consumer *consumer;
    const char *owner;
    struct store *st;
    const struct clock *clock;
    struct rng *rng;
    const struct log *log; /* may be NULL */
    /* Shared by all pipelines of a process: held by the one that delivers a careful event, so that
     * when the process dies it is clear which event was at it. NULL: this is the only pipeline. */
    atomic_flag *careful;
    /* For a consumer with handlers that have names: what they work on, a handle of its own, lent;
     * and the handlers, as the sink has them. NULL: they act on their own. */
    struct store *work;
    const struct handler *handlers;
    size_t n_handlers;
    struct pulse *pulse; /* NULL: nobody extends claims while a handler runs */
    /* look at least this often even if no bell rings, unless the consumer has a poll_ms; 0: 30 s */
    int64_t sweep_ms;
    int64_t poll_ms; /* how often to look when the store has no bell; 0: 500 ms */
    /* When others have given the consumer other settings: wait until they are ours again, instead
     * of failing. */
    bool stand_by;
};

enum pipeline_state {
    PIPELINE_RUNNING,
    PIPELINE_DRAINING, /* takes no new work */
    PIPELINE_STOPPED,  /* nothing in flight, nothing claimed; step does nothing */
    PIPELINE_FAILED,   /* as stopped, but because of pipeline_error */
};

#define PIPELINE_WHY 200

struct pipeline_stats {
    int64_t delivered, retried, buried, behind, claims, lost, crashed;
    struct meter meter;
    /* Monotonic ns. stalled_since: since when it has had work in hand, or could not ask the store
     * for it, and got no event delivered or buried; 0: it has nothing to do. ended_at: when the
     * sink last gave any answer. */
    int64_t stalled_since, ended_at;
    char why[PIPELINE_WHY]; /* what sink or store said when it was last away; "" once it is back */
    bool through;           /* the last look found nothing left (see claim_hint.through) */
    bool paused;
    /* the consumer has other settings than ours: nothing is claimed until they are ours again */
    bool standby;
    bool down;          /* the sink is away, or nothing gets through to it */
    int64_t down_since; /* monotonic ns; 0: it is not */
};

/* pipeline_new makes the pipeline. Then pipeline_attach gives it its sink, which must have been
 * opened with pipeline_done and the pipeline as its done function, and pipeline_register registers
 * the consumer in the store: last, so that nothing is left of one that could not be started. The
 * caller frees *ret. ERR_CONFLICT of pipeline_register, only without cfg->stand_by: see
 * consumer_put. */
int pipeline_new(const struct pipeline_config *cfg, struct pipeline **ret, struct error *err);
void pipeline_attach(struct pipeline *p, struct sink *sk);
int pipeline_register(struct pipeline *p, struct error *err);
void pipeline_free(struct pipeline *p);
/* pipeline_guard is what the sink of handlers that have names is opened with. */
struct handler_guard pipeline_guard(struct pipeline *p);
void pipeline_done(void *pipeline, struct delivery *d, const struct sink_result *r);

/* pipeline_step does everything that can be done now: settles what is finished, claims, submits,
 * drives the sink, extends leases. Returns whether it is worth calling again at once. Store errors
 * do not end it: it says so in the log, and tries again after a while. */
bool pipeline_step(struct pipeline *p);

/* pipeline_wait says what to poll for (at most max entries, returns how many) and until when
 * (monotonic, CLOCK_NEVER: without end). */
size_t pipeline_wait(struct pipeline *p, struct pollfd *fds, size_t max, int64_t *ret_deadline);

/* pipeline_ring makes the next step look for work, as a doorbell does. */
void pipeline_ring(struct pipeline *p);

/* pipeline_drain takes no new work, gives back what was not started, waits for what is in flight
 * until the monotonic deadline, then cancels it. The state becomes PIPELINE_STOPPED. */
void pipeline_drain(struct pipeline *p, int64_t deadline);

/* pipeline_busy: it holds a claim. */
bool pipeline_busy(const struct pipeline *p);
enum pipeline_state pipeline_state(const struct pipeline *p);
const struct error *pipeline_error(const struct pipeline *p);
const struct pipeline_stats *pipeline_stats(const struct pipeline *p);
/* pipeline_held says what it has claimed and not ended. */
struct pipeline_held {
    size_t n;
    int64_t oldest_at; /* created_at of the first event of its oldest batch; 0: it holds none */
    struct str type;   /* of that event; borrowed until the next step */
};
struct pipeline_held pipeline_held(const struct pipeline *p);
/* pipeline_sink_lease: whose turn it is, for a sink that takes turns; NULL for others. */
const struct sink_lease *pipeline_sink_lease(const struct pipeline *p);
/* pipeline_store_error: why the last turn with the store failed; code 0 when it went well. */
const struct error *pipeline_store_error(const struct pipeline *p);
/* pipeline_standby: why it stands by; code 0: it does not. */
const struct error *pipeline_standby(const struct pipeline *p);
/* pipeline_failure: how the last event that failed did, "type: why"; "" when none has. */
const char *pipeline_failure(const struct pipeline *p);

#endif
