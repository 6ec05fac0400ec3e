/* pipeline_settings.c: a consumer that is paused, removed or reconfigured. */
#include <string.h>

#include "pipeline_tests.h"

static void sink_that_declines_events_is_paused_and_loses_nothing(void **state)
{
    static const int64_t want[] = {2, 1, 3, 4, 5};
    struct rig *g = *state;
    struct error err;
    const char *keys[] = {"a", "b", "a", "c", "b"};
    for (size_t i = 0; i < 5; i++)
        rig_emit(g, keys[i]);
    g->capacity = 2;
    struct worker *w = rig_worker(g, 0, NULL);
    w->sk->hold = true;
    rig_step(g, 0);
    assert_int_equal(w->sk->n, 2); /* 1 of a, 2 of b */
    rig_end(g, 0, 0, SINK_PAUSE);
    rig_step(g, 0);
    assert_int_equal(w->sk->n, 1); /* no new event is claimed */
    assert_true(rig_look(g).paused);
    assert_non_null(strstr(g->last_log, "paused: "));
    rig_end(g, 0, 0, SINK_DELIVERED);
    rig_step(g, 0);
    rig_pass(g, 100000);
    rig_step(g, 0);
    /* Nor is anything started when the delivery in flight ends. */
    assert_string_equal(rig_look(g).last_error, "paused: scripted");
    assert_int_equal(w->sk->n, 0);
    assert_int_equal(rig_look(g).inflight, 0);
    assert_int_equal(g->n_seen, 1);
    w->sk->hold = false;
    assert_int_equal(g->st->ops->consumer_pause(g->st, "c", false, &err), 0);
    pipeline_wake(w->p);
    assert_true(rig_run(g, 0, 10000));
    rig_assert_seen(g, 5, want);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(g->seen[i].attempt, 1);
    assert_null(rig_look(g).last_error);
}

static void removed_consumer_fails_its_pipeline(void **state)
{
    struct rig *g = *state;
    struct error err;
    struct worker *w = rig_worker(g, 0, NULL);
    rig_step(g, 0);
    assert_int_equal(g->st->ops->consumer_remove(g->st, "c", true, &err), 0);
    pipeline_wake(w->p);
    rig_step(g, 0);
    assert_int_equal(pipeline_stats(w->p)->state, PIPELINE_FAILED);
    assert_non_null(strstr(pipeline_stats(w->p)->error.text, "not registered"));
}

static void give_another_filter(struct rig *g)
{
    struct error err;
    struct consumer_spec c = {
        .name = "c", .events = "t.*", .where = "", .retry = "fast", .order = ORDER_KEY, .lanes = 1};
    assert_int_equal(g->st->ops->consumer_put(g->st, &c, NULL, &err), 0);
}

static void consumer_with_a_new_filter_drains_and_stops(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, NULL);
    w->sk->hold = true;
    rig_emit(g, "a");
    rig_step(g, 0);
    give_another_filter(g);
    pipeline_wake(w->p);
    rig_step(g, 0);
    assert_int_equal(pipeline_stats(w->p)->state, PIPELINE_DRAINING);
    assert_int_equal(w->sk->n, 1);
    rig_end(g, 0, 0, SINK_DELIVERED);
    rig_step(g, 0);
    assert_int_equal(pipeline_stats(w->p)->state, PIPELINE_FAILED);
    assert_int_equal(pipeline_stats(w->p)->error.code, ERR_CONFLICT);
    assert_int_equal(rig_look(g).delivered, 1);
}

