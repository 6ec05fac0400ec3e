/* Applications that claim events and deliver them themselves, on every store: claim, extend,
 * settle. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <libpq-fe.h>
#include <pthread.h>
#include <sqlite3.h>
#ifdef OUTBOX_MARIADB
#include <mysql.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "db.h"
#include "ok.h"

static outbox_error err;

/* ---- rig ---- */

static int fresh(void **state)
{
    *state = db_fresh(NULL);
    return 0;
}

static int done(void **state)
{
    outbox_close(*state);
    db_clean();
    return 0;
}

static void emit_about(outbox *ob, const char *type, const char *key, int64_t not_before)
{
    outbox_message m = OUTBOX_MESSAGE_INIT;
    m.type = type;
    m.not_before = not_before;
    if (key) {
        m.aggregate_type = "t";
        m.aggregate_id = key;
    }
    OK(outbox_emit(ob, &m, NULL, &err));
}

static void emit(outbox *ob, const char *type, const char *key)
{
    emit_about(ob, type, key, 0);
}

/* add_consumer registers a consumer with options, which are pairs of strings ended by NULL. */
static void add_consumer(outbox *ob, const char *name, ...)
{
    outbox_consumer *c;
    va_list options;
    OK(outbox_consumer_new(ob, name, &c, &err));
    va_start(options, name);
    for (const char *option; (option = va_arg(options, const char *));)
        OK(outbox_consumer_set(c, option, va_arg(options, const char *), &err));
    va_end(options);
    OK(outbox_consumer_register(c, &err));
}

static outbox_batch *claim_for(outbox *ob, const char *worker, const char *target, size_t limit,
                               int64_t lease_ms)
{
    outbox_batch *b = NULL;
    outbox_claim c = OUTBOX_CLAIM_INIT;
    c.worker = worker;
    c.target = target;
    c.limit = limit;
    c.lease_ms = lease_ms;
    OK(outbox_claim_batch(ob, &c, &b, &err));
    return b;
}

static outbox_batch *claim(outbox *ob, const char *worker, const char *target)
{
    return claim_for(ob, worker, target, 0, 0);
}

static void say(outbox_batch *b, const outbox_event *ev, outbox_verdict verdict)
{
    OK(outbox_batch_verdict(b, ev, verdict, 0, "said so", &err));
}

/* deliver settles every event as DONE, and returns how many there were. */
static size_t deliver(outbox_batch *b)
{
    size_t n = 0;
    for (const outbox_event *ev; (ev = outbox_batch_next(b)); n++)
        say(b, ev, OUTBOX_DONE);
    OK(outbox_batch_settle(b, &err));
    outbox_batch_free(b);
    return n;
}

static bool nothing_for(outbox *ob, const char *worker, const char *target)
{
    outbox_batch *b = claim(ob, worker, target);
    size_t n = outbox_batch_count(b);
    outbox_batch_free(b);
    return n == 0;
}

/* wait_for claims until it gets events, which are due again or taken over. */
static outbox_batch *wait_for(outbox *ob, const char *worker, const char *target)
{
    struct timespec pause = {0, 2000000};
    for (int i = 0; i < 10000; i++) {
        outbox_batch *b = claim(ob, worker, target);
        if (outbox_batch_count(b) > 0)
            return b;
        outbox_batch_free(b);
        nanosleep(&pause, NULL);
    }
    fail_msg("nothing to claim after 20 s");
    return NULL;
}

/* ---- claims ---- */

static void target_limits_the_claim_and_no_target_claims_for_all(void **state)
{
    outbox *ob = *state;
    add_consumer(ob, "mail", "events", "order.*", NULL);
    add_consumer(ob, "search", NULL);
    emit(ob, "order.paid", "1");
    emit(ob, "user.new", "2");
    outbox_batch *b = claim(ob, "w1", "mail");
    assert_int_equal(outbox_batch_count(b), 1);
    const outbox_event *ev = outbox_batch_next(b);
    assert_string_equal(outbox_event_type(ev), "order.paid");
    assert_string_equal(outbox_batch_consumer(b, ev), "mail");
    assert_int_equal(outbox_event_attempt(ev), 1);
    assert_null(outbox_batch_next(b));
    say(b, ev, OUTBOX_DOWN);
    OK(outbox_batch_settle(b, &err));
    outbox_batch_free(b);

    b = claim(ob, "w1", NULL);
    assert_int_equal(outbox_batch_count(b), 3);
    int of[2] = {0};
    while ((ev = outbox_batch_next(b))) {
        of[strcmp(outbox_batch_consumer(b, ev), "mail") == 0]++;
        say(b, ev, OUTBOX_DONE);
    }
    assert_int_equal(of[0], 2);
    assert_int_equal(of[1], 1);
    assert_true(nothing_for(ob, "w2", NULL)); /* other workers cannot claim them */
    OK(outbox_batch_settle(b, &err));
    outbox_batch_free(b);
    assert_true(nothing_for(ob, "w2", NULL));
}

