/* handlers_several.c: several handlers of one consumer, each with its own fate or all with a
 * shared one. */
#include "handlers_rig.h"

static void each_handler_gets_events_matching_pattern_and_predicate(void **state)
{
    static const struct {
        const char *pattern;
        int calls;
    } cases[] = {
        {"order.placed", 1}, {"order.*", 2}, {"order.paid,user.*", 2}, {"*", 3}, {"parcel.*", 0}};
    static const char *const fates[] = {"own", "shared"};
    struct script s[2][5];
    for (int f = 0; f < 2; f++) {
        outbox_consumer *c = consumer(*state, fates[f]);
        OK(outbox_consumer_set(c, "fate", fates[f], &err));
        OK(outbox_consumer_set(c, "where", "by = \"user\"", &err));
        for (int i = 0; i < 5; i++) {
            static const char *const names[] = {"a", "b", "c", "d", "e"};
            s[f][i] = (struct script){.name = names[i], .at = -1};
            OK(outbox_add_handler(c, names[i], cases[i].pattern, play, &s[f][i], 0, &err));
        }
    }
    emit_one(*state, "order.placed", "1", "{\"by\":\"user\"}");
    emit_one(*state, "order.paid", "1", "{\"by\":\"user\"}");
    emit_one(*state, "user.left", "2", "{\"by\":\"user\"}");
    emit_one(*state, "order.placed", "3", "{\"by\":\"robot\"}");
    through(*state);
    for (int f = 0; f < 2; f++)
        for (int i = 0; i < 5; i++)
            assert_int_equal(s[f][i].calls, cases[i].calls);
}

static void both_handlers_are_recorded_and_redelivery_is_a_no_op(void **state)
{
    static const char *const fates[] = {"own", "shared"};
    (void)state;
    for (int f = 0; f < 2; f++) {
        char name[16];
        snprintf(name, sizeof name, "c-%s", fates[f]);
        for (int round = 0; round < 3; round++) {
            struct script stock = {.name = "stock"}, mail = {.name = "mail"};
            outbox *ob = db_open(NULL);
            outbox_consumer *c = consumer(ob, name);
            OK(outbox_consumer_set(c, "fate", fates[f], &err));
            handler(c, &stock);
            handler(c, &mail);
            if (f == 0 && round == 0)
                emit(ob, 10);
            through(ob);
            outbox_close(ob);
            assert_int_equal(stock.calls, round ? 0 : 10);
            assert_int_equal(mail.calls, round ? 0 : 10);
            assert_int_equal(db_number("SELECT count(*) FROM @effect"), 20 * (f + 1));
            assert_int_equal(
                db_number("SELECT count(*) FROM @handled WHERE handler LIKE '%.stock'"),
                10 * (f + 1));
            assert_int_equal(db_number("SELECT count(*) FROM @handled WHERE handler LIKE '%.mail'"),
                             10 * (f + 1));
            forget_positions();
        }
    }
}

static void failing_handler_does_not_block_others(void **state)
{
    struct script good = {.name = "good"}, bad = {.name = "bad", .what = FAIL, .at = -1};
    outbox_consumer *c = consumer(*state, "c");
    handler(c, &bad);
    handler(c, &good);
    emit(*state, 10);
    through(*state);
    exact("good", 10, -1);
    assert_int_equal(good.calls, 10);
    assert_int_equal(db_number("SELECT count(*) FROM @effect WHERE handler = 'bad'"), 0);
    assert_int_equal(db_number("SELECT count(*) FROM @dead WHERE consumer = 'c.bad'"), 10);
    assert_int_equal(db_number("SELECT count(*) FROM @dead WHERE consumer = 'c.good'"), 0);
}

