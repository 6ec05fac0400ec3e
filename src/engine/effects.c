#include "engine/effects.h"

#include <assert.h>

#include "engine/pipeline_impl.h"

#define SLICE (100 * MS_NS) /* how long events share a transaction */
#define UNDO_MAX 3          /* a batch undone this often uses savepoints */
#define SAVEPOINTS_FOR 4    /* and so do this many batches after it */
#define FRESH_MIN 4         /* after this many fresh batches, the inbox is not checked first */

/* The only place where the mode changes. */
static void set_mode(struct effects *e, enum effects_mode mode)
{
    assert(e->mode != MODE_PER_CALL);
    e->mode = mode;
}

void effects_init(struct effects *e, const struct pipeline_config *cfg)
{
    *e = (struct effects){.st = cfg->tx_conn,
                          .pool = cfg->tx_pool,
                          .calls = {.h = cfg->handlers, .n_handlers = cfg->n_handlers}};
    for (size_t i = 0; i < cfg->n_handlers; i++) {
        if (cfg->handlers[i].external)
            e->mode = MODE_PER_CALL;
    }
}

int effects_acquire(struct effects *e, struct error *err)
{
    if (e->st)
        return 0;
    return e->pool.acquire(e->pool.ctx, &e->st, err);
}

void effects_release(struct effects *e)
{
    bool pooled = e->st && e->pool.acquire;
    if (!pooled || e->state != EFFECTS_IDLE)
        return;
    e->pool.release(e->pool.ctx, e->st);
    e->st = NULL;
}

void effects_close(struct effects *e)
{
    bool pooled = e->st && e->pool.acquire;
    if (!pooled)
        return;
    e->st->ops->rollback(e->st);
    e->state = EFFECTS_IDLE;
    effects_release(e);
}

/* ---- opening the transaction ---- */

void effects_freeze(struct pipeline *p, bool frozen)
{
    if (p->cfg.progress && pipeline_one_writer(p))
        atomic_store(&p->cfg.progress->frozen, frozen);
}

int effects_load(struct effects *e, struct batch_state *b, struct error *err)
{
    struct calls *c = &e->calls;
    if (c->epoch == b->claim.epoch)
        return 0;

    size_t n = c->n_handlers * b->claim.n;
    c->key = arena_alloc(&b->a, n * sizeof *c->key);
    c->fate = arena_zalloc(&b->a, n, sizeof *c->fate);
    c->failure = arena_zalloc(&b->a, n, sizeof *c->failure);
    c->flag = arena_zalloc(&b->a, n, sizeof *c->flag);
    bool room = c->key && c->fate && c->failure && c->flag;
    if (!room)
        return err_nomem(err);
    for (size_t i = 0; i < n; i++) {
        const struct event *ev = &b->claim.ev[i % b->claim.n];
        c->key[i] = (struct inbox_key){str_of(c->h[i / b->claim.n].name), event_inbox_key(ev)};
    }
    c->n = n;
    c->epoch = b->claim.epoch;
    if (e->mode == MODE_PER_CALL)
        return 0;

    enum effects_mode first = MODE_PER_BATCH;
    if (b->claim.n == 1)
        first = MODE_PER_EVENT;
    else if (e->savepoint_batches > 0)
        first = MODE_SAVEPOINTS;
    set_mode(e, first);
    e->undone = 0;
    return 0;
}

/* Finds out which calls took effect before. For an event on its first attempt none did, so after a
 * few batches without a hit the inbox is no longer checked. If a call was recorded after all,
 * recording it again will fail, and the batch is repeated. Marks only calls whose fate is
 * undecided; a call with a savepoint checks the inbox on its own. */
static int ask_inbox(struct effects *e, const struct batch_state *b, struct error *err)
{
    struct calls *c = &e->calls;
    bool all_new = !b->claim.parked && e->fresh >= FRESH_MIN;
    if (all_new)
        return 0;
    if (e->st->ops->handled(e->st, c->key, c->n, c->flag, err) != 0)
        return -1;

    e->fresh++;
    for (size_t i = 0; i < c->n; i++) {
        if (!c->flag[i])
            continue;
        e->fresh = 0;
        if (c->fate[i] == CALL_OPEN)
            c->fate[i] = CALL_RECORDED;
    }
    return 0;
}

