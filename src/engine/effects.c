#include "engine/effects.h"

#include <stdio.h>
#include <string.h>

#include "base/bug.h"
#include "engine/pipeline_impl.h"

#define SLICE (100 * MS_NS) /* how long events share a transaction */
#define UNDO_MAX 3          /* times a batch is undone before each call gets a savepoint */
#define FRESH_MIN 4         /* batches in which nothing was recorded before, and then nobody looks */
#define SINGLE_FOR 4        /* batches that start so after one that came to that */

void effects_init(struct effects *e, struct store *st, const struct handler *h, size_t n)
{
    *e = (struct effects){.st = st, .h = h, .n = n};
    for (size_t i = 0; i < n; i++) e->each = e->each || h[i].external;
}

static void say(struct handler_call *call, const char *text)
{
    snprintf(call->text, sizeof call->text, "%s", text);
}

static size_t place_of(size_t handler, const struct item *it)
{
    return handler * it->live->b.n + (size_t)(it - it->live->items);
}

static enum handler_entry refuse(const struct effects *e, size_t handler, struct handler_call *call)
{
    snprintf(call->text, sizeof call->text,
             "handler \"%s\" ended the transaction it was given: it must neither commit nor roll back",
             e->h[handler].name);
    return HANDLER_REFUSE;
}

/* over: what became of a call is known since an earlier transaction. HANDLER_RUN: it is not. */
static enum handler_entry over(const struct effects *e, size_t handler, size_t at, struct handler_call *call)
{
    if (e->ended[at]) return refuse(e, handler, call);
    if (!e->failure[at]) return HANDLER_RUN;
    say(call, e->failure[at]);
    return HANDLER_FAIL;
}

/* fail_next: the transaction cannot go on, so the batch is done again, and there the call counts as failed without being
 * made. Out of memory it is made again, instead. */
static void fail_next(struct effects *e, struct live *l, size_t at, const char *why)
{
    e->failure[at] = arena_bytes(&l->a, why, strlen(why));
}

/* prepare lists what is called for whom. Once per batch: what is known of it outlives a transaction that is undone. */
static int prepare(struct effects *e, struct live *l, struct error *err)
{
    size_t n = e->n * l->b.n;
    if (e->epoch == l->b.epoch) return 0;
    e->key = arena_alloc(&l->a, n * sizeof *e->key);
    e->before = arena_zalloc(&l->a, n, sizeof *e->before);
    e->undone = arena_zalloc(&l->a, n, sizeof *e->undone);
    e->alone = arena_zalloc(&l->a, n, sizeof *e->alone);
    e->ended = arena_zalloc(&l->a, n, sizeof *e->ended);
    e->lost = arena_zalloc(&l->a, n, sizeof *e->lost);
    e->failure = arena_zalloc(&l->a, n, sizeof *e->failure);
    if (!e->key || !e->before || !e->undone || !e->alone || !e->ended || !e->lost || !e->failure) return err_nomem(err);
    for (size_t h = 0; h < e->n; h++)
        for (size_t i = 0; i < l->b.n; i++)
            e->key[h * l->b.n + i] = (struct inbox_key){str_of(e->h[h].name), event_inbox_key(&l->b.ev[i])};
    e->epoch = l->b.epoch;
    e->undone_times = 0;
    e->lone = false;
    return 0;
}

/* ---- the transaction of a batch ---- */

/* uncount: what was delivered in a transaction that came to nothing was not. */
static void uncount(struct pipeline *p, const struct live *l)
{
    for (size_t i = 0; i < l->b.n; i++) {
        const struct item *it = &l->items[i];
        if (it->state == ITEM_ENDED && !it->released && it->out.kind == OUTCOME_DELIVERED) p->stats.delivered--;
    }
}

/* undo takes back what the transaction did; the batch starts again. */
static void undo(struct pipeline *p)
{
    struct effects *e = &p->effects;
    struct live *l = e->open;
    e->st->ops->rollback(e->st);
    e->open = NULL;
    e->broken = false;
    if (++e->undone_times >= UNDO_MAX) e->single_left = SINGLE_FOR;
    pipeline_frozen(p, false);
    uncount(p, l);
    ready_init(&p->ready);
    p->requeue = false;
    live_again(l, p->c->order, &p->keys, &p->ready);
}

