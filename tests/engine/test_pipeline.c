/* The engine by itself: what it does with each answer of a sink, with time, and with a store that
 * fails. */
#include "rig.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int64_t poison_seq;

static enum sink_status retry_one(struct model *m, const struct delivery *d)
{
    return d->ev->seq == m->answer_ctx ? SINK_RETRY : SINK_DELIVERED;
}

static enum sink_status retry_twice(struct model *m, const struct delivery *d)
{
    return d->ev->seq == m->answer_ctx && d->attempt <= 2 ? SINK_RETRY : SINK_DELIVERED;
}

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

/* later_nine_times: what keeps the event is its stream, say; it clears up at last. */
static enum sink_status later_nine_times(struct model *m, const struct delivery *d)
{
    if (d->ev->seq != 1 || m->answer_ctx == 9)
        return SINK_DELIVERED;
    m->answer_ctx++;
    return SINK_LATER;
}

static struct consumer_info info(struct rig *g)
{
    static struct arena a; /* the texts in it are not looked at */
    arena_release(&a);
    arena_init(&a, 0);
    struct consumer_info c = rig_info(g, &a);
    c.last_error = NULL;
    arena_release(&a);
    return c;
}

static void assert_seqs(const struct rig *g, size_t n, const int64_t *want)
{
    assert_int_equal(g->n_seen, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(g->seen[i].seq, want[i]);
}
#define SAW(...) \
    assert_seqs(g, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), \
                (const int64_t[]){__VA_ARGS__})

static void delivers_everything_in_order_and_settles(void **state)
{
    struct rig *g = *state;
    rig_worker(g, 0, NULL);
    for (int i = 0; i < 200; i++)
        rig_emit(g, i % 2 ? "a" : "b");
    assert_true(rig_run(g, 0, 1000));
    assert_int_equal(g->n_seen, 200);
    for (size_t i = 0; i < 200; i++)
        assert_int_equal(g->seen[i].attempt, 1);
    assert_int_equal(info(g).delivered, 200);
    assert_int_equal(info(g).inflight, 0);
}

static void one_key_is_never_in_flight_twice_but_keys_fly_together(void **state)
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

static void global_order_has_one_in_flight(void **state)
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

static void without_order_everything_flies(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "order=none", NULL);
    w->sk->hold = true;
    for (int i = 0; i < 5; i++)
        rig_emit(g, "a");
    rig_step(g, 0);
    assert_int_equal(w->sk->n, 5);
}

static void failed_event_holds_back_its_key_and_no_other(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "retry=base=1s,attempts=3,jitter=none", NULL);
    w->sk->answer = retry_twice;
    w->sk->answer_ctx = 1;
    rig_emit(g, "a"); /* 1 */
    rig_emit(g, "b"); /* 2 */
    rig_emit(g, "a"); /* 3 */
    rig_emit(g, "b"); /* 4 */
    rig_step(g, 0);
    SAW(2, 4);
    rig_emit(g, "a"); /* 5 */
    rig_emit(g, "b"); /* 6 */
    pipeline_ring(w->p);
    rig_step(g, 0);
    SAW(2, 4, 6);
    assert_true(rig_run(g, 0, 10000));
    SAW(2, 4, 6, 1, 3, 5);
    assert_int_equal(g->seen[3].attempt, 3);
    assert_int_equal(g->mono / MS_NS / 1000, 4); /* 1 s, then 2 s after the start at 1 s */
}

static void event_that_has_to_wait_burns_no_attempt_and_holds_back_only_its_key(void **state)
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

static void attempts_used_up_make_a_dead_letter_and_let_the_key_go(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "retry=base=10ms,attempts=3,jitter=none", NULL);
    w->sk->answer = retry_one;
    w->sk->answer_ctx = 1;
    rig_emit(g, "a");
    rig_emit(g, "a");
    rig_emit(g, "b"); /* gets through, so the other's failure is its own */
    assert_true(rig_run(g, 0, 10000));
    SAW(3, 2);
    assert_int_equal(info(g).dead, 1);
    assert_int_equal(info(g).parked, 0);
    assert_int_equal(pipeline_stats(w->p)->retried, 2);
    assert_int_equal(pipeline_stats(w->p)->buried, 1);
}

