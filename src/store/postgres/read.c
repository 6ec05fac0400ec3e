/* read.c: the events of a claim, and those of the next one ahead of it. This is where a drain
 * spends its time. */
#include <stdlib.h>

#include "store/postgres/postgres.h"

/* Reading ahead is worth a second connection if the window has this many numbers left. */
#define AHEAD_MIN 1000
#define ROW_GUESS 500 /* bytes of an event, before any was seen */

/* What window_events gives, written out: with order and limit in each branch the server merges them
 * as they come, off two indexes, and reads no row too many. Mostly there is no late branch: no
 * transaction was running at the older snapshot. */
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
    "@schema@._lane_of($8::int, e.seq, e.aggregate_type, e.aggregate_id) = $9::int"
#define ORDERED " ORDER BY e.seq LIMIT $6::bigint"
#define BOTH(filter) \
    "SELECT " PG_EVENT_COLUMNS " FROM ((" FRESH filter ORDERED ") UNION ALL (" LATE filter ORDERED \
    ")) e" ORDERED

static const char fresh_sql[] = FRESH ORDERED, both_sql[] = BOTH("");
static const char fresh_wanted_sql[] = FRESH WANTED ORDERED, both_wanted_sql[] = BOTH(WANTED);
static const char parked_sql[] = "SELECT " PG_EVENT_COLUMNS
                                 ", e.attempts::bigint, e.careful::int::bigint, "
                                 "coalesce(e.failing_ms, 0), e.proven::int::bigint "
                                 "FROM @schema@._claimed($1, $2::bigint) e ORDER BY e.seq";

/* had_running says whether a snapshot, as text, lists transactions that were running:
 * xmin:xmax:xip,xip,... */
static bool had_running(const char *snapshot)
{
    size_t n = strlen(snapshot);
    return n > 0 && snapshot[n - 1] != ':';
}

/* send_window asks for the events of a window, at most max of them. */
static int send_window(struct pg_store *st, enum pg_link link, const struct claim_request *req,
                       int lane, const struct pg_window *w, size_t max, struct error *err)
{
    bool late = had_running(w->seen);
    bool all = req->lanes == 1 && !filter_has_types(req->filter);
    if (all) {
        const char *sql = late ? both_sql : fresh_sql;
        return pg_send(st, link, err, sql, "sisiii", w->seen, w->floor, w->target, w->from, w->to,
                       (int64_t)max);
    }
    const char *sql = late ? both_wanted_sql : fresh_wanted_sql;
    const char *events = req->events ? req->events : "";
    return pg_send(st, link, err, sql, "sisiiisii", w->seen, w->floor, w->target, w->from, w->to,
                   (int64_t)max, events, (int64_t)req->lanes, (int64_t)lane);
}

int pg_read_all(struct pg_store *st, const struct pg_window *w, size_t max, struct error *err)
{
    const char *sql = had_running(w->seen) ? both_sql : fresh_sql;
    return pg_send(st, PG_MAIN, err, sql, "sisiii", w->seen, w->floor, w->target, w->from, w->to,
                   (int64_t)max);
}

static bool wanted(const struct filter *f, const struct event *ev)
{
    if (!filter_type(f, ev->type))
        return false;
    return !filter_has_where(f) || filter_payload(f, ev->payload);
}

static int grow(struct pg_chunk *c, struct arena *a, struct error *err)
{
    if (c->n < c->cap)
        return 0;
    size_t cap = c->cap ? 4 * c->cap : 64;
    struct event *ev = arena_alloc(a, cap * sizeof *ev);
    if (!ev)
        return err_nomem(err);
    if (c->n)
        memcpy(ev, c->ev, c->n * sizeof *ev);
    c->ev = ev;
    c->cap = cap;
    return 0;
}

/* take_past reads what a parked event has been through. Returns whether a worker had it in hand,
 * and so had applied the filter to it. */
static bool take_past(const PGresult *r, struct event *ev)
{
    ev->attempts = (int)pg_binary_int8(r, 0, PG_EVENT_COLUMN_COUNT);
    ev->failing_ms = pg_binary_int8(r, 0, PG_EVENT_COLUMN_COUNT + 2);
    ev->proven = pg_binary_int8(r, 0, PG_EVENT_COLUMN_COUNT + 3) != 0;
    return pg_binary_int8(r, 0, PG_EVENT_COLUMN_COUNT + 1) == 0;
}

