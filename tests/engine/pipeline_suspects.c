/* pipeline_suspects.c: events whose worker died. If events can kill their worker, they are
 * delivered one by one until the culprit is found. No consumer waits for another meanwhile. */
#include "pipeline_tests.h"

/* Starts a worker, crashes it with three events in flight, and restarts it. */
static struct worker *crashed(struct rig *g, int i, const char *name)
{
    struct worker *w = rig_worker(g, i, name, "lease=1s", "retry=base=10ms,attempts=1,jitter=none",
                                  NULL);
    w->sk->hold = true;
    rig_step(g, i);
    assert_int_equal(w->sk->n, 3);
    rig_crash(g, i);
    rig_start(g, i);
    w->sk->hold = true;
    return w;
}

static void consumers_do_not_wait_for_each_others_suspects(void **state)
{
    struct rig *g = *state;
    g->caps = SINK_IN_PROCESS;
    for (int i = 0; i < 3; i++)
        rig_emit(g, NULL);
    struct worker *a = crashed(g, 0, "consumer=c"), *b = crashed(g, 1, "consumer=d");
    rig_pass(g, 1000);
    rig_step(g, 0); /* and hangs */
    assert_int_equal(a->sk->n, 1);
    for (int i = 0; i < 3; i++) {
        rig_step(g, 1);
        assert_int_equal(b->sk->n, 1); /* alone in its pipeline */
        rig_end(g, 1, 0, SINK_DELIVERED);
    }
    rig_step(g, 1);
    assert_int_equal(g->n_seen, 3);
}

static void nothing_is_delivered_beside_a_suspect(void **state)
{
    struct rig *g = *state;
    g->caps = SINK_IN_PROCESS;
    for (int i = 0; i < 3; i++)
        rig_emit(g, NULL);
    struct worker *w = crashed(g, 0, "consumer=c");
    rig_pass(g, 1000);
    rig_step(g, 0);
    for (int i = 0; i < 2; i++) {
        rig_end(g, 0, 0, SINK_DELIVERED);
        rig_step(g, 0);
    }
    assert_int_equal(w->sk->n, 1); /* the last one */
    rig_emit(g, "new");
    rig_pass(g, 100);
    pipeline_wake(w->p);
    rig_step(g, 0);
    assert_int_equal(w->sk->n, 1);
}

static void crash_with_two_suspects_in_flight_blames_neither(void **state)
{
    struct rig *g = *state;
    g->caps = SINK_IN_PROCESS;
    for (int i = 0; i < 3; i++)
        rig_emit(g, NULL);
    struct worker *a = crashed(g, 0, "consumer=c"), *b = crashed(g, 1, "consumer=d");
    for (int crash = 0; crash < 5;
         crash++) { /* with attempts=1, one counted crash would bury an event */
        rig_pass(g, STORE_APART_MS + 1000);
        rig_step(g, 0);
        rig_step(g, 1);
        assert_int_equal(a->sk->n, 1);
        assert_int_equal(b->sk->n, 1);
        rig_crash(g, 0);
        rig_crash(g, 1);
        rig_start(g, 0);
        rig_start(g, 1);
        a->sk->hold = true;
        b->sk->hold = true;
    }
    assert_int_equal(rig_look(g).dead, 0);
    rig_pass(g, STORE_APART_MS + 1000);
    a->sk->hold = false;
    assert_true(rig_run(g, 0, 2 * STORE_APART_MS));
    assert_int_equal(g->n_seen, 3);
}

static void crashes_do_not_count_without_in_process_handlers(void **state)
{
    struct rig *g = *state;
    for (int i = 0; i < 3; i++)
        rig_emit(g, NULL);
    struct worker *w = crashed(g, 0, "consumer=c");
    for (int crash = 0; crash < 6;
         crash++) { /* with attempts=1, one counted crash would bury an event */
        bool apart = crash >= 3;
        rig_pass(g, 1000);
        rig_step(g, 0); /* takes over */
        rig_pass(g, apart ? STORE_APART_MS : 0);
        rig_step(g, 0);
        assert_in_range(w->sk->n, apart ? 1 : 3, 3);
        rig_crash(g, 0);
        rig_start(g, 0);
        w->sk->hold = true;
    }
    rig_pass(g, 1000);
    w->sk->hold = false;
    assert_true(rig_run(g, 0, 2 * STORE_APART_MS));
    assert_int_equal(rig_look(g).dead, 0);
    assert_int_equal(g->n_seen, 3);
}

