/* look.c: how all consumers are, put together for health and metrics. */
#include <stdlib.h>

#include "admin/look.h"

static bool store_says_paused(struct store *st, const char *name)
{
    struct consumer_gauge g;
    struct arena a;
    arena_init(&a, 0);
    bool paused = st && st->ops->consumer_gauge(st, name, &a, &g, NULL) == 0 && g.paused;
    arena_release(&a);
    return paused;
}

/* judge asks the store only about one that seems stuck: paused meanwhile, it may hold what it
 * had. */
static struct health judge(const struct admin_config *cfg, struct store *st,
                           const struct runner_view *v, int64_t now)
{
    struct health h = health_of(v, now, cfg->patience_ms * MS_NS, false);
    if (h.ready || v->state != PIPELINE_RUNNING || v->stats.paused)
        return h;
    return store_says_paused(st, v->consumer) ? health_of(v, now, cfg->patience_ms * MS_NS, true)
                                              : h;
}

/* nobody_at_work: the relay waits for its store, or has lost all its consumers. That is no reason
 * to be restarted. */
static struct health nobody_at_work(const struct admin_config *cfg, struct buf *verbose)
{
    struct health h = {.ready = false, .alive = true};
    if (cfg->wait) {
        pthread_mutex_lock(&cfg->wait->lock);
        memcpy(h.text, cfg->wait->text, sizeof h.text);
        pthread_mutex_unlock(&cfg->wait->lock);
    }
    if (verbose)
        buf_addf(verbose, "[-] %s\n", h.text[0] ? h.text : "no consumer is at work");
    return h;
}

struct health admin_health(const struct admin_config *cfg, struct store *st, struct buf *verbose)
{
    struct health all = {.ready = true, .alive = true};
    struct runner_view *v;
    size_t n;
    int64_t now = clock_mono(&clock_system);
    outbox *ob = atomic_load(&cfg->ob);
    if (!ob)
        return nobody_at_work(cfg, verbose);
    /* out of memory is no reason to be restarted */
    if (manage_views(ob, &v, &n, NULL) != 0)
        return all;
    for (size_t i = 0; i < n; i++) {
        struct health h = judge(cfg, st, &v[i], now);
        if (verbose)
            buf_addf(verbose, "[%c] %s: %s\n", h.ready ? '+' : '-', v[i].consumer, h.text);
        if (!h.ready && all.ready) {
            memcpy(all.text, h.text, sizeof all.text);
        }
        all.ready = all.ready && h.ready;
        all.alive = all.alive && h.alive;
    }
    free(v);
    return n == 0 ? nobody_at_work(cfg, verbose) : all;
}

static void look_at(struct look *l, const struct admin_config *cfg, struct store *st,
                    struct metrics_consumer *c)
{
    struct error err;
    int r = -1;
    if (st)
        r = st->ops->consumer_gauge(st, c->view.consumer, &l->arena, &c->gauge, &err);
    c->has_gauge = r == 0;
    if (r != 0 && (!st || err.code != ERR_NOTFOUND))
        l->m.store_up = false;
    c->health = health_of(&c->view, l->m.now_ns, cfg->patience_ms * MS_NS,
                          c->has_gauge && c->gauge.paused);
    l->m.ready = l->m.ready && c->health.ready;
}

static int keep_mark(void *ctx, const char *consumer, const struct hwm *m, int64_t at)
{
    struct look *l = ctx;
    char *name = arena_bytes(&l->arena, consumer, strlen(consumer)),
         *stream = arena_bytes(&l->arena, m->stream.p, m->stream.n);
    (void)at;
    if (!name || !stream)
        return 1;
    l->m.mark[l->m.n_marks++] = (struct metrics_mark){name, stream, m->hi, m->lo};
    return l->m.n_marks == METRICS_MARKS;
}

int look_take(struct look *l, const struct admin_config *cfg, struct store *st, struct error *err)
{
    struct runner_view *v = NULL;
    size_t n = 0;
    outbox *ob = atomic_load(&cfg->ob);
    *l = (struct look){
        .m = {.store = cfg->store, .store_up = st != NULL, .now_ns = clock_mono(&clock_system)}};
    for (size_t i = 0; i < 2; i++)
        l->m.reloads[i] = atomic_load(&cfg->reloads[i]);
    if (ob && manage_views(ob, &v, &n, err) != 0)
        return -1;
    arena_init(&l->arena, 0);
    l->consumer = calloc(n + 1, sizeof *l->consumer);
    l->m.ready = n > 0;
    for (size_t i = 0; l->consumer && i < n; i++) {
        l->consumer[i].view = v[i];
        look_at(l, cfg, st, &l->consumer[i]);
    }
    free(v);
    if (st && st->ops->marks(st, NULL, keep_mark, l, err) != 0)
        l->m.store_up = false;
    l->m.consumer = l->consumer;
    l->m.n_consumers = n;
    if (l->consumer)
        return 0;
    look_release(l);
    return err_nomem(err);
}

void look_release(struct look *l)
{
    free(l->consumer);
    arena_release(&l->arena);
}
