#include "store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

static const struct store_case *the_case;
struct test_clock store_now = {1000000, 1700000000000};

static int64_t test_mono(void *ctx)
{
    return ((struct test_clock *)ctx)->mono;
}

static int64_t test_wall(void *ctx)
{
    return ((struct test_clock *)ctx)->wall;
}

const struct clock store_clock = {test_mono, test_wall, &store_now};

static void pass(int64_t ms)
{
    store_now.mono += ms * MS_NS;
    store_now.wall += ms;
}

int store_rig_setup(void **state)
{
    struct store_rig *g = calloc(1, sizeof *g);
    g->st = the_case->fresh(&(struct store_options){.clock = &store_clock, .create = true});
    if (!g->st) return -1;
    arena_init(&g->a, 0);
    *state = g;
    return 0;
}

int store_rig_teardown(void **state)
{
    struct store_rig *g = *state;
    store_close(g->st);
    arena_release(&g->a);
    the_case->clean();
    free(g);
    return 0;
}

/* ---- shorthand ---- */

#define LEASE 30000

static void must(int r, const struct error *err)
{
    if (r != 0) fail_msg("%s", err->text);
}

/* emit one event of aggregate t/key (key NULL: none). */
static void emit_with(struct store *st, const char *type, const char *key, const char *payload, int64_t not_before)
{
    struct error err;
    char id[UUID_TEXT + 1];
    bool dup;
    struct new_event ev = {.type = str_of(type), .payload = str_of(payload), .not_before = not_before};
    if (key) ev.aggregate_type = STR("t"), ev.aggregate_id = str_of(key);
    must(st->ops->emit(st, NULL, &ev, id, &dup, &err), &err);
    assert_true(uuid_valid(str_of(id)));
    assert_false(dup);
}

static void emit(struct store *st, const char *key)
{
    emit_with(st, "t.e", key, "{}", 0);
}

static void put_as(struct store *st, const char *name, enum order order, int lanes)
{
    struct error err;
    struct consumer_spec c = {.name = name, .events = "", .where = "", .retry = "fast", .order = order, .lanes = lanes};
    must(st->ops->consumer_put(st, &c, NULL, &err), &err);
}

static void put(struct store *st, const char *name)
{
    put_as(st, name, ORDER_KEY, 1);
}

static struct claim_request request(const char *consumer, const char *owner)
{
    return (struct claim_request){.consumer = consumer,
                                  .owner = owner,
                                  .order = ORDER_KEY,
                                  .lanes = 1,
                                  .max_events = 100,
                                  .max_bytes = 1 << 20,
                                  .lease_ms = LEASE,
                                  .max_attempts = 3,
                                  .careful = CAREFUL_TAKE};
}

static size_t claim_by(struct store_rig *g, struct claim_request req)
{
    struct error err;
    arena_reset(&g->a);
    must(g->st->ops->turn(g->st, NULL, NULL, &req, &g->a, &g->b, &g->hint, &err), &err);
    return g->b.n;
}

static size_t claim(struct store_rig *g, const char *consumer)
{
    return claim_by(g, request(consumer, "me"));
}

/* settle g->b with the given outcomes; returns whether the claim was still ours. */
static bool settle_by(struct store_rig *g, const char *consumer, const char *owner, const struct outcome *out, size_t n)
{
    struct error err;
    bool lost;
    struct settlement s = {.consumer = consumer, .owner = owner, .order = ORDER_KEY, .b = &g->b, .out = out, .n = n};
    must(g->st->ops->turn(g->st, &s, &lost, NULL, NULL, NULL, NULL, &err), &err);
    return !lost;
}

static bool settle(struct store_rig *g, const char *consumer, const struct outcome *out, size_t n)
{
    return settle_by(g, consumer, "me", out, n);
}

static struct outcome failed(const struct store_rig *g, size_t i, int attempts, int64_t delay)
{
    return (struct outcome){
        .ev = &g->b.ev[i], .kind = OUTCOME_RETRY, .attempts = attempts, .delay_ms = delay, .error = "boom"};
}

static struct outcome behind(const struct store_rig *g, size_t i)
{
    return (struct outcome){.ev = &g->b.ev[i], .kind = OUTCOME_BEHIND, .attempts = g->b.ev[i].attempts};
}

static struct consumer_info look(struct store_rig *g, const char *name)
{
    struct error err;
    struct consumer_info *c;
    size_t n;
    must(g->st->ops->consumer_list(g->st, name, &g->a, &c, &n, &err), &err);
    assert_int_equal(n, 1);
    return *c;
}

static struct claim_request request_as(const char *consumer, const char *owner, enum order order, int lanes)
{
    struct claim_request req = request(consumer, owner);
    req.order = order;
    req.lanes = lanes;
    return req;
}

/* ---- emitting (G1, G13) ---- */

static void event_comes_out_as_it_went_in(void **state)
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

static void absent_parts_come_out_absent(void **state)
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

static void bad_event_is_refused_and_leaves_nothing(void **state)
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

static int keyed(struct store *st, const char *key, const char *payload, char id[UUID_TEXT + 1], bool *dup,
                 struct error *err)
{
    struct new_event ev = {.type = STR("x"), .payload = str_of(payload), .idempotency_key = str_of(key)};
    return st->ops->emit(st, NULL, &ev, id, dup, err);
}

static void same_idempotency_key_gives_one_event_and_says_so(void **state)
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

/* ---- claiming (G5, C1) ---- */

static void claimed_events_are_out_of_everyone_elses_reach(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    for (int i = 0; i < 10; i++) emit(g->st, "1");
    struct claim_request req = request("c", "me");
    req.max_events = 4;
    assert_int_equal(claim_by(g, req), 4);
    assert_int_equal(g->b.ev[0].seq + 3, g->b.ev[3].seq);
    assert_int_equal(claim_by(g, request("c", "you")), 0);
    assert_true(g->hint.busy);
    assert_false(g->hint.through);
    assert_in_range(g->hint.wait_ms, 1, LEASE);
}

static void without_order_owners_share_a_lane(void **state)
{
    struct store_rig *g = *state;
    put_as(g->st, "c", ORDER_NONE, 1);
    for (int i = 0; i < 10; i++) emit(g->st, "1");
    struct claim_request a = request_as("c", "me", ORDER_NONE, 1), b = request_as("c", "you", ORDER_NONE, 1);
    a.max_events = 4;
    assert_int_equal(claim_by(g, a), 4);
    int64_t last = g->b.ev[3].seq;
    assert_int_equal(claim_by(g, b), 6);
    assert_int_equal(g->b.ev[0].seq, last + 1);
}

