/* The outcome of events for each answer of the broker. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rabbitmq_peer.h"
#include "sink/rabbitmq_impl.h"

static void unroutable_event_is_retried_until_a_queue_is_bound(void **state)
{
    struct peer *p = *state;
    rabbitmq_server_declare(&broker, "lonely", true);
    open_to(p, "lonely", "");
    struct sink_item *it = run_one(p, "1");
    assert_int_equal(it->status, SINK_REFUSED);
    assert_int_equal(it->native, AMQP_NO_ROUTE);
    sink_assert_says(it, "no queue is bound to exchange \"lonely\" for routing key order.created");
    rabbitmq_server_bind(&broker, "q", "lonely", "order.*");
    sink_rig_passes_again(&p->rig);
    assert_int_equal(messages("q"), 1);
    rabbitmq_server_delete(&broker, "lonely", NULL);
}

static void unroutable_events_can_be_rejected_or_ignored(void **state)
{
    struct peer *p = *state;
    rabbitmq_server_declare(&broker, "lonely", true);
    open_to(p, "lonely", "unroutable=reject");
    assert_int_equal(run_one(p, "1")->status, SINK_REJECT);
    assert_null(p->rig.sk->ops->caution(p->rig.sk));
    sink_rig_release(&p->rig);

    sink_rig_init(&p->rig);
    open_to(p, "lonely", "unroutable=ignore");
    assert_int_equal(run_one(p, "1")->status, SINK_DELIVERED);
    assert_non_null(strstr(p->rig.sk->ops->caution(p->rig.sk), "the broker drops it"));
    rabbitmq_server_delete(&broker, "lonely", NULL);
}

/* Among many in flight, a return ends its own event and no other. */
static void each_event_of_a_batch_gets_its_own_outcome(void **state)
{
    struct peer *p = *state;
    char key[256];
    rabbitmq_server_declare(&broker, "half", true);
    rabbitmq_server_bind(&broker, "q", "half", "1");
    open_to(p, "half", "routing-key={aggregate_id}");
    for (int i = 0; i < 400; i++) {
        struct sink_item *it = sink_rig_add(&p->rig, "{}", 0);
        snprintf(it->key, sizeof it->key, "%d", i % 2);
        it->ev.aggregate_type = STR("t");
        it->ev.aggregate_id = str_of(it->key);
    }
    sink_rig_run(&p->rig);
    for (size_t i = 0; i < p->rig.n; i++)
        assert_int_equal(p->rig.items[i]->status, i % 2 ? SINK_DELIVERED : SINK_REFUSED);

    amqp_message_t m;
    size_t n = 0;
    for (; rabbitmq_server_get(&broker, "q", &m, key); n++) {
        assert_string_equal(key, "1");
        amqp_destroy_message(&m);
    }
    assert_int_equal(n, 200);
    rabbitmq_server_delete(&broker, "half", NULL);
}

static void events_are_refused_until_the_exchange_is_declared(void **state)
{
    struct peer *p = *state;
    open_to(p, "absent", "");
    struct sink_item *it = run_one(p, "1");
    assert_int_equal(it->status, SINK_REFUSED);
    assert_int_equal(it->native, AMQP_NOT_FOUND);
    sink_assert_says(it, "no exchange 'absent'");
    sink_assert_says(it, "create=on");
    rabbitmq_server_declare(&broker, "absent", true);
    rabbitmq_server_bind(&broker, "q", "absent", "#");
    sink_rig_passes_again(&p->rig);
    rabbitmq_server_delete(&broker, "absent", NULL);
}

