/* The public interface, used as an application uses it: only outbox.h and sqlite3.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <outbox.h>
#include <pthread.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ok.h"

static outbox_error err;
static char dir[64];

static outbox *ob_of(void **state)
{
    return *state;
}

static int in_memory(void **state)
{
    outbox *ob;
    if (outbox_open("sqlite::memory:", NULL, &ob, &err) != 0)
        return -1;
    *state = ob;
    return 0;
}

static atomic_bool b_stopped;

static void note_stop(void *ctx, int level, const char *consumer, const char *text)
{
    (void)ctx;
    if (level == 3 && consumer && strcmp(consumer, "b") == 0 && strncmp(text, "stopping", 8) == 0)
        b_stopped = true;
}

static int in_a_file(void **state)
{
    outbox *ob;
    char url[128];
    outbox_options o = OUTBOX_OPTIONS_INIT;
    o.create = 1;
    o.log = note_stop;
    strcpy(dir, "/tmp/outbox-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    snprintf(url, sizeof url, "sqlite:%s/t.db", dir);
    if (outbox_open(url, &o, &ob, &err) != 0) {
        print_error("%s\n", err.text);
        return -1;
    }
    *state = ob;
    return 0;
}

static int done(void **state)
{
    static const char *const names[] = {"t.db", "t.db-wal", "t.db-shm"};
    outbox_close(*state);
    for (size_t i = 0; *dir && i < 3; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    if (*dir)
        rmdir(dir);
    *dir = '\0';
    return 0;
}

static void emit(outbox *ob, const char *type, const char *key, const char *payload)
{
    outbox_message m = OUTBOX_MESSAGE_INIT;
    m.type = type;
    m.aggregate_type = key ? "t" : NULL;
    m.aggregate_id = key;
    m.payload = payload;
    OK(outbox_emit(ob, &m, NULL, &err));
}

/* ---- handlers ---- */

struct heard {
    int n;
    char types[256];
    char last[64];
    outbox_verdict verdict;
    outbox *ob; /* to emit a follow-up through */
};

static outbox_verdict hear(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    struct heard *h = ctx;
    h->n++;
    if (strlen(h->types) < 200)
        strcat(strcat(h->types, outbox_event_type(ev)), " ");
    snprintf(h->last, sizeof h->last, "%s", outbox_event_payload(ev, NULL));
    if (h->verdict != OUTBOX_DONE)
        return outbox_fail(tx, h->verdict, "not today");
    if (h->ob && strcmp(outbox_event_type(ev), "follow.up") != 0)
        emit(h->ob, "follow.up", "f", "{}");
    return OUTBOX_DONE;
}

static outbox_consumer *listener(outbox *ob, const char *name, const char *pattern, struct heard *h)
{
    outbox_consumer *c;
    OK(outbox_consumer_new(ob, name, &c, &err));
    OK(outbox_on(c, pattern, hear, h, &err));
    return c;
}

static outbox_verdict see_all_parts(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    size_t n;
    int64_t version = 0;
    (void)tx;
    assert_int_equal(strlen(outbox_event_id(ev)), 36);
    assert_int_equal(outbox_event_seq(ev), 1);
    assert_string_equal(outbox_event_type(ev), "order.paid");
    assert_string_equal(outbox_event_aggregate_type(ev), "order");
    assert_string_equal(outbox_event_aggregate_id(ev), "42");
    assert_string_equal(outbox_event_payload(ev, &n), "{\"a\": 1.0}");
    assert_int_equal(n, 10);
    assert_string_equal(outbox_event_headers(ev), "{\"h\":\"v\"}");
    assert_string_equal(outbox_event_tenant(ev), "acme");
    assert_int_equal(outbox_event_version(ev, &version), 1);
    assert_int_equal(version, 9);
    assert_true(outbox_event_created_at(ev) > 1600000000000);
    assert_int_equal(outbox_event_attempt(ev), 1);
    ++*(int *)ctx;
    return OUTBOX_DONE;
}

