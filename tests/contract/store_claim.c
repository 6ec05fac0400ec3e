/* store_claim.c: claims, leases, and what goes wrong. */
#include "store_impl.h"

#include <pthread.h>

#include "base/json.h"

/* ---- claiming (G5, C1) ---- */

static void claimed_events_are_out_of_everyone_elses_reach(void **state)
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

/* Many claimers of one consumer without order, each with a connection of its own. */
#define RACERS 8
#define RACE_EVENTS 1000

struct race {
    int64_t seq[2 * RACE_EVENTS]; /* what anybody got; room to see what was given twice */
    size_t n;
    pthread_mutex_t lock;
};

struct racer {
    struct store *st;
    struct race *race;
    char owner[16];
    pthread_t thread;
    struct error err; /* of a claim that failed for another reason than that others were at it */
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
    claim_all(&r[RACERS]); /* what everybody stepped over in the end, if anything */

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

static void one_owner_may_hold_several_claims_of_a_lane(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    for (int i = 0; i < 4; i++)
        emit(g->st, "1");
    struct claim_request req = request("c", "me");
    req.max_events = 2;
    assert_int_equal(claim_by(g, req), 2);
    int64_t epoch = g->b.epoch;
    /* one it has forgotten, as when the answer got lost, is in the way */
    assert_int_equal(claim_by(g, req), 0);
    assert_true(g->hint.busy);
    req.known = &epoch;
    req.n_known = 1;
    assert_int_equal(claim_by(g, req), 2);
    assert_true(g->b.epoch > epoch);
}

static void settled_events_are_never_claimed_again(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 1);
    assert_true(settle(g, "c", NULL, 0));
    assert_int_equal(claim(g, "c"), 0);
    assert_true(g->hint.through);
    assert_int_equal(g->hint.wait_ms, -1);
    assert_int_equal(look(g, "c").delivered, 1);
}

static void settle_and_claim_share_one_call(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct batch next;
    bool lost;
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 1);
    emit(g->st, "2");
    struct settlement s = {.consumer = "c", .owner = "me", .order = ORDER_KEY, .b = &g->b};
    struct claim_request req = request("c", "me");
    must(g->st->ops->turn(g->st, &s, &lost, &req, &g->a, &next, &g->hint, &err), &err);
    assert_false(lost);
    assert_int_equal(next.n, 1);
    assert_string_equal(next.ev[0].aggregate_id.p, "2");
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

/* Nobody has tried them; a claim that ran out would count as an attempt. */
static void events_there_is_no_memory_for_are_not_claimed(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct arena small;
    struct claim_request req = request("c", "me");
    put(g->st, "c");
    emit(g->st, "1");
    for (int attempts = 0; attempts < 2; attempts++) { /* fresh, then parked */
        arena_init(&small, 64);
        assert_int_equal(g->st->ops->turn(g->st, NULL, NULL, &req, &small, &g->b, &g->hint, &err),
                         -1);
        assert_int_equal(err.code, ERR_NOMEM);
        arena_release(&small);
        assert_int_equal(look(g, "c").inflight, 0);
        assert_int_equal(claim(g, "c"), 1);
        assert_false(g->b.careful);
        assert_int_equal(g->b.ev[0].attempts, attempts);
        struct outcome o = failed(g, 0, attempts + 1, 1000);
        assert_true(settle(g, "c", &o, 1));
        pass(1000);
    }
}

static void consumers_dont_see_each_other(void **state)
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

    /* Each has a position, attempts, an error and dead letters of its own. */
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
    /* and `a`, which still holds the first one, kept it from nothing */
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

static void filter_passes_over_what_does_not_match(void **state)
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

static void a_filter_that_never_matches_still_gets_to_the_end(void **state)
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

/* ---- leases (G5, G6, G9) ---- */

/* late: whoever could not reach the store for longer than its lease knows what it delivered. */
static void claim_that_ran_out_is_settled_late_if_nobody_else_has_claimed(void **state)
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

/* Its own turn does not take over what it has in hand, even if that ran out; another's does. */
static void own_claims_that_ran_out_are_not_taken_over_by_their_owner(void **state)
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
    assert_true(g->b.careful);
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

