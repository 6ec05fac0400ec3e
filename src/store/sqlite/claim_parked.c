/* claim_parked.c: handing out parked events that are due, with those of their key behind them. */
#include <stdio.h>

#include "store/sqlite/claim.h"
#include "store_sql.h"

#define SEQ_DIGITS 20 /* of a number, with its sign */

struct parked_row {
    int64_t seq, key, failing_since;
    int attempts;
    bool stop;     /* a head: it is careful; a follower: it may not be taken along */
    bool behind;   /* a head: another of its key is parked before it */
    bool followed; /* a head: another of its key is parked behind it */
    bool proven, crashed;
};

/* ---- rows ---- */

/* read_parked reads up to max rows of PARKED_COLUMNS and `stop`. q may be NULL: it failed. */
static int read_parked(struct sqlite_store *st, sqlite3_stmt *q, struct parked_row *rows,
                       size_t max, size_t *ret_n, struct error *err)
{
    size_t n = 0;
    int r = 0;
    bool heads = sqlite3_column_count(q) > 7;
    while (n < max) {
        r = sqlite_step(st, q, err);
        if (r != 1)
            break;
        rows[n++] = (struct parked_row){
            .failing_since = sqlite3_column_int64(q, 0),
            .proven = sqlite3_column_int(q, 1) != 0,
            .attempts = sqlite3_column_int(q, 2),
            .key = sqlite3_column_int64(q, 3),
            .seq = sqlite3_column_int64(q, 4),
            .crashed = sqlite3_column_int(q, 5) != 0,
            .stop = sqlite3_column_int(q, 6) != 0,
            .behind = heads && sqlite3_column_int(q, 7) != 0,
            .followed = heads && sqlite3_column_int(q, 8) != 0,
        };
    }
    sqlite3_reset(q);
    *ret_n = n;
    return r < 0 ? -1 : 0;
}

/* find_event looks an event up by its seq. If it was trimmed, it was a dead letter, which carries
 * a copy. Returns as sqlite_row does. */
static int find_event(struct claiming *k, int64_t seq, sqlite3_stmt **ret, struct error *err)
{
    int r = sqlite_row(k->st, ret, err, SQL(one_event, .seq = seq));
    if (r != 0)
        return r;
    return sqlite_row(k->st, ret, err, SQL(one_letter, .consumer = k->req->consumer, .seq = seq));
}

/* forget_row drops the row of an event that somebody deleted by hand. */
static int forget_row(struct claiming *k, const struct parked_row *p, struct error *err)
{
    if (sqlite_run(k->st, err, SQL(unpark, .consumer = k->req->consumer, .seq = p->seq)) != 0)
        return -1;
    return sqlite_promote(k->st, k->req->consumer, p->key, err);
}

/* take_parked adds the event of a row to the batch. */
static int take_parked(struct claiming *k, const struct parked_row *p, size_t *bytes,
                       struct error *err)
{
    struct event *ev = &k->b->ev[k->b->n];
    sqlite3_stmt *q;
    int r = find_event(k, p->seq, &q, err);
    if (r < 0)
        return -1;
    if (r == 0)
        return forget_row(k, p, err);
    bool ok = sqlite_event_row(q, k->a, ev);
    sqlite3_reset(q);
    if (!ok)
        return err_nomem(err);

    ev->attempts = p->attempts;
    ev->proven = p->proven;
    ev->crashed = p->crashed;
    bool failing = p->failing_since && p->failing_since < k->now;
    if (failing)
        ev->failing_ms = clock_since(k->now, p->failing_since);
    ev->delayed = ev->not_before > k->now; /* it waited behind another, and now for its time */
    *bytes += event_bytes(ev);
    k->b->n++;
    return 0;
}

/* list_of writes the numbers of the batch's events as a JSON array into k->a; NULL: there is no
 * memory. */
static const char *list_of(struct claiming *k)
{
    size_t size = k->b->n * (SEQ_DIGITS + 1) + 3, at = 1;
    char *list = arena_alloc(k->a, size);
    if (!list)
        return NULL;
    list[0] = '[';
    for (size_t i = 0; i < k->b->n; i++)
        at += (size_t)snprintf(list + at, size - at, i ? ",%lld" : "%lld",
                               (long long)k->b->ev[i].seq);
    snprintf(list + at, size - at, "]");
    return list;
}

/* record writes the claim, and makes the rows of the batch part of it. */
static int record(struct claiming *k, struct error *err)
{
    const char *consumer = k->req->consumer, *seqs = list_of(k);
    if (!seqs)
        return err_nomem(err);
    if (sqlite_claim_record(k, err) != 0)
        return -1;
    if (sqlite_run(k->st, err,
                   SQL(list_taken, .consumer = consumer, .epoch = k->epoch, .seqs = seqs)) != 0)
        return -1;
    return sqlite_run(k->st, err, SQL(take_listed, .consumer = consumer, .epoch = k->epoch));
}

/* ---- when something is due ---- */