/* The broker reports it by closing the channel; the connection stays open. */
static void events_are_refused_until_a_deleted_exchange_is_recreated(void **state)
{
    struct peer *p = *state;
    open_with(p, "");
    assert_int_equal(run_one(p, "1")->status, SINK_DELIVERED);
    rabbitmq_server_delete(&broker, "orders", NULL);
    struct sink_item *it = run_one(p, "2");
    assert_int_equal(it->status, SINK_REFUSED);
    assert_int_equal(it->native, AMQP_NOT_FOUND);
    assert_int_equal(run_one(p, "3")->status, SINK_REFUSED);
    rabbitmq_server_declare(&broker, "orders", true);
    rabbitmq_server_bind(&broker, "q", "orders", "#");
    sink_rig_passes_again(&p->rig);
    assert_int_equal(messages("q"), 3);
}

static void create_declares_exchange_queue_and_binding(void **state)
{
    struct peer *p = *state;
    open_to(p, "made", "create=on&queue=made-q&binding=order.%23");
    assert_int_equal(run_one(p, "1")->status, SINK_DELIVERED);
    assert_null(p->rig.sk->ops->caution(p->rig.sk));
    assert_int_equal(messages("made-q"), 1);
    assert_non_null(strstr(erlang("{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<\"/\">>, queue,"
                                  " <<\"made-q\">>)), amqqueue:get_type(Q)."),
                           "rabbit_quorum_queue"));
    rabbitmq_server_delete(&broker, "made", "made-q");
}

/* The difference shows only when the sink tries to declare the exchange; the sink uses it
 * nevertheless. */
static void non_durable_exchange_causes_a_warning(void **state)
{
    struct peer *p = *state;
    rabbitmq_server_declare(&broker, "fleeting", false);
    open_to(p, "fleeting", "create=on&queue=q");
    assert_int_equal(run_one(p, "1")->status, SINK_DELIVERED);
    const char *caution = p->rig.sk->ops->caution(p->rig.sk);
    assert_non_null(caution);
    assert_non_null(strstr(caution, "inequivalent arg 'durable' for exchange 'fleeting'"));
    rabbitmq_server_delete(&broker, "fleeting", NULL);
}

static void full_queue_is_down_until_it_has_room(void **state)
{
    struct peer *p = *state;
    rabbitmq_server_declare(&broker, "narrow", true);
    rabbitmq_server_queue(&broker, "small", 2);
    rabbitmq_server_bind(&broker, "small", "narrow", "k");
    open_to(p, "narrow", "routing-key=k");
    struct sink_item *it = run_one(p, "1");
    for (int i = 0; i < 100 && it->status == SINK_DELIVERED; i++)
        it = run_one(p, "1"); /* a queue notices late that it is full */
    assert_int_equal(it->status, SINK_DOWN);
    sink_assert_says(it, "basic.nack");
    sink_rig_release(&p->rig);

    /* With more than one routing key only the events of that queue wait. */
    sink_rig_init(&p->rig);
    open_to(p, "narrow", "routing-key={aggregate_id}");
    it = sink_rig_add(&p->rig, "1", 0);
    it->ev.aggregate_type = STR("t");
    it->ev.aggregate_id = STR("k");
    sink_rig_run(&p->rig);
    assert_int_equal(it->status, SINK_LATER);
    assert_true(it->retry_after_ms > 0);
    rabbitmq_server_purge(&broker, "small");
    sink_rig_passes_again(&p->rig);
    rabbitmq_server_delete(&broker, "narrow", "small");
}

static int64_t now_ms(void)
{
    return clock_mono(&clock_system) / MS_NS;
}

/* is_blocked tells whether the sink knows of the alarm. */
static bool is_blocked(const struct peer *p)
{
    return ((struct rabbitmq_sink *)p->rig.sk)->conn.blocked;
}