static void lease_taken_while_the_clock_was_ahead_is_no_longer_than_it_was(void **state)
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

static void retry_parked_while_the_clock_was_ahead_waits_no_longer_than_it_was_told(void **state)
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
    claim(g, "c"); /* notices, though the delayed one is due before */
    pass(1000);
    assert_int_equal(claim(g, "c"), 1);
    assert_string_equal(g->b.ev[0].aggregate_id.p, "1");
}

/* It is looked for now and then only; when it was not, it is asked for again soon. */
static void clock_that_jumps_back_twice_in_a_row_makes_nobody_wait_for_long(void **state)
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

static void extended_claim_lives_on_and_a_lost_one_cannot_be_extended(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    bool lost;
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 1);
    pass(LEASE - 1);
    must(g->st->ops->extend(g->st, "c", "me", &g->b, LEASE, &lost, &err), &err);
    assert_false(lost);
    pass(LEASE - 1);
    must(g->st->ops->extend(g->st, "c", "you", &g->b, LEASE, &lost, &err), &err);
    assert_true(lost);
    pass(1000); /* it ran out, and nobody has claimed meanwhile */
    must(g->st->ops->extend(g->st, "c", "me", &g->b, LEASE, &lost, &err), &err);
    assert_false(lost);
    struct batch old = g->b;
    assert_int_equal(claim_by(g, request("c", "you")), 0);
    pass(LEASE);
    assert_int_equal(claim_by(g, request("c", "you")), 1);
    must(g->st->ops->extend(g->st, "c", "me", &old, LEASE, &lost, &err), &err);
    assert_true(lost);
}

static void taken_over_claim_is_fenced_and_gives_the_same_events_one_at_a_time(void **state)
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
        assert_true(g->b.careful);
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
    assert_false(g->b.careful);
    assert_string_equal(g->b.ev[0].aggregate_id.p, "9");
}

static void expired_claim_waits_for_the_earlier_ones_of_its_lane(void **state)
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
    assert_int_equal(claim_by(g, req),
                     /* and so would the third, for its owner as well, if it does not know of it */
                     0);
    pass(LEASE);
    for (int i = 0; i < 3; i++) {
        struct claim_request you = request("c", "you");
        you.parked_first = true;
        assert_int_equal(claim_by(g, you), 1);
        assert_int_equal(g->b.ev[0].seq, first + i);
        assert_true(settle_by(g, "c", "you", NULL, 0));
    }
}

static void careful_event_is_not_handed_out_beside_others(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 1);
    pass(LEASE);
    emit(g->st, "2");
    struct claim_request req = request("c", "you");
    req.parked_first = true;
    req.careful = CAREFUL_WAIT;
    assert_int_equal(claim_by(g, req), 0);
    assert_true(g->hint.careful);
    assert_false(g->hint.through);
    req.careful = CAREFUL_SKIP; /* another key need not wait */
    assert_int_equal(claim_by(g, req), 1);
    assert_string_equal(g->b.ev[0].aggregate_id.p, "2");
    assert_false(g->b.careful);
    req.careful = CAREFUL_TAKE;
    assert_int_equal(claim_by(g, req), 1);
    assert_true(g->b.careful);
}

