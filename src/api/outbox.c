/* outbox.c: the public interface (include/outbox.h) over store and engine. */
#include "outbox.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "api/manage.h"
#include "api/runner.h"
#include "base/fd.h"
#include "base/text.h"
#include "store/postgres/handle.h"
#include "store/sqlite/handle.h"

_Static_assert(sizeof(struct outbox_error) == sizeof(struct error), "struct error is ABI");
_Static_assert((int)OUTBOX_INTERNAL == (int)ERR_INTERNAL && (int)OUTBOX_FATE_FATAL == (int)FATE_FATAL,
               "the codes are the same");

struct api_handler {
    outbox_handler fn;
    void *ctx;
};

struct outbox_consumer {
    struct outbox *ob;
    struct outbox_consumer *next;
    struct consumer c;
    bool events_set;
    struct handler *handlers;
    struct api_handler **api; /* ctx of handlers[i] */
    size_t n_handlers;
    struct runner runner;
};

/* (1) The own connection `st` is used under `lock`, which outbox_begin keeps until commit or rollback. */
struct outbox {
    struct store *st;
    pthread_mutex_t lock;
    bool in_tx;
    struct log log;
    void (*log_fn)(void *, int, const char *, const char *);
    void *log_ctx;
    struct outbox_consumer *consumers;
    size_t n_consumers;
    struct crew crew;
};

static struct error *err_of(outbox_error *err)
{
    return (struct error *)err;
}

OUTBOX_API const char *outbox_version(void)
{
    return OUTBOX_VERSION;
}

/* ---- opening ---- */

static void pass_log(void *ctx, enum log_level level, const char *consumer, const char *text)
{
    outbox *ob = ctx;
    ob->log_fn(ob->log_ctx, (int)level, consumer, text);
}

/* Fields that a caller compiled against an older header does not have are left at their defaults. */
static void take_options(const outbox_options *given, outbox_options *o)
{
    *o = (outbox_options)OUTBOX_OPTIONS_INIT;
    if (!given) return;
    memcpy(o, given, given->size < sizeof *o ? given->size : sizeof *o);
}

static int outbox_setup(outbox *ob, struct error *err)
{
    pthread_mutexattr_t recursive;
    pthread_condattr_t monotonic;
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE); /* emit within begin..commit */
    pthread_mutex_init(&ob->lock, &recursive);
    pthread_mutexattr_destroy(&recursive);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&ob->crew.changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&ob->crew.lock, NULL);
    ob->crew.log = &ob->log;
    ob->crew.drain_ms = 30000;
    ob->crew.sweep_ms = 30000;
    ob->crew.retention_ms = INT64_C(168) * 3600 * 1000;
    atomic_init(&ob->crew.stop, false);
    atomic_flag_clear(&ob->crew.careful);
    ob->crew.stop_fd = fd_above_stdio(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    return ob->crew.stop_fd < 0 ? err_set(err, ERR_UNAVAILABLE, "could not make an eventfd") : 0;
}

OUTBOX_API int outbox_open(const char *url, const outbox_options *options, outbox **ret, outbox_error *public_err)
{
    struct error *err = err_of(public_err);
    outbox_options o;
    bool created;
    take_options(options, &o);
    outbox *ob = calloc(1, sizeof *ob);
    if (!ob) return err_nomem(err);
    ob->log_fn = o.log;
    ob->log_ctx = o.log_ctx;
    ob->log = (struct log){o.log ? pass_log : NULL, ob, (enum log_level)o.log_level};
    struct store_options so = {.create = o.create != 0, .busy_ms = o.busy_ms, .payload_max = o.payload_max};
    if (outbox_setup(ob, err) != 0 || store_open(url, &so, &ob->st, err) != 0) goto fail;
    if (o.create && ob->st->ops->init(ob->st, &created, err) != 0) goto fail;
    ob->crew.st = ob->st;
    *ret = ob;
    return 0;
fail:
    outbox_close(ob);
    return -1;
}

