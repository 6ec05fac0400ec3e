/* outbox.c: the public interface (include/outbox.h) over store and engine. */
#include "outbox.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "api/handle.h"
#include "api/manage.h"
#include "base/fd.h"
#include "base/text.h"
#include "store/postgres/handle.h"
#include "store/sqlite/handle.h"

_Static_assert(sizeof(struct outbox_error) == sizeof(struct error), "struct error is ABI");
_Static_assert((int)OUTBOX_INTERNAL == (int)ERR_INTERNAL &&
                   (int)OUTBOX_FATE_FATAL == (int)FATE_FATAL,
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

/* Fields that a caller compiled against an older header does not have are left at their
 * defaults. */
static void take_options(const outbox_options *given, outbox_options *o)
{
    *o = (outbox_options)OUTBOX_OPTIONS_INIT;
    if (!given)
        return;
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
    pthread_mutex_init(&ob->turns, NULL);
    ob->crew.clock = &ob->clock;
    ob->crew.log = &ob->log;
    if (option_defaults(crew_options, &ob->crew, err) != 0)
        return -1;
    atomic_init(&ob->crew.stop, false);
    atomic_flag_clear(&ob->crew.careful);
    ob->crew.stop_fd = fd_above_stdio(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    return ob->crew.stop_fd < 0 ? err_set(err, ERR_UNAVAILABLE, "could not make an eventfd") : 0;
}

static int64_t moved_mono(void *ctx)
{
    return clock_mono(&clock_system) + atomic_load(&((outbox *)ctx)->clock_offset);
}

static int64_t moved_wall(void *ctx)
{
    return clock_wall(&clock_system) + atomic_load(&((outbox *)ctx)->clock_offset) / MS_NS;
}

static bool env_says_eager(void)
{
    const char *value = getenv("OUTBOX_EAGER");
    bool yes;
    return value && *value && text_bool(value, &yes, NULL) == 0 && yes;
}

int api_open(const char *url, const outbox_options *options, bool movable, outbox **ret,
             struct error *err)
{
    outbox_options o;
    bool created;
    take_options(options, &o);
    outbox *ob = calloc(1, sizeof *ob);
    if (!ob)
        return err_nomem(err);
    ob->log_fn = o.log;
    ob->log_ctx = o.log_ctx;
    ob->log_about_fn = o.log_about;
    ob->log = (struct log){.write = o.log ? pass_log : NULL,
                           .write_about = o.log_about ? pass_about : NULL,
                           .ctx = ob,
                           .least = (enum log_level)o.log_level};
    ob->clock = movable ? (struct clock){.mono_ns = moved_mono, .wall_ms = moved_wall, .ctx = ob}
                        : clock_system;
    ob->eager = env_says_eager();
    struct store_options so = {.create = o.create != 0,
                               .busy_ms = o.busy_ms,
                               .payload_max = o.payload_max,
                               .clock = &ob->clock};
    if (outbox_setup(ob, err) != 0 || store_open(url, &so, &ob->st, err) != 0)
        goto fail;
    if (o.create && ob->st->ops->init(ob->st, &created, err) != 0)
        goto fail;
    ob->crew.st = ob->st;
    *ret = ob;
    return 0;
fail:
    outbox_close(ob);
    return -1;
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
    if (ob->crew.stop_fd >= 0)
        close(ob->crew.stop_fd);
    pthread_cond_destroy(&ob->crew.changed);
    pthread_mutex_destroy(&ob->crew.lock);
    pthread_mutex_destroy(&ob->turns);
    pthread_mutex_destroy(&ob->lock);
    free(ob);
}

/* ---- emitting ---- */

int api_message(const outbox_message *given, struct new_event *ev, struct error *err)
{
    outbox_message m = OUTBOX_MESSAGE_INIT;
    if (given->size == 0)
        return err_set(err, ERR_MISUSE, "message was not initialised with OUTBOX_MESSAGE_INIT");
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
    if (m.payload && m.payload_size)
        ev->payload.n = m.payload_size;
    return 0;
}

void api_receipt(outbox_receipt *ret, const char *id, bool duplicate)
{
    if (!ret)
        return;
    memcpy(ret->id, id, sizeof ret->id);
    ret->duplicate = duplicate;
}

static int emit(outbox *ob, void *foreign, const outbox_message *m, outbox_receipt *ret,
                bool *ret_in_tx, struct error *err)
{
    struct new_event ev;
    char id[UUID_TEXT + 1];
    bool duplicate;
    if (api_message(m, &ev, err) != 0)
        return -1;
    bool own = !foreign || !(ob->st->caps & STORE_FREE);
    if (own)
        /* SQLite also for a foreign connection: ids come from the handle's generator */
        pthread_mutex_lock(&ob->lock);
    int r = ob->st->ops->emit(ob->st, foreign, &ev, id, &duplicate, err);
    /* under the lock: afterwards it may be another thread's */
    if (ret_in_tx)
        *ret_in_tx = ob->in_tx;
    if (own)
        pthread_mutex_unlock(&ob->lock);
    if (r != 0)
        return -1;
    api_receipt(ret, id, duplicate);
    return 0;
}

/* committed wakes our own consumers where the store has no bell to do it. In eager mode they
 * deliver here and now, unless they are at it already, or this is one of their handlers: then its
 * step will get to it. */
static int committed(outbox *ob, struct error *err)
{
    if (!(ob->st->caps & STORE_DOORBELL))
        outbox_wake(ob);
    if (!ob->eager || !api_runs_any(ob) || crew_mine(&ob->crew) || ob->running)
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
    if (emit(ob, NULL, m, ret, &in_tx, err_of(err)) != 0)
        return -1;
    return in_tx ? 0 : committed(ob, err_of(err));
}

OUTBOX_API int outbox_emit_sqlite(outbox *ob, struct sqlite3 *db, const outbox_message *m,
                                  outbox_receipt *ret, outbox_error *err)
{
    if (!db)
        return err_set(err_of(err), ERR_MISUSE, "outbox_emit_sqlite needs a connection");
    if (!outbox_sqlite(ob))
        return err_set(err_of(err), ERR_MISUSE, "this outbox is not in SQLite");
    return emit(ob, db, m, ret, NULL, err_of(err));
}

OUTBOX_API int outbox_emit_pg(outbox *ob, struct pg_conn *db, const outbox_message *m,
                              outbox_receipt *ret, outbox_error *err)
{
    if (!db)
        return err_set(err_of(err), ERR_MISUSE, "outbox_emit_pg needs a connection");
    if (!outbox_pg(ob))
        return err_set(err_of(err), ERR_MISUSE, "this outbox is not in PostgreSQL");
    return emit(ob, db, m, ret, NULL, err_of(err));
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

/* end_tx lets go of the lock of outbox_begin besides our own; false when there was no
 * outbox_begin. */
static bool end_tx(outbox *ob)
{
    bool was = ob->in_tx;
    ob->in_tx = false;
    if (was)
        pthread_mutex_unlock(&ob->lock);
    return was;
}

OUTBOX_API int outbox_commit(outbox *ob, outbox_error *err)
{
    pthread_mutex_lock(&ob->lock);
    int r = ob->in_tx ? ob->st->ops->commit(ob->st, err_of(err))
                      : err_set(err_of(err), ERR_MISUSE, "outbox_commit without outbox_begin");
    end_tx(ob);
    pthread_mutex_unlock(&ob->lock);
    return r == 0 ? committed(ob, err_of(err)) : -1;
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
    return postgres_handle(ob->st);
}

/* ---- running ---- */

OUTBOX_API int outbox_set(outbox *ob, const char *option, const char *value, outbox_error *err)
{
    return option_set(crew_options, &ob->crew, option, value, err_of(err));
}

static void work_begin(outbox *ob, bool running)
{
    pthread_mutex_lock(&ob->turns);
    atomic_store(&ob->running, running);
}

static void work_end(outbox *ob)
{
    atomic_store(&ob->running, false);
    pthread_mutex_unlock(&ob->turns);
}

OUTBOX_API int outbox_run(outbox *ob, int flags, outbox_error *err)
{
    size_t n;
    if (crew_mine(&ob->crew))
        return err_set(err_of(err), ERR_MISUSE, "outbox_run was called from a handler");
    work_begin(ob, true);
    struct runner **list = api_crew(ob, &n, err_of(err));
    int r = list ? crew_run(&ob->crew, list, n, (flags & OUTBOX_UNTIL_THROUGH) != 0, err_of(err))
                 : -1;
    work_end(ob);
    free(list);
    return r;
}

OUTBOX_API void outbox_stop(outbox *ob)
{
    uint64_t one = 1;
    int saved = errno; /* this may be a signal handler */
    atomic_store(&ob->crew.stop, true);
    /* it was stopped so often that it is full */
    if (write(ob->crew.stop_fd, &one, sizeof one) < 0)
        errno = saved;
    errno = saved;
}

OUTBOX_API int outbox_step(outbox *ob, size_t *ret_delivered, outbox_error *err)
{
    size_t n;
    if (ret_delivered)
        *ret_delivered = 0;
    if (crew_mine(&ob->crew))
        return err_set(err_of(err), ERR_MISUSE, "outbox_step was called from a handler");
    work_begin(ob, false);
    struct runner **list = api_crew(ob, &n, err_of(err));
    int r = list ? crew_step(&ob->crew, list, n, ret_delivered, err_of(err)) : -1;
    work_end(ob);
    free(list);
    return r;
}

static int furthest(void *ctx, const char *consumer, const struct hwm *m, int64_t at)
{
    (void)consumer, (void)at;
    snprintf(ctx, OUTBOX_HWM_SIZE, "%lld-%lld", (long long)m->hi, (long long)m->lo);
    return 1; /* it comes first */
}

OUTBOX_API int outbox_hwm(outbox *ob, const char *stream, char ret[OUTBOX_HWM_SIZE],
                          outbox_error *err)
{
    char id[OUTBOX_HWM_SIZE] = "";
    if (!stream)
        return err_set(err_of(err), ERR_MISUSE, "which stream?");
    pthread_mutex_lock(&ob->lock);
    int r = ob->st->ops->marks(ob->st, stream, furthest, id, err_of(err));
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
    pthread_mutex_lock(&ob->crew.lock);
    for (outbox_consumer *c = ob->consumers; c; c = c->next)
        for (size_t i = 0; i < c->n_runners; i++)
            runner_wake(c->runners[i]);
    pthread_mutex_unlock(&ob->crew.lock);
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
