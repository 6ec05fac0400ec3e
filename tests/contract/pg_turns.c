/* pg_turns.c: batched turns, and the polls that find out which consumers need one. A batched turn
 * must return the same as a single turn; a turn that is not simple is left out. */
#include <poll.h>

#include "pg.h"
#include "pg_tests.h"

#define MANY 5

/* Turns of several consumers, c0 to c4. */
struct company {
    struct store_rig *g;
    char name[MANY][4];
    struct claim_request req[MANY];
    struct settlement s[MANY];
    struct arena a[MANY];
    struct batch b[MANY]; /* in hand */
    struct batched_turn t[MANY];
    bool apart; /* they take their turns one by one */
};

/* The next batch takes its turns one by one. */
static bool next_apart;

static struct company *assemble(struct store_rig *g)
{
    struct company *c = calloc(1, sizeof *c);
    c->g = g;
    c->apart = next_apart;
    next_apart = false;
    for (size_t i = 0; i < MANY; i++) {
        snprintf(c->name[i], sizeof c->name[i], "c%zu", i);
        put(g->st, c->name[i]);
        c->req[i] = request(c->name[i], "me");
        c->req[i].no_listen = true;
        arena_init(&c->a[i], 0);
    }
    return c;
}

static void dismiss(struct company *c)
{
    for (size_t i = 0; i < MANY; i++)
        arena_release(&c->a[i]);
    free(c);
}

/* all_turn takes the turns of all members, each settling its batch. Returns how many were simple.
 * */
static size_t all_turn(struct company *c)
{
    struct error err;
    size_t made = 0;
    for (size_t i = 0; i < MANY; i++) {
        c->t[i] = (struct batched_turn){.req = &c->req[i], .a = &c->a[i]};
        c->s[i] = (struct settlement){
            .consumer = c->name[i], .owner = "me", .order = ORDER_KEY, .b = &c->b[i]};
        if (c->b[i].n > 0)
            c->t[i].s = &c->s[i];
    }
    size_t n = c->apart ? 1 : MANY;
    for (size_t i = 0; i < MANY; i += n)
        must(c->g->st->ops->turn_many(c->g->st, &c->t[i], n, &err), &err);
    for (size_t i = 0; i < MANY; i++) {
        made += c->t[i].made;
        if (c->t[i].made)
            c->b[i] = c->t[i].batch;
    }
    return made;
}

/* warm_up introduces each consumer to the outbox, because a first turn is not simple. */
static struct company *warm_up(struct store_rig *g)
{
    struct company *c = assemble(g);
    emit(g->st, "a");
    for (size_t i = 0; i < MANY; i++) {
        assert_int_equal(claim(g, c->name[i]), 1);
        assert_true(settle(g, c->name[i], NULL, 0));
    }
    return c;
}

static void batch_hands_out_and_settles_in_one_transaction(void **state)
{
    struct company *c = warm_up(*state);
    PGconn *db = pg_connect();
    emit(c->g->st, "a");
    emit(c->g->st, "b");
    assert_int_equal(all_turn(c), MANY);
    for (size_t i = 0; i < MANY; i++) {
        assert_int_equal(c->b[i].n, 2);
        assert_string_equal(c->b[i].ev[1].aggregate_id.p, "b");
        assert_true(c->t[i].hint.quiet);
    }
    assert_int_equal(pg_number(db, "SELECT count(DISTINCT xmin::text) FROM claim"), 1);
    assert_int_equal(pg_number(db, "SELECT count(DISTINCT epoch) FROM claim"), MANY);

    assert_int_equal(all_turn(c), MANY);
    for (size_t i = 0; i < MANY; i++) {
        assert_int_equal(c->b[i].n, 0);
        assert_true(c->t[i].hint.through);
        assert_int_equal(look(c->g, c->name[i]).delivered, 3);
    }
    assert_int_equal(pg_number(db, "SELECT count(*) FROM claim"), 0);
    PQfinish(db);
    dismiss(c);
}

static void events_of_a_batched_claim_go_to_one_worker(void **state)
{
    struct company *c = warm_up(*state);
    emit(c->g->st, "a");
    assert_int_equal(all_turn(c), MANY);
    assert_int_equal(claim_by(c->g, request("c0", "another")), 0);
    assert_true(c->g->hint.busy);

    pass(LEASE + 1);
    assert_int_equal(claim_by(c->g, request("c0", "another")), 1);
    assert_true(c->g->b.suspect);
    assert_int_equal(all_turn(c), 0); /* all leases have expired, which is not a simple case */
    bool lost;
    struct error err;
    must(c->g->st->ops->turn(c->g->st, &c->s[0], &lost, NULL, NULL, NULL, NULL, &err), &err);
    assert_true(lost);
    dismiss(c);
}

