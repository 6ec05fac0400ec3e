/* sqlite_lanes.c: a sole worker claims from all lanes as from one, and a second worker gets its
 * share. */
#include "lane_workers.h"
#include "lite.h"
#include "sqlite_tests.h"

static void insert_events(void)
{
    sqlite3 *db = lite_connect();
    char sql[300];
    snprintf(sql, sizeof sql,
             "WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < %d) "
             "INSERT INTO outbox_event (type, aggregate_type, aggregate_id) "
             "SELECT 't', 'k', i %% %d FROM n",
             EVENTS, KEYS);
    lite_do(db, sql);
    sqlite3_close(db);
}

/* hire_sole creates the only worker of a process. */
static struct worker hire_sole(struct store_rig *g, const char *name, int lanes)
{
    struct worker w = hire(g, name, lanes, 100);
    put_as(w.st, "c", ORDER_KEY, lanes);
    w.sole = true;
    return w;
}

static void fill(struct store_rig *g, int lanes)
{
    put_as(g->st, "c", ORDER_KEY, lanes);
    insert_events();
}

static void sole_worker_claims_from_many_lanes_as_from_one(void **state)
{
    struct store_rig *g = *state;
    static struct book k;
    k = (struct book){0};
    fill(g, 64);
    struct worker w = hire_sole(g, "me", 64);
    for (int turn = 0; turn < EVENTS / 100; turn++) {
        assert_int_equal(step(&w, 0), 100);
        assert_int_equal(w.b.lane, STORE_ALL_LANES);
        enter(&k, &w.b);
    }
    assert_int_equal(k.n, EVENTS);
    assert_int_equal(step(&w, 0), 0);
    assert_true(w.hint.through);
    dismiss(&w);
}

static void each_of_several_workers_takes_a_single_lane(void **state)
{
    struct store_rig *g = *state;
    fill(g, 4);
    struct worker a = hire(g, "a", 4, 100), b = hire(g, "b", 4, 100);
    assert_true(step(&a, 0) > 0);
    assert_true(step(&b, 0) > 0);
    assert_true(a.b.lane >= 0 && b.b.lane >= 0 && a.b.lane != b.b.lane);
    dismiss(&a);
    dismiss(&b);
}

static void worker_without_a_lane_gets_one_at_the_next_turn(void **state)
{
    struct store_rig *g = *state;
    static struct book k;
    k = (struct book){0};
    fill(g, 16);
    struct worker a = hire_sole(g, "a", 16), b = hire_sole(g, "b", 16);
    assert_int_equal(step(&a, 0), 100);
    enter(&k, &a.b);
    assert_int_equal(step(&b, 0), 0);
    assert_true(b.hint.busy);
    assert_true(step(&a, 0) > 0);
    assert_true(a.b.lane >= 0); /* no more than one */
    enter(&k, &a.b);
    assert_true(step(&b, 0) > 0);
    assert_true(b.b.lane >= 0 && b.b.lane != a.b.lane);
    enter(&k, &b.b);
    assert_int_equal(lite_count(g->st, "SELECT count(*) FROM outbox_claim"), 2);

    for (int i = 0; i < 400 && k.n < EVENTS; i++) {
        struct worker *w = i % 3 ? &a : &b;
        step(w, 0);
        enter(&k, &w->b);
    }
    assert_int_equal(k.n, EVENTS);
    dismiss(&a);
    dismiss(&b);
}

/* A worker that holds every lane is not asked to share. */
static void worker_without_work_does_not_request_a_lane(void **state)
{
    struct store_rig *g = *state;
    fill(g, 4);
    struct worker a = hire_sole(g, "a", 4), b = hire_sole(g, "b", 4);
    a.max = EVENTS;
    assert_int_equal(step(&a, 0), EVENTS);
    assert_int_equal(step(&b, 0), 0);
    assert_int_equal(lite_count(g->st, "SELECT count(*) FROM outbox_claim"), 1);
    assert_int_equal(step(&a, 0), 0);
    assert_true(a.hint.through);
    dismiss(&a);
    dismiss(&b);
}

