/* Seeded chaos for handlers that work in the store's database. They fail, hang, end their
 * transaction or lose its connection; each operation of the store may fail, and a commit may be
 * reported as failed although it succeeded; workers crash or outlive their lease. Then all faults
 * end, and the effects must be exact: once for each handler and event, in the order of each key,
 * and for a dead letter only what was committed before. OUTBOX_SEED=N replays one seed. */
#include "rig.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../lib/rounds.h"
#include "store/store.h"

#define KEYS 4
#define HANDLERS 3
#define SPIN 3000 /* steps without time passing; more of them are a busy loop */

struct hand {
    struct rig *g;
    int worker, handler;
};

/* One worker, as in a process: a pipeline, and the handle that its handlers work on. */
struct smith {
    struct consumer c;
    struct store *st, *work;
    sqlite3 *db; /* of work */
    bool lost;   /* the connection of work is lost until the next begin */
    struct pipeline *p;
    struct sink *sk;
    struct call_progress progress;
    struct hand hands[HANDLERS];
    struct handler h[HANDLERS];
    char owner[16];
};

enum op { BEGIN, COMMIT, SAVEPOINT, SETTLE, HANDLED, PUT, EXTEND, TURN, OPS };

static struct smith smiths[RIG_PIPELINES];
static const char *const names[HANDLERS] = {"c.a", "c.b", "c.x"};

static struct plan {
    uint64_t seed;
    const char *order, *lanes, *batch;
    size_t handlers; /* the third is external */
    bool healed;
} plan;

static struct {
    struct rig *g;
    int chance;   /* one in `chance` operations fails; 0: none */
    int fail_for; /* number of operations to fail next */
    /* until this monotonic time, the kind of operation below always fails */
    int64_t away;
    enum op which;
    int calls; /* of handlers, since the clock last moved */
    bool late; /* the claim expires before the next transaction, and another worker takes over */
    int external[RIG_SEEN];
    int disturbed;
} script;

static int64_t number(const char *sql)
{
    sqlite3_stmt *q;
    sqlite3 *db = sqlite_handle(script.g->st);
    if (sqlite3_prepare_v2(db, sql, -1, &q, NULL) != SQLITE_OK || sqlite3_step(q) != SQLITE_ROW)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    int64_t n = sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    return n;
}

/* ---- a store that fails ---- */

static struct store_ops scripted_work, scripted_main;
static const struct store_ops *real;

static struct smith *smith_of(struct store *st)
{
    for (int i = 0; i < RIG_PIPELINES; i++)
        if (smiths[i].work == st)
            return &smiths[i];
    return NULL;
}

static int scripted(struct error *err)
{
    return err_class(err, ERR_UNAVAILABLE, CLASS_RETRY, 0, "scripted");
}

/* Decides whether this operation fails; sometimes the connection is lost as well. */
static bool fails(struct store *st, enum op op)
{
    struct smith *s = smith_of(st);
    if (s && s->lost)
        return true;
    if (op == script.which && script.g->mono < script.away)
        return true;
    bool now = script.fail_for > 0 ||
               (script.chance && rng_below(&script.g->rng, (uint64_t)script.chance) == 0);
    if (script.fail_for > 0)
        script.fail_for--;
    if (now && s && rng_below(&script.g->rng, 3) == 0) {
        real->rollback(st);
        s->lost = true;
    }
    return now;
}

static void work_late(struct store *st);

static int scripted_begin(struct store *st, struct error *err)
{
    if (script.late)
        work_late(st);
    smith_of(st)->lost = false;
    return fails(st, BEGIN) ? scripted(err) : real->begin(st, err);
}

static int scripted_commit(struct store *st, struct error *err)
{
    if (fails(st, COMMIT)) {
        real->rollback(st);
        return scripted(err);
    }
    bool lies = script.chance && rng_below(&script.g->rng, (uint64_t)script.chance) == 0;
    if (real->commit(st, err) != 0)
        return -1;
    smith_of(st)->lost = lies;
    return lies ? err_class(err, ERR_UNAVAILABLE, CLASS_RETRY, 0,
                            "scripted: done, but the answer was lost")
                : 0;
}

static int scripted_savepoint(struct store *st, enum savepoint what, struct error *err)
{
    return fails(st, SAVEPOINT) ? scripted(err) : real->savepoint(st, what, err);
}

static enum tx_state scripted_state(struct store *st)
{
    return smith_of(st)->lost ? TX_LOST : real->tx_state(st);
}

