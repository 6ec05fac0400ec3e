/* events.c: listing events with their states.
 *
 * Millions of events may be kept, and few of them may match. Events with a row in tables such as
 * parked or dead are found by that row (_exceptional). All others are searched for, from one end, a
 * range of numbers at a time, no further than the query's bound. */
#include <stdlib.h>

#include "store/postgres/event_states.h"

#define PAGE 500 /* events per query, so that a listing of millions fits in memory */
#define PAGE_LEAST 10
#define LIMIT_DEFAULT 100
/* Searching by state takes twice as long as by type; with this many consumers, three times as
 * long. */
#define CHEAP_CONSUMERS 8
/* Deciding one state costs as much as examining this many numbers. */
#define STATE_COST 20

/* ---- pages ---- */

/* clang-format off */
#define WANTED \
    "coalesce(e.type LIKE ANY ((SELECT @schema@._type_like($3))::text[]), true) " \
    "AND ($4::text IS NULL OR e.aggregate_type = $4) " \
    "AND ($5::text IS NULL OR e.aggregate_id = $5) "

/* A row for each consumer, with the data that a search needs. Lanes are in arrays, in order. lost:
 * a lane is missing. changed: a former filter may apply to an event. */
#define CONSUMERS \
    "WITH c AS MATERIALIZED (" \
        "SELECT x.*, l.*, " \
               "EXISTS (SELECT 1 FROM @schema@.former_filter b WHERE b.consumer = x.name) " \
                   "AS changed " \
        "FROM @schema@.consumer x, " \
             "LATERAL (SELECT count(*) < x.lanes AS lost, " \
                             "array_agg(y.seen ORDER BY y.lane) AS seen, " \
                             "array_agg(y.floor ORDER BY y.lane) AS floor, " \
                             "array_agg(y.target ORDER BY y.lane) AS target, " \
                             "array_agg(y.pos ORDER BY y.lane) AS pos " \
                      "FROM @schema@._lanes(x.name, x.lanes) y " \
                      "WHERE y.lane >= 0) l " \
        "WHERE $7::text IS NULL OR x.name = $7) "

/* The events in a range, all or those that may be in a state: checking positions and filters is
 * cheap, and _exceptional has the exceptions. The fences (OFFSET 0) keep arguments simple, so that
 * the functions are inlined. */
#define LOOK \
    CONSUMERS \
    "SELECT " PG_EVENT_SHOWN " " \
    "FROM @schema@.event e " \
    "WHERE e.seq > $1 AND e.seq <= $2 AND " WANTED \
      "AND ($6::text IS NULL " \
           "OR EXISTS (" \
               "SELECT 1 " \
               "FROM c, " \
                    "LATERAL (SELECT 1 + @schema@._lane_of(c.lanes, e.seq, e.aggregate_type, " \
                                                          "e.aggregate_id) AS nth OFFSET 0) n, " \
                    "LATERAL (SELECT c.seen[n.nth] AS seen, c.floor[n.nth] AS floor, " \
                                    "c.target[n.nth] AS target, c.pos[n.nth] AS pos OFFSET 0) l, " \
                    "LATERAL (SELECT coalesce((c.tenant = '' OR c.tenant = e.tenant) " \
                                             "AND (c.type_like IS NULL " \
                                                  "OR e.type LIKE ANY (c.type_like)), false) " \
                                    "AS wanted, " \
                                    "@schema@._handed_out(l.seen, l.floor, l.target, l.pos, " \
                                                         "e.xid, e.seq) AS out, " \
                                    "@schema@._before_start(c.start_seen, c.start_floor, " \
                                                           "c.start_also, e.xid, e.seq) " \
                                    "AS before) f " \
               "WHERE c.lost " \
                  "OR CASE $6 " \
                         "WHEN 'pending' THEN f.wanted AND NOT f.out " \
                         "WHEN 'unprocessed' THEN f.wanted AND NOT f.out " \
                         "WHEN 'before-start' THEN (f.wanted OR c.changed) AND f.before " \
                         "WHEN 'delivered' THEN (f.wanted OR c.changed) " \
                                               "AND NOT f.before AND f.out " \
                         "WHEN 'skipped' THEN NOT f.wanted OR c.changed OR c.predicate <> '' " \
                     "END) " \
           "OR e.seq IN (SELECT x.seq FROM @schema@._exceptional($6, $7) x)) "
static const char look_forwards[] = LOOK "ORDER BY e.seq LIMIT $8::bigint";
static const char look_backwards[] = LOOK "ORDER BY e.seq DESC LIMIT $8::bigint";

