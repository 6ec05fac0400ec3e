/* settle.c: recording how a claim ended. Everything here runs inside a transaction: that of a turn,
 * or one that handlers work in. */
#include "base/text.h"
#include "store/sqlite/held_keys.h"
#include "store_sql.h"

/* ---- single events ---- */

/* waits_behind says whether an event of the same key is parked before this one; never for key 0. */
static int waits_behind(struct sqlite_store *st, const char *consumer, int64_t key, int64_t seq,
                        bool *ret, struct error *err)
{
    int64_t found = 0;
    *ret = false;
    if (key == 0)
        return 0;
    if (sqlite_value(st, err, &found,
                     SQL(parked_before, .consumer = consumer, .key = key, .seq = seq)) != 0)
        return -1;
    *ret = found != 0;
    return 0;
}

/* is_behind says whether an event that is to be parked waits behind another of its key. */
static int is_behind(struct sqlite_store *st, const struct parking *p, int64_t key, bool *ret,
                     struct error *err)
{
    struct held_keys *held = held_keys_known(st, p->consumer);
    bool alone = !held_keys_may(held, key);
    *ret = false;
    held_keys_add(held, key);
    if (alone)
        return 0;
    return waits_behind(st, p->consumer, key, p->ev->seq, ret, err);
}

/* sqlite_park gives the event a time at which it is due, unless it waits behind another parked
 * event of its key. Then it has no time of its own, whatever the reason for parking it. */
int sqlite_park(struct sqlite_store *st, const struct parking *p, struct error *err)
{
    char kept[TEXT_KEPT_MAX];
    bool behind;
    struct sql_park row = {
        .consumer = p->consumer,
        .seq = p->ev->seq,
        .key = (int64_t)store_order_key(p->order, p->ev->key),
        .attempts = p->attempts,
        .crashes = p->crashes,
        .delayed = p->delayed,
        .error = text_kept(p->error, kept),
        .now = sqlite_now(st),
        .wait = p->wait_ms,
        .proven = p->proven,
    };
    if (is_behind(st, p, row.key, &behind, err) != 0)
        return -1;
    if (!behind)
        row.due_at = p->due_at ? p->due_at : row.now;
    return sqlite_run(st, err, &sql_park, &row);
}

int sqlite_bury(struct sqlite_store *st, const char *consumer, int64_t seq, int attempts,
                const char *error, struct error *err)
{
    char kept[TEXT_KEPT_MAX];
    const char *why = text_kept(error, kept);
    int64_t now = sqlite_now(st);
    if (sqlite_run(st, err,
                   SQL(bury, .consumer = consumer, .seq = seq, .attempts = attempts, .error = why,
                       .now = now)) != 0)
        return -1;
    if (sqlite_run(st, err,
                   SQL(bury_again, .consumer = consumer, .seq = seq, .attempts = attempts,
                       .error = why, .now = now)) != 0)
        return -1;
    return sqlite_run(st, err, SQL(unpark, .consumer = consumer, .seq = seq));
}

int sqlite_promote(struct sqlite_store *st, const char *consumer, int64_t key, struct error *err)
{
    if (!key)
        return 0;
    return sqlite_run(st, err,
                      SQL(promote, .consumer = consumer, .key = key, .now = sqlite_now(st)));
}

/* ---- outcomes ---- */

/* put_back returns an event of a parked claim to its row as it was: it was not tried. */
static int put_back(struct sqlite_store *st, const struct settlement *s, const struct outcome *o,
                    struct error *err)
{
    return sqlite_run(
        st, err,
        SQL(put_back, .consumer = s->consumer, .seq = o->ev->seq, .attempts = o->attempts));
}

static int put_receipt(struct sqlite_store *st, const struct settlement *s, const struct outcome *o,
                       struct error *err)
{
    return sqlite_run(st, err,
                      SQL(put_receipt, .consumer = s->consumer, .seq = o->ev->seq,
                          .event_id = o->ev->id, .sink_id = o->receipt, .now = sqlite_now(st)));
}

/* apply records one outcome. What was delivered needs no record beyond the receipt: the claim is
 * dropped in the end. */
static int apply(struct sqlite_store *st, const struct settlement *s, const struct outcome *o,
                 struct error *err)
{
    struct parking p = {
        .consumer = s->consumer,
        .order = s->order,
        .ev = o->ev,
        .attempts = o->attempts,
    };
    switch (o->kind) {
    case OUTCOME_DELIVERED: return put_receipt(st, s, o, err);
    case OUTCOME_DEAD: return sqlite_bury(st, s->consumer, o->ev->seq, o->attempts, o->error, err);
    case OUTCOME_RETRY:
        p.wait_ms = o->delay_ms > 0 ? o->delay_ms : 1;
        p.due_at = sqlite_now(st) + p.wait_ms;
        p.error = o->error ? o->error : "failed";
        p.proven = o->proven;
        return sqlite_park(st, &p, err);
    case OUTCOME_BEHIND:
        if (s->b->parked)
            return put_back(st, s, o, err);
        return sqlite_park(st, &p, err);
    case OUTCOME_DELAY:
        p.due_at = o->ev->not_before;
        p.delayed = true;
        return sqlite_park(st, &p, err);
    }
    return err_set(err, ERR_INTERNAL, "unknown outcome %d", (int)o->kind);
}

