/* The public interface on PostgreSQL: emitting through the caller's connections, from many threads,
 * with handlers at work. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../contract/pg.h"
#include "../contract/store.h"
#include "ok.h"
#include "outbox.h"

#define EMITTERS 8
#define PER_EMITTER 40
static struct test_clock own_clock;
struct test_clock *store_now_at = &own_clock;
static outbox_error err;

static int fresh(void **state)
{
    outbox *ob;
    struct store *st = pg_fresh(&(struct store_options){.create = true}, false);
    if (!st)
        return -1;
    store_close(st);
    if (outbox_open(pg_url(), NULL, &ob, &err) != 0) {
        print_error("%s\n", err.text);
        return -1;
    }
    *state = ob;
    return 0;
}

static int done(void **state)
{
    outbox_close(*state);
    pg_clean();
    return 0;
}

static int emit_in(outbox *ob, PGconn *db, const char *key, const char *payload, const char *once,
                   outbox_receipt *ret, outbox_error *why)
{
    outbox_message m = OUTBOX_MESSAGE_INIT;
    m.type = "n";
    m.aggregate_type = "emitter";
    m.aggregate_id = key;
    m.payload = payload;
    m.idempotency_key = once;
    return outbox_emit_pg(ob, db, &m, ret, why);
}

/* The server assumes that data on a connection is in that connection's encoding. UTF-8 sent as
 * LATIN1 would silently be stored as something else. */
static void client_encoding_of_the_connection_never_garbles_text(void **state)
{
    static const char *const other[] = {"LATIN1", "WIN1252", "EUC_JP", "SJIS", "GB18030"};
    static const char *const same[] = {"UTF8", "SQL_ASCII"};
    PGconn *db = pg_connect();
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        assert_int_equal(PQsetClientEncoding(db, other[i]), 0);
        pg_do(db, "BEGIN");
        /* ASCII is the same in all of them */
        OK(emit_in(*state, db, "1", "{\"n\":\"plain\"}", NULL, NULL, &err));
        assert_int_not_equal(emit_in(*state, db, "1", "{\"n\":\"\303\274\"}", NULL, NULL, &err), 0);
        assert_non_null(strstr(err.text, other[i]));
        assert_non_null(strstr(err.text, "PQsetClientEncoding"));
        assert_int_not_equal(emit_in(*state, db, "\303\274", "{}", "once", NULL, &err), 0);
        /* It was refused before the server saw it, so the transaction continues. */
        pg_do(db, "COMMIT");
    }
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        assert_int_equal(PQsetClientEncoding(db, same[i]), 0);
        pg_do(db, "BEGIN");
        OK(emit_in(*state, db, "1", "{\"n\":\"\303\274\"}", NULL, NULL, &err));
        pg_do(db, "COMMIT");
    }
    assert_int_equal(pg_number(db, "SELECT count(*) FROM event WHERE payload->>'n' = 'plain'"), 5);
    assert_int_equal(pg_number(db, "SELECT count(*) FROM event WHERE payload->>'n' = U&'\\00fc'"),
                     2);
    PQfinish(db);
}

static void events_commit_or_roll_back_with_the_callers_transaction(void **state)
{
    outbox_receipt first, second;
    PGconn *db = pg_connect();
    pg_do(db, "BEGIN");
    OK(emit_in(*state, db, "1", "{}", NULL, NULL, &err));
    pg_do(db, "ROLLBACK");
    assert_int_equal(pg_number(db, "SELECT count(*) FROM event"), 0);
    pg_do(db, "BEGIN");
    OK(emit_in(*state, db, "1", "{}", "once", &first, &err));
    pg_do(db, "SAVEPOINT s");
    OK(emit_in(*state, db, "1", "{}", NULL, NULL, &err));
    pg_do(db, "ROLLBACK TO s");
    OK(emit_in(*state, db, "1", "{}", "once", &second, &err));
    pg_do(db, "COMMIT");
    assert_int_equal(pg_number(db, "SELECT count(*) FROM event"), 1);
    assert_string_equal(first.id, second.id);
    assert_false(first.duplicate);
    assert_true(second.duplicate);
    assert_int_equal(pg_number(db, "SELECT count(*) FROM event WHERE id = '%s'", first.id), 1);
    PQfinish(db);
}

