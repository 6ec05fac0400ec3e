/* Claims of rows of any table, on SQLite, PostgreSQL and MariaDB, each by its own path and by the
 * portable one. */
#include "claim_rows.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

/* by_kind chooses the words of the rig's database. */
static const char *by_kind(const struct rig *g, const char *postgres, const char *mariadb,
                           const char *sqlite)
{
    if (g->my)
        return mariadb;
    return g->pg ? postgres : sqlite;
}

/* A claim of open jobs, in order of their id. */
static const outbox_criterion is_open[] = {
    {"status", OUTBOX_EQ, {OUTBOX_VALUE_TEXT, 0, 0, "open"}, NULL, 0, 0}};
static const outbox_claim_field take[] = {{"status", {OUTBOX_VALUE_TEXT, 0, 0, "taken"}}};
static const outbox_claim_order by_id[] = {{"id", 0}};

static outbox_row_claim open_jobs(size_t limit)
{
    outbox_row_claim c = OUTBOX_ROW_CLAIM_INIT;
    c.table = "jobs";
    c.key = "id";
    c.limit = limit;
    WITH(c, criteria, is_open);
    WITH(c, fields, take);
    WITH(c, order_by, by_id);
    return c;
}

static void expect(const struct rig *g, outbox_row_claim c, const char *ids)
{
    outbox_rows_free(rig_expect(g, c, ids));
}

/* ---- claimed rows and their values ---- */

static void rows_are_ordered_and_show_the_claims_changes(void **state)
{
    struct rig *g = rig_of(state);
    const outbox_claim_field fields[] = {{"status", outbox_value_text("taken")},
                                         {"owner", outbox_value_text("me")},
                                         {"attempts", outbox_value_plus(1)},
                                         {"ratio", outbox_value_null()}};
    const outbox_claim_order order[] = {{"priority", 1}, {"id", 0}};
    const char *const columns[] = {"id", "owner", "attempts", "ratio", "priority"};
    outbox_row_claim c = open_jobs(4);
    rig_exec(g, "UPDATE jobs SET attempts = 6 WHERE id = 5");
    WITH(c, fields, fields);
    WITH(c, order_by, order);
    WITH(c, columns, columns);
    outbox_rows *rows = rig_expect(g, c, "2 5 8 1");
    for (size_t i = 0; i < 4; i++) {
        size_t size = 99;
        assert_string_equal(outbox_rows_text(rows, i, 1, &size), "me");
        assert_int_equal(size, 2);
        assert_int_equal(outbox_rows_int(rows, i, 2), i == 1 ? 7 : 1);
        assert_null(outbox_rows_text(rows, i, 3, &size));
        assert_int_equal(size, 0);
    }
    assert_int_equal(outbox_rows_int(rows, 3, 4), 1);
    assert_null(outbox_rows_text(rows, 4, 0, NULL));
    assert_null(outbox_rows_text(rows, 0, 5, NULL));
    outbox_rows_free(rows);
    assert_int_equal(
        rig_number(g, "SELECT count(*) FROM jobs WHERE status = 'taken' AND owner = 'me'"), 4);
    assert_int_equal(
        rig_number(g, "SELECT count(*) FROM jobs WHERE status = 'open' AND owner IS NULL"), 5);
}

static void order_uses_values_from_before_the_claim(void **state)
{
    struct rig *g = rig_of(state);
    const outbox_claim_field fields[] = {{"status", outbox_value_text("taken")},
                                         {"priority", outbox_value_int(0)}};
    const outbox_claim_order order[] = {{"priority", 0}, {"id", 1}};
    outbox_row_claim c = open_jobs(5);
    WITH(c, fields, fields);
    WITH(c, order_by, order);
    expect(g, c, "9 6 3 7 4");
}

static void claim_with_no_rows_left_succeeds_with_none(void **state)
{
    struct rig *g = rig_of(state);
    expect(g, open_jobs(7), "1 2 3 4 5 6 7");
    expect(g, open_jobs(7), "8 9");
    expect(g, open_jobs(7), "");
}