static void redelivery_runs_only_uncommitted_handlers(void **state)
{
    static const char *const fates[] = {"own", "shared"};
    static const char trace[] =
        "SELECT coalesce(sum(at), 0) FROM @effect WHERE handler LIKE 'stock%'";
    emit(*state, 10);
    for (int f = 0; f < 2; f++) {
        char consumer_name[16], stock_name[16], mail_name[16];
        snprintf(consumer_name, sizeof consumer_name, "c-%s", fates[f]);
        snprintf(stock_name, sizeof stock_name, "stock-%s", fates[f]);
        snprintf(mail_name, sizeof mail_name, "mail-%s", fates[f]);
        long before = 0;
        for (int round = 0; round < 2; round++) {
            struct script stock = {.name = stock_name}, mail = {.name = mail_name};
            outbox *ob = db_open(NULL);
            outbox_consumer *c = consumer(ob, consumer_name);
            OK(outbox_consumer_set(c, "fate", fates[f], &err));
            handler(c, &stock);
            if (round == 1)
                handler(c, &mail); /* must still commit */
            through(ob);
            outbox_close(ob);
            assert_int_equal(stock.calls, round == 0 ? 10 : 0);
            assert_int_equal(mail.calls, round == 0 ? 0 : 10);
            if (round == 0)
                before = db_number(trace);
            forget_positions();
        }
        assert_int_equal(db_number(trace), before);
        exact(stock_name, 10, -1);
        exact(mail_name, 10, -1);
    }
}

static void partial_failure_retries_only_the_failed_handlers(void **state)
{
    static const char *const fates[] = {"own", "shared"};
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct script good = {.name = f ? "good2" : "good1"},
                      bad = {.name = f ? "bad2" : "bad1", .what = FAIL, .at = 0, .times = 1};
        outbox *ob = db_open(NULL);
        outbox_consumer *c = consumer(ob, fates[f]);
        OK(outbox_consumer_set(c, "fate", fates[f], &err));
        OK(outbox_consumer_set(c, "retry", "base=1h,cap=1h,attempts=5,jitter=none,outage=0s",
                               &err));
        handler(c, &good);
        handler(c, &bad);
        if (f == 0)
            emit(ob, 1);
        assert_int_equal(outbox_step(ob, NULL, &err), -1); /* which reports the failure */
        assert_int_equal(
            db_number("SELECT count(*) FROM @delivery WHERE state = 'failed' AND attempts = 1"), 1);
        assert_int_equal(db_number("SELECT count(*) FROM @parked WHERE due_at IS NOT NULL"), 1);
        exact(good.name, 1, -1);
        exact(bad.name, 1, 0);

        int good_calls = good.calls, bad_calls = bad.calls;
        OK(outbox_step(ob, NULL, &err)); /* it is not due yet */
        assert_int_equal(bad.calls, bad_calls);
        db_do("UPDATE @parked SET due_at = due_at - wait");
        OK(outbox_step(ob, NULL, &err));
        assert_int_equal(good.calls, good_calls);
        assert_int_equal(bad.calls, bad_calls + 1);
        exact(good.name, 1, -1);
        exact(bad.name, 1, -1);
        assert_int_equal(db_number("SELECT count(*) FROM @delivery WHERE state <> 'delivered'"), 0);
        outbox_close(ob);
    }
}

static void with_shared_fate_the_other_handlers_are_not_called_again(void **state)
{
    struct script first = {.name = "first"},
                  flaky = {.name = "flaky", .what = FAIL, .at = 4, .times = 2},
                  last = {.name = "last"};
    outbox_consumer *c = consumer(*state, "c");
    OK(outbox_consumer_set(c, "fate", "shared", &err));
    handler(c, &first);
    handler(c, &flaky);
    handler(c, &last);
    emit(*state, 10);
    through(*state);
    exact("first", 10, -1);
    exact("flaky", 10, -1);
    exact("last", 10, -1);
    /* By then the first handler and the one behind the failing one had both succeeded. */
    assert_int_equal(first.last_attempt, 1);
    assert_int_equal(last.last_attempt, 1);
    assert_true(flaky.last_attempt > 1);
    assert_int_equal(db_number("SELECT count(*) FROM @consumer"), 1);
    assert_int_equal(db_number("SELECT count(*) FROM @dead"), 0);
    assert_true(logged("told to fail"));
}

