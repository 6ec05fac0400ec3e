/* store_gauge.c: how far behind a consumer is, and the figures of the store. */
#include "store_impl.h"

static struct consumer_gauge gauge(struct store_rig *g, const char *name)
{
    struct consumer_gauge ret;
    struct error err;
    must(g->st->ops->consumer_gauge(g->st, name, &g->a, &ret, &err), &err);
    return ret;
}

/* depth adds up the types of a gauge. */
static int64_t depth(const struct consumer_gauge *c)
{
    int64_t n = 0;
    for (size_t i = 0; i < c->n_types; i++)
        n += c->type[i].n;
    return n;
}

/* of_type finds a type in a gauge; n == 0: it is absent. */
static struct gauge_type of_type(const struct consumer_gauge *c, const char *type)
{
    for (size_t i = 0; i < c->n_types; i++)
        if (strcmp(c->type[i].type, type) == 0)
            return c->type[i];
    return (struct gauge_type){.type = type};
}

static void gauge_counts_the_backlog_by_type(void **state)
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
    assert_int_equal(c.n_types, 2);
    assert_string_equal(c.type[0].type, "order.paid");
    assert_int_equal(c.type[0].n, 2);
    assert_true(c.type[0].oldest_at >= first && c.type[0].oldest_at <= c.now_ms - 1000);
    assert_string_equal(c.type[1].type, "order.made");
    assert_int_equal(c.type[1].n, 1);
    assert_int_equal(c.dead, 1);
    assert_int_equal(c.parked, 0);
    assert_false(c.paused);

    assert_int_equal(claim(g, "c"), 3);
    struct outcome o[] = {failed(g, 1, 1, 60000)};
    assert_true(settle(g, "c", o, 1));
    must(g->st->ops->consumer_pause(g->st, "c", true, &err), &err);
    c = gauge(g, "c");
    assert_int_equal(depth(&c), 1);
    assert_int_equal(of_type(&c, "order.made").n, 1);
    assert_int_equal(c.parked, 1);
    assert_true(c.paused);
    assert_int_equal(g->st->ops->consumer_gauge(g->st, "nobody", &g->a, &nothing, &err), -1);
    assert_int_equal(err.code, ERR_NOTFOUND);
}

static void gauge_reads_a_bounded_number_of_events(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    put(g->st, "c");
    must(g->st->ops->begin(g->st, &err), &err);
    for (int i = 0; i < STORE_PROBE_EVENTS + 50; i++)
        emit_with(g->st, i < 5 ? "old" : "new", NULL, "1", 0);
    must(g->st->ops->commit(g->st, &err), &err);
    struct consumer_gauge c = gauge(g, "c");
    assert_in_range(depth(&c), STORE_PROBE_EVENTS + 49, STORE_PROBE_EVENTS + 51);
    assert_int_equal(c.n_types, 2);
    assert_string_equal(c.type[0].type, "new");
    assert_int_equal(c.type[1].n, 5);
}

/* ---- everything that is not delivered ---- */

static void claimed_events_are_counted_by_type(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    for (int i = 0; i < 6; i++)
        emit_with(g->st, i % 2 ? "a" : "b", NULL, "1", 0);
    int64_t emitted = gauge(g, "c").now_ms;
    pass(5000);
    emit_with(g->st, "late", NULL, "1", 0);
    struct claim_request req = request("c", "me");
    req.max_events = 6;
    assert_int_equal(claim_by(g, req), 6);
    struct consumer_gauge c = gauge(g, "c");
    assert_int_equal(depth(&c), 7);
    assert_int_equal(of_type(&c, "a").n, 3);
    assert_int_equal(of_type(&c, "b").n, 3);
    assert_int_equal(of_type(&c, "late").n, 1);
    assert_true(of_type(&c, "a").oldest_at <= emitted && of_type(&c, "b").oldest_at <= emitted);
    assert_true(of_type(&c, "late").oldest_at > emitted);
    assert_true(c.overdue_at > 0 && c.overdue_at <= emitted);

    struct consumer_info i = look(g, "c");
    assert_int_equal(i.behind, 7);
    assert_true(i.behind_exact);
    assert_int_equal(i.inflight, 6);
    assert_true(i.oldest_at > 0 && i.oldest_at <= emitted);
    assert_true(i.unclaimed_at > emitted);
    assert_true(settle(g, "c", NULL, 0));
    i = look(g, "c");
    assert_int_equal(i.behind, 1);
    assert_int_equal(i.oldest_at, i.unclaimed_at);
    c = gauge(g, "c");
    assert_int_equal(depth(&c), 1);
}

