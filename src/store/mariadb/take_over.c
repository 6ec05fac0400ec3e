/* take_over.c: what becomes of claims whose lease ran out. Their events become parked ones that
 * have been through a crash: any of them may have killed the process that had it. */
#include "store/mariadb/claim.h"
#include "store/mariadb/mariadb.h"
#include "store_sql.h"

#define RANGE_EVENTS 256      /* of a fresh claim that are parked at a time */
#define RANGE_BYTES (1 << 20) /* likewise */

/* park_crashed parks one event of an expired claim; if it has a time of its own, until then. */
static int park_crashed(struct claiming *k, const struct event *ev, struct error *err)
{
    struct parking p = {
        .consumer = k->req->consumer, .order = k->req->order, .ev = ev, .crashes = 1};
    if (ev->not_before > k->now) {
        p.due_at = ev->not_before;
        p.delayed = true;
    }
    k->hint->crashed++;
    return mdb_park(k->st, &p, err);
}

/* park_some parks the next events of a fresh claim after *from, and moves *from past what was
 * looked at. */
static int park_some(struct claiming *k, const struct claim *e, int64_t *from, struct error *err)
{
    struct chunk c = {.from = *from, .to = *from};
    c.ev = arena_alloc(k->a, RANGE_EVENTS * sizeof *c.ev);
    if (!c.ev)
        return err_nomem(err);
    struct mdb_rows *q = mdb_rows(k->st, err,
                                  SQL(range_events, .from_seq = *from, .to_seq = e->to,
                                      .max = RANGE_EVENTS, .most = mdb_fresh_inline(k->req)));
    if (mdb_fresh_wanted(k, q, e->lane, RANGE_EVENTS, &c, err) != 0)
        return -1;
    for (size_t i = 0; i < c.n; i++)
        if (park_crashed(k, &c.ev[i], err) != 0)
            return -1;
    *from = c.scanned ? c.to : e->to;
    return 0;
}

/* park_range parks the events of an expired fresh claim, in an arena of its own: they are not part
 * of the batch. */
static int park_range(struct claiming *k, const struct claim *e, struct error *err)
{
    struct arena a;
    struct claim_request req = *k->req;
    struct claiming sub = *k;
    arena_init(&a, 0);
    req.max_bytes = RANGE_BYTES;
    sub.a = &a;
    sub.req = &req;

    int r = 0;
    int64_t from = e->from;
    while (r == 0 && from < e->to) {
        r = park_some(&sub, e, &from, err);
        arena_reset(&a);
    }
    arena_release(&a);
    return r;
}

/* bury_poison makes a dead letter of an event that was to blame for its worker's end once too
 * often. */
static int bury_poison(struct claiming *k, int64_t epoch, struct error *err)
{
    struct mdb_rows *q;
    int r = mdb_row(k->st, &q, err,
                    SQL(poison_of, .consumer = k->req->consumer, .epoch = epoch,
                        .max_attempts = k->req->max_attempts));
    if (r <= 0)
        return r;
    int64_t seq = mdb_int(q, 0);
    int attempts = (int)mdb_int(q, 1);
    int64_t key = mdb_int(q, 2);
    mdb_done(q);

    k->hint->buried++;
    if (mdb_bury(k->st, k->req->consumer, seq, attempts,
                 "the process died, or lost its lease, while delivering this event", err) != 0)
        return -1;
    return mdb_promote(k->st, k->req->consumer, key, err);
}

/* unpark_claim lets the events of an expired parked claim wait again. */
static int unpark_claim(struct claiming *k, const struct claim *e, struct error *err)
{
    int64_t salt = (int64_t)rng_below(&k->st->rng, STORE_APART_MS);
    if (e->blamed && bury_poison(k, e->epoch, err) != 0)
        return -1;
    if (mdb_run(k->st, err,
                SQL(unpark_claim, .consumer = k->req->consumer, .epoch = e->epoch,
                    .blamed = e->blamed, .now = k->now, .salt = salt)) != 0)
        return -1;
    k->hint->crashed += (size_t)k->st->changed;
    return 0;
}

/* dissolve_fresh also records how events end that were claimed under a filter replaced since. */
static int dissolve_fresh(struct claiming *k, const struct claim *e, struct error *err)
{
    struct taken_over t = {
        .consumer = k->req->consumer,
        .epoch = e->epoch,
        .from = e->from,
        .to = e->to,
        .lane = e->lane,
        .lanes = k->req->lanes,
        .filter = k->req->filter,
    };
    if (park_range(k, e, err) != 0)
        return -1;
    return db_former_taken_over(&k->st->base, &t, err);
}

/* dissolve ends an expired claim: from here on its owner can no longer settle it. */
static int dissolve(struct claiming *k, struct claim *e, struct error *err)
{
    int r;
    if (e->parked)
        r = unpark_claim(k, e, err);
    else
        r = dissolve_fresh(k, e, err);
    if (r != 0)
        return -1;
    e->over = true;
    return mdb_later(k->st, err, SQL(drop_claim, .consumer = k->req->consumer, .epoch = e->epoch));
}

/* shorten makes a lease end that a clock which was ahead has made too long. */
static int shorten(struct claiming *k, struct claim *c, struct error *err)
{
    if (c->until <= k->now + c->lease)
        return 0;
    c->until = k->now + c->lease;
    return mdb_later(
        k->st, err,
        SQL(shorten_lease, .consumer = k->req->consumer, .epoch = c->epoch, .until = c->until));
}

/* must_wait says whether an earlier claim of the lane of claims[i] is not over. */
static bool must_wait(const struct claiming *k, size_t i)
{
    const struct claim *c = &k->claims[i];
    if (c->parked || k->req->order == ORDER_NONE)
        return false;
    for (size_t j = 0; j < i; j++) {
        const struct claim *e = &k->claims[j];
        bool of_lane = !e->over && !e->parked && e->lane == c->lane;
        if (of_lane && (e->until > k->now || e->known))
            return true;
    }
    return false;
}

/* mdb_take_over goes through the claims in the order of their epochs. What the caller itself has in
 * hand is left out: it may still settle or extend it, however late. */
int mdb_take_over(struct claiming *k, struct error *err)
{
    for (size_t i = 0; i < k->n_claims; i++) {
        struct claim *c = &k->claims[i];
        if (shorten(k, c, err) != 0)
            return -1;
        bool expired = c->until <= k->now && !c->known;
        if (!expired || must_wait(k, i))
            continue;
        if (dissolve(k, c, err) != 0)
            return -1;
    }
    return 0;
}