static void each_filter_receives_only_its_matches(void **state)
{
    struct company *c = warm_up(*state);
    struct filter *f;
    struct error err;
    struct consumer_spec spec = spec_of("c1");
    spec.events = "order.*";
    spec.where = "total = 7";
    put_spec(c->g->st, &spec);
    must(filter_new(spec.events, spec.where, &f, &err), &err);
    c->req[1].events = spec.events;
    c->req[1].where = spec.where;
    c->req[1].filter = f;

    emit_with(c->g->st, "order.paid", "1", "{\"total\":7}", 0);
    emit_with(c->g->st, "order.paid", "2", "{\"total\":8}", 0);
    emit_with(c->g->st, "user.left", "3", "{\"total\":7}", 0);
    assert_int_equal(all_turn(c), MANY);
    assert_int_equal(c->b[0].n, 3);
    assert_int_equal(c->b[1].n, 1);
    assert_string_equal(c->b[1].ev[0].aggregate_id.p, "1");

    /* Events that only the predicate rejects were claimed, and are settled at once. */
    emit_with(c->g->st, "order.paid", "2", "{\"total\":8}", 0);
    assert_int_equal(all_turn(c), MANY);
    assert_int_equal(c->b[1].n, 0);
    assert_true(c->t[1].hint.skipped > 0);
    assert_int_equal(look(c->g, "c1").claims, 0);
    filter_free(f);
    dismiss(c);
}

static void time_of_the_next_delayed_event_is_reported(void **state)
{
    struct company *c = warm_up(*state);
    emit_with(c->g->st, "t.e", "a", "{}", store_now.wall + 5000);
    assert_int_equal(all_turn(c), MANY);
    assert_int_equal(c->b[0].n, 1);
    assert_true(c->b[0].ev[0].delayed);
    dismiss(c);
}

/* Any special case is left to a separate turn and blocks no other consumer. */
static void complex_turn_is_left_out_of_the_batch(void **state)
{
    struct company *c = warm_up(*state);
    struct error err;
    PGconn *db = pg_connect();
    emit(c->g->st, "a");

    /* c0 has an event parked, c1 is paused, c2 is locked by another session, and another worker
     * holds a claim of c3 */
    assert_int_equal(claim(c->g, "c0"), 1);
    struct outcome o = failed(c->g, 0, 1, 60000);
    assert_true(settle(c->g, "c0", &o, 1));
    must(c->g->st->ops->consumer_pause(c->g->st, "c1", true, &err), &err);
    pg_do(db, "BEGIN; SELECT 1 FROM consumer WHERE name = 'c2' FOR UPDATE");
    assert_int_equal(claim_by(c->g, request("c3", "another")), 1);
    emit(c->g->st, "b");

    assert_int_equal(all_turn(c), 1);
    assert_true(c->t[4].made);
    assert_int_equal(c->b[4].n, 2);
    pg_do(db, "COMMIT");
    PQfinish(db);
    dismiss(c);
}

static void settlement_with_failures_is_left_to_a_single_turn(void **state)
{
    struct company *c = warm_up(*state);
    struct error err;
    emit(c->g->st, "a");
    assert_int_equal(all_turn(c), MANY);
    struct outcome o = {.ev = &c->b[0].ev[0], .kind = OUTCOME_DEAD, .attempts = 1, .error = "no"};
    struct settlement s = {
        .consumer = "c0", .owner = "me", .order = ORDER_KEY, .b = &c->b[0], .out = &o, .n = 1};
    struct batched_turn t = {.s = &s, .req = &c->req[0], .a = &c->a[0]};
    must(c->g->st->ops->turn_many(c->g->st, &t, 1, &err), &err);
    assert_false(t.made);
    assert_int_equal(look(c->g, "c0").claims, 1);
    dismiss(c);
}

/* new_to_all asserts that a batched turn gave each consumer n events, starting at `first`. */
static void new_to_all(struct company *c, size_t n, int64_t first, bool quiet)
{
    assert_int_equal(all_turn(c), MANY);
    for (size_t i = 0; i < MANY; i++) {
        assert_int_equal(c->b[i].n, n);
        for (size_t k = 0; k < n; k++)
            assert_int_equal(c->b[i].ev[k].seq, first + (int64_t)k);
        assert_int_equal(c->t[i].hint.quiet, quiet);
    }
}

