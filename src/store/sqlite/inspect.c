/* inspect.c: events with their states, and dead letters. */
#include <stdio.h>
#include <stdlib.h>

#include "sqlite_sql.h"
#include "store/sqlite/sqlite.h"

int sqlite_info(struct store *base, struct store_info *ret, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    struct store_info i = {.now_ms = sqlite_now(st)};
    int64_t version = 0, last = 0;
    if (sqlite_number(
            st, err, &version,
            "SELECT CAST(value AS INTEGER) FROM outbox_meta WHERE name = 'schema_version'", "") ||
        sqlite_number(st, err, &i.head,
                      "SELECT seq FROM sqlite_sequence WHERE name = 'outbox_event'", "") ||
        sqlite_number(st, err, &i.tail, "SELECT min(seq) FROM outbox_event", "") ||
        sqlite_number(st, err, &last, "SELECT max(seq) FROM outbox_event", "") ||
        sqlite_number(st, err, &i.oldest_at,
                      "SELECT created_at FROM outbox_event ORDER BY seq LIMIT 1", "") ||
        sqlite_number(st, err, &i.consumers, "SELECT count(*) FROM outbox_consumer", "") ||
        sqlite_number(st, err, &i.dead, "SELECT count(*) FROM outbox_dead WHERE retrying = 0", ""))
        return -1;
    i.schema_version = (int)version;
    /* One consumer of which it is not known is enough. */
    i.passed_at = -1;
    if (sqlite_number(st, err, &i.passed_at,
                      "SELECT CASE WHEN count(at) = count(*) THEN max(at) ELSE -1 END FROM (SELECT "
                      "CASE WHEN start >= ?1 THEN 0 ELSE "
                      "(SELECT min(at) FROM outbox_passed p WHERE p.consumer = c.name AND p.seq >= "
                      "?1) END AS at FROM "
                      "outbox_consumer c)",
                      "i", i.tail) != 0)
        return -1;
    i.events = i.tail ? last - i.tail + 1 : 0;
    i.events_exact = i.events <= STORE_EXACT_ROWS;
    if (i.events_exact &&
        sqlite_number(st, err, &i.events, "SELECT count(*) FROM outbox_event", "") != 0)
        return -1;
    *ret = i;
    return 0;
}

/* ---- states ---- */

/* A filter that a consumer had, and how far its lanes had got when it was replaced. */
struct former {
    struct former *next;
    struct filter *filter;
    int64_t n;
    int lanes;
    int64_t positions[STORE_LANES_MAX];
};

/* What is known of a consumer for the whole listing. */
struct viewed {
    struct filter *filter;
    struct former *former; /* the first one first */
    int64_t positions[STORE_LANES_MAX];
    int64_t start;    /* -1: not known */
    int64_t ended;    /* rows of outbox_ended */
    int64_t receipts; /* whether it has any */
};

struct viewer {
    struct sqlite_store *st;
    struct arena a;
    struct consumer_info *list;
    struct viewed *c;
    struct delivery_info *d;
    size_t n;
    int64_t claims; /* of anyone */
    int64_t now;
};

static void viewer_release(struct viewer *v)
{
    for (size_t i = 0; v->c && i < v->n; i++) {
        filter_free(v->c[i].filter);
        for (struct former *f = v->c[i].former; f; f = f->next)
            filter_free(f->filter);
    }
    arena_release(&v->a);
}

static int read_positions(struct sqlite_store *st, const char *name,
                          int64_t positions[STORE_LANES_MAX], struct error *err)
{
    sqlite3_stmt *q = sqlite_query(
        st, err, "SELECT lane, position FROM outbox_lane WHERE consumer = ?", "s", name);
    int r = q ? 1 : -1;
    while (q && (r = sqlite_step(st, q, err)) == 1) {
        int lane = sqlite3_column_int(q, 0);
        if (lane >= 0 && lane < STORE_LANES_MAX)
            positions[lane] = sqlite3_column_int64(q, 1);
    }
    return r < 0 ? -1 : 0;
}

