/* inspect.c: the state of an event for each consumer. Most events have no record besides their row
 * in outbox_event: their state follows from positions, claims and filters. */
#include "store/db/inspect.h"

#include "store/db/db.h"
#include "store_sql.h"

/* ---- read once per listing ---- */

void db_viewer_release(struct viewer *v)
{
    for (size_t i = 0; v->c && i < v->n; i++) {
        filter_free(v->c[i].filter);
        for (struct former *f = v->c[i].former; f; f = f->next)
            filter_free(f->filter);
    }
    arena_release(&v->a);
}

/* Notes the position of a lane; a tampered database may have lanes out of range. */
static void put_position(int64_t positions[STORE_LANES_MAX], int lane, int64_t position)
{
    bool valid = lane >= 0 && lane < STORE_LANES_MAX;
    if (valid)
        positions[lane] = position;
}

static int read_positions(struct store *st, const char *name, int64_t positions[STORE_LANES_MAX],
                          struct error *err)
{
    int r;
    struct db_rows q = db_rows(st, err, SQL(lane_positions, .consumer = name));
    while ((r = db_step(&q, err)) == 1)
        put_position(positions, (int)db_int(&q, 0), db_int(&q, 1));
    return r;
}

/* Appends the filter of this row, the first of n rows with it. */
static struct former *add_former(struct viewer *v, struct former **end, const struct db_rows *q,
                                 struct error *err)
{
    bool ok = true;
    struct former *f = arena_zalloc(&v->a, 1, sizeof *f);
    const char *events = db_copy(q, 4, &v->a, &ok).p;
    const char *where = db_copy(q, 5, &v->a, &ok).p;
    if (!f || !ok) {
        err_nomem(err);
        return NULL;
    }
    f->n = db_int(q, 0);
    f->lanes = (int)db_int(q, 2);
    if (filter_new(events, where, &f->filter, err) != 0)
        return NULL;
    *end = f;
    return f;
}

/* Reads the former filters; each has a row per lane. */
static int read_former(struct viewer *v, const char *name, struct former **end, struct error *err)
{
    struct former *f = NULL;
    int r;
    struct db_rows q = db_rows(v->st, err, SQL(former_filters, .consumer = name));
    while ((r = db_step(&q, err)) == 1) {
        bool next = !f || f->n != db_int(&q, 0);
        if (next) {
            f = add_former(v, end, &q, err);
            if (!f) {
                db_done(&q);
                return -1;
            }
            end = &f->next;
        }
        put_position(f->positions, (int)db_int(&q, 1), db_int(&q, 3));
    }
    return r;
}

/* Reads what is needed to decide the state of most events without a query. */
static int view_consumer(struct viewer *v, const struct consumer_spec *spec, struct viewed *c,
                         struct error *err)
{
    const char *name = spec->name;
    c->start = -1;
    if (filter_new(spec->events, spec->where, &c->filter, err) != 0)
        return -1;
    if (read_positions(v->st, name, c->positions, err) != 0)
        return -1;
    if (read_former(v, name, &c->former, err) != 0)
        return -1;
    const struct db_number wanted[] = {
        {&c->start, SQL(consumer_start, .consumer = name)},
        {&c->receipts, SQL(has_receipts, .consumer = name)},
        {&c->ended, SQL(count_ended, .consumer = name)},
    };
    return db_values(v->st, err, wanted, sizeof wanted / sizeof *wanted);
}

int db_viewer_read(struct viewer *v, const char *consumer, struct error *err)
{
    size_t n;
    if (db_consumer_list(v->st, consumer, &v->a, &v->list, &n, err) != 0)
        return -1;
    if (db_value(v->st, err, &v->claims, SQL(count_claims)) != 0)
        return -1;
    v->now = db_now(v->st);
    v->c = arena_zalloc(&v->a, n + 1, sizeof *v->c);
    v->d = arena_zalloc(&v->a, n + 1, sizeof *v->d);
    if (!v->c || !v->d)
        return err_nomem(err);
    for (size_t i = 0; i < n; i++) {
        v->n++; /* so that a partly read consumer is released too */
        if (view_consumer(v, &v->list[i].spec, &v->c[i], err) != 0)
            return -1;
    }
    return 0;
}

/* ---- the state of one event for consumer i ---- */

/* Reads the parked row or the dead letter, if there is one: *ret_found. The error
 * text lives in `a`. */
static int read_exception(struct viewer *v, size_t i, int64_t seq, struct arena *a, bool *ret_found,
                          struct error *err)
{
    enum { ATTEMPTS, DUE_AT, CLAIMED, WHY, DEAD, FAILING };
    struct delivery_info *d = &v->d[i];
    struct db_rows q;
    v->asked++;
    int r = db_row(v->st, &q, err,
                   SQL(exception_of, .consumer = d->consumer, .seq = seq, .now = v->now));
    *ret_found = r == 1;
    if (r <= 0)
        return r;

    d->attempts = (int)db_int(&q, ATTEMPTS);
    d->due_at = db_int(&q, DUE_AT);
    bool tried = d->attempts > 0 || (int)db_int(&q, FAILING);
    if ((int)db_int(&q, DEAD))
        d->state = STATE_EXPIRED;
    else if ((int)db_int(&q, CLAIMED))
        d->state = STATE_INFLIGHT;
    else
        d->state = tried ? STATE_FAILED : STATE_PENDING;

