#include "store/sqlite/window.h"

#include <stdio.h>
#include <stdlib.h>

#include "store_sql.h"

#define WINDOW_BYTES ((size_t)4 * 1024 * 1024)
#define LANE_BYTES ((size_t)256 * 1024) /* more for each lane, so that each gets a batch */
#define WINDOW_SCAN 50000               /* rows that one claim reads at most */
#define PIECE_ROWS 1000
#define WINDOW_FROM 16 /* events that a lane finds: near their end, reading by itself is cheaper */
#define PIECE_BYTES ((size_t)512 * 1024)
#define LANES_MAX 64

/* An event of the window. */
struct row {
    struct event ev;
    struct row *next; /* of its lane, in the same piece */
    size_t rank;      /* rows of the piece up to this one, those that nobody wants included */
};

/* Rows that were read together. (1) They are those of (from, to] that the filter and one of `lanes`
 * want, in order. (2) Those of a lane are chained, from `first` on: to look at all rows for each
 * lane would take longer than to read them. */
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
    char *consumer, *events, *where;
    int n_lanes;
    uint64_t lanes;        /* those that no other worker has */
    int64_t at[LANES_MAX]; /* up to where each of them was read; 0: it was not yet */
    struct piece *first, *last;
    size_t bytes;
    bool behind; /* there is a backlog to read */
    bool astray; /* the numbers of events are others than when it was read */
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

static void drop_first(struct sqlite_window *w)
{
    struct piece *p = w->first;
    w->first = p->next;
    if (!w->first)
        w->last = NULL;
    w->bytes -= p->bytes;
    piece_free(p);
}

/* drop_past drops pieces that nothing after `seq` is in, as long as there are more than `most`
 * bytes. */
static void drop_past(struct sqlite_window *w, int64_t seq, size_t most)
{
    while (w->bytes >= most && w->first && w->first->to <= seq)
        drop_first(w);
}

static void drop_all(struct sqlite_window *w)
{
    while (w->first)
        drop_first(w);
}

/* chain appends a row to those of its lane. */
static void chain(struct piece *p, int lane, struct row *row)
{
    row->next = NULL;
    if (p->last[lane])
        p->last[lane]->next = row;
    else
        p->first[lane] = row;
    p->last[lane] = row;
}

/* piece_row adds the row of q to a piece, if anybody wants it. */
static bool piece_row(struct piece *p, const struct claim_request *req, sqlite3_stmt *q)
{
    int64_t seq = sqlite3_column_int64(q, 0);
    uint64_t key = event_key(sqlite_text(q, 3), sqlite_text(q, 4));
    int lane = event_lane(key, seq, req->lanes);
    p->to = seq;
    p->scanned++;
    bool ours = (p->lanes & bit(lane)) != 0;
    if (!ours || !sqlite_fresh_wanted(q, req->filter))
        return true;

    struct row *row = &p->rows[p->n];
    if (!sqlite_event_row(q, &p->a, &row->ev))
        return false;
    chain(p, lane, row);
    row->rank = p->scanned;
    p->bytes += event_bytes(&row->ev);
    p->n++;
    return true;
}

/* keep_id keeps the id of a row; "" if it is none. */
static void keep_id(char out[UUID_TEXT + 1], sqlite3_stmt *q)
{
    struct str id = sqlite_text(q, 1);
    size_t n = id.n == UUID_TEXT ? UUID_TEXT : 0;
    if (n > 0)
        memcpy(out, id.p, n);
    out[n] = '\0';
}

/* goes_on says whether the row of q is the end of the piece before. */
static bool goes_on(const struct piece *before, sqlite3_stmt *q)
{
    return sqlite3_column_int64(q, 0) == before->to && str_is(sqlite_text(q, 1), before->to_id);
}

/* piece_fill reads rows into a piece until it is full or there are no more. `before` is the piece
 * before it, NULL if there is none; p->astray says that its end is not there any more. */
