/* window.c: reading fresh events, and keeping them for several lanes.
 *
 * A turn reads before it takes the write lock, so that producers need not wait for it. Events never
 * change and seq is commit order, so the result is still valid if the position is unchanged under
 * the lock.
 *
 * All lanes pass through the same events, and each wants its share of them. A worker with several
 * lanes keeps the events it has read, within a bound on memory, so that the claims of the other
 * lanes find theirs there. Events of lanes that other workers hold are not kept. */
#include <stdio.h>
#include <stdlib.h>

#include "store/sqlite/sqlite.h"
#include "store_sql.h"

#define WINDOW_BYTES ((size_t)4 * 1024 * 1024)
#define LANE_BYTES ((size_t)256 * 1024) /* more for each lane, so that each has a batch */
#define WINDOW_SCAN 50000               /* rows that one claim reads at most */
#define PIECE_ROWS 1000
#define WINDOW_FROM 16 /* with fewer events left for a lane, reading them separately is cheaper */
#define PIECE_BYTES ((size_t)512 * 1024)
#define LANES_MAX 64

/* An event of the window. */
struct row {
    struct event ev;
    struct row *next; /* in the same lane and piece */
    size_t rank;      /* number of rows of the piece up to this one, including unwanted ones */
};

/* Rows that were read together. (1) They are those in (from, to] that match the filter and one of
 * `lanes`, in order. (2) The rows of each lane are chained from `first` on: scanning all rows for
 * each lane would take longer than reading them. */
struct piece {
    struct piece *next;
    struct arena a;
    struct row *rows;
    struct row *first[LANES_MAX], *last[LANES_MAX];
    size_t n, scanned, bytes;
    uint64_t lanes; /* bit n: lane n */
    int64_t from, to;
    char to_id[UUID_TEXT + 1];
    bool astray;
};

/* (1) Each piece begins where the one before it ends. (2) All are read for this consumer, with
 * these settings. */
struct sqlite_window {
    struct arena a; /* owns the strings */
    const char *consumer, *events, *where;
    int n_lanes;
    uint64_t lanes;        /* lanes that no other worker holds */
    int64_t at[LANES_MAX]; /* how far each lane was read; 0: not yet */
    struct piece *first, *last;
    size_t bytes;
    bool behind; /* a backlog exists */
    bool astray; /* events were renumbered since it was read */
};

static uint64_t bit(int lane)
{
    return UINT64_C(1) << lane;
}

/* ---- pieces ---- */

static void piece_free(struct piece *p)
{
    arena_release(&p->a);
    free(p);
}

/* Drops pieces that end at or before `seq`, while there are more than `most` bytes. */
static void drop_past(struct sqlite_window *w, int64_t seq, size_t most)
{
    while (w->bytes >= most && w->first && w->first->to <= seq) {
        struct piece *p = w->first;
        w->first = p->next;
        if (!w->first)
            w->last = NULL;
        w->bytes -= p->bytes;
        piece_free(p);
    }
}

static void drop_all(struct sqlite_window *w)
{
    drop_past(w, INT64_MAX, 0);
}

/* Adds the row of q to a piece, if it is wanted. */
static bool piece_row(struct piece *p, const struct claim_request *req, const struct db_rows *q)
{
    int64_t seq = db_int(q, EVENT_SEQ);
    uint64_t key = event_key(db_text(q, EVENT_AGGREGATE_TYPE), db_text(q, EVENT_AGGREGATE_ID));
    int lane = event_lane(key, seq, req->lanes);
    p->to = seq;
    p->scanned++;
    bool ours = (p->lanes & bit(lane)) != 0;
    if (!ours || !db_fresh_wants(q, req->filter))
        return true;

    struct row *row = &p->rows[p->n];
    if (!db_event_row(q, &p->a, &row->ev))
        return false;
    row->next = NULL;
    row->rank = p->scanned;
    if (p->last[lane])
        p->last[lane]->next = row;
    else
        p->first[lane] = row;
    p->last[lane] = row;
    p->bytes += event_bytes(&row->ev);
    p->n++;
    return true;
}

/* Reads rows into a piece until it is full or there are no more. `before` is the previous piece,
 * NULL if there is none; p->astray: its last event is no longer there. */
