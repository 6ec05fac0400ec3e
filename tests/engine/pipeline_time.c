/* pipeline_time.c: leases, drains, crashes, and the intervals between looks for work. */
#include "pipeline_tests.h"

static void slow_sink_keeps_its_lease(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "lease=2s", NULL);
    w->sk->hold = true;
    rig_emit(g, "a");
    rig_step(g, 0);
    for (int i = 0; i < 20; i++) {
        rig_pass(g, 900);
        rig_step(g, 0);
    }
    rig_end(g, 0, 0, SINK_DELIVERED);
    rig_step(g, 0);
    assert_int_equal(pipeline_stats(w->p)->lost, 0);
    assert_int_equal(rig_look(g).delivered, 1);
}

static void slow_handlers_keep_their_lease(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "lease=300ms", NULL);
    w->sk->busy_ms = 20;
    for (int i = 0; i < 64; i++)
        rig_emit(g, "a");
    rig_step(g, 0);
    assert_int_equal(g->n_seen, 64); /* one batch lasts more than four leases */
    assert_int_equal(pipeline_stats(w->p)->lost, 0);
    assert_int_equal(rig_look(g).delivered, 64);
}

static void step_returns_often_enough_to_be_stopped(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, NULL);
    w->sk->busy_ms = 20;
    for (int i = 0; i < 64; i++)
        rig_emit(g, "a");
    pipeline_step(w->p);
    int64_t before = g->mono;
    pipeline_step(w->p);
    assert_in_range(g->mono - before, 20 * MS_NS, 100 * MS_NS);
}

static void worker_past_its_lease_delivers_and_changes_nothing(void **state)
{
    struct rig *g = *state;
    struct worker *a = rig_worker(g, 0, "lease=2s", NULL), *b = rig_worker(g, 1, "lease=2s", NULL);
    a->sk->hold = true;
    rig_emit(g, "k");
    rig_emit(g, "k");
    rig_step(g, 0);
    assert_int_equal(a->sk->n, 1);
    rig_pass(g, 2000); /* stopped for the whole lease */
    rig_run(g, 1, 1000);
    SAW(1, 2);
    /* Its delivery arrives after all, as a duplicate with the same id. */
    rig_end(g, 0, 0, SINK_DELIVERED);
    a->sk->hold = false;
    rig_step(g, 0);
    SAW(1, 2, 1);
    assert_int_equal(pipeline_stats(a->p)->lost, 1);
    assert_int_equal(rig_look(g).delivered, 2);
    assert_int_equal(pipeline_stats(b->p)->crashed, 2);
}

static void drain_releases_unstarted_events_and_awaits_the_rest(void **state)
{
    struct rig *g = *state;
    g->capacity = 1;
    struct worker *w = rig_worker(g, 0, "batch=3", NULL);
    w->sk->hold = true;
    for (int i = 0; i < 9; i++)
        rig_emit(g, "a");
    rig_step(g, 0);
    assert_int_equal(w->sk->n, 1);
    pipeline_drain(w->p, g->mono + 10000 * MS_NS);
    rig_step(g, 0);
    assert_int_equal(pipeline_stats(w->p)->state, PIPELINE_DRAINING);
    rig_end(g, 0, 0, SINK_DELIVERED);
    rig_step(g, 0);
    assert_int_equal(pipeline_stats(w->p)->state, PIPELINE_STOPPED);
    struct consumer_info c = rig_look(g);
    assert_int_equal(c.inflight + c.parked, 0); /* released by moving the position */
    assert_int_equal(c.behind, 8);
    rig_crash(g, 0);
    g->capacity = RIG_INFLIGHT;
    rig_start(g, 0);
    assert_true(rig_run(g, 0, 1000));
    SAW(1, 2, 3, 4, 5, 6, 7, 8, 9);
}

static void drain_cancels_hanging_deliveries_for_redelivery(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, NULL);
    w->sk->hold = true;
    rig_emit(g, "a");
    rig_emit(g, "b");
    rig_emit(g, "a");
    rig_step(g, 0);
    pipeline_drain(w->p, g->mono + 1000 * MS_NS);
    rig_step(g, 0);
    assert_int_equal(pipeline_stats(w->p)->state, PIPELINE_DRAINING);
    rig_pass(g, 1000);
    rig_step(g, 0);
    assert_int_equal(pipeline_stats(w->p)->state, PIPELINE_STOPPED);
    assert_int_equal(g->n_seen, 0);
    rig_crash(g, 0);
    rig_start(g, 0);
    assert_true(rig_run(g, 0, 1000));
    assert_int_equal(g->n_seen, 3);
    /* a cancelled delivery does not count as an attempt */
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(g->seen[i].attempt, 1);
    assert_int_equal(rig_look(g).delivered, 3);
}

static void crash_repeats_only_unsettled_events(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "lease=1s", "batch=2", NULL);
    for (int i = 0; i < 4; i++)
        rig_emit(g, "a");
    rig_run(g, 0, 100);
    SAW(1, 2, 3, 4);
    w->sk->hold = true;
    rig_emit(g, "a");
    pipeline_wake(w->p);
    rig_step(g, 0);
    rig_crash(g, 0);
    rig_start(g, 0);
    assert_true(rig_run(g, 0, 5000));
    SAW(1, 2, 3, 4, 5);
}