/* add_former appends the filter of this row, which is the first of its n. */
static struct former *add_former(struct viewer *v, struct former **end, sqlite3_stmt *q,
                                 struct error *err)
{
    bool ok = true;
    struct former *f = arena_zalloc(&v->a, 1, sizeof *f);
    const char *events = sqlite_copy(q, 4, &v->a, &ok).p, *where = sqlite_copy(q, 5, &v->a, &ok).p;
    if (!f || !ok) {
        err_nomem(err);
        return NULL;
    }
    f->n = sqlite3_column_int64(q, 0);
    f->lanes = sqlite3_column_int(q, 2);
    if (filter_new(events, where, &f->filter, err) != 0)
        return NULL;
    *end = f;
    return f;
}

static int read_former(struct viewer *v, const char *name, struct former **end, struct error *err)
{
    struct former *f = NULL;
    int r = 0;
    sqlite3_stmt *q = sqlite_query(
        v->st, err,
        "SELECT n, lane, lanes, position, events, predicate FROM outbox_former_filter WHERE "
        "consumer = ? ORDER BY n, lane",
        "s", name);
    if (!q)
        return -1;
    while ((r = sqlite_step(v->st, q, err)) == 1) {
        int lane = sqlite3_column_int(q, 1);
        if (!f || f->n != sqlite3_column_int64(q, 0)) {
            f = add_former(v, f ? &f->next : end, q, err);
            if (!f)
                break;
        }
        if (lane >= 0 && lane < STORE_LANES_MAX)
            f->positions[lane] = sqlite3_column_int64(q, 3);
    }
    if (r == 1)
        sqlite3_reset(q);
    return r == 0 ? 0 : -1;
}

static int view_consumer(struct viewer *v, const struct consumer_spec *spec, struct viewed *c,
                         struct error *err)
{
    c->start = -1;
    if (filter_new(spec->events, spec->where, &c->filter, err) != 0)
        return -1;
    if (read_positions(v->st, spec->name, c->positions, err) != 0)
        return -1;
    if (read_former(v, spec->name, &c->former, err) != 0)
        return -1;
    if (sqlite_number(v->st, err, &c->start, "SELECT start FROM outbox_consumer WHERE name = ?",
                      "s", spec->name) != 0)
        return -1;
    if (sqlite_number(v->st, err, &c->receipts,
                      "SELECT EXISTS (SELECT 1 FROM outbox_receipt WHERE consumer = ?)", "s",
                      spec->name) != 0)
        return -1;
    return sqlite_number(v->st, err, &c->ended,
                         "SELECT count(*) FROM outbox_ended WHERE consumer = ?", "s", spec->name);
}

static int viewer_init(struct viewer *v, struct sqlite_store *st, const char *consumer,
                       struct error *err)
{
    *v = (struct viewer){.st = st};
    arena_init(&v->a, 0);
    size_t n;
    if (sqlite_consumer_list(&st->base, consumer, &v->a, &v->list, &n, err) != 0)
        goto fail;
    if (sqlite_number(st, err, &v->claims, "SELECT count(*) FROM outbox_claim", "") != 0)
        goto fail;
    v->now = sqlite_now(st);
    v->c = arena_zalloc(&v->a, n + 1, sizeof *v->c);
    v->d = arena_zalloc(&v->a, n + 1, sizeof *v->d);
    if (!v->c || !v->d) {
        err_nomem(err);
        goto fail;
    }
    for (size_t i = 0; i < n; i++) {
        v->n++; /* what view_consumer made is released, whether or not it got to the end */
        if (view_consumer(v, &v->list[i].spec, &v->c[i], err) != 0)
            goto fail;
    }
    return 0;
fail:
    viewer_release(v);
    return -1;
}

/* exceptional reads the rows of one event and consumer; *found says whether there was one. The
 * error text lives in `a`. */