/* count_failed counts the outcomes that are not deliveries. */
static int64_t count_failed(const struct settlement *s)
{
    int64_t n = 0;
    for (size_t i = 0; i < s->n; i++)
        if (s->out[i].kind != OUTCOME_DELIVERED)
            n++;
    return n;
}

/* apply_all applies the outcomes, of which so many are not deliveries. */
static int apply_all(struct sqlite_store *st, const struct settlement *s, int64_t failed,
                     struct error *err)
{
    struct held_keys *held;
    if (s->n == 0)
        return 0;
    int r = held_keys_read(st, s->consumer, (size_t)failed, &held, err);
    for (size_t i = 0; i < s->n && r == 0; i++)
        r = apply(st, s, &s->out[i], err);
    return r;
}

/* ---- giving back ---- */

/* is_last says whether nothing was handed out after this range. */
static int is_last(struct sqlite_store *st, const struct settlement *s, bool *ret,
                   struct error *err)
{
    int64_t last = 0;
    bool ordered = s->order != ORDER_NONE;
    if (sqlite_value(st, err, &last,
                     SQL(is_last, .consumer = s->consumer, .lane = s->b->lane, .to_seq = s->b->to,
                         .ordered = ordered)) != 0)
        return -1;
    *ret = last != 0;
    return 0;
}

static int park_untried(struct sqlite_store *st, const struct settlement *s, const struct event *ev,
                        struct error *err)
{
    struct parking p = {
        .consumer = s->consumer, .order = s->order, .ev = ev, .attempts = ev->attempts};
    return sqlite_park(st, &p, err);
}

/* release gives back the end of a fresh range: by moving the position back if nothing was handed
 * out after it, or else by parking the events. *ret_n counts them. */
static int release(struct sqlite_store *st, const struct settlement *s, int64_t *ret_n,
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
    return sqlite_run(
        st, err,
        SQL(release, .consumer = s->consumer, .lane = s->b->lane, .position = s->release_from - 1));
}

/* ---- the claim ---- */

/* finish_parked forgets what a parked claim delivered, and promotes the next event of each key. */
static int finish_parked(struct sqlite_store *st, const struct settlement *s, struct error *err)
{
    int64_t epoch = s->b->epoch;
    if (sqlite_run(st, err, SQL(forget_letters, .consumer = s->consumer, .epoch = epoch)) != 0)
        return -1;
    if (sqlite_run(st, err, SQL(unpark_delivered, .consumer = s->consumer, .epoch = epoch)) != 0)
        return -1;
    struct held_keys *held;
    held_keys_forget(st, s->consumer);
    int r = held_keys_read(st, s->consumer, s->b->n, &held, err);
    for (size_t i = 0; i < s->b->n && r == 0; i++) {
        int64_t key = (int64_t)store_order_key(s->order, s->b->ev[i].key);
        if (held_keys_may(held, key))
            r = sqlite_promote(st, s->consumer, key, err);
    }
    return r;
}

static int keep_marks(struct sqlite_store *st, const struct settlement *s, struct error *err)
{
    for (size_t i = 0; i < s->n_marks; i++) {
        const struct hwm *m = &s->marks[i];
        if (sqlite_run(st, err,
                       SQL(put_mark, .stream = m->stream, .consumer = s->consumer, .hi = m->hi,
                           .lo = m->lo, .now = sqlite_now(st))) != 0)
            return -1;
    }
    return 0;
}

/* finish_delivered records that n events were delivered, beyond the end of their claim. */
static int finish_delivered(struct sqlite_store *st, const struct settlement *s, int64_t n,
                            struct error *err)
{
    if (n == 0)
        return 0;
    if (sqlite_adopt_mark(st, s, err) != 0)
        return -1;
    return sqlite_run(st, err, SQL(count_delivered, .consumer = s->consumer, .n = n));
}

int sqlite_settle(struct sqlite_store *st, const struct settlement *s, bool *ret_lost,
                  struct error *err)
{
    int64_t alive = 0, released, failed = count_failed(s), epoch = s->b->epoch;
    if (keep_marks(st, s, err) != 0)
        return -1;
    if (sqlite_value(st, err, &alive,
                     SQL(is_claimed, .consumer = s->consumer, .epoch = epoch, .owner = s->owner)) !=
        0)
        return -1;
    *ret_lost = !alive;
    if (!alive)
        return 0;

    bool parks = failed > 0 || s->release_from || s->b->parked;
    if (parks && held_keys_change(st, s->consumer, err) != 0)
        return -1;
    if (apply_all(st, s, failed, err) != 0)
        return -1;
    if (release(st, s, &released, err) != 0)
        return -1;
    if (s->b->parked && finish_parked(st, s, err) != 0)
        return -1;
    if (sqlite_run(st, err, SQL(drop_claim, .consumer = s->consumer, .epoch = epoch)) != 0)
        return -1;
    return finish_delivered(st, s, (int64_t)s->b->n - failed - released, err);
}