/* pull_in shortens waits that a clock which was ahead has made too long. *ret_any: there were
 * some. */
static int pull_in(struct claiming *k, bool *ret_any, struct error *err)
{
    struct clock_repair *p = k->req->cache ? &k->req->cache->repair : &k->st->repair;
    int64_t mono = clock_mono(k->st->opt.clock);
    if (!clock_repair_due(p, mono)) {
        sqlite_claim_wait(k, k->now + clock_repair_left_ms(p, mono));
        return 0;
    }
    clock_repair_done(p, mono);
    if (sqlite_run(k->st, err, SQL(pull_in, .consumer = k->req->consumer, .now = k->now)) != 0)
        return -1;
    *ret_any = sqlite3_changes(k->st->db) > 0;
    return 0;
}

/* next_due tells when the next parked event may go; 0: none waits for a time. */
static int next_due(struct claiming *k, int64_t *ret, struct error *err)
{
    bool again, careful = k->req->suspect != SUSPECT_SKIP;
    do {
        again = false;
        *ret = 0;
        if (sqlite_value(k->st, err, ret,
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
    if (sqlite_value(k->st, err, &due,
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
    sqlite3_stmt *q = sqlite_rows(k->st, err,
                                  SQL(due_heads, .consumer = name, .now = k->now,
                                      .suspect = careful, .alone = goes_alone(k),
                                      .max = (int64_t)max));
    if (read_parked(k->st, q, heads, max, &n, err) != 0)
        return -1;

    for (size_t i = 0; i < n; i++) {
        struct parked_row head = heads[i];
        if (!head.behind)
            heads[kept++] = head;
        else if (sqlite_run(k->st, err, SQL(go_behind, .consumer = name, .seq = head.seq)) != 0)
            return -1;
    }
    *ret_n = kept;
    return 0;
}

/* take_followers takes the events that wait behind head, in order, so that a key catches up in one
 * claim. rows is room for them. */
static int take_followers(struct claiming *k, const struct parked_row *head,
                          struct parked_row *rows, size_t *bytes, struct error *err)
{
    size_t n, room = k->req->max_events - k->b->n;
    if (!head->followed || room == 0)
        return 0;
    sqlite3_stmt *q = sqlite_rows(k->st, err,
                                  SQL(followers, .consumer = k->req->consumer, .key = head->key,
                                      .seq = head->seq, .alone = goes_alone(k),
                                      .max = (int64_t)room));
    if (read_parked(k->st, q, rows, room, &n, err) != 0)
        return -1;

    for (size_t i = 0; i < n; i++) {
        bool enough = rows[i].stop || *bytes >= k->req->max_bytes;
        if (enough)
            return 0;
        if (take_parked(k, &rows[i], bytes, err) != 0)
            return -1;
    }
    return 0;
}

/* take_heads fills the batch. A careful event goes alone, and so only if it is the first. */
static int take_heads(struct claiming *k, const struct parked_row *heads, size_t n,
                      struct parked_row *followers, struct error *err)
{
    size_t bytes = 0;
    if (k->b->suspect)
        return take_parked(k, &heads[0], &bytes, err);
    for (size_t i = 0; i < n; i++) {
        bool full = k->b->n >= k->req->max_events || bytes >= k->req->max_bytes;
        if (full || heads[i].stop)
            return 0;
        if (take_parked(k, &heads[i], &bytes, err) != 0)
            return -1;
        if (take_followers(k, &heads[i], followers, &bytes, err) != 0)
            return -1;
    }
    return 0;
}

/* claim_due claims what is due, given that something is. */
static int claim_due(struct claiming *k, struct error *err)
{
    size_t n, max = k->req->max_events;
    struct parked_row *heads = arena_alloc(k->a, max * sizeof *heads);
    struct parked_row *followers = arena_alloc(k->a, max * sizeof *followers);
    k->b->ev = arena_alloc(k->a, max * sizeof *k->b->ev);
    if (!heads || !followers || !k->b->ev)
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
    if (take_heads(k, heads, n, followers, err) != 0)
        return -1;
    if (k->b->n == 0)
        return 0;
    return record(k, err);
}

int sqlite_parked_due(struct claiming *k, bool *ret, struct error *err)
{
    int64_t due = 0;
    bool careful = k->req->suspect != SUSPECT_SKIP;
    if (sqlite_value(k->st, err, &due,
                     SQL(next_due, .consumer = k->req->consumer, .suspect = careful)) != 0)
        return -1;
    *ret = due != 0 && due <= sqlite_now(k->st);
    return 0;
}

int sqlite_parked_claim(struct claiming *k, struct error *err)
{
    int64_t due;
    if (k->req->suspect == SUSPECT_SKIP && note_careful(k, err) != 0)
        return -1;
    if (next_due(k, &due, err) != 0)
        return -1;
    if (due == 0)
        return 0;
    sqlite_claim_wait(k, due);
    if (due > k->now)
        return 0;
    return claim_due(k, err);
}
