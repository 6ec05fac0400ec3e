/* Is the sink or the event at fault? A sink that fails everything is down, and no event is buried,
 * whatever it answers; an event that fails while others are delivered becomes a dead letter. */
#include "rig.h"

#include "engine/pipeline_impl.h"

#include <stdio.h>
#include <string.h>

#define MINUTE INT64_C(60000)
#define HOUR (60 * MINUTE)

/* The sink is down until this time of the rig's monotonic clock; seq `bad` always fails. */
static int64_t out_until, bad;
static int tries_of_bad;

static enum sink_status answer(struct model *m, const struct delivery *d)
{
    if (d->ev->seq == bad)
        tries_of_bad++;
    if (m->g->mono < out_until)
        return SINK_RETRY;
    return d->ev->seq == bad ? SINK_RETRY : SINK_DELIVERED;
}

static struct worker *worker(struct rig *g, const char *retry, const char *order)
{
    char option[100];
    snprintf(option, sizeof option, "retry=%s", retry);
    struct worker *w = rig_worker(g, 0, option, order, NULL);
    w->sk->answer = answer;
    out_until = bad = 0;
    tries_of_bad = 0;
    return w;
}

static void out_for(struct rig *g, int64_t ms)
{
    out_until = g->mono + ms * MS_NS;
}

static void emit_keys(struct rig *g, int n, int keys)
{
    char key[16];
    for (int i = 0; i < n; i++) {
        snprintf(key, sizeof key, "k%d", i % keys);
        rig_emit(g, key);
    }
}

static void assert_all_delivered_once(struct rig *g, size_t n)
{
    assert_int_equal(g->n_seen, n);
    struct consumer_info c = rig_look(g);
    assert_int_equal(c.dead, 0);
    assert_int_equal(c.parked, 0);
}

static void assert_each_key_in_order(const struct rig *g)
{
    for (size_t i = 0; i < g->n_seen; i++)
        for (size_t k = i + 1; k < g->n_seen; k++)
            if (g->seen[i].key == g->seen[k].key)
                assert_true(g->seen[i].seq < g->seen[k].seq);
}

static void outage_buries_nothing_with(struct rig *g, const char *retry, const char *order,
                                       int keys, int64_t ms)
{
    worker(g, retry, order);
    out_for(g, ms);
    emit_keys(g, 200, keys);
    rig_run(g, 0, ms);
    assert_int_equal(rig_look(g).dead, 0);
    assert_true(rig_run(g, 0, 3 * HOUR));
    assert_all_delivered_once(g, 200);
    assert_each_key_in_order(g);
}

static void outage_buries_nothing(void **state)
{
    outage_buries_nothing_with(*state, "fast", "order=key", 50, 30000);
}

static void outage_longer_than_patience_buries_nothing(void **state)
{
    outage_buries_nothing_with(*state, "fast,outage=5m", "order=key", 50, 20 * MINUTE);
}

/* By then each event has been tried many times, but none is buried: with so many failing, the sink
 * must be at fault. */
static void outage_of_hours_buries_nothing(void **state)
{
    outage_buries_nothing_with(*state, "base=100ms,cap=2s,outage=1m", "order=none", 200, 10 * HOUR);
}

/* Some events of a batch fail in the outage, and others get through when it ends. The verdict waits
 * until the sink is known to be back. */
static void end_of_a_long_outage_buries_nothing(void **state)
{
    struct rig *g = *state;
    worker(g, "base=100ms,cap=2s,outage=1m", "order=none");
    for (int i = 0; i < 20; i++) {
        out_for(g, 2 * MINUTE + i * 700);
        emit_keys(g, 30, 30);
        assert_true(rig_run(g, 0, HOUR));
    }
    assert_all_delivered_once(g, 600);
}

/* Emits 500 events during an outage of two minutes. */
static void emit_in_outage(struct rig *g,
                           enum sink_status (*how)(struct model *, const struct delivery *))
{
    struct worker *w = worker(g, "base=10ms,cap=1s,attempts=2", "order=none");
    w->sk->answer = how;
    out_for(g, 2 * MINUTE);
    for (int i = 0; i < 100; i++) {
        emit_keys(g, 5, 5);
        pipeline_wake(w->p);
        rig_run(g, 0, 1000);
    }
}

