/* The store contract on a SQLite file and in memory, and what only SQLite promises. */
#include "store.h"

#include <poll.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/sqlite/handle.h"
#include "store/sqlite/sqlite.h"

static char dir[64];

static void url_of(char out[128])
{
    snprintf(out, 128, "sqlite:%s/t.db", dir);
}

static struct store *open_at(const char *url, const struct store_options *opt)
{
    struct store *st;
    struct error err;
    bool created;
    if (store_open(url, opt, &st, &err) != 0)
        return print_error("%s\n", err.text), NULL;
    if (st->ops->init(st, &created, &err) != 0)
        return print_error("%s\n", err.text), NULL;
    return st;
}

static struct store *file_fresh(const struct store_options *opt)
{
    char url[128];
    strcpy(dir, "/tmp/outbox-XXXXXX");
    if (!mkdtemp(dir))
        return NULL;
    url_of(url);
    return open_at(url, opt);
}

static void file_clean(void)
{
    static const char *const names[] = {"t.db", "t.db-wal", "t.db-shm"};
    char path[128];
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}

static struct store *memory_fresh(const struct store_options *opt)
{
    return open_at("sqlite::memory:", opt);
}

static void memory_clean(void)
{
}

static sqlite3 *own_connection(void)
{
    sqlite3 *db;
    char path[128];
    snprintf(path, sizeof path, "%s/t.db", dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    sqlite3_busy_timeout(db, 5000);
    return db;
}

static void sql(sqlite3 *db, const char *text)
{
    char *why = NULL;
    if (sqlite3_exec(db, text, NULL, NULL, &why) != SQLITE_OK)
        fail_msg("%s: %s", text, why);
}

static int64_t count(struct store *st, const char *text)
{
    sqlite3_stmt *q;
    assert_int_equal(sqlite3_prepare_v2(sqlite_handle(st), text, -1, &q, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    int64_t n = sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    return n;
}

static int emit_in(struct store *st, sqlite3 *db, const char *key, struct error *err)
{
    char id[UUID_TEXT + 1];
    bool dup;
    struct new_event ev = {.type = STR("x"), .payload = STR("{}"), .idempotency_key = str_of(key)};
    return st->ops->emit(st, db, &ev, id, &dup, err);
}

static void emit_is_part_of_the_callers_transaction(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    sqlite3 *db = own_connection();
    sql(db, "CREATE TABLE orders (n); BEGIN; INSERT INTO orders VALUES (1)");
    assert_int_equal(emit_in(g->st, db, NULL, &err), 0);
    assert_int_equal(count(g->st, "SELECT count(*) FROM outbox_event"), 0);
    sql(db, "ROLLBACK");
    assert_int_equal(count(g->st, "SELECT count(*) FROM outbox_event"), 0);
    sql(db, "BEGIN; INSERT INTO orders VALUES (2)");
    assert_int_equal(emit_in(g->st, db, "k", &err), 0);
    sql(db, "COMMIT");
    assert_int_equal(count(g->st, "SELECT count(*) FROM outbox_event"), 1);
    assert_int_equal(sqlite3_close(db), SQLITE_OK); /* nothing was left behind on it */
}

static void savepoint_rolled_back_takes_its_event_with_it(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    sqlite3 *db = own_connection();
    sql(db, "BEGIN; SAVEPOINT s");
    assert_int_equal(emit_in(g->st, db, NULL, &err), 0);
    sql(db, "ROLLBACK TO s; RELEASE s");
    assert_int_equal(emit_in(g->st, db, NULL, &err), 0);
    sql(db, "COMMIT");
    assert_int_equal(count(g->st, "SELECT count(*) FROM outbox_event"), 1);
    sqlite3_close(db);
}

static void emit_without_a_transaction_on_the_callers_connection_is_refused(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    sqlite3 *db = own_connection();
    assert_int_equal(emit_in(g->st, db, NULL, &err), -1);
    assert_int_equal(err.code, ERR_MISUSE);
    assert_int_equal(count(g->st, "SELECT count(*) FROM outbox_event"), 0);
    sqlite3_close(db);
}

static void emit_into_a_database_without_outbox_says_so(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    sqlite3 *db;
    assert_int_equal(sqlite3_open(":memory:", &db), SQLITE_OK);
    sql(db, "BEGIN");
    assert_int_equal(emit_in(g->st, db, NULL, &err), -1);
    assert_int_equal(err.code, ERR_NOTOURS);
    assert_non_null(strstr(err.text, "outbox init"));
    sqlite3_close(db);
}

static void plain_insert_works_and_gets_a_uuid7(void **state)
{
    struct store_rig *g = *state;
    sqlite3 *db = own_connection();
    sql(db, "INSERT INTO outbox_event (type, aggregate_type, aggregate_id, payload) VALUES ('a.b', "
            "'o', '1', '{}')");
    assert_int_equal(
        count(
            g->st,
            "SELECT count(*) FROM outbox_event WHERE id LIKE "
            "'________-____-7___-____-____________' AND substr(id, 20, 1) IN ('8', '9', 'a', 'b') "
            "AND id = lower(id)"),
        1);
    assert_int_equal(
        count(g->st,
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

/* plain_and_emitted mixes every way there is into a connection: ours (db is its handle, and foreign
 * NULL), or the caller's. */
static void plain_and_emitted(struct store *st, sqlite3 *db, sqlite3 *foreign)
{
    struct error err;
    char key[16];
    for (int i = 0; i < 300; i++) {
        snprintf(key, sizeof key, "%c%d", foreign ? 'f' : 'o', i);
        sql(db, "INSERT INTO outbox_event (type) VALUES ('plain')");
        assert_int_equal(emit_in(st, foreign, NULL, &err), 0);
        sql(db, "INSERT INTO orders (rowid) SELECT 1000000 + coalesce(max(rowid), 0) FROM orders");
        sql(db, "INSERT INTO outbox_event (type) VALUES ('plain')");
        assert_int_equal(emit_in(st, foreign, key, &err), 0);
        sql(db, "SAVEPOINT s; INSERT INTO outbox_event (type) VALUES ('undone'); ROLLBACK TO s; "
                "RELEASE s");
    }
}

static void ids_grow_within_a_millisecond_whichever_way_events_come_in(void **state)
{
    (void)state;
    static const char disorder[] =
        "SELECT count(*) FROM outbox_event a JOIN outbox_event b ON b.seq = (SELECT min(seq) FROM "
        "outbox_event WHERE seq > a.seq) WHERE b.id <= a.id";
    struct error err;
    struct store *st = file_fresh(&(struct store_options){.clock = &clock_system, .create = true});
    sqlite3 *db = own_connection();
    sql(db, "CREATE TABLE orders (n); BEGIN");
    plain_and_emitted(st, db, db);
    sql(db, "COMMIT");
    assert_int_equal(count(st, "SELECT count(*) FROM outbox_event"), 1200);
    assert_int_equal(count(st, disorder), 0);

    sql(db, "DELETE FROM outbox_event");
    assert_int_equal(st->ops->begin(st, &err), 0);
    plain_and_emitted(st, sqlite_handle(st), NULL);
    assert_int_equal(st->ops->commit(st, &err), 0);
    assert_int_equal(count(st, "SELECT count(*) FROM outbox_event"), 1200);
    assert_int_equal(count(st, disorder), 0);
    assert_int_equal(
        count(st, "SELECT count(*) FROM outbox_event WHERE id NOT LIKE "
                  "'________-____-7___-____-____________' OR substr(id, 20, 1) NOT GLOB '[89ab]'"),
        0);
    sqlite3_close(db);
    store_close(st);
    file_clean();
}

static void delivery_view_shows_the_states(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct consumer_spec c = {.name = "c",
                              .events = "x,y.*,q\"u\\o",
                              .where = "",
                              .retry = "",
                              .order = ORDER_KEY,
                              .lanes = 1};
    assert_int_equal(g->st->ops->consumer_put(g->st, &c, NULL, &err), 0);
    sqlite3 *db = own_connection();
    sql(db, "INSERT INTO outbox_event (type) VALUES ('x'), ('y.z'), ('other')");
    assert_int_equal(count(g->st, "SELECT count(*) FROM outbox_delivery WHERE state = 'pending'"),
                     2);
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
    /* The view goes by the machine's clock, the store here by one that stands. */
    sql(db, "UPDATE outbox_claim SET lease = locked_until, locked_until = 9000000000000000");
    assert_int_equal(count(g->st, "SELECT count(*) FROM outbox_delivery WHERE state = 'in-flight'"),
                     2);
    sql(db, "UPDATE outbox_claim SET locked_until = 1");
    assert_int_equal(count(g->st, "SELECT count(*) FROM outbox_delivery WHERE state = 'pending'"),
                     2);
    sql(db, "UPDATE outbox_claim SET locked_until = lease");
    struct outcome o[2] = {
        {.ev = &g->b.ev[0], .kind = OUTCOME_RETRY, .attempts = 1, .delay_ms = 9, .error = "e"},
        {.ev = &g->b.ev[1], .kind = OUTCOME_DEAD, .attempts = 1, .error = "d"}};
    struct settlement s = {
        .consumer = "c", .owner = "me", .order = ORDER_KEY, .b = &g->b, .out = o, .n = 2};
    bool lost;
    assert_int_equal(g->st->ops->turn(g->st, &s, &lost, NULL, NULL, NULL, NULL, &err), 0);
    assert_int_equal(
        count(g->st, "SELECT count(*) FROM outbox_delivery WHERE state = 'failed' AND error = 'e'"),
        1);
    assert_int_equal(
        count(g->st,
              "SELECT count(*) FROM outbox_delivery WHERE state = 'expired' AND error = 'd'"),
        1);
    sql(db, "DELETE FROM outbox_dead"); /* by hand, which is dropping it as well */
    assert_int_equal(count(g->st, "SELECT count(*) FROM outbox_delivery WHERE state = 'dropped'"),
                     1);
    sql(db, "UPDATE outbox_consumer SET start = 2");
    assert_int_equal(
        count(g->st, "SELECT count(*) FROM outbox_delivery WHERE state = 'before-start'"), 1);
    sqlite3_close(db);
}

static void bell_rings_for_a_commit_of_another_process_and_not_without(void **state)
{
    struct store_rig *g = *state;
    struct pollfd fd = {.fd = g->st->ops->bell_fd(g->st), .events = POLLIN};
    assert_true(fd.fd >= 0);
    g->st->ops->bell_clear(g->st);
    assert_int_equal(poll(&fd, 1, 0), 0);
    pid_t pid = fork();
    if (pid == 0) {
        sqlite3 *db;
        char path[128];
        snprintf(path, sizeof path, "%s/t.db", dir);
        _exit(sqlite3_open(path, &db) != SQLITE_OK ||
              sqlite3_exec(db, "INSERT INTO outbox_event (type) VALUES ('x')", 0, 0, 0) !=
                  SQLITE_OK);
    }
    assert_int_equal(poll(&fd, 1, 10000), 1);
    int status;
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
    g->st->ops->bell_clear(g->st);
    assert_int_equal(poll(&fd, 1, 0), 0);
}

static void locked_database_is_busy_and_nothing_is_half_done(void **state)
{
    struct store_rig *g = *state;
    struct store *other;
    struct error err;
    char url[128];
    url_of(url);
    assert_int_equal(store_open(url, &(struct store_options){.busy_ms = 30}, &other, &err), 0);
    sqlite3 *db = own_connection();
    sql(db, "BEGIN IMMEDIATE");
    assert_int_equal(emit_in(other, NULL, NULL, &err), -1);
    assert_int_equal(err.code, ERR_BUSY);
    sql(db, "ROLLBACK");
    assert_int_equal(emit_in(other, NULL, NULL, &err), 0);
    assert_int_equal(count(g->st, "SELECT count(*) FROM outbox_event"), 1);
    store_close(other);
    sqlite3_close(db);
}

static void emit_after_the_database_rolled_back_by_itself_is_refused(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    char id[UUID_TEXT + 1];
    bool dup;
    static char big[400000];
    memset(big, ' ', sizeof big - 1);
    big[0] = '1';
    struct new_event ev = {.type = STR("big"), .payload = str_of(big)};
    sql(sqlite_handle(g->st), "PRAGMA max_page_count = 80"); /* a disk that is nearly full */
    assert_int_equal(g->st->ops->begin(g->st, &err), 0);
    assert_int_equal(emit_in(g->st, NULL, NULL, &err), 0);
    assert_int_equal(g->st->ops->emit(g->st, NULL, &ev, id, &dup, &err), -1);
    assert_int_equal(err.code, ERR_FULL);
    /* as SQLite may */
    if (!sqlite3_get_autocommit(sqlite_handle(g->st)))
        sql(sqlite_handle(g->st), "ROLLBACK");
    assert_int_equal(emit_in(g->st, NULL, NULL, &err), -1); /* it would commit by itself */
    assert_int_equal(err.code, ERR_MISUSE);
    assert_int_equal(emit_in(g->st, NULL, "key", &err), -1);
    assert_int_equal(g->st->ops->commit(g->st, &err), -1);
    assert_int_equal(count(g->st, "SELECT count(*) FROM outbox_event"), 0);
    assert_int_equal(emit_in(g->st, NULL, NULL, &err), 0); /* and now it is as before */
}

/* ---- the database moves ---- */

static struct claim_request claim_request_of(const char *owner)
{
    return (struct claim_request){.consumer = "c",
                                  .owner = owner,
                                  .order = ORDER_KEY,
                                  .lanes = 1,
                                  .max_events = 10,
                                  .max_bytes = 1000000,
                                  .lease_ms = 30000,
                                  .max_attempts = 3,
                                  .careful = CAREFUL_TAKE};
}

static int take(struct store_rig *g, struct error *err)
{
    struct claim_request req = claim_request_of("me");
    arena_reset(&g->a);
    g->b = (struct batch){0};
    return g->st->ops->turn(g->st, NULL, NULL, &req, &g->a, &g->b, &g->hint, err);
}

/* taken gives the types of what is claimed next, "" for nothing; one turn may fail to tell that the
 * database has moved. */
static const char *taken(struct store_rig *g, const char *told)
{
    static char types[256];
    struct error err;
    types[0] = '\0';
    if (told) {
        assert_int_equal(take(g, &err), -1);
        assert_int_equal(err.fate, FATE_RETRY);
        if (!strstr(err.text, told))
            fail_msg("%s", err.text);
    }
    if (take(g, &err) != 0)
        fail_msg("%s", err.text);
    for (size_t i = 0; i < g->b.n; i++)
        strcat(strcat(types, i ? " " : ""), g->b.ev[i].type.p);
    return types;
}

static bool done(struct store_rig *g, const struct batch *b, const struct outcome *out, size_t n)
{
    struct error err;
    bool lost = true;
    struct settlement s = {
        .consumer = "c", .owner = "me", .order = ORDER_KEY, .b = b, .out = out, .n = n};
    if (g->st->ops->turn(g->st, &s, &lost, NULL, NULL, NULL, NULL, &err) != 0)
        fail_msg("%s", err.text);
    return !lost;
}

static void one_consumer(struct store_rig *g)
{
    struct error err;
    struct consumer_spec c = {
        .name = "c", .events = "", .where = "", .retry = "", .order = ORDER_KEY, .lanes = 1};
    assert_int_equal(g->st->ops->consumer_put(g->st, &c, NULL, &err), 0);
}

/* copy_to and copy_from are SQLite's own backup and restore. */
static void copy_all(sqlite3 *from, sqlite3 *to)
{
    sqlite3_backup *b = sqlite3_backup_init(to, "main", from, "main");
    assert_non_null(b);
    assert_int_equal(sqlite3_backup_step(b, -1), SQLITE_DONE);
    assert_int_equal(sqlite3_backup_finish(b), SQLITE_OK);
}

static void restore(sqlite3 *copy)
{
    sqlite3 *db = own_connection();
    sql(db, "PRAGMA journal_mode = WAL");
    copy_all(copy, db);
    sqlite3_close(db);
}

static sqlite3 *copy_of_now(void)
{
    sqlite3 *db = own_connection(), *copy;
    assert_int_equal(sqlite3_open(":memory:", &copy), SQLITE_OK);
    copy_all(db, copy);
    sqlite3_close(db);
    return copy;
}

static void claim_from_before_a_restore_can_change_nothing_after_it(void **state)
{
    struct store_rig *g = *state;
    sqlite3 *db = own_connection();
    one_consumer(g);
    sql(db, "INSERT INTO outbox_event (type) VALUES ('a'), ('b')");
    sqlite3_close(db);
    sqlite3 *copy = copy_of_now();
    for (int i = 0; i < 20; i++) {
        assert_string_equal(taken(g, i ? "older copy" : NULL), "a b");
        struct batch before = g->b;
        restore(copy);
        struct error err;
        if (i % 2) {
            assert_int_equal(take(g, &err), -1); /* it says that it was set back */
            assert_non_null(strstr(err.text, "older copy"));
        } else {
            struct store *other;
            /* one that never knew another */
            assert_int_equal(g->st->ops->dup(g->st, &other, &err), 0);
            struct store *own = g->st;
            g->st = other;
            /* the same owner, and the same place in the count */
            assert_string_equal(taken(g, NULL), "a b");
            assert_int_not_equal(g->b.epoch, before.epoch);
            assert_false(done(g, &before, NULL, 0));
            assert_int_equal(count(g->st, "SELECT count(*) FROM outbox_claim"), 1);
            g->st = own;
            store_close(other);
            restore(copy);
            continue;
        }
        assert_false(done(g, &before, NULL, 0));
        assert_int_equal(count(g->st, "SELECT delivered FROM outbox_consumer"), 0);
        assert_string_equal(taken(g, NULL), "a b");
        restore(copy);
    }
    sqlite3_close(copy);
}

static void another_outbox_put_into_the_file_is_told_and_gets_the_consumer(void **state)
{
    struct store_rig *g = *state;
    sqlite3 *empty = copy_of_now(), *db = own_connection();
    one_consumer(g);
    sql(db, "INSERT INTO outbox_event (type) VALUES ('a')");
    assert_string_equal(taken(g, NULL), "a");
    sql(empty, "UPDATE outbox_meta SET value = 'f00' WHERE name = 'identity'");
    restore(empty);
    sql(db, "INSERT INTO outbox_event (type) VALUES ('b')");
    assert_string_equal(taken(g, "another outbox"), "b");
    sqlite3_close(empty);
    sqlite3_close(db);
}

/* Numbers begin again in every way there is; what is emitted then is delivered, in order, and is
 * not taken for others. */
static void numbers_that_begin_again_lose_nothing(void **state)
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
    one_consumer(g);
    sqlite3 *db = own_connection();
    sql(db,
        "CREATE TABLE orders (n INTEGER PRIMARY KEY AUTOINCREMENT); INSERT INTO orders VALUES (7)");
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        sql(db, "INSERT INTO outbox_event (type) VALUES ('a'), ('b'), ('c'), ('d'), ('e')");
        assert_string_equal(taken(g, NULL), "a b c d e");
        struct outcome out[2] = {
            {.ev = &g->b.ev[0],
             .kind = OUTCOME_RETRY,
             .attempts = 1,
             .delay_ms = 1000000,
             .error = "later"},
            {.ev = &g->b.ev[1], .kind = OUTCOME_DEAD, .attempts = 1, .error = "never"}};
        assert_true(done(g, &g->b, out, 2));
        sql(db, ways[i]);
        sql(db, three); /* fewer than there were */
        assert_string_equal(taken(g, "began again"), "x y z");
        assert_int_equal(count(g->st, "SELECT count(*) FROM outbox_parked"), 0);
        assert_int_equal(
            count(g->st, "SELECT count(*) FROM outbox_dead d JOIN outbox_event e USING (seq)"), 0);
        assert_true(done(g, &g->b, NULL, 0));
        sql(db, "INSERT INTO outbox_event (type) VALUES ('more')");
        assert_string_equal(taken(g, NULL), "more");
        assert_true(done(g, &g->b, NULL, 0));

        sql(db, ways[i]);
        /* and more than there ever were, with nobody looking */
        for (int j = 0; j < 20; j++)
            sql(db, three);
        size_t n = 0;
        assert_int_equal(take(g, &err), -1);
        while (n < 60) {
            assert_int_equal(take(g, &err), 0);
            assert_true(g->b.n > 0);
            n += g->b.n;
            assert_true(done(g, &g->b, NULL, 0));
        }
        assert_int_equal(n, 60);
        assert_string_equal(taken(g, NULL), "");
    }
    sqlite3_close(db);
}

static void numbers_that_go_on_are_left_alone(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    one_consumer(g);
    sqlite3 *db = own_connection();
    static const char *const harmless[] = {
        "SELECT 1",
        "UPDATE sqlite_sequence SET seq = 0", /* the rows keep it from beginning again */
        "DELETE FROM outbox_event WHERE seq < (SELECT max(seq) FROM outbox_event)",
        "DELETE FROM outbox_event",
        "VACUUM",
    };
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++) {
        sql(db, "INSERT INTO outbox_event (type) VALUES ('a'), ('b')");
        assert_string_equal(taken(g, NULL), "a b");
        assert_true(done(g, &g->b, NULL, 0));
        sql(db, harmless[i]);
        assert_string_equal(taken(g, NULL), "");
    }
    /* One that was told to start further ahead than events have come: not a number that anybody was
     * given. */
    struct consumer_spec far = {.name = "far",
                                .events = "",
                                .where = "",
                                .retry = "",
                                .order = ORDER_KEY,
                                .lanes = 1,
                                .start = START_SEQ,
                                .start_seq = 1000};
    assert_int_equal(g->st->ops->consumer_put(g->st, &far, NULL, &err), 0);
    struct claim_request req = claim_request_of("me");
    req.consumer = "far";
    assert_int_equal(g->st->ops->turn(g->st, NULL, NULL, &req, &g->a, &g->b, &g->hint, &err), 0);
    assert_int_equal(g->b.n, 0);
    sqlite3_close(db);
}

static void trimming_deletes_nothing_whose_number_began_again(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct trim_result t;
    one_consumer(g);
    sqlite3 *db = own_connection();
    sql(db, "INSERT INTO outbox_event (type) VALUES ('a'), ('b')");
    assert_string_equal(taken(g, NULL), "a b");
    assert_true(done(g, &g->b, NULL, 0));
    sql(db, "DELETE FROM outbox_event; DELETE FROM sqlite_sequence; "
            "INSERT INTO outbox_event (type, created_at) VALUES ('new', 1), ('newer', 1), "
            "('newest', 1)");
    assert_int_equal(g->st->ops->trim(g->st, &(struct trim_request){0}, &t, &err), 0);
    assert_int_equal(t.events, 0);
    assert_string_equal(taken(g, NULL), "new newer newest");
    sqlite3_close(db);
}

/* ---- what is on the disk ---- */

/* SQLite calls these: the files that were synced are noted, as long as a test wants to know. */
static struct {
    ino_t ino[64];
    size_t n;
} synced;

static void note_sync(int fd)
{
    struct stat s;
    if (fstat(fd, &s) == 0 && synced.n < 64)
        synced.ino[synced.n++] = s.st_ino;
}

__attribute__((visibility("default"))) int fdatasync(int fd)
{
    note_sync(fd);
    return (int)syscall(SYS_fdatasync, fd);
}

__attribute__((visibility("default"))) int fsync(int fd)
{
    note_sync(fd);
    return (int)syscall(SYS_fsync, fd);
}

static bool was_synced(const char *name)
{
    char path[128];
    struct stat s;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(stat(path, &s), 0);
    for (size_t i = 0; i < synced.n; i++)
        if (synced.ino[i] == s.st_ino)
            return true;
    return false;
}

static void what_is_claimed_is_on_the_disk_whatever_its_producer_has_set(void **state)
{
    struct store_rig *g = *state;
    one_consumer(g);
    sqlite3 *db = own_connection();
    sql(db, "PRAGMA synchronous = OFF");
    for (int i = 0; i < 3; i++) {
        synced.n = 0;
        sql(db, "INSERT INTO outbox_event (type) VALUES ('a')");
        assert_int_equal(synced.n, 0); /* the producer's commit is nowhere yet */
        assert_string_equal(taken(g, NULL), "a");
        assert_true(was_synced("t.db-wal"));
        assert_true(done(g, &g->b, NULL, 0));

        /* The producer copies the log into the database without syncing it; the next to write
         * begins the log anew. */
        sql(db, "INSERT INTO outbox_event (type) VALUES ('b')");
        synced.n = 0;
        sql(db, "PRAGMA wal_checkpoint(RESTART)");
        if (i == 1)
            sql(db, "INSERT INTO outbox_event (type) VALUES ('c')");
        assert_int_equal(synced.n, 0);
        assert_string_equal(taken(g, NULL), i == 1 ? "b c" : "b");
        assert_true(was_synced("t.db-wal"));
        assert_true(was_synced("t.db"));
        assert_true(done(g, &g->b, NULL, 0));
    }
    synced.n = 0;
    sql(db, "INSERT INTO outbox_event (type) VALUES ('d')");
    assert_string_equal(taken(g, NULL), "d");
    assert_true(was_synced("t.db-wal"));
    assert_false(was_synced("t.db")); /* one sync for a claim, where nobody did that */
    sqlite3_close(db);
}

static void without_a_log_what_is_claimed_is_on_the_disk_as_well(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    one_consumer(g);
    sqlite3 *db = own_connection();
    static const char *const modes[] = {"DELETE", "TRUNCATE", "PERSIST", "MEMORY", "OFF"};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        char mode[64];
        store_close(g->st);
        snprintf(mode, sizeof mode, "PRAGMA journal_mode = %s; PRAGMA synchronous = OFF", modes[i]);
        /* nobody else is about: it is done, and stays so for those it can stay for */
        sql(db, mode);
        sql(db, "INSERT INTO outbox_event (type) VALUES ('a')");
        sql(db, "BEGIN; SELECT * FROM outbox_meta"); /* and keeps us from putting it right */
        char url[128];
        url_of(url);
        assert_int_equal(store_open(url,
                                    &(struct store_options){.clock = &store_clock, .busy_ms = 50},
                                    &g->st, &err),
                         0);
        sql(db, "COMMIT");
        synced.n = 0;
        assert_string_equal(taken(g, NULL), "a");
        assert_true(was_synced("t.db"));
        assert_true(done(g, &g->b, NULL, 0));
    }
    sqlite3_close(db);
}

/* emitted emits with and without a key on the caller's connection and commits. */
static void emitted(struct store *st, sqlite3 *db, const char *key)
{
    struct error err;
    sql(db, "BEGIN");
    if (emit_in(st, db, NULL, &err) != 0)
        fail_msg("%s", err.text);
    if (emit_in(st, db, key, &err) != 0)
        fail_msg("%s", err.text);
    sql(db, "COMMIT");
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
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        char key[16];
        sqlite3 *db = own_connection();
        snprintf(key, sizeof key, "k%zu", i);
        sql(db, settings[i]);
        emitted(g->st, db, key);
        if (count(g->st, "SELECT count(*) FROM outbox_event") != (int64_t)(i + 1) * 2)
            fail_msg("%s", settings[i]);
        assert_int_equal(sqlite3_close(db), SQLITE_OK);
    }
    sqlite3 *db = own_connection();
    sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(db, SQLITE_DBCONFIG_DQS_DML, 0, NULL);
    sqlite3_db_config(db, SQLITE_DBCONFIG_DQS_DDL, 0, NULL);
    sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
    sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_VIEW, 0, NULL);
    emitted(g->st, db, "last");
    sqlite3_close(db);
    assert_int_equal(count(g->st, "SELECT count(*) FROM outbox_event"),
                     (int64_t)(sizeof settings / sizeof *settings + 1) * 2);
}

