/* handle.h: what the files of the public interface share: outbox.c (opening, emitting, running),
 * consumers.c, claim.c, tx.c (what a handler sees), test.c. */
#ifndef API_HANDLE_H
#define API_HANDLE_H

#include "api/runner.h"
#include "outbox.h"

struct api_handler {
    outbox_handler fn;
    void *ctx;
};

/* (1) `named` handlers work under a guard; with `shared` fate all of them for one consumer,
 *   otherwise each is a consumer of
 * its own. (2) parts and runners are made by consumer_expand and stay until `changed`. */
struct outbox_consumer {
    struct outbox *ob;
    struct outbox_consumer *next;
    struct consumer c;
    bool events_set, named, shared, changed;
    bool registered; /* by outbox_consumer_register; without sink and handlers it is not run */
    int workers;
    struct handler *handlers; /* names and patterns are owned */
    struct api_handler **api; /* ctx of handlers[i] */
    size_t n_handlers;
    struct consumer *parts; /* of consumers that go by other names than c */
    size_t n_parts;
    struct runner **runners;
    size_t n_runners;
};

/* (1) The own connection `st` is used under `lock`, which outbox_begin keeps until commit or
 *   rollback. (2) Consumers and
 * their runners are changed under crew.lock. */
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
    struct crew crew;
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

/* api_open is outbox_open; with `movable` the clock can be moved. */
int api_open(const char *url, const outbox_options *options, bool movable, outbox **ret,
             struct error *err);
/* api_message turns what a producer gives into an event to be checked. */
int api_message(const outbox_message *given, struct new_event *ev, struct error *err);
void api_receipt(outbox_receipt *ret, const char *id, bool duplicate);

void api_consumer_free(outbox_consumer *c);
/* api_consumer_describe checks what was set, and gives handlers with a fate of their own their
 * parts. */
int api_consumer_describe(outbox_consumer *c, struct error *err);
/* api_runs_any: whether there is a consumer to run, or one that is described wrongly. */
bool api_runs_any(const outbox *ob);
/* api_crew lists the runners of all consumers, ready to be run; the caller frees the list. */
struct runner **api_crew(outbox *ob, size_t *ret_n, struct error *err);

#endif
