/* sqlite_turns.c: batched turns on one handle, and the polls that find out which consumers
 * need one. */
#include "lite.h"
#include "sqlite_tests.h"

/* Turns of two consumers. */
struct pair {
    struct claim_request req[2];
    struct settlement s[2];
    struct arena a[2];
    struct batched_turn t[2];
};

static struct pair *pair_of(const char *one, const char *other)
{
    struct pair *p = calloc(1, sizeof *p);
    const char *name[] = {one, other};
    for (int i = 0; i < 2; i++) {
        p->req[i] = request(name[i], "me");
        p->req[i].no_listen = true;
        arena_init(&p->a[i], 0);
        p->t[i] = (struct batched_turn){.req = &p->req[i], .a = &p->a[i]};
        p->s[i] = (struct settlement){
            .consumer = name[i], .owner = "me", .order = ORDER_KEY, .b = &p->t[i].batch};
    }
    return p;
}

static void pair_free(struct pair *p)
{
    arena_release(&p->a[0]);
    arena_release(&p->a[1]);
    free(p);
}

/* both takes the turns of both consumers. */
static int both(struct store_rig *g, struct pair *p, struct error *err)
{
    return g->st->ops->turn_many(g->st, p->t, 2, err);
}

static int count_commit(void *ctx)
{
    ++*(int *)ctx;
    return 0;
}

static void batched_turns_equal_single_turns_in_one_commit(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    put(g->st, "c");
    put(g->st, "d");
    emit(g->st, "1");
    emit(g->st, "2");
    struct pair *p = pair_of("c", "d");
    int commits = 0;
    sqlite3_commit_hook(sqlite_handle(g->st), count_commit, &commits);
    must(both(g, p, &err), &err);
    assert_int_equal(commits, 1);
    for (int i = 0; i < 2; i++) {
        assert_true(p->t[i].made);
        assert_int_equal(p->t[i].batch.n, 2);
        assert_true(p->t[i].hint.quiet);
    }
    assert_int_equal(lite_count(g->st, "SELECT count(*) FROM outbox_claim"), 2);

    struct batch held[2] = {p->t[0].batch, p->t[1].batch};
    for (int i = 0; i < 2; i++) {
        p->s[i].b = &held[i];
        p->t[i].s = &p->s[i];
    }
    must(both(g, p, &err), &err);
    for (int i = 0; i < 2; i++)
        assert_true(p->t[i].made && !p->t[i].lost && p->t[i].batch.n == 0 && p->t[i].hint.through);
    assert_int_equal(lite_count(g->st, "SELECT count(*) FROM outbox_claim"), 0);
    assert_int_equal(commits, 2);
    sqlite3_commit_hook(sqlite_handle(g->st), NULL, NULL);
    pair_free(p);
}

static void one_failing_turn_rolls_back_the_batch(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    put(g->st, "c");
    emit(g->st, "1");
    struct pair *p = pair_of("c", "nobody");
    assert_int_equal(both(g, p, &err), -1);
    assert_int_equal(err.code, ERR_NOTFOUND);
    assert_false(p->t[0].made || p->t[1].made);
    assert_int_equal(lite_count(g->st, "SELECT count(*) FROM outbox_claim"), 0);
    assert_int_equal(lite_count(g->st, "SELECT max(position) FROM outbox_lane"), 0);
    assert_int_equal(claim(g, "c"), 1);
    pair_free(p);
}

static void batch_suppresses_wake_ups_only_if_nothing_is_left(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    put(g->st, "c");
    put(g->st, "d");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 1);
    struct outcome o = failed(g, 0, 1, 5000);
    assert_true(settle(g, "c", &o, 1));
    emit(g->st, "2");
    emit(g->st, "3");
    struct pair *p = pair_of("c", "d");
    p->req[1].max_events = 1;
    must(both(g, p, &err), &err);
    assert_int_equal(p->t[0].batch.n, 2);
    assert_false(p->t[0].hint.quiet); /* one is parked */
    assert_int_equal(p->t[1].batch.n, 1);
    assert_false(p->t[1].hint.quiet); /* there are more */
    pair_free(p);
}

static void count_shown(void *ctx, const struct event *ev)
{
    assert_true(ev->type.n > 0 && !ev->payload.p);
    ++*(int *)ctx;
}

/* look_at polls and returns how many events it shows; *ret_all: any consumer may have new events.
 * */
static int look_at(struct store *st, bool *ret_all)
{
    struct error err;
    struct watch_result found;
    int shown = 0;
    st->ops->wake_clear(st);
    must(st->ops->poll_new(st, false, false, count_shown, &shown, &found, &err), &err);
    assert_int_equal(found.n, shown);
    *ret_all = found.all;
    return shown;
}

