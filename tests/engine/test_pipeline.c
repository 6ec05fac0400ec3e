/* The order in which a pipeline delivers, and its reaction to each answer of a sink. */
#include <stdio.h>

#include "pipeline_tests.h"

static enum sink_status reject_one(struct model *m, const struct delivery *d)
{
    return d->ev->seq == m->answer_ctx ? SINK_REJECT : SINK_DELIVERED;
}

static enum sink_status down_from(struct model *m, const struct delivery *d)
{
    return m->answer_ctx && d->ev->seq >= m->answer_ctx ? SINK_DOWN : SINK_DELIVERED;
}

static enum sink_status fatal(struct model *m, const struct delivery *d)
{
    (void)m;
    (void)d;
    return SINK_FATAL;
}

/* Postpones the first event nine times, like a stream that accepts nothing for a while. */
static enum sink_status later_nine_times(struct model *m, const struct delivery *d)
{
    if (d->ev->seq != 1 || m->answer_ctx == 9)
        return SINK_DELIVERED;
    m->answer_ctx++;
    return SINK_LATER;
}

static void pipeline_delivers_everything_in_order_and_settles(void **state)
{
    struct rig *g = *state;
    rig_worker(g, 0, NULL);
    for (int i = 0; i < 200; i++)
        rig_emit(g, i % 2 ? "a" : "b");
    assert_true(rig_run(g, 0, 1000));
    assert_int_equal(g->n_seen, 200);
    for (size_t i = 0; i < 200; i++)
        assert_int_equal(g->seen[i].attempt, 1);
    assert_int_equal(rig_look(g).delivered, 200);
    assert_int_equal(rig_look(g).inflight, 0);
}

static void key_is_in_flight_once_and_keys_run_in_parallel(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, NULL);
    w->sk->hold = true;
    rig_emit(g, "a");
    rig_emit(g, "a");
    rig_emit(g, "b");
    rig_emit(g, NULL);
    rig_emit(g, NULL);
    rig_step(g, 0);
    assert_int_equal(w->sk->n, 4); /* a, b and both without key */
    rig_end(g, 0, 0, SINK_DELIVERED);
    rig_step(g, 0);
    assert_int_equal(w->sk->n, 4);
    SAW(1);
    assert_int_equal(w->sk->d[3]->ev->seq, 2);
}

static void global_order_has_only_one_event_in_flight(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "order=global", NULL);
    w->sk->hold = true;
    rig_emit(g, "a");
    rig_emit(g, "b");
    rig_step(g, 0);
    assert_int_equal(w->sk->n, 1);
    rig_end(g, 0, 0, SINK_DELIVERED);
    rig_step(g, 0);
    assert_int_equal(w->sk->n, 1);
    assert_int_equal(w->sk->d[0]->ev->seq, 2);
}

static void without_order_everything_is_in_flight(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "order=none", NULL);
    w->sk->hold = true;
    for (int i = 0; i < 5; i++)
        rig_emit(g, "a");
    rig_step(g, 0);
    assert_int_equal(w->sk->n, 5);
}

static void failed_event_holds_back_only_its_key(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "retry=base=1s,attempts=3,jitter=none", NULL);
    w->sk->answer = rig_retry_twice;
    w->sk->answer_ctx = 1;
    rig_emit(g, "a"); /* 1 */
    rig_emit(g, "b"); /* 2 */
    rig_emit(g, "a"); /* 3 */
    rig_emit(g, "b"); /* 4 */
    rig_step(g, 0);
    SAW(2, 4);
    rig_emit(g, "a"); /* 5 */
    rig_emit(g, "b"); /* 6 */
    pipeline_wake(w->p);
    rig_step(g, 0);
    SAW(2, 4, 6);
    assert_true(rig_run(g, 0, 10000));
    SAW(2, 4, 6, 1, 3, 5);
    assert_int_equal(g->seen[3].attempt, 3);
    assert_int_equal(g->mono / MS_NS / 1000, 4); /* 1 s, then 2 s after the start at 1 s */
}

static void deferred_event_keeps_its_attempts_and_holds_only_its_key(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "retry=base=1s,attempts=3,jitter=none", NULL);
    w->sk->answer = later_nine_times;
    rig_emit(g, "a"); /* 1 */
    rig_emit(g, "b"); /* 2 */
    rig_emit(g, "a"); /* 3 */
    rig_emit(g, "b"); /* 4 */
    rig_step(g, 0);
    SAW(2, 4);
    assert_true(rig_run(g, 0, 60000));
    SAW(2, 4, 1, 3);
    assert_int_equal(g->seen[2].attempt, 1);
    assert_int_equal(w->sk->answer_ctx, 9);
}

