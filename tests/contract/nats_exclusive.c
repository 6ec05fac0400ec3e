/* exclusive=on: a chain in which each message names the one before it. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nats_peer.h"

static void sink_keeps_order_only_on_an_exclusive_stream(void **state)
{
    struct peer *p = *state;
    open_with(p, "s", "stream=S");
    assert_int_equal(sink_caps(p->rig.sk), 0);
    sink_rig_release(&p->rig);
    sink_rig_init(&p->rig);
    open_with(p, "s", "stream=S&exclusive=on");
    assert_int_equal(sink_caps(p->rig.sk), SINK_FAILSTOP);
}

/* stored_order checks that stream S has the events with these numbers as payload, in this order. */
static void stored_order(uint64_t from, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        natsMsg *msg = nats_server_get(&server, "S", from + i);
        char want[24];
        snprintf(want, sizeof want, "%zu", i);
        assert_int_equal(natsMsg_GetDataLength(msg), strlen(want));
        assert_memory_equal(natsMsg_GetData(msg), want, strlen(want));
        natsMsg_Destroy(msg);
    }
    assert_int_equal(nats_server_count(&server, "S"), from - 1 + n);
}

static void add_numbers(struct peer *p, size_t n)
{
    char text[24];
    for (size_t i = 0; i < n; i++) {
        snprintf(text, sizeof text, "%zu", p->rig.n);
        sink_rig_add(&p->rig, text, 0);
    }
}

/* submit_all drives until everything queued is submitted. */
static void submit_all(struct peer *p)
{
    while (p->rig.accepted < p->rig.n) {
        size_t took = sink_rig_submit(&p->rig);
        p->rig.sk->ops->drive(p->rig.sk);
        if (took == 0)
            sink_rig_wait(&p->rig);
    }
}

/* A subject that the stream does not accept breaks the chain: nothing behind it is stored before
 * it, and it is refused once it is the first. */
static void refused_event_stops_everything_behind_it(void **state)
{
    struct peer *p = *state;
    open_with(p, "s.{aggregate_type}", "stream=S&exclusive=on");
    nats_server_stream(&server, "S", "{\"subjects\":[\"s.a\"]}");
    for (size_t i = 0; i < 20; i++) {
        struct sink_item *it = sink_rig_add(&p->rig, "1", 0);
        it->ev.aggregate_type = i == 7 ? STR("none") : STR("a");
        it->status = SINK_CANCELLED; /* until it is answered */
    }
    /* The stream is looked at ten times a second at most. */
    for (int round = 0; round < 500 && p->rig.items[7]->status != SINK_REFUSED; round++) {
        usleep(10000);
        sink_rig_again(&p->rig);
        sink_rig_submit(&p->rig);
        p->rig.sk->ops->drive(p->rig.sk);
        drive_until_answered(p, p->rig.accepted);
    }
    assert_int_equal(p->rig.items[7]->status, SINK_REFUSED);
    sink_assert_says(p->rig.items[7], "does not include the subject s.none");
    for (size_t i = 0; i < 7; i++)
        assert_int_equal(p->rig.items[i]->status, SINK_DELIVERED);
    for (size_t i = 8; i < p->rig.accepted; i++)
        assert_int_equal(p->rig.items[i]->status, SINK_CANCELLED);
    assert_int_equal(nats_server_count(&server, "S"), 7);
}

static void foreign_message_stops_everything_behind_it(void **state)
{
    struct peer *p = *state;
    open_with(p, "s", "stream=S&exclusive=on&window=1024");
    add_numbers(p, 1);
    sink_rig_run(&p->rig);
    assert_int_equal(js_Publish(NULL, server.js, "s.other", "x", 1, NULL, NULL), NATS_OK);
    add_numbers(p, 200);
    sink_rig_submit(&p->rig);
    drive_until_answered(p, p->rig.accepted);
    for (size_t i = 1; i < p->rig.accepted; i++) {
        assert_int_equal(p->rig.items[i]->status, SINK_DOWN);
        assert_int_equal(p->rig.items[i]->order, i);
    }
    sink_assert_says(p->rig.items[1], "wrong last msg ID");
    assert_int_equal(nats_server_count(&server, "S"), 2);
    sink_rig_again(&p->rig);
    sink_rig_run(&p->rig);
    assert_int_equal(nats_server_count(&server, "S"), 202);
    natsMsg *msg = nats_server_get(&server, "S", 202);
    assert_memory_equal(natsMsg_GetData(msg), "200", 3);
    natsMsg_Destroy(msg);
}

static void chain_begins_behind_an_existing_message(void **state)
{
    struct peer *p = *state;
    assert_int_equal(js_Publish(NULL, server.js, "s.other", "x", 1, NULL, NULL), NATS_OK);
    open_with(p, "s", "stream=S&exclusive=on");
    add_numbers(p, 100);
    sink_rig_run(&p->rig);
    sink_rig_assert_all(&p->rig, SINK_DELIVERED);
    stored_order(2, 100);
}

static void rejected_event_is_left_out_of_the_chain(void **state)
{
    struct peer *p = *state;
    open_with(p, "s", "stream=S&exclusive=on");
    add_numbers(p, 3);
    struct sink_item *bad = sink_rig_add(&p->rig, "0", 0);
    sink_item_enlarge(bad, 3 << 20);
    sink_rig_add(&p->rig, "3", 0);
    sink_rig_run(&p->rig);
    assert_int_equal(bad->status, SINK_REJECT);
    stored_order(1, 4);
}

static void killed_server_never_causes_reordering_or_repeats(void **state)
{
    struct peer *p = *state;
    nats_server_stream(&server, "S", "{\"subjects\":[\"s\"],\"duplicate_window\":100000000}");
    open_with(p, "s", "stream=S&exclusive=on");
    add_numbers(p, 1);
    sink_rig_run(&p->rig);
    for (int round = 0; round < 3; round++) {
        add_numbers(p, 300);
        submit_all(p);
        usleep(2000u * (unsigned)round);
        nats_server_kill(&server);
        drive_until_answered(p, p->rig.accepted);
        nats_server_start(&server, ACCOUNTS);
        usleep(200000); /* past the window in which the server recognises a message */
        sink_rig_again(&p->rig);
        sink_rig_run(&p->rig);
    }
    stored_order(1, 901);
}

static void idle_restart_beyond_the_window_begins_a_new_chain(void **state)
{
    struct peer *p = *state;
    nats_server_stream(&server, "S", "{\"subjects\":[\"s\"],\"duplicate_window\":100000000}");
    open_with(p, "s", "stream=S&exclusive=on");
    add_numbers(p, 5);
    sink_rig_run(&p->rig);
    nats_server_kill(&server);
    usleep(200000); /* the server then no longer knows the last message's id */
    nats_server_start(&server, ACCOUNTS);
    add_numbers(p, 5);
    sink_rig_run(&p->rig);
    stored_order(1, 10);
}

static const struct CMUnitTest tests[] = {
    OWN(sink_keeps_order_only_on_an_exclusive_stream),
    OWN(refused_event_stops_everything_behind_it),
    OWN(foreign_message_stops_everything_behind_it),
    OWN(chain_begins_behind_an_existing_message),
    OWN(rejected_event_is_left_out_of_the_chain),
    OWN(killed_server_never_causes_reordering_or_repeats),
    OWN(idle_restart_beyond_the_window_begins_a_new_chain),
};
const struct suite_part nats_exclusive_tests = SUITE_PART(tests);
