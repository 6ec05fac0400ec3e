/* claim.c: claims: their list, epochs and leases. */
#include <stdlib.h>

#include "store/db/turn.h"
#include "store_sql.h"

#define EPOCH_RANDOM 20 /* bits */
#define CLAIMS_AT_ONCE 64

/* The upper bits count the claims, the lower ones are random. A database restored from an older
 * copy counts the same numbers again; the random bits keep a claim made before the restore from
 * being mistaken for one made after it. */
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
    size_t room = 0;
    int r;
    while ((r = db_step(q, err)) == 1) {
        if (t->n_claims == room) {
            room += CLAIMS_AT_ONCE;
            struct db_claim *more = realloc(t->claims, room * sizeof *more);
            if (!more)
                return err_nomem(err);
            t->claims = more;
        }
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
 * be taken over yet, has events that must go first. */
bool db_claim_blocks(const struct db_claim *c, int lane)
{
    bool of_lane = c->lane == lane || c->lane == STORE_ALL_LANES || lane == STORE_ALL_LANES;
    bool set_aside_for_us = c->from == c->to && !c->others;
    return of_lane && !c->over && !c->parked && !c->known && !set_aside_for_us;
}

int db_claims(struct store *st, const char *consumer, struct arena *a, struct claim_info **ret,
              size_t *ret_n, struct error *err)
{
    struct claim_info *list = NULL;
    size_t n = 0, room = 0;
    bool ok = true;
    int r;
    struct db_rows q = db_rows(st, err, SQL(claim_owners, .consumer = consumer));
    while (ok && (r = db_step(&q, err)) == 1) {
        if (n == room) {
            struct claim_info *larger = arena_alloc(a, (room + CLAIMS_AT_ONCE) * sizeof *larger);
            ok = larger != NULL;
            if (!ok)
                break;
            for (size_t i = 0; i < n; i++)
                larger[i] = list[i];
            list = larger;
            room += CLAIMS_AT_ONCE;
        }
        list[n++] = (struct claim_info){.epoch = db_int(&q, 0), .owner = db_copy(&q, 1, a, &ok).p};
    }
    db_done(&q);
    if (!ok)
        return err_nomem(err);
    if (r < 0)
        return -1;
    *ret = list;
    *ret_n = n;
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

/* Extends a claim in the open transaction, or in one of its own. */
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

/* Where every commit wakes listeners, a watcher that counts our own commits is not woken. */
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