static void parked_events_are_counted_with_their_age(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit_with(g->st, "first", "k", "1", 0);
    emit_with(g->st, "follows", "k", "1", 0);
    emit_with(g->st, "fine", "other", "1", 0);
    int64_t emitted = gauge(g, "c").now_ms;
    assert_int_equal(claim(g, "c"), 3);
    int64_t seq = g->b.ev[0].seq;
    struct outcome o[] = {failed(g, 0, 2, 7200000), behind(g, 1)};
    assert_true(settle(g, "c", o, 2));
    pass(3600000);
    emit_with(g->st, "fine", "other", "1", 0);

    struct consumer_info i = look(g, "c");
    assert_int_equal(i.behind, 3);
    assert_int_equal(i.parked, 2);
    assert_true(i.parked_exact && i.behind_exact);
    assert_true(i.oldest_at > 0 && i.oldest_at <= emitted);
    assert_true(i.overdue_at > 0 && i.overdue_at <= emitted);
    assert_true(i.unclaimed_at > emitted);
    assert_int_equal(i.first_parked.seq, seq);
    assert_int_equal(i.first_parked.attempts, 2);
    assert_string_equal(i.first_parked.error, "boom");
    assert_int_equal(i.first_parked.since, i.oldest_at);
    assert_int_equal(i.first_parked.due_at, i.next_due);
    struct consumer_gauge c = gauge(g, "c");
    assert_int_equal(depth(&c), 3);
    assert_true(of_type(&c, "first").oldest_at <= emitted && of_type(&c, "first").n == 1);
    assert_true(of_type(&c, "follows").oldest_at <= emitted && of_type(&c, "follows").n == 1);
    assert_true(c.overdue_at > 0 && c.overdue_at <= emitted);
    assert_int_equal(c.parked, 2);

    /* During the retry it is in flight and still undelivered. */
    pass(3600001);
    struct claim_request req = request("c", "me");
    req.parked_first = true;
    req.max_events = 1;
    assert_int_equal(claim_by(g, req), 1);
    assert_int_equal(g->b.ev[0].seq, seq);
    i = look(g, "c");
    assert_int_equal(i.behind, 3);
    assert_int_equal(i.inflight + i.parked, 2);
    assert_true(i.inflight > 0);
    assert_true(i.oldest_at <= emitted && i.overdue_at <= emitted);
    assert_int_equal(i.first_parked.seq, seq);
    c = gauge(g, "c");
    assert_int_equal(depth(&c), 3);
    assert_int_equal(of_type(&c, "first").n, 1);
    assert_int_equal(c.parked, i.parked);
    assert_true(settle(g, "c", NULL, 0));
}