static int scripted_settle(struct store *st, const struct settlement *s, bool *ret_lost,
                           struct error *err)
{
    return fails(st, SETTLE) ? scripted(err) : real->settle(st, s, ret_lost, err);
}

static int scripted_handled(struct store *st, const struct inbox_key *k, size_t n, bool *ret,
                            struct error *err)
{
    return fails(st, HANDLED) ? scripted(err) : real->handled(st, k, n, ret, err);
}

static int scripted_put(struct store *st, const struct inbox_key *k, const bool *skip, size_t n,
                        bool *ret_all, struct error *err)
{
    return fails(st, PUT) ? scripted(err) : real->handled_put(st, k, skip, n, ret_all, err);
}

static int scripted_extend(struct store *st, const struct claim_lease *l, bool *ret_lost,
                           struct error *err)
{
    return fails(st, EXTEND) ? scripted(err) : real->extend(st, l, ret_lost, err);
}

static int scripted_turn(struct store *st, const struct settlement *s, bool *ret_lost,
                         const struct claim_request *req, struct arena *a, struct batch *ret_batch,
                         struct claim_hint *ret_hint, struct error *err)
{
    return fails(st, TURN) ? scripted(err)
                           : real->turn(st, s, ret_lost, req, a, ret_batch, ret_hint, err);
}

static void make_scripted(void)
{
    real = script.g->st->ops;
    scripted_main = scripted_work = *real;
    scripted_main.turn = scripted_turn;
    scripted_main.extend = scripted_work.extend = scripted_extend;
    scripted_work.begin = scripted_begin;
    scripted_work.commit = scripted_commit;
    scripted_work.savepoint = scripted_savepoint;
    scripted_work.tx_state = scripted_state;
    scripted_work.settle = scripted_settle;
    scripted_work.handled = scripted_handled;
    scripted_work.handled_put = scripted_put;
}

/* ---- handlers ---- */

static void take_effect(sqlite3 *db, int handler, const struct event *ev)
{
    char sql[160];
    snprintf(sql, sizeof sql, "INSERT INTO effect (handler, seq, key) VALUES (%d, %lld, '%.*s')",
             handler, (long long)ev->seq, (int)ev->aggregate_id.n,
             ev->aggregate_id.p ? ev->aggregate_id.p : "");
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
}

/* Events that always fail, by kind of error. */
static bool poison(const struct event *ev, int handler)
{
    return ev->seq % 17 == 5 && handler == 0;
}

static enum sink_status misbehave(struct smith *s, struct handler_call *call)
{
    static const enum sink_status said[] = {SINK_RETRY, SINK_DOWN, SINK_NOT_MINE, SINK_REJECT};
    struct rng *r = &script.g->rng;
    uint64_t n = rng_below(r, 40);
    snprintf(call->text, sizeof call->text, "told to");
    if (n < 24)
        return said[n % 8 < 4 ? 0 : n % 8 < 6 ? 1 : n % 8 < 7 || n > 8 ? 2 : 3];
    if (n < 30)
        rig_pass(script.g, (int64_t)rng_below(r, 2500)), script.disturbed++;
    /* and the handler does not notice */
    else if (n < 34 && call->tx)
        real->rollback(s->work), s->lost = true;
    else if (n < 35 && call->tx)
        sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    else if (n < 36 && call->tx)
        sqlite3_exec(s->db, "COMMIT", NULL, NULL, NULL);
    return SINK_DELIVERED;
}

static enum sink_status act(struct handler_call *call, const struct delivery *d, void *ctx)
{
    struct hand *hand = ctx;
    struct smith *s = &smiths[hand->worker];
    if (++script.calls > SPIN)
        fail_msg("seed %llu: handlers are called repeatedly without progress",
                 (unsigned long long)plan.seed);
    if (call->tx)
        take_effect(s->db, hand->handler, d->ev);
    if (poison(d->ev, hand->handler))
        return snprintf(call->text, sizeof call->text, "poison"), SINK_RETRY;
    enum sink_status said = plan.healed || rng_below(&script.g->rng, 8) ? SINK_DELIVERED
                                                                        : misbehave(s, call);
    if (!call->tx && said == SINK_DELIVERED)
        script.external[d->ev->seq]++;
    return said;
}

/* ---- workers ---- */

