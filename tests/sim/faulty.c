/* faulty.c: the store as relays see it. Calls fail, take long, lose their answer, or kill the
 * process. The checker is told the real outcome. */
#include <string.h>

#include "sim.h"
#include "store/sqlite/sqlite.h"

static struct sim *world; /* operations do not know their relay */
static const struct store_ops *real;
static struct store_ops faulty;

/* The caller of an operation. */
struct from {
    struct relay *r;
    struct pipe *q;
    struct deed deed;
};

static struct from from(struct store *st)
{
    for (int i = 0; i < SIM_RELAYS; i++)
        for (int c = 0; c < SIM_CONSUMERS; c++) {
            struct pipe *q = &world->relay[i].pipe[c];
            if (q->st == st || q->work == st)
                return (struct from){&world->relay[i], q, {.r = &world->relay[i], .c = c}};
        }
    sim_fail(world, "call on a closed handle");
}

static bool fault(struct sim *w, enum fault f)
{
    if (w->healing || !sim_one_in(w, w->plan.calls))
        return false;
    sim_fault(w, f);
    return true;
}

static int away(struct error *err, const char *why)
{
    return err_class(err, ERR_UNAVAILABLE, CLASS_RETRY, 0, "simulated: %s", why);
}

static bool others_write(const struct from *f, const struct store *st)
{
    const struct sim *w = world;
    if (w->writer)
        return w->writer != f->q || st != f->q->work;
    return !sim_free(w);
}

/* enter is called before an operation. It returns 0, or -1 if the operation has failed and nothing
 * happened. */
static int enter(struct from *f, struct store *st, struct error *err)
{
    *f = from(st);
    relay_call(world, f->r);
    if (others_write(f, st))
        return err_class(err, ERR_BUSY, CLASS_RETRY, 0, "simulated: locked by another process");
    if (fault(world, FAULT_BUSY))
        return err_class(err, ERR_BUSY, CLASS_RETRY, 0, "simulated: busy");
    f->deed.in_tx = world->writer == f->q && st == f->q->work;
    f->deed.wall = f->deed.wall_most = f->deed.in_tx ? f->q->began : world->wall;
    return 0;
}

/* done is called when the store has finished; the clock may have advanced or been set back. */
static const struct deed *done(struct from *f)
{
    if (world->wall < f->deed.wall && !f->deed.in_tx)
        f->deed.wall = world->wall;
    if (world->wall > f->deed.wall_most)
        f->deed.wall_most = world->wall;
    return &f->deed;
}

/* leave is called afterwards and returns the result for the caller. */
static int leave(const struct from *f, int r, struct error *err)
{
    relay_call(world, f->r);
    if (r == 0 && fault(world, FAULT_LOST))
        return away(err, "done, but the answer was lost");
    return r;
}

/* ---- claims ---- */

/* in_company takes a turn like a relay with many consumers, in half of the cases where the store
 * can: by turns, and by turn if it is not simple. A store with several writers has one way for a
 * single turn and another for several; so half of these turns are requested in both ways, and the
 * store makes one of them. */
static int in_company(struct store *st, const struct settlement *s, bool *ret_lost,
                      const struct claim_request *req, struct arena *a, struct batch *ret_batch,
                      struct claim_hint *ret_hint, struct error *err)
{
    struct batched_turn t[] = {{.s = s, .req = req, .a = a}, {.s = s, .req = req, .a = a}};
    bool tried = real->turn_many && req->max_events > 0 && rng_below(&world->rng, 2) == 0;
    bool one_writer = (st->caps & STORE_ONE_WRITER) != 0;
    size_t n = 1;
    if (tried && !one_writer)
        n += rng_below(&world->rng, 2);
    if (tried && real->turn_many(st, t, n, err) != 0)
        return -1;
    if (!t[0].made)
        return real->turn(st, s, ret_lost, req, a, ret_batch, ret_hint, err);
    *ret_lost = t[0].lost;
    *ret_batch = t[0].batch;
    *ret_hint = t[0].hint;
    return 0;
}

static int faulty_turn(struct store *st, const struct settlement *s, bool *ret_lost,
                       const struct claim_request *req, struct arena *a, struct batch *ret_batch,
                       struct claim_hint *ret_hint, struct error *err)
{
    struct from f;
    struct settled settled;
    if (s)
        check_judged(world, from(st).r, from(st).deed.c, s->b->epoch);
    if (enter(&f, st, err) != 0)
        return -1;
    int r = in_company(st, s, ret_lost, req, a, ret_batch, ret_hint, err);
    if (r == 0) {
        sim_number(world);
        if (s)
            check_settling(world, done(&f), s, *ret_lost, &settled);
        if (s)
            check_settled(world, &settled);
        if (ret_hint->buried)
            check_buried(world, st, f.deed.c, ret_hint->buried);
        if (ret_batch->n)
            check_claimed(world, done(&f), ret_batch);
    }
    return leave(&f, r, err);
}

