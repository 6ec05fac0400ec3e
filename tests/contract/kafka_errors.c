/* kafka_errors.c: the outcome of events when a broker refuses, moves, disconnects or is silent. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kafka_peer.h"

#define TOO_LARGE RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE
#define CUT RD_KAFKA_RESP_ERR__TRANSPORT

static void note_id(void *ctx, const rd_kafka_message_t *m)
{
    sink_arrivals_add(ctx, kafka_header(m, "id"), (struct str){m->payload, m->len});
}

/* assert_stored_once checks that exactly the delivered ones are in the topic, once, in order. */
static void assert_stored_once(struct peer *p)
{
    struct sink_arrivals got = {0};
    kafka_read(p->topic, note_id, &got);
    size_t n = 0;
    for (size_t i = 0; i < p->rig.n; i++) {
        if (p->rig.items[i]->status != SINK_DELIVERED)
            continue;
        assert_true(n < got.n);
        assert_string_equal(got.a[n].id, p->rig.items[i]->id);
        n++;
    }
    assert_int_equal(got.n, n);
    sink_arrivals_release(&got);
}

/* ready connects the producer, so that the following events are sent in one batch. */
static void ready(struct peer *p)
{
    open_with(p, "rdkafka.linger.ms=100");
    assert_int_equal(run_one(p, "\"first\"")->status, SINK_DELIVERED);
}

static void refused_batch_fails_only_the_offending_event(void **state)
{
    struct peer *p = *state;
    ready(p);
    /* The batch is refused; sent one by one, the fourth is refused again. */
    tell("errors %d %d 0 0 0 %d", API_PRODUCE, TOO_LARGE, TOO_LARGE);
    sink_rig_add_many(&p->rig, 50, 64);
    sink_rig_run(&p->rig);
    for (size_t i = 1; i < p->rig.n; i++) {
        struct sink_item *it = p->rig.items[i];
        assert_int_equal(it->status, i == 4 ? SINK_REJECT : SINK_DELIVERED);
        assert_int_equal(it->order, i);
    }
    sink_assert_says(p->rig.items[4], "max.message.bytes");
    assert_false(p->rig.items[4]->unasked);
    assert_stored_once(p);
}

static void batch_that_is_too_large_is_split(void **state)
{
    struct peer *p = *state;
    ready(p);
    tell("errors %d %d", API_PRODUCE, TOO_LARGE);
    sink_rig_add_many(&p->rig, 50, 64);
    sink_rig_run(&p->rig);
    sink_rig_assert_all(&p->rig, SINK_DELIVERED);
    assert_stored_once(p);
}

static void events_behind_a_refused_batch_do_not_overtake_it(void **state)
{
    struct peer *p = *state;
    ready(p);
    tell("errors %d %d", API_PRODUCE, RD_KAFKA_RESP_ERR_INVALID_RECORD);
    sink_rig_add_many(&p->rig, 3000, 512); /* several batches */
    sink_rig_run(&p->rig);
    sink_rig_assert_all(&p->rig, SINK_DELIVERED);
    assert_stored_once(p);
}

static void transient_errors_lose_and_repeat_nothing(void **state)
{
    struct peer *p = *state;
    ready(p);
    tell("errors %d %d %d %d", API_PRODUCE, CUT, RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
         RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS);
    sink_rig_add_many(&p->rig, 500, 64);
    sink_rig_run(&p->rig);
    sink_rig_assert_all(&p->rig, SINK_DELIVERED);
    assert_stored_once(p);
}

/* That producer cannot recover; another replaces it. */
static void sink_is_down_after_a_fatal_producer_error_until_recreated(void **state)
{
    struct peer *p = *state;
    ready(p);
    tell("errors %d %d", API_PRODUCE, RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER);
    sink_rig_add_many(&p->rig, 10, 64);
    sink_rig_run(&p->rig);
    for (size_t i = 1; i < p->rig.n; i++) {
        bool fine = p->rig.items[i]->status == SINK_DOWN;
        fine = fine || p->rig.items[i]->status == SINK_DELIVERED;
        assert_true(fine);
    }
    sink_rig_passes_again(&p->rig);
}

/* awake_ns returns how long this thread has run, or waited for a processor: its whole life except
 * for sleep. 0 if the kernel does not tell. */
