/* store_state.c: the state in which each event is shown, and how events are found (C1.9, C2.2). */
#include "store_impl.h"

struct seen {
    size_t n;
    enum delivery_state state;
    int attempts;
};

static int note_event(void *ctx, const struct event *ev, const struct delivery_info *d, size_t n)
{
    struct seen *s = ctx;
    (void)ev;
    s->n++;
    if (n)
        s->state = d[0].state, s->attempts = d[0].attempts;
    return 0;
}

static struct seen events(struct store_rig *g, struct event_query q)
{
    struct error err;
    struct seen s = {0};
    must(g->st->ops->events(g->st, &q, note_event, &s, &err), &err);
    return s;
}

static void every_documented_state_is_shown(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(events(g, (struct event_query){0}).state, STATE_PENDING);
    assert_int_equal(claim(g, "c"), 1);
    assert_int_equal(events(g, (struct event_query){0}).state, STATE_INFLIGHT);
    struct outcome o = failed(g, 0, 1, 1000);
    assert_true(settle(g, "c", &o, 1));
    struct seen s = events(g, (struct event_query){0});
    assert_int_equal(s.state, STATE_FAILED);
    assert_int_equal(s.attempts, 1);
    pass(1000);
    assert_int_equal(claim(g, "c"), 1);
    assert_int_equal(events(g, (struct event_query){0}).state, STATE_INFLIGHT);
    o = (struct outcome){.ev = &g->b.ev[0], .kind = OUTCOME_DEAD, .attempts = 2, .error = "x"};
    assert_true(settle(g, "c", &o, 1));
    assert_int_equal(events(g, (struct event_query){0}).state, STATE_EXPIRED);
    emit(g->st, "2");
    assert_int_equal(claim(g, "c"), 1);
    assert_true(settle(g, "c", NULL, 0));
    assert_int_equal(events(g, (struct event_query){.newest_first = true, .limit = 1}).state,
                     STATE_DELIVERED);
}

/* state_of_nth returns the state of the nth stored event for consumer c. */
static enum delivery_state state_of_nth(struct store_rig *g, int nth)
{
    struct error err;
    struct seen s = {0};
    struct event_query q = {.consumer = "c", .limit = (size_t)nth};
    must(g->st->ops->events(g->st, &q, note_event, &s, &err), &err);
    assert_int_equal(s.n, nth);
    return s.state;
}

static void dropped_dead_letter_is_shown_as_dropped(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    for (int i = 0; i < 3; i++)
        emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 3);
    struct outcome o[] = {dead(g, 0, 3), dead(g, 1, 3)};
    assert_true(settle(g, "c", o, 2));
    struct letters l = letters(g);
    assert_int_equal(drop_dead(g, (struct dead_query){.id = l.id}), 1);
    assert_int_equal(state_of_nth(g, 1), STATE_EXPIRED);
    assert_int_equal(state_of_nth(g, 2), STATE_DROPPED);
    assert_int_equal(state_of_nth(g, 3), STATE_DELIVERED);
    assert_int_equal(events(g, (struct event_query){.state = STATE_DROPPED + 1}).n, 1);
    assert_int_equal(retry_dead(g, (struct dead_query){0}),
                     1); /* the dropped letter no longer counts */
    assert_int_equal(state_of_nth(g, 1), STATE_PENDING);
    assert_int_equal(claim(g, "c"), 1);
    assert_true(settle(g, "c", NULL, 0));
    assert_int_equal(state_of_nth(g, 1), STATE_DELIVERED); /* retried, and delivered in the end */
    assert_int_equal(state_of_nth(g, 2), STATE_DROPPED);
}

static void recreated_consumer_does_not_show_earlier_dropped_letters(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    put(g->st, "c");
    emit(g->st, "1");
    kill_one(g);
    drop_dead(g, (struct dead_query){0});
    assert_int_equal(state_of_nth(g, 1), STATE_DROPPED);
    must(g->st->ops->consumer_remove(g->st, "c", true, &err), &err);
    put(g->st, "c");
    assert_int_equal(state_of_nth(g, 1), STATE_PENDING);
    assert_int_equal(claim(g, "c"), 1);
    assert_true(settle(g, "c", NULL, 0));
    assert_int_equal(state_of_nth(g, 1), STATE_DELIVERED);
    emit(g->st, "1");
    kill_one(g);
    must(g->st->ops->consumer_remove(g->st, "c", true, &err), &err);
    put(g->st, "c"); /* its dead letters are deleted with it, which is not a drop */
    assert_int_equal(state_of_nth(g, 2), STATE_PENDING);
}

