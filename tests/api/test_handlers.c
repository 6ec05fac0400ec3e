/* Handlers with names: their transactional effects happen exactly once, however they behave. */
#include "handlers_rig.h"

static void effect_record_and_outcome_are_atomic(void **state)
{
    struct script s = {.name = "h"};
    outbox_consumer *c = consumer(*state, "c");
    emit(*state, 20);
    handler(c, &s);
    through(*state);
    exact("h", 20, -1);
    assert_int_equal(s.calls, 20);
    assert_int_equal(db_number("SELECT count(*) FROM @handled WHERE handler = 'c.h' AND key IN "
                               "(SELECT CAST(id AS text) "
                               "FROM @event)"),
                     20);
    assert_int_equal(db_number("SELECT count(*) FROM @claim"), 0);
}

static void emit_once(outbox *ob, const char *once)
{
    outbox_message m = OUTBOX_MESSAGE_INIT;
    m.type = "e";
    m.payload = "1";
    m.idempotency_key = once;
    OK(outbox_emit(ob, &m, NULL, &err));
}

static outbox_verdict act_outside(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    (void)tx;
    assert_non_null(outbox_event_inbox_key(ev));
    ++*(int *)ctx;
    return OUTBOX_DONE;
}

static void effect_is_recorded_under_the_idempotency_key(void **state)
{
    int acted = 0;
    struct script s = {.name = "h"};
    outbox_consumer *c = consumer(*state, "c");
    handler(c, &s);
    OK(outbox_add_handler(c, "out", "*", act_outside, &acted, OUTBOX_EXTERNAL, &err));
    emit_once(*state, "order-42 paid");
    emit_once(*state, NULL);
    through(*state);
    assert_int_equal(s.calls, 2);
    assert_int_equal(acted, 2);
    assert_int_equal(db_number("SELECT count(*) FROM @handled WHERE key = 'order-42 paid' AND "
                               "handler IN ('c.h', 'c.out')"),
                     2);
    assert_int_equal(
        db_number("SELECT count(*) FROM @handled WHERE key IN (SELECT CAST(id AS text) FROM @event "
                  "WHERE idempotency_key IS NULL)"),
        2);
    /* Event and key are trimmed, so the key creates another event. It has no second effect. */
    db_do("DELETE FROM @event WHERE idempotency_key IS NOT NULL");
    db_do("DELETE FROM @idempotency");
    emit_once(*state, "order-42 paid");
    assert_int_equal(
        db_number("SELECT count(*) FROM @event WHERE idempotency_key = 'order-42 paid'"), 1);
    through(*state);
    assert_int_equal(s.calls, 2);
    assert_int_equal(acted, 2);
    assert_int_equal(db_number("SELECT count(*) FROM @effect"), 2);
}

static void only_the_failed_call_is_rolled_back(void **state)
{
    static const struct {
        int what, at, times, left;
    } cases[] = {{FAIL, 7, 1, -1},  {FAIL, 0, 2, -1},  {FAIL, 19, 0, 19}, {FAIL_BEFORE, 3, 1, -1},
                 {REJECT, 5, 0, 5}, {ERROR, 9, 1, -1}, {ERROR, 9, 0, 9}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        char name[8];
        snprintf(name, sizeof name, "h%zu", i);
        struct script s = {
            .name = name, .what = cases[i].what, .at = cases[i].at, .times = cases[i].times};
        bool heard = db_goes_on && s.what == ERROR;
        outbox *ob = db_open(NULL);
        outbox_consumer *c = consumer(ob, name);
        if (i == 0)
            emit(ob, 20);
        handler(c, &s);
        through(ob);
        exact(name, 20, heard ? -1 : cases[i].left);
        outbox_close(ob);
    }
    assert_int_equal(db_number("SELECT count(*) FROM @dead"), db_goes_on ? 2 : 3);
    (void)state;
}

