/* The store contract on a SQLite file and in memory, and promises that only SQLite makes. */
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lite.h"
#include "sqlite_tests.h"
#include "store/sqlite/sqlite.h"

static void delivery_view_shows_the_states(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct consumer_spec c = spec_of("c");
    c.events = "x,y.*,q\"u\\o";
    c.retry = "";
    assert_int_equal(g->st->ops->consumer_put(g->st, &c, NULL, &err), 0);
    sqlite3 *db = lite_connect();
    lite_do(db, "INSERT INTO outbox_event (type) VALUES ('x'), ('y.z'), ('other')");
    assert_int_equal(
        lite_count(g->st, "SELECT count(*) FROM outbox_delivery WHERE state = 'pending'"), 2);
    struct claim_request req = {.consumer = "c",
                                .owner = "me",
                                .order = ORDER_KEY,
                                .lanes = 1,
                                .events = c.events,
                                .max_events = 10,
                                .max_bytes = 1000000,
                                .lease_ms = 1000,
                                .max_attempts = 3};
    assert_int_equal(g->st->ops->turn(g->st, NULL, NULL, &req, &g->a, &g->b, &g->hint, &err), 0);
    /* The view uses the machine's clock; the store in this test uses a frozen one. */
    lite_do(db, "UPDATE outbox_claim SET lease = locked_until, locked_until = 9000000000000000");
    assert_int_equal(
        lite_count(g->st, "SELECT count(*) FROM outbox_delivery WHERE state = 'in-flight'"), 2);
    lite_do(db, "UPDATE outbox_claim SET locked_until = 1");
    assert_int_equal(
        lite_count(g->st, "SELECT count(*) FROM outbox_delivery WHERE state = 'pending'"), 2);
    lite_do(db, "UPDATE outbox_claim SET locked_until = lease");
    struct outcome o[2] = {
        {.ev = &g->b.ev[0], .kind = OUTCOME_RETRY, .attempts = 1, .delay_ms = 9, .error = "e"},
        {.ev = &g->b.ev[1], .kind = OUTCOME_DEAD, .attempts = 1, .error = "d"}};
    struct settlement s = {
        .consumer = "c", .owner = "me", .order = ORDER_KEY, .b = &g->b, .out = o, .n = 2};
    bool lost;
    assert_int_equal(g->st->ops->turn(g->st, &s, &lost, NULL, NULL, NULL, NULL, &err), 0);
    assert_int_equal(
        lite_count(g->st,
                   "SELECT count(*) FROM outbox_delivery WHERE state = 'failed' AND error = 'e'"),
        1);
    assert_int_equal(
        lite_count(g->st,
                   "SELECT count(*) FROM outbox_delivery WHERE state = 'expired' AND error = 'd'"),
        1);
    lite_do(db, "DELETE FROM outbox_dead"); /* deleting it by hand also counts as dropping */
    assert_int_equal(
        lite_count(g->st, "SELECT count(*) FROM outbox_delivery WHERE state = 'dropped'"), 1);
    lite_do(db, "UPDATE outbox_consumer SET start = 2");
    assert_int_equal(
        lite_count(g->st, "SELECT count(*) FROM outbox_delivery WHERE state = 'before-start'"), 1);
    sqlite3_close(db);
}

static void only_a_commit_of_another_process_wakes_the_worker(void **state)
{
    struct store_rig *g = *state;
    struct pollfd fd = {.fd = g->st->ops->wake_fd(g->st), .events = POLLIN};
    assert_true(fd.fd >= 0);
    g->st->ops->wake_clear(g->st);
    assert_int_equal(poll(&fd, 1, 0), 0);
    pid_t pid = fork();
    if (pid == 0) {
        sqlite3 *db;
        char path[LITE_PATH];
        lite_path(path, "t.db");
        _exit(sqlite3_open(path, &db) != SQLITE_OK ||
              sqlite3_exec(db, "INSERT INTO outbox_event (type) VALUES ('x')", 0, 0, 0) !=
                  SQLITE_OK);
    }
    assert_int_equal(poll(&fd, 1, 10000), 1);
    int status;
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
    g->st->ops->wake_clear(g->st);
    assert_int_equal(poll(&fd, 1, 0), 0);
}