/* Row 1 has ratio NULL, row 9 status 'done'; the other columns are as rig_jobs made them. */
static void every_operator_matches_as_named(void **state)
{
    struct rig *g = rig_of(state);
    const outbox_value some[] = {outbox_value_int(2), outbox_value_int(9), outbox_value_int(77)};
    const outbox_value names[] = {outbox_value_text("done"), outbox_value_text("o'pen")};
    const struct {
        outbox_criterion k;
        const char *ids;
    } cases[] = {
        {{"id", OUTBOX_EQ, outbox_value_int(3), NULL, 0, 0}, "3"},
        {{"id", OUTBOX_EQ, outbox_value_text("3"), NULL, 0, 0}, "3"},
        {{"status", OUTBOX_NE, outbox_value_text("open"), NULL, 0, 0}, "9"},
        {{"ratio", OUTBOX_NE, outbox_value_real(2.5), NULL, 0, 0}, "3 4 5 6 7 8 9"},
        {{"ratio", OUTBOX_LT, outbox_value_real(3.5), NULL, 0, 0}, "2"},
        {{"ratio", OUTBOX_LE, outbox_value_real(3.5), NULL, 0, 0}, "2 3"},
        {{"id", OUTBOX_GT, outbox_value_int(8), NULL, 0, 0}, "9"},
        {{"id", OUTBOX_GE, outbox_value_int(8), NULL, 0, 0}, "8 9"},
        {{"id", OUTBOX_IN, outbox_value_null(), some, 3, 0}, "2 9"},
        {{"status", OUTBOX_IN, outbox_value_null(), names, 2, 0}, "9"},
        {{"ratio", OUTBOX_IS_NULL, outbox_value_null(), NULL, 0, 0}, "1"},
        {{"ratio", OUTBOX_IS_NOT_NULL, outbox_value_null(), NULL, 0, 0}, "2 3 4 5 6 7 8 9"},
        {{"id", OUTBOX_GT, outbox_value_now_ms(0), NULL, 0, 0}, ""},
        {{"id", OUTBOX_LT, outbox_value_now_ms(-1000), NULL, 0, 0}, "1 2 3 4 5 6 7 8 9"},
    };
    const outbox_claim_field fields[] = {{"owner", outbox_value_text("me")}};
    rig_exec(g, "UPDATE jobs SET ratio = NULL WHERE id = 1");
    rig_exec(g, "UPDATE jobs SET status = 'done' WHERE id = 9");
    for (size_t i = 0; i < COUNT(cases); i++) {
        outbox_row_claim c = open_jobs(100);
        c.criteria = &cases[i].k;
        WITH(c, fields, fields);
        expect(g, c, cases[i].ids);
    }
}

static void criteria_must_all_hold_and_one_alternative_is_enough(void **state)
{
    struct rig *g = rig_of(state);
    const outbox_criterion criteria[] = {{"priority", OUTBOX_EQ, outbox_value_int(0), NULL, 0, 1},
                                         {"priority", OUTBOX_EQ, outbox_value_int(2), NULL, 0, 2},
                                         {"id", OUTBOX_GT, outbox_value_int(3), NULL, 0, 1},
                                         {"id", OUTBOX_LT, outbox_value_int(8), NULL, 0, 2}};
    outbox_row_claim c = open_jobs(100);
    WITH(c, criteria, criteria);
    expect(g, c, "2 5 6 9");
}

