/* turns.c: turns of several consumers at once. sql/postgres/internal/turns.sql decides which of
 * them are simple, and makes those; this file has the call, and hands each consumer its share of
 * the events, which are read once for all that stand at the same place. A turn that is asked for
 * alone is made by single.c, where the events come with the answer. */
#include <stdlib.h>

#include "base/buf.h"
#include "base/json.h"
#include "store/postgres/postgres.h"

#define ASK_BYTES (16 << 20)

/* The columns of the answer. */
enum { A_PLACE, A_EPOCH, A_N, A_MORE, A_SEEN, A_FLOOR, A_TARGET, A_FROM, A_TO, A_QUIET, A_NOW_MS };

static const char turns_sql[] = PG_NAMED
    "SELECT t.place, t.epoch, t.n, t.more, t.seen, t.floor, t.target, t.from_seq, t.to_seq, "
    "t.quiet, t.now_ms FROM @schema@._turns($1::pg_catalog.json, @version@) t";

/* In the order of names, so that two relays do not wait for each other. */
static const char shrink_sql[] = PG_NAMED
    "SELECT pg_catalog.count(@schema@._shrink(x.consumer, x.owner, x.epoch, x.last)) FROM "
    "(SELECT * FROM pg_catalog.json_to_recordset($1::pg_catalog.json) AS y (consumer text, "
    "owner text, epoch bigint, last bigint) ORDER BY y.consumer OFFSET 0) x";

/* One consumer's part of the call. */
struct part {
    struct batched_turn *turn;
    struct pg_simple_answer answer;
    size_t cap;   /* room in turn->batch.ev */
    size_t bytes; /* of the events in it */
    int64_t last; /* seq of the last event that was looked at */
    bool cut;     /* max_bytes was reached: the rest is claimed again */
    bool shrunk;  /* and the claim ends there */
};

/* ---- the call ---- */

/* is_simple says whether the server needs to be asked at all. */
static bool is_simple(const struct batched_turn *t)
{
    const struct settlement *s = t->s;
    if (t->req->lanes != 1 || t->req->one_shot)
        return false;
    if (!s)
        return true;
    bool whole = s->n == 0 && s->release_from == 0;
    return whole && !s->b->parked && !s->b->suspect;
}

static void add_name(struct buf *b, const char *name, const char *text)
{
    buf_addf(b, ",\"%s\":", name);
    json_quote(b, str_of(text ? text : ""));
}

static void add_known(struct buf *b, const struct claim_request *req)
{
    buf_adds(b, ",\"known\":[");
    for (size_t i = 0; i < req->n_known; i++)
        buf_addf(b, "%s%lld", i > 0 ? "," : "", (long long)req->known[i]);
    buf_addc(b, ']');
}

bool pg_pulls_in(struct pg_store *st, const struct claim_request *req)
{
    return clock_repair_due(&pg_memo(st, req)->repair, clock_mono(st->opt.clock));
}

/* most_of returns how many events a turn asks for: no more than will fit, by the size of those that
 * came last. What does not fit after all is given back, at a statement of its own. */
static size_t most_of(const struct pg_store *st, const struct claim_request *req)
{
    if (st->row_bytes == 0)
        return req->max_events;
    size_t fit = req->max_bytes / st->row_bytes + 1;
    return fit < req->max_events ? fit : req->max_events;
}

/* add_turn adds what one turn asks for. */
static void add_turn(struct pg_store *st, struct buf *b, size_t place, const struct batched_turn *t)
{
    const struct claim_request *req = t->req;
    const struct settlement *s = t->s;
    long long epoch = s ? s->b->epoch : 0;
    long long tried = s ? (long long)s->b->n : 0;

    buf_addf(b, "{\"place\":%zu,\"epoch\":%lld,\"tried\":%lld,\"max_events\":%zu,\"lease_ms\":%lld",
             place, epoch, tried, most_of(st, req), (long long)req->lease_ms);
    add_name(b, "consumer", req->consumer);
    add_name(b, "owner", req->owner);
    add_name(b, "ordering", store_order_names[req->order]);
    add_name(b, "events", req->events);
    add_name(b, "predicate", req->where);
    add_known(b, req);
    if (pg_pulls_in(st, req))
        buf_adds(b, ",\"pull_in\":true");
    if (s && s->n_marks > 0) {
        buf_adds(b, ",\"marks\":");
        pg_add_marks(b, s);
    }
    buf_addc(b, '}');
}

/* asked_before says whether an earlier turn is of the same consumer: one of several workers. Only
 * the first of them can be made, since both would move the lane on. */
static bool asked_before(const struct batched_turn *t, size_t i)
{
    for (size_t k = 0; k < i; k++) {
        if (strcmp(t[k].req->consumer, t[i].req->consumer) == 0)
            return true;
    }
    return false;
}

