/* store_lease.c: leases, claims that are taken over, and clocks that jump (G5, G6, G9). */
#include "store_impl.h"

/* A worker cut off from the store for longer than its lease still knows what it delivered. */
static void expired_claim_is_settled_late_if_it_was_not_taken_over(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 1);
    pass(100 * LEASE);
    assert_true(settle(g, "c", NULL, 0));
    assert_int_equal(look(g, "c").delivered, 1);
    assert_int_equal(claim(g, "c"), 0);
    assert_true(g->hint.through);
}

/* A worker's turn does not take over its own claim, even an expired one; another worker's
 * does. */
static void owner_does_not_take_over_its_own_expired_claims(void **state)
{
    struct store_rig *g = *state;
    struct claim_request req = request("c", "me");
    put(g->st, "c");
    emit(g->st, "1");
    emit(g->st, "2");
    req.max_events = 1;
    assert_int_equal(claim_by(g, req), 1);
    struct batch first = g->b;
    int64_t known[1] = {first.epoch}, seq = first.ev[0].seq;
    pass(LEASE);
    req.known = known;
    req.n_known = 1;
    assert_int_equal(claim_by(g, req), 1);
    assert_int_equal(g->hint.crashed, 0);
    assert_int_equal(g->b.ev[0].seq, seq + 1);
    assert_true(settle(g, "c", NULL, 0));
    assert_int_equal(claim_by(g, request("c", "you")), 1);
    assert_true(g->b.suspect);
    g->b = first;
    assert_false(settle(g, "c", NULL, 0));
}

static void live_claim_is_never_stolen(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 1);
    pass(LEASE - 1);
    struct batch mine = g->b;
    assert_int_equal(claim_by(g, request("c", "you")), 0);
    g->b = mine;
    assert_true(settle(g, "c", NULL, 0));
}

static void fast_clock_does_not_extend_a_lease(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    store_now.wall += 86400000;
    assert_int_equal(claim(g, "c"), 1);
    store_now.wall -= 86400000;
    assert_int_equal(claim_by(g, request("c", "you")), 0);
    pass(LEASE);
    assert_int_equal(claim_by(g, request("c", "you")), 1);
}

static void retry_parked_under_a_fast_clock_is_not_delayed(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit_with(g->st, "x", "2", "{}", store_now.wall + 3600000);
    emit(g->st, "1");
    store_now.wall += 1800000;
    assert_int_equal(claim(g, "c"), 2);
    struct outcome o[2] = {{.ev = &g->b.ev[0], .kind = OUTCOME_DELAY}, failed(g, 1, 1, 3600000)};
    o[1].delay_ms = 1000;
    assert_true(settle(g, "c", o, 2));
    store_now.wall -= 1800000;
    claim(g, "c"); /* notices the jump, although the delayed one is due earlier */
    pass(1000);
    assert_int_equal(claim(g, "c"), 1);
    assert_string_equal(g->b.ev[0].aggregate_id.p, "1");
}

/* The store checks for jumps only now and then. A store that did not check asks to be called again
 * soon. */
static void clock_jumping_back_twice_does_not_delay_events_for_long(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(claim(g, "c"), 1);
        struct outcome o = failed(g, 0, i + 1, 1000);
        assert_true(settle(g, "c", &o, 1));
        store_now.wall -= 3600000;
        assert_int_equal(claim(g, "c"), 0);
        assert_in_range(g->hint.wait_ms, 1, i ? 10001 : 1000);
        pass(g->hint.wait_ms);
        if (i == 0)
            continue;
        assert_int_equal(claim(g, "c"), 0); /* noticed */
        pass(g->hint.wait_ms);
    }
    assert_int_equal(claim(g, "c"), 1);
}

