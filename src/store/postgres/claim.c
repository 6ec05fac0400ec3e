/* claim.c: changing a claim that is there. */
#include "store/postgres/postgres.h"

int pg_shrink(struct pg_store *st, const struct claim_request *req, int64_t epoch, int64_t last,
              struct error *err)
{
    return pg_exec(st, err, NULL, "SELECT @schema@._shrink($1, $2, $3, $4)", "ssii", req->consumer,
                   req->owner, epoch, last);
}

int pg_extend(struct store *base, const struct claim_lease *l, bool *ret_lost, struct error *err)
{
    PGresult *r = pg_query(pg_of(base), err, "SELECT @schema@.extend($1, $2, $3, $4, $5)", "ssiib",
                           l->consumer, l->owner, l->epoch, l->lease_ms, l->absolve);
    if (!r)
        return -1;
    *ret_lost = !pg_true(r, 0, 0);
    PQclear(r);
    return 0;
}

int pg_claims(struct store *base, const char *consumer, struct arena *a, struct claim_info **ret,
              size_t *ret_n, struct error *err)
{
    bool ok = true;
    PGresult *r = pg_query(pg_of(base), err,
                           "SELECT x.epoch, x.owner FROM @schema@.claim x WHERE x.consumer = $1 "
                           "ORDER BY x.epoch",
                           "s", consumer);
    if (!r)
        return -1;
    size_t n = (size_t)PQntuples(r);
    struct claim_info *list = arena_alloc(a, (n + 1) * sizeof *list);
    for (size_t i = 0; list && i < n; i++)
        list[i] = (struct claim_info){.epoch = pg_int(r, (int)i, 0),
                                      .owner = pg_copy(r, (int)i, 1, a, &ok)};
    PQclear(r);
    if (!list || !ok)
        return err_nomem(err);
    *ret = list;
    *ret_n = n;
    return 0;
}