static void consumer_free(outbox_consumer *c)
{
    runner_close(&c->runner);
    if (c->runner.wake_fd >= 0) close(c->runner.wake_fd);
    for (size_t i = 0; i < c->n_handlers; i++) {
        free((char *)c->handlers[i].pattern);
        free(c->api[i]);
    }
    free(c->handlers);
    free(c->api);
    consumer_release(&c->c);
    free(c);
}

OUTBOX_API void outbox_close(outbox *ob)
{
    if (!ob) return;
    while (ob->consumers) {
        outbox_consumer *c = ob->consumers;
        ob->consumers = c->next;
        consumer_free(c);
    }
    store_close(ob->st);
    if (ob->crew.stop_fd >= 0) close(ob->crew.stop_fd);
    pthread_cond_destroy(&ob->crew.changed);
    pthread_mutex_destroy(&ob->crew.lock);
    pthread_mutex_destroy(&ob->lock);
    free(ob);
}

/* ---- emitting ---- */

static int take_message(const outbox_message *given, struct new_event *ev, struct error *err)
{
    outbox_message m = OUTBOX_MESSAGE_INIT;
    if (given->size == 0) return err_set(err, ERR_MISUSE, "message was not initialised with OUTBOX_MESSAGE_INIT");
    memcpy(&m, given, given->size < sizeof m ? given->size : sizeof m);
    *ev = (struct new_event){
        .type = str_of(m.type),
        .aggregate_type = str_of(m.aggregate_type),
        .aggregate_id = str_of(m.aggregate_id),
        .payload = str_of(m.payload),
        .headers = str_of(m.headers),
        .idempotency_key = str_of(m.idempotency_key),
        .tenant = str_of(m.tenant),
        .has_version = m.has_version != 0,
        .version = m.version,
        .not_before = m.not_before,
    };
    if (m.payload && m.payload_size) ev->payload.n = m.payload_size;
    return 0;
}

static int emit(outbox *ob, void *foreign, const outbox_message *m, outbox_receipt *ret, struct error *err)
{
    struct new_event ev;
    char id[UUID_TEXT + 1];
    bool duplicate;
    if (take_message(m, &ev, err) != 0) return -1;
    bool own = !foreign || !(ob->st->caps & STORE_FREE);
    if (own)
        pthread_mutex_lock(&ob->lock); /* SQLite also for a foreign connection: ids come from the handle's generator */
    int r = ob->st->ops->emit(ob->st, foreign, &ev, id, &duplicate, err);
    if (own) pthread_mutex_unlock(&ob->lock);
    if (r != 0) return -1;
    if (ret) {
        memcpy(ret->id, id, sizeof ret->id);
        ret->duplicate = duplicate;
    }
    return 0;
}

/* ring wakes our own consumers where the store has no bell to do it. */
static void ring(outbox *ob)
{
    if (!(ob->st->caps & STORE_DOORBELL)) outbox_wake(ob);
}

OUTBOX_API int outbox_emit(outbox *ob, const outbox_message *m, outbox_receipt *ret, outbox_error *err)
{
    int r = emit(ob, NULL, m, ret, err_of(err));
    if (r == 0) ring(ob);
    return r;
}

OUTBOX_API int outbox_emit_sqlite(outbox *ob, struct sqlite3 *db, const outbox_message *m, outbox_receipt *ret,
                                  outbox_error *err)
{
    if (!db) return err_set(err_of(err), ERR_MISUSE, "outbox_emit_sqlite needs a connection");
    if (!outbox_sqlite(ob)) return err_set(err_of(err), ERR_MISUSE, "this outbox is not in SQLite");
    return emit(ob, db, m, ret, err_of(err));
}

OUTBOX_API int outbox_emit_pg(outbox *ob, struct pg_conn *db, const outbox_message *m, outbox_receipt *ret,
                              outbox_error *err)
{
    if (!db) return err_set(err_of(err), ERR_MISUSE, "outbox_emit_pg needs a connection");
    if (!outbox_pg(ob)) return err_set(err_of(err), ERR_MISUSE, "this outbox is not in PostgreSQL");
    return emit(ob, db, m, ret, err_of(err));
}