static void delayed_event_is_counted_but_not_overdue(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    int64_t now = gauge(g, "c").now_ms;
    emit_with(g->st, "planned", "1", "1", now + 3600000);
    assert_int_equal(claim(g, "c"), 1);
    struct outcome o = {.ev = &g->b.ev[0], .kind = OUTCOME_DELAY};
    assert_true(settle(g, "c", &o, 1));
    pass(60000);
    struct consumer_info i = look(g, "c");
    assert_int_equal(i.behind, 1);
    assert_int_equal(i.parked, 1);
    assert_true(i.oldest_at > 0 && i.oldest_at < now + 60000);
    assert_int_equal(i.overdue_at, 0);
    assert_int_equal(i.first_parked.seq, 0);
    struct consumer_gauge c = gauge(g, "c");
    assert_int_equal(of_type(&c, "planned").n, 1);
    assert_int_equal(of_type(&c, "planned").oldest_at, i.oldest_at);
    assert_int_equal(c.overdue_at, 0);

    /* A younger failing event is found nevertheless. */
    emit_with(g->st, "fails", "2", "1", 0);
    assert_int_equal(claim(g, "c"), 1);
    int64_t seq = g->b.ev[0].seq;
    struct outcome f = failed(g, 0, 1, 7200000);
    assert_true(settle(g, "c", &f, 1));
    i = look(g, "c");
    assert_int_equal(i.behind, 2);
    assert_int_equal(i.first_parked.seq, seq);
    assert_true(i.overdue_at > i.oldest_at);
    assert_int_equal(gauge(g, "c").overdue_at, i.overdue_at);

    /* Once it is due, it is overdue from then on. */
    pass(3600000);
    i = look(g, "c");
    assert_true(i.first_parked.seq < seq);
    assert_int_equal(i.first_parked.since, now + 3600000);
}

static void retried_dead_letter_is_counted_again(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit_with(g->st, "a", "1", "1", 0);
    kill_one(g);
    assert_int_equal(look(g, "c").behind, 0);
    assert_int_equal(look(g, "c").oldest_at, 0);
    assert_int_equal(retry_dead(g, (struct dead_query){.consumer = "c"}), 1);
    struct consumer_info i = look(g, "c");
    assert_int_equal(i.behind, 1);
    assert_true(i.oldest_at > 0);
    struct consumer_gauge c = gauge(g, "c");
    assert_int_equal(of_type(&c, "a").n, 1);
}

/* For a consumer with a predicate payloads are read; events it skips are not counted as behind. */
static void events_skipped_by_the_predicate_do_not_count_as_backlog(void **state)
{
    struct store_rig *g = *state;
    struct filter *f;
    struct claim_request req = refilter(g, "", "v = 1", &f);
    emit_with(g->st, "a", NULL, "{\"v\":2}", 0);
    int64_t skipped = gauge(g, "c").now_ms;
    pass(1000);
    emit_with(g->st, "a", NULL, "{\"v\":1}", 0);
    emit_with(g->st, "a", NULL, "{\"v\":1}", 0);
    assert_int_equal(claim_by(g, req), 2);
    struct consumer_info i = look(g, "c");
    assert_int_equal(i.behind, 2);
    assert_int_equal(i.inflight, 2);
    assert_true(i.behind_exact);
    assert_true(i.oldest_at > skipped && i.overdue_at > skipped);

    struct outcome o = failed(g, 1, 1, 60000);
    assert_true(settle(g, "c", &o, 1));
    i = look(g, "c");
    assert_int_equal(i.behind, 1);
    assert_int_equal(i.parked, 1);
    assert_true(i.behind_exact);
    assert_true(i.oldest_at > skipped && i.overdue_at > skipped);
    assert_int_equal(i.unclaimed_at, 0);
    filter_free(f);
}

static void many_parked_events_are_counted_approximately(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    enum { BATCH = 500, ALL = STORE_PROBE_ROWS + 1000 };
    static struct outcome o[BATCH];
    put_as(g->st, "c", ORDER_NONE, 1);
    must(g->st->ops->begin(g->st, &err), &err);
    for (int i = 0; i < ALL; i++)
        emit_with(g->st, i % 4 ? "a" : "b", NULL, "1", 0);
    must(g->st->ops->commit(g->st, &err), &err);
    struct claim_request req = request_as("c", "me", ORDER_NONE, 1);
    req.max_events = BATCH;
    for (size_t n = 0; n < ALL; n += g->b.n) {
        assert_true(claim_by(g, req) > 0);
        for (size_t i = 0; i < g->b.n; i++)
            o[i] = failed(g, i, 1, 3600000);
        assert_true(settle(g, "c", o, g->b.n));
    }
    struct consumer_info i = look(g, "c");
    assert_false(i.parked_exact);
    assert_false(i.behind_exact);
    assert_in_range(i.parked, ALL - 1, ALL + 1);
    assert_in_range(i.behind, ALL - 1, ALL + 1);
    struct consumer_gauge c = gauge(g, "c");
    assert_in_range(c.parked, ALL - 1, ALL + 1);
    assert_in_range(of_type(&c, "a").n, ALL / 4 * 3 - 2, ALL / 4 * 3 + 2);
    assert_in_range(of_type(&c, "b").n, ALL / 4 - 2, ALL / 4 + 2);
}

