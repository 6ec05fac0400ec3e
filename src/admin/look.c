/* look.c: gathers the state of all consumers, for health and metrics. */
#include <stdlib.h>

#include "admin/look.h"

/* store_says_paused asks the store whether a consumer is paused. If it does not answer, that is a
 * no. */
static bool store_says_paused(struct store *st, const char *name)
{
    struct consumer_gauge g;
    struct arena a;
    if (!st)
        return false;
    arena_init(&a, 0);
    bool paused = st->ops->consumer_gauge(st, name, &a, &g, NULL) == 0 && g.paused;
    arena_release(&a);
    return paused;
}

/* judge judges one consumer. It asks the store only about one that seems to be stuck: it may have
 * been paused with work in hand. */
static struct health judge(const struct admin_config *cfg, struct store *st,
                           const struct worker_view *v, int64_t now)
{
    int64_t patience = cfg->patience_ms * MS_NS;
    struct health h = health_of(v, now, patience, false);
    bool seems_stuck = !h.ready && v->state == PIPELINE_RUNNING && !v->stats.paused;
    if (seems_stuck && store_says_paused(st, v->consumer))
        return health_of(v, now, patience, true);
    return h;
}

/* none_running is the health of a relay without consumers: it waits for its store, or has lost all
 * of them. A restart would not help, so it counts as alive. */
static struct health none_running(const struct admin_config *cfg, struct buf *verbose)
{
    struct health h = {.ready = false, .alive = true};
    if (cfg->wait) {
        pthread_mutex_lock(&cfg->wait->lock);
        memcpy(h.text, cfg->wait->text, sizeof h.text);
        pthread_mutex_unlock(&cfg->wait->lock);
    }
    if (verbose)
        buf_addf(verbose, "[-] %s\n", h.text[0] ? h.text : "no consumer is running");
    return h;
}

/* merge adds the health of one consumer to that of all. The text is that of the first one that is
 * not ready. */
static void merge(struct health *all, const struct health *h)
{
    if (all->ready && !h->ready)
        memcpy(all->text, h->text, sizeof all->text);
    all->ready = all->ready && h->ready;
    all->alive = all->alive && h->alive;
}

struct health admin_health(const struct admin_config *cfg, struct store *st, struct buf *verbose)
{
    struct health all = {.ready = true, .alive = true};
    struct worker_view *v;
    size_t n;
    int64_t now = clock_mono(&clock_system);
    outbox *ob = atomic_load(&cfg->ob);
    if (!ob)
        return none_running(cfg, verbose);
    if (manage_views(ob, &v, &n, NULL) != 0)
        return all; /* out of memory, which is no reason for a restart */

    for (size_t i = 0; i < n; i++) {
        struct health h = judge(cfg, st, &v[i], now);
        if (verbose)
            buf_addf(verbose, "[%c] %s: %s\n", h.ready ? '+' : '-', v[i].consumer, h.text);
        merge(&all, &h);
    }
    free(v);
    if (n == 0)
        return none_running(cfg, verbose);
    return all;
}

/* read_gauge asks the store about a consumer. If that fails, the store counts as down, unless it
 * just does not know the consumer. */
static void read_gauge(struct look *l, struct store *st, struct metrics_consumer *c)
{
    struct error err;
    if (!st) {
        l->m.store_up = false;
        return;
    }
    int r = st->ops->consumer_gauge(st, c->view.consumer, &l->arena, &c->gauge, &err);
    c->has_gauge = r == 0;
    if (r != 0 && err.code != ERR_NOTFOUND)
        l->m.store_up = false;
}

/* look_at adds one consumer. The relay is ready if all of them are. */
static void look_at(struct look *l, const struct admin_config *cfg, struct store *st,
                    struct metrics_consumer *c)
{
    read_gauge(l, st, c);
    bool paused = c->has_gauge && c->gauge.paused;
    c->health = health_of(&c->view, l->m.now_ns, cfg->patience_ms * MS_NS, paused);
    l->m.ready = l->m.ready && c->health.ready;
}

/* keep_mark keeps a high-water mark. It ends the walk, by returning 1, if there is no room for
 * more. */
static int keep_mark(void *ctx, const char *consumer, const struct hwm *m, int64_t at)
{
    struct look *l = ctx;
    char *name = arena_bytes(&l->arena, consumer, strlen(consumer));
    char *stream = arena_bytes(&l->arena, m->stream.p, m->stream.n);
    (void)at;
    if (!name || !stream)
        return 1;
    l->m.mark[l->m.n_marks++] = (struct metrics_mark){name, stream, m->hi, m->lo};
    return l->m.n_marks == METRICS_MARKS;
}

int look_take(struct look *l, const struct admin_config *cfg, struct store *st, struct error *err)
{
    struct worker_view *v = NULL;
    size_t n = 0;
    outbox *ob = atomic_load(&cfg->ob);
    *l = (struct look){
        .m = {.store = cfg->store, .store_up = st != NULL, .now_ns = clock_mono(&clock_system)}};
    for (size_t i = 0; i < 2; i++)
        l->m.reloads[i] = atomic_load(&cfg->reloads[i]);
    if (ob) {
        struct manage_memory memory = manage_memory(ob);
        l->m.memory_limit = memory.limit;
        l->m.memory_peak = memory.peak;
    }
    if (ob && manage_views(ob, &v, &n, err) != 0)
        return -1;

    l->consumer = calloc(n + 1, sizeof *l->consumer);
    if (!l->consumer) {
        free(v);
        return err_nomem(err);
    }
    arena_init(&l->arena, 0);
    l->m.consumer = l->consumer;
    l->m.n_consumers = n;
    l->m.ready = n > 0;
    for (size_t i = 0; i < n; i++) {
        l->consumer[i].view = v[i];
        look_at(l, cfg, st, &l->consumer[i]);
    }
    free(v);

    /* Without the marks the page is still good; the store counts as down. */
    if (st && st->ops->marks(st, NULL, keep_mark, l, err) != 0)
        l->m.store_up = false;
    return 0;
}

void look_release(struct look *l)
{
    free(l->consumer);
    arena_release(&l->arena);
}
