/* claim_fresh.c: handing out the events after a lane's position. */
#include "base/num.h"
#include "store/mariadb/claim.h"
#include "store/mariadb/mariadb.h"
#include "store_sql.h"

/* events looked at per claim at least, so that a filter that rarely matches still gets on */
#define SCAN_MIN 10000
#define CHUNK_MAX 2000 /* rows per answer */
/* bytes of a payload that comes with its row, whatever the request allows */
#define INLINE_MIN 4096
#define MANY_KEYS 1000

/* ---- reading ---- */

int64_t mdb_fresh_inline(const struct claim_request *req)
{
    size_t each = req->max_bytes / (req->max_events ? req->max_events : 1);
    return each > INLINE_MIN ? (int64_t)each : INLINE_MIN;
}

/* wanted_by_type looks at the row in place, so that events that are skipped are never copied. */
static bool wanted_by_type(const struct mdb_rows *q, const struct claim_request *req, int lane)
{
    if (req->lanes > 1) {
        uint64_t key = event_key(mdb_text(q, 3), mdb_text(q, 4));
        if (event_lane(key, mdb_seq(q), req->lanes) != lane)
            return false;
    }
    return filter_type(req->filter, mdb_text(q, 2));
}

int mdb_fresh_payload(struct claiming *k, struct event *ev, struct error *err)
{
    struct mdb_rows *q;
    bool ok = true;
    int r = mdb_row(k->st, &q, err, SQL(payload_of, .seq = ev->seq));
    if (r < 0)
        return -1;
    if (r == 0)
        return err_class(err, ERR_CONFLICT, CLASS_RETRY, 0,
                         "%s: event %lld was deleted while it was read", k->st->shown,
                         (long long)ev->seq);
    ev->payload = mdb_copy(q, 0, k->a, &ok);
    mdb_done(q);
    return ok ? 0 : err_nomem(err);
}

/* take reads the event of a row into *ev; *ret_wanted: the filter wants it. */
static int take(struct claiming *k, const struct mdb_rows *q, struct event *ev, bool *ret_wanted,
                struct error *err)
{
    const struct filter *f = k->req->filter;
    bool here = !mdb_null(q, 6), asks = filter_has_where(f);
    *ret_wanted = true;
    if (here && asks && !filter_payload(f, mdb_text(q, 6))) {
        *ret_wanted = false;
        return 0;
    }
    if (!mdb_event_row(q, k->a, ev))
        return err_nomem(err);
    if (here)
        return 0;
    if (mdb_fresh_payload(k, ev, err) != 0)
        return -1;
    if (asks)
        *ret_wanted = filter_payload(f, ev->payload);
    return 0;
}

int mdb_fresh_wanted(struct claiming *k, struct mdb_rows *q, int lane, size_t max, struct chunk *c,
                     struct error *err)
{
    int r = q ? 0 : -1;
    while (r == 0 && c->n < max && c->bytes < k->req->max_bytes) {
        bool wanted;
        if (mdb_step(&q) != 1)
            return 0;
        c->to = mdb_seq(q);
        c->scanned++;
        if (!wanted_by_type(q, k->req, lane))
            continue;
        r = take(k, q, &c->ev[c->n], &wanted, err);
        if (r == 0 && wanted) {
            c->bytes += event_bytes(&c->ev[c->n]);
            c->n++;
        }
    }
    mdb_done(q);
    return r;
}

struct mdb_after mdb_fresh_next(const struct claim_request *req, int64_t position)
{
    return (struct mdb_after){
        .position = position,
        .max = (int64_t)min_size(req->max_events, CHUNK_MAX),
        .most = mdb_fresh_inline(req),
    };
}

/* read_after reads events after a position, an answer at a time: until there are enough, or enough
 * were looked at. */
static int read_after(struct claiming *k, int lane, int64_t from, struct chunk *ret,
                      struct error *err)
{
    size_t most = k->req->max_events;
    size_t scan = most > SCAN_MIN ? most : SCAN_MIN;
    struct chunk c = {.from = from, .to = from};
    c.ev = arena_alloc(k->a, most * sizeof *c.ev);
    if (!c.ev)
        return err_nomem(err);

