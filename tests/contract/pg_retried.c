/* pg_retried.c: failed events, parked as sets and retried in simple turns. */
#include "pg.h"
#include "pg_tests.h"
#include "store/postgres/postgres.h"

#define KEYS 1000
#define EVENTS 8000
#define BATCH 500

/* A worker of consumer c that has claimed new events, and reads on. */
struct worker {
    struct store_rig *g;
    struct filter *f;
    struct claim_request req;
    PGconn *db;
    struct outcome out[EVENTS];
    size_t n_out;
};

/* turn settles the worker's batch with its outcomes and claims the next. */
static size_t turn(struct worker *w, bool parked_first)
{
    struct store_rig *g = w->g;
    struct error err;
    struct batch done = g->b;
    struct settlement s = {.consumer = "c",
                           .owner = w->req.owner,
                           .order = w->req.order,
                           .b = &done,
                           .out = w->out,
                           .n = w->n_out};
    bool lost = false;
    struct arena next;
    arena_init(&next, 0);
    w->req.parked_first = parked_first;
    must(g->st->ops->turn(g->st, done.n > 0 ? &s : NULL, &lost, &w->req, &next, &g->b, &g->hint,
                          &err),
         &err);
    assert_false(lost);
    arena_release(&g->a);
    g->a = next;
    w->n_out = 0;
    return g->b.n;
}

static void let_fail(struct worker *w, size_t i, int attempts)
{
    w->out[w->n_out++] = (struct outcome){.ev = &w->g->b.ev[i],
                                          .kind = OUTCOME_RETRY,
                                          .attempts = attempts,
                                          .proven = true,
                                          .delay_ms = 1000 + (int64_t)i,
                                          .error = i % 2 ? "no" : "not now"};
}

/* Makes every turn fail that _turn_next does not make. */
static void no_full_turn(struct worker *w)
{
    pg_do(w->db, "CREATE OR REPLACE FUNCTION _turn_full(q _request, head bigint) RETURNS _answer "
                 "LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''this is a full turn''; END'");
}

/* start emits EVENTS events, of KEYS keys in turn, and claims the second batch, for which the store
 * reads ahead. */
static struct worker *start(struct store_rig *g)
{
    struct worker *w = calloc(1, sizeof *w);
    *w = (struct worker){.g = g, .db = pg_connect()};
    put(g->st, "c");
    w->req = refilter(g, "", "", &w->f);
    w->req.max_events = BATCH;
    pg_do(w->db,
          "INSERT INTO event (type, aggregate_type, aggregate_id) "
          "SELECT 'x', 'order', 'id ' || n %% %d FROM generate_series(1, %d) AS n",
          KEYS, EVENTS);
    assert_int_equal(turn(w, false), BATCH);
    assert_int_equal(turn(w, false), BATCH);
    return w;
}

static void end(struct worker *w)
{
    filter_free(w->f);
    PQfinish(w->db);
    free(w);
}

/* ---- parking ---- */

static void failed_event_is_parked_with_its_key_and_its_own_delay(void **state)
{
    struct worker *w = start(*state);
    no_full_turn(w);
    int64_t first = w->g->b.ev[0].seq;
    let_fail(w, 0, 1);
    let_fail(w, 3, 1);
    let_fail(w, 4, 1);
    assert_int_equal(turn(w, false), BATCH);
    assert_int_equal(pg_number(w->db, "SELECT count(*) FROM parked p JOIN event e USING (seq) "
                                      "WHERE p.key = _key('key', e.aggregate_type, "
                                      "e.aggregate_id) AND p.attempts = 1 AND p.proven "
                                      "AND p.failing_since = p.failed_at AND p.due_at = "
                                      "p.failed_at + p.wait"),
                     3);
    assert_int_equal(pg_number(w->db,
                               "SELECT count(*) FROM parked p WHERE p.wait = "
                               "(1000 + p.seq - %lld) * interval '1 ms' AND p.error = "
                               "CASE WHEN p.seq = %lld THEN 'no' ELSE 'not now' END",
                               (long long)first, (long long)first + 3),
                     3);
    end(w);
}

/* Neither of the two has a due time: one waits behind an event of its batch, one behind an
 * event parked earlier. */
static void event_waiting_behind_its_key_is_parked_without_a_due_time(void **state)
{
    struct worker *w = start(*state);
    no_full_turn(w);
    let_fail(w, 0, 1);
    assert_int_equal(turn(w, false), BATCH);
    assert_int_equal(turn(w, false), BATCH);
    struct event *ev = w->g->b.ev;
    assert_true(ev[0].behind);
    w->out[w->n_out++] = (struct outcome){.ev = &ev[0], .kind = OUTCOME_BEHIND};
    ev[2].aggregate_id = ev[1].aggregate_id; /* as if it had that key */
    let_fail(w, 1, 1);
    w->out[w->n_out++] = (struct outcome){.ev = &ev[2], .kind = OUTCOME_BEHIND};
    assert_int_equal(turn(w, false), BATCH);
    assert_int_equal(pg_number(w->db, "SELECT count(*) FROM parked WHERE due_at IS NULL"), 2);
    assert_int_equal(pg_number(w->db, "SELECT count(*) FROM parked WHERE due_at IS NOT NULL"), 2);
    end(w);
}

