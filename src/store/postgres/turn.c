/* turn.c: handing out work. What happens is in sql/postgres/functions/turn.sql; here are its parameters, its answer, and
 * the events that belong to it, read ahead where possible. */
#include <stdlib.h>

#include "base/buf.h"
#include "base/json.h"
#include "store/postgres/postgres.h"

#define PULL_EVERY (10000 * MS_NS)
#define STANDBY_WAIT 1000       /* ms; another owner has the lane, and nobody tells when it leaves */
#define SPAN_MIN 1000           /* of seq, read ahead at least */
#define ROW_GUESS 500           /* bytes of an event, before any was seen */
#define SETTLE_BYTES (16 << 20) /* of outcomes in a settlement */

/* The window in which a claim's events are. */
struct window {
    const char *seen, *target;
    int64_t floor, from, to, end;
};

/* Events read so far. */
struct chunk {
    struct event *ev;
    size_t n, cap;
    size_t scanned, bytes;
    int64_t last; /* seq of the last row read */
    bool cut;     /* there were more */
};

/* What one turn has to do with. */
struct turning {
    struct pg_store *st;
    const struct claim_request *req;
    struct arena *a;
    struct batch *b;
    struct claim_hint *hint;
};

/* ---- reading events ---- */

/* What window_events gives, written out: with order and limit in each branch the server merges them as they come, off two
 * indexes, and reads no row too many. Mostly there is no late branch: no transaction was running at the older snapshot. */
#define FRESH \
    "SELECT " PG_EVENT_COLUMNS " FROM @schema@.event e WHERE e.seq > greatest($4::bigint, $2::bigint) AND e.seq <= " \
    "$5::bigint AND xid8ge(e.xid, pg_snapshot_xmax($1::pg_snapshot)) AND pg_visible_in_snapshot(e.xid, $3::pg_snapshot)"
#define LATE \
    "SELECT " PG_EVENT_COLUMNS " FROM pg_snapshot_xip($1::pg_snapshot) AS late (xid), LATERAL (SELECT i.* FROM " \
    "@schema@.event i WHERE i.xid = late.xid AND i.seq > $4::bigint AND i.seq <= $5::bigint ORDER BY i.seq OFFSET 0) AS e " \
    "WHERE pg_visible_in_snapshot(late.xid, $3::pg_snapshot)"
#define WANTED \
    " AND ((SELECT type_like FROM @schema@.consumer WHERE name = $7) IS NULL OR e.type LIKE ANY ((SELECT type_like FROM " \
    "@schema@.consumer WHERE name = $7)::text[])) AND @schema@.lane_of($8::int, e.seq, e.aggregate_type, " \
    "e.aggregate_id) = $9::int"
#define ORDERED " ORDER BY e.seq LIMIT $6::bigint"
#define BOTH(filter) \
    "SELECT " PG_EVENT_COLUMNS " FROM ((" FRESH filter ORDERED ") UNION ALL (" LATE filter ORDERED ")) e" ORDERED

static const char fresh_sql[] = FRESH ORDERED, both_sql[] = BOTH("");
static const char fresh_wanted_sql[] = FRESH WANTED ORDERED, both_wanted_sql[] = BOTH(WANTED);
static const char parked_sql[] = "SELECT " PG_EVENT_COLUMNS
                                 ", e.attempts::bigint FROM @schema@.claimed($1, $2::bigint) e ORDER BY e.seq";

static int send_window(struct pg_store *st, const struct claim_request *req, int lane, const struct window *w,
                       size_t max, struct error *err)
{
    size_t n = strlen(w->seen);
    bool late = n > 0 && w->seen[n - 1] != ':'; /* xmin:xmax:xip,xip,... */
    if (req->lanes == 1 && (!req->events || !*req->events))
        return pg_send(st, err, late ? both_sql : fresh_sql, "sisiii", w->seen, w->floor, w->target, w->from, w->to,
                       (int64_t)max);
    return pg_send(st, err, late ? both_wanted_sql : fresh_wanted_sql, "sisiiisii", w->seen, w->floor, w->target,
                   w->from, w->to, (int64_t)max, req->consumer, (int64_t)req->lanes, (int64_t)lane);
}

