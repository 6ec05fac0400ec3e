/* inspect.c: events with their states, and dead letters. */
#include <stdio.h>
#include <stdlib.h>

#include "store/postgres/postgres.h"

#define PAGE 500 /* events per query, so that a listing of millions fits in memory */

int pg_info(struct store *base, struct store_info *ret, struct error *err)
{
    PGresult *r = pg_query(
        pg_of(base), err,
        "SELECT (SELECT value::int FROM @schema@.meta WHERE name = 'schema_version'), "
        "coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0), f.seq, l.seq, "
        "floor(extract(epoch FROM f.created_at) "
        "* 1000)::bigint, (SELECT count(*) FROM @schema@.consumer), (SELECT count(*) FROM "
        "@schema@.dead WHERE NOT retrying), "
        "floor(extract(epoch FROM @schema@._clock()) * 1000)::bigint, floor(extract(epoch FROM "
        "@schema@._passed_since(f.xid, f.seq)) * "
        "1000)::bigint FROM (SELECT 1) one LEFT JOIN (SELECT xid, seq, created_at "
        "FROM @schema@.event ORDER BY seq LIMIT 1) f ON true LEFT JOIN (SELECT seq FROM "
        "@schema@.event ORDER BY seq DESC "
        "LIMIT 1) l ON true",
        "");
    if (!r)
        return -1;
    *ret = (struct store_info){.schema_version = (int)pg_int(r, 0, 0),
                               .head = pg_int(r, 0, 1),
                               .tail = pg_int(r, 0, 2),
                               .oldest_at = pg_int(r, 0, 4),
                               .consumers = pg_int(r, 0, 5),
                               .dead = pg_int(r, 0, 6),
                               .now_ms = pg_int(r, 0, 7),
                               .passed_at = PQgetisnull(r, 0, 8) ? -1 : pg_int(r, 0, 8)};
    int64_t span = ret->tail ? pg_int(r, 0, 3) - ret->tail + 1 : 0;
    PQclear(r);
    ret->events = span;
    ret->events_exact = span <= STORE_EXACT_ROWS;
    if (span == 0 || !ret->events_exact)
        return 0;
    /* numbers have gaps */
    r = pg_query(pg_of(base), err, "SELECT count(*) FROM @schema@.event", "");
    if (!r)
        return -1;
    ret->events = pg_int(r, 0, 0);
    PQclear(r);
    return 0;
}

/* ---- events ---- */

struct viewer {
    struct pg_store *st;
    struct arena a; /* consumers: for the whole listing */
    struct consumer_info *list;
    struct filter **filters;
    struct delivery_info *d;
    size_t n;
    int64_t now; /* the server's clock, where the query goes by it */
};

static void viewer_release(struct viewer *v)
{
    for (size_t i = 0; v->filters && i < v->n; i++)
        filter_free(v->filters[i]);
    arena_release(&v->a);
}

static int viewer_init(struct viewer *v, struct pg_store *st, const char *consumer,
                       struct error *err)
{
    size_t n;
    *v = (struct viewer){.st = st};
    arena_init(&v->a, 0);
    if (pg_consumer_list(&st->base, consumer, &v->a, &v->list, &n, err) != 0)
        goto fail;
    v->filters = arena_zalloc(&v->a, n + 1, sizeof *v->filters);
    v->d = arena_zalloc(&v->a, n + 1, sizeof *v->d);
    if (!v->filters || !v->d) {
        err_nomem(err);
        goto fail;
    }
    for (; v->n < n; v->n++)
        if (filter_new(v->list[v->n].spec.events, v->list[v->n].spec.where, &v->filters[v->n],
                       err) != 0)
            goto fail;
    return 0;
fail:
    viewer_release(v);
    return -1;
}

/* state_of: "unknown" is what the view says of an event that the predicate has to be asked
 * about. */
static enum delivery_state state_of(const char *s)
{
    for (int i = 0; i < STATE_COUNT; i++)
        if (strcmp(s, delivery_state_names[i]) == 0)
            return (enum delivery_state)i;
    return STATE_DELIVERED;
}

/* excluded says whether the predicate, which may be one that the consumer had before, leaves the
 * event out. */
