/* pg_bell.c: the doorbell, as the store rings and hears it, one way to miss a ring at a time. */
#include <poll.h>
#include <pthread.h>

#include "pg.h"
#include "pg_tests.h"

static bool rings(struct store *st, int ms)
{
    struct pollfd fd = {.fd = st->ops->bell_fd(st), .events = POLLIN};
    assert_true(fd.fd >= 0);
    return poll(&fd, 1, ms) == 1;
}

/* look_on claims and settles on a handle, and says how many events there were; *nap is how soon it
 * must look again. */
static size_t look_on(struct store_rig *g, struct store *st, const char *consumer, int64_t *nap)
{
    struct error err;
    bool lost;
    struct claim_request req = request(consumer, consumer);
    arena_reset(&g->a);
    st->ops->bell_clear(st);
    must(st->ops->turn(st, NULL, NULL, &req, &g->a, &g->b, &g->hint, &err), &err);
    if (nap)
        *nap = g->hint.nap_ms;
    size_t n = g->b.n;
    struct settlement s = {.consumer = consumer, .owner = consumer, .order = ORDER_KEY, .b = &g->b};
    if (n)
        must(st->ops->turn(st, &s, &lost, NULL, NULL, NULL, NULL, &err), &err);
    return n;
}

static struct store *another(struct store *st)
{
    struct error err;
    struct store *other;
    must(st->ops->dup(st, &other, &err), &err);
    return other;
}

static void sleeper_hears_a_commit_and_nobody_notifies_one_who_is_awake(void **state)
{
    struct store_rig *g = *state;
    PGconn *db = pg_connect();
    put(g->st, "a");
    pass(10);
    assert_int_equal(look_on(g, g->st, "a", NULL), 0);
    assert_false(rings(g->st, 0));
    pg_do(db, "BEGIN; INSERT INTO event (type) VALUES ('x')");
    assert_false(rings(g->st, 0));
    pg_do(db, "COMMIT");
    assert_true(rings(g->st, 10000));
    assert_int_equal(look_on(g, g->st, "a", NULL), 1);
    pg_do(db, "INSERT INTO event (type) VALUES ('x')");
    assert_int_equal(
        pg_number(
            db,
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' "
            "AND pid <> pg_backend_pid() AND (classid::bigint << 32 | objid::bigint) = _bell_key()"),
        0);
    PQfinish(db);
}

static void one_who_would_sleep_while_somebody_is_about_to_commit_looks_again_soon(void **state)
{
    struct store_rig *g = *state;
    PGconn *db = pg_connect();
    int64_t nap;
    put(g->st, "a");
    pass(10);
    pg_do(db, "BEGIN; INSERT INTO event (type) VALUES ('x')");
    assert_int_equal(look_on(g, g->st, "a", &nap), 0);
    assert_in_range(nap, 1, 50);
    pg_do(db, "COMMIT");
    assert_int_equal(look_on(g, g->st, "a", NULL), 1);
    PQfinish(db);
}

struct turning {
    struct store_rig *g;
    size_t n;
};

static void *turn_in_thread(void *ctx)
{
    struct turning *t = ctx;
    t->n = look_on(t->g, t->g->st, "a", NULL);
    return NULL;
}

/* A commit that comes when the look has read its snapshot and not answered yet: the notification
 * comes along with the answer, and the socket has nothing left to tell. */
static void ring_that_comes_along_with_an_answer_is_heard(void **state)
{
    struct store_rig *g = *state;
    PGconn *db = pg_connect(), *gate = pg_connect();
    struct turning t = {.g = g};
    pthread_t thread;
    put(g->st, "a");
    pass(10);
    assert_int_equal(look_on(g, g->st, "a", NULL), 0); /* holds the lock now */
    pg_do(db,
          "ALTER FUNCTION _idle(consumer, boolean, timestamptz) RENAME TO idle_quick; CREATE "
          "FUNCTION _idle(consumer, boolean, "
          "timestamptz, OUT idle boolean, OUT due timestamptz, OUT through boolean) LANGUAGE "
          "plpgsql STABLE AS $$BEGIN SELECT q.* "
          "INTO idle, due, through FROM %s.idle_quick($1, $2, $3) q; PERFORM "
          "pg_advisory_xact_lock_shared(42424242); END$$",
          pg_schema());
    pg_do(gate, "BEGIN; SELECT pg_advisory_xact_lock(42424242)");
    assert_int_equal(pthread_create(&thread, NULL, turn_in_thread, &t), 0);
    while (pg_number(gate, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = "
                           "42424242 AND NOT "
                           "granted") == 0) {}
    pg_do(db, "INSERT INTO event (type) VALUES ('x')");
    pg_do(gate, "COMMIT");
    pthread_join(thread, NULL);
    assert_true(t.n == 1 || rings(g->st, 10000));
    assert_int_equal(t.n == 1 ? 1 : look_on(g, g->st, "a", NULL), 1);
    PQfinish(db);
    PQfinish(gate);
}

/* Two sleepers. The one that holds the lock gets up and takes its event; then somebody emits whom
 * nobody makes ring. */