static void emit_outside_a_transaction_is_refused(void **state)
{
    PGconn *db = pg_connect();
    assert_int_equal(emit_in(*state, db, "1", "{}", NULL, NULL, &err), -1);
    assert_int_equal(err.code, OUTBOX_MISUSE);
    assert_non_null(strstr(err.text, "BEGIN first"));
    pg_do(db, "BEGIN");
    PQclear(PQexec(db, "SELECT 1 / 0"));
    assert_int_equal(emit_in(*state, db, "1", "{}", NULL, NULL, &err), -1);
    assert_int_equal(err.code, OUTBOX_MISUSE);
    assert_non_null(strstr(err.text, "failed"));
    pg_do(db, "ROLLBACK");
    assert_int_equal(pg_number(db, "SELECT count(*) FROM event"), 0);
    PQfinish(db);
}

static void connection_to_another_kind_of_store_is_refused(void **state)
{
    outbox *memory;
    PGconn *db = pg_connect();
    (void)state;
    OK(outbox_open("sqlite::memory:", NULL, &memory, &err));
    pg_do(db, "BEGIN");
    assert_int_equal(emit_in(memory, db, "1", "{}", NULL, NULL, &err), -1);
    assert_int_equal(err.code, OUTBOX_MISUSE);
    assert_null(outbox_pg(memory));
    assert_null(outbox_sqlite(*state));
    outbox_close(memory);
    PQfinish(db);
}

static void handler_connection_can_change_application_tables(void **state)
{
    PGconn *db = pg_connect();
    outbox_message m = OUTBOX_MESSAGE_INIT;
    m.type = "order.created";
    pg_do(db, "CREATE TABLE orders (n int)");
    for (int i = 0; i < 2; i++) {
        OK(outbox_begin(*state, &err));
        pg_do(outbox_pg(*state), "INSERT INTO %s.orders VALUES (%d)", pg_schema(), i);
        OK(outbox_emit(*state, &m, NULL, &err));
        if (i == 0)
            outbox_rollback(*state);
        else
            OK(outbox_commit(*state, &err));
    }
    assert_int_equal(
        pg_number(db, "SELECT count(*) * 10 + (SELECT count(*) FROM event) FROM orders"), 11);
    PQfinish(db);
}

/* ---- threads ---- */

struct tally {
    outbox *stop;
    int n, misordered;
    int last[EMITTERS];
};

static outbox_verdict count(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    struct tally *t = ctx;
    int who = atoi(outbox_event_aggregate_id(ev)), i = atoi(outbox_event_payload(ev, NULL));
    (void)tx;
    if (i != t->last[who] + 1)
        t->misordered++;
    t->last[who] = i;
    if (++t->n == EMITTERS * PER_EMITTER)
        outbox_stop(t->stop);
    return OUTBOX_DONE;
}

struct emitter {
    outbox *ob;
    PGconn *db;
    int who;
    pthread_t thread;
};

static void *emit_many(void *arg)
{
    struct emitter *e = arg;
    outbox_error why;
    char key[16], payload[16];
    snprintf(key, sizeof key, "%d", e->who);
    for (int i = 1; i <= PER_EMITTER; i++) {
        snprintf(payload, sizeof payload, "%d", i);
        PQclear(PQexec(e->db, "BEGIN"));
        if (emit_in(e->ob, e->db, key, payload, NULL, NULL, &why) != 0)
            return arg;
        PQclear(PQexec(e->db, i % 5 ? "COMMIT" : "ROLLBACK"));
        if (i % 5)
            continue;
        PQclear(PQexec(e->db, "BEGIN"));
        if (emit_in(e->ob, e->db, key, payload, NULL, NULL, &why) != 0)
            return arg;
        PQclear(PQexec(e->db, "COMMIT"));
    }
    return NULL;
}

