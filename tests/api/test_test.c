/* Tools for applications' own tests: an outbox in memory, a clock that can be moved, and immediate
 * delivery. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <outbox_test.h>
#include <sqlite3.h>
#include <string.h>
#include <time.h>

#include "ok.h"

static outbox_error err;

static int fresh(void **state)
{
    outbox *ob;
    if (outbox_test_open(&ob, &err) != 0)
        return -1;
    *state = ob;
    return 0;
}

static int done(void **state)
{
    outbox_close(*state);
    return 0;
}

static void emit(outbox *ob, const char *type, const char *id, const char *payload,
                 int64_t not_before)
{
    outbox_message m = OUTBOX_MESSAGE_INIT;
    m.type = type;
    m.aggregate_type = "order";
    m.aggregate_id = id;
    m.payload = payload;
    m.not_before = not_before;
    OK(outbox_emit(ob, &m, NULL, &err));
}

/* How often the handler must fail, and how often it was called. */
struct script {
    int fail, calls;
};

static outbox_verdict play(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    struct script *s = ctx;
    (void)ev;
    s->calls++;
    if (s->fail == 0)
        return OUTBOX_DONE;
    s->fail--;
    return outbox_fail(tx, OUTBOX_RETRY, "not yet");
}

static outbox_consumer *consumer(outbox *ob, struct script *s, const char *retry)
{
    outbox_consumer *c;
    OK(outbox_consumer_new(ob, "c", &c, &err));
    OK(outbox_consumer_set(c, "retry", retry, &err));
    OK(outbox_add_handler(c, "h", "*", play, s, 0, &err));
    return c;
}

static void emitted_events_can_be_counted(void **state)
{
    emit(*state, "order.created", "42", "{\"total\":99}", 0);
    emit(*state, "order.paid", "42", "{}", 0);
    emit(*state, "user.created", "7", "{}", 0);
    assert_int_equal(outbox_test_count(*state, NULL, NULL, NULL, &err), 3);
    assert_int_equal(outbox_test_count(*state, "order.*", NULL, NULL, &err), 2);
    assert_int_equal(outbox_test_count(*state, "order.*", "42", "\"total\":99", &err), 1);
    assert_int_equal(outbox_test_count(*state, NULL, "8", NULL, &err), 0);
}

static void rolled_back_events_do_not_count_as_emitted(void **state)
{
    OK(outbox_begin(*state, &err));
    emit(*state, "order.created", "42", "{}", 0);
    outbox_rollback(*state);
    assert_int_equal(outbox_test_count(*state, NULL, NULL, NULL, &err), 0);
}

static void hours_of_retries_run_instantly(void **state)
{
    struct script s = {.fail = 4};
    size_t n;
    time_t began = time(NULL);
    consumer(*state, &s, "slow");
    emit(*state, "order.created", "42", "{}", 0);
    assert_int_equal(outbox_test_deliver(*state, &n, &err), -1); /* it failed on the way */
    assert_non_null(strstr(err.text, "not yet"));
    assert_int_equal(n, 1);
    assert_int_equal(s.calls, 5);
    assert_true(time(NULL) - began < 60);
    emit(*state, "order.paid", "42", "{}", 0);
    OK(outbox_test_deliver(*state, &n, &err));
    assert_int_equal(n, 1);
}

static void delivery_ends_with_a_dead_letter(void **state)
{
    struct script s = {.fail = 1000};
    size_t n;
    consumer(*state, &s, "fast,outage=0s");
    emit(*state, "order.created", "42", "{}", 0);
    assert_int_equal(outbox_test_deliver(*state, &n, &err), -1);
    assert_int_equal(n, 0);
    assert_int_equal(s.calls, 5);
}

static void delayed_event_waits_for_the_clock(void **state)
{
    struct script s = {0};
    size_t n;
    consumer(*state, &s, "fast");
    emit(*state, "order.reminder", "42", "{}", ((int64_t)time(NULL) + 3600) * 1000);
    OK(outbox_step(*state, &n, &err));
    assert_int_equal(n, 0);
    outbox_test_advance(*state, 3599 * 1000 - 5000);
    OK(outbox_step(*state, &n, &err));
    assert_int_equal(n, 0);
    outbox_test_advance(*state, 10000);
    OK(outbox_step(*state, &n, &err));
    assert_int_equal(n, 1);
}

static outbox_verdict write_row(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    (void)ev;
    (void)ctx;
    int rc = sqlite3_exec(outbox_tx_sqlite(tx), "INSERT INTO stock VALUES (1)", NULL, NULL, NULL);
    if (rc != SQLITE_OK)
        return OUTBOX_RETRY;
    return OUTBOX_DONE;
}

static void handlers_run_in_the_same_address_space(void **state)
{
    outbox_consumer *c;
    sqlite3_stmt *q;
    assert_int_equal(
        sqlite3_exec(outbox_sqlite(*state), "CREATE TABLE stock (n)", NULL, NULL, NULL), SQLITE_OK);
    OK(outbox_consumer_new(*state, "c", &c, &err));
    OK(outbox_add_handler(c, "h", "*", write_row, NULL, 0, &err));
    emit(*state, "order.created", "42", "{}", 0);
    OK(outbox_test_deliver(*state, NULL, &err));
    assert_int_equal(
        sqlite3_prepare_v2(outbox_sqlite(*state), "SELECT count(*) FROM stock", -1, &q, NULL),
        SQLITE_OK);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    assert_int_equal(sqlite3_column_int(q, 0), 1);
    sqlite3_finalize(q);
}

#define ON(test) cmocka_unit_test_setup_teardown(test, fresh, done)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON(emitted_events_can_be_counted),     ON(rolled_back_events_do_not_count_as_emitted),
        ON(hours_of_retries_run_instantly),    ON(delivery_ends_with_a_dead_letter),
        ON(delayed_event_waits_for_the_clock), ON(handlers_run_in_the_same_address_space),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
