/* outbox.c: the public interface (include/outbox.h) over store and engine. */
#include "outbox.h"

#include <stdio.h>
#include <stdlib.h>

#include "api/api_impl.h"
#include "base/fd.h"
#include "base/num.h"
#include "base/text.h"
#include "extra/streams/stream_reader.h"
#include "store/store.h"

_Static_assert(sizeof(struct outbox_error) == sizeof(struct error), "struct error is ABI");
_Static_assert((int)OUTBOX_INTERNAL == (int)ERR_INTERNAL &&
                   (int)OUTBOX_CLASS_FATAL == (int)CLASS_FATAL,
               "the codes are the same");

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

static void pass_about(void *ctx, enum log_level level, const char *consumer, const char *text,
                       const struct log_about *about)
{
    const outbox *ob = ctx;
    outbox_log_about a = {about->event_id, about->type, about->key, about->attempt};
    ob->log_about_fn(ob->log_ctx, (int)level, consumer, text, &a);
}

/* The clocks of an outbox for tests, which outbox_test_advance moves. */
static int64_t moved_mono(void *ctx)
{
    return clock_mono(&clock_system) + atomic_load(&((outbox *)ctx)->clock_offset);
}

static int64_t moved_wall(void *ctx)
{
    return clock_wall(&clock_system) + atomic_load(&((outbox *)ctx)->clock_offset) / MS_NS;
}

static int open_store(outbox *ob, const char *url, const outbox_options *o, struct error *err)
{
    bool created;
    struct store_options so = {.create = o->create != 0,
                               .busy_ms = o->busy_ms,
                               .payload_max = o->payload_max,
                               .clock = &ob->clock};
    if (store_open(url, &so, &ob->st, err) != 0)
        return -1;
    ob->sv.st = ob->st;
    if (!o->create)
        return 0;
    return ob->st->ops->init(ob->st, &created, err);
}

/* api_open may fail half-way, so outbox_close must cope with an incomplete handle. */
int api_open(const char *url, const outbox_options *options, bool movable, outbox **ret,
             struct error *err)
{
    outbox_options o = OUTBOX_OPTIONS_INIT;
    if (options)
        memcpy(&o, options, min_size(options->size, sizeof o));
    outbox *ob = calloc(1, sizeof *ob);
    if (!ob)
        return err_nomem(err);
    const char *eager = getenv("OUTBOX_EAGER");
    if (eager && text_bool(eager, &ob->eager, NULL) != 0)
        ob->eager = false; /* anything but a clear yes means no */
    ob->clock = clock_system;
    if (movable)
        ob->clock = (struct clock){.mono_ns = moved_mono, .wall_ms = moved_wall, .ctx = ob};
    ob->log_fn = o.log;
    ob->log_ctx = o.log_ctx;
    ob->log_about_fn = o.log_about;
    ob->log = (struct log){.ctx = ob, .least = (enum log_level)o.log_level};
    if (o.log)
        ob->log.write = pass_log;
    if (o.log_about)
        ob->log.write_about = pass_about;

    /* A thread emits between outbox_begin and outbox_commit, so it locks again. */
    pthread_mutexattr_t recursive;
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&ob->lock, &recursive);
    pthread_mutexattr_destroy(&recursive);
    pthread_mutex_init(&ob->turns, NULL);

    int result = supervisor_init(&ob->sv, &ob->clock, &ob->log, err);
    if (result == 0)
        result = open_store(ob, url, &o, err);
    if (result != 0) {
        outbox_close(ob);
        return -1;
    }
    *ret = ob;
    return 0;
}

OUTBOX_API int outbox_open(const char *url, const outbox_options *options, outbox **ret,
                           outbox_error *err)
{
    return api_open(url, options, false, ret, err_of(err));
}

OUTBOX_API void outbox_close(outbox *ob)
{
    if (!ob)
        return;
    while (ob->consumers) {
        outbox_consumer *c = ob->consumers;
        ob->consumers = c->next;
        api_consumer_free(c);
    }
    store_close(ob->st);
    supervisor_release(&ob->sv);
    pthread_mutex_destroy(&ob->turns);
    pthread_mutex_destroy(&ob->lock);
    free(ob);
}