/* The sink cannot express every fifth event, which it decides without its peer. That proves nothing
 * about the others. */
static enum sink_status some_are_inexpressible(struct model *m, const struct delivery *d)
{
    m->unasked = d->ev->seq % 5 == 0;
    if (m->unasked)
        return SINK_REJECT;
    return m->g->mono < out_until ? SINK_RETRY : SINK_DELIVERED;
}

static void local_rejection_does_not_show_that_the_peer_works(void **state)
{
    struct rig *g = *state;
    emit_in_outage(g, some_are_inexpressible);
    assert_int_equal(rig_look(g).dead, 100);
    assert_true(rig_run(g, 0, 3 * HOUR));
    assert_int_equal(g->n_seen, 400);
    assert_int_equal(rig_look(g).dead, 100);
}

/* Every fifth event goes to a stream that refuses everything, the others to one that is down. */
static enum sink_status some_have_to_wait(struct model *m, const struct delivery *d)
{
    if (m->g->mono >= out_until)
        return SINK_DELIVERED;
    return d->ev->seq % 5 == 0 ? SINK_LATER : SINK_RETRY;
}

static void deferred_event_does_not_count_against_others(void **state)
{
    struct rig *g = *state;
    emit_in_outage(g, some_have_to_wait);
    assert_true(rig_run(g, 0, 3 * HOUR));
    assert_int_equal(g->n_seen, 500);
    assert_int_equal(rig_look(g).dead, 0);
}

/* Every fifth event goes to a broken stream, the others to a stream that is down. */
static enum sink_status some_are_refused(struct model *m, const struct delivery *d)
{
    if (d->ev->seq % 5 == 0)
        return SINK_REFUSED;
    return m->g->mono < out_until ? SINK_RETRY : SINK_DELIVERED;
}

static void refused_event_does_not_count_against_others(void **state)
{
    struct rig *g = *state;
    emit_in_outage(g, some_are_refused);
    assert_true(rig_run(g, 0, 3 * HOUR));
    assert_int_equal(g->n_seen, 400);
    assert_int_equal(rig_look(g).dead, 100);
}

/* The broken stream belongs to one key. */
static int refusals;
static enum sink_status one_key_is_refused(struct model *m, const struct delivery *d)
{
    (void)m;
    if (strcmp(d->ev->aggregate_id.p, "k0") != 0)
        return SINK_DELIVERED;
    refusals++;
    return SINK_REFUSED;
}

static struct worker *refusing(struct rig *g, const char *order)
{
    struct worker *w = worker(g, "base=1s,cap=4s,attempts=8,jitter=none", order);
    w->sk->answer = one_key_is_refused;
    refusals = 0;
    return w;
}

static void refusals_use_up_attempts_if_every_event_is_refused(void **state)
{
    struct rig *g = *state;
    struct worker *w = refusing(g, "order=none");
    emit_keys(g, 100, 1);
    rig_run(g, 0, 20000); /* 1 s, 2 s, then 4 s between attempts */
    assert_false(pipeline_stats(w->p)->down);
    assert_int_equal(rig_look(g).dead, 0);
    assert_true(rig_run(g, 0, MINUTE));
    assert_int_equal(refusals, 800);
    assert_int_equal(rig_look(g).dead, 100);
    assert_int_equal(pipeline_stats(w->p)->meter.openings, 0);
}

static void refused_events_do_not_delay_others(void **state)
{
    struct rig *g = *state;
    refusing(g, "order=key");
    emit_keys(g, 300, 3);
    rig_run(g, 0, 1000);
    assert_int_equal(g->n_seen, 200);
    assert_true(rig_run(g, 0, HOUR));
    assert_int_equal(rig_look(g).dead, 100);
    assert_int_equal(refusals, 800); /* one after the other: each waits behind its predecessor */
    assert_each_key_in_order(g);
}

/* A sink that keeps the order itself holds several events of the key when it refuses the first. The
 * later ones are returned in various ways, and wait for the first. */