static void limit_applies_across_all_consumers(void **state)
{
    outbox *ob = *state;
    size_t n = 0, got;
    for (int i = 0; i < 3; i++) {
        char name[] = {(char)('a' + i), 0};
        add_consumer(ob, name, "order", "none", NULL);
    }
    for (int i = 0; i < 4; i++)
        emit(ob, "x", NULL);
    while ((got = deliver(claim_for(ob, "w", NULL, 5, 0))) > 0) {
        assert_true(got <= 5);
        n += got;
    }
    assert_int_equal(n, 12);
}

static void events_excluded_by_the_predicate_are_not_handed_out(void **state)
{
    outbox *ob = *state;
    add_consumer(ob, "a", "where", "n = 2", NULL);
    outbox_message m = OUTBOX_MESSAGE_INIT;
    m.type = "x";
    m.payload = "{\"n\":1}";
    OK(outbox_emit(ob, &m, NULL, &err));
    m.payload = "{\"n\":2}";
    OK(outbox_emit(ob, &m, NULL, &err));
    outbox_batch *b = claim(ob, "w", NULL);
    assert_int_equal(outbox_batch_count(b), 1);
    assert_string_equal(outbox_event_payload(outbox_batch_next(b), NULL), "{\"n\":2}");
    outbox_batch_free(b);
}

/* ---- verdicts ---- */

static void every_verdict_is_recorded(void **state)
{
    outbox *ob = *state;
    add_consumer(ob, "c", "retry", "base=1ms,cap=1ms,attempts=2,jitter=none,outage=0s", NULL);
    const char *keys[] = {"done", "retry", "reject", "down", "nothing"};
    for (int i = 0; i < 5; i++)
        emit(ob, keys[i], keys[i]);
    outbox_batch *b = claim(ob, "w", "c");
    const outbox_event *ev[5];
    for (int i = 0; i < 5; i++)
        assert_non_null(ev[i] = outbox_batch_next(b));
    say(b, ev[0], OUTBOX_DONE);
    say(b, ev[1], OUTBOX_DONE);
    say(b, ev[1], OUTBOX_RETRY); /* the last word counts */
    say(b, ev[2], OUTBOX_REJECT);
    say(b, ev[3], OUTBOX_DOWN);
    OK(outbox_batch_settle(b, &err));
    outbox_batch_free(b);
    /* Three are redelivered. The failed one has used its last attempt. */
    int seen = 0;
    while (seen < 3) {
        b = wait_for(ob, "w", "c");
        for (const outbox_event *e; (e = outbox_batch_next(b)); seen++) {
            bool failed = strcmp(outbox_event_type(e), "retry") == 0;
            assert_int_equal(outbox_event_attempt(e), failed ? 2 : 1);
            say(b, e, failed ? OUTBOX_RETRY : OUTBOX_DONE);
        }
        OK(outbox_batch_settle(b, &err));
        outbox_batch_free(b);
    }
    assert_int_equal(seen, 3);
    assert_true(nothing_for(ob, "w", "c"));
}

/* A delay that no database can add to a time, and a reason that is not text, do not prevent a
 * settlement. */
static void invalid_verdicts_are_still_settled(void **state)
{
    outbox *ob = *state;
    add_consumer(ob, "c", NULL);
    emit(ob, "x", NULL);
    emit(ob, "y", NULL);
    outbox_batch *b = claim(ob, "w", "c");
    OK(outbox_batch_verdict(b, outbox_batch_next(b), OUTBOX_RETRY, INT64_MAX, "\xff\xfe not UTF-8",
                            &err));
    const outbox_event *ev = outbox_batch_next(b);
    assert_int_equal(outbox_batch_verdict(b, ev, (outbox_verdict)77, 0, NULL, &err), -1);
    assert_int_equal(err.code, OUTBOX_MISUSE);
    OK(outbox_batch_verdict(b, ev, OUTBOX_NOT_MINE, -5, NULL, &err));
    OK(outbox_batch_settle(b, &err));
    outbox_batch_free(b);
    b = wait_for(ob, "w", "c"); /* the second is due again in a moment, the first in a year */
    assert_int_equal(outbox_batch_count(b), 1);
    ev = outbox_batch_next(b);
    assert_string_equal(outbox_event_type(ev), "y");
    assert_int_equal(outbox_event_attempt(ev), 1);
    outbox_batch_free(b);
}