static void without_wake_ups_the_pipeline_polls_every_20_ms(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, NULL);
    struct pollfd fds[4];
    int64_t deadline;
    rig_step(g, 0);
    pipeline_wait(w->p, fds, 4, &deadline);
    /* A store in memory has no wake-ups, so it polls. */
    assert_int_equal((deadline - g->mono) / MS_NS, 20);
}

static void settling_also_claims_so_no_event_waits_for_the_sweep(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, NULL);
    rig_emit(g, "1");
    w->sk->hold = true;
    rig_step(g, 0); /* the sink holds the only event */
    assert_int_equal(w->sk->n, 1);
    assert_false(pipeline_stats(w->p)->through);
    rig_end(g, 0, 0, SINK_DELIVERED);
    rig_step(g, 0);
    assert_true(pipeline_stats(w->p)->through); /* and no time has passed */
}

/* The order of the two settings does not matter. */
static void explicit_setting_overrides_a_preset(void **state)
{
    struct consumer c;
    struct error err;
    (void)state;
    assert_int_equal(consumer_init(&c, "c", &err), 0);
    assert_int_equal(consumer_set(&c, "batch", "7", &err), 0);
    assert_int_equal(consumer_set(&c, "preset", "dispatcher", &err), 0);
    assert_int_equal(consumer_set(&c, "lease", "5s", &err), 0);
    assert_int_equal(c.batch, 7);
    assert_int_equal(c.lease_ms, 5000);
    assert_int_equal(c.poll_ms, 500);
    assert_int_equal(c.retry.attempts, 8);
    assert_int_equal(consumer_set(&c, "preset", "none", &err), 0);
    assert_int_equal(c.batch, 7);
    assert_int_equal(c.lease_ms, 5000);
    assert_int_equal(c.poll_ms, 0);
    assert_false(c.receipts);
    assert_int_equal(consumer_set(&c, "preset", "dispatch", &err), -1);
    assert_non_null(strstr(err.text, "\"dispatch\" is neither dispatcher nor none"));
    consumer_release(&c);
}

static void batch_covers_the_in_flight_limit(void **state)
{
    struct rig *g = *state;
    for (int i = 0; i < 600; i++)
        rig_emit(g, NULL);
    struct worker *w = rig_worker(g, 0, "batch=40", "concurrency=30", "order=none", NULL);
    w->sk->hold = true;
    /* Each takes two seconds, so claims shrink, but not below the number in flight. */
    while (g->n_seen < 600) {
        rig_step(g, 0);
        rig_pass(g, 2000);
        while (w->sk->n > 0)
            rig_end(g, 0, 0, SINK_DELIVERED);
    }
    assert_in_range(pipeline_stats(w->p)->claims, 600 / 40, 600 / 30);
}

/* ---- settling together with the next claim ---- */

/* Worker 0 claims one event, finds no more, and delivers it. */
static void deliver_one(struct rig *g, const char *key)
{
    rig_emit(g, key);
    pipeline_wake(g->w[0].p);
    rig_step(g, 0);
    rig_end(g, 0, 0, SINK_DELIVERED);
    rig_step(g, 0);
}

static struct worker *patient_worker(struct rig *g)
{
    g->settle_wait_ms = 15; /* less than the 20 ms between looks */
    struct worker *w = rig_worker(g, 0, "lease=2s", NULL);
    w->sk->hold = true;
    rig_step(g, 0);
    return w;
}

static void settlement_waits_briefly_for_the_next_claim(void **state)
{
    struct rig *g = *state;
    patient_worker(g);
    deliver_one(g, "a");
    assert_int_equal(rig_look(g).delivered, 0);
    assert_int_equal(rig_look(g).claims, 1);

    deliver_one(g, "b"); /* one turn settled the first event and claimed the second */
    SAW(1, 2);
    assert_int_equal(rig_look(g).delivered, 1);
    assert_int_equal(rig_look(g).claims, 1);

    rig_pass(g, 14);
    rig_step(g, 0);
    assert_int_equal(rig_look(g).delivered, 1);
    rig_pass(g, 1);
    rig_step(g, 0);
    assert_int_equal(rig_look(g).delivered, 2);
    assert_int_equal(rig_look(g).claims, 0);
}

static void pipeline_reports_when_a_delayed_settlement_is_due(void **state)
{
    struct rig *g = *state;
    struct worker *w = patient_worker(g);
    int64_t at;
    deliver_one(g, "a");
    pipeline_wait(w->p, NULL, 0, &at);
    assert_int_equal(at, g->mono + 15 * MS_NS);
}

