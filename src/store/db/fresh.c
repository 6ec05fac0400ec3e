/* fresh.c: claiming the events after a lane's position. */
#include "base/num.h"
#include "store/db/turn.h"
#include "store_sql.h"

/* A payload of up to this many bytes is read with its row, even if the request allows fewer. */
#define INLINE_MIN 4096

/* ---- reading ---- */

int64_t db_fresh_inline(const struct claim_request *req)
{
    size_t each = req->max_bytes / (req->max_events ? req->max_events : 1);
    return each > INLINE_MIN ? (int64_t)each : INLINE_MIN;
}

int db_fresh_payload(struct turn *t, struct event *ev, struct error *err)
{
    struct db_rows q;
    bool ok = true;
    int r = db_row(t->st, &q, err, SQL(payload_of, .seq = ev->seq));
    if (r < 0)
        return -1;
    if (r == 0)
        return err_class(err, ERR_CONFLICT, CLASS_RETRY, 0,
                         "%s: event %lld was deleted while it was being read", db_of(t->st)->shown,
                         (long long)ev->seq);
    ev->payload = db_copy(&q, 0, t->a, &ok);
    db_done(&q);
    return ok ? 0 : err_nomem(err);
}

bool db_fresh_wants(const struct db_rows *q, const struct filter *f)
{
    if (!filter_type(f, db_text(q, EVENT_TYPE)))
        return false;
    bool by_payload = filter_has_where(f) && !db_null(q, EVENT_PAYLOAD);
    return !by_payload || filter_payload(f, db_text(q, EVENT_PAYLOAD));
}

/* Adds the row to c. A payload that was left out is read now, and may turn out not to match. */
static int add_row(struct turn *t, const struct db_rows *q, struct chunk *c, struct error *err)
{
    struct event *ev = &c->ev[c->n];
    const struct filter *f = t->req->filter;
    if (!db_event_row(q, t->a, ev))
        return err_nomem(err);
    if (db_null(q, EVENT_PAYLOAD)) {
        if (db_fresh_payload(t, ev, err) != 0)
            return -1;
        if (filter_has_where(f) && !filter_payload(f, ev->payload))
            return 0;
    }
    c->bytes += event_bytes(ev);
    c->n++;
    return 0;
}

int db_fresh_add(struct turn *t, struct db_rows *q, int lane, size_t max, struct chunk *c,
                 struct error *err)
{
    const struct claim_request *req = t->req;
    bool one_of_several = req->lanes > 1 && lane != STORE_ALL_LANES;
    int r = q->at ? 0 : -1;
    while (r == 0 && c->n < max && c->bytes < req->max_bytes) {
        int row = db_step(q, err);
        if (row <= 0)
            return row;
        c->to = db_int(q, EVENT_SEQ);
        c->scanned++;

        /* The row is checked in place, so that skipped events are never copied. */
        bool wanted = true;
        if (one_of_several) {
            uint64_t key = event_key(db_text(q, EVENT_AGGREGATE_TYPE),
                                     db_text(q, EVENT_AGGREGATE_ID));
            wanted = event_lane(key, c->to, req->lanes) == lane;
        }
        if (wanted && db_fresh_wants(q, req->filter))
            r = add_row(t, q, c, err);
    }
    db_done(q);
    return r;
}

/* ---- the position of a lane ---- */

int db_fresh_first(const struct claim_request *req)
{
    return req->lane_hint % req->lanes;
}

int db_fresh_find(struct turn *t, int lane, struct error *err)
{
    if (t->found.known && t->found.lane == lane)
        return 0;
    struct db_rows q;
    int r = db_row(t->st, &q, err, SQL(lane_found, .consumer = t->consumer, .lane = lane));
    if (r < 0)
        return -1;
    if (r == 0)
        return err_class(err, ERR_CONFIG, CLASS_RETRY, 0,
                         "%s: consumer \"%s\" has lost its position: its row for lane %d in table "
                         "outbox_lane is missing; restore the row, or run `outbox consumers "
                         "remove %s` and start the consumer again where you want it to begin",
                         db_of(t->st)->shown, t->consumer, lane, t->consumer);
    t->found = (struct found){true, lane, db_int(&q, 0), db_int(&q, 1) != 0};
    db_done(&q);
    return 0;
}

