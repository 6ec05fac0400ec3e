/* claim_fresh.c: handing out the events after a lane's position. */
#include "store/sqlite/claim.h"
#include "store/sqlite/held_keys.h"
#include "store/sqlite/window.h"
#include "store_sql.h"

/* ---- reading ---- */

bool sqlite_fresh_wanted(sqlite3_stmt *q, const struct filter *filter)
{
    if (!filter_type(filter, sqlite_text(q, 2)))
        return false;
    return !filter_has_where(filter) || filter_payload(filter, sqlite_text(q, 6));
}

/* wanted looks at the row in place, so that events that are skipped are never copied. */
static bool wanted(sqlite3_stmt *q, const struct claim_request *req, int lane)
{
    bool one_of_several = req->lanes > 1 && lane != STORE_ALL_LANES;
    if (one_of_several) {
        uint64_t key = event_key(sqlite_text(q, 3), sqlite_text(q, 4));
        if (event_lane(key, sqlite3_column_int64(q, 0), req->lanes) != lane)
            return false;
    }
    return sqlite_fresh_wanted(q, req->filter);
}

int sqlite_fresh_read(struct claiming *k, sqlite3_stmt *q, int lane, size_t max, struct chunk *c,
                      struct error *err)
{
    size_t bytes = 0;
    c->ev = arena_alloc(k->a, max * sizeof *c->ev);
    if (!c->ev) {
        sqlite3_reset(q);
        return err_nomem(err);
    }
    while (c->n < max && bytes < k->req->max_bytes) {
        int r = sqlite_step(k->st, q, err);
        if (r <= 0)
            return r;
        c->to = sqlite3_column_int64(q, 0);
        c->scanned++;
        if (!wanted(q, k->req, lane))
            continue;
        if (!sqlite_event_row(q, k->a, &c->ev[c->n])) {
            sqlite3_reset(q);
            return err_nomem(err);
        }
        bytes += event_bytes(&c->ev[c->n]);
        c->n++;
    }
    sqlite3_reset(q);
    return 0;
}

static int read_after(struct claiming *k, int lane, int64_t from, struct chunk *ret,
                      struct error *err)
{
    size_t most = k->req->max_events;
    size_t scan = most > SQLITE_SCAN_MIN ? most : SQLITE_SCAN_MIN;
    *ret = (struct chunk){.lane = lane, .from = from, .to = from};
    sqlite3_stmt *q = sqlite_rows(k->st, err,
                                  SQL(fresh_events, .position = from, .max = (int64_t)scan));
    return sqlite_fresh_read(k, q, lane, k->req->max_events, ret, err);
}

/* lane_position reads how far a lane is; -1: its row is gone. */
static int lane_position(struct claiming *k, int lane, int64_t *ret, struct error *err)
{
    *ret = -1;
    return sqlite_value(k->st, err, ret,
                        SQL(lane_position, .consumer = k->req->consumer, .lane = lane));
}

/* sqlite_fresh_prefetch reads before the write lock is taken, so that producers need not wait for
 * it. Events never change and seq is commit order, so what was read is still right if the position
 * is still the same under the lock. */
int sqlite_fresh_prefetch(struct claiming *k, struct error *err)
{
    int64_t position;
    if (sqlite_lanes_together(k, &position, err) != 0)
        return -1;
    if (position >= 0)
        return read_after(k, STORE_ALL_LANES, position, &k->ahead, err);
    if (lane_position(k, k->req->lane_hint, &position, err) != 0)
        return -1;
    if (position < 0)
        return 0;

    bool read;
    if (sqlite_window_read(k, k->req->lane_hint, position, &k->ahead, &read, err) != 0)
        return -1;
    if (read)
        return 0;
    if (read_after(k, k->req->lane_hint, position, &k->ahead, err) != 0)
        return -1;
    sqlite_window_note(k, &k->ahead);
    return 0;
}

/* ---- claiming ---- */

/* lane_free says whether the caller may take fresh events of the lane now, or of all lanes. Where
 * order matters, a lane belongs to one worker at a time. That worker may hold several claims of it
 * if it knows of all of them: a claim whose answer got lost, or that ran out and could not be taken
 * over yet, holds events that must go first. With a global order nothing may be parked, either. */
static int lane_free(struct claiming *k, int lane, bool *ret, struct error *err)
{
    *ret = true;
    if (k->req->order == ORDER_NONE)
        return 0;

    int r;
    sqlite3_stmt *q = sqlite_rows(
        k->st, err,
        SQL(lane_claims, .consumer = k->req->consumer, .lane = lane, .owner = k->req->owner));
    while ((r = sqlite_step(k->st, q, err)) == 1) {
        if (sqlite_claim_known(k->req, sqlite3_column_int64(q, 0)))
            continue;
        k->hint->busy = true;
        sqlite_claim_wait(k, sqlite3_column_int64(q, 1));
        *ret = false;
    }
    if (r < 0)
        return -1;

    if (k->req->order != ORDER_GLOBAL)
        return 0;
    int64_t parked = 0;
    if (sqlite_value(k->st, err, &parked, SQL(any_parked, .consumer = k->req->consumer)) != 0)
        return -1;
    if (parked)
        *ret = false;
    return 0;
}

