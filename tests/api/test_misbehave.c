/* Handlers, or their database, misbehave. The event fails alone, as if the handler had reported
 * failure, and nothing is repeated forever, left out or done twice. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "db.h"
#include "ok.h"

#define EVENTS 20
#define BAD 7 /* the event that is handled badly */

static outbox_error err;
static atomic_int calls, calls_bad;
static outbox *here;

static int fresh(void **state)
{
    calls = calls_bad = 0;
    *state = here = db_fresh(NULL);
    OK(outbox_begin(here, &err));
    for (int i = 0; i < EVENTS; i++) {
        char text[8];
        outbox_message m = OUTBOX_MESSAGE_INIT;
        snprintf(text, sizeof text, "%d", i);
        m.type = "e";
        m.payload = text;
        OK(outbox_emit(here, &m, NULL, &err));
    }
    OK(outbox_commit(here, &err));
    return 0;
}

static int done(void **state)
{
    outbox_close(*state);
    db_clean();
    return 0;
}

static outbox_consumer *consumer(const char *name)
{
    outbox_consumer *c;
    OK(outbox_consumer_new(here, name, &c, &err));
    OK(outbox_consumer_set(c, "retry", "base=1ms,cap=1ms,attempts=3,jitter=none,outage=0s", &err));
    return c;
}

static outbox_verdict nothing(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    (void)ev, (void)tx, (void)ctx;
    return OUTBOX_DONE;
}

/* through runs consumer "c" with this handler until no event is left. With `beside`, there is an
 * external handler as well, and then each call has its own transaction. */
static void through(outbox_handler fn, bool beside)
{
    outbox_consumer *c = consumer("c");
    OK(outbox_add_handler(c, "h", "e", fn, NULL, 0, &err));
    if (beside) {
        OK(outbox_consumer_set(c, "fate", "shared", &err));
        OK(outbox_add_handler(c, "x", "e", nothing, NULL, OUTBOX_EXTERNAL, &err));
    }
    OK(outbox_run(here, OUTBOX_UNTIL_THROUGH, &err));
}

static bool counted(const outbox_event *ev)
{
    bool bad = atoi(outbox_event_payload(ev, NULL)) == BAD;
    calls++;
    if (bad)
        calls_bad++;
    return bad;
}

static int effect(outbox_tx *tx, const outbox_event *ev)
{
    return db_tx(tx, "INSERT INTO @effect (handler, key) VALUES ('h', '%s')",
                 outbox_event_payload(ev, NULL));
}

/* dead checks that the event is a dead letter after three attempts, for a reason with these words,
 * and that all others took effect once. */
static void dead(const char *why)
{
    char sql[200];
    assert_int_equal(db_number("SELECT count(*) FROM @effect"), EVENTS - 1);
    assert_int_equal(db_number("SELECT count(DISTINCT key) FROM @effect WHERE key <> '7'"),
                     EVENTS - 1);
    assert_int_equal(db_number("SELECT count(*) FROM @dead"), 1);
    snprintf(sql, sizeof sql,
             "SELECT count(*) FROM @dead WHERE attempts = 3 AND error LIKE '%%%s%%'", why);
    assert_int_equal(db_number(sql), 1);
    assert_int_equal(
        db_number("SELECT count(*) FROM @claim") + db_number("SELECT count(*) FROM @parked"), 0);
    if (calls > 8 * EVENTS)
        fail_msg("%d calls", calls);
}

/* ---- a commit that is refused ---- */

static outbox_verdict break_promise(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    (void)ctx;
    if (outbox_tx_sqlite(tx))
        sqlite3_db_config(outbox_tx_sqlite(tx), SQLITE_DBCONFIG_ENABLE_FKEY, 1, NULL);
    bool bad = counted(ev);
    if (effect(tx, ev) != 0)
        return outbox_fail(tx, OUTBOX_RETRY, "no effect");
    if (bad && db_tx(tx, "INSERT INTO @effect_of (key) VALUES ('nobody')") != 0)
        return OUTBOX_RETRY;
    return OUTBOX_DONE;
}

