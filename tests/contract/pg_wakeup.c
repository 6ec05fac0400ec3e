/* pg_wakeup.c: wake-ups. Each test attacks one way in which a wake-up could be missed. */
#include <poll.h>
#include <pthread.h>

#include "pg.h"
#include "pg_tests.h"

static bool notified(struct store *st, int ms)
{
    struct pollfd fd = {.fd = st->ops->wake_fd(st), .events = POLLIN};
    assert_true(fd.fd >= 0);
    return poll(&fd, 1, ms) == 1;
}

/* look_on claims and settles on a handle, and returns the number of events. *nap, if not
 * NULL, is the time until the handle must poll again. */
static size_t look_on(struct store_rig *g, struct store *st, const char *consumer, int64_t *nap)
{
    struct error err;
    bool lost;
    struct claim_request req = request(consumer, consumer);
    arena_reset(&g->a);
    st->ops->wake_clear(st);
    must(st->ops->turn(st, NULL, NULL, &req, &g->a, &g->b, &g->hint, &err), &err);
    if (nap)
        *nap = g->hint.poll_in_ms;
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

/* Two handles of consumers a and b that have found no event and sleep. The holder owns the
 * wake-up lock, so that commits notify; the listener sleeps behind it. */
struct sleepers {
    struct store *holder, *listener;
    PGconn *db;                       /* of a producer */
    int64_t holder_nap, listener_nap; /* how soon they must poll again */
};

static struct sleepers two_sleepers(struct store_rig *g)
{
    struct sleepers s = {.holder = another(g->st), .listener = another(g->st), .db = pg_connect()};
    put(g->st, "a");
    put(g->st, "b");
    pass(10);
    assert_int_equal(look_on(g, s.holder, "a", &s.holder_nap), 0);
    assert_int_equal(look_on(g, s.listener, "b", &s.listener_nap), 0);
    return s;
}

static void sleepers_release(struct sleepers *s)
{
    store_close(s->holder);
    store_close(s->listener);
    PQfinish(s->db);
}

/* wakeup_locks counts the other sessions that hold the wake-up lock. */
static int64_t wakeup_locks(PGconn *db)
{
    return pg_number(db, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' "
                         "AND mode = 'ExclusiveLock' AND pid <> pg_backend_pid() "
                         "AND database = (SELECT oid FROM pg_database WHERE datname = "
                         "current_database()) "
                         "AND (classid::bigint << 32 | objid::bigint) = _wakeup_key()");
}

static void commit_notifies_sleeping_but_not_waking_workers(void **state)
{
    struct store_rig *g = *state;
    PGconn *db = pg_connect();
    put(g->st, "a");
    pass(10);
    assert_int_equal(look_on(g, g->st, "a", NULL), 0);
    assert_false(notified(g->st, 0));
    pg_do(db, "BEGIN; INSERT INTO event (type) SELECT 'x' FROM generate_series(1, 9)");
    assert_false(notified(g->st, 0));
    pg_do(db, "COMMIT");
    assert_true(notified(g->st, 10000));
    assert_int_equal(look_on(g, g->st, "a", NULL), 9);
    assert_false(g->hint.quiet);
    pg_do(db, "INSERT INTO event (type) VALUES ('x')");
    assert_int_equal(wakeup_locks(db), 0);
    PQfinish(db);
}

/* At a low rate, releasing and retaking the lock for each event would cost more than notifying. */
static void sleeper_that_finds_few_events_keeps_notifications_on(void **state)
{
    struct store_rig *g = *state;
    PGconn *db = pg_connect();
    put(g->st, "a");
    pass(10);
    assert_int_equal(look_on(g, g->st, "a", NULL), 0);
    for (int i = 0; i < 3; i++) {
        pg_do(db, "INSERT INTO event (type) VALUES ('x')");
        assert_true(notified(g->st, 10000));
        assert_int_equal(look_on(g, g->st, "a", NULL), 1);
        assert_true(g->hint.quiet);
        assert_int_equal(wakeup_locks(db), 1);
        assert_false(notified(g->st, 0));
    }
    PQfinish(db);
}

static void worker_about_to_sleep_during_a_commit_polls_again_soon(void **state)
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

/* A commit lands after the poll has read its snapshot and before it has answered: the notification
 * arrives along with the answer, and the socket signals nothing more. */
static void notification_arriving_with_an_answer_is_noticed(void **state)
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
                           "42424242 AND NOT granted AND database = (SELECT oid FROM "
                           "pg_database WHERE datname = current_database())") == 0) {}
    pg_do(db, "INSERT INTO event (type) VALUES ('x')");
    pg_do(gate, "COMMIT");
    pthread_join(thread, NULL);
    assert_true(t.n == 1 || notified(g->st, 10000));
    assert_int_equal(t.n == 1 ? 1 : look_on(g, g->st, "a", NULL), 1);
    PQfinish(db);
    PQfinish(gate);
}

/* The holder wakes and takes its event. Unless the listener takes the lock, the next producer does
 * not notify. */
static void listener_replaces_a_lock_holder_that_woke_up(void **state)
{
    struct store_rig *g = *state;
    struct sleepers s = two_sleepers(g);
    pg_do(s.db, "INSERT INTO event (type) VALUES ('x')");
    assert_true(notified(s.holder, 10000));
    assert_int_equal(look_on(g, s.holder, "a", NULL), 1);
    assert_true(notified(s.listener, 10000));
    assert_int_equal(look_on(g, s.listener, "b", NULL), 1);
    pass(10);
    assert_int_equal(look_on(g, s.listener, "b", NULL), 0); /* holds the lock now */
    pg_do(s.db, "INSERT INTO event (type) VALUES ('y')");
    assert_true(notified(s.listener, 10000));
    assert_int_equal(look_on(g, s.listener, "b", NULL), 1);
    sleepers_release(&s);
}

