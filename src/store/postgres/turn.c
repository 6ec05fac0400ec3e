/* turn.c: handing out work. What happens is in sql/postgres/internal/turn.sql; here are its
 * parameters, its answer, and the events that belong to it, read ahead where possible. */
#include <stdlib.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/text.h"
#include "store/postgres/postgres.h"

#define UNREAD_MAX 5
/* ms; another owner has the lane, and nobody tells when it leaves */
#define STANDBY_WAIT 1000
#define SETTLE_BYTES (16 << 20) /* of outcomes in a settlement */

/* What one turn has to do with. */
struct turning {
    struct pg_store *st;
    const struct claim_request *req;
    struct arena *a;
    struct batch *b;
    struct claim_hint *hint;
    bool have; /* c was read ahead, and is in the window `in` */
    struct pg_chunk c;
    struct pg_window in;
    int64_t passed_over; /* seq of a parked event that the filter does not want; 0: none */
};

/* ---- the settlement as JSON ---- */

/* add_text: what a sink said need not be UTF-8, nor short, but what goes into the database must
 * be. */
static void add_text(struct buf *b, const char *name, const char *text)
{
    char kept[TEXT_KEPT_MAX];
    if (!text)
        return;
    buf_addf(b, ",\"%s\":", name);
    json_quote(b, str_of(text_kept(text, kept)));
}