static void events_waiting_behind_a_failure_are_not_handed_out(void **state)
{
    outbox *ob = *state;
    add_consumer(ob, "c", "retry", "base=1h,cap=1h,attempts=3,jitter=none,outage=0s", NULL);
    emit(ob, "a1", "a");
    emit(ob, "a2", "a");
    emit(ob, "b1", "b");
    outbox_batch *b = claim(ob, "w", "c");
    assert_int_equal(outbox_batch_count(b), 3);
    say(b, outbox_batch_next(b), OUTBOX_RETRY);
    const outbox_event *ev = outbox_batch_next(b);
    assert_string_equal(outbox_event_type(ev), "b1");
    say(b, ev, OUTBOX_DONE);
    assert_null(outbox_batch_next(b));
    OK(outbox_batch_settle(b, &err));
    outbox_batch_free(b);
    emit(ob, "a3", "a"); /* its key is held back: it is claimed, put behind, and not shown */
    emit(ob, "c1", "c");
    b = claim(ob, "w", "c");
    assert_int_equal(outbox_batch_count(b), 1);
    assert_string_equal(outbox_event_type(outbox_batch_next(b)), "c1");
    outbox_batch_free(b);
}

static void event_not_yet_due_is_not_handed_out(void **state)
{
    outbox *ob = *state;
    add_consumer(ob, "c", NULL);
    emit_about(ob, "later", NULL, (int64_t)time(NULL) * 1000 + 3600000);
    outbox_batch *b = claim(ob, "w", "c");
    assert_int_equal(outbox_batch_count(b), 0);
    assert_null(outbox_batch_next(b));
    int64_t wait = outbox_batch_wait(b);
    assert_true(wait > 3500000 && wait <= 3600000);
    OK(outbox_batch_settle(b, &err)); /* an empty claim needs no settlement */
    outbox_batch_free(b);
}

/* ---- leases ---- */

static void expired_claim_is_taken_over_and_cannot_settle(void **state)
{
    outbox *ob = *state;
    add_consumer(ob, "c", NULL);
    emit(ob, "x", NULL);
    outbox_batch *late = claim_for(ob, "w1", "c", 0, 1);
    assert_int_equal(outbox_batch_count(late), 1);
    outbox_batch *b = wait_for(ob, "w2", "c");
    const outbox_event *ev = outbox_batch_next(b);
    say(late, outbox_batch_next(late), OUTBOX_REJECT);
    assert_int_equal(outbox_batch_extend(late, 1000, &err), -1);
    assert_int_equal(err.code, OUTBOX_LOST);
    assert_int_equal(outbox_batch_settle(late, &err), -1);
    assert_int_equal(err.code, OUTBOX_LOST);
    assert_non_null(strstr(err.text, "\"c\""));
    outbox_batch_free(late);
    say(b, ev, OUTBOX_DONE);
    OK(outbox_batch_settle(b, &err));
    outbox_batch_free(b);
    assert_true(nothing_for(ob, "w1", "c"));
}

static void extended_claim_keeps_its_owner(void **state)
{
    outbox *ob = *state;
    add_consumer(ob, "c", NULL);
    emit(ob, "x", NULL);
    outbox_batch *b = claim_for(ob, "w1", NULL, 0, 1);
    assert_int_equal(outbox_batch_count(b), 1);
    OK(outbox_batch_extend(b, 3600000, &err));
    struct timespec longer_than_it_was = {0, 20000000};
    nanosleep(&longer_than_it_was, NULL);
    assert_true(nothing_for(ob, "w2", NULL));
    assert_int_equal(deliver(b), 1);
    assert_true(nothing_for(ob, "w2", NULL));
}

/* ---- transactions ---- */