static enum sink_status behind_it;
static enum sink_status refused_until(struct model *m, const struct delivery *d)
{
    bool broken = m->g->mono < out_until && d->ev->aggregate_id.p[1] == '0';
    if (!broken)
        return SINK_DELIVERED;
    if (d->ev->seq != m->answer_ctx)
        return behind_it;
    refusals++;
    return SINK_REFUSED;
}

static void failstop_sink_keeps_order_around_a_refused_event(void **state)
{
    static const enum sink_status ways[] = {SINK_REFUSED, SINK_CANCELLED};
    struct rig *g = *state;
    g->caps = SINK_FAILSTOP;
    for (size_t i = 0; i < 2; i++) {
        struct worker *w = refusing(g, "order=key");
        size_t before = g->n_seen;
        w->sk->hold = true;
        w->sk->answer = refused_until;
        w->sk->answer_ctx = (int64_t)before + 1; /* the first of key k0 */
        behind_it = ways[i];
        out_for(g, 10000);
        emit_keys(g, 30, 3);
        rig_step(g, 0);
        assert_int_equal(w->sk->n, 30); /* all in flight */
        w->sk->hold = false;
        rig_run(g, 0, 1000);
        assert_int_equal(g->n_seen - before, 20);
        assert_int_equal(rig_look(g).parked, 10);
        assert_true(rig_run(g, 0, HOUR));
        assert_int_equal(g->n_seen - before, 30);
        assert_each_key_in_order(g);
        assert_int_equal(refusals, 4); /* after 0, 1, 3 and 7 s */
        assert_int_equal(g->seen[before + 20].attempt, 5);
        assert_int_equal(g->seen[before + 21].attempt, 1); /* it only waited */
        rig_crash(g, 0);
        consumer_release(&g->w[0].c);
    }
}

static void failstop_sink_refusing_everything_buries_everything(void **state)
{
    struct rig *g = *state;
    g->caps = SINK_FAILSTOP;
    struct worker *w = refusing(g, "order=key");
    emit_keys(g, 20, 1);
    emit_keys(g, 20, 2);
    assert_true(rig_run(g, 0, HOUR));
    assert_int_equal(rig_look(g).dead, 30);
    assert_int_equal(pipeline_stats(w->p)->retried, 30 * 7);
    assert_int_equal(g->n_seen, 10);
}

static void outage_buries_nothing_without_order(void **state)
{
    outage_buries_nothing_with(*state, "base=10ms,cap=1s,attempts=2", "order=none", 200,
                               10 * MINUTE);
}

static void outage_buries_nothing_of_a_single_key(void **state)
{
    outage_buries_nothing_with(*state, "fast", "order=key", 1, 10 * MINUTE);
}

static void outage_buries_nothing_in_global_order(void **state)
{
    outage_buries_nothing_with(*state, "fast", "order=global", 50, 10 * MINUTE);
}

/* The last success proves nothing about the first failure. */
static void outage_in_the_middle_of_a_single_key_buries_nothing(void **state)
{
    struct rig *g = *state;
    worker(g, "fast", "order=key");
    emit_keys(g, 100, 1);
    assert_true(rig_run(g, 0, 1000));
    assert_int_equal(g->n_seen, 100);
    out_for(g, 30000);
    emit_keys(g, 100, 1);
    assert_true(rig_run(g, 0, HOUR));
    assert_all_delivered_once(g, 200);
}

static void consecutive_outages_bury_nothing(void **state)
{
    struct rig *g = *state;
    worker(g, "base=1s,cap=2s,attempts=3", "order=key");
    emit_keys(g, 400, 40);
    for (int i = 0; i < 30 && g->n_seen < 400; i++) {
        out_for(g, 10000);
        rig_run(g, 0, 11000 + 100 * i);
    }
    assert_true(rig_run(g, 0, HOUR));
    assert_all_delivered_once(g, 400);
}