/* A server with another hash function behaves like this: it looks the keys up. */
static void keys_unknown_to_the_server_are_looked_up(void **state)
{
    struct worker *w = start(*state);
    pg_do(w->db, "CREATE OR REPLACE FUNCTION _knows_keys(sample bigint) RETURNS boolean "
                 "LANGUAGE sql STABLE RETURN false");
    let_fail(w, 0, 1);
    let_fail(w, 3, 1);
    assert_int_equal(turn(w, false), BATCH);
    assert_int_equal(pg_number(w->db, "SELECT count(*) FROM parked p JOIN event e USING (seq) "
                                      "WHERE p.key = _key('key', e.aggregate_type, "
                                      "e.aggregate_id) AND p.attempts = 1 AND p.proven "
                                      "AND p.due_at = p.failed_at + p.wait "
                                      "AND p.error IN ('no', 'not now')"),
                     2);
    end(w);
}

static void outcome_of_an_event_outside_the_claim_is_refused(void **state)
{
    struct worker *w = start(*state);
    struct error err;
    struct event other = w->g->b.ev[0];
    other.seq = w->g->b.to + 1;
    w->out[0] = (struct outcome){.ev = &other, .kind = OUTCOME_RETRY, .attempts = 1};
    struct settlement s = {.consumer = "c",
                           .owner = w->req.owner,
                           .order = w->req.order,
                           .b = &w->g->b,
                           .out = w->out,
                           .n = 1};
    struct batch none;
    bool lost;
    assert_int_equal(
        w->g->st->ops->turn(w->g->st, &s, &lost, &w->req, &w->g->a, &none, &w->g->hint, &err), -1);
    assert_non_null(strstr(err.text, "is not in claim"));
    assert_int_equal(pg_number(w->db, "SELECT count(*) FROM parked"), 0);
    end(w);
}

/* ---- trying again ---- */

static void parked_events_are_retried_between_new_ones(void **state)
{
    struct worker *w = start(*state);
    no_full_turn(w);
    int64_t seq = w->g->b.ev[0].seq;
    let_fail(w, 0, 1);
    let_fail(w, 3, 1);
    assert_int_equal(turn(w, false), BATCH);
    assert_int_equal(turn(w, false), BATCH);
    assert_true(w->g->b.ev[0].behind);
    w->out[w->n_out++] = (struct outcome){.ev = &w->g->b.ev[0], .kind = OUTCOME_BEHIND};
    w->out[w->n_out++] = (struct outcome){.ev = &w->g->b.ev[3], .kind = OUTCOME_BEHIND};
    int64_t to = w->g->b.to;
    pass(1002);

    /* The first is due, with the events waiting behind it; the other is not due yet. */
    assert_int_equal(turn(w, true), 1);
    assert_true(w->g->b.parked);
    assert_int_equal(w->g->b.ev[0].seq, seq);
    assert_int_equal(w->g->b.ev[0].attempts, 1);
    assert_int_equal(w->g->b.ev[0].failing_ms, 1002);
    assert_true(w->g->b.ev[0].proven);
    assert_int_equal(look(w->g, "c").claims, 1);

    /* It is delivered. Its followers are due, and the claims of new events continue. */
    assert_int_equal(turn(w, false), BATCH);
    assert_false(w->g->b.parked);
    assert_int_equal(w->g->b.from, to);
    assert_int_equal(pg_number(w->db, "SELECT count(*) FROM parked"), 3);
    assert_int_equal(pg_number(w->db, "SELECT count(*) FROM parked WHERE due_at IS NULL"), 1);
    assert_int_equal(look(w->g, "c").delivered, 4 * BATCH - 3);

    /* Now both keys are due, one with the event behind its first. */
    pass(10);
    assert_int_equal(turn(w, true), 3);
    assert_true(w->g->b.ev[0].seq < w->g->b.ev[1].seq);
    assert_true(w->g->b.ev[1].seq < w->g->b.ev[2].seq);
    assert_int_equal(w->g->b.ev[1].attempts, 0);
    assert_int_equal(turn(w, false), BATCH);
    assert_int_equal(pg_number(w->db, "SELECT count(*) FROM parked"), 0);
    assert_int_equal(pg_number(w->db, "SELECT count(*) FROM claim"), 1);
    end(w);
}

