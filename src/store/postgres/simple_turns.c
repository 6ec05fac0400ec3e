/* simple_turns.c: simple turns, of one consumer or of several at once.
 * sql/postgres/internal/simple_turns.sql decides which are simple, and takes those; this file
 * selects the turns to request, and hands each consumer its share of the events. The events are
 * part of the result, or are read once for all consumers at the same position. */
#include <stdlib.h>

#include "base/json.h"
#include "base/num.h"
#include "store/postgres/postgres.h"

#define REQUEST_BYTES (64 << 20)
#define SHRINK_BYTES (1 << 20)

/* In name order, so that two relays do not deadlock. */
static const char shrink_sql[] = PG_NAMED
    "SELECT pg_catalog.count(@schema@._shrink(x.consumer, x.owner, x.epoch, x.last)) FROM "
    "(SELECT * FROM pg_catalog.json_to_recordset($1::pg_catalog.json) AS y (consumer text, "
    "owner text, epoch bigint, last bigint) ORDER BY y.consumer OFFSET 0) x";

/* One consumer's part of the call. */
struct part {
    struct batched_turn *turn;
    struct pg_answer answer;
    struct pg_chunk c; /* its events; cut: max_bytes was reached, and the rest is claimed again */
    bool shrunk;       /* the claim was cut as well */
};

/* The claims of a call, and scratch space for an event before it is known which consumers want
 * it. */
struct reading {
    struct pg_store *st;
    const PGresult *r;
    struct part *part;
    size_t n;
    const struct part *first; /* first part at the current position; it determines the window */
    struct arena look;
    struct pg_chunk looked; /* the number and size of the examined events */
};

/* ---- the call ---- */

/* Whether a request to the server is necessary. */
static bool may_be_simple(const struct batched_turn *t)
{
    const struct settlement *s = t->s;
    if (t->req->lanes != 1 || t->req->one_shot)
        return false;
    if (!s)
        return true;
    bool whole = s->n == 0 && s->release_from == 0;
    return whole && !s->b->parked && !s->b->suspect;
}

/* Whether an earlier turn is of the same consumer, by another worker. Only the first of them can be
 * taken, since both would advance the lane. */
static bool asked_before(const struct batched_turn *t, size_t i)
{
    for (size_t k = 0; k < i; k++) {
        if (strcmp(t[k].req->consumer, t[i].req->consumer) == 0)
            return true;
    }
    return false;
}

/* Returns how many events to request for a turn: no more than will fit, by the average size of
 * recent ones. Those that do not fit after all are released, in a separate statement. */
static size_t max_events_of(const struct pg_store *st, const struct claim_request *req)
{
    if (st->row_bytes == 0)
        return req->max_events;
    return min_size(req->max_bytes / st->row_bytes + 1, req->max_events);
}

/* Whether a claiming turn is the only one of this call, and its worker holds no other claim. */
static bool is_single(const struct batched_turn *t, size_t n)
{
    size_t own = t->s ? 1 : 0;
    return n == 1 && may_be_simple(t) && t->req->max_events > 0 && t->req->n_known <= own;
}

/* Requests those of n turns that may be simple. NULL without an error: none may be. */
static PGresult *ask(struct pg_store *st, enum pg_path path, const struct batched_turn *t, size_t n,
                     struct error *err)
{
    struct buf list;
    PGresult *r = NULL;
    buf_init(&list, REQUEST_BYTES);
    for (size_t i = 0; i < n; i++) {
        if (!may_be_simple(&t[i]) || asked_before(t, i))
            continue;
        struct pg_request q = {.s = t[i].s, .req = t[i].req, .max_events = t[i].req->max_events};
        if (path == PATH_BATCH)
            q.max_events = max_events_of(st, t[i].req);
        pg_request_add(&list, st, i, &q);
    }
    bool any = list.n > 0;
    if (any && pg_turn_start(st, path, &list, err) == 0)
        r = pg_finish(st, err);
    buf_release(&list);
    return r;
}

/* ---- the answer ---- */

/* Fills in the result of one turn, except for the events. */
static void fill_turn(struct pg_store *st, struct part *p)
{
    struct batched_turn *t = p->turn;
    t->made = true;
    if (pg_clock_repair_due(st, t->req)) /* and nothing is parked */
        clock_repair_done(&pg_cache_of(st, t->req)->repair, clock_mono(st->opt.clock));
    t->batch = (struct batch){0};
    t->hint = (struct claim_hint){.wait_ms = -1};
    if (p->answer.n > 0) {
        t->batch.epoch = p->answer.epoch;
        t->batch.from = p->answer.from_seq;
        t->batch.to = p->answer.to_seq;
        t->hint.quiet = p->answer.quiet;
    } else {
        t->hint.through = p->answer.through;
    }
}

