/* turn.c: a turn in the general case. The decisions are made in sql/postgres/internal/turn.sql;
 * this file has the parameters and the result of the call, and reads its events, ahead of the claim
 * where possible. turns.c has simple turns. */
#include <stdlib.h>

#include "base/buf.h"
#include "base/json.h"
#include "store/postgres/postgres.h"

#define UNREAD_MAX 5
#define UNREAD_WAIT 1000  /* ms, before the next look after events could not be read */
#define STANDBY_WAIT 1000 /* ms; another worker has the lane, and nothing tells when it leaves */
#define SETTLE_BYTES (16 << 20) /* of outcomes in a settlement */
#define KNOWN_BYTES (1 << 12)

/* The state of one turn. */
struct turning {
    struct pg_store *st;
    const struct claim_request *req;
    struct arena *a;
    struct batch *b;
    struct claim_hint *hint;

    bool have; /* the events in c were read ahead, in the window `in` */
    struct pg_chunk c;
    struct pg_window in;
    int64_t passed_over; /* seq of a parked event that the filter excludes; 0: none */
};

/* ---- the call ---- */

struct turn_cache *pg_memo(struct pg_store *st, const struct claim_request *req)
{
    return req->cache ? req->cache : &st->cache;
}

bool pg_pulls_in(struct pg_store *st, const struct claim_request *req)
{
    return clock_repair_due(&pg_memo(st, req)->repair, clock_mono(st->opt.clock));
}

/* The answer's columns: the attributes of the type _answer. */
#define ANSWER(COLUMN) \
    COLUMN(lost) \
    COLUMN(paused) \
    COLUMN(changed) \
    COLUMN(busy) \
    COLUMN(through) \
    COLUMN(skipped) \
    COLUMN(suspect_due) \
    COLUMN(crashed) \
    COLUMN(buried) \
    COLUMN(wait_ms) \
    COLUMN(now_ms) \
    COLUMN(epoch) \
    COLUMN(lane) \
    COLUMN(n) \
    COLUMN(suspect) \
    COLUMN(held) \
    COLUMN(seen) \
    COLUMN(floor) \
    COLUMN(target) \
    COLUMN(from_seq) \
    COLUMN(to_seq) \
    COLUMN(window_end) \
    COLUMN(quiet) \
    COLUMN(members) \
    COLUMN(keys)

#define ANSWER_NUMBER(name) A_##name,
enum { ANSWER(ANSWER_NUMBER) A_end };

/* A parameter for each attribute of the types _settlement, _request and _ahead, in their order.
 * When effects of the application are settled, its search_path is in force, so every name has its
 * schema. */
#define TURN_TYPES "ss" SETTLEMENT_TYPES REQUEST_TYPES AHEAD_TYPES
#define SETTLEMENT_TYPES "iisis"
#define REQUEST_TYPES "iiiibbississ"
#define AHEAD_TYPES "isiiiii"

#define ANSWER_NAME(name) "t." #name ", "
static const char turn_sql[] = PG_NAMED
    "SELECT " ANSWER(ANSWER_NAME) "NULL FROM @schema@._turn($1, $2, @version@, "
                                  "ROW($3, $4, $5, $6, $7), "
                                  "ROW($8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19), "
                                  "ROW($20, $21, $22, $23, $24, $25, $26)) t";

/* Counts the events that were not released. The server cannot count them: it does not know which
 * ones the predicate excludes. */
static int64_t tried_in(const struct settlement *s)
{
    int64_t n = 0;
    for (size_t i = 0; i < s->b->n; i++) {
        bool given_back = s->release_from && s->b->ev[i].seq >= s->release_from;
        if (!given_back)
            n++;
    }
    return n;
}

static int send_turn(struct turning *t, const struct settlement *s, const struct claim_request *req,
                     struct error *err)
{
    /* A settlement alone requests nothing: max_events 0, and max_attempts 0 takes over nothing. */
    static const struct claim_request nothing;
    const struct claim_request *q = req ? req : &nothing;
    struct pg_store *st = t->st;
    struct buf outcomes, marks, known;
    buf_init(&outcomes, SETTLE_BYTES);
    buf_init(&marks, SETTLE_BYTES);
    buf_init(&known, KNOWN_BYTES);