/* look_first finds out who was called before. What comes for the first time was not, and where that has been so for a while it
 * is not looked for: if it was after all, recording it will tell, and the batch is done again. */
static int look_first(struct effects *e, const struct live *l, size_t n, struct error *err)
{
    memset(e->before, 0, n * sizeof *e->before);
    if (!l->b.parked && e->fresh >= FRESH_MIN) return 0;
    if (e->st->ops->handled(e->st, e->key, n, e->before, err) != 0) return -1;
    e->fresh++;
    for (size_t i = 0; i < n; i++)
        if (e->before[i]) e->fresh = 0;
    return 0;
}

static int open_tx(struct pipeline *p, struct live *l, struct error *err)
{
    struct effects *e = &p->effects;
    size_t n = e->n * l->b.n;
    if (prepare(e, l, err) != 0 || e->st->ops->begin(e->st, err) != 0) return -1;
    e->open = l;
    e->opened_at = pipeline_now(p);
    e->broken = e->failed = e->called = false;
    e->trouble.code = 0;
    e->single = e->single_left > 0 || l->b.n == 1;
    pipeline_frozen(p, true);
    for (size_t i = 0; i < n; i++) e->undone[i] = true;
    if (e->single) return 0;
    if (look_first(e, l, n, err) != 0) return -1;
    return e->st->ops->savepoint(e->st, SAVEPOINT_SET, err);
}

/* enter_single: the record is looked for before the call, and made after it: made before, it would keep the worker waiting
 * that takes over from one who hangs. */
static enum handler_entry enter_single(struct effects *e, size_t at, struct error *err)
{
    bool done;
    if (e->st->ops->handled(e->st, &e->key[at], 1, &done, err) != 0) return HANDLER_WAIT;
    if (done) return HANDLER_SKIP;
    return e->st->ops->savepoint(e->st, SAVEPOINT_SET, err) == 0 ? HANDLER_RUN : HANDLER_WAIT;
}

static enum handler_entry enter_batch(struct pipeline *p, struct item *it, size_t handler, struct handler_call *call)
{
    struct effects *e = &p->effects;
    struct error err = {.text = "the transaction has to be undone first"};
    size_t at = place_of(handler, it);
    enum handler_entry entry = HANDLER_WAIT;
    if (e->open ? !e->broken : open_tx(p, it->live, &err) == 0) {
        entry = over(e, handler, at, call);
        if (entry != HANDLER_RUN) return entry;
        entry = e->single || e->alone[at] ? enter_single(e, at, &err) : e->before[at] ? HANDLER_SKIP : HANDLER_RUN;
    }
    if (entry != HANDLER_WAIT) return entry;
    e->broken = e->open != NULL;
    say(call, err.text);
    return HANDLER_WAIT;
}

static enum sink_status again(struct effects *e)
{
    e->broken = true;
    return SINK_CANCELLED;
}

/* ended_it: who ends the transaction takes the others' effects with it, or leaves them without a settlement. The batch is
 * done again without it: what was committed is found in the inbox. If the handler had failed, it was the database that gave
 * the transaction up (SQLite does, when the disk is full), and that counts as a failure like any other. */
static enum sink_status ended_it(struct effects *e, size_t at, enum sink_status said, const struct handler_call *call)
{
    if (said == SINK_DELIVERED || said == SINK_REJECT) e->ended[at] = true;
    else fail_next(e, e->open, at, call->text[0] ? call->text : "the database gave up the handler's transaction");
    return again(e);
}

/* lost_it: if the connection is lost twice in the same call, it is the call that does it. */
static enum sink_status lost_it(struct effects *e, size_t at)
{
    if (e->lost[at]) fail_next(e, e->open, at, "the connection was lost while the handler was at work");
    e->lost[at] = true;
    return again(e);
}

/* checked_first: if there was a record already, and none is left now that the call is undone, the call had made it. */
static int checked_first(struct effects *e, size_t at, bool *ret_own, struct error *err)
{
    bool there;
    if (e->st->ops->handled(e->st, &e->key[at], 1, &there, err) != 0) return -1;
    *ret_own = !there;
    return 0;
}

