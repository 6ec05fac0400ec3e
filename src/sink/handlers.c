#include "sink/handlers.h"

#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "base/text.h"
#include "event/filter.h"

#define HANDLERS_MAX 64
/* Not every database can add a longer delay to a timestamp; settling would fail. */
#define DELAY_MAX_MS (INT64_C(365) * 24 * 3600000)

/* (1) h[0..n) are the handlers in calling order. */
struct handlers {
    struct sink base;
    struct handler_guard guard;
    bool guarded;
    bool called; /* a handler was called for the current event */
    size_t n;
    struct filter *types[HANDLERS_MAX]; /* per handler */
    struct handler h[];
};

static void clear_call(struct handler_call *call)
{
    call->text[0] = '\0';
    call->delay_ms = 0;
    call->tx = NULL;
}

static enum sink_status call_one(struct handlers *hs, size_t i, struct delivery *d,
                                 struct handler_call *call)
{
    const struct handler *h = &hs->h[i];
    clear_call(call);
    if (hs->guarded) {
        switch (hs->guard.enter(hs->guard.ctx, i, d, call)) {
        case HANDLER_SKIP: return SINK_DELIVERED;
        case HANDLER_FAIL: return SINK_RETRY;
        case HANDLER_REFUSE: return SINK_REJECT;
        case HANDLER_WAIT: return SINK_DOWN;
        case HANDLER_RUN: break;
        }
    }

    hs->called = true;
    enum sink_status said = h->fn(call, d, h->ctx);
    bool allowed = said == SINK_DELIVERED || said == SINK_REJECT || said == SINK_DOWN ||
                   said == SINK_NOT_MINE;
    if (!allowed)
        said = SINK_RETRY; /* an invalid status must neither lose the event nor stop the consumer */
    if (!hs->guarded)
        return said;
    return hs->guard.leave(hs->guard.ctx, i, d, said, call);
}

/* Calls the handlers of an event. After several failures, the event gets the most hopeful status,
 * so that every handler is called again. */
static enum sink_status call_all(struct handlers *hs, struct delivery *d, struct handler_call *call)
{
    static const int hope[] = {[SINK_DELIVERED] = 0,
                               [SINK_REJECT] = 1,
                               [SINK_NOT_MINE] = 2,
                               [SINK_RETRY] = 3,
                               [SINK_DOWN] = 4};
    enum sink_status worst = SINK_DELIVERED;
    for (size_t i = 0; i < hs->n; i++) {
        struct handler_call one;
        if (!filter_type(hs->types[i], d->ev->type))
            continue;
        enum sink_status s = call_one(hs, i, d, &one);
        if (s == SINK_CANCELLED)
            return s;
        if (hope[s] > hope[worst]) {
            worst = s;
            *call = one;
        }
        if (s != SINK_DELIVERED && !hs->guarded)
            break;
    }
    return worst;
}

static enum sink_status handle(struct handlers *hs, struct delivery *d)
{
    struct handler_call call;
    clear_call(&call);
    hs->called = false;

    struct sink_result r = {.status = call_all(hs, d, &call)};
    r.unasked = !hs->called;
    r.retry_after_ms = max_i64(0, min_i64(call.delay_ms, DELAY_MAX_MS));
    if (r.status != SINK_DELIVERED) {
        /* The handler's text may lack a NUL or contain control characters. */
        size_t n = strnlen(call.text, sizeof call.text);
        text_clean(call.text, sizeof call.text, call.text, n);
        r.text = call.text[0] ? call.text : "the handler gave no reason";
    }
    sink_done(&hs->base, d, &r);
    return r.status;
}

static size_t handlers_submit(struct sink *sk, struct delivery *const *d, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        enum sink_status s = handle((struct handlers *)sk, d[i]);
        if (s == SINK_DOWN || s == SINK_CANCELLED)
            return i + 1;
    }
    return n;
}

static void handlers_close(struct sink *sk)
{
    struct handlers *hs = (struct handlers *)sk;
    for (size_t i = 0; i < hs->n; i++)
        filter_free(hs->types[i]);
    free(hs);
}

/* Implements drive and cancel: handlers run within submit, so no delivery is ever in flight. */
static void handlers_nothing(struct sink *sk)
{
    (void)sk;
}

static size_t handlers_fds(struct sink *sk, struct pollfd *out, size_t max)
{
    (void)sk, (void)out, (void)max;
    return 0;
}

static int64_t handlers_deadline(struct sink *sk)
{
    (void)sk;
    return CLOCK_NEVER;
}

static const struct sink_ops handlers_ops = {
    .scheme = "handlers",
    .synopsis = "handlers",
    .help = "calls functions in this process",
    .caps = SINK_IN_PROCESS,
    .close = handlers_close,
    .submit = handlers_submit,
    .drive = handlers_nothing,
    .fds = handlers_fds,
    .deadline = handlers_deadline,
    .cancel = handlers_nothing,
};

int handlers_open(const struct sink_config *cfg, const struct handler *h, size_t n,
                  const struct handler_guard *guard, struct sink **ret, struct error *err)
{
    if (n > HANDLERS_MAX)
        return err_set(err, ERR_CONFIG, "%zu handlers exceed the limit of %d", n, HANDLERS_MAX);
    struct handlers *hs = calloc(1, sizeof *hs + n * sizeof *h);
    if (!hs)
        return err_nomem(err);
    hs->base = (struct sink){.ops = &handlers_ops, .cfg = *cfg};
    if (guard) {
        hs->guard = *guard;
        hs->guarded = true;
    }

    for (size_t i = 0; i < n; i++) {
        struct filter *types;
        if (filter_new(h[i].pattern, NULL, &types, err) != 0) {
            handlers_close(&hs->base);
            return -1;
        }
        hs->h[i] = h[i];
        hs->types[i] = types;
        hs->n++;
    }
    *ret = &hs->base;
    return 0;
}
