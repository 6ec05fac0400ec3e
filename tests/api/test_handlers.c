/* Handlers with names: what they do in their transaction takes effect once, whatever they do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "db.h"

#define OK(call) \
    do { \
        if ((call) != 0) \
            fail_msg("%s: %s", #call, err.text); \
    } while (0)

static outbox_error err;

/* ---- rig ---- */

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_text[16384];

static void keep_log(void *ctx, int level, const char *consumer, const char *text)
{
    (void)ctx, (void)level, (void)consumer;
    pthread_mutex_lock(&log_lock);
    size_t n = strlen(log_text);
    snprintf(log_text + n, sizeof log_text - n, "%s\n", text);
    pthread_mutex_unlock(&log_lock);
}

static bool logged(const char *part)
{
    pthread_mutex_lock(&log_lock);
    bool there = strstr(log_text, part) != NULL;
    pthread_mutex_unlock(&log_lock);
    return there;
}

static outbox_options logging(void)
{
    outbox_options o = OUTBOX_OPTIONS_INIT;
    o.log = keep_log;
    return o;
}

static int fresh(void **state)
{
    outbox_options o = logging();
    log_text[0] = '\0';
    *state = db_fresh(&o);
    return 0;
}

static int done(void **state)
{
    outbox_close(*state);
    db_clean();
    return 0;
}

static void emit_one(outbox *ob, const char *type, const char *key, const char *payload)
{
    outbox_message m = OUTBOX_MESSAGE_INIT;
    m.type = type;
    m.aggregate_type = "t";
    m.aggregate_id = key;
    m.payload = payload;
    OK(outbox_emit(ob, &m, NULL, &err));
}

/* emit makes n events "e" with payloads 0, 1, ..., each with a key of its own. */
static void emit(outbox *ob, int n)
{
    OK(outbox_begin(ob, &err));
    for (int i = 0; i < n; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", i);
        emit_one(ob, "e", text, text);
    }
    OK(outbox_commit(ob, &err));
}

static void nap(int64_t ms)
{
    struct timespec ts = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&ts, NULL);
}

static int number_of(const outbox_event *ev)
{
    return atoi(outbox_event_payload(ev, NULL));
}

static outbox_consumer *consumer(outbox *ob, const char *name)
{
    outbox_consumer *c;
    OK(outbox_consumer_new(ob, name, &c, &err));
    OK(outbox_consumer_set(c, "retry", "base=1ms,cap=1ms,attempts=3,jitter=none,outage=0s", &err));
    return c;
}

/* What a handler shall do with one event, and how often it was called. */
struct script {
    const char *name;
    int at;    /* the event; -1: all */
    int times; /* how often; 0: always */
    enum {
        GO_WELL,
        FAIL,
        FAIL_BEFORE,
        REJECT,
        IS_DOWN,
        NOT_MINE,
        COMMIT,
        ROLLBACK,
        COMMIT_AND_BEGIN,
        ROLLBACK_AND_BEGIN,
        ERROR
    } what;
    atomic_int calls, calls_at, last_attempt; /* last_attempt: the highest it was called for */
};

static outbox_verdict misbehave(struct script *s, outbox_tx *tx)
{
    switch (s->what) {
    case GO_WELL: return OUTBOX_DONE;
    case FAIL:
    case FAIL_BEFORE: return outbox_fail(tx, OUTBOX_RETRY, "told to fail");
    case REJECT: return outbox_fail(tx, OUTBOX_REJECT, "told to reject");
    case IS_DOWN: return outbox_fail(tx, OUTBOX_DOWN, "told to be down");
    case NOT_MINE: return outbox_fail(tx, OUTBOX_NOT_MINE, "never heard of it");
    case COMMIT: db_tx(tx, "COMMIT"); return OUTBOX_DONE;
    case ROLLBACK: db_tx(tx, "ROLLBACK"); return OUTBOX_DONE;
    case COMMIT_AND_BEGIN:
        db_tx(tx, "COMMIT");
        db_tx(tx, "BEGIN");
        return OUTBOX_DONE;
    case ROLLBACK_AND_BEGIN:
        db_tx(tx, "ROLLBACK");
        db_tx(tx, "BEGIN");
        return OUTBOX_DONE;
    case ERROR: db_tx(tx, "INSERT INTO @no_such_table VALUES (1)"); return OUTBOX_DONE;
    }
    return OUTBOX_DONE;
}

