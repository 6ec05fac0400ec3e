/* world.c: one seed, from an empty outbox to the last check. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "sim.h"

#define SPIN_MAX 100000
#define HEAL_MS 400000 /* longer than the `outage` of all consumers together */

const char *const sim_types[3] = {"t.a", "t.b", "u.c"};
const struct sim_filter sim_filters[4] = {
    {"", ""}, {"t.*", ""}, {"", "k != 1"}, {"t.a, u.*", "k != 2"}};
const char *const sim_faults[FAULTS] = {
    "crash",           "store busy",          "answer lost",   "slow call",
    "connection lost", "clock jump",          "out of memory", "poison",
    "unknown commit",  "lease slept through", "sink failure",  "outage"};

void sim_fail(struct sim *w, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(w->why, sizeof w->why, fmt, ap);
    va_end(ap);
    fail_disarm();
    longjmp(w->failed, 1);
}

void sim_trace(struct sim *w, const char *fmt, ...)
{
    va_list ap;
    if (!w->trace)
        return;
    printf("# %5d %8lld ms %*s", w->tick, (long long)(w->mono / MS_NS), 2 * w->depth, "");
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
}

uint64_t sim_below(struct sim *w, uint64_t n)
{
    return rng_below(&w->rng, n);
}

bool sim_one_in(struct sim *w, uint64_t n)
{
    return n && rng_below(&w->rng, n) == 0;
}

void sim_fault(struct sim *w, enum fault f)
{
    w->totals->fault[f]++;
}

bool sim_free(const struct sim *w)
{
    if (w->writer)
        return false;
    for (int i = 0; i < SIM_PRODUCERS && w->on->one_writer; i++)
        if (w->producer[i].open)
            return false;
    return true;
}

void sim_number(struct sim *w)
{
    if (w->on->number)
        w->on->number(w);
}

/* ---- time ---- */

void sim_tick(struct sim *w)
{
    if (w->on->tick)
        w->on->tick(w);
}

void sim_pass(struct sim *w, int64_t ms)
{
    w->mono += ms * MS_NS;
    w->wall += ms;
    sim_tick(w);
}

static int64_t read_mono(void *ctx)
{
    struct sim *w = ctx;
    if (w->plan.ticking && !w->healing && sim_one_in(w, 8))
        sim_pass(w, 1);
    return w->mono;
}

static int64_t read_wall(void *ctx)
{
    struct sim *w = ctx;
    if (w->plan.ticking && !w->healing && sim_one_in(w, 8))
        sim_pass(w, 1);
    return w->wall;
}

/* ---- beginning ---- */

static void make_plan(struct sim *w)
{
    static const uint64_t calls[] = {0, 100, 40, 15};
    w->plan = (struct plan){.calls = calls[sim_below(w, 4)],
                            .jumps = sim_one_in(w, 3),
                            .oom = sim_one_in(w, 4),
                            .big = sim_one_in(w, 8),
                            .operators = sim_one_in(w, 2),
                            .poison = sim_one_in(w, 4),
                            .ticking = sim_one_in(w, 4),
                            .crashes = !sim_one_in(w, 3),
                            .changes = sim_one_in(w, 4),
                            .outages = sim_one_in(w, 2)};
    w->plan.oom = w->plan.oom || w->plan.big;
}

static void make_subject(struct sim *w, int c)
{
    static const enum order orders[] = {ORDER_KEY, ORDER_KEY, ORDER_GLOBAL, ORDER_NONE};
    struct subject *s = &w->subject[c];
    snprintf(s->name, sizeof s->name, "c%d", c);
    s->kind = (enum kind)sim_below(w, KINDS);
    s->want.order = orders[sim_below(w, 4)];
    s->want.lanes = s->want.order == ORDER_GLOBAL || !sim_one_in(w, 3) ? 1 : 3;
    s->want.batch = 1 + (int)sim_below(w, SIM_BATCH);
    s->want.filter = sim_one_in(w, 3) ? (int)sim_below(w, 4) : 0;
    s->mood = sim_one_in(w, 3) ? MOOD_GOOD : MOOD_FLAKY;
}

