/* consumers.c: outbox_consumer: consumers and handlers as described by the application, and the
 * workers created from them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "api/api_impl.h"
#include "base/arena.h"
#include "base/buf.h"
#include "base/fd.h"
#include "base/num.h"
#include "base/text.h"

#define THREADS_MAX 64
#define FULL_NAME (2 * STORE_NAME_MAX + 2) /* "consumer.handler" */

/* ---- workers ---- */

static void worker_free(struct worker *w)
{
    worker_close(w);
    close(w->wake_fd);
    free(w);
}

/* Creates a worker, which can be woken before it is opened, and adds it to the list, which
 * outbox_wake and others read under the lock. */
static int add_worker(outbox_consumer *c, const struct worker *model, struct error *err)
{
    struct worker *w = calloc(1, sizeof *w);
    if (!w)
        return err_nomem(err);
    w->sv = &c->ob->sv;
    w->consumer = model->consumer;
    w->handlers = model->handlers;
    w->n_handlers = model->n_handlers;
    w->named = c->named;
    w->sole = c->threads == 1;
    w->wake_fd = wake_fd_new();
    if (w->wake_fd < 0) {
        free(w);
        return err_errno(err, ERR_UNAVAILABLE, errno, "could not create an eventfd");
    }

    pthread_mutex_lock(&w->sv->lock);
    struct worker **more = array_grow(c->workers, c->n_workers, sizeof *more);
    if (more) {
        c->workers = more;
        c->workers[c->n_workers++] = w;
    }
    pthread_mutex_unlock(&c->ob->sv.lock);
    if (more)
        return 0;
    worker_free(w);
    return err_nomem(err);
}

/* Frees workers and parts, so that they can be created again. */
static void free_workers(outbox_consumer *c)
{
    pthread_mutex_lock(&c->ob->sv.lock);
    struct worker **workers = c->workers;
    size_t n = c->n_workers;
    c->workers = NULL;
    c->n_workers = 0;
    pthread_mutex_unlock(&c->ob->sv.lock);

    for (size_t i = 0; i < n; i++)
        worker_free(workers[i]);
    free(workers);
    for (size_t i = 0; i < c->n_parts; i++)
        consumer_release(&c->parts[i]);
    free(c->parts);
    c->parts = NULL;
    c->n_parts = 0;
}

/* ---- from descriptions to workers ---- */

static bool has_own_fates(const outbox_consumer *c)
{
    return c->named && !c->shared;
}

/* Whether a consumer has neither a sink nor a handler. */
static bool is_bare(const outbox_consumer *c)
{
    return !c->c.sink && c->n_handlers == 0;
}

static int check_settings(const outbox_consumer *c, struct error *err)
{
    bool has_sink = c->c.sink != NULL;
    bool has_handlers = c->n_handlers > 0;
    bool too_few_lanes = c->threads > c->c.lanes && c->c.order != ORDER_NONE;
    if (has_sink && has_handlers)
        return err_set(err, ERR_CONFIG,
                       "consumer \"%s\" has both a sink and handlers; it must have only one",
                       c->c.name);
    if (!has_sink && !has_handlers)
        return err_set(err, ERR_CONFIG, "consumer \"%s\" has neither a sink nor a handler",
                       c->c.name);
    if (has_sink && c->threads > 1)
        return err_set(err, ERR_CONFIG,
                       "consumer \"%s\": `workers` applies to handlers; for a sink, set "
                       "`concurrency`",
                       c->c.name);
    if (too_few_lanes)
        return err_set(
            err, ERR_CONFIG,
            "consumer \"%s\": %d workers need as many lanes, since a lane has one worker at a "
            "time; add lanes, or set order none",
            c->c.name, c->threads);
    if (has_own_fates(c) && c->events_set)
        return err_set(
            err, ERR_CONFIG,
            "consumer \"%s\": the handlers' patterns select their events; leave out `events`",
            c->c.name);
    return 0;
}

/* Gives each handler its own consumer, with its own position, retries and dead letters. */
static int expand_parts(outbox_consumer *c, struct error *err)
{
    c->parts = calloc(c->n_handlers, sizeof *c->parts);
    if (!c->parts)
        return err_nomem(err);
    for (size_t i = 0; i < c->n_handlers; i++) {
        const struct handler *h = &c->handlers[i];
        struct worker model = {.consumer = &c->parts[i], .handlers = h, .n_handlers = 1};
        if (consumer_copy(&c->c, h->name, h->pattern, &c->parts[i], err) != 0)
            return -1;
        c->n_parts++;
        for (int k = 0; k < c->threads; k++) {
            if (add_worker(c, &model, err) != 0)
                return -1;
        }
    }
    return 0;
}