static int effect(outbox_tx *tx, const char *handler, const outbox_event *ev)
{
    return db_tx(tx, "INSERT INTO @effect (handler, key) VALUES ('%s', '%s')", handler,
                 outbox_event_payload(ev, NULL));
}

static outbox_verdict play(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    struct script *s = ctx;
    bool now = s->at < 0 || number_of(ev) == s->at;
    s->calls++;
    if (now)
        s->calls_at++;
    if (outbox_event_attempt(ev) > s->last_attempt)
        s->last_attempt = outbox_event_attempt(ev);
    now = now && (s->times == 0 || s->calls_at <= s->times);
    if (now && s->what == FAIL_BEFORE)
        return misbehave(s, tx);
    if (effect(tx, s->name, ev) != 0)
        return outbox_fail(tx, OUTBOX_RETRY, "no effect");
    return now ? misbehave(s, tx) : OUTBOX_DONE;
}

static void handler(outbox_consumer *c, struct script *s)
{
    OK(outbox_add_handler(c, s->name, "e", play, s, 0, &err));
}

/* through runs until nothing is left to do. */
static void through(outbox *ob)
{
    OK(outbox_run(ob, OUTBOX_UNTIL_THROUGH, &err));
}

/* exact checks that each of n events has taken effect once for a handler, but for one (-1: for
 * all). */
static void exact(const char *name, int n, int but)
{
    char sql[200];
    snprintf(sql, sizeof sql, "SELECT count(*) FROM @effect WHERE handler = '%s'", name);
    assert_int_equal(db_number(sql), but < 0 ? n : n - 1);
    snprintf(sql, sizeof sql, "SELECT count(DISTINCT key) FROM @effect WHERE handler = '%s'", name);
    assert_int_equal(db_number(sql), but < 0 ? n : n - 1);
    snprintf(sql, sizeof sql, "SELECT count(*) FROM @effect WHERE handler = '%s' AND key = '%d'",
             name, but);
    assert_int_equal(db_number(sql), 0);
}

/* ---- one handler ---- */

static void effect_record_and_outcome_are_one(void **state)
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

static void effect_is_recorded_under_the_events_idempotency_key(void **state)
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
    /* Event and key were trimmed, so the key makes another event; it takes no second effect. */
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

/* An event from before version 4 has its key in the table of keys alone, and was recorded by its
 * id. */
static void event_from_before_goes_on_by_its_id_and_is_not_handled_again(void **state)
{
    struct script s = {.name = "h"};
    outbox_consumer *c = consumer(*state, "c");
    handler(c, &s);
    emit_once(*state, "old");
    db_do("UPDATE @event SET idempotency_key = NULL");
    through(*state);
    assert_int_equal(s.calls, 1);
    assert_int_equal(
        db_number(
            "SELECT count(*) FROM @handled WHERE key = (SELECT CAST(id AS text) FROM @event)"),
        1);
    db_do("DELETE FROM @lane");
    db_do("DELETE FROM @consumer");
    outbox *ob = db_open(NULL);
    c = consumer(ob, "c");
    handler(c, &s);
    through(ob);
    outbox_close(ob);
    assert_int_equal(s.calls, 1);
    assert_int_equal(db_number("SELECT count(*) FROM @effect"), 1);
}

