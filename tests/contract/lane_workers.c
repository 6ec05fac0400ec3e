#include "lane_workers.h"

struct worker hire(struct store_rig *g, const char *name, int lanes, size_t max)
{
    struct error err;
    struct worker w = {.name = name, .lanes = lanes, .max = max};
    must(g->st->ops->dup(g->st, &w.st, &err), &err);
    arena_init(&w.a, 0);
    return w;
}

void dismiss(struct worker *w)
{
    arena_release(&w->a);
    store_close(w->st);
}

size_t step(struct worker *w, int64_t release)
{
    struct error err;
    struct claim_request req = request_as("c", w->name, ORDER_KEY, w->lanes);
    struct batch done = w->b;
    struct settlement s = {
        .consumer = "c", .owner = w->name, .order = ORDER_KEY, .b = &done, .release_from = release};
    struct arena next;
    bool lost = false;
    req.max_events = w->max;
    req.sole = w->sole;
    req.parked_first = true;
    req.known = &done.epoch;
    req.n_known = done.n > 0;
    arena_init(&next, 0);
    must(w->st->ops->turn(w->st, done.n > 0 ? &s : NULL, &lost, &req, &next, &w->b, &w->hint, &err),
         &err);
    assert_false(lost);
    arena_release(&w->a);
    w->a = next;
    return w->b.n;
}

void enter(struct book *k, const struct batch *b)
{
    for (size_t i = 0; i < b->n; i++) {
        const struct event *ev = &b->ev[i];
        int key = atoi(ev->aggregate_id.p);
        assert_in_range(ev->seq, 1, EVENTS);
        assert_false(k->seen[ev->seq]);
        assert_true(ev->seq > k->last[key]);
        k->seen[ev->seq] = true;
        k->last[key] = ev->seq;
        k->n++;
    }
}
