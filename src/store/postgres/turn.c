/* turn.c: the call that takes turns, and the turn of one consumer in all cases. The decisions are
 * made in sql/postgres/internal/turn.sql; this file sends the request, reads the answer, and has
 * the events of the claim read, ahead of it where possible. simple_turns.c has simple turns. */
#include "store/postgres/postgres.h"

#define UNREAD_MAX 5
#define UNREAD_WAIT 1000  /* ms to the next attempt after events could not be read */
#define STANDBY_WAIT 1000 /* ms; another worker holds the lane, and nothing announces its release */
#define REQUEST_BYTES (64 << 20)
#define PAYLOAD_COLUMN 6 /* of PG_EVENT_COLUMNS */

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
    int64_t passed_over; /* see struct pg_request */
};

struct turn_cache *pg_cache_of(struct pg_store *st, const struct claim_request *req)
{
    return req->cache ? req->cache : &st->cache;
}

bool pg_clock_repair_due(struct pg_store *st, const struct claim_request *req)
{
    return clock_repair_due(&pg_cache_of(st, req)->repair, clock_mono(st->opt.clock));
}

/* ---- the call ---- */

/* When effects of the application are settled, its search_path is in force, so every name is
 * schema-qualified. */
/* clang-format off */
#define SQL_COLUMN(column) ", e." #column
#define SQL_NUMBER(column) ", e." #column "::bigint"
#define SQL_TEXT(column) ", e." #column "::pg_catalog.text"
#define ANSWER "e.place::bigint" PG_ANSWER(SQL_COLUMN, SQL_NUMBER, SQL_TEXT) " "
#define TURNS PG_NAMED "SELECT " PG_EVENT_COLUMNS ", " ANSWER "FROM @schema@._turns"
static const char any_sql[] = PG_NAMED
    "SELECT " ANSWER "FROM @schema@._turn(($1::@schema@._request[])[1], @version@) e";
static const char single_sql[] = TURNS "($1, 'single', @version@) e";
static const char batch_sql[] = TURNS "($1, 'batch', @version@) e";

#define COLUMN(column) A_##column,
enum { A_PLACE, PG_ANSWER(COLUMN, COLUMN, COLUMN) A_COLUMNS };
/* clang-format on */

int pg_turn_start(struct pg_store *st, enum pg_path path, struct buf *list, struct error *err)
{
    static const char *const sql[] = {
        [PATH_ANY] = any_sql, [PATH_SINGLE] = single_sql, [PATH_BATCH] = batch_sql};
    buf_adds(list, list->n == 0 ? "{}" : "}");
    const char *requests = buf_cstr(list);
    return requests ? pg_start(st, err, sql[path], "s", requests) : err_nomem(err);
}

static bool flag_at(const PGresult *r, int row, int col)
{
    return PQgetlength(r, row, col) == 1 && *PQgetvalue(r, row, col);
}

struct pg_answer pg_answer_at(const PGresult *r, int row)
{
#define READ_FLAG(column) .column = flag_at(r, row, at + A_##column),
#define READ_NUMBER(column) .column = pg_binary_int8(r, row, at + A_##column),
#define READ_TEXT(column) .column = pg_str(r, row, at + A_##column),
    int at = PQnfields(r) - A_COLUMNS;
    struct pg_answer a = {PG_ANSWER(READ_FLAG, READ_NUMBER, READ_TEXT).row = row,
                          .place = (size_t)pg_binary_int8(r, row, at + A_PLACE),
                          .has_events = at > 0};
    int rows = PQntuples(r);
    for (int i = row; i < rows; i++) {
        if ((size_t)pg_binary_int8(r, i, at + A_PLACE) != a.place)
            break;
        a.rows++;
        if (at > 0 && PQgetisnull(r, i, PAYLOAD_COLUMN)) /* no event, or a large one */
            a.has_events = false;
    }
    return a;
}

/* Takes the turn of one consumer, which is always answered. Reads ahead while the server works. The
 * answer's strings belong to the result. */
