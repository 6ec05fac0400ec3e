/* sqlite_emit.c: events emitted through the caller's connection, or by plain SQL. */
#include "lite.h"
#include "sqlite_tests.h"

static void emit_is_part_of_the_callers_transaction(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    sqlite3 *db = lite_connect();
    lite_do(db, "CREATE TABLE orders (n); BEGIN; INSERT INTO orders VALUES (1)");
    assert_int_equal(lite_emit(g->st, db, NULL, &err), 0);
    assert_int_equal(lite_count(g->st, "SELECT count(*) FROM outbox_event"), 0);
    lite_do(db, "ROLLBACK");
    assert_int_equal(lite_count(g->st, "SELECT count(*) FROM outbox_event"), 0);
    lite_do(db, "BEGIN; INSERT INTO orders VALUES (2)");
    assert_int_equal(lite_emit(g->st, db, "k", &err), 0);
    lite_do(db, "COMMIT");
    assert_int_equal(lite_count(g->st, "SELECT count(*) FROM outbox_event"), 1);
    assert_int_equal(sqlite3_close(db), SQLITE_OK); /* the emit left no transaction open */
}

/* Another program writes all the while. */
static void handled_key_is_known_without_the_write_lock(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    bool first;
    sqlite3 *db = lite_connect(), *writer = lite_connect();
    lite_do(db, "BEGIN");
    must(g->st->ops->handle_once(g->st, db, STR("h"), STR("k"), STR("p"), &first, &err), &err);
    assert_true(first);
    lite_do(db, "COMMIT");
    sqlite3_busy_timeout(db, 0);
    lite_do(writer, "BEGIN IMMEDIATE");
    lite_do(db, "BEGIN");
    must(g->st->ops->handle_once(g->st, db, STR("h"), STR("k"), STR("p"), &first, &err), &err);
    assert_false(first);
    assert_int_equal(
        g->st->ops->handle_once(g->st, db, STR("h"), STR("k"), STR("other"), &first, &err), -1);
    assert_int_equal(err.code, ERR_CONFLICT);
    sqlite3_close(writer);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static void rolling_back_a_savepoint_removes_its_event(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    sqlite3 *db = lite_connect();
    lite_do(db, "BEGIN; SAVEPOINT s");
    assert_int_equal(lite_emit(g->st, db, NULL, &err), 0);
    lite_do(db, "ROLLBACK TO s; RELEASE s");
    assert_int_equal(lite_emit(g->st, db, NULL, &err), 0);
    lite_do(db, "COMMIT");
    assert_int_equal(lite_count(g->st, "SELECT count(*) FROM outbox_event"), 1);
    sqlite3_close(db);
}

static void emit_on_a_callers_connection_needs_a_transaction(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    sqlite3 *db = lite_connect();
    assert_int_equal(lite_emit(g->st, db, NULL, &err), -1);
    assert_int_equal(err.code, ERR_MISUSE);
    assert_int_equal(lite_count(g->st, "SELECT count(*) FROM outbox_event"), 0);
    sqlite3_close(db);
}

static void emit_into_a_database_without_an_outbox_is_reported(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    sqlite3 *db;
    assert_int_equal(sqlite3_open(":memory:", &db), SQLITE_OK);
    lite_do(db, "BEGIN");
    assert_int_equal(lite_emit(g->st, db, NULL, &err), -1);
    assert_int_equal(err.code, ERR_NOTOURS);
    assert_non_null(strstr(err.text, "outbox init"));
    sqlite3_close(db);
}

static void plain_insert_works_and_gets_a_uuid7(void **state)
{
    struct store_rig *g = *state;
    sqlite3 *db = lite_connect();
    lite_do(db,
            "INSERT INTO outbox_event (type, aggregate_type, aggregate_id, payload) VALUES ('a.b', "
            "'o', '1', '{}')");
    assert_int_equal(
        lite_count(
            g->st,
            "SELECT count(*) FROM outbox_event WHERE id LIKE "
            "'________-____-7___-____-____________' AND substr(id, 20, 1) IN ('8', '9', 'a', 'b') "
            "AND id = lower(id)"),
        1);
    assert_int_equal(
        lite_count(
            g->st,
            "SELECT abs(created_at - CAST(strftime('%s','now') AS INTEGER) * 1000) < 5000 FROM "
            "outbox_event"),
        1);
    assert_int_not_equal(
        sqlite3_exec(db, "INSERT INTO outbox_event (type, payload) VALUES ('a', '{')", 0, 0, 0),
        SQLITE_OK);
    assert_int_not_equal(
        sqlite3_exec(db, "INSERT INTO outbox_event (type) VALUES ('a b')", 0, 0, 0), SQLITE_OK);
    assert_int_not_equal(sqlite3_exec(db, "INSERT INTO outbox_event (type) VALUES ('')", 0, 0, 0),
                         SQLITE_OK);
    sqlite3_close(db);
}

/* plain_and_emitted mixes all ways of writing events on one connection: the store's own (db is its
 * handle, and foreign is NULL), or the caller's. */
static void plain_and_emitted(struct store *st, sqlite3 *db, sqlite3 *foreign)
{
    struct error err;
    char key[16];
    for (int i = 0; i < 300; i++) {
        snprintf(key, sizeof key, "%c%d", foreign ? 'f' : 'o', i);
        lite_do(db, "INSERT INTO outbox_event (type) VALUES ('plain')");
        assert_int_equal(lite_emit(st, foreign, NULL, &err), 0);
        lite_do(db,
                "INSERT INTO orders (rowid) SELECT 1000000 + coalesce(max(rowid), 0) FROM orders");
        lite_do(db, "INSERT INTO outbox_event (type) VALUES ('plain')");
        assert_int_equal(lite_emit(st, foreign, key, &err), 0);
        lite_do(db,
                "SAVEPOINT s; INSERT INTO outbox_event (type) VALUES ('undone'); ROLLBACK TO s; "
                "RELEASE s");
    }
}

static void ids_ascend_within_a_millisecond_however_emitted(void **state)
{
    (void)state;
    static const char disorder[] =
        "SELECT count(*) FROM outbox_event a JOIN outbox_event b ON b.seq = (SELECT min(seq) FROM "
        "outbox_event WHERE seq > a.seq) WHERE b.id <= a.id";
    struct error err;
    struct store *st = lite_fresh(&(struct store_options){.clock = &clock_system, .create = true});
    sqlite3 *db = lite_connect();
    lite_do(db, "CREATE TABLE orders (n); BEGIN");
    plain_and_emitted(st, db, db);
    lite_do(db, "COMMIT");
    assert_int_equal(lite_count(st, "SELECT count(*) FROM outbox_event"), 1200);
    assert_int_equal(lite_count(st, disorder), 0);

    lite_force(db, "DELETE FROM outbox_event");
    assert_int_equal(st->ops->begin(st, &err), 0);
    plain_and_emitted(st, sqlite_handle(st), NULL);
    assert_int_equal(st->ops->commit(st, &err), 0);
    assert_int_equal(lite_count(st, "SELECT count(*) FROM outbox_event"), 1200);
    assert_int_equal(lite_count(st, disorder), 0);
    assert_int_equal(
        lite_count(st,
                   "SELECT count(*) FROM outbox_event WHERE id NOT LIKE "
                   "'________-____-7___-____-____________' OR substr(id, 20, 1) NOT GLOB '[89ab]'"),
        0);
    sqlite3_close(db);
    store_close(st);
    lite_clean();
}

static void emit_after_an_implicit_rollback_is_refused(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    char id[UUID_TEXT + 1];
    bool dup;
    static char big[400000];
    memset(big, ' ', sizeof big - 1);
    big[0] = '1';
    struct new_event ev = {.type = STR("big"), .payload = str_of(big)};
    /* As if the disk were nearly full. */
    lite_do(sqlite_handle(g->st), "PRAGMA max_page_count = 80");
    assert_int_equal(g->st->ops->begin(g->st, &err), 0);
    assert_int_equal(lite_emit(g->st, NULL, NULL, &err), 0);
    assert_int_equal(g->st->ops->emit(g->st, NULL, &ev, id, &dup, &err), -1);
    assert_int_equal(err.code, ERR_FULL);
    /* as SQLite may */
    if (!sqlite3_get_autocommit(sqlite_handle(g->st)))
        lite_do(sqlite_handle(g->st), "ROLLBACK");
    /* It would be a separate transaction. */
    assert_int_equal(lite_emit(g->st, NULL, NULL, &err), -1);
    assert_int_equal(err.code, ERR_MISUSE);
    assert_int_equal(lite_emit(g->st, NULL, "key", &err), -1);
    assert_int_equal(g->st->ops->commit(g->st, &err), -1);
    assert_int_equal(lite_count(g->st, "SELECT count(*) FROM outbox_event"), 0);
    assert_int_equal(lite_emit(g->st, NULL, NULL, &err), 0); /* and now all is as before */
}

/* emitted emits one event with a key and one without on the caller's connection, and commits. */
static void emitted(struct store *st, sqlite3 *db, const char *key)
{
    struct error err;
    lite_do(db, "BEGIN");
    if (lite_emit(st, db, NULL, &err) != 0)
        fail_msg("%s", err.text);
    if (lite_emit(st, db, key, &err) != 0)
        fail_msg("%s", err.text);
    lite_do(db, "COMMIT");
}

static void settings_of_the_callers_connection_change_nothing(void **state)
{
    struct store_rig *g = *state;
    static const char *const settings[] = {
        "PRAGMA recursive_triggers = ON",
        "PRAGMA foreign_keys = ON",
        "PRAGMA case_sensitive_like = ON",
        "PRAGMA reverse_unordered_selects = ON",
        "PRAGMA count_changes = ON",
        "PRAGMA full_column_names = ON",
        "PRAGMA synchronous = OFF",
        "PRAGMA cell_size_check = ON",
        "PRAGMA ignore_check_constraints = ON",
        "PRAGMA legacy_alter_table = ON",
        "PRAGMA read_uncommitted = ON",
        "CREATE TEMP TABLE outbox_event (type, payload, id, aggregate_type, aggregate_id, version, "
        "headers, tenant, "
        "not_before, created_at)",
        "CREATE TEMP TABLE outbox_idempotency (key, event_id, hash, at)",
        "CREATE TEMP VIEW outbox_event AS SELECT 1 AS seq",
        "ATTACH ':memory:' AS other; CREATE TABLE other.outbox_event (seq, type)",
    };
    for (size_t i = 0; i < COUNT(settings); i++) {
        char key[16];
        sqlite3 *db = lite_connect();
        snprintf(key, sizeof key, "k%zu", i);
        lite_do(db, settings[i]);
        emitted(g->st, db, key);
        if (lite_count(g->st, "SELECT count(*) FROM outbox_event") != (int64_t)(i + 1) * 2)
            fail_msg("%s", settings[i]);
        assert_int_equal(sqlite3_close(db), SQLITE_OK);
    }
    sqlite3 *db = lite_connect();
    sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(db, SQLITE_DBCONFIG_DQS_DML, 0, NULL);
    sqlite3_db_config(db, SQLITE_DBCONFIG_DQS_DDL, 0, NULL);
    sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
    sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_VIEW, 0, NULL);
    emitted(g->st, db, "last");
    sqlite3_close(db);
    assert_int_equal(lite_count(g->st, "SELECT count(*) FROM outbox_event"),
                     (int64_t)(COUNT(settings) + 1) * 2);
}

