/* pg_waiting.c: events that must wait behind parked ones of their key: found by the server, or by a
 * worker that knows the keys. */
#include "pg.h"
#include "pg_tests.h"
#include "store/postgres/postgres.h"

#define KEYS 10
#define EVENTS 8000

/* ---- keys ---- */

static void assert_key(PGconn *db, const char *type, const char *id)
{
    int64_t there = pg_number(db, "SELECT _key('key', '%s', '%s')", type, id);
    assert_int_equal(pg_key(str_of(type), str_of(id)), there);
}

static void key_hash_matches_that_of_the_server(void **state)
{
    (void)state;
    PGconn *db = pg_connect();
    static const char text[] = "\xc3\xa4 key of any length, up to some forty bytes";
    for (size_t n = 2; n < sizeof text; n++) {
        char id[sizeof text];
        snprintf(id, n + 1, "%s", text);
        assert_key(db, "", id);
        assert_key(db, "order", id);
        assert_key(db, "eleven byte", id);
    }
    assert_key(db, "", "");
    assert_key(db, "order", "");
    assert_int_equal(pg_key(STR("order"), (struct str){NULL, 0}), 0);
    assert_int_equal(pg_number(db, "SELECT _knows_keys(%lld)::int", (long long)pg_key_sample()), 1);
    assert_int_equal(pg_number(db, "SELECT _knows_keys(1)::int"), 0);
    assert_int_equal(pg_number(db, "SELECT _knows_keys(NULL)::int"), 0);
    PQfinish(db);
}

/* ---- events ---- */

/* settle_and_claim parks the first event of the batch if `fail`, and the events waiting behind
 * others. */
static size_t settle_and_claim(struct store_rig *g, const struct claim_request *req, bool fail)
{
    static struct outcome out[EVENTS];
    struct error err;
    struct batch done = g->b;
    size_t n = 0;
    for (size_t i = 0; i < done.n; i++) {
        const struct event *ev = &done.ev[i];
        if (fail && i == 0)
            out[n++] = (struct outcome){.ev = ev,
                                        .kind = OUTCOME_RETRY,
                                        .attempts = 1,
                                        .delay_ms = 3600 * 1000,
                                        .error = "no"};
        else if (ev->behind || (fail && ev->key == done.ev[0].key))
            out[n++] = (struct outcome){.ev = ev, .kind = OUTCOME_BEHIND};
    }
    struct settlement s = {.consumer = req->consumer,
                           .owner = req->owner,
                           .order = req->order,
                           .b = &done,
                           .out = out,
                           .n = n};
    bool lost = false;
    struct arena next;
    arena_init(&next, 0);
    must(g->st->ops->turn(g->st, done.n > 0 ? &s : NULL, &lost, req, &next, &g->b, &g->hint, &err),
         &err);
    assert_false(lost);
    arena_release(&g->a);
    g->a = next;
    return g->b.n;
}

/* behind_the_first makes the first event fail, and returns how many of the others wait behind it:
 * those of its key, and no others. */
static size_t behind_the_first(struct store_rig *g)
{
    PGconn *db = pg_connect();
    struct filter *f;
    put(g->st, "c");
    struct claim_request req = refilter(g, "", "", &f);
    req.max_events = 500;
    pg_do(db,
          "INSERT INTO event (type, aggregate_type, aggregate_id) "
          "SELECT 'x', CASE n %% 3 WHEN 0 THEN 'order' ELSE '\xc3\xa4' END, 'id ' || n %% %d "
          "FROM generate_series(1, %d) AS n",
          KEYS, EVENTS);

    assert_true(settle_and_claim(g, &req, false) > 0);
    uint64_t failed = g->b.ev[0].key;
    bool first = true;
    size_t waiting = 0;
    while (settle_and_claim(g, &req, first) > 0) {
        first = false;
        for (size_t i = 0; i < g->b.n; i++) {
            assert_int_equal(g->b.ev[i].behind, g->b.ev[i].key == failed);
            waiting += g->b.ev[i].behind;
        }
    }
    filter_free(f);
    PQfinish(db);
    return waiting;
}

static void events_behind_a_parked_one_wait(void **state)
{
    assert_true(behind_the_first(*state) > EVENTS / KEYS / 4);
}

/* The same with a server that hashes differently, or stores text in another encoding. */
static void events_wait_if_the_worker_does_not_know_the_keys(void **state)
{
    PGconn *db = pg_connect();
    pg_do(db, "CREATE OR REPLACE FUNCTION _knows_keys(sample bigint) RETURNS boolean "
              "LANGUAGE sql STABLE RETURN false");
    assert_true(behind_the_first(*state) > EVENTS / KEYS / 4);
    PQfinish(db);
}

static const struct CMUnitTest tests[] = {
    ON_A_STORE(key_hash_matches_that_of_the_server),
    ON_A_STORE(events_behind_a_parked_one_wait),
    ON_A_STORE(events_wait_if_the_worker_does_not_know_the_keys),
};
const struct suite_part pg_waiting_tests = SUITE_PART(tests);