static void handler_that_ends_its_transaction_is_refused(void **state)
{
    static const int what[] = {COMMIT, ROLLBACK, COMMIT_AND_BEGIN, ROLLBACK_AND_BEGIN};
    (void)state;
    for (int i = 0; i < 4; i++) {
        char name[8], sql[200];
        snprintf(name, sizeof name, "h%d", i);
        struct script s = {.name = name, .what = what[i], .at = 6};
        outbox_options o = logging();
        outbox *ob = db_open(&o);
        outbox_consumer *c = consumer(ob, name);
        if (i == 0)
            emit(ob, 12);
        handler(c, &s);
        through(ob);
        /* Every other event took effect once; this one is a dead letter that says why. */
        snprintf(sql, sizeof sql,
                 "SELECT count(DISTINCT key) FROM @effect WHERE handler = '%s' AND key <> '6'",
                 name);
        assert_int_equal(db_number(sql), 11);
        snprintf(sql, sizeof sql,
                 "SELECT count(*) FROM @dead WHERE consumer = '%s.%s' AND error LIKE '%%ended its "
                 "transaction%%'",
                 name, name);
        assert_int_equal(db_number(sql), 1);
        snprintf(sql, sizeof sql, "SELECT count(*) FROM @effect WHERE handler = '%s' AND key > '6'",
                 name);
        assert_int_equal(db_number(sql), 3);
        if (db_one_writer) { /* its COMMIT is refused, so nothing is stored twice */
            snprintf(sql, sizeof sql, "SELECT count(*) FROM @effect WHERE handler = '%s'", name);
            assert_int_equal(db_number(sql), 11);
        }
        outbox_close(ob);
    }
}

static void event_left_to_another_worker_does_not_use_an_attempt(void **state)
{
    struct script old = {.name = "h", .what = NOT_MINE, .at = 1}, new = {.name = "h"};
    outbox *ob = db_open(NULL), *newer;
    outbox_consumer *c = consumer(ob, "c");
    size_t n;
    (void)state;
    emit(ob, 3);
    handler(c, &old);
    OK(outbox_step(ob, &n, &err));
    assert_int_equal(n, 2);
    exact("h", 3, 1);
    assert_int_equal(db_number("SELECT attempts FROM @parked"), 0);
    outbox_close(ob);
    newer = db_open(NULL);
    c = consumer(newer, "c");
    handler(c, &new);
    through(newer);
    exact("h", 3, -1);
    assert_int_equal(new.calls, 1);
    assert_int_equal(db_number("SELECT count(*) FROM @dead"), 0);
    outbox_close(newer);
}

static void down_sink_keeps_completed_work_without_using_attempts(void **state)
{
    struct script s = {.name = "h", .what = IS_DOWN, .at = 4, .times = 5};
    outbox_consumer *c = consumer(*state, "c");
    emit(*state, 8);
    handler(c, &s);
    through(*state);
    exact("h", 8, -1);
    assert_int_equal(db_number("SELECT count(*) FROM @dead"), 0);
}

static outbox_verdict follow(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    outbox_message m = OUTBOX_MESSAGE_INIT;
    atomic_int *calls = ctx;
    m.type = "next";
    m.payload = outbox_event_payload(ev, NULL);
    if (outbox_tx_emit(tx, &m, NULL, &err) != 0)
        return outbox_fail(tx, OUTBOX_REJECT, err.text);
    (*calls)++;
    return number_of(ev) % 3 == 0 && outbox_event_attempt(ev) == 1
               ? outbox_fail(tx, OUTBOX_RETRY, "once more")
               : OUTBOX_DONE;
}

static void events_emitted_by_a_handler_commit_with_its_effect(void **state)
{
    struct script s = {.name = "h"};
    atomic_int calls = 0;
    outbox_consumer *c = consumer(*state, "c");
    OK(outbox_add_handler(c, "follow", "e", follow, &calls, 0, &err));
    OK(outbox_add_handler(c, "h", "next", play, &s, 0, &err));
    emit(*state, 30);
    through(*state);
    assert_int_equal(db_number("SELECT count(*) FROM @event WHERE type = 'next'"), 30);
    exact("h", 30, -1);
}