static void events_from_before_the_start_are_shown_as_such(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct consumer_spec c = spec_of("c");
    c.start = START_END;
    for (int i = 0; i < 3; i++)
        emit(g->st, "1");
    put_spec(g->st, &c);
    emit(g->st, "1");
    assert_int_equal(state_of_nth(g, 3), STATE_BEFORE_START);
    assert_int_equal(state_of_nth(g, 4), STATE_PENDING);
    assert_int_equal(claim(g, "c"), 1);
    int64_t last = g->b.ev[0].seq;
    assert_true(settle(g, "c", NULL, 0));
    assert_int_equal(state_of_nth(g, 1), STATE_BEFORE_START);
    assert_int_equal(state_of_nth(g, 4), STATE_DELIVERED);
    c.lanes = 4; /* which changes nothing */
    put_spec(g->st, &c);
    assert_int_equal(state_of_nth(g, 3), STATE_BEFORE_START);
    assert_int_equal(state_of_nth(g, 4), STATE_DELIVERED);
    must(g->st->ops->consumer_remove(g->st, "c", true, &err), &err);
    c.start = START_SEQ;
    c.start_seq = last + 2;
    put_spec(g->st, &c);
    for (int i = 0; i < 2; i++)
        emit(g->st, "1");
    assert_int_equal(state_of_nth(g, 4), STATE_BEFORE_START);
    /* it is configured to start further ahead */
    assert_int_equal(state_of_nth(g, 5), STATE_BEFORE_START);
    assert_int_equal(state_of_nth(g, 6), STATE_PENDING);
    assert_int_equal(events(g, (struct event_query){.state = STATE_BEFORE_START + 1}).n, 5);
}

static void events_of_an_expired_claim_are_shown_as_pending(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    emit(g->st, "2");
    assert_int_equal(claim(g, "c"), 2);
    assert_int_equal(state_of_nth(g, 1), STATE_INFLIGHT);
    pass(LEASE + 1);
    assert_int_equal(state_of_nth(g, 1), STATE_PENDING);
    assert_int_equal(state_of_nth(g, 2), STATE_PENDING);
    assert_int_equal(claim(g, "c"), 1); /* taken over: one at a time */
    struct outcome o = failed(g, 0, 1, 10);
    assert_true(settle(g, "c", &o, 1));
    assert_int_equal(state_of_nth(g, 1), STATE_FAILED);
    pass(10);
    for (int i = 0; i < 2; i++)
        assert_int_equal(claim(g, "c"), 1);
    assert_int_equal(state_of_nth(g, 1), STATE_INFLIGHT);
    pass(LEASE + 1);
    assert_int_equal(state_of_nth(g, 1), STATE_FAILED);
}

static void state_follows_the_filter_at_hand_out(void **state)
{
    struct store_rig *g = *state;
    struct filter *f[3];
    struct claim_request req = refilter(g, "a.*", "", &f[0]);
    emit_with(g->st, "a.x", "1", "{\"v\":1}", 0);
    emit_with(g->st, "b.x", "2", "{\"v\":1}", 0);
    assert_int_equal(state_of_nth(g, 2), STATE_SKIPPED);
    assert_int_equal(claim_by(g, req), 1);
    assert_true(settle(g, "c", NULL, 0));
    claim_by(g, req);
    req = refilter(g, "b.*", "v = 2", &f[1]);
    /* It was delivered, whatever the filter is now. */
    assert_int_equal(state_of_nth(g, 1), STATE_DELIVERED);
    /* it matches now, but was never delivered */
    assert_int_equal(state_of_nth(g, 2), STATE_SKIPPED);
    emit_with(g->st, "b.x", "1", "{\"v\":1}", 0);
    emit_with(g->st, "b.x", "1", "{\"v\":2}", 0);
    emit_with(g->st, "a.x", "1", "{\"v\":2}", 0);
    assert_int_equal(state_of_nth(g, 3), STATE_SKIPPED);
    assert_int_equal(state_of_nth(g, 4), STATE_PENDING);
    assert_int_equal(state_of_nth(g, 5), STATE_SKIPPED);
    assert_int_equal(claim_by(g, req), 1);
    assert_int_equal(state_of_nth(g, 4), STATE_INFLIGHT);
    assert_true(settle(g, "c", NULL, 0));
    claim_by(g, req);
    refilter(g, "", "", &f[2]);
    static const enum delivery_state want[] = {STATE_DELIVERED, STATE_SKIPPED, STATE_SKIPPED,
                                               STATE_DELIVERED, STATE_SKIPPED};
    for (int i = 0; i < 5; i++)
        assert_int_equal(state_of_nth(g, i + 1), want[i]);
    for (int i = 0; i < 3; i++)
        filter_free(f[i]);
}