static void handler_gets_every_part_of_the_event(void **state)
{
    outbox_consumer *c;
    size_t n;
    int calls = 0;
    outbox_message m = OUTBOX_MESSAGE_INIT;
    m.type = "order.paid";
    m.aggregate_type = "order";
    m.aggregate_id = "42";
    m.payload = "{\"a\": 1.0}ignored";
    m.payload_size = 10;
    m.headers = "{\"h\":\"v\"}";
    m.tenant = "acme";
    m.has_version = 1;
    m.version = 9;
    OK(outbox_consumer_new(ob_of(state), "c", &c, &err));
    OK(outbox_on(c, "order.paid", see_all_parts, &calls, &err));
    OK(outbox_emit(ob_of(state), &m, NULL, &err));
    OK(outbox_step(ob_of(state), &n, &err));
    assert_int_equal(n, 1);
    assert_int_equal(calls, 1);
    OK(outbox_step(ob_of(state), &n, &err));
    assert_int_equal(n, 0);
}

static void consumers_get_only_events_matching_their_patterns(void **state)
{
    struct heard orders = {0}, all = {0}, two = {0};
    listener(ob_of(state), "orders", "order.*", &orders);
    listener(ob_of(state), "all", "*", &all);
    outbox_consumer *c = listener(ob_of(state), "two", "user.created", &two);
    OK(outbox_on(c, "order.paid", hear, &two, &err));
    emit(ob_of(state), "order.created", "1", "{}");
    emit(ob_of(state), "user.created", "1", "{}");
    emit(ob_of(state), "order.paid", "1", "{}");
    OK(outbox_step(ob_of(state), NULL, &err));
    assert_string_equal(orders.types, "order.created order.paid ");
    assert_string_equal(all.types, "order.created user.created order.paid ");
    assert_string_equal(two.types, "user.created order.paid ");
}

static void step_reports_a_failure_and_continues_with_the_others(void **state)
{
    struct heard bad = {.verdict = OUTBOX_RETRY}, good = {0};
    outbox_consumer *c = listener(ob_of(state), "bad", "*", &bad);
    size_t n = 9;
    OK(outbox_consumer_set(c, "retry", "base=0s,cap=0s,attempts=2,outage=0s", &err));
    listener(ob_of(state), "good", "*", &good);
    emit(ob_of(state), "a", "1", "{}");
    assert_int_equal(outbox_step(ob_of(state), &n, &err), -1);
    assert_non_null(strstr(err.text, "not today"));
    assert_non_null(strstr(err.text, "bad"));
    assert_int_equal(n, 1);
    assert_int_equal(good.n, 1);
    bad.verdict = OUTBOX_DONE;
    time_t end = time(NULL) + 10; /* its retry is due within milliseconds */
    while (bad.n < 2 && time(NULL) < end)
        OK(outbox_step(ob_of(state), &n, &err));
    assert_int_equal(bad.n, 2);
    assert_int_equal(good.n, 1);
}

static void step_delivers_events_emitted_by_handlers(void **state)
{
    struct heard last = {0}, first = {.ob = ob_of(state)};
    size_t n;
    listener(ob_of(state), "last", "follow.*", &last); /* its turn precedes the event */
    listener(ob_of(state), "first", "start", &first);
    emit(ob_of(state), "start", "1", "{}");
    OK(outbox_step(ob_of(state), &n, &err));
    assert_int_equal(n, 2);
    assert_int_equal(last.n, 1);
}

static void step_reports_a_down_sink_and_releases_its_claims(void **state)
{
    struct heard h = {.verdict = OUTBOX_DOWN};
    listener(ob_of(state), "c", "*", &h);
    emit(ob_of(state), "a", "1", "{}");
    emit(ob_of(state), "b", "1", "{}");
    assert_int_equal(outbox_step(ob_of(state), NULL, &err), -1);
    assert_int_equal(err.retry_class, OUTBOX_CLASS_DOWN);
    h.verdict = OUTBOX_DONE;
    h.types[0] = '\0';
    OK(outbox_step(ob_of(state), NULL, &err));
    assert_string_equal(h.types, "a b ");
}