static void begin_work(int i)
{
    struct rig *g = script.g;
    struct smith *s = &smiths[i];
    struct error err;
    static unsigned long starts;
    snprintf(s->owner, sizeof s->owner, "s%d.%lu", i, starts++);
    assert_int_equal(g->st->ops->dup(g->st, &s->st, &err), 0);
    assert_int_equal(g->st->ops->dup(g->st, &s->work, &err), 0);
    assert_int_equal(s->work->ops->expose_connection(s->work, 0, &err), 0);
    s->db = sqlite_handle(s->work);
    s->lost = false;
    s->st->ops = &scripted_main;
    s->work->ops = &scripted_work;
    for (int k = 0; k < HANDLERS; k++) {
        s->hands[k] = (struct hand){g, i, k};
        s->h[k] = (struct handler){
            .name = names[k], .pattern = "*", .external = k == 2, .fn = act, .ctx = &s->hands[k]};
    }
    struct pipeline_config cfg = {.consumer = &s->c,
                                  .owner = s->owner,
                                  .st = s->st,
                                  .tx_conn = s->work,
                                  .handlers = s->h,
                                  .n_handlers = plan.handlers,
                                  .progress = &s->progress,
                                  .clock = &g->clock,
                                  .rng = &g->rng,
                                  .log = &g->log,
                                  .suspects = &g->suspects,
                                  .poll_ms = 20};
    if (pipeline_new(&cfg, &s->p, &err) != 0)
        fail_msg("%s", err.text);
    struct handler_guard guard = pipeline_guard(s->p);
    struct sink_config sink = {
        .consumer = "c", .clock = &g->clock, .done = pipeline_done, .done_ctx = s->p};
    if (handlers_open(&sink, s->h, plan.handlers, &guard, &s->sk, &err) != 0)
        fail_msg("%s", err.text);
    pipeline_attach(s->p, s->sk);
    if (pipeline_register(s->p, &err) != 0)
        fail_msg("%s", err.text);
}

/* Ends a worker as kill -9 would: open transactions are rolled back. */
static void vanish(int i)
{
    struct smith *s = &smiths[i];
    if (!s->p)
        return;
    s->sk->ops->close(s->sk);
    pipeline_free(s->p);
    s->work->ops = s->st->ops = real;
    if (s->work->ops->tx_state(s->work) == TX_OPEN)
        fail_msg("a transaction was left open between two steps");
    store_close(s->work);
    store_close(s->st);
    s->p = NULL;
    s->work = s->st = NULL;
}

static void step(int i)
{
    int turns = 0;
    script.calls = 0;
    while (smiths[i].p && pipeline_step(smiths[i].p))
        if (++turns > SPIN)
            fail_msg("seed %llu: the pipeline loops without progress: %s",
                     (unsigned long long)plan.seed, script.g->last_log);
    if (smiths[i].p && real->tx_state(smiths[i].work) == TX_OPEN)
        fail_msg("seed %llu: a transaction was left open", (unsigned long long)plan.seed);
    if (smiths[i].p && pipeline_stats(smiths[i].p)->delivered < 0)
        fail_msg("seed %llu: %lld events delivered", (unsigned long long)plan.seed,
                 (long long)pipeline_stats(smiths[i].p)->delivered);
    if (smiths[i].p && pipeline_stats(smiths[i].p)->state >= PIPELINE_STOPPED) {
        if (pipeline_stats(smiths[i].p)->error.code)
            fail_msg("seed %llu: the pipeline stopped: %s", (unsigned long long)plan.seed,
                     pipeline_stats(smiths[i].p)->error.text);
        vanish(i);
    }
}

/* Makes the lease of the worker of st expire between its claim and its transaction, while all
 * others keep working. */
static void work_late(struct store *st)
{
    script.late = false;
    script.disturbed++;
    rig_pass(script.g, 2500);
    for (int i = 0; i < RIG_PIPELINES; i++) {
        bool another = smiths[i].p && smiths[i].work != st;
        if (!another)
            continue;
        pipeline_wake(smiths[i].p);
        step(i);
    }
}

/* Steps worker i until it has no work, and moves the clock to its next wake-up. */
static bool run_through(int i, int64_t ms)
{
    struct pollfd fds[8];
    int64_t deadline, end = script.g->mono + ms * MS_NS;
    while (script.g->mono <= end) {
        step(i);
        const struct pipeline_stats *s = pipeline_stats(smiths[i].p);
        if (s->through && !pipeline_busy(smiths[i].p))
            return true;
        pipeline_wait(smiths[i].p, fds, 8, &deadline);
        int64_t left = deadline == CLOCK_NEVER ? 1000 * MS_NS : deadline - script.g->mono;
        rig_pass(script.g, left > MS_NS ? (left + MS_NS - 1) / MS_NS : 1);
    }
    return false;
}