/* Makes the handlers' patterns the consumer's filter, unless one was set. */
static int join_patterns(outbox_consumer *c, struct error *err)
{
    struct buf all;
    if (c->events_set || c->n_handlers == 0)
        return 0;
    buf_init(&all, SIZE_MAX);
    for (size_t i = 0; i < c->n_handlers; i++) {
        if (i > 0)
            buf_addc(&all, ',');
        buf_adds(&all, c->handlers[i].pattern);
    }

    int result;
    const char *events = buf_cstr(&all);
    if (events)
        result = option_set(consumer_options, &c->c, "events", events, err);
    else
        result = err_nomem(err);
    buf_release(&all);
    return result;
}

/* Creates the parts and workers of a consumer, unless nothing has changed. A failure leaves neither
 * parts nor workers, and `changed` set, so that the next call tries again. */
static int expand_consumer(outbox_consumer *c, struct error *err)
{
    if (!c->changed)
        return 0;
    if (check_settings(c, err) != 0)
        return -1;
    free_workers(c);
    retry_hold(&c->c.retry, c->named && c->shared);

    int result;
    if (has_own_fates(c)) {
        result = expand_parts(c, err);
    } else {
        /* All handlers, or the sink, work for the consumer itself. */
        struct worker model = {
            .consumer = &c->c, .handlers = c->handlers, .n_handlers = c->n_handlers};
        result = join_patterns(c, err);
        for (int i = 0; result == 0 && i < c->threads; i++)
            result = add_worker(c, &model, err);
    }
    if (result != 0) {
        free_workers(c);
        return -1;
    }
    c->changed = false;
    return 0;
}

int api_consumer_start(outbox_consumer *c, bool strict, struct error *err)
{
    if (expand_consumer(c, err) != 0)
        return -1;
    for (size_t i = 0; i < c->n_workers; i++) {
        if (supervisor_add(c->workers[i], strict, err) == 0)
            continue;
        while (i-- > 0)
            supervisor_remove(c->workers[i]);
        return -1;
    }
    return 0;
}

/* Whether the consumer exists for outbox_claim_batch only. */
static bool is_claimed_for(const outbox_consumer *c)
{
    return c->registered && is_bare(c);
}

bool api_runs_any(const outbox *ob)
{
    for (const outbox_consumer *c = ob->consumers; c; c = c->next) {
        if (!is_claimed_for(c))
            return true;
    }
    return false;
}

/* Refuses two consumers with one name: a handler "b" of the consumer "a" is called "a.b", which may
 * also be the name of a consumer. Several workers share one consumer. */
static int check_names(struct worker *const *list, size_t n, struct error *err)
{
    for (size_t i = 0; i < n; i++) {
        for (size_t k = i + 1; k < n; k++) {
            const struct consumer *a = list[i]->consumer, *b = list[k]->consumer;
            bool collide = a != b && strcmp(a->name, b->name) == 0;
            if (collide)
                return err_set(err, ERR_CONFIG,
                               "two consumers have the name \"%s\"; rename one of them", a->name);
        }
    }
    return 0;
}

struct worker **api_workers(outbox *ob, size_t *ret_n, struct error *err)
{
    size_t n = 0;
    struct worker **list = NULL;
    for (outbox_consumer *c = ob->consumers; c; c = c->next) {
        if (is_claimed_for(c))
            continue;
        if (expand_consumer(c, err) != 0)
            goto fail;
        struct worker **more = realloc(list, (n + c->n_workers + 1) * sizeof *more);
        if (!more) {
            err_nomem(err);
            goto fail;
        }
        list = more;
        for (size_t i = 0; i < c->n_workers; i++)
            list[n++] = c->workers[i];
    }
    if (n == 0) {
        err_set(err, ERR_CONFIG, "there is no consumer to run");
        goto fail;
    }
    if (check_names(list, n, err) != 0)
        goto fail;
    *ret_n = n;
    return list;
fail:
    free(list);
    return NULL;
}

/* ---- counting ---- */

