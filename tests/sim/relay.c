/* relay.c: processes that deliver. Each has a pipeline for every consumer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

/* ---- up ---- */

bool relay_deadly(enum kind k)
{
    return k == KIND_EFFECTS || k == KIND_EACH;
}

static void set(struct sim *w, struct consumer *c, const char *name, const char *value)
{
    struct error err;
    if (option_set(consumer_options, c, name, value, &err) != 0)
        sim_fail(w, "%s", err.text);
}

static void configure(struct sim *w, struct pipe *q, const struct subject *s)
{
    struct error err;
    char text[64];
    if (consumer_init(&q->c, s->name, &err) != 0)
        sim_fail(w, "%s", err.text);
    set(w, &q->c, "events", sim_filters[q->as.filter].events);
    set(w, &q->c, "where", sim_filters[q->as.filter].where);
    set(w, &q->c, "order", store_order_names[q->as.order]);
    snprintf(text, sizeof text, "%d", q->as.lanes);
    set(w, &q->c, "lanes", text);
    snprintf(text, sizeof text, "%d", q->as.batch);
    set(w, &q->c, "batch", text);
    snprintf(text, sizeof text, "base=50ms,cap=200ms,attempts=%d", SIM_ATTEMPTS);
    set(w, &q->c, "retry", text);
    snprintf(text, sizeof text, "%dms", SIM_LEASE);
    set(w, &q->c, "lease", text);
    q->c.start = s->start;
    q->c.start_seq = s->start_seq;
}

/* make_handlers creates the handlers of c. The second acts outside if the kind is `each`. The inbox
 * identifies them by name. */
static void make_handlers(struct sim *w, struct relay *r, int c)
{
    static char names[SIM_CONSUMERS][SIM_HANDLERS][8];
    struct pipe *q = &r->pipe[c];
    for (int i = 0; i < SIM_HANDLERS; i++) {
        snprintf(names[c][i], sizeof names[c][i], "h%d.%d", c, i);
        q->ctx[i] = (struct handler_ctx){w, r, c, i};
        q->h[i] = (struct handler){.name = names[c][i],
                                   .pattern = "*",
                                   .external = w->subject[c].kind == KIND_EACH && i == 1,
                                   .fn = handler_act,
                                   .ctx = &q->ctx[i]};
    }
}

static int open_sink(struct sim *w, struct relay *r, int c, struct error *err)
{
    struct pipe *q = &r->pipe[c];
    if (!relay_deadly(w->subject[c].kind)) {
        q->model = model_new(w, r, c);
        q->sk = &q->model->base;
    } else {
        struct handler_guard guard = pipeline_guard(q->p);
        struct sink_config cfg = {
            .consumer = q->c.name, .clock = &w->clock, .done = pipeline_done, .done_ctx = q->p};
        if (handlers_open(&cfg, q->h, SIM_HANDLERS, &guard, &q->sk, err) != 0)
            return -1;
    }
    pipeline_attach(q->p, q->sk);
    return 0;
}

/* slow_log is a log whose reader does not keep up, so that the process waits for it. */
static void slow_log(void *ctx, enum log_level level, const char *consumer, const char *text)
{
    struct sim *w = ctx;
    (void)level, (void)text;
    if (w->healing || !sim_one_in(w, w->plan.calls / 8 + (w->plan.calls > 0)))
        return;
    sim_trace(w, "the log of %s blocks", consumer);
    sim_pass(w, (int64_t)sim_below(w, 300));
}

static int open_pipe(struct sim *w, struct relay *r, int c, struct error *err)
{
    struct pipe *q = &r->pipe[c];
    bool handlers = relay_deadly(w->subject[c].kind);
    w->log = (struct log){.write = slow_log, .ctx = w, .least = LOG_DEBUG_};
    if (w->st->ops->dup(w->st, &q->st, err) != 0)
        return -1;
    faulty_wrap(w, q->st);
    if (handlers) {
        make_handlers(w, r, c);
        if (w->st->ops->dup(w->st, &q->work, err) != 0 ||
            q->work->ops->expose_connection(q->work, 60000, err) != 0)
            return -1;
        faulty_wrap(w, q->work);
    }
    struct pipeline_config cfg = {.consumer = &q->c,
                                  .owner = r->owner,
                                  .st = q->st,
                                  .clock = &w->clock,
                                  .rng = &r->rng,
                                  .log = &w->log,
                                  .suspects = &r->suspects,
                                  .budget = &r->budget,
                                  .tx_conn = q->work,
                                  .handlers = handlers ? q->h : NULL,
                                  .n_handlers = handlers ? SIM_HANDLERS : 0,
                                  .sole = r->id % 2 == 0,
                                  .settle_wait_ms = rng_below(&w->rng, 2) ? 20 : 0,
                                  .poll_ms = 20};
    if (pipeline_new(&cfg, &q->p, err) != 0 || open_sink(w, r, c, err) != 0)
        return -1;
    return pipeline_register(q->p, err);
}

/* insist tries to restore replaced settings, as only an operator may, and returns whether it
 * succeeded. */
static bool insist(struct sim *w, const struct pipe *q, const struct error *err)
{
    char retry[RETRY_TEXT];
    if (err->code != ERR_CONFLICT || !q->st || !sim_one_in(w, 2))
        return false;
    struct consumer_spec spec = consumer_spec_of(&q->c, retry);
    spec.how = PUT_PURPOSE;
    return q->st->ops->consumer_put(q->st, &spec, NULL, NULL) == 0;
}