/* keep_single records the call and keeps what it did; if another worker was first, that one's effect counts. */
static int keep_single(struct effects *e, size_t at, bool *ret_own, struct error *err)
{
    static const bool none = false;
    bool first;
    if (BUG(EFFECT_NOT_RECORDED)) return e->st->ops->savepoint(e->st, SAVEPOINT_RELEASE, err);
    if (e->st->ops->handled_put(e->st, &e->key[at], &none, 1, &first, err) != 0) return -1;
    if (e->st->ops->savepoint(e->st, first ? SAVEPOINT_RELEASE : SAVEPOINT_UNDO, err) != 0) return -1;
    return first ? 0 : checked_first(e, at, ret_own, err);
}

static const char silent[] = "a statement of the handler failed, and it did not say so";
static const char own_record[] =
    "the handler has recorded itself in the inbox, under the name and key that its own record has: leave that to us";

static enum sink_status leave_single(struct effects *e, size_t at, enum sink_status said, struct handler_call *call)
{
    struct error err = {0};
    bool own = false;
    enum tx_state state = e->st->ops->tx_state(e->st);
    if (state == TX_GONE) return ended_it(e, at, said, call);
    if (state == TX_LOST) return lost_it(e, at);
    if (state == TX_FAILED && said == SINK_DELIVERED) {
        said = SINK_RETRY;
        say(call, silent);
    }
    int bad = said == SINK_DELIVERED
                  ? keep_single(e, at, &own, &err)
                  : e->st->ops->savepoint(e->st, BUG(FAILED_EFFECT_KEPT) ? SAVEPOINT_RELEASE : SAVEPOINT_UNDO, &err);
    if (own) {
        said = SINK_RETRY;
        say(call, own_record);
    }
    e->failed = e->failed || (said != SINK_DELIVERED && e->open->b.n > 1);
    if (!bad) return said;
    if (err.code == ERR_MISUSE) return ended_it(e, at, SINK_DELIVERED, call);
    e->trouble = err;
    return again(e);
}

static enum sink_status leave_batch(struct effects *e, size_t at, enum sink_status said, struct handler_call *call)
{
    e->called = true;
    e->last = at % e->open->b.n;
    if (e->single || e->alone[at]) return leave_single(e, at, said, call);
    if (said == SINK_DELIVERED && e->st->ops->tx_state(e->st) == TX_OPEN) {
        e->undone[at] = false;
        return said;
    }
    e->alone[at] = true;
    return again(e);
}

/* ---- a transaction for each call ---- */

static enum handler_entry enter_each(struct pipeline *p, struct item *it, size_t handler, struct handler_call *call)
{
    struct effects *e = &p->effects;
    struct error err;
    size_t at = place_of(handler, it);
    bool done = false, in_tx = !e->h[handler].external;
    if (prepare(e, it->live, &err) != 0) goto wait;
    enum handler_entry known = over(e, handler, at, call);
    if (known != HANDLER_RUN) return known;
    if (e->st->ops->handled(e->st, &e->key[at], 1, &done, &err) != 0) goto wait;
    if (done) return HANDLER_SKIP;
    if (in_tx && e->st->ops->begin(e->st, &err) != 0) goto wait;
    if (in_tx) pipeline_frozen(p, true);
    return HANDLER_RUN;
wait:
    say(call, err.text);
    return HANDLER_WAIT;
}

/* record: that it acted. If that fails it has acted all the same: the settlement says so, too. */
static void record(struct pipeline *p, size_t at)
{
    struct effects *e = &p->effects;
    struct error err;
    bool all, skip = false;
    if (e->st->ops->begin(e->st, &err) == 0) {
        if (e->st->ops->handled_put(e->st, &e->key[at], &skip, 1, &all, &err) == 0 &&
            e->st->ops->commit(e->st, &err) == 0)
            return;
        e->st->ops->rollback(e->st);
    }
    log_at(p->cfg.log, LOG_WARN_, p->c->name, "could not record that a handler acted, it may act again: %s", err.text);
}

/* refused: the database answered, and will not have what handlers did: a deferred constraint, say. Else the answer got
 * lost, or it is not about them. */
