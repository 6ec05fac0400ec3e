/* settle.c: recording how a claim ended. Everything here runs inside a transaction: that of a turn,
 * or one that handlers work in. */
#include "base/text.h"
#include "store/mariadb/mariadb.h"
#include "store_sql.h"

/* ---- single events ---- */

int mdb_park(struct mdb_store *st, const struct parking *p, struct error *err)
{
    char kept[TEXT_KEPT_MAX];
    struct sql_park row = {
        .consumer = p->consumer,
        .seq = p->ev->seq,
        .key = (int64_t)store_order_key(p->order, p->ev->key),
        .attempts = p->attempts,
        .crashes = p->crashes,
        .delayed = p->delayed,
        .error = text_kept(p->error, kept),
        .wait = p->wait_ms,
        .proven = p->proven,
    };
    int64_t now = mdb_now(st);
    row.due_at = p->due_at ? p->due_at : now;
    if (row.error)
        row.failed_at = now;
    return mdb_later(st, err, &sql_park, &row);
}

int mdb_bury(struct mdb_store *st, const char *consumer, int64_t seq, int attempts,
             const char *error, struct error *err)
{
    char kept[TEXT_KEPT_MAX];
    const char *why = text_kept(error, kept);
    int64_t now = mdb_now(st);
    if (mdb_later(st, err,
                  SQL(bury, .consumer = consumer, .seq = seq, .attempts = attempts, .error = why,
                      .now = now)) != 0)
        return -1;
    if (mdb_later(st, err,
                  SQL(bury_again, .consumer = consumer, .seq = seq, .attempts = attempts,
                      .error = why, .now = now)) != 0)
        return -1;
    return mdb_later(st, err, SQL(unpark, .consumer = consumer, .seq = seq));
}

int mdb_promote(struct mdb_store *st, const char *consumer, int64_t key, struct error *err)
{
    if (!key)
        return 0;
    return mdb_later(st, err, SQL(promote, .consumer = consumer, .key = key, .now = mdb_now(st)));
}

/* ---- outcomes ---- */

/* put_back returns an event of a parked claim to its row as it was: it was not tried. */
static int put_back(struct mdb_store *st, const struct settlement *s, const struct outcome *o,
                    struct error *err)
{
    return mdb_later(
        st, err,
        SQL(put_back, .consumer = s->consumer, .seq = o->ev->seq, .attempts = o->attempts));
}

static int put_receipt(struct mdb_store *st, const struct settlement *s, const struct outcome *o,
                       struct error *err)
{
    return mdb_later(st, err,
                     SQL(put_receipt, .consumer = s->consumer, .seq = o->ev->seq,
                         .event_id = o->ev->id, .sink_id = o->receipt, .now = mdb_now(st)));
}

/* apply records one outcome. What was delivered needs no record beyond the receipt: the claim is
 * dropped in the end. */
static int apply(struct mdb_store *st, const struct settlement *s, const struct outcome *o,
                 struct error *err)
{
    struct parking p = {
        .consumer = s->consumer, .order = s->order, .ev = o->ev, .attempts = o->attempts};
    switch (o->kind) {
    case OUTCOME_DELIVERED: return put_receipt(st, s, o, err);
    case OUTCOME_DEAD: return mdb_bury(st, s->consumer, o->ev->seq, o->attempts, o->error, err);
    case OUTCOME_RETRY:
        p.wait_ms = o->delay_ms > 0 ? o->delay_ms : 1;
        p.due_at = mdb_now(st) + p.wait_ms;
        p.error = o->error ? o->error : "failed";
        p.proven = o->proven;
        return mdb_park(st, &p, err);
    case OUTCOME_BEHIND:
        if (s->b->parked)
            return put_back(st, s, o, err);
        return mdb_park(st, &p, err);
    case OUTCOME_DELAY:
        p.due_at = o->ev->not_before;
        p.delayed = true;
        return mdb_park(st, &p, err);
    }
    return err_set(err, ERR_INTERNAL, "unknown outcome %d", (int)o->kind);
}

