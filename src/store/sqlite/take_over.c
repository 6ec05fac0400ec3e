/* take_over.c: what becomes of claims whose lease ran out. Their events become parked ones that
 * have been through a crash: any of them may have killed the process that had it. */
#include <stdio.h>

#include "store/sqlite/claim.h"
#include "store/sqlite/held_keys.h"
#include "store_sql.h"

#define RANGE_EVENTS 256      /* of a fresh claim that are parked at a time */
#define RANGE_BYTES (1 << 20) /* likewise */
#define KNOWN_TEXT 256

/* An expired claim, as expired_claim gives it. */
struct expired {
    int64_t epoch;
    int lane;
    bool parked;
    int64_t from, to;
    bool blamed;
};

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
    return sqlite_park(k->st, &p, err);
}

/* park_some parks the next events of a fresh claim after *from, and moves *from past what was
 * looked at. */
static int park_some(struct claiming *k, const struct expired *e, int64_t *from, struct error *err)
{
    struct chunk c = {.from = *from, .to = *from};
    sqlite3_stmt *q = sqlite_rows(k->st, err,
                                  SQL(range_events, .from_seq = *from, .to_seq = e->to));
    if (sqlite_fresh_read(k, q, e->lane, RANGE_EVENTS, &c, err) != 0)
        return -1;
    for (size_t i = 0; i < c.n; i++)
        if (park_crashed(k, &c.ev[i], err) != 0)
            return -1;
    *from = c.scanned ? c.to : e->to;
    return 0;
}

/* park_range parks the events of an expired fresh claim, in an arena of its own: they are not part
 * of the batch. */
static int park_range(struct claiming *k, const struct expired *e, struct error *err)
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
    sqlite3_stmt *q;
    int r = sqlite_row(k->st, &q, err,
                       SQL(poison_of, .consumer = k->req->consumer, .epoch = epoch,
                           .max_attempts = k->req->max_attempts));
    if (r <= 0)
        return r;
    int64_t seq = sqlite3_column_int64(q, 0);
    int attempts = sqlite3_column_int(q, 1);
    int64_t key = sqlite3_column_int64(q, 2);
    sqlite3_reset(q);

    k->hint->buried++;
    if (sqlite_bury(k->st, k->req->consumer, seq, attempts,
                    "the process died, or lost its lease, while delivering this event", err) != 0)
        return -1;
    return sqlite_promote(k->st, k->req->consumer, key, err);
}

/* unpark_claim lets the events of an expired parked claim wait again. */
static int unpark_claim(struct claiming *k, const struct expired *e, struct error *err)
{
    int64_t salt = (int64_t)rng_below(&k->st->rng, STORE_APART_MS);
    if (e->blamed && bury_poison(k, e->epoch, err) != 0)
        return -1;
    if (sqlite_run(k->st, err,
                   SQL(unpark_claim, .consumer = k->req->consumer, .epoch = e->epoch,
                       .blamed = e->blamed, .now = k->now, .salt = salt)) != 0)
        return -1;
    k->hint->crashed += (size_t)sqlite3_changes(k->st->db);
    return 0;
}

/* dissolve_fresh also records how events end that were claimed under a filter replaced since. */
static int dissolve_fresh(struct claiming *k, const struct expired *e, struct error *err)
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

/* known_list writes the epochs that the caller has in hand as a JSON array. */
static void known_list(const struct claim_request *req, char out[KNOWN_TEXT])
{
    size_t at = (size_t)snprintf(out, KNOWN_TEXT, "[");
    for (size_t i = 0; i < req->n_known && at < KNOWN_TEXT - 32; i++)
        at += (size_t)snprintf(out + at, KNOWN_TEXT - at, i ? ",%lld" : "%lld",
                               (long long)req->known[i]);
    snprintf(out + at, KNOWN_TEXT - at, "]");
}

/* next_expired finds a claim to dissolve; 1: *ret is one, 0: there is none (left), -1: failed. What
 * the caller itself has in hand is left out: it may still settle or extend it, however late. */
static int next_expired(struct claiming *k, const char *known, struct expired *ret,
                        struct error *err)
{
    bool unordered = k->req->order == ORDER_NONE;
    sqlite3_stmt *q;
    int r = sqlite_row(k->st, &q, err,
                       SQL(expired_claim, .consumer = k->req->consumer, .now = k->now,
                           .unordered = unordered, .known = known));
    if (r <= 0)
        return r;
    *ret = (struct expired){
        .epoch = sqlite3_column_int64(q, 0),
        .lane = sqlite3_column_int(q, 1),
        .parked = sqlite3_column_int(q, 2) != 0,
        .from = sqlite3_column_int64(q, 3),
        .to = sqlite3_column_int64(q, 4),
        .blamed = sqlite3_column_int(q, 5) != 0,
    };
    sqlite3_reset(q);
    return 1;
}

/* dissolve ends an expired claim: from here on its owner can no longer settle it. */
static int dissolve(struct claiming *k, const struct expired *e, struct error *err)
{
    int r;
    if (held_keys_change(k->st, k->req->consumer, err) != 0)
        return -1;
    if (e->parked)
        r = unpark_claim(k, e, err);
    else
        r = dissolve_fresh(k, e, err);
    if (r != 0)
        return -1;
    return sqlite_run(k->st, err, SQL(drop_claim, .consumer = k->req->consumer, .epoch = e->epoch));
}

int sqlite_take_over(struct claiming *k, struct error *err)
{
    char known[KNOWN_TEXT];
    struct expired e;
    int r;
    known_list(k->req, known);
    if (sqlite_run(k->st, err,
                   SQL(correct_leases, .consumer = k->req->consumer, .now = k->now,
                       .boot = k->st->boot, .ahead = sqlite_ahead(k->st, k->now))) != 0)
        return -1;
    while ((r = next_expired(k, known, &e, err)) == 1)
        if (dissolve(k, &e, err) != 0)
            return -1;
    return r;
}
