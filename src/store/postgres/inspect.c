/* inspect.c: listing events with their states, and dead letters. */
#include <stdio.h>
#include <stdlib.h>

#include "store/postgres/postgres.h"

#define PAGE 500 /* events per query, so that a listing of millions fits in memory */
#define LIMIT_DEFAULT 100

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

/* count_events counts the rows: the range of their numbers has gaps. */
static int count_events(struct pg_store *st, int64_t *ret, struct error *err)
{
    PGresult *r = pg_query(st, err, "SELECT count(*) FROM @schema@.event", "");
    if (!r)
        return -1;
    *ret = pg_int(r, 0, 0);
    PQclear(r);
    return 0;
}

int pg_info(struct store *base, struct store_info *ret, struct error *err)
{
    PGresult *r = pg_query(pg_of(base), err, info_sql, "");
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
    bool countable = span > 0 && ret->events_exact;
    return countable ? count_events(pg_of(base), &ret->events, err) : 0;
}

/* ---- events ---- */

/* What a listing needs to tell the state of an event for each of n consumers. */
struct viewer {
    struct pg_store *st;
    struct arena a; /* for the whole listing */
    struct consumer_info *list;
    struct filter **filters;
    struct delivery_info *d; /* of the event at hand */
    size_t n;
    int64_t now; /* the server's clock, if the query depends on it */
};

static void viewer_release(struct viewer *v)
{
    for (size_t i = 0; v->filters && i < v->n; i++)
        filter_free(v->filters[i]);
    arena_release(&v->a);
}

/* add_consumers prepares the viewer for n consumers, which are in v->list. */
static int add_consumers(struct viewer *v, size_t n, struct error *err)
{
    v->filters = arena_zalloc(&v->a, n + 1, sizeof *v->filters);
    v->d = arena_zalloc(&v->a, n + 1, sizeof *v->d);
    if (!v->filters || !v->d)
        return err_nomem(err);
    for (; v->n < n; v->n++) {
        const struct consumer_spec *c = &v->list[v->n].spec;
        if (filter_new(c->events, c->where, &v->filters[v->n], err) != 0)
            return -1;
    }
    return 0;
}

static int viewer_init(struct viewer *v, struct pg_store *st, const char *consumer,
                       struct error *err)
{
    size_t n = 0;
    *v = (struct viewer){.st = st};
    arena_init(&v->a, 0);
    int result = pg_consumer_list(&st->base, consumer, &v->a, &v->list, &n, err);
    if (result == 0)
        result = add_consumers(v, n, err);
    if (result != 0)
        viewer_release(v);
    return result;
}

/* state_of reads a state's name. An event that the predicate has to be asked about is "unknown" to
 * the view: if the predicate wants it, it was delivered. */
static enum delivery_state state_of(const char *s)
{
    for (int i = 0; i < STATE_COUNT; i++)
        if (strcmp(s, delivery_state_names[i]) == 0)
            return (enum delivery_state)i;
    return STATE_DELIVERED;
}

/* excluded finds out whether a predicate, which may be one that the consumer had before, leaves an
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

/* consumer_index finds a consumer by its name; v->n: it is not in the listing. */
static size_t consumer_index(const struct viewer *v, const char *name)
{
    size_t i = 0;
    while (i < v->n && strcmp(v->list[i].spec.name, name) != 0)
        i++;
    return i;
}

/* clang-format off */
static const char states_sql[] =
    "SELECT d.consumer, d.state, d.attempts, "
           "floor(extract(epoch FROM d.due_at) * 1000)::bigint, "
           "d.error, d.predicate, "
           "floor(extract(epoch FROM r.at) * 1000)::bigint, "
           "r.sink_id "
    "FROM @schema@.delivery d "
    "LEFT JOIN @schema@.receipt r "
           "ON r.consumer = d.consumer AND r.seq = d.seq AND r.event_id = d.event_id "
    "WHERE d.seq = $1";
/* clang-format on */