    size_t asked, before;
    do {
        before = c.scanned;
        struct mdb_after after = mdb_fresh_next(k->req, c.to);
        asked = min_size((size_t)after.max, scan - c.scanned);
        after.max = (int64_t)asked;
        struct mdb_rows *q = mdb_read_after(k->st, &after, err);
        if (mdb_fresh_wanted(k, q, lane, most, &c, err) != 0)
            return -1;
    } while (c.scanned - before == asked && c.n < most && c.bytes < k->req->max_bytes &&
             c.scanned < scan);
    *ret = c;
    return 0;
}

/* ---- claiming ---- */

/* any_parked says whether anything of the consumer is parked. */
static int any_parked(struct claiming *k, bool *ret, struct error *err)
{
    int64_t parked = 0;
    if (k->found.known) {
        *ret = k->found.parked;
        return 0;
    }
    if (mdb_value(k->st, err, &parked, SQL(any_parked, .consumer = k->req->consumer)) != 0)
        return -1;
    *ret = parked != 0;
    return 0;
}

/* lane_free says whether the caller may take fresh events of the lane now. Where order matters, a
 * lane belongs to one worker at a time. That worker may hold several claims of it if it knows of
 * all of them: a claim whose answer got lost, or that ran out and could not be taken over yet,
 * holds events that must go first. With a global order nothing may be parked, either. */
static int lane_free(struct claiming *k, int lane, bool *ret, struct error *err)
{
    *ret = true;
    if (k->req->order == ORDER_NONE)
        return 0;
    for (size_t i = 0; i < k->n_claims; i++) {
        const struct claim *c = &k->claims[i];
        bool wake_blocker = !c->over && !c->parked && c->lane == lane && !c->known;
        if (!wake_blocker)
            continue;
        k->hint->busy = true;
        mdb_claim_wait(k, c->until);
        *ret = false;
    }
    if (k->req->order != ORDER_GLOBAL)
        return 0;
    bool parked;
    if (any_parked(k, &parked, err) != 0)
        return -1;
    if (parked)
        *ret = false;
    return 0;
}

/* read_keys reads the rows of parked_keys, which it releases. */
static int read_keys(struct claiming *k, struct mdb_rows *q, struct error *err)
{
    size_t n = (size_t)mysql_num_rows(q->res);
    k->keys = (struct parked_keys){.too_many = n > MANY_KEYS, .known = true};
    if (n == 0 || k->keys.too_many) {
        mdb_done(q);
        return 0;
    }
    k->keys.key = arena_alloc(k->a, n * sizeof *k->keys.key);
    if (!k->keys.key) {
        mdb_done(q);
        return err_nomem(err);
    }
    while (mdb_step(&q) == 1)
        k->keys.key[k->keys.n++] = mdb_int(q, 0);
    return 0;
}

/* is_among says whether the key is one of those that were read. */
static bool is_among(const struct parked_keys *keys, int64_t key)
{
    for (size_t i = 0; i < keys->n; i++)
        if (keys->key[i] == key)
            return true;
    return false;
}

/* ask_held asks for up to TOGETHER events whether something of their key is parked. */
static int ask_held(struct claiming *k, struct event *ev, size_t n, struct error *err)
{
    struct sql_key_parked args[TOGETHER];
    struct mdb_question ask[TOGETHER];
    struct mdb_rows *q[TOGETHER];
    for (size_t i = 0; i < n; i++) {
        args[i] = (struct sql_key_parked){.consumer = k->req->consumer, .key = (int64_t)ev[i].key};
        ask[i] = (struct mdb_question){&sql_key_parked, &args[i]};
    }
    if (mdb_ask_all(k->st, ask, n, q, err) != 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        bool held = mdb_step(&q[i]) == 1;
        ev[i].behind = held && ev[i].key != 0;
        mdb_done(q[i]);
    }
    return 0;
}