static void failed_call_leaves_nothing_and_takes_nothing_along(void **state)
{
    static const struct {
        int what, at, times, left;
    } cases[] = {{FAIL, 7, 1, -1},  {FAIL, 0, 2, -1},  {FAIL, 19, 0, 19}, {FAIL_BEFORE, 3, 1, -1},
                 {REJECT, 5, 0, 5}, {ERROR, 9, 1, -1}, {ERROR, 9, 0, 9}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[8];
        snprintf(name, sizeof name, "h%zu", i);
        struct script s = {
            .name = name, .what = cases[i].what, .at = cases[i].at, .times = cases[i].times};
        /* in SQLite a failed statement takes nothing along */
        bool heard = db_one_writer && s.what == ERROR;
        outbox *ob = db_open(NULL);
        outbox_consumer *c = consumer(ob, name);
        if (i == 0)
            emit(ob, 20);
        handler(c, &s);
        through(ob);
        exact(name, 20, heard ? -1 : cases[i].left);
        outbox_close(ob);
    }
    assert_int_equal(db_number("SELECT count(*) FROM @dead"), db_one_writer ? 2 : 3);
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
        /* Everything else took effect once; the event itself is a dead letter that says why. */
        snprintf(sql, sizeof sql,
                 "SELECT count(DISTINCT key) FROM @effect WHERE handler = '%s' AND key <> '6'",
                 name);
        assert_int_equal(db_number(sql), 11);
        snprintf(sql, sizeof sql,
                 "SELECT count(*) FROM @dead WHERE consumer = '%s.%s' AND error LIKE '%%ended the "
                 "transaction%%'",
                 name, name);
        assert_int_equal(db_number(sql), 1);
        snprintf(sql, sizeof sql, "SELECT count(*) FROM @effect WHERE handler = '%s' AND key > '6'",
                 name);
        assert_int_equal(db_number(sql), 3);
        if (db_one_writer) { /* its COMMIT is refused, too: nothing is there twice */
            snprintf(sql, sizeof sql, "SELECT count(*) FROM @effect WHERE handler = '%s'", name);
            assert_int_equal(db_number(sql), 11);
        }
        outbox_close(ob);
    }
}

static void event_left_to_another_worker_costs_no_attempt(void **state)
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

static void sink_that_is_down_costs_no_attempt_and_keeps_what_was_done(void **state)
{
    struct script s = {.name = "h", .what = IS_DOWN, .at = 4, .times = 5};
    outbox_consumer *c = consumer(*state, "c");
    emit(*state, 8);
    handler(c, &s);
    through(*state);
    exact("h", 8, -1);
    assert_int_equal(db_number("SELECT count(*) FROM @dead"), 0);
}

/* ---- what it emits, and its own inbox ---- */

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

static void what_a_handler_emits_exists_if_it_takes_effect(void **state)
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

static void inbox_says_first_duplicate_or_conflict(void **state)
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

/* What comes by another way than a handler: a message queue, a webhook. */
static void inbox_of_the_callers_connection_goes_with_its_transaction(void **state)
{
    int first = -1;
    OK(db_once(*state, "m1", "a", false, &first, &err));
    assert_int_equal(first, 1);
    OK(db_once(*state, "m1", "a", true, &first, &err)); /* what was rolled back was never handled */
    assert_int_equal(first, 1);
    OK(db_once(*state, "m1", "a", true, &first, &err));
    assert_int_equal(first, 0);
    OK(db_once(*state, "m2", "a", true, &first, &err));
    assert_int_equal(first, 1);
    assert_int_equal(db_once(*state, "m1", "b", true, &first, &err), -1);
    assert_int_equal(err.code, OUTBOX_CONFLICT);
    assert_int_equal(db_once_bare(*state, "m3", &first, &err), -1);
    assert_int_equal(err.code, OUTBOX_MISUSE);
    assert_int_equal(db_once(*state, "", "a", true, &first, &err), -1);
    assert_int_equal(err.code, OUTBOX_INVALID);
    exact("queue", 2, -1);
}

/* ---- which reasons, which events ---- */

static outbox_verdict complain(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    char text[32];
    int *ret_attempt = ctx;
    *ret_attempt = outbox_event_attempt(ev);
    snprintf(text, sizeof text, "reason %d", *ret_attempt);
    return outbox_fail(tx, OUTBOX_RETRY, text);
}

static void only_the_latest_reason_is_kept(void **state)
{
    outbox_consumer *c = consumer(*state, "c");
    OK(outbox_consumer_set(c, "retry", "base=100ms,cap=100ms,attempts=3,jitter=none,outage=0s",
                           &err));
    int attempt = 0; /* a slow machine makes several in one step */
    OK(outbox_add_handler(c, "h", "e", complain, &attempt, 0, &err));
    emit(*state, 1);
    while (attempt < 3) {
        char sql[128];
        while (outbox_step(*state, NULL, &err) == 0)
            nap(5); /* until it was due, and failed */
        snprintf(sql, sizeof sql, "SELECT count(*) FROM @%s WHERE error = 'reason %d'",
                 attempt < 3 ? "parked" : "dead", attempt);
        assert_int_equal(db_number(sql), 1);
        assert_int_equal(
            db_number("SELECT (SELECT count(*) FROM @parked) + (SELECT count(*) FROM @dead)"), 1);
    }
}

