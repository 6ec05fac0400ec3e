/* store_failure.c: events that failed, wait or are delayed, and the order they keep (G2, G4). */
#include "store_impl.h"

#include "base/json.h"

static void failed_event_returns_when_due_and_holds_back_only_its_key(void **state)
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
    assert_int_equal(claim(g, "c"), 3); /* the failed one and those behind it, in order */
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

static void unstorable_error_text_does_not_fail_the_settlement(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    static char huge[10 << 20];
    static const char *const said[] = {"\xff\xfe not UTF-8 \xed\xa0\x80", "\x1b[31mred\x01\x7f",
                                       "\xc0\x80", huge};
    memset(huge, '\xe2', sizeof huge - 1);
    put(g->st, "c");
    for (size_t i = 0; i < COUNT(said); i++) {
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
    /* The second is delivered once the first is out of the way. */
    assert_true(settle(g, "c", &dead, 1));
    assert_int_equal(look(g, "c").dead, 1);
    assert_int_equal(look(g, "c").parked, 0);
}

/* The first is delivered, or buried, in the settlement in which the second fails. It no longer
 * blocks the key, but the second still waits for its own delay. */
static void follower_failing_in_the_same_claim_waits_for_its_time(void **state)
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

static void events_waiting_behind_a_buried_one_move_up(void **state)
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

static void lost_claim_of_parked_events_blocks_until_it_expires(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 1);
    struct outcome o = failed(g, 0, 1, 1000);
    assert_true(settle(g, "c", &o, 1));
    pass(1000);
    /* The answer is lost, so the worker does not know of its claim. */
    assert_int_equal(claim(g, "c"), 1);
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

static void without_order_a_failure_does_not_hold_back_events(void **state)
{
    struct store_rig *g = *state;
    put_as(g->st, "c", ORDER_NONE, 1);
    emit(g->st, "1");
    assert_int_equal(claim_by(g, request_as("c", "me", ORDER_NONE, 1)), 1);
    struct outcome o = failed(g, 0, 1, 1000);
    struct settlement s = {
        .consumer = "c", .owner = "me", .order = ORDER_NONE, .b = &g->b, .out = &o, .n = 1};
    settle_as(g, &s);
    emit(g->st, "1");
    assert_int_equal(claim_by(g, request_as("c", "me", ORDER_NONE, 1)), 1);
    assert_false(g->b.ev[0].behind);
}

static void global_order_stops_at_a_failure_until_it_passes(void **state)
{
    struct store_rig *g = *state;
    put_as(g->st, "c", ORDER_GLOBAL, 1);
    emit(g->st, "1");
    emit(g->st, "2");
    assert_int_equal(claim_by(g, request_as("c", "me", ORDER_GLOBAL, 1)), 2);
    struct outcome o[2] = {failed(g, 0, 1, 1000), behind(g, 1)};
    struct settlement s = {
        .consumer = "c", .owner = "me", .order = ORDER_GLOBAL, .b = &g->b, .out = o, .n = 2};
    settle_as(g, &s);
    emit(g->st, "3");
    assert_int_equal(claim_by(g, request_as("c", "me", ORDER_GLOBAL, 1)), 0);
    assert_in_range(g->hint.wait_ms, 1, 1000);
    pass(1000);
    assert_int_equal(claim_by(g, request_as("c", "me", ORDER_GLOBAL, 1)), 2);
    s = (struct settlement){.consumer = "c", .owner = "me", .order = ORDER_GLOBAL, .b = &g->b};
    settle_as(g, &s);
    assert_int_equal(claim_by(g, request_as("c", "me", ORDER_GLOBAL, 1)), 1);
    assert_string_equal(g->b.ev[0].aggregate_id.p, "3");
}

/* Another worker has three claims: the first has failed, the second is alive, and the third, which
 * it forgot, has expired but must wait for the second. Other workers must wait too, instead of
 * polling in a loop. */
static void claim_expired_behind_a_live_one_never_causes_busy_polling(void **state)
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
    assert_true(settle_as(g, &s));
    pass(LEASE - 1);
    must(extend_by(g, "you", &b[1], &lost, &err), &err);
    pass(2);
    assert_int_equal(claim_by(g, request_as("c", "me", ORDER_GLOBAL, 1)), 0);
    assert_true(g->hint.busy || g->hint.wait_ms > 0);
}