static int64_t awake_ns(void)
{
    long long ran = 0, waited = 0;
    FILE *f = fopen("/proc/thread-self/schedstat", "r");
    if (!f)
        return 0;
    if (fscanf(f, "%lld %lld", &ran, &waited) != 2)
        ran = waited = 0;
    fclose(f);
    return ran + waited;
}

/* step_asleep submits and drives once, and returns how long that slept. A busy machine makes it
 * late, but not sleep. */
static int64_t step_asleep(struct peer *p)
{
    int64_t awake = awake_ns(), at = clock_mono(&clock_system);
    sink_rig_submit(&p->rig);
    p->rig.sk->ops->drive(p->rig.sk);
    int64_t took = clock_mono(&clock_system) - at;
    return took - (awake_ns() - awake);
}

static void silent_broker_is_down_in_time_and_never_blocks_a_call(void **state)
{
    struct peer *p = *state;
    char path[128];
    snprintf(path, sizeof path, "%s", p->topic);
    open_topic(p, path);
    assert_int_equal(run_one(p, "1")->status, SINK_DELIVERED);
    sink_rig_release(&p->rig);
    sink_rig_init(&p->rig);

    sink_rig_open(&p->rig, (struct sink_config){.url = p->url, .timeout_ms = 2000});
    sink_rig_freeze(&p->rig); /* connecting may take longer on a busy machine */
    assert_int_equal(run_one(p, "2")->status, SINK_DELIVERED);
    p->rig.frozen_ns = 0;
    tell("rtt 1 30000");
    sink_rig_add_many(&p->rig, 10, 64);
    int64_t began = clock_mono(&clock_system), slowest = 0;
    while (p->rig.answered < p->rig.n) {
        int64_t asleep = step_asleep(p);
        slowest = asleep > slowest ? asleep : slowest;
        if (p->rig.answered < p->rig.n)
            sink_rig_wait(&p->rig);
    }
    int64_t ms = (clock_mono(&clock_system) - began) / MS_NS;
    assert_in_range(ms, 1900, 6000);
    assert_in_range(slowest / MS_NS, 0, 500);
    for (size_t i = 1; i < p->rig.n; i++) {
        assert_int_equal(p->rig.items[i]->status, SINK_DOWN);
        sink_assert_says(p->rig.items[i], "has not confirmed for 2000 ms");
    }
    tell("rtt 1 0");
    sink_rig_passes_again(&p->rig);
}

/* A metadata request of the library was in flight before the events were submitted. Its timeout,
 * which also closes the connection, says nothing about them. */
static void timeout_of_an_earlier_request_does_not_fail_events(void **state)
{
    struct peer *p = *state;
    char path[200];
    snprintf(path, sizeof path, "%s?rdkafka.topic.metadata.refresh.interval.ms=100", p->topic);
    open_topic(p, path);
    char url[400];
    snprintf(url, sizeof url, "%s", p->url);
    sink_rig_release(&p->rig);
    sink_rig_init(&p->rig);

    sink_rig_open(&p->rig, (struct sink_config){.url = url, .timeout_ms = 2000});
    sink_rig_freeze(&p->rig);
    assert_int_equal(run_one(p, "1")->status, SINK_DELIVERED);
    p->rig.frozen_ns = 0;
    tell("rtt 1 30000");
    usleep(700000);
    int64_t began = clock_mono(&clock_system);
    sink_rig_add_many(&p->rig, 10, 64);
    sink_rig_run(&p->rig);
    assert_in_range((clock_mono(&clock_system) - began) / MS_NS, 1900, 6000);
    for (size_t i = 1; i < p->rig.n; i++) {
        assert_int_equal(p->rig.items[i]->status, SINK_DOWN);
        sink_assert_says(p->rig.items[i], "has not confirmed for 2000 ms");
    }
    tell("rtt 1 0");
    sink_rig_passes_again(&p->rig);
}

static void missing_topic_of_a_template_does_not_block_other_topics(void **state)
{
    struct peer *p = *state;
    tell("topic absent-%s 1", p->topic);
    tell("topic-error absent-%s %d", p->topic, RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART);
    open_topic(p, "{type}");
    assert_false(sink_caps(p->rig.sk) & SINK_FAILSTOP);
    char absent[80];
    snprintf(absent, sizeof absent, "absent-%s", p->topic);
    for (int i = 0; i < 6; i++) {
        struct sink_item *it = sink_rig_add(&p->rig, "1", 0);
        it->ev.type = str_of(i % 2 ? absent : p->topic);
    }
    sink_rig_run(&p->rig);
    for (size_t i = 0; i < p->rig.n; i++)
        assert_int_equal(p->rig.items[i]->status, i % 2 ? SINK_REFUSED : SINK_DELIVERED);
    sink_assert_says(p->rig.items[1], "create=on");
    tell("topic-error absent-%s 0", p->topic);
}