static void poison_event_is_buried_alone(void **state)
{
    struct store_rig *g = *state;
    int delivered = 0, crashes = 0;
    put(g->st, "c");
    emit(g->st, "1");
    emit(g->st, "poison");
    emit(g->st, "3");
    assert_int_equal(claim(g, "c"), 3); /* and the process dies */
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

static void take_over_keeps_the_order_of_a_key(void **state)
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
    assert_int_equal(claim_by(g, req), 1); /* the fresh one, which may not go before them */
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

/* ---- exceptions (G2, G4) ---- */

static void failed_event_comes_back_when_due_and_holds_its_key_only(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    emit(g->st, "2");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 3);
    int64_t first = g->b.ev[0].seq;
    struct outcome o[2] = {failed(g, 0, 1, 1000), behind(g, 2)};
    assert_true(settle(g, "c", o, 2));
    emit(g->st, "1");
    emit(g->st, "2");
    assert_int_equal(claim(g, "c"), 2);
    assert_true(g->b.ev[0].behind);
    assert_false(g->b.ev[1].behind);
    o[0] = behind(g, 0);
    assert_true(settle(g, "c", o, 1));
    assert_int_equal(claim(g, "c"), 0);
    assert_in_range(g->hint.wait_ms, 999, 1001);
    assert_false(g->hint.through);
    assert_string_equal(look(g, "c").last_error, "boom");
    pass(1000);
    assert_int_equal(claim(g, "c"), 3); /* the failed one and what waits behind it, in order */
    assert_int_equal(g->b.ev[0].seq, first);
    assert_int_equal(g->b.ev[0].attempts, 1);
    assert_int_equal(g->b.ev[1].seq, first + 2);
    assert_int_equal(g->b.ev[2].seq, first + 3);
    assert_true(settle(g, "c", NULL, 0));
    assert_int_equal(claim(g, "c"), 0);
    assert_true(g->hint.through);
    assert_int_equal(look(g, "c").delivered, 5);
}

static void only_the_latest_error_is_kept(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 1);
    struct outcome o = failed(g, 0, 1, 10);
    assert_true(settle(g, "c", &o, 1));
    assert_string_equal(look(g, "c").last_error, "boom");
    pass(10);
    assert_int_equal(claim(g, "c"), 1);
    o = failed(g, 0, 2, 10);
    o.error = "another reason";
    assert_true(settle(g, "c", &o, 1));
    assert_string_equal(look(g, "c").last_error, "another reason");
    assert_int_equal(look(g, "c").parked, 1);
}

static void error_that_no_database_could_store_makes_no_settlement_fail(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    static char huge[10 << 20];
    static const char *const said[] = {"\xff\xfe not UTF-8 \xed\xa0\x80", "\x1b[31mred\x01\x7f",
                                       "\xc0\x80", huge};
    memset(huge, '\xe2', sizeof huge - 1);
    put(g->st, "c");
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        emit(g->st, NULL);
        emit(g->st, NULL);
        assert_int_equal(claim(g, "c"), 2);
        struct outcome o[2] = {failed(g, 0, 1, 1), failed(g, 1, 1, 0)};
        o[0].error = o[1].error = said[i];
        o[1].kind = OUTCOME_DEAD;
        assert_true(settle(g, "c", o, 2));
        assert_true(utf8_valid(str_of(look(g, "c").last_error), NULL));
        must(g->st->ops->consumer_report(g->st, "c", said[i], &err), &err);
        assert_true(utf8_valid(str_of(look(g, "c").last_error), NULL));
        must(g->st->ops->consumer_report(g->st, "c", NULL, &err), &err);
        pass(1);
        assert_int_equal(claim(g, "c"), 1);
        assert_true(settle(g, "c", NULL, 0));
    }
    assert_int_equal(look(g, "c").dead, 4);
}

static void followers_stay_behind_when_the_first_fails_again(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 2);
    struct outcome o[2] = {failed(g, 0, 1, 10), behind(g, 1)};
    assert_true(settle(g, "c", o, 2));
    pass(10);
    assert_int_equal(claim(g, "c"), 2);
    struct outcome again[2] = {failed(g, 0, 2, 10), behind(g, 1)};
    assert_true(settle(g, "c", again, 2));
    assert_int_equal(claim(g, "c"), 0);
    pass(10);
    assert_int_equal(claim(g, "c"), 2);
    assert_int_equal(g->b.ev[0].attempts, 2);
    assert_int_equal(g->b.ev[1].attempts, 0);
    struct outcome dead = {
        .ev = &g->b.ev[0], .kind = OUTCOME_DEAD, .attempts = 3, .error = "gave up"};
    /* the second was delivered once the first was out of the way */
    assert_true(settle(g, "c", &dead, 1));
    assert_int_equal(look(g, "c").dead, 1);
    assert_int_equal(look(g, "c").parked, 0);
}