static void one_thing(struct rig *g, int *emitted)
{
    char key[8];
    struct error err;
    int i = (int)rng_below(&g->rng, RIG_PIPELINES);
    struct smith *s = &smiths[i];
    switch (rng_below(&g->rng, 16)) {
    case 0:
    case 1:
    case 2:
    case 3:
        for (uint64_t n = 1 + rng_below(&g->rng, 6); n; n--, ++*emitted) {
            snprintf(key, sizeof key, "%llu", (unsigned long long)rng_below(&g->rng, KEYS));
            rig_emit_at(g, rng_below(&g->rng, 8) ? key : NULL,
                        rng_below(&g->rng, 20) ? 0 : g->wall + 300);
        }
        break;
    case 4:
        if (!s->p)
            begin_work(i);
        break;
    case 5:
        if (s->p && rng_below(&g->rng, 6) == 0)
            vanish(i), script.disturbed++;
        break;
    case 6:
        if (rng_below(&g->rng, 6) == 0)
            rig_pass(g, 2500), script.disturbed++;
        break;
    case 7:
        if (s->p && rng_below(&g->rng, 8) == 0)
            pipeline_drain(s->p, g->mono + 100 * MS_NS), script.disturbed++;
        break;
    case 8: script.chance = rng_below(&g->rng, 3) ? 0 : 4 + (int)rng_below(&g->rng, 40); break;
    case 9:
        if (rng_below(&g->rng, 4) == 0)
            script.fail_for = (int)rng_below(&g->rng, 8);
        script.which = (enum op)rng_below(&g->rng, OPS);
        script.away = g->mono + (int64_t)rng_below(&g->rng, 3000) * MS_NS;
        break;
    case 10:
        if (rng_below(&g->rng, 3) == 0)
            script.late = true;
        break;
    case 11: g->st->ops->consumer_pause(g->st, "c", rng_below(&g->rng, 4) == 0, &err); break;
    default:
        rig_pass(g, (int64_t)rng_below(&g->rng, 120));
        if (s->p && rng_below(&g->rng, 4) == 0)
            pipeline_wake(s->p);
        step(i);
    }
}

static int note_dead(void *ctx, const struct dead_letter *d)
{
    ((bool *)ctx)[d->ev.seq] = true;
    return 0;
}

static void check(struct rig *g, int emitted)
{
    bool dead[RIG_SEEN] = {false};
    struct error err;
    char sql[200];
    size_t in_tx = plan.handlers < 2 ? plan.handlers : 2;
    if (g->st->ops->dead(g->st, &(struct dead_query){0}, note_dead, dead, &err) != 0)
        fail_msg("%s", err.text);
    for (int seq = 1; seq <= emitted; seq++) {
        for (size_t h = 0; h < in_tx; h++) {
            snprintf(sql, sizeof sql,
                     "SELECT count(*) FROM effect WHERE handler = %zu AND seq = %d", h, seq);
            int64_t n = number(sql);
            if (n > 1 || (n == 0 && !dead[seq]))
                fail_msg("seed %llu: event %d took effect %lld times for %s",
                         (unsigned long long)plan.seed, seq, (long long)n, names[h]);
        }
        if (plan.handlers > 2 && !script.external[seq] && !dead[seq])
            fail_msg("seed %llu: %s never handled event %d", (unsigned long long)plan.seed,
                     names[2], seq);
        if (dead[seq] != (seq % 17 == 5) && dead[seq] && !script.disturbed)
            fail_msg("seed %llu: event %d is a dead letter", (unsigned long long)plan.seed, seq);
    }
    int64_t pairs = number(
        "SELECT count(*) FROM effect e JOIN outbox_handled h ON h.handler = CASE e.handler WHEN 0 "
        "THEN 'c.a' ELSE 'c.b' END AND h.key = (SELECT id FROM outbox_event v WHERE v.seq = "
        "e.seq)");
    if (pairs != number("SELECT count(*) FROM effect"))
        fail_msg("seed %llu: effects without a record", (unsigned long long)plan.seed);
    if (number("SELECT count(*) FROM outbox_handled WHERE handler <> 'c.x'") != pairs)
        fail_msg("seed %llu: records without an effect", (unsigned long long)plan.seed);
    if (strcmp(plan.order, "none") != 0 &&
        number("SELECT count(*) FROM effect x JOIN effect y ON x.handler = y.handler AND x.key = "
               "y.key AND x.key <> '' AND "
               "x.at < y.at AND x.seq > y.seq WHERE x.seq NOT IN (SELECT seq FROM outbox_dead) AND "
               "y.seq NOT IN (SELECT "
               "seq FROM outbox_dead)"))
        fail_msg("seed %llu: effects of a key are out of order", (unsigned long long)plan.seed);
    struct consumer_info c = rig_look(g);
    if (c.parked || c.inflight || c.behind)
        fail_msg("seed %llu: left over: %lld parked, %lld in flight, %lld behind",
                 (unsigned long long)plan.seed, (long long)c.parked, (long long)c.inflight,
                 (long long)c.behind);
}