OUTBOX_API int outbox_begin(outbox *ob, outbox_error *err)
{
    pthread_mutex_lock(&ob->lock);
    if (ob->st->ops->begin(ob->st, err_of(err)) == 0) {
        ob->in_tx = true;
        return 0; /* the lock stays until commit or rollback */
    }
    pthread_mutex_unlock(&ob->lock);
    return -1;
}

/* end_tx lets go of the lock of outbox_begin besides our own; false when there was no outbox_begin. */
static bool end_tx(outbox *ob)
{
    bool was = ob->in_tx;
    ob->in_tx = false;
    if (was) pthread_mutex_unlock(&ob->lock);
    return was;
}

OUTBOX_API int outbox_commit(outbox *ob, outbox_error *err)
{
    pthread_mutex_lock(&ob->lock);
    int r = ob->in_tx ? ob->st->ops->commit(ob->st, err_of(err))
                      : err_set(err_of(err), ERR_MISUSE, "outbox_commit without outbox_begin");
    end_tx(ob);
    pthread_mutex_unlock(&ob->lock);
    if (r == 0) ring(ob);
    return r;
}

OUTBOX_API void outbox_rollback(outbox *ob)
{
    pthread_mutex_lock(&ob->lock);
    if (end_tx(ob)) ob->st->ops->rollback(ob->st);
    pthread_mutex_unlock(&ob->lock);
}

OUTBOX_API struct sqlite3 *outbox_sqlite(outbox *ob)
{
    return sqlite_handle(ob->st);
}

OUTBOX_API struct pg_conn *outbox_pg(outbox *ob)
{
    return postgres_handle(ob->st);
}

/* ---- what a handler sees: an outbox_event is a struct delivery, an outbox_tx a struct handler_call ---- */

static const struct event *event_of(const outbox_event *ev)
{
    return ((const struct delivery *)ev)->ev;
}

OUTBOX_API const char *outbox_event_id(const outbox_event *ev)
{
    return event_of(ev)->id.p;
}

OUTBOX_API int64_t outbox_event_seq(const outbox_event *ev)
{
    return event_of(ev)->seq;
}

OUTBOX_API const char *outbox_event_type(const outbox_event *ev)
{
    return event_of(ev)->type.p;
}

OUTBOX_API const char *outbox_event_aggregate_type(const outbox_event *ev)
{
    return event_of(ev)->aggregate_type.p;
}

OUTBOX_API const char *outbox_event_aggregate_id(const outbox_event *ev)
{
    return event_of(ev)->aggregate_id.p;
}

OUTBOX_API const char *outbox_event_payload(const outbox_event *ev, size_t *ret_size)
{
    if (ret_size) *ret_size = event_of(ev)->payload.n;
    return event_of(ev)->payload.p;
}

OUTBOX_API const char *outbox_event_headers(const outbox_event *ev)
{
    return event_of(ev)->headers.p;
}

OUTBOX_API const char *outbox_event_tenant(const outbox_event *ev)
{
    return event_of(ev)->tenant.p;
}

OUTBOX_API int outbox_event_version(const outbox_event *ev, int64_t *ret_version)
{
    if (!event_of(ev)->has_version) return 0;
    if (ret_version) *ret_version = event_of(ev)->version;
    return 1;
}

OUTBOX_API int64_t outbox_event_created_at(const outbox_event *ev)
{
    return event_of(ev)->created_at;
}

OUTBOX_API int outbox_event_attempt(const outbox_event *ev)
{
    return ((const struct delivery *)ev)->attempt;
}

OUTBOX_API outbox_verdict outbox_fail(outbox_tx *tx, outbox_verdict verdict, const char *text)
{
    struct handler_call *call = (struct handler_call *)tx;
    snprintf(call->text, sizeof call->text, "%s", text);
    return verdict;
}

/* ---- consumers ---- */

