/* store_emit.c: emitting, and the inbox. */
#include "store_impl.h"

/* ---- emitting (G1, G13) ---- */

static void event_is_returned_as_emitted(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    char id[UUID_TEXT + 1];
    bool dup;
    static const char payload[] = "{ \"a\" : [1.0, 1e3, \"\\u00e9\xc3\xa9\\u0000\"],\n \"b\":{} }";
    struct new_event ev = {.type = STR("order.paid"),
                           .aggregate_type = STR("order"),
                           .aggregate_id = STR("4'2\"\xf0\x9f\x98\x80"),
                           .payload = str_of(payload),
                           .headers = STR("{\"h\":\"v\"}"),
                           .tenant = STR("acme"),
                           .has_version = true,
                           .version = -7};
    put(g->st, "c");
    must(g->st->ops->emit(g->st, NULL, &ev, id, &dup, &err), &err);
    assert_int_equal(claim(g, "c"), 1);
    const struct event *got = &g->b.ev[0];
    assert_string_equal(got->id.p, id);
    assert_string_equal(got->type.p, "order.paid");
    assert_string_equal(got->aggregate_type.p, "order");
    assert_string_equal(got->aggregate_id.p, ev.aggregate_id.p);
    assert_int_equal(got->payload.n, sizeof payload - 1);
    assert_memory_equal(got->payload.p, payload, sizeof payload);
    assert_string_equal(got->headers.p, "{\"h\":\"v\"}");
    assert_string_equal(got->tenant.p, "acme");
    assert_true(got->has_version);
    assert_int_equal(got->version, -7);
    assert_int_equal(got->created_at, store_now.wall);
    assert_int_equal(got->key, event_key(ev.aggregate_type, ev.aggregate_id));
}

static void absent_fields_stay_absent(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit_with(g->st, "x", NULL, NULL, 0);
    assert_int_equal(claim(g, "c"), 1);
    assert_null(g->b.ev[0].aggregate_id.p);
    assert_null(g->b.ev[0].headers.p);
    assert_null(g->b.ev[0].tenant.p);
    assert_false(g->b.ev[0].has_version);
    assert_string_equal(g->b.ev[0].payload.p, "null");
    assert_int_equal(g->b.ev[0].key, 0);
}

static void rolled_back_event_never_existed(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    put(g->st, "c");
    must(g->st->ops->begin(g->st, &err), &err);
    emit(g->st, "1");
    g->st->ops->rollback(g->st);
    assert_int_equal(claim(g, "c"), 0);
    assert_true(g->hint.through);
    must(g->st->ops->begin(g->st, &err), &err);
    emit(g->st, "1");
    emit(g->st, "2");
    must(g->st->ops->commit(g->st, &err), &err);
    assert_int_equal(claim(g, "c"), 2);
}

static void invalid_event_is_refused_and_leaves_no_trace(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    char id[UUID_TEXT + 1];
    bool dup;
    put(g->st, "c");
    struct new_event ev = {.type = STR("x"), .payload = STR("{oops}")};
    assert_int_equal(g->st->ops->emit(g->st, NULL, &ev, id, &dup, &err), -1);
    assert_int_equal(err.code, ERR_INVALID);
    assert_int_equal(claim(g, "c"), 0);
}

static void duplicate_idempotency_key_stores_one_event_and_is_reported(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    char first[UUID_TEXT + 1], second[UUID_TEXT + 1];
    bool dup;
    put(g->st, "c");
    must(keyed(g->st, "k", "1", first, &dup, &err), &err);
    assert_false(dup);
    must(keyed(g->st, "k", "1", second, &dup, &err), &err);
    assert_true(dup);
    assert_string_equal(first, second);
    assert_int_equal(keyed(g->st, "k", "2", second, &dup, &err), -1);
    assert_int_equal(err.code, ERR_CONFLICT);
    assert_int_equal(claim(g, "c"), 1);
}

static void idempotency_key_of_a_rolled_back_event_is_free(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    char id[UUID_TEXT + 1];
    bool dup;
    must(g->st->ops->begin(g->st, &err), &err);
    must(keyed(g->st, "k", "1", id, &dup, &err), &err);
    g->st->ops->rollback(g->st);
    must(keyed(g->st, "k", "2", id, &dup, &err), &err);
    assert_false(dup);
}

/* ---- inbox ---- */

static void handle_once_reports_first_duplicate_or_conflict(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    bool first;
    assert_int_equal(
        g->st->ops->handle_once(g->st, NULL, STR("h"), STR("k"), STR("p"), &first, &err), -1);
    assert_int_equal(err.code, ERR_MISUSE); /* no transaction to be part of */
    must(g->st->ops->begin(g->st, &err), &err);
    must(g->st->ops->handle_once(g->st, NULL, STR("h"), STR("k"), STR("p"), &first, &err), &err);
    assert_true(first);
    must(g->st->ops->commit(g->st, &err), &err);
    must(g->st->ops->begin(g->st, &err), &err);
    must(g->st->ops->handle_once(g->st, NULL, STR("h"), STR("k"), STR("p"), &first, &err), &err);
    assert_false(first);
    must(g->st->ops->handle_once(g->st, NULL, STR("h2"), STR("k"), STR("p"), &first, &err), &err);
    assert_true(first);
    assert_int_equal(
        g->st->ops->handle_once(g->st, NULL, STR("h"), STR("k"), STR("other"), &first, &err), -1);
    assert_int_equal(err.code, ERR_CONFLICT);
    g->st->ops->rollback(g->st);
}

static void another_handle_sees_the_same_outbox(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct store *other;
    must(g->st->ops->dup(g->st, &other, &err), &err);
    put(other, "c");
    emit(other, "1");
    assert_int_equal(claim(g, "c"), 1);
    store_close(other);
}

static const struct CMUnitTest tests[] = {
    ON_A_STORE(event_is_returned_as_emitted),
    ON_A_STORE(absent_fields_stay_absent),
    ON_A_STORE(rolled_back_event_never_existed),
    ON_A_STORE(invalid_event_is_refused_and_leaves_no_trace),
    ON_A_STORE(duplicate_idempotency_key_stores_one_event_and_is_reported),
    ON_A_STORE(idempotency_key_of_a_rolled_back_event_is_free),
    ON_A_STORE(handle_once_reports_first_duplicate_or_conflict),
    ON_A_STORE(another_handle_sees_the_same_outbox),
};

const struct suite_part store_emit_tests = SUITE_PART(tests);
