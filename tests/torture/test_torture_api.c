/* Every allocation of a scenario fails in turn, first alone and then with all that follow it.
 * The library reports every failure or continues without the memory; no memory leaks; exactly the
 * emitted events exist; and afterwards all are delivered, each effect once, byte for byte. */
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
#include <unistd.h>

#include "../lib/rounds.h"
#include "api/api_impl.h"
#include "fail.h"
#include "outbox_rows.h"
#include "outbox_test.h"

#define EVENTS_MAX 32
#define LONG \
    "\"a text that is long enough to need memory of its own: " \
    "0123456789012345678901234567890123456789\""

/* A scenario's actions, and the events that exist according to the library. */
struct deeds {
    char id[EVENTS_MAX][37];
    int n;
    atomic_int calls; /* of handlers */
    atomic_bool torn; /* a handler received a changed event */
};

static char dir[64], url[128], path[128], kept[128];
static struct deeds did;

/* ---- a database per round ---- */

static void remove_db(void)
{
    static const char *const end[] = {"", "-wal", "-shm", "-journal"};
    for (size_t i = 0; i < 4; i++) {
        char name[160];
        snprintf(name, sizeof name, "%s%s", path, end[i]);
        unlink(name);
    }
}

static int make_dir(void **state)
{
    (void)state;
    strcpy(dir, access("/dev/shm", W_OK) == 0 ? "/dev/shm/outbox-XXXXXX" : "/tmp/outbox-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof path, "%s/t.db", dir);
    snprintf(kept, sizeof kept, "%s/kept", dir);
    snprintf(url, sizeof url, "sqlite:%s", path);
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    remove_db();
    unlink(kept);
    rmdir(dir);
    return 0;
}

static void run_sql(const char *sql)
{
    sqlite3 *db;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    sqlite3_busy_timeout(db, 5000);
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    sqlite3_close(db);
}

static int64_t ask(const char *sql)
{
    sqlite3 *db;
    sqlite3_stmt *q;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_prepare_v2(db, sql, -1, &q, NULL) != SQLITE_OK || sqlite3_step(q) != SQLITE_ROW)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    int64_t n = sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    sqlite3_close(db);
    return n;
}

/* ---- what scenarios are made of ---- */

/* clean tells whether a call succeeded. A failed call must have set an error message. */
static bool clean(int r, const outbox_error *err, const char *what)
{
    if (r == 0)
        return true;
    if (err->code == OUTBOX_OK || err->code == OUTBOX_INTERNAL || err->text[0] == '\0')
        fail_msg("%s failed with code %d, \"%s\"", what, err->code, err->text);
    return false;
}

static outbox_message message(const char *type, const char *key)
{
    outbox_message m = OUTBOX_MESSAGE_INIT;
    m.type = type;
    m.aggregate_type = "t";
    m.aggregate_id = key;
    m.payload = LONG;
    m.headers = "{\"trace\":\"abc\"}";
    return m;
}

static void note(const outbox_receipt *r)
{
    assert_true(did.n < EVENTS_MAX);
    if (!r->duplicate)
        memcpy(did.id[did.n++], r->id, sizeof r->id);
}

static int open_it(outbox **ret, outbox_error *err)
{
    outbox_options o = OUTBOX_OPTIONS_INIT;
    o.create = 1;
    return api_open(url, &o, true, ret, err_of(err));
}

static bool is_whole(const outbox_event *ev)
{
    const char *key = outbox_event_aggregate_type(ev), *payload = outbox_event_payload(ev, NULL);
    bool keyed = strcmp(outbox_event_type(ev), "keyed") != 0;
    return payload && strcmp(payload, LONG) == 0 && (keyed ? key && strcmp(key, "t") == 0 : !key);
}

/* effect records its call in the event's transaction. The very first one fails once, so that it and
 * its neighbours are undone; then it emits another event. */