static void suspect_of_a_down_sink_does_not_block_others_or_get_buried(void **state)
{
    struct rig *g = *state;
    g->caps = SINK_IN_PROCESS;
    for (int i = 0; i < 3; i++)
        rig_emit(g, NULL);
    struct worker *a = crashed(g, 0, "consumer=c"), *b = crashed(g, 1, "consumer=d");
    rig_pass(g, 1000);
    rig_step(g, 0);
    assert_int_equal(a->sk->n, 1);
    rig_end(g, 0, 0, SINK_DOWN);
    rig_step(g, 0);
    rig_step(g, 1);
    assert_int_equal(b->sk->n, 1);
    rig_crash(g, 1); /* b's event was the poison; a's is innocent */
    rig_pass(g, 2000);
    a->sk->hold = false;
    assert_true(rig_run(g, 0, 20000));
    assert_int_equal(rig_look(g).dead, 0);
    assert_int_equal(g->n_seen, 3);
}

static bool gone(const char *owner)
{
    return owner[0] == 'w' && owner[1] == '0';
}

static void starting_worker_takes_over_claims_of_a_dead_one(void **state)
{
    struct rig *g = *state;
    for (int i = 0; i < 3; i++)
        rig_emit(g, NULL);
    struct worker *w = rig_worker(g, 0, "lease=30s", NULL);
    w->sk->hold = true;
    rig_step(g, 0);
    assert_int_equal(w->sk->n, 3);
    rig_crash(g, 0);
    rig_start(g, 0);
    rig_step(g, 0);
    assert_int_equal(g->n_seen, 0); /* the lease has not expired */
    rig_crash(g, 0);
    g->gone = gone;
    rig_start(g, 0);
    rig_pass(g, 20);
    rig_step(g, 0);
    assert_int_equal(g->n_seen, 3);
}

static void poison_event_is_found_one_event_at_a_time(void **state)
{
    struct rig *g = *state;
    g->caps = SINK_IN_PROCESS;
    rig_worker(g, 0, "lease=1s", "retry=base=10ms,attempts=3,jitter=none", NULL);
    for (int i = 0; i < 10; i++)
        rig_emit(g, i % 3 ? "a" : "b");
    const int64_t poison_seq = 5;
    int crashes = 0;
    for (int round = 0; round < 2000 && crashes < 50; round++) {
        struct worker *w = &g->w[0];
        if (!w->p)
            rig_start(g, 0);
        w->sk->hold = true;
        rig_step(g, 0);
        bool dies = false;
        for (size_t k = 0; k < w->sk->n; k++)
            dies = dies || w->sk->d[k]->ev->seq == poison_seq;
        if (dies) {
            rig_crash(g, 0);
            crashes++;
        } else if (w->sk->n) {
            rig_end(g, 0, 0, SINK_DELIVERED);
            continue;
        }
        if (rig_look(g).dead && g->n_seen >= 9)
            break;
        rig_pass(g, 100);
    }
    assert_int_equal(rig_look(g).dead, 1);
    assert_int_equal(rig_look(g).parked, 0);
    bool got[11] = {false};
    for (size_t i = 0; i < g->n_seen; i++)
        got[g->seen[i].seq] = true;
    for (int i = 1; i <= 10; i++)
        assert_true(got[i] == (i != poison_seq));
    /* Once with others, then alone until its attempts are exhausted. */
    assert_in_range(crashes, 3, 5);
}

static const struct CMUnitTest tests[] = {
    ON_A_RIG(consumers_do_not_wait_for_each_others_suspects),
    ON_A_RIG(nothing_is_delivered_beside_a_suspect),
    ON_A_RIG(crash_with_two_suspects_in_flight_blames_neither),
    ON_A_RIG(crashes_do_not_count_without_in_process_handlers),
    ON_A_RIG(suspect_of_a_down_sink_does_not_block_others_or_get_buried),
    ON_A_RIG(starting_worker_takes_over_claims_of_a_dead_one),
    ON_A_RIG(poison_event_is_found_one_event_at_a_time),
};

const struct suite_part pipeline_suspects_tests = SUITE_PART(tests);