static int piece_fill(struct turn *t, struct piece *p, const struct piece *before,
                      struct error *err)
{
    int overlap = before ? 1 : 0;
    struct db_rows q = db_rows(
        t->st, err, SQL(fresh_events, .position = p->from - overlap, .max = PIECE_ROWS + overlap));
    int r = 1;
    if (before) {
        r = db_step(&q, err);
        bool same_end = r == 1 && db_int(&q, EVENT_SEQ) == before->to &&
                        str_is(db_text(&q, EVENT_ID), before->to_id);
        p->astray = r >= 0 && !same_end;
    }
    while (r == 1 && !p->astray && p->bytes < PIECE_BYTES) {
        r = db_step(&q, err);
        if (r != 1)
            break;
        if (!piece_row(p, t->req, &q))
            r = err_nomem(err);
        struct str id = db_text(&q, EVENT_ID);
        bool valid = id.n == UUID_TEXT;
        snprintf(p->to_id, sizeof p->to_id, "%s", valid ? id.p : "");
    }
    db_done(&q);
    return r < 0 ? -1 : 0;
}

/* Appends a piece with the rows after `from` to the window. *ret is NULL if there are none. */
static int read_piece(struct turn *t, struct sqlite_window *w, int64_t from, struct piece **ret,
                      struct error *err)
{
    struct piece *p = calloc(1, sizeof *p);
    *ret = NULL;
    if (!p)
        return err_nomem(err);
    *p = (struct piece){.lanes = w->lanes, .from = from, .to = from};
    arena_init(&p->a, 0);
    p->rows = arena_alloc(&p->a, PIECE_ROWS * sizeof *p->rows);
    int r = p->rows ? piece_fill(t, p, w->last, err) : err_nomem(err);
    w->astray = p->astray;
    if (r != 0 || p->scanned == 0) {
        piece_free(p);
        return r;
    }
    if (w->last)
        w->last->next = p;
    else
        w->first = p;
    w->last = p;
    w->bytes += p->bytes;
    *ret = p;
    return 0;
}

/* ---- the window ---- */

static bool is_for(const struct sqlite_window *w, const struct claim_request *req)
{
    const char *events = req->events ? req->events : "";
    const char *where = req->where ? req->where : "";
    if (w->n_lanes != req->lanes || strcmp(w->consumer, req->consumer) != 0)
        return false;
    return strcmp(w->events, events) == 0 && strcmp(w->where, where) == 0;
}

void sqlite_window_forget(struct sqlite_store *st)
{
    struct sqlite_window *w = st->window;
    if (!w)
        return;
    drop_all(w);
    arena_release(&w->a);
    free(w);
    st->window = NULL;
}

/* Returns the handle's window for this request. NULL: it has none, or memory ran out. */
static struct sqlite_window *window_of(const struct turn *t)
{
    struct sqlite_store *st = sqlite_of(t->st);
    const struct claim_request *req = t->req;
    bool of_use = req->lanes > 1 && req->lanes <= LANES_MAX;
    if (!of_use)
        return NULL;
    if (st->window && is_for(st->window, req))
        return st->window;
    sqlite_window_forget(st);
    st->window = calloc(1, sizeof *st->window);
    struct sqlite_window *w = st->window;
    if (!w)
        return NULL;
    const char *events = req->events ? req->events : "", *where = req->where ? req->where : "";
    w->consumer = arena_bytes(&w->a, req->consumer, strlen(req->consumer));
    w->events = arena_bytes(&w->a, events, strlen(events));
    w->where = arena_bytes(&w->a, where, strlen(where));
    w->n_lanes = req->lanes;
    w->lanes = ~UINT64_C(0);
    if (!w->consumer || !w->events || !w->where)
        sqlite_window_forget(st);
    return st->window;
}

/* ---- reading from the window ---- */

/* The state of reading for one claim. */
struct taking {
    struct turn *t;
    struct sqlite_window *w;
    struct chunk *c;
    size_t read; /* rows read from the database */
    bool full;
};