static outbox_verdict effect(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    outbox_error err;
    outbox_receipt r;
    sqlite3_stmt *q;
    const char *type = outbox_event_type(ev);
    (void)ctx;
    atomic_fetch_add(&did.calls, 1);
    if (!is_whole(ev))
        did.torn = true;
    sqlite3 *db = outbox_tx_sqlite(tx);
    if (sqlite3_prepare_v2(db, "INSERT INTO effect (id) VALUES (?)", -1, &q, NULL) != SQLITE_OK)
        return OUTBOX_RETRY;
    sqlite3_bind_text(q, 1, outbox_event_id(ev), -1, SQLITE_TRANSIENT);
    int rc = sqlite3_step(q);
    sqlite3_finalize(q);
    if (rc != SQLITE_DONE)
        return OUTBOX_RETRY;
    outbox_message m = message("follow.up", "f");
    if (strcmp(type, "first") == 0 && outbox_event_attempt(ev) == 1)
        return OUTBOX_RETRY;
    if (strcmp(type, "first") == 0 && outbox_tx_emit(tx, &m, &r, &err) != 0)
        return clean(-1, &err, "outbox_tx_emit"), outbox_fail(tx, OUTBOX_RETRY, err.text);
    return OUTBOX_DONE;
}

static outbox_verdict witness(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    (void)tx, (void)ctx;
    atomic_fetch_add(&did.calls, 1);
    if (!is_whole(ev))
        did.torn = true;
    return OUTBOX_DONE;
}

/* add_consumers adds one with a named handler, and one with an unnamed handler. */
static bool add_consumers(outbox *ob)
{
    static const char *const options[][2] = {
        {"retry", "base=1ms,cap=2ms,attempts=100,jitter=none,outage=0s"},
        {"lease", "100ms"},
        {"from", "beginning"},
        {"order", "key"}};
    outbox_consumer *c[2];
    outbox_error err;
    for (int i = 0; i < 2; i++) {
        if (!clean(outbox_consumer_new(ob, i ? "plain" : "named", &c[i], &err), &err,
                   "outbox_consumer_new"))
            return false;
        for (size_t k = 0; k < sizeof options / sizeof options[0]; k++)
            if (!clean(outbox_consumer_set(c[i], options[k][0], options[k][1], &err), &err,
                       "outbox_consumer_set"))
                return false;
    }
    return clean(outbox_add_handler(c[0], "h", "*", effect, NULL, 0, &err), &err,
                 "outbox_add_handler") &&
           clean(outbox_on(c[1], "*", witness, NULL, &err), &err, "outbox_on");
}

/* ---- scenarios ---- */

static void emit_noted(outbox *ob, const outbox_message *m)
{
    outbox_error err;
    outbox_receipt r;
    if (clean(outbox_emit(ob, m, &r, &err), &err, "outbox_emit"))
        note(&r);
}

static void emit_in_own_transaction(outbox *ob, bool commit)
{
    outbox_message m = message("e", "k");
    outbox_error err;
    outbox_receipt r[2];
    if (!clean(outbox_begin(ob, &err), &err, "outbox_begin"))
        return;
    bool both = clean(outbox_emit(ob, &m, &r[0], &err), &err, "emit") &&
                clean(outbox_emit(ob, &m, &r[1], &err), &err, "emit");
    if (!both || !commit) {
        outbox_rollback(ob);
    } else if (clean(outbox_commit(ob, &err), &err, "outbox_commit")) {
        note(&r[0]);
        note(&r[1]);
    }
}

static void emit_through_callers_connection(outbox *ob)
{
    outbox_message m = message("e", "c");
    outbox_error err;
    outbox_receipt r;
    sqlite3 *db = NULL;
    if (sqlite3_open(path, &db) == SQLITE_OK &&
        sqlite3_exec(db, "BEGIN IMMEDIATE", 0, 0, 0) == SQLITE_OK &&
        clean(outbox_emit_sqlite(ob, db, &m, &r, &err), &err, "outbox_emit_sqlite") &&
        sqlite3_exec(db, "COMMIT", 0, 0, 0) == SQLITE_OK)
        note(&r);
    sqlite3_close(db);
}

static void emitting(void)
{
    outbox *ob;
    outbox_error err;
    if (!clean(open_it(&ob, &err), &err, "outbox_open"))
        return;
    outbox_message m = message("first", "k"), keyed = message("keyed", NULL);
    keyed.aggregate_type = keyed.aggregate_id = NULL;
    keyed.idempotency_key = "once";
    emit_noted(ob, &m);
    emit_in_own_transaction(ob, true);
    emit_in_own_transaction(ob, false);
    emit_noted(ob, &keyed);
    emit_noted(ob, &keyed);
    emit_through_callers_connection(ob);
    outbox_close(ob);
}

