/* pipeline_store.c: a failing store and missed wake-ups. */
#include <malloc.h>
#include <unistd.h>

#include "pipeline_tests.h"

static struct store_ops flaky;
static const struct store_ops *real;
static int fail_before, fail_after, turns;
static int64_t slow_turn;
static struct rig *slow_rig;

/* Fails before it does anything, or after it has done everything; the caller cannot tell which. */
static int flaky_turn(struct store *st, const struct settlement *s, bool *ret_lost,
                      const struct claim_request *req, struct arena *a, struct batch *ret_batch,
                      struct claim_hint *ret_hint, struct error *err)
{
    turns++;
    if (slow_turn)
        rig_pass(slow_rig, slow_turn);
    slow_turn = 0;
    if (fail_before > 0 && fail_before-- > 0)
        return err_class(err, ERR_BUSY, CLASS_RETRY, 0, "scripted: not done");
    int r = real->turn(st, s, ret_lost, req, a, ret_batch, ret_hint, err);
    if (r == 0 && fail_after > 0 && fail_after-- > 0)
        return err_class(err, ERR_UNAVAILABLE, CLASS_RETRY, 0,
                         "scripted: done, but the answer was lost");
    return r;
}

static void make_flaky(struct worker *w)
{
    real = w->st->ops;
    flaky = *real;
    flaky.turn = flaky_turn;
    w->st->ops = &flaky;
}

static int broken_wakeup[2];

static int broken_wake_fd(struct store *st)
{
    (void)st;
    return broken_wakeup[0];
}

/* Replaces the worker's wake-up descriptor by one that fires only when the test writes to
 * broken_wakeup[1]. */
static void break_wakeup(struct worker *w)
{
    make_flaky(w);
    flaky.wake_fd = broken_wake_fd;
    assert_int_equal(pipe(broken_wakeup), 0);
}

static void sweep_finds_events_without_a_wake_up(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, NULL);
    struct pollfd fds[4];
    int64_t deadline;
    break_wakeup(w); /* never written to */
    rig_step(g, 0);
    rig_emit(g, "a");
    turns = 0;
    rig_step(g, 0);
    assert_int_equal(turns, 0); /* idle: not a single query */
    assert_int_equal(pipeline_wait(w->p, fds, 4, &deadline), 1);
    assert_int_equal(deadline - g->mono, 30000 * MS_NS);
    rig_pass(g, 30000);
    rig_step(g, 0);
    SAW(1);
    close(broken_wakeup[0]);
    close(broken_wakeup[1]);
}

/* Checks the values by the pipeline's behaviour, on the rig's clock. */
static void dispatcher_preset_has_the_documented_values(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "preset=dispatcher", NULL);
    struct pollfd fds[4];
    int64_t deadline;
    assert_true(w->c.receipts);
    make_flaky(w);
    flaky.wake_fd = broken_wake_fd;
    assert_int_equal(pipe(broken_wakeup), 0); /* never written to */

    /* poll 500 ms */
    rig_step(g, 0);
    rig_emit(g, "a");
    assert_int_equal(pipeline_wait(w->p, fds, 4, &deadline), 1);
    assert_int_equal(deadline - g->mono, 500 * MS_NS);
    rig_pass(g, 500);
    rig_step(g, 0);
    SAW(1);

    /* batch 50: claims grow no further */
    for (int n = 0; n < 150; n++)
        rig_emit(g, NULL);
    int64_t claims = pipeline_stats(w->p)->claims;
    assert_true(rig_run(g, 0, 10000));
    assert_int_equal(pipeline_stats(w->p)->claims - claims, 3);

    /* lease 30 s, renewed at half */
    w->sk->hold = true;
    rig_emit(g, "b");
    rig_pass(g, 500);
    rig_step(g, 0);
    int64_t renewed = pipeline_stats(w->p)->meter.renewals[RENEWAL_OK];
    rig_pass(g, 14999);
    rig_step(g, 0);
    assert_int_equal(pipeline_stats(w->p)->meter.renewals[RENEWAL_OK], renewed);
    rig_pass(g, 1);
    rig_step(g, 0);
    assert_int_equal(pipeline_stats(w->p)->meter.renewals[RENEWAL_OK], renewed + 1);
    rig_end(g, 0, 0, SINK_DELIVERED);
    w->sk->hold = false;

    /* 8 attempts, then a dead letter */
    w->sk->answer = rig_retry_one;
    w->sk->answer_ctx = 1 + 150 + 1 + 1;
    rig_emit(g, "poison");
    for (int n = 0; n < 2000 && rig_look(g).dead == 0; n++) {
        rig_emit(g, NULL); /* this one is delivered, so the other event is at fault */
        rig_pass(g, 1000);
        rig_step(g, 0);
    }
    assert_int_equal(rig_look(g).dead, 1);
    assert_int_equal(pipeline_stats(w->p)->retried, 7);
    assert_int_equal(pipeline_stats(w->p)->buried, 1);
    close(broken_wakeup[0]);
    close(broken_wakeup[1]);
}