static void names_are_literal_and_values_never_run_as_sql(void **state)
{
    struct rig *g = rig_of(state);
    const outbox_criterion criteria[] = {
        {"sel;ect \"x\"", OUTBOX_EQ, outbox_value_text("'; DROP TABLE jobs; --"), NULL, 0, 0}};
    const outbox_claim_field fields[] = {{"sel;ect \"x\"", outbox_value_text("\"$1?1'")}};
    const outbox_claim_order order[] = {{"Ord er", 0}};
    const char *const columns[] = {"Ord er", "sel;ect \"x\""};
    outbox_row_claim c = open_jobs(2);
    c.schema = by_kind(g, "a.\"b", rig_database(), "main");
    c.table = "we\"ird ta'ble";
    c.key = "Ord er";
    WITH(c, criteria, criteria);
    WITH(c, fields, fields);
    WITH(c, order_by, order);
    WITH(c, columns, columns);
    if (g->pg)
        rig_exec(g, "CREATE SCHEMA \"a.\"\"b\"; SET search_path = \"a.\"\"b\", public");
    rig_exec(g, "CREATE TABLE \"we\"\"ird ta'ble\" (\"Ord er\" int PRIMARY KEY, \"sel;ect "
                "\"\"x\"\"\" text)");
    rig_exec(g, "INSERT INTO \"we\"\"ird ta'ble\" VALUES (1, 'x'), (2, '''; DROP TABLE jobs; --')");
    if (g->pg)
        rig_exec(g, "RESET search_path");
    outbox_rows *rows = rig_expect(g, c, "2");
    assert_string_equal(outbox_rows_text(rows, 0, 1, NULL), "\"$1?1'");
    outbox_rows_free(rows);
}

/* ---- leases ---- */

static void expired_lease_is_claimed_again_and_a_live_one_is_not(void **state)
{
    struct rig *g = rig_of(state);
    const outbox_criterion criteria[] = {{"until", OUTBOX_IS_NULL, outbox_value_null(), NULL, 0, 1},
                                         {"until", OUTBOX_LE, outbox_value_now(0), NULL, 0, 2}};
    const outbox_claim_field fields[] = {{"until", outbox_value_now(60000)},
                                         {"attempts", outbox_value_plus(1)}};
    const char *const columns[] = {"id", "attempts"};
    outbox_row_claim c = open_jobs(100);
    c.table = "leased";
    WITH(c, criteria, criteria);
    WITH(c, fields, fields);
    WITH(c, columns, columns);
    rig_exec(g, g->pg ? "CREATE TABLE leased (id int PRIMARY KEY, until timestamptz, attempts int)"
                      : "CREATE TABLE leased (id int PRIMARY KEY, until text, attempts int)");
    rig_exec(g, "INSERT INTO leased VALUES (1, NULL, 0), (2, NULL, 0)");
    expect(g, c, "1 2");
    expect(g, c, "");
    rig_exec(g,
             by_kind(g, "UPDATE leased SET until = now() - interval '1 millisecond' WHERE id = 2",
                     "UPDATE leased SET until = now(6) - interval 1000 microsecond WHERE id = 2",
                     "UPDATE leased SET until = strftime('%Y-%m-%d %H:%M:%f', 'now', '-0.001 "
                     "seconds') WHERE id = 2"));
    outbox_rows *rows = rig_expect(g, c, "2");
    assert_int_equal(outbox_rows_int(rows, 0, 1), 2);
    outbox_rows_free(rows);
    expect(g, c, "");
    int64_t left = rig_number(
        g, by_kind(g, "SELECT extract(epoch FROM min(until) - now()) * 1000 FROM leased",
                   "SELECT TIMESTAMPDIFF(MICROSECOND, now(6), min(until)) / 1000 FROM leased",
                   "SELECT (julianday(min(until)) - julianday('now')) * 86400000 FROM leased"));
    assert_in_range(left, 20000, 60000);
}

