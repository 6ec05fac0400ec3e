/* claim.c: claims as such: their epochs and leases. */
#include "store/sqlite/claim.h"
#include "store_sql.h"

#define EPOCH_RANDOM 20 /* bits */

/* sqlite_claim_next_epoch counts the claims in the upper bits and fills the lower bits at random. A
 * file that was set back to an older copy counts the same numbers again; the random bits keep a
 * claim made before that from being mistaken for one made after it. */
int64_t sqlite_claim_next_epoch(struct sqlite_store *st, int64_t last)
{
    int64_t count = (last >> EPOCH_RANDOM) + 1;
    int64_t random = (int64_t)(rng_next(&st->rng) & ((1 << EPOCH_RANDOM) - 1));
    return (count << EPOCH_RANDOM) | random;
}

int sqlite_claim_record(struct claiming *k, struct error *err)
{
    k->b->epoch = k->epoch;
    struct sql_put_claim claim = {
        .consumer = k->req->consumer,
        .epoch = k->epoch,
        .lane = k->b->lane,
        .parked = k->b->parked,
        .from_seq = k->b->from,
        .to_seq = k->b->to,
        .owner = k->req->owner,
        .now = k->now,
        .lease = k->req->lease_ms,
        .blamed = k->b->blamed,
        .boot = k->st->boot,
        .ahead = sqlite_ahead(k->st, k->now),
    };
    if (sqlite_run(k->st, err, SQL(set_epoch, .consumer = claim.consumer, .epoch = k->epoch)) != 0)
        return -1;
    return sqlite_run(k->st, err, &sql_put_claim, &claim);
}

bool sqlite_claim_known(const struct claim_request *req, int64_t epoch)
{
    for (size_t i = 0; i < req->n_known; i++)
        if (req->known[i] == epoch)
            return true;
    return false;
}

void sqlite_claim_wait(struct claiming *k, int64_t at)
{
    int64_t wait = at > k->now ? at - k->now : 0;
    bool sooner = k->hint->wait_ms < 0 || wait < k->hint->wait_ms;
    if (sooner)
        k->hint->wait_ms = wait;
}

/* extend_here extends a claim, in the open transaction or as one of its own. */
static int extend_here(struct sqlite_store *st, const struct sql_extend_claim *args, bool *ret_lost,
                       struct error *err)
{
    if (sqlite_run(st, err, &sql_extend_claim, args) != 0)
        return -1;
    *ret_lost = sqlite3_changes(st->db) == 0;
    return 0;
}

/* extend_quietly extends a claim in a transaction that nobody is woken for. */
static int extend_quietly(struct sqlite_store *st, const struct sql_extend_claim *args,
                          bool *ret_lost, struct error *err)
{
    if (sqlite_begin(&st->base, err) != 0)
        return -1;
    int r = extend_here(st, args, ret_lost, err);
    bool wrote = r == 0 && !*ret_lost;
    if (!wrote) {
        sqlite_rollback(&st->base);
        return r;
    }
    st->quiet = true;
    return sqlite_commit(&st->base, err);
}

int sqlite_extend(struct store *base, const struct claim_lease *l, bool *ret_lost,
                  struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    int64_t now = sqlite_now(st);
    struct sql_extend_claim args = {
        .consumer = l->consumer,
        .epoch = l->epoch,
        .owner = l->owner,
        .now = now,
        .lease = l->lease_ms,
        .absolve = l->absolve,
        .boot = st->boot,
        .ahead = sqlite_ahead(st, now),
    };
    if (st->for_deaf)
        return extend_quietly(st, &args, ret_lost, err);
    return extend_here(st, &args, ret_lost, err);
}
