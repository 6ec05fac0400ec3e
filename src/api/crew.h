/* crew.h: the runners of one outbox and the thread that supervises them: it starts and stops them,
 * reloads, trims, and knows when all are through. */
#ifndef API_CREW_H
#define API_CREW_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/option.h"
#include "engine/budget.h"
#include "engine/suspect.h"
#include "store/store.h"

struct pool;
struct runner;
struct runner_view;

/* What the runners of one outbox share. (1) Everything below `lock` is protected by it. */
struct crew {
    struct store *st;  /* the outbox; runners open handles of their own on it, or: */
    struct pool *pool; /* of crew_run: the connections that they share; NULL: none */
    int connections;   /* how many connections that may have */
    int64_t memory;    /* bytes for the events that all hold */
    struct budget budget;
    const struct log *log;
    const struct clock *clock;
    int64_t drain_ms, sweep_ms, retention_ms, inbox_ms;
    struct suspects suspects; /* see pipeline_config */
    atomic_bool stop;
    int stop_fd; /* eventfd: readable once stop is set */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* a runner has ended or, if that counts, got on; or: reload_wanted */
    bool until_through;     /* it counts how far each runner has come */
    uint64_t round;         /* see all_through in crew.c; 0: no round has begun */
    /* The runners at work. Only the thread of crew_run changes the list, so that thread may read it
     * without the lock. */
    struct runner *first;
    bool reload_wanted; /* see crew_reload */

    /* Called by the thread of crew_run without the lock: `started` once all runners are at work,
     * `reload` after crew_reload. Set them before crew_run; NULL: none. */
    void (*started)(void *ctx), (*reload)(void *ctx);
    void *hook_ctx;
};

extern const struct option_def crew_options[]; /* their target is a struct crew */

/* crew_run runs r[0..n) until `stop` is set or, with until_through, until none has anything left to
 * do; see outbox_run. All runners are closed when it returns. */
int crew_run(struct crew *w, struct runner *const *r, size_t n, bool until_through,
             struct error *err);

/* crew_reload has crew.reload called soon, by the thread of crew_run. Any thread may call it. */
void crew_reload(struct crew *w);
/* crew_add opens a runner and sets it to work. crew_remove drains a runner, waits for its end and
 * closes it. Only crew.reload may call these; the other runners are not disturbed. With `strict`,
 * crew_add fails with ERR_CONFLICT where the consumer would stand by. */
int crew_add(struct crew *w, struct runner *r, bool strict, struct error *err);
void crew_remove(struct crew *w, struct runner *r);

/* crew_views copies the views of all runners at work; the caller frees *ret. Any thread. */
int crew_views(struct crew *w, struct runner_view **ret, size_t *ret_n, struct error *err);

/* crew_step lets r[0..n) deliver everything that is due, in the caller's thread; see outbox_step.
 * Healthy runners stay open for the next step. */
int crew_step(struct crew *w, struct runner *const *r, size_t n, size_t *ret_delivered,
              struct error *err);

/* crew_handle opens a handle on the outbox for the crew's own use, or a pooled one where there is
 * a pool. */
int crew_handle(struct crew *w, struct store **ret, struct error *err);

/* crew_mine says whether the calling thread works for w, so that the caller is a handler of w. */
bool crew_mine(const struct crew *w);

/* The crews a thread works for. There can be several, because a handler of one may step another. */
struct crew_duty {
    const struct crew *crew;
    struct crew_duty *outer;
};
/* crew_duty_begin notes that the calling thread works for w until crew_duty_end. The caller owns
 * *d, and must keep it that long. */
void crew_duty_begin(struct crew_duty *d, const struct crew *w);
void crew_duty_end(const struct crew_duty *d);

#endif