/* apply_all applies the outcomes, and counts those that are not deliveries. */
static int apply_all(struct mdb_store *st, const struct settlement *s, int64_t *ret_failed,
                     struct error *err)
{
    *ret_failed = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (s->out[i].kind != OUTCOME_DELIVERED)
            ++*ret_failed;
        if (apply(st, s, &s->out[i], err) != 0)
            return -1;
    }
    return 0;
}

/* ---- giving back ---- */

/* is_last says whether nothing was handed out after this range. */
static int is_last(struct mdb_store *st, const struct settlement *s, bool *ret, struct error *err)
{
    int64_t last = 0;
    bool ordered = s->order != ORDER_NONE;
    if (mdb_value(st, err, &last,
                  SQL(is_last, .consumer = s->consumer, .lane = s->b->lane, .to_seq = s->b->to,
                      .ordered = ordered)) != 0)
        return -1;
    *ret = last != 0;
    return 0;
}

static int park_untried(struct mdb_store *st, const struct settlement *s, const struct event *ev,
                        struct error *err)
{
    struct parking p = {
        .consumer = s->consumer, .order = s->order, .ev = ev, .attempts = ev->attempts};
    return mdb_park(st, &p, err);
}

/* release gives back the end of a fresh range: by moving the position back if nothing was handed
 * out after it, or else by parking the events. *ret_n counts them. */
static int release(struct mdb_store *st, const struct settlement *s, int64_t *ret_n,
                   struct error *err)
{
    bool last;
    *ret_n = 0;
    if (!s->release_from)
        return 0;
    if (is_last(st, s, &last, err) != 0)
        return -1;
    for (size_t i = 0; i < s->b->n; i++) {
        const struct event *ev = &s->b->ev[i];
        if (ev->seq < s->release_from)
            continue;
        if (!last && park_untried(st, s, ev, err) != 0)
            return -1;
        ++*ret_n;
    }
    if (!last)
        return 0;
    return mdb_later(
        st, err,
        SQL(release, .consumer = s->consumer, .lane = s->b->lane, .position = s->release_from - 1));
}

/* ---- the claim ---- */

/* promote_others promotes the next event of each key of which something was not delivered. */
static int promote_others(struct mdb_store *st, const struct settlement *s, struct error *err)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct outcome *o = &s->out[i];
        int64_t key = (int64_t)store_order_key(s->order, o->ev->key);
        if (o->kind == OUTCOME_DELIVERED)
            continue;
        if (mdb_promote(st, s->consumer, key, err) != 0)
            return -1;
    }
    return 0;
}

/* finish_parked forgets what a parked claim delivered, and promotes the next event of each key. */
static int finish_parked(struct mdb_store *st, const struct settlement *s, struct error *err)
{
    const char *name = s->consumer;
    int64_t epoch = s->b->epoch;
    if (mdb_later(st, err, SQL(forget_letters, .consumer = name, .epoch = epoch)) != 0)
        return -1;
    if (mdb_later(st, err,
                  SQL(promote_behind, .consumer = name, .epoch = epoch, .now = mdb_now(st))) != 0)
        return -1;
    if (mdb_later(st, err, SQL(unpark_delivered, .consumer = name, .epoch = epoch)) != 0)
        return -1;
    return promote_others(st, s, err);
}

int mdb_settle_marks(struct mdb_store *st, const struct settlement *s, struct error *err)
{
    for (size_t i = 0; i < s->n_marks; i++) {
        const struct hwm *m = &s->marks[i];
        if (mdb_later(st, err,
                      SQL(put_mark, .stream = m->stream, .consumer = s->consumer, .hi = m->hi,
                          .lo = m->lo, .now = mdb_now(st))) != 0)
            return -1;
    }
    return 0;
}

int mdb_settle(struct mdb_store *st, const struct settlement *s, int64_t *ret_delivered,
               struct error *err)
{
    int64_t released, failed, epoch = s->b->epoch;
    if (apply_all(st, s, &failed, err) != 0)
        return -1;
    if (release(st, s, &released, err) != 0)
        return -1;
    if (s->b->parked && finish_parked(st, s, err) != 0)
        return -1;
    *ret_delivered = (int64_t)s->b->n - failed - released;
    return mdb_later(st, err, SQL(drop_claim, .consumer = s->consumer, .epoch = epoch));
}
