/* turn.c: a turn of a worker, in one transaction: it takes over expired claims, settles the events
 * that the worker has delivered, and claims the next ones. The transaction begins by locking the
 * consumer's row, so the turns of a consumer are serialised. Turns of several consumers may share a
 * transaction, and so wait for the disk only once. */
#include "store/db/turn.h"

#include <stdlib.h>

#include "store_sql.h"

#define BUSY_AGAIN 50 /* ms until a worker checks again whether its lane is free */
#define TRIES 4       /* of a transaction that failed only because of another */

static bool is_claiming(const struct turn *t)
{
    return t->req && t->req->max_events > 0;
}

/* ---- changes since the last turn ---- */

/* Handles a migration that ran since the last turn. The worker still settles its claim, but claims
 * nothing. A turn without a settlement fails, which stops the worker. */
static int check_version(const struct turn *t, struct error *err)
{
    int known = t->st->ops->driver->schema_version;
    const char *shown = db_of(t->st)->shown;
    if (t->version == known || t->s)
        return 0;
    if (t->version > known)
        return err_class(
            err, ERR_NEWER, CLASS_FATAL, 0,
            "%s: this outbox was upgraded to version %lld; this program knows %d: update it", shown,
            (long long)t->version, known);
    return err_class(
        err, ERR_NEWER, CLASS_FATAL, 0,
        "%s: this outbox has version %lld; this program needs %d: run `outbox migrate up`", shown,
        (long long)t->version, known);
}

/* The row of consumer_state. */
enum { PAUSED, EPOCH, ORDERING, LANES, EVENTS, PREDICATE, VERSION, MARKS, STAMP, CLOCK, IDENTITY };

static bool same_settings(const struct db_rows *q, const struct claim_request *req)
{
    const char *events = req->events ? req->events : "";
    const char *where = req->where ? req->where : "";
    if (!str_is(db_text(q, ORDERING), store_order_names[req->order]))
        return false;
    if (db_int(q, LANES) != req->lanes)
        return false;
    return str_is(db_text(q, EVENTS), events) && str_is(db_text(q, PREDICATE), where);
}

/* Reads the consumer's row; since the last turn, the consumer may have been paused, removed or
 * changed. If the request's settings differ from the registered ones, nothing may be claimed or
 * taken over: events that only the new filter wants would never be delivered. */
static int read_consumer(struct turn *t, struct db_rows *q, struct error *err)
{
    const struct db_driver *d = t->st->ops->driver;
    struct db_store *st = db_of(t->st);
    int r = db_step(q, err);
    if (r < 0)
        return -1;
    if (r == 0 && !t->req)
        return 0; /* a settlement is lost without an error */
    if (r == 0 && d->check_outbox && d->check_outbox(t, false, (struct str){0}, 0, err) != 0)
        return -1;
    if (r == 0)
        return err_class(err, ERR_NOTFOUND, CLASS_FATAL, 0,
                         "consumer \"%s\" is not registered; it may have been removed",
                         t->consumer);

    /* All steps of a turn use the same time: a claim is alive for all of them, or for none. */
    if (d->heard)
        d->heard(t->st, db_int(q, CLOCK));
    if (!st->turn_now) {
        int64_t now = db_now(t->st);
        st->turn_ahead = db_ahead(t->st, now);
        st->turn_now = now;
    }
    t->now = st->turn_now;
    t->registered = true;

    int64_t last = db_int(q, EPOCH);
    t->epoch = db_claim_next_epoch(t->st, last);
    t->version = db_int(q, VERSION);
    t->marks = db_int(q, MARKS) != 0;
    held_keys_check(t->st, t->consumer, db_int(q, STAMP));
    if (!t->req)
        return 0;
    t->hint->paused = db_int(q, PAUSED) != 0;
    t->hint->changed = !same_settings(q, t->req);
    return d->check_outbox ? d->check_outbox(t, true, db_text(q, IDENTITY), last, err) : 0;
}

/* Locks and reads the consumer's row, and reads its claims and where the next claim will begin. On
 * a server the statements run one after the other, each with its own read view, so those after the
 * first see everything committed before it acquired the lock. */