/* An event that commits while a window is processed belongs after it, however low its number. */
static void backlog_is_claimed_in_batched_turns(void **state)
{
    struct company *c = warm_up(*state);
    PGconn *db = pg_connect();
    PGconn *late = pg_connect();
    pg_do(late, "BEGIN; INSERT INTO event (type) VALUES ('late')"); /* number 2 */
    pg_do(db, "INSERT INTO event (type) SELECT 'x' FROM generate_series(1, 300)");
    for (size_t i = 0; i < MANY; i++)
        c->req[i].max_events = 1000;

    new_to_all(c, 256, 3, false);
    pg_do(late, "COMMIT");
    new_to_all(c, 44, 259,
               false); /* events committed after the window opened are not visible yet */
    new_to_all(c, 1, 2, true);
    assert_int_equal(all_turn(c), MANY);
    assert_true(c->t[0].hint.through);
    assert_int_equal(look(c->g, "c0").delivered, 302);
    PQfinish(late);
    PQfinish(db);
    dismiss(c);
}

static void large_backlog_is_left_to_a_separate_turn(void **state)
{
    next_apart = true;
    struct company *c = warm_up(*state);
    PGconn *db = pg_connect();
    pg_do(db, "INSERT INTO event (type) SELECT 'x' FROM generate_series(1, 300)");
    for (size_t i = 0; i < MANY; i++)
        c->req[i].max_events = 1000;
    assert_int_equal(all_turn(c), 0);
    assert_int_equal(claim(c->g, "c0"), 100);
    PQfinish(db);
    dismiss(c);
}

static void oversized_batch_ends_early_and_the_rest_follows(void **state)
{
    struct company *c = warm_up(*state);
    PGconn *db = pg_connect();
    pg_do(db, "INSERT INTO event (type, payload) "
              "SELECT 'x', to_json(repeat('y', 1000)) FROM generate_series(1, 5)");
    c->req[2].max_bytes = 2000;
    assert_int_equal(all_turn(c), MANY);
    assert_int_equal(c->b[0].n, 5);
    assert_int_equal(c->b[2].n, 2);
    assert_false(c->t[2].hint.quiet);

    struct settlement s = {.consumer = "c2", .owner = "me", .order = ORDER_KEY, .b = &c->b[2]};
    assert_true(settle_as(c->g, &s));
    assert_int_equal(claim(c->g, "c2"), 3);
    assert_int_equal(c->g->b.ev[0].seq, 4);
    PQfinish(db);
    dismiss(c);
}

static void events_that_do_not_fit_in_memory_are_released(void **state)
{
    struct company *c = warm_up(*state);
    struct arena small;
    struct error err;
    emit(c->g->st, "a");
    arena_init(&small, 64);
    struct batched_turn t = {.req = &c->req[0], .a = &small};
    must(c->g->st->ops->turn_many(c->g->st, &t, 1, &err), &err);
    assert_true(t.made && t.hint.unread);
    assert_int_equal(t.batch.n, 0);
    arena_release(&small);
    assert_int_equal(claim(c->g, "c0"), 1);
    assert_false(c->g->b.suspect);
    assert_int_equal(c->g->b.ev[0].attempts, 0);
    dismiss(c);
}

static void second_worker_of_a_consumer_is_left_out_of_the_batch(void **state)
{
    struct company *c = warm_up(*state);
    struct error err;
    emit(c->g->st, "a");
    struct claim_request other = c->req[0];
    other.owner = "another";
    struct batched_turn t[] = {{.req = &c->req[0], .a = &c->a[0]},
                               {.req = &other, .a = &c->a[1]},
                               {.req = &c->req[2], .a = &c->a[2]}};
    must(c->g->st->ops->turn_many(c->g->st, t, 3, &err), &err);
    assert_true(t[0].made && t[2].made);
    assert_false(t[1].made);
    assert_int_equal(t[0].batch.n, 1);
    dismiss(c);
}

static void restarted_sequence_is_left_to_a_separate_turn(void **state)
{
    struct company *c = warm_up(*state);
    PGconn *db = pg_connect();
    pg_do(db, "SET LOCAL outbox.change_events = 'on'; TRUNCATE event RESTART IDENTITY");
    emit(c->g->st, "a");
    assert_int_equal(all_turn(c), 0);
    size_t n = 0;
    for (int i = 0; i < 5 && n == 0; i++) /* the first one repairs */
        n = claim(c->g, "c0");
    assert_int_equal(n, 1);
    PQfinish(db);
    dismiss(c);
}