/* ask makes the call for the simple ones among t[0..n). The caller clears the result. NULL without
 * an error: none is simple. */
static PGresult *ask(struct pg_store *st, const struct batched_turn *t, size_t n, struct error *err)
{
    struct buf b;
    size_t asked = 0;
    PGresult *r = NULL;
    buf_init(&b, ASK_BYTES);
    buf_addc(&b, '[');
    for (size_t i = 0; i < n; i++) {
        if (!is_simple(&t[i]) || asked_before(t, i))
            continue;
        if (asked++ > 0)
            buf_addc(&b, ',');
        add_turn(st, &b, i, &t[i]);
    }
    buf_addc(&b, ']');

    const char *text = buf_cstr(&b);
    if (!text)
        err_nomem(err);
    else if (asked > 0)
        r = pg_query(st, err, turns_sql, "s", text);
    buf_release(&b);
    return r;
}

/* ---- the answer ---- */

/* read_answer reads what the server said of one turn. */
static struct pg_simple_answer read_answer(const PGresult *r, int row)
{
    return (struct pg_simple_answer){.epoch = pg_int(r, row, A_EPOCH),
                                     .n = pg_int(r, row, A_N),
                                     .more = pg_true(r, row, A_MORE),
                                     .seen = pg_str(r, row, A_SEEN),
                                     .floor = pg_int(r, row, A_FLOOR),
                                     .target = pg_str(r, row, A_TARGET),
                                     .from = pg_int(r, row, A_FROM),
                                     .to = pg_int(r, row, A_TO),
                                     .quiet = pg_true(r, row, A_QUIET),
                                     .now_ms = pg_int(r, row, A_NOW_MS)};
}

/* take_answer fills in what the server said of one turn; the events are read later. */
static void take_answer(struct pg_store *st, struct part *p)
{
    struct batched_turn *t = p->turn;
    t->made = true;
    if (pg_pulls_in(st, t->req)) /* and nothing is parked */
        clock_repair_done(&pg_memo(st, t->req)->repair, clock_mono(st->opt.clock));
    t->batch = (struct batch){0};
    t->hint = (struct claim_hint){.wait_ms = -1};
    if (p->answer.n > 0) {
        t->batch.epoch = p->answer.epoch;
        t->batch.from = p->answer.from;
        t->batch.to = p->answer.to;
        t->hint.quiet = p->answer.quiet;
    } else {
        t->hint.through = !p->answer.more;
    }
}

/* same_place says whether two claims begin at the same place of the same window. */
static bool same_place(const struct part *a, const struct part *b)
{
    const struct pg_simple_answer *x = &a->answer, *y = &b->answer;
    if (x->floor != y->floor || x->from != y->from)
        return false;
    return strcmp(x->seen, y->seen) == 0 && strcmp(x->target, y->target) == 0;
}

/* make_room makes room for one more event. */
static int make_room(struct part *p, struct error *err)
{
    struct batch *b = &p->turn->batch;
    if (b->n < p->cap)
        return 0;
    size_t cap = p->cap ? 2 * p->cap : 8;
    struct event *ev = arena_alloc(p->turn->a, cap * sizeof *ev);
    if (!ev)
        return err_nomem(err);
    if (b->n > 0)
        memcpy(ev, b->ev, b->n * sizeof *ev);
    b->ev = ev;
    p->cap = cap;
    return 0;
}

/* A row that has an event. */
struct row {
    const PGresult *r;
    int i;
};

/* has_all says whether a consumer gets nothing from an event on: its claim ends before, or memory
 * did. */
static bool has_all(const struct part *p, int64_t seq)
{
    return p->cut || seq > p->answer.to;
}

/* offer gives a consumer the event in the row, if it wants it. ev is the same event, to look at. */
static int offer(struct part *p, struct row row, const struct event *ev, int64_t now_ms,
                 struct error *err)
{
    const struct claim_request *req = p->turn->req;
    struct batch *b = &p->turn->batch;
    if (has_all(p, ev->seq))
        return 0;
    if (p->bytes >= req->max_bytes && p->last > 0) {
        p->cut = true;
        return 0;
    }
    p->last = ev->seq;
    bool wanted = filter_type(req->filter, ev->type) && filter_payload(req->filter, ev->payload);
    if (!wanted) {
        p->turn->hint.skipped++;
        return 0;
    }

    if (make_room(p, err) != 0)
        return -1;
    struct event *kept = &b->ev[b->n];
    if (!pg_event_row(row.r, row.i, p->turn->a, kept))
        return err_nomem(err);
    kept->delayed = kept->not_before > now_ms;
    p->bytes += event_bytes(kept);
    b->n++;
    return 0;
}