static void promise(void)
{
    db_do("CREATE TABLE @effect_cause (key text PRIMARY KEY)");
    db_do("CREATE TABLE @effect_of (key text REFERENCES @effect_cause DEFERRABLE INITIALLY "
          "DEFERRED)");
}

static const char *refusal(void)
{
    return db_one_writer ? "FOREIGN KEY constraint failed" : "violates foreign key constraint";
}

static void refused_commit_fails_only_its_event(void **state)
{
    (void)state;
    if (!db_defers)
        skip();
    promise();
    through(break_promise, false);
    dead(refusal());
}

static void refused_commit_fails_only_its_event_in_a_mixed_group(void **state)
{
    (void)state;
    if (!db_defers)
        skip();
    promise();
    through(break_promise, true);
    dead(refusal());
}

/* ---- a record that is not the handler's to make ---- */

static outbox_verdict record_itself(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    int first;
    (void)ctx;
    if (counted(ev))
        OK(outbox_handle_once(tx, "c.h", outbox_event_id(ev), NULL, 0, &first, &err));
    return effect(tx, ev) == 0 ? OUTBOX_DONE : OUTBOX_RETRY;
}

static void handler_that_writes_its_own_record_gets_an_error(void **state)
{
    (void)state;
    through(record_itself, false);
    dead("wrote its own inbox record");
}

static void handlers_own_record_is_also_an_error_in_mixed_groups(void **state)
{
    (void)state;
    through(record_itself, true);
    dead("wrote its own inbox record");
}

/* ---- a transaction that the database gives up ---- */

static outbox_verdict lose(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    bool bad = counted(ev);
    int r = effect(tx, ev);
    if (bad && db_one_writer)
        r = db_tx(tx, "INSERT OR ROLLBACK INTO @effect (at) SELECT max(at) FROM @effect");
    else if (bad)
        r = db_tx(tx, "SELECT pg_terminate_backend(pg_backend_pid())");
    return r == 0 || ctx ? OUTBOX_DONE
                         : outbox_fail(tx, OUTBOX_RETRY, "it told me: connection was lost");
}

static void only_the_call_with_an_abandoned_transaction_fails(void **state)
{
    (void)state;
    through(lose, false);
    dead("connection was lost");
    assert_true(calls_bad <= 3 * 3);
}

static void aborted_transaction_fails_only_its_call_in_a_mixed_group(void **state)
{
    (void)state;
    through(lose, true);
    dead("connection was lost");
    assert_int_equal(calls_bad, 3);
}

/* ---- what works on the handle while handlers do ---- */

static outbox_verdict turn_back(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    outbox_error why;
    (void)ev, (void)ctx;
    calls++;
    if (outbox_step(here, NULL, &why) == 0 || why.code != OUTBOX_MISUSE ||
        !strstr(why.text, "from a handler"))
        calls = 1000;
    if (outbox_run(here, 0, &why) == 0 || why.code != OUTBOX_MISUSE)
        calls = 1000;
    return effect(tx, ev) == 0 ? OUTBOX_DONE : OUTBOX_RETRY;
}

static void handler_cannot_step_or_run_its_own_handle(void **state)
{
    (void)state;
    through(turn_back, false);
    assert_int_equal(calls, EVENTS);
    outbox_consumer *c = consumer("d");
    OK(outbox_add_handler(c, "h", "e", turn_back, NULL, 0, &err));
    OK(outbox_step(here, NULL, &err));
    assert_int_equal(calls, 2 * EVENTS);
    assert_int_equal(db_number("SELECT count(*) FROM @effect"), 2 * EVENTS);
}

#define ON(test) cmocka_unit_test_setup_teardown(test, fresh, done)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON(refused_commit_fails_only_its_event),
        ON(refused_commit_fails_only_its_event_in_a_mixed_group),
        ON(handler_that_writes_its_own_record_gets_an_error),
        ON(handlers_own_record_is_also_an_error_in_mixed_groups),
        ON(only_the_call_with_an_abandoned_transaction_fails),
        ON(aborted_transaction_fails_only_its_call_in_a_mixed_group),
        ON(handler_cannot_step_or_run_its_own_handle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
