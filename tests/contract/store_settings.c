/* store_settings.c: a consumer's settings, and those that were replaced. */
#include "store_impl.h"

static void order_and_lanes_change_only_once_caught_up(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct consumer_spec c = spec_of("c");
    c.lanes = 4;
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(g->st->ops->consumer_put(g->st, &c, NULL, &err), -1);
    assert_int_equal(err.code, ERR_CONFLICT);
    assert_int_equal(claim(g, "c"), 1);
    assert_true(settle(g, "c", NULL, 0));
    put_spec(g->st, &c);
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 0); /* this worker still has the old settings */
    assert_true(g->hint.changed);
    assert_int_equal(claim_by(g, request_as("c", "me", ORDER_KEY, 4)), 1);
}

static void only_workers_with_the_registered_filter_get_events(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct filter *f;
    struct consumer_spec c = spec_of("c");
    c.events = "a.*";
    put_spec(g->st, &c);
    emit_with(g->st, "a.x", "1", "{}", 0);
    emit_with(g->st, "b.x", "1", "{}", 0);
    struct claim_request old = request("c", "old"), new = request("c", "new");
    old.events = "a.*";
    must(filter_new(old.events, NULL, &f, &err), &err);
    old.filter = f;
    c.events = new.events = "a.*, b.*"; /* in its normal form, as a relay writes it */
    put_spec(g->st, &c);
    assert_int_equal(claim_by(g, old), 0); /* it would skip b.x */
    assert_true(g->hint.changed);
    assert_int_equal(claim_by(g, new), 2);
    pass(LEASE);
    assert_int_equal(claim_by(g, old), 0); /* nor may it take over, which would lose b.x, too */
    assert_int_equal(g->hint.crashed, 0);
    assert_int_equal(claim_by(g, new), 1);
    assert_int_equal(g->hint.crashed, 2);
    filter_free(f);
}

static struct consumer_spec with_events(const char *events)
{
    return (struct consumer_spec){.name = "c",
                                  .events = events,
                                  .where = "",
                                  .retry = "fast",
                                  .order = ORDER_KEY,
                                  .lanes = 1};
}

static void refused(struct store_rig *g, const struct consumer_spec *c, const char *newer,
                    const char *command)
{
    struct error err;
    assert_int_equal(g->st->ops->consumer_put(g->st, c, NULL, &err), -1);
    assert_int_equal(err.code, ERR_CONFLICT);
    if (!strstr(err.text, newer) || !strstr(err.text, command))
        fail_msg("unexpected error: %s", err.text);
}

static void replaced_settings_are_not_restored_automatically(void **state)
{
    struct store_rig *g = *state;
    struct consumer_spec old = with_events("a.*"), new = with_events("a.*, b.*"),
                         third = with_events("c.*");
    new.by = "relay-b:17";
    put_spec(g->st, &old);
    put_spec(g->st, &new);
    refused(g, &old, "events \"a.*, b.*\"", "outbox consumers revert c --to 1");
    refused(g, &old, "by relay-b:17", "");
    old.how = PUT_AGAIN;
    refused(g, &old, "events \"a.*, b.*\"", "outbox consumers revert c --to 1");
    assert_string_equal(look(g, "c").spec.events, "a.*, b.*");
    put_spec(g->st, &new);
    /* Settings that were never used before are accepted. */
    put_spec(g->st, &third);
    refused(g, &new, "events \"c.*\"", "--to 2");
    refused(g, &old, "events \"c.*\"", "--to 1");
}

static void replaced_predicate_order_and_lanes_are_not_restored(void **state)
{
    struct store_rig *g = *state;
    struct consumer_spec c = with_events(""), old = c;
    put_spec(g->st, &c);
    c.lanes = 4;
    put_spec(g->st, &c);
    refused(g, &old, "lanes", "--to 1");
    c.order = ORDER_NONE;
    put_spec(g->st, &c);
    c.where = "a = 1";
    put_spec(g->st, &c);
    c.where = "";
    refused(g, &c, "where \"a = 1\"", "--to 3");
    refused(g, &old, "order", "--to 1");
    assert_int_equal(look(g, "c").spec.lanes, 4);
}

static void retry_policy_can_change_at_any_time(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct consumer_spec c = with_events("a.*");
    struct consumer_settings *list;
    size_t n;
    put_spec(g->st, &c);
    c.retry = "slow";
    put_spec(g->st, &c);
    c.retry = "fast";
    put_spec(g->st, &c);
    assert_string_equal(look(g, "c").spec.retry, "fast");
    must(g->st->ops->consumer_history(g->st, "c", &g->a, &list, &n, &err), &err);
    assert_int_equal(n, 0);
}