/* The claims, and a place to look at their events. */
struct reading {
    struct pg_store *st;
    struct part *part;
    size_t n;
    const struct part *first; /* of those at the place that is read: says which window */
    struct arena look;
    struct pg_chunk looked; /* how many events that were, and their size */
};

/* concerns says whether a part has a claim at the place that is read. */
static bool concerns(const struct reading *g, const struct part *p)
{
    return p->answer.n > 0 && same_place(p, g->first);
}

/* offer_row offers an event to every consumer that stands there. */
static int offer_row(struct reading *g, struct row row, struct error *err)
{
    struct event ev;
    arena_reset(&g->look);
    if (!pg_event_row(row.r, row.i, &g->look, &ev))
        return err_nomem(err);
    g->looked.n++;
    g->looked.bytes += event_bytes(&ev);
    for (size_t i = 0; i < g->n; i++) {
        struct part *p = &g->part[i];
        if (!concerns(g, p))
            continue;
        if (offer(p, row, &ev, g->first->answer.now_ms, err) != 0)
            return -1;
    }
    return 0;
}

/* all_cut says whether nobody at this place has room for more. */
static bool all_cut(const struct reading *g)
{
    for (size_t i = 0; i < g->n; i++) {
        const struct part *p = &g->part[i];
        if (concerns(g, p) && !p->cut)
            return false;
    }
    return true;
}

/* last_of gives the end of the longest claim at this place. */
static int64_t last_of(const struct reading *g)
{
    int64_t last = 0;
    for (size_t i = 0; i < g->n; i++) {
        const struct part *p = &g->part[i];
        if (concerns(g, p) && p->answer.to > last)
            last = p->answer.to;
    }
    return last;
}

/* read_place reads the events of one window for all who have claimed in it. */
static int read_place(struct reading *g, struct error *err)
{
    const struct pg_simple_answer *at = &g->first->answer;
    struct pg_window w = {.seen = at->seen,
                          .target = at->target,
                          .floor = at->floor,
                          .from = at->from,
                          .to = last_of(g)};
    if (pg_read_all(g->st, &w, SIZE_MAX >> 1, err) != 0)
        return -1;
    PGresult *row;
    int more;
    while ((more = pg_next_row(g->st, PG_MAIN, &row, err)) == 1) {
        int result = offer_row(g, (struct row){row, 0}, err);
        PQclear(row);
        if (result != 0 || all_cut(g)) {
            pg_stop(g->st, PG_MAIN);
            return result;
        }
    }
    return more;
}

/* seen_before says whether an earlier claim stands at the same place, whose events are read. */
static bool seen_before(const struct reading *g, size_t i)
{
    for (size_t k = 0; k < i; k++) {
        bool has_claim = g->part[k].answer.n > 0;
        if (has_claim && same_place(&g->part[k], &g->part[i]))
            return true;
    }
    return false;
}

static int read_events(struct reading *g, struct error *err)
{
    for (size_t i = 0; i < g->n; i++) {
        bool has_claim = g->part[i].answer.n > 0;
        if (!has_claim || seen_before(g, i))
            continue;
        g->first = &g->part[i];
        if (read_place(g, err) != 0)
            return -1;
    }
    return 0;
}

/* take_events hands out events that came with the answer. */
static int take_events(struct reading *g, const PGresult *r, int rows, struct error *err)
{
    g->first = g->part;
    for (int i = 0; i < rows && !all_cut(g); i++) {
        if (offer_row(g, (struct row){r, i}, err) != 0)
            return -1;
    }
    return 0;
}

/* ---- claims that are not handed out as they were made ---- */

/* settle_alone settles a claim that this call has made. */
static int settle_alone(struct pg_store *st, const struct part *p, int64_t release_from,
                        struct error *err)
{
    const struct claim_request *req = p->turn->req;
    struct settlement s = {.consumer = req->consumer,
                           .owner = req->owner,
                           .order = req->order,
                           .b = &p->turn->batch,
                           .release_from = release_from};
    bool lost;
    return pg_turn(&st->base, &s, &lost, NULL, NULL, NULL, NULL, err);
}

/* add_cut adds where a claim has to end. */
static void add_cut(struct buf *b, const struct part *p)
{
    buf_addf(b, "{\"epoch\":%lld,\"last\":%lld", (long long)p->turn->batch.epoch,
             (long long)p->last);
    add_name(b, "consumer", p->turn->req->consumer);
    add_name(b, "owner", p->turn->req->owner);
    buf_addc(b, '}');
}

/* shrink_all ends the claims where memory did, in one transaction. If that fails, each is ended by
 * itself. */