static void exhausted_attempts_bury_the_event_and_free_its_key(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "retry=base=10ms,attempts=3,jitter=none", NULL);
    w->sk->answer = rig_retry_one;
    w->sk->answer_ctx = 1;
    rig_emit(g, "a");
    rig_emit(g, "a");
    rig_emit(g, "b"); /* is delivered, so the other event is at fault */
    assert_true(rig_run(g, 0, 10000));
    SAW(3, 2);
    assert_int_equal(rig_look(g).dead, 1);
    assert_int_equal(rig_look(g).parked, 0);
    assert_int_equal(pipeline_stats(w->p)->retried, 2);
    assert_int_equal(pipeline_stats(w->p)->buried, 1);
}

static void rejected_event_is_buried_at_once_and_frees_its_key(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, NULL);
    w->sk->answer = reject_one;
    w->sk->answer_ctx = 1;
    rig_emit(g, "a");
    rig_emit(g, "a");
    rig_step(g, 0);
    SAW(2);
    assert_int_equal(rig_look(g).dead, 1);
}

static void down_sink_keeps_the_order_without_using_attempts(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "lease=5s", NULL);
    w->sk->answer = down_from;
    w->sk->answer_ctx = 3;
    for (int i = 0; i < 6; i++)
        rig_emit(g, i % 2 ? "a" : "b");
    assert_false(rig_run(g, 0, 60000)); /* for a minute leases are kept and no event is released */
    SAW(1, 2);
    assert_true(pipeline_stats(w->p)->down);
    assert_int_equal(pipeline_stats(w->p)->retried + pipeline_stats(w->p)->lost, 0);
    w->sk->answer_ctx = 0;
    assert_true(rig_run(g, 0, 60000));
    SAW(1, 2, 3, 4, 5, 6);
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(g->seen[i].attempt, 1);
    assert_false(pipeline_stats(w->p)->down);
}

static void failstop_sink_gets_whole_batches_and_keeps_order_when_down(void **state)
{
    struct rig *g = *state;
    g->caps = SINK_FAILSTOP;
    struct worker *w = rig_worker(g, 0, NULL);
    w->sk->hold = true;
    for (int i = 0; i < 10; i++)
        rig_emit(g, "a");
    rig_step(g, 0);
    assert_int_equal(w->sk->n, 10); /* one key, all in flight */
    w->sk->hold = false;
    w->sk->answer = down_from;
    w->sk->answer_ctx = 4;
    rig_run(g, 0, 1000);
    SAW(1, 2, 3);
    w->sk->answer_ctx = 0;
    assert_true(rig_run(g, 0, 60000));
    SAW(1, 2, 3, 4, 5, 6, 7, 8, 9, 10);
    assert_int_equal(rig_look(g).delivered, 10);
}

static void back_pressure_is_not_a_failure(void **state)
{
    struct rig *g = *state;
    g->capacity = 3;
    struct worker *w = rig_worker(g, 0, NULL);
    for (int i = 0; i < 50; i++)
        rig_emit(g, i % 2 ? "a" : NULL);
    assert_true(rig_run(g, 0, 1000));
    assert_int_equal(g->n_seen, 50);
    assert_int_equal(pipeline_stats(w->p)->retried, 0);
}

static void fatal_sink_error_stops_the_consumer_and_releases_all_events(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, NULL);
    w->sk->answer = fatal;
    for (int i = 0; i < 5; i++)
        rig_emit(g, "a");
    rig_step(g, 0);
    assert_int_equal(pipeline_stats(w->p)->state, PIPELINE_FAILED);
    assert_string_equal(pipeline_stats(w->p)->error.text, "scripted");
    assert_int_equal(rig_look(g).inflight, 0);
    rig_crash(g, 0);
    rig_start(g, 0);
    assert_true(rig_run(g, 0, 1000));
    SAW(1, 2, 3, 4, 5);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(g->seen[i].attempt, 1);
}

static void failure_holds_back_its_key_in_all_batches_in_flight(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "batch=2", "retry=base=1s,attempts=3,jitter=none", NULL);
    w->sk->hold = true;
    rig_emit(g, "a"); /* 1 */
    rig_emit(g, "b"); /* 2 */
    rig_emit(g, "a"); /* 3 */
    rig_emit(g, "c"); /* 4 */
    rig_emit(g, "a"); /* 5 */
    rig_emit(g, "d"); /* 6 */
    rig_step(g, 0);
    assert_int_equal(w->sk->n, 4); /* a1 b2 c4 d6 */
    rig_end(g, 0, 3, SINK_DELIVERED);
    rig_end(g, 0, 2, SINK_DELIVERED);
    rig_end(g, 0, 0, SINK_RETRY);
    rig_step(g, 0);
    assert_int_equal(w->sk->n, 1); /* b2: neither a3 nor a5 was submitted */
    rig_end(g, 0, 0, SINK_DELIVERED);
    w->sk->hold = false;
    assert_true(rig_run(g, 0, 10000));
    SAW(6, 4, 2, 1, 3, 5);
    assert_int_equal(rig_look(g).delivered, 6);
}