static void live_claim_can_be_extended_and_a_lost_one_cannot(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    bool lost;
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 1);
    pass(LEASE - 1);
    must(extend_by(g, "me", &g->b, &lost, &err), &err);
    assert_false(lost);
    pass(LEASE - 1);
    must(extend_by(g, "you", &g->b, &lost, &err), &err);
    assert_true(lost);
    pass(1000); /* it has expired and was not taken over */
    must(extend_by(g, "me", &g->b, &lost, &err), &err);
    assert_false(lost);
    struct batch old = g->b;
    assert_int_equal(claim_by(g, request("c", "you")), 0);
    pass(LEASE);
    assert_int_equal(claim_by(g, request("c", "you")), 1);
    must(extend_by(g, "me", &old, &lost, &err), &err);
    assert_true(lost);
}

static void old_claim_is_fenced_and_its_events_redelivered_one_by_one(void **state)
{
    struct store_rig *g = *state;
    int64_t seqs[3];
    put(g->st, "c");
    for (int i = 0; i < 3; i++)
        emit(g->st, i == 0 ? "1" : i == 1 ? "2" : "3");
    assert_int_equal(claim(g, "c"), 3);
    struct batch old = g->b;
    for (int i = 0; i < 3; i++)
        seqs[i] = g->b.ev[i].seq;
    pass(LEASE);
    emit(g->st, "9");
    struct claim_request req = request("c", "you");
    req.parked_first = true;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(claim_by(g, req), 1);
        assert_int_equal(g->hint.crashed, i == 0 ? 3 : 0);
        assert_true(g->b.suspect);
        assert_true(g->b.epoch > old.epoch);
        assert_int_equal(g->b.ev[0].seq, seqs[i]);
        assert_int_equal(g->b.ev[0].attempts, 0);
        assert_true(settle_by(g, "c", "you", NULL, 0));
    }
    struct batch b = g->b;
    g->b = old;
    assert_false(settle(g, "c", NULL, 0));
    g->b = b;
    assert_int_equal(claim_by(g, req), 1);
    assert_false(g->b.suspect);
    assert_string_equal(g->b.ev[0].aggregate_id.p, "9");
}

static void expired_claim_waits_for_earlier_ones_in_its_lane(void **state)
{
    struct store_rig *g = *state;
    struct claim_request req = request("c", "me");
    put(g->st, "c");
    for (int i = 0; i < 3; i++)
        emit(g->st, "1");
    req.max_events = 1;
    assert_int_equal(claim_by(g, req), 1);
    int64_t first = g->b.ev[0].seq, epochs[2] = {g->b.epoch, 0};
    req.lease_ms = 1000;
    req.known = epochs;
    req.n_known = 2;
    assert_int_equal(claim_by(g, req), 1);
    epochs[1] = g->b.epoch;
    pass(1000);
    assert_int_equal(claim_by(g, request("c", "you")), 0); /* the second would overtake the first */
    assert_true(g->hint.busy);
    req.n_known = 1;
    /* The third would block too, even for its owner, which does not know of it. */
    assert_int_equal(claim_by(g, req), 0);
    pass(LEASE);
    for (int i = 0; i < 3; i++) {
        struct claim_request you = request("c", "you");
        you.parked_first = true;
        assert_int_equal(claim_by(g, you), 1);
        assert_int_equal(g->b.ev[0].seq, first + i);
        assert_true(settle_by(g, "c", "you", NULL, 0));
    }
}

static void suspect_event_is_handed_out_alone(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 1);
    pass(LEASE);
    emit(g->st, "2");
    struct claim_request req = request("c", "you");
    req.parked_first = true;
    req.suspect = SUSPECT_WAIT;
    assert_int_equal(claim_by(g, req), 0);
    assert_true(g->hint.suspect);
    assert_false(g->hint.through);
    req.suspect = SUSPECT_SKIP; /* another key does not wait */
    assert_int_equal(claim_by(g, req), 1);
    assert_string_equal(g->b.ev[0].aggregate_id.p, "2");
    assert_false(g->b.suspect);
    req.suspect = SUSPECT_TAKE;
    assert_int_equal(claim_by(g, req), 1);
    assert_true(g->b.suspect);
}

