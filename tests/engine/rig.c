#include "rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the model sink ---- */

static void model_end(struct model *m, size_t k, enum sink_status status)
{
    struct delivery *d = m->d[k];
    struct rig *g = m->g;
    memmove(&m->d[k], &m->d[k + 1], (--m->n - k) * sizeof m->d[0]);
    if (status == SINK_DELIVERED) {
        assert_true(g->n_seen < RIG_SEEN);
        int who = 0;
        for (int i = 0; i < RIG_PIPELINES; i++)
            if (g->w[i].sk == m)
                who = i;
        g->seen[g->n_seen++] = (struct arrival){d->ev->seq, d->attempt, d->ev->key, who};
    }
    struct sink_result r = {.status = status, .unasked = m->unasked};
    if (status != SINK_DELIVERED)
        r.text = "scripted";
    m->unasked = false;
    sink_done(&m->base, d, &r);
}

static size_t model_submit(struct sink *sk, struct delivery *const *d, size_t n)
{
    struct model *m = (struct model *)sk;
    size_t k = 0;
    while (k < n && m->n < m->capacity) {
        m->d[m->n++] = d[k++];
        if (m->busy_ms) {
            rig_pass(m->g, m->busy_ms);
            model_end(m, 0, SINK_DELIVERED);
        }
    }
    return k;
}

static void model_drive(struct sink *sk)
{
    struct model *m = (struct model *)sk;
    bool stop = false;
    enum sink_status s = SINK_DELIVERED;
    if (m->finds) {
        m->told = m->finds;
        m->finds = NULL;
        m->attended = false;
    }
    while (!m->hold && m->n) {
        if (!stop)
            s = m->answer ? m->answer(m, m->d[0]) : SINK_DELIVERED;
        /* and all events behind it */
        if ((m->g->caps & SINK_FAILSTOP) && (s == SINK_DOWN || s == SINK_FATAL))
            stop = true;
        model_end(m, 0, s);
    }
}

static size_t model_fds(struct sink *sk, struct pollfd *out, size_t max)
{
    const struct model *m = (const struct model *)sk;
    if (!m->attended || max == 0)
        return 0;
    out[0] = (struct pollfd){.fd = m->asked_fd, .events = POLLIN};
    return 1;
}

static int64_t model_deadline(struct sink *sk)
{
    struct model *m = (struct model *)sk;
    return m->hold || m->n == 0 ? CLOCK_NEVER : 0;
}

static const char *model_caution(struct sink *sk)
{
    return ((struct model *)sk)->told;
}

static void model_cancel(struct sink *sk)
{
    struct model *m = (struct model *)sk;
    while (m->n)
        model_end(m, 0, SINK_CANCELLED);
}

static bool model_attended(struct sink *sk)
{
    return ((struct model *)sk)->attended;
}

static struct model *model_new(struct rig *g, struct pipeline *p)
{
    static struct sink_ops ops[2] = {{.scheme = "model",
                                      .submit = model_submit,
                                      .drive = model_drive,
                                      .fds = model_fds,
                                      .deadline = model_deadline,
                                      .cancel = model_cancel,
                                      .caution = model_caution,
                                      .attended = model_attended},
                                     {.scheme = "model",
                                      .caps = SINK_FAILSTOP,
                                      .submit = model_submit,
                                      .drive = model_drive,
                                      .fds = model_fds,
                                      .deadline = model_deadline,
                                      .cancel = model_cancel}};
    struct model *m = calloc(1, sizeof *m);
    m->base.ops = &ops[g->caps & SINK_FAILSTOP ? 1 : 0];
    m->base.caps = g->caps & SINK_IN_PROCESS;
    m->base.cfg = (struct sink_config){.clock = &g->clock, .done = pipeline_done, .done_ctx = p};
    m->g = g;
    m->capacity = g->capacity;
    return m;
}

/* ---- the rig ---- */

static int64_t rig_mono(void *ctx)
{
    return ((struct rig *)ctx)->mono;
}

static int64_t rig_wall(void *ctx)
{
    return ((struct rig *)ctx)->wall;
}

static void rig_log(void *ctx, enum log_level level, const char *consumer, const char *text)
{
    struct rig *g = ctx;
    (void)level;
    (void)consumer;
    snprintf(g->last_log, sizeof g->last_log, "%s", text);
}

int rig_setup(void **state)
{
    struct error err;
    struct rig *g = calloc(1, sizeof *g);
    g->mono = 1000 * MS_NS;
    g->wall = 1700000000000;
    g->clock = (struct clock){.mono_ns = rig_mono, .wall_ms = rig_wall, .ctx = g};
    g->capacity = RIG_INFLIGHT;
    g->log = (struct log){.write = rig_log, .ctx = g, .least = LOG_DEBUG_};
    g->seen = calloc(RIG_SEEN, sizeof *g->seen);
    arena_init(&g->looked, 0);
    suspect_all_init(&g->suspects);
    rng_seed(&g->rng, 42);
    if (store_open("sqlite::memory:", &(struct store_options){.clock = &g->clock}, &g->st, &err) !=
        0)
        return -1;
    *state = g;
    return 0;
}

