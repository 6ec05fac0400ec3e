/* pg_ahead.c: reading ahead of the claims. Its cost is counted by the server, not timed. */
#include "pg.h"
#include "pg_tests.h"

#define PAYLOAD 100000
#define LARGE 200 /* events of that size: some ten times as many as a claim may hold */

/* turn settles the current batch, if any, and claims the next. */
static size_t turn(struct store_rig *g, struct store *st, const struct claim_request *req)
{
    struct error err;
    struct batch done = g->b;
    struct settlement s = {
        .consumer = req->consumer, .owner = req->owner, .order = req->order, .b = &done};
    bool lost = false;
    struct arena next;
    arena_init(&next, 0);
    must(st->ops->turn(st, done.n > 0 ? &s : NULL, &lost, req, &next, &g->b, &g->hint, &err), &err);
    assert_false(lost);
    arena_release(&g->a);
    g->a = next;
    return g->b.n;
}

static void selective_filter_reaches_its_event_in_few_turns(void **state)
{
    struct store_rig *g = *state;
    PGconn *db = pg_connect();
    struct filter *f;
    put(g->st, "c");
    struct claim_request req = refilter(g, "", "n = 18000", &f);
    req.max_events = 64;
    pg_do(db, "INSERT INTO event (type, payload) SELECT 'x', json_build_object('n', n) "
              "FROM generate_series(1, 20000) AS n");

    size_t turns = 1;
    while (turn(g, g->st, &req) == 0 && turns < 1000)
        turns++;
    assert_int_equal(g->b.n, 1);
    assert_in_range(turns, 1, 8); /* of 4,096 events each, and a few to begin with */

    filter_free(f);
    PQfinish(db);
}

#define PATIENCE 1000 /* of 10 ms, until the server has counted the blocks that a session read */

/* sessions counts those that work on this test's outbox. */
static int64_t sessions(PGconn *db)
{
    return pg_number(db,
                     "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                     "AND pid <> pg_backend_pid() "
                     "AND strpos(query, '%s') > 0",
                     pg_schema());
}

/* blocks_read returns how many blocks of large values sessions that have ended have read. */
static int64_t blocks_read(PGconn *db)
{
    return pg_number(db, "SELECT toast_blks_hit + toast_blks_read FROM pg_statio_user_tables "
                         "WHERE relid = 'event'::regclass");
}

/* read_apart lets another session read freely, and returns how many blocks that read. */
static int64_t read_apart(PGconn *db, const char *query)
{
    int64_t before = blocks_read(db);
    PGconn *other = pg_connect();
    pg_do(other, "%s", query);
    PQfinish(other);
    for (int i = 0; i < PATIENCE && (sessions(db) > 1 || blocks_read(db) == before); i++)
        pg_do(db, "SELECT pg_sleep(0.01)");
    return blocks_read(db) - before;
}

static void large_events_are_read_once(void **state)
{
    struct store_rig *g = *state;
    PGconn *db = pg_connect();
    struct error err;
    struct store *st;
    put(g->st, "c");
    struct claim_request req = request("c", "me");
    req.max_bytes = 2 << 20;
    /* A vacuum would read them, too. */
    pg_do(db, "ALTER TABLE event SET (autovacuum_enabled = off, toast.autovacuum_enabled = off)");
    pg_do(db,
          "INSERT INTO event (type, payload) SELECT 'x', to_json((SELECT string_agg(md5(n || '/' "
          "|| i), '') FROM generate_series(1, %d / 32) AS i)) FROM generate_series(1, %d) AS n",
          PAYLOAD, LARGE);
    /* A session reports its reads and writes at most once a second. This session must report its
     * writes before the reads of others are counted. */
    pg_do(db, "SELECT pg_stat_force_next_flush()");
    int64_t once = read_apart(db, "SELECT sum(length(payload::text)) FROM event");
    assert_true(once > LARGE);

    must(g->st->ops->dup(g->st, &st, &err), &err);
    int64_t before = blocks_read(db);
    size_t events = 0;
    for (size_t n; (n = turn(g, st, &req)) > 0;)
        events += n;
    assert_int_equal(events, LARGE);
    store_close(st);
    for (int i = 0; i < PATIENCE && (sessions(db) > 1 || blocks_read(db) - before < once); i++)
        pg_do(db, "SELECT pg_sleep(0.01)");
    assert_in_range(blocks_read(db) - before, once, once * 3 / 2);
    PQfinish(db);
}

static const struct CMUnitTest tests[] = {
    ON_A_STORE(selective_filter_reaches_its_event_in_few_turns),
    ON_A_STORE(large_events_are_read_once),
};
const struct suite_part pg_ahead_tests = SUITE_PART(tests);