/* mark_held flags the events that may not be delivered yet. */
static int mark_held(struct claiming *k, struct error *err)
{
    struct event *ev = k->b->ev;
    size_t n = k->b->n;
    for (size_t i = 0; i < n; i++)
        ev[i].delayed = ev[i].not_before > k->now;
    if (k->req->order != ORDER_KEY)
        return 0;

    for (size_t i = 0; i < n; i++)
        ev[i].behind = ev[i].key != 0 && is_among(&k->keys, (int64_t)ev[i].key);
    if (!k->keys.too_many)
        return 0;
    for (size_t i = 0; i < n; i += TOGETHER)
        if (ask_held(k, &ev[i], min_size(n - i, TOGETHER), err) != 0)
            return -1;
    return 0;
}

static int say_lost(const struct claiming *k, int lane, struct error *err)
{
    const char *name = k->req->consumer;
    return err_class(err, ERR_CONFIG, CLASS_RETRY, 0,
                     "%s: consumer \"%s\" has lost its place: its row for lane %d in table "
                     "outbox_lane is gone; restore it, or run `outbox consumers remove %s` and "
                     "start the consumer again where you want it",
                     k->st->shown, name, lane, name);
}

/* ask_position reads how far the lane is handed out, and, once in a turn, what is parked. */
static int ask_position(struct claiming *k, int lane, int64_t *ret, struct error *err)
{
    const char *name = k->req->consumer;
    struct mdb_rows *q[2];
    struct mdb_question ask[2] = {
        {SQL(lane_position, .consumer = name, .lane = lane)},
        {SQL(parked_keys, .consumer = name)},
    };
    bool keys = k->req->order == ORDER_KEY && !k->keys.known;
    if (mdb_ask_all(k->st, ask, keys ? 2 : 1, q, err) != 0)
        return -1;
    *ret = -1;
    if (mdb_step(&q[0]) == 1)
        *ret = mdb_int(q[0], 0);
    mdb_done(q[0]);
    return keys ? read_keys(k, q[1], err) : 0;
}

/* read_position is ask_position, which asks nothing that the turn was told. */
static int read_position(struct claiming *k, int lane, int64_t *ret, struct error *err)
{
    if (mdb_claim_unparked(k))
        k->keys.known = true; /* there are none */
    bool keys = k->req->order == ORDER_KEY && !k->keys.known;
    bool told = k->found.known && k->found.lane == lane;
    if (!told || keys)
        return ask_position(k, lane, ret, err);
    *ret = k->found.position;
    return 0;
}

/* claim_lane claims fresh events of one lane. The position moves past skipped events even if none
 * is wanted. */
static int claim_lane(struct claiming *k, int lane, struct error *err)
{
    bool ours;
    int64_t position;
    struct chunk c = {0};
    if (lane_free(k, lane, &ours, err) != 0)
        return -1;
    if (!ours)
        return 0;
    if (read_position(k, lane, &position, err) != 0)
        return -1;
    if (position < 0)
        return say_lost(k, lane, err);
    if (read_after(k, lane, position, &c, err) != 0)
        return -1;
    if (c.scanned == 0)
        return 0;

    if (mdb_later(
            k->st, err,
            SQL(move_position, .consumer = k->req->consumer, .lane = lane, .position = c.to)) != 0)
        return -1;
    k->hint->skipped += c.scanned - c.n;
    if (c.n == 0)
        return 0;

    *k->b = (struct batch){.ev = c.ev, .n = c.n, .lane = lane, .from = position, .to = c.to};
    if (mark_held(k, err) != 0)
        return -1;
    return mdb_claim_record(k, err);
}

int mdb_fresh_claim(struct claiming *k, struct error *err)
{
    for (int i = 0; i < k->req->lanes && k->b->n == 0; i++) {
        int lane = (k->req->lane_hint + i) % k->req->lanes;
        if (claim_lane(k, lane, err) != 0)
            return -1;
    }
    return 0;
}