static void lease_in_milliseconds_uses_the_database_clock(void **state)
{
    struct rig *g = rig_of(state);
    const outbox_claim_field fields[] = {{"status", outbox_value_text("taken")},
                                         {"locked_until", outbox_value_now_ms(60000)}};
    const outbox_criterion expired[] = {
        {"locked_until", OUTBOX_LE, outbox_value_now_ms(0), NULL, 0, 0}};
    outbox_row_claim c = open_jobs(2);
    WITH(c, fields, fields);
    expect(g, c, "1 2");
    int64_t left = rig_number(
        g, by_kind(g, "SELECT min(locked_until) - extract(epoch FROM now()) * 1000 FROM jobs",
                   "SELECT min(locked_until) - unix_timestamp() * 1000 FROM jobs",
                   "SELECT min(locked_until) - strftime('%s', 'now') * 1000 FROM jobs"));
    assert_in_range(left, 20000, 61000);
    WITH(c, criteria, expired);
    expect(g, c, "");
    rig_exec(g, "UPDATE jobs SET locked_until = locked_until - 60001 WHERE id = 2");
    expect(g, c, "2");
}

/* ---- refused claims ---- */

static void refused(const struct rig *g, outbox_row_claim c, int code, const char *text)
{
    outbox_rows *rows = NULL;
    outbox_error err;
    assert_int_equal(rig_claim(g, c, &rows, &err), -1);
    assert_null(rows);
    if (err.code != code || !strstr(err.text, text))
        fail_msg("unexpected code %d: %s", err.code, err.text);
}

static void claim_inside_a_transaction_is_refused(void **state)
{
    struct rig *g = rig_of(state);
    rig_exec(g, "BEGIN");
    refused(g, open_jobs(1), OUTBOX_MISUSE, "inside an open transaction");
    rig_exec(g, "INSERT INTO jobs (id) VALUES (10)");
    refused(g, open_jobs(1), OUTBOX_MISUSE, "inside an open transaction");
    rig_exec(g, "COMMIT");
    assert_int_equal(rig_number(g, "SELECT count(*) FROM jobs WHERE status = 'taken'"), 0);
    expect(g, open_jobs(1), "1");
}

static void claim_is_visible_to_others_when_it_returns(void **state)
{
    struct rig *g = rig_of(state), other = rig_again(g);
    expect(g, open_jobs(3), "1 2 3");
    assert_int_equal(rig_number(&other, "SELECT count(*) FROM jobs WHERE status = 'taken'"), 3);
    rig_close(&other);
}