static void parked_event_waits_for_an_earlier_one_parked_later(void **state)
{
    struct store_rig *g = *state;
    struct claim_request req = request("c", "me");
    put(g->st, "c");
    emit(g->st, "1");
    emit(g->st, "1");
    req.max_events = 1;
    assert_int_equal(claim_by(g, req), 1); /* the first, whose worker dies */
    int64_t first = g->b.ev[0].seq, epoch = g->b.epoch;
    req.known = &epoch;
    req.n_known = 1;
    req.lease_ms = 2 * LEASE;
    assert_int_equal(claim_by(g, req), 1);
    struct outcome o = behind(g, 0);
    assert_true(settle(g, "c", &o, 1)); /* no event is parked before it, so it is due at once */
    pass(LEASE);
    struct claim_request you = request("c", "you");
    you.parked_first = true;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(claim_by(g, you), 1);
        assert_int_equal(g->b.ev[0].seq, first + i);
        assert_true(settle_by(g, "c", "you", NULL, 0));
    }
}

/* emit_keys emits an event for each of the keys "0", "1", ... */
static void emit_keys(struct store_rig *g, int n)
{
    for (int i = 0; i < n; i++) {
        char key[16];
        snprintf(key, sizeof key, "%d", i);
        emit(g->st, key);
    }
}

/* park_first claims and settles; the first n events failed, and wait for an hour. */
static void park_first(struct store_rig *g, size_t n)
{
    struct outcome out[10];
    claim(g, "c");
    assert_true(n <= g->b.n && n <= COUNT(out));
    for (size_t i = 0; i < n; i++)
        out[i] = failed(g, i, 1, 3600000);
    assert_true(settle(g, "c", out, n));
}