static int exceptional(struct viewer *v, size_t i, int64_t seq, struct arena *a, bool *found,
                       struct error *err)
{
    struct delivery_info *d = &v->d[i];
    bool ok = true;
    sqlite3_stmt *q = sqlite_query(
        v->st, err,
        "SELECT attempts, due_at, EXISTS (SELECT 1 FROM outbox_claim k WHERE k.consumer = ?1 "
        "AND k.epoch = claim AND k.locked_until > ?3), error, 0, failing_since IS NOT NULL FROM "
        "outbox_parked WHERE "
        "consumer = ?1 AND seq = ?2 UNION ALL SELECT attempts, NULL, 0, error, 1, 0 FROM "
        "outbox_dead WHERE consumer = ?1 AND seq = ?2 AND retrying = 0",
        "sii", d->consumer, seq, v->now);
    int r = q ? sqlite_step(v->st, q, err) : -1;
    *found = r == 1;
    if (r <= 0)
        return r;
    d->attempts = sqlite3_column_int(q, 0);
    d->due_at = sqlite3_column_int64(q, 1);
    d->state = STATE_PENDING;
    bool failed = d->attempts > 0 || sqlite3_column_int(q, 5);
    if (failed)
        d->state = STATE_FAILED;
    if (sqlite3_column_int(q, 2))
        d->state = STATE_INFLIGHT;
    if (sqlite3_column_int(q, 4))
        d->state = STATE_EXPIRED;
    d->error = sqlite_copy(q, 3, a, &ok).p;
    sqlite3_reset(q);
    return ok ? 0 : err_nomem(err);
}

/* read_receipt reads when a consumer was delivered an event, and what the sink called it, where
 * that is on record. */
static int read_receipt(struct viewer *v, size_t i, const struct event *ev, struct arena *a,
                        struct error *err)
{
    struct delivery_info *d = &v->d[i];
    bool ok = true;
    if (!v->c[i].receipts)
        return 0;
    sqlite3_stmt *q = sqlite_query(
        v->st, err,
        "SELECT at, sink_id FROM outbox_receipt WHERE consumer = ? AND seq = ? AND event_id = ?",
        "sit", d->consumer, ev->seq, ev->id);
    int r = q ? sqlite_step(v->st, q, err) : -1;
    if (r <= 0)
        return r;
    d->delivered_at = sqlite3_column_int64(q, 0);
    d->receipt = sqlite_copy(q, 1, a, &ok).p;
    sqlite3_reset(q);
    return ok ? 0 : err_nomem(err);
}

/* judge is the filter an event was handed out under: the first that was replaced after that, or the
 * one of now. */
static const struct filter *judge(const struct viewed *c, const struct event *ev)
{
    for (const struct former *f = c->former; f; f = f->next)
        if (ev->seq <= f->positions[event_lane(ev->key, ev->seq, f->lanes)])
            return f->filter;
    return c->filter;
}

/* ended reads how a single event ended, where that is on record. */
static int read_ended(struct viewer *v, size_t i, int64_t seq, bool *found, struct error *err)
{
    *found = false;
    if (v->c[i].ended == 0)
        return 0;
    sqlite3_stmt *q = sqlite_query(v->st, err,
                                   "SELECT state FROM outbox_ended WHERE seq = ? AND consumer = ?",
                                   "is", seq, v->d[i].consumer);
    int r = q ? sqlite_step(v->st, q, err) : -1;
    if (r <= 0)
        return r;
    *found = true;
    for (int s = 0; s < STATE_COUNT; s++)
        if (str_is(sqlite_text(q, 0), delivery_state_names[s]))
            v->d[i].state = (enum delivery_state)s;
    sqlite3_reset(q);
    return 0;
}

/* claim_on: whether a claim spans the event, alive or expired. */
enum claim_on { CLAIM_NONE, CLAIM_EXPIRED, CLAIM_LIVE };

static int claim_on(struct viewer *v, const char *consumer, int lane, int64_t seq,
                    enum claim_on *ret, struct error *err)
{
    int64_t found = CLAIM_NONE;
    *ret = CLAIM_NONE;
    if (!v->claims)
        return 0;
    if (sqlite_number(v->st, err, &found,
                      "SELECT max(CASE WHEN locked_until > ?5 THEN ?6 ELSE ?7 END) FROM "
                      "outbox_claim WHERE consumer = ?1 "
                      "AND parked = 0 AND lane = ?2 AND from_seq < ?3 AND to_seq >= ?4",
                      "siiiiii", consumer, (int64_t)lane, seq, seq, v->now, (int64_t)CLAIM_LIVE,
                      (int64_t)CLAIM_EXPIRED) != 0)
        return -1;
    *ret = (enum claim_on)found;
    return 0;
}

