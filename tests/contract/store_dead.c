/* store_dead.c: dead letters, and events retried on request. */
#include "store_impl.h"

static void dead_letter_is_kept_whole_and_survives_trimming(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct trim_result t;
    put(g->st, "c");
    emit_with(g->st, "x", "1", "{\"keep\":true}", 0);
    kill_one(g);
    pass(1000);
    must(g->st->ops->trim(g->st, &(struct trim_request){0}, &t, &err), &err);
    assert_int_equal(t.events, 1);
    struct letters l = letters(g);
    assert_int_equal(l.n, 1);
    assert_string_equal(l.error, "no use");
    assert_string_equal(l.payload, "{\"keep\":true}");
    assert_int_equal(retry_dead(g, (struct dead_query){.consumer = "c", .id = l.id}), 1);
    assert_int_equal(claim(g, "c"), 1);
    assert_string_equal(g->b.ev[0].id.p, l.id);
    assert_string_equal(g->b.ev[0].payload.p, "{\"keep\":true}");
    assert_int_equal(g->b.ev[0].attempts, 0);
}

static bool retry_now(struct store_rig *g, int64_t seq)
{
    struct error err;
    bool waited;
    must(g->st->ops->retry_now(g->st, "c", seq, &waited, &err), &err);
    return waited;
}

static void waiting_event_is_retried_on_request(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 2);
    int64_t first = g->b.ev[0].seq, behind = g->b.ev[1].seq;
    struct outcome o[] = {
        {.ev = &g->b.ev[0],
         .kind = OUTCOME_RETRY,
         .attempts = 1,
         .delay_ms = 3600000,
         .error = "later"},
        {.ev = &g->b.ev[1], .kind = OUTCOME_BEHIND},
    };
    assert_false(retry_now(g, first)); /* a worker holds it */
    assert_true(settle(g, "c", o, 2));
    assert_int_equal(claim(g, "c"), 0);
    assert_false(retry_now(g, behind)); /* it waits behind the first */
    assert_true(retry_now(g, first));
    assert_int_equal(claim(g, "c"), 2);
    assert_int_equal(g->b.ev[0].seq, first);
    assert_int_equal(g->b.ev[0].attempts, 1);
    assert_true(settle(g, "c", NULL, 0));
    assert_false(retry_now(g, first));
}

static void retried_dead_letter_is_removed_only_once_delivered(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    kill_one(g);
    assert_int_equal(retry_dead(g, (struct dead_query){0}), 1);
    assert_true(letters(g).retrying);
    assert_int_equal(look(g, "c").dead, 0);
    assert_int_equal(retry_dead(g, (struct dead_query){0}), 0); /* it is being retried already */
    kill_one(g);
    assert_int_equal(letters(g).n, 1);
    assert_false(letters(g).retrying);
    retry_dead(g, (struct dead_query){0});
    assert_int_equal(claim(g, "c"), 1);
    assert_true(settle(g, "c", NULL, 0));
    assert_int_equal(letters(g).n, 0);
}

static void dropped_dead_letter_is_deleted(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    kill_one(g);
    assert_int_equal(drop_dead(g, (struct dead_query){.type = "other"}), 0);
    assert_int_equal(drop_dead(g, (struct dead_query){.type = "t.*"}), 1);
    assert_int_equal(letters(g).n, 0);
}

static const struct CMUnitTest tests[] = {
    ON_A_STORE(dead_letter_is_kept_whole_and_survives_trimming),
    ON_A_STORE(waiting_event_is_retried_on_request),
    ON_A_STORE(retried_dead_letter_is_removed_only_once_delivered),
    ON_A_STORE(dropped_dead_letter_is_deleted),
};

const struct suite_part store_dead_tests = SUITE_PART(tests);
