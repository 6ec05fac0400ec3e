#include "sink/handlers.h"

#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "event/filter.h"

#define HANDLERS_MAX 64
/* what no database can add to a time must not fail a settlement */
#define DELAY_MAX_MS (INT64_C(365) * 24 * 3600000)

struct handlers {
    struct sink base;
    struct handler_guard guard;
    bool guarded;
    bool called; /* any of them, for the event at hand */
    size_t n;
    struct filter *types[HANDLERS_MAX];
    struct handler h[];
};

/* A verdict that does not exist must not lose the event, nor stop the consumer. */
static enum sink_status sane(enum sink_status s)
{
    return s == SINK_DELIVERED || s == SINK_REJECT || s == SINK_DOWN || s == SINK_NOT_MINE
               ? s
               : SINK_RETRY;
}

static enum sink_status call_one(struct handlers *hs, size_t i, struct delivery *d,
                                 struct handler_call *call)
{
    const struct handler *h = &hs->h[i];
    call->text[0] = '\0';
    call->delay_ms = 0;
    call->tx = NULL;
    if (!hs->guarded) {
        hs->called = true;
        return sane(h->fn(call, d, h->ctx));
    }
    switch (hs->guard.enter(hs->guard.ctx, i, d, call)) {
    case HANDLER_SKIP: return SINK_DELIVERED;
    case HANDLER_FAIL: return SINK_RETRY;
    case HANDLER_REFUSE: return SINK_REJECT;
    case HANDLER_WAIT: return SINK_DOWN;
    case HANDLER_RUN: break;
    }
    hs->called = true;
    enum sink_status said = sane(h->fn(call, d, h->ctx));
    return hs->guard.leave(hs->guard.ctx, i, d, said, call);
}

/* hope: of several failures the one that gives the others another chance is the event's. */
static int hope(enum sink_status s)
{
    static const int by_status[] = {[SINK_DELIVERED] = 0,
                                    [SINK_REJECT] = 1,
                                    [SINK_NOT_MINE] = 2,
                                    [SINK_RETRY] = 3,
                                    [SINK_DOWN] = 4};
    return by_status[s];
}

static enum sink_status call_all(struct handlers *hs, struct delivery *d, struct handler_call *call)
{
    enum sink_status worst = SINK_DELIVERED;
    for (size_t i = 0; i < hs->n; i++) {
        struct handler_call one;
        if (!filter_type(hs->types[i], d->ev->type))
            continue;
        enum sink_status s = call_one(hs, i, d, &one);
        if (s == SINK_CANCELLED)
            return s;
        if (hope(s) > hope(worst)) {
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
    call.text[0] = '\0';
    call.delay_ms = 0;
    hs->called = false;
    struct sink_result r = {.status = call_all(hs, d, &call)};
    r.unasked = !hs->called;
    text_clean(call.text, sizeof call.text, call.text, strnlen(call.text, sizeof call.text));
    if (call.delay_ms < 0)
        call.delay_ms = 0;
    if (call.delay_ms > DELAY_MAX_MS)
        call.delay_ms = DELAY_MAX_MS;
    if (r.status != SINK_DELIVERED)
        r.text = call.text[0] ? call.text : "the handler gave no reason";
    r.retry_after_ms = call.delay_ms;
    sink_done(&hs->base, d, &r);
    return r.status;
}

static size_t handlers_submit(struct sink *sk, struct delivery *const *d, size_t n)
{
    for (size_t i = 0; i < n; i++)
        switch (handle((struct handlers *)sk, d[i])) {
        case SINK_DOWN:
        case SINK_CANCELLED: return i + 1;
        default: break;
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

/* Nothing is ever in flight between two calls: what follows has nothing to do. */
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
        return err_set(err, ERR_CONFIG, "%zu handlers are too many: the limit is %d", n,
                       HANDLERS_MAX);
    struct handlers *hs = calloc(1, sizeof *hs + n * sizeof *h);
    if (!hs)
        return err_nomem(err);
    hs->base = (struct sink){&handlers_ops, *cfg};
    hs->guarded = guard != NULL;
    if (guard)
        hs->guard = *guard;
    if (n)
        memcpy(hs->h, h, n * sizeof *h);
    for (hs->n = 0; hs->n < n; hs->n++) {
        struct filter *f;
        if (filter_new(h[hs->n].pattern, NULL, &f, err) != 0) {
            handlers_close(&hs->base);
            return -1;
        }
        hs->types[hs->n] = f;
        if (filter_has_types(f))
            continue;
        filter_free(f);
        hs->types[hs->n] = NULL; /* every type */
    }
    *ret = &hs->base;
    return 0;
}
