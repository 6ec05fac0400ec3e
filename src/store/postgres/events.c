/* events.c: listing events with their states.
 *
 * Millions of events may be kept, and few of them may match. Events with a row in tables such as
 * parked or dead are found by that row (_exceptional). All others are searched for, from one end, a
 * range of numbers at a time, no further than the query's bound. */
#include <stdlib.h>

#include "store/postgres/postgres.h"

#define PAGE 500 /* events per query, so that a listing of millions fits in memory */
#define PAGE_LEAST 10
#define LIMIT_DEFAULT 100
/* Searching by state takes twice as long as by type; with this many consumers, three times as
 * long. */
#define CHEAP_CONSUMERS 8
/* Deciding one state costs as much as examining this many numbers. */
#define STATE_COST 20
#define SEQ_MAX 24 /* bytes of a number in a list, at most */

/* ---- the states of events, for each consumer ---- */

/* The progress of a listing. */
struct listing {
    struct pg_store *st;
    const struct event_query *q;
    const struct direction *sql;
    event_visit *visit;
    void *ctx;

    struct arena a; /* for the whole listing */
    struct consumer_spec *list;
    struct filter **filters;
    struct delivery_info *d; /* of the current event, for each of n consumers */
    size_t n;
    int64_t now; /* the server's clock, if the query depends on it */

    const char *state; /* as named in _exceptional; NULL: any */
    int64_t low;       /* up to here only _exceptional has events in that state */
    struct event_look looked;
    int64_t budget; /* numbers that may still be examined without a match */
    int64_t step;   /* numbers to examine in one query */
    int64_t states; /* states that may still be decided without a match */

    struct arena page;
    size_t left; /* events to show */
    bool done;
};

/* Reads the consumer of the query, or all. ERR_NOTFOUND: it does not exist. */
static int read_consumers(struct listing *l, struct error *err)
{
    size_t n = 0;
    if (pg_consumer_all_specs(l->st, l->q->consumer, &l->a, &l->list, &n, err) != 0)
        return -1;
    l->filters = arena_zalloc(&l->a, n + 1, sizeof *l->filters);
    l->d = arena_zalloc(&l->a, n + 1, sizeof *l->d);
    if (!l->filters || !l->d)
        return err_nomem(err);
    for (; l->n < n; l->n++) {
        const struct consumer_spec *c = &l->list[l->n];
        if (filter_new(c->events, c->where, &l->filters[l->n], err) != 0)
            return -1;
    }
    return 0;
}

/* Reads a state's name. "unknown": the predicate has to be evaluated; if it matches, the event was
 * delivered. */
static enum delivery_state state_of(const char *s)
{
    for (int i = 0; i < STATE_COUNT; i++)
        if (strcmp(s, delivery_state_names[i]) == 0)
            return (enum delivery_state)i;
    return STATE_DELIVERED;
}

/* Whether a predicate, which may be a former one of the consumer, excludes an event. */
static int excluded(const struct listing *l, size_t i, const char *predicate, struct str payload,
                    bool *ret, struct error *err)
{
    struct filter *f = NULL;
    *ret = false;
    if (!predicate || !*predicate)
        return 0;
    if (strcmp(predicate, l->list[i].where) == 0) {
        *ret = !filter_payload(l->filters[i], payload);
        return 0;
    }
    if (filter_new(NULL, predicate, &f, err) != 0)
        return -1;
    *ret = !filter_payload(f, payload);
    filter_free(f);
    return 0;
}

/* Finds a consumer by its name; l->n: it is not in the listing. */
static size_t consumer_index(const struct listing *l, const char *name)
{
    size_t i = 0;
    while (i < l->n && strcmp(l->list[i].name, name) != 0)
        i++;
    return i;
}

/* clang-format off */
static const char states_sql[] =
    "SELECT s.seq, s.consumer, s.state, s.attempts, "
           "floor(extract(epoch FROM s.due_at) * 1000)::bigint, "
           "s.error, s.predicate, "
           "floor(extract(epoch FROM s.received_at) * 1000)::bigint, "
           "s.sink_id "
    "FROM @schema@._states($1::bigint[], $2) s";
/* clang-format on */

/* Queries the states of the events of a page; the caller clears *ret. It is NULL if there are no
 * consumers or no events. */
