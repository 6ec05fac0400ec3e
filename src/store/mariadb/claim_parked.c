/* claim_parked.c: handing out parked events that are due, with those of their key behind them. */
#include "store/mariadb/claim.h"
#include "store/mariadb/mariadb.h"
#include "store_sql.h"

struct parked_row {
    int64_t seq, key, failing_since;
    int attempts;
    bool stop; /* a head: it is careful; a follower: it may not be taken along */
    bool proven, crashed;
    bool behind;   /* a head: others of its key are parked before it */
    bool followed; /* and behind it */
};

/* What is to be claimed, in this order, as far as there is room for its bytes. */
struct parked_list {
    struct parked_row *row;
    size_t n;
};

/* ---- rows ---- */

/* read_parked reads up to max rows of PARKED_COLUMNS and `stop`. q may be NULL: it failed. */
static int read_parked(struct mdb_rows *q, struct parked_row *rows, size_t max, size_t *ret_n)
{
    size_t n = 0;
    int r = 0;
    while (n < max) {
        r = mdb_step(&q);
        if (r != 1)
            break;
        rows[n++] = (struct parked_row){
            .failing_since = mdb_int(q, 0),
            .proven = (int)mdb_int(q, 1) != 0,
            .attempts = (int)mdb_int(q, 2),
            .key = mdb_int(q, 3),
            .seq = mdb_int(q, 4),
            .crashed = mdb_int(q, 5) != 0,
            .stop = mdb_int(q, 6) != 0,
            .behind = mdb_int(q, 7) != 0,
            .followed = mdb_int(q, 8) != 0,
        };
    }
    mdb_done(q);
    *ret_n = n;
    return r < 0 ? -1 : 0;
}

/* ask_events asks for the events of up to TOGETHER rows. */
static int ask_events(struct claiming *k, const struct parked_row *rows, size_t n,
                      struct mdb_rows **ret, struct error *err)
{
    struct sql_one_event args[TOGETHER];
    struct mdb_question ask[TOGETHER];
    for (size_t i = 0; i < n; i++) {
        args[i] = (struct sql_one_event){.seq = rows[i].seq, .most = mdb_fresh_inline(k->req)};
        ask[i] = (struct mdb_question){&sql_one_event, &args[i]};
    }
    return mdb_ask_all(k->st, ask, n, ret, err);
}

/* read_event reads the event of a row from the answer, which it releases. If the event was trimmed,
 * it was a dead letter, which carries a copy. 1: *ev is the event; 0: there is none; -1: it
 * failed. */
static int read_event(struct claiming *k, int64_t seq, struct mdb_rows *q, struct event *ev,
                      struct error *err)
{
    int r = mdb_step(&q);
    if (r == 0)
        r = mdb_row(k->st, &q, err, SQL(one_letter, .consumer = k->req->consumer, .seq = seq));
    if (r != 1)
        return r;
    bool ok = mdb_event_row(q, k->a, ev), here = !mdb_null(q, 6);
    mdb_done(q);
    if (!ok)
        return err_nomem(err);
    if (!here && mdb_fresh_payload(k, ev, err) != 0)
        return -1;
    return 1;
}

/* forget_row drops the row of an event that somebody deleted by hand. */
static int forget_row(struct claiming *k, const struct parked_row *p, struct error *err)
{
    if (mdb_later(k->st, err, SQL(unpark, .consumer = k->req->consumer, .seq = p->seq)) != 0)
        return -1;
    return mdb_promote(k->st, k->req->consumer, p->key, err);
}

/* take_parked adds the event of a row to the batch, and the row to the claim. It releases q, the
 * answer to the question for that event. */
static int take_parked(struct claiming *k, const struct parked_row *p, struct mdb_rows *q,
                       size_t *bytes, struct error *err)
{
    struct event *ev = &k->b->ev[k->b->n];
    int r = read_event(k, p->seq, q, ev, err);
    if (r < 0)
        return -1;
    if (r == 0)
        return forget_row(k, p, err);

    ev->attempts = p->attempts;
    ev->proven = p->proven;
    ev->crashed = p->crashed;
    bool failing = p->failing_since && p->failing_since < k->now;
    if (failing)
        ev->failing_ms = clock_since(k->now, p->failing_since);
    ev->delayed = ev->not_before > k->now; /* it waited behind another, and now for its time */
    *bytes += event_bytes(ev);
    k->b->n++;
    return mdb_later(
        k->st, err,
        SQL(take_parked, .consumer = k->req->consumer, .seq = p->seq, .epoch = k->epoch));
}