/* The first is delivered, or buried, in the very settlement in which the second fails: that is out
 * of the way, but the second waits as long as it was told to. */
static void follower_that_fails_in_the_claim_of_its_first_waits_for_its_time(void **state)
{
    struct store_rig *g = *state;
    for (int way = 0; way < 2; way++) {
        const char *name = way ? "buried" : "delivered";
        put(g->st, name);
        for (int i = 0; way == 0 && i < 2; i++)
            emit(g->st, "1");
        assert_int_equal(claim(g, name), 2);
        struct outcome o[2] = {failed(g, 0, 1, 10), behind(g, 1)};
        assert_true(settle(g, name, o, 2));
        pass(10);
        assert_int_equal(claim(g, name), 2);
        struct outcome again[2] = {
            {.ev = &g->b.ev[0], .kind = OUTCOME_DEAD, .attempts = 2, .error = "gave up"},
            failed(g, 1, 1, 1000)};
        if (way)
            assert_true(settle(g, name, again, 2));
        else
            assert_true(settle(g, name, &again[1], 1));
        pass(990);
        assert_int_equal(claim(g, name), 0);
        pass(10);
        assert_int_equal(claim(g, name), 1);
        assert_int_equal(g->b.ev[0].attempts, 1);
        assert_true(settle(g, name, NULL, 0));
    }
}

static void what_waits_behind_steps_forward_when_the_first_is_buried(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 2);
    struct outcome o[2] = {failed(g, 0, 1, 10), behind(g, 1)};
    assert_true(settle(g, "c", o, 2));
    pass(10);
    struct claim_request req = request("c", "me");
    req.max_events = 1;
    assert_int_equal(claim_by(g, req), 1);
    struct outcome dead = {
        .ev = &g->b.ev[0], .kind = OUTCOME_DEAD, .attempts = 2, .error = "gave up"};
    assert_true(settle(g, "c", &dead, 1));
    assert_int_equal(claim(g, "c"), 1);
    assert_int_equal(g->b.ev[0].attempts, 0);
}

static void forgotten_claim_of_parked_events_is_waited_for_until_it_runs_out(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 1);
    struct outcome o = failed(g, 0, 1, 1000);
    assert_true(settle(g, "c", &o, 1));
    pass(1000);
    assert_int_equal(claim(g, "c"), 1); /* the answer gets lost: it does not know that it has it */
    int64_t epoch = g->b.epoch;
    assert_int_equal(claim(g, "c"), 0);
    assert_in_range(g->hint.wait_ms, 1, LEASE);
    struct claim_request req = request("c", "me");
    req.known = &epoch;
    req.n_known = 1;
    assert_int_equal(claim_by(g, req), 0);
    assert_int_equal(g->hint.wait_ms, -1); /* it does */
    pass(LEASE);
    claim(g, "c");
    assert_int_equal(g->hint.crashed, 1); /* taken over */
}

static void without_order_a_failure_holds_nobody_back(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    bool lost;
    put_as(g->st, "c", ORDER_NONE, 1);
    emit(g->st, "1");
    assert_int_equal(claim_by(g, request_as("c", "me", ORDER_NONE, 1)), 1);
    struct outcome o = failed(g, 0, 1, 1000);
    struct settlement s = {
        .consumer = "c", .owner = "me", .order = ORDER_NONE, .b = &g->b, .out = &o, .n = 1};
    must(g->st->ops->turn(g->st, &s, &lost, NULL, NULL, NULL, NULL, &err), &err);
    emit(g->st, "1");
    assert_int_equal(claim_by(g, request_as("c", "me", ORDER_NONE, 1)), 1);
    assert_false(g->b.ev[0].behind);
}