static bool wants(const struct filter *f, const struct event *ev)
{
    return filter_type(f, ev->type) && filter_payload(f, ev->payload);
}

/* handed_out: the state of an event that its lane is past, and that is neither parked nor dead. */
static int handed_out(struct viewer *v, size_t i, const struct event *ev, int lane,
                      struct error *err)
{
    struct delivery_info *d = &v->d[i];
    enum claim_on claim;
    bool known;
    if (ev->seq <= v->c[i].start) {
        d->state = filter_type(v->c[i].filter, ev->type) ? STATE_BEFORE_START : STATE_SKIPPED;
        return 0;
    }
    if (read_ended(v, i, ev->seq, &known, err) != 0)
        return -1;
    if (!known)
        d->state = wants(judge(&v->c[i], ev), ev) ? STATE_DELIVERED : STATE_SKIPPED;
    if (d->state == STATE_SKIPPED)
        return 0;
    if (claim_on(v, d->consumer, lane, ev->seq, &claim, err) != 0)
        return -1;
    if (claim == CLAIM_LIVE)
        d->state = STATE_INFLIGHT;
    if (claim == CLAIM_EXPIRED)
        d->state = STATE_PENDING; /* nobody has it any more */
    return 0;
}

static int state_of(struct viewer *v, size_t i, const struct event *ev, struct arena *a,
                    struct error *err)
{
    struct delivery_info *d = &v->d[i];
    const struct consumer_spec *c = &v->list[i].spec;
    bool found;
    *d = (struct delivery_info){.consumer = c->name};
    found = v->list[i].parked + v->list[i].inflight + v->list[i].dead >
            0; /* most have neither: then a million events cost no query */
    if (read_receipt(v, i, ev, a, err) != 0)
        return -1;
    if (found && exceptional(v, i, ev->seq, a, &found, err) != 0)
        return -1;
    if (found)
        return 0;
    int lane = event_lane(ev->key, ev->seq, c->lanes);
    if (ev->seq <= v->c[i].positions[lane])
        return handed_out(v, i, ev, lane, err);
    d->state = wants(v->c[i].filter, ev) ? STATE_PENDING : STATE_SKIPPED;
    return 0;
}

static bool matches(const struct event_query *q, const struct event *ev)
{
    if (q->type && !pattern_match(str_of(q->type), ev->type))
        return false;
    if (q->aggregate_type.p && !str_eq(q->aggregate_type, ev->aggregate_type))
        return false;
    return !q->aggregate_id.p || str_eq(q->aggregate_id, ev->aggregate_id);
}

static bool in_state(const struct viewer *v, const struct event_query *q)
{
    if (!q->state && !q->unprocessed)
        return true;
    for (size_t i = 0; i < v->n; i++)
        if (store_in_state(q, &v->d[i], v->now))
            return true;
    return v->n == 0 && (q->unprocessed || q->state == STATE_PENDING + 1);
}

/* Two statements, because an index is used in the direction it is asked for. */
static sqlite3_stmt *select_events(struct sqlite_store *st, const struct event_query *q,
                                   struct error *err)
{
    if (q->id) {
        char *end;
        long long seq = strtoll(q->id, &end, 10);
        bool number = *q->id && !*end;
        return sqlite_query(st, err,
                            "SELECT " EVENT_COLUMNS " FROM outbox_event WHERE seq = ?1 OR id = ?2",
                            "is", number ? (int64_t)seq : (int64_t)-1, number ? "" : q->id);
    }
    if (q->newest_first)
        return sqlite_query(st, err,
                            "SELECT " EVENT_COLUMNS
                            " FROM outbox_event WHERE ?1 = 0 OR seq < ?1 ORDER BY seq DESC",
                            "i", q->after);
    return sqlite_query(st, err,
                        "SELECT " EVENT_COLUMNS " FROM outbox_event WHERE seq > ?1 ORDER BY seq",
                        "i", q->after);
}

