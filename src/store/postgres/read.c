/* read.c: the events of a claim, or of a window. This is where a drain spends its time.
 *
 * During a backlog events are read ahead of the claims. The server sends the events of a window as
 * one stream, on a separate connection, and each claim takes a chunk off it. The rest waits in the
 * socket: no event is requested twice or discarded, and no query is cancelled, however large events
 * are. */
#include <stdlib.h>

#include "base/num.h"
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

/* Whether a consumer wants every event of these lanes, as far as the server can tell. */
static bool takes_all(const struct claim_request *req, int64_t members)
{
    int64_t all = req->lanes >= 64 ? -1 : (INT64_C(1) << req->lanes) - 1;
    return members == all && !filter_has_types(req->filter);
}

int pg_window_send(struct pg_store *st, enum pg_link link, const struct claim_request *req,
                   int64_t members, const struct pg_window *w, size_t max, struct error *err)
{
    bool late = had_running(w->seen);
    if (!req || takes_all(req, members)) {
        const char *sql = late ? both_sql : fresh_sql;
        return pg_send(st, link, err, sql, "sisiii", w->seen, w->floor, w->target, w->from, w->to,
                       (int64_t)max);
    }
    const char *sql = late ? both_wanted_sql : fresh_wanted_sql;
    const char *events = req->events ? req->events : "";
    return pg_send(st, link, err, sql, "sisiiisii", w->seen, w->floor, w->target, w->from, w->to,
                   (int64_t)max, events, (int64_t)req->lanes, members);
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

/* A chunk is full if it has reached one of these. */
struct limits {
    size_t bytes, events, scanned, passed_bytes;
};

static bool chunk_full(const struct pg_chunk *c, const struct limits *max)
{
    if (c->bytes >= max->bytes || c->n >= max->events)
        return true;
    return c->scanned >= max->scanned || c->passed_bytes >= max->passed_bytes;
}

/* Adds requested rows to a chunk. 1: the chunk is full, and the rest can be read later; 0: the end;
 * -1: it failed. */
static int read_chunk(struct pg_store *st, enum pg_link link, const struct filter *f,
                      const struct limits *max, struct arena *a, struct pg_chunk *c,
                      struct error *err)
{
    while (!chunk_full(c, max)) {
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

/* ---- the events of a claim ---- */

/* Reads the requested rows, up to max_bytes. If more follow, the chunk is cut. */
static int read_rows(struct pg_store *st, const struct claim_request *req, struct arena *a,
                     struct pg_chunk *c, struct error *err)
{
    struct limits max = {req->max_bytes, SIZE_MAX, SIZE_MAX, SIZE_MAX};
    *c = (struct pg_chunk){0};
    int more = read_chunk(st, PG_MAIN, req->filter, &max, a, c, err);
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

/* Counts the numbers up to `last` in a list, which is in order. */
static size_t listed_up_to(const char *seqs, int64_t last)
{
    size_t n = 0;
    int64_t seq;
    while (pg_next_number(&seqs, &seq) && seq <= last)
        n++;
    return n;
}

/* Parked events are read by the answer's list if it has one. The event of a retried dead letter may
 * have been trimmed, and is then found only through the claim. */
int pg_read_claim(struct pg_store *st, const struct claim_request *req, const struct pg_answer *an,
                  const struct pg_window *w, struct arena *a, struct pg_chunk *c, struct error *err)
{
    bool parked = an->lane < 0;
    if (!parked) {
        if (pg_window_send(st, PG_MAIN, req, an->members, w, (size_t)an->n, err) != 0)
            return -1;
        return read_rows(st, req, a, c, err);
    }
    if (an->held) {
        if (pg_send(st, PG_MAIN, err, listed_sql, "ss", an->held, an->keys) != 0)
            return -1;
        if (read_rows(st, req, a, c, err) != 0)
            return -1;
        size_t there = c->cut ? listed_up_to(an->held, c->last) : (size_t)an->n;
        if (c->scanned == there)
            return 0;
    }
    if (pg_send(st, PG_MAIN, err, parked_sql, "si", req->consumer, an->epoch) != 0)
        return -1;
    return read_rows(st, req, a, c, err);
}

/* ---- reading ahead ---- */

/* Reading ahead is worth a second connection if the window has this many numbers left, or more than
 * fit into one claim. */
#define AHEAD_MIN 1000

/* A stream is at least as long as a claim may be, and longer if it is read quickly, because
 * starting one has a cost. An open one holds back vacuum. */
#define STREAM_CLAIMS 16
#define STREAM_QUICK (100 * MS_NS)
#define STREAM_SLOW (1000 * MS_NS)

/* Limits on what is read for a chunk if the filter matches few events: events, bytes of payloads,
 * sequence numbers. */
#define LOOK_EVENTS 4096
#define LOOK_BYTES ((size_t)8 * 1024 * 1024)
#define LOOK_NUMBERS (4 * LOOK_EVENTS)

static void begin_chunk(struct pg_ahead *h)
{
    arena_reset(&h->a);
    h->c = (struct pg_chunk){0};
    h->from = h->to;
}

static void stop_stream(struct pg_store *st)
{
    struct pg_ahead *h = &st->ahead;
    if (h->stream.open)
        pg_stop(st, PG_READER);
    h->stream.open = false;
    h->stream.claims = 1;
}

void pg_ahead_forget(struct pg_store *st)
{
    stop_stream(st);
    st->ahead.on = false;
    st->ahead.kept.there = false;
}

static bool keep_text(char **to, const char *text)
{
    if (*to && strcmp(*to, text) == 0)
        return true;
    free(*to);
    *to = strdup(text);
    return *to != NULL;
}

/* The part (from, to] of the window read ahead. */
static struct pg_window window_of(const struct pg_ahead *h, int64_t from, int64_t to)
{
    return (struct pg_window){.seen = h->seen,
                              .target = h->target,
                              .floor = h->floor,
                              .from = from,
                              .to = to,
                              .end = h->end};
}

/* Requests the events after h->to, if enough is left of the window. A failure is harmless: the
 * events are read later. */
static bool open_stream(struct pg_store *st, const struct claim_request *req)
{
    struct pg_ahead *h = &st->ahead;
    int64_t left = h->end - h->to;
    int64_t least = AHEAD_MIN;
    if (st->row_bytes > 0)
        least = min_i64(least, (int64_t)(req->max_bytes / st->row_bytes) + 1);
    if (left < least)
        return false;

    /* Rolled back transactions leave gaps in the numbers. If the server filters events, it must not
     * search for long. */
    size_t rows = h->stream.claims * req->max_events;
    int64_t span = 4 * (int64_t)rows;
    if (!takes_all(req, h->members))
        span = min_i64(span, LOOK_NUMBERS);

    struct pg_window w = window_of(h, h->to, h->to + min_i64(span, left));
    if (pg_window_send(st, PG_READER, req, h->members, &w, rows, NULL) != 0)
        return false;
    h->stream.open = true;
    h->stream.to = w.to;
    h->stream.left = rows;
    h->stream.sent_at = clock_mono(st->opt.clock);
    return true;
}

/* Takes rows off the stream until the chunk is full. Returns -1 if the connection can no longer be
 * used. */
static int read_stream(struct pg_store *st, const struct claim_request *req,
                       const struct limits *max)
{
    struct pg_ahead *h = &st->ahead;
    size_t before = h->c.scanned;
    int more = read_chunk(st, PG_READER, req->filter, max, &h->a, &h->c, NULL);
    if (more < 0)
        return -1;
    h->stream.left -= h->c.scanned - before;
    if (h->c.scanned > before)
        h->to = h->c.last;
    if (more == 1)
        return 0;

    /* The stream was read to its end: it had everything, or as many rows as were requested. */
    bool quick = clock_mono(st->opt.clock) - h->stream.sent_at < STREAM_QUICK;
    if (h->stream.left > 0)
        h->to = h->stream.to;
    h->stream.open = false;
    if (!quick)
        h->stream.claims = 1;
    else if (h->stream.claims < STREAM_CLAIMS)
        h->stream.claims *= 2;
    return 0;
}

void pg_ahead_fill(struct pg_store *st, const struct claim_request *req)
{
    struct pg_ahead *h = &st->ahead;
    struct limits max = {.bytes = req->max_bytes,
                         .events = req->max_events,
                         .scanned = LOOK_EVENTS,
                         .passed_bytes = LOOK_BYTES};
    while (h->on && !chunk_full(&h->c, &max)) {
        bool far_enough = h->to >= h->end || h->to - h->from >= LOOK_NUMBERS;
        if (far_enough || (!h->stream.open && !open_stream(st, req)))
            break;
        if (read_stream(st, req, &max) != 0)
            pg_reader_close(st);
    }
    if (!h->on)
        return;
    pg_note_size(st, &h->c);
    if (!h->stream.open)
        open_stream(st, req);
}

void pg_ahead_start(struct pg_store *st, const struct claim_request *req, const struct batch *b,
                    int64_t members, const struct pg_window *w)
{
    struct pg_ahead *h = &st->ahead;
    pg_ahead_forget(st);
    if (!keep_text(&h->seen, w->seen) || !keep_text(&h->target, w->target))
        return;
    memcpy(h->consumer, req->consumer, strlen(req->consumer) + 1);
    h->filter = req->filter;
    h->lane = b->lane;
    h->members = members;
    h->floor = w->floor;
    h->end = w->end;
    h->to = w->to;
    begin_chunk(h);
    h->on = open_stream(st, req);
}

/* Swaps the arena with the events for an empty one. */
static void swap_arenas(struct arena *a, struct arena *b)
{
    struct arena was = *a;
    *a = *b;
    *b = was;
}

bool pg_ahead_take(struct pg_store *st, const struct claim_request *req, struct arena *a,
                   struct pg_chunk *ret, struct pg_window *ret_w)
{
    struct pg_ahead *h = &st->ahead;
    if (!h->on)
        return false;
    bool same = h->filter == req->filter && strcmp(h->consumer, req->consumer) == 0;
    bool usable = same && a->used == 0;
    if (usable && !h->kept.there)
        pg_ahead_fill(st, req);

    if (usable && h->kept.there && h->kept.c.n <= req->max_events) {
        swap_arenas(&h->kept.a, a);
        h->kept.there = false;
        *ret = h->kept.c;
        *ret_w = window_of(h, h->kept.from, h->kept.to);
    } else if (usable && !h->kept.there && h->on && h->to > h->from && h->c.n <= req->max_events) {
        swap_arenas(&h->a, a);
        *ret = h->c;
        *ret_w = window_of(h, h->from, h->to);
        begin_chunk(h);
    } else {
        pg_ahead_forget(st);
        return false;
    }

    bool slow = clock_mono(st->opt.clock) - h->stream.sent_at > STREAM_SLOW;
    if (slow)
        stop_stream(st);
    return true;
}

void pg_ahead_keep(struct pg_store *st, struct arena *a, const struct pg_chunk *c,
                   const struct pg_window *w)
{
    struct pg_ahead *h = &st->ahead;
    arena_reset(&h->kept.a);
    swap_arenas(&h->kept.a, a);
    h->kept.there = true;
    h->kept.c = *c;
    h->kept.from = w->from;
    h->kept.to = w->to;
}