static PGresult *make_turn(struct turning *t, const struct settlement *s,
                           const struct claim_request *req, struct pg_answer *ret,
                           struct error *err)
{
    struct pg_request q = {.s = s,
                           .req = req,
                           .max_events = req ? req->max_events : 0,
                           .passed_over = t->passed_over,
                           .ahead = t->have ? &t->in : NULL,
                           .n_ahead = t->have ? t->c.n : 0};
    struct buf list;
    buf_init(&list, REQUEST_BYTES);
    pg_request_add(&list, t->st, 0, &q);
    int result = pg_turn_start(t->st, PATH_ANY, &list, err);
    buf_release(&list);
    if (result != 0)
        return NULL;

    if (t->have)
        pg_ahead_fill(t->st, req);
    PGresult *r = pg_finish(t->st, err);
    if (r)
        *ret = pg_answer_at(r, 0);
    return r;
}

/* ---- the answer ---- */

/* Schedules the next repair of waits that a wrong clock made too long. If one was due, the turn has
 * just run it. Otherwise the wait of the caller is limited to the next one. */
static void schedule_clock_repair(struct turning *t, int64_t *wait_ms)
{
    struct clock_repair *repair = &pg_cache_of(t->st, t->req)->repair;
    int64_t mono = clock_mono(t->st->opt.clock);
    if (*wait_ms <= 0)
        return;
    if (clock_repair_due(repair, mono)) {
        clock_repair_done(repair, mono);
        return;
    }
    int64_t left = clock_repair_left_ms(repair, mono);
    if (left < *wait_ms)
        *wait_ms = left;
}

/* ---- claims whose events are not handed out ---- */

/* Settles a claim that a turn has just made. */
static int settle_made(struct pg_store *st, const struct claim_request *req, const struct batch *b,
                       int64_t release_from, int64_t passed_over, struct error *err)
{
    struct turning t = {.st = st, .passed_over = passed_over};
    struct settlement s = {.consumer = req->consumer,
                           .owner = req->owner,
                           .order = req->order,
                           .b = b,
                           .release_from = release_from};
    struct pg_answer ignored;
    PGresult *r = make_turn(&t, &s, NULL, &ignored, err);
    if (!r)
        return -1;
    PQclear(r);
    return 0;
}

int pg_drop_claim(struct pg_store *st, const struct claim_request *req, struct batch *b,
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
    struct turn_cache *memo = pg_cache_of(st, req);
    memo->unread++;
    if (memo->unread > UNREAD_MAX)
        return;
    b->n = 0;
    settle_made(st, req, b, b->parked ? 1 : b->from + 1, 0, &ignored);
}

/* ---- from the result to a batch ---- */

/* Makes sure that the events of the claim are in t->c, read ahead or now. Then starts reading ahead
 * after them. */
static int get_events(struct turning *t, const struct pg_answer *an, struct error *err)
{
    struct batch *b = t->b;
    const struct pg_ahead *h = &t->st->ahead;
    struct pg_window w = {.seen = an->seen,
                          .target = an->target,
                          .floor = an->floor,
                          .from = b->from,
                          .to = b->to,
                          .end = an->window_end};
    if (t->have && !b->parked) {
        bool same_lanes = b->lane == h->lane && an->members == h->members;
        bool same_range = w.from == t->in.from && w.to == t->in.to;
        if (same_lanes && same_range && strcmp(w.target, t->in.target) == 0)
            return 0;
    }

    if (b->parked && t->have)
        pg_ahead_keep(t->st, t->a, &t->c, &t->in);
    else if (!b->parked)
        pg_ahead_forget(t->st);
    if (pg_read_claim(t->st, t->req, an, &w, t->a, &t->c, err) != 0)
        return -1;
    if (t->c.cut) { /* memory ran out: the claim ends there */
        b->to = t->c.last;
        if (pg_shrink(t->st, t->req, b->epoch, b->to, err) != 0)
            return -1;
    }
    pg_cache_of(t->st, t->req)->unread = 0;
    w.to = b->to;
    bool more_may_come = !b->parked && !t->req->one_shot && !t->req->no_readahead;
    if (more_may_come) {
        b->ev = t->c.ev;
        b->n = t->c.n;
        pg_ahead_start(t->st, t->req, b, an->members, &w);
    }
    return 0;
}

