/* settle.c: recording how a claim ended. Everything here runs inside the transaction that turn opened. */
#include "base/text.h"
#include "store/sqlite/sqlite.h"

int64_t sqlite_order_key(enum order order, const struct event *ev)
{
    if (order == ORDER_NONE) return 0;
    return order == ORDER_GLOBAL ? 1 : (int64_t)ev->key;
}

int sqlite_waits_behind(struct sqlite_store *st, const char *consumer, int64_t key, int64_t seq, bool *ret,
                        struct error *err)
{
    int64_t found = 0;
    if (key &&
        sqlite_number(st, err, &found, "SELECT 1 FROM outbox_parked WHERE consumer = ? AND key = ? AND seq < ? LIMIT 1",
                      "sii", consumer, key, seq) != 0)
        return -1;
    *ret = found != 0;
    return 0;
}

/* Whatever the reason for parking: behind an event of its key that is parked already, it has no time of its own. */
int sqlite_park(struct sqlite_store *st, const struct parking *p, struct error *err)
{
    int64_t key = sqlite_order_key(p->order, p->ev), now = sqlite_now(st), due = p->due_at ? p->due_at : now;
    bool behind = false;
    char kept[TEXT_KEPT_MAX];
    const char *why = text_kept(p->error, kept);
    if (sqlite_waits_behind(st, p->consumer, key, p->ev->seq, &behind, err) != 0) return -1;
    return sqlite_exec(
        st, err,
        "INSERT INTO outbox_parked (consumer, seq, key, attempts, due_at, careful, delayed, error, "
        "failed_at, failing_since, wait, proven) VALUES (?1, ?2, ?3, ?4, CASE ?5 WHEN 0 THEN NULL ELSE ?5 END, ?6, ?7, ?8, "
        "CASE WHEN ?8 IS NULL THEN NULL ELSE ?9 END, CASE WHEN ?8 IS NULL THEN NULL ELSE ?9 END, ?10, ?11) "
        "ON CONFLICT (consumer, seq) DO UPDATE SET attempts = excluded.attempts, due_at = "
        "excluded.due_at, wait = excluded.wait, careful = excluded.careful, delayed = excluded.delayed, claim = NULL, "
        "error = coalesce(excluded.error, error), failed_at = coalesce(excluded.failed_at, failed_at), "
        "failing_since = coalesce(failing_since, excluded.failing_since), proven = max(proven, excluded.proven)",
        "siiiiiisiii", p->consumer, p->ev->seq, key, (int64_t)p->attempts, behind ? (int64_t)0 : due,
        (int64_t)p->careful, (int64_t)p->delayed, why, now, p->wait_ms, (int64_t)p->proven);
}

int sqlite_bury(struct sqlite_store *st, const char *consumer, int64_t seq, int attempts, const char *error,
                struct error *err)
{
    char kept[TEXT_KEPT_MAX];
    const char *why = text_kept(error, kept);
    if (sqlite_exec(st, err,
                    "INSERT INTO outbox_dead (consumer, " EVENT_COLUMNS ", attempts, error, dead_at) "
                    "SELECT ?1, " EVENT_COLUMNS ", ?3, ?4, ?5 FROM outbox_event WHERE seq = ?2 "
                    "ON CONFLICT (consumer, seq) DO UPDATE SET attempts = ?3, error = ?4, dead_at = ?5, retrying = 0",
                    "siisi", consumer, seq, (int64_t)attempts, why, sqlite_now(st)) != 0)
        return -1;
    /* A letter sent back after its event was trimmed has only its own row. */
    if (sqlite_exec(st, err,
                    "UPDATE outbox_dead SET attempts = ?3, error = ?4, dead_at = ?5, retrying = 0 "
                    "WHERE consumer = ?1 AND seq = ?2 AND retrying = 1",
                    "siisi", consumer, seq, (int64_t)attempts, why, sqlite_now(st)) != 0)
        return -1;
    return sqlite_exec(st, err, "DELETE FROM outbox_parked WHERE consumer = ? AND seq = ?", "si", consumer, seq);
}

/* One that failed while it was behind another has not waited for its own time yet. */
int sqlite_promote(struct sqlite_store *st, const char *consumer, int64_t key, struct error *err)
{
    if (!key) return 0;
    return sqlite_exec(st, err,
                       "UPDATE outbox_parked SET due_at = max(?3, coalesce(failed_at + wait, 0)) WHERE consumer = ?1 "
                       "AND claim IS NULL AND due_at IS NULL "
                       "AND seq = (SELECT min(seq) FROM outbox_parked WHERE consumer = ?1 AND key = ?2)",
                       "sii", consumer, key, sqlite_now(st));
}

/* put_back returns an event of a parked claim to where it was: it was not tried. */
static int put_back(struct sqlite_store *st, const struct settlement *s, const struct outcome *o, struct error *err)
{
    return sqlite_exec(st, err, "UPDATE outbox_parked SET claim = NULL, attempts = ?3 WHERE consumer = ?1 AND seq = ?2",
                       "sii", s->consumer, o->ev->seq, (int64_t)o->attempts);
}

