/* turn.c: a turn of a worker, in one transaction: it takes over what expired, settles what the
 * worker has delivered, and claims what comes next. The transaction begins with the lock of the
 * consumer's row, so the turns of a consumer come one after the other, and never wait for those of
 * another. */
#include <mysqld_error.h>

#include "store/mariadb/claim.h"
#include "store/mariadb/mariadb.h"
#include "store_sql.h"

#define BUSY_AGAIN 50  /* ms until a worker looks again whether its lane is free */
#define UNLOOKED_MAX 8 /* turns in a row that do not look for what is new, amid a backlog */
#define TRIES 4        /* of a turn that the server picked to end a deadlock */

/* What a turn works on: a settlement, a claim, or both. */
struct turn {
    struct claiming k;
    bool lost;         /* the claim that is settled was no longer ours */
    int64_t delivered; /* events of it */
    bool marks;        /* rows are marked once this consumer has had them */
};

static bool is_claiming(const struct claim_request *req)
{
    return req && req->max_events > 0;
}

/* ---- what may have changed since the last turn ---- */

/* check_version notices a migration that ran meanwhile. What the worker has in hand is still
 * settled then, so that nothing is delivered again, but nothing is claimed. With nothing to settle
 * it is an error, which ends the worker. */
static int check_version(const struct turn *t, int64_t there, struct error *err)
{
    if (there == MDB_SCHEMA_VERSION || t->k.s)
        return 0;
    if (there > MDB_SCHEMA_VERSION)
        return err_class(
            err, ERR_NEWER, CLASS_FATAL, 0,
            "%s: this outbox was brought up to version %lld; this program knows %d: update it",
            t->k.st->shown, (long long)there, MDB_SCHEMA_VERSION);
    return err_class(
        err, ERR_NEWER, CLASS_FATAL, 0,
        "%s: this outbox has version %lld; this program wants %d: run `outbox migrate up`",
        t->k.st->shown, (long long)there, MDB_SCHEMA_VERSION);
}

/* same_settings compares the row of consumer_state with the request. */
static bool same_settings(const struct mdb_rows *q, const struct claim_request *req)
{
    const char *events = req->events ? req->events : "";
    const char *where = req->where ? req->where : "";
    if (!str_is(mdb_text(q, 2), store_order_names[req->order]))
        return false;
    if (mdb_int(q, 3) != req->lanes)
        return false;
    return str_is(mdb_text(q, 4), events) && str_is(mdb_text(q, 5), where);
}

/* set_now fixes the turn's time: a claim is alive for all its steps, or for none. */
static void set_now(struct turn *t, int64_t server)
{
    struct mdb_store *st = t->k.st;
    mdb_heard(st, server);
    st->turn_now = mdb_now(st);
    t->k.now = st->turn_now;
}

/* read_consumer reads the consumer's row, which somebody may have paused, removed or changed
 * meanwhile. With other settings than the registered ones nothing may be claimed or
 * taken over: events that only the new filter wants would be skipped for good. */
static int read_consumer(struct turn *t, const char *name, struct mdb_rows *q, int64_t *ret_version,
                         struct error *err)
{
    struct claiming *k = &t->k;
    if (mdb_step(&q) == 0)
        return err_class(err, ERR_NOTFOUND, CLASS_FATAL, 0,
                         "consumer \"%s\" is not registered; it may have been removed", name);
    set_now(t, mdb_int(q, 6));
    *ret_version = mdb_int(q, 7);
    t->marks = mdb_int(q, 8) != 0;
    k->epoch = mdb_claim_next_epoch(k->st, mdb_int(q, 1));
    if (k->req) {
        k->hint->paused = mdb_int(q, 0) != 0;
        k->hint->changed = !same_settings(q, k->req);
    }
    mdb_done(q);
    return 0;
}

/* first_lane is the lane that the turn tries first. */
static int first_lane(const struct claim_request *req)
{
    return req->lane_hint % req->lanes;
}

/* read_found reads the row of lane_found; q is NULL if nothing is to be claimed. */
static void read_found(struct claiming *k, struct mdb_rows *q)
{
    if (!q)
        return;
    if (mdb_step(&q) == 1)
        k->found = (struct found){
            .known = true,
            .lane = first_lane(k->req),
            .position = mdb_int(q, 0),
            .parked = mdb_int(q, 1) != 0,
        };
    mdb_done(q);
}

/* lock_consumer locks the consumer's row, and reads it, what it has claimed, and where the claim
 * will begin. The server takes these statements one after the other, each with a read view of its
 * own: so those behind the first see all that was committed before it got the lock. */
