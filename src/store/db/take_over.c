/* take_over.c: taking over expired claims. Their events are parked as suspects: any of them may
 * have crashed its worker. */
#include <stdlib.h>

#include "store/db/held_keys.h"
#include "store/db/turn.h"
#include "store_sql.h"

#define RANGE_EVENTS 256      /* of a fresh claim that are parked at a time */
#define RANGE_BYTES (1 << 20) /* likewise */
#define CLOCK_DRIFT 100       /* ms; less is the work of NTP */

/* Parks one event of an expired claim, until its not_before if it has one. */
static int park_crashed(struct turn *t, const struct event *ev, struct error *err)
{
    struct parking p = {.consumer = t->consumer, .order = t->req->order, .ev = ev, .crashes = 1};
    if (ev->not_before > t->now) {
        p.due_at = ev->not_before;
        p.delayed = true;
    }
    t->hint->crashed++;
    return db_park(t->st, &p, err);
}

/* Parks the next events of a fresh claim after *from, and moves *from past the events examined. */
static int park_some(struct turn *t, const struct db_claim *e, int64_t *from, struct error *err)
{
    struct chunk c = {.from = *from, .to = *from};
    c.ev = arena_alloc(t->a, RANGE_EVENTS * sizeof *c.ev);
    if (!c.ev)
        return err_nomem(err);
    struct db_rows q = db_rows(t->st, err,
                               SQL(range_events, .from_seq = *from, .to_seq = e->to,
                                   .max = RANGE_EVENTS, .most = db_fresh_inline(t->req)));
    if (db_fresh_add(t, &q, e->lane, RANGE_EVENTS, &c, err) != 0)
        return -1;
    for (size_t i = 0; i < c.n; i++)
        if (park_crashed(t, &c.ev[i], err) != 0)
            return -1;
    *from = c.scanned ? c.to : e->to;
    return 0;
}

/* Parks the events of an expired fresh claim, using a separate arena: they are not part of the
 * batch. */
static int park_range(struct turn *t, const struct db_claim *e, struct error *err)
{
    struct arena a;
    struct claim_request req = *t->req;
    struct turn sub = *t;
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

/* Also records the end of events that were claimed under a filter replaced since. */
static int dissolve_fresh(struct turn *t, const struct db_claim *e, struct error *err)
{
    struct taken_over over = {
        .consumer = t->consumer,
        .epoch = e->epoch,
        .from = e->from,
        .to = e->to,
        .lane = e->lane,
        .lanes = t->req->lanes,
        .filter = t->req->filter,
    };
    if (park_range(t, e, err) != 0)
        return -1;
    return db_former_taken_over(t->st, &over, err);
}

/* Buries an event that has been blamed for max_attempts crashes. */
static int bury_poison(struct turn *t, int64_t epoch, struct error *err)
{
    struct db_rows q;
    int r = db_row(t->st, &q, err,
                   SQL(poison_of, .consumer = t->consumer, .epoch = epoch,
                       .max_attempts = t->req->max_attempts));
    if (r <= 0)
        return r;
    int64_t seq = db_int(&q, 0), key = db_int(&q, 2);
    int attempts = (int)db_int(&q, 1);
    db_done(&q);

    t->hint->buried++;
    if (db_bury(t->st, t->consumer, seq, attempts,
                "the process died, or lost its lease, while delivering this event", err) != 0)
        return -1;
    return db_promote(t->st, t->consumer, key, err);
}

/* Parks the events of an expired parked claim again. */
static int dissolve_parked(struct turn *t, const struct db_claim *e, struct error *err)
{
    int64_t salt = (int64_t)rng_below(&db_of(t->st)->rng, STORE_APART_MS), n;
    if (e->blamed && bury_poison(t, e->epoch, err) != 0)
        return -1;
    if (db_change(t->st, &n, err,
                  SQL(unpark_claim, .consumer = t->consumer, .epoch = e->epoch, .blamed = e->blamed,
                      .now = t->now, .salt = salt)) != 0)
        return -1;
    t->hint->crashed += (size_t)n;
    return 0;
}

/* Ends an expired claim: from here on its owner can no longer settle it. */
static int dissolve(struct turn *t, struct db_claim *e, struct error *err)
{
    t->found.known = false;
    if (held_keys_change(t->st, t->consumer, err) != 0)
        return -1;
    int r = e->parked ? dissolve_parked(t, e, err) : dissolve_fresh(t, e, err);
    if (r != 0)
        return -1;
    e->over = true;
    return db_later(t->st, err, SQL(drop_claim, .consumer = t->consumer, .epoch = e->epoch));
}

/* `until` is by the owner's clock. If the owner runs on this machine, and its clock differs from
 * ours or was set since, the lease is adjusted to end at the same moment by our clock. Whatever the
 * clocks say, no lease lasts longer than a full lease from now. */
static int shorten(struct turn *t, struct db_claim *c, struct error *err)
{
    const struct db_store *st = db_of(t->st);
    int64_t ahead = db_ahead(t->st, t->now), longest = t->now + c->lease;
    bool same_machine = st->boot && c->boot == st->boot;
    bool clock_differs = same_machine && llabs(ahead - c->ahead) > CLOCK_DRIFT;
    if (c->until <= longest && !clock_differs)
        return 0;

    if (same_machine) {
        c->until += ahead - c->ahead;
        c->ahead = ahead;
    }
    if (c->until > longest)
        c->until = longest;
    return db_later(t->st, err,
                    SQL(shorten_lease, .consumer = t->consumer, .epoch = c->epoch,
                        .until = c->until, .ahead = c->ahead));
}

/* Whether an earlier claim of the same lane as claims[i] is not over. An expired one counts too: it
 * is still here because it has to wait itself, perhaps for another lane. */
static bool must_wait(const struct turn *t, size_t i)
{
    const struct db_claim *c = &t->claims[i];
    if (c->parked || t->req->order == ORDER_NONE)
        return false;
    for (size_t j = 0; j < i; j++) {
        const struct db_claim *e = &t->claims[j];
        bool same_lane = e->lane == c->lane || e->lane == STORE_ALL_LANES ||
                         c->lane == STORE_ALL_LANES;
        if (same_lane && !e->over && !e->parked)
            return true;
    }
    return false;
}

/* Goes through the claims in epoch order. Those that the caller itself holds are left out: it may
 * still settle or extend them, however late. */
int db_take_over(struct turn *t, struct error *err)
{
    for (size_t i = 0; i < t->n_claims; i++) {
        struct db_claim *c = &t->claims[i];
        if (shorten(t, c, err) != 0)
            return -1;
    }
    for (size_t i = 0; i < t->n_claims; i++) {
        struct db_claim *c = &t->claims[i];
        bool expired = c->until <= t->now && !c->known;
        if (expired && !must_wait(t, i) && dissolve(t, c, err) != 0)
            return -1;
    }
    return 0;
}
