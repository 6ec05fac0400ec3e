/* store_consumer.c: consumers are created, paused, reported on and removed. */
#include "store_impl.h"

static void new_consumer_starts_at_its_configured_position(void **state)
{
    struct store_rig *g = *state;
    for (int i = 0; i < 5; i++)
        emit(g->st, "1");
    struct consumer_spec c = spec_of("b");
    put_spec(g->st, &c);
    c.name = "e";
    c.start = START_END;
    put_spec(g->st, &c);
    assert_int_equal(claim(g, "b"), 5);
    c.name = "s";
    c.start = START_SEQ;
    c.start_seq = g->b.ev[3].seq;
    put_spec(g->st, &c);
    assert_int_equal(claim(g, "e"), 0);
    assert_int_equal(claim(g, "s"), 2);
    emit(g->st, "1");
    assert_int_equal(claim(g, "e"), 1);
}

static void registering_again_keeps_the_position(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    bool created;
    struct consumer_spec c = spec_of("c");
    c.events = "a.*";
    c.retry = "slow";
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 1);
    assert_true(settle(g, "c", NULL, 0));
    must(g->st->ops->consumer_put(g->st, &c, &created, &err), &err);
    assert_false(created);
    assert_string_equal(look(g, "c").spec.events, "a.*");
    assert_string_equal(look(g, "c").spec.retry, "slow");
    assert_int_equal(look(g, "c").behind, 0);
}

static void paused_consumer_gets_nothing_until_resumed(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    put(g->st, "c");
    emit(g->st, "1");
    must(g->st->ops->consumer_pause(g->st, "c", true, &err), &err);
    assert_int_equal(claim(g, "c"), 0);
    assert_true(g->hint.paused);
    must(g->st->ops->consumer_pause(g->st, "c", false, &err), &err);
    assert_int_equal(claim(g, "c"), 1);
    assert_int_equal(g->st->ops->consumer_pause(g->st, "nobody", true, &err), -1);
    assert_int_equal(err.code, ERR_NOTFOUND);
}

static void consumer_with_unfinished_work_needs_force_to_be_removed(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct claim_request req = request("c", "me");
    put(g->st, "c");
    emit(g->st, "1");
    kill_one(g);
    assert_int_equal(g->st->ops->consumer_remove(g->st, "c", false, &err), -1);
    assert_int_equal(err.code, ERR_CONFLICT);
    must(g->st->ops->consumer_remove(g->st, "c", true, &err), &err);
    assert_int_equal(g->st->ops->turn(g->st, NULL, NULL, &req, &g->a, &g->b, &g->hint, &err), -1);
    assert_int_equal(err.code, ERR_NOTFOUND);
    assert_int_equal(err.retry_class, CLASS_FATAL);
    put(g->st, "c"); /* a new start */
    assert_int_equal(claim(g, "c"), 1);
}

static void claim_is_void_once_its_consumer_is_removed_and_recreated(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 1);
    struct batch old = g->b;
    must(g->st->ops->consumer_remove(g->st, "c", true, &err), &err);
    put(g->st, "c");
    struct arena before = g->a; /* the old batch is allocated there */
    arena_init(&g->a, 0);
    assert_int_equal(claim(g, "c"), 1); /* by the same worker, which has not noticed */
    assert_true(g->b.epoch > old.epoch);
    struct batch now = g->b;
    g->b = old;
    assert_false(settle(g, "c", NULL, 0));
    g->b = now;
    assert_true(settle(g, "c", NULL, 0));
    arena_release(&before);
}

static void invalid_consumer_names_are_refused(void **state)
{
    struct store_rig *g = *state;
    static const char *const bad[] = {
        "",
        "a b",
        "a/b",
        "x'y",
        "a;b",
        "\xc3\xa9",
        "0123456789012345678901234567890123456789012345678901234567890123"};
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct error err;
        struct consumer_spec c = {
            .name = bad[i], .events = "", .where = "", .retry = "", .lanes = 1};
        assert_int_equal(g->st->ops->consumer_put(g->st, &c, NULL, &err), -1);
        assert_int_equal(err.code, ERR_CONFIG);
    }
}

static void invalid_orders_and_lanes_are_refused(void **state)
{
    struct store_rig *g = *state;
    static const struct consumer_spec bad[] = {
        {.order = ORDER_KEY, .lanes = 0},
        {.order = ORDER_KEY, .lanes = STORE_LANES_MAX + 1},
        {.order = ORDER_GLOBAL, .lanes = 2},
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct error err;
        struct consumer_spec c = bad[i];
        c.name = "c";
        c.events = c.where = c.retry = "";
        assert_int_equal(g->st->ops->consumer_put(g->st, &c, NULL, &err), -1);
        assert_int_equal(err.code, ERR_CONFIG);
    }
}

static void report_is_shown_until_cleared(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    put(g->st, "c");
    must(g->st->ops->consumer_report(g->st, "c", "sink is down", &err), &err);
    assert_string_equal(look(g, "c").last_error, "sink is down");
    must(g->st->ops->consumer_report(g->st, "c", NULL, &err), &err);
    assert_null(look(g, "c").last_error);
}

static void resuming_clears_the_reason_for_the_pause(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    put(g->st, "c");
    must(g->st->ops->consumer_pause(g->st, "c", true, &err), &err);
    must(g->st->ops->consumer_report(g->st, "c", "paused: HTTP 410", &err), &err);
    assert_string_equal(look(g, "c").last_error, "paused: HTTP 410");
    must(g->st->ops->consumer_pause(g->st, "c", false, &err), &err);
    assert_null(look(g, "c").last_error);
    must(g->st->ops->consumer_report(g->st, "c", "sink is down: x", &err), &err);
    must(g->st->ops->consumer_pause(g->st, "c", true, &err), &err);
    must(g->st->ops->consumer_pause(g->st, "c", false, &err), &err);
    assert_true(look(g, "c").down); /* only its relay clears that report */
}

static const struct CMUnitTest tests[] = {
    ON_A_STORE(new_consumer_starts_at_its_configured_position),
    ON_A_STORE(registering_again_keeps_the_position),
    ON_A_STORE(paused_consumer_gets_nothing_until_resumed),
    ON_A_STORE(consumer_with_unfinished_work_needs_force_to_be_removed),
    ON_A_STORE(claim_is_void_once_its_consumer_is_removed_and_recreated),
    ON_A_STORE(invalid_consumer_names_are_refused),
    ON_A_STORE(invalid_orders_and_lanes_are_refused),
    ON_A_STORE(report_is_shown_until_cleared),
    ON_A_STORE(resuming_clears_the_reason_for_the_pause),
};

const struct suite_part store_consumer_tests = SUITE_PART(tests);