static void operator_can_restore_replaced_settings(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct consumer_spec a = with_events("a.*"), b = with_events("b.*");
    struct consumer_settings *list;
    size_t n;
    put_spec(g->st, &a);
    pass(1000);
    put_spec(g->st, &b);
    a.how = PUT_PURPOSE;
    a.by = "anna";
    put_spec(g->st, &a);
    a.how = PUT_START;
    put_spec(g->st, &a); /* its workers continue */
    /* Workers with the other settings stand by. */
    refused(g, &b, "events \"a.*\"", "--to 2");
    must(g->st->ops->consumer_history(g->st, "c", &g->a, &list, &n, &err), &err);
    assert_int_equal(n, 2);
    assert_string_equal(list[0].events, "a.*");
    assert_string_equal(list[0].by, "anna");
    assert_int_equal(list[0].generation, 3);
    assert_string_equal(list[1].events, "b.*");
    assert_true(list[0].since >= list[1].since);
}

static void refused_settings_change_nothing(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct consumer_settings *list;
    size_t n;
    struct consumer_spec c = with_events("");
    put_spec(g->st, &c);
    emit(g->st, "1");
    c.lanes = 2; /* it has not caught up yet */
    assert_int_equal(g->st->ops->consumer_put(g->st, &c, NULL, &err), -1);
    assert_int_equal(err.code, ERR_CONFLICT);
    must(g->st->ops->consumer_history(g->st, "c", &g->a, &list, &n, &err), &err);
    assert_int_equal(n, 0);
}

static void only_a_starting_worker_creates_a_consumer(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct consumer_spec c = with_events("a.*");
    struct consumer_settings *list;
    size_t n;
    for (int how = PUT_AGAIN; how <= PUT_PURPOSE; how++) {
        c.how = (enum put)how;
        assert_int_equal(g->st->ops->consumer_put(g->st, &c, NULL, &err), -1);
        assert_int_equal(err.code, ERR_NOTFOUND);
    }
    assert_int_equal(g->st->ops->consumer_history(g->st, "c", &g->a, &list, &n, &err), -1);
    assert_int_equal(err.code, ERR_NOTFOUND);
}

static void recreated_consumer_has_no_history(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct consumer_spec a = with_events("a.*"), b = with_events("b.*");
    put_spec(g->st, &a);
    put_spec(g->st, &b);
    must(g->st->ops->consumer_remove(g->st, "c", false, &err), &err);
    put_spec(g->st, &b);
    put_spec(g->st, &a);
}

static void settings_history_has_its_documented_length(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct consumer_settings *list;
    size_t n;
    char events[16];
    for (int i = 0; i < STORE_GENERATIONS + 5; i++) {
        snprintf(events, sizeof events, "t%d", i);
        struct consumer_spec c = with_events(events);
        put_spec(g->st, &c);
    }
    must(g->st->ops->consumer_history(g->st, "c", &g->a, &list, &n, &err), &err);
    assert_int_equal(n, STORE_GENERATIONS);
    assert_string_equal(list[0].events, events);
}

static void start_beyond_the_head_survives_a_lane_change(void **state)
{
    struct store_rig *g = *state;
    struct consumer_spec c = spec_of("c");
    c.start = START_SEQ;
    c.start_seq = 3;
    put_spec(g->st, &c);
    c.lanes = 2;
    put_spec(g->st, &c);
    for (int i = 0; i < 4; i++)
        emit(g->st, NULL);
    size_t n = 0;
    for (int i = 0; i < 2; i++) {
        struct claim_request req = request_as("c", "me", ORDER_KEY, 2);
        req.lane_hint = i;
        n += claim_by(g, req);
    }
    assert_int_equal(n, 2);
}

static const struct CMUnitTest tests[] = {
    ON_A_STORE(order_and_lanes_change_only_once_caught_up),
    ON_A_STORE(only_workers_with_the_registered_filter_get_events),
    ON_A_STORE(replaced_settings_are_not_restored_automatically),
    ON_A_STORE(replaced_predicate_order_and_lanes_are_not_restored),
    ON_A_STORE(retry_policy_can_change_at_any_time),
    ON_A_STORE(operator_can_restore_replaced_settings),
    ON_A_STORE(refused_settings_change_nothing),
    ON_A_STORE(only_a_starting_worker_creates_a_consumer),
    ON_A_STORE(recreated_consumer_has_no_history),
    ON_A_STORE(settings_history_has_its_documented_length),
    ON_A_STORE(start_beyond_the_head_survives_a_lane_change),
};

const struct suite_part store_settings_tests = SUITE_PART(tests);