static void connection_that_trusts_no_schema_works_or_is_told_what_to_do(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    sqlite3 *db = own_connection();
    sql(db, "PRAGMA trusted_schema = OFF; BEGIN");
    int64_t stored = emit_in(g->st, db, NULL, &err) == 0; /* a newer SQLite thinks JSON harmless */
    if (!stored) {
        assert_int_equal(err.code, ERR_CONFIG);
        assert_non_null(strstr(err.text, "PRAGMA trusted_schema"));
    }
    sql(db, "COMMIT");
    sqlite3_close(db);
    assert_int_equal(count(g->st, "SELECT count(*) FROM outbox_event"), stored);
}

static void outbox_that_the_caller_has_attached_is_found(void **state)
{
    struct store_rig *g = *state;
    char attach[160];
    sqlite3 *db;
    snprintf(attach, sizeof attach, "ATTACH '%s/t.db' AS \"odd \"\"name\"", dir);
    assert_int_equal(sqlite3_open(":memory:", &db), SQLITE_OK);
    sql(db, attach);
    emitted(g->st, db, "k");
    assert_int_equal(count(g->st, "SELECT count(*) FROM outbox_event"), 2);
    /* another that has the name only */
    sql(db, "CREATE TABLE outbox_event (seq INTEGER PRIMARY KEY, type)");
    emitted(g->st, db, "l");
    assert_int_equal(count(g->st, "SELECT count(*) FROM outbox_event"), 4);
    sqlite3_close(db);
}