    bool ok = true;
    d->error = db_copy(&q, WHY, a, &ok).p;
    db_done(&q);
    return ok ? 0 : err_nomem(err);
}

/* Reads the delivery time and the sink's receipt of an event, where recorded. */
static int read_receipt(struct viewer *v, size_t i, const struct event *ev, struct arena *a,
                        struct error *err)
{
    struct delivery_info *d = &v->d[i];
    if (!v->c[i].receipts)
        return 0;
    struct db_rows q;
    v->asked++;
    int r = db_row(v->st, &q, err,
                   SQL(receipt_of, .consumer = d->consumer, .seq = ev->seq, .event_id = ev->id));
    if (r <= 0)
        return r;
    bool ok = true;
    d->delivered_at = db_int(&q, 0);
    d->receipt = db_copy(&q, 1, a, &ok).p;
    db_done(&q);
    return ok ? 0 : err_nomem(err);
}

/* Reads how an event ended, where recorded: *ret_found. */
static int read_ended(struct viewer *v, size_t i, int64_t seq, bool *ret_found, struct error *err)
{
    *ret_found = false;
    if (v->c[i].ended == 0)
        return 0;
    struct db_rows q;
    v->asked++;
    int r = db_row(v->st, &q, err, SQL(ended_state, .consumer = v->d[i].consumer, .seq = seq));
    if (r <= 0)
        return r;
    *ret_found = true;
    for (int s = 0; s < STATE_COUNT; s++)
        if (str_is(db_text(&q, 0), delivery_state_names[s]))
            v->d[i].state = (enum delivery_state)s;
    db_done(&q);
    return 0;
}

enum claim_over { CLAIM_NONE, CLAIM_EXPIRED, CLAIM_LIVE };

/* Finds out whether a fresh claim spans the event. */
static int read_claim(struct viewer *v, const char *consumer, int lane, int64_t seq,
                      enum claim_over *ret, struct error *err)
{
    int64_t found = CLAIM_NONE;
    *ret = CLAIM_NONE;
    if (!v->claims)
        return 0;
    v->asked++;
    if (db_value(v->st, err, &found,
                 SQL(claim_over, .consumer = consumer, .lane = lane, .seq = seq, .now = v->now,
                     .live = CLAIM_LIVE, .expired = CLAIM_EXPIRED)) != 0)
        return -1;
    *ret = (enum claim_over)found;
    return 0;
}

static bool wants(const struct filter *f, const struct event *ev)
{
    return filter_type(f, ev->type) && filter_payload(f, ev->payload);
}

/* Returns the filter in force when an event was handed out: the first one replaced after that, or
 * the current one. */
static const struct filter *judge(const struct viewed *c, const struct event *ev)
{
    for (const struct former *f = c->former; f; f = f->next)
        if (ev->seq <= f->positions[event_lane(ev->key, ev->seq, f->lanes)])
            return f->filter;
    return c->filter;
}

/* Decides the state of an event that its lane has passed and that is neither parked nor dead. */
static int handed_out(struct viewer *v, size_t i, const struct event *ev, int lane,
                      struct error *err)
{
    const struct viewed *c = &v->c[i];
    struct delivery_info *d = &v->d[i];
    if (ev->seq <= c->start) {
        bool concerned = filter_type(c->filter, ev->type);
        d->state = concerned ? STATE_BEFORE_START : STATE_SKIPPED;
        return 0;
    }

    bool recorded;
    if (read_ended(v, i, ev->seq, &recorded, err) != 0)
        return -1;
    if (!recorded)
        d->state = wants(judge(c, ev), ev) ? STATE_DELIVERED : STATE_SKIPPED;
    if (d->state == STATE_SKIPPED)
        return 0;

    enum claim_over claim;
    if (read_claim(v, d->consumer, lane, ev->seq, &claim, err) != 0)
        return -1;
    switch (claim) {
    case CLAIM_NONE: break;
    case CLAIM_LIVE: d->state = STATE_INFLIGHT; break;
    case CLAIM_EXPIRED: d->state = STATE_PENDING; break; /* free to be claimed again */
    }
    return 0;
}

int db_viewer_event(struct viewer *v, size_t i, const struct event *ev, struct arena *a,
                    struct error *err)
{
    struct delivery_info *d = &v->d[i];
    const struct consumer_info *c = &v->list[i];
    *d = (struct delivery_info){.consumer = c->spec.name};
    if (read_receipt(v, i, ev, a, err) != 0)
        return -1;

    /* Most consumers have no exceptions: then a million events cost no query. */
    bool exceptional = c->parked + c->inflight + c->dead > 0;
    if (exceptional && read_exception(v, i, ev->seq, a, &exceptional, err) != 0)
        return -1;
    if (exceptional)
        return 0;

    int lane = event_lane(ev->key, ev->seq, c->spec.lanes);
    if (ev->seq <= v->c[i].positions[lane])
        return handed_out(v, i, ev, lane, err);
    d->state = wants(v->c[i].filter, ev) ? STATE_PENDING : STATE_SKIPPED;
    return 0;
}
