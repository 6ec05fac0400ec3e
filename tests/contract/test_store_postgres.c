/* The store contract on PostgreSQL, and promises that only PostgreSQL makes. */
#include "store/store.h"

#include "pg.h"
#include "pg_tests.h"
#include "predicates.h"
#include "store_impl.h"

/* Memory may be short for a moment. But an event that never fits must not block all others. */
static void event_that_never_fits_in_memory_is_left_to_expire(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    put(g->st, "c");
    emit(g->st, "1");
    for (int i = 0; look(g, "c").inflight == 0; i++) {
        assert_in_range(i, 0, 9);
        assert_int_equal(claim_without_memory(g, &err), -1);
    }
    emit(g->st, "2");
    pass(LEASE);
    assert_int_equal(claim(g, "c"), 1);
    assert_string_equal(g->b.ev[0].aggregate_id.p, "2");
    assert_true(settle(g, "c", NULL, 0));
    assert_int_equal(claim(g, "c"), 1);
    assert_string_equal(g->b.ev[0].aggregate_id.p, "1"); /* alone, and the attempt counts */
    assert_true(g->b.suspect);
}

static void emit_through(struct store *st, PGconn *db, const char *key)
{
    struct error err;
    char id[UUID_TEXT + 1];
    bool dup;
    struct new_event ev = {.type = STR("c"), .idempotency_key = str_of(key)};
    must(st->ops->emit(st, db, &ev, id, &dup, &err), &err);
    assert_false(dup);
}

/* Ids are based on the clock in microseconds, so they ascend across sessions too.
 * */
static void ids_ascend_within_a_millisecond_however_emitted(void **state)
{
    (void)state;
    char key[16];
    struct store *st = pg_fresh(&(struct store_options){.clock = &clock_system, .create = true},
                                false);
    PGconn *db = pg_connect();
    pg_do(db, "CREATE TEMP TABLE line (type text); INSERT INTO line SELECT 'many' FROM "
              "generate_series(1, 100)");
    for (int i = 0; i < 40; i++) {
        snprintf(key, sizeof key, "k%d", i);
        pg_do(db, "INSERT INTO event (type) VALUES ('plain')");
        emit_through(st, NULL, NULL);
        pg_do(db, "BEGIN");
        pg_do(db, "SELECT emit('sql', NULL, NULL::text, '{}')");
        emit_through(st, db, NULL);
        pg_do(db, "INSERT INTO event (type) VALUES ('several'), ('several'), ('several')");
        pg_do(db, "SELECT emit_once('sql', NULL, NULL::text, '{}', NULL, 's%s')", key);
        emit_through(st, db, key);
        pg_do(db, "COMMIT");
        pg_do(db, "INSERT INTO event (type) SELECT type FROM line");
    }
    assert_int_equal(pg_number(db, "SELECT count(*) FROM event"), 40 * 109);
    assert_int_equal(
        pg_number(
            db,
            "SELECT count(*) FROM (SELECT id <= lag(id) OVER (ORDER BY seq) AS back FROM event) e "
            "WHERE back"),
        0);
    assert_int_equal(pg_number(db, "SELECT count(*) FROM event WHERE id::text !~ "
                                   "'^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab]'"),
                     0);
    assert_int_equal(
        pg_number(db, "SELECT count(*) FROM event WHERE abs(extract(epoch FROM now()) * 1000 - "
                      "('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint) > 3600000"),
        0);
    PQfinish(db);
    store_close(st);
    pg_clean();
}

static bool sneak_in(struct store *st, const char *sql)
{
    PGresult *r = PQexec(pg_handle(st), sql);
    ExecStatusType s = PQresultStatus(r);
    PQclear(r);
    return s == PGRES_COMMAND_OK || s == PGRES_TUPLES_OK;
}

static struct store *fresh(const struct store_options *opt)
{
    return pg_fresh(opt, true);
}

/* wants asks _wants. */
static int wants(void *db, const char *predicate, const char *payload)
{
    const char *values[] = {predicate, payload};
    PGresult *r = PQexecParams(db, "SELECT coalesce(_wants($1, $2)::int, 2)", 2, NULL, values, NULL,
                               NULL, 0);
    if (PQresultStatus(r) != PGRES_TUPLES_OK)
        fail_msg("%s\n%s\n%s", predicate, payload, PQerrorMessage(db));
    int said = PQgetvalue(r, 0, 0)[0] - '0';
    PQclear(r);
    return said;
}

/* has_no_text tells whether a predicate contains characters that no text in PostgreSQL can hold,
 * see _wants. */
static bool has_no_text(const char *predicate)
{
    return strcasestr(predicate, "\\u0000") || strcasestr(predicate, "\\ufdd0") ||
           strstr(predicate, "\357\267\220");
}

static void predicate_gives_the_same_result_in_sql_and_c(void **state)
{
    (void)state;
    PGconn *db = pg_connect();
    predicates_compare(&(struct predicates_sql){
        .ask = wants, .db = db, .cannot = has_no_text, .deep = true, .parses = true});
    PQfinish(db);
}

int main(void)
{
    static const char *const unsettling[] = {
        "DISCARD ALL",
        "SET default_transaction_isolation = 'serializable'; SET search_path = nowhere",
        NULL,
    };
    static const struct store_case postgres = {"store_postgres", fresh, pg_clean, sneak_in,
                                               unsettling};
    static const struct CMUnitTest tests[] = {
        ON_A_STORE(event_that_never_fits_in_memory_is_left_to_expire),
        ON_A_STORE(predicate_gives_the_same_result_in_sql_and_c),
        cmocka_unit_test(ids_ascend_within_a_millisecond_however_emitted),
    };
    const struct suite_part own[] = {SUITE_PART(tests), pg_random_tests, pg_wakeup_tests,
                                     pg_turns_tests,    pg_ahead_tests,  pg_lanes_tests,
                                     pg_waiting_tests,  pg_retried_tests};
    return store_suite_run(&postgres, own, COUNT(own));
}
