/* Seeded chaos: pipelines of one consumer come, stall, crash and go, the sink answers as it likes, the store is busy or
 * slow or loses its answer, time jumps, operators pause and trim; then all heals and everything must have arrived, in
 * order. OUTBOX_SEED=N replays one seed. Without an argument in memory, with one on PostgreSQL. */
#include "rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../contract/pg.h"
#include "../contract/store.h"

#define KEYS 5

/* ---- the same on PostgreSQL ---- */

static struct test_clock own_clock;
struct test_clock *store_now_at = &own_clock;

static void tick(const struct rig *g)
{
    store_now = (struct test_clock){g->mono, g->wall};
}

static struct store *open_postgres(const struct store_options *opt)
{
    return pg_again(opt, true);
}

struct plan {
    uint64_t seed;
    const char *order, *lanes, *batch;
    unsigned caps;
};

/* ---- a store with moods ---- */

static struct store_ops moody;
static const struct store_ops *real;
static struct {
    struct rig *g;
    int busy_turns, lost_answers, busy_extends;
    int64_t slow_ms;
} mood;

static int moody_turn(struct store *st, const struct settlement *s, bool *ret_lost, const struct claim_request *req,
                      struct arena *a, struct batch *ret_batch, struct claim_hint *ret_hint, struct error *err)
{
    if (mood.slow_ms) rig_pass(mood.g, mood.slow_ms);
    mood.slow_ms = 0;
    if (mood.busy_turns > 0 && mood.busy_turns-- > 0) return err_fate(err, ERR_BUSY, FATE_RETRY, 0, "scripted");
    int r = real->turn(st, s, ret_lost, req, a, ret_batch, ret_hint, err);
    if (r == 0 && mood.lost_answers > 0 && mood.lost_answers-- > 0)
        return err_fate(err, ERR_UNAVAILABLE, FATE_RETRY, 0, "scripted: done, but the answer was lost");
    return r;
}

static int moody_extend(struct store *st, const char *consumer, const char *owner, const struct batch *b,
                        int64_t lease_ms, bool *ret_lost, struct error *err)
{
    if (mood.busy_extends > 0 && mood.busy_extends-- > 0) return err_fate(err, ERR_BUSY, FATE_RETRY, 0, "scripted");
    return real->extend(st, consumer, owner, b, lease_ms, ret_lost, err);
}

static void start(struct rig *g, int i)
{
    struct worker *w = &g->w[i];
    if (!w->p) rig_start(g, i);
    if (w->st->ops != &moody) real = w->st->ops;
    moody = *real;
    moody.turn = moody_turn;
    moody.extend = moody_extend;
    w->st->ops = &moody;
    w->sk->hold = true;
}

static void trouble(struct rig *g, int *disturbed)
{
    struct error err;
    struct trim_result trimmed;
    switch (rng_below(&g->rng, 7)) {
    case 0: mood.busy_turns = (int)rng_below(&g->rng, 4); break;
    case 1: mood.busy_extends = (int)rng_below(&g->rng, 6); break;
    case 2: mood.lost_answers = 1, ++*disturbed; break;
    case 3:
        if (rng_below(&g->rng, 4) == 0) mood.slow_ms = (int64_t)rng_below(&g->rng, 2200), ++*disturbed;
        break;
    case 4: g->st->ops->trim(g->st, &(struct trim_request){.older_than_ms = 1}, &trimmed, &err); break;
    case 5: g->st->ops->consumer_pause(g->st, "c", rng_below(&g->rng, 3) == 0, &err); break;
    default: rig_pass(g, (int64_t)rng_below(&g->rng, 1100));
    }
}

/* ---- the rest ---- */

static enum sink_status any_answer(struct model *m, const struct delivery *d)
{
    static const enum sink_status failure[] = {SINK_RETRY, SINK_DOWN, SINK_REJECT};
    struct rng *r = &m->g->rng;
    (void)d;
    if (rng_below(r, 10) >= 3) return SINK_DELIVERED;
    if (m->g->caps & SINK_FAILSTOP) return SINK_DOWN;
    return failure[rng_below(r, 20) ? rng_below(r, 2) : 2];
}