static void claim_inside_a_transaction_is_refused(void **state)
{
    outbox *ob = *state;
    outbox_batch *b = NULL, *had;
    outbox_claim c = OUTBOX_CLAIM_INIT;
    c.worker = "w";
    add_consumer(ob, "c", NULL);
    emit(ob, "x", NULL);
    emit(ob, "x", NULL);
    had = claim_for(ob, "w", "c", 1, 0);
    OK(outbox_begin(ob, &err));
    assert_int_equal(outbox_claim_batch(ob, &c, &b, &err), -1);
    assert_int_equal(err.code, OUTBOX_MISUSE);
    assert_non_null(strstr(err.text, "would not be durable"));
    assert_null(b);
    assert_int_equal(outbox_batch_extend(had, 1000, &err), -1);
    assert_int_equal(err.code, OUTBOX_MISUSE);
    outbox_rollback(ob);
    assert_int_equal(deliver(had), 1);
    assert_int_equal(deliver(claim(ob, "w", "c")), 1);
}

/* by_hand runs a statement on the handle's own connection, which callers should only do
 * inside outbox_begin. */
static void by_hand(outbox *ob, const char *sql)
{
    if (outbox_sqlite(ob))
        assert_int_equal(sqlite3_exec(outbox_sqlite(ob), sql, NULL, NULL, NULL), SQLITE_OK);
    else if (outbox_pg(ob))
        PQclear(PQexec(outbox_pg(ob), sql));
#ifdef OUTBOX_MARIADB
    else
        assert_int_equal(mysql_query(outbox_mariadb(ob), sql), 0);
#endif
}

static void claim_inside_a_manual_transaction_is_refused(void **state)
{
    outbox *ob = *state;
    outbox_batch *b = NULL;
    outbox_claim c = OUTBOX_CLAIM_INIT;
    c.worker = "w";
    add_consumer(ob, "c", NULL);
    emit(ob, "x", NULL);
    for (int i = 0; i < 2; i++) {
        c.target = i ? "c" : NULL;
        by_hand(ob, "BEGIN");
        assert_int_equal(outbox_claim_batch(ob, &c, &b, &err), -1);
        assert_int_equal(err.code, OUTBOX_MISUSE);
        assert_non_null(strstr(err.text, "would not be durable"));
        by_hand(ob, "ROLLBACK");
    }
    assert_int_equal(deliver(claim(ob, "w", "c")), 1);
}

static void settlement_is_part_of_the_callers_transaction(void **state)
{
    outbox *ob = *state;
    add_consumer(ob, "c", NULL);
    emit(ob, "x", NULL);
    outbox_batch *b = claim(ob, "w", "c");
    say(b, outbox_batch_next(b), OUTBOX_DONE);
    OK(outbox_begin(ob, &err));
    emit(ob, "effect", NULL);
    OK(outbox_batch_settle(b, &err));
    outbox_rollback(ob);
    /* There is neither effect nor record, and the claim is unchanged. */
    assert_true(nothing_for(ob, "w2", "c"));
    OK(outbox_begin(ob, &err));
    emit(ob, "effect", NULL);
    OK(outbox_batch_settle(b, &err));
    OK(outbox_commit(ob, &err));
    outbox_batch_free(b);
    b = claim(ob, "w2", "c");
    assert_int_equal(outbox_batch_count(b), 1);
    assert_string_equal(outbox_event_type(outbox_batch_next(b)), "effect");
    outbox_batch_free(b);
}

static void lost_claim_is_reported_inside_a_transaction(void **state)
{
    outbox *ob = *state;
    add_consumer(ob, "c", NULL);
    emit(ob, "x", NULL);
    outbox_batch *late = claim_for(ob, "w1", "c", 0, 1);
    say(late, outbox_batch_next(late), OUTBOX_DONE);
    outbox_batch *b = wait_for(ob, "w2", "c");
    OK(outbox_begin(ob, &err));
    assert_int_equal(outbox_batch_settle(late, &err), -1);
    assert_int_equal(err.code, OUTBOX_LOST);
    outbox_rollback(ob);
    outbox_batch_free(late);
    assert_int_equal(deliver(b), 1);
}

static void invalid_claims_are_refused(void **state)
{
    outbox *ob = *state;
    outbox_batch *b = NULL;
    outbox_claim c = OUTBOX_CLAIM_INIT;
    assert_int_equal(outbox_claim_batch(ob, &c, &b, &err), -1); /* no worker */
    assert_int_equal(err.code, OUTBOX_INVALID);
    c.worker = "w";
    c.target = "nobody";
    assert_int_equal(outbox_claim_batch(ob, &c, &b, &err), -1);
    assert_int_equal(err.code, OUTBOX_NOTFOUND);
    c.target = NULL;
    c.limit = 100001;
    assert_int_equal(outbox_claim_batch(ob, &c, &b, &err), -1);
    assert_int_equal(err.code, OUTBOX_INVALID);
    c.limit = 1;
    c.lease_ms = -1;
    assert_int_equal(outbox_claim_batch(ob, &c, &b, &err), -1);
    assert_int_equal(err.code, OUTBOX_INVALID);
    c.lease_ms = 0;
    c.size = 0;
    assert_int_equal(outbox_claim_batch(ob, &c, &b, &err), -1);
    assert_int_equal(err.code, OUTBOX_MISUSE);
    assert_null(b);
    outbox_batch_free(NULL);
    b = claim(ob, "w", NULL); /* without a consumer a claim is empty */
    assert_int_equal(outbox_batch_count(b), 0);
    assert_int_equal(outbox_batch_verdict(b, NULL, OUTBOX_DONE, 0, NULL, &err), -1);
    assert_int_equal(err.code, OUTBOX_MISUSE);
    outbox_batch_free(b);
}

