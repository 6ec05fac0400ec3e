/* store_settle.c: settlements: released events, receipts and marks. */
#include "store_impl.h"

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

static void released_tail_is_handed_out_as_if_never_claimed(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    for (int i = 0; i < 4; i++)
        emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 4);
    int64_t first = g->b.ev[0].seq;
    struct settlement s = {
        .consumer = "c", .owner = "me", .order = ORDER_KEY, .b = &g->b, .release_from = first + 2};
    assert_true(settle_as(g, &s));
    assert_int_equal(look(g, "c").parked, 0);
    assert_int_equal(look(g, "c").delivered, 2);
    assert_int_equal(claim_by(g, request("c", "you")), 2);
    assert_int_equal(g->b.ev[0].seq, first + 2);
    assert_int_equal(g->b.ev[0].attempts, 0);
}

static void events_excluded_by_the_predicate_are_not_released(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct filter *f;
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
    settle_as(g, &s);
    assert_int_equal(look(g, "c").delivered, 1);
    assert_int_equal(claim_by(g, req), 2);
    assert_true(settle(g, "c", NULL, 0));
    assert_int_equal(look(g, "c").delivered, 3);
    filter_free(f);
}

/* selective registers consumer c, without order and with the predicate k = 1. */
static struct claim_request selective(struct store_rig *g, struct filter **ret_f)
{
    struct error err;
    struct consumer_spec c = spec_of("c");
    c.where = "k = 1";
    c.order = ORDER_NONE;
    put_spec(g->st, &c);

    must(filter_new(c.events, c.where, ret_f, &err), &err);
    struct claim_request req = request_as("c", "me", ORDER_NONE, 1);
    req.events = c.events;
    req.where = c.where;
    req.filter = *ret_f;
    return req;
}

/* Events released while later ones are claimed are parked, including those the predicate
 * excludes where only a worker can apply it. */
static void released_event_is_still_excluded_by_the_predicate(void **state)
{
    struct store_rig *g = *state;
    struct filter *f;
    struct claim_request req = selective(g, &f);
    for (int i = 0; i < 4; i++) {
        emit_with(g->st, "a", "1", "{\"k\":1}", 0);
        emit_with(g->st, "a", "1", "{\"k\":2}", 0);
    }
    req.max_events = 4;
    size_t in_hand = claim_by(g, req);
    assert_in_range(in_hand, 2, 4);
    struct batch first = g->b;
    struct arena keep = g->a;
    arena_init(&g->a, 0);
    emit_with(g->st, "a", "1", "{\"k\":1}", 0);
    assert_true(claim_by(g, req) > 0);
    assert_true(g->b.epoch > first.epoch);

    struct settlement s = {.consumer = "c",
                           .owner = "me",
                           .order = ORDER_NONE,
                           .b = &first,
                           .release_from = first.ev[0].seq};
    assert_true(settle_as(g, &s));
    arena_release(&keep);
    assert_true(look(g, "c").parked >= (int64_t)in_hand);

    size_t delivered = 0;
    for (int i = 0; i < 20; i++) {
        s = (struct settlement){.consumer = "c", .owner = "me", .order = ORDER_NONE, .b = &g->b};
        if (g->b.n > 0)
            assert_true(settle_as(g, &s));
        delivered += g->b.n;
        claim_by(g, req);
        for (size_t k = 0; k < g->b.n; k++)
            assert_string_equal(g->b.ev[k].payload.p, "{\"k\":1}");
    }
    assert_int_equal(delivered, 5);
    assert_int_equal(look(g, "c").parked, 0);
    filter_free(f);
}

static void released_tail_with_skipped_events_is_claimed_again(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct filter *f;
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
    assert_int_equal(claim_by(g, req), 0); /* moves the position past b.x */
    assert_int_equal(g->hint.skipped, 1);
    struct settlement s = {.consumer = "c",
                           .owner = "me",
                           .order = ORDER_KEY,
                           .b = &one,
                           .release_from = one.from + 1};
    settle_as(g, &s);
    assert_int_equal(look(g, "c").parked, 0);
    assert_int_equal(claim_by(g, req), 2);
    assert_false(g->b.parked);
    filter_free(f);
}

static void released_tail_before_another_claim_is_parked(void **state)
{
    struct store_rig *g = *state;
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
    settle_as(g, &s);
    assert_int_equal(look(g, "c").parked, 2);
    struct batch two = g->b;
    arena_release(&keep);
    assert_int_equal(claim(g, "c"), 2);
    assert_true(g->b.parked);
    assert_true(two.n == 2);
}

