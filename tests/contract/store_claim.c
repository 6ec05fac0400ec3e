/* store_claim.c: which worker gets which events, by key, lane and filter (G5, C1). */
#include "store_impl.h"

#include <pthread.h>

static void claimed_events_are_invisible_to_other_workers(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    for (int i = 0; i < 10; i++)
        emit(g->st, "1");
    struct claim_request req = request("c", "me");
    req.max_events = 4;
    assert_int_equal(claim_by(g, req), 4);
    assert_int_equal(g->b.ev[0].seq + 3, g->b.ev[3].seq);
    assert_int_equal(claim_by(g, request("c", "you")), 0);
    assert_true(g->hint.busy);
    assert_false(g->hint.through);
    assert_in_range(g->hint.wait_ms, 1, LEASE);
}

/* A race: many claimers of one consumer without order, each with its own connection. */
#define RACERS 8
#define RACE_EVENTS 1000

struct race {
    int64_t seq[2 * RACE_EVENTS]; /* the rows of all claimers, with room for duplicates */
    size_t n;
    pthread_mutex_t lock;
};

struct racer {
    struct store *st;
    struct race *race;
    char owner[16];
    pthread_t thread;
    struct error err; /* why a claim failed, other than that the store was busy */
    bool failed;
};

static void note(struct race *race, const struct batch *b)
{
    pthread_mutex_lock(&race->lock);
    for (size_t i = 0; i < b->n && race->n < 2 * RACE_EVENTS; i++)
        race->seq[race->n++] = b->ev[i].seq;
    pthread_mutex_unlock(&race->lock);
}

static void *claim_all(void *arg)
{
    struct racer *r = arg;
    struct claim_request req = request_as("c", r->owner, ORDER_NONE, 1);
    struct claim_hint hint = {0};
    struct arena a;
    struct batch b;
    req.max_events = 17;
    req.lease_ms = 600000;
    arena_init(&a, 0);
    do {
        arena_reset(&a);
        b.n = 0;
        bool claimed = r->st->ops->turn(r->st, NULL, NULL, &req, &a, &b, &hint, &r->err) == 0;
        r->failed = !claimed && r->err.code != ERR_BUSY;
        if (claimed && b.n == 0)
            break;
        note(r->race, &b);
    } while (!r->failed);
    arena_release(&a);
    return NULL;
}