static void global_order_stops_at_a_failure_until_it_passes(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    bool lost;
    put_as(g->st, "c", ORDER_GLOBAL, 1);
    emit(g->st, "1");
    emit(g->st, "2");
    assert_int_equal(claim_by(g, request_as("c", "me", ORDER_GLOBAL, 1)), 2);
    struct outcome o[2] = {failed(g, 0, 1, 1000), behind(g, 1)};
    struct settlement s = {
        .consumer = "c", .owner = "me", .order = ORDER_GLOBAL, .b = &g->b, .out = o, .n = 2};
    must(g->st->ops->turn(g->st, &s, &lost, NULL, NULL, NULL, NULL, &err), &err);
    emit(g->st, "3");
    assert_int_equal(claim_by(g, request_as("c", "me", ORDER_GLOBAL, 1)), 0);
    assert_in_range(g->hint.wait_ms, 1, 1000);
    pass(1000);
    assert_int_equal(claim_by(g, request_as("c", "me", ORDER_GLOBAL, 1)), 2);
    s = (struct settlement){.consumer = "c", .owner = "me", .order = ORDER_GLOBAL, .b = &g->b};
    must(g->st->ops->turn(g->st, &s, &lost, NULL, NULL, NULL, NULL, &err), &err);
    assert_int_equal(claim_by(g, request_as("c", "me", ORDER_GLOBAL, 1)), 1);
    assert_string_equal(g->b.ev[0].aggregate_id.p, "3");
}

/* Three claims of another worker: the first failed, the second lives, the third was forgotten and
 * ran out, but has to wait for the second. Whoever looks waits for that, too, instead of looking
 * again and again. */
static void claim_that_ran_out_behind_a_live_one_makes_nobody_look_at_once(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct batch b[3];
    struct event first;
    bool lost;
    int64_t known[3];
    struct claim_request req = request_as("c", "you", ORDER_GLOBAL, 1);
    req.max_events = 1;
    req.known = known;
    put_as(g->st, "c", ORDER_GLOBAL, 1);
    for (int i = 0; i < 3; i++) {
        emit(g->st, "1");
        assert_int_equal(claim_by(g, req), 1);
        b[i] = g->b;
        if (i == 0)
            first = g->b.ev[0];
        known[req.n_known++] = g->b.epoch;
    }
    b[0].ev = &first;
    struct outcome o = {
        .ev = &first, .kind = OUTCOME_RETRY, .attempts = 1, .delay_ms = 3600000, .error = "x"};
    struct settlement s = {
        .consumer = "c", .owner = "you", .order = ORDER_GLOBAL, .b = &b[0], .out = &o, .n = 1};
    must(g->st->ops->turn(g->st, &s, &lost, NULL, NULL, NULL, NULL, &err), &err);
    assert_false(lost);
    pass(LEASE - 1);
    must(g->st->ops->extend(g->st, "c", "you", &b[1], LEASE, &lost, &err), &err);
    pass(2);
    assert_int_equal(claim_by(g, request_as("c", "me", ORDER_GLOBAL, 1)), 0);
    assert_true(g->hint.busy || g->hint.wait_ms > 0);
}

static void parked_event_goes_behind_an_earlier_one_that_was_parked_later(void **state)
{
    struct store_rig *g = *state;
    struct claim_request req = request("c", "me");
    put(g->st, "c");
    emit(g->st, "1");
    emit(g->st, "1");
    req.max_events = 1;
    assert_int_equal(claim_by(g, req), 1); /* the first: its worker is gone */
    int64_t first = g->b.ev[0].seq, epoch = g->b.epoch;
    req.known = &epoch;
    req.n_known = 1;
    req.lease_ms = 2 * LEASE;
    assert_int_equal(claim_by(g, req), 1);
    struct outcome o = behind(g, 0);
    assert_true(settle(g, "c", &o, 1)); /* finds nothing before it: due at once */
    pass(LEASE);
    struct claim_request you = request("c", "you");
    you.parked_first = true;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(claim_by(g, you), 1);
        assert_int_equal(g->b.ev[0].seq, first + i);
        assert_true(settle_by(g, "c", "you", NULL, 0));
    }
}

static void delayed_event_waits_for_its_time(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit_with(g->st, "x", "1", "{}", store_now.wall + 5000);
    assert_int_equal(claim(g, "c"), 1);
    assert_true(g->b.ev[0].delayed);
    struct outcome o = {.ev = &g->b.ev[0], .kind = OUTCOME_DELAY};
    assert_true(settle(g, "c", &o, 1));
    assert_int_equal(claim(g, "c"), 0);
    assert_true(g->hint.through); /* nobody waits for it when draining */
    assert_in_range(g->hint.wait_ms, 4999, 5001);
    pass(5000);
    assert_int_equal(claim(g, "c"), 1);
    assert_false(g->b.ev[0].delayed);
}