static void one_owner_may_hold_several_claims_of_a_lane(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    for (int i = 0; i < 4; i++) emit(g->st, "1");
    struct claim_request req = request("c", "me");
    req.max_events = 2;
    assert_int_equal(claim_by(g, req), 2);
    int64_t epoch = g->b.epoch;
    assert_int_equal(claim_by(g, req), 0); /* one it has forgotten, as when the answer got lost, is in the way */
    assert_true(g->hint.busy);
    req.known = &epoch;
    req.n_known = 1;
    assert_int_equal(claim_by(g, req), 2);
    assert_true(g->b.epoch > epoch);
}

static void settled_events_are_never_claimed_again(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 1);
    assert_true(settle(g, "c", NULL, 0));
    assert_int_equal(claim(g, "c"), 0);
    assert_true(g->hint.through);
    assert_int_equal(g->hint.wait_ms, -1);
    assert_int_equal(look(g, "c").delivered, 1);
}

static void settle_and_claim_share_one_call(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct batch next;
    bool lost;
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 1);
    emit(g->st, "2");
    struct settlement s = {.consumer = "c", .owner = "me", .order = ORDER_KEY, .b = &g->b};
    struct claim_request req = request("c", "me");
    must(g->st->ops->turn(g->st, &s, &lost, &req, &g->a, &next, &g->hint, &err), &err);
    assert_false(lost);
    assert_int_equal(next.n, 1);
    assert_string_equal(next.ev[0].aggregate_id.p, "2");
}

static void claim_inside_a_transaction_is_refused(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct claim_request req = request("c", "me");
    put(g->st, "c");
    must(g->st->ops->begin(g->st, &err), &err);
    assert_int_equal(g->st->ops->turn(g->st, NULL, NULL, &req, &g->a, &g->b, &g->hint, &err), -1);
    assert_int_equal(err.code, ERR_MISUSE);
    g->st->ops->rollback(g->st);
}

static void consumers_dont_see_each_other(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "a");
    put(g->st, "b");
    emit(g->st, "1");
    assert_int_equal(claim(g, "a"), 1);
    assert_int_equal(claim(g, "b"), 1);
    struct outcome o = failed(g, 0, 1, 1000);
    assert_true(settle(g, "b", &o, 1));
    assert_int_equal(look(g, "b").parked, 1);
    assert_int_equal(look(g, "a").parked, 0);
}

static void batch_ends_at_max_bytes(void **state)
{
    struct store_rig *g = *state;
    char big[3000];
    put(g->st, "c");
    memset(big, ' ', sizeof big);
    memcpy(big, "1", 1);
    big[sizeof big - 1] = '\0';
    for (int i = 0; i < 10; i++) emit_with(g->st, "x", "1", big, 0);
    struct claim_request req = request("c", "me");
    req.max_bytes = 5000;
    assert_int_equal(claim_by(g, req), 2);
}

static void lanes_split_the_keys_and_lose_none(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    char key[16];
    size_t total = 0;
    int lane_of[40];
    put_as(g->st, "c", ORDER_KEY, 4);
    for (int i = 0; i < 80; i++) {
        snprintf(key, sizeof key, "%d", i % 40);
        emit(g->st, key);
    }
    for (int i = 0; i < 40; i++) lane_of[i] = -1;
    for (int i = 0; i < 4; i++) {
        struct claim_request req = request_as("c", "me", ORDER_KEY, 4);
        req.lane_hint = i;
        arena_reset(&g->a);
        must(g->st->ops->turn(g->st, NULL, NULL, &req, &g->a, &g->b, &g->hint, &err), &err);
        total += g->b.n;
        for (size_t k = 0; k < g->b.n; k++) {
            int which = atoi(g->b.ev[k].aggregate_id.p);
            assert_true(lane_of[which] == -1 || lane_of[which] == g->b.lane);
            lane_of[which] = g->b.lane;
        }
    }
    assert_int_equal(total, 80);
}

static void two_owners_work_on_different_lanes(void **state)
{
    struct store_rig *g = *state;
    char key[16];
    put_as(g->st, "c", ORDER_KEY, 2);
    for (int i = 0; i < 20; i++) {
        snprintf(key, sizeof key, "%d", i);
        emit(g->st, key);
    }
    assert_true(claim_by(g, request_as("c", "me", ORDER_KEY, 2)) > 0);
    int lane = g->b.lane;
    assert_true(claim_by(g, request_as("c", "you", ORDER_KEY, 2)) > 0);
    assert_int_not_equal(g->b.lane, lane);
    assert_int_equal(claim_by(g, request_as("c", "her", ORDER_KEY, 2)), 0);
}

static void filter_passes_over_what_does_not_match(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct filter *f;
    put(g->st, "c");
    for (int i = 0; i < 5; i++) emit_with(g->st, i % 2 ? "a.x" : "b.x", "1", i == 3 ? "{\"k\":1}" : "{\"k\":2}", 0);
    must(filter_new("a.*", "k = 1", &f, &err), &err);
    struct claim_request req = request("c", "me");
    req.filter = f;
    assert_int_equal(claim_by(g, req), 1);
    assert_int_equal(g->hint.skipped, 4);
    assert_string_equal(g->b.ev[0].type.p, "a.x");
    assert_true(settle(g, "c", NULL, 0));
    assert_int_equal(claim_by(g, req), 0);
    assert_true(g->hint.through);
    filter_free(f);
}

static void a_filter_that_never_matches_still_gets_to_the_end(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct filter *f;
    put(g->st, "c");
    for (int i = 0; i < 50; i++) emit(g->st, "1");
    must(filter_new("zzz", NULL, &f, &err), &err);
    struct claim_request req = request("c", "me");
    req.filter = f;
    assert_int_equal(claim_by(g, req), 0);
    assert_int_equal(g->hint.skipped, 50);
    assert_int_equal(claim_by(g, req), 0);
    assert_int_equal(g->hint.skipped, 0);
    assert_true(g->hint.through);
    assert_int_equal(look(g, "c").behind, 0);
    filter_free(f);
}

/* ---- leases (G5, G6, G9) ---- */

static void expired_claim_cannot_settle(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 1);
    pass(LEASE);
    assert_false(settle(g, "c", NULL, 0)); /* even though nobody has taken it over */
    assert_int_equal(claim(g, "c"), 1);
    assert_int_equal(look(g, "c").delivered, 0);
}

static void live_claim_is_never_stolen(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 1);
    pass(LEASE - 1);
    struct batch mine = g->b;
    assert_int_equal(claim_by(g, request("c", "you")), 0);
    g->b = mine;
    assert_true(settle(g, "c", NULL, 0));
}

static void lease_taken_while_the_clock_was_ahead_is_no_longer_than_it_was(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    store_now.wall += 86400000;
    assert_int_equal(claim(g, "c"), 1);
    store_now.wall -= 86400000;
    assert_int_equal(claim_by(g, request("c", "you")), 0);
    pass(LEASE);
    assert_int_equal(claim_by(g, request("c", "you")), 1);
}