/* take_row adds one row to the chunk if the filter wants it. An event that was parked by a worker
 * who had it in hand was wanted then, whatever the filter is now. Only what a worker left that
 * vanished has not been looked at: the server cannot apply a predicate. */
static int take_row(const struct filter *f, const PGresult *r, struct arena *a, struct pg_chunk *c,
                    struct error *err)
{
    if (grow(c, a, err) != 0)
        return -1;
    struct event *ev = &c->ev[c->n];
    if (!pg_event_row(r, 0, a, ev))
        return err_nomem(err);
    bool looked_at = false;
    if (PQnfields(r) > PG_EVENT_COLUMN_COUNT)
        looked_at = take_past(r, ev);
    c->scanned++;
    c->last = ev->seq;
    if (!looked_at && !wanted(f, ev))
        return 0;
    c->bytes += event_bytes(ev);
    c->n++;
    return 0;
}

/* note_size keeps a running average of what an event takes. */
static void note_size(struct pg_store *st, const struct pg_chunk *c)
{
    if (c->n > 0)
        st->row_bytes = (st->row_bytes + c->bytes / c->n) / 2;
}

/* read_rows reads what was asked for, until its end or max_bytes. */
static int read_rows(struct pg_store *st, enum pg_link link, const struct claim_request *req,
                     struct arena *a, struct pg_chunk *c, struct error *err)
{
    PGresult *r;
    int more;
    *c = (struct pg_chunk){0};
    while ((more = pg_next_row(st, link, &r, err)) == 1) {
        bool full = c->scanned > 0 && c->bytes >= req->max_bytes;
        int result = 0;
        if (full)
            c->cut = true;
        else
            result = take_row(req->filter, r, a, c, err);
        PQclear(r);
        if (full || result != 0) {
            pg_stop(st, link);
            return result;
        }
    }
    if (more == 0)
        note_size(st, c);
    return more;
}

int pg_read_window(struct pg_store *st, const struct claim_request *req, int lane,
                   const struct pg_window *w, size_t max, struct arena *a, struct pg_chunk *c,
                   struct error *err)
{
    if (send_window(st, PG_MAIN, req, lane, w, max, err) != 0)
        return -1;
    return read_rows(st, PG_MAIN, req, a, c, err);
}

int pg_read_parked(struct pg_store *st, const struct claim_request *req, int64_t epoch,
                   struct arena *a, struct pg_chunk *c, struct error *err)
{
    if (pg_send(st, PG_MAIN, err, parked_sql, "si", req->consumer, epoch) != 0)
        return -1;
    return read_rows(st, PG_MAIN, req, a, c, err);
}

/* ---- ahead ---- */

/* rows_for is how many events to ask for, so that they fit into max_bytes if they are like those
 * before them. */
static size_t rows_for(const struct pg_store *st, const struct claim_request *req)
{
    size_t each = st->row_bytes ? st->row_bytes : ROW_GUESS;
    size_t fit = req->max_bytes / each + 1;
    return fit < req->max_events ? fit : req->max_events;
}