static void delayed_event_that_is_due_is_not_through(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit_with(g->st, "x", NULL, "{}", store_now.wall + LEASE + 5000);
    assert_int_equal(claim(g, "c"), 1);
    pass(LEASE); /* its worker is gone */
    struct claim_request req = request("c", "you");
    req.careful = CAREFUL_SKIP;
    assert_int_equal(claim_by(g, req), 0); /* taken over before its time: careful and delayed */
    assert_int_equal(g->hint.crashed, 1);
    assert_true(g->hint.through);
    pass(5000);
    /* due, but another consumer of the process is at a careful event */
    assert_int_equal(claim_by(g, req), 0);
    assert_false(g->hint.through);
    assert_int_equal(claim(g, "c"), 1);
}

static void released_tail_is_handed_out_again_as_if_never_claimed(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    bool lost;
    put(g->st, "c");
    for (int i = 0; i < 4; i++)
        emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 4);
    int64_t first = g->b.ev[0].seq;
    struct settlement s = {
        .consumer = "c", .owner = "me", .order = ORDER_KEY, .b = &g->b, .release_from = first + 2};
    must(g->st->ops->turn(g->st, &s, &lost, NULL, NULL, NULL, NULL, &err), &err);
    assert_false(lost);
    assert_int_equal(look(g, "c").parked, 0);
    assert_int_equal(look(g, "c").delivered, 2);
    assert_int_equal(claim_by(g, request("c", "you")), 2);
    assert_int_equal(g->b.ev[0].seq, first + 2);
    assert_int_equal(g->b.ev[0].attempts, 0);
}

static void what_the_predicate_excludes_is_not_counted_as_given_back(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct filter *f;
    bool lost;
    put(g->st, "c");
    must(filter_new("", "k = 1", &f, &err), &err);
    struct claim_request req = request("c", "me");
    req.filter = f;
    for (int i = 0; i < 3; i++) {
        emit_with(g->st, "a", "1", "{\"k\":1}", 0);
        emit_with(g->st, "a", "1", "{\"k\":2}", 0);
    }
    assert_int_equal(claim_by(g, req), 3);
    struct settlement s = {.consumer = "c",
                           .owner = "me",
                           .order = ORDER_KEY,
                           .b = &g->b,
                           .release_from = g->b.ev[1].seq};
    must(g->st->ops->turn(g->st, &s, &lost, NULL, NULL, NULL, NULL, &err), &err);
    assert_int_equal(look(g, "c").delivered, 1);
    assert_int_equal(claim_by(g, req), 2);
    assert_true(settle(g, "c", NULL, 0));
    assert_int_equal(look(g, "c").delivered, 3);
    filter_free(f);
}

static void released_tail_goes_back_also_when_events_behind_it_were_passed_over(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct filter *f;
    bool lost;
    put(g->st, "c");
    must(filter_new("a.*", NULL, &f, &err), &err);
    struct claim_request req = request("c", "me");
    req.filter = f;
    emit_with(g->st, "a.x", "1", "{}", 0);
    emit_with(g->st, "a.x", "1", "{}", 0);
    assert_int_equal(claim_by(g, req), 2);
    struct batch one = g->b;
    struct event copies[2];
    memcpy(copies, one.ev, sizeof copies);
    one.ev = copies;
    emit_with(g->st, "b.x", "1", "{}", 0);
    req.known = &one.epoch;
    req.n_known = 1;
    assert_int_equal(claim_by(g, req), 0); /* moves the position past it */
    assert_int_equal(g->hint.skipped, 1);
    struct settlement s = {.consumer = "c",
                           .owner = "me",
                           .order = ORDER_KEY,
                           .b = &one,
                           .release_from = one.from + 1};
    must(g->st->ops->turn(g->st, &s, &lost, NULL, NULL, NULL, NULL, &err), &err);
    assert_int_equal(look(g, "c").parked, 0);
    assert_int_equal(claim_by(g, req), 2);
    assert_false(g->b.parked);
    filter_free(f);
}

