/* The store contract on MariaDB, and promises that only MariaDB makes. */
#include <mysqld_error.h>

#include "maria.h"
#include "predicates.h"
#include "store/store.h"
#include "store_impl.h"

/* A statement built from untrusted input must not become two. */
static void application_connection_runs_one_statement_at_a_time(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    for (int i = 0; i < 2; i++) {
        emit(g->st, "k");
        assert_int_equal(claim(g, "c"), 1);
        assert_int_equal(maria_try(mdb_handle(g->st), "SELECT 1; SELECT 2"), ER_PARSE_ERROR);
        assert_true(settle(g, "c", NULL, 0));
    }
}

static int emit_one(struct store *st, const struct new_event *ev, char id[UUID_TEXT + 1],
                    struct error *err)
{
    bool duplicate;
    return st->ops->emit(st, NULL, ev, id, &duplicate, err);
}

/* stored_as tells whether the event is stored as it was emitted. */
static bool stored_as(MYSQL *db, const char *id, const struct new_event *ev)
{
    char key[128] = "NULL", version[32] = "NULL";
    if (ev->idempotency_key.p)
        snprintf(key, sizeof key, "'%s'", ev->idempotency_key.p);
    if (ev->has_version)
        snprintf(version, sizeof version, "%lld", (long long)ev->version);
    return maria_number(db,
                        "SELECT count(*) FROM outbox_event WHERE id = '%s' AND type = '%s' AND "
                        "aggregate_type <=> %s AND version <=> %s AND idempotency_key <=> %s AND "
                        "OCTET_LENGTH(payload) = %zu AND not_before IS NULL AND tenant IS NULL",
                        id, ev->type.p, ev->aggregate_type.p ? "'t'" : "NULL", version, key,
                        ev->payload.p ? ev->payload.n : strlen("null")) == 1;
}

/* Emits are prepared statements on the server. They store every event unchanged, small or large,
 * even after the connection was reset or closed. */
static void prepared_statement_stores_the_same_as_a_literal(void **state)
{
    (void)state;
    struct store *st = maria_fresh(
        &(struct store_options){.clock = &clock_system, .create = true, .payload_max = 1 << 20});
    MYSQL *db = maria_connect();
    char *large = calloc(1, 200001), id[UUID_TEXT + 1];
    struct error err;
    memset(large, '1', 200000);
    struct new_event plain = {.type = STR("p")};
    struct new_event whole = {.type = STR("\xc3\xa4'\\"),
                              .aggregate_type = STR("t"),
                              .aggregate_id = STR("1"),
                              .payload = STR("{\"a\":\"\xf0\x9f\x98\x80\"}"),
                              .has_version = true,
                              .version = -7};
    struct new_event big = {.type = STR("b"), .payload = {large, 200000}};
    for (int i = 0; i < 4; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        struct new_event keyed = {.type = STR("k"), .idempotency_key = str_of(key)};
        const struct new_event *all[] = {&plain, &keyed, &big};
        must(emit_one(st, &whole, id, &err), &err);
        assert_int_equal(maria_number(db,
                                      "SELECT count(*) FROM outbox_event WHERE id = '%s' AND "
                                      "HEX(type) = 'C3A4275C' AND version = -7 AND "
                                      "JSON_VALUE(payload, '$.a') = _utf8mb4 X'F09F9880'",
                                      id),
                         1);
        for (size_t j = 0; j < COUNT(all); j++) {
            must(emit_one(st, all[j], id, &err), &err);
            assert_true(stored_as(db, id, all[j]));
        }
        if (i == 1)
            assert_int_equal(mysql_reset_connection(mdb_handle(st)), 0);
        if (i == 2)
            maria_do(db, "KILL %lu", mysql_thread_id(mdb_handle(st)));
        if (i == 2)
            assert_int_equal(emit_one(st, &plain, id, &err), -1);
    }
    assert_int_equal(maria_number(db, "SELECT count(*) FROM outbox_event"), 4 * 4);
    free(large);
    mysql_close(db);
    store_close(st);
    maria_clean();
}

/* With sql_safe_updates the server refuses statements that find their rows through a list. */
static void retries_work_under_sql_safe_updates(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    must(g->st->ops->expose_connection(g->st, 1000, &err), &err);
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 1);
    struct outcome o = failed(g, 0, 1, 10);
    assert_true(settle(g, "c", &o, 1));
    assert_true(sneak(g->st, "SET SESSION sql_safe_updates = 1"));
    pass(10);
    assert_int_equal(claim(g, "c"), 1);
    assert_true(settle(g, "c", NULL, 0));
}

/* wants asks outbox_wants. */
static int wants(void *db, const char *predicate, const char *payload)
{
    char one[2 * strlen(predicate) + 1], other[2 * strlen(payload) + 1];
    mysql_real_escape_string(db, one, predicate, strlen(predicate));
    mysql_real_escape_string(db, other, payload, strlen(payload));
    return (int)maria_number(db, "SELECT IFNULL(outbox_wants('%s', '%s'), 2)", one, other);
}

static void predicate_gives_the_same_result_in_sql_and_c(void **state)
{
    (void)state;
    MYSQL *db = maria_connect();
    predicates_compare(&(struct predicates_sql){.ask = wants, .db = db});
    mysql_close(db);
}

int main(void)
{
    static const char *const unsettling[] = {
        "SET SESSION tx_isolation = 'SERIALIZABLE', autocommit = 0, tx_read_only = 1",
        "SET NAMES latin1",
        "SET SESSION sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT'",
        "USE information_schema",
        NULL,
    };
    static const struct store_case mariadb = {"store_mariadb", maria_fresh, maria_clean,
                                              maria_sneak, unsettling};
    static const struct CMUnitTest tests[] = {
        ON_A_STORE(application_connection_runs_one_statement_at_a_time),
        cmocka_unit_test(prepared_statement_stores_the_same_as_a_literal),
        ON_A_STORE(retries_work_under_sql_safe_updates),
        ON_A_STORE(predicate_gives_the_same_result_in_sql_and_c),
    };
    const struct suite_part own[] = {SUITE_PART(tests)};
    return store_suite_run(&mariadb, own, COUNT(own));
}