static void retry_parked_while_the_clock_was_ahead_waits_no_longer_than_it_was_told(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit_with(g->st, "x", "2", "{}", store_now.wall + 3600000);
    emit(g->st, "1");
    store_now.wall += 1800000;
    assert_int_equal(claim(g, "c"), 2);
    struct outcome o[2] = {{.ev = &g->b.ev[0], .kind = OUTCOME_DELAY}, failed(g, 1, 1, 3600000)};
    o[1].delay_ms = 1000;
    assert_true(settle(g, "c", o, 2));
    store_now.wall -= 1800000;
    claim(g, "c"); /* notices, though the delayed one is due before */
    pass(1000);
    assert_int_equal(claim(g, "c"), 1);
    assert_string_equal(g->b.ev[0].aggregate_id.p, "1");
}

static void extended_claim_lives_on_and_a_lost_one_cannot_be_extended(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    bool lost;
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 1);
    pass(LEASE - 1);
    must(g->st->ops->extend(g->st, "c", "me", &g->b, LEASE, &lost, &err), &err);
    assert_false(lost);
    pass(LEASE - 1);
    must(g->st->ops->extend(g->st, "c", "you", &g->b, LEASE, &lost, &err), &err);
    assert_true(lost);
    pass(1);
    must(g->st->ops->extend(g->st, "c", "me", &g->b, LEASE, &lost, &err), &err);
    assert_true(lost);
}

static void taken_over_claim_is_fenced_and_gives_the_same_events_one_at_a_time(void **state)
{
    struct store_rig *g = *state;
    int64_t seqs[3];
    put(g->st, "c");
    for (int i = 0; i < 3; i++) emit(g->st, i == 0 ? "1" : i == 1 ? "2" : "3");
    assert_int_equal(claim(g, "c"), 3);
    struct batch old = g->b;
    for (int i = 0; i < 3; i++) seqs[i] = g->b.ev[i].seq;
    pass(LEASE);
    emit(g->st, "9");
    struct claim_request req = request("c", "you");
    req.parked_first = true;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(claim_by(g, req), 1);
        assert_int_equal(g->hint.crashed, i == 0 ? 3 : 0);
        assert_true(g->b.careful);
        assert_true(g->b.epoch > old.epoch);
        assert_int_equal(g->b.ev[0].seq, seqs[i]);
        assert_int_equal(g->b.ev[0].attempts, 0);
        assert_true(settle_by(g, "c", "you", NULL, 0));
    }
    struct batch b = g->b;
    g->b = old;
    assert_false(settle(g, "c", NULL, 0));
    g->b = b;
    assert_int_equal(claim_by(g, req), 1);
    assert_false(g->b.careful);
    assert_string_equal(g->b.ev[0].aggregate_id.p, "9");
}

static void expired_claim_waits_for_the_earlier_ones_of_its_lane(void **state)
{
    struct store_rig *g = *state;
    struct claim_request req = request("c", "me");
    put(g->st, "c");
    for (int i = 0; i < 3; i++) emit(g->st, "1");
    req.max_events = 1;
    assert_int_equal(claim_by(g, req), 1);
    int64_t first = g->b.ev[0].seq, epochs[2] = {g->b.epoch, 0};
    req.lease_ms = 1000;
    req.known = epochs;
    req.n_known = 2;
    assert_int_equal(claim_by(g, req), 1);
    epochs[1] = g->b.epoch;
    pass(1000);
    assert_int_equal(claim_by(g, request("c", "you")), 0); /* the second would overtake the first */
    assert_true(g->hint.busy);
    assert_int_equal(claim_by(g, req), 0); /* and so would the third, for its owner as well */
    pass(LEASE);
    for (int i = 0; i < 3; i++) {
        struct claim_request you = request("c", "you");
        you.parked_first = true;
        assert_int_equal(claim_by(g, you), 1);
        assert_int_equal(g->b.ev[0].seq, first + i);
        assert_true(settle_by(g, "c", "you", NULL, 0));
    }
}

static void careful_event_is_not_handed_out_beside_others(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 1);
    pass(LEASE);
    emit(g->st, "2");
    struct claim_request req = request("c", "you");
    req.parked_first = true;
    req.careful = CAREFUL_WAIT;
    assert_int_equal(claim_by(g, req), 0);
    assert_true(g->hint.careful);
    assert_false(g->hint.through);
    req.careful = CAREFUL_SKIP; /* another key need not wait */
    assert_int_equal(claim_by(g, req), 1);
    assert_string_equal(g->b.ev[0].aggregate_id.p, "2");
    assert_false(g->b.careful);
    req.careful = CAREFUL_TAKE;
    assert_int_equal(claim_by(g, req), 1);
    assert_true(g->b.careful);
}

static void poison_event_is_buried_alone(void **state)
{
    struct store_rig *g = *state;
    int delivered = 0, crashes = 0;
    put(g->st, "c");
    emit(g->st, "1");
    emit(g->st, "poison");
    emit(g->st, "3");
    assert_int_equal(claim(g, "c"), 3); /* and the process dies */
    pass(LEASE);
    for (int i = 0; i < 20; i++) {
        if (claim(g, "c") == 0) break;
        assert_int_equal(g->b.n, 1);
        if (strcmp(g->b.ev[0].aggregate_id.p, "poison") == 0) {
            assert_int_equal(g->b.ev[0].attempts, crashes);
            crashes++;
            pass(LEASE); /* dies again */
        } else {
            assert_true(settle(g, "c", NULL, 0));
            delivered++;
        }
    }
    assert_int_equal(delivered, 2);
    assert_int_equal(crashes, 3); /* max_attempts */
    assert_int_equal(look(g, "c").dead, 1);
    assert_int_equal(look(g, "c").parked, 0);
    assert_true(g->hint.through);
}

static void take_over_keeps_the_order_of_a_key(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    for (int i = 0; i < 3; i++) emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 3);
    int64_t first = g->b.ev[0].seq;
    pass(LEASE);
    emit(g->st, "1");
    struct claim_request req = request("c", "you");
    req.parked_first = true;
    assert_int_equal(claim_by(g, req), 1);
    assert_int_equal(g->b.ev[0].seq, first);
    struct outcome o = failed(g, 0, 1, 5000);
    assert_true(settle_by(g, "c", "you", &o, 1));
    assert_int_equal(claim_by(g, req), 1); /* the fresh one, which may not go before them */
    assert_true(g->b.ev[0].behind);
    o = behind(g, 0);
    assert_true(settle_by(g, "c", "you", &o, 1));
    assert_int_equal(claim_by(g, req), 0);
    pass(5000);
    for (int i = 0; i < 4; i++) {
        assert_true(claim_by(g, req) > 0);
        assert_int_equal(g->b.ev[0].seq, first + i);
        assert_true(settle_by(g, "c", "you", NULL, 0));
    }
}

/* ---- exceptions (G2, G4) ---- */