static void claim_survives_a_kill_right_after_the_call_returns(void **state)
{
    struct rig *g = rig_of(state);
    int status;
    sqlite3_close(g->db); /* a SQLite connection must not cross a fork */
    pid_t child = fork();
    if (child == 0) {
        struct rig own = rig_again(g);
        outbox_rows *rows;
        outbox_error err;
        if (rig_claim(&own, open_jobs(3), &rows, &err) == 0)
            raise(SIGKILL);
        _exit(1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!g->pg)
        g->db = rig_again(g).db;
    assert_true(WIFSIGNALED(status));
    assert_int_equal(rig_number(g, "SELECT count(*) FROM jobs WHERE status = 'taken'"), 3);
    expect(g, open_jobs(1), "4");
}

static void invalid_claims_are_refused_before_anything_is_sent(void **state)
{
    struct rig *g = rig_of(state);
    char longest[66];
    memset(longest, 'x', 64);
    longest[64] = 0;
    const outbox_criterion null = {"status", OUTBOX_EQ, outbox_value_null(), NULL, 0, 0},
                           plus = {"attempts", OUTBOX_LT, outbox_value_plus(1), NULL, 0, 0},
                           none = {"status", OUTBOX_IN, outbox_value_null(), NULL, 0, 0},
                           bad_op = {"status", 9, outbox_value_int(1), NULL, 0, 0};
    const outbox_claim_field key = {"id", outbox_value_int(1)},
                             no_text = {"owner", outbox_value_text(NULL)};
    outbox_value ones[300];
    for (size_t i = 0; i < COUNT(ones); i++)
        ones[i] = outbox_value_int(1);
    const outbox_criterion too_many = {"id", OUTBOX_IN, outbox_value_null(), ones, 300, 0};
    const char *const nameless[] = {""};
#define REFUSED(change, text) \
    do { \
        outbox_row_claim c = open_jobs(1); \
        change; \
        refused(g, c, OUTBOX_MISUSE, text); \
    } while (0)
    REFUSED(c.size = 0, "OUTBOX_ROW_CLAIM_INIT");
    REFUSED(c.limit = 0, "limit");
    REFUSED(c.limit = ROWS_LIMIT_MAX + 1, "limit");
    REFUSED(c.n_criteria = 0, "requires criteria");
    REFUSED(c.n_fields = 0, "requires criteria, and fields");
    REFUSED(c.table = NULL, "name of its table");
    REFUSED(c.table = longest, "more than 63 bytes");
    REFUSED(c.schema = "", "name of its schema");
    REFUSED(WITH(c, columns, nameless), "name of its column");
    REFUSED(c.criteria = &null, "OUTBOX_IS_NULL");
    REFUSED(c.criteria = &plus, "OUTBOX_VALUE_PLUS");
    REFUSED(c.criteria = &none, "without values");
    REFUSED(c.criteria = &bad_op, "not an operator");
    REFUSED(c.criteria = &too_many, "more than 256 values");
    REFUSED(c.fields = &key, "cannot change the key");
    REFUSED(c.fields = &no_text, "the text of its value is NULL");
    if (g->pg)
        REFUSED(c.key = NULL, "name of its key column");
#undef REFUSED
    outbox_error err;
    outbox_rows *rows;
    outbox_row_claim c = open_jobs(1);
    assert_int_equal(outbox_claim_rows_sqlite(NULL, &c, &rows, &err), -1);
    assert_int_equal(outbox_claim_rows_pg(NULL, &c, &rows, &err), -1);
    expect(g, c, "1");
}

static void unknown_tables_and_columns_are_always_errors(void **state)
{
    struct rig *g = rig_of(state);
    const outbox_criterion criterion = {"nope", OUTBOX_NE, outbox_value_text("x"), NULL, 0, 0};
    const outbox_claim_field field = {"nope", outbox_value_int(1)};
    const outbox_claim_order order = {"nope", 0};
    const char *const columns[] = {"nope"};
#define REFUSED(change) \
    do { \
        outbox_row_claim c = open_jobs(1); \
        change; \
        refused(g, c, OUTBOX_INVALID, "nope"); \
    } while (0)
    REFUSED(c.table = "nope");
    REFUSED(c.key = "nope");
    REFUSED(c.criteria = &criterion);
    REFUSED(c.fields = &field);
    REFUSED(c.order_by = &order);
    REFUSED(WITH(c, columns, columns));
#undef REFUSED
    assert_int_equal(rig_number(g, "SELECT count(*) FROM jobs WHERE status = 'taken'"), 0);
    expect(g, open_jobs(1), "1");
}

/* The table refuses a lease on job 4. */
static void failed_claim_does_not_claim_a_row(void **state)
{
    struct rig *g = rig_of(state);
    const outbox_claim_field fields[] = {{"status", outbox_value_text("taken")},
                                         {"locked_until", outbox_value_now_ms(60000)}};
    outbox_row_claim c = open_jobs(6);
    WITH(c, fields, fields);
    if (g->portable)
        expect(g, c, "1 2 3");
    refused(g, c, OUTBOX_INVALID, "could not claim rows");
    assert_int_equal(rig_number(g, "SELECT count(*) FROM jobs WHERE status = 'taken'"),
                     g->portable ? 3 : 0);
    assert_int_equal(rig_idle(g), 1);
}

/* ---- the portable path ---- */

/* A dialect in which another session wins the race before each update. */
static struct {
    const struct rows_dialect *real;
    const struct rig *other;
    const char *sql;
} meddler;

static int meddling_run(void *conn, struct rows_sql *sql, struct outbox_rows *ret,
                        int64_t *ret_changed, struct error *err)
{
    const char *text = buf_cstr(&sql->text);
    bool begins = strncmp(text, "BEGIN", 5) == 0 || strncmp(text, "START", 5) == 0;
    if (begins)
        rig_exec(meddler.other, meddler.sql);
    return meddler.real->run(conn, sql, ret, ret_changed, err);
}

static void row_lost_to_a_race_is_skipped(void **state)
{
    struct rig *g = rig_of(state), other = rig_again(g);
    struct rows_dialect d = *rig_dialect(g);
    void *conn = g->pg ? (void *)g->pg : (void *)g->db;
    if (g->my)
        conn = g->my;
    outbox_row_claim c = open_jobs(3);
    outbox_rows *rows;
    struct error err;
    meddler.real = rig_dialect(g);
    meddler.other = &other;
    meddler.sql = "UPDATE jobs SET status = 'taken', owner = 'other' WHERE id = 2";
    d.name = "unlisted";
    d.run = meddling_run;
    assert_int_equal(rows_claim(&d, conn, &c, &rows, &err), 0);
    assert_int_equal(outbox_rows_count(rows), 2);
    assert_int_equal(outbox_rows_int(rows, 0, 0), 1);
    assert_int_equal(outbox_rows_int(rows, 1, 0), 3);
    outbox_rows_free(rows);
    assert_int_equal(rig_number(g, "SELECT count(*) FROM jobs WHERE id = 2 AND owner = 'other'"),
                     1);

    /* It has lost all candidates and searches for others. */
    meddler.sql = "UPDATE jobs SET status = 'taken', owner = 'other' WHERE id < 7";
    assert_int_equal(rows_claim(&d, conn, &c, &rows, &err), 0);
    assert_int_equal(outbox_rows_count(rows), 3);
    assert_int_equal(outbox_rows_int(rows, 0, 0), 7);
    outbox_rows_free(rows);
    rig_close(&other);
}

static void unlisted_dialect_takes_the_portable_path(void **state)
{
    (void)state;
    struct rows_dialect d = rows_sqlite;
    assert_ptr_equal(rows_path_of(&rows_sqlite), rows_sqlite_claim);
    assert_ptr_equal(rows_path_of(&rows_postgres), rows_postgres_claim);
    d.name = "another";
    assert_ptr_equal(rows_path_of(&d), rows_portable_claim);
}

/* ---- SQLite alone ---- */

static void any_key_type_works(void **state)
{
    struct rig *g = rig_of(state);
    const outbox_claim_order order[] = {{"n", 0}};
    const char *const columns[] = {"n"};
    outbox_row_claim c = open_jobs(100);
    c.table = "keys";
    WITH(c, order_by, order);
    WITH(c, columns, columns);
    rig_exec(g, "CREATE TABLE keys (k PRIMARY KEY, n int, status text DEFAULT 'open')");
    rig_exec(g, "INSERT INTO keys (k, n) VALUES (7, 1), ('7', 2), (x'37', 3), (0.1 + 0.2, 4), ('', "
                "5), (x'', 6), (x'00ff', 7)");
    c.key = "k";
    expect(g, c, "1 2 3 4 5 6 7");
    rig_exec(g, "UPDATE keys SET status = 'open'");
    c.key = NULL; /* rowid */
    expect(g, c, "1 2 3 4 5 6 7");
}

static void locked_database_is_busy(void **state)
{
    struct rig *g = rig_of(state), other = rig_again(g);
    rig_exec(&other, "BEGIN IMMEDIATE");
    sqlite3_busy_timeout(g->db, 1);
    refused(g, open_jobs(1), OUTBOX_BUSY, "locked");
    sqlite3_busy_timeout(g->db, 60000);
    rig_exec(&other, "COMMIT");
    rig_close(&other);
    expect(g, open_jobs(1), "1");
}

/* ---- PostgreSQL alone ---- */

/* The statistics say that the table is empty, and the planner may only loop. */
static void limit_holds_under_a_stale_plan(void **state)
{
    struct rig *g = rig_of(state);
    outbox_row_claim c = open_jobs(2);
    c.table = "stale";
    rig_exec(
        g,
        "CREATE TABLE stale (id bigint PRIMARY KEY, status text) WITH (autovacuum_enabled = off)");
    rig_exec(g, "ANALYZE stale");
    rig_exec(g, "INSERT INTO stale SELECT i, 'open' FROM generate_series(1, 100) i");
    rig_exec(g, "SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_material = off; "
                "SET enable_memoize = off; SET enable_hashagg = off; SET enable_sort = off");
    expect(g, c, "1 2");
    expect(g, c, "3 4");
    assert_int_equal(rig_number(g, "SELECT count(*) FROM stale WHERE status = 'taken'"), 4);
    /* The usual statement claims more rows here, which confirms the plan. */
    rig_exec(g, "UPDATE stale SET status = 'naive' WHERE id IN (SELECT id FROM stale WHERE status "
                "= 'open' ORDER BY id "
                "LIMIT 2 FOR UPDATE SKIP LOCKED)");
    assert_true(rig_number(g, "SELECT count(*) FROM stale WHERE status = 'naive'") > 2);
    rig_exec(g, "RESET ALL");
}

static void one_claim_is_one_round_trip(void **state)
{
    struct rig *g = rig_of(state);
    char line[4096];
    int syncs = 0, parses = 0;
    FILE *trace = tmpfile();
    PQtrace(g->pg, trace);
    expect(g, open_jobs(5), "1 2 3 4 5");
    PQuntrace(g->pg);
    rewind(trace);
    while (fgets(line, sizeof line, trace)) {
        syncs += strstr(line, "\tSync") != NULL;
        parses += strstr(line, "\tParse\t") != NULL;
    }
    fclose(trace);
    assert_int_equal(syncs, 1);
    assert_int_equal(parses, 1);
}

static void rows_locked_by_others_are_skipped(void **state)
{
    struct rig *g = rig_of(state), other = rig_again(g);
    rig_exec(&other, "BEGIN; SELECT * FROM jobs WHERE id IN (1, 3) FOR UPDATE");
    expect(g, open_jobs(3), "2 4 5");
    rig_exec(&other, "ROLLBACK");
    rig_close(&other);
    expect(g, open_jobs(3), "1 3 6");
}

/* A row that a foreign key is being checked against is locked, but an update need not wait for that
 * lock. */
static void rows_referenced_by_foreign_keys_are_claimed(void **state)
{
    struct rig *g = rig_of(state), other = rig_again(g);
    rig_exec(&other, "BEGIN; SELECT * FROM jobs WHERE id = 1 FOR KEY SHARE");
    expect(g, open_jobs(1), "1");
    rig_exec(&other, "ROLLBACK");
    rig_close(&other);
}

static void *claim_three(void *rig)
{
    outbox_rows *rows = NULL;
    outbox_error err;
    return rig_claim(rig, open_jobs(3), &rows, &err) == 0 ? rows : NULL;
}

/* The portable path waits for a locked row, and its guard then sees the new value. */
static void guard_is_rechecked_after_waiting_for_a_lock(void **state)
{
    struct rig *g = rig_of(state), other = rig_again(g), claimer = rig_again(g);
    char waits[96];
    pthread_t thread;
    void *rows;
    rig_exec(&other, "BEGIN; UPDATE jobs SET status = 'taken', owner = 'other' WHERE id = 2");
    pthread_create(&thread, NULL, claim_three, &claimer);
    snprintf(waits, sizeof waits, "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = %d",
             PQbackendPID(claimer.pg));
    while (rig_number(g, waits) == 0)
        usleep(1000);
    rig_exec(&other, "COMMIT");
    pthread_join(thread, &rows);
    assert_non_null(rows);
    assert_int_equal(outbox_rows_count(rows), 2);
    assert_int_equal(outbox_rows_int(rows, 1, 0), 3);
    outbox_rows_free(rows);
    rig_close(&claimer);
    rig_close(&other);
}

static void broken_connection_is_unavailable(void **state)
{
    struct rig *g = rig_of(state), other = rig_again(g);
    char sql[64];
    snprintf(sql, sizeof sql, "SELECT pg_terminate_backend(%d, 60000)::int",
             PQbackendPID(other.pg));
    assert_int_equal(rig_number(g, sql), 1);
    refused(&other, open_jobs(1), OUTBOX_UNAVAILABLE, "could not claim rows");
    refused(&other, open_jobs(1), OUTBOX_UNAVAILABLE, "connection");
    rig_close(&other);
}

#define ON_JOBS(name) cmocka_unit_test_setup(name, rig_jobs)
#define EVERYWHERE \
    ON_JOBS(rows_are_ordered_and_show_the_claims_changes), \
        ON_JOBS(order_uses_values_from_before_the_claim), \
        ON_JOBS(claim_with_no_rows_left_succeeds_with_none), \
        ON_JOBS(every_operator_matches_as_named), \
        ON_JOBS(criteria_must_all_hold_and_one_alternative_is_enough), \
        ON_JOBS(names_are_literal_and_values_never_run_as_sql), \
        ON_JOBS(expired_lease_is_claimed_again_and_a_live_one_is_not), \
        ON_JOBS(lease_in_milliseconds_uses_the_database_clock), \
        ON_JOBS(claim_inside_a_transaction_is_refused), \
        ON_JOBS(claim_is_visible_to_others_when_it_returns), \
        ON_JOBS(invalid_claims_are_refused_before_anything_is_sent), \
        ON_JOBS(unknown_tables_and_columns_are_always_errors), \
        ON_JOBS(failed_claim_does_not_claim_a_row), ON_JOBS(row_lost_to_a_race_is_skipped), \
        ON_JOBS(racing_claimers_get_each_row_exactly_once)

int main(void)
{
    const struct CMUnitTest sqlite[] = {
        EVERYWHERE, ON_JOBS(claim_survives_a_kill_right_after_the_call_returns),
        ON_JOBS(any_key_type_works), ON_JOBS(locked_database_is_busy),
        ON_JOBS(unlisted_dialect_takes_the_portable_path)};
    const struct CMUnitTest memory[] = {EVERYWHERE, ON_JOBS(any_key_type_works)};
    const struct CMUnitTest mariadb[] = {EVERYWHERE};
    const struct CMUnitTest postgres[] = {
        EVERYWHERE,
        ON_JOBS(claim_survives_a_kill_right_after_the_call_returns),
        ON_JOBS(limit_holds_under_a_stale_plan),
        ON_JOBS(one_claim_is_one_round_trip),
        ON_JOBS(rows_locked_by_others_are_skipped),
        ON_JOBS(rows_referenced_by_foreign_keys_are_claimed),
        ON_JOBS(broken_connection_is_unavailable)};
    const struct CMUnitTest portable[] = {
        EVERYWHERE, ON_JOBS(claim_survives_a_kill_right_after_the_call_returns),
        ON_JOBS(limit_holds_under_a_stale_plan),
        ON_JOBS(guard_is_rechecked_after_waiting_for_a_lock),
        ON_JOBS(broken_connection_is_unavailable)};
    const struct CMUnitTest portable_sqlite[] = {
        EVERYWHERE, ON_JOBS(claim_survives_a_kill_right_after_the_call_returns),
        ON_JOBS(any_key_type_works)};
    int failures = cmocka_run_group_tests_name("sqlite", sqlite, rig_sqlite, rig_end);
    failures += cmocka_run_group_tests_name("memory", memory, rig_memory, rig_end);
    failures += cmocka_run_group_tests_name("sqlite, portable", portable_sqlite,
                                            rig_sqlite_portable, rig_end);
    failures += cmocka_run_group_tests_name("mariadb", mariadb, rig_mariadb, rig_end);
    failures += cmocka_run_group_tests_name("mariadb, portable", mariadb, rig_mariadb_portable,
                                            rig_end);
    failures += cmocka_run_group_tests_name("postgres", postgres, rig_postgres, rig_end);
    return failures + cmocka_run_group_tests_name("postgres, portable", portable,
                                                  rig_postgres_portable, rig_end);
}
