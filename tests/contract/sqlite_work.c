/* sqlite_work.c: how much work SQLite does, counted in instructions of its virtual machine, which
 * are the same on any computer. */
#include "lite.h"
#include "sqlite_tests.h"

#define STEP 10 /* instructions from one count to the next */

static int count_step(void *ctx)
{
    ++*(int64_t *)ctx;
    return 0;
}

/* bury_all turns n events of consumer c, each of another key, into dead letters. */
static void bury_all(struct store_rig *g, int n)
{
    struct outcome out[100];
    for (int i = 0; i < n; i++) {
        char key[16];
        snprintf(key, sizeof key, "%d", i);
        emit(g->st, key);
    }
    while (claim(g, "c") > 0) {
        assert_true(g->b.n <= COUNT(out));
        for (size_t i = 0; i < g->b.n; i++)
            out[i] = dead(g, i, 1);
        assert_true(settle(g, "c", out, g->b.n));
    }
}

/* redelivered retries n letters, delivers them, and returns the work in steps. */
static int64_t redelivered(struct store_rig *g, int n)
{
    int64_t steps = 0;
    int delivered = 0;
    bury_all(g, n);
    sqlite3_progress_handler(sqlite_handle(g->st), STEP, count_step, &steps);
    assert_int_equal(retry_dead(g, (struct dead_query){.consumer = "c"}), n);
    while (claim(g, "c") > 0) {
        delivered += (int)g->b.n;
        assert_true(settle(g, "c", NULL, 0));
    }
    sqlite3_progress_handler(sqlite_handle(g->st), 0, NULL, NULL);
    assert_int_equal(delivered, n);
    return steps;
}

static void cost_per_retried_dead_letter_is_constant(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    int64_t few = redelivered(g, 200), many = redelivered(g, 1600);
    if (many > 10 * few)
        fail_msg("200 dead letters need %lld steps, 1,600 need %lld", (long long)few,
                 (long long)many);
}

/* claimed_again parks an event of consumer c, claims it again beside `fresh` new ones, and returns
 * the memory that the claim needed. */
static size_t claimed_again(struct store_rig *g, int fresh)
{
    struct claim_request req = request("c", "me");
    req.parked_first = true;
    emit(g->st, "k");
    assert_int_equal(claim_by(g, req), 1);
    struct outcome o = failed(g, 0, 1, 10);
    assert_true(settle(g, "c", &o, 1));
    for (int i = 0; i < fresh; i++)
        emit(g->st, "other");
    pass(20);
    assert_int_equal(claim_by(g, req), 1);
    assert_true(g->b.parked);
    assert_true(settle(g, "c", NULL, 0));
    return g->a.used;
}

static void claim_of_a_parked_event_does_not_read_new_ones(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    size_t alone = claimed_again(g, 0);
    assert_int_equal(claimed_again(g, 5), alone);
}

/* claimed_beside parks events of n keys, claims and settles others for a while, and then returns
 * the work of claiming ten more. */
static int64_t claimed_beside(struct store_rig *g, const char *consumer, int n)
{
    int64_t steps = 0;
    put(g->st, consumer);
    while (claim(g, consumer) > 0)
        assert_true(settle(g, consumer, NULL, 0));
    for (int i = 0; i < n; i++) {
        char key[16];
        snprintf(key, sizeof key, "%d", i);
        emit(g->st, key);
        assert_int_equal(claim(g, consumer), 1);
        struct outcome o = failed(g, 0, 1, 3600000);
        assert_true(settle(g, consumer, &o, 1));
    }
    for (int i = 0; i <= 20; i++) {
        for (int k = 0; k < 10; k++)
            emit(g->st, "another");
        if (i == 20)
            sqlite3_progress_handler(sqlite_handle(g->st), STEP, count_step, &steps);
        assert_int_equal(claim(g, consumer), 10);
        sqlite3_progress_handler(sqlite_handle(g->st), 0, NULL, NULL);
        assert_true(settle(g, consumer, NULL, 0));
    }
    return steps;
}

static void claim_cost_does_not_depend_on_parked_events(void **state)
{
    struct store_rig *g = *state;
    int64_t few = claimed_beside(g, "a", 3);
    int64_t many = claimed_beside(g, "b", 100);
    if (many > few + 2)
        fail_msg("beside 3 parked events: %lld steps, beside 100: %lld", (long long)few,
                 (long long)many);
}

enum { LANES = 8, EVENTS = 4000 };

