/* pg_lanes.c: lanes at the same position are claimed as a group, and an idle worker gets part of
 * it. */
#include "lane_workers.h"
#include "pg.h"
#include "pg_tests.h"

#define ALONE 20 /* turns of a worker, until its lanes have the same position */

/* has_key tells whether a batch has an event of this key. */
static bool has_key(const struct batch *b, struct str key)
{
    for (size_t i = 0; i < b->n; i++) {
        if (str_eq(b->ev[i].aggregate_id, key))
            return true;
    }
    return false;
}

static void insert_events(void)
{
    PGconn *db = pg_connect();
    pg_do(db,
          "INSERT INTO event (type, aggregate_type, aggregate_id) SELECT 't', 'k', i %% %d "
          "FROM generate_series(1, %d) AS i",
          KEYS, EVENTS);
    PQfinish(db);
}

static void fill(struct store_rig *g, int lanes)
{
    put_as(g->st, "c", ORDER_KEY, lanes);
    insert_events();
}

static void many_lanes_need_barely_more_turns_than_one(void **state)
{
    struct store_rig *g = *state;
    static struct book k;
    size_t turns = 0;
    k = (struct book){0};
    fill(g, 64);
    struct worker w = hire(g, "me", 64, 150);
    while (k.n < EVENTS && turns < 1000) {
        step(&w, 0);
        enter(&k, &w.b);
        turns++;
    }
    assert_int_equal(k.n, EVENTS);
    assert_in_range(turns, EVENTS / 150, EVENTS / 150 + 15);
    dismiss(&w);
}

/* lanes_of counts the lanes that the claims of a worker cover. */
static int64_t lanes_of(const struct worker *w)
{
    PGconn *db = pg_connect();
    int64_t n = pg_number(db,
                          "SELECT count(*) FROM generate_series(0, 63) n WHERE EXISTS (SELECT 1 "
                          "FROM claim k WHERE k.owner = '%s' AND _is_member(k.members, k.lane, n))",
                          w->name);
    PQfinish(db);
    return n;
}

static void sole_worker_of_a_new_consumer_gets_all_lanes_at_once(void **state)
{
    struct store_rig *g = *state;
    static struct book k;
    k = (struct book){0};
    fill(g, 64);
    struct worker a = hire(g, "a", 64, 100);
    struct worker b = hire(g, "b", 64, 100);
    a.sole = true;
    b.sole = true;
    assert_int_equal(step(&a, 0), 100);
    assert_int_equal(lanes_of(&a), 64);
    enter(&k, &a.b);

    /* A later worker gets its share as usual. */
    assert_int_equal(step(&b, 0), 0);
    assert_true(b.hint.busy);
    assert_int_equal(step(&a, 0), 100);
    enter(&k, &a.b);
    assert_true(step(&b, 0) > 0);
    enter(&k, &b.b);
    assert_int_equal(lanes_of(&a) + lanes_of(&b), 64);
    for (int i = 0; i < 200 && k.n < EVENTS; i++) {
        struct worker *w = i % 2 ? &a : &b;
        step(w, 0);
        enter(&k, &w->b);
    }
    assert_int_equal(k.n, EVENTS);
    dismiss(&a);
    dismiss(&b);
}

/* Of two workers that share the work, neither may start with all lanes. */
static void workers_starting_together_take_one_lane_each(void **state)
{
    struct store_rig *g = *state;
    fill(g, 4);
    struct worker a = hire(g, "a", 4, 100);
    struct worker b = hire(g, "b", 4, 100);
    assert_true(step(&a, 0) > 0);
    assert_true(step(&b, 0) > 0);
    assert_int_equal(lanes_of(&a), 1);
    assert_int_equal(lanes_of(&b), 1);
    dismiss(&a);
    dismiss(&b);
}

/* A waking relay does not take the lanes that another works on. */
static void sole_worker_keeps_the_lanes_of_an_older_consumer(void **state)
{
    struct store_rig *g = *state;
    fill(g, 4);
    struct worker a = hire(g, "a", 4, EVENTS);
    for (int i = 0; i < 4; i++) { /* each lane on its own */
        assert_true(step(&a, 0) > 0);
        a.max = 0;
        step(&a, 0);
        a.max = EVENTS;
    }
    insert_events();
    a.sole = true;
    assert_true(step(&a, 0) > 0);
    assert_int_equal(lanes_of(&a), 1);
    dismiss(&a);
}