static bool wanted(const struct filter *f, const struct event *ev)
{
    return filter_type(f, ev->type) && (!filter_has_where(f) || filter_payload(f, ev->payload));
}

static int grow(struct chunk *c, struct arena *a, struct error *err)
{
    if (c->n < c->cap) return 0;
    size_t cap = c->cap ? 4 * c->cap : 64;
    struct event *ev = arena_alloc(a, cap * sizeof *ev);
    if (!ev) return err_nomem(err);
    if (c->n) memcpy(ev, c->ev, c->n * sizeof *ev);
    c->ev = ev;
    c->cap = cap;
    return 0;
}

/* take_row adds one row to the chunk if the filter wants it. */
static int take_row(struct turning *t, const PGresult *r, struct chunk *c, struct error *err)
{
    if (grow(c, t->a, err) != 0) return -1;
    struct event *ev = &c->ev[c->n];
    if (!pg_event_row(r, 0, t->a, ev)) return err_nomem(err);
    if (PQnfields(r) > PG_EVENT_COLUMN_COUNT) ev->attempts = (int)pg_binary_int8(r, 0, PG_EVENT_COLUMN_COUNT);
    c->scanned++;
    c->last = ev->seq;
    if (!wanted(t->req->filter, ev)) return 0;
    c->bytes += pg_event_bytes(ev);
    c->n++;
    return 0;
}

/* read_rows reads what was sent, until its end or max_bytes. */
static int read_rows(struct turning *t, struct chunk *c, struct error *err)
{
    PGresult *r;
    int more;
    t->st->ahead.sent = false;
    while ((more = pg_next_row(t->st, &r, err)) == 1) {
        if (c->scanned > 0 && c->bytes >= t->req->max_bytes) c->cut = true;
        int bad = c->cut ? 0 : take_row(t, r, c, err);
        PQclear(r);
        if (!bad && !c->cut) continue;
        pg_stop(t->st);
        return bad;
    }
    if (more == 0 && c->n) t->st->row_bytes = (t->st->row_bytes + c->bytes / c->n) / 2;
    return more;
}

/* rows_for: how many events to ask for, so that they fit into max_bytes if they are like those before. */
static size_t rows_for(const struct pg_store *st, const struct claim_request *req)
{
    size_t each = st->row_bytes ? st->row_bytes : ROW_GUESS, fit = req->max_bytes / each + 1;
    return fit < req->max_events ? fit : req->max_events;
}

/* ---- reading ahead ---- */

void pg_quiet(struct pg_store *st)
{
    if (!st->ahead.sent) return;
    st->ahead.sent = false;
    pg_stop(st);
}

/* send_ahead asks for what comes behind the batch just claimed. That it fails is no failure: it is read later, then. */
static void send_ahead(struct turning *t, const struct window *w, size_t scanned)
{
    struct ahead *h = &t->st->ahead;
    int64_t span = w->to - w->from > SPAN_MIN ? w->to - w->from : SPAN_MIN;
    if (w->to >= w->end || scanned == 0 || t->req->lanes > 1) return; /* with more, the next claim is another lane's */
    struct window next = {.seen = w->seen, .target = w->target, .floor = w->floor, .from = w->to, .end = w->end};
    next.to = w->to + 4 * span < w->end ? w->to + 4 * span : w->end;
    if (!h->target || strcmp(h->target, w->target) != 0) {
        free(h->target);
        h->target = strdup(w->target);
    }
    if (!h->target || send_window(t->st, t->req, t->b->lane, &next, rows_for(t->st, t->req), NULL) != 0) return;
    memcpy(h->consumer, t->req->consumer, strlen(t->req->consumer) + 1);
    h->sent = true;
    h->lane = t->b->lane;
    h->from = next.from;
    h->to = next.to;
    h->window_end = w->end;
    h->asked = rows_for(t->st, t->req);
}

