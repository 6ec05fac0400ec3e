/* admin.c: grants, adopted tables, trimming. Each is a call of functions in sql/postgres/functions:
 * grants.sql, adopt.sql, trim.sql. */
#include <stdio.h>

#include "base/buf.h"
#include "base/json.h"
#include "store/postgres/postgres.h"

/* ---- grants ---- */

/* Grants or revokes a part, for one consumer or (NULL) for all. Sets *changed if that changed, or
 * may have changed, anything. */
static int change_one(struct pg_store *st, const struct grant_request *req, const char *consumer,
                      bool *changed, struct error *err)
{
    int64_t had = 0;
    if (!req->revoke) {
        *changed = true;
        return pg_exec(st, err, NULL, "SELECT @schema@.allow($1, $2, $3, $4)", "ssss", req->part,
                       req->role, consumer, req->tenant);
    }
    if (pg_query_number(st, err, &had, "SELECT @schema@.disallow($1, $2, $3)", "sss", req->part,
                        req->role, consumer) != 0)
        return -1;
    if (had)
        *changed = true;
    return 0;
}

int pg_grant(struct store *base, const struct grant_request *req, bool *ret_changed,
             struct error *err)
{
    struct pg_store *st = pg_of(base);
    bool changed = false;
    if (pg_begin(base, err) != 0)
        return -1;

    int result = 0;
    if (req->n_consumers == 0)
        result = change_one(st, req, NULL, &changed, err);
    for (size_t i = 0; result == 0 && i < req->n_consumers; i++)
        result = change_one(st, req, req->consumers[i], &changed, err);
    if (result != 0) {
        pg_rollback(base);
        return -1;
    }
    if (req->dry_run)
        pg_rollback(base);
    else if (pg_commit(base, err) != 0)
        return -1;
    *ret_changed = changed;
    return 0;
}

/* ---- adopted tables ---- */

/* Columns of all: whether anything changes, how many rows are copied, whether the columns change,
 * the mapping. */
/* clang-format off */
static const char adopt_sql[] =
    "SELECT adopted OR changed, copied, changed, '' "
    "FROM @schema@.adopt($1, $2, $3::jsonb, $4, $5, $6)";
static const char adopt_dry_run_sql[] =
    "SELECT what <> 'nothing', rows, what = 'change', mapping "
    "FROM @schema@.adopt_dry_run($1, $2, $3::jsonb, $4, $5, $6)";

static const char undo_sql[] =
    "SELECT @schema@.unadopt($1), 0, false, ''";
static const char undo_dry_run_sql[] =
    "SELECT @schema@._adopted(@schema@._adopt_source($1)) IS NOT NULL, 0, false, ''";

static const char drop_mark_sql[] =
    "SELECT @schema@.drop_mark($1), 0, false, ''";
static const char drop_mark_dry_run_sql[] =
    "SELECT EXISTS (SELECT 1 FROM @schema@.marking m "
                   "WHERE m.tab = @schema@._adopt_source($1)), 0, false, ''";
/* clang-format on */

/* Converts FIELD=COLUMN to {"FIELD":"COLUMN",...}. */
static int columns_json(const struct adopt_request *req, struct buf *b, struct error *err)
{
    buf_addc(b, '{');
    for (size_t i = 0; i < req->n_columns; i++) {
        const char *name = req->columns[i];
        const char *equals = strchr(name, '=');
        if (!equals)
            return err_set(err, ERR_CONFIG, "\"%s\" is not FIELD=COLUMN", name);
        if (i > 0)
            buf_addc(b, ',');
        json_quote(b, (struct str){name, (size_t)(equals - name)});
        buf_addc(b, ':');
        json_quote(b, str_of(equals + 1));
    }
    buf_addc(b, '}');
    return buf_cstr(b) ? 0 : err_nomem(err);
}

/* Adopts the table, or reports the effects of an adoption. */
static PGresult *adopt_query(struct pg_store *st, const struct adopt_request *req,
                             struct error *err)
{
    if (req->undo)
        return pg_query(st, err, req->dry_run ? undo_dry_run_sql : undo_sql, "s", req->table);
    if (req->drop_mark)
        return pg_query(st, err, req->dry_run ? drop_mark_dry_run_sql : drop_mark_sql, "s",
                        req->table);

    struct buf columns;
    PGresult *r = NULL;
    buf_init(&columns, 1 << 16);
    if (columns_json(req, &columns, err) == 0)
        r = pg_query(st, err, req->dry_run ? adopt_dry_run_sql : adopt_sql, "ssssss", req->table,
                     req->shape, columns.p, req->existing, req->mark, req->consumer);
    buf_release(&columns);
    return r;
}

int pg_adopt(struct store *base, const struct adopt_request *req, struct adopt_result *ret,
             struct error *err)
{
    struct pg_store *st = pg_of(base);
    st->patient = true; /* there may be many rows to copy */
    PGresult *r = adopt_query(st, req, err);
    st->patient = false;
    if (!r)
        return -1;
    *ret = (struct adopt_result){
        .changed = pg_true(r, 0, 0), .copied = pg_int(r, 0, 1), .other_columns = pg_true(r, 0, 2)};
    snprintf(ret->mapping, sizeof ret->mapping, "%s", PQgetvalue(r, 0, 3));
    PQclear(r);
    return 0;
}

/* ---- trimming: deleting old events that no consumer needs, some at a time ---- */

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

int pg_trim(struct store *base, const struct trim_request *req, struct trim_result *ret,
            struct error *err)
{
    struct pg_store *st = pg_of(base);
    int64_t max_rows = req->dry_run ? STORE_EXACT_ROWS : STORE_TRIM_ROWS;
    if (req->max_rows)
        max_rows = (int64_t)req->max_rows;

    PGresult *r;
    if (req->dry_run)
        r = pg_query(st, err, dry_run_sql, "iii", req->older_than_ms, req->inbox_ms, max_rows);
    else
        r = pg_query(st, err, trim_sql, "iiii", req->older_than_ms, max_rows, req->inbox_ms,
                     req->after);
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