static void step_reports_an_unreachable_store(void **state)
{
    struct heard h = {0};
    sqlite3 *db;
    outbox *ob;
    char path[128], url[140];
    outbox_options o = OUTBOX_OPTIONS_INIT;
    (void)state;
    snprintf(path, sizeof path, "%s/t.db", dir);
    snprintf(url, sizeof url, "sqlite:%s", path);
    o.busy_ms = 20;
    OK(outbox_open(url, &o, &ob, &err));
    listener(ob, "c", "*", &h);
    emit(ob, "a", "1", "{}");
    OK(outbox_step(ob, NULL, &err));
    emit(ob, "b", "1", "{}");
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    sqlite3_exec(db, "BEGIN IMMEDIATE", 0, 0, 0);
    assert_int_equal(outbox_step(ob, NULL, &err), -1);
    assert_int_equal(err.code, OUTBOX_BUSY);
    sqlite3_exec(db, "ROLLBACK", 0, 0, 0);
    OK(outbox_step(ob, NULL, &err)); /* at once, without a pause */
    assert_string_equal(h.types, "a b ");
    sqlite3_close(db);
    outbox_close(ob);
}

/* ---- transactions ---- */

static void begin_and_commit_bracket_events_and_the_applications_rows(void **state)
{
    struct heard h = {0};
    listener(ob_of(state), "c", "*", &h);
    sqlite3 *db = outbox_sqlite(ob_of(state));
    OK(outbox_begin(ob_of(state), &err));
    assert_int_equal(
        sqlite3_exec(db, "CREATE TABLE orders (n); INSERT INTO orders VALUES (1)", 0, 0, 0),
        SQLITE_OK);
    emit(ob_of(state), "a", "1", "{}");
    OK(outbox_commit(ob_of(state), &err));
    OK(outbox_begin(ob_of(state), &err));
    assert_int_equal(sqlite3_exec(db, "INSERT INTO orders VALUES (2)", 0, 0, 0), SQLITE_OK);
    emit(ob_of(state), "b", "1", "{}");
    outbox_rollback(ob_of(state));
    OK(outbox_step(ob_of(state), NULL, &err));
    assert_string_equal(h.types, "a ");
}