/* ---- events ---- */

/* Whether two claims begin at the same position of the same window. */
static bool same_place(const struct part *a, const struct part *b)
{
    const struct pg_answer *x = &a->answer, *y = &b->answer;
    if (x->floor != y->floor || x->from_seq != y->from_seq)
        return false;
    return strcmp(x->seen, y->seen) == 0 && strcmp(x->target, y->target) == 0;
}

/* Whether a part has a claim at the current position. */
static bool has_claim_here(const struct reading *g, const struct part *p)
{
    return p->answer.n > 0 && same_place(p, g->first);
}

/* Adds the event in a row to a consumer's chunk if the filter matches. ev is the same event, for
 * the filter. */
static int offer_event(struct part *p, const PGresult *r, int row, const struct event *ev,
                       struct error *err)
{
    const struct claim_request *req = p->turn->req;
    struct pg_chunk *c = &p->c;
    if (c->cut || ev->seq > p->answer.to_seq)
        return 0;
    if (c->bytes >= req->max_bytes && c->scanned > 0) {
        c->cut = true;
        return 0;
    }
    c->last = ev->seq;
    c->scanned++;
    bool wanted = filter_type(req->filter, ev->type) && filter_payload(req->filter, ev->payload);
    if (!wanted)
        return 0;
    if (pg_chunk_add(c, r, row, p->turn->a, err) != 0)
        return -1;
    struct event *kept = &c->ev[c->n - 1];
    kept->delayed = kept->not_before > p->answer.now_ms;
    return 0;
}

/* Offers an event to every consumer at this position. */
static int offer_row(struct reading *g, const PGresult *r, int row, struct error *err)
{
    struct event ev;
    arena_reset(&g->look);
    if (!pg_event_row(r, row, &g->look, &ev))
        return err_nomem(err);
    g->looked.n++;
    g->looked.bytes += event_bytes(&ev);
    for (size_t i = 0; i < g->n; i++) {
        struct part *p = &g->part[i];
        if (has_claim_here(g, p) && offer_event(p, r, row, &ev, err) != 0)
            return -1;
    }
    return 0;
}

/* Whether no consumer at this position has room for more. */
static bool all_cut(const struct reading *g)
{
    for (size_t i = 0; i < g->n; i++) {
        if (has_claim_here(g, &g->part[i]) && !g->part[i].c.cut)
            return false;
    }
    return true;
}

/* Reads the events of one window for all consumers that have claimed in it. */
static int read_place(struct reading *g, struct error *err)
{
    const struct pg_answer *at = &g->first->answer;
    struct pg_window w = {
        .seen = at->seen, .target = at->target, .floor = at->floor, .from = at->from_seq};
    for (size_t i = 0; i < g->n; i++) {
        if (has_claim_here(g, &g->part[i]) && g->part[i].answer.to_seq > w.to)
            w.to = g->part[i].answer.to_seq;
    }
    if (pg_window_send(g->st, PG_MAIN, NULL, 0, &w, SIZE_MAX >> 1, err) != 0)
        return -1;

    PGresult *row;
    int more;
    while ((more = pg_next_row(g->st, PG_MAIN, &row, err)) == 1) {
        int result = offer_row(g, row, 0, err);
        PQclear(row);
        if (result != 0 || all_cut(g)) {
            pg_stop(g->st, PG_MAIN);
            return result;
        }
    }
    return more;
}

/* Whether the events of an earlier claim at the same position have been read. */
static bool read_before(const struct reading *g, size_t i)
{
    for (size_t k = 0; k < i; k++) {
        if (g->part[k].answer.n > 0 && same_place(&g->part[k], &g->part[i]))
            return true;
    }
    return false;
}

/* Reads the events of all claims, from the result or by a query. */
static int read_events(struct reading *g, struct error *err)
{
    for (size_t i = 0; i < g->n; i++) {
        const struct pg_answer *a = &g->part[i].answer;
        if (a->n == 0 || read_before(g, i))
            continue;
        g->first = &g->part[i];
        if (!a->has_events) {
            if (read_place(g, err) != 0)
                return -1;
            continue;
        }
        for (int k = 0; k < a->rows && !all_cut(g); k++) {
            if (offer_row(g, g->r, a->row + k, err) != 0)
                return -1;
        }
    }
    return 0;
}