static void backlog_counts_events_passing_filter_and_lanes(void **state)
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
    size_t n = claim_by(g, req); /* one lane advances, the others do not */
    assert_true(n > 0);
    struct consumer_info i = look(g, "c");
    assert_int_equal(i.behind, 40);
    assert_int_equal(i.inflight, n);
    assert_int_equal(i.claims, 1);
    struct consumer_gauge by_type = gauge(g, "c");
    assert_int_equal(depth(&by_type), 40);
    assert_true(settle(g, "c", NULL, 0));
    i = look(g, "c");
    assert_int_equal(i.behind, 40 - n);
    assert_int_equal(i.inflight, 0);
    assert_int_equal(i.delivered, n);
    filter_free(f);
}

static void backlog_count_applies_the_predicate(void **state)
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
    assert_int_equal(i.behind, 5);
    assert_true(settle(g, "c", NULL, 0));
    assert_int_equal(look(g, "c").behind, 5 - n);
    filter_free(f);
}

static void expired_claim_is_not_in_flight(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    for (int i = 0; i < 3; i++)
        emit(g->st, NULL);
    assert_int_equal(claim(g, "c"), 3);
    assert_int_equal(look(g, "c").inflight, 3);
    assert_int_equal(look(g, "c").behind, 3);
    assert_int_equal(look(g, "c").unclaimed_at, 0);
    pass(LEASE + 1);
    struct consumer_info i = look(g, "c");
    assert_int_equal(i.inflight, 0);
    assert_int_equal(i.claims, 0);
    assert_int_equal(i.behind, 3);
    assert_true(i.oldest_at > 0);
    assert_int_equal(i.unclaimed_at, i.oldest_at);
    /* Taken over, all three are parked, and one of them is in flight. */
    assert_int_equal(claim(g, "c"), 1);
    i = look(g, "c");
    assert_int_equal(i.inflight, 1);
    assert_int_equal(i.parked, 2);
    assert_int_equal(i.behind, 3);
}

static void large_backlog_is_counted_approximately(void **state)
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

static void sink_is_down_since_its_first_failure(void **state)
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

static void info_reports_head_tail_and_dead_letters(void **state)
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
    ON_A_STORE(gauge_counts_the_backlog_by_type),
    ON_A_STORE(gauge_reads_a_bounded_number_of_events),
    ON_A_STORE(claimed_events_are_counted_by_type),
    ON_A_STORE(parked_events_are_counted_with_their_age),
    ON_A_STORE(delayed_event_is_counted_but_not_overdue),
    ON_A_STORE(retried_dead_letter_is_counted_again),
    ON_A_STORE(events_skipped_by_the_predicate_do_not_count_as_backlog),
    ON_A_STORE(many_parked_events_are_counted_approximately),
    ON_A_STORE(backlog_counts_events_passing_filter_and_lanes),
    ON_A_STORE(backlog_count_applies_the_predicate),
    ON_A_STORE(expired_claim_is_not_in_flight),
    ON_A_STORE(large_backlog_is_counted_approximately),
    ON_A_STORE(sink_is_down_since_its_first_failure),
    ON_A_STORE(info_reports_head_tail_and_dead_letters),
};

const struct suite_part store_gauge_tests = SUITE_PART(tests);