/* The event once failed by its own fault. Its failures in an outage are still the sink's. */
static void outage_does_not_add_attempts_to_an_earlier_failure(void **state)
{
    struct rig *g = *state;
    worker(g, "base=1s,cap=2s,attempts=3,jitter=none", "order=key");
    bad = 5;
    emit_keys(g, 10, 10);
    rig_step(g, 0);
    assert_int_equal(tries_of_bad, 1);
    bad = 0;
    out_for(g, 10 * MINUTE);
    emit_keys(g, 40, 40);
    assert_true(rig_run(g, 0, HOUR));
    assert_all_delivered_once(g, 50);
}

static void sink_failing_every_event_is_paused_and_reported_down(void **state)
{
    struct rig *g = *state;
    struct worker *w = worker(g, "fast", "order=key");
    out_for(g, 10 * MINUTE);
    emit_keys(g, 200, 200);
    rig_run(g, 0, 10 * MINUTE - 1000);
    const struct pipeline_stats *s = pipeline_stats(w->p);
    assert_true(s->down);
    assert_true(s->retried <
                RIG_INFLIGHT + 60); /* events in flight when the outage began, and probes */
    assert_non_null(strstr(s->why, "every delivery fails: scripted"));
    assert_non_null(strstr(rig_look(g).last_error, "scripted"));
    assert_true(rig_run(g, 0, HOUR));
    assert_false(s->down);
    assert_int_equal(s->down_since, 0);
    assert_null(rig_look(g).last_error);
    assert_all_delivered_once(g, 200);
}

static void single_failing_event_is_reported_and_does_not_block_others(void **state)
{
    struct rig *g = *state;
    struct worker *w = worker(g, "fast", "order=key");
    bad = 1;
    rig_emit(g, "a");
    rig_run(g, 0, 10 * MINUTE);
    assert_true(pipeline_stats(w->p)->down);
    assert_int_equal(rig_look(g).dead, 0);
    rig_emit(g, "b");
    pipeline_wake(w->p);
    rig_step(g, 0);
    assert_int_equal(g->n_seen, 1);
    assert_false(pipeline_stats(w->p)->down);
}

static void event_failing_among_others_gets_only_its_attempts(void **state)
{
    struct rig *g = *state;
    /* The first of its batch, one in the middle, the last. */
    for (int place = 1; place <= 3; place++) {
        struct worker *w = worker(g, "base=100ms,cap=1s,attempts=5,jitter=none", "order=key");
        int64_t before = (int64_t)(g->n_seen + (size_t)place - 1);
        bad = before + (place == 1 ? 1 : place == 2 ? 5 : 10);
        emit_keys(g, 10, 10);
        rig_step(g, 0);
        emit_keys(g, 1, 10);
        assert_true(rig_run(g, 0, MINUTE));
        assert_int_equal(rig_look(g).dead, place);
        assert_int_equal(rig_look(g).parked, 0);
        assert_int_equal(tries_of_bad, 5);
        assert_int_equal(pipeline_stats(w->p)->buried, 1);
        rig_crash(g, 0);
        consumer_release(&g->w[0].c);
    }
}

static void many_events_failing_among_others_are_buried(void **state)
{
    struct rig *g = *state;
    struct worker *w = worker(g, "base=100ms,cap=1s,attempts=3,jitter=none", "order=key");
    for (bad = 1; bad < 40; bad += 2) {
        emit_keys(g, 2, 2);
        rig_run(g, 0, 2 * MINUTE);
    }
    assert_int_equal(rig_look(g).dead, 20);
    assert_int_equal(pipeline_stats(w->p)->buried, 20);
    assert_int_equal(g->n_seen, 20);
}

/* A sink accepts one kind of event and not the other. There are `bad_share` bad events to each good
 * one. */
static int64_t bad_share, kinds_end; /* no bad events from this seq on */

/* Scatters the bad events without a pattern, so that there are long runs of them. */
static bool is_bad(int64_t seq)
{
    return seq < kinds_end &&
           ((uint64_t)seq * UINT64_C(2654435761) >> 16) % (uint64_t)(bad_share + 1) != 0;
}

static enum sink_status by_kind(struct model *m, const struct delivery *d)
{
    (void)m;
    return is_bad(d->ev->seq) ? SINK_RETRY : SINK_DELIVERED;
}