/* A thread may be suspended for any time between a step and the wait that follows. */
static void event_due_between_step_and_wait_ends_the_wait(void **state)
{
    struct rig *g = *state;
    struct worker *w = patient_worker(g);
    int64_t at;
    deliver_one(g, "a");
    rig_pass(g, 16); /* the settlement delay is over */
    pipeline_wait(w->p, NULL, 0, &at);
    assert_true(at <= g->mono);

    deliver_one(g, "b");
    rig_pass(g, 25); /* so is the interval to the next look */
    pipeline_wait(w->p, NULL, 0, &at);
    assert_true(at <= g->mono);
}

static void sink_due_between_step_and_wait_is_tried_at_once(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "lease=30s", NULL);
    w->sk->hold = true;
    rig_emit(g, "a");
    rig_emit(g, "b");
    rig_step(g, 0);
    while (w->sk->n > 0)
        rig_end(g, 0, 0, SINK_DOWN);
    rig_step(g, 0);
    int64_t at;
    pipeline_wait(w->p, NULL, 0, &at);
    assert_true(at > g->mono && at < g->mono + 10000 * MS_NS);

    rig_pass(g, (at - g->mono) / MS_NS + 1);
    pipeline_wait(w->p, NULL, 0, &at);
    assert_true(at <= g->mono);
}

static void failure_is_settled_at_once(void **state)
{
    struct rig *g = *state;
    patient_worker(g);
    rig_emit(g, "a");
    rig_emit(g, "b");
    pipeline_wake(g->w[0].p);
    rig_step(g, 0);
    rig_end(g, 0, 1, SINK_DELIVERED);
    rig_end(g, 0, 0, SINK_REJECT);
    rig_step(g, 0);
    assert_int_equal(rig_look(g).claims, 0);
    assert_int_equal(rig_look(g).dead, 1);
}

static void drain_does_not_delay_settlements(void **state)
{
    struct rig *g = *state;
    struct worker *w = patient_worker(g);
    deliver_one(g, "a");
    assert_int_equal(rig_look(g).delivered, 0);
    pipeline_drain(w->p, g->mono + 10000 * MS_NS);
    rig_step(g, 0);
    assert_int_equal(pipeline_stats(w->p)->state, PIPELINE_STOPPED);
    assert_int_equal(rig_look(g).delivered, 1);
}

static void crash_repeats_deliveries_with_delayed_settlement(void **state)
{
    struct rig *g = *state;
    patient_worker(g);
    deliver_one(g, "a");
    rig_crash(g, 0);
    rig_pass(g, 2000);
    rig_start(g, 0);
    assert_true(rig_run(g, 0, 5000));
    SAW(1, 1);
    assert_int_equal(rig_look(g).delivered, 1);
}

/* An answer that a sink has requested may arrive after everything is delivered. It is handled at
 * once, not with the next event; afterwards the sink is no longer polled. */
static void sink_that_requests_polls_is_polled_until_done(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, NULL);
    struct pollfd fds[4];
    int64_t at;
    rig_emit(g, "a");
    assert_true(rig_run(g, 0, 1000));
    size_t asleep = pipeline_wait(w->p, fds, 4, &at);

    w->sk->attended = true;
    w->sk->asked_fd = 1234;
    assert_int_equal(pipeline_wait(w->p, fds, 4, &at), asleep + 1);
    assert_int_equal(fds[0].fd, 1234);
    w->sk->finds = "the leader has a name";
    rig_step(g, 0);
    assert_string_equal(g->last_log, "the leader has a name");
    assert_int_equal(pipeline_wait(w->p, fds, 4, &at), asleep);

    w->sk->finds = "nobody asked for this";
    rig_step(g, 0);
    assert_string_equal(g->last_log, "the leader has a name");
}

static const struct CMUnitTest tests[] = {
    ON_A_RIG(sink_that_requests_polls_is_polled_until_done),
    ON_A_RIG(settlement_waits_briefly_for_the_next_claim),
    ON_A_RIG(pipeline_reports_when_a_delayed_settlement_is_due),
    ON_A_RIG(event_due_between_step_and_wait_ends_the_wait),
    ON_A_RIG(sink_due_between_step_and_wait_is_tried_at_once),
    ON_A_RIG(failure_is_settled_at_once),
    ON_A_RIG(drain_does_not_delay_settlements),
    ON_A_RIG(crash_repeats_deliveries_with_delayed_settlement),
    ON_A_RIG(slow_sink_keeps_its_lease),
    ON_A_RIG(slow_handlers_keep_their_lease),
    ON_A_RIG(step_returns_often_enough_to_be_stopped),
    cmocka_unit_test(explicit_setting_overrides_a_preset),
    ON_A_RIG(worker_past_its_lease_delivers_and_changes_nothing),
    ON_A_RIG(drain_releases_unstarted_events_and_awaits_the_rest),
    ON_A_RIG(drain_cancels_hanging_deliveries_for_redelivery),
    ON_A_RIG(crash_repeats_only_unsettled_events),
    ON_A_RIG(without_wake_ups_the_pipeline_polls_every_20_ms),
    ON_A_RIG(settling_also_claims_so_no_event_waits_for_the_sweep),
    ON_A_RIG(batch_covers_the_in_flight_limit),
};

const struct suite_part pipeline_time_tests = SUITE_PART(tests);
