/* parked.c: claiming parked events that are due, and the events of their keys behind them. */
#include <stdio.h>

#include "base/num.h"
#include "store/db/turn.h"
#include "store_sql.h"

#define SEQ_DIGITS 20 /* of a number, with its sign */

struct parked_row {
    int64_t seq, key, failing_since;
    int attempts;
    bool stop; /* for a head: it is suspect; for a follower: it may not be claimed with its head */
    bool proven, crashed;
    bool behind;   /* a head: earlier events of its key are parked */
    bool followed; /* a head: later events of its key are parked */
};

/* ---- rows ---- */

/* Reads up to max rows of @parked_columns@ and the columns that follow. It ends q, which may have
 * failed to start. */
static int read_parked(struct db_rows *q, struct parked_row *rows, size_t max, size_t *ret_n,
                       struct error *err)
{
    enum { FAILING_SINCE, PROVEN, ATTEMPTS, KEY, SEQ, CRASHED, STOP, BEHIND, FOLLOWED };
    size_t n = 0;
    int r = 0;
    while (n < max) {
        r = db_step(q, err);
        if (r != 1)
            break;
        rows[n++] = (struct parked_row){
            .failing_since = db_int(q, FAILING_SINCE),
            .proven = db_int(q, PROVEN) != 0,
            .attempts = (int)db_int(q, ATTEMPTS),
            .key = db_int(q, KEY),
            .seq = db_int(q, SEQ),
            .crashed = db_int(q, CRASHED) != 0,
            .stop = db_int(q, STOP) != 0,
            .behind = db_int(q, BEHIND) != 0,
            .followed = db_int(q, FOLLOWED) != 0,
        };
    }
    db_done(q);
    *ret_n = n;
    return r < 0 ? -1 : 0;
}

/* Adds the event of a row to the batch. A trimmed event was a dead letter, which has a copy. */
static int take_row(struct turn *t, const struct parked_row *p, struct db_rows *q, size_t *bytes,
                    struct error *err)
{
    struct event *ev = &t->b->ev[t->b->n];
    int r = db_step(q, err);
    if (r == 0)
        r = db_row(t->st, q, err, SQL(one_letter, .consumer = t->consumer, .seq = p->seq));
    if (r < 0)
        return -1;
    if (r == 0) { /* the event was deleted by hand */
        if (db_later(t->st, err, SQL(unpark, .consumer = t->consumer, .seq = p->seq)) != 0)
            return -1;
        return db_promote(t->st, t->consumer, p->key, err);
    }

    bool ok = db_event_row(q, t->a, ev), has_payload = !db_null(q, EVENT_PAYLOAD);
    db_done(q);
    if (!ok)
        return err_nomem(err);
    if (!has_payload && db_fresh_payload(t, ev, err) != 0)
        return -1;

    ev->attempts = p->attempts;
    ev->proven = p->proven;
    ev->crashed = p->crashed;
    bool failing = p->failing_since && p->failing_since < t->now;
    if (failing)
        ev->failing_ms = clock_since(t->now, p->failing_since);
    /* It waited behind another event, and may still have to wait for its not_before. */
    ev->delayed = ev->not_before > t->now;
    *bytes += event_bytes(ev);
    t->b->n++;
    return 0;
}

/* Adds the events of n rows, until the batch has enough bytes. */
static int take_rows(struct turn *t, const struct parked_row *rows, size_t n, size_t *bytes,
                     struct error *err)
{
    struct sql_one_event args[DB_TOGETHER];
    struct db_question ask[DB_TOGETHER];
    struct db_rows q[DB_TOGETHER];
    int64_t most = db_fresh_inline(t->req);
    size_t together = t->st->ops->driver->together;
    for (size_t i = 0; i < n && *bytes < t->req->max_bytes; i += together) {
        size_t some = min_size(n - i, together);
        for (size_t j = 0; j < some; j++) {
            args[j] = (struct sql_one_event){.seq = rows[i + j].seq, .most = most};
            ask[j] = (struct db_question){&sql_one_event, &args[j]};
        }
        if (db_ask_all(t->st, ask, some, q, err) != 0)
            return -1;
        int r = 0;
        for (size_t j = 0; j < some; j++) {
            if (r == 0 && *bytes < t->req->max_bytes)
                r = take_row(t, &rows[i + j], &q[j], bytes, err);
            db_done(&q[j]);
        }
        if (r != 0)
            return -1;
    }
    return 0;
}

