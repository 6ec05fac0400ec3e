/* actors.c: producers, relays, sinks, operators and time. They act one at a time, as the seed
 * decides. */
#include <stdio.h>
#include <string.h>

#include "sim.h"

/* ---- producers ---- */

static void emit(struct sim *w, struct producer *p)
{
    char payload[SIM_PAYLOAD], key[8], id[UUID_TEXT + 1];
    struct error err;
    bool duplicate;
    int n = w->n_facts;
    if (n == SIM_EVENTS || p->n == SIM_TX)
        return;
    struct fact *f = &w->fact[n];
    *f = (struct fact){.key = sim_one_in(w, 8) ? -1 : (int)sim_below(w, SIM_KEYS),
                       .type = (int)sim_below(w, 3),
                       .poison = w->plan.poison && sim_one_in(w, 60),
                       .big = w->plan.big && sim_one_in(w, 3),
                       .inserted = w->tick};
    size_t size = check_payload(n, f, payload);
    snprintf(key, sizeof key, "%d", f->key);
    struct new_event ev = {.type = str_of(sim_types[f->type]), .payload = {payload, size}};
    if (f->key >= 0)
        ev.aggregate_type = STR("t"), ev.aggregate_id = str_of(key);
    if (sim_one_in(w, 16))
        ev.not_before = w->wall + (int64_t)sim_below(w, 1500);
    if (p->st->ops->emit(p->st, NULL, &ev, id, &duplicate, &err) != 0)
        sim_fail(w, "emit: %s", err.text);
    if (w->on->numbers == NUMBERED_AT_INSERT)
        f->seq = w->next_seq++;
    p->ev[p->n++] = w->n_facts++;
}

static void told(struct sim *w, struct producer *p, enum told what)
{
    for (size_t i = 0; i < p->n; i++) {
        struct fact *f = &w->fact[p->ev[i]];
        f->told = what;
        f->ended = w->tick;
        if (what != TOLD_COMMITTED)
            continue;
        if (w->on->numbers == NUMBERED_AT_COMMIT)
            f->seq = w->next_seq++;
        if (w->on->numbers == NUMBERED_LATER)
            w->next_seq++;
    }
    if (p->n)
        sim_trace(w, "events %d..%d are %s", p->ev[0], p->ev[p->n - 1],
                  what == TOLD_COMMITTED ? "committed" : "rolled back");
    p->n = 0;
    p->open = false;
}

/* finish ends a producer's transaction. Sometimes the producer dies before the answer, and does not
 * know whether the commit happened. */
static void finish(struct sim *w, struct producer *p)
{
    struct error err;
    bool unknown = sim_one_in(w, 16), commit = unknown ? sim_one_in(w, 2) : !sim_one_in(w, 5);
    if (unknown)
        sim_fault(w, FAULT_UNKNOWN);
    w->tick++;
    if (!commit)
        p->st->ops->rollback(p->st);
    else if (p->st->ops->commit(p->st, &err) != 0)
        sim_fail(w, "commit: %s", err.text);
    told(w, p, commit ? TOLD_COMMITTED : TOLD_NOTHING);
}

static void produce(struct sim *w)
{
    struct producer *p = &w->producer[sim_below(w, SIM_PRODUCERS)];
    struct error err;
    if (w->writer || (!p->open && !sim_free(w)))
        return;
    if (!p->open) {
        if (p->st->ops->begin(p->st, &err) != 0)
            sim_fail(w, "begin: %s", err.text);
        p->open = true;
    }
    for (uint64_t i = 1 + sim_below(w, 3); i > 0; i--)
        emit(w, p);
    if (!sim_one_in(w, 6))
        finish(w, p);
}

static void finish_one(struct sim *w)
{
    for (int i = 0; i < SIM_PRODUCERS; i++)
        if (w->producer[i].open && sim_one_in(w, 2)) {
            finish(w, &w->producer[i]);
            return;
        }
}

void actors_end_producers(struct sim *w)
{
    for (int i = 0; i < SIM_PRODUCERS; i++)
        if (w->producer[i].open)
            finish(w, &w->producer[i]);
}