static void end_some(struct rig *g, int i)
{
    struct model *m = g->w[i].sk;
    if (m->n == 0) return;
    if (g->caps & SINK_FAILSTOP) { /* in order, and a failure takes everything behind it along */
        enum sink_status s = any_answer(m, m->d[0]);
        do rig_end(g, i, 0, s);
        while (s == SINK_DOWN && m->n);
        return;
    }
    size_t k = rng_below(&g->rng, m->n);
    rig_end(g, i, k, any_answer(m, m->d[k]));
}

static void one_thing(struct rig *g, int *emitted, int *disturbed)
{
    char key[8];
    int i = (int)rng_below(&g->rng, RIG_PIPELINES);
    struct worker *w = &g->w[i];
    switch (rng_below(&g->rng, 19)) {
    case 0:
    case 1:
    case 2:
        snprintf(key, sizeof key, "%llu", (unsigned long long)rng_below(&g->rng, KEYS));
        rig_emit_at(g, rng_below(&g->rng, 8) ? key : NULL, rng_below(&g->rng, 20) ? 0 : g->wall + 300);
        ++*emitted;
        break;
    case 3:
        if (!w->p && rng_below(&g->rng, 2)) start(g, i);
        break;
    case 4:
        if (w->p && rng_below(&g->rng, 8) == 0) rig_crash(g, i), ++*disturbed;
        break;
    case 5:
        if (rng_below(&g->rng, 10) == 0) rig_pass(g, 2500), ++*disturbed; /* past every lease: all are zombies */
        break;
    case 6:
    case 7: rig_pass(g, (int64_t)rng_below(&g->rng, 60)); break;
    case 8:
        if (w->p && rng_below(&g->rng, 12) == 0) pipeline_drain(w->p, g->mono + 100 * MS_NS), ++*disturbed;
        break;
    case 12:
        if (rng_below(&g->rng, 2)) trouble(g, disturbed);
        break;
    case 9:
    case 10:
    case 11:
        if (w->p) end_some(g, i);
        break;
    default:
        if (w->p && rng_below(&g->rng, 4) == 0) pipeline_ring(w->p);
        if (w->p) pipeline_step(w->p);
        if (w->p && pipeline_state(w->p) >= PIPELINE_STOPPED) rig_crash(g, i);
    }
}

static int note_dead(void *ctx, const struct dead_letter *d)
{
    bool *dead = ctx;
    dead[d->ev.seq] = true;
    return 0;
}

/* check: everything arrived or is dead, first arrivals of a key are in order, and nothing came twice without cause. */
static void check(struct rig *g, const struct plan *p, int emitted, int disturbed)
{
    bool dead[RIG_SEEN] = {false}, got[RIG_SEEN] = {false};
    int64_t last[KEYS + 1] = {0}, last_any = 0;
    size_t repeats = 0;
    struct error err;
    struct arena a;
    uint64_t key_of[KEYS];
    if (g->st->ops->dead(g->st, &(struct dead_query){0}, note_dead, dead, &err) != 0) fail_msg("%s", err.text);
    for (int k = 0; k < KEYS; k++) {
        char text[8];
        snprintf(text, sizeof text, "%d", k);
        key_of[k] = event_key(STR("t"), str_of(text));
    }
    for (size_t i = 0; i < g->n_seen; i++) {
        struct arrival *s = &g->seen[i];
        if (got[s->seq]) {
            repeats++;
            continue;
        }
        got[s->seq] = true;
        if (dead[s->seq]) continue; /* buried, yet a zombie's delivery got through after all: out of turn */
        for (int k = 0; k < KEYS && strcmp(p->order, "none") != 0; k++) {
            if (s->key != key_of[k]) continue;
            if (s->seq < last[k])
                fail_msg("seed %llu: key %d: %lld after %lld", (unsigned long long)p->seed, k, (long long)s->seq,
                         (long long)last[k]);
            last[k] = s->seq;
        }
        if (strcmp(p->order, "global") == 0 && s->seq < last_any)
            fail_msg("seed %llu: %lld after %lld", (unsigned long long)p->seed, (long long)s->seq, (long long)last_any);
        last_any = s->seq;
    }
    for (int i = 1; i <= emitted; i++)
        if (!got[i] && !dead[i]) fail_msg("seed %llu: event %d of %d is lost", (unsigned long long)p->seed, i, emitted);
    if (repeats && !disturbed) fail_msg("seed %llu: %zu repeats without a cause", (unsigned long long)p->seed, repeats);
    arena_init(&a, 0);
    struct consumer_info c = rig_info(g, &a);
    if (c.parked || c.inflight || c.behind)
        fail_msg("seed %llu: left: parked %lld inflight %lld behind %lld", (unsigned long long)p->seed,
                 (long long)c.parked, (long long)c.inflight, (long long)c.behind);
    arena_release(&a);
}

