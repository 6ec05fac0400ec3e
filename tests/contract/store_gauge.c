/* store_gauge.c: how far behind a consumer is, and the figures of the store. */
#include "store_impl.h"

static struct consumer_gauge gauge(struct store_rig *g, const char *name)
{
    struct consumer_gauge ret;
    struct error err;
    must(g->st->ops->consumer_gauge(g->st, name, &g->a, &ret, &err), &err);
    return ret;
}

static void gauge_tells_what_is_behind_by_type(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct consumer_gauge nothing = {0};
    put(g->st, "c");
    emit_with(g->st, "order.paid", "1", "1", 0);
    kill_one(g);
    int64_t first = gauge(g, "c").now_ms;
    emit_with(g->st, "order.paid", "1", "1", 0);
    emit_with(g->st, "order.made", "2", "1", 0);
    emit_with(g->st, "order.paid", "3", "1", 0);
    pass(1000);
    struct consumer_gauge c = gauge(g, "c");
    assert_true(c.behind >= 3);
    assert_int_equal(c.probed, 3);
    assert_int_equal(c.n_types, 2);
    assert_string_equal(c.type[0].type, "order.paid");
    assert_int_equal(c.type[0].n, 2);
    assert_true(c.type[0].oldest_at >= first && c.type[0].oldest_at <= c.now_ms - 1000);
    assert_string_equal(c.type[1].type, "order.made");
    assert_int_equal(c.dead, 1);
    assert_int_equal(c.parked, 0);
    assert_false(c.paused);
    assert_string_equal(c.events, "");

    assert_int_equal(claim(g, "c"), 3);
    struct outcome o[] = {failed(g, 1, 1, 60000)};
    assert_true(settle(g, "c", o, 1));
    must(g->st->ops->consumer_pause(g->st, "c", true, &err), &err);
    c = gauge(g, "c");
    assert_int_equal(c.probed, 0);
    assert_int_equal(c.behind, 0);
    assert_int_equal(c.parked, 1);
    assert_true(c.paused);
    assert_int_equal(g->st->ops->consumer_gauge(g->st, "nobody", &g->a, &nothing, &err), -1);
    assert_int_equal(err.code, ERR_NOTFOUND);
}

static void gauge_looks_at_no_more_than_so_many_events(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    put(g->st, "c");
    must(g->st->ops->begin(g->st, &err), &err);
    for (int i = 0; i < STORE_PROBE_EVENTS + 50; i++)
        emit_with(g->st, i < 5 ? "old" : "new", NULL, "1", 0);
    must(g->st->ops->commit(g->st, &err), &err);
    struct consumer_gauge c = gauge(g, "c");
    assert_true(c.behind >= STORE_PROBE_EVENTS + 50);
    assert_int_equal(c.probed, STORE_PROBE_EVENTS);
    assert_int_equal(c.n_types, 2);
    assert_string_equal(c.type[0].type, "new");
    assert_int_equal(c.type[1].n, 5);
}

static void behind_counts_what_filter_and_lanes_leave(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct consumer_spec c = spec_of("c");
    c.events = "a.*";
    c.lanes = 4;
    put_spec(g->st, &c);
    struct filter *f;
    must(filter_new("a.*", "", &f, &err), &err);
    char key[8];
    for (int i = 0; i < 60; i++) {
        snprintf(key, sizeof key, "%d", i);
        emit_with(g->st, i % 3 ? "a.x" : "b.x", key, "{}", 0);
    }
    assert_int_equal(look(g, "c").behind, 40);
    assert_true(look(g, "c").behind_exact);
    struct claim_request req = request_as("c", "me", ORDER_KEY, 4);
    req.events = "a.*";
    req.filter = f;
    req.lane_hint = 1;
    size_t n = claim_by(g, req); /* one lane moves on, the others do not */
    assert_true(n > 0);
    struct consumer_info i = look(g, "c");
    assert_int_equal(i.behind, 40 - n);
    assert_int_equal(i.inflight, n);
    assert_int_equal(i.claims, 1);
    assert_int_equal(gauge(g, "c").behind, 40 - n);
    assert_true(settle(g, "c", NULL, 0));
    i = look(g, "c");
    assert_int_equal(i.behind, 40 - n);
    assert_int_equal(i.inflight, 0);
    assert_int_equal(i.delivered, n);
    filter_free(f);
}