/* outbox_consumer_stats adds up all workers and handlers of the consumer. */
OUTBOX_API int outbox_consumer_stats(outbox_consumer *c, outbox_stats *ret, outbox_error *err)
{
    outbox_stats sum = OUTBOX_STATS_INIT;
    if (ret->size == 0)
        return err_set(err_of(err), ERR_MISUSE,
                       "stats were not initialised with OUTBOX_STATS_INIT");
    pthread_mutex_lock(&c->ob->sv.lock);
    for (size_t i = 0; i < c->n_workers; i++) {
        const struct pipeline_stats *s = &c->workers[i]->view.stats;
        sum.delivered += s->delivered;
        sum.retried += s->retried;
        sum.buried += s->buried;
        sum.lost += s->lost;
        sum.given_up += atomic_load(&c->workers[i]->given_up);
    }
    pthread_mutex_unlock(&c->ob->sv.lock);

    /* A program compiled against an older header knows fewer members. */
    sum.size = ret->size;
    memcpy(ret, &sum, min_size(ret->size, sizeof sum));
    return 0;
}

/* ---- describing ---- */

void api_consumer_free(outbox_consumer *c)
{
    free_workers(c);
    for (size_t i = 0; i < c->n_handlers; i++) {
        free((char *)c->handlers[i].pattern);
        free((char *)c->handlers[i].name);
        free(c->handlers[i].ctx);
    }
    free(c->handlers);
    consumer_release(&c->c);
    free(c);
}

/* Unlinks the consumer under the lock, because outbox_wake walks the list. */
void api_consumer_stop(outbox_consumer *c)
{
    outbox *ob = c->ob;
    outbox_consumer **at = &ob->consumers;
    for (size_t i = 0; i < c->n_workers; i++)
        supervisor_remove(c->workers[i]);
    pthread_mutex_lock(&ob->sv.lock);
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    pthread_mutex_unlock(&ob->sv.lock);
    api_consumer_free(c);
}

OUTBOX_API int outbox_consumer_new(outbox *ob, const char *name, outbox_consumer **ret,
                                   outbox_error *public_err)
{
    struct error *err = err_of(public_err);
    outbox_consumer **end = &ob->consumers;
    if (store_name_check(name, err) != 0)
        return -1;
    for (; *end; end = &(*end)->next) {
        if (strcmp((*end)->c.name, name) == 0)
            return err_set(err, ERR_CONFIG, "consumer \"%s\" already exists", name);
    }

    outbox_consumer *c = calloc(1, sizeof *c);
    if (!c)
        return err_nomem(err);
    c->ob = ob;
    c->threads = 1;
    c->changed = true;
    if (consumer_init(&c->c, name, err) != 0) {
        free(c);
        return -1;
    }
    pthread_mutex_lock(&ob->sv.lock);
    *end = c;
    pthread_mutex_unlock(&ob->sv.lock);
    *ret = c;
    return 0;
}

static const char *const fates[] = {"own", "shared", NULL};

/* outbox_consumer_set looks for an option of handlers first; all others are options of the
 * consumer. */
OUTBOX_API int outbox_consumer_set(outbox_consumer *c, const char *option, const char *value,
                                   outbox_error *err)
{
    static const struct option_def of_handlers[] = {
        {"workers", "N", "1", "", option_int, .at = offsetof(outbox_consumer, threads), .min = 1,
         .max = THREADS_MAX},
        {"fate", "own|shared", "own", "", option_either, .at = offsetof(outbox_consumer, shared),
         .names = fates},
        {NULL},
    };
    if (option_find(of_handlers, option)) {
        if (option_set(of_handlers, c, option, value, err_of(err)) != 0)
            return -1;
    } else if (consumer_set(&c->c, option, value, err_of(err)) != 0) {
        return -1;
    }
    if (strcmp(option, "events") == 0)
        c->events_set = true;
    c->changed = true;
    return 0;
}

/* Calls the application. An unknown verdict counts as a retry, so that no event is lost. */
static enum sink_status call_handler(struct handler_call *call, const struct delivery *d, void *ctx)
{
    static const enum sink_status status[] = {SINK_DELIVERED, SINK_RETRY, SINK_REJECT, SINK_DOWN,
                                              SINK_NOT_MINE};
    struct api_handler *h = ctx;
    unsigned verdict = (unsigned)h->fn((const outbox_event *)d, (outbox_tx *)call, h->ctx);
    if (verdict >= sizeof status / sizeof *status)
        return SINK_RETRY;
    return status[verdict];
}