static int piece_fill(struct claiming *k, struct piece *p, const struct piece *before,
                      struct error *err)
{
    int overlap = before ? 1 : 0;
    sqlite3_stmt *q = sqlite_rows(
        k->st, err, SQL(fresh_events, .position = p->from - overlap, .max = PIECE_ROWS + overlap));
    int r = 1;
    if (before) {
        r = sqlite_step(k->st, q, err);
        p->astray = r == 0 || (r == 1 && !goes_on(before, q));
    }
    while (r == 1 && !p->astray && p->bytes < PIECE_BYTES) {
        r = sqlite_step(k->st, q, err);
        if (r != 1)
            break;
        if (!piece_row(p, k->req, q)) {
            sqlite3_reset(q);
            return err_nomem(err);
        }
        keep_id(p->to_id, q);
    }
    sqlite3_reset(q);
    return r < 0 ? -1 : 0;
}

/* read_piece appends what comes after `from` to the window. *ret is NULL if there is nothing. */
static int read_piece(struct claiming *k, struct sqlite_window *w, int64_t from, struct piece **ret,
                      struct error *err)
{
    struct piece *p = calloc(1, sizeof *p);
    *ret = NULL;
    if (!p)
        return err_nomem(err);
    *p = (struct piece){.lanes = w->lanes, .from = from, .to = from};
    arena_init(&p->a, 0);
    p->rows = arena_alloc(&p->a, PIECE_ROWS * sizeof *p->rows);
    int r = p->rows ? piece_fill(k, p, w->last, err) : err_nomem(err);
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

static bool same(const char *a, const char *b)
{
    return strcmp(a ? a : "", b ? b : "") == 0;
}

/* is_for says whether the window was read for such a request. */
static bool is_for(const struct sqlite_window *w, const struct claim_request *req)
{
    return w->n_lanes == req->lanes && same(w->consumer, req->consumer) &&
           same(w->events, req->events) && same(w->where, req->where);
}

static void window_free(struct sqlite_window *w)
{
    drop_all(w);
    free(w->consumer);
    free(w->events);
    free(w->where);
    free(w);
}

void sqlite_window_forget(struct sqlite_store *st)
{
    if (st->window)
        window_free(st->window);
    st->window = NULL;
}

/* window_new makes an empty window for such requests; NULL: there is no memory. */
static struct sqlite_window *window_new(const struct claim_request *req)
{
    struct sqlite_window *w = calloc(1, sizeof *w);
    if (!w)
        return NULL;
    w->consumer = strdup(req->consumer);
    w->events = strdup(req->events ? req->events : "");
    w->where = strdup(req->where ? req->where : "");
    w->n_lanes = req->lanes;
    w->lanes = ~UINT64_C(0);
    if (w->consumer && w->events && w->where)
        return w;
    window_free(w);
    return NULL;
}

/* window_of gives the handle's window if it is for this request, or a new one. NULL: there is none
 * for such a request, or no memory. */
static struct sqlite_window *window_of(const struct claiming *k)
{
    struct sqlite_store *st = k->st;
    bool of_use = k->req->lanes > 1 && k->req->lanes <= LANES_MAX;
    if (!of_use)
        return NULL;
    if (st->window && !is_for(st->window, k->req))
        sqlite_window_forget(st);
    if (!st->window)
        st->window = window_new(k->req);
    return st->window;
}

void sqlite_window_lane(struct claiming *k, int lane, bool ours)
{
    struct sqlite_window *w = window_of(k);
    if (!w)
        return;
    if (ours)
        w->lanes |= bit(lane);
    else
        w->lanes &= ~bit(lane);
}

void sqlite_window_note(struct claiming *k, const struct chunk *c)
{
    struct sqlite_window *w = window_of(k);
    if (w)
        w->behind = c->scanned >= WINDOW_FROM;
}

/* ---- taking events out of it ---- */

/* What is taken for one claim. */
struct taking {
    struct claiming *k;
    struct sqlite_window *w;
    struct chunk *c;
    int lane;
    size_t bytes;
    size_t read; /* rows read from the database */
    bool full;
};

/* copy copies s to *at, with a NUL behind it, and moves *at past both. */
static void copy(struct str *s, char **at)
{
    if (!s->p)
        return;
    memcpy(*at, s->p, s->n);
    (*at)[s->n] = '\0';
    s->p = *at;
    *at += s->n + 1;
}

/* take_event copies an event for the batch. */
static bool take_event(struct taking *t, const struct event *from)
{
    struct event *ev = &t->c->ev[t->c->n];
    *ev = *from;
    struct str *texts[] = {&ev->id,      &ev->type,    &ev->aggregate_type, &ev->aggregate_id,
                           &ev->payload, &ev->headers, &ev->tenant,         &ev->idempotency_key};
    size_t n = sizeof texts / sizeof *texts, size = 0;
    for (size_t i = 0; i < n; i++)
        size += texts[i]->n + 1;
    char *at = arena_raw(t->k->a, size);
    if (!at)
        return false;
    for (size_t i = 0; i < n; i++)
        copy(texts[i], &at);

    t->c->n++;
    t->bytes += event_bytes(ev);
    t->full = t->c->n >= t->k->req->max_events || t->bytes >= t->k->req->max_bytes;
    return true;
}

static void ends_at(struct chunk *c, int64_t seq, const char *id)
{
    c->to = seq;
    snprintf(c->to_id, sizeof c->to_id, "%s", id);
}

/* rank_at returns how many rows of a piece there are up to `seq`, as far as is known: up to the
 * last one that somebody wants. */
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

/* take_piece takes the lane's events of a piece that are after the chunk's end so far. */
static int take_piece(struct taking *t, const struct piece *p, struct error *err)
{
    size_t begun = t->c->from > p->from ? rank_at(p, t->c->from) : 0;
    for (const struct row *row = p->first[t->lane]; row; row = row->next) {
        bool before = row->ev.seq <= t->c->from;
        if (before)
            continue;
        if (!take_event(t, &row->ev))
            return err_nomem(err);
        if (t->full) {
            t->c->scanned += row->rank - begun;
            ends_at(t->c, row->ev.seq, row->ev.id.p);
            return 0;
        }
    }
    t->c->scanned += p->scanned - begun;
    ends_at(t->c, p->to, p->to_id);
    return 0;
}

/* lowest returns where the last of the lanes is that the window is for. */
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

/* read_on reads another piece, if there is room for one. What all lanes are past may go. If others
 * are behind, a lane that is at the end reads on all the same, up to twice as far; then what it is
 * past may go. *ret is NULL if there is no room, or no more. */
static int read_on(struct taking *t, struct piece **ret, struct error *err)
{
    struct sqlite_window *w = t->w;
    *ret = NULL;
    size_t most = WINDOW_BYTES + (size_t)w->n_lanes * LANE_BYTES;
    drop_past(w, lowest(w), most);
    drop_past(w, t->c->from, 2 * most);
    bool has_some = t->c->n > 0;
    bool enough = t->read >= WINDOW_SCAN || w->bytes >= 2 * most;
    if (enough || (has_some && w->bytes >= most))
        return 0;
    int64_t end = w->last ? w->last->to : t->c->from;
    if (read_piece(t->k, w, end, ret, err) != 0)
        return -1;
    if (*ret)
        t->read += (*ret)->scanned;
    else
        w->behind = false;
    return 0;
}

/* take takes what the window has for the lane, and reads on until there is enough. */
static int take(struct taking *t, struct error *err)
{
    struct piece *p = t->w->first;
    while (p && p->to <= t->c->from)
        p = p->next;
    while (!t->full) {
        if (!p && read_on(t, &p, err) != 0)
            return -1;
        bool not_for_it = p && (p->lanes & bit(t->lane)) == 0;
        if (!p || not_for_it)
            return 0;
        if (take_piece(t, p, err) != 0)
            return -1;
        p = p->next;
    }
    return 0;
}

int sqlite_window_read(struct claiming *k, int lane, int64_t from, struct chunk *ret,
                       bool *ret_read, struct error *err)
{
    struct sqlite_window *w = window_of(k);
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
    ret->ev = arena_alloc(k->a, k->req->max_events * sizeof *ret->ev);
    if (!ret->ev)
        return err_nomem(err);
    struct taking t = {.k = k, .w = w, .c = ret, .lane = lane};
    if (take(&t, err) != 0) {
        sqlite_window_forget(k->st);
        return -1;
    }
    if (w->astray) {
        sqlite_window_forget(k->st);
        return 0;
    }
    w->at[lane] = ret->to;
    *ret_read = ret->scanned > 0;
    if (!w->behind)
        drop_past(w, lowest(w), 0);
    return 0;
}