static outbox_verdict once_per_day(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    int first;
    (void)ctx;
    const char *payload = number_of(ev) == 3 ? "other" : "same";
    if (outbox_handle_once(tx, "digest", "monday", payload, 0, &first, &err) != 0)
        return outbox_fail(tx, err.code == OUTBOX_CONFLICT ? OUTBOX_REJECT : OUTBOX_RETRY,
                           err.text);
    return !first || effect(tx, "digest", ev) == 0 ? OUTBOX_DONE : OUTBOX_RETRY;
}

static void inbox_reports_first_duplicate_or_conflict(void **state)
{
    outbox_consumer *c = consumer(*state, "c");
    OK(outbox_consumer_set(c, "order", "global", &err));
    OK(outbox_add_handler(c, "h", "e", once_per_day, NULL, 0, &err));
    emit(*state, 5);
    through(*state);
    assert_int_equal(db_number("SELECT count(*) FROM @effect WHERE handler = 'digest'"), 1);
    assert_int_equal(db_number("SELECT count(*) FROM @dead WHERE error LIKE '%another payload%'"),
                     1);
}

static outbox_verdict complain(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    char text[32];
    int *ret_attempt = ctx;
    *ret_attempt = outbox_event_attempt(ev);
    snprintf(text, sizeof text, "reason %d", *ret_attempt);
    return outbox_fail(tx, OUTBOX_RETRY, text);
}

static void only_the_latest_failure_reason_is_kept(void **state)
{
    outbox_consumer *c = consumer(*state, "c");
    OK(outbox_consumer_set(c, "retry", "base=100ms,cap=100ms,attempts=3,jitter=none,outage=0s",
                           &err));
    int attempt = 0; /* on a slow machine one step makes several attempts */
    OK(outbox_add_handler(c, "h", "e", complain, &attempt, 0, &err));
    emit(*state, 1);
    while (attempt < 3) {
        char sql[128];
        while (outbox_step(*state, NULL, &err) == 0)
            nap(5); /* until it was due and failed */
        snprintf(sql, sizeof sql, "SELECT count(*) FROM @%s WHERE error = 'reason %d'",
                 attempt < 3 ? "parked" : "dead", attempt);
        assert_int_equal(db_number(sql), 1);
        assert_int_equal(
            db_number("SELECT (SELECT count(*) FROM @parked) + (SELECT count(*) FROM @dead)"), 1);
    }
}

static void refused(int r, const char *part)
{
    assert_int_equal(r, -1);
    assert_int_equal(err.code, OUTBOX_CONFIG);
    if (!strstr(err.text, part))
        fail_msg("\"%s\" does not contain \"%s\"", err.text, part);
}

static void invalid_handler_definitions_are_refused(void **state)
{
    struct script s = {.name = "h"};
    outbox_consumer *c = consumer(*state, "c"), *d = consumer(*state, "d"), *both;
    handler(c, &s);
    refused(outbox_add_handler(c, "h", "x", play, &s, 0, &err), "already has a handler \"h\"");
    refused(outbox_add_handler(c, "a b", "x", play, &s, 0, &err), "a b");
    refused(outbox_add_handler(c, "i", "", play, &s, 0, &err), "no pattern");
    refused(outbox_add_handler(c, "i", "a,,b", play, &s, 0, &err), "expected a pattern");
    refused(outbox_on(c, "x", play, &s, &err), "name this one, too");
    OK(outbox_on(d, "x", play, &s, &err));
    refused(outbox_add_handler(d, "i", "x", play, &s, 0, &err), "without names");
    refused(outbox_consumer_set(c, "fate", "none", &err), "own or shared");
    refused(outbox_consumer_set(c, "workers", "0", &err), "0");
    OK(outbox_consumer_set(c, "workers", "2", &err));
    refused(outbox_step(*state, NULL, &err), "lanes");
    OK(outbox_consumer_set(c, "lanes", "2", &err));
    OK(outbox_consumer_new(*state, "c.h", &both, &err));
    OK(outbox_on(both, "x", play, &s, &err));
    refused(outbox_step(*state, NULL, &err), "two consumers have the name \"c.h\"");
}