static void each_repeated_failure_counts_as_an_attempt(void **state)
{
    struct worker *w = start(*state);
    no_full_turn(w);
    int64_t seq = w->g->b.ev[0].seq;
    let_fail(w, 0, 1);
    let_fail(w, 1, 1);
    assert_int_equal(turn(w, false), BATCH);
    pass(1001);
    assert_int_equal(turn(w, true), 2);
    let_fail(w, 0, 2);
    assert_int_equal(turn(w, false), BATCH);
    assert_int_equal(pg_number(w->db, "SELECT count(*) FROM parked"), 1);
    pass(1001);
    assert_int_equal(turn(w, true), 1);
    assert_int_equal(w->g->b.ev[0].seq, seq);
    assert_int_equal(w->g->b.ev[0].attempts, 2);
    assert_int_equal(w->g->b.ev[0].failing_ms, 2002);
    end(w);
}

/* An event of the settled batch may precede a parked one of its key, if it committed late. The
 * later one must not be handed out while the earlier waits. */
static void parked_event_does_not_overtake_a_failing_one(void **state)
{
    struct worker *w = start(*state);
    int64_t later = w->g->b.to + 10;
    pg_do(w->db,
          "INSERT INTO parked (consumer, seq, key, attempts, due_at) "
          "SELECT 'c', %lld, _key('key', aggregate_type, aggregate_id), 1, _clock() FROM event "
          "WHERE seq = %lld",
          (long long)later, (long long)w->g->b.ev[0].seq);
    let_fail(w, 0, 1);
    turn(w, true);
    assert_false(w->g->b.parked);
    assert_int_equal(pg_number(w->db,
                               "SELECT count(*) FROM parked WHERE seq = %lld "
                               "AND claim IS NULL AND due_at IS NULL",
                               (long long)later),
                     1);
    end(w);
}

static void simple_turn_leaves_a_suspect_event_to_the_full_turn(void **state)
{
    struct worker *w = start(*state);
    let_fail(w, 0, 1);
    let_fail(w, 1, 1);
    assert_int_equal(turn(w, false), BATCH);
    pg_do(w->db, "UPDATE parked SET crashes = 1 WHERE seq = (SELECT min(seq) FROM parked)");
    pass(1001);
    w->req.suspect = SUSPECT_TAKE;
    assert_int_equal(turn(w, true), 1);
    assert_true(w->g->b.suspect);
    assert_int_equal(pg_number(w->db, "SELECT attempts FROM parked WHERE crashes > 0"), 1);
    end(w);
}

/* A retried dead letter is complete, although its event was trimmed. */
static void trimmed_event_is_read_from_its_dead_letter(void **state)
{
    struct worker *w = start(*state);
    int64_t seq = w->g->b.ev[1].seq;
    for (size_t i = 0; i < 3; i++)
        let_fail(w, i, 1);
    assert_int_equal(turn(w, false), BATCH);
    pg_do(w->db,
          "INSERT INTO dead (consumer, seq, id, type, aggregate_type, aggregate_id, payload, "
          "created_at, attempts, dead_at, retrying) SELECT 'c', seq, id, 'sent back', "
          "aggregate_type, aggregate_id, payload, created_at, 1, _clock(), true FROM event "
          "WHERE seq = %lld; SET LOCAL outbox.change_events = 'on'; "
          "DELETE FROM event WHERE seq = %lld",
          (long long)seq, (long long)seq);
    no_full_turn(w);
    pass(1002);
    assert_int_equal(turn(w, true), 3);
    assert_string_equal(w->g->b.ev[1].type.p, "sent back");
    assert_int_equal(w->g->b.ev[1].attempts, 1);
    assert_int_equal(turn(w, false), BATCH);
    assert_int_equal(pg_number(w->db, "SELECT count(*) FROM dead"), 0);
    end(w);
}

static const struct CMUnitTest tests[] = {
    ON_A_STORE(failed_event_is_parked_with_its_key_and_its_own_delay),
    ON_A_STORE(event_waiting_behind_its_key_is_parked_without_a_due_time),
    ON_A_STORE(keys_unknown_to_the_server_are_looked_up),
    ON_A_STORE(outcome_of_an_event_outside_the_claim_is_refused),
    ON_A_STORE(parked_events_are_retried_between_new_ones),
    ON_A_STORE(each_repeated_failure_counts_as_an_attempt),
    ON_A_STORE(parked_event_does_not_overtake_a_failing_one),
    ON_A_STORE(simple_turn_leaves_a_suspect_event_to_the_full_turn),
    ON_A_STORE(trimmed_event_is_read_from_its_dead_letter),
};
const struct suite_part pg_retried_tests = SUITE_PART(tests);