static void healthy_events_proceed_beside_a_failing_type(void **state)
{
    static const int64_t shares[] = {1, 4, 10};
    struct rig *g = *state;
    int dead = 0;
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        g->capacity = 4;
        struct worker *w = worker(g, "base=1s,cap=10s,attempts=3", "order=key");
        w->sk->answer = by_kind;
        bad_share = shares[i];
        int all = 200 * (int)(bad_share + 1), good = 0;
        size_t before = g->n_seen;
        emit_keys(g, all, all);
        kinds_end = rig_look(g).position + rig_look(g).behind + 1;
        for (int64_t seq = kinds_end - all; seq < kinds_end; seq++)
            good += !is_bad(seq);
        rig_run(g, 0, MINUTE);
        assert_int_equal(g->n_seen - before, good);
        dead += all - good;
        for (int s = 0; s < 600 && rig_look(g).dead < dead; s++) {
            rig_emit(g, "good"); /* now and then */
            pipeline_wake(w->p);
            rig_run(g, 0, 1000);
        }
        assert_int_equal(rig_look(g).dead, dead);
        rig_crash(g, 0);
        consumer_release(&g->w[0].c);
    }
}

/* The fault remains unknown, but the event is not retried forever. */
static void event_failing_alone_is_eventually_buried(void **state)
{
    struct rig *g = *state;
    worker(g, "fast,cap=1m,outage=10m", "order=global");
    bad = 1;
    rig_emit(g, "a");
    rig_emit(g, "b");
    rig_run(g, 0, 9 * MINUTE);
    assert_int_equal(rig_look(g).dead, 0);
    assert_int_equal(g->n_seen, 0);
    assert_true(rig_run(g, 0, 3 * MINUTE));
    assert_int_equal(rig_look(g).dead, 1);
    assert_int_equal(g->n_seen, 1);
}

/* Others are delivered, but never close to its failures. No single success is proof, but together
 * they are. */
static void event_failing_among_rare_others_is_eventually_buried(void **state)
{
    struct rig *g = *state;
    /* tried after 16 s, then every 10 s */
    struct worker *w = worker(g, "cap=10s,jitter=none,outage=2m", "order=key");
    bad = 1;
    rig_emit(g, "bad");
    int64_t start = g->mono;
    int n = 0;
    for (; n < 30 && rig_look(g).dead == 0; n++) {
        rig_run(g, 0, (start - g->mono) / MS_NS + (n + 1) * 10000);
        rig_emit(g, "good");
        pipeline_wake(w->p);
        rig_step(g, 0);
    }
    assert_int_equal(rig_look(g).dead, 1);
    assert_true(n >= 12);
    assert_int_equal(g->n_seen, n);
}

/* Starts a worker whose deliveries the test answers. Each event has its own claim, and a failed
 * one is not retried within an hour. */
static struct worker *answers_by_hand(struct rig *g, const char *attempts)
{
    char retry[64];
    snprintf(retry, sizeof retry, "base=1h,cap=1h,jitter=none,attempts=%s", attempts);
    struct worker *w = worker(g, retry, "order=none");
    w->sk->hold = true;
    return w;
}

/* Sends a new event `ms` later. */
static void send_after(struct rig *g, int64_t ms)
{
    rig_pass(g, ms);
    rig_emit(g, NULL);
    pipeline_wake(g->w[0].p);
    rig_step(g, 0);
}

/* Ends the k-th delivery in flight. */
static void answer_to(struct rig *g, size_t k, enum sink_status status)
{
    rig_end(g, 0, k, status);
    rig_step(g, 0);
}

/* Deliveries sent later got through before this one fails, so its failure says nothing about the
 * sink. Otherwise later failures would count as part of an outage: the simulator's seed 101320. */
static void late_failure_does_not_start_an_outage(void **state)
{
    struct rig *g = *state;
    answers_by_hand(g, "1");
    send_after(g, 0); /* event 1, whose answer is slow */
    send_after(g, 100);
    answer_to(g, 1, SINK_DELIVERED);
    rig_pass(g, 2900);
    answer_to(g, 0, SINK_RETRY);

    send_after(g, 0); /* event 3, which is settled before the next ones */
    send_after(g, 0);
    send_after(g, 0);
    answer_to(g, 1, SINK_RETRY);
    answer_to(g, 1, SINK_RETRY);
    send_after(g, 100);
    answer_to(g, 1, SINK_DELIVERED);
    answer_to(g, 0, SINK_RETRY);
    assert_int_equal(g->n_seen, 2);
    assert_int_equal(rig_look(g).dead, 4);
}