static void stepping(void)
{
    outbox *ob;
    outbox_error err;
    size_t n;
    if (!clean(open_it(&ob, &err), &err, "outbox_open"))
        return;
    if (add_consumers(ob))
        for (int i = 0; i < 3; i++)
            clean(outbox_step(ob, &n, &err), &err, "outbox_step");
    outbox_close(ob);
}

static void running(void)
{
    outbox *ob;
    outbox_error err;
    if (!clean(open_it(&ob, &err), &err, "outbox_open"))
        return;
    if (add_consumers(ob))
        clean(outbox_run(ob, OUTBOX_UNTIL_THROUGH, &err), &err, "outbox_run");
    outbox_close(ob);
}

static void claiming_rows(void)
{
    outbox_criterion open = {"status", OUTBOX_EQ, outbox_value_text("open"), 0, 0, 1};
    outbox_claim_field set = {"status", outbox_value_text("taken")};
    outbox_claim_order order = {"id", 0};
    const char *columns[] = {"id", "status"};
    outbox_row_claim c = OUTBOX_ROW_CLAIM_INIT;
    outbox_rows *rows;
    outbox_error err;
    sqlite3 *db = NULL;
    c.table = "job", c.key = "id", c.limit = 3;
    c.criteria = &open, c.n_criteria = 1;
    c.fields = &set, c.n_fields = 1;
    c.order_by = &order, c.n_order_by = 1;
    c.columns = columns, c.n_columns = 2;
    if (sqlite3_open(path, &db) == SQLITE_OK)
        for (int i = 0; i < 2; i++, c.flags = OUTBOX_CLAIM_PORTABLE) {
            if (!clean(outbox_claim_rows_sqlite(db, &c, &rows, &err), &err,
                       "outbox_claim_rows_sqlite"))
                continue;
            for (size_t k = 0; k < outbox_rows_count(rows); k++)
                assert_string_equal(outbox_rows_text(rows, k, 1, NULL), "taken");
            did.n += (int)outbox_rows_count(rows);
            outbox_rows_free(rows);
        }
    sqlite3_close(db);
}

/* claim_once claims for all consumers, reports everything as delivered, and settles. did.calls
 * counts settled events. */
static size_t claim_once(outbox *ob, const char *worker)
{
    outbox_claim c = OUTBOX_CLAIM_INIT;
    outbox_batch *b;
    outbox_error err;
    size_t n = 0;
    c.worker = worker;
    c.lease_ms = 100;
    if (!clean(outbox_claim_batch(ob, &c, &b, &err), &err, "outbox_claim_batch"))
        return 0;
    for (const outbox_event *ev; (ev = outbox_batch_next(b));) {
        if (strcmp(outbox_event_payload(ev, NULL), LONG) != 0)
            did.torn = true;
        n += clean(outbox_batch_verdict(b, ev, OUTBOX_DONE, 0, NULL, &err), &err,
                   "outbox_batch_verdict");
    }
    clean(outbox_batch_extend(b, 100, &err), &err, "outbox_batch_extend");
    bool settled = clean(outbox_batch_settle(b, &err), &err, "outbox_batch_settle");
    outbox_batch_free(b);
    return settled ? n : 0;
}

static bool add_claimed(outbox *ob)
{
    outbox_consumer *c[2];
    outbox_error err;
    for (int i = 0; i < 2; i++) {
        if (!clean(outbox_consumer_new(ob, i ? "two" : "one", &c[i], &err), &err,
                   "outbox_consumer_new"))
            return false;
        if (!clean(outbox_consumer_register(c[i], &err), &err, "outbox_consumer_register"))
            return false;
    }
    return true;
}

static void claiming(void)
{
    outbox *ob;
    outbox_error err;
    if (!clean(open_it(&ob, &err), &err, "outbox_open"))
        return;
    if (add_claimed(ob))
        did.calls += (int)claim_once(ob, "tortured");
    outbox_close(ob);
}

/* ---- afterwards ---- */

