/* supervisor.h: the workers of one outbox and the thread that supervises them: it starts and stops
 * them, reloads, trims, and detects when no work is left. */
#ifndef API_SUPERVISOR_H
#define API_SUPERVISOR_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/option.h"
#include "engine/claim_quota.h"
#include "engine/suspect.h"
#include "store/store.h"

struct pool;
struct worker;
struct worker_view;

/* State shared by the workers of one outbox. (1) Everything below `lock` is protected by it. */
struct supervisor {
    struct store *st;  /* the outbox; without a pool each worker opens its own handle on it */
    struct pool *pool; /* of supervisor_run: the connections that the workers share; NULL: none */
    int connections;   /* maximum connections of the pool */
    int64_t memory;    /* bytes for the events that all workers hold */
    struct budget budget;
    const struct log *log;
    const struct clock *clock;
    int64_t drain_ms, sweep_ms, retention_ms, inbox_ms;
    struct suspects suspects; /* see pipeline_config */
    atomic_bool stop;
    int stop_fd; /* see fd.h: signalled once stop is set */

    pthread_mutex_t lock;
    /* a worker has ended or, with until_through, made progress; or reload_wanted was set */
    pthread_cond_t changed;
    bool until_through; /* workers publish their progress */
    uint64_t round;     /* see all_through in supervisor.c; 0: none has begun */
    /* The running workers. Only the thread of supervisor_run changes the list, so that thread may
     * read it without the lock. */
    struct worker *first;
    bool reload_wanted;

    /* Called by the thread of supervisor_run without the lock: `started` once all workers run,
     * `reload` after supervisor_reload. Set them before supervisor_run; NULL: none. */
    void (*started)(void *ctx), (*reload)(void *ctx);
    void *hook_ctx;
};

/* The options that the library and the command line share. SUPERVISOR_OPTIONS are rows of an option
 * table. AT(field) is the offset of a field in the table's target, which has drain_ms, sweep_ms,
 * retention_ms, inbox_ms, connections and memory. */
/* clang-format off */
#define SUPERVISOR_OPTIONS(AT) \
    {"drain-deadline", "DURATION", "30s", \
     "how long a stopping relay waits for deliveries that are in flight", \
     option_span, AT(drain_ms)}, \
    {"sweep", "DURATION", "30s", \
     "how often to look for work without a wake-up", \
     option_span, AT(sweep_ms), .min = 1}, \
    {"retention", "DURATION", "168h", \
     "how long to keep an event after its last consumer received it; 0s keeps events forever", \
     option_span, AT(retention_ms)}, \
    {"inbox-retention", "DURATION", "720h", \
     "how long to remember which events a handler has processed", \
     option_span, AT(inbox_ms), .min = 1}, \
    {"connections", "N", "4", \
     "how many connections to a PostgreSQL server the consumers share", \
     option_int, AT(connections), .min = 2, .max = 64}, \
    {"memory", "SIZE", "64MiB", \
     "how much memory the consumers share for the events they hold", \
     option_size, AT(memory), .min = 1024 * 1024}
/* clang-format on */
extern const struct option_def supervisor_options[]; /* their target is a struct supervisor */

/* supervisor_init gives a zeroed supervisor its defaults; the caller sets `st` before anything else
 * is called. supervisor_release is called once, even if supervisor_init failed. */
int supervisor_init(struct supervisor *sv, const struct clock *clock, const struct log *log,
                    struct error *err);
void supervisor_release(struct supervisor *sv);

/* supervisor_run runs w[0..n) until `stop` is set or, with until_through, until nothing is left to
 * do; see outbox_run. All workers are closed when it returns. */
int supervisor_run(struct supervisor *sv, struct worker *const *w, size_t n, bool until_through,
                   struct error *err);

/* supervisor_stop makes supervisor_run return, or the next one if none is running. Any thread, or a
 * signal handler. */
void supervisor_stop(struct supervisor *sv);

/* supervisor_reload requests a call of the hook `reload`. Any thread. */
void supervisor_reload(struct supervisor *sv);
/* supervisor_add opens a worker and starts it. supervisor_remove drains a worker, waits for its end
 * and closes it. Only the hook `reload` may call these; the other workers are not disturbed. With
 * `strict`, supervisor_add fails with ERR_CONFLICT where the consumer would stand by. */
int supervisor_add(struct worker *w, bool strict, struct error *err);
void supervisor_remove(struct worker *w);

/* supervisor_views copies the views of all workers that run; the caller frees *ret. Any thread. */
int supervisor_views(struct supervisor *sv, struct worker_view **ret, size_t *ret_n,
                     struct error *err);

/* supervisor_step lets w[0..n) deliver everything that is due, in the caller's thread; see
 * outbox_step. Healthy workers stay open for the next step. */
int supervisor_step(struct supervisor *sv, struct worker *const *w, size_t n, size_t *ret_delivered,
                    struct error *err);

/* supervisor_store opens a handle on the outbox for the supervisor's own use, or a pooled one where
 * there is a pool. */
int supervisor_store(struct supervisor *sv, struct store **ret, struct error *err);

/* The supervisors that a thread works for. There can be several, because a handler of one may step
 * another. supervisor_enter notes that the calling thread works for sv until supervisor_leave; the
 * caller owns *e, and must keep it that long. supervisor_is_current returns whether the calling
 * thread works for sv, which means that the caller is one of its handlers. */
struct supervisor_entry {
    const struct supervisor *sv;
    struct supervisor_entry *outer;
};
void supervisor_enter(struct supervisor_entry *e, const struct supervisor *sv);
void supervisor_leave(const struct supervisor_entry *e);
bool supervisor_is_current(const struct supervisor *sv);

#endif