static void receipts_can_be_stored(void **state)
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
    struct settlement s = {.consumer = consumer,
                           .owner = owner,
                           .order = ORDER_KEY,
                           .b = &g->b,
                           .marks = marks,
                           .n_marks = n};
    return settle_as(g, &s);
}

static void marks_commit_with_the_settlement_and_only_advance(void **state)
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

    /* A lost claim also moves a mark, since the entry was written. But no mark moves backwards. */
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

/* A worker that claims no more events passes no arena. Others may be active meanwhile. */
static void settle_only_turn_does_not_need_caller_memory(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    bool lost = true;
    put_as(g->st, "c", ORDER_NONE, 1);
    emit(g->st, "1");
    emit(g->st, "2");
    struct claim_request req = request_as("c", "other", ORDER_NONE, 1);
    req.max_events = 1;
    assert_int_equal(claim_by(g, req), 1);
    struct claim_request mine = request_as("c", "me", ORDER_NONE, 1);
    mine.max_events = 1;
    assert_int_equal(claim_by(g, mine), 1);

    struct settlement s = {.consumer = "c", .owner = "me", .order = ORDER_NONE, .b = &g->b};
    struct batch none;
    struct claim_hint hint;
    mine.max_events = 0;
    must(g->st->ops->turn(g->st, &s, &lost, &mine, NULL, &none, &hint, &err), &err);
    assert_false(lost);
    assert_int_equal(none.n, 0);
    assert_int_equal(look(g, "c").delivered, 1);
}

/* turn_of settles g->b, and claims up to max into *ret, which lives in a. */
static void turn_of(struct store_rig *g, struct settlement s, size_t max, struct arena *a,
                    struct batch *ret)
{
    struct error err;
    bool lost = true;
    struct claim_request req = request("c", "me");
    req.max_events = max;
    s.consumer = "c";
    s.owner = "me";
    s.order = ORDER_KEY;
    s.b = &g->b;
    must(g->st->ops->turn(g->st, &s, &lost, &req, a, ret, &g->hint, &err), &err);
    assert_false(lost);
}

static void turn_that_parks_an_event_claims_its_follower_as_waiting(void **state)
{
    struct store_rig *g = *state;
    struct arena a;
    struct batch next;
    arena_init(&a, 0);
    put(g->st, "c");
    emit(g->st, "1");
    emit(g->st, "1");
    struct claim_request one = request("c", "me");
    one.max_events = 1;
    assert_int_equal(claim_by(g, one), 1);
    assert_false(g->b.ev[0].behind);

    struct outcome o = failed(g, 0, 1, 60000);
    turn_of(g, (struct settlement){.out = &o, .n = 1}, 1, &a, &next);
    assert_int_equal(next.n, 1);
    assert_true(next.ev[0].seq > g->b.ev[0].seq);
    assert_true(next.ev[0].behind);
    arena_release(&a);
}

static void turn_that_releases_events_claims_them_again(void **state)
{
    struct store_rig *g = *state;
    struct arena a;
    struct batch next;
    arena_init(&a, 0);
    put(g->st, "c");
    for (int i = 0; i < 3; i++)
        emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 3);
    int64_t second = g->b.ev[1].seq;

    turn_of(g, (struct settlement){.release_from = second}, 100, &a, &next);
    assert_int_equal(next.n, 2);
    assert_int_equal(next.ev[0].seq, second);
    arena_release(&a);
}

static const struct CMUnitTest tests[] = {
    ON_A_STORE(turn_that_parks_an_event_claims_its_follower_as_waiting),
    ON_A_STORE(turn_that_releases_events_claims_them_again),
    ON_A_STORE(settle_only_turn_does_not_need_caller_memory),
    ON_A_STORE(settled_events_are_never_claimed_again),
    ON_A_STORE(settle_and_claim_share_one_call),
    ON_A_STORE(released_tail_is_handed_out_as_if_never_claimed),
    ON_A_STORE(events_excluded_by_the_predicate_are_not_released),
    ON_A_STORE(released_event_is_still_excluded_by_the_predicate),
    ON_A_STORE(released_tail_with_skipped_events_is_claimed_again),
    ON_A_STORE(released_tail_before_another_claim_is_parked),
    ON_A_STORE(receipts_can_be_stored),
    ON_A_STORE(marks_commit_with_the_settlement_and_only_advance),
};

const struct suite_part store_settle_tests = SUITE_PART(tests);