static void idle_worker_takes_lanes_from_a_busy_one(void **state)
{
    struct store_rig *g = *state;
    static struct book k;
    k = (struct book){0};
    fill(g, 16);
    struct worker a = hire(g, "a", 16, 100);
    struct worker b = hire(g, "b", 16, 100);
    for (int i = 0; i < ALONE; i++) {
        assert_true(step(&a, 0) > 0);
        enter(&k, &a.b);
    }
    assert_int_equal(a.b.n, 100); /* of all lanes */
    assert_int_equal(step(&b, 0), 0);
    assert_true(b.hint.busy);
    assert_in_range(b.hint.wait_ms, 1, 1000);
    assert_true(step(&a, 0) > 0);
    enter(&k, &a.b);
    assert_true(step(&b, 0) > 0);
    enter(&k, &b.b);
    for (size_t i = 0; i < a.b.n; i++)
        assert_false(has_key(&b.b, a.b.ev[i].aggregate_id));

    for (int i = 0; i < 200 && k.n < EVENTS; i++) {
        struct worker *w = i % 3 ? &a : &b;
        step(w, 0);
        enter(&k, &w->b);
    }
    assert_int_equal(k.n, EVENTS);
    dismiss(&a);
    dismiss(&b);
}

/* Several relays start while the first has all lanes: the next poll gives each of them some. */
static void workers_arriving_together_all_take_lanes_from_the_first(void **state)
{
    struct store_rig *g = *state;
    static const char *const names[] = {"a", "b", "c", "d"};
    struct worker w[4];
    fill(g, 4);
    for (size_t i = 0; i < COUNT(w); i++) {
        w[i] = hire(g, names[i], 4, 8);
        w[i].sole = true;
        assert_int_equal(step(&w[i], 0), i == 0 ? 8 : 0);
        if (i > 0)
            assert_in_range(w[i].hint.wait_ms, 1, 50);
    }
    for (size_t i = 0; i < COUNT(w); i++) {
        assert_true(step(&w[i], 0) > 0);
        assert_int_equal(lanes_of(&w[i]), 1);
    }
    for (size_t i = 0; i < COUNT(w); i++)
        dismiss(&w[i]);
}

static void events_released_from_split_lanes_are_not_lost(void **state)
{
    struct store_rig *g = *state;
    static struct book k;
    k = (struct book){0};
    fill(g, 16);
    struct worker a = hire(g, "a", 16, 100);
    struct worker b = hire(g, "b", 16, 100);
    for (int i = 0; i < ALONE; i++) {
        enter(&k, &a.b);
        assert_true(step(&a, 0) > 0);
    }
    assert_int_equal(step(&b, 0), 0);
    a.max = 0;
    assert_int_equal(step(&a, a.b.ev[0].seq), 0);
    a.max = 100;
    while (step(&a, 0) > 0)
        enter(&k, &a.b);
    assert_true(k.n < EVENTS);
    assert_false(a.hint.through); /* some lanes are kept for b */
    pass(10000);                  /* the lanes reserved for b no longer are */
    for (int i = 0; i < 1000 && k.n < EVENTS; i++) {
        step(&a, 0);
        enter(&k, &a.b);
    }
    assert_int_equal(k.n, EVENTS);
    dismiss(&a);
    dismiss(&b);
}

static const struct CMUnitTest tests[] = {
    ON_A_STORE(many_lanes_need_barely_more_turns_than_one),
    ON_A_STORE(sole_worker_of_a_new_consumer_gets_all_lanes_at_once),
    ON_A_STORE(workers_starting_together_take_one_lane_each),
    ON_A_STORE(sole_worker_keeps_the_lanes_of_an_older_consumer),
    ON_A_STORE(idle_worker_takes_lanes_from_a_busy_one),
    ON_A_STORE(workers_arriving_together_all_take_lanes_from_the_first),
    ON_A_STORE(events_released_from_split_lanes_are_not_lost),
};
const struct suite_part pg_lanes_tests = SUITE_PART(tests);