/* Settled events are not repeated, all others are. */
static void what_was_not_settled_comes_again(void)
{
    outbox *ob;
    outbox_error err;
    size_t rest = 0;
    if (open_it(&ob, &err) != 0)
        fail_msg("%s", err.text);
    assert_true(add_claimed(ob));
    for (int i = 0, idle = 0; i < 60 && idle < 3; i++) {
        size_t n = claim_once(ob, "afterwards");
        rest += n;
        idle = n ? 0 : idle + 1;
        outbox_test_advance(ob, 150);
    }
    outbox_close(ob);
    assert_false(did.torn);
    assert_true(did.calls + (int)rest <= 2 * did.n);
    assert_int_equal(ask("SELECT min(delivered) FROM outbox_consumer"), did.n);
    assert_int_equal(ask("SELECT max(delivered) FROM outbox_consumer"), did.n);
    assert_int_equal(
        ask("SELECT count(*) FROM outbox_claim") + ask("SELECT count(*) FROM outbox_parked"), 0);
}

/* deliver_all drains without failures. It moves time past every lease until no work is left. */
static void deliver_all(void)
{
    outbox *ob;
    outbox_error err;
    if (open_it(&ob, &err) != 0)
        fail_msg("%s", err.text);
    assert_true(add_consumers(ob));
    for (int i = 0, idle = 0; i < 40 && idle < 3; i++) {
        size_t n;
        outbox_step(ob, &n, &err);
        idle = n ? 0 : idle + 1;
        outbox_test_advance(ob, 150);
    }
    outbox_close(ob);
}

static void everything_took_effect_once(void)
{
    deliver_all();
    assert_false(did.torn);
    assert_int_equal(ask("SELECT count(*) FROM outbox_dead"), 0);
    assert_int_equal(ask("SELECT count(*) FROM outbox_parked"), 0);
    assert_int_equal(ask("SELECT count(*) FROM outbox_claim"), 0);
    assert_int_equal(ask("SELECT count(*) FROM effect e, outbox_event v WHERE e.id = v.id"),
                     ask("SELECT count(*) FROM outbox_event"));
    assert_int_equal(ask("SELECT count(*) FROM outbox_event WHERE type = 'follow.up'"),
                     ask("SELECT count(*) FROM outbox_event WHERE type = 'first'"));
    assert_int_equal(ask("SELECT count(*) - count(DISTINCT id) FROM effect"), 0);
    assert_int_equal(ask("SELECT min(delivered) FROM outbox_consumer"),
                     ask("SELECT count(*) FROM outbox_event"));
}

static void emitted_is_what_was_said(void)
{
    outbox *ob;
    outbox_error err;
    if (open_it(&ob, &err) != 0)
        fail_msg("%s", err.text); /* the tables may not exist yet */
    outbox_close(ob);
    assert_int_equal(ask("SELECT count(*) FROM outbox_event"), did.n);
    for (int i = 0; i < did.n; i++) {
        char sql[128];
        snprintf(sql, sizeof sql, "SELECT count(*) FROM outbox_event WHERE id = '%s'", did.id[i]);
        assert_int_equal(ask(sql), 1);
    }
    everything_took_effect_once();
}

/* A claim whose rows could not be returned may have committed ("when memory is lost"); no row is
 * returned twice. */
static void claimed_rows_are_taken(void)
{
    assert_true(ask("SELECT count(*) FROM job WHERE status = 'taken'") >= did.n);
    assert_int_equal(ask("SELECT count(*) FROM job"), 10);
}

/* ---- the torture ---- */

struct scenario {
    const char *name;
    const char *before; /* SQL beyond the table of effects */
    int events;         /* emitted before */
    void (*run)(void);
    void (*check)(void);
    enum fail_mode last_mode;
};

/* make creates a database with the scenario's data, and notes what was emitted. */
static void make(const struct scenario *s)
{
    remove_db();
    memset(&did, 0, sizeof did);
    run_sql("PRAGMA journal_mode = wal; CREATE TABLE effect (id text)");
    if (s->before)
        run_sql(s->before);
    outbox *ob;
    outbox_error err;
    if (s->events == 0)
        return;
    if (open_it(&ob, &err) != 0)
        fail_msg("%s", err.text);
    for (int i = 0; i < s->events; i++) {
        outbox_message m = message(i ? "e" : "first", i % 2 ? "a" : "b");
        emit_noted(ob, &m);
    }
    outbox_close(ob);
}

