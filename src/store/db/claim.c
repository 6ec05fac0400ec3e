/* claim.c: the list of claims, their epochs and leases, and the take-over of expired ones. */
#include <stdlib.h>

#include "base/arena.h"
#include "store/db/turn.h"
#include "store_sql.h"

#define EPOCH_RANDOM 20       /* bits */
#define RANGE_EVENTS 256      /* of a fresh claim that are parked at a time */
#define RANGE_BYTES (1 << 20) /* likewise */
#define CLOCK_DRIFT 100       /* ms; smaller differences come from NTP */
#define ANSWER_EVENTS 50      /* rows in memory at once, with their payloads */

/* The upper bits count the claims. A database restored from an older copy counts the same numbers
 * again; the random lower bits tell claims made before and after the restore apart. */
int64_t db_claim_next_epoch(struct store *st, int64_t last)
{
    int64_t count = (last >> EPOCH_RANDOM) + 1;
    int64_t random = (int64_t)(rng_next(&db_of(st)->rng) & ((1 << EPOCH_RANDOM) - 1));
    return (count << EPOCH_RANDOM) | random;
}

int64_t db_ahead(struct store *base, int64_t now)
{
    const struct db_store *st = db_of(base);
    if (!st->boot)
        return 0;
    return st->turn_now ? st->turn_ahead : now - st->opt.clock->boot_ms(st->opt.clock->ctx);
}

/* ---- listing ---- */

static bool is_known(const struct claim_request *req, int64_t epoch)
{
    for (size_t i = 0; i < req->n_known; i++)
        if (req->known[i] == epoch)
            return true;
    return false;
}

static struct db_claim read_claim(const struct turn *t, const struct db_rows *q)
{
    enum { EPOCH, LANE, PARKED, FROM, TO, OWNER, UNTIL, LEASE, BLAMED, BOOT, AHEAD };
    int64_t epoch = db_int(q, EPOCH);
    struct str owner = db_text(q, OWNER);
    return (struct db_claim){
        .epoch = epoch,
        .lane = (int)db_int(q, LANE),
        .parked = db_int(q, PARKED) != 0,
        .from = db_int(q, FROM),
        .to = db_int(q, TO),
        .until = db_int(q, UNTIL),
        .lease = db_int(q, LEASE),
        .blamed = db_int(q, BLAMED) != 0,
        .boot = db_int(q, BOOT),
        .ahead = db_int(q, AHEAD),
        .others = t->req && !str_is(owner, t->req->owner),
        .known = t->req && is_known(t->req, epoch),
        .ours = t->s && t->s->b->epoch == epoch && str_is(owner, t->s->owner),
    };
}

int db_claim_list(struct turn *t, struct db_rows *q, struct error *err)
{
    int r;
    while ((r = db_step(q, err)) == 1) {
        struct db_claim *list = array_grow(t->claims, t->n_claims, sizeof *list);
        if (!list)
            return err_nomem(err);
        t->claims = list;
        t->claims[t->n_claims++] = read_claim(t, q);
    }
    return r;
}

bool db_claim_is_ours(const struct turn *t)
{
    for (size_t i = 0; i < t->n_claims; i++)
        if (t->claims[i].ours)
            return !t->claims[i].over;
    return false;
}

void db_claim_over(struct turn *t, int64_t epoch)
{
    for (size_t i = 0; i < t->n_claims; i++)
        if (t->claims[i].epoch == epoch)
            t->claims[i].over = true;
}

/* Where order matters, a lane belongs to one worker at a time. That worker may hold several claims
 * on it if it knows of all of them: a claim whose answer was lost, or one that expired and cannot
 * be taken over yet, has events that must be delivered first. */
bool db_claim_blocks(const struct db_claim *c, int lane)
{
    bool of_lane = c->lane == lane || c->lane == STORE_ALL_LANES || lane == STORE_ALL_LANES;
    bool set_aside_for_us = c->from == c->to && !c->others;
    return of_lane && !c->over && !c->parked && !c->known && !set_aside_for_us;
}

static bool read_owner(const struct db_rows *q, struct arena *a, void *element)
{
    struct claim_info *c = element;
    bool ok = true;
    c->epoch = db_int(q, 0);
    c->owner = db_copy(q, 1, a, &ok).p;
    return ok;
}

int db_claims(struct store *st, const char *consumer, struct arena *a, struct claim_info **ret,
              size_t *ret_n, struct error *err)
{
    struct db_list l = {.a = a, .size = sizeof **ret, .read = read_owner};
    if (db_list(st, &l, err, SQL(claim_owners, .consumer = consumer)) != 0)
        return -1;
    *ret = l.elements;
    *ret_n = l.n;
    return 0;
}

/* ---- making and extending ---- */

int db_claim_record(struct turn *t, struct error *err)
{
    t->b->epoch = t->epoch;
    return db_later(t->st, err,
                    SQL(put_claim, .consumer = t->consumer, .epoch = t->epoch, .lane = t->b->lane,
                        .parked = t->b->parked, .from_seq = t->b->from, .to_seq = t->b->to,
                        .owner = t->req->owner, .now = t->now, .lease = t->req->lease_ms,
                        .blamed = t->b->blamed, .boot = db_of(t->st)->boot,
                        .ahead = db_ahead(t->st, t->now)));
}