static int ask_states(struct listing *l, const struct event *page, size_t n, PGresult **ret,
                      struct error *err)
{
    struct buf seqs;
    *ret = NULL;
    bool nothing = l->n == 0 || n == 0;
    if (nothing)
        return 0;
    buf_init(&seqs, n * SEQ_MAX);
    for (size_t i = 0; i < n; i++)
        buf_addf(&seqs, "%c%lld", i ? ',' : '{', (long long)page[i].seq);
    buf_addc(&seqs, '}');
    const char *text = buf_cstr(&seqs);
    if (text)
        *ret = pg_query(l->st, err, states_sql, "ss", text, l->q->consumer);
    else
        err_nomem(err);
    buf_release(&seqs);
    return *ret ? 0 : -1;
}

/* Reads one row of states_sql. */
static int read_state(struct listing *l, const PGresult *r, int row, const struct event *ev,
                      struct error *err)
{
    size_t i = consumer_index(l, PQgetvalue(r, row, 1));
    if (i == l->n)
        return 0; /* registered just now */
    struct delivery_info *d = &l->d[i];
    bool ok = true;
    d->state = state_of(PQgetvalue(r, row, 2));
    d->attempts = (int)pg_int(r, row, 3);
    d->due_at = pg_int(r, row, 4);
    d->error = pg_copy(r, row, 5, &l->page, &ok);
    d->delivered_at = pg_int(r, row, 7);
    d->receipt = pg_copy(r, row, 8, &l->page, &ok);
    if (!ok)
        return err_nomem(err);

    bool left_out;
    if (excluded(l, i, pg_str(r, row, 6), ev->payload, &left_out, err) != 0)
        return -1;
    if (left_out)
        d->state = STATE_SKIPPED;
    return 0;
}