/* emit_many emits events of 50 keys in one transaction. */
static void emit_many(struct store_rig *g, int n)
{
    struct error err;
    must(g->st->ops->begin(g->st, &err), &err);
    for (int i = 0; i < n; i++) {
        char key[16];
        snprintf(key, sizeof key, "%d", i % 50);
        emit(g->st, key);
    }
    must(g->st->ops->commit(g->st, &err), &err);
}

/* next_lane claims the events of the lane, or of another lane if this one has none. */
static size_t next_lane(struct store_rig *g, const char *consumer, int lanes, int lane)
{
    struct claim_request req = request_as(consumer, "me", ORDER_KEY, lanes);
    req.lane_hint = lane;
    req.max_events = 100;
    return claim_by(g, req);
}

/* drained delivers n events by so many lanes in turn: each once, those of a key in order. It
 * returns the work in steps. */
static int64_t drained(struct store_rig *g, const char *consumer, int lanes, int n)
{
    int64_t steps = 0, last[50] = {0};
    int got = 0;
    put_as(g->st, consumer, ORDER_KEY, lanes);
    sqlite3_progress_handler(sqlite_handle(g->st), STEP, count_step, &steps);
    for (int lane = 0; next_lane(g, consumer, lanes, lane) > 0; lane = (g->b.lane + 1) % lanes) {
        for (size_t i = 0; i < g->b.n; i++) {
            int key = atoi(g->b.ev[i].aggregate_id.p);
            assert_true(g->b.ev[i].seq > last[key]);
            last[key] = g->b.ev[i].seq;
        }
        got += (int)g->b.n;
        assert_true(settle(g, consumer, NULL, 0));
    }
    sqlite3_progress_handler(sqlite_handle(g->st), 0, NULL, NULL);
    assert_int_equal(got, n);
    return steps;
}

static void lanes_of_one_worker_read_each_event_once(void **state)
{
    struct store_rig *g = *state;
    emit_many(g, EVENTS);
    int64_t one = drained(g, "one", 1, EVENTS), many = drained(g, "many", LANES, EVENTS);
    if (many > 2 * one)
        fail_msg("one lane needs %lld steps, 8 need %lld", (long long)one, (long long)many);
}

/* Events read ahead for other lanes have numbers that were reused. */
static void events_with_reused_numbers_are_distinguished(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    sqlite3 *db = lite_connect();
    emit_many(g, EVENTS);
    put_as(g->st, "c", ORDER_KEY, LANES);
    for (int lane = 0; lane < LANES / 2; lane++) {
        assert_int_equal(next_lane(g, "c", LANES, lane), 100);
        assert_true(settle(g, "c", NULL, 0));
    }
    lite_force(db,
               "DELETE FROM outbox_event; DELETE FROM sqlite_sequence WHERE name = 'outbox_event'");
    sqlite3_close(db);
    emit_many(g, EVENTS);

    bool seen[EVENTS] = {0};
    size_t left = EVENTS;
    int told = 0;
    for (int lane = LANES / 2;; lane = (lane + 1) % LANES) {
        struct claim_request req = request_as("c", "me", ORDER_KEY, LANES);
        req.lane_hint = lane;
        req.max_events = lane % 2 ? 20 : 100; /* all or only some of which were read before */
        struct claim_hint hint;
        arena_reset(&g->a);
        if (g->st->ops->turn(g->st, NULL, NULL, &req, &g->a, &g->b, &hint, &err) != 0) {
            assert_int_equal(err.code, ERR_CONFLICT);
            assert_int_equal(told++, 0);
            continue;
        }
        if (g->b.n == 0)
            break;
        for (size_t i = 0; i < g->b.n; i++) {
            char sql[128];
            snprintf(sql, sizeof sql, "SELECT seq FROM outbox_event WHERE id = '%s'",
                     g->b.ev[i].id.p);
            assert_int_equal(lite_count(g->st, sql), g->b.ev[i].seq);
            bool *it = &seen[g->b.ev[i].seq % EVENTS];
            left -= *it ? 0 : 1;
            *it = true;
        }
        assert_true(settle(g, "c", NULL, 0));
    }
    assert_int_equal(told, 1);
    assert_int_equal(left, 0);
}

static const struct CMUnitTest tests[] = {
    ON_A_STORE(lanes_of_one_worker_read_each_event_once),
    ON_A_STORE(events_with_reused_numbers_are_distinguished),
    ON_A_STORE(claim_of_a_parked_event_does_not_read_new_ones),
    ON_A_STORE(claim_cost_does_not_depend_on_parked_events),
    ON_A_STORE(cost_per_retried_dead_letter_is_constant),
};
const struct suite_part sqlite_work_tests = SUITE_PART(tests);