static void each_handler_gets_what_its_pattern_and_the_predicate_say(void **state)
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

/* ---- several handlers ---- */

static void both_names_are_recorded_and_redelivery_changes_nothing(void **state)
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
            /* All of it again: as if nobody had ever read anything. */
            db_do("DELETE FROM @lane");
            db_do("DELETE FROM @consumer");
        }
    }
}

static void broken_handler_blocks_nobody(void **state)
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

static void redelivery_runs_only_those_that_had_not_committed(void **state)
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
                handler(c, &mail); /* the one that has yet to commit */
            through(ob);
            outbox_close(ob);
            assert_int_equal(stock.calls, round == 0 ? 10 : 0);
            assert_int_equal(mail.calls, round == 0 ? 0 : 10);
            if (round == 0)
                before = db_number(trace);
            /* As if nobody had ever read anything. */
            db_do("DELETE FROM @lane");
            db_do("DELETE FROM @consumer");
        }
        assert_int_equal(db_number(trace), before);
        exact(stock_name, 10, -1);
        exact(mail_name, 10, -1);
    }
}

static void partial_failure_leaves_a_retry_time_and_the_retry_passes_over_who_succeeded(
    void **state)
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
        assert_int_equal(outbox_step(ob, NULL, &err), -1); /* which tells of the failure */
        assert_int_equal(
            db_number("SELECT count(*) FROM @delivery WHERE state = 'failed' AND attempts = 1"), 1);
        assert_int_equal(db_number("SELECT count(*) FROM @parked WHERE due_at IS NOT NULL"), 1);
        exact(good.name, 1, -1);
        exact(bad.name, 1, 0);

        int good_calls = good.calls, bad_calls = bad.calls;
        OK(outbox_step(ob, NULL, &err)); /* its time lies ahead */
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

static void with_shared_fate_the_others_are_not_called_again(void **state)
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
    /* it had succeeded then, and so had the one behind the one that failed */
    assert_int_equal(first.last_attempt, 1);
    assert_int_equal(last.last_attempt, 1);
    assert_true(flaky.last_attempt > 1);
    assert_int_equal(db_number("SELECT count(*) FROM @consumer"), 1);
    assert_int_equal(db_number("SELECT count(*) FROM @dead"), 0);
    assert_true(logged("told to fail"));
}

/* A handler that fails for `fail_for` attempts, and looks meanwhile at what is held; and one that
 * goes well. */
struct held {
    int fail_for;
    /* others_after: calls of the good one for the held event after its first attempt */
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
    /* What is behind it waits for it, for all handlers: nobody has taken effect for the second
     * event of its key. */
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

/* Far longer than any preset's attempts, over two processes, so to speak, and over an outage that
 * is over at once. */
static void with_shared_fate_a_failing_handler_holds_the_event_until_it_clears(void **state)
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
    assert_int_equal(h.others_after, 0); /* who had succeeded is not called again */
    exact("good", 11, -1);
    exact("bad", 11, -1);
    assert_int_equal(db_number("SELECT count(*) FROM @dead"), 0);
    assert_true(logged("is held until it succeeds: not yet"));
    /* In the order of its key: the one that was held, then the one behind it. */
    assert_int_equal(
        db_number(
            "SELECT count(*) FROM @effect a, @effect b WHERE a.handler = 'bad' AND a.key = '4' AND "
            "b.key = '100' AND b.at < a.at"),
        0);
}

static void with_shared_fate_a_bound_on_attempts_is_a_choice(void **state)
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

/* ---- outside of the database ---- */

struct letters {
    atomic_int sent, fail_first;
    bool had_tx;
};

static outbox_verdict send_letter(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    struct letters *l = ctx;
    (void)ev;
    l->had_tx = l->had_tx || outbox_tx_sqlite(tx) || outbox_tx_pg(tx);
    if (l->fail_first > 0 && l->fail_first--)
        return outbox_fail(tx, OUTBOX_RETRY, "no stamps");
    l->sent++;
    return OUTBOX_DONE;
}