static void lagging_epochs_fail_the_batch_and_are_repaired_separately(void **state)
{
    struct company *c = warm_up(*state);
    struct error err;
    PGconn *db = pg_connect();
    emit(c->g->st, "a");
    assert_int_equal(all_turn(c), MANY);
    pg_do(db, "SELECT setval('epoch', 1, false)");
    emit(c->g->st, "b");
    for (size_t i = 0; i < MANY; i++) {
        c->s[i].b = &c->b[i];
        c->t[i] = (struct batched_turn){.s = &c->s[i], .req = &c->req[i], .a = &c->a[i]};
    }
    assert_int_equal(c->g->st->ops->turn_many(c->g->st, c->t, MANY, &err), -1);
    assert_int_equal(pg_number(db, "SELECT count(*) FROM claim"), MANY);
    assert_true(settle_as(c->g, &c->s[0]));
    assert_int_equal(claim(c->g, "c0"), 1);
    assert_true(c->g->b.epoch > c->b[0].epoch);
    PQfinish(db);
    dismiss(c);
}

static void late_commit_is_handed_out_by_later_turns(void **state)
{
    struct company *c = warm_up(*state);
    PGconn *db = pg_connect();
    pg_do(db, "BEGIN; INSERT INTO event (type) VALUES ('late')");
    emit(c->g->st, "a");
    assert_int_equal(all_turn(c), MANY);
    assert_int_equal(c->b[0].n, 1);
    assert_int_equal(all_turn(c), MANY);
    assert_int_equal(c->b[0].n, 0);
    pg_do(db, "COMMIT");
    assert_int_equal(all_turn(c), MANY);
    assert_int_equal(c->b[0].n, 1);
    assert_string_equal(c->b[0].ev[0].type.p, "late");
    PQfinish(db);
    dismiss(c);
}

/* ---- the same, one by one ---- */

#define ONE_BY_ONE(claim) \
    static void claim##_one_by_one(void **state) \
    { \
        next_apart = true; \
        claim(state); \
    }
ONE_BY_ONE(events_of_a_batched_claim_go_to_one_worker)
ONE_BY_ONE(each_filter_receives_only_its_matches)
ONE_BY_ONE(time_of_the_next_delayed_event_is_reported)
ONE_BY_ONE(complex_turn_is_left_out_of_the_batch)
ONE_BY_ONE(oversized_batch_ends_early_and_the_rest_follows)
ONE_BY_ONE(restarted_sequence_is_left_to_a_separate_turn)
ONE_BY_ONE(late_commit_is_handed_out_by_later_turns)

static void single_turn_settles_and_hands_out_in_one_transaction(void **state)
{
    next_apart = true;
    struct company *c = warm_up(*state);
    PGconn *db = pg_connect();
    emit(c->g->st, "a");
    emit(c->g->st, "b");
    assert_int_equal(all_turn(c), MANY);
    assert_int_equal(c->b[0].n, 2);
    assert_string_equal(c->b[0].ev[1].aggregate_id.p, "b");
    assert_true(c->t[0].hint.quiet);
    int64_t before = pg_number(db, "SELECT epoch FROM claim WHERE consumer = 'c0'");
    emit(c->g->st, "c");
    assert_int_equal(all_turn(c), MANY);
    assert_int_equal(c->b[0].n, 1);
    assert_true(c->b[0].epoch > before);
    assert_int_equal(look(c->g, "c0").claims, 1);
    assert_int_equal(look(c->g, "c0").delivered, 3);

    assert_int_equal(all_turn(c), MANY);
    assert_int_equal(c->b[0].n, 0);
    assert_true(c->t[0].hint.through);
    assert_int_equal(look(c->g, "c0").claims, 0);
    assert_int_equal(look(c->g, "c0").delivered, 4);
    PQfinish(db);
    dismiss(c);
}