static int lock_consumer(struct turn *t, struct error *err)
{
    enum { STATE, CLAIMS, FOUND, ALL };
    int lane = is_claiming(t) ? db_fresh_first(t->req) : 0;
    struct db_rows q[ALL] = {0};
    struct db_question ask[ALL] = {
        [STATE] = {SQL(consumer_state, .consumer = t->consumer)},
        [CLAIMS] = {SQL(all_claims, .consumer = t->consumer)},
        [FOUND] = {SQL(lane_found, .consumer = t->consumer, .lane = lane)},
    };
    size_t n = is_claiming(t) ? ALL : FOUND;
    if (db_ask_all(t->st, ask, n, q, err) != 0)
        return -1;

    int r = read_consumer(t, &q[STATE], err);
    if (r == 0 && t->registered)
        r = db_claim_list(t, &q[CLAIMS], err);
    if (r == 0 && t->registered && is_claiming(t)) {
        r = db_step(&q[FOUND], err);
        if (r == 1)
            t->found = (struct found){true, lane, db_int(&q[FOUND], 0), db_int(&q[FOUND], 1) != 0};
    }
    for (size_t i = 0; i < n; i++)
        db_done(&q[i]);
    return r < 0 ? -1 : 0;
}

/* ---- settling ---- */

/* Records the settlement, unless another worker has taken the claim over. */
static int settle(struct turn *t, struct error *err)
{
    if (db_settle_marks(t->st, t->s, err) != 0)
        return -1;
    t->lost = !db_claim_is_ours(t);
    if (t->lost)
        return 0;

    /* Parking, unparking or releasing events changes what was found. */
    bool only_delivers = !t->s->release_from && !t->s->b->parked;
    for (size_t i = 0; i < t->s->n; i++)
        only_delivers = only_delivers && t->s->out[i].kind == OUTCOME_DELIVERED;
    t->found.known = t->found.known && only_delivers;
    if (db_settle(t->st, t->s, &t->delivered, err) != 0)
        return -1;
    db_claim_over(t, t->s->b->epoch);
    return 0;
}

/* ---- claiming ---- */

/* After nothing was claimed: finds out whether anything is left, and when the first claim expires:
 * another worker's, or one of ours whose answer was lost. */
static int look_through(struct turn *t, struct error *err)
{
    int64_t left = 0;
    if (!db_fresh_unparked(t) &&
        db_value(t->st, err, &left, SQL(anything_parked, .consumer = t->consumer, .now = t->now)) !=
            0)
        return -1;
    for (size_t i = 0; i < t->n_claims; i++) {
        const struct db_claim *c = &t->claims[i];
        bool runs = c->until > t->now; /* otherwise it waits for an earlier claim of its lane */
        if (c->over)
            continue;
        left = 1;
        if (runs && (c->others || !c->known))
            db_claim_wait(t, c->until);
    }
    t->hint->through = !left && t->hint->skipped == 0;
    return 0;
}

/* Claims parked or fresh events, trying first what the request prefers. */
static int claim_next(struct turn *t, struct error *err)
{
    const struct db_driver *d = t->st->ops->driver;
    for (int i = 0; i < 2 && t->b->n == 0 && !t->hint->paused; i++) {
        bool parked = t->req->parked_first == (i == 0);
        /* A suspect may wait for all deliveries to end; then nothing fresh is claimed. */
        bool suspect_waits = t->hint->suspect && t->req->suspect == SUSPECT_WAIT;
        int r = 0;
        if (parked)
            r = db_parked_claim(t, err);
        else if (!suspect_waits)
            r = db_fresh_claim(t, err);
        if (r != 0)
            return -1;
    }
    if (!t->hint->paused) {
        if (d->claimed && d->claimed(t, err) != 0)
            return -1;
        if (t->b->n == 0 && look_through(t, err) != 0)
            return -1;
    }

    /* A worker that does not listen is not woken when another worker of its relay settles. */
    bool unwoken = t->req->no_listen || !d->commit_wakes;
    if (t->hint->busy && unwoken)
        db_claim_wait(t, t->now + BUSY_AGAIN);
    return 0;
}

/* ---- the turn ---- */