static void describe(struct consumer *c)
{
    struct error err;
    const char *const set[][2] = {{"order", plan.order},
                                  {"lanes", plan.lanes},
                                  {"batch", plan.batch},
                                  {"lease", "2s"},
                                  {"retry", "base=50ms,cap=200ms,attempts=6,outage=0s"}};
    assert_int_equal(consumer_init(c, "c", &err), 0);
    for (size_t i = 0; i < sizeof set / sizeof *set; i++)
        if (option_set(consumer_options, c, set[i][0], set[i][1], &err) != 0)
            fail_msg("%s", err.text);
}

static void run(struct rig *g)
{
    int emitted = 0;
    struct error err;
    rng_seed(&g->rng, plan.seed);
    memset(&script, 0, sizeof script);
    script.g = g;
    make_scripted();
    if (sqlite3_exec(sqlite_handle(g->st),
                     "CREATE TABLE effect (handler INTEGER, seq INTEGER, key TEXT, at INTEGER "
                     "PRIMARY KEY AUTOINCREMENT)",
                     NULL, NULL, NULL) != SQLITE_OK)
        fail_msg("no table");
    for (int i = 0; i < RIG_PIPELINES; i++) {
        describe(&smiths[i].c);
        begin_work(i);
    }
    for (int i = 0; i < 400; i++)
        one_thing(g, &emitted);
    for (int i = 0; i < RIG_PIPELINES; i++)
        vanish(i);
    script.chance = script.fail_for = 0;
    script.away = 0;
    script.late = false;
    plan.healed = true;
    if (g->st->ops->consumer_pause(g->st, "c", false, &err) != 0)
        fail_msg("%s", err.text);
    begin_work(0);
    rig_pass(g, 2500);
    bool through = false;
    for (int i = 0; i < 4 && !through; i++) {
        run_through(0, 120000);
        rig_pass(g, 400);
        pipeline_wake(smiths[0].p);
        through = run_through(0, 120000);
    }
    if (!through)
        fail_msg("seed %llu: the pipeline does not drain: %s", (unsigned long long)plan.seed,
                 g->last_log);
    check(g, emitted);
    for (int i = 0; i < RIG_PIPELINES; i++) {
        vanish(i);
        consumer_release(&smiths[i].c);
    }
}

static void seeds(const char *order, const char *lanes, const char *batch, size_t handlers)
{
    const char *one = getenv("OUTBOX_SEED");
    uint64_t first = one ? strtoull(one, NULL, 10) : 1,
             n = one ? 1 : (uint64_t)rounds_count(20, 5000);
    for (uint64_t s = first; s < first + n; s++) {
        void *state;
        plan = (struct plan){s, order, lanes, batch, handlers, false};
        assert_int_equal(rig_setup(&state), 0);
        run(state);
        rig_teardown(&state);
    }
}

static void one_handler_acts_exactly_once(void **state)
{
    (void)state;
    seeds("key", "1", "5", 1);
}

static void large_batches_on_three_lanes_act_exactly_once(void **state)
{
    (void)state;
    seeds("key", "3", "40", 1);
}

static void handlers_with_shared_fate_act_exactly_once(void **state)
{
    (void)state;
    seeds("key", "1", "8", 2);
}

static void handlers_beside_an_external_one_act_exactly_once(void **state)
{
    (void)state;
    seeds("key", "1", "6", 3);
}

static void handlers_without_order_act_exactly_once(void **state)
{
    (void)state;
    seeds("none", "1", "8", 2);
}

static void handlers_in_global_order_act_exactly_once(void **state)
{
    (void)state;
    seeds("global", "1", "8", 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_handler_acts_exactly_once),
        cmocka_unit_test(large_batches_on_three_lanes_act_exactly_once),
        cmocka_unit_test(handlers_with_shared_fate_act_exactly_once),
        cmocka_unit_test(handlers_beside_an_external_one_act_exactly_once),
        cmocka_unit_test(handlers_without_order_act_exactly_once),
        cmocka_unit_test(handlers_in_global_order_act_exactly_once),
    };
    return cmocka_run_group_tests_name("effects", tests, NULL, NULL);
}