static void released_tail_before_another_claim_is_parked(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    bool lost;
    struct claim_request req = request("c", "me");
    put(g->st, "c");
    for (int i = 0; i < 4; i++)
        emit(g->st, "1");
    req.max_events = 2;
    assert_int_equal(claim_by(g, req), 2);
    struct batch one = g->b;
    struct event copies[2];
    memcpy(copies, one.ev, sizeof copies);
    one.ev = copies;
    struct arena keep = g->a;
    arena_init(&g->a, 0);
    req.known = &one.epoch;
    req.n_known = 1;
    assert_int_equal(claim_by(g, req), 2);
    struct settlement s = {.consumer = "c",
                           .owner = "me",
                           .order = ORDER_KEY,
                           .b = &one,
                           .release_from = copies[0].seq};
    must(g->st->ops->turn(g->st, &s, &lost, NULL, NULL, NULL, NULL, &err), &err);
    assert_int_equal(look(g, "c").parked, 2);
    struct batch two = g->b;
    arena_release(&keep);
    assert_int_equal(claim(g, "c"), 2);
    assert_true(g->b.parked);
    assert_true(two.n == 2);
}

static void receipts_can_be_kept(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 1);
    struct outcome o = {.ev = &g->b.ev[0], .kind = OUTCOME_DELIVERED, .receipt = "1748-0"};
    assert_true(settle(g, "c", &o, 1));
    assert_int_equal(look(g, "c").delivered, 1);
}

struct marks_seen {
    char text[256];
};

static int see_mark(void *ctx, const char *consumer, const struct hwm *m, int64_t at)
{
    struct marks_seen *seen = ctx;
    size_t n = strlen(seen->text);
    assert_true(at > 0);
    snprintf(seen->text + n, sizeof seen->text - n, "%s/%.*s=%lld-%lld ", consumer,
             (int)m->stream.n, m->stream.p, (long long)m->hi, (long long)m->lo);
    return 0;
}

static void assert_marks(struct store_rig *g, const char *stream, const char *want)
{
    struct marks_seen seen = {""};
    struct error err;
    must(g->st->ops->marks(g->st, stream, see_mark, &seen, &err), &err);
    assert_string_equal(seen.text, want);
}

static bool settle_with(struct store_rig *g, const char *consumer, const char *owner,
                        const struct hwm *marks, size_t n)
{
    struct error err;
    bool lost;
    struct settlement s = {.consumer = consumer,
                           .owner = owner,
                           .order = ORDER_KEY,
                           .b = &g->b,
                           .marks = marks,
                           .n_marks = n};
    must(g->st->ops->turn(g->st, &s, &lost, NULL, NULL, NULL, NULL, &err), &err);
    return !lost;
}

static void marks_are_kept_with_the_settlement_and_never_go_back(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    put(g->st, "d");
    for (int i = 0; i < 3; i++)
        emit(g->st, "1");
    assert_marks(g, NULL, "");
    assert_int_equal(claim(g, "c"), 3);
    const struct hwm two[] = {{STR("a \"'\\"), 5, 7}, {STR("b"), 5, 1}};
    assert_true(settle_with(g, "c", "me", two, 2));
    assert_marks(g, NULL, "c/a \"'\\=5-7 c/b=5-1 ");
    assert_marks(g, "b", "c/b=5-1 ");
    assert_marks(g, "none", "");

    /* Also by a claim that is lost: it was written over there. But never back. */
    assert_int_equal(claim(g, "d"), 3);
    const struct hwm further[] = {{STR("b"), 5, 3}};
    assert_false(settle_with(g, "d", "another", further, 1));
    assert_marks(g, "b", "d/b=5-3 c/b=5-1 ");
    const struct hwm back[] = {{STR("b"), 4, 9}};
    assert_true(settle_with(g, "d", "me", back, 1));
    assert_marks(g, "b", "d/b=5-3 c/b=5-1 ");

    struct error err;
    must(g->st->ops->consumer_remove(g->st, "d", false, &err), &err);
    assert_marks(g, "b", "c/b=5-1 ");
}