/* The number of rows of a piece up to `seq`, as far as known: up to the last wanted one. */
static size_t rank_at(const struct piece *p, int64_t seq)
{
    size_t low = 0, high = p->n;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (p->rows[mid].ev.seq <= seq)
            low = mid + 1;
        else
            high = mid;
    }
    return low > 0 ? p->rows[low - 1].rank : 0;
}

/* Adds the lane's events of a piece that follow the chunk's beginning. */
static int take_piece(struct taking *k, const struct piece *p, struct error *err)
{
    struct chunk *c = k->c;
    size_t begun = c->from > p->from ? rank_at(p, c->from) : 0;
    const struct row *last = NULL;
    for (const struct row *row = p->first[c->lane]; row && !k->full; row = row->next) {
        bool before = row->ev.seq <= c->from;
        if (before)
            continue;
        struct event *ev = &c->ev[c->n];
        *ev = row->ev;
        if (!db_event_copy(ev, k->t->a))
            return err_nomem(err);
        c->n++;
        c->bytes += event_bytes(ev);
        k->full = c->n >= k->t->req->max_events || c->bytes >= k->t->req->max_bytes;
        last = row;
    }

    /* A full chunk ends at its last event, any other at the end of the piece. */
    bool full = last && k->full;
    c->scanned += (full ? last->rank : p->scanned) - begun;
    c->to = full ? last->ev.seq : p->to;
    snprintf(c->to_id, sizeof c->to_id, "%s", full ? last->ev.id.p : p->to_id);
    return 0;
}

/* The lowest position of the lanes that the window is for. */
static int64_t lowest(const struct sqlite_window *w)
{
    int64_t low = INT64_MAX;
    for (int lane = 0; lane < w->n_lanes; lane++) {
        bool counts = (w->lanes & bit(lane)) != 0;
        if (counts && w->at[lane] < low)
            low = w->at[lane];
    }
    return low;
}

/* Reads another piece, if there is room for one. Pieces that all lanes have passed may be dropped.
 * If other lanes are behind, a lane at the end of the window still reads on, up to twice as far;
 * then pieces that it has passed may be dropped. *ret is NULL if there is no room, or there are no
 * more rows. */
static int read_on(struct taking *k, struct piece **ret, struct error *err)
{
    struct sqlite_window *w = k->w;
    *ret = NULL;
    size_t most = WINDOW_BYTES + (size_t)w->n_lanes * LANE_BYTES;
    drop_past(w, lowest(w), most);
    drop_past(w, k->c->from, 2 * most);
    bool has_some = k->c->n > 0;
    bool enough = k->read >= WINDOW_SCAN || w->bytes >= 2 * most;
    if (enough || (has_some && w->bytes >= most))
        return 0;
    int64_t end = w->last ? w->last->to : k->c->from;
    if (read_piece(k->t, w, end, ret, err) != 0)
        return -1;
    if (*ret)
        k->read += (*ret)->scanned;
    else
        w->behind = false;
    return 0;
}

/* Adds the lane's events from the window, and reads on until there are enough. */
static int take_lane_events(struct taking *k, struct error *err)
{
    struct piece *p = k->w->first;
    while (p && p->to <= k->c->from)
        p = p->next;
    while (!k->full) {
        if (!p && read_on(k, &p, err) != 0)
            return -1;
        bool not_for_it = p && (p->lanes & bit(k->c->lane)) == 0;
        if (!p || not_for_it)
            return 0;
        if (take_piece(k, p, err) != 0)
            return -1;
        p = p->next;
    }
    return 0;
}

/* Reads events of one lane after `from` from the window, extending it as needed. *ret_read is
 * false, and nothing is read, if the window is not for this lane or this position. The result is
 * valid only if the event with seq ret->to still has the id ret->to_id: events may have been
 * renumbered since the window was read. */
static int window_read(struct turn *t, int lane, int64_t from, struct chunk *ret, bool *ret_read,
                       struct error *err)
{
    struct sqlite_window *w = window_of(t);
    *ret_read = false;
    bool of_use = w && (w->behind || w->first);
    if (!of_use || (w->lanes & bit(lane)) == 0)
        return 0;
    bool before = w->first && from < w->first->from;
    if (before)
        return 0;
    bool ahead = w->last && from > w->last->to;
    if (ahead)
        drop_all(w);

