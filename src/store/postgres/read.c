/* read.c: the events of a claim, or of a window. This is where a drain spends its time. */
#include "store/postgres/postgres.h"

#define TYPE_COLUMN 2 /* of PG_EVENT_COLUMNS */
#define PAYLOAD_COLUMN 6

/* window_events, written out: with order and limit in each branch the server merges the rows of two
 * indexes, and reads no extra rows. The late branch is usually empty, because no transaction was
 * running at the older snapshot. */
#define FRESH \
    "SELECT " PG_EVENT_COLUMNS \
    " FROM @schema@.event e WHERE e.seq > greatest($4::bigint, $2::bigint) AND e.seq <= " \
    "$5::bigint AND xid8ge(e.xid, pg_snapshot_xmax($1::pg_snapshot)) AND " \
    "pg_visible_in_snapshot(e.xid, $3::pg_snapshot)"
#define LATE \
    "SELECT " PG_EVENT_COLUMNS \
    " FROM pg_snapshot_xip($1::pg_snapshot) AS late (xid), LATERAL (SELECT i.* FROM " \
    "@schema@.event i WHERE i.xid = late.xid AND i.seq > $4::bigint AND i.seq <= $5::bigint " \
    "ORDER BY i.seq OFFSET 0) AS e " \
    "WHERE pg_visible_in_snapshot(late.xid, $3::pg_snapshot)"
#define WANTED \
    " AND ((SELECT @schema@._type_like($7)) IS NULL OR e.type LIKE ANY ((SELECT " \
    "@schema@._type_like($7))::text[])) AND " \
    "($9::bigint = @schema@._all_lanes($8::int) OR @schema@._is_member($9::bigint, 0, " \
    "@schema@._lane_of($8::int, e.seq, e.aggregate_type, e.aggregate_id)))"
#define ORDERED " ORDER BY e.seq LIMIT $6::bigint"
#define BOTH(filter) \
    "SELECT " PG_EVENT_COLUMNS " FROM ((" FRESH filter ORDERED ") UNION ALL (" LATE filter ORDERED \
    ")) e" ORDERED

static const char fresh_sql[] = FRESH ORDERED, both_sql[] = BOTH("");
static const char fresh_wanted_sql[] = FRESH WANTED ORDERED, both_wanted_sql[] = BOTH(WANTED);
static const char parked_sql[] = "SELECT " PG_EVENT_COLUMNS
                                 ", e.attempts::bigint, e.suspect::int::bigint, "
                                 "coalesce(e.failing_ms, 0), e.proven::int::bigint "
                                 "FROM @schema@._claimed($1, $2::bigint) e ORDER BY e.seq";

/* An event's history is sent as one number, see sql/postgres/internal/claim_parked.sql. The query
 * can only be planned as a nested loop, which returns events in the order of the array. */
static const char listed_sql[] =
    "SELECT " PG_EVENT_COLUMNS ", (o.past >> 1) & 8388607, 0::bigint, o.past >> 24, o.past & 1 "
    "FROM unnest($1::bigint[], $2::bigint[]) AS o (seq, past), "
    "LATERAL (SELECT x.* FROM @schema@.event x WHERE x.seq = o.seq LIMIT 1) e";

/* Whether a snapshot, as text, lists transactions that were running: xmin:xmax:xip,xip,... */
static bool had_running(const char *snapshot)
{
    size_t n = strlen(snapshot);
    return n > 0 && snapshot[n - 1] != ':';
}

bool pg_all_lanes(int64_t members, int lanes)
{
    int64_t all = lanes >= 64 ? -1 : (INT64_C(1) << lanes) - 1;
    return members == all;
}

int pg_window_send(struct pg_store *st, enum pg_link link, const struct claim_request *req,
                   int64_t members, const struct pg_window *w, size_t max, struct error *err)
{
    bool late = had_running(w->seen);
    bool all = pg_all_lanes(members, req->lanes) && !filter_has_types(req->filter);
    if (all) {
        const char *sql = late ? both_sql : fresh_sql;
        return pg_send(st, link, err, sql, "sisiii", w->seen, w->floor, w->target, w->from, w->to,
                       (int64_t)max);
    }
    const char *sql = late ? both_wanted_sql : fresh_wanted_sql;
    const char *events = req->events ? req->events : "";
    return pg_send(st, link, err, sql, "sisiiisii", w->seen, w->floor, w->target, w->from, w->to,
                   (int64_t)max, events, (int64_t)req->lanes, members);
}

int pg_read_all(struct pg_store *st, const struct pg_window *w, size_t max, struct error *err)
{
    const char *sql = had_running(w->seen) ? both_sql : fresh_sql;
    return pg_send(st, PG_MAIN, err, sql, "sisiii", w->seen, w->floor, w->target, w->from, w->to,
                   (int64_t)max);
}