static const struct CMUnitTest tests[] = {
    ON_A_STORE(claimed_events_are_out_of_everyone_elses_reach),
    ON_A_STORE(racing_claimers_never_get_the_same_event),
    ON_A_STORE(without_order_owners_share_a_lane),
    ON_A_STORE(one_owner_may_hold_several_claims_of_a_lane),
    ON_A_STORE(settled_events_are_never_claimed_again),
    ON_A_STORE(settle_and_claim_share_one_call),
    ON_A_STORE(claim_inside_a_transaction_is_refused),
    ON_A_STORE(events_there_is_no_memory_for_are_not_claimed),
    ON_A_STORE(consumers_dont_see_each_other),
    ON_A_STORE(batch_ends_at_max_bytes),
    ON_A_STORE(lanes_split_the_keys_and_lose_none),
    ON_A_STORE(two_owners_work_on_different_lanes),
    ON_A_STORE(filter_passes_over_what_does_not_match),
    ON_A_STORE(a_filter_that_never_matches_still_gets_to_the_end),
    ON_A_STORE(claim_that_ran_out_is_settled_late_if_nobody_else_has_claimed),
    ON_A_STORE(own_claims_that_ran_out_are_not_taken_over_by_their_owner),
    ON_A_STORE(live_claim_is_never_stolen),
    ON_A_STORE(lease_taken_while_the_clock_was_ahead_is_no_longer_than_it_was),
    ON_A_STORE(retry_parked_while_the_clock_was_ahead_waits_no_longer_than_it_was_told),
    ON_A_STORE(clock_that_jumps_back_twice_in_a_row_makes_nobody_wait_for_long),
    ON_A_STORE(extended_claim_lives_on_and_a_lost_one_cannot_be_extended),
    ON_A_STORE(taken_over_claim_is_fenced_and_gives_the_same_events_one_at_a_time),
    ON_A_STORE(expired_claim_waits_for_the_earlier_ones_of_its_lane),
    ON_A_STORE(careful_event_is_not_handed_out_beside_others),
    ON_A_STORE(poison_event_is_buried_alone),
    ON_A_STORE(take_over_keeps_the_order_of_a_key),
    ON_A_STORE(failed_event_comes_back_when_due_and_holds_its_key_only),
    ON_A_STORE(only_the_latest_error_is_kept),
    ON_A_STORE(error_that_no_database_could_store_makes_no_settlement_fail),
    ON_A_STORE(followers_stay_behind_when_the_first_fails_again),
    ON_A_STORE(follower_that_fails_in_the_claim_of_its_first_waits_for_its_time),
    ON_A_STORE(what_waits_behind_steps_forward_when_the_first_is_buried),
    ON_A_STORE(forgotten_claim_of_parked_events_is_waited_for_until_it_runs_out),
    ON_A_STORE(without_order_a_failure_holds_nobody_back),
    ON_A_STORE(global_order_stops_at_a_failure_until_it_passes),
    ON_A_STORE(claim_that_ran_out_behind_a_live_one_makes_nobody_look_at_once),
    ON_A_STORE(parked_event_goes_behind_an_earlier_one_that_was_parked_later),
    ON_A_STORE(delayed_event_waits_for_its_time),
    ON_A_STORE(delayed_event_that_is_due_is_not_through),
    ON_A_STORE(released_tail_is_handed_out_again_as_if_never_claimed),
    ON_A_STORE(what_the_predicate_excludes_is_not_counted_as_given_back),
    ON_A_STORE(released_tail_goes_back_also_when_events_behind_it_were_passed_over),
    ON_A_STORE(released_tail_before_another_claim_is_parked),
    ON_A_STORE(receipts_can_be_kept),
    ON_A_STORE(marks_are_kept_with_the_settlement_and_never_go_back),
};

const struct store_tests store_claim_tests = STORE_TESTS(tests);