/* Eager mode in the caller's own transaction: only the caller knows when that commits, and calls
 * step after it. */
static void step_after_the_callers_commit_delivers_its_events(void **state)
{
    struct tally a = {.stop = *state};
    outbox_consumer *c;
    size_t n;
    PGconn *db = pg_connect();
    OK(outbox_consumer_new(*state, "a", &c, &err));
    OK(outbox_on(c, "*", count, &a, &err));
    pg_do(db, "BEGIN");
    OK(emit_in(*state, db, "1", "1", NULL, NULL, &err));
    OK(outbox_step(*state, &n, &err)); /* not committed, so it does not exist */
    assert_int_equal(n, 0);
    pg_do(db, "COMMIT");
    assert_int_equal(a.n, 0);
    OK(outbox_step(*state, &n, &err));
    assert_int_equal(n, 1);
    assert_int_equal(a.n, 1);
    pg_do(db, "BEGIN");
    OK(emit_in(*state, db, "1", "2", NULL, NULL, &err));
    pg_do(db, "ROLLBACK");
    OK(outbox_step(*state, &n, &err));
    assert_int_equal(n, 0);
    assert_int_equal(a.n, 1);
    PQfinish(db);
}

static void threads_emit_through_one_handle_while_handlers_run(void **state)
{
    struct tally a = {.stop = *state};
    struct emitter e[EMITTERS];
    outbox_consumer *c;
    OK(outbox_consumer_new(*state, "a", &c, &err));
    OK(outbox_on(c, "*", count, &a, &err));
    for (int i = 0; i < EMITTERS; i++) {
        e[i] = (struct emitter){.ob = *state, .db = pg_connect(), .who = i};
        pthread_create(&e[i].thread, NULL, emit_many, &e[i]);
    }
    OK(outbox_run(*state, 0, &err));
    for (int i = 0; i < EMITTERS; i++) {
        void *problem;
        pthread_join(e[i].thread, &problem);
        assert_null(problem);
        PQfinish(e[i].db);
    }
    assert_int_equal(a.n, EMITTERS * PER_EMITTER);
    assert_int_equal(a.misordered, 0);
}

static outbox_verdict in_latin1(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    struct tally *t = ctx;
    PQclear(PQexec(outbox_tx_pg(tx), "SET client_encoding = 'LATIN1'"));
    t->misordered += strcmp(outbox_event_payload(ev, NULL), "{\"n\":\"\303\274\"}") != 0;
    t->n++;
    if (t->n == 3)
        outbox_stop(t->stop);
    if (t->n == 2)
        return outbox_fail(tx, OUTBOX_REJECT, "b\303\266se1");
    if (t->n == 3)
        return outbox_fail(tx, OUTBOX_REJECT, "b\303\266se2");
    return OUTBOX_DONE;
}

/* Settings of a connection outlive a handler's transaction: the reason for a failure would be
 * recorded garbled, if at all. */
static void handler_that_changes_client_encoding_never_garbles_events(void **state)
{
    struct tally a = {.stop = *state};
    outbox_consumer *c;
    PGconn *db = pg_connect();
    OK(outbox_consumer_new(*state, "a", &c, &err));
    OK(outbox_consumer_set(c, "retry", "base=1ms,attempts=5", &err));
    /* each is read after the previous one's handler */
    OK(outbox_consumer_set(c, "batch", "1", &err));
    OK(outbox_add_handler(c, "latin", "*", in_latin1, &a, 0, &err));
    pg_do(db, "BEGIN");
    for (int i = 0; i < 3; i++)
        OK(emit_in(*state, db, "1", "{\"n\":\"\303\274\"}", NULL, NULL, &err));
    pg_do(db, "COMMIT");
    OK(outbox_run(*state, 0, &err));
    assert_int_equal(a.misordered, 0);
    assert_int_equal(pg_number(db, "SELECT count(*) FROM dead WHERE error LIKE U&'b\\00f6se_'"), 2);
    PQfinish(db);
}