/* A chain was submitted behind an event without a topic, and its beginning is confirmed when that
 * event is returned. The rest, still in flight, is unrelated to that event. */
static void missing_topic_does_not_break_the_chain_behind_it(void **state)
{
    struct peer *p = *state;
    char absent[80];
    snprintf(absent, sizeof absent, "absent-%s", p->topic);
    tell("topic %s 1", absent);
    tell("topic-error %s %d", absent, RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART);
    open_topic(p, "{type}?rdkafka.batch.num.messages=1"
                  "&rdkafka.topic.metadata.propagation.max.ms=300");
    tell("rtt 1 80"); /* with five requests at a time, the chain takes four seconds */
    for (int i = 0; i < 250; i++) {
        struct sink_item *it = sink_rig_add(&p->rig, "1", 0);
        it->ev.type = str_of(i == 0 ? absent : p->topic);
        it->d.chained = i > 1;
    }
    sink_rig_run(&p->rig);
    size_t last = p->rig.n - 1;
    assert_int_equal(p->rig.items[0]->status, SINK_REFUSED);
    assert_in_range(p->rig.items[0]->order, 1, last - 1);
    for (size_t i = 1; i <= last; i++)
        assert_int_equal(p->rig.items[i]->status, SINK_DELIVERED);
    tell("topic-error %s 0", absent);
}

static void every_event_is_refused_while_the_topic_is_missing(void **state)
{
    struct peer *p = *state;
    tell("topic-error %s %d", p->topic, RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART);
    open_topic(p, p->topic);
    sink_rig_add_many(&p->rig, 3, 64);
    sink_rig_run(&p->rig);
    sink_rig_assert_all(&p->rig, SINK_REFUSED);
    sink_assert_says(p->rig.items[0], "create=on");
    tell("topic-error %s 0", p->topic);
    sink_rig_passes_again(&p->rig);
}

static void chain_keeps_its_order_behind_a_refusal(void **state)
{
    struct peer *p = *state;
    open_topic(p, "{type}?rdkafka.linger.ms=50");
    struct sink_item *first = sink_rig_add(&p->rig, "\"first\"", 0);
    first->ev.type = str_of(p->topic);
    sink_rig_run(&p->rig);
    tell("errors %d %d 0 %d", API_PRODUCE, TOO_LARGE, TOO_LARGE);
    for (int i = 0; i < 5; i++) {
        struct sink_item *it = sink_rig_add(&p->rig, "1", 0);
        it->ev.type = str_of(p->topic);
        it->d.chained = i > 0;
    }
    sink_rig_run(&p->rig);
    /* The second event of the chain is refused alone, so no event behind it takes effect. */
    static const enum sink_status want[] = {SINK_DELIVERED, SINK_DELIVERED, SINK_REJECT,
                                            SINK_CANCELLED, SINK_CANCELLED, SINK_CANCELLED};
    for (size_t i = 0; i < p->rig.n; i++)
        assert_int_equal(p->rig.items[i]->status, want[i]);
    assert_stored_once(p);
}

static const struct CMUnitTest tests[] = {
    OWN(refused_batch_fails_only_the_offending_event),
    OWN(batch_that_is_too_large_is_split),
    OWN(events_behind_a_refused_batch_do_not_overtake_it),
    OWN(transient_errors_lose_and_repeat_nothing),
    OWN(sink_is_down_after_a_fatal_producer_error_until_recreated),
    OWN(silent_broker_is_down_in_time_and_never_blocks_a_call),
    OWN(timeout_of_an_earlier_request_does_not_fail_events),
    OWN(missing_topic_of_a_template_does_not_block_other_topics),
    OWN(missing_topic_does_not_break_the_chain_behind_it),
    OWN(every_event_is_refused_while_the_topic_is_missing),
    OWN(chain_keeps_its_order_behind_a_refusal),
};

const struct suite_part kafka_errors_tests = SUITE_PART(tests);