static int lock_consumer(struct turn *t, const char *name, int64_t *ret_version, struct error *err)
{
    enum { STATE, CLAIMS, FOUND, ALL };
    const struct claim_request *req = t->k.req;
    bool claims = is_claiming(req);
    struct mdb_rows *q[ALL] = {NULL};
    struct mdb_question ask[ALL] = {
        [STATE] = {SQL(consumer_state, .consumer = name)},
        [CLAIMS] = {SQL(all_claims, .consumer = name)},
        [FOUND] = {SQL(lane_found, .consumer = name, .lane = claims ? first_lane(req) : 0)},
    };
    if (mdb_ask_beside(t->k.st, ask, claims ? ALL : FOUND, q, err) != 0)
        return -1;
    if (read_consumer(t, name, q[STATE], ret_version, err) != 0) {
        mdb_done(q[CLAIMS]);
        mdb_done(q[FOUND]);
        return -1;
    }
    read_found(&t->k, q[FOUND]);
    return mdb_claim_list(&t->k, q[CLAIMS], err);
}

/* ---- settling ---- */

/* only_delivers says whether a settlement parks nothing, unparks nothing, and leaves the position
 * of its lane alone. */
static bool only_delivers(const struct settlement *s)
{
    if (s->release_from || s->b->parked)
        return false;
    for (size_t i = 0; i < s->n; i++)
        if (s->out[i].kind != OUTCOME_DELIVERED)
            return false;
    return true;
}

/* settle records what the turn settles, unless somebody has taken the claim over. */
static int settle(struct turn *t, struct error *err)
{
    struct claiming *k = &t->k;
    if (mdb_settle_marks(k->st, k->s, err) != 0)
        return -1;
    t->lost = !mdb_claim_is_ours(k);
    if (t->lost)
        return 0;
    k->found.known = k->found.known && only_delivers(k->s);
    if (mdb_settle(k->st, k->s, &t->delivered, err) != 0)
        return -1;
    mdb_claim_over(k, k->s->b->epoch);
    return 0;
}

/* mark marks the rows of adopted tables that this turn has settled, or an earlier one. */
static int mark(const struct turn *t, const char *name, struct error *err)
{
    const struct settlement *s = t->k.s;
    if (!t->marks)
        return 0;
    if (s && !t->lost && mdb_mark_note(t->k.st, s, err) != 0)
        return -1;
    return mdb_mark(t->k.st, name, err);
}

/* put_progress writes the consumer's row, if there is anything to write. */
static int put_progress(struct turn *t, const char *name, struct error *err)
{
    const struct batch *b = t->k.b;
    if (b->n == 0 && t->delivered == 0)
        return 0;
    return mdb_later(t->k.st, err,
                     SQL(put_progress, .consumer = name, .epoch = b->epoch, .n = t->delivered));
}

/* ---- claiming ---- */

/* await_claims notes when claims run out that can be taken over then: those of others, and our own
 * that we don't know of, because the answer got lost. */
static void await_claims(struct claiming *k)
{
    for (size_t i = 0; i < k->n_claims; i++) {
        const struct claim *c = &k->claims[i];
        bool forgotten = c->until > k->now && !c->known;
        if (!c->over && (c->others || forgotten))
            mdb_claim_wait(k, c->until);
    }
}

static bool any_claim(const struct claiming *k)
{
    for (size_t i = 0; i < k->n_claims; i++)
        if (!k->claims[i].over)
            return true;
    return false;
}

/* look_through finds out whether anything is left for this consumer at all, after no fresh event
 * was found. */
static int look_through(struct claiming *k, struct error *err)
{
    int64_t left = 0;
    if (!mdb_claim_unparked(k) &&
        mdb_value(k->st, err, &left,
                  SQL(anything_parked, .consumer = k->req->consumer, .now = k->now)) != 0)
        return -1;
    k->hint->through = !left && !any_claim(k) && k->hint->skipped == 0;
    await_claims(k);
    return 0;
}

/* claim_fresh claims fresh events, unless a careful one waits until nothing is being delivered. */
static int claim_fresh(struct claiming *k, struct error *err)
{
    bool careful_waits = k->hint->suspect && k->req->suspect == SUSPECT_WAIT;
    if (careful_waits)
        return 0;
    return mdb_fresh_claim(k, err);
}