static void events_commit_or_roll_back_with_the_callers_connection(void **state)
{
    struct heard h = {0};
    sqlite3 *db;
    char path[128];
    outbox_message m = OUTBOX_MESSAGE_INIT;
    m.type = "x";
    listener(ob_of(state), "c", "*", &h);
    snprintf(path, sizeof path, "%s/t.db", dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(outbox_emit_sqlite(ob_of(state), db, &m, NULL, &err), -1);
    assert_int_equal(err.code, OUTBOX_MISUSE);
    sqlite3_exec(db, "BEGIN IMMEDIATE", 0, 0, 0);
    OK(outbox_emit_sqlite(ob_of(state), db, &m, NULL, &err));
    sqlite3_exec(db, "ROLLBACK", 0, 0, 0);
    OK(outbox_step(ob_of(state), NULL, &err));
    assert_int_equal(h.n, 0);
    sqlite3_exec(db, "BEGIN IMMEDIATE", 0, 0, 0);
    OK(outbox_emit_sqlite(ob_of(state), db, &m, NULL, &err));
    sqlite3_exec(db, "COMMIT", 0, 0, 0);
    OK(outbox_step(ob_of(state), NULL, &err));
    assert_int_equal(h.n, 1);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static void misuse_is_reported(void **state)
{
    outbox_message zero;
    memset(&zero, 0, sizeof zero);
    zero.type = "x";
    assert_int_equal(outbox_emit(ob_of(state), &zero, NULL, &err), -1);
    assert_int_equal(err.code, OUTBOX_MISUSE);
    assert_int_equal(outbox_commit(ob_of(state), &err), -1);
    assert_int_equal(err.code, OUTBOX_MISUSE);
    outbox_rollback(ob_of(state)); /* harmless, though there is nothing to roll back */
    outbox_message m = OUTBOX_MESSAGE_INIT;
    m.type = "has space";
    assert_int_equal(outbox_emit(ob_of(state), &m, NULL, &err), -1);
    assert_int_equal(err.code, OUTBOX_INVALID);
    assert_int_equal(outbox_emit(ob_of(state), &m, NULL, NULL), -1); /* err may be NULL */
    assert_int_equal(outbox_run(ob_of(state), 0, &err), -1);
    assert_non_null(strstr(err.text, "no consumer"));
}

static void invalid_consumers_are_reported(void **state)
{
    outbox_consumer *c;
    struct heard h = {0};
    assert_int_equal(outbox_consumer_new(ob_of(state), "a b", &c, &err), -1);
    OK(outbox_consumer_new(ob_of(state), "c", &c, &err));
    assert_int_equal(outbox_consumer_new(ob_of(state), "c", &c, &err), -1);
    assert_int_equal(outbox_consumer_set(c, "ordr", "key", &err), -1);
    assert_non_null(strstr(err.text, "order"));
    assert_int_equal(outbox_consumer_set(c, "order", "sideways", &err), -1);
    assert_int_equal(outbox_step(ob_of(state), NULL, &err), -1); /* neither sink nor handler */
    OK(outbox_on(c, "*", hear, &h, &err));
    OK(outbox_consumer_set(c, "sink", "stdout:", &err));
    assert_int_equal(outbox_step(ob_of(state), NULL, &err), -1); /* both */
    assert_int_equal(err.code, OUTBOX_CONFIG);
    assert_int_equal(outbox_set(ob_of(state), "sweeep", "1s", &err), -1);
    assert_non_null(strstr(err.text, "sweep"));
}

static void known_idempotency_key_returns_the_first_id(void **state)
{
    outbox_message m = OUTBOX_MESSAGE_INIT;
    outbox_receipt a, b;
    m.type = "x";
    m.idempotency_key = "k";
    OK(outbox_emit(ob_of(state), &m, &a, &err));
    OK(outbox_emit(ob_of(state), &m, &b, &err));
    assert_int_equal(a.duplicate, 0);
    assert_int_equal(b.duplicate, 1);
    assert_string_equal(a.id, b.id);
}

/* ---- threads ---- */

#define EMITTERS 4
#define PER_EMITTER 200

struct tally {
    atomic_int n;
    int last[EMITTERS];
    atomic_int misordered;
    outbox *stop;
    int stop_at;
};

static outbox_verdict count(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    struct tally *t = ctx;
    int who = 0, no = 0;
    (void)tx;
    if (sscanf(outbox_event_payload(ev, NULL), "[%d,%d]", &who, &no) == 2) {
        if (no != t->last[who] + 1)
            t->misordered++;
        t->last[who] = no;
    }
    if (++t->n == t->stop_at)
        outbox_stop(t->stop);
    return OUTBOX_DONE;
}

struct emitter {
    outbox *ob;
    int who;
    pthread_t thread;
};

static void *emit_many(void *arg)
{
    struct emitter *e = arg;
    char key[16], payload[32];
    snprintf(key, sizeof key, "%d", e->who);
    for (int i = 1; i <= PER_EMITTER; i++) {
        outbox_message m = OUTBOX_MESSAGE_INIT;
        snprintf(payload, sizeof payload, "[%d,%d]", e->who, i);
        m.type = "n";
        m.aggregate_type = "emitter";
        m.aggregate_id = key;
        m.payload = payload;
        if (outbox_emit(e->ob, &m, NULL, NULL) != 0)
            return arg;
    }
    return NULL;
}

static void emitters_and_consumers_run_side_by_side(void **state)
{
    struct tally a = {.stop = ob_of(state), .stop_at = EMITTERS * PER_EMITTER}, b = {0};
    struct emitter e[EMITTERS];
    outbox_consumer *c;
    OK(outbox_consumer_new(ob_of(state), "a", &c, &err));
    OK(outbox_on(c, "*", count, &a, &err));
    OK(outbox_consumer_new(ob_of(state), "b", &c, &err));
    OK(outbox_consumer_set(c, "lanes", "3", &err));
    OK(outbox_on(c, "*", count, &b, &err));
    for (int i = 0; i < EMITTERS; i++) {
        e[i] = (struct emitter){.ob = ob_of(state), .who = i};
        pthread_create(&e[i].thread, NULL, emit_many, &e[i]);
    }
    OK(outbox_run(ob_of(state), 0, &err)); /* until a has seen everything */
    for (int i = 0; i < EMITTERS; i++) {
        void *problem;
        pthread_join(e[i].thread, &problem);
        assert_null(problem);
    }
    OK(outbox_run(ob_of(state), OUTBOX_UNTIL_THROUGH, &err)); /* b may have been stopped early */
    assert_int_equal(a.n, EMITTERS * PER_EMITTER);
    assert_int_equal(b.n, EMITTERS * PER_EMITTER);
    assert_int_equal(a.misordered, 0);
    assert_int_equal(b.misordered, 0);
}

static void until_through_waits_for_events_emitted_by_handlers(void **state)
{
    struct heard last = {0}, first = {.ob = ob_of(state)};
    listener(ob_of(state), "last", "follow.*", &last);
    listener(ob_of(state), "first", "start", &first);
    for (int i = 0; i < 20; i++)
        emit(ob_of(state), "start", "1", "{}");
    OK(outbox_run(ob_of(state), OUTBOX_UNTIL_THROUGH, &err));
    assert_int_equal(first.n, 20);
    assert_int_equal(last.n, 20);
}

static void stop_before_run_ends_the_next_run(void **state)
{
    struct heard h = {0};
    listener(ob_of(state), "c", "*", &h);
    outbox_stop(ob_of(state));
    OK(outbox_run(ob_of(state), 0, &err));
    emit(ob_of(state), "a", "1", "{}");
    OK(outbox_run(ob_of(state), OUTBOX_UNTIL_THROUGH, &err)); /* and only for that one */
    assert_int_equal(h.n, 1);
}

static outbox *interrupted;

static void on_signal(int sig)
{
    (void)sig;
    outbox_stop(interrupted);
}

static void *send_signal(void *arg)
{
    pthread_kill(*(pthread_t *)arg, SIGUSR1);
    return NULL;
}

static void stop_works_from_a_signal_handler(void **state)
{
    struct heard h = {0};
    pthread_t self = pthread_self(), other;
    listener(ob_of(state), "c", "*", &h);
    interrupted = ob_of(state);
    signal(SIGUSR1, on_signal);
    pthread_create(&other, NULL, send_signal, &self);
    OK(outbox_run(ob_of(state), 0, &err));
    pthread_join(other, NULL);
    signal(SIGUSR1, SIG_DFL);
}

static void consumer_that_cannot_start_prevents_the_run(void **state)
{
    struct heard good = {0};
    outbox_consumer *c;
    listener(ob_of(state), "good", "*", &good);
    OK(outbox_consumer_new(ob_of(state), "bad", &c, &err));
    /* A directory: waiting does not help. */
    OK(outbox_consumer_set(c, "sink", "file:/tmp", &err));
    emit(ob_of(state), "a", "1", "{}");
    assert_int_equal(outbox_run(ob_of(state), 0, &err), -1);
    assert_non_null(strstr(err.text, "bad"));
    assert_int_equal(good.n, 0);
}

/* remove_other removes consumer "b" at its first event, and continues until b has stopped, and a
 * little longer. */
static outbox_verdict remove_other(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    struct tally *t = ctx;
    (void)ev;
    (void)tx;
    if (++t->n == 1) {
        sqlite3 *db;
        char path[128];
        snprintf(path, sizeof path, "%s/t.db", dir);
        assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
        sqlite3_busy_timeout(db, 5000);
        assert_int_equal(sqlite3_exec(db, "DELETE FROM outbox_consumer WHERE name = 'b'", 0, 0, 0),
                         SQLITE_OK);
        sqlite3_close(db);
    }
    if (!b_stopped && t->n < 100000)
        t->stop_at = t->n + 3;
    if (t->n == t->stop_at)
        outbox_stop(t->stop);
    else
        emit(t->stop, "again", "1", "{}");
    return OUTBOX_DONE;
}

static void only_the_failed_consumer_stops(void **state)
{
    struct tally a = {.stop = ob_of(state), .stop_at = 3};
    struct heard b = {0};
    b_stopped = false;
    outbox_consumer *c;
    OK(outbox_consumer_new(ob_of(state), "a", &c, &err));
    OK(outbox_on(c, "*", remove_other, &a, &err));
    listener(ob_of(state), "b", "nothing", &b);
    emit(ob_of(state), "start", "1", "{}");
    assert_int_equal(outbox_run(ob_of(state), 0, &err), -1);
    assert_non_null(strstr(err.text, "consumer \"b\""));
    assert_non_null(strstr(err.text, "not registered"));
    assert_int_equal(a.n, a.stop_at); /* the other continued */
}

static char logged[256];
static atomic_int log_lines;

static void keep_log(void *ctx, int level, const char *consumer, const char *text)
{
    (void)ctx;
    if (level < 2)
        return;
    log_lines++;
    snprintf(logged, sizeof logged, "%s: %s", consumer ? consumer : "-", text);
}

static void decisions_are_logged(void **state)
{
    outbox *ob;
    outbox_options o = OUTBOX_OPTIONS_INIT;
    struct heard h = {.verdict = OUTBOX_REJECT};
    (void)state;
    o.log = keep_log;
    OK(outbox_open("sqlite::memory:", &o, &ob, &err));
    listener(ob, "c", "*", &h);
    emit(ob, "a", "1", "{}");
    assert_int_equal(outbox_step(ob, NULL, &err), -1);
    assert_int_equal(log_lines, 1);
    assert_non_null(strstr(logged, "c: "));
    assert_non_null(strstr(logged, "dead letter"));
    assert_non_null(strstr(logged, "not today"));
    outbox_close(ob);
}

#define IN_MEMORY(test) cmocka_unit_test_setup_teardown(test, in_memory, done)
#define IN_A_FILE(test) cmocka_unit_test_setup_teardown(test, in_a_file, done)

int main(void)
{
    const struct CMUnitTest memory[] = {
        IN_MEMORY(handler_gets_every_part_of_the_event),
        IN_MEMORY(consumers_get_only_events_matching_their_patterns),
        IN_MEMORY(step_reports_a_failure_and_continues_with_the_others),
        IN_MEMORY(step_delivers_events_emitted_by_handlers),
        IN_MEMORY(step_reports_a_down_sink_and_releases_its_claims),
        IN_MEMORY(begin_and_commit_bracket_events_and_the_applications_rows),
        IN_MEMORY(misuse_is_reported),
        IN_MEMORY(invalid_consumers_are_reported),
        IN_MEMORY(known_idempotency_key_returns_the_first_id),
        IN_MEMORY(emitters_and_consumers_run_side_by_side),
        IN_MEMORY(until_through_waits_for_events_emitted_by_handlers),
        IN_MEMORY(consumer_that_cannot_start_prevents_the_run),
        cmocka_unit_test(decisions_are_logged),
    };
    const struct CMUnitTest file[] = {
        IN_A_FILE(step_reports_an_unreachable_store),
        IN_A_FILE(events_commit_or_roll_back_with_the_callers_connection),
        IN_A_FILE(emitters_and_consumers_run_side_by_side),
        IN_A_FILE(until_through_waits_for_events_emitted_by_handlers),
        IN_A_FILE(stop_before_run_ends_the_next_run),
        IN_A_FILE(stop_works_from_a_signal_handler),
        IN_A_FILE(only_the_failed_consumer_stops),
    };
    int failures = cmocka_run_group_tests_name("memory", memory, NULL, NULL);
    return failures + cmocka_run_group_tests_name("sqlite", file, NULL, NULL);
}
