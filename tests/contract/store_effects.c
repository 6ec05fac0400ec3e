/* store_effects.c: the effects of handlers, their record and the settlement of the claim are one
 * transaction (G8). */
#include "store_impl.h"

/* worker returns a second handle, which handlers work on. */
static struct store *worker(struct store_rig *g)
{
    struct error err;
    struct store *w;
    must(g->st->ops->dup(g->st, &w, &err), &err);
    must(w->ops->expose_connection(w, 0, &err), &err);
    return w;
}

static bool is_handled(struct store *st, const char *handler, const char *key)
{
    struct error err;
    struct inbox_key k = {str_of(handler), str_of(key)};
    bool there = false;
    must(st->ops->handled(st, &k, 1, &there, &err), &err);
    return there;
}

static bool put_handled(struct store *w, const char *handler, const char *key)
{
    struct error err;
    struct inbox_key k = {str_of(handler), str_of(key)};
    bool skip = false, all = false;
    must(w->ops->handled_put(w, &k, &skip, 1, &all, &err), &err);
    return all;
}

static bool settle_in(struct store *w, struct store_rig *g)
{
    struct error err;
    bool lost = false;
    struct settlement s = {.consumer = "c", .owner = "me", .order = ORDER_KEY, .b = &g->b};
    must(w->ops->settle(w, &s, &lost, &err), &err);
    return !lost;
}

static void one_claim(struct store_rig *g)
{
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 1);
}

static int64_t delivered(struct store_rig *g)
{
    return look(g, "c").delivered;
}

static void effect_record_and_settlement_commit_together(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct store *w = worker(g);
    one_claim(g);
    for (int round = 0; round < 2; round++) {
        must(w->ops->begin(w, &err), &err);
        assert_true(put_handled(w, "h", "k"));
        emit(w, "2");
        assert_true(settle_in(w, g));
        if (round == 0)
            w->ops->rollback(w);
        else
            must(w->ops->commit(w, &err), &err);
        assert_int_equal(is_handled(w, "h", "k"), round);
        assert_int_equal(delivered(g), round);
        assert_int_equal(look(g, "c").inflight, 1 - round);
    }
    assert_int_equal(claim(g, "c"), 1); /* the event emitted within it, once */
    store_close(w);
}

static void settling_effects_outside_a_transaction_is_refused(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    bool lost;
    struct store *w = worker(g);
    one_claim(g);
    struct settlement s = {.consumer = "c", .owner = "me", .order = ORDER_KEY, .b = &g->b};
    assert_int_equal(w->ops->settle(w, &s, &lost, &err), -1);
    assert_int_equal(err.code, ERR_MISUSE);
    store_close(w);
}

static void expired_claim_can_be_settled_late_in_a_transaction(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct store *w = worker(g);
    one_claim(g);
    pass(3600 * 1000);
    must(w->ops->begin(w, &err), &err);
    assert_true(settle_in(w, g));
    must(w->ops->commit(w, &err), &err);
    assert_int_equal(delivered(g), 1);
    store_close(w);
}

static void claim_expiring_mid_transaction_settles_unless_lost(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct store *w = worker(g);
    one_claim(g);
    must(w->ops->begin(w, &err), &err);
    pass(3600 * 1000);
    assert_true(settle_in(w, g));
    w->ops->rollback(w);
    store_close(w);
}

static void inbox_remembers_handled_events(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct store *w = worker(g);
    struct inbox_key k[] = {{STR("a"), STR("1")},
                            {STR("b"), STR("1")},
                            {STR("a"), STR("2\"\\',{}")},
                            {STR("a"), STR("")}};
    bool there[4], skip[4] = {false, true, false, false}, all;
    must(w->ops->handled(w, k, 4, there, &err), &err);
    for (int i = 0; i < 4; i++)
        assert_false(there[i]);
    must(w->ops->begin(w, &err), &err);
    must(w->ops->handled_put(w, k, skip, 4, &all, &err), &err);
    assert_true(all);
    must(w->ops->commit(w, &err), &err);
    must(w->ops->handled(w, k, 4, there, &err), &err);
    for (int i = 0; i < 4; i++)
        assert_int_equal(there[i], !skip[i]);
    must(w->ops->begin(w, &err), &err);
    skip[1] = false;
    must(w->ops->handled_put(w, k, skip, 4, &all, &err), &err);
    assert_false(all);
    w->ops->rollback(w);
    assert_false(is_handled(w, "b", "1"));
    store_close(w);
}

static void inbox_has_separate_retention(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct trim_request req = {.older_than_ms = 1000, .inbox_ms = 60000};
    struct trim_result t;
    must(g->st->ops->begin(g->st, &err), &err);
    put_handled(g->st, "h", "k");
    must(g->st->ops->commit(g->st, &err), &err);
    pass(59000);
    must(g->st->ops->trim(g->st, &req, &t, &err), &err);
    assert_int_equal(t.inbox, 0);
    assert_true(is_handled(g->st, "h", "k"));
    pass(2000);
    req.dry_run = true;
    must(g->st->ops->trim(g->st, &req, &t, &err), &err);
    assert_int_equal(t.inbox, 1);
    req.dry_run = false;
    must(g->st->ops->trim(g->st, &req, &t, &err), &err);
    assert_int_equal(t.inbox, 1);
    assert_false(is_handled(g->st, "h", "k"));
}