static void failed_event_is_delivered_despite_a_changed_filter(void **state)
{
    struct store_rig *g = *state;
    struct filter *f[2];
    struct claim_request req = refilter(g, "a.*", "", &f[0]);
    emit_with(g->st, "a.x", "1", "{}", 0);
    assert_int_equal(claim_by(g, req), 1);
    struct outcome o = failed(g, 0, 1, 10);
    assert_true(settle(g, "c", &o, 1));
    req = refilter(g, "b.*", "", &f[1]);
    assert_int_equal(state_of_nth(g, 1), STATE_FAILED);
    pass(10);
    assert_int_equal(claim_by(g, req), 1);
    assert_true(settle(g, "c", NULL, 0));
    assert_int_equal(state_of_nth(g, 1), STATE_DELIVERED);
    for (int i = 0; i < 2; i++)
        filter_free(f[i]);
}

static void claim_taken_over_under_another_filter_shows_its_outcome(void **state)
{
    struct store_rig *g = *state;
    struct filter *f[2];
    struct claim_request req = refilter(g, "a.*", "", &f[0]);
    emit_with(g->st, "a.x", "1", "{}", 0);
    emit_with(g->st, "b.x", "2", "{}", 0);
    emit_with(g->st, "a.x", "3", "{}", 0);
    /* Its worker dies, perhaps before it has delivered anything. */
    assert_int_equal(claim_by(g, req), 2);
    req = refilter(g, "b.*", "", &f[1]);
    pass(LEASE + 1);
    req.owner = "other";
    assert_int_equal(claim_by(g, req), 1);
    assert_string_equal(g->b.ev[0].type.p, "b.x");
    assert_int_equal(state_of_nth(g, 2), STATE_INFLIGHT);
    assert_true(settle_by(g, "c", "other", NULL, 0));
    /* Whether it was delivered is unknown, and it will not be repeated. */
    assert_int_equal(state_of_nth(g, 1), STATE_SKIPPED);
    assert_int_equal(state_of_nth(g, 2), STATE_DELIVERED);
    assert_int_equal(state_of_nth(g, 3), STATE_SKIPPED);
    for (int i = 0; i < 2; i++)
        filter_free(f[i]);
}

static void events_can_be_found_by_type_key_state_and_id(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit_with(g->st, "a.x", "1", "{}", 0);
    emit_with(g->st, "b.x", "2", "{}", 0);
    assert_int_equal(events(g, (struct event_query){.type = "a.*"}).n, 1);
    assert_int_equal(events(g, (struct event_query){.type = "*"}).n, 2);
    assert_int_equal(
        events(g, (struct event_query){.aggregate_type = STR("t"), .aggregate_id = STR("2")}).n, 1);
    assert_int_equal(events(g, (struct event_query){.state = STATE_PENDING + 1}).n, 2);
    assert_int_equal(events(g, (struct event_query){.state = STATE_DELIVERED + 1}).n, 0);
    assert_int_equal(claim(g, "c"), 2);
    char id[UUID_TEXT + 1], seq[24];
    snprintf(id, sizeof id, "%s", g->b.ev[1].id.p);
    snprintf(seq, sizeof seq, "%lld", (long long)g->b.ev[1].seq);
    assert_int_equal(events(g, (struct event_query){.id = id}).n, 1);
    assert_int_equal(events(g, (struct event_query){.id = seq}).n, 1);
    assert_int_equal(events(g, (struct event_query){.id = "nope"}).n, 0);
    assert_int_equal(events(g, (struct event_query){.limit = 1}).n, 1);
}

static const struct CMUnitTest tests[] = {
    ON_A_STORE(every_documented_state_is_shown),
    ON_A_STORE(dropped_dead_letter_is_shown_as_dropped),
    ON_A_STORE(recreated_consumer_does_not_show_earlier_dropped_letters),
    ON_A_STORE(events_from_before_the_start_are_shown_as_such),
    ON_A_STORE(events_of_an_expired_claim_are_shown_as_pending),
    ON_A_STORE(state_follows_the_filter_at_hand_out),
    ON_A_STORE(failed_event_is_delivered_despite_a_changed_filter),
    ON_A_STORE(claim_taken_over_under_another_filter_shows_its_outcome),
    ON_A_STORE(events_can_be_found_by_type_key_state_and_id),
};

const struct suite_part store_state_tests = SUITE_PART(tests);