static void lane_set_aside_but_never_claimed_returns_to_the_sole_worker(void **state)
{
    struct store_rig *g = *state;
    static struct book k;
    k = (struct book){0};
    fill(g, 4);
    struct worker a = hire_sole(g, "a", 4), b = hire_sole(g, "b", 4);
    assert_int_equal(step(&a, 0), 100);
    enter(&k, &a.b);
    assert_int_equal(step(&b, 0), 0);
    while (step(&a, 0) > 0)
        enter(&k, &a.b);
    assert_true(k.n < EVENTS);
    assert_false(a.hint.through); /* a lane is set aside for b */
    assert_in_range(a.hint.wait_ms, 1, 10000);
    pass(a.hint.wait_ms);
    while (step(&a, 0) > 0)
        enter(&k, &a.b);
    assert_int_equal(k.n, EVENTS);
    assert_true(a.hint.through);

    insert_events();
    assert_int_equal(step(&a, 0), 100);
    assert_int_equal(a.b.lane, STORE_ALL_LANES);
    dismiss(&a);
    dismiss(&b);
}

static void events_released_from_all_lanes_return_to_all_lanes(void **state)
{
    struct store_rig *g = *state;
    fill(g, 16);
    struct worker a = hire_sole(g, "a", 16);
    assert_int_equal(step(&a, 0), 100);
    a.max = 0;
    step(&a, a.b.ev[40].seq);
    assert_int_equal(lite_count(g->st, "SELECT count(*) FROM outbox_parked"), 0);
    assert_int_equal(lite_count(g->st, "SELECT max(position) FROM outbox_lane"), 40);
    a.max = 100;
    assert_int_equal(step(&a, 0), 100);
    assert_int_equal(a.b.ev[0].seq, 41);
    dismiss(&a);
}

/* Once lanes advanced separately, they cannot all return to one common position. */
static void events_released_from_advanced_lanes_are_parked(void **state)
{
    struct store_rig *g = *state;
    fill(g, 4);
    struct worker a = hire_sole(g, "a", 4), b = hire_sole(g, "b", 4);
    assert_int_equal(step(&a, 0), 100);
    struct batch first = a.b;
    assert_int_equal(step(&b, 0), 0);
    struct claim_request req = request_as("c", "a", ORDER_KEY, 4);
    req.max_events = 10;
    req.sole = true;
    req.known = &first.epoch;
    req.n_known = 1;
    assert_int_equal(claim_by(g, req), 10); /* beside the first one */
    assert_true(g->b.lane >= 0);
    a.max = 0;
    step(&a, first.ev[90].seq);
    assert_int_equal(lite_count(g->st, "SELECT count(*) FROM outbox_parked"), 10);
    assert_int_equal(lite_count(g->st, "SELECT min(position) FROM outbox_lane"), 100);
    dismiss(&a);
    dismiss(&b);
}

static void expired_claim_of_all_lanes_is_taken_over(void **state)
{
    struct store_rig *g = *state;
    fill(g, 4);
    struct worker a = hire_sole(g, "a", 4), b = hire_sole(g, "b", 4);
    assert_int_equal(step(&a, 0), 100);
    pass(LEASE + 1);
    assert_int_equal(step(&b, 0), 1); /* suspect, delivered alone */
    assert_true(b.b.suspect);
    assert_int_equal(b.hint.crashed, 100);
    assert_int_equal(
        lite_count(g->st, "SELECT count(*) FROM outbox_parked WHERE crashes > 0 AND seq <= 100"),
        100);
    dismiss(&a);
    dismiss(&b);
}

static void expired_lane_claim_waits_for_an_earlier_all_lane_claim(void **state)
{
    struct store_rig *g = *state;
    fill(g, 4);
    struct worker a = hire_sole(g, "a", 4), b = hire_sole(g, "b", 4);
    assert_int_equal(step(&a, 0), 100);
    assert_int_equal(step(&b, 0), 0);
    struct claim_request req = request_as("c", "a", ORDER_KEY, 4);
    req.max_events = 10;
    req.lease_ms = 1000;
    req.known = &a.b.epoch;
    req.n_known = 1;
    assert_int_equal(claim_by(g, req), 10);
    assert_true(g->b.lane >= 0);
    pass(1001);
    step(&b, 0);
    assert_int_equal(b.hint.crashed, 0);
    assert_in_range(b.hint.wait_ms, 1000,
                    LEASE); /* but not for claims that cannot be taken over yet */
    pass(LEASE);
    step(&b, 0);
    assert_int_equal(b.hint.crashed, 110);
    dismiss(&a);
    dismiss(&b);
}