/* read_ahead reads what was asked for before, if that is what this turn may want. */
static int read_ahead(struct turning *t, struct chunk *c, struct error *err)
{
    struct ahead *h = &t->st->ahead;
    if (!h->sent) return 0;
    if (strcmp(h->consumer, t->req->consumer) != 0 || h->lane != t->req->lane_hint % t->req->lanes ||
        h->asked > t->req->max_events || 2 * h->asked < rows_for(t->st, t->req)) {
        pg_quiet(t->st);
        return 0;
    }
    if (read_rows(t, c, err) != 0) return -1;
    if (c->scanned == h->asked || c->cut) h->to = c->last;
    return 0;
}

/* ---- the settlement as JSON ---- */

/* add_text: what a sink said need not be UTF-8, but what goes into the database must be. */
static void add_text(struct buf *b, const char *name, const char *text)
{
    size_t bad;
    if (!text) return;
    buf_addf(b, ",\"%s\":", name);
    struct str s = str_of(text);
    if (utf8_valid(s, &bad)) {
        json_quote(b, s);
        return;
    }
    struct buf clean;
    buf_init(&clean, 1 << 16);
    for (; *text; text++) buf_addc(&clean, (unsigned char)*text < 128 ? *text : '?');
    json_quote(b, (struct str){clean.p, clean.n});
    buf_release(&clean);
}

static int outcomes_json(const struct settlement *s, struct buf *b, struct error *err)
{
    static const char *const kinds[] = {"delivered", "retry", "dead", "behind", "delay"};
    buf_addc(b, '[');
    for (size_t i = 0; s && i < s->n; i++) {
        const struct outcome *o = &s->out[i];
        buf_addf(b, "%s{\"seq\":%lld,\"kind\":\"%s\",\"attempts\":%d,\"delay_ms\":%lld", i ? "," : "",
                 (long long)o->ev->seq, kinds[o->kind], o->attempts, (long long)o->delay_ms);
        add_text(b, "error", o->error);
        if (o->kind == OUTCOME_DELIVERED) {
            add_text(b, "receipt", o->receipt);
            add_text(b, "id", o->ev->id.p);
        }
        buf_addc(b, '}');
    }
    buf_addc(b, ']');
    return buf_cstr(b) ? 0 : err_nomem(err);
}

static void known_array(const struct claim_request *req, struct buf *b)
{
    buf_addc(b, '{');
    for (size_t i = 0; req && i < req->n_known; i++) buf_addf(b, "%s%lld", i ? "," : "", (long long)req->known[i]);
    buf_addc(b, '}');
}

/* ---- the call ---- */

/* The columns of its answer. */
enum {
    C_LOST,
    C_PAUSED,
    C_CHANGED,
    C_BUSY,
    C_THROUGH,
    C_SKIPPED,
    C_CAREFUL_DUE,
    C_CRASHED,
    C_BURIED,
    C_WAIT,
    C_NOW,
    C_EPOCH,
    C_LANE,
    C_N,
    C_CAREFUL,
    C_HELD,
    C_SEEN,
    C_FLOOR,
    C_TARGET,
    C_FROM,
    C_TO,
    C_END
};
static const char turn_sql[] =
    "SELECT lost, paused, changed, busy, through, skipped, careful_due, crashed, buried, wait_ms, now_ms, epoch, lane, n, "
    "careful, held, seen, floor, target, from_seq, to_seq, window_end FROM @schema@.turn($1, $2, $3, $4, $5::jsonb, $6, $7, "
    "$8, $9, $10, $11, $12, $13, $14::bigint[], $15, $16, $17, $18, $19, $20, $21, $22, $23)";

/* pull_next: what is parked was just looked at for times that a wrong clock made. */
static void pull_next(struct pg_store *st, int64_t wait_ms)
{
    int64_t mono = clock_mono(st->opt.clock);
    if (wait_ms > 0 && mono >= st->pull_at) st->pull_at = mono + PULL_EVERY;
}