static int excluded(const struct viewer *v, size_t i, const char *predicate, struct str payload,
                    bool *ret, struct error *err)
{
    struct filter *f = NULL;
    *ret = false;
    if (!predicate || !*predicate)
        return 0;
    if (strcmp(predicate, v->list[i].spec.where) == 0) {
        *ret = !filter_payload(v->filters[i], payload);
        return 0;
    }
    if (filter_new(NULL, predicate, &f, err) != 0)
        return -1;
    *ret = !filter_payload(f, payload);
    filter_free(f);
    return 0;
}

static size_t consumer_index(const struct viewer *v, const char *name)
{
    size_t i = 0;
    while (i < v->n && strcmp(v->list[i].spec.name, name) != 0)
        i++;
    return i;
}

/* read_state takes one row of the view. */
static int read_state(struct viewer *v, const PGresult *r, int row, const struct event *ev,
                      struct arena *a, struct error *err)
{
    size_t i = consumer_index(v, PQgetvalue(r, row, 0));
    if (i == v->n)
        return 0; /* not asked for, or made just now */
    struct delivery_info *d = &v->d[i];
    const char *e = pg_str(r, row, 4);
    bool left_out;
    d->state = state_of(PQgetvalue(r, row, 1));
    d->attempts = (int)pg_int(r, row, 2);
    d->due_at = pg_int(r, row, 3);
    d->error = e ? arena_bytes(a, e, strlen(e)) : NULL;
    if (e && !d->error)
        return err_nomem(err);
    const char *receipt = pg_str(r, row, 7);
    d->delivered_at = pg_int(r, row, 6);
    d->receipt = receipt ? arena_bytes(a, receipt, strlen(receipt)) : NULL;
    if (receipt && !d->receipt)
        return err_nomem(err);
    if (excluded(v, i, pg_str(r, row, 5), ev->payload, &left_out, err) != 0)
        return -1;
    if (left_out)
        d->state = STATE_SKIPPED;
    return 0;
}

/* read_states fills in v->d for one event. */
static int read_states(struct viewer *v, const struct event *ev, struct arena *a, struct error *err)
{
    for (size_t i = 0; i < v->n; i++)
        v->d[i] = (struct delivery_info){.consumer = v->list[i].spec.name, .state = STATE_SKIPPED};
    if (v->n == 0)
        return 0;
    PGresult *r = pg_query(
        v->st, err,
        "SELECT d.consumer, d.state, d.attempts, floor(extract(epoch FROM d.due_at) * "
        "1000)::bigint, "
        "d.error, d.predicate, floor(extract(epoch FROM r.at) * 1000)::bigint, r.sink_id FROM "
        "@schema@.delivery d LEFT JOIN @schema@.receipt r ON r.consumer = d.consumer AND r.seq = "
        "d.seq "
        "AND r.event_id = d.event_id WHERE d.seq = $1",
        "i", ev->seq);
    if (!r)
        return -1;
    int bad = 0;
    for (int row = 0; !bad && row < PQntuples(r); row++)
        bad = read_state(v, r, row, ev, a, err);
    PQclear(r);
    return bad;
}

static bool in_state(const struct viewer *v, const struct event_query *q)
{
    if (!q->state && !q->unprocessed)
        return true;
    for (size_t i = 0; i < v->n; i++)
        if (store_in_state(q, &v->d[i], v->now))
            return true;
    return v->n == 0 && (q->unprocessed || q->state == STATE_PENDING + 1);
}

/* send_page asks for the events after (or, newest first, before) a seq that the query wants. */
static int send_page(struct pg_store *st, const struct event_query *q, int64_t after,
                     struct error *err)
{
    static const char up[] =
        "SELECT " PG_EVENT_SHOWN " FROM @schema@.event e WHERE e.seq > $1 AND "
        "coalesce(e.type LIKE ANY (@schema@._type_like($2)), true) AND ($3::text IS NULL OR "
        "e.aggregate_type = $3) AND "
        "($4::text IS NULL OR e.aggregate_id = $4) ORDER BY e.seq LIMIT $5::bigint";
    static const char down[] =
        "SELECT " PG_EVENT_SHOWN " FROM @schema@.event e WHERE ($1 = 0 OR e.seq < $1) AND "
        "coalesce(e.type LIKE ANY (@schema@._type_like($2)), true) AND ($3::text IS NULL OR "
        "e.aggregate_type = $3) AND "
        "($4::text IS NULL OR e.aggregate_id = $4) ORDER BY e.seq DESC LIMIT $5::bigint";
    static const char one[] = "SELECT " PG_EVENT_SHOWN
                              " FROM @schema@.event e WHERE e.seq = $1 OR e.id::text = lower($2)";
    if (q->id)
        return pg_send(st, PG_MAIN, err, one, "is", store_seq_of(q->id),
                       store_seq_of(q->id) ? "" : q->id);
    if (q->newest_first)
        return pg_send(st, PG_MAIN, err, down, "istti", after, q->type, q->aggregate_type,
                       q->aggregate_id, (int64_t)PAGE);
    return pg_send(st, PG_MAIN, err, up, "istti", after, q->type, q->aggregate_type,
                   q->aggregate_id, (int64_t)PAGE);
}