static void failed_event_comes_back_when_due_and_holds_its_key_only(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    emit(g->st, "2");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 3);
    int64_t first = g->b.ev[0].seq;
    struct outcome o[2] = {failed(g, 0, 1, 1000), behind(g, 2)};
    assert_true(settle(g, "c", o, 2));
    emit(g->st, "1");
    emit(g->st, "2");
    assert_int_equal(claim(g, "c"), 2);
    assert_true(g->b.ev[0].behind);
    assert_false(g->b.ev[1].behind);
    o[0] = behind(g, 0);
    assert_true(settle(g, "c", o, 1));
    assert_int_equal(claim(g, "c"), 0);
    assert_in_range(g->hint.wait_ms, 999, 1001);
    assert_false(g->hint.through);
    assert_string_equal(look(g, "c").last_error, "boom");
    pass(1000);
    assert_int_equal(claim(g, "c"), 3); /* the failed one and what waits behind it, in order */
    assert_int_equal(g->b.ev[0].seq, first);
    assert_int_equal(g->b.ev[0].attempts, 1);
    assert_int_equal(g->b.ev[1].seq, first + 2);
    assert_int_equal(g->b.ev[2].seq, first + 3);
    assert_true(settle(g, "c", NULL, 0));
    assert_int_equal(claim(g, "c"), 0);
    assert_true(g->hint.through);
    assert_int_equal(look(g, "c").delivered, 5);
}

static void only_the_latest_error_is_kept(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 1);
    struct outcome o = failed(g, 0, 1, 10);
    assert_true(settle(g, "c", &o, 1));
    assert_string_equal(look(g, "c").last_error, "boom");
    pass(10);
    assert_int_equal(claim(g, "c"), 1);
    o = failed(g, 0, 2, 10);
    o.error = "another reason";
    assert_true(settle(g, "c", &o, 1));
    assert_string_equal(look(g, "c").last_error, "another reason");
    assert_int_equal(look(g, "c").parked, 1);
}

static void followers_stay_behind_when_the_first_fails_again(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 2);
    struct outcome o[2] = {failed(g, 0, 1, 10), behind(g, 1)};
    assert_true(settle(g, "c", o, 2));
    pass(10);
    assert_int_equal(claim(g, "c"), 2);
    struct outcome again[2] = {failed(g, 0, 2, 10), behind(g, 1)};
    assert_true(settle(g, "c", again, 2));
    assert_int_equal(claim(g, "c"), 0);
    pass(10);
    assert_int_equal(claim(g, "c"), 2);
    assert_int_equal(g->b.ev[0].attempts, 2);
    assert_int_equal(g->b.ev[1].attempts, 0);
    struct outcome dead = {.ev = &g->b.ev[0], .kind = OUTCOME_DEAD, .attempts = 3, .error = "gave up"};
    assert_true(settle(g, "c", &dead, 1)); /* the second was delivered once the first was out of the way */
    assert_int_equal(look(g, "c").dead, 1);
    assert_int_equal(look(g, "c").parked, 0);
}

static void what_waits_behind_steps_forward_when_the_first_is_buried(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 2);
    struct outcome o[2] = {failed(g, 0, 1, 10), behind(g, 1)};
    assert_true(settle(g, "c", o, 2));
    pass(10);
    struct claim_request req = request("c", "me");
    req.max_events = 1;
    assert_int_equal(claim_by(g, req), 1);
    struct outcome dead = {.ev = &g->b.ev[0], .kind = OUTCOME_DEAD, .attempts = 2, .error = "gave up"};
    assert_true(settle(g, "c", &dead, 1));
    assert_int_equal(claim(g, "c"), 1);
    assert_int_equal(g->b.ev[0].attempts, 0);
}

static void without_order_a_failure_holds_nobody_back(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    bool lost;
    put_as(g->st, "c", ORDER_NONE, 1);
    emit(g->st, "1");
    assert_int_equal(claim_by(g, request_as("c", "me", ORDER_NONE, 1)), 1);
    struct outcome o = failed(g, 0, 1, 1000);
    struct settlement s = {.consumer = "c", .owner = "me", .order = ORDER_NONE, .b = &g->b, .out = &o, .n = 1};
    must(g->st->ops->turn(g->st, &s, &lost, NULL, NULL, NULL, NULL, &err), &err);
    emit(g->st, "1");
    assert_int_equal(claim_by(g, request_as("c", "me", ORDER_NONE, 1)), 1);
    assert_false(g->b.ev[0].behind);
}

static void global_order_stops_at_a_failure_until_it_passes(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    bool lost;
    put_as(g->st, "c", ORDER_GLOBAL, 1);
    emit(g->st, "1");
    emit(g->st, "2");
    assert_int_equal(claim_by(g, request_as("c", "me", ORDER_GLOBAL, 1)), 2);
    struct outcome o[2] = {failed(g, 0, 1, 1000), behind(g, 1)};
    struct settlement s = {.consumer = "c", .owner = "me", .order = ORDER_GLOBAL, .b = &g->b, .out = o, .n = 2};
    must(g->st->ops->turn(g->st, &s, &lost, NULL, NULL, NULL, NULL, &err), &err);
    emit(g->st, "3");
    assert_int_equal(claim_by(g, request_as("c", "me", ORDER_GLOBAL, 1)), 0);
    assert_in_range(g->hint.wait_ms, 1, 1000);
    pass(1000);
    assert_int_equal(claim_by(g, request_as("c", "me", ORDER_GLOBAL, 1)), 2);
    s = (struct settlement){.consumer = "c", .owner = "me", .order = ORDER_GLOBAL, .b = &g->b};
    must(g->st->ops->turn(g->st, &s, &lost, NULL, NULL, NULL, NULL, &err), &err);
    assert_int_equal(claim_by(g, request_as("c", "me", ORDER_GLOBAL, 1)), 1);
    assert_string_equal(g->b.ev[0].aggregate_id.p, "3");
}

static void parked_event_goes_behind_an_earlier_one_that_was_parked_later(void **state)
{
    struct store_rig *g = *state;
    struct claim_request req = request("c", "me");
    put(g->st, "c");
    emit(g->st, "1");
    emit(g->st, "1");
    req.max_events = 1;
    assert_int_equal(claim_by(g, req), 1); /* the first: its worker is gone */
    int64_t first = g->b.ev[0].seq, epoch = g->b.epoch;
    req.known = &epoch;
    req.n_known = 1;
    req.lease_ms = 2 * LEASE;
    assert_int_equal(claim_by(g, req), 1);
    struct outcome o = behind(g, 0);
    assert_true(settle(g, "c", &o, 1)); /* finds nothing before it: due at once */
    pass(LEASE);
    struct claim_request you = request("c", "you");
    you.parked_first = true;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(claim_by(g, you), 1);
        assert_int_equal(g->b.ev[0].seq, first + i);
        assert_true(settle_by(g, "c", "you", NULL, 0));
    }
}