/* ---- when something is due ---- */

/* pull_in shortens waits that a clock which was ahead has made too long. *ret_any: there were
 * some. */
static int pull_in(struct claiming *k, bool *ret_any, struct error *err)
{
    struct clock_repair *p = k->req->cache ? &k->req->cache->repair : &k->st->repair;
    int64_t mono = clock_mono(k->st->opt.clock);
    if (!clock_repair_due(p, mono)) {
        mdb_claim_wait(k, k->now + clock_repair_left_ms(p, mono));
        return 0;
    }
    clock_repair_done(p, mono);
    if (mdb_run(k->st, err, SQL(pull_in, .consumer = k->req->consumer, .now = k->now)) != 0)
        return -1;
    *ret_any = k->st->changed > 0;
    return 0;
}

/* next_due tells when the next parked event may go; 0: none waits for a time. */
static int next_due(struct claiming *k, int64_t *ret, struct error *err)
{
    bool again, careful = k->req->suspect != SUSPECT_SKIP;
    do {
        again = false;
        *ret = 0;
        if (mdb_value(k->st, err, ret,
                      SQL(next_due, .consumer = k->req->consumer, .suspect = careful)) != 0)
            return -1;
        if (*ret > k->now && pull_in(k, &again, err) != 0)
            return -1;
    } while (again);
    return 0;
}

/* note_careful tells a caller that may not take a careful event now whether one is due. */
static int note_careful(struct claiming *k, struct error *err)
{
    int64_t due = 0;
    if (mdb_value(k->st, err, &due,
                  SQL(careful_due, .consumer = k->req->consumer, .now = k->now)) != 0)
        return -1;
    k->hint->suspect = due != 0;
    return 0;
}

/* ---- taking ---- */

/* goes_alone says whether a careful event has to be the only one of its claim. */
static bool goes_alone(const struct claiming *k)
{
    return k->req->suspect != SUSPECT_ANY;
}

/* list_heads lists events that are due and the first of their key. An event that is due but has
 * another of its key before it, parked later by whoever took a claim over, goes behind that one. */
static int list_heads(struct claiming *k, struct parked_row *heads, size_t max, size_t *ret_n,
                      struct error *err)
{
    const char *name = k->req->consumer;
    bool careful = k->req->suspect != SUSPECT_SKIP;
    size_t n, kept = 0;
    struct mdb_rows *q = mdb_rows(k->st, err,
                                  SQL(due_heads, .consumer = name, .now = k->now,
                                      .suspect = careful, .alone = goes_alone(k),
                                      .max = (int64_t)max));
    if (read_parked(q, heads, max, &n) != 0)
        return -1;

    for (size_t i = 0; i < n; i++) {
        if (!heads[i].behind)
            heads[kept++] = heads[i];
        else if (mdb_later(k->st, err, SQL(go_behind, .consumer = name, .seq = heads[i].seq)) != 0)
            return -1;
    }
    *ret_n = kept;
    return 0;
}

/* ask_followers asks for what waits behind up to TOGETHER heads, and leaves NULL where nothing
 * does. */
static int ask_followers(struct claiming *k, const struct parked_row *heads, size_t n, size_t room,
                         struct mdb_rows **ret, struct error *err)
{
    struct sql_followers args[TOGETHER];
    struct mdb_question ask[TOGETHER];
    struct mdb_rows *q[TOGETHER];
    size_t asked = 0;
    for (size_t i = 0; i < n; i++) {
        if (!heads[i].followed)
            continue;
        args[asked] = (struct sql_followers){.consumer = k->req->consumer,
                                             .key = heads[i].key,
                                             .seq = heads[i].seq,
                                             .alone = goes_alone(k),
                                             .max = (int64_t)room};
        ask[asked] = (struct mdb_question){&sql_followers, &args[asked]};
        asked++;
    }
    if (asked > 0 && mdb_ask_all(k->st, ask, asked, q, err) != 0)
        return -1;
    for (size_t i = 0, at = 0; i < n; i++)
        ret[i] = heads[i].followed ? q[at++] : NULL;
    return 0;
}

/* add_followers adds the events that wait behind a head, in order, so that a key catches up in one
 * claim. It releases q, the answer to the question for them; NULL: there are none. */