static void claim_granted_after_its_lease_is_kept_if_still_valid(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "lease=2s", "batch=2", NULL);
    make_flaky(w);
    /* The turn waits for the lock, and its lease begins once it holds the lock. */
    slow_turn = 3000;
    slow_rig = g;
    for (int i = 0; i < 6; i++)
        rig_emit(g, "a");
    assert_true(rig_run(g, 0, 60000));
    SAW(1, 2, 3, 4, 5, 6);
    assert_int_equal(pipeline_stats(w->p)->lost, 0);
}

static void unreachable_store_is_retried_and_loses_nothing(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, NULL);
    make_flaky(w);
    for (int i = 0; i < 3; i++)
        rig_emit(g, "a");
    fail_before = 4;
    assert_true(rig_run(g, 0, 20000));
    SAW(1, 2, 3);
    fail_before = 0;
    rig_emit(g, "a");
    w->sk->hold = true;
    pipeline_wake(w->p);
    rig_step(g, 0);
    rig_end(g, 0, 0, SINK_DELIVERED);
    fail_before = 3; /* now the settlement fails */
    rig_step(g, 0);
    w->sk->hold = false;
    assert_true(rig_run(g, 0, 20000));
    SAW(1, 2, 3, 4);
    assert_int_equal(rig_look(g).delivered, 4);
}

static void answer_lost_after_a_settle_repeats_nothing(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "lease=1s", NULL);
    make_flaky(w);
    w->sk->hold = true;
    rig_emit(g, "a");
    rig_step(g, 0);
    rig_end(g, 0, 0, SINK_DELIVERED);
    fail_after = 1;
    rig_step(g, 0);
    w->sk->hold = false;
    rig_run(g, 0, 20000);
    SAW(1);
    assert_int_equal(rig_look(g).delivered, 1);
}

static void lost_claim_answer_delays_events_but_loses_none(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "lease=1s", NULL);
    make_flaky(w);
    rig_emit(g, "a");
    rig_emit(g, "a");
    fail_after = 1;
    assert_true(rig_run(g, 0, 20000)); /* the unknown claim expires */
    SAW(1, 2);
}

static void lost_claim_answer_never_lets_later_events_overtake(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "lease=1s", "batch=1", NULL);
    make_flaky(w);
    for (int i = 0; i < 4; i++)
        rig_emit(g, "a");
    fail_after = 1;
    assert_true(rig_run(g, 0, 20000));
    SAW(1, 2, 3, 4);
}

/* The consumer is removed while a stopping relay has a delivery in flight. Found by the
 * simulator. */
static void drain_awaits_deliveries_of_a_removed_consumer(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "batch=1", NULL);
    struct error err;
    w->sk->hold = true;
    rig_emit(g, "a");
    rig_emit(g, "b");
    rig_step(g, 0);
    assert_int_equal(w->sk->n, 2);
    pipeline_drain(w->p, g->mono + 10000 * MS_NS);
    rig_end(g, 0, 0, SINK_DELIVERED);
    assert_int_equal(g->st->ops->consumer_remove(g->st, "c", true, &err), 0);
    rig_step(g, 0);
    assert_int_equal(w->sk->n, 0); /* cancelled */
    assert_int_equal(pipeline_stats(w->p)->state, PIPELINE_FAILED);
}