/* ---- when something is due ---- */

/* Reads when the first parked event falls due; 0: none does. */
static int next_due(struct turn *t, int64_t *ret, struct error *err)
{
    *ret = 0;
    return db_value(
        t->st, err, ret,
        SQL(next_due, .consumer = t->consumer, .suspect = t->req->suspect != SUSPECT_SKIP));
}

/* Shortens waits that a fast clock has made too long. *ret_any: there were some. */
static int repair_clock(struct turn *t, bool *ret_any, struct error *err)
{
    struct db_store *st = db_of(t->st);
    struct clock_repair *p = t->req->cache ? &t->req->cache->repair : &st->repair;
    int64_t mono = clock_mono(st->opt.clock), n;
    *ret_any = false;
    if (!clock_repair_due(p, mono)) {
        db_claim_wait(t, t->now + clock_repair_left_ms(p, mono));
        return 0;
    }
    clock_repair_done(p, mono);
    if (db_change(t->st, &n, err, SQL(clock_repair, .consumer = t->consumer, .now = t->now)) != 0)
        return -1;
    *ret_any = n > 0;
    return 0;
}

int db_parked_due(struct turn *t, bool *ret, struct error *err)
{
    int64_t due;
    if (next_due(t, &due, err) != 0)
        return -1;
    *ret = due != 0 && due <= db_now(t->st);
    return 0;
}

/* ---- claiming ---- */

/* A suspect is claimed alone, unless the request allows any. */
static bool goes_alone(const struct turn *t)
{
    return t->req->suspect != SUSPECT_ANY;
}

/* Lists the due events that are the first of their key. If a take-over has since parked an earlier
 * event of the same key, the due event is moved behind that one. */
static int list_heads(struct turn *t, struct parked_row *heads, size_t max, size_t *ret_n,
                      struct error *err)
{
    size_t n, kept = 0;
    struct db_rows q = db_rows(t->st, err,
                               SQL(due_heads, .consumer = t->consumer, .now = t->now,
                                   .suspect = t->req->suspect != SUSPECT_SKIP,
                                   .alone = goes_alone(t), .max = (int64_t)max));
    if (read_parked(&q, heads, max, &n, err) != 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        if (!heads[i].behind)
            heads[kept++] = heads[i];
        else if (db_later(t->st, err,
                          SQL(go_behind, .consumer = t->consumer, .seq = heads[i].seq)) != 0)
            return -1;
    }
    *ret_n = kept;
    return 0;
}

/* Lists n heads, up to DB_TOGETHER, each followed by the events that wait behind it, in order, as
 * far as the batch has room. So one claim is enough for a key to catch up. */
static int list_keys(struct turn *t, const struct parked_row *heads, size_t n,
                     struct parked_row *list, size_t *ret_n, struct error *err)
{
    struct sql_followers args[DB_TOGETHER];
    struct db_question ask[DB_TOGETHER];
    struct db_rows q[DB_TOGETHER];
    size_t asked = 0, listed = 0, room = t->req->max_events - t->b->n;
    for (size_t i = 0; i < n; i++) {
        if (!heads[i].followed || room == 1)
            continue;
        args[asked] = (struct sql_followers){
            .consumer = t->consumer,
            .key = heads[i].key,
            .seq = heads[i].seq,
            .alone = goes_alone(t),
            .max = (int64_t)room - 1,
        };
        ask[asked] = (struct db_question){&sql_followers, &args[asked]};
        asked++;
    }
    if (asked > 0 && db_ask_all(t->st, ask, asked, q, err) != 0)
        return -1;