static int list_events(struct viewer *v, const struct event_query *q, event_visit *visit, void *ctx,
                       struct error *err)
{
    struct arena a;
    struct event ev;
    size_t left = q->limit ? q->limit : 100;
    sqlite3_stmt *rows = select_events(v->st, q, err);
    int r = rows ? 1 : -1, stop = 0;
    arena_init(&a, 0);
    while (left > 0 && !stop && r == 1 && (r = sqlite_step(v->st, rows, err)) == 1) {
        if (!sqlite_event_row(rows, &a, &ev))
            r = err_nomem(err);
        bool wanted = r == 1 && matches(q, &ev);
        for (size_t i = 0; wanted && r == 1 && i < v->n; i++)
            if (state_of(v, i, &ev, &a, err) != 0)
                r = -1;
        if (wanted && r == 1 && in_state(v, q)) {
            stop = visit(ctx, &ev, v->d, v->n);
            left--;
        }
        arena_reset(&a);
    }
    if (rows)
        sqlite3_reset(rows);
    arena_release(&a);
    return r < 0 ? -1 : 0;
}

int sqlite_events(struct store *base, const struct event_query *q, event_visit *visit, void *ctx,
                  struct error *err)
{
    struct viewer v;
    if (viewer_init(&v, sqlite_of(base), q->consumer, err) != 0)
        return -1;
    int r = list_events(&v, q, visit, ctx, err);
    viewer_release(&v);
    return r;
}

/* ---- dead letters ---- */

int sqlite_dead(struct store *base, const struct dead_query *query, dead_visit *visit, void *ctx,
                struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    struct arena a;
    size_t left = query->limit ? query->limit : SIZE_MAX;
    int r = 1, stop = 0;
    sqlite3_stmt *q = sqlite_query(
        st, err,
        "SELECT " EVENT_COLUMNS ", consumer, attempts, error, dead_at, retrying FROM "
        "outbox_dead WHERE (?1 IS NULL OR consumer = ?1) AND (?2 IS NULL OR id = ?2 OR seq = "
        "?3) ORDER BY consumer, seq",
        "ssi", query->consumer, query->id, store_seq_of(query->id));
    if (!q)
        return -1;
    arena_init(&a, 0);
    while (left > 0 && !stop && (r = sqlite_step(st, q, err)) == 1) {
        struct dead_letter d = {0};
        bool ok = sqlite_event_row(q, &a, &d.ev);
        d.consumer = sqlite_copy(q, EVENT_COLUMN_COUNT, &a, &ok).p;
        d.attempts = sqlite3_column_int(q, EVENT_COLUMN_COUNT + 1);
        d.error = sqlite_copy(q, EVENT_COLUMN_COUNT + 2, &a, &ok).p;
        d.dead_at = sqlite3_column_int64(q, EVENT_COLUMN_COUNT + 3);
        d.retrying = sqlite3_column_int(q, EVENT_COLUMN_COUNT + 4) != 0;
        if (!ok) {
            r = err_nomem(err);
            break;
        }
        if (!query->type || pattern_match(str_of(query->type), d.ev.type)) {
            stop = visit(ctx, &d);
            left--;
        }
        arena_reset(&a);
    }
    sqlite3_reset(q);
    arena_release(&a);
    return r < 0 ? -1 : 0;
}

/* What to do with the letters a query selects: they are listed first, since a table must not change
 * under its reader. */
struct picked {
    struct dead_pick {
        char consumer[STORE_NAME_MAX + 1];
        int64_t seq;
        uint64_t key;
    } * p;
    size_t n, cap;
    bool failed;
};

static int pick(void *ctx, const struct dead_letter *d)
{
    struct picked *l = ctx;
    if (d->retrying)
        return 0;
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 64;
        struct dead_pick *p = realloc(l->p, cap * sizeof *p);
        if (!p) {
            l->failed = true;
            return 1;
        }
        l->p = p;
        l->cap = cap;
    }
    struct dead_pick *k = &l->p[l->n++];
    snprintf(k->consumer, sizeof k->consumer, "%s", d->consumer);
    k->seq = d->ev.seq;
    k->key = d->ev.key;
    return 0;
}