    buf_addc(&outcomes, '[');
    if (t->passed_over)
        buf_addf(&outcomes, "{\"seq\":%lld,\"kind\":\"skip\"}", (long long)t->passed_over);
    else if (s)
        pg_add_outcomes(&outcomes, s);
    buf_addc(&outcomes, ']');
    pg_add_marks(&marks, s);
    pg_add_known(&known, q, "{}");
    bool marked = s && s->n_marks > 0;

    /* -1 says that no other worker of this process will come for the rest, so the lanes of a new
     * consumer are taken together. */
    bool takes_all = q->sole && q->n_known == 0;
    int64_t first_lane = takes_all ? -1 : q->lane_hint;

    int64_t ahead_lane = -1, ahead_members = 0, ahead_n = 0;
    struct pg_window ahead = {0};
    if (t->have) {
        ahead_lane = st->ahead.lane;
        ahead_members = st->ahead.members;
        ahead_n = (int64_t)t->c.n;
        ahead = t->in;
    }

    int result = -1;
    bool whole = buf_cstr(&outcomes) && buf_cstr(&marks) && buf_cstr(&known);
    if (!whole)
        err_nomem(err);
    else
        result = pg_start(st, err, turn_sql, TURN_TYPES, req ? req->consumer : s->consumer,
                          req ? req->owner : s->owner,
                          /* settlement */
                          s ? s->b->epoch : 0, s ? tried_in(s) : 0, outcomes.p,
                          s ? s->release_from : 0, marked ? marks.p : NULL,
                          /* request */
                          (int64_t)q->max_events, q->lease_ms, (int64_t)q->max_attempts,
                          (int64_t)q->suspect, q->parked_first, (int)pg_pulls_in(st, q), first_lane,
                          q->one_shot ? NULL : known.p, req ? store_order_names[q->order] : NULL,
                          (int64_t)q->lanes, q->events ? q->events : "", q->where ? q->where : "",
                          /* read ahead */
                          ahead_lane, ahead.target, ahead.from, ahead.to, ahead_n, ahead_members,
                          pg_key_sample());
    buf_release(&known);
    buf_release(&marks);
    buf_release(&outcomes);
    return result;
}

/* Makes the call. While the server works on it, reads on ahead. */
static PGresult *make_turn(struct turning *t, const struct settlement *s,
                           const struct claim_request *req, struct error *err)
{
    if (send_turn(t, s, req, err) != 0)
        return NULL;
    if (t->have)
        pg_ahead_fill(t->st, req);
    return pg_finish(t->st, err);
}

/* ---- the answer ---- */

/* Schedules the next repair of waits that a wrong clock made too long. If one was due, the turn has
 * just made it. Otherwise the wait of the caller is limited to the next one. */
static void pull_next(struct turning *t, int64_t *wait_ms)
{
    struct clock_repair *pull = &pg_memo(t->st, t->req)->repair;
    int64_t mono = clock_mono(t->st->opt.clock);
    if (*wait_ms <= 0)
        return;
    if (clock_repair_due(pull, mono)) {
        clock_repair_done(pull, mono);
        return;
    }
    int64_t left = clock_repair_left_ms(pull, mono);
    if (left < *wait_ms)
        *wait_ms = left;
}

/* ---- claims whose events are not handed out ---- */

/* Settles a claim that a turn has just made. passed_over: see struct turning. */
static int settle_made(struct pg_store *st, const struct claim_request *req, const struct batch *b,
                       int64_t release_from, int64_t passed_over, struct error *err)
{
    struct turning t = {.st = st, .passed_over = passed_over};
    struct settlement s = {.consumer = req->consumer,
                           .owner = req->owner,
                           .order = req->order,
                           .b = b,
                           .release_from = release_from};
    PGresult *r = make_turn(&t, &s, NULL, err);
    if (!r)
        return -1;
    PQclear(r);
    return 0;
}