    int r = 0;
    for (size_t i = 0, at = 0; i < n && r == 0 && listed < room; i++) {
        size_t followers = 0;
        list[listed++] = heads[i];
        if (!heads[i].followed || room == 1)
            continue;
        r = read_parked(&q[at++], &list[listed], room - listed, &followers, err);
        for (size_t j = 0; j < followers && !list[listed].stop; j++)
            listed++;
    }
    for (size_t i = 0; i < asked; i++)
        db_done(&q[i]);
    *ret_n = listed;
    return r;
}

/* Fills the batch. A suspect is claimed alone, so only if it is the first. */
static int take_heads(struct turn *t, const struct parked_row *heads, size_t n,
                      struct parked_row *list, struct error *err)
{
    size_t bytes = 0, before_suspect = 0, together = t->st->ops->driver->together;
    if (t->b->suspect)
        return take_rows(t, heads, 1, &bytes, err);
    while (before_suspect < n && !heads[before_suspect].stop)
        before_suspect++;

    for (size_t i = 0; i < before_suspect; i += together) {
        size_t listed, some = min_size(before_suspect - i, together);
        bool full = t->b->n >= t->req->max_events || bytes >= t->req->max_bytes;
        if (full)
            return 0;
        if (list_keys(t, &heads[i], some, list, &listed, err) != 0)
            return -1;
        if (take_rows(t, list, listed, &bytes, err) != 0)
            return -1;
    }
    return 0;
}

/* Records the claim, and assigns the rows of the batch to it. */
static int record(struct turn *t, struct error *err)
{
    size_t size = t->b->n * (SEQ_DIGITS + 1) + 3, at = 1;
    char *seqs = arena_alloc(t->a, size); /* a JSON array */
    if (!seqs)
        return err_nomem(err);
    seqs[0] = '[';
    for (size_t i = 0; i < t->b->n; i++)
        at += (size_t)snprintf(seqs + at, size - at, i ? ",%lld" : "%lld",
                               (long long)t->b->ev[i].seq);
    snprintf(seqs + at, size - at, "]");

    if (db_claim_record(t, err) != 0)
        return -1;
    return DB_LATER_ALL(
        t->st, err, {SQL(list_taken, .consumer = t->consumer, .epoch = t->epoch, .seqs = seqs)},
        {SQL(take_listed, .consumer = t->consumer, .epoch = t->epoch, .seqs = seqs)});
}

/* Claims the events that are due; there is at least one. */
static int claim_due(struct turn *t, struct error *err)
{
    size_t n, max = t->req->max_events;
    struct parked_row *heads = arena_alloc(t->a, max * sizeof *heads);
    struct parked_row *list = arena_alloc(t->a, max * sizeof *list);
    t->b->ev = arena_alloc(t->a, max * sizeof *t->b->ev);
    if (!heads || !list || !t->b->ev)
        return err_nomem(err);
    if (list_heads(t, heads, max, &n, err) != 0)
        return -1;

    t->b->parked = true;
    t->b->suspect = n > 0 && heads[0].stop;
    t->b->blamed = t->b->suspect && t->req->suspect == SUSPECT_TAKE;
    if (t->b->suspect && t->req->suspect == SUSPECT_WAIT) {
        t->hint->suspect = true;
        return 0;
    }
    if (take_heads(t, heads, n, list, err) != 0)
        return -1;
    return t->b->n > 0 ? record(t, err) : 0;
}

int db_parked_claim(struct turn *t, struct error *err)
{
    int64_t due, suspect_due = 0;
    bool again;
    if (db_fresh_unparked(t))
        return 0;
    if (t->req->suspect == SUSPECT_SKIP) {
        if (db_value(t->st, err, &suspect_due,
                     SQL(suspect_due, .consumer = t->consumer, .now = t->now)) != 0)
            return -1;
        t->hint->suspect = suspect_due != 0;
    }
    do {
        again = false;
        if (next_due(t, &due, err) != 0)
            return -1;
        if (due > t->now && repair_clock(t, &again, err) != 0)
            return -1;
    } while (again);
    if (due == 0)
        return 0;
    db_claim_wait(t, due);
    return due > t->now ? 0 : claim_due(t, err);
}