static void copy_file(const char *from, const char *to)
{
    char some[65536];
    size_t n;
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    assert_non_null(in);
    assert_non_null(out);
    while ((n = fread(some, 1, sizeof some, in)) > 0)
        assert_int_equal(fwrite(some, 1, n, out), n);
    fclose(in);
    assert_int_equal(fclose(out), 0);
}

/* prepare creates the database once, and each round gets a copy: creating it takes as long as a
 * round. */
static void prepare(const struct scenario *s)
{
    static const struct scenario *made;
    static struct deeds made_did;
    if (made != s) {
        make(s);
        made_did = did;
        copy_file(path, kept);
        made = s;
    }
    remove_db();
    copy_file(kept, path);
    did = made_did;
}

static void one_round(const struct scenario *s, unsigned kinds, long at, enum fail_mode mode,
                      bool *ret_hit)
{
    prepare(s);
    long before = fail_blocks();
    fail_arm(kinds, at, mode);
    s->run();
    *ret_hit = fail_disarm();
    if (fail_blocks() != before)
        fail_msg("%s: %ld blocks left behind after allocation %ld of kind %u failed", s->name,
                 fail_blocks() - before, at, kinds);
    s->check();
}

static void torture(const struct scenario *s, unsigned kinds, long step)
{
    for (enum fail_mode mode = FAIL_ONCE; mode <= s->last_mode; mode++) {
        bool hit = true;
        long at = 1, rounds = 0;
        for (; hit; at += step, rounds++)
            one_round(s, kinds, at, mode, &hit);
        print_message("# %s: %ld of about %ld allocations %s failed in turn%s\n", s->name,
                      rounds - 1, at - step - 1, kinds & FAIL_SQLITE ? "(SQLite's)" : "(ours)",
                      mode == FAIL_LASTING ? ", and all after it for 50 ms" : "");
    }
}

static const struct scenario scenarios[] = {
    {"emitting", NULL, 0, emitting, emitted_is_what_was_said, FAIL_LASTING},
    {"stepping", NULL, 4, stepping, everything_took_effect_once, FAIL_LASTING},
    {"running", NULL, 4, running, everything_took_effect_once, FAIL_LASTING},
    {"claiming_rows",
     "CREATE TABLE job (id INTEGER PRIMARY KEY, status text);"
     "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10) "
     "INSERT INTO job SELECT i, 'open' FROM n",
     0, claiming_rows, claimed_rows_are_taken, FAIL_LASTING},
    {"claiming", NULL, 4, claiming, what_was_not_settled_comes_again, FAIL_LASTING},
};

#define TORTURE(i, name, our_share, sqlite_share, soak_share) \
    static void name##_survives_every_failed_allocation(void **state) \
    { \
        (void)state; \
        torture(&scenarios[i], FAIL_OURS, rounds_step(our_share, 1)); \
    } \
    static void name##_survives_sqlite_out_of_memory(void **state) \
    { \
        (void)state; \
        torture(&scenarios[i], FAIL_SQLITE, rounds_step(sqlite_share, soak_share)); \
    }
TORTURE(0, emitting, 1, 307, 1) /* nearly all of that is the creation of tables */
TORTURE(1, stepping, 1, 401, 1)
TORTURE(2, running, 5, 967, 13)
TORTURE(3, claiming_rows, 1, 7, 1)
TORTURE(4, claiming, 1, 997, 1)

/* A ROLLBACK that failed for lack of memory left its transaction open, and the next emit became
 * part of that. */
static void transaction_after_a_failed_rollback_commits(void **state)
{
    static const struct scenario empty = {.name = "rollback"};
    outbox_message m = message("e", "k");
    outbox_error err;
    outbox *ob;
    (void)state;
    prepare(&empty);
    if (open_it(&ob, &err) != 0 || outbox_begin(ob, &err) != 0)
        fail_msg("%s", err.text);
    fail_arm(FAIL_SQLITE, 1, FAIL_LASTING);
    int r = outbox_emit(ob, &m, NULL, &err);
    outbox_rollback(ob);
    fail_disarm();
    assert_int_equal(r, -1);
    if (outbox_emit(ob, &m, NULL, &err) != 0)
        fail_msg("%s", err.text);
    outbox_close(ob);
    assert_int_equal(ask("SELECT count(*) FROM outbox_event"), 1);
}

