/* settle.c: recording the outcome of a claim, in a transaction of a turn or of handlers. */
#include "base/text.h"
#include "store/db/turn.h"
#include "store_sql.h"

/* ---- individual events ---- */

int db_park(struct store *st, const struct parking *p, struct error *err)
{
    char kept[TEXT_KEPT_MAX];
    int64_t now = db_now(st);
    struct sql_park row = {
        .consumer = p->consumer,
        .seq = p->ev->seq,
        .key = (int64_t)store_order_key(p->order, p->ev->key),
        .attempts = p->attempts,
        .due_at = p->due_at ? p->due_at : now,
        .crashes = p->crashes,
        .delayed = p->delayed,
        .error = text_kept(p->error, kept),
        .failed_at = p->error ? now : 0,
        .wait = p->wait_ms,
        .proven = p->proven,
    };
    held_keys_add(st, p->consumer, row.key);
    return db_later(st, err, &sql_park, &row);
}

int db_bury(struct store *st, const char *consumer, int64_t seq, int attempts, const char *error,
            struct error *err)
{
    char kept[TEXT_KEPT_MAX];
    const char *why = text_kept(error, kept);
    int64_t now = db_now(st);
    return DB_LATER_ALL(st, err,
                        {SQL(bury, .consumer = consumer, .seq = seq, .attempts = attempts,
                             .error = why, .now = now)},
                        {SQL(bury_again, .consumer = consumer, .seq = seq, .attempts = attempts,
                             .error = why, .now = now)},
                        {SQL(unpark, .consumer = consumer, .seq = seq)});
}

int db_promote(struct store *st, const char *consumer, int64_t key, struct error *err)
{
    if (!key)
        return 0;
    return db_later(st, err, SQL(promote, .consumer = consumer, .key = key, .now = db_now(st)));
}

/* ---- outcomes ---- */

/* A delivered event needs no record besides its receipt, since the claim is deleted in the end. */
static int settle_outcome(struct store *st, const struct settlement *s, const struct outcome *o,
                          struct error *err)
{
    struct parking p = {
        .consumer = s->consumer, .order = s->order, .ev = o->ev, .attempts = o->attempts};
    switch (o->kind) {
    case OUTCOME_DELIVERED:
        return db_later(st, err,
                        SQL(put_receipt, .consumer = s->consumer, .seq = o->ev->seq,
                            .event_id = o->ev->id, .sink_id = o->receipt, .now = db_now(st)));
    case OUTCOME_DEAD: return db_bury(st, s->consumer, o->ev->seq, o->attempts, o->error, err);
    case OUTCOME_RETRY:
        p.wait_ms = o->delay_ms > 0 ? o->delay_ms : 1;
        p.due_at = db_now(st) + p.wait_ms;
        p.error = o->error ? o->error : "failed";
        p.proven = o->proven;
        return db_park(st, &p, err);
    case OUTCOME_BEHIND:
        if (!s->b->parked)
            return db_park(st, &p, err);
        /* The event was not tried: its row stays as it is. */
        return db_later(
            st, err,
            SQL(put_back, .consumer = s->consumer, .seq = o->ev->seq, .attempts = o->attempts));
    case OUTCOME_DELAY:
        p.due_at = o->ev->not_before;
        p.delayed = true;
        return db_park(st, &p, err);
    }
    return err_set(err, ERR_INTERNAL, "unknown outcome %d", (int)o->kind);
}

/* Releases the end of a fresh range: by moving the position back if nothing was claimed after it,
 * otherwise by parking the events. *ret_n counts them. */
static int settle_release(struct store *st, const struct settlement *s, int64_t *ret_n,
                          struct error *err)
{
    int64_t last = 0;
    *ret_n = 0;
    if (!s->release_from)
        return 0;
    if (db_value(st, err, &last,
                 SQL(is_last, .consumer = s->consumer, .lane = s->b->lane, .to_seq = s->b->to,
                     .ordered = s->order != ORDER_NONE)) != 0)
        return -1;
    for (size_t i = 0; i < s->b->n; i++) {
        const struct event *ev = &s->b->ev[i];
        if (ev->seq < s->release_from)
            continue;
        struct parking p = {
            .consumer = s->consumer, .order = s->order, .ev = ev, .attempts = ev->attempts};
        if (!last && db_park(st, &p, err) != 0)
            return -1;
        ++*ret_n;
    }
    if (!last)
        return 0;
    return db_later(
        st, err,
        SQL(release, .consumer = s->consumer, .lane = s->b->lane, .position = s->release_from - 1));
}