static void run(struct rig *g, const struct plan *p)
{
    char order[32], lanes[32], batch[32];
    int emitted = 0, disturbed = 0;
    struct error err;
    rng_seed(&g->rng, p->seed);
    memset(&mood, 0, sizeof mood);
    mood.g = g;
    g->caps = p->caps;
    g->capacity = 1 + rng_below(&g->rng, 8);
    snprintf(order, sizeof order, "order=%s", p->order);
    snprintf(lanes, sizeof lanes, "lanes=%s", p->lanes);
    snprintf(batch, sizeof batch, "batch=%s", p->batch);
    for (int i = 0; i < RIG_PIPELINES; i++)
        rig_worker(g, i, order, lanes, batch, "lease=2s", "retry=base=50ms,cap=200ms,attempts=4", NULL)->sk->hold =
            true;
    for (int i = 0; i < 600; i++) one_thing(g, &emitted, &disturbed);
    for (int i = 0; i < RIG_PIPELINES; i++) rig_crash(g, i); /* heal: one good worker, a sink that takes everything */
    if (g->st->ops->consumer_pause(g->st, "c", false, &err) != 0) fail_msg("%s", err.text);
    rig_start(g, 0);
    rig_pass(g, 2500);
    bool through = false;
    for (int i = 0; i < 5 && !through; i++) {
        through = rig_run(g, 0, 120000);
        rig_pass(g, 400); /* what was delayed */
        pipeline_ring(g->w[0].p);
        through = through && rig_run(g, 0, 120000);
    }
    if (!through) fail_msg("seed %llu: does not drain", (unsigned long long)p->seed);
    check(g, p, emitted, disturbed + 1); /* the crash before healing may repeat */
}

static void seeds(const char *order, const char *lanes, const char *batch, unsigned caps)
{
    const char *one = getenv("OUTBOX_SEED"), *soak = getenv("OUTBOX_SOAK");
    uint64_t first = one ? strtoull(one, NULL, 10) : 1, n = one ? 1 : soak ? 5000 : rig_tick ? 3 : 100;
    for (uint64_t s = first; s < first + n; s++) {
        void *state;
        struct plan p = {s, order, lanes, batch, caps};
        assert_int_equal(rig_setup(&state), 0);
        run(state, &p);
        rig_teardown(&state);
    }
}

static void key_order_survives_chaos(void **state)
{
    (void)state;
    seeds("key", "1", "3", 0);
}

static void key_order_on_three_lanes_survives_chaos(void **state)
{
    (void)state;
    seeds("key", "3", "4", 0);
}

static void key_order_on_a_failstop_sink_survives_chaos(void **state)
{
    (void)state;
    seeds("key", "1", "5", SINK_FAILSTOP);
}

static void global_order_survives_chaos(void **state)
{
    (void)state;
    seeds("global", "1", "4", 0);
}

static void global_order_on_a_failstop_sink_survives_chaos(void **state)
{
    (void)state;
    seeds("global", "1", "4", SINK_FAILSTOP);
}

static void nothing_is_lost_without_order_either(void **state)
{
    (void)state;
    seeds("none", "1", "4", 0);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "chaos";
    if (argc > 1) rig_open = open_postgres, rig_tick = tick;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(key_order_survives_chaos),
        cmocka_unit_test(key_order_on_three_lanes_survives_chaos),
        cmocka_unit_test(key_order_on_a_failstop_sink_survives_chaos),
        cmocka_unit_test(global_order_survives_chaos),
        cmocka_unit_test(global_order_on_a_failstop_sink_survives_chaos),
        cmocka_unit_test(nothing_is_lost_without_order_either),
    };
    int failures = cmocka_run_group_tests_name(name, tests, NULL, NULL);
    if (argc > 1) pg_clean();
    return failures;
}