/* no_memory_to_undo records an effect. Its first call then fails, and so does the next allocation
 * of SQLite, which is made to undo the effect. */
static outbox_verdict no_memory_to_undo(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    char sql[128];
    (void)ctx;
    snprintf(sql, sizeof sql, "INSERT INTO effect (id) VALUES ('%s')", outbox_event_id(ev));
    if (sqlite3_exec(outbox_tx_sqlite(tx), sql, NULL, NULL, NULL) != SQLITE_OK)
        return OUTBOX_RETRY;
    if (did.calls++ > 0)
        return OUTBOX_DONE;
    fail_arm(FAIL_SQLITE, 1, FAIL_ONCE);
    return OUTBOX_RETRY;
}

static void effect_that_cannot_be_undone_is_not_committed(void **state)
{
    static const struct scenario empty = {.name = "undoing"};
    outbox_consumer *c;
    outbox_message m = message("e", "k");
    outbox_error err;
    outbox *ob;
    size_t n;
    (void)state;
    prepare(&empty);
    if (open_it(&ob, &err) != 0 || outbox_consumer_new(ob, "undoing", &c, &err) != 0 ||
        outbox_consumer_set(c, "retry", "base=1ms,jitter=none", &err) != 0 ||
        outbox_add_handler(c, "h", "*", no_memory_to_undo, NULL, 0, &err) != 0 ||
        outbox_emit(ob, &m, NULL, &err) != 0)
        fail_msg("%s", err.text);
    for (int i = 0; i < 20; i++) {
        outbox_step(ob, &n, &err);
        outbox_test_advance(ob, 1000);
    }
    assert_true(fail_disarm());
    outbox_close(ob);
    assert_int_equal(ask("SELECT count(*) FROM effect"), 1);
    assert_int_equal(ask("SELECT min(delivered) FROM outbox_consumer"), 1);
}

/* The application may commit after an error: then a keyed event that emit reported as failed must
 * not be stored. */
static void keyed_emit_that_failed_stores_nothing(void **state)
{
    static const struct scenario empty = {.name = "keyed"};
    outbox_message m = message("keyed", "k");
    outbox_error err;
    outbox *ob;
    (void)state;
    prepare(&empty);
    if (open_it(&ob, &err) != 0)
        fail_msg("%s", err.text);
    sqlite3 *db;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    char key[32];
    int64_t stored = 0;
    bool hit = true;
    m.idempotency_key = key;
    for (long round = 2; hit; round++) {
        snprintf(key, sizeof key, "key %ld", round);
        sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
        fail_arm(FAIL_SQLITE, round / 2, round % 2 ? FAIL_LASTING : FAIL_ONCE);
        stored += outbox_emit_sqlite(ob, db, &m, NULL, &err) == 0;
        hit = fail_disarm();
        if (!sqlite3_get_autocommit(db))
            assert_int_equal(sqlite3_exec(db, "COMMIT", NULL, NULL, NULL), SQLITE_OK);
        assert_int_equal(ask("SELECT count(*) FROM outbox_event"), stored);
    }
    assert_true(stored > 0);
    sqlite3_close(db);
    outbox_close(ob);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keyed_emit_that_failed_stores_nothing),
        cmocka_unit_test(transaction_after_a_failed_rollback_commits),
        cmocka_unit_test(effect_that_cannot_be_undone_is_not_committed),
        cmocka_unit_test(emitting_survives_every_failed_allocation),
        cmocka_unit_test(stepping_survives_every_failed_allocation),
        cmocka_unit_test(running_survives_every_failed_allocation),
        cmocka_unit_test(claiming_rows_survives_every_failed_allocation),
        cmocka_unit_test(claiming_survives_every_failed_allocation),
        cmocka_unit_test(emitting_survives_sqlite_out_of_memory),
        cmocka_unit_test(stepping_survives_sqlite_out_of_memory),
        cmocka_unit_test(running_survives_sqlite_out_of_memory),
        cmocka_unit_test(claiming_rows_survives_sqlite_out_of_memory),
        cmocka_unit_test(claiming_survives_sqlite_out_of_memory),
    };
    fail_setup();
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