static void delayed_event_waits_for_its_time(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit_with(g->st, "x", "1", "{}", store_now.wall + 5000);
    assert_int_equal(claim(g, "c"), 1);
    assert_true(g->b.ev[0].delayed);
    struct outcome o = {.ev = &g->b.ev[0], .kind = OUTCOME_DELAY};
    assert_true(settle(g, "c", &o, 1));
    assert_int_equal(claim(g, "c"), 0);
    assert_true(g->hint.through); /* nobody waits for it when draining */
    assert_in_range(g->hint.wait_ms, 4999, 5001);
    pass(5000);
    assert_int_equal(claim(g, "c"), 1);
    assert_false(g->b.ev[0].delayed);
}

static void released_tail_is_handed_out_again_as_if_never_claimed(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    bool lost;
    put(g->st, "c");
    for (int i = 0; i < 4; i++) emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 4);
    int64_t first = g->b.ev[0].seq;
    struct settlement s = {.consumer = "c", .owner = "me", .order = ORDER_KEY, .b = &g->b, .release_from = first + 2};
    must(g->st->ops->turn(g->st, &s, &lost, NULL, NULL, NULL, NULL, &err), &err);
    assert_false(lost);
    assert_int_equal(look(g, "c").parked, 0);
    assert_int_equal(look(g, "c").delivered, 2);
    assert_int_equal(claim_by(g, request("c", "you")), 2);
    assert_int_equal(g->b.ev[0].seq, first + 2);
    assert_int_equal(g->b.ev[0].attempts, 0);
}

static void released_tail_goes_back_also_when_events_behind_it_were_passed_over(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct filter *f;
    bool lost;
    put(g->st, "c");
    must(filter_new("a.*", NULL, &f, &err), &err);
    struct claim_request req = request("c", "me");
    req.filter = f;
    emit_with(g->st, "a.x", "1", "{}", 0);
    emit_with(g->st, "a.x", "1", "{}", 0);
    assert_int_equal(claim_by(g, req), 2);
    struct batch one = g->b;
    struct event copies[2];
    memcpy(copies, one.ev, sizeof copies);
    one.ev = copies;
    emit_with(g->st, "b.x", "1", "{}", 0);
    req.known = &one.epoch;
    req.n_known = 1;
    assert_int_equal(claim_by(g, req), 0); /* moves the position past it */
    assert_int_equal(g->hint.skipped, 1);
    struct settlement s = {.consumer = "c", .owner = "me", .order = ORDER_KEY, .b = &one, .release_from = one.from + 1};
    must(g->st->ops->turn(g->st, &s, &lost, NULL, NULL, NULL, NULL, &err), &err);
    assert_int_equal(look(g, "c").parked, 0);
    assert_int_equal(claim_by(g, req), 2);
    assert_false(g->b.parked);
    filter_free(f);
}

static void released_tail_before_another_claim_is_parked(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    bool lost;
    struct claim_request req = request("c", "me");
    put(g->st, "c");
    for (int i = 0; i < 4; i++) emit(g->st, "1");
    req.max_events = 2;
    assert_int_equal(claim_by(g, req), 2);
    struct batch one = g->b;
    struct event copies[2];
    memcpy(copies, one.ev, sizeof copies);
    one.ev = copies;
    struct arena keep = g->a;
    arena_init(&g->a, 0);
    req.known = &one.epoch;
    req.n_known = 1;
    assert_int_equal(claim_by(g, req), 2);
    struct settlement s = {
        .consumer = "c", .owner = "me", .order = ORDER_KEY, .b = &one, .release_from = copies[0].seq};
    must(g->st->ops->turn(g->st, &s, &lost, NULL, NULL, NULL, NULL, &err), &err);
    assert_int_equal(look(g, "c").parked, 2);
    struct batch two = g->b;
    arena_release(&keep);
    assert_int_equal(claim(g, "c"), 2);
    assert_true(g->b.parked);
    assert_true(two.n == 2);
}

static void receipts_can_be_kept(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 1);
    struct outcome o = {.ev = &g->b.ev[0], .kind = OUTCOME_DELIVERED, .receipt = "1748-0"};
    assert_true(settle(g, "c", &o, 1));
    assert_int_equal(look(g, "c").delivered, 1);
}

/* ---- dead letters ---- */

struct letters {
    size_t n;
    char id[UUID_TEXT + 1], error[64], payload[64];
    bool retrying;
};

static int note_letter(void *ctx, const struct dead_letter *d)
{
    struct letters *l = ctx;
    l->n++;
    l->retrying = d->retrying;
    snprintf(l->id, sizeof l->id, "%s", d->ev.id.p);
    snprintf(l->error, sizeof l->error, "%s", d->error);
    snprintf(l->payload, sizeof l->payload, "%s", d->ev.payload.p);
    return 0;
}

static struct letters letters(struct store_rig *g)
{
    struct error err;
    struct letters l = {0};
    must(g->st->ops->dead(g->st, &(struct dead_query){.consumer = "c"}, note_letter, &l, &err), &err);
    return l;
}

static void kill_one(struct store_rig *g)
{
    assert_int_equal(claim(g, "c"), 1);
    struct outcome o = {.ev = &g->b.ev[0], .kind = OUTCOME_DEAD, .attempts = 3, .error = "no use"};
    assert_true(settle(g, "c", &o, 1));
}

static void dead_letter_is_kept_whole_and_survives_trimming(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct trim_result t;
    put(g->st, "c");
    emit_with(g->st, "x", "1", "{\"keep\":true}", 0);
    kill_one(g);
    pass(1000);
    must(g->st->ops->trim(g->st, &(struct trim_request){.older_than_ms = 500}, &t, &err), &err);
    assert_int_equal(t.events, 1);
    struct letters l = letters(g);
    assert_int_equal(l.n, 1);
    assert_string_equal(l.error, "no use");
    assert_string_equal(l.payload, "{\"keep\":true}");
    int64_t n;
    must(g->st->ops->dead_retry(g->st, &(struct dead_query){.consumer = "c", .id = l.id}, &n, &err), &err);
    assert_int_equal(n, 1);
    assert_int_equal(claim(g, "c"), 1);
    assert_string_equal(g->b.ev[0].id.p, l.id);
    assert_string_equal(g->b.ev[0].payload.p, "{\"keep\":true}");
    assert_int_equal(g->b.ev[0].attempts, 0);
}

