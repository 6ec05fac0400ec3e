/* sqlite_moved.c: a database that was set back, replaced, or whose sequence restarted. */
#include "lite.h"
#include "sqlite_tests.h"

/* copy_all copies a database by SQLite's own means of backup and restore. */
static void copy_all(sqlite3 *from, sqlite3 *to)
{
    sqlite3_backup *b = sqlite3_backup_init(to, "main", from, "main");
    assert_non_null(b);
    assert_int_equal(sqlite3_backup_step(b, -1), SQLITE_DONE);
    assert_int_equal(sqlite3_backup_finish(b), SQLITE_OK);
}

static void restore(sqlite3 *copy)
{
    sqlite3 *db = lite_connect();
    lite_do(db, "PRAGMA journal_mode = WAL");
    copy_all(copy, db);
    sqlite3_close(db);
}

static sqlite3 *copy_of_now(void)
{
    sqlite3 *db = lite_connect(), *copy;
    assert_int_equal(sqlite3_open(":memory:", &copy), SQLITE_OK);
    copy_all(db, copy);
    sqlite3_close(db);
    return copy;
}

static void claim_from_before_a_restore_has_no_effect_after_it(void **state)
{
    struct store_rig *g = *state;
    sqlite3 *db = lite_connect();
    put(g->st, "c");
    lite_do(db, "INSERT INTO outbox_event (type) VALUES ('a'), ('b')");
    sqlite3_close(db);
    sqlite3 *copy = copy_of_now();
    for (int i = 0; i < 20; i++) {
        assert_string_equal(lite_taken(g, i ? "older copy" : NULL), "a b");
        struct batch before = g->b;
        struct settlement late = {.consumer = "c", .owner = "me", .order = ORDER_KEY, .b = &before};
        restore(copy);
        struct error err;
        if (i % 2) {
            assert_int_equal(lite_take(g, &err),
                             -1); /* the handle reports that the database was set back */
            assert_non_null(strstr(err.text, "older copy"));
        } else {
            struct store *other;
            /* A handle that never saw the other database. */
            assert_int_equal(g->st->ops->dup(g->st, &other, &err), 0);
            struct store *own = g->st;
            g->st = other;
            /* The owner is the same, and so is the place in the count. */
            assert_string_equal(lite_taken(g, NULL), "a b");
            assert_int_not_equal(g->b.epoch, before.epoch);
            assert_false(settle_as(g, &late));
            assert_int_equal(lite_count(g->st, "SELECT count(*) FROM outbox_claim"), 1);
            g->st = own;
            store_close(other);
            restore(copy);
            continue;
        }
        assert_false(settle_as(g, &late));
        assert_int_equal(lite_count(g->st, "SELECT delivered FROM outbox_consumer"), 0);
        assert_string_equal(lite_taken(g, NULL), "a b");
        restore(copy);
    }
    sqlite3_close(copy);
}

static void replaced_outbox_is_reported_and_gets_the_consumer(void **state)
{
    struct store_rig *g = *state;
    sqlite3 *empty = copy_of_now(), *db = lite_connect();
    put(g->st, "c");
    lite_do(db, "INSERT INTO outbox_event (type) VALUES ('a')");
    assert_string_equal(lite_taken(g, NULL), "a");
    lite_do(empty, "UPDATE outbox_meta SET value = 'f00' WHERE name = 'identity'");
    restore(empty);
    lite_do(db, "INSERT INTO outbox_event (type) VALUES ('b')");
    assert_string_equal(lite_taken(g, "another outbox"), "b");
    sqlite3_close(empty);
    sqlite3_close(db);
}

/* Every way in which the sequence can restart. Events emitted afterwards are delivered in order
 * and not mistaken for earlier ones. */