static void only_the_poison_event_is_buried(void **state)
{
    struct store_rig *g = *state;
    int delivered = 0, crashes = 0;
    put(g->st, "c");
    emit(g->st, "1");
    emit(g->st, "poison");
    emit(g->st, "3");
    assert_int_equal(claim(g, "c"), 3); /* and then the process dies */
    pass(LEASE);
    for (int i = 0; i < 20; i++) {
        if (claim(g, "c") == 0)
            break;
        assert_int_equal(g->b.n, 1);
        if (strcmp(g->b.ev[0].aggregate_id.p, "poison") == 0) {
            assert_int_equal(g->b.ev[0].attempts, crashes);
            crashes++;
            pass(LEASE); /* dies again */
        } else {
            assert_true(settle(g, "c", NULL, 0));
            delivered++;
        }
    }
    assert_int_equal(delivered, 2);
    assert_int_equal(crashes, 3); /* max_attempts */
    assert_int_equal(look(g, "c").dead, 1);
    assert_int_equal(look(g, "c").parked, 0);
    assert_true(g->hint.through);
}

/* crash claims the events of consumer c, and makes the lease expire. */
static size_t crash(struct store_rig *g, enum suspect_policy mode)
{
    struct claim_request req = request("c", "me");
    req.parked_first = true;
    req.suspect = mode;
    size_t n = claim_by(g, req);
    pass(LEASE);
    return n;
}

/* crash_again is crash once the event is due. */
static size_t crash_again(struct store_rig *g, enum suspect_policy mode)
{
    struct claim_request req = request("c", "me");
    req.parked_first = true;
    req.suspect = mode;
    for (int i = 0; i < 10 && claim_by(g, req) == 0; i++) {
        assert_in_range(g->hint.wait_ms, 0, STORE_APART_MS);
        pass(g->hint.wait_ms);
    }
    pass(LEASE);
    return g->b.n;
}

static void crashes_bury_nothing_if_events_cannot_kill_workers(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    emit(g->st, "2");
    emit(g->st, "2");
    for (int i = 0; i < 4; i++) /* max_attempts is 3 */
        assert_int_equal(crash(g, SUSPECT_ANY), 3);
    for (int i = 0; i < 6; i++)
        assert_true(crash_again(g, SUSPECT_ANY) > 0);
    struct claim_request req = request("c", "me");
    req.suspect = SUSPECT_ANY;
    req.max_events = 0;
    claim_by(g, req); /* takes over */
    pass(STORE_APART_MS);
    req.max_events = 100;
    assert_int_equal(claim_by(g, req), 3); /* together */
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(g->b.ev[i].attempts, 0);
        assert_true(g->b.ev[i].crashed); /* it may have been delivered */
    }
    assert_false(g->b.suspect);
    struct outcome o = failed(g, 0, 1, 1000);
    assert_true(settle(g, "c", &o, 1));
    assert_int_equal(look(g, "c").parked, 1);
    assert_int_equal(look(g, "c").dead, 0);
}

static void crash_with_several_events_in_flight_blames_none(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 1);
    pass(LEASE);
    for (int i = 0; i < 10; i++) { /* max_attempts is 3 */
        assert_int_equal(crash_again(g, SUSPECT_BESIDE), 1);
        assert_true(g->b.suspect);
        assert_false(g->b.blamed);
        assert_int_equal(g->b.ev[0].attempts, 0);
    }
    assert_int_equal(look(g, "c").dead, 0);
}

