/* config_sink.c: opens the sink of a consumer as a relay would, to see whether it can be used. */
#include "base/clock.h"
#include "cli/config.h"

#define PROBE_MS 10000 /* how long a peer may take to answer, at most */

static void ignore(void *ctx, struct delivery *d, const struct sink_result *r)
{
    (void)ctx;
    (void)d;
    (void)r;
}

/* patience returns how long a peer may take to answer: not longer than a delivery. */
static int64_t patience(const struct consumer *c)
{
    bool shorter = c->timeout_ms > 0 && c->timeout_ms < PROBE_MS;
    if (shorter)
        return c->timeout_ms;
    return PROBE_MS;
}

int config_try_sink(const struct consumer *c, bool connect, struct sink_broker *ret,
                    struct error *err)
{
    struct sink_config cfg = consumer_sink_config(c);
    const struct sink_ops *kind;
    struct sink *sk;
    cfg.clock = &clock_system;
    cfg.done = ignore;

    if (sink_find(cfg.url, &kind, err) != 0)
        return -1;
    if (kind->open(&cfg, &sk, err) != 0)
        return -1;
    int r = 0;
    if (connect && kind->probe)
        r = kind->probe(sk, patience(c), err);
    if (ret)
        *ret = sink_broker_of(sk);
    kind->close(sk);
    return r;
}

int config_consumer(const struct config *c, const char *name, struct consumer *ret,
                    struct error *err)
{
    if (consumer_init(ret, name, err) != 0)
        return -1;
    for (const struct option_def *o = consumer_options; o->name; o++) {
        const struct given *g = config_get(c, name, o);
        if (g && option_apply(o, ret, g->value, err) != 0) {
            consumer_release(ret);
            return -1;
        }
    }
    return 0;
}
