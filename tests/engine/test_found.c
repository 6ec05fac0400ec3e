/* Handlers that share a transaction with their settlement, on a store whose commit fails on
 * demand. Each test is a history that the simulator found. */
#include <string.h>

#include "rig.h"
#include "store/sqlite/sqlite.h"

static struct store_ops faulty;
static const struct store_ops *real;
static int commits_to_fail;

static int failing_commit(struct store *st, struct error *err)
{
    if (commits_to_fail == 0 || commits_to_fail-- == 0)
        return real->commit(st, err);
    real->rollback(st);
    return err_class(err, ERR_UNAVAILABLE, CLASS_RETRY, 0, "scripted: the connection was lost");
}

/* A log whose reader is slow, so that logging blocks. */
static void slow_log(void *ctx, enum log_level level, const char *consumer, const char *text)
{
    (void)level, (void)consumer;
    if (strstr(text, "trying again"))
        rig_pass(ctx, 500);
}

static enum sink_status act(struct handler_call *call, const struct delivery *d, void *ctx)
{
    struct store *tx = call->tx;
    (void)d, (void)ctx;
    assert_int_equal(
        sqlite3_exec(sqlite_of(tx)->db, "INSERT INTO effect VALUES (1)", NULL, NULL, NULL),
        SQLITE_OK);
    return SINK_DELIVERED;
}

static int64_t effects(struct rig *g)
{
    struct sqlite_store *st = sqlite_of(g->st);
    struct error err;
    sqlite3_stmt *q = sqlite_plain(st, "SELECT count(*) FROM effect", &err);
    if (sqlite_step(st, q, &err) != 1)
        fail_msg("%s", err.text);
    int64_t n = sqlite3_column_int64(q, 0);
    sqlite3_reset(q);
    return n;
}

/* A commit failed, and the store was asked again only after the retry was due: the batch was
 * settled as delivered, without its effects. */
static void uncommitted_effects_are_never_settled(void **state)
{
    struct rig *g = *state;
    struct worker *w = &g->w[0];
    struct store *work;
    struct sink *sk;
    struct error err;
    static const struct handler h = {.name = "h", .pattern = "*", .fn = act};
    struct log log = {.write = slow_log, .ctx = g, .least = LOG_DEBUG_};
    assert_int_equal(
        sqlite3_exec(sqlite_of(g->st)->db, "CREATE TABLE effect (n)", NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(consumer_init(&w->c, "c", &err), 0);
    assert_int_equal(g->st->ops->dup(g->st, &w->st, &err), 0);
    assert_int_equal(g->st->ops->dup(g->st, &work, &err), 0);
    real = work->ops;
    faulty = *real;
    faulty.commit = failing_commit;
    work->ops = &faulty;
    commits_to_fail = 1;
    struct pipeline_config cfg = {.consumer = &w->c,
                                  .owner = "w",
                                  .st = w->st,
                                  .clock = &g->clock,
                                  .rng = &g->rng,
                                  .log = &log,
                                  .tx_conn = work,
                                  .handlers = &h,
                                  .n_handlers = 1};
    assert_int_equal(pipeline_new(&cfg, &w->p, &err), 0);
    struct handler_guard guard = pipeline_guard(w->p);
    struct sink_config sink = {
        .consumer = "c", .clock = &g->clock, .done = pipeline_done, .done_ctx = w->p};
    assert_int_equal(handlers_open(&sink, &h, 1, &guard, &sk, &err), 0);
    pipeline_attach(w->p, sk);
    assert_int_equal(pipeline_register(w->p, &err), 0);
    rig_emit(g, "a");
    assert_true(rig_run(g, 0, 60000));
    assert_int_equal(commits_to_fail, 0);
    assert_int_equal(effects(g), 1);
    sk->ops->close(sk);
    store_close(work);
}

int main(void)
{
    const struct CMUnitTest tests[] = {ON_A_RIG(uncommitted_effects_are_never_settled)};
    return cmocka_run_group_tests_name("found", tests, NULL, NULL);
}