static void event_that_a_trigger_swallows_is_an_error(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    sqlite3 *db = own_connection();
    sql(db, "CREATE TEMP TRIGGER t BEFORE INSERT ON main.outbox_event BEGIN SELECT RAISE(IGNORE); "
            "END; BEGIN");
    assert_int_equal(emit_in(g->st, db, NULL, &err), -1);
    assert_non_null(strstr(err.text, "trigger"));
    assert_int_equal(emit_in(g->st, db, "k", &err), -1);
    sql(db, "COMMIT; DROP TRIGGER t");
    assert_int_equal(count(g->st, "SELECT count(*) FROM outbox_event"), 0);
    emitted(g->st, db, "k"); /* the key is free */
    assert_int_equal(count(g->st, "SELECT count(*) FROM outbox_event"), 2);
    sqlite3_close(db);
}

static void callers_connection_to_a_file_that_is_gone_is_refused(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    char from[128], to[128];
    sqlite3 *db = own_connection();
    sql(db, "BEGIN");
    assert_int_equal(emit_in(g->st, db, NULL, &err), 0);
    sql(db, "COMMIT; BEGIN");
    snprintf(from, sizeof from, "%s/t.db", dir);
    snprintf(to, sizeof to, "%s/away.db", dir);
    assert_int_equal(rename(from, to), 0);
    assert_int_equal(emit_in(g->st, db, NULL, &err), -1);
    assert_int_equal(err.code, ERR_UNAVAILABLE);
    assert_non_null(strstr(err.text, "deleted or replaced"));
    assert_int_equal(emit_in(g->st, NULL, NULL, &err), -1); /* nor on our own */
    assert_int_equal(err.code, ERR_UNAVAILABLE);
    assert_int_equal(rename(to, from), 0);
    sql(db, "ROLLBACK");
    emitted(g->st, db, "k");
    assert_int_equal(emit_in(g->st, NULL, NULL, &err), 0);
    assert_int_equal(count(g->st, "SELECT count(*) FROM outbox_event"), 4);
    sqlite3_close(db);
}