static void retried_letter_is_gone_once_delivered_and_back_when_it_dies_again(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    int64_t n;
    put(g->st, "c");
    emit(g->st, "1");
    kill_one(g);
    must(g->st->ops->dead_retry(g->st, &(struct dead_query){0}, &n, &err), &err);
    assert_int_equal(n, 1);
    assert_true(letters(g).retrying);
    assert_int_equal(look(g, "c").dead, 0);
    must(g->st->ops->dead_retry(g->st, &(struct dead_query){0}, &n, &err), &err);
    assert_int_equal(n, 0); /* it is on its way already */
    kill_one(g);
    assert_int_equal(letters(g).n, 1);
    assert_false(letters(g).retrying);
    must(g->st->ops->dead_retry(g->st, &(struct dead_query){0}, &n, &err), &err);
    assert_int_equal(claim(g, "c"), 1);
    assert_true(settle(g, "c", NULL, 0));
    assert_int_equal(letters(g).n, 0);
}

static void dropped_letter_is_gone(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    int64_t n;
    put(g->st, "c");
    emit(g->st, "1");
    kill_one(g);
    must(g->st->ops->dead_drop(g->st, &(struct dead_query){.type = "other"}, &n, &err), &err);
    assert_int_equal(n, 0);
    must(g->st->ops->dead_drop(g->st, &(struct dead_query){.type = "t.*"}, &n, &err), &err);
    assert_int_equal(n, 1);
    assert_int_equal(letters(g).n, 0);
}

/* ---- consumers ---- */

static void new_consumer_starts_where_it_is_told(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    for (int i = 0; i < 5; i++) emit(g->st, "1");
    struct consumer_spec c = {.name = "b", .events = "", .where = "", .retry = "fast", .order = ORDER_KEY, .lanes = 1};
    must(g->st->ops->consumer_put(g->st, &c, NULL, &err), &err);
    c.name = "e";
    c.start = START_END;
    must(g->st->ops->consumer_put(g->st, &c, NULL, &err), &err);
    assert_int_equal(claim(g, "b"), 5);
    c.name = "s";
    c.start = START_SEQ;
    c.start_seq = g->b.ev[3].seq;
    must(g->st->ops->consumer_put(g->st, &c, NULL, &err), &err);
    assert_int_equal(claim(g, "e"), 0);
    assert_int_equal(claim(g, "s"), 2);
    emit(g->st, "1");
    assert_int_equal(claim(g, "e"), 1);
}

static void registering_again_keeps_the_position(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    bool created;
    struct consumer_spec c = {
        .name = "c", .events = "a.*", .where = "", .retry = "slow", .order = ORDER_KEY, .lanes = 1};
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 1);
    assert_true(settle(g, "c", NULL, 0));
    must(g->st->ops->consumer_put(g->st, &c, &created, &err), &err);
    assert_false(created);
    assert_string_equal(look(g, "c").spec.events, "a.*");
    assert_string_equal(look(g, "c").spec.retry, "slow");
    assert_int_equal(look(g, "c").behind, 0);
}

static void order_and_lanes_change_only_when_through(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct consumer_spec c = {.name = "c", .events = "", .where = "", .retry = "fast", .order = ORDER_KEY, .lanes = 4};
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(g->st->ops->consumer_put(g->st, &c, NULL, &err), -1);
    assert_int_equal(err.code, ERR_CONFLICT);
    assert_int_equal(claim(g, "c"), 1);
    assert_true(settle(g, "c", NULL, 0));
    must(g->st->ops->consumer_put(g->st, &c, NULL, &err), &err);
    emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 0); /* one who does not know yet */
    assert_true(g->hint.changed);
    assert_int_equal(claim_by(g, request_as("c", "me", ORDER_KEY, 4)), 1);
}

static void only_a_worker_with_the_registered_filter_gets_anything(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct filter *f;
    struct consumer_spec c = {
        .name = "c", .events = "a.*", .where = "", .retry = "fast", .order = ORDER_KEY, .lanes = 1};
    must(g->st->ops->consumer_put(g->st, &c, NULL, &err), &err);
    emit_with(g->st, "a.x", "1", "{}", 0);
    emit_with(g->st, "b.x", "1", "{}", 0);
    struct claim_request old = request("c", "old"), new = request("c", "new");
    old.events = "a.*";
    must(filter_new(old.events, NULL, &f, &err), &err);
    old.filter = f;
    c.events = new.events = "a.*,b.*";
    must(g->st->ops->consumer_put(g->st, &c, NULL, &err), &err);
    assert_int_equal(claim_by(g, old), 0); /* it would pass over b.x */
    assert_true(g->hint.changed);
    assert_int_equal(claim_by(g, new), 2);
    pass(LEASE);
    assert_int_equal(claim_by(g, old), 0); /* nor does it take over, which would lose b.x as well */
    assert_int_equal(g->hint.crashed, 0);
    assert_int_equal(claim_by(g, new), 1);
    assert_int_equal(g->hint.crashed, 2);
    filter_free(f);
}

static void start_ahead_of_the_head_survives_a_change_of_lanes(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct consumer_spec c = {.name = "c",
                              .events = "",
                              .where = "",
                              .retry = "fast",
                              .order = ORDER_KEY,
                              .lanes = 1,
                              .start = START_SEQ,
                              .start_seq = 3};
    must(g->st->ops->consumer_put(g->st, &c, NULL, &err), &err);
    c.lanes = 2;
    must(g->st->ops->consumer_put(g->st, &c, NULL, &err), &err);
    for (int i = 0; i < 4; i++) emit(g->st, NULL);
    size_t n = 0;
    for (int i = 0; i < 2; i++) {
        struct claim_request req = request_as("c", "me", ORDER_KEY, 2);
        req.lane_hint = i;
        n += claim_by(g, req);
    }
    assert_int_equal(n, 2);
}

static void paused_consumer_gets_nothing_until_resumed(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    put(g->st, "c");
    emit(g->st, "1");
    must(g->st->ops->consumer_pause(g->st, "c", true, &err), &err);
    assert_int_equal(claim(g, "c"), 0);
    assert_true(g->hint.paused);
    must(g->st->ops->consumer_pause(g->st, "c", false, &err), &err);
    assert_int_equal(claim(g, "c"), 1);
    assert_int_equal(g->st->ops->consumer_pause(g->st, "nobody", true, &err), -1);
    assert_int_equal(err.code, ERR_NOTFOUND);
}

static void consumer_with_something_to_lose_is_removed_only_by_force(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct claim_request req = request("c", "me");
    put(g->st, "c");
    emit(g->st, "1");
    kill_one(g);
    assert_int_equal(g->st->ops->consumer_remove(g->st, "c", false, &err), -1);
    assert_int_equal(err.code, ERR_CONFLICT);
    must(g->st->ops->consumer_remove(g->st, "c", true, &err), &err);
    assert_int_equal(g->st->ops->turn(g->st, NULL, NULL, &req, &g->a, &g->b, &g->hint, &err), -1);
    assert_int_equal(err.code, ERR_NOTFOUND);
    assert_int_equal(err.fate, FATE_FATAL);
    put(g->st, "c"); /* begins anew */
    assert_int_equal(claim(g, "c"), 1);
}