static bool refused(struct effects *e, const struct error *err)
{
    switch (err->code) {
    case ERR_INVALID:
    case ERR_INTERNAL: return e->st->ops->tx_state(e->st) != TX_LOST;
    default: return false;
    }
}

/* keep_each commits what a call did, with the record of it, if the claim is still ours. */
static int keep_each(struct pipeline *p, const struct live *l, size_t at, bool *ret_own, struct error *err)
{
    struct effects *e = &p->effects;
    static const bool none = false;
    bool first, lost;
    if (e->st->ops->handled_put(e->st, &e->key[at], &none, 1, &first, err) != 0) return -1;
    if (!first) {
        e->st->ops->rollback(e->st); /* another worker's effect counts */
        return checked_first(e, at, ret_own, err);
    }
    if (e->st->ops->extend(e->st, p->c->name, p->cfg.owner, &l->b, p->c->lease_ms, &lost, err) != 0) return -1;
    if (lost) return err_set(err, ERR_LOST, "the claim was lost meanwhile");
    return e->st->ops->commit(e->st, err);
}

static enum sink_status leave_each(struct pipeline *p, const struct live *l, size_t handler, size_t at,
                                   enum sink_status said, struct handler_call *call)
{
    struct effects *e = &p->effects;
    struct error err = {.text = "?"};
    bool own = false;
    if (e->h[handler].external) {
        if (said == SINK_DELIVERED) record(p, at);
        return said;
    }
    enum tx_state state = e->st->ops->tx_state(e->st);
    if (said == SINK_DELIVERED && state == TX_GONE) {
        e->ended[at] = true;
        refuse(e, handler, call);
        said = SINK_REJECT;
    } else if (said == SINK_DELIVERED && state != TX_OPEN) {
        say(call, silent);
        said = SINK_RETRY;
    } else if (said == SINK_DELIVERED && keep_each(p, l, at, &own, &err) != 0) {
        say(call, err.text);
        said = refused(e, &err) ? SINK_RETRY : SINK_DOWN;
    } else if (own) {
        say(call, own_record);
        said = SINK_RETRY;
    }
    if (said != SINK_DELIVERED) e->st->ops->rollback(e->st);
    pipeline_frozen(p, false);
    return said;
}

/* ---- what the handlers' sink calls ---- */

static enum handler_entry enter(void *ctx, size_t handler, struct delivery *d, struct handler_call *call)
{
    struct pipeline *p = ctx;
    if (!p->effects.h[handler].external) call->tx = p->effects.st;
    return p->effects.each ? enter_each(p, (struct item *)d, handler, call)
                           : enter_batch(p, (struct item *)d, handler, call);
}

static enum sink_status leave(void *ctx, size_t handler, struct delivery *d, enum sink_status said,
                              struct handler_call *call)
{
    struct pipeline *p = ctx;
    struct effects *e = &p->effects;
    const struct item *it = (struct item *)d;
    size_t at = place_of(handler, it);
    call->tx = NULL;
    return e->each ? leave_each(p, it->live, handler, at, said, call) : leave_batch(e, at, said, call);
}

struct handler_guard effects_guard(struct pipeline *p)
{
    return (struct handler_guard){p, enter, leave};
}

/* ---- its end ---- */

bool effects_pending(const struct pipeline *p, int64_t now)
{
    const struct effects *e = &p->effects;
    return e->open && !e->broken && !(e->lone && e->called) && now - e->opened_at < SLICE;
}

/* seal records what was done and that it was: all that is left is the commit. */
static int seal(struct pipeline *p, struct live *l, bool *ret_lost, struct error *err)
{
    struct effects *e = &p->effects;
    bool all = true;
    deliver_judge(p, l);
    if (live_outcomes(l) != 0) return err_nomem(err);
    struct settlement s = turn_settlement(p, l);
    if (!e->single) {
        if (e->st->ops->handled_put(e->st, e->key, e->undone, e->n * l->b.n, &all, err) != 0) return -1;
        if (!all) return err_set(err, ERR_CONFLICT, "another worker has handled one of them meanwhile");
        if (e->st->ops->savepoint(e->st, SAVEPOINT_RELEASE, err) != 0) return -1;
    }
    if (BUG(EFFECTS_WITHOUT_SETTLEMENT)) return *ret_lost = false;
    return e->st->ops->settle(e->st, &s, ret_lost, err);
}

