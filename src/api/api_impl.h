/* api_impl.h: declarations shared by the files of the public interface, and by the relay, which
 * needs more than outbox.h. The files are outbox.c (opens, emits, runs, reads Redis streams),
 * consumers.c (describes consumers and handlers), batch.c (claims and settles batches), tx.c (the
 * interface for handlers) and test.c (functions for tests of applications). */
#ifndef API_API_IMPL_H
#define API_API_IMPL_H

#include "api/worker.h"
#include "outbox.h"

/* A handler as the application defined it. */
struct api_handler {
    outbox_handler fn;
    void *ctx;
};

/* A consumer as the application describes it.
 * (1) Either all handlers are named, or none is. Named handlers run in transactions. With
 * fate=shared they share one consumer; otherwise each has its own consumer, a part.
 * (2) Parts and workers are created when they are needed, and remain until `changed`. */
struct outbox_consumer {
    struct outbox *ob;
    struct outbox_consumer *next;
    struct consumer c;
    bool events_set; /* the option `events` was given */
    bool named, shared;
    bool changed;    /* since the workers were created */
    bool registered; /* by outbox_consumer_register: not run without a sink or handlers */
    int threads;     /* the option `workers`: for each handler, or for all that share their fate */
    struct handler *handlers; /* names, patterns and ctx, an api_handler, are owned */
    size_t n_handlers;
    struct consumer *parts; /* one for each independent handler */
    size_t n_parts;
    struct worker **workers;
    size_t n_workers;
};

/* The handle.
 * (1) Its own connection `st` is used under `lock`, which outbox_begin keeps until commit or
 *     rollback.
 * (2) Consumers and their workers are changed under sv.lock. */
struct outbox {
    struct store *st;
    pthread_mutex_t lock;
    bool in_tx;
    struct log log;
    void (*log_fn)(void *, int, const char *, const char *);
    void (*log_about_fn)(void *ctx, int level, const char *consumer, const char *text,
                         const outbox_log_about *about);
    void *log_ctx;
    struct outbox_consumer *consumers;
    struct supervisor sv;
    struct clock clock;
    _Atomic int64_t clock_offset; /* ns; see test.c */

    bool eager;            /* deliver right after each commit */
    pthread_mutex_t turns; /* held by outbox_run and outbox_step */
    atomic_bool running;   /* outbox_run is at work */
};

static inline struct error *err_of(outbox_error *err)
{
    return (struct error *)err;
}

/* api_open is outbox_open. With `movable`, outbox_test_advance can move the clock. */
int api_open(const char *url, const outbox_options *options, bool movable, outbox **ret,
             struct error *err);
/* api_emit emits a message on the store's connection, or on a foreign one. ret may be NULL. */
int api_emit(struct store *st, void *foreign, const outbox_message *m, outbox_receipt *ret,
             struct error *err);

/* api_lock_own locks the handle's connection for a transaction of the library; the caller unlocks
 * it. It fails with ERR_MISUSE if the application has a transaction open there, since a rollback
 * would undo both. `what` begins the message: "claiming". */
int api_lock_own(outbox *ob, const char *what, struct error *err);

/* api_consumer_free frees a consumer that is not in any list. */
void api_consumer_free(outbox_consumer *c);
/* api_consumer_start starts all workers of a consumer made by outbox_consumer_new, or none. On
 * failure the caller calls api_consumer_stop. With `strict` it also fails where the consumer would
 * stand by (ERR_CONFLICT). api_consumer_stop drains a consumer while the others continue, waits for
 * its end and frees it. Only the hook `reload` of the supervisor may call either. */
int api_consumer_start(outbox_consumer *c, bool strict, struct error *err);
void api_consumer_stop(outbox_consumer *c);
/* api_runs_any returns whether outbox_run would run any consumer, even one whose settings are
 * wrong. */
bool api_runs_any(const outbox *ob);
/* api_workers lists the workers of all consumers, ready to run. The caller frees the list. NULL: a
 * failure, or no workers. */
struct worker **api_workers(outbox *ob, size_t *ret_n, struct error *err);

#endif