static void notified_listener_without_events_does_not_lose_its_lock(void **state)
{
    struct store_rig *g = *state;
    struct sleepers s = two_sleepers(g);
    /* Paused, it finds no event although one is stored. */
    pg_do(s.db, "UPDATE consumer SET paused = true WHERE name = 'b'");
    pg_do(s.db, "INSERT INTO event (type) VALUES ('x')");
    assert_true(notified(s.holder, 10000));
    assert_int_equal(look_on(g, s.holder, "a", NULL), 1); /* it has woken up and notified */
    assert_true(notified(s.listener, 10000));
    assert_int_equal(look_on(g, s.listener, "b", NULL), 0);
    pg_do(s.db, "UPDATE consumer SET paused = false WHERE name = 'b'");
    pg_do(s.db, "INSERT INTO event (type) VALUES ('y')");
    assert_true(notified(s.listener, 5000));
    assert_int_equal(look_on(g, s.listener, "b", NULL), 2);
    sleepers_release(&s);
}

/* The event arrives without a notification, as when a retry falls due: only the worker that wakes
 * can notify the others. An INSERT with an explicit xid notifies no worker. */
static void lock_holder_that_wakes_early_notifies_the_listeners(void **state)
{
    struct store_rig *g = *state;
    struct sleepers s = two_sleepers(g);
    pg_do(s.db, "INSERT INTO event (xid, type) VALUES (pg_current_xact_id(), 'x')");
    assert_false(notified(s.listener, 0));
    assert_int_equal(look_on(g, s.holder, "a", NULL), 1);
    assert_true(notified(s.listener, 10000));
    assert_int_equal(look_on(g, s.listener, "b", NULL), 1);
    sleepers_release(&s);
}

static void emit_without_triggers_also_notifies(void **state)
{
    struct store_rig *g = *state;
    struct sleepers s = two_sleepers(g);
    pg_do(s.db, "SET session_replication_role = replica; INSERT INTO event (type) VALUES ('x')");
    assert_true(notified(s.holder, 10000));
    assert_int_equal(look_on(g, s.holder, "a", NULL), 1);
    sleepers_release(&s);
}

static void listener_replaces_a_dead_lock_holder_after_its_timeout(void **state)
{
    struct store_rig *g = *state;
    struct sleepers s = two_sleepers(g);
    int64_t nap;
    assert_int_equal(s.holder_nap, 0);
    assert_in_range(s.listener_nap, 1000, 10000); /* if the holder dies, no notification is sent */
    store_close(s.holder);
    s.holder = NULL;
    while (wakeup_locks(s.db) > 0) {}
    assert_int_equal(look_on(g, s.listener, "b", &nap), 0);
    assert_int_equal(nap, 0);
    pg_do(s.db, "INSERT INTO event (type) VALUES ('y')");
    assert_true(notified(s.listener, 10000));
    sleepers_release(&s);
}

/* ---- looks of a relay ---- */

static void ignore(void *ctx, const struct event *ev)
{
    (void)ctx;
    (void)ev;
}

static struct watch_result glance(struct store *st)
{
    struct error err;
    struct watch_result found;
    st->ops->wake_clear(st);
    must(st->ops->poll_new(st, false, false, ignore, NULL, &found, &err), &err);
    return found;
}

static void busy_producers_make_workers_poll_less_and_delay_the_lock(void **state)
{
    struct store_rig *g = *state;
    PGconn *db = pg_connect();
    while (glance(g->st).wait_ms >= 0)
        pass(10);
    assert_int_equal(wakeup_locks(db), 1);

    static const char nine[] = "INSERT INTO event (type) SELECT 'x' FROM generate_series(1, 9)";
    static const int64_t ms[] = {1000, 2, 6}; /* since there were events before */
    static const int64_t wait[] = {2, 6, 2};
    for (size_t i = 0; i < sizeof ms / sizeof *ms; i++) {
        pass(ms[i]);
        pg_do(db, nine);
        struct watch_result found = glance(g->st);
        assert_int_equal(found.n, 9);
        assert_int_equal(found.wait_ms, wait[i]);
    }

    pass(9);
    assert_int_equal(glance(g->st).wait_ms, 2);
    assert_int_equal(wakeup_locks(db), 0);
    pass(1);
    glance(g->st);
    assert_int_equal(glance(g->st).wait_ms, -1);
    assert_int_equal(wakeup_locks(db), 1);
    PQfinish(db);
}

static const struct CMUnitTest tests[] = {
    ON_A_STORE(busy_producers_make_workers_poll_less_and_delay_the_lock),
    ON_A_STORE(commit_notifies_sleeping_but_not_waking_workers),
    ON_A_STORE(sleeper_that_finds_few_events_keeps_notifications_on),
    ON_A_STORE(worker_about_to_sleep_during_a_commit_polls_again_soon),
    ON_A_STORE(notification_arriving_with_an_answer_is_noticed),
    ON_A_STORE(listener_replaces_a_lock_holder_that_woke_up),
    ON_A_STORE(notified_listener_without_events_does_not_lose_its_lock),
    ON_A_STORE(lock_holder_that_wakes_early_notifies_the_listeners),
    ON_A_STORE(emit_without_triggers_also_notifies),
    ON_A_STORE(listener_replaces_a_dead_lock_holder_after_its_timeout),
};
const struct suite_part pg_wakeup_tests = SUITE_PART(tests);