/* The answer brings few and small events along. */
static void single_turn_hands_out_many_or_large_events(void **state)
{
    next_apart = true;
    struct company *c = warm_up(*state);
    PGconn *db = pg_connect();
    pg_do(db, "INSERT INTO event (type) SELECT 'x' FROM generate_series(1, 9)");
    assert_int_equal(all_turn(c), MANY);
    assert_int_equal(c->b[0].n, 9);
    pg_do(db,
          "INSERT INTO event (type, payload) VALUES ('x', '1'), "
          "('x', to_json((SELECT string_agg(md5(n::text), '') FROM generate_series(1, 999) n)))");
    assert_int_equal(all_turn(c), MANY);
    assert_int_equal(c->b[0].n, 2);
    assert_int_equal(c->b[0].ev[1].payload.n, 999 * 32 + 2);
    assert_int_equal(c->b[0].ev[1].seq, c->b[0].ev[0].seq + 1);
    PQfinish(db);
    dismiss(c);
}

/* settle_alone takes a simple turn that settles the batch of c0 as the owner of req. */
static bool settle_alone(struct company *c, struct claim_request *req)
{
    struct error err;
    struct settlement s = {
        .consumer = "c0", .owner = req->owner, .order = ORDER_KEY, .b = &c->b[0]};
    struct batched_turn t = {.s = &s, .req = req, .a = &c->a[1]};
    must(c->g->st->ops->turn_many(c->g->st, &t, 1, &err), &err);
    return t.made;
}

/* Only its owner settles a claim, with or without new events to claim in the same turn. */
static void single_turn_does_not_settle_anothers_claim(void **state)
{
    next_apart = true;
    struct company *c = warm_up(*state);
    emit(c->g->st, "a");
    assert_int_equal(all_turn(c), MANY);
    assert_int_equal(c->b[0].n, 1);
    struct claim_request other = c->req[0];
    other.owner = "another";
    assert_false(settle_alone(c, &other));
    emit(c->g->st, "b");
    assert_false(settle_alone(c, &other));
    assert_int_equal(look(c->g, "c0").claims, 1);
    assert_int_equal(look(c->g, "c0").delivered, 1);
    assert_true(settle_alone(c, &c->req[0]));
    dismiss(c);
}

/* Nor by the owner itself once the lease has expired: another worker may have taken the events over
 * before the settlement arrives. */
static void single_turn_does_not_settle_an_expired_claim(void **state)
{
    next_apart = true;
    struct company *c = warm_up(*state);
    PGconn *db = pg_connect();
    emit(c->g->st, "a");
    assert_int_equal(all_turn(c), MANY);
    pass(LEASE + 1);
    assert_false(settle_alone(c, &c->req[0]));
    emit(c->g->st, "b");
    assert_false(settle_alone(c, &c->req[0]));
    assert_int_equal(pg_number(db, "SELECT count(*) FROM claim WHERE consumer = 'c0'"), 1);
    assert_int_equal(look(c->g, "c0").delivered, 1);
    PQfinish(db);
    dismiss(c);
}

/* An event whose number the consumer has passed, from a transaction that it has not seen. */
static void reused_number_is_left_to_a_separate_turn(void **state)
{
    next_apart = true;
    struct company *c = warm_up(*state);
    PGconn *db = pg_connect();
    emit(c->g->st, "a");
    assert_int_equal(all_turn(c), MANY);
    pg_do(db, "SET LOCAL outbox.change_events = 'on'; DELETE FROM event WHERE seq = 1");
    pg_do(db, "INSERT INTO event (seq, type) OVERRIDING SYSTEM VALUE VALUES (1, 'x')");
    assert_int_equal(all_turn(c), 0);
    PQfinish(db);
    dismiss(c);
}

/* ---- looks ---- */

static bool rings(struct store *st, int ms)
{
    struct pollfd fd = {.fd = st->ops->wake_fd(st), .events = POLLIN};
    return poll(&fd, 1, ms) == 1;
}

struct sight {
    size_t n, paid, unread;
};

static void note_sight(void *ctx, const struct event *ev)
{
    struct sight *s = ctx;
    s->n++;
    s->paid += strcmp(ev->type.p, "order.paid") == 0;
    s->unread += ev->payload.p == NULL;
}

static struct watch_result glance(struct store *st, bool payloads, struct sight *s)
{
    struct error err;
    struct watch_result found;
    *s = (struct sight){0};
    st->ops->wake_clear(st);
    must(st->ops->poll_new(st, false, payloads, note_sight, s, &found, &err), &err);
    return found;
}