/* isolate: something in this transaction cannot be committed, and only its commit tells. So the batch is done again with one
 * event to a transaction; if it was one already, that event has failed. */
static void isolate(struct pipeline *p, struct live *l, const struct error *err)
{
    struct effects *e = &p->effects;
    log_at(p->cfg.log, LOG_WARN_, p->c->name, "the database does not commit what handlers did: %s", err->text);
    if (e->called && (e->lone || l->b.n == 1))
        for (size_t h = 0; h < e->n; h++) fail_next(e, l, h * l->b.n + e->last, err->text);
    e->lone = true;
    batch_size_one(&p->batch_size);
    undo(p);
}

static void commit(struct pipeline *p, struct live *l, bool lost)
{
    struct effects *e = &p->effects;
    struct error err;
    int bad = 0;
    if (lost && !BUG(LOST_EFFECTS_KEPT)) e->st->ops->rollback(e->st);
    else bad = e->st->ops->commit(e->st, &err);
    if (bad && refused(e, &err)) {
        isolate(p, l, &err);
        return;
    }
    e->open = NULL;
    pipeline_frozen(p, false);
    if (lost) uncount(p, l);
    if (bad) {
        e->unsure = l;
        turn_store_failed(p, &err);
        return;
    }
    if (e->single && e->failed) e->single_left = SINGLE_FOR;
    else if (e->single_left > 0 && l->b.n > 1) e->single_left--;
    turn_settled(p, 0, lost);
}

void effects_finish(struct pipeline *p)
{
    struct effects *e = &p->effects;
    struct live *l = e->open;
    struct error err = {0};
    bool lost = false;
    if (!l) return;
    if (!e->broken && l->open > 0) { /* out of time, or the sink is down: what is done is kept, the rest given back */
        live_give_up(l, &p->ready);
        ready_init(&p->ready);
        p->requeue = false;
        batch_size_halve(&p->batch_size);
    }
    if (!e->broken && seal(p, l, &lost, &err) == 0) {
        commit(p, l, lost);
        return;
    }
    /* Somebody was first with one of them, or ended the transaction: done again, one by one, that will be seen. */
    bool unseen = !e->broken && !e->single && (err.code == ERR_CONFLICT || err.code == ERR_MISUSE);
    if (e->broken) err = e->trouble;
    if (unseen) {
        e->undone_times = UNDO_MAX;
        e->fresh = 0;
    }
    undo(p);
    if (err.code && !unseen) turn_store_failed(p, &err);
}

void effects_drop(struct pipeline *p, const struct live *l)
{
    struct effects *e = &p->effects;
    if (e->epoch == l->b.epoch) e->epoch = 0; /* what is known of it goes with its arena */
    if (e->unsure == l) e->unsure = NULL;
    if (e->open != l) return;
    e->st->ops->rollback(e->st);
    e->open = NULL;
    pipeline_frozen(p, false);
}

/* If the claim is still there, nothing was committed. If it is not, all of it was, or another worker has taken over. */
bool effects_resolve(struct pipeline *p)
{
    struct effects *e = &p->effects;
    struct live *l = e->unsure;
    struct error err;
    bool lost;
    int64_t now = pipeline_now(p);
    if (!l) return true;
    if (p->state == PIPELINE_DRAINING && schedule_drain_over(&p->schedule, now)) {
        turn_drop(p, 0);
        return true;
    }
    if (schedule_store_away(&p->schedule, now)) return false;
    if (p->cfg.st->ops->extend(p->cfg.st, p->c->name, p->cfg.owner, &l->b, p->c->lease_ms, &lost, &err) != 0) {
        turn_store_failed(p, &err);
        return false;
    }
    turn_store_back(p);
    e->unsure = NULL;
    if (lost) {
        turn_drop(p, 0);
        return true;
    }
    l->deadline = now + p->c->lease_ms * MS_NS;
    e->open = l;
    undo(p);
    return true;
}
