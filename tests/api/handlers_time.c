/* handlers_time.c: handlers that take long or hang, and several workers at once. */
#include <pthread.h>

#include "handlers_rig.h"

struct slow {
    atomic_int calls, blocked;
    atomic_bool go;
    int64_t ms;
    bool tx;
};

static outbox_verdict take_long(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    struct slow *s = ctx;
    if (s->tx && effect(tx, "slow", ev) != 0)
        return OUTBOX_RETRY;
    s->calls++;
    nap(s->ms);
    return OUTBOX_DONE;
}

static void long_handler_call_keeps_its_claim(void **state)
{
    static const struct {
        bool tx;
        int flags;
    } kinds[] = {{true, 0}, {false, OUTBOX_EXTERNAL}};
    emit(*state, 1);
    for (int i = 0; i < 2; i++) {
        struct slow s = {.ms = 700, .tx = kinds[i].tx};
        outbox_options o = logging();
        outbox *ob = db_open(&o);
        outbox_consumer *c = consumer(ob, i ? "c2" : "c1");
        OK(outbox_consumer_set(c, "lease", "200ms", &err));
        OK(outbox_add_handler(c, "slow", "e", take_long, &s, kinds[i].flags, &err));
        through(ob);
        outbox_close(ob);
        assert_int_equal(s.calls, 1);
        assert_int_equal(db_number("SELECT count(*) FROM @effect"), 1);
        assert_int_equal(db_number("SELECT count(*) FROM @handled"), i + 1);
    }
    assert_false(logged("lost"));
}

static outbox_verdict hang_once(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    struct slow *s = ctx;
    if (s->tx && effect(tx, "slow", ev) != 0)
        return OUTBOX_RETRY;
    if (s->calls++ == 0) {
        s->blocked = 1;
        while (!s->go)
            nap(2);
    }
    return OUTBOX_DONE;
}

struct running {
    outbox *ob;
    pthread_t thread;
    int result;
};

static void *run(void *arg)
{
    struct running *r = arg;
    r->result = outbox_run(r->ob, 0, NULL);
    return NULL;
}

static void await(atomic_int *what)
{
    for (int i = 0; i < 30000 && !*what; i++)
        nap(2);
    assert_true(*what);
}

static void await_number(const char *sql, long n)
{
    for (int i = 0; i < 6000 && db_number(sql) != n; i++)
        nap(10);
    assert_int_equal(db_number(sql), n);
}

/* There are two workers, as in two processes. The first hangs, the second takes over, and the first
 * one's changes are undone. */
static void call_hanging_past_its_time_limit_is_abandoned(void **state)
{
    struct slow s = {.tx = !db_one_writer};
    struct running r[2];
    outbox_consumer *c[2];
    (void)state;
    for (int i = 0; i < 2; i++) {
        outbox_options o = logging();
        r[i].ob = db_open(&o);
        c[i] = consumer(r[i].ob, "c");
        OK(outbox_consumer_set(c[i], "lease", i == 0 ? "200ms" : "30s", &err));
        OK(outbox_consumer_set(c[i], "timeout", i == 0 ? "300ms" : "30s", &err));
        OK(outbox_add_handler(c[i], "slow", "e", hang_once, &s, db_one_writer ? OUTBOX_EXTERNAL : 0,
                              &err));
        if (i == 0)
            emit(r[i].ob, 1);
        assert_int_equal(pthread_create(&r[i].thread, NULL, run, &r[i]), 0);
        if (i == 0)
            await(&s.blocked);
    }
    await_number("SELECT count(*) FROM @handled", 1);
    s.go = true;
    for (int i = 0; i < 2; i++)
        outbox_stop(r[i].ob);
    for (int i = 0; i < 2; i++) {
        outbox_stats stats = OUTBOX_STATS_INIT;
        pthread_join(r[i].thread, NULL);
        assert_int_equal(r[i].result, 0);
        OK(outbox_consumer_stats(c[i], &stats, &err));
        assert_int_equal(stats.given_up, i == 0);
        assert_int_equal(stats.lost, i == 0);
        /* An external handler has acted nevertheless. */
        assert_int_equal(stats.delivered, i == 1 || db_one_writer);
        outbox_close(r[i].ob);
    }
    assert_int_equal(s.calls, 2);
    assert_int_equal(db_number("SELECT count(*) FROM @handled"), 1);
    assert_int_equal(db_number("SELECT count(*) FROM @effect"), db_one_writer ? 0 : 1);
    assert_true(logged("time limit"));
    assert_true(logged("is lost"));
}

#define EVENTS 2000
#define KEYS 50

static outbox_verdict now_and_then(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    int call = (*(atomic_int *)ctx)++;
    if (effect(tx, "many", ev) != 0)
        return outbox_fail(tx, OUTBOX_RETRY, "no effect");
    return call % 97 == 13 ? outbox_fail(tx, OUTBOX_RETRY, "now and then") : OUTBOX_DONE;
}

static void many_workers_share_the_work(void **state)
{
    atomic_int calls = 0;
    outbox *ob[2] = {*state, db_open(NULL)};
    struct running other = {.ob = ob[1]};
    for (int i = 0; i < 2; i++) {
        outbox_consumer *c = consumer(ob[i], "c");
        OK(outbox_consumer_set(c, "workers", "4", &err));
        OK(outbox_consumer_set(c, "lanes", "8", &err));
        OK(outbox_consumer_set(c, "retry", "base=1ms,cap=1ms,attempts=50,jitter=none,outage=0s",
                               &err));
        OK(outbox_add_handler(c, "many", "e", now_and_then, &calls, 0, &err));
    }
    OK(outbox_begin(ob[0], &err));
    for (int i = 0; i < EVENTS; i++) {
        char key[16], text[16];
        snprintf(key, sizeof key, "%d", i % KEYS);
        snprintf(text, sizeof text, "%d", i);
        emit_one(ob[0], "e", key, text);
    }
    OK(outbox_commit(ob[0], &err));
    assert_int_equal(pthread_create(&other.thread, NULL, run, &other), 0);
    through(ob[0]);
    outbox_stop(ob[1]);
    pthread_join(other.thread, NULL);
    outbox_close(ob[1]);
    exact("many", EVENTS, -1);
    assert_int_equal(db_number("SELECT count(*) FROM @effect a JOIN @effect b ON CAST(a.key AS "
                               "int) % 50 = CAST(b.key AS int) "
                               "% 50 AND a.at < b.at AND CAST(a.key AS int) > CAST(b.key AS int)"),
                     0);
    assert_int_equal(db_number("SELECT count(*) FROM @dead"), 0);
}

static const struct CMUnitTest tests[] = {
    ON(long_handler_call_keeps_its_claim),
    ON(call_hanging_past_its_time_limit_is_abandoned),
    ON(many_workers_share_the_work),
};

const struct suite_part handlers_time_tests = SUITE_PART(tests);