#define EXCEPTIONAL \
    "SELECT " PG_EVENT_SHOWN " " \
    "FROM (SELECT DISTINCT s.seq FROM @schema@._exceptional($6, $7) s " \
          "WHERE s.seq > $1 AND s.seq <= $2) x " \
    "JOIN @schema@.event e ON e.seq = x.seq " \
    "WHERE " WANTED
static const char exceptional_forwards[] = EXCEPTIONAL "ORDER BY e.seq LIMIT $8::bigint";
static const char exceptional_backwards[] = EXCEPTIONAL "ORDER BY e.seq DESC LIMIT $8::bigint";

static const char by_seq[] =
    "SELECT " PG_EVENT_SHOWN " FROM @schema@.event e WHERE e.seq = $1";
static const char by_id[] =
    "SELECT " PG_EVENT_SHOWN " FROM @schema@.event e "
    "WHERE e.seq = @schema@._seq_of($1::uuid, nullif($2::bigint, 9223372036854775807))";
static const char ends_sql[] =
    "SELECT coalesce(min(e.seq), 0), coalesce(max(e.seq), 0) FROM @schema@.event e";
/* clang-format on */

/* The events with from < seq <= to. (1) from >= 0. */
struct range {
    int64_t from, to;
};

/* The progress of a listing. */
struct listing {
    struct viewer *v;
    const struct event_query *q;
    event_visit *visit;
    void *ctx;

    const char *state; /* as named in _exceptional; NULL: any */
    int64_t low;       /* up to here only _exceptional has events in that state */
    struct event_look looked;
    int64_t budget; /* numbers that may still be examined without a match */
    int64_t step;   /* numbers to examine in one query */
    int64_t states; /* states that may still be decided without a match */

    struct arena a; /* of a page */
    size_t left;    /* events to show */
    bool done;
};

/* Reads a whole page at once, because the connection is needed for the states of its events. */
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

/* Shows the events of a page that are in the requested state. */
static int show_page(struct listing *l, const struct event *page, size_t n, struct error *err)
{
    struct viewer *v = l->v;
    PGresult *states;
    if (pg_viewer_ask(v, page, n, &states, err) != 0)
        return -1;
    int result = 0;
    for (size_t i = 0; !l->done && i < n; i++) {
        result = pg_viewer_tell(v, states, &page[i], &l->a, err);
        if (result != 0)
            break;
        if (!pg_viewer_shows(v, l->q)) {
            l->states -= (int64_t)v->n;
            continue;
        }
        bool stopped = l->visit(l->ctx, &page[i], v->d, v->n) != 0;
        l->left--;
        l->done = stopped || l->left == 0;
    }
    PQclear(states);
    return result;
}

/* Reads and shows the requested page. Returns how many events it has, and the last seq. */
static int show_answer(struct listing *l, size_t *ret_n, int64_t *ret_last, struct error *err)
{
    *ret_n = 0;
    struct event *page = arena_alloc(&l->a, PAGE * sizeof *page);
    if (!page) {
        pg_stop(l->v->st, PG_MAIN);
        return err_nomem(err);
    }
    if (read_page(l->v->st, &l->a, page, ret_n, err) != 0)
        return -1;
    if (*ret_n > 0)
        *ret_last = page[*ret_n - 1].seq;
    return show_page(l, page, *ret_n, err);
}

/* Shows the next page of a range, and removes that part from the range. */
static int show_next(struct listing *l, const char *sql, struct range *r, struct error *err)
{
    const struct event_query *q = l->q;
    size_t n;
    int64_t last;

    /* If all events match, a page has as many as are left to show; otherwise as many as there are
     * states left to decide. */
    int64_t wanted = (int64_t)l->left;
    if (l->state)
        wanted = l->states / (int64_t)l->v->n + PAGE_LEAST;
    size_t size = wanted < PAGE ? (size_t)wanted : PAGE;
    if (pg_send(l->v->st, PG_MAIN, err, sql, "iisttssi", r->from, r->to, q->type, q->aggregate_type,
                q->aggregate_id, l->state, l->v->consumer, (int64_t)size) != 0)
        return -1;
    if (show_answer(l, &n, &last, err) != 0)
        return -1;

    bool through = n < size;
    if (through)
        r->from = r->to;
    else if (q->newest_first)
        r->to = last - 1;
    else
        r->from = last;
    return 0;
}

/* ---- how far to search ---- */

