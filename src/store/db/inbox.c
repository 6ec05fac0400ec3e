/* inbox.c: which handler has taken effect for which key. */
#include "base/hash.h"
#include "store/db/db.h"
#include "store_sql.h"

int db_handled(struct store *st, const struct inbox_key *k, size_t n, bool *ret, struct error *err)
{
    for (size_t i = 0; i < n; i++) {
        int64_t found = 0;
        if (db_value(st, err, &found, SQL(is_handled, .handler = k[i].handler, .key = k[i].key)) !=
            0)
            return -1;
        ret[i] = found != 0;
    }
    return 0;
}

int db_handled_put(struct store *st, const struct inbox_key *k, const bool *skip, size_t n,
                   bool *ret_all, struct error *err)
{
    int64_t hash = (int64_t)hash_end(hash_add(HASH_INIT, STR("")));
    *ret_all = true;
    for (size_t i = 0; i < n; i++) {
        bool new;
        if (skip[i])
            continue;
        if (db_insert_new(st, &new, err,
                          SQL(put_handled, .handler = k[i].handler, .key = k[i].key, .hash = hash,
                              .now = db_now(st))) != 0)
            return -1;
        *ret_all = *ret_all && new;
    }
    return 0;
}