/* ---- many at once ---- */

#define WORKERS 4
#define EVENTS 200

struct racer {
    outbox *ob;
    char name[8];
    int64_t seqs[EVENTS * 2];
    size_t n;
};

static void *race(void *arg)
{
    struct racer *r = arg;
    outbox_error why;
    outbox_claim c = OUTBOX_CLAIM_INIT;
    c.worker = r->name;
    c.limit = 7;
    for (size_t empty = 0; empty < 3;) {
        outbox_batch *b;
        const outbox_event *ev;
        if (outbox_claim_batch(r->ob, &c, &b, &why) != 0)
            abort();
        if (outbox_batch_count(b) == 0)
            empty++;
        while ((ev = outbox_batch_next(b))) {
            int64_t second = strcmp(outbox_batch_consumer(b, ev), "b") == 0;
            r->seqs[r->n++] = outbox_event_seq(ev) * 2 + second;
            if (outbox_batch_verdict(b, ev, OUTBOX_DONE, 0, NULL, &why) != 0)
                abort();
        }
        if (outbox_batch_settle(b, &why) != 0)
            abort();
        outbox_batch_free(b);
    }
    return NULL;
}

static int by_number(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void racing_workers_claim_each_event_once_per_consumer(void **state)
{
    outbox *ob = *state;
    static struct racer racers[WORKERS];
    static int64_t all[EVENTS * 2];
    pthread_t threads[WORKERS];
    size_t n = 0;
    add_consumer(ob, "a", "order", "none", NULL);
    add_consumer(ob, "b", "order", "none", NULL);
    for (int i = 0; i < EVENTS; i++)
        emit(ob, "x", NULL);
    for (int i = 0; i < WORKERS; i++) {
        racers[i] = (struct racer){.ob = ob};
        snprintf(racers[i].name, sizeof racers[i].name, "w%d", i);
        assert_int_equal(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
    }
    for (int i = 0; i < WORKERS; i++) {
        pthread_join(threads[i], NULL);
        assert_true(n + racers[i].n <= EVENTS * 2);
        memcpy(all + n, racers[i].seqs, racers[i].n * sizeof *all);
        n += racers[i].n;
    }
    assert_int_equal(n, EVENTS * 2);
    qsort(all, n, sizeof *all, by_number);
    for (size_t i = 1; i < n; i++)
        assert_true(all[i] > all[i - 1]);
}

#define ON_AN_OUTBOX(test) cmocka_unit_test_setup_teardown(test, fresh, done)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_AN_OUTBOX(target_limits_the_claim_and_no_target_claims_for_all),
        ON_AN_OUTBOX(limit_applies_across_all_consumers),
        ON_AN_OUTBOX(events_excluded_by_the_predicate_are_not_handed_out),
        ON_AN_OUTBOX(every_verdict_is_recorded),
        ON_AN_OUTBOX(invalid_verdicts_are_still_settled),
        ON_AN_OUTBOX(events_waiting_behind_a_failure_are_not_handed_out),
        ON_AN_OUTBOX(event_not_yet_due_is_not_handed_out),
        ON_AN_OUTBOX(expired_claim_is_taken_over_and_cannot_settle),
        ON_AN_OUTBOX(extended_claim_keeps_its_owner),
        ON_AN_OUTBOX(claim_inside_a_transaction_is_refused),
        ON_AN_OUTBOX(claim_inside_a_manual_transaction_is_refused),
        ON_AN_OUTBOX(settlement_is_part_of_the_callers_transaction),
        ON_AN_OUTBOX(lost_claim_is_reported_inside_a_transaction),
        ON_AN_OUTBOX(invalid_claims_are_refused),
        ON_AN_OUTBOX(racing_workers_claim_each_event_once_per_consumer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