/* ---- time ---- */

static void jump(struct sim *w)
{
    int64_t by = (int64_t)sim_below(w, 12000) - 6000;
    sim_fault(w, FAULT_JUMP);
    sim_trace(w, "the wall clock jumps by %lld ms", (long long)by);
    w->wall += by;
    sim_tick(w);
    check_jumped(w, -by);
}

static void wait(struct sim *w)
{
    if (w->plan.jumps && sim_one_in(w, 12))
        jump(w);
    if (sim_one_in(w, 25)) {
        sim_fault(w, FAULT_ZOMBIE);
        sim_pass(w, SIM_LEASE + 500); /* past every lease */
        return;
    }
    sim_pass(w, (int64_t)sim_below(w, sim_one_in(w, 4) ? 900 : 60));
}

/* ---- operators ---- */

struct listing {
    struct consumer_info *c;
    size_t n;
};

static int index_of(const struct sim *w, const char *name)
{
    for (int c = 0; c < SIM_CONSUMERS; c++)
        if (strcmp(w->subject[c].name, name) == 0)
            return c;
    return -1;
}

void actors_audit(struct sim *w)
{
    struct arena a;
    struct listing l;
    struct error err;
    if (!sim_free(w))
        return;
    arena_init(&a, 0);
    if (w->st->ops->consumer_list(w->st, NULL, &a, &l.c, &l.n, &err) != 0)
        sim_fail(w, "%s", err.text);
    sim_number(w);
    for (size_t i = 0; i < l.n; i++) {
        int c = index_of(w, l.c[i].spec.name);
        check_info(w, c, &l.c[i]);
        if (w->healing)
            check_end(w, c, &l.c[i]);
    }
    arena_release(&a);
}

static void trim(struct sim *w)
{
    struct trim_result t;
    struct store_info i;
    struct error err;
    /* 0: everything no longer needed */
    int64_t age = sim_one_in(w, 2) ? 0 : 1 + (int64_t)sim_below(w, 2000);
    struct trim_request req = {.older_than_ms = age,
                               .inbox_ms = INT64_C(1000) * 86400 * 365,
                               .max_rows = 1 + sim_below(w, 30)};
    sim_number(w);
    if (w->st->ops->trim(w->st, &req, &t, &err) != 0)
        sim_fail(w, "trim: %s", err.text);
    if (w->st->ops->info(w->st, &i, &err) != 0)
        sim_fail(w, "%s", err.text);
    if (t.events)
        sim_trace(w, "%lld events are trimmed", (long long)t.events);
    sim_number(w); /* info has given some */
    check_trimmed(w, i.tail);
}

static void pause_or_not(struct sim *w, struct subject *s)
{
    struct error err;
    s->paused = sim_one_in(w, 3);
    if (w->st->ops->consumer_pause(w->st, s->name, s->paused, &err) != 0)
        sim_fail(w, "%s", err.text);
}

static void letters(struct sim *w, int c)
{
    struct error err;
    struct dead_query q = {.consumer = w->subject[c].name};
    int64_t n;
    bool drop = sim_one_in(w, 6);
    if ((drop ? w->st->ops->dead_drop : w->st->ops->dead_retry)(w->st, &q, &n, &err) != 0)
        sim_fail(w, "%s", err.text);
    if (n)
        sim_trace(w, "%lld dead letters of %s are %s", (long long)n, q.consumer,
                  drop ? "dropped" : "sent back for retry");
    if (drop)
        check_dropped(w, c);
    else
        check_redriven(w, c);
}

/* remove_it removes a consumer; the next relay that starts the consumer recreates it. */
static void remove_it(struct sim *w, struct subject *s)
{
    struct error err;
    if (w->st->ops->consumer_remove(w->st, s->name, true, &err) != 0)
        sim_fail(w, "%s", err.text);
    sim_trace(w, "%s is removed", s->name);
    s->there = false;
    s->start = (enum start)sim_below(w, 3);
}