/* read_state reads one row of states_sql. */
static int read_state(struct viewer *v, const PGresult *r, int row, const struct event *ev,
                      struct arena *a, struct error *err)
{
    size_t i = consumer_index(v, PQgetvalue(r, row, 0));
    if (i == v->n)
        return 0; /* not asked for, or made just now */
    struct delivery_info *d = &v->d[i];
    bool ok = true;
    d->state = state_of(PQgetvalue(r, row, 1));
    d->attempts = (int)pg_int(r, row, 2);
    d->due_at = pg_int(r, row, 3);
    d->error = pg_copy(r, row, 4, a, &ok);
    d->delivered_at = pg_int(r, row, 6);
    d->receipt = pg_copy(r, row, 7, a, &ok);
    if (!ok)
        return err_nomem(err);

    bool left_out;
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
    PGresult *r = pg_query(v->st, err, states_sql, "i", ev->seq);
    if (!r)
        return -1;
    int result = 0;
    for (int row = 0; result == 0 && row < PQntuples(r); row++)
        result = read_state(v, r, row, ev, a, err);
    PQclear(r);
    return result;
}

/* in_state says whether an event is in the state that the query asks for, for some consumer. If
 * there is none, every event is pending. */
static bool in_state(const struct viewer *v, const struct event_query *q)
{
    bool any_state = !q->state && !q->unprocessed;
    if (any_state)
        return true;
    if (v->n == 0)
        return q->unprocessed || q->state == STATE_PENDING + 1;
    for (size_t i = 0; i < v->n; i++)
        if (store_in_state(q, &v->d[i], v->now))
            return true;
    return false;
}

/* clang-format off */
#define WANTED \
    "coalesce(e.type LIKE ANY (@schema@._type_like($2)), true) " \
    "AND ($3::text IS NULL OR e.aggregate_type = $3) " \
    "AND ($4::text IS NULL OR e.aggregate_id = $4) "

static const char oldest_first_sql[] =
    "SELECT " PG_EVENT_SHOWN " "
    "FROM @schema@.event e "
    "WHERE e.seq > $1 AND " WANTED
    "ORDER BY e.seq LIMIT $5::bigint";
static const char newest_first_sql[] =
    "SELECT " PG_EVENT_SHOWN " "
    "FROM @schema@.event e "
    "WHERE ($1 = 0 OR e.seq < $1) AND " WANTED
    "ORDER BY e.seq DESC LIMIT $5::bigint";
static const char one_sql[] =
    "SELECT " PG_EVENT_SHOWN " "
    "FROM @schema@.event e "
    "WHERE e.seq = $1 OR e.id::text = lower($2)";
/* clang-format on */

/* send_one asks for the event with an id, or, if that is a number, with a seq. */
static int send_one(struct pg_store *st, const char *id, struct error *err)
{
    int64_t seq = store_seq_of(id);
    return pg_send(st, PG_MAIN, err, one_sql, "is", seq, seq ? "" : id);
}

/* send_page asks for the events after (or, newest first, before) a seq that the query wants. */
static int send_page(struct pg_store *st, const struct event_query *q, int64_t after,
                     struct error *err)
{
    if (q->id)
        return send_one(st, q->id, err);
    const char *sql = q->newest_first ? newest_first_sql : oldest_first_sql;
    return pg_send(st, PG_MAIN, err, sql, "istti", after, q->type, q->aggregate_type,
                   q->aggregate_id, (int64_t)PAGE);
}

/* read_page reads a whole page at once, because the states of its events need the connection. */
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

/* Where a listing is. */
struct listing {
    struct viewer *v;
    const struct event_query *q;
    event_visit *visit;
    void *ctx;

    struct arena a; /* of a page */
    int64_t after;  /* seq of the last event looked at */
    size_t left;    /* events to show */
    bool done;
};

/* show_event shows an event if it is in the state asked for. */
static int show_event(struct listing *l, const struct event *ev, struct error *err)
{
    struct viewer *v = l->v;
    l->after = ev->seq;
    if (read_states(v, ev, &l->a, err) != 0)
        return -1;
    if (!in_state(v, l->q))
        return 0;
    bool stopped = l->visit(l->ctx, ev, v->d, v->n) != 0;
    l->left--;
    l->done = stopped || l->left == 0;
    return 0;
}

/* list_page shows the wanted events of the next page. */
static int list_page(struct listing *l, struct error *err)
{
    struct pg_store *st = l->v->st;
    size_t n = 0;
    struct event *page = arena_alloc(&l->a, PAGE * sizeof *page);
    if (!page)
        return err_nomem(err);
    if (send_page(st, l->q, l->after, err) != 0)
        return -1;
    if (read_page(st, &l->a, page, &n, err) != 0)
        return -1;

    for (size_t i = 0; !l->done && i < n; i++)
        if (show_event(l, &page[i], err) != 0)
            return -1;
    bool last_page = n < PAGE;
    if (last_page)
        l->done = true;
    return 0;
}

