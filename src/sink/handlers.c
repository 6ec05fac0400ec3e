#include "sink/handlers.h"

#include <stdlib.h>
#include <string.h>

#include "event/filter.h"

struct handlers {
    struct sink base;
    size_t n;
    struct handler h[];
};

static enum sink_status call_all(struct handlers *hs, const struct delivery *d, struct handler_call *call)
{
    for (size_t i = 0; i < hs->n; i++) {
        const struct handler *h = &hs->h[i];
        if (!pattern_match(str_of(h->pattern), d->ev->type)) continue;
        enum sink_status status = h->fn(call, d, h->ctx);
        if (status == SINK_DELIVERED) continue;
        /* A verdict that does not exist must not lose the event, nor stop the consumer. */
        return status == SINK_REJECT || status == SINK_DOWN ? status : SINK_RETRY;
    }
    return SINK_DELIVERED;
}

static enum sink_status handle(struct handlers *hs, struct delivery *d)
{
    struct handler_call call;
    call.text[0] = '\0';
    struct sink_result r = {.status = call_all(hs, d, &call)};
    call.text[sizeof call.text - 1] = '\0';
    if (r.status != SINK_DELIVERED) r.text = call.text[0] ? call.text : "the handler gave no reason";
    sink_done(&hs->base, d, &r);
    return r.status;
}

static size_t handlers_submit(struct sink *sk, struct delivery *const *d, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (handle((struct handlers *)sk, d[i]) == SINK_DOWN) return i + 1;
    return n;
}

static void handlers_close(struct sink *sk)
{
    free(sk);
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

int handlers_open(const struct sink_config *cfg, const struct handler *h, size_t n, struct sink **ret,
                  struct error *err)
{
    struct handlers *hs = malloc(sizeof *hs + n * sizeof *h);
    if (!hs) return err_nomem(err);
    hs->base = (struct sink){&handlers_ops, *cfg};
    hs->n = n;
    if (n) memcpy(hs->h, h, n * sizeof *h);
    *ret = &hs->base;
    return 0;
}