/* Finds the first row of an event in the answer to states_sql, which is in order. */
static int first_row(const PGresult *states, int64_t seq)
{
    int low = 0, high = PQntuples(states);
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (pg_int(states, middle, 0) < seq)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Fills in l->d for one event of the page. Its strings live as long as the page. */
static int tell_states(struct listing *l, const PGresult *states, const struct event *ev,
                       struct error *err)
{
    for (size_t i = 0; i < l->n; i++)
        l->d[i] = (struct delivery_info){.consumer = l->list[i].name, .state = STATE_SKIPPED};
    if (!states)
        return 0;
    for (int row = first_row(states, ev->seq); row < PQntuples(states); row++) {
        if (pg_int(states, row, 0) != ev->seq)
            break;
        if (read_state(l, states, row, ev, err) != 0)
            return -1;
    }
    return 0;
}

/* Whether that event is in the requested state for some consumer. Without consumers, every event is
 * pending. */
static bool is_shown(const struct listing *l)
{
    const struct event_query *q = l->q;
    bool any_state = !q->state && !q->unprocessed;
    if (any_state)
        return true;
    if (l->n == 0)
        return q->unprocessed || q->state == STATE_PENDING + 1;
    for (size_t i = 0; i < l->n; i++)
        if (store_in_state(q, &l->d[i], l->now))
            return true;
    return false;
}

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

#define EXCEPTIONAL \
    "SELECT " PG_EVENT_SHOWN " " \
    "FROM (SELECT DISTINCT s.seq FROM @schema@._exceptional($6, $7) s " \
          "WHERE s.seq > $1 AND s.seq <= $2) x " \
    "JOIN @schema@.event e ON e.seq = x.seq " \
    "WHERE " WANTED
#define FIRST "SELECT e.seq FROM @schema@.event e WHERE e.seq > $1 AND e.seq <= $2 "

/* The statements for each order of a listing. */
static const struct direction {
    const char *look, *exceptional, *first;
} ascending = {
    LOOK "ORDER BY e.seq LIMIT $8::bigint",
    EXCEPTIONAL "ORDER BY e.seq LIMIT $8::bigint",
    FIRST "ORDER BY e.seq LIMIT 1",
}, descending = {
    LOOK "ORDER BY e.seq DESC LIMIT $8::bigint",
    EXCEPTIONAL "ORDER BY e.seq DESC LIMIT $8::bigint",
    FIRST "ORDER BY e.seq DESC LIMIT 1",
};

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

/* Shows the events of a page that are in the requested state. */
static int show_page(struct listing *l, const struct event *page, size_t n, struct error *err)
{
    PGresult *states;
    if (ask_states(l, page, n, &states, err) != 0)
        return -1;
    int result = 0;
    for (size_t i = 0; !l->done && i < n; i++) {
        result = tell_states(l, states, &page[i], err);
        if (result != 0)
            break;
        if (!is_shown(l)) {
            l->states -= (int64_t)l->n;
            continue;
        }
        bool stopped = l->visit(l->ctx, &page[i], l->d, l->n) != 0;
        l->left--;
        l->done = stopped || l->left == 0;
    }
    PQclear(states);
    return result;
}

/* Reads and shows the requested page. It is read as a whole, because the connection is needed for
 * the states of its events. Returns how many events it has, and the last seq. */
static int show_answer(struct listing *l, size_t *ret_n, int64_t *ret_last, struct error *err)
{
    struct event *page = arena_alloc(&l->page, PAGE * sizeof *page);
    PGresult *r;
    size_t n = 0;
    int more;
    while ((more = pg_next_row(l->st, PG_MAIN, &r, err)) == 1) {
        bool ok = page && n < PAGE && pg_event_row(r, 0, &l->page, &page[n]);
        PQclear(r);
        if (!ok) {
            pg_stop(l->st, PG_MAIN);
            return err_nomem(err);
        }
        n++;
    }
    if (more < 0)
        return -1;
    *ret_n = n;
    if (n > 0)
        *ret_last = page[n - 1].seq;
    return show_page(l, page, n, err);
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
        wanted = l->states / (int64_t)l->n + PAGE_LEAST;
    size_t size = wanted < PAGE ? (size_t)wanted : PAGE;
    if (pg_send(l->st, PG_MAIN, err, sql, "iisttssi", r->from, r->to, q->type, q->aggregate_type,
                q->aggregate_id, l->state, l->q->consumer, (int64_t)size) != 0)
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

/* Shows all events in a range. If states run out, *r is the part that is left. */
static int show_range(struct listing *l, const char *sql, struct range *r, struct error *err)
{
    int result = 0;
    while (result == 0 && !l->done && l->states > 0 && r->from < r->to) {
        result = show_next(l, sql, r, err);
        arena_reset(&l->page);
    }
    return result;
}

/* Shows the events in a range that _exceptional finds in the requested state. Their states are not
 * charged to the budget. */
static int list_exceptional(struct listing *l, struct range r, struct error *err)
{
    int64_t states = l->states;
    if (!l->state)
        return 0;
    l->states = INT64_MAX / 2; /* any number */
    int result = show_range(l, l->sql->exceptional, &r, err);
    l->states = states;
    return result;
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
    if (show_range(l, l->sql->look, &rest, err) != 0)
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
        if (pg_query_number(l->st, err, &first, l->sql->first, "ii", r.from, r.to) != 0)
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
        return show_range(l, l->sql->look, &all, err); /* every event matches */

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
    return pg_query_number(l->st, err, &l->low, sql, "s", l->q->consumer);
}

/* Decides which events can be in the requested state. Without consumers all events are pending. */
static int find_scope(struct listing *l, struct error *err)
{
    const struct event_query *q = l->q;
    bool any_state = !q->state && !q->unprocessed;
    l->low = 0;
    if (any_state)
        return 0;
    if (l->n == 0) {
        bool pending = q->unprocessed || q->state == STATE_PENDING + 1;
        l->done = !pending;
        return 0;
    }
    l->state = q->unprocessed ? "unprocessed" : delivery_state_names[q->state - 1];
    int64_t times = 2 + (int64_t)l->n / CHEAP_CONSUMERS;
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
        sent = pg_send(l->st, PG_MAIN, err, by_seq, "i", seq);
    else if (rng_uuid_valid(str_of(id)))
        sent = pg_send(l->st, PG_MAIN, err, by_id, "si", id, l->budget);
    else
        return 0; /* no event has this id */
    if (sent != 0)
        return -1;
    if (show_answer(l, &n, &last, err) != 0)
        return -1;
    if (seq || n > 0 || l->budget == LOOK_ALL)
        return 0;

    /* Only the newest events were searched for the id. Are there more? */
    PGresult *r = pg_query(l->st, err, ends_sql, "");
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
    int64_t budget = q->look ? q->look : STORE_LOOK;
    struct listing l = {.st = pg_of(base),
                        .q = q,
                        .sql = q->newest_first ? &descending : &ascending,
                        .visit = visit,
                        .ctx = ctx,
                        .budget = budget,
                        .step = STORE_LOOK,
                        .states = budget / STATE_COST + 1,
                        .left = q->limit ? q->limit : LIMIT_DEFAULT};
    arena_init(&l.a, 0);
    arena_init(&l.page, 0);
    int result = read_consumers(&l, err);
    if (result == 0 && q->unprocessed)
        result = pg_query_number(l.st, err, &l.now, now_sql, "");
    if (result == 0 && q->id)
        result = list_one(&l, err);
    else if (result == 0)
        result = find_scope(&l, err) == 0 ? list_events(&l, err) : -1;
    for (size_t i = 0; i < l.n; i++)
        filter_free(l.filters[i]);
    arena_release(&l.page);
    arena_release(&l.a);
    if (result == 0 && q->looked)
        *q->looked = l.looked;
    return result;
}