static void locked_database_is_busy_and_changes_nothing(void **state)
{
    struct store_rig *g = *state;
    struct store *other;
    struct error err;
    char url[LITE_PATH + 8];
    lite_url(url);
    assert_int_equal(store_open(url, &(struct store_options){.busy_ms = 30}, &other, &err), 0);
    sqlite3 *db = lite_connect();
    lite_do(db, "BEGIN IMMEDIATE");
    assert_int_equal(lite_emit(other, NULL, NULL, &err), -1);
    assert_int_equal(err.code, ERR_BUSY);
    lite_do(db, "ROLLBACK");
    assert_int_equal(lite_emit(other, NULL, NULL, &err), 0);
    assert_int_equal(lite_count(g->st, "SELECT count(*) FROM outbox_event"), 1);
    store_close(other);
    sqlite3_close(db);
}

static void utf16_database_is_refused(void **state)
{
    struct store_rig *g = *state;
    struct store *st;
    struct error err;
    char path[LITE_PATH], url[LITE_PATH + 8];
    sqlite3 *db;
    bool created;
    (void)g;
    lite_path(path, "wide.db");
    snprintf(url, sizeof url, "sqlite:%s", path);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    lite_do(db, "PRAGMA encoding = 'UTF-16'; CREATE TABLE t (x)");
    sqlite3_close(db);
    assert_int_equal(store_open(url, &(struct store_options){.create = true}, &st, &err), 0);
    assert_int_equal(st->ops->init(st, &created, &err), -1);
    assert_int_equal(err.code, ERR_CONFIG);
    assert_non_null(strstr(err.text, "UTF-8"));
    store_close(st);
    unlink(path);
}

static void statements_fit_the_schema_with_parameters_in_order(void **state)
{
    struct store_rig *g = *state;
    sqlite3 *db = sqlite_handle(g->st);
    size_t n = 0;
    for (const struct sql *const *s = sql_all; *s; s++) {
        const struct sql_text *own = &(*s)->in[SQL_SQLITE];
        sqlite3_stmt *q;
        if (!own->text || !*own->text)
            continue;
        if (sqlite3_prepare_v2(db, own->text, -1, &q, NULL) != SQLITE_OK)
            fail_msg("%s: %s", (*s)->name, sqlite3_errmsg(db));
        assert_int_equal(sqlite3_bind_parameter_count(q), own->n);
        for (size_t i = 0; i < own->n; i++)
            assert_string_equal(sqlite3_bind_parameter_name(q, (int)i + 1) + 1,
                                own->parameter[i].name);
        sqlite3_finalize(q);
        n++;
    }
    assert_true(n > 30);
}

/* main takes the name of one test, or a pattern of names. Without one, all tests run. */
int main(int argc, char **argv)
{
    static const char *const unsettling[] = {NULL};
    static const struct store_case file = {"sqlite", lite_fresh, lite_clean, lite_sneak,
                                           unsettling},
                                   memory = {"memory", lite_memory, lite_nothing, lite_sneak,
                                             unsettling};
    static const struct CMUnitTest tests[] = {
        ON_A_STORE(delivery_view_shows_the_states),
        ON_A_STORE(only_a_commit_of_another_process_wakes_the_worker),
        ON_A_STORE(locked_database_is_busy_and_changes_nothing),
        ON_A_STORE(utf16_database_is_refused),
        ON_A_STORE(statements_fit_the_schema_with_parameters_in_order),
    };
    const struct suite_part own[] = {SUITE_PART(tests), sqlite_emit_tests,  sqlite_moved_tests,
                                     sqlite_disk_tests, sqlite_lanes_tests, sqlite_turns_tests,
                                     sqlite_work_tests};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    int failures = store_suite_run(&file, own, COUNT(own));
    return failures + store_suite_run(&memory, NULL, 0);
}