static int faulty_extend(struct store *st, const struct claim_lease *l, bool *ret_lost,
                         struct error *err)
{
    struct from f;
    if (!world->healing && world->plan.calls && sim_one_in(world, 6))
        relay_meanwhile(world, from(st).r);
    if (enter(&f, st, err) != 0)
        return -1;
    int r = real->extend(st, l, ret_lost, err);
    bool absolved = l->absolve && r == 0 && !*ret_lost;
    if (absolved)
        check_absolved(world, l->consumer, l->epoch);
    else if (r == 0 && !l->absolve)
        check_extended(world, done(&f), l->epoch, *ret_lost);
    return leave(&f, r, err);
}

static int faulty_report(struct store *st, const char *name, const char *text, struct error *err)
{
    struct from f;
    return enter(&f, st, err) != 0 ? -1 : real->consumer_report(st, name, text, err);
}

/* ---- transactions of handlers ---- */

static void over(struct pipe *q)
{
    if (world->writer == q)
        world->writer = NULL;
    q->tx = (struct settled){0};
}

/* cut loses the connection, and the transaction with it. */
static int cut(struct from *f, struct store *st, struct error *err)
{
    real->rollback(st);
    over(f->q);
    f->q->gone = true;
    return away(err, "the connection was lost");
}

/* enter_tx is enter for calls within a transaction. */
static int enter_tx(struct from *f, struct store *st, struct error *err)
{
    if (enter(f, st, err) != 0)
        return -1;
    if (f->q->gone)
        return away(err, "there is no connection");
    return world->writer == f->q && fault(world, FAULT_GONE) ? cut(f, st, err) : 0;
}

static int faulty_begin(struct store *st, struct error *err)
{
    struct from f;
    if (enter(&f, st, err) != 0)
        return -1;
    f.q->gone = false;
    if (real->begin(st, err) != 0)
        return -1;
    world->writer = f.q;
    f.q->began = world->wall;
    f.q->tx = (struct settled){0};
    return 0;
}

static int faulty_commit(struct store *st, struct error *err)
{
    struct from f;
    if (enter_tx(&f, st, err) != 0) {
        real->rollback(st);
        over(f.q);
        return -1;
    }
    int r = real->commit(st, err);
    if (r == 0 && f.q->tx.lost)
        sim_fail(world, "zombie: effects of %s are committed without a claim", f.q->c.name);
    if (r == 0)
        check_settled(world, &f.q->tx);
    over(f.q);
    return leave(&f, r, err);
}

static void faulty_rollback(struct store *st)
{
    struct from f = from(st);
    real->rollback(st);
    over(f.q);
    f.q->gone = false;
}

static int faulty_savepoint(struct store *st, enum savepoint what, struct error *err)
{
    struct from f;
    return enter_tx(&f, st, err) != 0 ? -1 : real->savepoint(st, what, err);
}

static enum tx_state faulty_tx_state(struct store *st)
{
    return from(st).q->gone ? TX_LOST : real->tx_state(st);
}

static int faulty_settle(struct store *st, const struct settlement *s, bool *ret_lost,
                         struct error *err)
{
    struct from f;
    if (enter_tx(&f, st, err) != 0)
        return -1;
    int r = real->settle(st, s, ret_lost, err);
    if (r == 0)
        check_settling(world, done(&f), s, *ret_lost, &f.q->tx);
    return r;
}

static int faulty_handled(struct store *st, const struct inbox_key *k, size_t n, bool *ret,
                          struct error *err)
{
    struct from f;
    return enter_tx(&f, st, err) != 0 ? -1 : real->handled(st, k, n, ret, err);
}

static int faulty_handled_put(struct store *st, const struct inbox_key *k, const bool *skip,
                              size_t n, bool *ret_all, struct error *err)
{
    struct from f;
    return enter_tx(&f, st, err) != 0 ? -1 : real->handled_put(st, k, skip, n, ret_all, err);
}

/* before_lock is called inside a turn, between its read-ahead and the write lock; others act there
 * as well. */
static int before_lock(unsigned event, void *ctx, void *statement, void *sql)
{
    (void)event, (void)statement;
    if (strcmp(sql, "BEGIN IMMEDIATE") != 0 || world->healing)
        return 0;
    struct from f = from(ctx);
    if (f.r->crash && fault(world, FAULT_SLOW))
        relay_meanwhile(world, f.r);
    return 0;
}

void faulty_wrap(struct sim *w, struct store *st)
{
    world = w;
    real = w->st->ops;
    faulty = *real;
    faulty.turn = faulty_turn;
    faulty.extend = faulty_extend;
    faulty.consumer_report = faulty_report;
    faulty.begin = faulty_begin;
    faulty.commit = faulty_commit;
    faulty.rollback = faulty_rollback;
    faulty.savepoint = faulty_savepoint;
    faulty.tx_state = faulty_tx_state;
    faulty.settle = faulty_settle;
    faulty.handled = faulty_handled;
    faulty.handled_put = faulty_handled_put;
    st->ops = &faulty;
    if (w->on == &backend_sqlite)
        sqlite3_trace_v2(sqlite_of(st)->db, SQLITE_TRACE_STMT, before_lock, st);
}
