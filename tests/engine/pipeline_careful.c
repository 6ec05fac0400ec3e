/* pipeline_careful.c: events whose worker died are delivered one by one, until the one that kills
 * it is found. */
#include "pipeline_tests.h"

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

static void of_two_consumers_only_one_delivers_a_careful_event_at_a_time(void **state)
{
    struct rig *g = *state;
    for (int i = 0; i < 3; i++)
        rig_emit(g, NULL);
    struct worker *a = crashed(g, 0, "consumer=c"), *b = crashed(g, 1, "consumer=d");
    rig_pass(g, 1000);
    for (int i = 0; i < 3; i++) {
        rig_step(g, 0);
        rig_pass(g, 50);
        rig_step(g, 1);
        assert_int_equal(a->sk->n, 1);
        /* Also at the second and third, which are claimed as the one before settles. */
        assert_int_equal(b->sk->n, 0);
        rig_end(g, 0, 0, SINK_DELIVERED);
    }
    rig_step(g, 0);
    rig_pass(g, 50);
    rig_step(g, 1);
    assert_int_equal(b->sk->n, 1);
}

static void careful_event_whose_sink_is_down_keeps_nobody_waiting_and_is_not_buried(void **state)
{
    struct rig *g = *state;
    for (int i = 0; i < 3; i++)
        rig_emit(g, NULL);
    struct worker *a = crashed(g, 0, "consumer=c"), *b = crashed(g, 1, "consumer=d");
    rig_pass(g, 1000);
    rig_step(g, 0);
    assert_int_equal(a->sk->n, 1);
    rig_end(g, 0, 0, SINK_DOWN);
    rig_step(g, 0);
    rig_step(g, 1);
    assert_int_equal(b->sk->n, 1); /* nobody has the flag */
    rig_crash(g, 1);               /* b's event was the poison, which has nothing to do with a's */
    rig_pass(g, 2000);
    a->sk->hold = false;
    assert_true(rig_run(g, 0, 20000));
    assert_int_equal(rig_look(g).dead, 0);
    assert_int_equal(g->n_seen, 3);
}

static void poison_is_found_one_event_at_a_time(void **state)
{
    struct rig *g = *state;
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
    /* Once among others, then alone until its attempts are used up. */
    assert_in_range(crashes, 3, 5);
}

static const struct CMUnitTest tests[] = {
    ON_A_RIG(of_two_consumers_only_one_delivers_a_careful_event_at_a_time),
    ON_A_RIG(careful_event_whose_sink_is_down_keeps_nobody_waiting_and_is_not_buried),
    ON_A_RIG(poison_is_found_one_event_at_a_time),
};

const struct suite_part pipeline_careful_tests = SUITE_PART(tests);