static void cleared_claim_is_not_blamed(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    bool lost;
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 1);
    pass(LEASE);
    for (int i = 0; i < 10; i++) { /* max_attempts is 3 */
        assert_int_equal(claim(g, "c"), 1);
        assert_true(g->b.blamed);
        assert_int_equal(g->b.ev[0].attempts, 0);
        struct claim_lease l = {.consumer = "c",
                                .owner = "me",
                                .epoch = g->b.epoch,
                                .lease_ms = LEASE,
                                .absolve = true};
        must(g->st->ops->extend(g->st, &l, &lost, &err), &err);
        assert_false(lost);
        pass(LEASE);
        claim_by(g, (struct claim_request){.consumer = "c",
                                           .owner = "you",
                                           .order = ORDER_KEY,
                                           .lanes = 1,
                                           .lease_ms = LEASE,
                                           .max_attempts = 3}); /* takes over */
        pass(STORE_APART_MS);
    }
    assert_int_equal(look(g, "c").dead, 0);
}

static void claims_are_listed_with_their_owners_and_can_be_ended(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct claim_info *list;
    struct arena a;
    size_t n;
    bool lost;
    put(g->st, "c");
    put(g->st, "d");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 1);
    assert_int_equal(claim_by(g, request("d", "you")), 1);
    arena_init(&a, 0);
    must(g->st->ops->claims(g->st, "c", &a, &list, &n, &err), &err);
    assert_int_equal(n, 1);
    assert_string_equal(list[0].owner, "me");
    struct claim_lease l = {.consumer = "c", .owner = "me", .epoch = list[0].epoch, .lease_ms = 1};
    must(g->st->ops->extend(g->st, &l, &lost, &err), &err);
    arena_release(&a);
    pass(1);
    assert_int_equal(claim_by(g, request("c", "other")), 1);
    assert_int_equal(g->hint.crashed, 1);
}

static void takeover_keeps_the_order_of_a_key(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    for (int i = 0; i < 3; i++)
        emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 3);
    int64_t first = g->b.ev[0].seq;
    pass(LEASE);
    emit(g->st, "1");
    struct claim_request req = request("c", "you");
    req.parked_first = true;
    assert_int_equal(claim_by(g, req), 1);
    assert_int_equal(g->b.ev[0].seq, first);
    struct outcome o = failed(g, 0, 1, 5000);
    assert_true(settle_by(g, "c", "you", &o, 1));
    assert_int_equal(claim_by(g, req), 1); /* the fresh one, which must not overtake them */
    assert_true(g->b.ev[0].behind);
    o = behind(g, 0);
    assert_true(settle_by(g, "c", "you", &o, 1));
    assert_int_equal(claim_by(g, req), 0);
    pass(5000);
    for (int i = 0; i < 4; i++) {
        assert_true(claim_by(g, req) > 0);
        assert_int_equal(g->b.ev[0].seq, first + i);
        assert_true(settle_by(g, "c", "you", NULL, 0));
    }
}

static const struct CMUnitTest tests[] = {
    ON_A_STORE(expired_claim_is_settled_late_if_it_was_not_taken_over),
    ON_A_STORE(owner_does_not_take_over_its_own_expired_claims),
    ON_A_STORE(live_claim_is_never_stolen),
    ON_A_STORE(fast_clock_does_not_extend_a_lease),
    ON_A_STORE(retry_parked_under_a_fast_clock_is_not_delayed),
    ON_A_STORE(clock_jumping_back_twice_does_not_delay_events_for_long),
    ON_A_STORE(live_claim_can_be_extended_and_a_lost_one_cannot),
    ON_A_STORE(old_claim_is_fenced_and_its_events_redelivered_one_by_one),
    ON_A_STORE(expired_claim_waits_for_earlier_ones_in_its_lane),
    ON_A_STORE(suspect_event_is_handed_out_alone),
    ON_A_STORE(only_the_poison_event_is_buried),
    ON_A_STORE(crashes_bury_nothing_if_events_cannot_kill_workers),
    ON_A_STORE(crash_with_several_events_in_flight_blames_none),
    ON_A_STORE(cleared_claim_is_not_blamed),
    ON_A_STORE(claims_are_listed_with_their_owners_and_can_be_ended),
    ON_A_STORE(takeover_keeps_the_order_of_a_key),
};

const struct suite_part store_lease_tests = SUITE_PART(tests);
