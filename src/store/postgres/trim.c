/* trim.c: deleting what is old and needed by nobody, a little at a time. */
#include <stdio.h>

#include "store/postgres/postgres.h"

/* clang-format off */
static const char dry_run_sql[] =
    "SELECT events, keys, inbox_rows, receipts, kept, pin, false, kept_more, "
           "NOT events_exact, keys_more, inbox_more, receipts_more, 0 "
    "FROM @schema@._trim_dry_run($1::bigint * interval '1 millisecond', "
                                "nullif($2::bigint, 0) * interval '1 millisecond', $3::int)";
static const char trim_sql[] =
    "SELECT events, keys, inbox_rows, receipts, kept, pin, more, kept_more, "
           "false, false, false, false, upto "
    "FROM @schema@.trim($1::bigint * interval '1 millisecond', $2, "
                       "nullif($3::bigint, 0) * interval '1 millisecond', $4)";
/* clang-format on */

static PGresult *dry_run(struct pg_store *st, const struct trim_request *req, struct error *err)
{
    int64_t most = STORE_EXACT_ROWS;
    if (req->max_rows)
        most = (int64_t)req->max_rows;
    return pg_query(st, err, dry_run_sql, "iii", req->older_than_ms, req->inbox_ms, most);
}

static PGresult *trim(struct pg_store *st, const struct trim_request *req, struct error *err)
{
    int64_t rows = STORE_TRIM_ROWS;
    if (req->max_rows)
        rows = (int64_t)req->max_rows;
    return pg_query(st, err, trim_sql, "iiii", req->older_than_ms, rows, req->inbox_ms, req->after);
}

int pg_trim(struct store *base, const struct trim_request *req, struct trim_result *ret,
            struct error *err)
{
    PGresult *r;
    if (req->dry_run)
        r = dry_run(pg_of(base), req, err);
    else
        r = trim(pg_of(base), req, err);
    if (!r)
        return -1;
    *ret = (struct trim_result){.events = pg_int(r, 0, 0),
                                .keys = pg_int(r, 0, 1),
                                .inbox = pg_int(r, 0, 2),
                                .receipts = pg_int(r, 0, 3),
                                .kept_for_pin = pg_int(r, 0, 4),
                                .more = pg_true(r, 0, 6),
                                .upto = pg_int(r, 0, 12),
                                .kept_more = pg_true(r, 0, 7),
                                .events_about = pg_true(r, 0, 8),
                                .keys_more = pg_true(r, 0, 9),
                                .inbox_more = pg_true(r, 0, 10),
                                .receipts_more = pg_true(r, 0, 11)};
    snprintf(ret->pin, sizeof ret->pin, "%s", PQgetvalue(r, 0, 5));
    PQclear(r);
    return 0;
}