static bool begin(struct sim *w)
{
    struct error err;
    rng_seed(&w->rng, w->seed);
    w->mono = 1000 * MS_NS;
    w->wall = 1700000000000;
    w->clock = (struct clock){.mono_ns = read_mono, .wall_ms = read_wall, .ctx = w};
    w->next_seq = 1;
    make_plan(w);
    sim_tick(w);
    w->st = w->on->open(w, &(struct store_options){.clock = &w->clock, .busy_ms = 1});
    if (!w->st)
        return false;
    for (int i = 0; i < SIM_PRODUCERS; i++)
        if (w->st->ops->dup(w->st, &w->producer[i].st, &err) != 0)
            return false;
    effect_init(w);
    int n = 1 + (int)sim_below(w, SIM_CONSUMERS);
    for (int c = 0; c < n; c++)
        make_subject(w, c);
    for (int i = 0; i < SIM_RELAYS; i++) {
        w->relay[i].id = i;
        rng_seed(&w->relay[i].rng, w->seed * 8 + (uint64_t)i);
    }
    return true;
}

/* ---- healing ---- */

/* through tells whether relay 0 has no work left for c. */
static bool through(struct sim *w, int c)
{
    const struct pipe *q = &w->relay[0].pipe[c];
    return q->up && pipeline_stats(q->p)->through && !pipeline_busy(q->p);
}

static void settle_down(struct sim *w, int c)
{
    struct pollfd fds[8];
    int64_t deadline, end = w->mono + HEAL_MS * MS_NS;
    struct relay *r = &w->relay[0];
    int spins = 0;
    while (w->mono < end) {
        /* the second time with the order and lanes that are registered */
        if (!relay_up(w, r, c) && !relay_up(w, r, c))
            sim_fail(w, "consumer %s cannot be started: %s", w->subject[c].name, w->why);
        int64_t before = w->mono;
        bool again = relay_step(w, r, c);
        w->tick++;
        if (!r->pipe[c].up)
            continue; /* it died or was stopped */
        if (through(w, c))
            return;
        pipeline_wait(r->pipe[c].p, fds, 8, &deadline);
        int64_t left = deadline == CLOCK_NEVER ? 1000 * MS_NS : deadline - w->mono;
        if (left > 0 && !again)
            sim_pass(w, (left + MS_NS - 1) / MS_NS);
        spins = w->mono == before ? spins + 1 : 0;
        if (spins > SPIN_MAX)
            sim_fail(w, "consumer %s loops without progress", w->subject[c].name);
    }
    sim_fail(w, "consumer %s does not catch up", w->subject[c].name);
}

/* drain_one requires that c catches up, twice, since delayed events fall due meanwhile. */
static void drain_one(struct sim *w, int c)
{
    struct error err;
    if (!relay_up(w, &w->relay[0], c) && !relay_up(w, &w->relay[0], c))
        sim_fail(w, "consumer %d cannot be created: %s", c, w->why);
    sink_mood(w, c, MOOD_GOOD);
    w->subject[c].paused = false;
    if (w->st->ops->consumer_pause(w->st, w->subject[c].name, false, &err) != 0)
        sim_fail(w, "%s", err.text);
    settle_down(w, c);
    sim_pass(w, 30000);
    if (w->relay[0].pipe[c].up)
        pipeline_wake(w->relay[0].pipe[c].p);
    settle_down(w, c);
}

/* heal ends all faults. Consumers recover one after the other; each catches up while the next is
 * still faulty. */
static void heal(struct sim *w)
{
    sim_trace(w, "heal");
    w->healing = true;
    actors_end_producers(w);
    for (int i = 0; i < SIM_RELAYS; i++)
        relay_down(w, &w->relay[i]);
    sim_pass(w, 2 * SIM_LEASE);
    for (int c = 0; c < SIM_CONSUMERS; c++)
        if (w->subject[c].name[0])
            drain_one(w, c);
    actors_audit(w);
}

/* clean_up is called after a failure as well, when transactions and steps may be open. */
static void clean_up(struct sim *w)
{
    for (int i = 0; i < SIM_RELAYS; i++)
        relay_down(w, &w->relay[i]);
    for (int i = 0; i < SIM_PRODUCERS; i++)
        store_close(w->producer[i].st);
    store_close(w->st);
}

bool sim_run(struct sim *w, uint64_t seed, int steps, struct totals *totals)
{
    bool trace = w->trace;
    const struct backend *on = w->on;
    memset(w, 0, sizeof *w);
    w->trace = trace;
    w->on = on;
    w->seed = seed;
    w->steps = steps;
    w->totals = totals;
    volatile bool ok = false;
    if (setjmp(w->failed) == 0) {
        if (!begin(w))
            sim_fail(w, "the store cannot be opened");
        for (int i = 0; i < steps; i++) {
            w->depth = 0;
            actors_act(w, NULL);
        }
        heal(w);
        ok = true;
    }
    clean_up(w);
    totals->seeds++;
    totals->steps += (uint64_t)w->tick;
    totals->events += (uint64_t)w->n_facts;
    return ok;
}
