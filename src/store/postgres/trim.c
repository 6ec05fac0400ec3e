/* trim.c: deleting what is old and needed by nobody, a little at a time. */
#include <stdio.h>

#include "store/postgres/postgres.h"

static int dry_run(struct pg_store *st, const struct trim_request *req, struct trim_result *t,
                   struct error *err)
{
    st->patient = true; /* it counts them all */
    PGresult *r = pg_query(st, err,
                           "SELECT events, keys, inbox_rows, receipts, kept, pin FROM "
                           "@schema@._trim_dry_run($1::bigint * interval '1 millisecond', "
                           "nullif($2::bigint, 0) * interval '1 millisecond')",
                           "ii", req->older_than_ms, req->inbox_ms);
    st->patient = false;
    if (!r)
        return -1;
    t->events = pg_int(r, 0, 0);
    t->keys = pg_int(r, 0, 1);
    t->inbox = pg_int(r, 0, 2);
    t->receipts = pg_int(r, 0, 3);
    t->kept_for_pin = pg_int(r, 0, 4);
    snprintf(t->pin, sizeof t->pin, "%s", PQgetvalue(r, 0, 5));
    PQclear(r);
    return 0;
}

int pg_trim(struct store *base, const struct trim_request *req, struct trim_result *ret,
            struct error *err)
{
    struct pg_store *st = pg_of(base);
    struct trim_result t = {0};
    if (req->dry_run) {
        if (dry_run(st, req, &t, err) != 0)
            return -1;
    } else {
        PGresult *r = pg_query(
            st, err,
            "SELECT events, keys, inbox_rows, receipts, kept, pin, more, kept_more FROM "
            "@schema@.trim($1::bigint * interval '1 millisecond', $2, nullif($3::bigint, 0) * "
            "interval '1 millisecond')",
            "iii", req->older_than_ms, req->max_rows ? (int64_t)req->max_rows : STORE_TRIM_ROWS,
            req->inbox_ms);
        if (!r)
            return -1;
        t.events = pg_int(r, 0, 0);
        t.keys = pg_int(r, 0, 1);
        t.inbox = pg_int(r, 0, 2);
        t.receipts = pg_int(r, 0, 3);
        t.kept_for_pin = pg_int(r, 0, 4);
        snprintf(t.pin, sizeof t.pin, "%s", PQgetvalue(r, 0, 5));
        t.more = pg_true(r, 0, 6);
        t.kept_more = pg_true(r, 0, 7);
        PQclear(r);
    }
    *ret = t;
    return 0;
}