/* The last claim is in a lane that the first one is not in, but the one between them is in both. */
static void expired_lane_claim_waits_behind_a_blocked_all_lane_claim(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    bool lost;
    int64_t known[2];
    struct claim_request req = request_as("c", "a", ORDER_KEY, 2);
    fill(g, 2);
    struct worker b = hire_sole(g, "b", 2);

    req.max_events = EVENTS;
    req.max_bytes = 1 << 24;
    req.lane_hint = 1; /* both lanes are at the end */
    claim_by(g, req);
    assert_int_equal(g->b.lane, 1);
    assert_true(settle_by(g, "c", "a", NULL, 0));
    req.lane_hint = 0;
    claim_by(g, req);
    assert_int_equal(g->b.lane, 0);
    known[0] = g->b.epoch;
    struct batch first = g->b;

    insert_events();
    req.known = known;
    req.n_known = 1;
    req.sole = true;
    assert_int_equal(claim_by(g, req), EVENTS);
    assert_int_equal(g->b.lane, STORE_ALL_LANES);
    known[1] = g->b.epoch;
    req.n_known = 2;
    req.sole = false;
    req.lane_hint = 1;
    insert_events();
    assert_true(claim_by(g, req) > 0);
    assert_int_equal(g->b.lane, 1);

    pass(LEASE / 2);
    must(extend_by(g, "a", &first, &lost, &err), &err);
    pass(LEASE / 2 + 1);
    step(&b, 0);
    assert_int_equal(b.hint.crashed, 0);
    pass(LEASE);
    step(&b, 0);
    assert_true(b.hint.crashed > EVENTS);
    dismiss(&b);
}

static void event_in_a_claim_of_all_lanes_is_in_flight(void **state)
{
    struct store_rig *g = *state;
    put_as(g->st, "c", ORDER_KEY, 4);
    for (int i = 0; i < 8; i++)
        emit(g->st, NULL);
    struct worker a = hire_sole(g, "a", 4);
    assert_int_equal(step(&a, 0), 8);
    assert_int_equal(look(g, "c").inflight, 8);
    /* The views use the machine's clock. */
    sqlite3 *db = lite_connect();
    lite_do(db, "UPDATE outbox_claim SET locked_until = 9000000000000000");
    assert_int_equal(
        lite_count(g->st, "SELECT count(*) FROM outbox_delivery WHERE state = 'in-flight'"), 8);
    assert_int_equal(lite_count(g->st, "SELECT count(*) FROM outbox_find_processing"), 8);
    sqlite3_close(db);
    dismiss(&a);
}

static void reserved_lane_does_not_block_a_lane_change(void **state)
{
    struct store_rig *g = *state;
    put_as(g->st, "c", ORDER_KEY, 4);
    sqlite3 *db = lite_connect();
    lite_do(db, "INSERT INTO outbox_claim (consumer, epoch, lane, parked, from_seq, to_seq, owner, "
                "locked_until, lease) VALUES ('c', 1, 0, 0, 0, 0, 'gone', 1, 1)");
    sqlite3_close(db);
    put_as(g->st, "c", ORDER_KEY, 8);
}

static const struct CMUnitTest tests[] = {
    ON_A_STORE(reserved_lane_does_not_block_a_lane_change),
    ON_A_STORE(sole_worker_claims_from_many_lanes_as_from_one),
    ON_A_STORE(each_of_several_workers_takes_a_single_lane),
    ON_A_STORE(worker_without_a_lane_gets_one_at_the_next_turn),
    ON_A_STORE(worker_without_work_does_not_request_a_lane),
    ON_A_STORE(lane_set_aside_but_never_claimed_returns_to_the_sole_worker),
    ON_A_STORE(events_released_from_all_lanes_return_to_all_lanes),
    ON_A_STORE(events_released_from_advanced_lanes_are_parked),
    ON_A_STORE(expired_claim_of_all_lanes_is_taken_over),
    ON_A_STORE(expired_lane_claim_waits_for_an_earlier_all_lane_claim),
    ON_A_STORE(expired_lane_claim_waits_behind_a_blocked_all_lane_claim),
    ON_A_STORE(event_in_a_claim_of_all_lanes_is_in_flight),
};
const struct suite_part sqlite_lanes_tests = SUITE_PART(tests);
