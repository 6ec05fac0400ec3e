/* inspect.c: the outbox as a whole, dead letters and marks. Events are listed by events.c. */
#include <stdio.h>
#include <stdlib.h>

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
    r = pg_query(st, err, "SELECT count(*) FROM @schema@.event", "");
    if (!r)
        return -1;
    ret->events = pg_int(r, 0, 0);
    PQclear(r);
    return 0;
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
    "LIMIT $5::bigint";

/* Only letters that are not already being retried are sent back or dropped. Both functions lock the
 * letters' consumers. */
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
    char text[24];
    const char *limit = NULL;
    if (q->limit) {
        snprintf(text, sizeof text, "%zu", q->limit);
        limit = text;
    }
    if (pg_send(st, PG_MAIN, err, dead_sql, "ssiss", q->consumer, q->id, store_seq_of(q->id),
                q->type, limit) != 0)
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
    PGresult *r = pg_query(st, err, sql, "ssisi", q->consumer, q->id, store_seq_of(q->id), q->type,
                           (int64_t)q->limit);
    st->patient = false;
    if (!r)
        return -1;
    *ret_n = pg_int(r, 0, 0);
    PQclear(r);
    return 0;
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
    PGresult *r = pg_query(pg_of(base), err, "SELECT @schema@.retry_now($1, $2)::int", "si",
                           consumer, seq);
    if (!r)
        return -1;
    *ret_waited = pg_int(r, 0, 0) != 0;
    PQclear(r);
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