int pg_forget_claim(struct pg_store *st, const struct claim_request *req, struct batch *b,
                    int64_t passed_over, struct error *err)
{
    if (settle_made(st, req, b, 0, passed_over, err) != 0)
        return -1;
    *b = (struct batch){0};
    return 0;
}

/* Only a few times in a row: an event that never fits into memory would hold up all others. After
 * that the lease expires, the event is handed out alone, and ends as a dead letter. */
void pg_put_back(struct pg_store *st, const struct claim_request *req, struct batch *b)
{
    struct error ignored;
    if (PQstatus(st->db) != CONNECTION_OK)
        return;
    struct turn_cache *memo = pg_memo(st, req);
    memo->unread++;
    if (memo->unread > UNREAD_MAX)
        return;
    b->n = 0;
    settle_made(st, req, b, b->parked ? 1 : b->from + 1, 0, &ignored);
}

/* ---- from the result to a batch ---- */

/* Counts the numbers up to `last` in {seq,seq,...}, which is in order. */
static size_t listed_up_to(const char *seqs, int64_t last)
{
    size_t n = 0;
    const char *p = seqs;
    while (*p == '{' || *p == ',') {
        char *end;
        if (strtoll(p + 1, &end, 10) > last)
            break;
        n++;
        p = end;
    }
    return n;
}

/* Reads parked events, by the result's list if there is one. A dead letter that was sent back may
 * have been trimmed, and is then found only through the claim. */
static int fetch_parked(struct turning *t, const PGresult *r, struct error *err)
{
    struct pg_listed listed = {pg_str(r, 0, A_held), pg_str(r, 0, A_keys)};
    if (listed.seqs) {
        if (pg_read_listed(t->st, t->req, &listed, t->a, &t->c, err) != 0)
            return -1;
        size_t there = (size_t)pg_int(r, 0, A_n);
        if (t->c.cut)
            there = listed_up_to(listed.seqs, t->c.last);
        if (t->c.scanned == there)
            return 0;
    }
    return pg_read_parked(t->st, t->req, t->b->epoch, t->a, &t->c, err);
}

/* Reads the events of a claim that was not read ahead. If memory runs out, the claim is cut
 * there. */
static int fetch_events(struct turning *t, const PGresult *r, const struct pg_window *w,
                        struct error *err)
{
    int result;
    if (t->b->parked)
        result = fetch_parked(t, r, err);
    else
        result = pg_read_window(t->st, t->req, pg_int(r, 0, A_members), w,
                                (size_t)pg_int(r, 0, A_n), t->a, &t->c, err);
    if (result != 0)
        return -1;
    if (!t->c.cut)
        return 0;
    t->b->to = t->c.last;
    return pg_shrink(t->st, t->req, t->b->epoch, t->c.last, err);
}

/* Makes sure that the events of the claim are in t->c, read ahead or now. Then starts reading ahead
 * after them. */
static int get_events(struct turning *t, const PGresult *r, struct error *err)
{
    struct batch *b = t->b;
    const struct pg_ahead *h = &t->st->ahead;
    int64_t members = pg_int(r, 0, A_members);
    struct pg_window w = {.seen = pg_str(r, 0, A_seen),
                          .target = pg_str(r, 0, A_target),
                          .floor = pg_int(r, 0, A_floor),
                          .from = b->from,
                          .to = b->to,
                          .end = pg_int(r, 0, A_window_end)};
    if (t->have && !b->parked) {
        bool same_lanes = b->lane == h->lane && members == h->members;
        bool same_range = w.from == t->in.from && w.to == t->in.to;
        if (same_lanes && same_range && strcmp(w.target, t->in.target) == 0)
            return 0;
    }

    if (b->parked && t->have)
        pg_ahead_keep(t->st, t->a, &t->c, &t->in);
    else if (!b->parked)
        pg_ahead_forget(t->st);
    if (fetch_events(t, r, &w, err) != 0)
        return -1;
    pg_memo(t->st, t->req)->unread = 0;
    w.to = b->to;
    bool more_may_come = !b->parked && !t->req->one_shot && !t->req->no_readahead;
    if (more_may_come) {
        b->ev = t->c.ev;
        b->n = t->c.n;
        pg_ahead_start(t->st, t->req, b, members, &w);
    }
    return 0;
}