static void listener_takes_the_place_of_a_holder_that_got_up(void **state)
{
    struct store_rig *g = *state;
    struct store *holder = another(g->st), *listener = another(g->st);
    PGconn *db = pg_connect();
    put(g->st, "a");
    put(g->st, "b");
    pass(10);
    assert_int_equal(look_on(g, holder, "a", NULL), 0);
    assert_int_equal(look_on(g, listener, "b", NULL), 0);
    pg_do(db, "INSERT INTO event (type) VALUES ('x')");
    assert_true(rings(holder, 10000));
    assert_int_equal(look_on(g, holder, "a", NULL), 1);
    assert_true(rings(listener, 10000));
    assert_int_equal(look_on(g, listener, "b", NULL), 1);
    pass(10);
    assert_int_equal(look_on(g, listener, "b", NULL), 0); /* holds the lock now */
    pg_do(db, "INSERT INTO event (type) VALUES ('y')");
    assert_true(rings(listener, 10000));
    assert_int_equal(look_on(g, listener, "b", NULL), 1);
    store_close(holder);
    store_close(listener);
    PQfinish(db);
}

static void listener_that_is_told_and_finds_nothing_does_not_sleep_behind_nobody(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct store *holder = another(g->st), *listener = another(g->st);
    struct consumer_spec some = {
        .name = "b", .events = "", .where = "", .retry = "fast", .order = ORDER_KEY, .lanes = 1};
    PGconn *db = pg_connect();
    put(g->st, "a");
    must(g->st->ops->consumer_put(g->st, &some, NULL, &err), &err);
    pass(10);
    assert_int_equal(look_on(g, holder, "a", NULL), 0);
    assert_int_equal(look_on(g, listener, "b", NULL), 0);
    pg_do(
        db,
        "UPDATE consumer SET paused = true WHERE name = 'b'"); /* so that it finds nothing where there is something */
    pg_do(db, "INSERT INTO event (type) VALUES ('x')");
    assert_true(rings(holder, 10000));
    assert_int_equal(look_on(g, holder, "a", NULL), 1); /* it has got up, and said so */
    assert_true(rings(listener, 10000));
    assert_int_equal(look_on(g, listener, "b", NULL), 0);
    pg_do(db, "UPDATE consumer SET paused = false WHERE name = 'b'");
    pg_do(db, "INSERT INTO event (type) VALUES ('y')");
    assert_true(rings(listener, 5000));
    assert_int_equal(look_on(g, listener, "b", NULL), 2);
    store_close(holder);
    store_close(listener);
    PQfinish(db);
}

/* The event comes without a ring, as it would where a retry falls due: only the one that gets up
 * can tell the others. */
static void holder_that_gets_up_by_itself_tells_the_listeners(void **state)
{
    struct store_rig *g = *state;
    struct store *holder = another(g->st), *listener = another(g->st);
    PGconn *db = pg_connect();
    put(g->st, "a");
    put(g->st, "b");
    pass(10);
    assert_int_equal(look_on(g, holder, "a", NULL), 0);
    assert_int_equal(look_on(g, listener, "b", NULL), 0);
    pg_do(db, "SET session_replication_role = replica; INSERT INTO event (type) VALUES ('x')");
    assert_false(rings(listener, 0));
    assert_int_equal(look_on(g, holder, "a", NULL), 1);
    assert_true(rings(listener, 10000));
    assert_int_equal(look_on(g, listener, "b", NULL), 1);
    store_close(holder);
    store_close(listener);
    PQfinish(db);
}

static void listener_takes_the_place_of_a_holder_that_died_when_its_time_is_up(void **state)
{
    struct store_rig *g = *state;
    struct store *holder = another(g->st), *listener = another(g->st);
    PGconn *db = pg_connect();
    int64_t nap;
    put(g->st, "a");
    put(g->st, "b");
    pass(10);
    assert_int_equal(look_on(g, holder, "a", &nap), 0);
    assert_int_equal(nap, 0);
    assert_int_equal(look_on(g, listener, "b", &nap), 0);
    assert_in_range(nap, 1000, 10000); /* nobody tells if the other dies */
    store_close(holder);
    while (pg_number(db, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = "
                         "'ExclusiveLock' AND "
                         "(classid::bigint << 32 | objid::bigint) = _bell_key()") > 0) {}
    assert_int_equal(look_on(g, listener, "b", &nap), 0);
    assert_int_equal(nap, 0);
    pg_do(db, "INSERT INTO event (type) VALUES ('y')");
    assert_true(rings(listener, 10000));
    store_close(listener);
    PQfinish(db);
}

static const struct CMUnitTest tests[] = {
    ON_A_STORE(sleeper_hears_a_commit_and_nobody_notifies_one_who_is_awake),
    ON_A_STORE(one_who_would_sleep_while_somebody_is_about_to_commit_looks_again_soon),
    ON_A_STORE(ring_that_comes_along_with_an_answer_is_heard),
    ON_A_STORE(listener_takes_the_place_of_a_holder_that_got_up),
    ON_A_STORE(listener_that_is_told_and_finds_nothing_does_not_sleep_behind_nobody),
    ON_A_STORE(holder_that_gets_up_by_itself_tells_the_listeners),
    ON_A_STORE(listener_takes_the_place_of_a_holder_that_died_when_its_time_is_up),
};
const struct store_tests pg_bell_tests = STORE_TESTS(tests);