/* Takes ownership of name and pattern, even if it fails; a NULL pattern counts as out of memory. */
static int add_handler(outbox_consumer *c, char *name, char *pattern, struct api_handler given,
                       bool external, struct error *err)
{
    struct handler *more = array_grow(c->handlers, c->n_handlers, sizeof *more);
    struct api_handler *api = malloc(sizeof *api);
    if (more)
        c->handlers = more;
    if (!more || !api || !pattern) {
        free(api);
        free(name);
        free(pattern);
        return err_nomem(err);
    }
    *api = given;
    more[c->n_handlers++] = (struct handler){
        .name = name, .pattern = pattern, .external = external, .fn = call_handler, .ctx = api};
    c->changed = true;
    return 0;
}

OUTBOX_API int outbox_on(outbox_consumer *c, const char *pattern, outbox_handler handler, void *ctx,
                         outbox_error *public_err)
{
    struct error *err = err_of(public_err);
    bool single = *pattern && !strchr(pattern, ',');
    if (!single)
        return err_set(err, ERR_CONFIG,
                       "\"%s\" is not a pattern of event types; write one name, order.* or *",
                       pattern);
    if (c->named)
        return err_set(err, ERR_CONFIG, "consumer \"%s\" has named handlers; name this one, too",
                       c->c.name);
    return add_handler(c, NULL, strdup(pattern), (struct api_handler){handler, ctx}, false, err);
}

/* Builds the name of a handler in the store, "consumer.handler". Refuses a name that is invalid or
 * taken. */
static int full_name(const outbox_consumer *c, const char *name, char full[FULL_NAME],
                     struct error *err)
{
    if (store_name_check(name, err) != 0)
        return err_prefix(err, "handler");
    snprintf(full, FULL_NAME, "%s.%s", c->c.name, name);
    if (store_name_check(full, err) != 0)
        return err_prefix(err, "handler \"%s\"", name);
    for (size_t i = 0; i < c->n_handlers; i++) {
        if (strcmp(c->handlers[i].name, full) == 0)
            return err_set(err, ERR_CONFIG, "consumer \"%s\" already has a handler \"%s\"",
                           c->c.name, name);
    }
    return 0;
}

OUTBOX_API int outbox_add_handler(outbox_consumer *c, const char *name, const char *pattern,
                                  outbox_handler handler, void *ctx, int flags,
                                  outbox_error *public_err)
{
    struct error *err = err_of(public_err);
    char full[FULL_NAME];
    if (c->n_handlers && !c->named)
        return err_set(err, ERR_CONFIG,
                       "consumer \"%s\" has handlers without names; name all of them, or none",
                       c->c.name);
    if (full_name(c, name, full, err) != 0)
        return -1;
    struct filter *parsed;
    if (!*pattern)
        return err_set(err, ERR_CONFIG, "handler \"%s\" has no pattern of event types", name);
    if (filter_new(pattern, NULL, &parsed, err) != 0)
        return -1;
    filter_free(parsed);

    char *copy = strdup(full);
    if (!copy)
        return err_nomem(err);
    c->named = true;
    return add_handler(c, copy, strdup(pattern), (struct api_handler){handler, ctx},
                       (flags & OUTBOX_EXTERNAL) != 0, err);
}

/* ---- registering ---- */

OUTBOX_API int outbox_consumer_register(outbox_consumer *c, outbox_error *public_err)
{
    struct error *err = err_of(public_err);
    outbox *ob = c->ob;
    c->registered = true;
    if (!is_bare(c) && expand_consumer(c, err) != 0)
        return -1;
    if (api_lock_own(ob, "registering a consumer", err) != 0)
        return -1;

    /* Each part, or the consumer itself. */
    int result = 0;
    size_t n = max_size(c->n_parts, 1);
    for (size_t i = 0; result == 0 && i < n; i++) {
        char retry[RETRY_TEXT];
        const struct consumer *each = c->n_parts > 0 ? &c->parts[i] : &c->c;
        struct consumer_spec spec = consumer_spec_of(each, retry);
        result = ob->st->ops->consumer_put(ob->st, &spec, NULL, err);
    }
    pthread_mutex_unlock(&ob->lock);
    return result;
}