static void behind_asks_the_predicate(void **state)
{
    struct store_rig *g = *state;
    struct filter *f;
    struct claim_request req = refilter(g, "", "v = 1", &f);
    for (int i = 0; i < 10; i++)
        emit_with(g->st, "a", NULL, i % 2 ? "{\"v\":1}" : "{\"v\":2}", 0);
    assert_int_equal(look(g, "c").behind, 5);
    assert_true(look(g, "c").behind_exact);
    req.max_events = 4;
    size_t n = claim_by(g, req);
    struct consumer_info i = look(g, "c");
    assert_int_equal(i.inflight, n);
    assert_int_equal(i.behind, 5 - n);
    filter_free(f);
}

static void expired_claim_is_behind_again_and_not_in_flight(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    for (int i = 0; i < 3; i++)
        emit(g->st, NULL);
    assert_int_equal(claim(g, "c"), 3);
    assert_int_equal(look(g, "c").inflight, 3);
    assert_int_equal(look(g, "c").behind, 0);
    pass(LEASE + 1);
    struct consumer_info i = look(g, "c");
    assert_int_equal(i.inflight, 0);
    assert_int_equal(i.claims, 0);
    assert_int_equal(i.behind, 3);
    assert_true(i.oldest_at > 0);
    /* Taken over, all three are parked, and one of them is in flight. */
    assert_int_equal(claim(g, "c"), 1);
    i = look(g, "c");
    assert_int_equal(i.inflight, 1);
    assert_int_equal(i.parked, 2);
    assert_int_equal(i.behind, 0);
}

static void large_backlog_is_counted_about(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    put(g->st, "c");
    must(g->st->ops->begin(g->st, &err), &err);
    for (int i = 0; i < STORE_COUNT_EVENTS + 500; i++)
        emit_with(g->st, "a", NULL, "1", 0);
    must(g->st->ops->commit(g->st, &err), &err);
    struct consumer_info i = look(g, "c");
    assert_false(i.behind_exact);
    assert_int_equal(i.behind, STORE_COUNT_EVENTS + 500);
}

static void sink_is_down_since_it_was_first(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    put(g->st, "c");
    must(g->st->ops->consumer_report(g->st, "c", "sink is down: HTTP 502", &err), &err);
    struct consumer_info i = look(g, "c");
    int64_t since = i.report_at;
    assert_true(i.down);
    assert_true(since > 0);
    pass(5000);
    must(g->st->ops->consumer_report(g->st, "c", "sink is down: timed out", &err), &err);
    i = look(g, "c");
    assert_string_equal(i.report, "sink is down: timed out");
    assert_int_equal(i.report_at, since);
    assert_int_equal(gauge(g, "c").down_since, since);
    must(g->st->ops->consumer_report(g->st, "c", NULL, &err), &err);
    assert_false(look(g, "c").down);
    assert_int_equal(gauge(g, "c").down_since, 0);
}

static void info_tells_head_tail_and_dead(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct store_info i;
    must(g->st->ops->info(g->st, &i, &err), &err);
    assert_int_equal(i.events, 0);
    put(g->st, "c");
    emit(g->st, "1");
    emit(g->st, "2");
    must(g->st->ops->info(g->st, &i, &err), &err);
    assert_int_equal(i.events, 2);
    assert_int_equal(i.head, i.tail + 1);
    assert_int_equal(i.consumers, 1);
    assert_int_equal(i.oldest_at, store_now.wall);
    assert_int_equal(look(g, "c").behind, 2);
    assert_int_equal(look(g, "c").oldest_at, store_now.wall);
}

static const struct CMUnitTest tests[] = {
    ON_A_STORE(gauge_tells_what_is_behind_by_type),
    ON_A_STORE(gauge_looks_at_no_more_than_so_many_events),
    ON_A_STORE(behind_counts_what_filter_and_lanes_leave),
    ON_A_STORE(behind_asks_the_predicate),
    ON_A_STORE(expired_claim_is_behind_again_and_not_in_flight),
    ON_A_STORE(large_backlog_is_counted_about),
    ON_A_STORE(sink_is_down_since_it_was_first),
    ON_A_STORE(info_tells_head_tail_and_dead),
};

const struct suite_part store_gauge_tests = SUITE_PART(tests);