void db_claim_wait(struct turn *t, int64_t at)
{
    int64_t wait = at > t->now ? at - t->now : 0;
    bool sooner = t->hint->wait_ms < 0 || wait < t->hint->wait_ms;
    if (sooner)
        t->hint->wait_ms = wait;
}

/* Extends a claim in the open transaction; if none is open, the statement commits alone. */
static int extend_here(struct store *st, const struct claim_lease *l, bool *ret_lost,
                       struct error *err)
{
    int64_t now = db_now(st), n;
    if (db_change(st, &n, err,
                  SQL(extend_claim, .consumer = l->consumer, .epoch = l->epoch, .owner = l->owner,
                      .now = now, .lease = l->lease_ms, .absolve = l->absolve,
                      .boot = db_of(st)->boot, .ahead = db_ahead(st, now))) != 0)
        return -1;
    *ret_lost = n == 0;
    return 0;
}

/* Where every commit wakes listeners, this one is counted as our own, which a watcher ignores. */
int db_extend(struct store *st, const struct claim_lease *l, bool *ret_lost, struct error *err)
{
    bool own = st->ops->driver->commit_wakes && db_of(st)->watched;
    if (!own)
        return extend_here(st, l, ret_lost, err);
    if (db_begin(st, err) != 0)
        return -1;
    int r = extend_here(st, l, ret_lost, err);
    bool wrote = r == 0 && !*ret_lost;
    if (!wrote) {
        db_rollback(st);
        return r;
    }
    db_of(st)->own_commit = true;
    return db_commit(st, err);
}

/* ---- taking over ---- */

/* Parks an event of an expired claim as a suspect, until its not_before if it has one. */
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

/* Parks the events of an expired fresh claim. They are not part of the batch and its arena. */
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

/* Returns how an event claimed under the former filter ends: if the current filter wants it, it is
 * delivered after all. NULL: neither wanted it, or it is in another lane. */
static const char *end_of(const struct turn *t, int lane, const struct filter *former,
                          const struct db_rows *q)
{
    if (lane != STORE_ALL_LANES) {
        uint64_t key = event_key(db_text(q, EVENT_AGGREGATE_TYPE), db_text(q, EVENT_AGGREGATE_ID));
        if (event_lane(key, db_int(q, EVENT_SEQ), t->req->lanes) != lane)
            return NULL;
    }
    if (db_fresh_wants(q, t->req->filter))
        return "delivered";
    if (db_fresh_wants(q, former))
        return "skipped";
    return NULL;
}

/* Records the ends of one page of a claim's events, and moves *from past them. */
static int note_some(struct turn *t, const struct db_claim *e, const struct filter *former,
                     int64_t *from, struct error *err)
{
    int64_t n = 0, max = db_page(t->st, ANSWER_EVENTS);
    struct db_rows q = db_rows(
        t->st, err, SQL(taken_over_events, .from_seq = *from, .to_seq = e->to, .max = max));
    int r;
    while ((r = db_step(&q, err)) == 1) {
        const char *state = end_of(t, e->lane, former, &q);
        *from = db_int(&q, 0);
        n++;
        if (state &&
            db_run(t->st, err,
                   SQL(put_ended, .consumer = t->consumer, .seq = *from, .state = state)) != 0) {
            db_done(&q);
            return -1;
        }
    }
    if (n < max)
        *from = e->to;
    return r;
}

/* If the consumer's filter was replaced since an expired fresh claim was made, records how the
 * claim's events end: neither of the two filters would give the right answer for all of them. */
static int note_former_ends(struct turn *t, const struct db_claim *e, struct error *err)
{
    struct filter *former = NULL;
    struct db_rows q;
    int r = db_row(t->st, &q, err,
                   SQL(former_of_claim, .consumer = t->consumer, .epoch = e->epoch));
    if (r <= 0)
        return r;
    r = filter_new(db_text(&q, 0).p, db_text(&q, 1).p, &former, err);
    db_done(&q);
    int64_t from = e->from;
    while (r == 0 && from < e->to)
        r = note_some(t, e, former, &from, err);
    filter_free(former);
    return r;
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
    int r = 0;
    t->found.known = false;
    if (held_keys_change(t->st, t->consumer, err) != 0)
        return -1;
    if (e->parked)
        r = dissolve_parked(t, e, err);
    else if (park_range(t, e, err) != 0 || note_former_ends(t, e, err) != 0)
        r = -1;
    if (r != 0)
        return -1;
    e->over = true;
    return db_later(t->st, err, SQL(drop_claim, .consumer = t->consumer, .epoch = e->epoch));
}

/* `until` is by the owner's clock. If the owner runs on this machine, and its clock differs from
 * ours or has been set since, the lease is adjusted to end at the same moment by our clock.
 * Whatever the clocks say, no lease lasts longer than a full lease from now. */
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

/* Returns whether an earlier claim of the same lane as claims[i] is not over. An expired claim
 * counts too: it still exists only because it must itself wait, perhaps for another lane. */
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

/* In epoch order, except for those that the caller may still settle or extend, however late. */
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