static void delayed_event_holds_back_its_key_until_its_time(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, NULL);
    rig_emit_at(g, "a", g->wall + 5000); /* 1 */
    rig_emit(g, "a");                    /* 2 */
    rig_emit(g, "b");                    /* 3 */
    rig_step(g, 0);
    SAW(3);
    rig_pass(g, 5000);
    pipeline_wake(w->p);
    assert_true(rig_run(g, 0, 1000));
    SAW(3, 1, 2);
    assert_int_equal(g->seen[1].attempt, 1);
}

static void long_chain_of_one_key_is_held_back_without_recursion(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "batch=5000",
                                  "retry=base=1s,attempts=2,jitter=none,outage=0s", NULL);
    struct error err;
    w->sk->answer = rig_retry_twice;
    w->sk->answer_ctx = 1;
    assert_int_equal(g->st->ops->begin(g->st, &err), 0);
    for (int i = 0; i < 5000; i++)
        rig_emit(g, "a");
    assert_int_equal(g->st->ops->commit(g->st, &err), 0);
    rig_run(g, 0, 20000);
    assert_int_equal(rig_look(g).dead, 1);
    assert_int_equal(g->n_seen, 4999);
    for (size_t i = 0; i < g->n_seen; i++)
        assert_int_equal(g->seen[i].seq, i + 2);
}

enum { RETRIED = 1000 };

/* Needs a millisecond for four events, and fails every tenth once. m->answer_ctx is the longest
 * wait for a retry, in ns. */
static enum sink_status fail_every_tenth_once(struct model *m, const struct delivery *d)
{
    static int64_t failed_at[RETRIED + 1];
    int64_t seq = d->ev->seq;
    if (seq % 4 == 0)
        rig_pass(m->g, 1);
    if (seq % 10 != 1)
        return SINK_DELIVERED;
    if (d->attempt == 1) {
        failed_at[seq] = m->g->mono;
        return SINK_RETRY;
    }
    int64_t waited = m->g->mono - failed_at[seq];
    if (waited > m->answer_ctx)
        m->answer_ctx = waited;
    return SINK_DELIVERED;
}

/* Claiming two retries costs as much as claiming a whole batch. But until they are claimed, later
 * events of their keys have to be parked too. */
static void few_retries_wait_20_ms_to_be_batched(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "batch=20", "concurrency=20",
                                  "retry=base=1ms,attempts=3,jitter=none,outage=0s", NULL);
    w->sk->answer = fail_every_tenth_once;
    for (int i = 0; i < RETRIED; i++) {
        char key[16];
        snprintf(key, sizeof key, "%d", i);
        rig_emit(g, key);
    }
    assert_true(rig_run(g, 0, 10000));
    assert_int_equal(g->n_seen, RETRIED);
    assert_in_range(pipeline_stats(w->p)->claims, 50, 75); /* without a pause it would be 99 */
    assert_in_range(w->sk->answer_ctx / MS_NS, 15, 35);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        ON_A_RIG(pipeline_delivers_everything_in_order_and_settles),
        ON_A_RIG(key_is_in_flight_once_and_keys_run_in_parallel),
        ON_A_RIG(global_order_has_only_one_event_in_flight),
        ON_A_RIG(without_order_everything_is_in_flight),
        ON_A_RIG(failed_event_holds_back_only_its_key),
        ON_A_RIG(deferred_event_keeps_its_attempts_and_holds_only_its_key),
        ON_A_RIG(exhausted_attempts_bury_the_event_and_free_its_key),
        ON_A_RIG(rejected_event_is_buried_at_once_and_frees_its_key),
        ON_A_RIG(down_sink_keeps_the_order_without_using_attempts),
        ON_A_RIG(failstop_sink_gets_whole_batches_and_keeps_order_when_down),
        ON_A_RIG(back_pressure_is_not_a_failure),
        ON_A_RIG(fatal_sink_error_stops_the_consumer_and_releases_all_events),
        ON_A_RIG(failure_holds_back_its_key_in_all_batches_in_flight),
        ON_A_RIG(delayed_event_holds_back_its_key_until_its_time),
        ON_A_RIG(long_chain_of_one_key_is_held_back_without_recursion),
        ON_A_RIG(few_retries_wait_20_ms_to_be_batched),
    };
    const struct suite_part parts[] = {
        SUITE_PART(tests),       pipeline_time_tests,     pipeline_store_tests,
        pipeline_settings_tests, pipeline_suspects_tests,
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return suite_run("pipeline", parts, COUNT(parts));
}