/* Of two lost claims the later one is dropped at once, and with it the last record of the key.
 * Found by the simulator. */
static void key_waits_for_deliveries_of_a_lost_claim(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "batch=1", NULL);
    rig_worker(g, 1, "batch=1", NULL);
    w->sk->hold = true;
    rig_emit(g, "a");
    rig_emit(g, "a");
    rig_step(g, 0);
    assert_int_equal(w->sk->n, 1);
    rig_pass(g, 31000);
    assert_true(rig_run(g, 1, 60000)); /* takes over, and delivers both */
    rig_emit(g, "a");
    rig_step(g, 0);
    assert_int_equal(pipeline_stats(w->p)->lost, 2);
    assert_int_equal(w->sk->n, 1); /* the third waits */
    rig_end(g, 0, 0, SINK_DELIVERED);
    rig_step(g, 0);
    assert_int_equal(w->sk->n, 1);
    rig_end(g, 0, 0, SINK_DELIVERED);
    SAW(1, 2, 1, 3);
}

static void followers_proceed_if_a_lost_event_returns_untried(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "batch=1", NULL);
    rig_worker(g, 1, "batch=1", NULL);
    w->sk->hold = true;
    rig_emit(g, "a");
    rig_step(g, 0);
    rig_pass(g, 31000);
    assert_true(rig_run(g, 1, 60000)); /* takes over, and delivers it */
    rig_emit(g, "a");
    rig_step(g, 0);
    assert_int_equal(pipeline_stats(w->p)->lost, 1);
    assert_int_equal(w->sk->n, 1); /* the second waits for the first, which is still in flight */
    rig_end(g, 0, 0, SINK_CANCELLED);
    w->sk->hold = false;
    assert_true(rig_run(g, 0, 60000));
    SAW(1, 2);
}

/* Events given back before an unknown claim are parked. They are due at once, but must not be
 * claimed before their predecessors are settled. Found by the simulator. */
static void lost_claim_answer_never_lets_released_events_overtake(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "batch=1", NULL);
    rig_worker(g, 1, "batch=1", NULL);
    make_flaky(w);
    for (int i = 0; i < 3; i++)
        rig_emit(g, "a");
    w->sk->hold = true;
    pipeline_step(w->p); /* claims the first */
    pipeline_step(w->p); /* submits it, and claims the second */
    fail_after = 1;
    pipeline_step(w->p); /* claims the third, but the answer is lost */
    assert_int_equal(fail_after, 0);
    pipeline_drain(w->p, g->mono + 10000 * MS_NS);
    rig_pass(g, 1000);
    rig_step(g, 0);
    rig_step(g, 1);
    assert_int_equal(g->w[1].sk->n, 0);
    assert_int_equal(g->n_seen, 0);
    rig_end(g, 0, 0, SINK_DELIVERED);
    rig_step(g, 0);
    assert_int_equal(pipeline_stats(w->p)->state, PIPELINE_STOPPED);
    assert_true(rig_run(g, 1, 120000));
    SAW(1, 2, 3);
}

static void wake_ups_are_ignored_while_the_store_is_unreachable(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, NULL);
    struct pollfd fds[4];
    int64_t deadline;
    break_wakeup(w);
    assert_int_equal(write(broken_wakeup[1], "x", 1), 1); /* another process writes all the time */
    fail_before = 1;
    rig_step(g, 0);
    assert_int_equal(pipeline_wait(w->p, fds, 4, &deadline), 0);
    assert_int_equal(deadline - g->mono, 100 * MS_NS);
    close(broken_wakeup[0]);
    close(broken_wakeup[1]);
}