/* Two deliveries get through when the sink is back, and the second is answered first. An event that
 * failed between the two is itself at fault. */
static void outage_ends_with_the_first_delivery(void **state)
{
    struct rig *g = *state;
    answers_by_hand(g, "1");
    send_after(g, 0);
    answer_to(g, 0, SINK_RETRY);
    send_after(g, 1500);
    answer_to(g, 0, SINK_RETRY);

    send_after(g, 550); /* event 3 is delivered */
    send_after(g, 50);  /* event 4 does not */
    answer_to(g, 1, SINK_RETRY);
    send_after(g, 200); /* event 5 does, and is answered first */
    answer_to(g, 1, SINK_DELIVERED);
    assert_int_equal(rig_look(g).dead, 0);
    answer_to(g, 0, SINK_DELIVERED);
    assert_int_equal(g->n_seen, 2);
    assert_int_equal(rig_look(g).dead, 1);
    assert_int_equal(rig_look(g).parked, 2);
}

/* The proof arrives after the failure was settled, and after the success of a delivery that was
 * sent too late to prove anything. */
static void late_evidence_still_counts(void **state)
{
    struct rig *g = *state;
    struct worker *w = answers_by_hand(g, "2");
    send_after(g, 0);
    send_after(g, 500); /* the proof */
    answer_to(g, 0, SINK_RETRY);
    assert_int_equal(rig_look(g).parked, 1);
    send_after(g, 700);
    answer_to(g, 1, SINK_DELIVERED);
    answer_to(g, 0, SINK_DELIVERED);

    for (int i = 0; i < 10 && w->sk->n == 0; i++) {
        rig_pass(g, 10 * MINUTE);
        pipeline_wake(w->p);
        rig_step(g, 0);
    }
    answer_to(g, 0, SINK_RETRY);
    assert_int_equal(rig_look(g).dead, 1);
}

/* Its failures take five seconds each. Others sent meanwhile get through, but none that was sent
 * within a second after it. */
static void slowly_failing_event_among_rare_others_is_buried(void **state)
{
    struct rig *g = *state;
    struct worker *w = worker(g, "base=1s,cap=1s,jitter=none,attempts=3,outage=2m", "order=none");
    w->sk->hold = true;
    send_after(g, 0);
    int n = 0;
    for (; n < 60 && rig_look(g).dead == 0; n++) {
        send_after(g, 2000);
        answer_to(g, 1, SINK_DELIVERED);
        rig_pass(g, 3000);
        answer_to(g, 0, SINK_RETRY);
        rig_pass(g, 1000);
        pipeline_wake(w->p);
        rig_step(g, 0);
    }
    assert_int_equal(rig_look(g).dead, 1);
    assert_in_range(n, 20, 26);
}

/* An endpoint restarts within half a second. The first success then only shows that it is back. */
static void short_outage_failing_many_events_counts_against_none(void **state)
{
    struct rig *g = *state;
    worker(g, "base=100ms,cap=500ms,attempts=3", "order=key");
    for (int i = 0; i < 20; i++) {
        out_for(g, 200 + 50 * i);
        emit_keys(g, 30, 30);
        assert_true(rig_run(g, 0, HOUR));
    }
    assert_all_delivered_once(g, 600);
    for (size_t i = 0; i < g->n_seen; i++)
        assert_int_equal(g->seen[i].attempt, 1);
}

static void restarted_relays_keep_the_outage_history(void **state)
{
    struct rig *g = *state;
    struct worker *w = worker(g, "fast,cap=10s,outage=5m", "order=key");
    bad = 1;
    rig_emit(g, "a");
    for (int i = 0; i < 7; i++) {
        rig_run(g, 0, MINUTE);
        if (rig_look(g).dead)
            break;
        rig_crash(g, 0);
        rig_start(g, 0);
        w->sk->answer = answer;
    }
    assert_int_equal(rig_look(g).dead, 1);
}