static void database_of_utf16_is_refused(void **state)
{
    struct store_rig *g = *state;
    struct store *st;
    struct error err;
    char path[128], url[140];
    sqlite3 *db;
    bool created;
    (void)g;
    snprintf(path, sizeof path, "%s/wide.db", dir);
    snprintf(url, sizeof url, "sqlite:%s", path);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    sql(db, "PRAGMA encoding = 'UTF-16'; CREATE TABLE t (x)");
    sqlite3_close(db);
    assert_int_equal(store_open(url, &(struct store_options){.create = true}, &st, &err), 0);
    assert_int_equal(st->ops->init(st, &created, &err), -1);
    assert_int_equal(err.code, ERR_CONFIG);
    assert_non_null(strstr(err.text, "UTF-8"));
    store_close(st);
    unlink(path);
}

static void every_statement_fits_the_schema_and_has_its_parameters_in_order(void **state)
{
    struct store_rig *g = *state;
    sqlite3 *db = sqlite_handle(g->st);
    size_t n = 0;
    for (const struct sql *const *s = sql_all; *s; s++, n++) {
        sqlite3_stmt *q;
        if (sqlite3_prepare_v2(db, (*s)->text, -1, &q, NULL) != SQLITE_OK)
            fail_msg("%s: %s", (*s)->name, sqlite3_errmsg(db));
        assert_int_equal(sqlite3_bind_parameter_count(q), (*s)->n);
        for (size_t i = 0; i < (*s)->n; i++)
            assert_string_equal(sqlite3_bind_parameter_name(q, (int)i + 1) + 1,
                                (*s)->parameter[i].name);
        sqlite3_finalize(q);
    }
    assert_true(n > 30);
}