static PGresult *call(struct pg_store *st, const struct settlement *s, const struct claim_request *req,
                      const struct chunk *ahead, struct error *err)
{
    static const struct claim_request nothing; /* max_attempts 0: nothing is taken over */
    const char *consumer = req ? req->consumer : s->consumer, *owner = req ? req->owner : s->owner;
    const struct claim_request *q = req ? req : &nothing;
    struct buf out, known;
    PGresult *r = NULL;
    buf_init(&out, SETTLE_BYTES);
    buf_init(&known, 1 << 12);
    known_array(req, &known);
    bool use = ahead && ahead->scanned > 0;
    if (outcomes_json(s, &out, err) == 0 && buf_cstr(&known))
        r = pg_query(st, err, turn_sql,
                     "ss"
                     "iisi"
                     "iiiibb"
                     "ississ"
                     "isiii",
                     consumer, owner, s ? s->b->epoch : 0, s ? (int64_t)s->b->n : 0, out.p, s ? s->release_from : 0,
                     (int64_t)q->max_events, q->lease_ms, (int64_t)q->max_attempts, (int64_t)q->careful,
                     q->parked_first, clock_mono(st->opt.clock) >= st->pull_at, (int64_t)q->lane_hint, known.p,
                     req ? pg_orderings[q->order] : NULL, (int64_t)q->lanes, q->events ? q->events : "",
                     q->where ? q->where : "", use ? (int64_t)st->ahead.lane : INT64_C(-1),
                     use ? st->ahead.target : NULL, use ? st->ahead.from : INT64_C(0), use ? st->ahead.to : INT64_C(0),
                     use ? (int64_t)ahead->n : INT64_C(0));
    buf_release(&out);
    buf_release(&known);
    return r;
}

/* ---- from the answer to a batch ---- */

static void take_hint(const PGresult *r, struct claim_hint *h)
{
    h->paused = pg_true(r, 0, C_PAUSED);
    h->changed = pg_true(r, 0, C_CHANGED);
    h->busy = pg_true(r, 0, C_BUSY);
    h->through = pg_true(r, 0, C_THROUGH);
    h->careful = pg_true(r, 0, C_CAREFUL_DUE);
    h->crashed += (size_t)pg_int(r, 0, C_CRASHED);
    h->buried += (size_t)pg_int(r, 0, C_BURIED);
    h->skipped += pg_true(r, 0, C_SKIPPED);
    h->wait_ms = pg_int(r, 0, C_WAIT);
}

/* mark flags the events that may not be delivered now: held is {seq,seq,...} in any order. */
static void mark(struct batch *b, const char *held, int64_t now)
{
    for (size_t i = 0; i < b->n; i++) b->ev[i].delayed = b->ev[i].not_before > now;
    for (const char *p = held; p && *p && *p != '}';) {
        char *end;
        int64_t seq = strtoll(p + 1, &end, 10);
        p = end;
        size_t low = 0, high = b->n;
        while (low < high) {
            size_t mid = (low + high) / 2;
            if (b->ev[mid].seq < seq) low = mid + 1;
            else high = mid;
        }
        if (low < b->n && b->ev[low].seq == seq) b->ev[low].behind = true;
    }
}

static int shrink(struct turning *t, int64_t last, struct error *err)
{
    return pg_exec(t->st, err, NULL, "SELECT @schema@.shrink($1, $2, $3, $4)", "ssii", t->req->consumer, t->req->owner,
                   t->b->epoch, last);
}

/* forget settles a claim of which the filter wanted nothing. */
static int forget(struct turning *t, struct error *err)
{
    struct settlement s = {.consumer = t->req->consumer, .owner = t->req->owner, .order = t->req->order, .b = t->b};
    PGresult *r = call(t->st, &s, NULL, NULL, err);
    if (!r) return -1;
    PQclear(r);
    *t->b = (struct batch){0};
    return 0;
}

/* fetch reads the events of a claim that was not read ahead. */
static int fetch(struct turning *t, const struct window *w, size_t n, struct chunk *c, struct error *err)
{
    int sent = t->b->parked ? pg_send(t->st, err, parked_sql, "si", t->req->consumer, t->b->epoch)
                            : send_window(t->st, t->req, t->b->lane, w, n, err);
    if (sent != 0 || read_rows(t, c, err) != 0) return -1;
    if (!c->cut) return 0;
    t->b->to = c->last;
    return shrink(t, c->last, err);
}