static void restarted_sequence_loses_nothing(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    static const char *const ways[] = {
        "DELETE FROM outbox_event; DELETE FROM sqlite_sequence",
        "DELETE FROM outbox_event; UPDATE sqlite_sequence SET seq = 0",
        "DELETE FROM outbox_event; DELETE FROM sqlite_sequence WHERE name = 'outbox_event'",
        "DELETE FROM outbox_event WHERE seq % 2; DELETE FROM sqlite_sequence; DELETE FROM "
        "outbox_event",
    };
    static const char *const three = "INSERT INTO outbox_event (type) VALUES ('x'), ('y'), ('z')";
    put(g->st, "c");
    sqlite3 *db = lite_connect();
    lite_do(
        db,
        "CREATE TABLE orders (n INTEGER PRIMARY KEY AUTOINCREMENT); INSERT INTO orders VALUES (7)");
    for (size_t i = 0; i < COUNT(ways); i++) {
        lite_do(db, "INSERT INTO outbox_event (type) VALUES ('a'), ('b'), ('c'), ('d'), ('e')");
        assert_string_equal(lite_taken(g, NULL), "a b c d e");
        struct outcome out[2] = {
            {.ev = &g->b.ev[0],
             .kind = OUTCOME_RETRY,
             .attempts = 1,
             .delay_ms = 1000000,
             .error = "later"},
            {.ev = &g->b.ev[1], .kind = OUTCOME_DEAD, .attempts = 1, .error = "never"}};
        assert_true(settle(g, "c", out, 2));
        lite_force(db, ways[i]);
        lite_do(db, three); /* fewer than there were */
        assert_string_equal(lite_taken(g, "numbers restarted"), "x y z");
        assert_int_equal(lite_count(g->st, "SELECT count(*) FROM outbox_parked"), 0);
        assert_int_equal(
            lite_count(g->st, "SELECT count(*) FROM outbox_dead d JOIN outbox_event e USING (seq)"),
            0);
        assert_true(settle(g, "c", NULL, 0));
        lite_do(db, "INSERT INTO outbox_event (type) VALUES ('more')");
        assert_string_equal(lite_taken(g, NULL), "more");
        assert_true(settle(g, "c", NULL, 0));

        lite_force(db, ways[i]);
        /* More than there ever were, while no worker polls. */
        for (int j = 0; j < 20; j++)
            lite_do(db, three);
        size_t n = 0;
        assert_int_equal(lite_take(g, &err), -1);
        while (n < 60) {
            assert_int_equal(lite_take(g, &err), 0);
            assert_true(g->b.n > 0);
            n += g->b.n;
            assert_true(settle(g, "c", NULL, 0));
        }
        assert_int_equal(n, 60);
        assert_string_equal(lite_taken(g, NULL), "");
    }
    sqlite3_close(db);
}

static void continuing_sequence_is_left_alone(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    sqlite3 *db = lite_connect();
    static const char *const harmless[] = {
        "SELECT 1",
        "UPDATE sqlite_sequence SET seq = 0", /* the kept rows prevent a restart at 1 */
        "DELETE FROM outbox_event WHERE seq < (SELECT max(seq) FROM outbox_event)",
        "DELETE FROM outbox_event",
        "VACUUM",
    };
    for (size_t i = 0; i < COUNT(harmless); i++) {
        lite_do(db, "INSERT INTO outbox_event (type) VALUES ('a'), ('b')");
        assert_string_equal(lite_taken(g, NULL), "a b");
        assert_true(settle(g, "c", NULL, 0));
        lite_force(db, harmless[i]);
        assert_string_equal(lite_taken(g, NULL), "");
    }
    /* A consumer that starts beyond the last event: no event ever had that number. */
    struct consumer_spec far = spec_of("far");
    far.start = START_SEQ;
    far.start_seq = 1000;
    put_spec(g->st, &far);
    assert_int_equal(claim(g, "far"), 0);
    sqlite3_close(db);
}

static void trimming_never_deletes_events_with_reused_numbers(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct trim_result t;
    put(g->st, "c");
    sqlite3 *db = lite_connect();
    lite_do(db, "INSERT INTO outbox_event (type) VALUES ('a'), ('b')");
    assert_string_equal(lite_taken(g, NULL), "a b");
    assert_true(settle(g, "c", NULL, 0));
    lite_force(db, "DELETE FROM outbox_event; DELETE FROM sqlite_sequence; "
                   "INSERT INTO outbox_event (type, created_at) VALUES ('new', 1), ('newer', 1), "
                   "('newest', 1)");
    assert_int_equal(g->st->ops->trim(g->st, &(struct trim_request){0}, &t, &err), 0);
    assert_int_equal(t.events, 0);
    assert_string_equal(lite_taken(g, NULL), "new newer newest");
    sqlite3_close(db);
}

static const struct CMUnitTest tests[] = {
    ON_A_STORE(claim_from_before_a_restore_has_no_effect_after_it),
    ON_A_STORE(replaced_outbox_is_reported_and_gets_the_consumer),
    ON_A_STORE(restarted_sequence_loses_nothing),
    ON_A_STORE(continuing_sequence_is_left_alone),
    ON_A_STORE(trimming_never_deletes_events_with_reused_numbers),
};

const struct suite_part sqlite_moved_tests = SUITE_PART(tests);