int effects_open(struct pipeline *p, struct batch_state *b, struct error *err)
{
    struct effects *e = &p->effects;
    struct calls *c = &e->calls;
    if (e->st->ops->begin(e->st, err) != 0)
        return -1;

    e->state = EFFECTS_OPEN;
    e->batch = b;
    e->opened_at = pipeline_now(p);
    e->last = NULL;
    e->failures = 0;
    e->trouble.code = 0;
    effects_freeze(p, true);
    for (size_t i = 0; i < c->n; i++) {
        bool of_last_transaction = c->fate[i] == CALL_RECORDED || c->fate[i] == CALL_DONE;
        if (of_last_transaction)
            c->fate[i] = CALL_OPEN;
    }
    if (e->mode != MODE_PER_BATCH)
        return 0; /* each call checks the inbox itself, and has its own savepoint */

    int r = ask_inbox(e, b, err);
    if (r == 0)
        r = e->st->ops->savepoint(e->st, SAVEPOINT_SET, err);
    if (r != 0)
        effects_break(e, NULL);
    return r;
}

void effects_break(struct effects *e, const struct error *why)
{
    e->state = EFFECTS_BROKEN;
    if (why)
        e->trouble = *why;
}

/* ---- undoing it ---- */

/* Notes that the transaction is over. Claims can expire again. */
static void end_tx(struct pipeline *p, enum effects_state state)
{
    p->effects.state = state;
    effects_freeze(p, false);
}

/* Reverts the counts of deliveries whose transaction was rolled back. */
static void uncount(struct pipeline *p, const struct batch_state *b)
{
    for (size_t i = 0; i < b->claim.n; i++) {
        const struct slot *slot = &b->slots[i];
        bool tried = slot->state == SLOT_ENDED && !slot->released;
        if (tried && slot->out.kind == OUTCOME_DELIVERED)
            p->stats.delivered--;
    }
}

/* Narrows the mode for this batch and a few later ones, because failures tend to cluster. */
static void use_savepoints(struct effects *e)
{
    e->savepoint_batches = SAVEPOINTS_FOR;
    if (e->mode == MODE_PER_BATCH)
        set_mode(e, MODE_SAVEPOINTS);
}

/* Rolls the transaction back, and starts the batch over. */
static void undo_batch(struct pipeline *p)
{
    struct effects *e = &p->effects;
    struct batch_state *b = e->batch;
    e->st->ops->rollback(e->st);
    end_tx(p, EFFECTS_IDLE);
    e->undone++;
    if (e->undone >= UNDO_MAX)
        use_savepoints(e);

    uncount(p, b);
    inflight_restart(&p->inflight, b);
}

/* ---- ending it ---- */

bool effects_pending(const struct pipeline *p, int64_t now)
{
    const struct effects *e = &p->effects;
    if (e->state != EFFECTS_OPEN)
        return false;
    bool full = e->mode == MODE_PER_EVENT && e->last;
    if (full)
        return false;
    return now - e->opened_at < SLICE;
}

/* Adds the inbox records of calls without a savepoint of their own, and the settlement, to the
 * transaction. Only the commit remains. */
static int seal(struct pipeline *p, struct batch_state *b, bool *ret_lost, struct error *err)
{
    struct effects *e = &p->effects;
    struct calls *c = &e->calls;
    failure_classify(p, b);
    if (inflight_outcomes(b) != 0)
        return err_nomem(err);
    struct settlement s = exchange_settlement(p, b);

    if (e->mode == MODE_PER_BATCH) {
        bool all;
        for (size_t i = 0; i < c->n; i++)
            c->flag[i] = c->fate[i] != CALL_DONE;
        if (e->st->ops->handled_put(e->st, c->key, c->flag, c->n, &all, err) != 0)
            return -1;
        if (!all)
            return err_set(err, ERR_CONFLICT,
                           "another worker has already handled an event of this batch");
        if (e->st->ops->savepoint(e->st, SAVEPOINT_RELEASE, err) != 0)
            return -1;
    }
    return e->st->ops->settle(e->st, &s, ret_lost, err);
}

/* True if the database answered and rejects the handlers' changes, for example because of a
 * deferred constraint. Any other error means that the answer was lost, or is unrelated to them. */
bool effects_refused(struct effects *e, const struct error *err)
{
    bool answered = err->code == ERR_INVALID || err->code == ERR_INTERNAL;
    return answered && e->st->ops->tx_state(e->st) != TX_LOST;
}

/* Finds the event whose effects cannot be committed. Only a commit shows that, so the batch is
 * repeated with one event per transaction. If it had a single event, that event has failed. */
