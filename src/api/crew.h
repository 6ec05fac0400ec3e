/* crew.h: the runners of one outbox, and who watches over them: threads, rounds, reloading, the
 * hourly trim. */
#ifndef API_CREW_H
#define API_CREW_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/option.h"
#include "store/store.h"

struct runner;
struct runner_view;

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
    /* at work; only the thread of crew_run changes the list, so it may read it without the lock */
    struct runner *first;
    bool reload_wanted; /* see crew_reload */

    /* Called in the thread of crew_run, without the lock; may be NULL. Set before crew_run.
     * started: all are at work. */
    void (*started)(void *ctx), (*reload)(void *ctx);
    void *hook_ctx;
};

extern const struct option_def crew_options[]; /* their target is a struct crew */

/* crew_run runs all until stop, or until all are through; see outbox_run. */
int crew_run(struct crew *w, struct runner *const *r, size_t n, bool until_through,
             struct error *err);

/* For whoever runs a crew and wants to change it meanwhile. crew_reload, from any thread, has
 * crew.reload called soon in the thread of crew_run, where crew_add and crew_remove may be called:
 * the one opens a runner and sets it to work, the other lets it drain, waits for its end and closes
 * it. The others go on undisturbed. With `strict` crew_add fails where the consumer would stand by
 * (ERR_CONFLICT). */
void crew_reload(struct crew *w);
int crew_add(struct crew *w, struct runner *r, bool strict, struct error *err);
void crew_remove(struct crew *w, struct runner *r);

/* crew_views copies what there is to see of all; the caller frees *ret. Any thread. */
int crew_views(struct crew *w, struct runner_view **ret, size_t *ret_n, struct error *err);

/* crew_step is one synchronous turn of all; see outbox_step. */
int crew_step(struct crew *w, struct runner *const *r, size_t n, size_t *ret_delivered,
              struct error *err);

/* crew_mine: the calling thread is at work for w, so it is a handler that calls. */
bool crew_mine(const struct crew *w);

/* Which crews a thread is at work for: a handler of one may step another. */
struct crew_duty {
    const struct crew *crew;
    struct crew_duty *outer;
};
void crew_duty_begin(struct crew_duty *d, const struct crew *w);
void crew_duty_end(const struct crew_duty *d);

#endif
