/* ahead.c: reading ahead of the claims. The server sends the events of a window as one stream, on a
 * separate connection, and each claim takes a chunk off it. The rest waits in the socket: no event
 * is requested twice or discarded, and no query is cancelled, however large events are. */
#include <stdlib.h>

#include "base/num.h"
#include "store/postgres/postgres.h"

/* Reading ahead is worth a second connection if the window has this many numbers left, or more than
 * fit into one claim. */
#define AHEAD_MIN 1000

/* A stream is at least as long as a claim may be, and longer if it is read quickly, because
 * starting one has a cost. An open one holds back vacuum. */
#define STREAM_CLAIMS 16
#define STREAM_QUICK (100 * MS_NS)
#define STREAM_SLOW (1000 * MS_NS)

/* How many events, bytes of payloads and numbers to read for a chunk, if the filter matches few of
 * them. */
#define LOOK_EVENTS 4096
#define LOOK_BYTES ((size_t)8 * 1024 * 1024)
#define LOOK_NUMBERS (4 * LOOK_EVENTS)

static void begin_chunk(struct pg_ahead *h)
{
    arena_reset(&h->a);
    h->c = (struct pg_chunk){0};
    h->from = h->to;
}

static void stop_stream(struct pg_store *st)
{
    struct pg_ahead *h = &st->ahead;
    if (h->stream.open)
        pg_stop(st, PG_READER);
    h->stream.open = false;
    h->stream.claims = 1;
}

void pg_ahead_forget(struct pg_store *st)
{
    stop_stream(st);
    st->ahead.on = false;
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

/* The part (from, to] of the window read ahead. */
static struct pg_window window_of(const struct pg_ahead *h, int64_t from, int64_t to)
{
    return (struct pg_window){.seen = h->seen,
                              .target = h->target,
                              .floor = h->floor,
                              .from = from,
                              .to = to,
                              .end = h->end};
}

/* ---- the stream ---- */

/* Requests the events after h->to, if enough is left of the window. A failure is harmless: the
 * events are read later. */
static bool open_stream(struct pg_store *st, const struct claim_request *req)
{
    struct pg_ahead *h = &st->ahead;
    int64_t left = h->end - h->to;
    int64_t least = AHEAD_MIN;
    if (st->row_bytes > 0)
        least = min_i64(least, (int64_t)(req->max_bytes / st->row_bytes) + 1);
    if (left < least)
        return false;

    /* Rolled back transactions leave gaps in the numbers. If the server filters events, it must not
     * search for long. */
    size_t rows = h->stream.claims * req->max_events;
    int64_t span = 4 * (int64_t)rows;
    bool leaves_out = !pg_all_lanes(h->members, req->lanes) || filter_has_types(req->filter);
    if (leaves_out)
        span = min_i64(span, LOOK_NUMBERS);

    struct pg_window w = window_of(h, h->to, h->to + min_i64(span, left));
    if (pg_window_send(st, PG_READER, req, h->members, &w, rows, NULL) != 0)
        return false;
    h->stream.open = true;
    h->stream.to = w.to;
    h->stream.left = rows;
    h->stream.sent_at = clock_mono(st->opt.clock);
    return true;
}

/* Notes that the stream was read to its end. */
static void stream_ended(struct pg_store *st)
{
    struct pg_ahead *h = &st->ahead;
    bool was_all = h->stream.left > 0;
    bool quick = clock_mono(st->opt.clock) - h->stream.sent_at < STREAM_QUICK;
    if (was_all)
        h->to = h->stream.to;
    h->stream.open = false;
    if (!quick)
        h->stream.claims = 1;
    else if (h->stream.claims < STREAM_CLAIMS)
        h->stream.claims *= 2;
}

/* Takes rows off the stream until the chunk is full. Returns -1 if the connection can no longer be
 * used. */
static int read_stream(struct pg_store *st, const struct claim_request *req,
                       const struct pg_chunk_limits *max)
{
    struct pg_ahead *h = &st->ahead;
    size_t before = h->c.scanned;
    int more = pg_read_chunk(st, PG_READER, req->filter, max, &h->a, &h->c, NULL);
    if (more < 0)
        return -1;
    h->stream.left -= h->c.scanned - before;
    if (h->c.scanned > before)
        h->to = h->c.last;
    if (more == 0)
        stream_ended(st);
    return 0;
}

/* ---- chunks ---- */

void pg_ahead_fill(struct pg_store *st, const struct claim_request *req)
{
    struct pg_ahead *h = &st->ahead;
    struct pg_chunk_limits max = {.bytes = req->max_bytes,
                                  .events = req->max_events,
                                  .scanned = LOOK_EVENTS,
                                  .passed_bytes = LOOK_BYTES};
    while (h->on && !pg_chunk_full(&h->c, &max)) {
        bool far_enough = h->to >= h->end || h->to - h->from >= LOOK_NUMBERS;
        if (far_enough || (!h->stream.open && !open_stream(st, req)))
            break;
        if (read_stream(st, req, &max) != 0)
            pg_reader_close(st);
    }
    if (!h->on)
        return;
    pg_note_size(st, &h->c);
    if (!h->stream.open)
        open_stream(st, req);
}

void pg_ahead_start(struct pg_store *st, const struct claim_request *req, const struct batch *b,
                    int64_t members, const struct pg_window *w)
{
    struct pg_ahead *h = &st->ahead;
    pg_ahead_forget(st);
    if (!keep_text(&h->seen, w->seen) || !keep_text(&h->target, w->target))
        return;
    memcpy(h->consumer, req->consumer, strlen(req->consumer) + 1);
    h->filter = req->filter;
    h->lane = b->lane;
    h->members = members;
    h->floor = w->floor;
    h->end = w->end;
    h->to = w->to;
    begin_chunk(h);
    h->on = open_stream(st, req);
}

/* Swaps the arena with the events for an empty one. */
static void swap_arenas(struct arena *a, struct arena *b)
{
    struct arena was = *a;
    *a = *b;
    *b = was;
}

bool pg_ahead_take(struct pg_store *st, const struct claim_request *req, struct arena *a,
                   struct pg_chunk *ret, struct pg_window *ret_w)
{
    struct pg_ahead *h = &st->ahead;
    if (!h->on)
        return false;
    bool same = h->filter == req->filter && strcmp(h->consumer, req->consumer) == 0;
    bool usable = same && a->used == 0;
    if (usable && !h->kept.there)
        pg_ahead_fill(st, req);

    if (usable && h->kept.there && h->kept.c.n <= req->max_events) {
        swap_arenas(&h->kept.a, a);
        h->kept.there = false;
        *ret = h->kept.c;
        *ret_w = window_of(h, h->kept.from, h->kept.to);
    } else if (usable && !h->kept.there && h->on && h->to > h->from && h->c.n <= req->max_events) {
        swap_arenas(&h->a, a);
        *ret = h->c;
        *ret_w = window_of(h, h->from, h->to);
        begin_chunk(h);
    } else {
        pg_ahead_forget(st);
        return false;
    }

    bool slow = clock_mono(st->opt.clock) - h->stream.sent_at > STREAM_SLOW;
    if (slow)
        stop_stream(st);
    return true;
}

void pg_ahead_keep(struct pg_store *st, struct arena *a, const struct pg_chunk *c,
                   const struct pg_window *w)
{
    struct pg_ahead *h = &st->ahead;
    arena_reset(&h->kept.a);
    swap_arenas(&h->kept.a, a);
    h->kept.there = true;
    h->kept.c = *c;
    h->kept.from = w->from;
    h->kept.to = w->to;
}
