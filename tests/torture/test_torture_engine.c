/* The engine on its own, with every allocation failing in turn: batches are delivered, retried,
 * buried, and taken over from a vanished worker. The clock is moved by hand, so leases take no
 * time. */
#include "../engine/rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../lib/rounds.h"
#include "fail.h"

#define EVENTS 40

/* mixed has some events retried, and some rejected. */
static enum sink_status mixed(struct model *m, const struct delivery *d)
{
    (void)m;
    if (d->ev->seq % 7 == 0)
        return SINK_REJECT;
    return d->ev->seq % 3 == 0 && d->attempt <= 2 ? SINK_RETRY : SINK_DELIVERED;
}

static void keys_are_in_order(const struct rig *g)
{
    int64_t last[2] = {0, 0};
    for (size_t i = 0; i < g->n_seen; i++) {
        int64_t seq = g->seen[i].seq, *l = &last[seq % 2];
        bool again = false;
        for (size_t k = 0; k < i; k++)
            again = again || g->seen[k].seq == seq;
        if (again)
            continue;
        if (seq < *l)
            fail_msg("event %lld after %lld", (long long)seq, (long long)*l);
        *l = seq;
    }
}

static void each_was_delivered_or_died(struct rig *g)
{
    size_t dead = 0;
    for (int64_t seq = 1; seq <= EVENTS; seq++) {
        bool seen = false;
        for (size_t i = 0; i < g->n_seen; i++)
            seen = seen || g->seen[i].seq == seq;
        if (seq % 7 == 0)
            dead++;
        else if (!seen)
            fail_msg("event %lld was lost", (long long)seq);
    }
    struct consumer_info c = rig_look(g);
    assert_int_equal(c.dead, dead);
    assert_int_equal(c.parked, 0);
    assert_int_equal(c.inflight, 0);
}

/* work lets worker 0 deliver some events and vanish in the middle; worker 1 takes over and
 * continues. */
static void work(struct rig *g, unsigned kinds, long at, enum fail_mode mode, bool *ret_hit)
{
    struct worker *w[2];
    for (int i = 0; i < 2; i++) {
        w[i] = rig_worker(g, i, "retry=base=1s,attempts=9,jitter=none,outage=0s", NULL);
        w[i]->sk->answer = mixed;
    }
    for (int i = 0; i < EVENTS; i++)
        rig_emit(g, i % 2 ? "a" : "b");
    fail_arm(kinds, at, mode);
    w[0]->sk->hold = true;
    rig_step(g, 0);
    for (int i = 0; i < 3 && w[0]->sk->n; i++)
        rig_end(g, 0, 0, mixed(w[0]->sk, w[0]->sk->d[0]));
    rig_step(g, 0);
    rig_run(g, 1, 40000); /* past the lease of worker 0's claims */
    *ret_hit = fail_disarm();
    rig_crash(g, 0);
    if (!rig_run(g, 1, 3600000))
        fail_msg("the engine is not idle an hour after allocation %ld failed", at);
}

static void one_round(unsigned kinds, long at, enum fail_mode mode, bool *ret_hit)
{
    void *state;
    long before = fail_blocks();
    assert_int_equal(rig_setup(&state), 0);
    struct rig *g = state;
    work(g, kinds, at, mode, ret_hit);
    each_was_delivered_or_died(g);
    keys_are_in_order(g);
    rig_teardown(&state);
    if (fail_blocks() != before)
        fail_msg("%ld blocks left after allocation %ld failed", fail_blocks() - before, at);
}

static void torture(unsigned kinds, long step)
{
    for (enum fail_mode mode = FAIL_ONCE; mode <= FAIL_LASTING; mode++) {
        bool hit = true;
        long at = 1, rounds = 0;
        for (; hit; at += step, rounds++)
            one_round(kinds, at, mode, &hit);
        print_message("# engine: %ld of about %ld allocations %s failed in turn%s\n", rounds - 1,
                      at - step - 1, kinds & FAIL_SQLITE ? "(SQLite's)" : "(ours)",
                      mode == FAIL_LASTING ? ", and all after it for 50 ms" : "");
    }
}

static void engine_survives_every_failed_allocation(void **state)
{
    (void)state;
    torture(FAIL_OURS, rounds_step(23, 1)); /* 40 events go the same ways again and again */
}

static void engine_survives_sqlite_out_of_memory(void **state)
{
    (void)state;
    torture(FAIL_SQLITE, rounds_step(1201, 1));
}

static void pipeline_new_survives_every_failed_allocation(void **state)
{
    (void)state;
    for (bool hit = true, hitting = true; hitting; hitting = hit) {
        static long at;
        void *made;
        long before = fail_blocks();
        assert_int_equal(rig_setup(&made), 0);
        struct rig *g = made;
        struct consumer c = {0};
        struct error err = {0};
        struct pipeline *p = NULL;
        fail_arm(FAIL_OURS | FAIL_SQLITE, at += rounds_step(1, 1), FAIL_ONCE);
        int r = consumer_init(&c, "c", &err);
        if (r == 0)
            r = option_set(consumer_options, &c, "events", "order.*,mail.*", &err);
        if (r == 0)
            r = option_set(consumer_options, &c, "where", "total = 3 and a.b != \"b\"", &err);
        struct pipeline_config cfg = {
            .consumer = &c, .owner = "w", .st = g->st, .clock = &g->clock, .rng = &g->rng};
        if (r == 0)
            r = pipeline_new(&cfg, &p, &err);
        if (r == 0)
            r = pipeline_register(p, &err);
        hit = fail_disarm();
        if (r != 0 && (err.code != ERR_NOMEM || !err.text[0]))
            fail_msg("allocation %ld: %d %s", at, err.code, err.text);
        pipeline_free(p);
        consumer_release(&c);
        rig_teardown(&made);
        if (fail_blocks() != before)
            fail_msg("%ld blocks left after allocation %ld", fail_blocks() - before, at);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pipeline_new_survives_every_failed_allocation),
        cmocka_unit_test(engine_survives_every_failed_allocation),
        cmocka_unit_test(engine_survives_sqlite_out_of_memory),
    };
    fail_setup();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