static void without_patience_every_failure_counts(void **state)
{
    struct rig *g = *state;
    worker(g, "base=10ms,cap=1s,attempts=3,outage=0s", "order=key");
    bad = 1;
    rig_emit(g, "a");
    assert_true(rig_run(g, 0, 10000));
    assert_int_equal(rig_look(g).dead, 1);
    assert_int_equal(tries_of_bad, 3);
}

/* An event retried while the sink is down waits longer each time, though no attempt is counted. */
static void uncounted_failures_still_back_off(void **state)
{
    struct rig *g = *state;
    worker(g, "fast", "order=key");
    bad = 1;
    rig_emit(g, "a");
    rig_run(g, 0, 10 * MINUTE);
    assert_in_range(tries_of_bad, 5, 20);
}

static enum sink_status cut_off(struct model *m, const struct delivery *d)
{
    (void)d;
    return m->answer_ctx ? SINK_DOWN : SINK_RETRY;
}

/* A relay that cannot reach the sink blocks a relay that can for no longer than a lease. */
static void relay_that_is_cut_off_hands_over(struct rig *g, const char *order, bool refused)
{
    struct worker *w = rig_worker(g, 0, "lease=20s", order, NULL);
    w->sk->answer = cut_off;
    w->sk->answer_ctx = refused;
    for (int i = 0; i < 200; i++)
        rig_emit(g, i % 2 ? "a" : "b");
    rig_run(g, 0, 5000);
    rig_worker(g, 1, "lease=20s", order, NULL);
    for (int ms = 0; ms < 10 * MINUTE && g->n_seen < 200; ms += 50) {
        int first = (int)rng_below(&g->rng, 2);
        rig_step(g, first);
        rig_step(g, 1 - first);
        rig_pass(g, 50);
    }
    assert_all_delivered_once(g, 200);
    assert_each_key_in_order(g);
    assert_false(pipeline_busy(g->w[0].p));
    assert_true(pipeline_stats(g->w[0].p)->down);
}

static void cut_off_relay_hands_over(void **state)
{
    relay_that_is_cut_off_hands_over(*state, "order=key", true);
}

static void relay_whose_deliveries_all_fail_hands_over(void **state)
{
    relay_that_is_cut_off_hands_over(*state, "order=key", false);
}

static void cut_off_relay_hands_over_in_global_order(void **state)
{
    relay_that_is_cut_off_hands_over(*state, "order=global", true);
}

/* It releases one claim after the other. If it reclaimed the last one in between, it would not know
 * the earlier ones: the simulator's seed 19032. */
static void events_handed_over_are_not_overtaken(void **state)
{
    struct rig *g = *state;
    struct worker *w = rig_worker(g, 0, "lease=60s", "order=key", "batch=1", NULL);
    w->sk->hold = true;
    for (int i = 0; i < 6; i++)
        rig_emit(g, "a");
    rig_step(g, 0);
    for (int i = 0; i < 60 && !pipeline_stats(w->p)->down; i++) {
        if (w->sk->n > 0)
            rig_end(g, 0, 0, SINK_DOWN);
        rig_step(g, 0);
    }
    assert_true(pipeline_stats(w->p)->down);
    for (int i = 0; i < 100; i++) { /* one step at a time, each long after the one before */
        if (w->sk->n > 0)
            rig_end(g, 0, 0, i < 4 ? SINK_DOWN : SINK_DELIVERED);
        pipeline_step(w->p);
        rig_pass(g, 45000);
    }
    w->sk->hold = false;
    assert_true(rig_run(g, 0, 10 * MINUTE));
    assert_all_delivered_once(g, 6);
    assert_each_key_in_order(g);
}