static void external_handler_is_recorded_after_it_acted(void **state)
{
    (void)state;
    for (int round = 0; round < 2; round++) {
        struct letters l = {.fail_first = round ? 0 : 2};
        struct script stock = {.name = "stock", .what = FAIL, .at = 3, .times = 1};
        outbox *ob = db_open(NULL);
        outbox_consumer *c = consumer(ob, "c");
        OK(outbox_consumer_set(c, "fate", "shared", &err));
        handler(c, &stock);
        OK(outbox_add_handler(c, "mail", "e", send_letter, &l, OUTBOX_EXTERNAL, &err));
        if (!round)
            emit(ob, 8);
        through(ob);
        outbox_close(ob);
        assert_int_equal(l.sent, round ? 0 : 8);
        assert_false(l.had_tx);
        exact("stock", 8, -1);
        assert_int_equal(db_number("SELECT count(*) FROM @handled"), 16);
        db_do("DELETE FROM @lane");
        db_do("DELETE FROM @consumer");
    }
}

static outbox_verdict plain(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    outbox_message m = OUTBOX_MESSAGE_INIT;
    int first;
    m.type = "x";
    (void)ev;
    if (outbox_tx_sqlite(tx) || outbox_tx_pg(tx))
        return OUTBOX_REJECT;
    if (outbox_tx_emit(tx, &m, NULL, &err) == 0 || err.code != OUTBOX_MISUSE)
        return OUTBOX_REJECT;
    if (outbox_handle_once(tx, "h", "k", NULL, 0, &first, &err) == 0 || err.code != OUTBOX_MISUSE)
        return OUTBOX_REJECT;
    (*(atomic_int *)ctx)++;
    return OUTBOX_DONE;
}

static void plain_handler_has_no_transaction(void **state)
{
    atomic_int calls = 0;
    outbox_consumer *c = consumer(*state, "c");
    OK(outbox_on(c, "e", plain, &calls, &err));
    emit(*state, 3);
    through(*state);
    assert_int_equal(calls, 3);
    assert_int_equal(db_number("SELECT count(*) FROM @handled"), 0);
}

/* ---- bad descriptions ---- */

static void refused(int r, const char *part)
{
    assert_int_equal(r, -1);
    assert_int_equal(err.code, OUTBOX_CONFIG);
    if (!strstr(err.text, part))
        fail_msg("\"%s\" does not say \"%s\"", err.text, part);
}

static void bad_descriptions_are_refused(void **state)
{
    struct script s = {.name = "h"};
    outbox_consumer *c = consumer(*state, "c"), *d = consumer(*state, "d"), *both;
    handler(c, &s);
    refused(outbox_add_handler(c, "h", "x", play, &s, 0, &err), "has a handler \"h\" already");
    refused(outbox_add_handler(c, "a b", "x", play, &s, 0, &err), "a b");
    refused(outbox_add_handler(c, "i", "", play, &s, 0, &err), "no pattern");
    refused(outbox_add_handler(c, "i", "a,,b", play, &s, 0, &err), "expected a pattern");
    refused(outbox_on(c, "x", play, &s, &err), "give this one a name");
    OK(outbox_on(d, "x", play, &s, &err));
    refused(outbox_add_handler(d, "i", "x", play, &s, 0, &err), "without names");
    refused(outbox_consumer_set(c, "fate", "none", &err), "own or shared");
    refused(outbox_consumer_set(c, "workers", "0", &err), "0");
    OK(outbox_consumer_set(c, "workers", "2", &err));
    refused(outbox_step(*state, NULL, &err), "lanes");
    OK(outbox_consumer_set(c, "lanes", "2", &err));
    OK(outbox_consumer_new(*state, "c.h", &both, &err));
    OK(outbox_on(both, "x", play, &s, &err));
    refused(outbox_step(*state, NULL, &err), "two consumers with the name \"c.h\"");
}

/* ---- time ---- */

struct slow {
    atomic_int calls, blocked;
    atomic_bool go;
    int64_t ms;
    bool tx;
};

static outbox_verdict take_long(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    struct slow *s = ctx;
    if (s->tx && effect(tx, "slow", ev) != 0)
        return OUTBOX_RETRY;
    s->calls++;
    nap(s->ms);
    return OUTBOX_DONE;
}