int rig_teardown(void **state)
{
    struct rig *g = *state;
    for (int i = 0; i < RIG_PIPELINES; i++) {
        rig_crash(g, i);
        consumer_release(&g->w[i].c);
    }
    store_close(g->st);
    arena_release(&g->looked);
    suspect_all_release(&g->suspects);
    free(g->seen);
    free(g);
    return 0;
}

void rig_start(struct rig *g, int i)
{
    struct worker *w = &g->w[i];
    struct error err;
    static unsigned long starts;
    snprintf(w->owner, sizeof w->owner, "w%d.%lu", i, starts++);
    assert_int_equal(g->st->ops->dup(g->st, &w->st, &err), 0);
    struct pipeline_config cfg = {.consumer = &w->c,
                                  .owner = w->owner,
                                  .st = w->st,
                                  .clock = &g->clock,
                                  .rng = &g->rng,
                                  .log = &g->log,
                                  .suspects = &g->suspects,
                                  .gone = g->gone,
                                  .stand_by = g->stand_by,
                                  .settle_wait_ms = g->settle_wait_ms,
                                  .poll_ms = 20};
    if (pipeline_new(&cfg, &w->p, &err) != 0)
        fail_msg("%s", err.text);
    w->sk = model_new(g, w->p);
    pipeline_attach(w->p, &w->sk->base);
    if (pipeline_register(w->p, &err) != 0)
        fail_msg("%s", err.text);
}

struct worker *rig_worker(struct rig *g, int i, ...)
{
    struct worker *w = &g->w[i];
    struct error err;
    va_list ap;
    char text[128];
    va_start(ap, i);
    const char *o = va_arg(ap, const char *);
    bool named = o && strncmp(o, "consumer=", 9) == 0;
    assert_int_equal(consumer_init(&w->c, named ? o + 9 : "c", &err), 0);
    for (o = named ? va_arg(ap, const char *) : o; o; o = va_arg(ap, const char *)) {
        snprintf(text, sizeof text, "%s", o);
        char *value = strchr(text, '=');
        *value++ = '\0';
        if (option_set(consumer_options, &w->c, text, value, &err) != 0)
            fail_msg("%s", err.text);
    }
    va_end(ap);
    rig_start(g, i);
    return w;
}

void rig_crash(struct rig *g, int i)
{
    struct worker *w = &g->w[i];
    if (!w->p)
        return;
    pipeline_free(w->p);
    store_close(w->st);
    free(w->sk);
    w->p = NULL;
    w->st = NULL;
    w->sk = NULL;
}

void rig_pass(struct rig *g, int64_t ms)
{
    g->mono += ms * MS_NS;
    g->wall += ms;
}

void rig_emit_at(struct rig *g, const char *key, int64_t not_before)
{
    struct error err;
    char id[UUID_TEXT + 1];
    bool dup;
    struct new_event ev = {.type = STR("t.e"), .payload = STR("{}"), .not_before = not_before};
    if (key)
        ev.aggregate_type = STR("t"), ev.aggregate_id = str_of(key);
    if (g->st->ops->emit(g->st, NULL, &ev, id, &dup, &err) != 0)
        fail_msg("%s", err.text);
}

void rig_emit(struct rig *g, const char *key)
{
    rig_emit_at(g, key, 0);
}

void rig_step(struct rig *g, int i)
{
    int turns = 0;
    while (g->w[i].p && pipeline_step(g->w[i].p))
        if (++turns > 100000)
            fail_msg("the pipeline loops without progress");
}

void rig_end(struct rig *g, int i, size_t k, enum sink_status status)
{
    model_end(g->w[i].sk, k, status);
}

bool rig_run(struct rig *g, int i, int64_t ms)
{
    struct pollfd fds[8];
    int64_t deadline, end = g->mono + ms * MS_NS;
    pipeline_wake(g->w[i].p);
    while (g->mono <= end) {
        rig_step(g, i);
        const struct pipeline_stats *s = pipeline_stats(g->w[i].p);
        if (pipeline_stats(g->w[i].p)->state >= PIPELINE_STOPPED ||
            (s->through && !pipeline_busy(g->w[i].p)))
            return true;
        pipeline_wait(g->w[i].p, fds, 8, &deadline);
        int64_t left = deadline == CLOCK_NEVER ? 1000 * MS_NS : deadline - g->mono;
        rig_pass(g, left > MS_NS ? (left + MS_NS - 1) / MS_NS : 1);
    }
    return false;
}

struct consumer_info rig_look(struct rig *g)
{
    struct error err;
    struct consumer_info *c;
    size_t n;
    arena_reset(&g->looked);
    if (g->st->ops->consumer_list(g->st, "c", &g->looked, &c, &n, &err) != 0)
        fail_msg("%s", err.text);
    return *c;
}

void rig_assert_seen(const struct rig *g, size_t n, const int64_t *want)
{
    assert_int_equal(g->n_seen, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(g->seen[i].seq, want[i]);
}

enum sink_status rig_retry_one(struct model *m, const struct delivery *d)
{
    return d->ev->seq == m->answer_ctx ? SINK_RETRY : SINK_DELIVERED;
}

enum sink_status rig_retry_twice(struct model *m, const struct delivery *d)
{
    bool fails = d->ev->seq == m->answer_ctx && d->attempt <= 2;
    return fails ? SINK_RETRY : SINK_DELIVERED;
}