static void rejected_event_is_buried_at_once_and_the_next_of_its_key_goes(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, NULL);
    w->sk->answer = reject_one;
    w->sk->answer_ctx = 1;
    rig_emit(g, "a");
    rig_emit(g, "a");
    rig_step(g, 0);
    SAW(2);
    assert_int_equal(info(g).dead, 1);
}

static void sink_that_is_down_burns_no_attempt_and_changes_no_order(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "lease=5s", NULL);
    w->sk->answer = down_from;
    w->sk->answer_ctx = 3;
    for (int i = 0; i < 6; i++)
        rig_emit(g, i % 2 ? "a" : "b");
    assert_false(rig_run(g, 0, 60000)); /* a minute: leases are kept, nothing is given up */
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
    assert_int_equal(info(g).delivered, 10);
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

static void fatal_sink_stops_the_consumer_and_gives_everything_back(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, NULL);
    w->sk->answer = fatal;
    for (int i = 0; i < 5; i++)
        rig_emit(g, "a");
    rig_step(g, 0);
    assert_int_equal(pipeline_state(w->p), PIPELINE_FAILED);
    assert_string_equal(pipeline_error(w->p)->text, "scripted");
    assert_int_equal(info(g).inflight, 0);
    rig_crash(g, 0);
    rig_start(g, 0);
    assert_true(rig_run(g, 0, 1000));
    SAW(1, 2, 3, 4, 5);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(g->seen[i].attempt, 1);
}

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
    assert_int_equal(info(g).delivered, 1);
}

static void slow_handlers_keep_their_lease(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "lease=300ms", NULL);
    w->sk->busy_ms = 20;
    for (int i = 0; i < 64; i++)
        rig_emit(g, "a");
    rig_step(g, 0);
    assert_int_equal(g->n_seen, 64); /* more than four leases' worth of work in one batch */
    assert_int_equal(pipeline_stats(w->p)->lost, 0);
    assert_int_equal(info(g).delivered, 64);
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

static void zombie_delivers_nothing_more_and_changes_nothing(void **state)
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
    /* its delivery gets through after all: a repeat, with the same id */
    rig_end(g, 0, 0, SINK_DELIVERED);
    a->sk->hold = false;
    rig_step(g, 0);
    SAW(1, 2, 1);
    assert_int_equal(pipeline_stats(a->p)->lost, 1);
    assert_int_equal(info(g).delivered, 2);
    assert_int_equal(pipeline_stats(b->p)->crashed, 2);
}

static void several_batches_fly_at_once_and_a_failure_holds_its_key_in_all(void **state)
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
    assert_int_equal(w->sk->n, 1); /* b2: neither a3 nor a5 went */
    rig_end(g, 0, 0, SINK_DELIVERED);
    w->sk->hold = false;
    assert_true(rig_run(g, 0, 10000));
    SAW(6, 4, 2, 1, 3, 5);
    assert_int_equal(info(g).delivered, 6);
}

static void delayed_event_holds_its_key_until_its_time(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, NULL);
    rig_emit_at(g, "a", g->wall + 5000); /* 1 */
    rig_emit(g, "a");                    /* 2 */
    rig_emit(g, "b");                    /* 3 */
    rig_step(g, 0);
    SAW(3);
    rig_pass(g, 5000);
    pipeline_ring(w->p);
    assert_true(rig_run(g, 0, 1000));
    SAW(3, 1, 2);
    assert_int_equal(g->seen[1].attempt, 1);
}

static void drain_gives_back_what_was_not_started_and_waits_for_the_rest(void **state)
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
    assert_int_equal(pipeline_state(w->p), PIPELINE_DRAINING);
    rig_end(g, 0, 0, SINK_DELIVERED);
    rig_step(g, 0);
    assert_int_equal(pipeline_state(w->p), PIPELINE_STOPPED);
    struct consumer_info c = info(g);
    assert_int_equal(c.inflight + c.parked, 0); /* given back by moving the position */
    assert_int_equal(c.behind, 8);
    rig_crash(g, 0);
    g->capacity = RIG_INFLIGHT;
    rig_start(g, 0);
    assert_true(rig_run(g, 0, 1000));
    SAW(1, 2, 3, 4, 5, 6, 7, 8, 9);
}