/* ---- claims that are not handed out as made ---- */

/* Shortens the claims whose events did not fit into memory, in one transaction. If that fails, each
 * separately. */
static void shrink_all(struct pg_store *st, struct part *part, size_t n)
{
    struct error ignored;
    struct buf b;
    size_t cut = 0;
    buf_init(&b, SHRINK_BYTES);
    buf_addc(&b, '[');
    for (size_t i = 0; i < n; i++) {
        const struct part *p = &part[i];
        if (!p->c.cut)
            continue;
        if (cut++ > 0)
            buf_addc(&b, ',');
        buf_addf(&b, "{\"epoch\":%lld,\"last\":%lld", (long long)p->turn->batch.epoch,
                 (long long)p->c.last);
        buf_adds(&b, ",\"consumer\":");
        json_quote(&b, str_of(p->turn->req->consumer));
        buf_adds(&b, ",\"owner\":");
        json_quote(&b, str_of(p->turn->req->owner));
        buf_addc(&b, '}');
    }
    buf_addc(&b, ']');

    const char *text = buf_cstr(&b);
    bool many = cut > 1 && text;
    bool done = many && pg_exec(st, &ignored, shrink_sql, "s", text) == 0;
    for (size_t i = 0; done && i < n; i++)
        part[i].shrunk = part[i].c.cut;
    buf_release(&b);
}

/* Builds a batch from a claim whose events were read. Shortens the claim if memory ran out, and
 * drops a claim in which the predicate matched no event. */
static int finish_claim(struct pg_store *st, struct part *p, struct error *err)
{
    struct batched_turn *t = p->turn;
    struct batch *b = &t->batch;
    b->ev = p->c.ev;
    b->n = p->c.n;
    t->hint.skipped += p->c.scanned - p->c.n;
    if (p->c.cut) {
        t->hint.quiet = false;
        b->to = p->c.last;
        if (!p->shrunk && pg_shrink(st, t->req, b->epoch, p->c.last, err) != 0)
            return -1;
    }
    pg_cache_of(st, t->req)->unread = 0;
    return b->n > 0 ? 0 : pg_drop_claim(st, t->req, b, 0, err);
}

/* Hands out the events of all claims. The settlements are recorded in any case, so this never
 * fails: see claim_hint.unread. */
static void hand_out(struct pg_store *st, struct part *part, size_t n, const PGresult *r)
{
    struct error ignored;
    struct reading g = {.st = st, .r = r, .part = part, .n = n};
    arena_init(&g.look, 0);
    int result = read_events(&g, &ignored);
    arena_release(&g.look);
    pg_note_size(st, &g.looked);
    if (result == 0)
        shrink_all(st, part, n);
    for (size_t i = 0; i < n; i++) {
        struct batched_turn *t = part[i].turn;
        bool claimed = t->batch.epoch != 0;
        if (!claimed || (result == 0 && finish_claim(st, &part[i], &ignored) == 0))
            continue;
        pg_put_back(st, t->req, &t->batch);
        pg_unread(&t->batch, &t->hint);
    }
}

int pg_turn_many(struct store *base, struct batched_turn *t, size_t n, struct error *err)
{
    struct pg_store *st = pg_of(base);
    struct error why = {0};
    for (size_t i = 0; i < n; i++)
        t[i].made = false;
    if (pg_check_open(st, err) != 0)
        return -1;

    PGresult *r = NULL;
    bool single = is_single(t, n);
    if (single)
        r = ask(st, PATH_SINGLE, t, n, &why);
    bool behind = single && PQntuples(r) == 0 && t->req->batch_backlog;
    if (behind) { /* perhaps: then the turn is still simple, with a part of its window */
        PQclear(r);
        r = NULL;
    }
    if (!why.code && (!single || behind))
        r = ask(st, PATH_BATCH, t, n, &why);
    if (!r && why.code) {
        *err = why;
        return -1;
    }

    int rows = PQntuples(r), result = 0;
    struct part *part = calloc((size_t)rows + 1, sizeof *part);
    size_t made = 0;
    if (!part)
        result = err_nomem(err);
    for (int i = 0; result == 0 && i < rows; i += part[made++].answer.rows) {
        struct part *p = &part[made];
        p->answer = pg_answer_at(r, i);
        p->turn = &t[p->answer.place];
        fill_turn(st, p);
    }
    if (made > 0)
        hand_out(st, part, made, r);
    free(part);
    PQclear(r);
    return result;
}