/* The order matters: events of an expired claim are parked before those that wait behind them. */
static int turn_steps(struct turn *t, struct error *err)
{
    const struct db_driver *d = t->st->ops->driver;
    if (lock_consumer(t, err) != 0)
        return -1;
    if (t->registered && check_version(t, err) != 0)
        return -1;

    /* After a change of settings or of the schema, the turn only settles. */
    bool unchanged = t->req && !t->hint->changed && t->version == d->schema_version;
    bool claims = unchanged && is_claiming(t);
    if (claims && d->check_numbers && d->check_numbers(t, err) != 0)
        return -1;
    if (unchanged && db_take_over(t, err) != 0)
        return -1;

    if (t->s && settle(t, err) != 0)
        return -1;
    const struct settlement *settled = t->lost ? NULL : t->s;
    if (t->marks && d->mark_rows(t->st, t->consumer, settled, err) != 0)
        return -1;

    if (claims && claim_next(t, err) != 0)
        return -1;
    bool progress = t->b->n > 0 || t->delivered > 0;
    if (!progress)
        return 0;
    return db_later(
        t->st, err,
        SQL(put_progress, .consumer = t->consumer, .epoch = t->b->epoch, .n = t->delivered));
}

/* Takes n turns in one transaction, and commits only if something was written. */
static int make_once(struct store *base, struct turn *t, size_t n, struct error *err)
{
    const struct db_driver *d = base->ops->driver;
    struct db_store *st = db_of(base);
    int r = 0;
    if (db_begin(base, err) != 0)
        return -1;
    for (size_t i = 0; i < n && r == 0; i++)
        r = turn_steps(&t[i], err);
    st->turn_now = 0;
    for (size_t i = 0; i < n; i++) {
        free(t[i].claims);
        t[i].claims = NULL;
        if (r == 0 && d->before_commit)
            d->before_commit(&t[i]);
    }
    if (r == 0 && d->wrote(base)) {
        st->own_commit = t->req && t->req->no_listen;
        return db_commit(base, err);
    }
    db_rollback(base);
    return r;
}

/* Takes all of n turns, or none. */
static int make(struct store *st, struct turn *t, size_t n, struct error *err)
{
    const struct db_driver *d = st->ops->driver;
    struct error why;
    int r = -1;
    if (db_of(st)->in_tx)
        return err_set(err, ERR_MISUSE,
                       "a claim inside an open transaction would not be durable, and is refused");
    if (d->before_turns(t, n, err) != 0)
        return -1;
    db_of(st)->watched = db_of(st)->watched || (t->req && t->req->no_listen);

    for (int tries = 0; tries < TRIES && r != 0; tries++) {
        for (size_t i = 0; i < n; i++) {
            struct turn again = {.st = st,
                                 .consumer = t[i].consumer,
                                 .req = t[i].req,
                                 .s = t[i].s,
                                 .batched = t[i].batched,
                                 .a = t[i].a,
                                 .b = t[i].b,
                                 .hint = t[i].hint,
                                 .prefetched = t[i].prefetched};
            *again.b = (struct batch){0};
            *again.hint = (struct claim_hint){.wait_ms = -1};
            t[i] = again;
        }
        r = make_once(st, t, n, &why);
        if (r != 0 && !(d->again && d->again(&why)))
            break;
    }
    if (r == 0)
        return d->after_turns(t, n, err);
    return err_copy(err, &why);
}

int db_turn(struct store *st, const struct settlement *s, bool *ret_lost,
            const struct claim_request *req, struct arena *a, struct batch *ret_batch,
            struct claim_hint *ret_hint, struct error *err)
{
    struct batch b = {0};
    struct claim_hint hint = {.wait_ms = -1};
    const char *consumer = req ? req->consumer : s->consumer;
    struct turn t = {
        .st = st, .consumer = consumer, .req = req, .s = s, .a = a, .b = &b, .hint = &hint};
    if (make(st, &t, 1, err) != 0)
        return -1;
    if (ret_lost)
        *ret_lost = t.lost;
    if (req) {
        *ret_batch = b;
        *ret_hint = hint;
    }
    return 0;
}

int db_turn_many(struct store *st, struct batched_turn *t, size_t n, struct error *err)
{
    struct turn *all = calloc(n, sizeof *all);
    if (!all)
        return err_nomem(err);
    for (size_t i = 0; i < n; i++)
        all[i] = (struct turn){
            .st = st,
            .consumer = t[i].req->consumer,
            .req = t[i].req,
            .s = t[i].s,
            .batched = true,
            .a = t[i].a,
            .b = &t[i].batch,
            .hint = &t[i].hint,
        };
    int r = make(st, all, n, err);
    for (size_t i = 0; i < n; i++) {
        t[i].made = r == 0;
        t[i].lost = all[i].lost;
    }
    free(all);
    return r;
}
