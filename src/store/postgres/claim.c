/* claim.c: changing a claim that is there. */
#include "store/postgres/postgres.h"

int pg_shrink(struct pg_store *st, const struct claim_request *req, int64_t epoch, int64_t last,
              struct error *err)
{
    return pg_exec(st, err, NULL, "SELECT @schema@._shrink($1, $2, $3, $4)", "ssii", req->consumer,
                   req->owner, epoch, last);
}

int pg_extend(struct store *base, const char *consumer, const char *owner, const struct batch *b,
              int64_t lease_ms, bool *ret_lost, struct error *err)
{
    PGresult *r = pg_query(pg_of(base), err, "SELECT @schema@.extend($1, $2, $3, $4)", "ssii",
                           consumer, owner, b->epoch, lease_ms);
    if (!r)
        return -1;
    *ret_lost = !pg_true(r, 0, 0);
    PQclear(r);
    return 0;
}
