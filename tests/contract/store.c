#include "store_impl.h"

static const struct store_case *the_case;
static struct test_clock own_clock = {1000000, 1700000000000};
struct test_clock *store_now_at = &own_clock;

static int64_t test_mono(void *ctx)
{
    (void)ctx;
    return store_now.mono;
}

static int64_t test_wall(void *ctx)
{
    (void)ctx;
    return store_now.wall;
}

const struct clock store_clock = {.mono_ns = test_mono, .wall_ms = test_wall};

void pass(int64_t ms)
{
    store_now.mono += ms * MS_NS;
    store_now.wall += ms;
}

int store_rig_setup(void **state)
{
    struct store_rig *g = calloc(1, sizeof *g);
    g->st = the_case->fresh(&(struct store_options){.clock = &store_clock, .create = true});
    if (!g->st)
        return -1;
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

void must(int r, const struct error *err)
{
    if (r != 0)
        fail_msg("%s", err->text);
}

/* emit one event of aggregate t/key (key NULL: none). */
void emit_with(struct store *st, const char *type, const char *key, const char *payload,
               int64_t not_before)
{
    struct error err;
    char id[UUID_TEXT + 1];
    bool dup;
    struct new_event ev = {
        .type = str_of(type), .payload = str_of(payload), .not_before = not_before};
    if (key)
        ev.aggregate_type = STR("t"), ev.aggregate_id = str_of(key);
    must(st->ops->emit(st, NULL, &ev, id, &dup, &err), &err);
    assert_true(uuid7_valid(str_of(id)));
    assert_false(dup);
}

void emit(struct store *st, const char *key)
{
    emit_with(st, "t.e", key, "{}", 0);
}

void put_as(struct store *st, const char *name, enum order order, int lanes)
{
    struct error err;
    struct consumer_spec c = {
        .name = name, .events = "", .where = "", .retry = "fast", .order = order, .lanes = lanes};
    must(st->ops->consumer_put(st, &c, NULL, &err), &err);
}

void put(struct store *st, const char *name)
{
    put_as(st, name, ORDER_KEY, 1);
}

struct claim_request request(const char *consumer, const char *owner)
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

size_t claim_by(struct store_rig *g, struct claim_request req)
{
    struct error err;
    arena_reset(&g->a);
    must(g->st->ops->turn(g->st, NULL, NULL, &req, &g->a, &g->b, &g->hint, &err), &err);
    return g->b.n;
}

size_t claim(struct store_rig *g, const char *consumer)
{
    return claim_by(g, request(consumer, "me"));
}

/* settle g->b with the given outcomes; returns whether the claim was still ours. */
bool settle_by(struct store_rig *g, const char *consumer, const char *owner,
               const struct outcome *out, size_t n)
{
    struct error err;
    bool lost;
    struct settlement s = {
        .consumer = consumer, .owner = owner, .order = ORDER_KEY, .b = &g->b, .out = out, .n = n};
    must(g->st->ops->turn(g->st, &s, &lost, NULL, NULL, NULL, NULL, &err), &err);
    return !lost;
}

bool settle(struct store_rig *g, const char *consumer, const struct outcome *out, size_t n)
{
    return settle_by(g, consumer, "me", out, n);
}

struct outcome failed(const struct store_rig *g, size_t i, int attempts, int64_t delay)
{
    return (struct outcome){.ev = &g->b.ev[i],
                            .kind = OUTCOME_RETRY,
                            .attempts = attempts,
                            .delay_ms = delay,
                            .error = "boom"};
}

struct outcome behind(const struct store_rig *g, size_t i)
{
    return (struct outcome){
        .ev = &g->b.ev[i], .kind = OUTCOME_BEHIND, .attempts = g->b.ev[i].attempts};
}

struct consumer_info look(struct store_rig *g, const char *name)
{
    struct error err;
    struct consumer_info *c;
    size_t n;
    must(g->st->ops->consumer_list(g->st, name, &g->a, &c, &n, &err), &err);
    assert_int_equal(n, 1);
    return *c;
}

struct claim_request request_as(const char *consumer, const char *owner, enum order order,
                                int lanes)
{
    struct claim_request req = request(consumer, owner);
    req.order = order;
    req.lanes = lanes;
    return req;
}

/* keyed emits with an idempotency key. */
int keyed(struct store *st, const char *key, const char *payload, char id[UUID_TEXT + 1], bool *dup,
          struct error *err)
{
    struct new_event ev = {
        .type = STR("x"), .payload = str_of(payload), .idempotency_key = str_of(key)};
    return st->ops->emit(st, NULL, &ev, id, dup, err);
}

int store_suite_run(const struct store_case *c, const struct CMUnitTest *own, size_t n_own)
{
    const struct store_tests parts[] = {
        store_emit_tests, store_claim_tests, store_effects_tests, store_admin_tests, {own, n_own}};
    const size_t n_parts = sizeof parts / sizeof *parts;
    size_t n = 0;
    the_case = c;
    for (size_t i = 0; i < n_parts; i++)
        n += parts[i].n;
    struct CMUnitTest *all = calloc(n, sizeof *all);
    n = 0;
    for (size_t i = 0; i < n_parts; i++) {
        if (parts[i].n)
            memcpy(all + n, parts[i].tests, parts[i].n * sizeof *all);
        n += parts[i].n;
    }
    int failures = _cmocka_run_group_tests(c->name, all, n, NULL, NULL);
    free(all);
    return failures;
}