static void long_call_keeps_its_claim(void **state)
{
    static const struct {
        bool tx;
        int flags;
    } kinds[] = {{true, 0}, {false, OUTBOX_EXTERNAL}};
    emit(*state, 1);
    for (int i = 0; i < 2; i++) {
        struct slow s = {.ms = 700, .tx = kinds[i].tx};
        outbox_options o = logging();
        outbox *ob = db_open(&o);
        outbox_consumer *c = consumer(ob, i ? "c2" : "c1");
        OK(outbox_consumer_set(c, "lease", "200ms", &err));
        OK(outbox_add_handler(c, "slow", "e", take_long, &s, kinds[i].flags, &err));
        through(ob);
        outbox_close(ob);
        assert_int_equal(s.calls, 1);
        assert_int_equal(db_number("SELECT count(*) FROM @effect"), 1);
        assert_int_equal(db_number("SELECT count(*) FROM @handled"), i + 1);
    }
    assert_false(logged("lost"));
}

static outbox_verdict hang_once(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    struct slow *s = ctx;
    if (s->tx && effect(tx, "slow", ev) != 0)
        return OUTBOX_RETRY;
    if (s->calls++ == 0) {
        s->blocked = 1;
        while (!s->go)
            nap(2);
    }
    return OUTBOX_DONE;
}

struct running {
    outbox *ob;
    pthread_t thread;
    int result;
};

static void *run(void *arg)
{
    struct running *r = arg;
    r->result = outbox_run(r->ob, 0, NULL);
    return NULL;
}

static void await(atomic_int *what)
{
    for (int i = 0; i < 30000 && !*what; i++)
        nap(2);
    assert_true(*what);
}

static void await_number(const char *sql, long n)
{
    for (int i = 0; i < 6000 && db_number(sql) != n; i++)
        nap(10);
    assert_int_equal(db_number(sql), n);
}

/* Two workers, as in two processes: the first hangs, the second takes over, and what the first did
 * comes to nothing. */
static void call_that_hangs_past_its_limit_is_given_up(void **state)
{
    struct slow s = {.tx = !db_one_writer};
    struct running r[2];
    outbox_consumer *c[2];
    (void)state;
    for (int i = 0; i < 2; i++) {
        outbox_options o = logging();
        r[i].ob = db_open(&o);
        c[i] = consumer(r[i].ob, "c");
        OK(outbox_consumer_set(c[i], "lease", i == 0 ? "200ms" : "30s", &err));
        OK(outbox_consumer_set(c[i], "timeout", i == 0 ? "300ms" : "30s", &err));
        OK(outbox_add_handler(c[i], "slow", "e", hang_once, &s, db_one_writer ? OUTBOX_EXTERNAL : 0,
                              &err));
        if (i == 0)
            emit(r[i].ob, 1);
        assert_int_equal(pthread_create(&r[i].thread, NULL, run, &r[i]), 0);
        if (i == 0)
            await(&s.blocked);
    }
    await_number("SELECT count(*) FROM @handled", 1);
    s.go = true;
    for (int i = 0; i < 2; i++)
        outbox_stop(r[i].ob);
    for (int i = 0; i < 2; i++) {
        outbox_stats stats = OUTBOX_STATS_INIT;
        pthread_join(r[i].thread, NULL);
        assert_int_equal(r[i].result, 0);
        OK(outbox_consumer_stats(c[i], &stats, &err));
        assert_int_equal(stats.given_up, i == 0);
        assert_int_equal(stats.lost, i == 0);
        /* what acts outside has acted, all the same */
        assert_int_equal(stats.delivered, i == 1 || db_one_writer);
        outbox_close(r[i].ob);
    }
    assert_int_equal(s.calls, 2);
    assert_int_equal(db_number("SELECT count(*) FROM @handled"), 1);
    assert_int_equal(db_number("SELECT count(*) FROM @effect"), db_one_writer ? 0 : 1);
    assert_true(logged("time limit"));
    assert_true(logged("is lost"));
}

/* ---- many at once ---- */

#define WORKERS 8
#define EVENTS 2000
#define KEYS 50

static outbox_verdict now_and_then(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    int call = (*(atomic_int *)ctx)++;
    if (effect(tx, "many", ev) != 0)
        return outbox_fail(tx, OUTBOX_RETRY, "no effect");
    return call % 97 == 13 ? outbox_fail(tx, OUTBOX_RETRY, "now and then") : OUTBOX_DONE;
}