static void drain_cancels_what_does_not_end_and_it_is_delivered_again(void **state)
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
    assert_int_equal(pipeline_state(w->p), PIPELINE_DRAINING);
    rig_pass(g, 1000);
    rig_step(g, 0);
    assert_int_equal(pipeline_state(w->p), PIPELINE_STOPPED);
    assert_int_equal(g->n_seen, 0);
    rig_crash(g, 0);
    rig_start(g, 0);
    assert_true(rig_run(g, 0, 1000));
    assert_int_equal(g->n_seen, 3);
    /* cancelling is no attempt */
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(g->seen[i].attempt, 1);
    assert_int_equal(info(g).delivered, 3);
}

static void crash_repeats_only_what_was_not_settled(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "lease=1s", "batch=2", NULL);
    for (int i = 0; i < 4; i++)
        rig_emit(g, "a");
    rig_run(g, 0, 100);
    SAW(1, 2, 3, 4);
    w->sk->hold = true;
    rig_emit(g, "a");
    pipeline_ring(w->p);
    rig_step(g, 0);
    rig_crash(g, 0);
    rig_start(g, 0);
    assert_true(rig_run(g, 0, 5000));
    SAW(1, 2, 3, 4, 5);
}

static void without_a_bell_it_looks_every_20_ms(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, NULL);
    struct pollfd fds[4];
    int64_t deadline;
    rig_step(g, 0);
    pipeline_wait(w->p, fds, 4, &deadline);
    assert_int_equal((deadline - g->mono) / MS_NS, 20); /* no bell in memory: it polls */
}

static void settling_looks_as_well_so_that_nobody_waits_for_the_sweep(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, NULL);
    rig_emit(g, "1");
    w->sk->hold = true;
    rig_step(g, 0); /* the event is with the sink, and a look for more found nothing */
    assert_int_equal(w->sk->n, 1);
    assert_false(pipeline_stats(w->p)->through);
    rig_end(g, 0, 0, SINK_DELIVERED);
    rig_step(g, 0);
    assert_true(pipeline_stats(w->p)->through); /* and no time has passed */
}

/* ---- a store that fails ---- */

static struct store_ops flaky;
static const struct store_ops *real;
static int fail_before, fail_after, turns;
static int64_t slow_turn;
static struct rig *slow_rig;

/* flaky_turn fails before doing anything, or after everything was done: the two ways a commit can
 * be ambiguous. */
static int flaky_turn(struct store *st, const struct settlement *s, bool *ret_lost,
                      const struct claim_request *req, struct arena *a, struct batch *ret_batch,
                      struct claim_hint *ret_hint, struct error *err)
{
    turns++;
    if (slow_turn)
        rig_pass(slow_rig, slow_turn);
    slow_turn = 0;
    if (fail_before > 0 && fail_before-- > 0)
        return err_fate(err, ERR_BUSY, FATE_RETRY, 0, "scripted: not done");
    int r = real->turn(st, s, ret_lost, req, a, ret_batch, ret_hint, err);
    if (r == 0 && fail_after > 0 && fail_after-- > 0)
        return err_fate(err, ERR_UNAVAILABLE, FATE_RETRY, 0,
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

static int broken_bell[2];

static int broken_bell_fd(struct store *st)
{
    (void)st;
    return broken_bell[0];
}

static void sweep_finds_what_the_bell_missed(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, NULL);
    struct pollfd fds[4];
    int64_t deadline;
    make_flaky(w);
    flaky.bell_fd = broken_bell_fd;
    assert_int_equal(pipe(broken_bell), 0); /* nobody ever writes to it */
    rig_step(g, 0);
    rig_emit(g, "a");
    turns = 0;
    rig_step(g, 0);
    assert_int_equal(turns, 0); /* idle: not one query */
    assert_int_equal(pipeline_wait(w->p, fds, 4, &deadline), 1);
    assert_int_equal(deadline - g->mono, 30000 * MS_NS);
    rig_pass(g, 30000);
    rig_step(g, 0);
    SAW(1);
    close(broken_bell[0]);
    close(broken_bell[1]);
}

/* dispatcher_has_the_numbers_of_its_document: as they show in what it does, on a clock that is
 * moved by hand. */
static void dispatcher_has_the_numbers_of_its_document(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "preset=dispatcher", NULL);
    struct pollfd fds[4];
    int64_t deadline;
    assert_true(w->c.receipts);
    make_flaky(w);
    flaky.bell_fd = broken_bell_fd;
    assert_int_equal(pipe(broken_bell), 0); /* nobody ever writes to it */