/* ---- emitting ---- */

/* Fails with ERR_MISUSE if the message was not initialised. */
static int read_message(const outbox_message *given, struct new_event *ev, struct error *err)
{
    outbox_message m = OUTBOX_MESSAGE_INIT;
    if (given->size == 0)
        return err_set(err, ERR_MISUSE, "message was not initialised with OUTBOX_MESSAGE_INIT");
    memcpy(&m, given, min_size(given->size, sizeof m));
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
    if (m.payload && m.payload_size)
        ev->payload.n = m.payload_size;
    return 0;
}

int api_emit(struct store *st, void *foreign, const outbox_message *m, outbox_receipt *ret,
             struct error *err)
{
    struct new_event ev;
    char id[UUID_TEXT + 1];
    bool duplicate;
    if (read_message(m, &ev, err) != 0)
        return -1;
    if (st->ops->emit(st, foreign, &ev, id, &duplicate, err) != 0)
        return -1;
    if (ret) {
        memcpy(ret->id, id, sizeof ret->id);
        ret->duplicate = duplicate;
    }
    return 0;
}

/* Emits on the handle's connection, or on a foreign one. *ret_in_tx (may be NULL): whether a
 * transaction begun by outbox_begin was open. */
static int emit_message(outbox *ob, void *foreign, const outbox_message *m, outbox_receipt *ret,
                        bool *ret_in_tx, struct error *err)
{
    /* SQLite needs the lock for a foreign connection, too: ids come from the handle's generator. */
    bool needs_lock = !foreign || !(ob->st->caps & STORE_FREE);
    if (needs_lock)
        pthread_mutex_lock(&ob->lock);
    int result = api_emit(ob->st, foreign, m, ret, err);
    /* Read it under the lock: afterwards it may be another thread's. */
    if (ret_in_tx)
        *ret_in_tx = ob->in_tx;
    if (needs_lock)
        pthread_mutex_unlock(&ob->lock);
    return result;
}

/* Wakes the consumers of this handle if the store cannot, and in eager mode delivers at once,
 * unless outbox_run is running, or the caller is a handler: then the step that called the handler
 * delivers the event. */
static int after_commit(outbox *ob, struct error *err)
{
    bool store_wakes = (ob->st->caps & STORE_WAKEUP) != 0;
    bool idle = !ob->running && !supervisor_is_current(&ob->sv);
    if (!store_wakes)
        outbox_wake(ob);
    if (!ob->eager || !idle || !api_runs_any(ob))
        return 0;
    if (outbox_step(ob, NULL, (outbox_error *)err) == 0)
        return 0;
    if (err)
        err->code = ERR_UNDELIVERED;
    return err_prefix(err, "committed, but not delivered");
}

OUTBOX_API int outbox_emit(outbox *ob, const outbox_message *m, outbox_receipt *ret,
                           outbox_error *err)
{
    bool in_tx;
    if (emit_message(ob, NULL, m, ret, &in_tx, err_of(err)) != 0)
        return -1;
    if (in_tx)
        return 0;
    return after_commit(ob, err_of(err));
}

OUTBOX_API int outbox_emit_sqlite(outbox *ob, struct sqlite3 *db, const outbox_message *m,
                                  outbox_receipt *ret, outbox_error *err)
{
    if (!db || !outbox_sqlite(ob))
        return err_set(err_of(err), ERR_MISUSE,
                       "outbox_emit_sqlite needs a connection, and an outbox in SQLite");
    return emit_message(ob, db, m, ret, NULL, err_of(err));
}

OUTBOX_API int outbox_emit_pg(outbox *ob, struct pg_conn *db, const outbox_message *m,
                              outbox_receipt *ret, outbox_error *err)
{
    if (!db || !pg_is(ob->st))
        return err_set(err_of(err), ERR_MISUSE,
                       "outbox_emit_pg needs a connection, and an outbox in PostgreSQL");
    return emit_message(ob, db, m, ret, NULL, err_of(err));
}