static void shrink_all(struct pg_store *st, struct part *part, size_t n)
{
    struct error ignored;
    struct buf b;
    size_t cut = 0;
    buf_init(&b, ASK_BYTES);
    buf_addc(&b, '[');
    for (size_t i = 0; i < n; i++) {
        if (!part[i].cut)
            continue;
        if (cut++ > 0)
            buf_addc(&b, ',');
        add_cut(&b, &part[i]);
    }
    buf_addc(&b, ']');

    const char *text = buf_cstr(&b);
    bool many = cut > 1 && text;
    bool done = many && pg_exec(st, &ignored, NULL, shrink_sql, "s", text) == 0;
    for (size_t i = 0; done && i < n; i++)
        part[i].shrunk = part[i].cut;
    buf_release(&b);
}

/* trim_claim ends a claim where memory did, and forgets one that the predicate left nothing of. */
static int trim_claim(struct pg_store *st, struct part *p, struct error *err)
{
    struct batch *b = &p->turn->batch;
    if (b->epoch == 0)
        return 0;
    if (p->cut) {
        p->turn->hint.quiet = false;
        b->to = p->last;
        if (!p->shrunk && pg_shrink(st, p->turn->req, b->epoch, p->last, err) != 0)
            return -1;
    }
    if (b->n > 0)
        return 0;
    if (settle_alone(st, p, 0, err) != 0)
        return -1;
    *b = (struct batch){0};
    return 0;
}

/* put_back gives back a claim whose events could not be read, or not cut to size. Nobody has tried
 * them, and a lease that runs out would count as an attempt. */
static void put_back(struct pg_store *st, struct part *p)
{
    struct error ignored;
    struct batch *b = &p->turn->batch;
    bool reachable = PQstatus(st->db) == CONNECTION_OK;
    if (!reachable)
        return;
    b->n = 0;
    settle_alone(st, p, 1, &ignored);
}

/* hand_out hands out the events of all claims: the first `came` rows of r, or else they are read.
 * Whatever happens, what was settled is settled, so there is no error here: see
 * claim_hint.unread. */
static void hand_out(struct pg_store *st, struct part *part, size_t n, const PGresult *r, int came)
{
    struct error ignored;
    struct reading g = {.st = st, .part = part, .n = n};
    int result;
    arena_init(&g.look, 0);
    if (came > 0)
        result = take_events(&g, r, came, &ignored);
    else
        result = read_events(&g, &ignored);
    arena_release(&g.look);
    pg_note_size(st, &g.looked);
    if (result == 0)
        shrink_all(st, part, n);
    for (size_t i = 0; i < n; i++) {
        struct batched_turn *t = part[i].turn;
        bool claimed = t->batch.epoch != 0;
        if (!claimed || (result == 0 && trim_claim(st, &part[i], &ignored) == 0))
            continue;
        put_back(st, &part[i]);
        pg_unread(&t->batch, &t->hint);
    }
}

/* make_single makes a turn by itself, if it is simple. */
static int make_single(struct pg_store *st, struct batched_turn *t, struct error *err)
{
    struct part p = {.turn = t};
    int came;
    PGresult *r = pg_single(st, t, &p.answer, &came, err);
    if (!r)
        return -1;
    if (p.answer.made) {
        take_answer(st, &p);
        hand_out(st, &p, 1, r, came);
    }
    PQclear(r);
    return 0;
}

/* make_together makes the simple ones of n turns. */
static int make_together(struct pg_store *st, struct batched_turn *t, size_t n, struct error *err)
{
    struct error why = {0};
    PGresult *r = ask(st, t, n, &why);
    if (!r && why.code) {
        *err = why;
        return -1;
    }
    int rows = PQntuples(r);
    struct part *part = calloc((size_t)rows + 1, sizeof *part);
    int result = part ? 0 : err_nomem(err);
    for (int i = 0; result == 0 && i < rows; i++) {
        part[i] = (struct part){.turn = &t[pg_int(r, i, A_PLACE)], .answer = read_answer(r, i)};
        take_answer(st, &part[i]);
    }
    if (result == 0)
        hand_out(st, part, (size_t)rows, NULL, 0);
    free(part);
    PQclear(r);
    return result;
}

/* is_single says whether a turn that claims has company neither in this call nor among its own
 * claims. */
static bool is_single(const struct batched_turn *t, size_t n)
{
    size_t own = n == 1 && t->s ? 1 : 0;
    return n == 1 && is_simple(t) && t->req->max_events > 0 && t->req->n_known <= own;
}

int pg_turns(struct store *base, struct batched_turn *t, size_t n, struct error *err)
{
    struct pg_store *st = pg_of(base);
    for (size_t i = 0; i < n; i++)
        t[i].made = false;
    if (pg_check_open(st, err) != 0)
        return -1;
    if (is_single(t, n)) {
        int result = make_single(st, t, err);
        bool behind = !t->made && t->req->batch_backlog; /* perhaps: then it is still simple */
        if (result != 0 || !behind)
            return result;
    }
    return make_together(st, t, n, err);
}