/* read_page reads a page whole, because the states need the connection. */
static int read_page(struct pg_store *st, struct arena *a, struct event *page, size_t *ret_n,
                     struct error *err)
{
    PGresult *r;
    int more;
    *ret_n = 0;
    while ((more = pg_next_row(st, PG_MAIN, &r, err)) == 1) {
        bool ok = *ret_n < PAGE && pg_event_row(r, 0, a, &page[*ret_n]);
        PQclear(r);
        if (!ok) {
            pg_stop(st, PG_MAIN);
            return err_nomem(err);
        }
        ++*ret_n;
    }
    return more;
}

static int list_events(struct viewer *v, const struct event_query *q, event_visit *visit, void *ctx,
                       struct error *err)
{
    struct arena a;
    size_t left = q->limit ? q->limit : 100, n = PAGE;
    int64_t after = q->after;
    int r = 0, stop = 0;
    arena_init(&a, 0);
    while (r == 0 && !stop && left > 0 && n == PAGE) {
        struct event *page = arena_alloc(&a, PAGE * sizeof *page);
        r = page ? send_page(v->st, q, after, err) : err_nomem(err);
        if (r == 0)
            r = read_page(v->st, &a, page, &n, err);
        for (size_t i = 0; r == 0 && !stop && left > 0 && i < n; i++) {
            after = page[i].seq;
            r = read_states(v, &page[i], &a, err);
            if (r != 0 || !in_state(v, q))
                continue;
            stop = visit(ctx, &page[i], v->d, v->n);
            left--;
        }
        arena_reset(&a);
    }
    arena_release(&a);
    return r;
}

static int read_now(struct viewer *v, struct error *err)
{
    PGresult *r = pg_query(
        v->st, err, "SELECT floor(extract(epoch FROM @schema@._clock()) * 1000)::bigint", "");
    if (!r)
        return -1;
    v->now = pg_int(r, 0, 0);
    PQclear(r);
    return 0;
}

int pg_events(struct store *base, const struct event_query *q, event_visit *visit, void *ctx,
              struct error *err)
{
    struct viewer v;
    if (viewer_init(&v, pg_of(base), q->consumer, err) != 0)
        return -1;
    int r = q->unprocessed ? read_now(&v, err) : 0;
    if (r == 0)
        r = list_events(&v, q, visit, ctx, err);
    viewer_release(&v);
    return r;
}

/* ---- dead letters ---- */

#define DEAD_WHERE \
    " WHERE ($1::text IS NULL OR d.consumer = $1) AND ($2::text IS NULL OR d.id::text = " \
    "lower($2) OR d.seq = $3) AND " \
    "coalesce(d.type LIKE ANY (@schema@._type_like($4)), true)"

static const char *copy(const PGresult *r, int col, struct arena *a, bool *ok)
{
    if (PQgetisnull(r, 0, col))
        return NULL;
    const char *s = arena_bytes(a, PQgetvalue(r, 0, col), (size_t)PQgetlength(r, 0, col));
    if (!s)
        *ok = false;
    return s;
}