static int add_followers(struct claiming *k, struct mdb_rows *q, struct parked_list *to)
{
    size_t n, room = k->req->max_events - to->n;
    struct parked_row *rows = &to->row[to->n];
    if (!q)
        return 0;
    if (read_parked(q, rows, room, &n) != 0)
        return -1;
    for (size_t i = 0; i < n && !rows[i].stop; i++)
        to->n++;
    return 0;
}

/* choose_some lists up to TOGETHER heads, each with its followers, as far as they fit into the
 * batch. */
static int choose_some(struct claiming *k, const struct parked_row *heads, size_t n,
                       struct parked_list *to, struct error *err)
{
    struct mdb_rows *q[TOGETHER];
    if (ask_followers(k, heads, n, k->req->max_events - to->n, q, err) != 0)
        return -1;
    int r = 0;
    for (size_t i = 0; i < n; i++) {
        bool full = to->n >= k->req->max_events;
        if (r != 0 || full) {
            mdb_done(q[i]);
            continue;
        }
        to->row[to->n++] = heads[i];
        r = add_followers(k, q[i], to);
    }
    return r;
}

/* choose lists what fits into the batch. A careful event goes alone, and so only if it is the
 * first. */
static int choose(struct claiming *k, const struct parked_row *heads, size_t n,
                  struct parked_list *to, struct error *err)
{
    if (k->b->suspect) {
        to->row[to->n++] = heads[0];
        return 0;
    }
    size_t before_careful = 0;
    while (before_careful < n && !heads[before_careful].stop)
        before_careful++;

    for (size_t i = 0; i < before_careful && to->n < k->req->max_events; i += TOGETHER) {
        size_t left = before_careful - i;
        size_t some = left < TOGETHER ? left : TOGETHER;
        if (choose_some(k, &heads[i], some, to, err) != 0)
            return -1;
    }
    return 0;
}

/* take_some takes up to TOGETHER events, until the batch has enough bytes. */
static int take_some(struct claiming *k, const struct parked_row *rows, size_t n, size_t *bytes,
                     struct error *err)
{
    struct mdb_rows *q[TOGETHER];
    if (ask_events(k, rows, n, q, err) != 0)
        return -1;
    int r = 0;
    for (size_t i = 0; i < n; i++) {
        bool enough = *bytes >= k->req->max_bytes;
        if (r != 0 || enough)
            mdb_done(q[i]);
        else
            r = take_parked(k, &rows[i], q[i], bytes, err);
    }
    return r;
}

static int take_all(struct claiming *k, const struct parked_list *list, struct error *err)
{
    size_t bytes = 0;
    for (size_t i = 0; i < list->n && bytes < k->req->max_bytes; i += TOGETHER) {
        size_t left = list->n - i;
        size_t n = left < TOGETHER ? left : TOGETHER;
        if (take_some(k, &list->row[i], n, &bytes, err) != 0)
            return -1;
    }
    return 0;
}

/* claim_due claims what is due, given that something is. */
static int claim_due(struct claiming *k, struct error *err)
{
    size_t n, max = k->req->max_events;
    struct parked_row *heads = arena_alloc(k->a, max * sizeof *heads);
    struct parked_list list = {.row = arena_alloc(k->a, max * sizeof *list.row)};
    k->b->ev = arena_alloc(k->a, max * sizeof *k->b->ev);
    if (!heads || !list.row || !k->b->ev)
        return err_nomem(err);
    if (list_heads(k, heads, max, &n, err) != 0)
        return -1;

    k->b->parked = true;
    k->b->suspect = n > 0 && heads[0].stop;
    k->b->blamed = k->b->suspect && k->req->suspect == SUSPECT_TAKE;
    if (k->b->suspect && k->req->suspect == SUSPECT_WAIT) {
        k->hint->suspect = true;
        return 0;
    }
    if (choose(k, heads, n, &list, err) != 0 || take_all(k, &list, err) != 0)
        return -1;
    if (k->b->n == 0)
        return 0;
    return mdb_claim_record(k, err);
}

int mdb_parked_claim(struct claiming *k, struct error *err)
{
    int64_t due;
    if (mdb_claim_unparked(k))
        return 0;
    if (k->req->suspect == SUSPECT_SKIP && note_careful(k, err) != 0)
        return -1;
    if (next_due(k, &due, err) != 0)
        return -1;
    if (due == 0)
        return 0;
    mdb_claim_wait(k, due);
    if (due > k->now)
        return 0;
    return claim_due(k, err);
}