void pg_ahead_forget(struct pg_store *st)
{
    if (st->ahead.sent)
        pg_stop(st, PG_READER);
    st->ahead.sent = false;
    st->ahead.ready = false;
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

/* send_next asks for the events behind `from`. It may fail: then they are read later. */
static void send_next(struct pg_store *st, const struct claim_request *req, int64_t from)
{
    struct pg_ahead *h = &st->ahead;
    size_t rows = rows_for(st, req);
    if (h->end - from < AHEAD_MIN)
        return;

    /* Of four numbers one may belong to an event of ours: enough to look at. */
    int64_t span = 4 * (int64_t)rows;
    struct pg_window w = {.seen = h->seen,
                          .target = h->target,
                          .floor = h->floor,
                          .from = from,
                          .to = h->end - from > span ? from + span : h->end,
                          .end = h->end};
    if (send_window(st, PG_READER, req, h->lane, &w, rows, NULL) != 0)
        return;
    h->sent = true;
    h->from = w.from;
    h->to = w.to;
    h->asked = rows;
}

void pg_ahead_start(struct pg_store *st, const struct claim_request *req, int lane,
                    const struct pg_window *w)
{
    struct pg_ahead *h = &st->ahead;
    if (req->lanes > 1)
        return; /* the next claim is another lane's */
    if (!keep_text(&h->seen, w->seen) || !keep_text(&h->target, w->target))
        return;
    memcpy(h->consumer, req->consumer, strlen(req->consumer) + 1);
    h->filter = req->filter;
    h->lane = lane;
    h->floor = w->floor;
    h->end = w->end;
    send_next(st, req, w->to);
}

void pg_ahead_fill(struct pg_store *st, const struct claim_request *req)
{
    struct pg_ahead *h = &st->ahead;
    if (!h->sent || h->ready)
        return;
    h->sent = false;
    arena_reset(&h->a);
    if (read_rows(st, PG_READER, req, &h->a, &h->c, NULL) != 0) {
        pg_reader_close(st);
        return;
    }
    bool there_is_more = h->c.scanned == h->asked || h->c.cut;
    h->ready = h->c.scanned > 0;
    h->c_from = h->from;
    h->c_to = there_is_more ? h->c.last : h->to;
    h->c_asked = h->asked;
    if (h->ready)
        send_next(st, req, h->c_to);
}

/* is_for says whether what is read ahead is what the request may want. */
static bool is_for(const struct pg_ahead *h, const struct claim_request *req)
{
    bool same_lane = h->lane == req->lane_hint % req->lanes;
    return same_lane && h->filter == req->filter && strcmp(h->consumer, req->consumer) == 0;
}

/* fits says whether `asked` rows are neither more than the request allows nor much less than it
 * could have. */
static bool fits(const struct pg_store *st, const struct claim_request *req, size_t asked)
{
    return asked <= req->max_events && 2 * asked >= rows_for(st, req);
}

/* swap lets events change hands, and an empty arena comes back. */
static void swap(struct arena *a, struct arena *b)
{
    struct arena was = *a;
    *a = *b;
    *b = was;
}

static struct pg_window window_of(const struct pg_ahead *h, int64_t from, int64_t to)
{
    return (struct pg_window){.seen = h->seen,
                              .target = h->target,
                              .floor = h->floor,
                              .from = from,
                              .to = to,
                              .end = h->end};
}

/* take_kept takes what was kept, take_ready what is read. */
static void take_kept(struct pg_ahead *h, struct arena *a, struct pg_chunk *ret,
                      struct pg_window *ret_w)
{
    swap(&h->kept.a, a);
    h->kept.there = false;
    *ret = h->kept.c;
    *ret_w = window_of(h, h->kept.from, h->kept.to);
}

static void take_ready(struct pg_ahead *h, struct arena *a, struct pg_chunk *ret,
                       struct pg_window *ret_w)
{
    swap(&h->a, a);
    h->ready = false;
    *ret = h->c;
    *ret_w = window_of(h, h->c_from, h->c_to);
    h->kept.asked = h->c_asked;
}

bool pg_ahead_take(struct pg_store *st, const struct claim_request *req, struct arena *a,
                   struct pg_chunk *ret, struct pg_window *ret_w)
{
    struct pg_ahead *h = &st->ahead;
    if (!h->sent && !h->ready && !h->kept.there)
        return false;
    bool ours = is_for(h, req) && a->used == 0;
    if (ours && h->kept.there && fits(st, req, h->kept.asked)) {
        take_kept(h, a, ret, ret_w);
        return true;
    }
    bool in_order = ours && !h->kept.there;
    if (in_order)
        pg_ahead_fill(st, req);
    if (!in_order || !h->ready || !fits(st, req, h->c_asked)) {
        pg_ahead_forget(st);
        return false;
    }
    take_ready(h, a, ret, ret_w);
    return true;
}

void pg_ahead_keep(struct pg_store *st, struct arena *a, const struct pg_chunk *c,
                   const struct pg_window *w)
{
    struct pg_ahead *h = &st->ahead;
    arena_reset(&h->kept.a);
    swap(&h->kept.a, a);
    h->kept.there = true;
    h->kept.c = *c;
    h->kept.from = w->from;
    h->kept.to = w->to;
}