    /* poll 500 ms */
    rig_step(g, 0);
    rig_emit(g, "a");
    assert_int_equal(pipeline_wait(w->p, fds, 4, &deadline), 1);
    assert_int_equal(deadline - g->mono, 500 * MS_NS);
    rig_pass(g, 500);
    rig_step(g, 0);
    SAW(1);

    /* batch 50: a batch that is gone grows no further */
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
    w->sk->answer = retry_one;
    w->sk->answer_ctx = 1 + 150 + 1 + 1;
    rig_emit(g, "poison");
    for (int n = 0; n < 2000 && info(g).dead == 0; n++) {
        rig_emit(g, NULL); /* gets through, so the other's failure is its own */
        rig_pass(g, 1000);
        rig_step(g, 0);
    }
    assert_int_equal(info(g).dead, 1);
    assert_int_equal(pipeline_stats(w->p)->retried, 7);
    assert_int_equal(pipeline_stats(w->p)->buried, 1);
    close(broken_bell[0]);
    close(broken_bell[1]);
}

/* what_is_set_wins_over_a_preset: before it and behind it. */
static void what_is_set_wins_over_a_preset(void **state)
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
    assert_non_null(strstr(err.text, "\"dispatch\" is not dispatcher or none"));
    consumer_release(&c);
}

static void claim_that_came_after_its_lease_is_kept_if_the_store_says_so(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "lease=2s", "batch=2", NULL);
    make_flaky(w);
    slow_turn = 3000; /* once: the lock was waited for; the lease counts from when it was got */
    slow_rig = g;
    for (int i = 0; i < 6; i++)
        rig_emit(g, "a");
    assert_true(rig_run(g, 0, 60000));
    SAW(1, 2, 3, 4, 5, 6);
    assert_int_equal(pipeline_stats(w->p)->lost, 0);
}

static void store_that_is_away_is_asked_again_and_nothing_is_lost(void **state)
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
    pipeline_ring(w->p);
    rig_step(g, 0);
    rig_end(g, 0, 0, SINK_DELIVERED);
    fail_before = 3; /* now the settling */
    rig_step(g, 0);
    w->sk->hold = false;
    assert_true(rig_run(g, 0, 20000));
    SAW(1, 2, 3, 4);
    assert_int_equal(info(g).delivered, 4);
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
    assert_int_equal(info(g).delivered, 1);
}

static void answer_lost_after_a_claim_delays_the_events_but_loses_none(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "lease=1s", NULL);
    make_flaky(w);
    rig_emit(g, "a");
    rig_emit(g, "a");
    fail_after = 1;
    assert_true(rig_run(g, 0, 20000)); /* the claim nobody knows of runs out */
    SAW(1, 2);
}

static void answer_lost_after_a_claim_does_not_let_the_next_events_overtake(void **state)
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

/* The store says never again while a relay that stops has something with its sink. The simulator
 * found it. */
static void consumer_removed_while_draining_waits_for_what_flies(void **state)
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
    assert_int_equal(pipeline_state(w->p), PIPELINE_FAILED);
}

/* Of two lost claims the later one is forgotten at once, and was the last to know of the key. The
 * simulator found it. */
static void what_flies_of_a_lost_claim_is_waited_for_by_its_key(void **state)
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

/* What is given back before a claim that we don't know of is parked, and so may be handed out at
 * once: not before what comes before it is settled. The simulator found it. */
static void answer_lost_after_a_claim_does_not_let_what_is_given_back_overtake(void **state)
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
    pipeline_step(w->p); /* claims the third, and does not hear of it */
    assert_int_equal(fail_after, 0);
    pipeline_drain(w->p, g->mono + 10000 * MS_NS);
    rig_pass(g, 1000);
    rig_step(g, 0);
    rig_step(g, 1);
    assert_int_equal(g->w[1].sk->n, 0);
    assert_int_equal(g->n_seen, 0);
    rig_end(g, 0, 0, SINK_DELIVERED);
    rig_step(g, 0);
    assert_int_equal(pipeline_state(w->p), PIPELINE_STOPPED);
    assert_true(rig_run(g, 1, 120000));
    SAW(1, 2, 3);
}