static void watcher_reports_new_events_once_or_wakes_all(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    bool all;
    struct store *lookout;
    put(g->st, "c");
    put(g->st, "d");
    must(g->st->ops->dup(g->st, &lookout, &err), &err);
    look_at(lookout, &all);
    assert_true(all); /* the first poll has no earlier state */
    assert_int_equal(look_at(lookout, &all), 0);
    assert_false(all);

    emit(g->st, "1");
    assert_int_equal(look_at(lookout, &all), 1);
    assert_false(all);
    assert_int_equal(look_at(lookout, &all), 0);
    assert_false(all);

    struct pair *p = pair_of("c", "d"); /* a turn of the relay itself is not reported */
    must(both(g, p, &err), &err);
    assert_int_equal(look_at(lookout, &all), 0);
    assert_false(all);
    pair_free(p);

    must(g->st->ops->consumer_pause(g->st, "c", true, &err), &err);
    assert_int_equal(look_at(lookout, &all), 0);
    assert_true(all);
    store_close(lookout);
}

/* Two commits with an event each, or one with both and another with something else? All consumers
 * are woken, but not at every poll. */
static void unexplained_commits_wake_all_consumers_at_a_bounded_rate(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    bool all;
    struct store *lookout;
    must(g->st->ops->dup(g->st, &lookout, &err), &err);
    look_at(lookout, &all);
    for (int i = 0; i < 3; i++) {
        emit(g->st, "1");
        emit(g->st, "2");
        assert_int_equal(look_at(lookout, &all), 2);
        assert_int_equal(all, i == 0);
        store_now.mono += 80 * MS_NS;
    }
    assert_int_equal(look_at(lookout, &all), 0);
    assert_false(all);
    store_now.mono += 10 * MS_NS;
    assert_int_equal(look_at(lookout, &all), 0);
    assert_true(all);
    assert_int_equal(look_at(lookout, &all), 0);
    assert_false(all);

    emit(g->st, "1");
    put(g->st, "c"); /* and certain news is reported at once */
    assert_int_equal(look_at(lookout, &all), 1);
    assert_true(all);
    store_close(lookout);
}

/* With many consumers to wake, this happens less often. */
static void general_wake_ups_get_rarer_with_more_consumers(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    bool all;
    char name[16];
    struct store *lookout;
    for (int i = 0; i < 400; i++) {
        snprintf(name, sizeof name, "c%d", i);
        put(g->st, name);
    }
    must(g->st->ops->dup(g->st, &lookout, &err), &err);
    look_at(lookout, &all);
    emit(g->st, "1");
    emit(g->st, "2");
    look_at(lookout, &all);
    assert_true(all);

    emit(g->st, "3");
    emit(g->st, "4");
    store_now.mono += 390 * MS_NS;
    look_at(lookout, &all);
    assert_false(all);
    store_now.mono += 10 * MS_NS;
    look_at(lookout, &all);
    assert_true(all);

    /* Removed consumers no longer count. */
    for (int i = 0; i < 400; i++) {
        snprintf(name, sizeof name, "c%d", i);
        g->st->ops->consumer_forget(g->st, name);
    }
    emit(g->st, "5");
    emit(g->st, "6");
    store_now.mono += 250 * MS_NS;
    look_at(lookout, &all);
    assert_true(all);
    store_close(lookout);
}

static void handle_forgets_a_consumer_that_is_no_longer_used(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    sqlite3 *db = lite_connect();
    put(g->st, "c");
    put(g->st, "d");
    g->st->ops->consumer_forget(g->st, "c");
    lite_do(db, "DELETE FROM outbox_lane; DELETE FROM outbox_consumer;"
                "UPDATE outbox_meta SET value = 'another' WHERE name = 'identity'");
    sqlite3_close(db);
    struct claim_request req = request("d", "me");
    struct claim_hint hint;
    for (int i = 0; i < 3; i++) /* the turn reports another outbox and registers d */
        if (g->st->ops->turn(g->st, NULL, NULL, &req, &g->a, &g->b, &hint, &err) == 0)
            break;
    assert_int_equal(lite_count(g->st, "SELECT count(*) FROM outbox_consumer WHERE name = 'd'"), 1);
    assert_int_equal(lite_count(g->st, "SELECT count(*) FROM outbox_consumer WHERE name = 'c'"), 0);
}

static const struct CMUnitTest tests[] = {
    ON_A_STORE(batched_turns_equal_single_turns_in_one_commit),
    ON_A_STORE(one_failing_turn_rolls_back_the_batch),
    ON_A_STORE(batch_suppresses_wake_ups_only_if_nothing_is_left),
    ON_A_STORE(watcher_reports_new_events_once_or_wakes_all),
    ON_A_STORE(unexplained_commits_wake_all_consumers_at_a_bounded_rate),
    ON_A_STORE(general_wake_ups_get_rarer_with_more_consumers),
    ON_A_STORE(handle_forgets_a_consumer_that_is_no_longer_used),
};
const struct suite_part sqlite_turns_tests = SUITE_PART(tests);