/* held_keys_are claims an event of each key, and returns which of them are held back. */
static void held_keys_are(struct store_rig *g, const char *held)
{
    size_t n = strlen(held);
    emit_keys(g, (int)n);
    assert_int_equal(claim(g, "c"), n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(g->b.ev[i].behind, held[i] == 'y');
    assert_true(settle(g, "c", NULL, 0));
}

/* A worker may remember which keys are held back, but others park events as well. */
static void key_parked_by_another_worker_is_held_back(void **state)
{
    struct store_rig *g = *state;
    struct store *mine = g->st, *others;
    struct error err;
    put(mine, "c");
    must(mine->ops->dup(mine, &others, &err), &err);
    emit_keys(g, 8);
    park_first(g, 3);
    held_keys_are(g, "yyynnnnn");

    g->st = others;
    held_keys_are(g, "yyynnnnn");
    emit(g->st, "3");
    park_first(g, 1);
    g->st = mine;
    held_keys_are(g, "yyyynnnn");

    emit(g->st, "7");
    claim(g, "c");
    struct outcome buried = dead(g, 0, 1);
    assert_true(settle(g, "c", &buried, 1));
    held_keys_are(g, "yyyynnnn");
    g->st = others;
    assert_int_equal(retry_dead(g, (struct dead_query){.consumer = "c"}), 1);
    g->st = mine;
    emit_keys(g, 8);
    struct claim_request req = request("c", "me");
    assert_int_equal(claim_by(g, req), 8);
    assert_true(g->b.ev[7].behind);
    others->ops->close(others);
}

/* The handle knows only the state of its last read. */
static void retried_dead_letter_holds_its_key_on_the_same_handle(void **state)
{
    struct store_rig *g = *state;
    struct claim_request req = request("c", "me");
    put(g->st, "c");
    emit(g->st, "7");
    claim(g, "c");
    struct outcome buried = dead(g, 0, 1);
    assert_true(settle(g, "c", &buried, 1));
    emit_keys(g, 8);
    park_first(g, 3);
    held_keys_are(g, "yyynnnnn");
    assert_int_equal(retry_dead(g, (struct dead_query){.consumer = "c"}), 1);
    emit_keys(g, 8);
    assert_int_equal(claim_by(g, req), 8);
    assert_false(g->b.ev[6].behind);
    assert_true(g->b.ev[7].behind);
}

static void unparked_event_no_longer_holds_back_its_key(void **state)
{
    struct store_rig *g = *state;
    struct claim_request req = request("c", "me");
    put(g->st, "c");
    emit_keys(g, 8);
    park_first(g, 4);
    held_keys_are(g, "yyyynnnn");
    pass(3600001);
    req.parked_first = true;
    req.max_events = 3;
    assert_int_equal(claim_by(g, req), 3);
    assert_true(g->b.parked);
    assert_true(settle(g, "c", NULL, 0));
    held_keys_are(g, "nnnynnnn");
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
    assert_true(g->hint.through); /* a drain does not wait for it */
    assert_in_range(g->hint.wait_ms, 4999, 5001);
    pass(5000);
    assert_int_equal(claim(g, "c"), 1);
    assert_false(g->b.ev[0].delayed);
}

static void due_delayed_event_counts_as_outstanding(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit_with(g->st, "x", NULL, "{}", store_now.wall + LEASE + 5000);
    assert_int_equal(claim(g, "c"), 1);
    pass(LEASE); /* its worker died */
    struct claim_request req = request("c", "you");
    req.suspect = SUSPECT_SKIP;
    /* Taken over early, it is both suspect and delayed. */
    assert_int_equal(claim_by(g, req), 0);
    assert_int_equal(g->hint.crashed, 1);
    assert_true(g->hint.through);
    pass(5000);
    /* It is due, but the request excludes suspect events. */
    assert_int_equal(claim_by(g, req), 0);
    assert_false(g->hint.through);
    assert_int_equal(claim(g, "c"), 1);
}

/* forty emits an event of each of 40 keys. */
static void forty(struct store_rig *g)
{
    for (int i = 0; i < 40; i++) {
        char key[16];
        snprintf(key, sizeof key, "%d", i);
        emit(g->st, key);
    }
}

static bool is_even(const struct event *ev)
{
    return atoi(ev->aggregate_id.p) % 2 == 0;
}

/* Many failures in a batch, and many events behind them, are recorded at once. */
static void each_of_many_failures_holds_back_only_its_own_key(void **state)
{
    struct store_rig *g = *state;
    struct outcome out[40];
    size_t n = 0;
    put(g->st, "c");
    forty(g);
    assert_int_equal(claim(g, "c"), 40);
    for (size_t i = 0; i < g->b.n; i++)
        if (is_even(&g->b.ev[i]))
            out[n++] = failed(g, i, 1, 5000);
    assert_true(settle(g, "c", out, n));

    forty(g);
    assert_int_equal(claim(g, "c"), 40);
    n = 0;
    for (size_t i = 0; i < g->b.n; i++) {
        assert_int_equal(g->b.ev[i].behind, is_even(&g->b.ev[i]));
        if (g->b.ev[i].behind)
            out[n++] = behind(g, i);
    }
    assert_true(settle(g, "c", out, n));
    assert_int_equal(claim(g, "c"), 0);

    pass(5000);
    int64_t last[40] = {0};
    assert_int_equal(claim(g, "c"), 40);
    for (size_t i = 0; i < g->b.n; i++) {
        const struct event *ev = &g->b.ev[i];
        assert_true(is_even(ev) && ev->seq > last[atoi(ev->aggregate_id.p)]);
        last[atoi(ev->aggregate_id.p)] = ev->seq;
    }
    assert_true(settle(g, "c", NULL, 0));
    assert_int_equal(claim(g, "c"), 0);
}

static const struct CMUnitTest tests[] = {
    ON_A_STORE(each_of_many_failures_holds_back_only_its_own_key),
    ON_A_STORE(failed_event_returns_when_due_and_holds_back_only_its_key),
    ON_A_STORE(only_the_latest_error_is_kept),
    ON_A_STORE(unstorable_error_text_does_not_fail_the_settlement),
    ON_A_STORE(followers_stay_behind_when_the_first_fails_again),
    ON_A_STORE(follower_failing_in_the_same_claim_waits_for_its_time),
    ON_A_STORE(events_waiting_behind_a_buried_one_move_up),
    ON_A_STORE(lost_claim_of_parked_events_blocks_until_it_expires),
    ON_A_STORE(without_order_a_failure_does_not_hold_back_events),
    ON_A_STORE(global_order_stops_at_a_failure_until_it_passes),
    ON_A_STORE(claim_expired_behind_a_live_one_never_causes_busy_polling),
    ON_A_STORE(parked_event_waits_for_an_earlier_one_parked_later),
    ON_A_STORE(key_parked_by_another_worker_is_held_back),
    ON_A_STORE(retried_dead_letter_holds_its_key_on_the_same_handle),
    ON_A_STORE(unparked_event_no_longer_holds_back_its_key),
    ON_A_STORE(delayed_event_waits_for_its_time),
    ON_A_STORE(due_delayed_event_counts_as_outstanding),
};

const struct suite_part store_failure_tests = SUITE_PART(tests);