    *ret = (struct chunk){.lane = lane, .from = from, .to = from};
    ret->ev = arena_alloc(t->a, t->req->max_events * sizeof *ret->ev);
    if (!ret->ev)
        return err_nomem(err);
    struct taking k = {.t = t, .w = w, .c = ret};
    if (take_lane_events(&k, err) != 0) {
        sqlite_window_forget(sqlite_of(t->st));
        return -1;
    }
    if (w->astray) {
        sqlite_window_forget(sqlite_of(t->st));
        return 0;
    }
    w->at[lane] = ret->to;
    *ret_read = ret->scanned > 0;
    if (!w->behind)
        drop_past(w, lowest(w), 0);
    return 0;
}

/* ---- reading for a claim ---- */

static int read_after(struct turn *t, int lane, int64_t from, struct chunk *ret, struct error *err)
{
    size_t most = t->req->max_events;
    size_t scan = most > FRESH_SCAN_MIN ? most : FRESH_SCAN_MIN;
    *ret = (struct chunk){.lane = lane, .from = from, .to = from};
    ret->ev = arena_alloc(t->a, most * sizeof *ret->ev);
    if (!ret->ev)
        return err_nomem(err);
    struct db_rows q = db_rows(t->st, err,
                               SQL(fresh_events, .position = from, .max = (int64_t)scan));
    return db_fresh_add(t, &q, lane, most, ret, err);
}

int sqlite_prefetch(struct turn *t, struct error *err)
{
    struct chunk *c = &t->prefetched;
    int64_t position;
    int lane = t->req->lane_hint;
    bool read;
    if (sqlite_lanes_together(t, &position, err) != 0)
        return -1;
    if (position >= 0)
        return read_after(t, STORE_ALL_LANES, position, c, err);
    if (db_value(t->st, err, &position, SQL(lane_found, .consumer = t->consumer, .lane = lane)) !=
        0)
        return -1;
    if (position < 0)
        return 0;

    if (window_read(t, lane, position, c, &read, err) != 0)
        return -1;
    if (read)
        return 0;
    if (read_after(t, lane, position, c, err) != 0)
        return -1;
    struct sqlite_window *w = window_of(t);
    if (w)
        w->behind = c->scanned >= WINDOW_FROM;
    return 0;
}

/* Returns whether a chunk read before the lock was taken is what a read would return now: the
 * position is the same and, if it was read earlier, so are the numbers. */
static int is_right(struct turn *t, const struct chunk *ahead, int64_t position, bool *ret,
                    struct error *err)
{
    *ret = ahead->scanned && ahead->from == position;
    if (!*ret || !ahead->to_id[0])
        return 0;
    struct db_rows q;
    int r = db_row(t->st, &q, err, SQL(event_id, .seq = ahead->to));
    if (r < 0)
        return -1;
    *ret = r == 1 && str_is(db_text(&q, 0), ahead->to_id);
    db_done(&q);
    if (!*ret)
        sqlite_window_forget(sqlite_of(t->st));
    return 0;
}

/* Returns the prefetched chunk or the window's, if still valid; otherwise reads. */
int sqlite_read_fresh(struct turn *t, int lane, int64_t position, struct chunk *ret,
                      struct error *err)
{
    bool right = false, read = false;
    struct sqlite_window *w = window_of(t);

    /* Note which lanes the worker may claim from. */
    if (w && t->req->order != ORDER_NONE)
        w->lanes = ~UINT64_C(0);
    for (size_t i = 0; w && t->req->order != ORDER_NONE && i < t->n_claims; i++)
        for (int l = 0; l < w->n_lanes; l++)
            if (db_claim_blocks(&t->claims[i], l))
                w->lanes &= ~bit(l);

    if (t->prefetched.lane == lane && is_right(t, &t->prefetched, position, &right, err) != 0)
        return -1;
    if (right) {
        *ret = t->prefetched;
        return 0;
    }
    if (lane == STORE_ALL_LANES)
        return read_after(t, lane, position, ret, err);
    if (window_read(t, lane, position, ret, &read, err) != 0)
        return -1;
    if (read && is_right(t, ret, position, &right, err) != 0)
        return -1;
    return right ? 0 : read_after(t, lane, position, ret, err);
}