/* claim_next claims parked or fresh events. It tries first what the request wants first. */
static int claim_next(struct claiming *k, struct error *err)
{
    typedef int claim_kind(struct claiming *, struct error *);
    static claim_kind *const parked_first[] = {mdb_parked_claim, claim_fresh};
    static claim_kind *const fresh_first[] = {claim_fresh, mdb_parked_claim};
    if (k->hint->paused)
        return 0;

    claim_kind *const *kinds = k->req->parked_first ? parked_first : fresh_first;
    for (int i = 0; i < 2 && k->b->n == 0; i++)
        if (kinds[i](k, err) != 0)
            return -1;
    if (k->b->n > 0)
        return 0;
    return look_through(k, err);
}

/* ---- the turn ---- */

/* claim claims what comes next. */
static int claim(struct claiming *k, struct error *err)
{
    if (claim_next(k, err) != 0)
        return -1;
    if (k->hint->busy) /* nobody rings when another worker settles */
        mdb_claim_wait(k, k->now + BUSY_AGAIN);
    return 0;
}

/* take_over takes over what expired. If there was anything, what the turn was told is old. */
static int take_over(struct claiming *k, struct error *err)
{
    if (mdb_take_over(k, err) != 0)
        return -1;
    if (k->st->wrote)
        k->found.known = false;
    return 0;
}

/* steps takes the steps of a turn. Their order matters: what an expired claim held must be parked
 * before what waits behind it. */
static int steps(struct turn *t, struct error *err)
{
    struct claiming *k = &t->k;
    const char *name = k->req ? k->req->consumer : k->s->consumer;
    int64_t version = 0;
    if (lock_consumer(t, name, &version, err) != 0)
        return -1;
    if (check_version(t, version, err) != 0)
        return -1;
    bool fit = k->req && !k->hint->changed && version == MDB_SCHEMA_VERSION;
    if (fit && take_over(k, err) != 0)
        return -1;
    if (k->s && settle(t, err) != 0)
        return -1;
    if (mark(t, name, err) != 0)
        return -1;
    if (fit && is_claiming(k->req) && claim(k, err) != 0)
        return -1;
    return put_progress(t, name, err);
}

/* read_on has the server read what the next turn will want, if this one got all it wanted. */
static void read_on(struct mdb_store *st, const struct claim_request *req, const struct batch *b)
{
    bool fresh = b->n > 0 && !b->parked, all = b->n == req->max_events;
    bool in_a_row = req->lanes == 1 && b->to - b->from == (int64_t)b->n;
    if (!fresh || !all || !in_a_row)
        return;
    struct mdb_after next = mdb_fresh_next(req, b->to);
    mdb_ahead_start(st, &next);
}

/* make makes the turn in a transaction, which is committed only if anything was written. */
static int make(struct turn *t, struct error *err)
{
    struct mdb_store *st = t->k.st;
    if (mdb_begin(&st->base, err) != 0)
        return -1;
    int r = steps(t, err);
    st->turn_now = 0;
    free(t->k.claims);
    if (r == 0 && t->k.req)
        read_on(st, t->k.req, t->k.b); /* while the server commits */
    if (r == 0 && st->wrote)
        return mdb_commit(&st->base, err);
    mdb_rollback(&st->base);
    return r;
}

/* has_enough says whether a turn can do without a look at what is new: its events are being read
 * ahead. Now and then it looks all the same, since others may wait for what it finds. */
static bool has_enough(struct mdb_store *st)
{
    bool enough = st->ahead.asked && st->unlooked < UNLOOKED_MAX;
    st->unlooked = enough ? st->unlooked + 1 : 0;
    return enough;
}

int mdb_turn(struct store *base, const struct settlement *s, bool *ret_lost,
             const struct claim_request *req, struct arena *a, struct batch *ret_batch,
             struct claim_hint *ret_hint, struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    struct error why;
    if (st->in_tx)
        return err_set(err, ERR_MISUSE,
                       "a claim inside an open transaction would not be durable: refused");
    if (mdb_by_hand(st, err) != 0)
        return -1;
    bool looks = is_claiming(req) && !has_enough(st);
    if (looks && mdb_sequence(st, err) != 0)
        return -1;

    for (int i = 0; i < TRIES; i++) {
        struct batch b = {0};
        struct claim_hint hint = {.wait_ms = -1};
        struct claiming k = {.st = st, .req = req, .a = a, .b = &b, .hint = &hint, .s = s};
        struct turn t = {.k = k};
        if (make(&t, &why) == 0) {
            if (ret_lost)
                *ret_lost = t.lost;
            if (req) {
                *ret_batch = b;
                *ret_hint = hint;
                read_on(st, req, &b);
            }
            return 0;
        }
        if (why.native != ER_LOCK_DEADLOCK)
            break;
    }
    if (err)
        *err = why;
    return -1;
}