static void bell_is_not_listened_to_while_the_store_is_away(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, NULL);
    struct pollfd fds[4];
    int64_t deadline;
    make_flaky(w);
    flaky.bell_fd = broken_bell_fd;
    assert_int_equal(pipe(broken_bell), 0);
    assert_int_equal(write(broken_bell[1], "x", 1), 1); /* somebody writes all the time */
    fail_before = 1;
    rig_step(g, 0);
    assert_int_equal(pipeline_wait(w->p, fds, 4, &deadline), 0);
    assert_int_equal(deadline - g->mono, 100 * MS_NS);
    close(broken_bell[0]);
    close(broken_bell[1]);
}

static void settling_again_and_again_takes_no_more_memory(void **state)
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
        pipeline_ring(w->p);
        rig_step(g, 0);
        if (i == 9)
            used = (int64_t)mallinfo2().uordblks;
    }
    assert_in_range(mallinfo2().uordblks, 0, used + 65536);
    fail_before = 0;
}

/* ---- careful events of two consumers in one process ---- */

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
        assert_int_equal(b->sk->n,
                         /* also behind the second and third, which are claimed as the one before
                          * settles */
                         0);
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
    assert_int_equal(b->sk->n, 1); /* the flag is free */
    rig_crash(g, 1);               /* and b's event was the poison: a's has nothing to do with it */
    rig_pass(g, 2000);
    a->sk->hold = false;
    assert_true(rig_run(g, 0, 20000));
    assert_int_equal(info(g).dead, 0);
    assert_int_equal(g->n_seen, 3);
}

static const char *last_error(struct rig *g, char text[256])
{
    struct arena a;
    arena_init(&a, 0);
    struct consumer_info c = rig_info(g, &a);
    snprintf(text, 256, "%s", c.last_error ? c.last_error : "");
    arena_release(&a);
    return text;
}

static void sink_that_wants_no_more_pauses_the_consumer_and_loses_nothing(void **state)
{
    char text[256];
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
    assert_int_equal(w->sk->n, 1); /* nothing new is started */
    assert_true(info(g).paused);
    assert_non_null(strstr(g->last_log, "paused: "));
    rig_end(g, 0, 0, SINK_DELIVERED);
    rig_step(g, 0);
    rig_pass(g, 100000);
    rig_step(g, 0);
    /* also after a delivery that was still in flight */
    assert_string_equal(last_error(g, text), "paused: scripted");
    assert_int_equal(w->sk->n, 0);
    assert_int_equal(info(g).inflight, 0);
    assert_int_equal(g->n_seen, 1);
    w->sk->hold = false;
    assert_int_equal(g->st->ops->consumer_pause(g->st, "c", false, &err), 0);
    pipeline_ring(w->p);
    assert_true(rig_run(g, 0, 10000));
    assert_seqs(g, 5, want);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(g->seen[i].attempt, 1);
    assert_string_equal(last_error(g, text), "");
}

static void batch_is_large_enough_for_what_may_be_in_flight(void **state)
{
    struct rig *g = *state;
    for (int i = 0; i < 600; i++)
        rig_emit(g, NULL);
    struct worker *w = rig_worker(g, 0, "batch=40", "concurrency=30", "order=none", NULL);
    w->sk->hold = true;
    /* each takes two seconds: a reason to claim less, but not less than that */
    while (g->n_seen < 600) {
        rig_step(g, 0);
        rig_pass(g, 2000);
        while (w->sk->n > 0)
            rig_end(g, 0, 0, SINK_DELIVERED);
    }
    assert_in_range(pipeline_stats(w->p)->claims, 600 / 40, 600 / 30);
}

static void removed_consumer_fails_its_pipeline(void **state)
{
    struct rig *g = *state;
    struct error err;
    struct worker *w = rig_worker(g, 0, NULL);
    rig_step(g, 0);
    assert_int_equal(g->st->ops->consumer_remove(g->st, "c", true, &err), 0);
    pipeline_ring(w->p);
    rig_step(g, 0);
    assert_int_equal(pipeline_state(w->p), PIPELINE_FAILED);
    assert_non_null(strstr(pipeline_error(w->p)->text, "not registered"));
}

static void give_another_filter(struct rig *g)
{
    struct error err;
    struct consumer_spec c = {
        .name = "c", .events = "t.*", .where = "", .retry = "fast", .order = ORDER_KEY, .lanes = 1};
    assert_int_equal(g->st->ops->consumer_put(g->st, &c, NULL, &err), 0);
}