/* claimed returns how many events a claim gets; it must not wait for another transaction. */
static size_t claimed(outbox *ob, const char *target)
{
    outbox_batch *b;
    outbox_claim c = OUTBOX_CLAIM_INIT;
    c.worker = "w";
    c.target = target;
    int64_t began = clock_mono(&clock_system);
    OK(outbox_claim_batch(ob, &c, &b, &err));
    assert_true(clock_mono(&clock_system) - began < 2000 * MS_NS);
    size_t n = outbox_batch_count(b);
    outbox_batch_free(b);
    return n;
}

static void claims_do_not_wait_for_an_uncommitted_claim(void **state)
{
    static const char *const names[] = {"a", "b", "c"};
    PGconn *db = pg_connect();
    for (size_t i = 0; i < 3; i++)
        pg_do(db, "SELECT register('%s')", names[i]);
    pg_do(db, "INSERT INTO event (type, payload) VALUES ('t.e', '{}')");
    pg_do(db, "BEGIN");
    assert_int_equal(pg_number(db, "SELECT count(*) FROM claim('a', 'other')"), 1);
    assert_int_equal(claimed(*state, "a"), 0);
    assert_int_equal(claimed(*state, NULL), 2);
    pg_do(db, "ROLLBACK");
    assert_int_equal(claimed(*state, "a"), 1);
    PQfinish(db);
}

/* The handle cannot reconnect while its outbox is away, and has no connection then. */
static void emit_elsewhere_needs_no_connection_of_the_handle(void **state)
{
    PGconn *db = pg_connect();
    int own = PQbackendPID((PGconn *)outbox_pg(*state));
    outbox_message m = OUTBOX_MESSAGE_INIT;
    m.type = "n";
    pg_do(db, "ALTER SCHEMA %s RENAME TO away", pg_schema());
    pg_do(db, "SELECT pg_terminate_backend(%d, 10000)", own);
    for (int i = 0; i < 2; i++)
        assert_int_equal(outbox_emit(*state, &m, NULL, &err), -1);
    assert_null(outbox_pg(*state));
    pg_do(db, "ALTER SCHEMA away RENAME TO %s; BEGIN", pg_schema());
    OK(emit_in(*state, db, "1", "{}", NULL, NULL, &err));
    pg_do(db, "COMMIT");
    assert_int_equal(pg_number(db, "SELECT count(*) FROM event"), 1);
    PQfinish(db);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(client_encoding_of_the_connection_never_garbles_text, fresh,
                                        done),
        cmocka_unit_test_setup_teardown(events_commit_or_roll_back_with_the_callers_transaction,
                                        fresh, done),
        cmocka_unit_test_setup_teardown(emit_outside_a_transaction_is_refused, fresh, done),
        cmocka_unit_test_setup_teardown(connection_to_another_kind_of_store_is_refused, fresh,
                                        done),
        cmocka_unit_test_setup_teardown(handler_connection_can_change_application_tables, fresh,
                                        done),
        cmocka_unit_test_setup_teardown(handler_that_changes_client_encoding_never_garbles_events,
                                        fresh, done),
        cmocka_unit_test_setup_teardown(step_after_the_callers_commit_delivers_its_events, fresh,
                                        done),
        cmocka_unit_test_setup_teardown(threads_emit_through_one_handle_while_handlers_run, fresh,
                                        done),
        cmocka_unit_test_setup_teardown(claims_do_not_wait_for_an_uncommitted_claim, fresh, done),
        cmocka_unit_test_setup_teardown(emit_elsewhere_needs_no_connection_of_the_handle, fresh,
                                        done),
    };
    return cmocka_run_group_tests_name("outbox_pg", tests, NULL, NULL);
}