static int list_events(struct listing *l, struct error *err)
{
    int result = 0;
    arena_init(&l->a, 0);
    while (result == 0 && !l->done) {
        result = list_page(l, err);
        arena_reset(&l->a);
    }
    arena_release(&l->a);
    return result;
}

/* read_now reads the server's clock if the query depends on it. */
static int read_now(struct viewer *v, const struct event_query *q, struct error *err)
{
    static const char sql[] = "SELECT floor(extract(epoch FROM @schema@._clock()) * 1000)::bigint";
    if (!q->unprocessed)
        return 0;
    PGresult *r = pg_query(v->st, err, sql, "");
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
    struct listing l = {.v = &v,
                        .q = q,
                        .visit = visit,
                        .ctx = ctx,
                        .after = q->after,
                        .left = q->limit ? q->limit : LIMIT_DEFAULT};
    int result = read_now(&v, q, err);
    if (result == 0)
        result = list_events(&l, err);
    viewer_release(&v);
    return result;
}

/* ---- dead letters ---- */

/* clang-format off */
#define DEAD_WHERE \
    "WHERE ($1::text IS NULL OR d.consumer = $1) " \
      "AND ($2::text IS NULL OR d.id::text = lower($2) OR d.seq = $3) " \
      "AND coalesce(d.type LIKE ANY (@schema@._type_like($4)), true) "

static const char dead_sql[] =
    "SELECT " PG_DEAD_SHOWN ", "
           "d.consumer, d.attempts::bigint, d.error, "
           "floor(extract(epoch FROM d.dead_at) * 1000)::bigint, "
           "d.retrying::int::bigint "
    "FROM @schema@.dead d "
    DEAD_WHERE
    "ORDER BY d.consumer, d.seq "
    "LIMIT $5::bigint";

/* Only what is not on its way already is sent back or dropped. Both functions lock the consumers
 * that the letters belong to. */
static const char redrive_sql[] =
    "SELECT coalesce(sum(@schema@.redrive(x.consumer, x.id)), 0) "
    "FROM (SELECT d.consumer, d.id "
          "FROM @schema@.dead d "
          DEAD_WHERE "AND NOT d.retrying "
          "ORDER BY d.consumer, d.seq "
          "LIMIT nullif($5::bigint, 0)) x";
static const char drop_sql[] =
    "SELECT count(*) "
    "FROM (SELECT d.consumer, d.seq "
          "FROM @schema@.dead d "
          DEAD_WHERE "AND NOT d.retrying "
          "ORDER BY d.consumer, d.seq "
          "LIMIT nullif($5::bigint, 0)) x "
    "WHERE @schema@.drop_dead(x.consumer, x.seq)";
/* clang-format on */

/* read_dead reads a row of dead_sql. Returns false if there is no room. */
static bool read_dead(const PGresult *r, struct arena *a, struct dead_letter *d)
{
    const int more = PG_EVENT_COLUMN_COUNT;
    *d = (struct dead_letter){0};
    bool ok = pg_event_row(r, 0, a, &d->ev);
    d->consumer = pg_copy(r, 0, more, a, &ok);
    d->attempts = (int)pg_binary_int8(r, 0, more + 1);
    d->error = pg_copy(r, 0, more + 2, a, &ok);
    d->dead_at = pg_binary_int8(r, 0, more + 3);
    d->retrying = pg_binary_int8(r, 0, more + 4) != 0;
    return ok;
}

/* next_dead reads and shows one letter. Returns 1 if there may be more, 0 at the end, -1 on
 * failure. */
static int next_dead(struct pg_store *st, struct arena *a, dead_visit *visit, void *ctx,
                     struct error *err)
{
    PGresult *r;
    struct dead_letter d;
    int more = pg_next_row(st, PG_MAIN, &r, err);
    if (more != 1)
        return more;
    bool ok = read_dead(r, a, &d);
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

/* change_dead runs redrive_sql or drop_sql. There may be many letters. */
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

/* Asked for one stream, it leaves out the marks of other tenants' consumers, which could say
 * anything: see functions/hwm.sql. */
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
