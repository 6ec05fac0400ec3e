/* sink_suite.c: the tests that every sink must pass. */
#include <stdlib.h>
#include <string.h>

#include "sink.h"

struct fixture {
    const struct sink_case *c;
    void *peer;
    struct sink_rig rig;
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    f->c = *state;
    f->peer = f->c->setup();
    sink_rig_init(&f->rig);
    struct sink_config cfg = {.timeout_ms = 30000, .concurrency = f->c->concurrency};
    struct error err = {0};
    if (f->c->url) {
        cfg.url = f->c->url(f->peer);
        sink_rig_open(&f->rig, cfg);
    } else {
        cfg = sink_rig_complete(&f->rig, cfg);
        if (f->c->open(f->peer, &cfg, &f->rig.sk, &err) != 0)
            fail_msg("%s", err.text);
    }
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    sink_rig_release(&f->rig);
    f->c->teardown(f->peer);
    *state = (void *)(uintptr_t)f->c;
    free(f);
    return 0;
}

static bool failstop(const struct fixture *f)
{
    return sink_caps(f->rig.sk) & SINK_FAILSTOP;
}

static void assert_arrived(struct fixture *f)
{
    struct sink_arrivals got = {0};
    f->c->arrived(f->peer, &got);
    sink_rig_assert_arrived(&f->rig, &got, f->c->flat, failstop(f));
    sink_arrivals_release(&got);
}

static void idle_sink_accepts_at_least_one_event(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < 5; i++) {
        sink_rig_add(&f->rig, "{}", 0);
        assert_int_equal(sink_rig_submit(&f->rig), 1);
        sink_rig_run(&f->rig);
    }
    sink_rig_assert_all(&f->rig, SINK_DELIVERED);
}

static void each_event_is_answered_exactly_once(void **state)
{
    struct fixture *f = *state;
    sink_rig_add_many(&f->rig, f->c->many, 64);
    sink_rig_run(&f->rig);
    for (int i = 0; i < 10; i++)
        f->rig.sk->ops->drive(f->rig.sk);
    f->rig.sk->ops->cancel(f->rig.sk);
    sink_rig_check(&f->rig);
    assert_int_equal(f->rig.answered, f->c->many);
}

static void delivered_events_arrive_in_order_with_their_ids(void **state)
{
    struct fixture *f = *state;
    sink_rig_add_many(&f->rig, f->c->many, 200);
    sink_rig_run(&f->rig);
    sink_rig_assert_all(&f->rig, SINK_DELIVERED);
    if (failstop(f))
        for (size_t i = 0; i < f->rig.n; i++)
            assert_int_equal(f->rig.items[i]->order, i);
    assert_arrived(f);
}

static void odd_payloads_arrive_byte_for_byte(void **state)
{
    static const char *const odd[] = {
        "null",
        "\"\"",
        "1.0e+05",
        "{\"a\":1,\"a\":2}",
        "\"a \\\"quote\\\" a \\\\ backslash \\/ \\u00e9 \\u0000 \\ud800\"",
        "{\"name\":\"zo\xc3\xab \xe6\xbc\xa2\xe5\xad\x97 \xf0\x9f\x8e\x89 \xe2\x80\xa8\x7f\"}",
        "{\n  \"a\": 1,\r\n\t\"b\": [ 1 , 2 ]\n}",
        "\"'; drop table event; -- $(exit 1) `exit 1` %s %n ${HOME} * ?\"",
        "[[[[[[[[{\"deep\":[]}]]]]]]]]",
    };
    struct fixture *f = *state;
    for (size_t i = 0; i < COUNT(odd); i++)
        sink_rig_add(&f->rig, odd[i], 0);
    sink_rig_run(&f->rig);
    sink_rig_assert_all(&f->rig, SINK_DELIVERED);
    assert_arrived(f);
}

static void payload_of_1_mib_arrives_whole(void **state)
{
    struct fixture *f = *state;
    sink_rig_add_many(&f->rig, 3, EVENT_PAYLOAD_MAX);
    sink_rig_run(&f->rig);
    sink_rig_assert_all(&f->rig, SINK_DELIVERED);
    assert_arrived(f);
}

/* sink_rig_submit checks the prefix each time. So many bytes make any sink refuse some events.
 * */
static void refused_events_can_be_offered_again(void **state)
{
    struct fixture *f = *state;
    sink_rig_add_many(&f->rig, f->c->many, 4096);
    while (sink_rig_submit(&f->rig) > 0) {}
    sink_rig_run(&f->rig);
    sink_rig_assert_all(&f->rig, SINK_DELIVERED);
    assert_arrived(f);
}

static void broken_peer_is_down_until_it_recovers(void **state)
{
    struct fixture *f = *state;
    sink_rig_add_many(&f->rig, 10, 64);
    sink_rig_run(&f->rig);
    sink_rig_assert_all(&f->rig, SINK_DELIVERED);
    f->c->break_peer(f->peer);
    sink_rig_add_many(&f->rig, 10, 64);
    sink_rig_run(&f->rig);
    for (size_t i = 10; i < 20; i++) {
        assert_int_equal(f->rig.items[i]->status, SINK_DOWN);
        if (failstop(f))
            assert_int_equal(f->rig.items[i]->order, i);
    }
    f->c->heal_peer(f->peer);
    sink_rig_again(&f->rig);
    sink_rig_run(&f->rig);
    sink_rig_assert_all(&f->rig, SINK_DELIVERED);
    assert_arrived(f);
}