static void untrusted_schema_works_or_is_refused_with_advice(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    sqlite3 *db = lite_connect();
    lite_do(db, "PRAGMA trusted_schema = OFF; BEGIN");
    int64_t stored = lite_emit(g->st, db, NULL, &err) ==
                     0; /* newer versions of SQLite trust JSON */
    if (!stored) {
        assert_int_equal(err.code, ERR_CONFIG);
        assert_non_null(strstr(err.text, "PRAGMA trusted_schema"));
    }
    lite_do(db, "COMMIT");
    sqlite3_close(db);
    assert_int_equal(lite_count(g->st, "SELECT count(*) FROM outbox_event"), stored);
}

static void attached_outbox_is_found(void **state)
{
    struct store_rig *g = *state;
    char path[LITE_PATH], attach[LITE_PATH + 32];
    sqlite3 *db;
    lite_path(path, "t.db");
    snprintf(attach, sizeof attach, "ATTACH '%s' AS \"odd \"\"name\"", path);
    assert_int_equal(sqlite3_open(":memory:", &db), SQLITE_OK);
    lite_do(db, attach);
    emitted(g->st, db, "k");
    assert_int_equal(lite_count(g->st, "SELECT count(*) FROM outbox_event"), 2);
    /* Another table merely has the same name. */
    lite_do(db, "CREATE TABLE outbox_event (seq INTEGER PRIMARY KEY, type)");
    emitted(g->st, db, "l");
    assert_int_equal(lite_count(g->st, "SELECT count(*) FROM outbox_event"), 4);
    sqlite3_close(db);
}