/* Builds the batch from a result that has one. */
static int take_batch(struct turning *t, const PGresult *r, struct error *err)
{
    struct batch *b = t->b;
    int64_t lane = pg_int(r, 0, A_lane);
    bool parked = lane < 0;
    bool suspect = pg_true(r, 0, A_suspect);
    *b = (struct batch){.parked = parked,
                        .suspect = suspect,
                        .blamed = suspect && t->req->suspect == SUSPECT_TAKE,
                        .lane = parked ? 0 : (int)lane,
                        .epoch = pg_int(r, 0, A_epoch),
                        .from = pg_int(r, 0, A_from_seq),
                        .to = pg_int(r, 0, A_to_seq)};
    if (get_events(t, r, err) != 0) {
        pg_put_back(t->st, t->req, b);
        return -1;
    }
    b->ev = t->c.ev;
    b->n = t->c.n;
    t->hint->skipped += t->c.scanned - t->c.n;
    if (b->n == 0) {
        /* A parked event that the filter excludes comes alone. It is recorded as skipped, because
         * it may have been claimed under another filter. */
        return pg_forget_claim(t->st, t->req, b, parked ? t->c.last : 0, err);
    }

    /* Nothing holds up parked events. */
    const char *held = parked ? NULL : pg_str(r, 0, A_held);
    const char *keys = parked ? NULL : pg_str(r, 0, A_keys);
    if (pg_mark_waiting(b, held, keys, pg_int(r, 0, A_now_ms), err) != 0) {
        pg_put_back(t->st, t->req, b);
        return -1;
    }
    bool that_is_all = pg_true(r, 0, A_quiet);
    if (t->req->no_listen)
        t->hint->quiet = that_is_all; /* the caller is woken for whatever comes next */
    else if (pg_wakeup_found(t->st, b->n, that_is_all, &t->hint->quiet, err) != 0)
        return -1;
    return 0;
}

/* Goes to sleep when nothing was found. *ret_again: look once more, now that producers will
 * notify. */
static int go_to_rest(struct turning *t, bool *ret_again, struct error *err)
{
    struct claim_hint *h = t->hint;
    *ret_again = false;
    h->poll_in_ms = h->busy ? STANDBY_WAIT : 0;
    bool stays_up = h->skipped || h->busy || h->changed || t->req->one_shot;
    if (stays_up)
        return 0;

    pg_reader_close(t->st); /* the backlog is done */
    if (t->req->no_listen)
        return 0;
    if (pg_wakeup_sleep(t->st, ret_again, &h->poll_in_ms, err) != 0)
        return -1;
    h->wake_blocker = pg_wakeup_blocker(t->st);
    return 0;
}

/* ---- turns ---- */

int pg_check_open(struct pg_store *st, struct error *err)
{
    PGTransactionStatusType open = PQtransactionStatus(st->db);
    bool by_hand = open == PQTRANS_INTRANS || open == PQTRANS_INERROR;
    if (!st->in_tx && !by_hand)
        return pg_ready(st, err);
    return err_set(err, ERR_MISUSE,
                   "a claim inside an open transaction would not be durable: refused");
}

/* Handles the result of a call. *ret_again: the call has to be repeated. */
static int take_answer(struct turning *t, const PGresult *r, bool claiming, bool *ret_again,
                       struct error *err)
{
    struct claim_hint *h = t->hint;
    *ret_again = false;
    h->paused = pg_true(r, 0, A_paused);
    h->changed = pg_true(r, 0, A_changed);
    h->busy = pg_true(r, 0, A_busy);
    h->through = pg_true(r, 0, A_through);
    h->suspect = pg_true(r, 0, A_suspect_due);
    h->crashed += (size_t)pg_int(r, 0, A_crashed);
    h->buried += (size_t)pg_int(r, 0, A_buried);
    h->skipped += pg_true(r, 0, A_skipped);
    h->wait_ms = pg_int(r, 0, A_wait_ms);
    if (claiming)
        pull_next(t, &h->wait_ms);