/* One handler fails for `fail_for` attempts and inspects the held events meanwhile; the other one
 * succeeds. */
struct held {
    int fail_for;
    /* others_after counts calls of the good one after the first attempt. */
    int calls, others_after;
    long dead, delivered_behind;
};

static outbox_verdict fail_for_long(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    struct held *h = ctx;
    bool fails = number_of(ev) == 4 && outbox_event_attempt(ev) <= h->fail_for;
    if (!fails)
        return effect(tx, "bad", ev) == 0 ? OUTBOX_DONE : OUTBOX_RETRY;
    h->calls++;
    h->dead += db_number("SELECT count(*) FROM @dead");
    /* Later events wait, for all handlers: the second handler has no effect for the second event of
     * its key. */
    h->delivered_behind += db_number("SELECT count(*) FROM @effect WHERE key = '100'");
    return outbox_fail(tx, OUTBOX_RETRY, "not yet");
}

static outbox_verdict go_well(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    struct held *h = ctx;
    if (outbox_event_attempt(ev) > 1)
        h->others_after++;
    return effect(tx, "good", ev) == 0 ? OUTBOX_DONE : OUTBOX_RETRY;
}

/* Far longer than any preset's attempts, and with a patience for outages that is over at once. */
static void with_shared_fate_one_failure_holds_the_event_for_all(void **state)
{
    struct held h = {.fail_for = 40};
    outbox_consumer *c = consumer(*state, "c");
    OK(outbox_consumer_set(c, "retry", "fast,base=1ms,cap=1ms,jitter=none,outage=0s", &err));
    OK(outbox_consumer_set(c, "fate", "shared", &err));
    OK(outbox_add_handler(c, "bad", "e", fail_for_long, &h, 0, &err));
    OK(outbox_add_handler(c, "good", "e", go_well, &h, 0, &err));
    emit(*state, 10);
    emit_one(*state, "e", "4", "100");
    through(*state);
    assert_true(h.calls >= 40);
    assert_int_equal(h.dead, 0);
    assert_int_equal(h.delivered_behind, 0);
    assert_int_equal(h.others_after, 0); /* handlers that succeeded are not called again */
    exact("good", 11, -1);
    exact("bad", 11, -1);
    assert_int_equal(db_number("SELECT count(*) FROM @dead"), 0);
    assert_true(logged("is held until it succeeds: not yet"));
    /* In key order: first the held event, then its follower. */
    assert_int_equal(
        db_number(
            "SELECT count(*) FROM @effect a, @effect b WHERE a.handler = 'bad' AND a.key = '4' AND "
            "b.key = '100' AND b.at < a.at"),
        0);
}

static void with_shared_fate_limiting_attempts_is_optional(void **state)
{
    struct script good = {.name = "good"}, bad = {.name = "bad", .what = FAIL, .at = 4};
    outbox_consumer *c = consumer(*state, "c");
    OK(outbox_consumer_set(c, "fate", "shared", &err));
    handler(c, &bad);
    handler(c, &good);
    emit(*state, 10);
    through(*state);
    exact("good", 10, -1);
    exact("bad", 10, 4);
    assert_int_equal(db_number("SELECT count(*) FROM @dead WHERE consumer = 'c'"), 1);
}

static const struct CMUnitTest tests[] = {
    ON(each_handler_gets_events_matching_pattern_and_predicate),
    ON(both_handlers_are_recorded_and_redelivery_is_a_no_op),
    ON(failing_handler_does_not_block_others),
    ON(redelivery_runs_only_uncommitted_handlers),
    ON(partial_failure_retries_only_the_failed_handlers),
    ON(with_shared_fate_the_other_handlers_are_not_called_again),
    ON(with_shared_fate_one_failure_holds_the_event_for_all),
    ON(with_shared_fate_limiting_attempts_is_optional),
};

const struct suite_part handlers_several_tests = SUITE_PART(tests);