int pg_chunk_add(struct pg_chunk *c, const PGresult *r, int row, struct arena *a, struct error *err)
{
    if (c->n == c->cap) {
        size_t cap = c->cap ? 4 * c->cap : 8;
        struct event *ev = arena_alloc(a, cap * sizeof *ev);
        if (!ev)
            return err_nomem(err);
        if (c->n)
            memcpy(ev, c->ev, c->n * sizeof *ev);
        c->ev = ev;
        c->cap = cap;
    }
    struct event *ev = &c->ev[c->n];
    if (!pg_event_row(r, row, a, ev))
        return err_nomem(err);
    c->bytes += event_bytes(ev);
    c->n++;
    return 0;
}

/* Adds one row to the chunk if the filter matches, and copies nothing if not. An event parked by
 * its worker matched at that time, whatever the filter is now. Only events of vanished workers are
 * unchecked, because the server cannot evaluate a predicate. */
static int take_row(const struct filter *f, const PGresult *r, struct arena *a, struct pg_chunk *c,
                    struct error *err)
{
    const int past = PG_EVENT_COLUMN_COUNT; /* columns that only a parked event has */
    bool parked = PQnfields(r) > past;
    bool crashed = parked && pg_binary_int8(r, 0, past + 1) != 0;
    size_t payload_bytes = (size_t)PQgetlength(r, 0, PAYLOAD_COLUMN);

    bool want = true;
    if (!parked || crashed) {
        struct str type = {PQgetvalue(r, 0, TYPE_COLUMN), (size_t)PQgetlength(r, 0, TYPE_COLUMN)};
        struct str payload = {PQgetvalue(r, 0, PAYLOAD_COLUMN), payload_bytes};
        want = filter_type(f, type) && (!filter_has_where(f) || filter_payload(f, payload));
    }
    c->scanned++;
    c->last = pg_binary_int8(r, 0, 0);
    if (!want) {
        c->passed_bytes += payload_bytes;
        return 0;
    }

    if (pg_chunk_add(c, r, 0, a, err) != 0)
        return -1;
    if (parked) {
        struct event *ev = &c->ev[c->n - 1];
        ev->attempts = (int)pg_binary_int8(r, 0, past);
        ev->crashed = crashed;
        ev->failing_ms = pg_binary_int8(r, 0, past + 2);
        ev->proven = pg_binary_int8(r, 0, past + 3) != 0;
    }
    return 0;
}

bool pg_chunk_full(const struct pg_chunk *c, const struct pg_chunk_limits *max)
{
    if (c->bytes >= max->bytes || c->n >= max->events)
        return true;
    return c->scanned >= max->scanned || c->passed_bytes >= max->passed_bytes;
}

int pg_read_chunk(struct pg_store *st, enum pg_link link, const struct filter *f,
                  const struct pg_chunk_limits *max, struct arena *a, struct pg_chunk *c,
                  struct error *err)
{
    while (!pg_chunk_full(c, max)) {
        PGresult *r;
        int more = pg_next_row(st, link, &r, err);
        if (more != 1)
            return more;
        int result = take_row(f, r, a, c, err);
        PQclear(r);
        if (result != 0) {
            pg_stop(st, link);
            return -1;
        }
    }
    return 1;
}

void pg_note_size(struct pg_store *st, const struct pg_chunk *c)
{
    if (c->n > 0)
        st->row_bytes = (st->row_bytes + c->bytes / c->n) / 2;
}

/* Reads the requested rows, up to max_bytes. If more follow, the chunk is cut. */
static int read_claim(struct pg_store *st, const struct claim_request *req, struct arena *a,
                      struct pg_chunk *c, struct error *err)
{
    struct pg_chunk_limits max = {req->max_bytes, SIZE_MAX, SIZE_MAX, SIZE_MAX};
    *c = (struct pg_chunk){0};
    int more = pg_read_chunk(st, PG_MAIN, req->filter, &max, a, c, err);
    if (more == 1) {
        PGresult *r;
        more = pg_next_row(st, PG_MAIN, &r, err);
        if (more == 1) {
            PQclear(r);
            pg_stop(st, PG_MAIN);
            c->cut = true;
            more = 0;
        }
    }
    pg_note_size(st, c);
    return more;
}

int pg_read_window(struct pg_store *st, const struct claim_request *req, int64_t members,
                   const struct pg_window *w, size_t max, struct arena *a, struct pg_chunk *c,
                   struct error *err)
{
    if (pg_window_send(st, PG_MAIN, req, members, w, max, err) != 0)
        return -1;
    return read_claim(st, req, a, c, err);
}

int pg_read_parked(struct pg_store *st, const struct claim_request *req, int64_t epoch,
                   struct arena *a, struct pg_chunk *c, struct error *err)
{
    if (pg_send(st, PG_MAIN, err, parked_sql, "si", req->consumer, epoch) != 0)
        return -1;
    return read_claim(st, req, a, c, err);
}

int pg_read_listed(struct pg_store *st, const struct claim_request *req,
                   const struct pg_listed *listed, struct arena *a, struct pg_chunk *c,
                   struct error *err)
{
    if (pg_send(st, PG_MAIN, err, listed_sql, "ss", listed->seqs, listed->past) != 0)
        return -1;
    return read_claim(st, req, a, c, err);
}