static int apply(struct sqlite_store *st, const struct settlement *s, const struct outcome *o, struct error *err)
{
    struct parking p = {.consumer = s->consumer, .order = s->order, .ev = o->ev, .attempts = o->attempts};
    switch (o->kind) {
    case OUTCOME_DELIVERED:
        return sqlite_exec(
            st, err,
            "INSERT INTO outbox_receipt (consumer, seq, event_id, sink_id, at) VALUES (?1, ?2, ?3, ?4, ?5) "
            "ON CONFLICT (consumer, seq) DO UPDATE SET sink_id = ?4, at = ?5",
            "sitsi", s->consumer, o->ev->seq, o->ev->id, o->receipt, sqlite_now(st));
    case OUTCOME_RETRY:
        p.wait_ms = o->delay_ms > 0 ? o->delay_ms : 1;
        p.due_at = sqlite_now(st) + p.wait_ms;
        p.error = o->error ? o->error : "failed";
        p.proven = o->proven;
        return sqlite_park(st, &p, err);
    case OUTCOME_DEAD: return sqlite_bury(st, s->consumer, o->ev->seq, o->attempts, o->error, err);
    case OUTCOME_BEHIND: return s->b->parked ? put_back(st, s, o, err) : sqlite_park(st, &p, err);
    case OUTCOME_DELAY:
        p.due_at = o->ev->not_before;
        p.delayed = true;
        return sqlite_park(st, &p, err);
    }
    return err_set(err, ERR_INTERNAL, "unknown outcome %d", (int)o->kind);
}

/* is_last says whether nothing was handed out behind this range. The position may be further, over events that were only
 * passed over: with an order to keep, nobody else has had any of the lane meanwhile. */
static int is_last(struct sqlite_store *st, const struct settlement *s, bool *ret, struct error *err)
{
    int64_t last = 0;
    if (sqlite_number(
            st, err, &last,
            "SELECT position = ?3 OR (?4 AND NOT EXISTS (SELECT 1 FROM outbox_claim WHERE consumer = ?1 AND lane "
            "= ?2 AND parked = 0 AND from_seq >= ?3)) FROM outbox_lane WHERE consumer = ?1 AND lane = ?2",
            "siii", s->consumer, (int64_t)s->b->lane, s->b->to, (int64_t)(s->order != ORDER_NONE)) != 0)
        return -1;
    *ret = last != 0;
    return 0;
}

/* release gives back the end of a fresh range: by moving the position back if it is the last one handed out. */
static int release(struct sqlite_store *st, const struct settlement *s, int64_t *ret_n, struct error *err)
{
    bool last;
    *ret_n = 0;
    if (!s->release_from) return 0;
    if (is_last(st, s, &last, err) != 0) return -1;
    for (size_t i = 0; i < s->b->n; i++) {
        const struct event *ev = &s->b->ev[i];
        if (ev->seq < s->release_from) continue;
        struct parking p = {.consumer = s->consumer, .order = s->order, .ev = ev, .attempts = ev->attempts};
        if (!last && sqlite_park(st, &p, err) != 0) return -1;
        ++*ret_n;
    }
    if (!last) return 0;
    return sqlite_exec(st, err, "UPDATE outbox_lane SET position = ? WHERE consumer = ? AND lane = ?", "isi",
                       s->release_from - 1, s->consumer, (int64_t)s->b->lane);
}

/* finish_parked forgets what was delivered from a parked claim and lets the next of each key step forward. */
static int finish_parked(struct sqlite_store *st, const struct settlement *s, struct error *err)
{
    if (sqlite_exec(st, err,
                    "DELETE FROM outbox_dead WHERE consumer = ?1 AND retrying = 1 AND seq IN "
                    "(SELECT seq FROM outbox_parked WHERE consumer = ?1 AND claim = ?2)",
                    "si", s->consumer, s->b->epoch) != 0)
        return -1;
    if (sqlite_exec(st, err, "DELETE FROM outbox_parked WHERE consumer = ? AND claim = ?", "si", s->consumer,
                    s->b->epoch) != 0)
        return -1;
    for (size_t i = 0; i < s->b->n; i++)
        if (sqlite_promote(st, s->consumer, sqlite_order_key(s->order, &s->b->ev[i]), err) != 0) return -1;
    return 0;
}

static int keep_marks(struct sqlite_store *st, const struct settlement *s, struct error *err)
{
    for (size_t i = 0; i < s->n_marks; i++) {
        const struct hwm *m = &s->marks[i];
        if (sqlite_exec(
                st, err,
                "INSERT INTO outbox_mark (stream, consumer, hi, lo, at) VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT "
                "(stream, consumer) DO UPDATE SET hi = ?3, lo = ?4, at = ?5 WHERE (?3, ?4) > (hi, lo)",
                "tsiii", m->stream, s->consumer, m->hi, m->lo, sqlite_now(st)) != 0)
            return -1;
    }
    return 0;
}

int sqlite_settle(struct sqlite_store *st, const struct settlement *s, bool *ret_lost, struct error *err)
{
    int64_t alive = 0, released, failed = 0; /* alive: nobody has taken it over, however late this is */
    if (keep_marks(st, s, err) != 0) return -1;
    if (sqlite_number(st, err, &alive, "SELECT 1 FROM outbox_claim WHERE consumer = ? AND epoch = ? AND owner = ?",
                      "sis", s->consumer, s->b->epoch, s->owner) != 0)
        return -1;
    *ret_lost = !alive;
    if (!alive) return 0;
    for (size_t i = 0; i < s->n; i++) {
        if (s->out[i].kind != OUTCOME_DELIVERED) failed++;
        if (apply(st, s, &s->out[i], err) != 0) return -1;
    }
    if (release(st, s, &released, err) != 0) return -1;
    if (s->b->parked && finish_parked(st, s, err) != 0) return -1;
    if (sqlite_exec(st, err, "DELETE FROM outbox_claim WHERE consumer = ? AND epoch = ?", "si", s->consumer,
                    s->b->epoch) != 0)
        return -1;
    int64_t delivered = (int64_t)s->b->n - failed - released;
    if (delivered == 0) return 0;
    if (sqlite_adopt_mark(st, s, err) != 0) return -1;
    return sqlite_exec(st, err, "UPDATE outbox_consumer SET delivered = delivered + ? WHERE name = ?", "is", delivered,
                       s->consumer);
}