OUTBOX_API int outbox_consumer_new(outbox *ob, const char *name, outbox_consumer **ret, outbox_error *public_err)
{
    struct error *err = err_of(public_err);
    outbox_consumer **end = &ob->consumers;
    if (store_name_check(name, err) != 0) return -1;
    for (; *end; end = &(*end)->next)
        if (strcmp((*end)->c.name, name) == 0)
            return err_set(err, ERR_CONFIG, "consumer \"%s\" is there already", name);
    outbox_consumer *c = calloc(1, sizeof *c);
    if (!c) return err_nomem(err);
    c->ob = ob;
    c->runner.wake_fd = fd_above_stdio(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (consumer_init(&c->c, name, err) != 0 || c->runner.wake_fd < 0) {
        if (c->runner.wake_fd < 0) err_set(err, ERR_UNAVAILABLE, "could not make an eventfd");
        consumer_free(c);
        return -1;
    }
    *end = c;
    ob->n_consumers++;
    *ret = c;
    return 0;
}

OUTBOX_API int outbox_consumer_set(outbox_consumer *c, const char *option, const char *value, outbox_error *err)
{
    if (option_set(consumer_options, &c->c, option, value, err_of(err)) != 0) return -1;
    if (strcmp(option, "events") == 0) c->events_set = true;
    return 0;
}

static enum sink_status call_handler(struct handler_call *call, const struct delivery *d, void *ctx)
{
    static const enum sink_status status[] = {SINK_DELIVERED, SINK_RETRY, SINK_REJECT, SINK_DOWN};
    struct api_handler *h = ctx;
    unsigned verdict = (unsigned)h->fn((const outbox_event *)d, (outbox_tx *)call, h->ctx);
    return verdict < 4 ? status[verdict] : SINK_RETRY;
}

OUTBOX_API int outbox_on(outbox_consumer *c, const char *pattern, outbox_handler handler, void *ctx,
                         outbox_error *public_err)
{
    struct error *err = err_of(public_err);
    size_t n = c->n_handlers;
    if (!*pattern || strchr(pattern, ','))
        return err_set(err, ERR_CONFIG, "\"%s\" is not a pattern of event types: one name or order.* or *", pattern);
    struct handler *h = realloc(c->handlers, (n + 1) * sizeof *h);
    if (h) c->handlers = h;
    struct api_handler **list = realloc(c->api, (n + 1) * sizeof(struct api_handler *)), *api = malloc(sizeof *api);
    if (list) c->api = list;
    char *copy = strdup(pattern);
    if (!h || !list || !api || !copy) {
        free(api);
        free(copy);
        return err_nomem(err);
    }
    *api = (struct api_handler){handler, ctx};
    c->api[n] = api;
    c->handlers[n] = (struct handler){copy, call_handler, api};
    c->n_handlers++;
    return 0;
}

/* join_patterns makes the handlers' patterns the consumer's filter, unless one was set. */
static int join_patterns(outbox_consumer *c, struct error *err)
{
    size_t size = 1;
    if (c->events_set || c->n_handlers == 0) return 0;
    for (size_t i = 0; i < c->n_handlers; i++) size += strlen(c->handlers[i].pattern) + 1;
    char *all = calloc(1, size);
    if (!all) return err_nomem(err);
    for (size_t i = 0; i < c->n_handlers; i++) {
        if (i) strcat(all, ",");
        strcat(all, c->handlers[i].pattern);
    }
    int r = option_set(consumer_options, &c->c, "events", all, err);
    free(all);
    return r;
}

static int prepare(outbox_consumer *c, struct error *err)
{
    if (c->c.sink && c->n_handlers)
        return err_set(err, ERR_CONFIG, "consumer \"%s\" has a sink and handlers: it can have only one of them",
                       c->c.name);
    if (!c->c.sink && !c->n_handlers)
        return err_set(err, ERR_CONFIG, "consumer \"%s\" has neither a sink nor a handler", c->c.name);
    c->runner.crew = &c->ob->crew;
    c->runner.consumer = &c->c;
    c->runner.handlers = c->handlers;
    c->runner.n_handlers = c->n_handlers;
    return join_patterns(c, err);
}

/* crew_of lists the runners, ready to be run; the caller frees the list. */
static struct runner **crew_of(outbox *ob, struct error *err)
{
    struct runner **list = calloc(ob->n_consumers + 1, sizeof(struct runner *));
    size_t n = 0;
    if (!list) {
        err_nomem(err);
        return NULL;
    }
    for (outbox_consumer *c = ob->consumers; c; c = c->next) {
        if (prepare(c, err) != 0) {
            free(list);
            return NULL;
        }
        list[n++] = &c->runner;
    }
    if (n > 0) return list;
    err_set(err, ERR_CONFIG, "there is no consumer to run");
    free(list);
    return NULL;
}

/* ---- running ---- */

static int set_ms(void *target, const char *value, struct error *err)
{
    return text_duration(value, target, err);
}

OUTBOX_API int outbox_set(outbox *ob, const char *option, const char *value, outbox_error *err)
{
    static const struct option_def table[] = {
        {"drain-deadline", "DURATION", "30s", "", set_ms},
        {"sweep", "DURATION", "30s", "", set_ms},
        {"retention", "DURATION", "168h", "", set_ms},
        {NULL, NULL, NULL, NULL, NULL},
    };
    int64_t *targets[] = {&ob->crew.drain_ms, &ob->crew.sweep_ms, &ob->crew.retention_ms};
    const struct option_def *o = option_find(table, option);
    return option_set(table, o ? targets[o - table] : NULL, option, value, err_of(err));
}

OUTBOX_API int outbox_run(outbox *ob, int flags, outbox_error *err)
{
    struct runner **list = crew_of(ob, err_of(err));
    if (!list) return -1;
    int r = crew_run(&ob->crew, list, ob->n_consumers, (flags & OUTBOX_UNTIL_THROUGH) != 0, err_of(err));
    free(list);
    return r;
}

OUTBOX_API void outbox_stop(outbox *ob)
{
    uint64_t one = 1;
    int saved = errno; /* this may be a signal handler */
    atomic_store(&ob->crew.stop, true);
    if (write(ob->crew.stop_fd, &one, sizeof one) < 0) errno = saved; /* it was stopped so often that it is full */
    errno = saved;
}

OUTBOX_API int outbox_step(outbox *ob, size_t *ret_delivered, outbox_error *err)
{
    if (ret_delivered) *ret_delivered = 0;
    struct runner **list = crew_of(ob, err_of(err));
    if (!list) return -1;
    int r = crew_step(list, ob->n_consumers, ret_delivered, err_of(err));
    free(list);
    return r;
}

OUTBOX_API void outbox_wake(outbox *ob)
{
    for (outbox_consumer *c = ob->consumers; c; c = c->next) runner_wake(&c->runner);
}

/* ---- manage.h ---- */

void manage_hooks(outbox *ob, void (*started)(void *), void (*reload)(void *), void *ctx)
{
    ob->crew.started = started;
    ob->crew.reload = reload;
    ob->crew.hook_ctx = ctx;
}

void manage_reload(outbox *ob)
{
    crew_reload(&ob->crew);
}

int manage_start(outbox_consumer *c, struct error *err)
{
    return prepare(c, err) == 0 ? crew_add(&c->ob->crew, &c->runner, err) : -1;
}

void manage_stop(outbox_consumer *c)
{
    outbox *ob = c->ob;
    outbox_consumer **at = &ob->consumers;
    crew_remove(&ob->crew, &c->runner);
    while (*at != c) at = &(*at)->next;
    *at = c->next;
    ob->n_consumers--;
    consumer_free(c);
}

int manage_views(outbox *ob, struct runner_view **ret, size_t *ret_n, struct error *err)
{
    return crew_views(&ob->crew, ret, ret_n, err);
}

int manage_store(outbox *ob, struct store **ret, struct error *err)
{
    return ob->st->ops->dup(ob->st, ret, err);
}

void manage_log_level(outbox *ob, int level)
{
    atomic_store_explicit(&ob->log.least, level, memory_order_relaxed);
}