static int outcomes_json(const struct turning *t, const struct settlement *s, struct buf *b,
                         struct error *err)
{
    static const char *const kinds[] = {"delivered", "retry", "dead", "behind", "delay"};
    buf_addc(b, '[');
    if (t->passed_over)
        buf_addf(b, "{\"seq\":%lld,\"kind\":\"skip\"}", (long long)t->passed_over);
    for (size_t i = 0; s && i < s->n; i++) {
        const struct outcome *o = &s->out[i];
        buf_addf(b, "%s{\"seq\":%lld,\"kind\":\"%s\",\"attempts\":%d,\"delay_ms\":%lld",
                 i ? "," : "", (long long)o->ev->seq, kinds[o->kind], o->attempts,
                 (long long)o->delay_ms);
        if (o->proven)
            buf_adds(b, ",\"proven\":true");
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

static int marks_json(const struct settlement *s, struct buf *b, struct error *err)
{
    buf_addc(b, '[');
    for (size_t i = 0; s && i < s->n_marks; i++) {
        const struct hwm *m = &s->marks[i];
        buf_adds(b, i ? ",{\"stream\":" : "{\"stream\":");
        json_quote(b, m->stream);
        buf_addf(b, ",\"hi\":%lld,\"lo\":%lld}", (long long)m->hi, (long long)m->lo);
    }
    buf_addc(b, ']');
    return buf_cstr(b) ? 0 : err_nomem(err);
}

static void known_array(const struct claim_request *req, struct buf *b)
{
    buf_addc(b, '{');
    for (size_t i = 0; req && i < req->n_known; i++)
        buf_addf(b, "%s%lld", i ? "," : "", (long long)req->known[i]);
    buf_addc(b, '}');
}

/* ---- the call ---- */

/* The answer's columns: the attributes of the type _answer. */
#define ANSWER(COLUMN) \
    COLUMN(lost) \
    COLUMN(paused) \
    COLUMN(changed) \
    COLUMN(busy) \
    COLUMN(through) \
    COLUMN(skipped) \
    COLUMN(careful_due) \
    COLUMN(crashed) \
    COLUMN(buried) \
    COLUMN(wait_ms) \
    COLUMN(now_ms) \
    COLUMN(epoch) \
    COLUMN(lane) \
    COLUMN(n) \
    COLUMN(careful) \
    COLUMN(held) \
    COLUMN(seen) \
    COLUMN(floor) \
    COLUMN(target) \
    COLUMN(from_seq) \
    COLUMN(to_seq) \
    COLUMN(window_end)

#define ANSWER_NUMBER(name) A_##name,
enum { ANSWER(ANSWER_NUMBER) A_end };

/* A parameter for each attribute of the types _settlement, _request and _ahead, in their order.
 * Where effects of the application are settled, its search_path is in force, so every name has its
 * schema. */
#define TURN_TYPES "ss" SETTLEMENT_TYPES REQUEST_TYPES AHEAD_TYPES
#define SETTLEMENT_TYPES "iisis"
#define REQUEST_TYPES "iiiibbississ"
#define AHEAD_TYPES "isiii"

static const char turn_sql[] = PG_NAMED
    "SELECT t.* FROM @schema@._turn($1, $2, @version@, "
    "ROW($3, $4, $5, $6, $7), "
    "ROW($8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19), "
    "ROW($20, $21, $22, $23, $24)) t";

/* pull_next: the turn has pulled in what a wrong clock parked, if that was due. Else whoever waits
 * comes back when it is. */
static void pull_next(struct pg_store *st, int64_t *wait_ms)
{
    int64_t mono = clock_mono(st->opt.clock);
    if (*wait_ms <= 0)
        return;
    if (pull_due(&st->pull, mono)) {
        pull_done(&st->pull, mono);
        return;
    }
    int64_t left = pull_left_ms(&st->pull, mono);
    if (left < *wait_ms)
        *wait_ms = left;
}

/* tried counts the events that were not given back. The server cannot: what the predicate excludes
 * it does not know. */
static int64_t tried(const struct settlement *s)
{
    int64_t n = 0;
    for (size_t i = 0; s && i < s->b->n; i++)
        n += !s->release_from || s->b->ev[i].seq < s->release_from;
    return n;
}

/* call makes the turn. While the server is at it, what comes after what was read ahead is read. */
static PGresult *call(struct turning *t, const struct settlement *s,
                      const struct claim_request *req, struct error *err)
{
    static const struct claim_request nothing; /* max_attempts 0: nothing is taken over */
    struct pg_store *st = t->st;
    const char *consumer = req ? req->consumer : s->consumer, *owner = req ? req->owner : s->owner;
    const struct claim_request *q = req ? req : &nothing;
    struct buf out, known, marks;
    bool use = req && t->have, marked = s && s->n_marks > 0;
    int bad = -1;
    buf_init(&out, SETTLE_BYTES);
    buf_init(&known, 1 << 12);
    buf_init(&marks, SETTLE_BYTES);
    known_array(req, &known);
    if (outcomes_json(t, s, &out, err) == 0 && marks_json(s, &marks, err) == 0 && buf_cstr(&known))
        bad = pg_start(
            st, err, turn_sql, TURN_TYPES, consumer, owner,
            /* settlement */
            s ? s->b->epoch : 0, tried(s), out.p, s ? s->release_from : 0, marked ? marks.p : NULL,
            /* request */
            (int64_t)q->max_events, q->lease_ms, (int64_t)q->max_attempts, (int64_t)q->careful,
            q->parked_first, pull_due(&st->pull, clock_mono(st->opt.clock)), (int64_t)q->lane_hint,
            known.p, req ? store_order_names[q->order] : NULL, (int64_t)q->lanes,
            q->events ? q->events : "", q->where ? q->where : "",
            /* read ahead */
            use ? (int64_t)st->ahead.lane : INT64_C(-1), use ? t->in.target : NULL,
            use ? t->in.from : INT64_C(0), use ? t->in.to : INT64_C(0),
            use ? (int64_t)t->c.n : INT64_C(0));
    buf_release(&marks);
    buf_release(&out);
    buf_release(&known);
    if (bad)
        return NULL;
    if (use)
        pg_ahead_fill(st, req);
    return pg_finish(st, err);
}

/* ---- from the answer to a batch ---- */

static void take_hint(const PGresult *r, struct claim_hint *h)
{
    h->paused = pg_true(r, 0, A_paused);
    h->changed = pg_true(r, 0, A_changed);
    h->busy = pg_true(r, 0, A_busy);
    h->through = pg_true(r, 0, A_through);
    h->careful = pg_true(r, 0, A_careful_due);
    h->crashed += (size_t)pg_int(r, 0, A_crashed);
    h->buried += (size_t)pg_int(r, 0, A_buried);
    h->skipped += pg_true(r, 0, A_skipped);
    h->wait_ms = pg_int(r, 0, A_wait_ms);
}

/* mark flags the events that may not be delivered now: held is {seq,seq,...} in any order. */
static void mark(struct batch *b, const char *held, int64_t now)
{
    for (size_t i = 0; i < b->n; i++)
        b->ev[i].delayed = b->ev[i].not_before > now;
    for (const char *p = held; p && *p && *p != '}';) {
        char *end;
        int64_t seq = strtoll(p + 1, &end, 10);
        p = end;
        size_t low = 0, high = b->n;
        while (low < high) {
            size_t mid = (low + high) / 2;
            if (b->ev[mid].seq < seq)
                low = mid + 1;
            else
                high = mid;
        }
        if (low < b->n && b->ev[low].seq == seq)
            b->ev[low].behind = true;
    }
}

static int shrink(struct turning *t, int64_t last, struct error *err)
{
    return pg_exec(t->st, err, NULL, "SELECT @schema@._shrink($1, $2, $3, $4)", "ssii",
                   t->req->consumer, t->req->owner, t->b->epoch, last);
}

/* forget settles a claim of which the filter wanted nothing. Of a parked event, which comes alone
 * then, that is told: the filter it was handed out under may have been another. */
static int forget(struct turning *t, struct error *err)
{
    struct settlement s = {
        .consumer = t->req->consumer, .owner = t->req->owner, .order = t->req->order, .b = t->b};
    if (t->b->parked)
        t->passed_over = t->c.last;
    PGresult *r = call(t, &s, NULL, err);
    t->passed_over = 0;
    if (!r)
        return -1;
    PQclear(r);
    *t->b = (struct batch){0};
    return 0;
}

/* put_back gives a claim back whose events could not be read, for want of memory, say: nobody has
 * tried them, and one whose lease runs out counts as an attempt. Not for ever: an event there is
 * never memory for would hold up all the others, so after a while it is left to run out, comes
 * alone, and ends as a dead letter. */
static void put_back(struct turning *t)
{
    struct error ignored;
    struct settlement s = {.consumer = t->req->consumer,
                           .owner = t->req->owner,
                           .order = t->req->order,
                           .b = t->b,
                           .release_from = t->b->parked ? 1 : t->b->from + 1};
    if (PQstatus(t->st->db) != CONNECTION_OK || ++t->st->unread > UNREAD_MAX)
        return;
    t->b->n = 0;
    PQclear(call(t, &s, NULL, &ignored));
}

/* fetch reads the events of a claim that was not read ahead. */
static int fetch(struct turning *t, const struct pg_window *w, size_t n, struct error *err)
{
    struct batch *b = t->b;
    if ((b->parked ? pg_read_parked(t->st, t->req, b->epoch, t->a, &t->c, err)
                   : pg_read_window(t->st, t->req, b->lane, w, n, t->a, &t->c, err)) != 0)
        return -1;
    if (!t->c.cut)
        return 0;
    b->to = t->c.last;
    return shrink(t, t->c.last, err);
}

/* as_read: the claim is what was read ahead. */
static bool as_read(const struct turning *t, const struct pg_window *w)
{
    return t->have && !t->b->parked && t->b->lane == t->st->ahead.lane && w->from == t->in.from &&
           w->to == t->in.to && strcmp(w->target, t->in.target) == 0;
}

static int take_batch(struct turning *t, const PGresult *r, struct error *err)
{
    struct batch *b = t->b;
    struct pg_window w = {.seen = pg_str(r, 0, A_seen),
                          .target = pg_str(r, 0, A_target),
                          .floor = pg_int(r, 0, A_floor),
                          .from = pg_int(r, 0, A_from_seq),
                          .to = pg_int(r, 0, A_to_seq),
                          .end = pg_int(r, 0, A_window_end)};
    int lane = (int)pg_int(r, 0, A_lane);
    *b = (struct batch){.parked = lane < 0,
                        .careful = pg_true(r, 0, A_careful),
                        .lane = lane < 0 ? 0 : lane,
                        .epoch = pg_int(r, 0, A_epoch),
                        .from = w.from,
                        .to = w.to};
    bool read = as_read(t, &w);
    if (!read) {
        pg_ahead_forget(t->st);
        if (fetch(t, &w, (size_t)pg_int(r, 0, A_n), err) != 0) {
            put_back(t);
            return -1;
        }
        t->st->unread = 0;
        w.to = b->to;
    }
    b->ev = t->c.ev;
    b->n = t->c.n;
    t->hint->skipped += t->c.scanned - t->c.n;
    if (b->n == 0)
        return forget(t, err);
    mark(b, pg_str(r, 0, A_held), pg_int(r, 0, A_now_ms));
    if (pg_bell_wake(t->st, err) != 0)
        return -1;
    if (!read && !b->parked && !t->req->once)
        pg_ahead_start(t->st, t->req, lane, &w);
    return 0;
}

/* rest: nothing was found. *ret_again: look once more, now that producers will ring. */
static int rest(struct turning *t, bool *ret_again, struct error *err)
{
    struct claim_hint *h = t->hint;
    *ret_again = false;
    h->nap_ms = h->busy ? STANDBY_WAIT : 0;
    if (h->skipped || h->busy || h->changed || t->req->once)
        return 0;
    pg_reader_close(t->st); /* there is no backlog any more */
    int r = pg_bell_sleep(t->st, &h->nap_ms, err);
    *ret_again = r == 1;
    h->in_the_way = *t->st->squatter ? t->st->squatter : NULL;
    return r < 0 ? -1 : 0;
}

int pg_turn(struct store *base, const struct settlement *s, bool *ret_lost,
            const struct claim_request *req, struct arena *a, struct batch *ret_batch,
            struct claim_hint *ret_hint, struct error *err)
{
    struct pg_store *st = pg_of(base);
    struct batch b = {0};
    struct claim_hint hint = {.wait_ms = -1};
    struct turning t = {.st = st, .req = req, .a = a, .b = &b, .hint = &hint};
    bool claiming = req && req->max_events > 0, lost = false, again = false;
    PGTransactionStatusType open = PQtransactionStatus(st->db);
    bool by_hand = open == PQTRANS_INTRANS || open == PQTRANS_INERROR;
    if (st->in_tx || by_hand)
        return err_set(err, ERR_MISUSE,
                       "a claim inside an open transaction would not be durable: refused");
    if (pg_ready(st, err) != 0)
        return -1;
    t.have = claiming && !req->once && pg_ahead_take(st, req, a, &t.c, &t.in);
    do {
        PGresult *r = call(&t, s, req, err);
        if (!r)
            return -1;
        if (s)
            lost = pg_true(r, 0, A_lost);
        s = NULL;
        take_hint(r, &hint);
        if (claiming)
            pull_next(st, &hint.wait_ms);
        int bad = 0;
        if (pg_int(r, 0, A_n) > 0)
            bad = take_batch(&t, r, err);
        again = false;
        if (!bad && claiming && b.n == 0)
            bad = rest(&t, &again, err);
        PQclear(r);
        if (bad)
            return -1;
        t.have = false;
    } while (again);
    if (ret_lost)
        *ret_lost = lost;
    if (req) {
        *ret_batch = b;
        *ret_hint = hint;
    }
    return 0;
}

int pg_settle(struct store *base, const struct settlement *s, bool *ret_lost, struct error *err)
{
    struct pg_store *st = pg_of(base);
    struct turning t = {.st = st};
    if (!st->in_tx)
        return err_set(err, ERR_MISUSE,
                       "no transaction is open: effects and outcomes must commit together");
    PGresult *r = call(&t, s, NULL, err);
    if (!r)
        return -1;
    *ret_lost = pg_true(r, 0, A_lost);
    PQclear(r);
    return 0;
}

int pg_extend(struct store *base, const char *consumer, const char *owner, const struct batch *b,
              int64_t lease_ms, bool *ret_lost, struct error *err)
{
    PGresult *r = pg_query(pg_of(base), err, "SELECT @schema@.extend($1, $2, $3, $4)", "ssii",
                           consumer, owner, b->epoch, lease_ms);
    if (!r)
        return -1;
    *ret_lost = !pg_true(r, 0, 0);
    PQclear(r);
    return 0;
}