static void worker_with_replaced_settings_stands_by_until_restored(void **state)
{
    struct rig *g = *state;
    struct error err;
    struct consumer_spec old = {.name = "c",
                                .events = "",
                                .where = "",
                                .retry = "fast",
                                .order = ORDER_KEY,
                                .lanes = 1,
                                .how = PUT_PURPOSE};
    g->stand_by = true;
    struct worker *w = rig_worker(g, 0, "batch=1", NULL);
    w->sk->hold = true;
    rig_emit(g, "a");
    rig_step(g, 0);
    give_another_filter(g);
    rig_emit(g, "b");
    pipeline_wake(w->p);
    rig_step(g, 0);
    assert_int_equal(w->sk->n, 1); /* the delivery in flight may end */
    rig_end(g, 0, 0, SINK_DELIVERED);
    rig_step(g, 0);
    assert_int_equal(rig_look(g).delivered, 1);
    assert_true(pipeline_stats(w->p)->standby_why.code);
    assert_int_equal(pipeline_stats(w->p)->state, PIPELINE_RUNNING);
    assert_int_equal(pipeline_stats(w->p)->standby_why.code, ERR_CONFLICT);
    assert_non_null(strstr(g->last_log, "standing by: "));

    int64_t looks = 0, until = g->mono + 120000 * MS_NS, next = 0;
    for (; g->mono < until; looks++) { /* it sleeps and polls at growing intervals */
        pipeline_wait(w->p, NULL, 0, &next);
        assert_true(next > g->mono && next <= g->mono + 15000 * MS_NS);
        rig_pass(g, (next - g->mono) / MS_NS + 1);
        rig_step(g, 0);
        assert_int_equal(w->sk->n, 0);
    }
    assert_in_range(looks, 8, 13);
    assert_int_equal(g->st->ops->consumer_put(g->st, &old, NULL, &err), 0);
    rig_pass(g, 15000);
    rig_step(g, 0);
    assert_false(pipeline_stats(w->p)->standby_why.code);
    assert_int_equal(w->sk->n, 1);
    rig_end(g, 0, 0, SINK_DELIVERED);
    rig_step(g, 0);
    assert_int_equal(rig_look(g).delivered, 2);
}

static void worker_starting_with_replaced_settings_stands_by(void **state)
{
    struct rig *g = *state;
    rig_worker(g, 1, NULL);
    give_another_filter(g);
    g->stand_by = true;
    struct worker *w = rig_worker(g, 0, NULL);
    rig_emit(g, "a");
    rig_step(g, 0);
    assert_true(pipeline_stats(w->p)->standby_why.code);
    assert_int_equal(g->n_seen, 0);
    pipeline_drain(w->p, g->mono);
    rig_step(g, 0);
    assert_int_equal(pipeline_stats(w->p)->state, PIPELINE_STOPPED);
}

static void draining_is_not_cut_short_by_another_filter(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "batch=1", NULL);
    w->sk->hold = true;
    rig_emit(g, "a");
    rig_emit(g, "b");
    rig_step(g, 0);
    assert_int_equal(w->sk->n, 2); /* two batches */
    pipeline_drain(w->p, g->mono + 30000 * MS_NS);
    give_another_filter(g);
    rig_end(g, 0, 0, SINK_DELIVERED);
    rig_step(g, 0); /* settles the first batch and learns about the new filter */
    rig_pass(g, 10000);
    rig_step(g, 0);
    assert_int_equal(w->sk->n, 1); /* not cancelled */
    rig_end(g, 0, 0, SINK_DELIVERED);
    rig_step(g, 0);
    assert_int_equal(pipeline_stats(w->p)->state, PIPELINE_STOPPED);
    assert_int_equal(rig_look(g).delivered, 2);
}

static const struct CMUnitTest tests[] = {
    ON_A_RIG(sink_that_declines_events_is_paused_and_loses_nothing),
    ON_A_RIG(removed_consumer_fails_its_pipeline),
    ON_A_RIG(consumer_with_a_new_filter_drains_and_stops),
    ON_A_RIG(worker_with_replaced_settings_stands_by_until_restored),
    ON_A_RIG(worker_starting_with_replaced_settings_stands_by),
    ON_A_RIG(draining_is_not_cut_short_by_another_filter),
};

const struct suite_part pipeline_settings_tests = SUITE_PART(tests);