static int by_number(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void racing_claimers_never_get_the_same_event(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    static struct race race;
    static struct racer r[RACERS + 1];
    race = (struct race){.lock = PTHREAD_MUTEX_INITIALIZER};
    put_as(g->st, "c", ORDER_NONE, 1);
    must(g->st->ops->begin(g->st, &err), &err);
    for (int i = 0; i < RACE_EVENTS; i++)
        emit(g->st, NULL);
    must(g->st->ops->commit(g->st, &err), &err);
    for (int i = 0; i <= RACERS; i++) {
        r[i] = (struct racer){.race = &race};
        snprintf(r[i].owner, sizeof r[i].owner, "racer%d", i);
        must(g->st->ops->dup(g->st, &r[i].st, &err), &err);
    }

    for (int i = 0; i < RACERS; i++)
        pthread_create(&r[i].thread, NULL, claim_all, &r[i]);
    for (int i = 0; i < RACERS; i++)
        pthread_join(r[i].thread, NULL);
    claim_all(&r[RACERS]); /* rows that every claimer skipped */

    for (int i = 0; i <= RACERS; i++) {
        if (r[i].failed)
            fail_msg("%s", r[i].err.text); /* a deadlock, say */
        store_close(r[i].st);
    }
    assert_int_equal(race.n, RACE_EVENTS);
    qsort(race.seq, race.n, sizeof *race.seq, by_number);
    for (size_t i = 1; i < race.n; i++)
        assert_true(race.seq[i] > race.seq[i - 1]);
}

static void without_order_owners_share_a_lane(void **state)
{
    struct store_rig *g = *state;
    put_as(g->st, "c", ORDER_NONE, 1);
    for (int i = 0; i < 10; i++)
        emit(g->st, "1");
    struct claim_request a = request_as("c", "me", ORDER_NONE, 1),
                         b = request_as("c", "you", ORDER_NONE, 1);
    a.max_events = 4;
    assert_int_equal(claim_by(g, a), 4);
    int64_t last = g->b.ev[3].seq;
    assert_int_equal(claim_by(g, b), 6);
    assert_int_equal(g->b.ev[0].seq, last + 1);
}

static void one_owner_may_hold_several_claims_on_a_lane(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    for (int i = 0; i < 4; i++)
        emit(g->st, "1");
    struct claim_request req = request("c", "me");
    req.max_events = 2;
    assert_int_equal(claim_by(g, req), 2);
    int64_t epoch = g->b.epoch;
    /* A claim unknown to its owner, because the answer got lost, blocks the lane. */
    assert_int_equal(claim_by(g, req), 0);
    assert_true(g->hint.busy);
    req.known = &epoch;
    req.n_known = 1;
    assert_int_equal(claim_by(g, req), 2);
    assert_true(g->b.epoch > epoch);
}

static void claim_inside_a_transaction_is_refused(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct claim_request req = request("c", "me");
    put(g->st, "c");
    must(g->st->ops->begin(g->st, &err), &err);
    assert_int_equal(g->st->ops->turn(g->st, NULL, NULL, &req, &g->a, &g->b, &g->hint, &err), -1);
    assert_int_equal(err.code, ERR_MISUSE);
    g->st->ops->rollback(g->st);
}

/* These events were not tried. If they stayed claimed, the expired lease would count as an
 * attempt. */
static void events_that_do_not_fit_in_memory_are_not_claimed(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    put(g->st, "c");
    emit(g->st, "1");
    for (int attempts = 0; attempts < 2; attempts++) { /* fresh, then parked */
        assert_int_equal(claim_without_memory(g, &err), -1);
        assert_int_equal(err.code, ERR_NOMEM);
        assert_int_equal(look(g, "c").inflight, 0);
        assert_int_equal(claim(g, "c"), 1);
        assert_false(g->b.suspect);
        assert_int_equal(g->b.ev[0].attempts, attempts);
        struct outcome o = failed(g, 0, attempts + 1, 1000);
        assert_true(settle(g, "c", &o, 1));
        pass(1000);
    }
}

static void consumers_are_independent(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "a");
    put(g->st, "b");
    emit(g->st, "1");
    assert_int_equal(claim(g, "a"), 1);
    assert_int_equal(claim(g, "b"), 1);
    struct outcome o = failed(g, 0, 1, 1000);
    assert_true(settle(g, "b", &o, 1));
    assert_int_equal(look(g, "b").parked, 1);
    assert_int_equal(look(g, "a").parked, 0);

    /* Each has its own position, attempts, error and dead letters. */
    emit(g->st, "2");
    assert_int_equal(claim(g, "b"), 1);
    assert_true(settle(g, "b", NULL, 0));
    assert_int_equal(look(g, "b").delivered, 1);
    assert_int_equal(look(g, "a").delivered, 0);
    assert_string_equal(look(g, "b").last_error, "boom");
    assert_null(look(g, "a").last_error);
    pass(1000);
    assert_int_equal(claim(g, "b"), 1);
    assert_int_equal(g->b.ev[0].attempts, 1);
    o = (struct outcome){
        .ev = &g->b.ev[0], .kind = OUTCOME_DEAD, .attempts = 2, .error = "gave up"};
    assert_true(settle(g, "b", &o, 1));
    assert_int_equal(look(g, "b").dead, 1);
    assert_int_equal(look(g, "a").dead, 0);
    assert_int_equal(claim(g, "b"), 0);
    /* `a` still holds the first event, which does not block `b`. */
    assert_true(g->hint.through);
}

static void batch_ends_at_max_bytes(void **state)
{
    struct store_rig *g = *state;
    char big[3000];
    put(g->st, "c");
    memset(big, ' ', sizeof big);
    memcpy(big, "1", 1);
    big[sizeof big - 1] = '\0';
    for (int i = 0; i < 10; i++)
        emit_with(g->st, "x", "1", big, 0);
    struct claim_request req = request("c", "me");
    req.max_bytes = 5000;
    assert_int_equal(claim_by(g, req), 2);
}