/* Shows all events in a range that _exceptional finds in the requested state. */
static int list_exceptional(struct listing *l, struct range r, struct error *err)
{
    if (!l->state)
        return 0;
    const char *sql = l->q->newest_first ? exceptional_backwards : exceptional_forwards;
    int64_t states = l->states;
    int result = 0;
    while (result == 0 && !l->done && r.from < r.to) {
        result = show_next(l, sql, &r, err);
        arena_reset(&l->a);
    }
    l->states = states; /* not charged to the budget */
    return result;
}

/* Shows all events in a range. If states run out, *r is the part that is left. */
static int show_range(struct listing *l, struct range *r, struct error *err)
{
    const char *sql = l->q->newest_first ? look_backwards : look_forwards;
    int result = 0;
    while (result == 0 && !l->done && l->states > 0 && r->from < r->to) {
        result = show_next(l, sql, r, err);
        arena_reset(&l->a);
    }
    return result;
}

/* Returns the first event of a range, in the order of the listing; 0 if the range is empty. */
static int first_event(struct listing *l, struct range r, int64_t *ret, struct error *err)
{
    static const char forwards[] = "SELECT e.seq FROM @schema@.event e "
                                   "WHERE e.seq > $1 AND e.seq <= $2 ORDER BY e.seq LIMIT 1";
    static const char backwards[] = "SELECT e.seq FROM @schema@.event e "
                                    "WHERE e.seq > $1 AND e.seq <= $2 ORDER BY e.seq DESC LIMIT 1";
    const char *sql = l->q->newest_first ? backwards : forwards;
    return pg_query_number(l->v->st, err, ret, sql, "ii", r.from, r.to);
}

/* Returns the next part of a range to examine, which begins with its first event. */
static struct range next_step(const struct listing *l, struct range r, int64_t first)
{
    int64_t most = l->budget < l->step ? l->budget : l->step;
    struct range step = {.from = first - 1, .to = r.to};
    if (l->q->newest_first) {
        step = (struct range){.from = r.from, .to = first};
        if (first - r.from > most)
            step.from = first - most;
    } else if (r.to - step.from > most) {
        step.to = step.from + most;
    }
    return step;
}

/* Examines the next part of a range, removes it from the range, and charges numbers without a match
 * to the budget. */
static int look_at_step(struct listing *l, struct range *r, int64_t first, struct error *err)
{
    struct range step = next_step(l, *r, first);
    struct range rest = step;
    size_t left = l->left;
    if (show_range(l, &rest, err) != 0)
        return -1;

    bool backwards = l->q->newest_first;
    if (rest.from < rest.to && backwards)
        step.from = rest.to;
    else if (rest.from < rest.to)
        step.to = rest.from;
    if (backwards)
        r->to = step.from;
    else
        r->from = step.to;

    struct event_look *k = &l->looked;
    bool is_first = k->to == 0;
    if (is_first || step.from + 1 < k->from)
        k->from = step.from + 1;
    if (step.to > k->to)
        k->to = step.to;
    if (l->q->looking)
        l->q->looking(l->ctx, k->to - k->from + 1);

    bool bounded = l->q->look != LOOK_ALL;
    if (bounded)
        l->budget -= step.to - step.from - (int64_t)(left - l->left);
    return 0;
}

/* Examines a range as far as the budget allows. */
static int look_at_range(struct listing *l, struct range r, struct error *err)
{
    while (!l->done && r.from < r.to) {
        int64_t first;
        if (first_event(l, r, &first, err) != 0)
            return -1;
        if (first == 0)
            return 0;
        bool enough = l->budget <= 0 || l->states <= 0;
        if (enough) {
            l->looked.partial = true;
            l->done = true;
            return 0;
        }
        if (look_at_step(l, &r, first, err) != 0)
            return -1;
    }
    return 0;
}

/* Shows the events that _exceptional finds up to l->low, and searches those past it. */
static int list_events(struct listing *l, struct error *err)
{
    const struct event_query *q = l->q;
    struct range all = {.from = 0, .to = INT64_MAX}; /* after q->after, in the listing's order */
    if (!q->newest_first)
        all.from = q->after;
    else if (q->after)
        all.to = q->after - 1;

    bool any_key = !q->aggregate_type.p && !q->aggregate_id.p;
    bool everything = !l->state && !q->type && any_key;
    if (everything)
        return show_range(l, &all, err); /* every event matches */

    struct range low = all, high = all;
    if (low.to > l->low)
        low.to = l->low;
    if (high.from < l->low)
        high.from = l->low;

    if (q->newest_first) {
        if (look_at_range(l, high, err) != 0)
            return -1;
        return list_exceptional(l, low, err);
    }
    if (list_exceptional(l, low, err) != 0)
        return -1;
    return look_at_range(l, high, err);
}