static int take_batch(struct turning *t, const PGresult *r, struct chunk *c, struct error *err)
{
    struct pg_store *st = t->st;
    struct batch *b = t->b;
    struct window w = {.seen = pg_str(r, 0, C_SEEN),
                       .target = pg_str(r, 0, C_TARGET),
                       .floor = pg_int(r, 0, C_FLOOR),
                       .from = pg_int(r, 0, C_FROM),
                       .to = pg_int(r, 0, C_TO),
                       .end = pg_int(r, 0, C_END)};
    int lane = (int)pg_int(r, 0, C_LANE);
    *b = (struct batch){.parked = lane < 0,
                        .careful = pg_true(r, 0, C_CAREFUL),
                        .lane = lane < 0 ? 0 : lane,
                        .epoch = pg_int(r, 0, C_EPOCH),
                        .from = w.from,
                        .to = w.to};
    bool have = c->scanned > 0 && lane == st->ahead.lane && w.from == st->ahead.from && w.to == st->ahead.to;
    if (!have) {
        *c = (struct chunk){0};
        if (fetch(t, &w, (size_t)pg_int(r, 0, C_N), c, err) != 0) return -1;
        w.to = b->to;
    }
    b->ev = c->ev;
    b->n = c->n;
    t->hint->skipped += c->scanned - c->n;
    if (b->n == 0) return forget(t, err);
    mark(b, pg_str(r, 0, C_HELD), pg_int(r, 0, C_NOW));
    if (pg_bell_wake(st, err) != 0) return -1;
    if (!b->parked) send_ahead(t, &w, c->scanned);
    return 0;
}

/* rest: nothing was found. *ret_again: look once more, now that producers will ring. */
static int rest(struct turning *t, bool *ret_again, struct error *err)
{
    struct claim_hint *h = t->hint;
    *ret_again = false;
    h->nap_ms = h->busy ? STANDBY_WAIT : 0;
    if (h->skipped || h->busy || h->changed) return 0;
    int r = pg_bell_sleep(t->st, &h->nap_ms, err);
    *ret_again = r == 1;
    return r < 0 ? -1 : 0;
}

int pg_turn(struct store *base, const struct settlement *s, bool *ret_lost, const struct claim_request *req,
            struct arena *a, struct batch *ret_batch, struct claim_hint *ret_hint, struct error *err)
{
    struct pg_store *st = pg_of(base);
    struct batch b = {0};
    struct claim_hint hint = {.wait_ms = -1};
    struct turning t = {.st = st, .req = req, .a = a, .b = &b, .hint = &hint};
    struct chunk c = {0};
    bool claiming = req && req->max_events > 0, lost = false, again = false;
    if (st->in_tx) return err_set(err, ERR_MISUSE, "a claim inside an open transaction would not be durable: refused");
    if (pg_ready(st, err) != 0) return -1;
    if (!claiming) pg_quiet(st);
    else if (read_ahead(&t, &c, err) != 0) return -1;
    do {
        PGresult *r = call(st, s, req, &c, err);
        if (!r) return -1;
        if (s) lost = pg_true(r, 0, C_LOST);
        s = NULL;
        take_hint(r, &hint);
        if (claiming) pull_next(st, hint.wait_ms);
        int bad = 0;
        if (pg_int(r, 0, C_N) > 0) bad = take_batch(&t, r, &c, err);
        again = false;
        if (!bad && claiming && b.n == 0) bad = rest(&t, &again, err);
        PQclear(r);
        if (bad) return -1;
        c = (struct chunk){0};
    } while (again);
    if (ret_lost) *ret_lost = lost;
    if (req) {
        *ret_batch = b;
        *ret_hint = hint;
    }
    return 0;
}

int pg_extend(struct store *base, const char *consumer, const char *owner, const struct batch *b, int64_t lease_ms,
              bool *ret_lost, struct error *err)
{
    PGresult *r = pg_query(pg_of(base), err, "SELECT @schema@.extend($1, $2, $3, $4)", "ssii", consumer, owner,
                           b->epoch, lease_ms);
    if (!r) return -1;
    *ret_lost = !pg_true(r, 0, 0);
    PQclear(r);
    return 0;
}
