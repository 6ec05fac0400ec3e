/* admin.c: the outbox as a whole, dead letters, marks, grants, adopted tables, trimming. Most are
 * calls of functions in sql/postgres/functions. */
#include <stdio.h>

#include "base/json.h"
#include "store/postgres/postgres.h"

/* ---- the outbox as a whole ---- */

/* clang-format off */
static const char info_sql[] =
    "SELECT (SELECT value::int FROM @schema@.meta WHERE name = 'schema_version'), "
           "coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0), "
           "f.seq, "
           "l.seq, "
           "floor(extract(epoch FROM f.created_at) * 1000)::bigint, "
           "(SELECT count(*) FROM @schema@.consumer), "
           "(SELECT count(*) FROM @schema@.dead WHERE NOT retrying), "
           "floor(extract(epoch FROM @schema@._clock()) * 1000)::bigint, "
           "floor(extract(epoch FROM @schema@._passed_since(f.xid, f.seq)) * 1000)::bigint "
    "FROM (SELECT 1) one "
    "LEFT JOIN (SELECT xid, seq, created_at FROM @schema@.event ORDER BY seq LIMIT 1) f ON true "
    "LEFT JOIN (SELECT seq FROM @schema@.event ORDER BY seq DESC LIMIT 1) l ON true";
/* clang-format on */

int pg_info(struct store *base, struct store_info *ret, struct error *err)
{
    struct pg_store *st = pg_of(base);
    PGresult *r = pg_query(st, err, info_sql, "");
    if (!r)
        return -1;
    *ret = (struct store_info){.schema_version = (int)pg_int(r, 0, 0),
                               .head = pg_int(r, 0, 1),
                               .tail = pg_int(r, 0, 2),
                               .oldest_at = pg_int(r, 0, 4),
                               .consumers = pg_int(r, 0, 5),
                               .dead = pg_int(r, 0, 6),
                               .now_ms = pg_int(r, 0, 7),
                               .passed_at = -1};
    if (pg_str(r, 0, 8))
        ret->passed_at = pg_int(r, 0, 8);
    int64_t span = 0;
    if (ret->tail)
        span = pg_int(r, 0, 3) - ret->tail + 1;
    PQclear(r);

    ret->events = span;
    ret->events_exact = span <= STORE_EXACT_ROWS;
    if (span == 0 || !ret->events_exact)
        return 0;

    /* The range of seqs has gaps. */
    return pg_query_number(st, err, &ret->events, "SELECT count(*) FROM @schema@.event", "");
}

/* ---- dead letters ---- */

/* clang-format off */
#define DEAD_WHERE \
    "WHERE ($1::text IS NULL OR d.consumer = $1) " \
      "AND ($2::text IS NULL OR d.id::text = lower($2) OR d.seq = $3) " \
      "AND coalesce(d.type LIKE ANY ((SELECT @schema@._type_like($4))::text[]), true) "

static const char dead_sql[] =
    "SELECT " PG_DEAD_SHOWN ", "
           "d.consumer, d.attempts::bigint, d.error, "
           "floor(extract(epoch FROM d.dead_at) * 1000)::bigint, "
           "d.retrying::int::bigint "
    "FROM @schema@.dead d "
    DEAD_WHERE
    "ORDER BY d.consumer, d.seq "
    "LIMIT nullif($5::bigint, 0)";

/* Letters that are already being retried are left alone. Both functions lock the letters'
 * consumers. */
static const char redrive_sql[] =
    "SELECT coalesce(sum(@schema@._redrive(y.consumer, y.seqs)), 0) "
    "FROM (SELECT x.consumer, array_agg(x.seq) AS seqs "
          "FROM (SELECT d.consumer, d.seq "
                "FROM @schema@.dead d "
                DEAD_WHERE "AND NOT d.retrying "
                "ORDER BY d.consumer, d.seq "
                "LIMIT nullif($5::bigint, 0)) x "
          "GROUP BY x.consumer "
          "ORDER BY x.consumer) y";
static const char drop_sql[] =
    "SELECT count(*) "
    "FROM (SELECT d.consumer, d.seq "
          "FROM @schema@.dead d "
          DEAD_WHERE "AND NOT d.retrying "
          "ORDER BY d.consumer, d.seq "
          "LIMIT nullif($5::bigint, 0)) x "
    "WHERE @schema@.drop_dead(x.consumer, x.seq)";
/* clang-format on */

/* Reads and shows one letter. Returns 1 if there may be more, 0 at the end, -1 on failure. */
static int next_dead(struct pg_store *st, struct arena *a, dead_visit *visit, void *ctx,
                     struct error *err)
{
    const int more_columns = PG_EVENT_COLUMN_COUNT;
    PGresult *r;
    int more = pg_next_row(st, PG_MAIN, &r, err);
    if (more != 1)
        return more;