int pg_dead(struct store *base, const struct dead_query *q, dead_visit *visit, void *ctx,
            struct error *err)
{
    static const char sql[] =
        "SELECT " PG_DEAD_SHOWN
        ", d.consumer, d.attempts::bigint, d.error, floor(extract(epoch FROM d.dead_at) * "
        "1000)::bigint, d.retrying::int::bigint FROM @schema@.dead d" DEAD_WHERE
        " ORDER BY d.consumer, d.seq LIMIT $5::bigint";
    struct pg_store *st = pg_of(base);
    struct arena a;
    PGresult *r;
    int more, stop = 0;
    char limit[24];
    snprintf(limit, sizeof limit, "%zu", q->limit);
    if (pg_send(st, PG_MAIN, err, sql, "ssiss", q->consumer, q->id, store_seq_of(q->id), q->type,
                q->limit ? limit : NULL) != 0)
        return -1;
    arena_init(&a, 0);
    while (!stop && (more = pg_next_row(st, PG_MAIN, &r, err)) == 1) {
        struct dead_letter d = {0};
        bool ok = pg_event_row(r, 0, &a, &d.ev);
        d.consumer = copy(r, PG_EVENT_COLUMN_COUNT, &a, &ok);
        d.attempts = (int)pg_binary_int8(r, 0, PG_EVENT_COLUMN_COUNT + 1);
        d.error = copy(r, PG_EVENT_COLUMN_COUNT + 2, &a, &ok);
        d.dead_at = pg_binary_int8(r, 0, PG_EVENT_COLUMN_COUNT + 3);
        d.retrying = pg_binary_int8(r, 0, PG_EVENT_COLUMN_COUNT + 4) != 0;
        PQclear(r);
        stop = ok ? visit(ctx, &d) : 1;
        if (!ok)
            more = err_nomem(err);
        arena_reset(&a);
    }
    if (stop)
        pg_stop(st, PG_MAIN);
    arena_release(&a);
    return more < 0 ? -1 : 0;
}

/* pg_dead_retry sends back what is not on its way already, consumer by consumer: each has a lock. */
int pg_dead_retry(struct store *base, const struct dead_query *q, int64_t *ret_n, struct error *err)
{
    struct pg_store *st = pg_of(base);
    st->patient = true; /* there may be many */
    PGresult *r = pg_query(
        st, err,
        "SELECT coalesce(sum(@schema@._redrive(y.consumer, y.seqs)), 0) FROM (SELECT x.consumer, "
        "array_agg(x.seq) AS seqs FROM (SELECT d.consumer, d.seq FROM @schema@.dead d" DEAD_WHERE
        " AND NOT d.retrying ORDER BY d.consumer, d.seq LIMIT nullif($5::bigint, 0)) x "
        "GROUP BY x.consumer ORDER BY x.consumer) y",
        "ssisi", q->consumer, q->id, store_seq_of(q->id), q->type, (int64_t)q->limit);
    st->patient = false;
    if (!r)
        return -1;
    *ret_n = pg_int(r, 0, 0);
    PQclear(r);
    return 0;
}

int pg_dead_drop(struct store *base, const struct dead_query *q, int64_t *ret_n, struct error *err)
{
    struct pg_store *st = pg_of(base);
    st->patient = true;
    PGresult *r = pg_query(
        st, err,
        "SELECT count(*) FROM (SELECT d.consumer, d.seq FROM @schema@.dead d" DEAD_WHERE
        " AND NOT d.retrying ORDER BY d.consumer, d.seq LIMIT nullif($5::bigint, 0)) x WHERE "
        "@schema@.drop_dead(x.consumer, x.seq)",
        "ssisi", q->consumer, q->id, store_seq_of(q->id), q->type, (int64_t)q->limit);
    st->patient = false;
    if (!r)
        return -1;
    *ret_n = pg_int(r, 0, 0);
    PQclear(r);
    return 0;
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

int pg_marks(struct store *base, const char *stream, mark_visit *visit, void *ctx,
             struct error *err)
{
    PGresult *r = pg_query(
        pg_of(base), err,
        "SELECT m.stream, m.consumer, m.hi, m.lo, floor(extract(epoch FROM m.at) * 1000)::bigint "
        "FROM @schema@.mark m "
        "WHERE $1::text IS NULL OR m.stream = $1 AND EXISTS (SELECT 1 FROM @schema@.consumer c "
        "WHERE c.name = m.consumer "
        "AND c.tenant = (SELECT @schema@._acting_for(current_user))) " /* another tenant's could say anything: see hwm */
        "ORDER BY m.stream COLLATE \"C\", m.hi DESC, m.lo DESC, m.consumer",
        "s", stream);
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