/* main takes the name of one test, or a pattern of names; without it, all are run. */
int main(int argc, char **argv)
{
    const struct store_case file = {"sqlite", file_fresh, file_clean},
                            memory = {"memory", memory_fresh, memory_clean};
    const struct CMUnitTest own[] = {
        ON_A_STORE(emit_is_part_of_the_callers_transaction),
        ON_A_STORE(savepoint_rolled_back_takes_its_event_with_it),
        ON_A_STORE(emit_without_a_transaction_on_the_callers_connection_is_refused),
        ON_A_STORE(emit_into_a_database_without_outbox_says_so),
        ON_A_STORE(plain_insert_works_and_gets_a_uuid7),
        cmocka_unit_test(ids_grow_within_a_millisecond_whichever_way_events_come_in),
        ON_A_STORE(delivery_view_shows_the_states),
        ON_A_STORE(bell_rings_for_a_commit_of_another_process_and_not_without),
        ON_A_STORE(locked_database_is_busy_and_nothing_is_half_done),
        ON_A_STORE(emit_after_the_database_rolled_back_by_itself_is_refused),
        ON_A_STORE(claim_from_before_a_restore_can_change_nothing_after_it),
        ON_A_STORE(another_outbox_put_into_the_file_is_told_and_gets_the_consumer),
        ON_A_STORE(numbers_that_begin_again_lose_nothing),
        ON_A_STORE(numbers_that_go_on_are_left_alone),
        ON_A_STORE(trimming_deletes_nothing_whose_number_began_again),
        ON_A_STORE(database_of_utf16_is_refused),
        ON_A_STORE(every_statement_fits_the_schema_and_has_its_parameters_in_order),
        ON_A_STORE(what_is_claimed_is_on_the_disk_whatever_its_producer_has_set),
        ON_A_STORE(without_a_log_what_is_claimed_is_on_the_disk_as_well),
        ON_A_STORE(settings_of_the_callers_connection_change_nothing),
        ON_A_STORE(connection_that_trusts_no_schema_works_or_is_told_what_to_do),
        ON_A_STORE(outbox_that_the_caller_has_attached_is_found),
        ON_A_STORE(event_that_a_trigger_swallows_is_an_error),
        ON_A_STORE(callers_connection_to_a_file_that_is_gone_is_refused),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    int failures = store_suite_run(&file, own, sizeof own / sizeof *own);
    return failures + store_suite_run(&memory, NULL, 0);
}