static void bad_consumer_names_are_refused(void **state)
{
    struct store_rig *g = *state;
    static const char *const bad[] = {
        "", "a b", "a/b", "x'y", "a;b", "\xc3\xa9", "0123456789012345678901234567890123456789012345678901234567890123"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct error err;
        struct consumer_spec c = {.name = bad[i], .events = "", .where = "", .retry = "", .lanes = 1};
        assert_int_equal(g->st->ops->consumer_put(g->st, &c, NULL, &err), -1);
        assert_int_equal(err.code, ERR_CONFIG);
    }
}

static void report_is_shown_until_cleared(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    put(g->st, "c");
    must(g->st->ops->consumer_report(g->st, "c", "sink is down", &err), &err);
    assert_string_equal(look(g, "c").last_error, "sink is down");
    must(g->st->ops->consumer_report(g->st, "c", NULL, &err), &err);
    assert_null(look(g, "c").last_error);
}

/* ---- retention (G10) ---- */

static struct trim_result trim(struct store_rig *g, bool dry)
{
    struct error err;
    struct trim_result t;
    must(g->st->ops->trim(g->st, &(struct trim_request){.older_than_ms = 1000, .dry_run = dry}, &t, &err), &err);
    return t;
}

static void trim_takes_old_events_that_everyone_is_past(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    emit(g->st, "2");
    assert_int_equal(claim(g, "c"), 2);
    assert_true(settle(g, "c", NULL, 0));
    pass(500);
    emit(g->st, "3");
    assert_int_equal(trim(g, false).events, 0);
    pass(600);
    assert_int_equal(trim(g, true).events, 2);
    assert_int_equal(trim(g, false).events, 2);
    assert_int_equal(trim(g, false).events, 0);
    assert_int_equal(claim(g, "c"), 1);
}

static void trim_leaves_what_a_position_a_claim_or_a_parked_event_needs(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    put(g->st, "slow");
    emit(g->st, "1");
    emit(g->st, "2");
    assert_int_equal(claim(g, "c"), 2);
    assert_true(settle(g, "c", NULL, 0));
    pass(2000);
    struct trim_result t = trim(g, false);
    assert_int_equal(t.events, 0);
    assert_int_equal(t.kept_for_pin, 2);
    assert_non_null(strstr(t.pin, "slow"));
    assert_non_null(strstr(t.pin, "position"));
    assert_int_equal(claim(g, "slow"), 2);
    t = trim(g, false);
    assert_int_equal(t.events, 0);
    assert_non_null(strstr(t.pin, "claim"));
    struct outcome o = failed(g, 0, 1, 100);
    assert_true(settle(g, "slow", &o, 1));
    t = trim(g, false);
    assert_int_equal(t.events, 0);
    assert_non_null(strstr(t.pin, "parked"));
    pass(100);
    assert_int_equal(claim(g, "slow"), 1);
    assert_true(settle(g, "slow", NULL, 0));
    assert_int_equal(trim(g, false).events, 2);
}

static void trim_without_consumers_keeps_everything(void **state)
{
    struct store_rig *g = *state;
    emit(g->st, "1");
    pass(2000);
    struct trim_result t = trim(g, false);
    assert_int_equal(t.events, 0);
    assert_non_null(strstr(t.pin, "no consumer"));
}

static void trim_works_in_small_batches(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct trim_result t;
    put(g->st, "c");
    for (int i = 0; i < 25; i++) emit(g->st, "1");
    assert_int_equal(claim(g, "c"), 25);
    assert_true(settle(g, "c", NULL, 0));
    pass(2000);
    struct trim_request req = {.older_than_ms = 1000, .max_rows = 10};
    for (int i = 0; i < 3; i++) {
        must(g->st->ops->trim(g->st, &req, &t, &err), &err);
        assert_int_equal(t.events, i < 2 ? 10 : 5);
        assert_true(t.more == (i < 2));
    }
}

static void old_idempotency_keys_are_trimmed_and_free_again(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    char id[UUID_TEXT + 1];
    bool dup;
    put(g->st, "c");
    must(keyed(g->st, "k", "1", id, &dup, &err), &err);
    pass(2000);
    assert_int_equal(trim(g, false).keys, 1);
    must(keyed(g->st, "k", "2", id, &dup, &err), &err);
    assert_false(dup);
}

/* ---- inspection (C1.9, C2.2) ---- */

struct seen {
    size_t n;
    enum delivery_state state;
    int attempts;
};

static int note_event(void *ctx, const struct event *ev, const struct delivery_info *d, size_t n)
{
    struct seen *s = ctx;
    (void)ev;
    s->n++;
    if (n) s->state = d[0].state, s->attempts = d[0].attempts;
    return 0;
}

static struct seen events(struct store_rig *g, struct event_query q)
{
    struct error err;
    struct seen s = {0};
    must(g->st->ops->events(g->st, &q, note_event, &s, &err), &err);
    return s;
}

static void every_state_of_the_contract_is_shown(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit(g->st, "1");
    assert_int_equal(events(g, (struct event_query){0}).state, STATE_PENDING);
    assert_int_equal(claim(g, "c"), 1);
    assert_int_equal(events(g, (struct event_query){0}).state, STATE_INFLIGHT);
    struct outcome o = failed(g, 0, 1, 1000);
    assert_true(settle(g, "c", &o, 1));
    struct seen s = events(g, (struct event_query){0});
    assert_int_equal(s.state, STATE_FAILED);
    assert_int_equal(s.attempts, 1);
    pass(1000);
    assert_int_equal(claim(g, "c"), 1);
    assert_int_equal(events(g, (struct event_query){0}).state, STATE_INFLIGHT);
    o = (struct outcome){.ev = &g->b.ev[0], .kind = OUTCOME_DEAD, .attempts = 2, .error = "x"};
    assert_true(settle(g, "c", &o, 1));
    assert_int_equal(events(g, (struct event_query){0}).state, STATE_EXPIRED);
    emit(g->st, "2");
    assert_int_equal(claim(g, "c"), 1);
    assert_true(settle(g, "c", NULL, 0));
    assert_int_equal(events(g, (struct event_query){.newest_first = true, .limit = 1}).state, STATE_DELIVERED);
}

static void events_can_be_found_by_type_key_state_and_id(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    emit_with(g->st, "a.x", "1", "{}", 0);
    emit_with(g->st, "b.x", "2", "{}", 0);
    assert_int_equal(events(g, (struct event_query){.type = "a.*"}).n, 1);
    assert_int_equal(events(g, (struct event_query){.aggregate_type = STR("t"), .aggregate_id = STR("2")}).n, 1);
    assert_int_equal(events(g, (struct event_query){.state = STATE_PENDING + 1}).n, 2);
    assert_int_equal(events(g, (struct event_query){.state = STATE_DELIVERED + 1}).n, 0);
    assert_int_equal(claim(g, "c"), 2);
    char id[UUID_TEXT + 1], seq[24];
    snprintf(id, sizeof id, "%s", g->b.ev[1].id.p);
    snprintf(seq, sizeof seq, "%lld", (long long)g->b.ev[1].seq);
    assert_int_equal(events(g, (struct event_query){.id = id}).n, 1);
    assert_int_equal(events(g, (struct event_query){.id = seq}).n, 1);
    assert_int_equal(events(g, (struct event_query){.id = "nope"}).n, 0);
    assert_int_equal(events(g, (struct event_query){.limit = 1}).n, 1);
}