OUTBOX_API int outbox_emit_mariadb(outbox *ob, struct st_mysql *db, const outbox_message *m,
                                   outbox_receipt *ret, outbox_error *err)
{
    if (!db || !store_is(ob->st, "mariadb"))
        return err_set(err_of(err), ERR_MISUSE,
                       "outbox_emit_mariadb needs a connection, and an outbox in MariaDB");
    return emit_message(ob, db, m, ret, NULL, err_of(err));
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

int api_lock_own(outbox *ob, const char *what, struct error *err)
{
    pthread_mutex_lock(&ob->lock);
    if (!ob->in_tx)
        return 0;
    pthread_mutex_unlock(&ob->lock);
    return err_set(err, ERR_MISUSE,
                   "%s inside an open transaction would not be durable; call outbox_commit first",
                   what);
}

/* Releases the lock that outbox_begin acquired; the caller still holds it once. Returns false if no
 * transaction was open. */
static bool end_tx(outbox *ob)
{
    bool was = ob->in_tx;
    ob->in_tx = false;
    if (was)
        pthread_mutex_unlock(&ob->lock);
    return was;
}

/* outbox_commit ends the transaction even if the commit fails: the store then rolls back, and the
 * lock must be released. */
OUTBOX_API int outbox_commit(outbox *ob, outbox_error *err)
{
    int r;
    pthread_mutex_lock(&ob->lock);
    if (ob->in_tx)
        r = ob->st->ops->commit(ob->st, err_of(err));
    else
        r = err_set(err_of(err), ERR_MISUSE, "outbox_commit without outbox_begin");
    end_tx(ob);
    pthread_mutex_unlock(&ob->lock);

    if (r != 0)
        return -1;
    return after_commit(ob, err_of(err));
}

OUTBOX_API void outbox_rollback(outbox *ob)
{
    pthread_mutex_lock(&ob->lock);
    if (end_tx(ob))
        ob->st->ops->rollback(ob->st);
    pthread_mutex_unlock(&ob->lock);
}

OUTBOX_API struct sqlite3 *outbox_sqlite(outbox *ob)
{
    return sqlite_handle(ob->st);
}

OUTBOX_API struct pg_conn *outbox_pg(outbox *ob)
{
    return pg_handle(ob->st);
}

OUTBOX_API struct st_mysql *outbox_mariadb(outbox *ob)
{
    return mdb_handle(ob->st);
}

/* ---- running ---- */

OUTBOX_API int outbox_set(outbox *ob, const char *option, const char *value, outbox_error *err)
{
    return option_set(supervisor_options, &ob->sv, option, value, err_of(err));
}

/* outbox_run and outbox_step refuse to be called from a handler: they would wait for `turns`, which
 * the run that called the handler holds. */
OUTBOX_API int outbox_run(outbox *ob, int flags, outbox_error *err)
{
    size_t n;
    int result = -1;
    bool until_through = (flags & OUTBOX_UNTIL_THROUGH) != 0;
    if (supervisor_is_current(&ob->sv))
        return err_set(err_of(err), ERR_MISUSE, "outbox_run was called from a handler");
    pthread_mutex_lock(&ob->turns);
    atomic_store(&ob->running, true);
    struct worker **list = api_workers(ob, &n, err_of(err));
    if (list)
        result = supervisor_run(&ob->sv, list, n, until_through, err_of(err));
    atomic_store(&ob->running, false);
    pthread_mutex_unlock(&ob->turns);
    free(list);
    return result;
}

OUTBOX_API void outbox_stop(outbox *ob)
{
    supervisor_stop(&ob->sv);
}

OUTBOX_API int outbox_step(outbox *ob, size_t *ret_delivered, outbox_error *err)
{
    size_t n;
    int result = -1;
    if (ret_delivered)
        *ret_delivered = 0;
    if (supervisor_is_current(&ob->sv))
        return err_set(err_of(err), ERR_MISUSE, "outbox_step was called from a handler");
    pthread_mutex_lock(&ob->turns);
    struct worker **list = api_workers(ob, &n, err_of(err));
    if (list)
        result = supervisor_step(&ob->sv, list, n, ret_delivered, err_of(err));
    pthread_mutex_unlock(&ob->turns);
    free(list);
    return result;
}

/* Keeps the first mark and ends the walk: the store visits the furthest mark first. */
static int keep_first(void *ctx, const char *consumer, const struct hwm *m, int64_t at)
{
    (void)consumer;
    (void)at;
    snprintf(ctx, OUTBOX_HWM_SIZE, "%lld-%lld", (long long)m->hi, (long long)m->lo);
    return 1;
}

OUTBOX_API int outbox_hwm(outbox *ob, const char *stream, char ret[OUTBOX_HWM_SIZE],
                          outbox_error *err)
{
    char id[OUTBOX_HWM_SIZE] = "";
    if (!stream)
        return err_set(err_of(err), ERR_MISUSE, "the name of the stream is missing");
    pthread_mutex_lock(&ob->lock);
    int r = ob->st->ops->marks(ob->st, stream, keep_first, id, err_of(err));
    pthread_mutex_unlock(&ob->lock);
    if (r != 0)
        return -1;
    if (!id[0])
        return err_set(err_of(err), ERR_NOTFOUND, "nothing has been written to a stream \"%s\" yet",
                       stream);
    memcpy(ret, id, sizeof id);
    return 0;
}

OUTBOX_API void outbox_wake(outbox *ob)
{
    pthread_mutex_lock(&ob->sv.lock);
    for (outbox_consumer *c = ob->consumers; c; c = c->next) {
        for (size_t i = 0; i < c->n_workers; i++)
            worker_wake(c->workers[i]);
    }
    pthread_mutex_unlock(&ob->sv.lock);
}

/* ---- reading a stream ---- */

/* The context that the reader passes to handle_event. */
struct reading {
    outbox *ob;
    const outbox_stream *s;
};

/* Calls the handler, unless the event was handled before. The record that it was handled and the
 * handler's work are one transaction. */
static int handle_event(void *ctx, const struct event *ev, struct error *err)
{
    const struct reading *r = ctx;
    struct store *st = r->ob->st;
    struct delivery d = {.ev = ev, .attempt = 1};
    bool first = false;
    if (outbox_begin(r->ob, (outbox_error *)err) != 0)
        return -1;
    int rc = st->ops->handle_once(st, NULL, str_of(r->s->group), ev->id, ev->payload, &first, err);
    if (rc == 0 && first && r->s->handler(r->ob, (const outbox_event *)&d, r->s->ctx) != 0)
        rc = err_set(err, ERR_INVALID, "the handler failed: it did not return 0");
    if (rc == 0 && first)
        return outbox_commit(r->ob, (outbox_error *)err);
    outbox_rollback(r->ob);
    return rc;
}

/* outbox_consume can be stopped with outbox_stop, like outbox_run. It resets the stop at its end,
 * so that it can be called again. */
OUTBOX_API int outbox_consume(outbox *ob, const outbox_stream *s, outbox_error *err)
{
    struct reading r = {ob, s};
    struct error *e = err_of(err);
    if (!s->url || !s->group || !s->handler)
        return err_set(e, ERR_MISUSE, "outbox_consume needs a url, a group and a handler");
    struct error own;
    struct stream_reader_config cfg = {
        .url = s->url,
        .group = s->group,
        .name = s->name,
        .from = s->from,
        .claim_ms = s->claim_ms,
        .until_through = (s->flags & OUTBOX_UNTIL_THROUGH) != 0,
        .wake = ob->sv.stop_fd,
        .log = &ob->log,
        .handle = handle_event,
        .ctx = &r,
    };
    int rc = stream_reader_run(&cfg, NULL, e ? e : &own);
    atomic_store(&ob->sv.stop, false);
    wake_fd_clear(ob->sv.stop_fd);
    return rc;
}
