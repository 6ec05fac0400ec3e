#include "store_impl.h"

static const struct store_case *the_case;

bool sneak(struct store *st, const char *sql)
{
    return the_case->sneak(st, sql);
}

void unsettle(struct store *st)
{
    for (const char *const *sql = the_case->unsettling; *sql; sql++)
        if (!sneak(st, *sql))
            fail_msg("%s", *sql);
}
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

void must(int r, const struct error *err)
{
    if (r != 0)
        fail_msg("%s", err->text);
}

void emit_with(struct store *st, const char *type, const char *key, const char *payload,
               int64_t not_before)
{
    struct error err;
    char id[UUID_TEXT + 1];
    bool dup;
    struct new_event ev = {
        .type = str_of(type), .payload = str_of(payload), .not_before = not_before};
    if (key) {
        ev.aggregate_type = STR("t");
        ev.aggregate_id = str_of(key);
    }
    must(st->ops->emit(st, NULL, &ev, id, &dup, &err), &err);
    assert_true(rng_uuid_valid(str_of(id)));
    assert_false(dup);
}

void emit(struct store *st, const char *key)
{
    emit_with(st, "t.e", key, "{}", 0);
}

struct consumer_spec spec_of(const char *name)
{
    return (struct consumer_spec){
        .name = name, .events = "", .where = "", .retry = "fast", .order = ORDER_KEY, .lanes = 1};
}

void put_spec(struct store *st, const struct consumer_spec *c)
{
    struct error err;
    must(st->ops->consumer_put(st, c, NULL, &err), &err);
}

void put_as(struct store *st, const char *name, enum order order, int lanes)
{
    struct consumer_spec c = spec_of(name);
    c.order = order;
    c.lanes = lanes;
    put_spec(st, &c);
}

void put(struct store *st, const char *name)
{
    put_as(st, name, ORDER_KEY, 1);
}

struct claim_request refilter(struct store_rig *g, const char *events, const char *where,
                              struct filter **ret_f)
{
    struct error err;
    struct consumer_spec c = spec_of("c");
    c.events = events;
    c.where = where;
    put_spec(g->st, &c);

    must(filter_new(events, where, ret_f, &err), &err);
    struct claim_request req = request("c", "me");
    req.events = events;
    req.where = where;
    req.filter = *ret_f;
    return req;
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
                                  .suspect = SUSPECT_TAKE};
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

int claim_without_memory(struct store_rig *g, struct error *err)
{
    struct arena small;
    struct claim_request req = request("c", "me");
    arena_init(&small, 64);
    int r = g->st->ops->turn(g->st, NULL, NULL, &req, &small, &g->b, &g->hint, err);
    arena_release(&small);
    return r;
}

int extend_by(struct store_rig *g, const char *owner, const struct batch *b, bool *ret_lost,
              struct error *err)
{
    struct claim_lease l = {.consumer = "c", .owner = owner, .epoch = b->epoch, .lease_ms = LEASE};
    return g->st->ops->extend(g->st, &l, ret_lost, err);
}

bool settle_as(struct store_rig *g, const struct settlement *s)
{
    struct error err;
    bool lost;
    must(g->st->ops->turn(g->st, s, &lost, NULL, NULL, NULL, NULL, &err), &err);
    return !lost;
}

bool settle_by(struct store_rig *g, const char *consumer, const char *owner,
               const struct outcome *out, size_t n)
{
    struct settlement s = {
        .consumer = consumer, .owner = owner, .order = ORDER_KEY, .b = &g->b, .out = out, .n = n};
    return settle_as(g, &s);
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

struct outcome dead(const struct store_rig *g, size_t i, int attempts)
{
    return (struct outcome){
        .ev = &g->b.ev[i], .kind = OUTCOME_DEAD, .attempts = attempts, .error = "no use"};
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

int keyed(struct store *st, const char *key, const char *payload, char id[UUID_TEXT + 1], bool *dup,
          struct error *err)
{
    struct new_event ev = {
        .type = STR("x"), .payload = str_of(payload), .idempotency_key = str_of(key)};
    return st->ops->emit(st, NULL, &ev, id, dup, err);
}

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

struct letters letters(struct store_rig *g)
{
    struct error err;
    struct letters l = {0};
    must(g->st->ops->dead(g->st, &(struct dead_query){.consumer = "c"}, note_letter, &l, &err),
         &err);
    return l;
}

void kill_one(struct store_rig *g)
{
    assert_int_equal(claim(g, "c"), 1);
    struct outcome o = dead(g, 0, 3);
    assert_true(settle(g, "c", &o, 1));
}

int64_t retry_dead(struct store_rig *g, struct dead_query q)
{
    struct error err;
    int64_t n;
    must(g->st->ops->dead_retry(g->st, &q, &n, &err), &err);
    return n;
}

int64_t drop_dead(struct store_rig *g, struct dead_query q)
{
    struct error err;
    int64_t n;
    must(g->st->ops->dead_drop(g->st, &q, &n, &err), &err);
    return n;
}

int store_suite_run(const struct store_case *c, const struct suite_part *own, size_t n_own)
{
    const struct suite_part suite[] = {
        store_emit_tests,     store_claim_tests,     store_lease_tests, store_failure_tests,
        store_settle_tests,   store_effects_tests,   store_dead_tests,  store_consumer_tests,
        store_settings_tests, store_retention_tests, store_state_tests, store_gauge_tests,
    };
    struct suite_part all[COUNT(suite) + 8];
    assert_in_range(n_own, 0, 8);
    memcpy(all, suite, sizeof suite);
    for (size_t i = 0; i < n_own; i++)
        all[COUNT(suite) + i] = own[i];

    the_case = c;
    return suite_run(c->name, all, COUNT(suite) + n_own);
}