static void consumer_given_another_filter_lets_what_is_in_flight_end_and_stops(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, NULL);
    w->sk->hold = true;
    rig_emit(g, "a");
    rig_step(g, 0);
    give_another_filter(g);
    pipeline_ring(w->p);
    rig_step(g, 0);
    assert_int_equal(pipeline_state(w->p), PIPELINE_DRAINING);
    assert_int_equal(w->sk->n, 1);
    rig_end(g, 0, 0, SINK_DELIVERED);
    rig_step(g, 0);
    assert_int_equal(pipeline_state(w->p), PIPELINE_FAILED);
    assert_int_equal(pipeline_error(w->p)->code, ERR_CONFLICT);
    assert_int_equal(info(g).delivered, 1);
}

static void worker_whose_settings_were_replaced_stands_by_until_they_are_back(void **state)
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
    pipeline_ring(w->p);
    rig_step(g, 0);
    assert_int_equal(w->sk->n, 1); /* what is in flight may end */
    rig_end(g, 0, 0, SINK_DELIVERED);
    rig_step(g, 0);
    assert_int_equal(info(g).delivered, 1);
    assert_true(pipeline_stats(w->p)->standby);
    assert_int_equal(pipeline_state(w->p), PIPELINE_RUNNING);
    assert_int_equal(pipeline_standby(w->p)->code, ERR_CONFLICT);
    assert_non_null(strstr(g->last_log, "standing by: "));

    int64_t looks = 0, until = g->mono + 120000 * MS_NS, next = 0;
    for (; g->mono < until; looks++) { /* it sleeps, and asks ever less often */
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
    assert_false(pipeline_stats(w->p)->standby);
    assert_int_equal(w->sk->n, 1);
    rig_end(g, 0, 0, SINK_DELIVERED);
    rig_step(g, 0);
    assert_int_equal(info(g).delivered, 2);
}

static void worker_that_starts_with_replaced_settings_stands_by(void **state)
{
    struct rig *g = *state;
    rig_worker(g, 1, NULL);
    give_another_filter(g);
    g->stand_by = true;
    struct worker *w = rig_worker(g, 0, NULL);
    rig_emit(g, "a");
    rig_step(g, 0);
    assert_true(pipeline_stats(w->p)->standby);
    assert_int_equal(g->n_seen, 0);
    pipeline_drain(w->p, g->mono);
    rig_step(g, 0);
    assert_int_equal(pipeline_state(w->p), PIPELINE_STOPPED);
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
    rig_step(g, 0); /* settles the first, and learns of it */
    rig_pass(g, 10000);
    rig_step(g, 0);
    assert_int_equal(w->sk->n, 1); /* not cancelled */
    rig_end(g, 0, 0, SINK_DELIVERED);
    rig_step(g, 0);
    assert_int_equal(pipeline_state(w->p), PIPELINE_STOPPED);
    assert_int_equal(info(g).delivered, 2);
}

static void a_long_chain_of_one_key_is_held_back_without_recursion(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "batch=5000",
                                  "retry=base=1s,attempts=2,jitter=none,outage=0s", NULL);
    struct error err;
    w->sk->answer = retry_twice;
    w->sk->answer_ctx = 1;
    assert_int_equal(g->st->ops->begin(g->st, &err), 0);
    for (int i = 0; i < 5000; i++)
        rig_emit(g, "a");
    assert_int_equal(g->st->ops->commit(g->st, &err), 0);
    rig_run(g, 0, 20000);
    assert_int_equal(info(g).dead, 1);
    assert_int_equal(g->n_seen, 4999);
    for (size_t i = 0; i < g->n_seen; i++)
        assert_int_equal(g->seen[i].seq, i + 2);
}