static void many_workers_share_the_work(void **state)
{
    atomic_int calls = 0;
    outbox *ob[2] = {*state, db_open(NULL)};
    struct running other = {.ob = ob[1]};
    for (int i = 0; i < 2; i++) {
        outbox_consumer *c = consumer(ob[i], "c");
        OK(outbox_consumer_set(c, "workers", "4", &err));
        OK(outbox_consumer_set(c, "lanes", "8", &err));
        OK(outbox_consumer_set(c, "retry", "base=1ms,cap=1ms,attempts=50,jitter=none,outage=0s",
                               &err));
        OK(outbox_add_handler(c, "many", "e", now_and_then, &calls, 0, &err));
    }
    OK(outbox_begin(ob[0], &err));
    for (int i = 0; i < EVENTS; i++) {
        char key[16], text[16];
        snprintf(key, sizeof key, "%d", i % KEYS);
        snprintf(text, sizeof text, "%d", i);
        emit_one(ob[0], "e", key, text);
    }
    OK(outbox_commit(ob[0], &err));
    assert_int_equal(pthread_create(&other.thread, NULL, run, &other), 0);
    through(ob[0]);
    outbox_stop(ob[1]);
    pthread_join(other.thread, NULL);
    outbox_close(ob[1]);
    exact("many", EVENTS, -1);
    assert_int_equal(db_number("SELECT count(*) FROM @effect a JOIN @effect b ON CAST(a.key AS "
                               "int) % 50 = CAST(b.key AS int) "
                               "% 50 AND a.at < b.at AND CAST(a.key AS int) > CAST(b.key AS int)"),
                     0);
    assert_int_equal(db_number("SELECT count(*) FROM @dead"), 0);
}

static void inbox_that_forgets_too_early_is_warned_of(void **state)
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

/* ---- eager ---- */

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

/* ---- how far a stream has come ---- */

static void mark(const char *consumer, const char *stream, int hi, int lo)
{
    char sql[200];
    snprintf(sql, sizeof sql,
             "INSERT INTO @mark (stream, consumer, hi, lo, at) SELECT '%s', '%s', %d, %d, "
             "created_at FROM @event",
             stream, consumer, hi, lo);
    db_do(sql);
}

static void high_water_mark_of_a_stream_is_the_furthest_that_anybody_wrote(void **state)
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

#define ON(test) cmocka_unit_test_setup_teardown(test, fresh, done)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON(effect_record_and_outcome_are_one),
        ON(effect_is_recorded_under_the_events_idempotency_key),
        ON(event_from_before_goes_on_by_its_id_and_is_not_handled_again),
        ON(failed_call_leaves_nothing_and_takes_nothing_along),
        ON(handler_that_ends_its_transaction_is_refused),
        ON(event_left_to_another_worker_costs_no_attempt),
        ON(sink_that_is_down_costs_no_attempt_and_keeps_what_was_done),
        ON(what_a_handler_emits_exists_if_it_takes_effect),
        ON(inbox_says_first_duplicate_or_conflict),
        ON(inbox_of_the_callers_connection_goes_with_its_transaction),
        ON(only_the_latest_reason_is_kept),
        ON(each_handler_gets_what_its_pattern_and_the_predicate_say),
        ON(both_names_are_recorded_and_redelivery_changes_nothing),
        ON(broken_handler_blocks_nobody),
        ON(redelivery_runs_only_those_that_had_not_committed),
        ON(partial_failure_leaves_a_retry_time_and_the_retry_passes_over_who_succeeded),
        ON(with_shared_fate_the_others_are_not_called_again),
        ON(with_shared_fate_a_failing_handler_holds_the_event_until_it_clears),
        ON(with_shared_fate_a_bound_on_attempts_is_a_choice),
        ON(external_handler_is_recorded_after_it_acted),
        ON(plain_handler_has_no_transaction),
        ON(bad_descriptions_are_refused),
        ON(long_call_keeps_its_claim),
        ON(call_that_hangs_past_its_limit_is_given_up),
        ON(many_workers_share_the_work),
        ON(inbox_that_forgets_too_early_is_warned_of),
        ON(eager_mode_delivers_before_emit_returns),
        ON(high_water_mark_of_a_stream_is_the_furthest_that_anybody_wrote),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
