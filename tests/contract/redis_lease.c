/* redis_lease.c: the lease that lets one relay of several write. */
#include <signal.h>

#include "redis_peer.h"

static bool held(struct peer *p)
{
    return p->rig.sk->ops->lease(p->rig.sk)->held;
}

static void drive_until(struct peer *p, bool want)
{
    for (int i = 0; i < 2000 && held(p) != want; i++) {
        p->rig.sk->ops->drive(p->rig.sk);
        if (held(p) != want)
            sink_rig_wait(&p->rig);
    }
    assert_int_equal(held(p), want);
}

static void lease_is_taken_renewed_halfway_and_released_by_its_holder(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s&lease=lock:outbox&lease-ttl=30s");
    assert_false(held(p));
    drive_until(p, true);
    redisReply *r = redis_do(&server, "PTTL lock:outbox");
    assert_in_range(r->integer, 20001, 30000); /* time passes while we are not scheduled */
    freeReplyObject(r);
    assert_int_equal(run_one(p, "1")->status, SINK_DELIVERED);

    redis_set(&server,
              "PEXPIRE lock:outbox 20000"); /* as if time had passed on the server as well */
    sink_rig_freeze(&p->rig);
    p->rig.ahead_ns += INT64_C(10000) * MS_NS;
    p->rig.sk->ops->drive(p->rig.sk);
    assert_int_equal(p->rig.sk->ops->lease(p->rig.sk)->renewed, 0);
    p->rig.ahead_ns += INT64_C(6000) * MS_NS;
    for (;;) {
        p->rig.sk->ops->drive(p->rig.sk);
        if (p->rig.sk->ops->lease(p->rig.sk)->renewed > 0)
            break;
        sink_rig_wait(&p->rig);
    }
    r = redis_do(&server, "PTTL lock:outbox");
    assert_in_range(r->integer, 20001, 30000);
    freeReplyObject(r);

    sink_rig_release(&p->rig);
    r = redis_do(&server, "EXISTS lock:outbox");
    assert_int_equal(r->integer, 0);
    freeReplyObject(r);
}

static void lost_lease_stops_new_work_and_stays_with_its_new_holder(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s&lease=lock:outbox&lease-ttl=30s");
    drive_until(p, true);
    int64_t taken = clock_mono(&p->rig.clock);
    redis_set(&server, "SET lock:outbox another");
    p->rig.ahead_ns += INT64_C(16000) * MS_NS;
    drive_until(p, false);
    /* The loss is noticed before the lease expires. */
    assert_true(clock_mono(&p->rig.clock) < taken + INT64_C(25000) * MS_NS);
    assert_int_equal(p->rig.sk->ops->lease(p->rig.sk)->lost, 1);
    assert_int_equal(run_one(p, "1")->status, SINK_CANCELLED);
    assert_int_equal(entries("s"), 0);
    sink_rig_release(&p->rig);
    redisReply *r = redis_do(&server, "GET lock:outbox");
    assert_string_equal(r->str, "another");
    freeReplyObject(r);
}

/* A lease expires on time, whether or not Redis is reachable. */
static void lease_expires_while_the_server_hangs(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s&lease=lock:outbox&lease-ttl=30s");
    drive_until(p, true);
    kill(server.pid, SIGSTOP);
    p->rig.ahead_ns += INT64_C(16000) * MS_NS;
    p->rig.sk->ops->drive(p->rig.sk);
    assert_true(held(p));
    p->rig.ahead_ns += INT64_C(15000) * MS_NS;
    assert_false(held(p));
    kill(server.pid, SIGCONT);
    drive_until(p, true); /* by its token the lease was still ours; it is extended */
}

static const struct CMUnitTest tests[] = {
    OWN(lease_is_taken_renewed_halfway_and_released_by_its_holder),
    OWN(lost_lease_stops_new_work_and_stays_with_its_new_holder),
    OWN(lease_expires_while_the_server_hangs),
};

const struct suite_part redis_lease_tests = SUITE_PART(tests);