bool db_fresh_unparked(const struct turn *t)
{
    return t->found.known && !t->found.parked;
}

bool db_fresh_lane_free(struct turn *t, int lane)
{
    bool is_free = true;
    if (t->req->order == ORDER_NONE)
        return true;
    for (size_t i = 0; i < t->n_claims; i++) {
        if (!db_claim_blocks(&t->claims[i], lane))
            continue;
        t->hint->busy = true;
        is_free = false;
        if (t->claims[i].until > t->now)
            db_claim_wait(t, t->claims[i].until);
    }
    return is_free;
}

/* ---- claiming ---- */

/* Queries for n events, up to DB_TOGETHER, whether an event of their key is parked. */
static int ask_held(struct turn *t, struct event *ev, size_t n, struct error *err)
{
    struct sql_key_parked args[DB_TOGETHER];
    struct db_question ask[DB_TOGETHER] = {0};
    struct db_rows q[DB_TOGETHER];
    int r = 0;
    for (size_t i = 0; i < n; i++) {
        args[i] = (struct sql_key_parked){.consumer = t->consumer, .key = (int64_t)ev[i].key};
        ask[i] = (struct db_question){&sql_key_parked, &args[i]};
    }
    if (db_ask_all(t->st, ask, n, q, err) != 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        int held = r < 0 ? 0 : db_step(&q[i], err);
        if (held < 0)
            r = -1;
        ev[i].behind = held == 1 && ev[i].key != 0;
        db_done(&q[i]);
    }
    return r;
}

/* Flags the events of the batch that may not be delivered yet. */
static int mark_held(struct turn *t, struct error *err)
{
    struct event *ev = t->b->ev;
    size_t n = t->b->n, together = t->st->ops->driver->together;
    for (size_t i = 0; i < n; i++)
        ev[i].delayed = ev[i].not_before > t->now;
    if (t->req->order != ORDER_KEY)
        return 0;
    if (!t->found.known && db_fresh_find(t, db_fresh_first(t->req), err) != 0)
        return -1;
    if (!t->found.parked)
        return 0;

    struct held_keys *held;
    if (held_keys_read(t->st, t->consumer, n, &held, err) != 0)
        return -1;
    if (held && held->whole) {
        for (size_t i = 0; i < n; i++)
            ev[i].behind = held_keys_may(held, (int64_t)ev[i].key);
        return 0;
    }
    for (size_t i = 0; i < n; i += together)
        if (ask_held(t, &ev[i], min_size(n - i, together), err) != 0)
            return -1;
    return 0;
}

int db_fresh_claim_after(struct turn *t, int lane, int64_t position, struct error *err)
{
    struct chunk c;
    bool all = lane == STORE_ALL_LANES;
    if (t->st->ops->driver->read_fresh(t, lane, position, &c, err) != 0)
        return -1;
    if (c.scanned == 0)
        return 0;

    if (db_later(t->st, err,
                 SQL(move_position, .consumer = t->consumer, .lane = all ? 0 : lane,
                     .position = c.to)) != 0)
        return -1;
    if (all &&
        db_later(t->st, err, SQL(move_others, .consumer = t->consumer, .position = c.to)) != 0)
        return -1;
    t->hint->skipped += c.scanned - c.n;
    if (c.n == 0)
        return 0;

    *t->b = (struct batch){.ev = c.ev, .n = c.n, .lane = lane, .from = position, .to = c.to};
    if (mark_held(t, err) != 0)
        return -1;
    return db_claim_record(t, err);
}

int db_fresh_claim(struct turn *t, struct error *err)
{
    const struct db_driver *d = t->st->ops->driver;
    bool done = false;
    if (d->claim_all_lanes && d->claim_all_lanes(t, &done, err) != 0)
        return -1;
    for (int i = 0; !done && i < t->req->lanes && t->b->n == 0; i++) {
        int lane = (t->req->lane_hint + i) % t->req->lanes;
        if (!db_fresh_lane_free(t, lane))
            continue;
        if (db_fresh_find(t, lane, err) != 0)
            return -1;
        bool held_up = t->req->order == ORDER_GLOBAL && t->found.parked;
        if (!held_up && db_fresh_claim_after(t, lane, t->found.position, err) != 0)
            return -1;
    }
    return 0;
}