static void info_tells_head_tail_and_dead(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct store_info i;
    must(g->st->ops->info(g->st, &i, &err), &err);
    assert_int_equal(i.events, 0);
    put(g->st, "c");
    emit(g->st, "1");
    emit(g->st, "2");
    must(g->st->ops->info(g->st, &i, &err), &err);
    assert_int_equal(i.events, 2);
    assert_int_equal(i.head, i.tail + 1);
    assert_int_equal(i.consumers, 1);
    assert_int_equal(i.oldest_at, store_now.wall);
    assert_int_equal(look(g, "c").behind, 2);
    assert_int_equal(look(g, "c").oldest_at, store_now.wall);
}

/* ---- inbox ---- */

static void handle_once_says_first_duplicate_or_conflict(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    bool first;
    assert_int_equal(g->st->ops->handle_once(g->st, NULL, STR("h"), STR("k"), STR("p"), &first, &err), -1);
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
    assert_int_equal(g->st->ops->handle_once(g->st, NULL, STR("h"), STR("k"), STR("other"), &first, &err), -1);
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

int store_suite_run(const struct store_case *c, const struct CMUnitTest *own, size_t n_own)
{
    const struct CMUnitTest tests[] = {
        ON_A_STORE(event_comes_out_as_it_went_in),
        ON_A_STORE(absent_parts_come_out_absent),
        ON_A_STORE(rolled_back_event_never_existed),
        ON_A_STORE(bad_event_is_refused_and_leaves_nothing),
        ON_A_STORE(same_idempotency_key_gives_one_event_and_says_so),
        ON_A_STORE(idempotency_key_of_a_rolled_back_event_is_free),
        ON_A_STORE(claimed_events_are_out_of_everyone_elses_reach),
        ON_A_STORE(without_order_owners_share_a_lane),
        ON_A_STORE(one_owner_may_hold_several_claims_of_a_lane),
        ON_A_STORE(settled_events_are_never_claimed_again),
        ON_A_STORE(settle_and_claim_share_one_call),
        ON_A_STORE(claim_inside_a_transaction_is_refused),
        ON_A_STORE(consumers_dont_see_each_other),
        ON_A_STORE(batch_ends_at_max_bytes),
        ON_A_STORE(lanes_split_the_keys_and_lose_none),
        ON_A_STORE(two_owners_work_on_different_lanes),
        ON_A_STORE(filter_passes_over_what_does_not_match),
        ON_A_STORE(a_filter_that_never_matches_still_gets_to_the_end),
        ON_A_STORE(expired_claim_cannot_settle),
        ON_A_STORE(live_claim_is_never_stolen),
        ON_A_STORE(lease_taken_while_the_clock_was_ahead_is_no_longer_than_it_was),
        ON_A_STORE(retry_parked_while_the_clock_was_ahead_waits_no_longer_than_it_was_told),
        ON_A_STORE(extended_claim_lives_on_and_a_lost_one_cannot_be_extended),
        ON_A_STORE(taken_over_claim_is_fenced_and_gives_the_same_events_one_at_a_time),
        ON_A_STORE(expired_claim_waits_for_the_earlier_ones_of_its_lane),
        ON_A_STORE(careful_event_is_not_handed_out_beside_others),
        ON_A_STORE(poison_event_is_buried_alone),
        ON_A_STORE(take_over_keeps_the_order_of_a_key),
        ON_A_STORE(failed_event_comes_back_when_due_and_holds_its_key_only),
        ON_A_STORE(only_the_latest_error_is_kept),
        ON_A_STORE(followers_stay_behind_when_the_first_fails_again),
        ON_A_STORE(what_waits_behind_steps_forward_when_the_first_is_buried),
        ON_A_STORE(without_order_a_failure_holds_nobody_back),
        ON_A_STORE(global_order_stops_at_a_failure_until_it_passes),
        ON_A_STORE(parked_event_goes_behind_an_earlier_one_that_was_parked_later),
        ON_A_STORE(delayed_event_waits_for_its_time),
        ON_A_STORE(released_tail_is_handed_out_again_as_if_never_claimed),
        ON_A_STORE(released_tail_goes_back_also_when_events_behind_it_were_passed_over),
        ON_A_STORE(released_tail_before_another_claim_is_parked),
        ON_A_STORE(receipts_can_be_kept),
        ON_A_STORE(dead_letter_is_kept_whole_and_survives_trimming),
        ON_A_STORE(retried_letter_is_gone_once_delivered_and_back_when_it_dies_again),
        ON_A_STORE(dropped_letter_is_gone),
        ON_A_STORE(new_consumer_starts_where_it_is_told),
        ON_A_STORE(registering_again_keeps_the_position),
        ON_A_STORE(order_and_lanes_change_only_when_through),
        ON_A_STORE(only_a_worker_with_the_registered_filter_gets_anything),
        ON_A_STORE(start_ahead_of_the_head_survives_a_change_of_lanes),
        ON_A_STORE(paused_consumer_gets_nothing_until_resumed),
        ON_A_STORE(consumer_with_something_to_lose_is_removed_only_by_force),
        ON_A_STORE(bad_consumer_names_are_refused),
        ON_A_STORE(report_is_shown_until_cleared),
        ON_A_STORE(trim_takes_old_events_that_everyone_is_past),
        ON_A_STORE(trim_leaves_what_a_position_a_claim_or_a_parked_event_needs),
        ON_A_STORE(trim_without_consumers_keeps_everything),
        ON_A_STORE(trim_works_in_small_batches),
        ON_A_STORE(old_idempotency_keys_are_trimmed_and_free_again),
        ON_A_STORE(every_state_of_the_contract_is_shown),
        ON_A_STORE(events_can_be_found_by_type_key_state_and_id),
        ON_A_STORE(info_tells_head_tail_and_dead),
        ON_A_STORE(handle_once_says_first_duplicate_or_conflict),
        ON_A_STORE(another_handle_sees_the_same_outbox),
    };
    the_case = c;
    size_t n = sizeof tests / sizeof *tests;
    struct CMUnitTest *all = calloc(n + n_own, sizeof *all);
    memcpy(all, tests, sizeof tests);
    if (n_own) memcpy(all + n, own, n_own * sizeof *all);
    int failures = _cmocka_run_group_tests(c->name, all, n + n_own, NULL, NULL);
    free(all);
    return failures;
}