static int retry_one(struct sqlite_store *st, const struct dead_pick *k, struct error *err)
{
    int64_t order_key = 0;
    sqlite3_stmt *q = sqlite_query(st, err, "SELECT ordering FROM outbox_consumer WHERE name = ?",
                                   "s", k->consumer);
    int r = q ? sqlite_step(st, q, err) : -1;
    if (r < 0)
        return -1;
    if (r == 1) {
        order_key = (int64_t)store_order_key(store_order_of(sqlite_text(q, 0)), k->key);
        sqlite3_reset(q);
    }
    if (sqlite_exec(st, err,
                    "INSERT INTO outbox_parked (consumer, seq, key, attempts, due_at) VALUES (?, "
                    "?, ?, 0, ?) ON CONFLICT "
                    "DO NOTHING",
                    "siii", k->consumer, k->seq, order_key, sqlite_now(st)) != 0)
        return -1;
    return sqlite_exec(st, err,
                       "UPDATE outbox_dead SET retrying = 1 WHERE consumer = ? AND seq = ?", "si",
                       k->consumer, k->seq);
}

static int drop_one(struct sqlite_store *st, const struct dead_pick *k, struct error *err)
{
    return sqlite_exec(st, err, "DELETE FROM outbox_dead WHERE consumer = ? AND seq = ?", "si",
                       k->consumer, k->seq);
}

static int for_picked(struct store *base, const struct dead_query *query, int64_t *ret_n,
                      int (*act)(struct sqlite_store *, const struct dead_pick *, struct error *),
                      struct error *err)
{
    struct picked l = {0};
    if (sqlite_begin(base, err) != 0)
        return -1;
    int r = sqlite_dead(base, query, pick, &l, err);
    if (r == 0 && l.failed)
        r = err_nomem(err);
    for (size_t i = 0; r == 0 && i < l.n; i++)
        r = act(sqlite_of(base), &l.p[i], err);
    free(l.p);
    if (r == 0)
        r = sqlite_commit(base, err);
    else
        sqlite_rollback(base);
    if (r == 0)
        *ret_n = (int64_t)l.n;
    return r;
}

int sqlite_dead_retry(struct store *base, const struct dead_query *query, int64_t *ret_n,
                      struct error *err)
{
    return for_picked(base, query, ret_n, retry_one, err);
}

int sqlite_dead_drop(struct store *base, const struct dead_query *query, int64_t *ret_n,
                     struct error *err)
{
    return for_picked(base, query, ret_n, drop_one, err);
}

int sqlite_retry_now(struct store *base, const char *consumer, int64_t seq, bool *ret_waited,
                     struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    if (sqlite_exec(st, err,
                    "UPDATE outbox_parked SET due_at = min(due_at, ?3) WHERE consumer = ?1 AND seq "
                    "= ?2 AND claim IS NULL AND "
                    "due_at IS NOT NULL AND NOT delayed",
                    "sii", consumer, seq, sqlite_now(st)) != 0)
        return -1;
    *ret_waited = sqlite3_changes(st->db) > 0;
    return 0;
}

int sqlite_marks(struct store *base, const char *stream, mark_visit *visit, void *ctx,
                 struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    sqlite3_stmt *q = sqlite_query(
        st, err,
        "SELECT stream, consumer, hi, lo, at FROM outbox_mark WHERE ?1 IS NULL OR stream = ?1 "
        "ORDER BY stream, hi DESC, lo DESC, consumer",
        "s", stream);
    int rc = q ? 1 : -1;
    while (rc == 1 && (rc = sqlite_step(st, q, err)) == 1) {
        struct hwm m = {sqlite_text(q, 0), sqlite3_column_int64(q, 2), sqlite3_column_int64(q, 3)};
        if (visit(ctx, sqlite_text(q, 1).p, &m, sqlite3_column_int64(q, 4)) == 0)
            continue;
        sqlite3_reset(q);
        return 0;
    }
    return rc;
}