/* mark_behind flags a fresh event of a key that has parked events. */
static int mark_behind(struct claiming *k, const struct held_keys *h, struct event *ev,
                       struct error *err)
{
    int64_t held = 0, key = (int64_t)ev->key;
    if (key == 0)
        return 0;
    if (h && h->whole) {
        ev->behind = held_keys_may(h, key);
        return 0;
    }
    if (sqlite_value(k->st, err, &held,
                     SQL(key_parked, .consumer = k->req->consumer, .key = key)) != 0)
        return -1;
    ev->behind = held != 0;
    return 0;
}

/* mark_held flags the events that may not be delivered yet. */
static int mark_held(struct claiming *k, struct error *err)
{
    for (size_t i = 0; i < k->b->n; i++)
        k->b->ev[i].delayed = k->b->ev[i].not_before > k->now;
    if (k->req->order != ORDER_KEY)
        return 0;

    int64_t any = 0;
    if (sqlite_value(k->st, err, &any, SQL(any_parked, .consumer = k->req->consumer)) != 0)
        return -1;
    if (!any)
        return 0;
    struct held_keys *held;
    int r = held_keys_read(k->st, k->req->consumer, k->b->n, &held, err);
    for (size_t i = 0; i < k->b->n && r == 0; i++)
        r = mark_behind(k, held, &k->b->ev[i], err);
    return r;
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

/* is_right says whether a chunk that was read before the lock was taken is what a read would give
 * now: the position is the same, and if it was read long before, its numbers are. */
static int is_right(struct claiming *k, const struct chunk *ahead, int64_t position, bool *ret,
                    struct error *err)
{
    *ret = ahead->scanned && ahead->from == position;
    if (!*ret || !ahead->to_id[0])
        return 0;
    sqlite3_stmt *q;
    int r = sqlite_row(k->st, &q, err, SQL(event_id, .seq = ahead->to));
    if (r < 0)
        return -1;
    *ret = r == 1 && str_is(sqlite_text(q, 0), ahead->to_id);
    sqlite3_reset(q);
    if (!*ret)
        sqlite_window_forget(k->st);
    return 0;
}

/* read_now reads under the lock: what the window has, if that is right, or what there is. */
static int read_now(struct claiming *k, int lane, int64_t position, struct chunk *ret,
                    struct error *err)
{
    bool read, right = false;
    if (lane == STORE_ALL_LANES)
        return read_after(k, lane, position, ret, err);
    if (sqlite_window_read(k, lane, position, ret, &read, err) != 0)
        return -1;
    if (read && is_right(k, ret, position, &right, err) != 0)
        return -1;
    if (right)
        return 0;
    return read_after(k, lane, position, ret, err);
}

/* move moves a lane, or all of them, past what was looked at. */
static int move(struct claiming *k, const struct chunk *c, struct error *err)
{
    const char *consumer = k->req->consumer;
    bool all = c->lane == STORE_ALL_LANES;
    int lane = all ? 0 : c->lane;
    if (sqlite_run(k->st, err,
                   SQL(move_position, .consumer = consumer, .lane = lane, .position = c->to)) != 0)
        return -1;
    if (!all)
        return 0;
    return sqlite_run(k->st, err, SQL(move_others, .consumer = consumer, .position = c->to));
}

/* claim_after claims fresh events of a lane, or of all of them, after the position where it stands.
 * That moves past skipped events even if none is wanted. */
static int claim_after(struct claiming *k, int lane, int64_t position, struct error *err)
{
    struct chunk c;
    bool still_right = false;
    if (k->ahead.lane == lane && is_right(k, &k->ahead, position, &still_right, err) != 0)
        return -1;
    if (still_right)
        c = k->ahead;
    else if (read_now(k, lane, position, &c, err) != 0)
        return -1;
    if (c.scanned == 0)
        return 0;

    if (move(k, &c, err) != 0)
        return -1;
    k->hint->skipped += c.scanned - c.n;
    if (c.n == 0)
        return 0;

    *k->b = (struct batch){.ev = c.ev, .n = c.n, .lane = lane, .from = position, .to = c.to};
    if (mark_held(k, err) != 0)
        return -1;
    return sqlite_claim_record(k, err);
}

/* claim_lane claims fresh events of one lane. */
static int claim_lane(struct claiming *k, int lane, struct error *err)
{
    bool ours;
    int64_t position;
    if (lane_free(k, lane, &ours, err) != 0)
        return -1;
    sqlite_window_lane(k, lane, ours);
    if (!ours)
        return 0;
    if (lane_position(k, lane, &position, err) != 0)
        return -1;
    if (position < 0)
        return say_lost(k, lane, err);
    return claim_after(k, lane, position, err);
}

/* claim_together claims fresh events of all lanes at once. *ret_may is false, and nothing is
 * claimed, if they don't stand together, or another worker has one of them. */
static int claim_together(struct claiming *k, bool *ret_may, struct error *err)
{
    int64_t position;
    *ret_may = false;
    if (sqlite_lanes_together(k, &position, err) != 0)
        return -1;
    if (position < 0)
        return 0;
    if (lane_free(k, STORE_ALL_LANES, ret_may, err) != 0)
        return -1;
    if (!*ret_may)
        return 0;
    sqlite_window_forget(k->st);
    return claim_after(k, STORE_ALL_LANES, position, err);
}

int sqlite_fresh_claim(struct claiming *k, struct error *err)
{
    bool together;
    if (claim_together(k, &together, err) != 0)
        return -1;
    if (together)
        return 0;
    for (int i = 0; i < k->req->lanes && k->b->n == 0; i++) {
        int lane = (k->req->lane_hint + i) % k->req->lanes;
        if (claim_lane(k, lane, err) != 0)
            return -1;
    }
    return 0;
}