/* By then another worker has the event, or the consumer was recreated. Found by the simulator. */
static void failure_of_a_lost_claim_does_not_count(void **state)
{
    struct rig *g = *state;
    struct worker *w = worker(g, "fast", "order=none");
    rig_worker(g, 1, "retry=fast", "order=none", NULL);
    w->sk->hold = true;
    send_after(g, 0);
    send_after(g, 10);
    assert_int_equal(w->sk->n, 2);

    rig_pass(g, 31000);
    assert_true(rig_run(g, 1, MINUTE)); /* takes over, and delivers both */
    rig_end(g, 0, 0, SINK_RETRY);
    rig_end(g, 0, 0, SINK_DELIVERED);
    assert_true(failure_is_events(&w->p->detector, 1));
    rig_step(g, 0);
    assert_int_equal(pipeline_stats(w->p)->lost, 2);
    assert_false(failure_is_events(&w->p->detector, 1));
}

/* Between attempts it holds no event, but has pending work and makes no progress. */
static void outage_in_global_order_stops_progress(void **state)
{
    struct rig *g = *state;
    struct worker *w = worker(g, "fast", "order=global");
    out_for(g, 10 * MINUTE);
    emit_keys(g, 10, 10);
    int64_t since = g->mono;
    rig_run(g, 0, 9 * MINUTE);
    assert_true(pipeline_stats(w->p)->down);
    assert_in_range(pipeline_stats(w->p)->stalled_since, since, since + 5000 * MS_NS);
    assert_true(rig_run(g, 0, HOUR));
    assert_int_equal(pipeline_stats(w->p)->stalled_since, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_A_RIG(outage_buries_nothing),
        ON_A_RIG(outage_longer_than_patience_buries_nothing),
        ON_A_RIG(outage_of_hours_buries_nothing),
        ON_A_RIG(end_of_a_long_outage_buries_nothing),
        ON_A_RIG(local_rejection_does_not_show_that_the_peer_works),
        ON_A_RIG(deferred_event_does_not_count_against_others),
        ON_A_RIG(refused_event_does_not_count_against_others),
        ON_A_RIG(refusals_use_up_attempts_if_every_event_is_refused),
        ON_A_RIG(refused_events_do_not_delay_others),
        ON_A_RIG(failstop_sink_keeps_order_around_a_refused_event),
        ON_A_RIG(failstop_sink_refusing_everything_buries_everything),
        ON_A_RIG(outage_buries_nothing_without_order),
        ON_A_RIG(outage_buries_nothing_of_a_single_key),
        ON_A_RIG(outage_buries_nothing_in_global_order),
        ON_A_RIG(outage_in_the_middle_of_a_single_key_buries_nothing),
        ON_A_RIG(consecutive_outages_bury_nothing),
        ON_A_RIG(outage_does_not_add_attempts_to_an_earlier_failure),
        ON_A_RIG(sink_failing_every_event_is_paused_and_reported_down),
        ON_A_RIG(single_failing_event_is_reported_and_does_not_block_others),
        ON_A_RIG(event_failing_among_others_gets_only_its_attempts),
        ON_A_RIG(many_events_failing_among_others_are_buried),
        ON_A_RIG(healthy_events_proceed_beside_a_failing_type),
        ON_A_RIG(event_failing_alone_is_eventually_buried),
        ON_A_RIG(event_failing_among_rare_others_is_eventually_buried),
        ON_A_RIG(late_failure_does_not_start_an_outage),
        ON_A_RIG(outage_ends_with_the_first_delivery),
        ON_A_RIG(late_evidence_still_counts),
        ON_A_RIG(failure_of_a_lost_claim_does_not_count),
        ON_A_RIG(slowly_failing_event_among_rare_others_is_buried),
        ON_A_RIG(short_outage_failing_many_events_counts_against_none),
        ON_A_RIG(restarted_relays_keep_the_outage_history),
        ON_A_RIG(without_patience_every_failure_counts),
        ON_A_RIG(uncounted_failures_still_back_off),
        ON_A_RIG(cut_off_relay_hands_over),
        ON_A_RIG(relay_whose_deliveries_all_fail_hands_over),
        ON_A_RIG(cut_off_relay_hands_over_in_global_order),
        ON_A_RIG(events_handed_over_are_not_overtaken),
        ON_A_RIG(outage_in_global_order_stops_progress),
    };
    return cmocka_run_group_tests_name("outage", tests, NULL, NULL);
}