/* ---- the request ---- */

/* Finds the number up to which no search is needed, because _exceptional has all events in the
 * requested state. */
static int find_low(struct listing *l, struct error *err)
{
    static const char passed_sql[] =
        "SELECT coalesce(min(@schema@._low(c.name, c.lanes)), 9223372036854775807) "
        "FROM @schema@.consumer c WHERE $1::text IS NULL OR c.name = $1";
    static const char start_sql[] =
        "SELECT CASE WHEN EXISTS (SELECT 1 FROM @schema@.consumer c "
        "WHERE ($1::text IS NULL OR c.name = $1) "
        "AND (c.start_floor > 0 OR c.start_seen::text <> '1:1:' OR c.start_also IS NOT NULL)) "
        "THEN 0 ELSE 9223372036854775807 END";
    const char *sql = l->q->unprocessed ? passed_sql : NULL;
    switch ((enum delivery_state)(l->q->state - 1)) {
    case STATE_PENDING: sql = passed_sql; break;
    case STATE_BEFORE_START: sql = start_sql; break;
    case STATE_FAILED:
    case STATE_EXPIRED:
    case STATE_DROPPED:
    case STATE_INFLIGHT: l->low = INT64_MAX; break;
    default: l->low = 0; break;
    }
    if (!sql)
        return 0;
    return pg_query_number(l->v->st, err, &l->low, sql, "s", l->v->consumer);
}

/* Decides which events can be in the requested state. Without consumers all events are pending. */
static int find_scope(struct listing *l, struct error *err)
{
    const struct event_query *q = l->q;
    bool any_state = !q->state && !q->unprocessed;
    l->low = 0;
    if (any_state)
        return 0;
    if (l->v->n == 0) {
        bool pending = q->unprocessed || q->state == STATE_PENDING + 1;
        l->done = !pending;
        return 0;
    }
    l->state = q->unprocessed ? "unprocessed" : delivery_state_names[q->state - 1];
    int64_t times = 2 + (int64_t)l->v->n / CHEAP_CONSUMERS;
    l->step = STORE_LOOK / times + 1;
    if (q->look != LOOK_ALL)
        l->budget = (l->budget + times - 1) / times;
    return find_low(l, err);
}

/* Shows the event with the requested id, which may be a seq. */
static int list_one(struct listing *l, struct error *err)
{
    const char *id = l->q->id;
    int64_t seq = store_seq_of(id), last;
    size_t n;
    int sent;
    if (seq)
        sent = pg_send(l->v->st, PG_MAIN, err, by_seq, "i", seq);
    else if (rng_uuid_valid(str_of(id)))
        sent = pg_send(l->v->st, PG_MAIN, err, by_id, "si", id, l->budget);
    else
        return 0; /* no event has this id */
    if (sent != 0)
        return -1;
    if (show_answer(l, &n, &last, err) != 0)
        return -1;
    if (seq || n > 0 || l->budget == LOOK_ALL)
        return 0;

    /* Only the newest events were searched for the id. Are there more? */
    PGresult *r = pg_query(l->v->st, err, ends_sql, "");
    if (!r)
        return -1;
    int64_t oldest = pg_int(r, 0, 0), newest = pg_int(r, 0, 1);
    PQclear(r);
    if (newest - oldest >= l->budget)
        l->looked = (struct event_look){newest - l->budget + 1, newest, true};
    return 0;
}

int pg_events(struct store *base, const struct event_query *q, event_visit *visit, void *ctx,
              struct error *err)
{
    static const char now_sql[] =
        "SELECT floor(extract(epoch FROM @schema@._clock()) * 1000)::bigint";
    struct viewer v;
    if (pg_viewer_init(&v, pg_of(base), q->consumer, err) != 0)
        return -1;
    int64_t budget = q->look ? q->look : STORE_LOOK;
    struct listing l = {.v = &v,
                        .q = q,
                        .visit = visit,
                        .ctx = ctx,
                        .budget = budget,
                        .step = STORE_LOOK,
                        .states = budget / STATE_COST + 1,
                        .left = q->limit ? q->limit : LIMIT_DEFAULT};
    arena_init(&l.a, 0);
    int result = 0;
    if (q->unprocessed)
        result = pg_query_number(v.st, err, &v.now, now_sql, "");
    if (result == 0 && q->id)
        result = list_one(&l, err);
    else if (result == 0)
        result = find_scope(&l, err) == 0 ? list_events(&l, err) : -1;
    arena_release(&l.a);
    pg_viewer_release(&v);
    if (result == 0 && q->looked)
        *q->looked = l.looked;
    return result;
}