static void lanes_split_the_keys_and_lose_none(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    char key[16];
    size_t total = 0;
    int lane_of[40];
    put_as(g->st, "c", ORDER_KEY, 4);
    for (int i = 0; i < 80; i++) {
        snprintf(key, sizeof key, "%d", i % 40);
        emit(g->st, key);
    }
    for (int i = 0; i < 40; i++)
        lane_of[i] = -1;
    for (int i = 0; i < 4; i++) {
        struct claim_request req = request_as("c", "me", ORDER_KEY, 4);
        req.lane_hint = i;
        arena_reset(&g->a);
        must(g->st->ops->turn(g->st, NULL, NULL, &req, &g->a, &g->b, &g->hint, &err), &err);
        total += g->b.n;
        for (size_t k = 0; k < g->b.n; k++) {
            int which = atoi(g->b.ev[k].aggregate_id.p);
            assert_true(lane_of[which] == -1 || lane_of[which] == g->b.lane);
            lane_of[which] = g->b.lane;
        }
    }
    assert_int_equal(total, 80);
}

static void two_owners_work_on_different_lanes(void **state)
{
    struct store_rig *g = *state;
    char key[16];
    put_as(g->st, "c", ORDER_KEY, 2);
    for (int i = 0; i < 20; i++) {
        snprintf(key, sizeof key, "%d", i);
        emit(g->st, key);
    }
    assert_true(claim_by(g, request_as("c", "me", ORDER_KEY, 2)) > 0);
    int lane = g->b.lane;
    assert_true(claim_by(g, request_as("c", "you", ORDER_KEY, 2)) > 0);
    assert_int_not_equal(g->b.lane, lane);
    assert_int_equal(claim_by(g, request_as("c", "her", ORDER_KEY, 2)), 0);
}

static void filter_skips_events_that_do_not_match(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct filter *f;
    put(g->st, "c");
    for (int i = 0; i < 5; i++)
        emit_with(g->st, i % 2 ? "a.x" : "b.x", "1", i == 3 ? "{\"k\":1}" : "{\"k\":2}", 0);
    must(filter_new("a.*", "k = 1", &f, &err), &err);
    struct claim_request req = request("c", "me");
    req.filter = f;
    assert_int_equal(claim_by(g, req), 1);
    assert_int_equal(g->hint.skipped, 4);
    assert_string_equal(g->b.ev[0].type.p, "a.x");
    assert_true(settle(g, "c", NULL, 0));
    assert_int_equal(claim_by(g, req), 0);
    assert_true(g->hint.through);
    filter_free(f);
}

static void filter_that_never_matches_still_reaches_the_end(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct filter *f;
    put(g->st, "c");
    for (int i = 0; i < 50; i++)
        emit(g->st, "1");
    must(filter_new("zzz", NULL, &f, &err), &err);
    struct claim_request req = request("c", "me");
    req.filter = f;
    assert_int_equal(claim_by(g, req), 0);
    assert_int_equal(g->hint.skipped, 50);
    assert_int_equal(claim_by(g, req), 0);
    assert_int_equal(g->hint.skipped, 0);
    assert_true(g->hint.through);
    assert_int_equal(look(g, "c").behind, 0);
    filter_free(f);
}

static const struct CMUnitTest tests[] = {
    ON_A_STORE(claimed_events_are_invisible_to_other_workers),
    ON_A_STORE(racing_claimers_never_get_the_same_event),
    ON_A_STORE(without_order_owners_share_a_lane),
    ON_A_STORE(one_owner_may_hold_several_claims_on_a_lane),
    ON_A_STORE(claim_inside_a_transaction_is_refused),
    ON_A_STORE(events_that_do_not_fit_in_memory_are_not_claimed),
    ON_A_STORE(consumers_are_independent),
    ON_A_STORE(batch_ends_at_max_bytes),
    ON_A_STORE(lanes_split_the_keys_and_lose_none),
    ON_A_STORE(two_owners_work_on_different_lanes),
    ON_A_STORE(filter_skips_events_that_do_not_match),
    ON_A_STORE(filter_that_never_matches_still_reaches_the_end),
};

const struct suite_part store_claim_tests = SUITE_PART(tests);