    bool claimed = pg_int(r, 0, A_n) > 0;
    if (claimed && take_batch(t, r, err) != 0)
        return -1;
    if (t->have && !claimed && !pg_true(r, 0, A_skipped))
        pg_ahead_forget(t->st); /* the lane's position is not where reading ahead began */

    bool found_nothing = claiming && t->b->n == 0;
    return found_nothing ? go_to_rest(t, ret_again, err) : 0;
}

void pg_unread(struct batch *b, struct claim_hint *hint)
{
    *b = (struct batch){0};
    hint->unread = true;
    hint->quiet = false;
    hint->wait_ms = UNREAD_WAIT;
}

int pg_turn(struct store *base, const struct settlement *s, bool *ret_lost,
            const struct claim_request *req, struct arena *a, struct batch *ret_batch,
            struct claim_hint *ret_hint, struct error *err)
{
    struct pg_store *st = pg_of(base);
    struct batch b = {0};
    struct claim_hint hint = {.wait_ms = -1};
    struct turning t = {.st = st, .req = req, .a = a, .b = &b, .hint = &hint};
    bool claiming = req && req->max_events > 0;
    bool lost = false;
    bool again = false;
    if (pg_check_open(st, err) != 0)
        return -1;

    if (req && req->no_readahead && pg_be_brief(st, err) != 0)
        return -1;
    if (claiming && !req->one_shot && !req->no_readahead)
        t.have = pg_ahead_take(st, req, a, &t.c, &t.in);
    bool settled = false;
    do {
        PGresult *r = make_turn(&t, s, req, err);
        int result = -1;
        if (r) {
            if (s)
                lost = pg_true(r, 0, A_lost);
            settled = settled || s;
            s = NULL; /* settled already, should the call be repeated */
            result = take_answer(&t, r, claiming, &again, err);
            PQclear(r);
        }
        if (result != 0 && !settled)
            return -1;
        if (result != 0) {
            pg_unread(&b, &hint);
            break;
        }
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
    PGresult *r = make_turn(&t, s, NULL, err);
    if (!r)
        return -1;
    *ret_lost = pg_true(r, 0, A_lost);
    PQclear(r);
    return 0;
}

/* ---- existing claims ---- */

int pg_shrink(struct pg_store *st, const struct claim_request *req, int64_t epoch, int64_t last,
              struct error *err)
{
    return pg_exec(st, err, NULL, "SELECT @schema@._shrink($1, $2, $3, $4)", "ssii", req->consumer,
                   req->owner, epoch, last);
}

int pg_extend(struct store *base, const struct claim_lease *l, bool *ret_lost, struct error *err)
{
    PGresult *r = pg_query(pg_of(base), err, "SELECT @schema@.extend($1, $2, $3, $4, $5)", "ssiib",
                           l->consumer, l->owner, l->epoch, l->lease_ms, l->absolve);
    if (!r)
        return -1;
    *ret_lost = !pg_true(r, 0, 0);
    PQclear(r);
    return 0;
}

int pg_claims(struct store *base, const char *consumer, struct arena *a, struct claim_info **ret,
              size_t *ret_n, struct error *err)
{
    bool ok = true;
    PGresult *r = pg_query(pg_of(base), err,
                           "SELECT x.epoch, x.owner FROM @schema@.claim x WHERE x.consumer = $1 "
                           "ORDER BY x.epoch",
                           "s", consumer);
    if (!r)
        return -1;
    size_t n = (size_t)PQntuples(r);
    struct claim_info *list = arena_alloc(a, (n + 1) * sizeof *list);
    for (size_t i = 0; list && i < n; i++)
        list[i] = (struct claim_info){.epoch = pg_int(r, (int)i, 0),
                                      .owner = pg_copy(r, (int)i, 1, a, &ok)};
    PQclear(r);
    if (!list || !ok)
        return err_nomem(err);
    *ret = list;
    *ret_n = n;
    return 0;
}