/* alarm_ends ends the alarm and waits until the sink is notified. */
static void alarm_ends(struct peer *p)
{
    rabbitmq_server_tell(&broker, "alarm off");
    while (is_blocked(p)) {
        p->rig.sk->ops->drive(p->rig.sk);
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
}

/* A broker low on memory stops reading. No call may wait for it. */
static void alarm_is_down_with_its_reason_and_never_blocks_a_call(void **state)
{
    struct peer *p = *state;
    char *large = malloc((1 << 20) + 1);
    memset(large, '1', 1 << 20);
    large[1 << 20] = '\0';
    open_with(p, "");
    assert_int_equal(run_one(p, "1")->status, SINK_DELIVERED);
    rabbitmq_server_tell(&broker, "alarm on");

    int64_t slowest = 0;
    struct sink_item *last = NULL;
    for (int i = 0; i < 64 && !(last && last->status == SINK_DOWN && last->answers); i++) {
        int64_t before = now_ms();
        last = sink_rig_add(&p->rig, large, 0);
        sink_rig_submit(&p->rig);
        p->rig.sk->ops->drive(p->rig.sk);
        int64_t took = now_ms() - before;
        slowest = took > slowest ? took : slowest;
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    assert_true(slowest < 1000);
    assert_int_equal(last->status, SINK_DOWN);
    sink_assert_says(last, "is blocking publishers: low on memory");

    alarm_ends(p);
    sink_rig_run(&p->rig);
    sink_rig_passes_again(&p->rig);
    free(large);
}

/* An event written before the alarm is returned at its time limit, with the reason, and the
 * connection is kept. */
static void event_in_flight_at_an_alarm_is_returned_in_time(void **state)
{
    struct peer *p = *state;
    open_with(p, "");
    sink_rig_freeze(&p->rig); /* however late the broker reports it */
    rabbitmq_server_tell(&broker, "alarm on");
    struct sink_item *it = sink_rig_add(&p->rig, "1", 0);
    for (int i = 0; i < 2000 && !is_blocked(p); i++) {
        sink_rig_submit(&p->rig);
        p->rig.sk->ops->drive(p->rig.sk);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    assert_true(is_blocked(p));
    assert_int_equal(it->answers, 0);
    p->rig.ahead_ns += 11000 * MS_NS;
    p->rig.sk->ops->drive(p->rig.sk);
    assert_int_equal(it->answers, 1);
    assert_int_equal(it->status, SINK_DOWN);
    sink_assert_says(it, "low on memory");
    alarm_ends(p);
    sink_rig_passes_again(&p->rig);
    assert_int_equal(messages("q"), 2); /* the returned event arrived after all */
}

/* The broker closes the channel because of a message that is too large, without saying which
 * one. */
static void only_the_oversized_message_is_rejected(void **state)
{
    struct peer *p = *state;
    erlang("application:set_env(rabbit, max_message_size, 65536).");
    open_with(p, "");
    for (int i = 0; i < 60; i++) {
        struct sink_item *it = sink_rig_add(&p->rig, "{}", 0);
        if (i == 20 || i == 40)
            sink_item_enlarge(it, 70000);
    }
    sink_rig_run(&p->rig);
    erlang("application:set_env(rabbit, max_message_size, 134217728).");
    for (size_t i = 0; i < 60; i++) {
        bool large = i == 20 || i == 40;
        assert_int_equal(p->rig.items[i]->status, large ? SINK_REJECT : SINK_DELIVERED);
    }
    assert_int_equal(p->rig.items[20]->native, AMQP_PRECONDITION_FAILED);
    sink_assert_says(p->rig.items[20], "larger than configured max size");
}

static void exchange_without_write_permission_refuses_events(void **state)
{
    struct peer *p = *state;
    erlang(
        "rabbit_auth_backend_internal:add_user(<<\"reader\">>, <<\"pw-of-reader\">>, <<\"t\">>), "
        "rabbit_auth_backend_internal:set_permissions(<<\"reader\">>, <<\"/\">>, <<\"^$\">>, "
        "<<\"^$\">>, <<\".*\">>, <<\"t\">>).");
    setenv("OUTBOX_RABBITMQ_PASSWORD", "pw-of-reader", 1);
    open_with(p, "user=reader");
    struct sink_item *it = run_one(p, "1");
    assert_int_equal(it->status, SINK_REFUSED);
    assert_int_equal(it->native, AMQP_ACCESS_REFUSED);
    sink_assert_says(it, "access to exchange 'orders'");
    erlang("rabbit_auth_backend_internal:delete_user(<<\"reader\">>, <<\"t\">>).");
}

/* A right that is missing for one topic concerns the events of that topic. */
static void topic_without_write_permission_does_not_block_others(void **state)
{
    struct peer *p = *state;
    erlang("rabbit_auth_backend_internal:set_topic_permissions(<<\"guest\">>, <<\"/\">>, "
           "<<\"orders\">>, <<\"^open\">>, <<\".*\">>, <<\"t\">>).");
    open_with(p, "routing-key={aggregate_id}");
    for (int i = 0; i < 20; i++) {
        struct sink_item *it = sink_rig_add(&p->rig, "{}", 0);
        it->ev.aggregate_type = STR("t");
        it->ev.aggregate_id = i == 7 ? STR("shut") : STR("open");
    }
    sink_rig_run(&p->rig);
    erlang("rabbit_auth_backend_internal:clear_topic_permissions(<<\"guest\">>, <<\"/\">>, "
           "<<\"orders\">>, <<\"t\">>).");
    for (size_t i = 0; i < 20; i++)
        assert_int_equal(p->rig.items[i]->status, i == 7 ? SINK_REFUSED : SINK_DELIVERED);
}

/* Events for a queue whose node is down must not be buried. */
static void only_missing_or_wrong_objects_are_refused_at_setup(void **state)
{
    static const struct {
        int code;
        const char *words;
        enum sink_status status;
    } closes[] = {
        {AMQP_NOT_FOUND, "NOT_FOUND - no queue 'q' in vhost '/'", SINK_REFUSED},
        {AMQP_NOT_FOUND, "NOT_FOUND - no exchange 'x' in vhost '/'", SINK_REFUSED},
        {AMQP_NOT_FOUND,
         "NOT_FOUND - home node 'rabbit@b' of durable queue 'q' in vhost '/' is down or "
         "inaccessible",
         SINK_DOWN},
        {AMQP_RESOURCE_LOCKED, "RESOURCE_LOCKED - cannot obtain exclusive access", SINK_REFUSED},
        {AMQP_INTERNAL_ERROR, "INTERNAL_ERROR", SINK_DOWN},
    };
    (void)state;
    for (size_t i = 0; i < sizeof closes / sizeof closes[0]; i++)
        assert_int_equal(
            rabbitmq_answer_meaning(REPLY_SETUP, closes[i].code, closes[i].words)->status,
            closes[i].status);
}

/* alarm_teardown clears the alarm, so that a failed test does not leave it to the next ones. */
static int alarm_teardown(void **state)
{
    rabbitmq_server_tell(&broker, "alarm off");
    return rabbitmq_peer_teardown(state);
}

#define ALARMED(fn) cmocka_unit_test_setup_teardown(fn, rabbitmq_peer_setup, alarm_teardown)

static const struct CMUnitTest tests[] = {
    OWN(unroutable_event_is_retried_until_a_queue_is_bound),
    OWN(unroutable_events_can_be_rejected_or_ignored),
    OWN(each_event_of_a_batch_gets_its_own_outcome),
    OWN(events_are_refused_until_the_exchange_is_declared),
    OWN(events_are_refused_until_a_deleted_exchange_is_recreated),
    OWN(create_declares_exchange_queue_and_binding),
    OWN(non_durable_exchange_causes_a_warning),
    OWN(full_queue_is_down_until_it_has_room),
    ALARMED(alarm_is_down_with_its_reason_and_never_blocks_a_call),
    ALARMED(event_in_flight_at_an_alarm_is_returned_in_time),
    OWN(only_the_oversized_message_is_rejected),
    OWN(exchange_without_write_permission_refuses_events),
    OWN(topic_without_write_permission_does_not_block_others),
    cmocka_unit_test(only_missing_or_wrong_objects_are_refused_at_setup),
};
const struct suite_part rabbitmq_answers_tests = SUITE_PART(tests);