/* Deletes the parked rows of delivered events, and promotes the next event of each key. */
static int settle_parked(struct store *st, const struct settlement *s, struct error *err)
{
    const char *name = s->consumer;
    int64_t epoch = s->b->epoch;
    if (DB_LATER_ALL(st, err, {SQL(forget_letters, .consumer = name, .epoch = epoch)},
                     {SQL(promote_behind, .consumer = name, .epoch = epoch, .now = db_now(st))},
                     {SQL(unpark_delivered, .consumer = name, .epoch = epoch)}) != 0)
        return -1;
    held_keys_forget(st, name);

    /* The event after one that was not delivered may now be the first of its key. */
    for (size_t i = 0; i < s->n; i++) {
        const struct outcome *o = &s->out[i];
        int64_t key = (int64_t)store_order_key(s->order, o->ev->key);
        if (o->kind != OUTCOME_DELIVERED && db_promote(st, name, key, err) != 0)
            return -1;
    }
    return 0;
}

/* ---- the claim ---- */

int db_settle_marks(struct store *st, const struct settlement *s, struct error *err)
{
    for (size_t i = 0; i < s->n_marks; i++) {
        const struct hwm *m = &s->marks[i];
        if (db_later(st, err,
                     SQL(put_mark, .stream = m->stream, .consumer = s->consumer, .hi = m->hi,
                         .lo = m->lo, .now = db_now(st))) != 0)
            return -1;
    }
    return 0;
}

int db_settle(struct store *st, const struct settlement *s, int64_t *ret_delivered,
              struct error *err)
{
    int64_t released, failed = 0;
    for (size_t i = 0; i < s->n; i++)
        if (s->out[i].kind != OUTCOME_DELIVERED)
            failed++;
    bool parks = failed > 0 || s->release_from || s->b->parked;
    if (parks && held_keys_change(st, s->consumer, err) != 0)
        return -1;

    for (size_t i = 0; i < s->n; i++)
        if (settle_outcome(st, s, &s->out[i], err) != 0)
            return -1;
    if (settle_release(st, s, &released, err) != 0)
        return -1;
    if (s->b->parked && settle_parked(st, s, err) != 0)
        return -1;
    *ret_delivered = (int64_t)s->b->n - failed - released;
    return db_later(st, err, SQL(drop_claim, .consumer = s->consumer, .epoch = s->b->epoch));
}

/* Locks the consumer's row; *ret_marks: it marks rows of adopted tables. */
static int lock_to_settle(struct store *st, const char *consumer, bool *ret_marks,
                          struct error *err)
{
    struct db_rows q;
    *ret_marks = false;
    int r = db_row(st, &q, err, SQL(lock_to_settle, .consumer = consumer));
    if (r <= 0)
        return r; /* the consumer was removed, with its claims */
    *ret_marks = db_int(&q, 0) != 0;
    held_keys_check(st, consumer, db_int(&q, 1));
    db_done(&q);
    return 0;
}

static int settle_open(struct store *st, const struct settlement *s, bool *ret_lost,
                       struct error *err)
{
    int64_t alive = 0, delivered = 0;
    bool marks;
    if (lock_to_settle(st, s->consumer, &marks, err) != 0)
        return -1;
    if (db_settle_marks(st, s, err) != 0)
        return -1;
    if (db_value(
            st, err, &alive,
            SQL(is_claimed, .consumer = s->consumer, .epoch = s->b->epoch, .owner = s->owner)) != 0)
        return -1;
    *ret_lost = !alive;
    if (!alive)
        return 0;

    if (db_settle(st, s, &delivered, err) != 0)
        return -1;
    if (marks && st->ops->driver->mark_rows(st, s->consumer, s, err) != 0)
        return -1;
    if (delivered == 0)
        return 0;
    return db_run(st, err, SQL(put_progress, .consumer = s->consumer, .n = delivered));
}

/* With one writer at a time, the settlement uses the time the transaction began: no claim can have
 * been taken over since, and none expires meanwhile. */
int db_settle_open(struct store *base, const struct settlement *s, bool *ret_lost,
                   struct error *err)
{
    struct db_store *st = db_of(base);
    if (!st->in_tx)
        return err_set(err, ERR_MISUSE,
                       "no transaction is open: effects and outcomes must commit together");
    if (base->ops->driver->tx_gone(base, err) != 0)
        return -1;
    st->turn_now = st->began;
    int r = settle_open(base, s, ret_lost, err);
    st->turn_now = 0;
    st->own_commit = r == 0 && !*ret_lost; /* the claim was deleted, so something was written */
    return r;
}
