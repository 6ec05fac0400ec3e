/* redis_connection.c: connections that end or fall silent, and replicas. */
#include <signal.h>
#include <unistd.h>

#include "redis_peer.h"

static void paused_server_is_down_after_the_time_limit(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s");
    run_one(p, "0");
    kill(server.pid, SIGSTOP);
    sink_rig_add_many(&p->rig, 100, 64);
    sink_rig_submit(&p->rig);
    p->rig.sk->ops->drive(p->rig.sk);
    assert_int_equal(p->rig.answered, 1);
    p->rig.ahead_ns += INT64_C(11000) * MS_NS;
    p->rig.sk->ops->drive(p->rig.sk);
    assert_int_equal(p->rig.answered, 101);
    for (size_t i = 1; i < 101; i++)
        assert_int_equal(p->rig.items[i]->status, SINK_DOWN);
    sink_assert_says(p->rig.items[1], "has not answered");
    kill(server.pid, SIGCONT);
    sink_rig_passes_again(&p->rig);
}

static void idle_connection_closed_by_the_server_does_not_fail_events(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s");
    run_one(p, "0");
    redis_set(&server, "CLIENT KILL TYPE normal SKIPME yes");
    assert_int_equal(run_one(p, "1")->status, SINK_DELIVERED);
}

/* A server that closes the connection at one event must not count as down forever. */
static void assert_held_against_it(struct peer *p, const char *query)
{
    open_with(p, query);
    redis_set(&server, "CONFIG SET client-query-buffer-limit 1mb");
    sink_rig_add_many(&p->rig, 1, 4 << 20);
    enum sink_status seen[4];
    for (int i = 0; i < 3; i++) {
        sink_rig_run(&p->rig);
        seen[i] = p->rig.items[0]->status;
        sink_rig_again(&p->rig);
    }
    assert_int_equal(seen[0], SINK_DOWN);
    assert_int_equal(seen[1], SINK_DOWN);
    assert_int_equal(seen[2], SINK_RETRY);
    redis_set(&server, "CONFIG SET client-query-buffer-limit 1gb");
}

static void event_that_keeps_breaking_the_connection_fails(void **state)
{
    struct peer *p = *state;
    assert_held_against_it(p, "stream=s");
    sink_rig_run(&p->rig);
    sink_rig_assert_all(&p->rig, SINK_DELIVERED);
}

/* The commands sent with an event do not hide that it is alone. */
static void event_that_breaks_the_connection_is_found_with_replicas(void **state)
{
    assert_held_against_it(*state, "stream=s&replicas=1&replicas-wait=10ms");
}

/* The server greets us, and falls silent at one event. */
static void event_that_hangs_the_server_fails(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s");
    redis_set(&server, "CLIENT PAUSE 600000 WRITE");
    sink_rig_add_many(&p->rig, 1, 64);
    for (int i = 0; i < 3; i++) {
        while (p->rig.answered < 1) {
            sink_rig_submit(&p->rig);
            p->rig.sk->ops->drive(p->rig.sk);
            if (p->rig.answered == 1)
                break;
            if (connection_number() > 0)
                p->rig.ahead_ns += INT64_C(11000) * MS_NS;
            usleep(10000);
        }
        if (i == 2)
            redis_set(&server, "CLIENT UNPAUSE");
        assert_int_equal(p->rig.items[0]->status, i < 2 ? SINK_DOWN : SINK_RETRY);
        sink_rig_again(&p->rig);
    }
}

static void sink_waits_for_replicas(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s&replicas=1&replicas-wait=10ms");
    sink_rig_add_many(&p->rig, 10, 64);
    sink_rig_run(&p->rig);
    sink_rig_assert_all(&p->rig, SINK_DOWN);
    sink_assert_says(p->rig.items[0], "0 of 1 replicas");

    struct redis_server replica = {0};
    redis_server_start(&replica, false);
    /* Replication goes over TLS, since the master has no other port. */
    redis_set(&replica, "CONFIG SET tls-ca-cert-file %s/ca.crt", server.dir);
    redis_set(&replica, "CONFIG SET tls-cert-file %s/server.crt", server.dir);
    redis_set(&replica, "CONFIG SET tls-key-file %s/server.key", server.dir);
    redis_set(&replica, "CONFIG SET tls-replication yes");
    redis_set(&server, "CONFIG SET repl-diskless-sync-delay 0");
    redis_set(&replica, "REPLICAOF 127.0.0.1 %d", server.port);
    do {
        sink_rig_again(&p->rig);
        sink_rig_run(&p->rig);
    } while (p->rig.items[0]->status != SINK_DELIVERED);
    sink_rig_assert_all(&p->rig, SINK_DELIVERED);
    redisReply *r = redis_do(&replica, "XLEN s");
    assert_true(r->integer >= 10);
    freeReplyObject(r);
    redis_server_remove(&replica);
}

static const struct CMUnitTest tests[] = {
    OWN(paused_server_is_down_after_the_time_limit),
    OWN(idle_connection_closed_by_the_server_does_not_fail_events),
    OWN(event_that_keeps_breaking_the_connection_fails),
    OWN(event_that_breaks_the_connection_is_found_with_replicas),
    OWN(event_that_hangs_the_server_fails),
    OWN(sink_waits_for_replicas),
};

const struct suite_part redis_connection_tests = SUITE_PART(tests);