static void close_pipe(struct sim *w, struct pipe *q)
{
    if (w->writer == q)
        w->writer = NULL;
    pipeline_free(q->p);
    if (q->model)
        free(q->model);
    else if (q->sk)
        q->sk->ops->close(q->sk);
    store_close(q->work);
    store_close(q->st);
    consumer_release(&q->c);
    struct settings as = q->as;
    memset(q, 0, sizeof *q);
    q->as = as;
}

static void process_up(struct relay *r)
{
    if (r->up)
        return;
    r->up = true;
    r->start++;
    suspect_all_init(&r->suspects);
    /* Events of a run are small: with little memory, a batch must wait for another. */
    r->budget = (struct budget){.limit = r->id % 2 ? SIM_MEMORY : SIZE_MAX};
    snprintf(r->owner, sizeof r->owner, "relay%d.%u", r->id, r->start);
}

bool relay_up(struct sim *w, struct relay *r, int c)
{
    struct pipe *q = &r->pipe[c];
    struct subject *s = &w->subject[c];
    struct error err = {0};
    if (q->up)
        return true;
    if (!sim_free(w))
        return snprintf(w->why, sizeof w->why, "the store is busy"), false;
    process_up(r);
    /* a host that still has the old settings */
    bool old = w->plan.changes && !w->healing && q->as.batch && sim_one_in(w, 8);
    if (!old)
        q->as = s->want;
    if (!s->there)
        s->start_seq = (int64_t)sim_below(w, (uint64_t)w->next_seq + 3);
    configure(w, q, s);
    bool was_there = s->there;
    if (open_pipe(w, r, c, &err) != 0 && !insist(w, q, &err)) {
        close_pipe(w, q);
        snprintf(w->why, sizeof w->why, "%s", err.text);
        if (err.code == ERR_CONFLICT) {
            s->want.order = s->reg.order;
            s->want.lanes = s->reg.lanes;
            s->want.filter = s->reg.filter;
        }
        return false;
    }
    q->up = true;
    if (!was_there)
        check_created(w, c);
    s->reg = q->as;
    check_version(w, c, q->as.filter);
    sim_trace(w, "relay %d starts %s%s: kind %d, order %s, lanes %d, batch %d, filter %d", r->id,
              s->name, was_there ? "" : " (new)", s->kind, store_order_names[q->as.order],
              q->as.lanes, q->as.batch, q->as.filter);
    return true;
}

/* ---- down ---- */

void relay_stop(struct sim *w, struct relay *r, int c)
{
    if (!r->pipe[c].up)
        return;
    sim_trace(w, "relay %d: %s is stopped", r->id, w->subject[c].name);
    close_pipe(w, &r->pipe[c]);
}

/* relay_down ends a relay as kill -9 would. Deliveries in its sink may still take effect there. */
void relay_down(struct sim *w, struct relay *r)
{
    if (!r->up)
        return;
    sim_trace(w, "relay %d is gone", r->id);
    for (int c = 0; c < SIM_CONSUMERS; c++) {
        struct model *m = r->pipe[c].model;
        for (size_t i = 0; !w->why[0] && m && i < m->n && sim_one_in(w, 2); i++) {
            int n = check_number(w, m->d[i]->ev);
            check_arrived(w, m->k[i], c, n, r->pipe[c].as.order);
        }
        if (r->pipe[c].up)
            close_pipe(w, &r->pipe[c]);
    }
    r->up = false;
}

void relay_die(struct sim *w, struct relay *r)
{
    if (!r->crash)
        sim_fail(w, "relay %d cannot be killed outside a call", r->id);
    longjmp(*r->crash, 1);
}

/* ---- at work ---- */

void relay_meanwhile(struct sim *w, struct relay *r)
{
    bool long_one = sim_one_in(w, 3);
    sim_fault(w, long_one ? FAULT_ZOMBIE : FAULT_SLOW);
    sim_pass(w, (int64_t)sim_below(w, long_one ? SIM_LEASE + 600 : 200));
    fail_disarm();
    if (w->depth >= 2)
        return;
    w->depth++;
    for (uint64_t i = sim_below(w, 8); i > 0; i--)
        actors_act(w, r);
    w->depth--;
}

void relay_call(struct sim *w, struct relay *r)
{
    if (w->healing || !sim_one_in(w, w->plan.calls))
        return;
    if (!w->plan.crashes || !sim_one_in(w, 2)) {
        relay_meanwhile(w, r);
        return;
    }
    sim_fault(w, FAULT_CRASH);
    sim_trace(w, "relay %d dies in a call", r->id);
    relay_die(w, r);
}

bool relay_step(struct sim *w, struct relay *r, int c)
{
    struct pipe *q = &r->pipe[c];
    jmp_buf here;
    const int depth = w->depth;
    if (!q->up)
        return false;
    if (setjmp(here) != 0) {
        fail_disarm();
        r->crash = NULL;
        w->depth = depth;
        relay_down(w, r);
        return false;
    }
    r->crash = &here;
    if (w->plan.oom && !w->healing && sim_one_in(w, 12))
        fail_arm(FAIL_OURS, 1 + (long)sim_below(w, sim_one_in(w, 2) ? 4 : 40), FAIL_ONCE);
    bool again = pipeline_step(q->p);
    if (fail_disarm()) {
        sim_fault(w, FAULT_OOM);
        sim_trace(w, "relay %d was out of memory, at %s", r->id, w->subject[c].name);
    }
    r->crash = NULL;
    if (pipeline_stats(q->p)->state >= PIPELINE_STOPPED)
        relay_stop(w, r, c);
    return again;
}