static bool has_arrived(const struct sink_arrivals *got, const char *id)
{
    for (size_t i = 0; i < got->n; i++)
        if (strcmp(got->a[i].id, id) == 0)
            return true;
    return false;
}

/* An event that can never be delivered must not count as a sink that is down: it would block its
 * consumer forever. */
static void only_an_event_that_the_sink_cannot_express_is_rejected(void **state)
{
    struct fixture *f = *state;
    const char *words[64];
    size_t ways = 0;
    for (sink_rig_add(&f->rig, "\"good\"", 0); ways < COUNT(words); ways++) {
        struct sink_item *it = sink_rig_add(&f->rig, "\"bad\"", 0);
        words[ways] = f->c->spoil(f->peer, it, ways);
        if (!words[ways])
            break;
        sink_rig_add(&f->rig, "\"good\"", 0);
    }
    assert_true(ways > 0);
    sink_rig_run(&f->rig);

    struct sink_arrivals got = {0};
    f->c->arrived(f->peer, &got);
    assert_int_equal(got.n, ways + 2); /* the last one was not spoiled */
    for (size_t i = 0; i < f->rig.n; i++) {
        struct sink_item *it = f->rig.items[i];
        bool bad = i % 2 == 1 && i / 2 < ways;
        if (it->status != (bad ? SINK_REJECT : SINK_DELIVERED))
            fail_msg("event %zu: %d %s", i, it->status, it->text);
        if (bad && !strstr(it->text, words[i / 2]))
            fail_msg("\"%s\" is not in \"%s\"", words[i / 2], it->text);
        assert_int_equal(has_arrived(&got, it->id), !bad);
        assert_int_equal(it->unasked, bad && !f->c->peer_rejects);
    }
    sink_arrivals_release(&got);
}

static void cancel_answers_every_event(void **state)
{
    struct fixture *f = *state;
    struct sink_arrivals got = {0};
    sink_rig_add_many(&f->rig, 10, 64);
    sink_rig_submit(&f->rig);
    f->rig.sk->ops->cancel(f->rig.sk);
    assert_int_equal(f->rig.answered, f->rig.accepted);
    f->c->arrived(f->peer, &got);
    for (size_t i = 0; i < f->rig.accepted; i++) {
        struct sink_item *it = f->rig.items[i];
        assert_int_equal(it->answers, 1);
        assert_true(it->status == SINK_DELIVERED || it->status == SINK_CANCELLED);
        assert_true(it->status == SINK_CANCELLED || has_arrived(&got, it->id));
    }
    sink_arrivals_release(&got);
}

static void cancelled_events_can_be_sent_again(void **state)
{
    struct fixture *f = *state;
    sink_rig_add_many(&f->rig, 3, 64);
    sink_rig_submit(&f->rig);
    f->rig.sk->ops->cancel(f->rig.sk);
    while (f->rig.accepted < f->rig.n) {
        sink_rig_submit(&f->rig);
        f->rig.sk->ops->cancel(f->rig.sk);
    }
    sink_rig_again(&f->rig);
    sink_rig_run(&f->rig);
    sink_rig_assert_all(&f->rig, SINK_DELIVERED);
}

static void idle_sink_does_not_need_polling(void **state)
{
    struct fixture *f = *state;
    assert_int_not_equal(f->rig.sk->ops->deadline(f->rig.sk), 0);
    sink_rig_add(&f->rig, "{}", 0);
    sink_rig_run(&f->rig);
    assert_int_not_equal(f->rig.sk->ops->deadline(f->rig.sk), 0);
}

#define CLAIM(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int sink_suite_run(const struct sink_case *c, const struct suite_part *own, size_t n_own)
{
    struct CMUnitTest suite[] = {
        CLAIM(idle_sink_accepts_at_least_one_event),
        CLAIM(each_event_is_answered_exactly_once),
        CLAIM(delivered_events_arrive_in_order_with_their_ids),
        CLAIM(odd_payloads_arrive_byte_for_byte),
        CLAIM(payload_of_1_mib_arrives_whole),
        CLAIM(refused_events_can_be_offered_again),
        CLAIM(cancel_answers_every_event),
        CLAIM(cancelled_events_can_be_sent_again),
        CLAIM(idle_sink_does_not_need_polling),
        CLAIM(broken_peer_is_down_until_it_recovers),
        CLAIM(only_an_event_that_the_sink_cannot_express_is_rejected),
    };
    struct suite_part parts[1 + 8] = {{suite, 0}};
    for (size_t i = 0; i < COUNT(suite); i++) {
        bool cannot = suite[i].test_func == broken_peer_is_down_until_it_recovers && !c->break_peer;
        bool nothing = suite[i].test_func ==
                           only_an_event_that_the_sink_cannot_express_is_rejected &&
                       !c->spoil;
        if (cannot || nothing)
            continue;
        suite[i].initial_state = (void *)(uintptr_t)c;
        suite[parts[0].n++] = suite[i];
    }

    assert_in_range(n_own, 0, 8);
    for (size_t i = 0; i < n_own; i++)
        parts[1 + i] = own[i];
    return suite_run(c->name, parts, 1 + n_own);
}
