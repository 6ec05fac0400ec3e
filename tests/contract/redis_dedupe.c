/* redis_dedupe.c: dedupe=on. Entries appended but not settled are not appended again. */
#include <stdio.h>
#include <string.h>

#include "redis_peer.h"

#define SEEN "outbox:seen:{s}:search:s"

/* start_over reopens the sink like a relay that does not know the first one. Events keep their
 * ids. */
static void start_over(struct peer *p, const char *query)
{
    sink_rig_release(&p->rig);
    sink_rig_init(&p->rig);
    open_with(p, query);
}

static void send_all(struct peer *p, size_t n)
{
    sink_rig_add_many(&p->rig, n, 64);
    sink_rig_run(&p->rig);
    sink_rig_assert_all(&p->rig, SINK_DELIVERED);
}

static void settle_all(struct peer *p)
{
    const struct event *ev[1000];
    assert_in_range(p->rig.n, 1, COUNT(ev));
    for (size_t i = 0; i < p->rig.n; i++)
        ev[i] = &p->rig.items[i]->ev;
    p->rig.sk->ops->settled(p->rig.sk, ev, p->rig.n);
}

static long long remembered(void)
{
    redisReply *r = redis_do(&server, "EVAL %s 0",
                             "local n=0 for _,k in ipairs(redis.call('KEYS','outbox:seen:*')) do "
                             "n=n+redis.call('HLEN',k) end return n");
    long long n = r->integer;
    freeReplyObject(r);
    return n;
}

/* A crash between delivery and settlement. */
static void unsettled_event_already_stored_is_not_appended_again(void **state)
{
    struct peer *p = *state;
    static const char *const queries[] = {"stream=s&dedupe=on", "stream=s&dedupe=on&maxlen=5000",
                                          "stream=s&dedupe=on&format=plain"};
    for (size_t k = 0; k < COUNT(queries); k++) {
        redis_set(&server, "FLUSHALL");
        start_over(p, queries[k]);
        send_all(p, 700);
        char receipt[64];
        snprintf(receipt, sizeof receipt, "%s", p->rig.items[699]->receipt);
        start_over(p, queries[k]);
        send_all(p, 705);
        assert_string_equal(p->rig.items[699]->receipt, receipt); /* the one it has */
        assert_int_equal(entries("s"), 705);
        assert_int_equal(remembered(), 705);
    }
}

static void ids_of_settled_events_are_forgotten(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s&dedupe=on");
    send_all(p, 300);
    assert_int_equal(remembered(), 300);
    settle_all(p);
    while (remembered() > 0)
        p->rig.sk->ops->drive(p->rig.sk);
    /* The replay is intended. */
    start_over(p, "stream=s&dedupe=on");
    send_all(p, 300);
    assert_int_equal(entries("s"), 600);
}

static void connection_stays_usable_after_ids_are_forgotten(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s&dedupe=on");
    send_all(p, 10);
    settle_all(p);
    while (remembered() > 0)
        ;
    redis_set(&server, "CLIENT KILL TYPE normal SKIPME yes");
    assert_int_equal(run_one(p, "1")->status, SINK_DELIVERED);
}

static void ids_are_remembered_per_stream(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream={aggregate_type}.{{x}}&dedupe=on");
    sink_rig_add_many(&p->rig, 10, 64);
    p->rig.items[3]->ev.aggregate_type = STR("other");
    sink_rig_run(&p->rig);
    sink_rig_assert_all(&p->rig, SINK_DELIVERED);
    redisReply *r = redis_do(&server, "HLEN outbox:seen:{x}:search:other.{x}");
    assert_int_equal(r->integer, 1);
    freeReplyObject(r);
    settle_all(p);
    while (remembered() > 0)
        p->rig.sk->ops->drive(p->rig.sk);
}

/* A crashed relay cannot report settled events. */
static void unsettled_ids_expire(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s&dedupe=on&dedupe-keep=1h");
    for (int i = 0; i < 50; i++)
        redis_set(&server, "HSET " SEEN " old-%d 1000-%d", i, i);
    long long sent = 0;
    do { /* each script inspects two random ones */
        run_one(p, "1");
        sent++;
    } while (remembered() > sent && sent < 5000);
    assert_int_equal(remembered(), sent);
    redisReply *r = redis_do(&server, "PTTL " SEEN);
    assert_in_range(r->integer, 3000000, 3600000);
    freeReplyObject(r);
}

static void dedupe_without_scripts_is_down(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s&dedupe=on");
    redis_set(&server, "ACL SETUSER default -eval");
    down_until(p, "eval", "ACL SETUSER default +eval");
}

static const struct CMUnitTest tests[] = {
    OWN(unsettled_event_already_stored_is_not_appended_again),
    OWN(ids_of_settled_events_are_forgotten),
    OWN(connection_stays_usable_after_ids_are_forgotten),
    OWN(ids_are_remembered_per_stream),
    OWN(unsettled_ids_expire),
    OWN(dedupe_without_scripts_is_down),
};

const struct suite_part redis_dedupe_tests = SUITE_PART(tests);