static void poison_is_found_one_event_at_a_time(void **state)
{
    struct rig *g = *state;
    rig_worker(g, 0, "lease=1s", "retry=base=10ms,attempts=3,jitter=none", NULL);
    for (int i = 0; i < 10; i++)
        rig_emit(g, i % 3 ? "a" : "b");
    poison_seq = 5;
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
        if (info(g).dead && g->n_seen >= 9)
            break;
        rig_pass(g, 100);
    }
    assert_int_equal(info(g).dead, 1);
    assert_int_equal(info(g).parked, 0);
    bool got[11] = {false};
    for (size_t i = 0; i < g->n_seen; i++)
        got[g->seen[i].seq] = true;
    for (int i = 1; i <= 10; i++)
        assert_true(got[i] == (i != poison_seq));
    /* once in the crowd, then alone until its attempts are used up */
    assert_in_range(crashes, 3, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_A_RIG(delivers_everything_in_order_and_settles),
        ON_A_RIG(one_key_is_never_in_flight_twice_but_keys_fly_together),
        ON_A_RIG(global_order_has_one_in_flight),
        ON_A_RIG(without_order_everything_flies),
        ON_A_RIG(failed_event_holds_back_its_key_and_no_other),
        ON_A_RIG(event_that_has_to_wait_burns_no_attempt_and_holds_back_only_its_key),
        ON_A_RIG(attempts_used_up_make_a_dead_letter_and_let_the_key_go),
        ON_A_RIG(rejected_event_is_buried_at_once_and_the_next_of_its_key_goes),
        ON_A_RIG(sink_that_is_down_burns_no_attempt_and_changes_no_order),
        ON_A_RIG(failstop_sink_gets_whole_batches_and_keeps_order_when_down),
        ON_A_RIG(back_pressure_is_not_a_failure),
        ON_A_RIG(fatal_sink_stops_the_consumer_and_gives_everything_back),
        ON_A_RIG(slow_sink_keeps_its_lease),
        ON_A_RIG(slow_handlers_keep_their_lease),
        ON_A_RIG(step_returns_often_enough_to_be_stopped),
        ON_A_RIG(sweep_finds_what_the_bell_missed),
        ON_A_RIG(dispatcher_has_the_numbers_of_its_document),
        cmocka_unit_test(what_is_set_wins_over_a_preset),
        ON_A_RIG(claim_that_came_after_its_lease_is_kept_if_the_store_says_so),
        ON_A_RIG(zombie_delivers_nothing_more_and_changes_nothing),
        ON_A_RIG(several_batches_fly_at_once_and_a_failure_holds_its_key_in_all),
        ON_A_RIG(delayed_event_holds_its_key_until_its_time),
        ON_A_RIG(drain_gives_back_what_was_not_started_and_waits_for_the_rest),
        ON_A_RIG(drain_cancels_what_does_not_end_and_it_is_delivered_again),
        ON_A_RIG(crash_repeats_only_what_was_not_settled),
        ON_A_RIG(without_a_bell_it_looks_every_20_ms),
        ON_A_RIG(settling_looks_as_well_so_that_nobody_waits_for_the_sweep),
        ON_A_RIG(store_that_is_away_is_asked_again_and_nothing_is_lost),
        ON_A_RIG(answer_lost_after_a_settle_repeats_nothing),
        ON_A_RIG(answer_lost_after_a_claim_delays_the_events_but_loses_none),
        ON_A_RIG(answer_lost_after_a_claim_does_not_let_the_next_events_overtake),
        ON_A_RIG(consumer_removed_while_draining_waits_for_what_flies),
        ON_A_RIG(what_flies_of_a_lost_claim_is_waited_for_by_its_key),
        ON_A_RIG(answer_lost_after_a_claim_does_not_let_what_is_given_back_overtake),
        ON_A_RIG(bell_is_not_listened_to_while_the_store_is_away),
        ON_A_RIG(settling_again_and_again_takes_no_more_memory),
        ON_A_RIG(of_two_consumers_only_one_delivers_a_careful_event_at_a_time),
        ON_A_RIG(careful_event_whose_sink_is_down_keeps_nobody_waiting_and_is_not_buried),
        ON_A_RIG(sink_that_wants_no_more_pauses_the_consumer_and_loses_nothing),
        ON_A_RIG(batch_is_large_enough_for_what_may_be_in_flight),
        ON_A_RIG(removed_consumer_fails_its_pipeline),
        ON_A_RIG(consumer_given_another_filter_lets_what_is_in_flight_end_and_stops),
        ON_A_RIG(worker_whose_settings_were_replaced_stands_by_until_they_are_back),
        ON_A_RIG(worker_that_starts_with_replaced_settings_stands_by),
        ON_A_RIG(draining_is_not_cut_short_by_another_filter),
        ON_A_RIG(a_long_chain_of_one_key_is_held_back_without_recursion),
        ON_A_RIG(poison_is_found_one_event_at_a_time),
    };
    return cmocka_run_group_tests_name("pipeline", tests, NULL, NULL);
}