    struct dead_letter d = {0};
    bool ok = pg_event_row(r, 0, a, &d.ev);
    d.consumer = pg_copy(r, 0, more_columns, a, &ok);
    d.attempts = (int)pg_binary_int8(r, 0, more_columns + 1);
    d.error = pg_copy(r, 0, more_columns + 2, a, &ok);
    d.dead_at = pg_binary_int8(r, 0, more_columns + 3);
    d.retrying = pg_binary_int8(r, 0, more_columns + 4) != 0;
    PQclear(r);
    if (!ok) {
        pg_stop(st, PG_MAIN);
        return err_nomem(err);
    }
    if (visit(ctx, &d) != 0) {
        pg_stop(st, PG_MAIN);
        return 0;
    }
    return 1;
}

int pg_dead(struct store *base, const struct dead_query *q, dead_visit *visit, void *ctx,
            struct error *err)
{
    struct pg_store *st = pg_of(base);
    if (pg_send(st, PG_MAIN, err, dead_sql, "ssisi", q->consumer, q->id, store_seq_of(q->id),
                q->type, (int64_t)q->limit) != 0)
        return -1;

    struct arena a;
    int more = 1;
    arena_init(&a, 0);
    while (more == 1) {
        more = next_dead(st, &a, visit, ctx, err);
        arena_reset(&a);
    }
    arena_release(&a);
    return more;
}

/* Runs redrive_sql or drop_sql. There may be many letters. */
static int change_dead(struct pg_store *st, const char *sql, const struct dead_query *q,
                       int64_t *ret_n, struct error *err)
{
    st->patient = true;
    int result = pg_query_number(st, err, ret_n, sql, "ssisi", q->consumer, q->id,
                                 store_seq_of(q->id), q->type, (int64_t)q->limit);
    st->patient = false;
    return result;
}

int pg_dead_retry(struct store *base, const struct dead_query *q, int64_t *ret_n, struct error *err)
{
    return change_dead(pg_of(base), redrive_sql, q, ret_n, err);
}

int pg_dead_drop(struct store *base, const struct dead_query *q, int64_t *ret_n, struct error *err)
{
    return change_dead(pg_of(base), drop_sql, q, ret_n, err);
}

int pg_retry_now(struct store *base, const char *consumer, int64_t seq, bool *ret_waited,
                 struct error *err)
{
    int64_t waited;
    if (pg_query_number(pg_of(base), err, &waited, "SELECT @schema@.retry_now($1, $2)", "si",
                        consumer, seq) != 0)
        return -1;
    *ret_waited = waited != 0;
    return 0;
}

/* ---- marks ---- */

/* For a single stream, it leaves out the marks of other tenants' consumers, which cannot be
 * trusted: see functions/settle.sql. */
/* clang-format off */
static const char marks_sql[] =
    "SELECT m.stream, m.consumer, m.hi, m.lo, floor(extract(epoch FROM m.at) * 1000)::bigint "
    "FROM @schema@.mark m "
    "WHERE $1::text IS NULL "
       "OR m.stream = $1 "
          "AND EXISTS (SELECT 1 FROM @schema@.consumer c "
                      "WHERE c.name = m.consumer "
                        "AND c.tenant = (SELECT @schema@._acting_for(current_user))) "
    "ORDER BY m.stream COLLATE \"C\", m.hi DESC, m.lo DESC, m.consumer";
/* clang-format on */

int pg_marks(struct store *base, const char *stream, mark_visit *visit, void *ctx,
             struct error *err)
{
    PGresult *r = pg_query(pg_of(base), err, marks_sql, "s", stream);
    if (!r)
        return -1;
    for (int i = 0; i < PQntuples(r); i++) {
        struct hwm m = {str_of(pg_str(r, i, 0)), pg_int(r, i, 2), pg_int(r, i, 3)};
        if (visit(ctx, pg_str(r, i, 1), &m, pg_int(r, i, 4)) != 0)
            break;
    }
    PQclear(r);
    return 0;
}

/* ---- grants ---- */

/* Grants or revokes a part, for one consumer or (NULL) for all. Sets *changed if that changed, or
 * may have changed, anything. */
static int change_one(struct pg_store *st, const struct grant_request *req, const char *consumer,
                      bool *changed, struct error *err)
{
    int64_t had = 0;
    if (!req->revoke) {
        *changed = true;
        return pg_exec(st, err, "SELECT @schema@.allow($1, $2, $3, $4)", "ssss", req->part,
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
    if (pg_begin_own(base, err) != 0)
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