static void isolate_event(struct pipeline *p, const struct error *err)
{
    struct effects *e = &p->effects;
    pipeline_log(p, LOG_WARN_, "the database rejects the handlers' changes: %s", err->text);
    bool culprit_known = e->mode == MODE_PER_EVENT && e->last;
    for (size_t h = 0; culprit_known && h < e->calls.n_handlers; h++)
        calls_fail(&e->calls, e->batch, calls_place(h, e->last), err->text);
    set_mode(e, MODE_PER_EVENT);
    claim_quota_one(&p->quota);
    undo_batch(p);
}

/* Ends a sealed transaction. If the claim is lost, roll back: another worker has the events. */
static void commit_batch(struct pipeline *p, struct batch_state *b, bool lost)
{
    struct effects *e = &p->effects;
    struct error err = {0};
    bool keep = !lost;

    int r = 0;
    if (keep)
        r = e->st->ops->commit(e->st, &err);
    else
        e->st->ops->rollback(e->st);
    if (r != 0 && effects_refused(e, &err)) {
        isolate_event(p, &err);
        return;
    }
    if (r != 0) {
        end_tx(p, EFFECTS_UNSURE);
        exchange_store_failed(p, &err);
        return;
    }
    end_tx(p, EFFECTS_IDLE);
    if (lost)
        uncount(p, b);

    /* Count down the batches that begin with savepoints. A batch of one event proves nothing. */
    bool several = b->claim.n > 1;
    if (several && e->savepoint_batches > 0) {
        if (e->failures > 0)
            e->savepoint_batches = SAVEPOINTS_FOR;
        else
            e->savepoint_batches--;
    }
    exchange_settled(p, 0, lost);
}

/* Undoes the transaction. If another worker had recorded a call, or a handler had ended the
 * transaction, it is not known which call it was: repeating the batch with savepoints will show.
 * Any other error is a failure of the store. */
static void seal_failed(struct pipeline *p, const struct error *err)
{
    struct effects *e = &p->effects;
    bool about_calls = err->code == ERR_CONFLICT || err->code == ERR_MISUSE;
    bool unseen = e->mode == MODE_PER_BATCH && about_calls;
    if (unseen) {
        use_savepoints(e);
        e->fresh = 0;
    }
    undo_batch(p);
    if (!unseen)
        exchange_store_failed(p, err);
}

void effects_finish(struct pipeline *p)
{
    struct effects *e = &p->effects;
    struct batch_state *b = e->batch;
    struct error err = {0};
    bool lost = false;
    if (e->state == EFFECTS_BROKEN) {
        err = e->trouble;
        undo_batch(p);
        if (err.code)
            exchange_store_failed(p, &err);
    }
    if (e->state != EFFECTS_OPEN)
        return;

    if (b->open > 0) {
        /* Time is up, or the sink is down. Finished events are settled, the rest is given back. */
        inflight_give_back(&p->inflight);
        claim_quota_halve(&p->quota);
    }
    if (seal(p, b, &lost, &err) == 0)
        commit_batch(p, b, lost);
    else
        seal_failed(p, &err);
}

void effects_drop(struct pipeline *p, const struct batch_state *b)
{
    struct effects *e = &p->effects;
    if (e->calls.epoch == b->claim.epoch)
        e->calls.epoch = 0; /* the calls live in the batch's arena */
    if (e->batch != b)
        return;
    if (effects_in_tx(e))
        e->st->ops->rollback(e->st);
    if (e->state != EFFECTS_IDLE)
        end_tx(p, EFFECTS_IDLE);
    e->batch = NULL;
}

/* Looks the claim up. If it still exists, the commit failed. If not, the commit succeeded, or
 * another worker has taken the claim over. */
bool effects_resolve(struct pipeline *p)
{
    struct effects *e = &p->effects;
    struct batch_state *b = e->batch;
    struct error err;
    bool lost;
    if (e->state != EFFECTS_UNSURE)
        return true;

    int64_t now = pipeline_now(p);
    bool out_of_time = p->stats.state == PIPELINE_DRAINING &&
                       schedule_drain_over(&p->schedule, now);
    if (out_of_time) {
        exchange_drop(p, 0);
        return true;
    }
    if (schedule_store_away(&p->schedule, now))
        return false;
    struct claim_lease lease = lease_of(p, &b->claim);
    if (p->cfg.st->ops->extend(p->cfg.st, &lease, &lost, &err) != 0) {
        exchange_store_failed(p, &err);
        return false;
    }
    exchange_store_back(p);
    if (lost) {
        exchange_drop(p, 0);
        return true;
    }
    lease_start(p, b, now);
    undo_batch(p);
    return true;
}