static void poll_reports_each_commit_once(void **state)
{
    struct store_rig *g = *state;
    struct sight s;
    PGconn *db = pg_connect();
    assert_true(glance(g->st, false, &s).all); /* the first poll has no earlier snapshot */
    while (glance(g->st, false, &s).again)
        pass(10);
    emit_with(g->st, "order.paid", "1", "{}", 0);
    pg_do(db, "BEGIN; INSERT INTO event (type) VALUES ('late')");
    emit_with(g->st, "order.paid", "2", "{}", 0);

    struct watch_result found = glance(g->st, true, &s);
    assert_false(found.all);
    assert_int_equal(s.n, 2);
    assert_int_equal(s.paid, 2);
    assert_int_equal(s.unread, 0);
    assert_int_equal(glance(g->st, true, &s).n, 0);
    pg_do(db, "COMMIT");
    assert_int_equal(glance(g->st, false, &s).n, 1);
    assert_int_equal(s.unread, 1);
    assert_int_equal(glance(g->st, false, &s).n, 0);
    PQfinish(db);
}

static void commit_of_many_events_wakes_every_consumer(void **state)
{
    struct store_rig *g = *state;
    struct sight s;
    PGconn *db = pg_connect();
    glance(g->st, false, &s);
    pg_do(db, "INSERT INTO event (type) SELECT 'x' FROM generate_series(1, 65)");
    assert_true(glance(g->st, false, &s).all);
    assert_int_equal(s.n, 0);
    assert_false(glance(g->st, false, &s).all);
    PQfinish(db);
}

static void general_wake_up_is_distinguished_from_one_for_an_event(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct sight s;
    put(g->st, "c");
    struct store *other;
    must(g->st->ops->dup(g->st, &other, &err), &err);
    while (glance(other, false, &s).again)
        pass(10);
    assert_false(glance(other, false, &s).all);
    emit(g->st, "a");
    assert_true(rings(other, 10000));
    assert_false(glance(other, false, &s).all);
    assert_int_equal(s.n, 1);

    must(g->st->ops->consumer_pause(g->st, "c", true, &err), &err);
    must(g->st->ops->consumer_pause(g->st, "c", false, &err), &err);
    assert_true(rings(other, 10000));
    assert_true(glance(other, false, &s).all);
    store_close(other);
}

static const struct CMUnitTest tests[] = {
    ON_A_STORE(batch_hands_out_and_settles_in_one_transaction),
    ON_A_STORE(events_of_a_batched_claim_go_to_one_worker),
    ON_A_STORE(each_filter_receives_only_its_matches),
    ON_A_STORE(time_of_the_next_delayed_event_is_reported),
    ON_A_STORE(complex_turn_is_left_out_of_the_batch),
    ON_A_STORE(settlement_with_failures_is_left_to_a_single_turn),
    ON_A_STORE(backlog_is_claimed_in_batched_turns),
    ON_A_STORE(oversized_batch_ends_early_and_the_rest_follows),
    ON_A_STORE(events_that_do_not_fit_in_memory_are_released),
    ON_A_STORE(second_worker_of_a_consumer_is_left_out_of_the_batch),
    ON_A_STORE(restarted_sequence_is_left_to_a_separate_turn),
    ON_A_STORE(lagging_epochs_fail_the_batch_and_are_repaired_separately),
    ON_A_STORE(late_commit_is_handed_out_by_later_turns),
    ON_A_STORE(events_of_a_batched_claim_go_to_one_worker_one_by_one),
    ON_A_STORE(each_filter_receives_only_its_matches_one_by_one),
    ON_A_STORE(time_of_the_next_delayed_event_is_reported_one_by_one),
    ON_A_STORE(complex_turn_is_left_out_of_the_batch_one_by_one),
    ON_A_STORE(large_backlog_is_left_to_a_separate_turn),
    ON_A_STORE(oversized_batch_ends_early_and_the_rest_follows_one_by_one),
    ON_A_STORE(restarted_sequence_is_left_to_a_separate_turn_one_by_one),
    ON_A_STORE(late_commit_is_handed_out_by_later_turns_one_by_one),
    ON_A_STORE(single_turn_settles_and_hands_out_in_one_transaction),
    ON_A_STORE(single_turn_hands_out_many_or_large_events),
    ON_A_STORE(single_turn_does_not_settle_anothers_claim),
    ON_A_STORE(single_turn_does_not_settle_an_expired_claim),
    ON_A_STORE(reused_number_is_left_to_a_separate_turn),
    ON_A_STORE(poll_reports_each_commit_once),
    ON_A_STORE(commit_of_many_events_wakes_every_consumer),
    ON_A_STORE(general_wake_up_is_distinguished_from_one_for_an_event),
};
const struct suite_part pg_turns_tests = SUITE_PART(tests);