/* Builds the batch of a claim. */
static int take_batch(struct turning *t, const struct pg_answer *an, struct error *err)
{
    struct batch *b = t->b;
    bool parked = an->lane < 0;
    *b = (struct batch){.parked = parked,
                        .suspect = an->suspect,
                        .blamed = an->suspect && t->req->suspect == SUSPECT_TAKE,
                        .lane = parked ? 0 : (int)an->lane,
                        .epoch = an->epoch,
                        .from = an->from_seq,
                        .to = an->to_seq};
    if (get_events(t, an, err) != 0) {
        pg_put_back(t->st, t->req, b);
        return -1;
    }
    b->ev = t->c.ev;
    b->n = t->c.n;
    t->hint->skipped += t->c.scanned - t->c.n;
    if (b->n == 0) {
        /* A parked event that the filter excludes is handed out alone. It is recorded as skipped,
         * because it may have been claimed under another filter. */
        return pg_drop_claim(t->st, t->req, b, parked ? t->c.last : 0, err);
    }

    /* Nothing holds up parked events. */
    const char *held = parked ? NULL : an->held;
    const char *keys = parked ? NULL : an->keys;
    if (pg_mark_waiting(b, held, keys, an->now_ms, err) != 0) {
        pg_put_back(t->st, t->req, b);
        return -1;
    }
    if (t->req->no_listen)
        t->hint->quiet = an->quiet; /* a wake-up announces the next event */
    else if (pg_wakeup_found(t->st, b->n, an->quiet, &t->hint->quiet, err) != 0)
        return -1;
    return 0;
}

/* Prepares to sleep when no event was found. *ret_again: poll once more, now that producers will
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
                   "a claim inside an open transaction would not be durable, and is refused");
}

/* Handles an answer. *ret_again: the call has to be repeated. */
static int take_turn(struct turning *t, const struct pg_answer *an, bool claiming, bool *ret_again,
                     struct error *err)
{
    struct claim_hint *h = t->hint;
    *ret_again = false;
    h->paused = an->paused;
    h->changed = an->changed;
    h->busy = an->busy;
    h->through = an->through;
    h->suspect = an->suspect_due;
    h->crashed += (size_t)an->crashed;
    h->buried += (size_t)an->buried;
    h->skipped += an->skipped;
    h->wait_ms = an->wait_ms;
    if (claiming)
        schedule_clock_repair(t, &h->wait_ms);

    if (an->n > 0 && take_batch(t, an, err) != 0)
        return -1;
    if (t->have && an->n == 0 && !an->skipped)
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

/* Tells the session that others wait for it, so that it does not wait long for a consumer locked by
 * another session. */
static int be_brief(struct pg_store *st, struct error *err)
{
    bool set = st->brief_at == st->generation[PG_MAIN];
    if (set || st->pooled)
        return 0;
    if (pg_simple(st, "SET outbox.brief = 'on'", err) != 0)
        return -1;
    st->brief_at = st->generation[PG_MAIN];
    return 0;
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

    if (req && req->no_readahead && be_brief(st, err) != 0)
        return -1;
    if (claiming && !req->one_shot && !req->no_readahead)
        t.have = pg_ahead_take(st, req, a, &t.c, &t.in);
    bool settled = false;
    do {
        struct pg_answer an;
        PGresult *r = make_turn(&t, s, req, &an, err);
        int result = -1;
        if (r) {
            if (s)
                lost = an.lost;
            settled = settled || s;
            s = NULL; /* already settled, in case the call is repeated */
            result = take_turn(&t, &an, claiming, &again, err);
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
    struct pg_answer an;
    PGresult *r = make_turn(&t, s, NULL, &an, err);
    if (!r)
        return -1;
    *ret_lost = an.lost;
    PQclear(r);
    return 0;
}

/* ---- existing claims ---- */

int pg_shrink(struct pg_store *st, const struct claim_request *req, int64_t epoch, int64_t last,
              struct error *err)
{
    return pg_exec(st, err, "SELECT @schema@._shrink($1, $2, $3, $4)", "ssii", req->consumer,
                   req->owner, epoch, last);
}

int pg_extend(struct store *base, const struct claim_lease *l, bool *ret_lost, struct error *err)
{
    int64_t extended;
    if (pg_query_number(pg_of(base), err, &extended, "SELECT @schema@.extend($1, $2, $3, $4, $5)",
                        "ssiib", l->consumer, l->owner, l->epoch, l->lease_ms, l->absolve) != 0)
        return -1;
    *ret_lost = !extended;
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