static void change(struct sim *w, struct subject *s)
{
    static const enum order orders[] = {ORDER_KEY, ORDER_GLOBAL, ORDER_NONE};
    if (sim_one_in(w, 2))
        s->want.filter = (int)sim_below(w, 4);
    else
        s->want.order = orders[sim_below(w, 3)],
        s->want.lanes = s->want.order != ORDER_GLOBAL && sim_one_in(w, 2) ? 3 : 1;
    s->want.batch = 1 + (int)sim_below(w, SIM_BATCH);
    sim_trace(w, "%s shall have order %s, lanes %d, filter %d", s->name,
              store_order_names[s->want.order], s->want.lanes, s->want.filter);
}

static void operate(struct sim *w)
{
    int c = (int)sim_below(w, SIM_CONSUMERS);
    struct subject *s = &w->subject[c];
    if (!sim_free(w) || !s->there)
        return;
    switch (sim_below(w, 8)) {
    case 0:
    case 1: pause_or_not(w, s); break;
    case 2: letters(w, c); break;
    case 3:
        if (w->plan.changes && sim_one_in(w, 2))
            remove_it(w, s);
        break;
    case 4:
        if (w->plan.changes)
            change(w, s);
        break;
    default: trim(w);
    }
}

/* ---- relays and their sinks ---- */

static struct relay *some_relay(struct sim *w, const struct relay *except)
{
    struct relay *r = &w->relay[sim_below(w, SIM_RELAYS)];
    return r == except || r->crash ? NULL : r;
}

/* work steps a running pipeline. Wake-ups arrive twice, late, or never. */
static void work(struct sim *w, struct relay *r, int c)
{
    struct pipe *q = &r->pipe[c];
    if (!q->up) {
        if (sim_one_in(w, 4))
            relay_up(w, r, c);
        return;
    }
    if (sim_one_in(w, 4))
        pipeline_wake(q->p);
    relay_step(w, r, c);
}

static void answer(struct sim *w, struct relay *r, int c)
{
    struct model *m = r->pipe[c].model;
    if (m && m->n)
        model_end(m, sim_below(w, m->n));
}

static void change_mood(struct sim *w, int c)
{
    enum mood mood = MOOD_FLAKY;
    if (sim_one_in(w, 2))
        mood = (enum mood)sim_below(w, MOODS);
    else if (w->plan.outages)
        mood = w->subject[c].mood == MOOD_OUT ? MOOD_GOOD : MOOD_OUT;
    sink_mood(w, c, mood);
}

static void disturb(struct sim *w, struct relay *r, int c)
{
    struct pipe *q = &r->pipe[c];
    switch (sim_below(w, 3)) {
    case 0:
        if (!w->plan.crashes || !r->up)
            return;
        sim_fault(w, FAULT_CRASH);
        relay_down(w, r);
        break;
    case 1:
        if (q->up && sim_one_in(w, 3))
            pipeline_drain(q->p, w->mono + 100 * MS_NS);
        break;
    default: change_mood(w, c);
    }
}

static void relays(struct sim *w, const struct relay *except, uint64_t what)
{
    struct relay *r = some_relay(w, except);
    int c = (int)sim_below(w, SIM_CONSUMERS);
    while (!w->subject[c].name[0])
        c--;
    if (!r)
        return;
    if (what < 8)
        work(w, r, c);
    else if (what < 14)
        answer(w, r, c);
    else if (sim_one_in(w, 12))
        disturb(w, r, c);
    else if (w->plan.outages && sim_one_in(w, 12))
        change_mood(w, c);
}

void actors_act(struct sim *w, const struct relay *except)
{
    w->tick++;
    uint64_t what = sim_below(w, 24);
    if (what < 16) {
        relays(w, except, what);
        return;
    }
    switch (what) {
    case 16:
    case 17:
    case 18: produce(w); break;
    case 19: finish_one(w); break;
    case 20:
    case 21: wait(w); break;
    case 22:
        if (w->plan.operators || sim_one_in(w, 12))
            operate(w);
        break;
    default:
        if (sim_one_in(w, 6))
            actors_audit(w);
    }
}