static void short_inbox_retention_causes_a_warning(void **state)
{
    struct script s = {.name = "h"};
    outbox_consumer *c = consumer(*state, "c");
    handler(c, &s);
    through(*state);
    assert_false(logged("inbox-retention"));
    OK(outbox_set(*state, "inbox-retention", "167h", &err));
    through(*state);
    assert_true(logged("inbox-retention is 6d23h"));
}

static void eager_mode_delivers_before_emit_returns(void **state)
{
    struct script s = {.name = "h", .what = FAIL, .at = 1, .times = 1};
    (void)state;
    setenv("OUTBOX_EAGER", "1", 1);
    outbox *ob = db_open(NULL);
    unsetenv("OUTBOX_EAGER");
    outbox_consumer *c = consumer(ob, "c");
    handler(c, &s);
    outbox_message m = OUTBOX_MESSAGE_INIT;
    m.type = "e";
    m.payload = "0";
    OK(outbox_emit(ob, &m, NULL, &err));
    assert_int_equal(s.calls, 1);
    exact("h", 1, -1);
    m.payload = "1";
    OK(outbox_begin(ob, &err));
    OK(outbox_emit(ob, &m, NULL, &err));
    assert_int_equal(s.calls, 1);
    assert_int_equal(outbox_commit(ob, &err), -1);
    assert_int_equal(err.code, OUTBOX_UNDELIVERED);
    assert_non_null(strstr(err.text, "told to fail"));
    assert_int_equal(db_number("SELECT count(*) FROM @event"), 2);
    through(ob);
    exact("h", 2, -1);
    outbox_close(ob);
}

static void mark(const char *consumer, const char *stream, int hi, int lo)
{
    char sql[200];
    snprintf(sql, sizeof sql,
             "INSERT INTO @mark (stream, consumer, hi, lo, at) SELECT '%s', '%s', %d, %d, "
             "created_at FROM @event",
             stream, consumer, hi, lo);
    db_do(sql);
}

static void high_water_mark_is_the_highest_position_written(void **state)
{
    static const char *const names[] = {"c", "d", "e"};
    char id[OUTBOX_HWM_SIZE] = "as it was";
    for (int i = 0; i < 3; i++)
        OK(outbox_consumer_register(consumer(*state, names[i]), &err));
    emit(*state, 1);
    mark("c", "tenant.user", 1000, 7);
    mark("d", "tenant.user", 999, 12);
    mark("e", "tenant.user", 1000, 12); /* as numbers: not behind 7 */
    mark("c", "tenant.role", 2000, 0);
    assert_int_equal(outbox_hwm(*state, "tenant.other", id, &err), -1);
    assert_int_equal(err.code, OUTBOX_NOTFOUND);
    assert_non_null(strstr(err.text, "\"tenant.other\""));
    assert_string_equal(id, "as it was");
    OK(outbox_hwm(*state, "tenant.user", id, &err));
    assert_string_equal(id, "1000-12");
    OK(outbox_hwm(*state, "tenant.role", id, &err));
    assert_string_equal(id, "2000-0");
    assert_int_equal(outbox_hwm(*state, NULL, id, &err), -1);
    assert_int_equal(err.code, OUTBOX_MISUSE);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        ON(effect_record_and_outcome_are_atomic),
        ON(effect_is_recorded_under_the_idempotency_key),
        ON(only_the_failed_call_is_rolled_back),
        ON(handler_that_ends_its_transaction_is_refused),
        ON(event_left_to_another_worker_does_not_use_an_attempt),
        ON(down_sink_keeps_completed_work_without_using_attempts),
        ON(events_emitted_by_a_handler_commit_with_its_effect),
        ON(inbox_reports_first_duplicate_or_conflict),
        ON(only_the_latest_failure_reason_is_kept),
        ON(invalid_handler_definitions_are_refused),
        ON(short_inbox_retention_causes_a_warning),
        ON(eager_mode_delivers_before_emit_returns),
        ON(high_water_mark_is_the_highest_position_written),
    };
    const struct suite_part parts[] = {SUITE_PART(tests), handlers_several_tests,
                                       handlers_outside_tests, handlers_time_tests};
    return suite_run("tests", parts, COUNT(parts));
}
