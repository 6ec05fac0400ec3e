/* claim.c: claims as such: their epochs and leases. */
#include "store/mariadb/claim.h"

#include <string.h>

#include "store/mariadb/mariadb.h"
#include "store_sql.h"

#define EPOCH_RANDOM 20 /* bits */

/* mdb_claim_next_epoch counts the claims in the upper bits and fills the lower bits at random. A
 * database that was set back to an older copy counts the same numbers again; the random bits keep a
 * claim made before that from being mistaken for one made after it. */
int64_t mdb_claim_next_epoch(struct mdb_store *st, int64_t last)
{
    int64_t count = (last >> EPOCH_RANDOM) + 1;
    int64_t random = (int64_t)(rng_next(&st->rng) & ((1 << EPOCH_RANDOM) - 1));
    return (count << EPOCH_RANDOM) | random;
}

/* ---- what there is ---- */

static bool is_known(const struct claim_request *req, int64_t epoch)
{
    for (size_t i = 0; i < req->n_known; i++)
        if (req->known[i] == epoch)
            return true;
    return false;
}

static struct claim read_claim(const struct claiming *k, const struct mdb_rows *q)
{
    enum { EPOCH, LANE, PARKED, FROM, TO, OWNER, UNTIL, LEASE, BLAMED };
    int64_t epoch = mdb_int(q, EPOCH);
    struct str owner = mdb_text(q, OWNER);
    return (struct claim){
        .epoch = epoch,
        .lane = (int)mdb_int(q, LANE),
        .parked = mdb_int(q, PARKED) != 0,
        .from = mdb_int(q, FROM),
        .to = mdb_int(q, TO),
        .until = mdb_int(q, UNTIL),
        .lease = mdb_int(q, LEASE),
        .blamed = mdb_int(q, BLAMED) != 0,
        .others = k->req && !str_is(owner, k->req->owner),
        .known = k->req && is_known(k->req, epoch),
        .ours = k->s && k->s->b->epoch == epoch && str_is(owner, k->s->owner),
    };
}

int mdb_claim_list(struct claiming *k, struct mdb_rows *q, struct error *err)
{
    size_t n = (size_t)mysql_num_rows(q->res);
    k->n_claims = 0;
    k->claims = calloc(n + 1, sizeof *k->claims);
    if (!k->claims) {
        mdb_done(q);
        return err_nomem(err);
    }
    while (mdb_step(&q) == 1)
        k->claims[k->n_claims++] = read_claim(k, q);
    return 0;
}

bool mdb_claim_is_ours(const struct claiming *k)
{
    for (size_t i = 0; i < k->n_claims; i++)
        if (k->claims[i].ours)
            return !k->claims[i].over;
    return false;
}

void mdb_claim_over(struct claiming *k, int64_t epoch)
{
    for (size_t i = 0; i < k->n_claims; i++)
        if (k->claims[i].epoch == epoch)
            k->claims[i].over = true;
}

bool mdb_claim_unparked(const struct claiming *k)
{
    return k->found.known && !k->found.parked;
}

/* ---- making one ---- */

int mdb_claim_record(struct claiming *k, struct error *err)
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
    };
    return mdb_later(k->st, err, &sql_put_claim, &claim);
}

void mdb_claim_wait(struct claiming *k, int64_t at)
{
    int64_t wait = at > k->now ? at - k->now : 0;
    bool sooner = k->hint->wait_ms < 0 || wait < k->hint->wait_ms;
    if (sooner)
        k->hint->wait_ms = wait;
}

int mdb_extend(struct store *base, const struct claim_lease *l, bool *ret_lost, struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    struct sql_extend_claim args = {
        .consumer = l->consumer,
        .epoch = l->epoch,
        .owner = l->owner,
        .now = mdb_now(st),
        .lease = l->lease_ms,
        .absolve = l->absolve,
    };
    if (mdb_run(st, err, &sql_extend_claim, &args) != 0)
        return -1;
    *ret_lost = st->changed == 0;
    return 0;
}