static void event_suppressed_by_a_trigger_is_an_error(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    sqlite3 *db = lite_connect();
    lite_do(db,
            "CREATE TEMP TRIGGER t BEFORE INSERT ON main.outbox_event BEGIN SELECT RAISE(IGNORE); "
            "END; BEGIN");
    assert_int_equal(lite_emit(g->st, db, NULL, &err), -1);
    assert_non_null(strstr(err.text, "trigger"));
    assert_int_equal(lite_emit(g->st, db, "k", &err), -1);
    lite_do(db, "COMMIT; DROP TRIGGER t");
    assert_int_equal(lite_count(g->st, "SELECT count(*) FROM outbox_event"), 0);
    emitted(g->st, db, "k"); /* the key can be used again */
    assert_int_equal(lite_count(g->st, "SELECT count(*) FROM outbox_event"), 2);
    sqlite3_close(db);
}

static void callers_connection_to_a_deleted_file_is_refused(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    char from[LITE_PATH], to[LITE_PATH];
    sqlite3 *db = lite_connect();
    lite_do(db, "BEGIN");
    assert_int_equal(lite_emit(g->st, db, NULL, &err), 0);
    lite_do(db, "COMMIT; BEGIN");
    lite_path(from, "t.db");
    lite_path(to, "away.db");
    assert_int_equal(rename(from, to), 0);
    assert_int_equal(lite_emit(g->st, db, NULL, &err), -1);
    assert_int_equal(err.code, ERR_UNAVAILABLE);
    assert_non_null(strstr(err.text, "deleted or replaced"));
    assert_int_equal(lite_emit(g->st, NULL, NULL, &err), -1); /* nor on our own connection */
    assert_int_equal(err.code, ERR_UNAVAILABLE);
    assert_int_equal(rename(to, from), 0);
    lite_do(db, "ROLLBACK");
    emitted(g->st, db, "k");
    assert_int_equal(lite_emit(g->st, NULL, NULL, &err), 0);
    assert_int_equal(lite_count(g->st, "SELECT count(*) FROM outbox_event"), 4);
    sqlite3_close(db);
}

static const struct CMUnitTest tests[] = {
    ON_A_STORE(emit_is_part_of_the_callers_transaction),
    ON_A_STORE(handled_key_is_known_without_the_write_lock),
    ON_A_STORE(rolling_back_a_savepoint_removes_its_event),
    ON_A_STORE(emit_on_a_callers_connection_needs_a_transaction),
    ON_A_STORE(emit_into_a_database_without_an_outbox_is_reported),
    ON_A_STORE(plain_insert_works_and_gets_a_uuid7),
    cmocka_unit_test(ids_ascend_within_a_millisecond_however_emitted),
    ON_A_STORE(emit_after_an_implicit_rollback_is_refused),
    ON_A_STORE(settings_of_the_callers_connection_change_nothing),
    ON_A_STORE(untrusted_schema_works_or_is_refused_with_advice),
    ON_A_STORE(attached_outbox_is_found),
    ON_A_STORE(event_suppressed_by_a_trigger_is_an_error),
    ON_A_STORE(callers_connection_to_a_deleted_file_is_refused),
};

const struct suite_part sqlite_emit_tests = SUITE_PART(tests);