static void savepoint_rolls_back_later_changes(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct store *w = worker(g);
    must(w->ops->begin(w, &err), &err);
    must(w->ops->savepoint(w, SAVEPOINT_SET, &err), &err);
    put_handled(w, "h", "kept");
    must(w->ops->savepoint(w, SAVEPOINT_SET, &err), &err);
    put_handled(w, "h", "undone");
    must(w->ops->savepoint(w, SAVEPOINT_UNDO, &err), &err);
    must(w->ops->savepoint(w, SAVEPOINT_RELEASE, &err), &err);
    assert_int_equal(w->ops->savepoint(w, SAVEPOINT_RELEASE, &err), -1);
    assert_int_equal(err.code, ERR_MISUSE);
    w->ops->rollback(w);
    must(w->ops->begin(w, &err), &err);
    must(w->ops->savepoint(w, SAVEPOINT_SET, &err), &err);
    put_handled(w, "h", "kept");
    must(w->ops->savepoint(w, SAVEPOINT_RELEASE, &err), &err);
    must(w->ops->commit(w, &err), &err);
    assert_true(is_handled(w, "h", "kept"));
    assert_false(is_handled(w, "h", "undone"));
    store_close(w);
}

static void failed_statement_can_be_rolled_back(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct store *w = worker(g);
    must(w->ops->begin(w, &err), &err);
    put_handled(w, "h", "kept");
    must(w->ops->savepoint(w, SAVEPOINT_SET, &err), &err);
    assert_false(sneak(w, "INSERT INTO no_such_table VALUES (1)"));
    assert_true(w->ops->tx_state(w) != TX_GONE);
    must(w->ops->savepoint(w, SAVEPOINT_UNDO, &err), &err);
    assert_int_equal(w->ops->tx_state(w), TX_OPEN);
    must(w->ops->commit(w, &err), &err);
    assert_true(is_handled(w, "h", "kept"));
    store_close(w);
}

static void transaction_ended_by_the_handler_is_detected(void **state)
{
    static const char *const ends[] = {"ROLLBACK", "COMMIT"};
    struct store_rig *g = *state;
    struct error err;
    struct store *w = worker(g);
    for (int i = 0; i < 4; i++) {
        must(w->ops->begin(w, &err), &err);
        must(w->ops->savepoint(w, SAVEPOINT_SET, &err), &err);
        bool committed = sneak(w, ends[i % 2]);
        /* SQLite refuses the commit */
        assert_int_equal(committed, i % 2 == 0 || !(w->caps & STORE_ONE_WRITER));
        assert_int_equal(w->ops->tx_state(w), TX_GONE);
        if (i >= 2)
            assert_true(sneak(w, "BEGIN"));
        assert_int_equal(w->ops->savepoint(w, SAVEPOINT_RELEASE, &err), -1);
        assert_int_equal(err.code, ERR_MISUSE);
        w->ops->rollback(w);
    }
    store_close(w);
}

static void handle_survives_session_changes_by_handlers(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct store *w = worker(g);
    one_claim(g);
    must(w->ops->begin(w, &err), &err);
    put_handled(w, "h", "k");
    must(w->ops->commit(w, &err), &err);
    unsettle(w);
    must(w->ops->begin(w, &err), &err);
    assert_false(put_handled(w, "h", "k"));
    assert_true(settle_in(w, g));
    must(w->ops->commit(w, &err), &err);
    store_close(w);
}

static void check_key(const struct store_rig *g, const char *want)
{
    assert_string_equal(event_inbox_key(&g->b.ev[0]).p, want);
}

/* The key is returned when the event is fresh, waits for a retry, is taken over, is a dead letter,
 * and when it is retried after event and key were trimmed. */
static void every_kind_of_claim_returns_the_idempotency_key(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    char id[UUID_TEXT + 1];
    bool dup;
    struct trim_result t;
    put(g->st, "c");
    must(keyed(g->st, "once \"\\ only", "{}", id, &dup, &err), &err);
    assert_int_equal(claim(g, "c"), 1);
    check_key(g, "once \"\\ only");
    struct outcome o = failed(g, 0, 1, 1000);
    assert_true(settle(g, "c", &o, 1));
    pass(1000);
    assert_int_equal(claim(g, "c"), 1);
    check_key(g, "once \"\\ only");
    pass(LEASE + 1);
    assert_int_equal(claim_by(g, request("c", "another")), 1);
    check_key(g, "once \"\\ only");
    o = dead(g, 0, 2);
    assert_true(settle_by(g, "c", "another", &o, 1));
    pass(1000);
    must(g->st->ops->trim(g->st, &(struct trim_request){0}, &t, &err), &err);
    assert_int_equal(t.events, 1);
    assert_int_equal(t.keys, 1);
    retry_dead(g, (struct dead_query){.consumer = "c"});
    assert_int_equal(claim(g, "c"), 1);
    check_key(g, "once \"\\ only");
    assert_true(settle(g, "c", NULL, 0));
    emit(g->st, "1"); /* without a key, the id replaces it */
    assert_int_equal(claim(g, "c"), 1);
    check_key(g, g->b.ev[0].id.p);
}

static const struct CMUnitTest tests[] = {
    ON_A_STORE(every_kind_of_claim_returns_the_idempotency_key),
    ON_A_STORE(effect_record_and_settlement_commit_together),
    ON_A_STORE(settling_effects_outside_a_transaction_is_refused),
    ON_A_STORE(expired_claim_can_be_settled_late_in_a_transaction),
    ON_A_STORE(claim_expiring_mid_transaction_settles_unless_lost),
    ON_A_STORE(inbox_remembers_handled_events),
    ON_A_STORE(inbox_has_separate_retention),
    ON_A_STORE(savepoint_rolls_back_later_changes),
    ON_A_STORE(failed_statement_can_be_rolled_back),
    ON_A_STORE(transaction_ended_by_the_handler_is_detected),
    ON_A_STORE(handle_survives_session_changes_by_handlers),
};

const struct suite_part store_effects_tests = SUITE_PART(tests);