static void repeated_settlements_do_not_grow_memory(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "retry=attempts=9", NULL);
    make_flaky(w);
    w->sk->hold = true;
    for (int i = 0; i < 20; i++)
        rig_emit(g, NULL);
    rig_step(g, 0);
    while (w->sk->n)
        rig_end(g, 0, 0, SINK_RETRY);
    fail_before = 1000;
    int64_t used = 0;
    for (int i = 0; i < 500; i++) {
        rig_pass(g, 6000);
        pipeline_wake(w->p);
        rig_step(g, 0);
        if (i == 9)
            used = (int64_t)mallinfo2().uordblks;
    }
    assert_in_range(mallinfo2().uordblks, 0, used + 65536);
    fail_before = 0;
}

static struct sink_ops marking;
static size_t moved; /* number of marks that the sink reports */
static int marks_recorded;

/* Returns `moved` marks. */
static size_t some_marks(struct sink *sk, const struct hwm **ret)
{
    static struct hwm list[100];
    (void)sk;
    for (size_t i = 0; i < moved; i++)
        list[i] = (struct hwm){STR("s"), 1, (int64_t)i};
    *ret = list;
    return moved;
}

static void count_kept(struct sink *sk)
{
    (void)sk;
    marks_recorded++;
}

/* Claims three batches of one event and ends them one after the other. ret[i] is how often marks
 * had been recorded when the i-th was settled. */
static void three_in_turn(struct rig *g, size_t marks, int ret[3])
{
    struct worker *w = rig_worker(g, 0, "batch=1", NULL);
    marking = *w->sk->base.ops;
    marking.marks = some_marks;
    marking.marks_recorded = count_kept;
    w->sk->base.ops = &marking;
    w->sk->hold = true;
    moved = marks;
    marks_recorded = 0;
    rig_pass(g, 5000);
    for (int i = 0; i < 3; i++)
        rig_emit(g, (const char *[]){"k/1", "k/2", "k/3"}[i]);
    rig_step(g, 0);
    assert_int_equal(w->sk->n, 3);
    for (int i = 0; i < 3; i++) {
        rig_end(g, 0, 0, SINK_DELIVERED);
        rig_step(g, 0);
        ret[i] = marks_recorded;
    }
}

static void marks_of_few_streams_are_written_with_each_settlement(void **state)
{
    int recorded[3];
    three_in_turn(*state, 16, recorded);
    assert_int_equal(recorded[0], 1);
    assert_int_equal(recorded[1], 2);
    assert_int_equal(recorded[2], 3);
}

static void marks_of_many_streams_are_written_with_the_last_batch(void **state)
{
    int recorded[3];
    three_in_turn(*state, 17, recorded);
    assert_int_equal(recorded[0], 1);
    assert_int_equal(recorded[1], 1);
    assert_int_equal(recorded[2], 2);
}

static const struct CMUnitTest tests[] = {
    ON_A_RIG(marks_of_few_streams_are_written_with_each_settlement),
    ON_A_RIG(marks_of_many_streams_are_written_with_the_last_batch),
    ON_A_RIG(sweep_finds_events_without_a_wake_up),
    ON_A_RIG(dispatcher_preset_has_the_documented_values),
    ON_A_RIG(claim_granted_after_its_lease_is_kept_if_still_valid),
    ON_A_RIG(unreachable_store_is_retried_and_loses_nothing),
    ON_A_RIG(answer_lost_after_a_settle_repeats_nothing),
    ON_A_RIG(lost_claim_answer_delays_events_but_loses_none),
    ON_A_RIG(lost_claim_answer_never_lets_later_events_overtake),
    ON_A_RIG(drain_awaits_deliveries_of_a_removed_consumer),
    ON_A_RIG(key_waits_for_deliveries_of_a_lost_claim),
    ON_A_RIG(followers_proceed_if_a_lost_event_returns_untried),
    ON_A_RIG(lost_claim_answer_never_lets_released_events_overtake),
    ON_A_RIG(wake_ups_are_ignored_while_the_store_is_unreachable),
    ON_A_RIG(repeated_settlements_do_not_grow_memory),
};

const struct suite_part pipeline_store_tests = SUITE_PART(tests);
