/* claims.c: which claims a consumer has. */
#include "store/db/db.h"
#include "store_sql.h"

#define CLAIMS_AT_ONCE 64

/* add_claim adds the current row of claim_owners to a list of n with room for *cap, which grows. */
static int add_claim(const struct db_rows *q, struct arena *a, struct claim_info **list, size_t n,
                     size_t *cap, struct error *err)
{
    bool ok = true;
    if (n == *cap) {
        size_t more = *cap + CLAIMS_AT_ONCE;
        struct claim_info *larger = arena_alloc(a, more * sizeof *larger);
        if (!larger)
            return err_nomem(err);
        for (size_t i = 0; i < n; i++)
            larger[i] = (*list)[i];
        *list = larger;
        *cap = more;
    }
    (*list)[n] = (struct claim_info){.epoch = db_int(q, 0), .owner = db_copy(q, 1, a, &ok).p};
    return ok ? 0 : err_nomem(err);
}

int db_claims(struct store *st, const char *consumer, struct arena *a, struct claim_info **ret,
              size_t *ret_n, struct error *err)
{
    struct claim_info *list = NULL;
    size_t n = 0, cap = 0;
    int r;
    struct db_rows q = db_rows(st, err, SQL(claim_owners, .consumer = consumer));
    while ((r = db_step(&q, err)) == 1) {
        if (add_claim(&q, a, &list, n, &cap, err) != 0) {
            db_done(&q);
            return -1;
        }
        n++;
    }
    if (r < 0)
        return -1;
    *ret = list;
    *ret_n = n;
    return 0;
}
