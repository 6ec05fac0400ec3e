/* listing.c: consumers and the outbox as a whole, as operators see them. */
#include "base/num.h"
#include "store/db/db.h"
#include "store_sql.h"

/* A consumer's backlog: the request, and the result. Times are as in consumer_info. */
struct backlog {
    struct store *st;
    const struct consumer_spec *spec;
    int64_t max;           /* how many events after the position to examine */
    struct topics *topics; /* collects the types of undelivered events, unless NULL */
    struct arena *a;       /* for first_parked */

    struct filter *filter;
    int64_t positions[STORE_LANES_MAX];
    int64_t now;

    int64_t scanned;     /* events examined after the position; fewer than max: all of them */
    int64_t unclaimed;   /* unclaimed events; an estimate if not all were examined */
    int64_t inflight;    /* events in live claims */
    int64_t parked_rows; /* parked events, claimed or not; an estimate if not parked_exact */
    bool parked_exact;
    int64_t parked_inflight; /* parked events among inflight */
    int64_t oldest_at, unclaimed_at, overdue_at;
    struct parked_info first_parked;
};

/* The columns of @counted_columns@. */
enum { SEQ, TYPE, CREATED_AT, AGGREGATE_TYPE, AGGREGATE_ID, NOT_BEFORE, PAYLOAD };

/* ---- one event ---- */

static bool wants(const struct backlog *b, const struct db_rows *q)
{
    if (!filter_type(b->filter, db_text(q, TYPE)))
        return false;
    return !filter_has_where(b->filter) || filter_payload(b->filter, db_text(q, PAYLOAD));
}

static int lane_of(const struct backlog *b, const struct db_rows *q)
{
    if (b->spec->lanes <= 1)
        return 0;
    uint64_t key = event_key(db_text(q, AGGREGATE_TYPE), db_text(q, AGGREGATE_ID));
    return event_lane(key, db_int(q, SEQ), b->spec->lanes);
}

/* Lowers *to to `at`; 0: not set. */
static void earlier(int64_t *to, int64_t at)
{
    if (!*to || at < *to)
        *to = at;
}

/* Notes when an event could first have been delivered, unless that is in the future. */
static void note_overdue(struct backlog *b, int64_t since)
{
    if (since <= b->now)
        earlier(&b->overdue_at, since);
}

/* Notes the age and the type of an undelivered event. */
static int note_event(struct backlog *b, enum topic_place place, struct str type, int64_t at,
                      struct error *err)
{
    struct topic_find one = {.place = place, .type = type, .n = 1, .oldest_at = at};
    earlier(&b->oldest_at, at);
    if (!b->topics)
        return 0;
    return store_topics_add(b->topics, &one, err);
}

/* Counts an event that is not parked: in a live claim, or unclaimed. */
static int count_event(struct backlog *b, enum topic_place place, const struct db_rows *q,
                       struct error *err)
{
    int64_t at = db_int(q, CREATED_AT), not_before = db_int(q, NOT_BEFORE);
    if (place == TOPIC_CLAIMED) {
        b->inflight++;
    } else {
        b->unclaimed++;
        earlier(&b->unclaimed_at, at);
    }
    note_overdue(b, not_before > at ? not_before : at);
    return note_event(b, place, db_text(q, TYPE), at, err);
}

/* Extrapolates to `end` from `n` found between first and last. */
static int64_t project(int64_t n, int64_t first, int64_t last, int64_t end)
{
    if (end <= last)
        return n;
    return (int64_t)((double)n * (double)(end - first + 1) / (double)(last - first + 1));
}

/* ---- after the positions ---- */

/* Examines up to b->max events after the lowest position. */
static int count_fresh(struct backlog *b, struct error *err)
{
    int64_t low = INT64_MAX, first = 0, last = 0, head = 0;
    int r;
    struct db_rows q = db_rows(b->st, err, SQL(lane_positions, .consumer = b->spec->name));
    while ((r = db_step(&q, err)) == 1) {
        int lane = (int)db_int(&q, 0);
        int64_t position = db_int(&q, 1);
        bool valid = lane >= 0 && lane < STORE_LANES_MAX;
        low = min_i64(low, position);
        if (valid)
            b->positions[lane] = position;
    }
    if (r < 0)
        return -1;

    bool payload = filter_has_where(b->filter);
    q = db_rows(b->st, err,
                SQL(waiting_events, .position = low, .max = b->max, .payload = payload));
    while ((r = db_step(&q, err)) == 1) {
        last = db_int(&q, SEQ);
        if (!first)
            first = last;
        b->scanned++;
        bool handed_out = last <= b->positions[lane_of(b, &q)];
        if (handed_out || !wants(b, &q))
            continue;
        if (count_event(b, TOPIC_UNCLAIMED, &q, err) != 0) {
            db_done(&q);
            return -1;
        }
    }
    if (r < 0)
        return -1;
    if (b->scanned < b->max)
        return 0;
    if (db_value(b->st, err, &head, SQL(last_event)) != 0)
        return -1;
    b->unclaimed = project(b->unclaimed, first, last, head);
    return 0;
}

/* ---- in claims ---- */

/* A fresh claim. */
struct range {
    int lane;
    int64_t from, to;
    bool live;
};

/* Counts the events of a claim: in flight, or unclaimed if it expired. */
static int count_range(struct backlog *b, const struct range *c, struct error *err)
{
    int r;
    bool payload = filter_has_where(b->filter);
    enum topic_place place = c->live ? TOPIC_CLAIMED : TOPIC_UNCLAIMED;
    struct db_rows q = db_rows(
        b->st, err, SQL(claimed_events, .from_seq = c->from, .to_seq = c->to, .payload = payload));
    while ((r = db_step(&q, err)) == 1) {
        bool its_own = c->lane == STORE_ALL_LANES || lane_of(b, &q) == c->lane;
        if (!its_own || !wants(b, &q))
            continue;
        if (count_event(b, place, &q, err) != 0) {
            db_done(&q);
            return -1;
        }
    }
    return r;
}

static int count_claims(struct backlog *b, struct error *err)
{
    const char *name = b->spec->name;
    int64_t epoch = -1;
    struct db_rows q;
    int r;
    while ((r = db_row(b->st, &q, err,
                       SQL(next_claim, .consumer = name, .epoch = epoch, .now = b->now))) == 1) {
        struct range c = {(int)db_int(&q, 1), db_int(&q, 2), db_int(&q, 3), db_int(&q, 4) != 0};
        epoch = db_int(&q, 0);
        db_done(&q);
        if (count_range(b, &c, err) != 0)
            return -1;
    }
    if (r < 0)
        return -1;
    if (db_value(b->st, err, &b->parked_inflight,
                 SQL(count_parked_in_flight, .consumer = name, .now = b->now)) != 0)
        return -1;
    b->inflight += b->parked_inflight;
    return 0;
}

/* ---- parked ---- */

static int count_parked(struct backlog *b, struct error *err)
{
    const char *name = b->spec->name;
    struct db_rows q;
    int r = db_row(b->st, &q, err,
                   SQL(count_parked_rows, .consumer = name, .max = STORE_PROBE_ROWS));
    if (r <= 0)
        return r;
    int64_t n = db_int(&q, 0);
    b->parked_exact = n < STORE_PROBE_ROWS;
    b->parked_rows = project(n, db_int(&q, 1), db_int(&q, 2), db_int(&q, 3));
    db_done(&q);
    if (b->parked_rows == 0)
        return 0;

    /* The ages and types of the first ones. */
    q = db_rows(b->st, err, SQL(parked_events, .consumer = name, .max = STORE_PROBE_EVENTS));
    while ((r = db_step(&q, err)) == 1) {
        if (db_null(&q, 0))
            continue; /* the event and its dead letter were deleted by hand */
        if (note_event(b, TOPIC_PARKED, db_text(&q, 0), db_int(&q, 1), err) != 0) {
            db_done(&q);
            return -1;
        }
    }
    if (r < 0)
        return -1;

    /* The event that has been overdue longest. */
    bool ok = true;
    r = db_row(b->st, &q, err,
               SQL(first_parked, .consumer = name, .now = b->now, .max = STORE_PROBE_EVENTS));
    if (r <= 0)
        return r;
    b->first_parked = (struct parked_info){
        .seq = db_int(&q, 0),
        .attempts = (int)db_int(&q, 1),
        .due_at = db_int(&q, 2),
        .error = db_copy(&q, 3, b->a, &ok).p,
        .since = db_int(&q, 4),
    };
    db_done(&q);
    note_overdue(b, b->first_parked.since);
    return ok ? 0 : err_nomem(err);
}

/* Counts undelivered events. The cost grows only with those in flight, which are in memory. */
static int count_backlog(struct backlog *b, struct error *err)
{
    b->now = db_now(b->st);
    if (filter_new(b->spec->events, b->spec->where, &b->filter, err) != 0)
        return -1;
    int r = count_fresh(b, err);
    if (r == 0)
        r = count_claims(b, err);
    if (r == 0)
        r = count_parked(b, err);
    filter_free(b->filter);
    return r;
}

/* ---- the rows ---- */

/* Reads a row of list_consumers. */
static bool read_row(const struct db_rows *q, struct arena *a, void *element)
{
    struct consumer_info *c = element;
    bool ok = true;
    c->spec = (struct consumer_spec){
        .name = db_copy(q, 0, a, &ok).p,
        .events = db_copy(q, 1, a, &ok).p,
        .where = db_copy(q, 2, a, &ok).p,
        .order = store_order_of(db_text(q, 3)),
        .lanes = (int)db_int(q, 4),
        .retry = db_copy(q, 5, a, &ok).p,
    };
    c->paused = db_int(q, 6) != 0;
    c->created_at = db_int(q, 7);
    c->delivered = db_int(q, 8);
    c->report = db_copy(q, 9, a, &ok).p;
    c->report_at = db_int(q, 10);
    c->down = store_says_down(c->report);
    c->last_error = c->report;
    c->last_error_at = c->report_at;

    bool whole = c->spec.name && c->spec.events && c->spec.where && c->spec.retry;
    return ok && whole;
}

/* Lowers the floor to `at`, and notes what holds it there. */
static void hold_floor(struct consumer_info *c, int64_t at, const char *by)
{
    if (at >= c->floor)
        return;
    c->floor = at;
    c->floor_pin = by;
}

/* Reads a row of floors: the last event that is no longer needed, and why the next one is. */
static void take_floor(const struct db_rows *q, struct consumer_info *c)
{
    enum { POSITION = 2, CLAIM, PARKED };
    c->position = db_int(q, POSITION);
    c->floor = c->position;
    c->floor_pin = "position";
    if (!db_null(q, CLAIM))
        hold_floor(c, db_int(q, CLAIM), "claim");
    if (!db_null(q, PARKED))
        hold_floor(c, db_int(q, PARKED), "parked");
}

static bool read_floor_row(const struct db_rows *q, struct arena *a, void *element)
{
    struct consumer_info *c = element;
    bool ok = true;
    c->spec.name = db_copy(q, 0, a, &ok).p;
    c->paused = db_int(q, 1) != 0;
    take_floor(q, c);
    return ok && c->spec.name;
}

/* Reads all consumers, or the named one, without their state. */
static int read_rows(struct store *st, const char *name, struct arena *a,
                     struct consumer_info **ret, size_t *ret_n, struct error *err)
{
    struct db_list l = {.a = a, .size = sizeof **ret, .read = read_row};
    if (db_list(st, &l, err, SQL(list_consumers, .name = name)) != 0)
        return -1;
    if (name && l.n == 0)
        return store_no_consumer(name, err);
    *ret = l.elements;
    *ret_n = l.n;
    return 0;
}

/* ---- their state ---- */

/* Counts undelivered events. */
static int read_backlog(struct store *st, struct consumer_info *c, struct arena *a,
                        struct error *err)
{
    struct backlog b = {.st = st, .spec = &c->spec, .max = STORE_COUNT_EVENTS, .a = a};
    if (*c->spec.where)
        b.max = STORE_PROBE_EVENTS; /* payloads have to be read */
    if (count_backlog(&b, err) != 0)
        return -1;
    c->inflight = b.inflight;
    c->inflight_exact = true;
    c->parked = b.parked_rows - b.parked_inflight;
    c->parked_exact = b.parked_exact;
    c->behind = b.unclaimed + c->inflight + c->parked;
    c->behind_exact = b.scanned < b.max && c->parked_exact;
    c->oldest_at = b.oldest_at;
    c->unclaimed_at = b.unclaimed_at;
    c->overdue_at = b.overdue_at;
    c->first_parked = b.first_parked;
    return 0;
}

static int read_state(struct store *st, struct consumer_info *c, struct arena *a, struct error *err)
{
    const char *name = c->spec.name;
    int64_t now = db_now(st);
    bool ok = true;
    struct db_rows q;
    int r = db_row(st, &q, err, SQL(floors, .name = name));
    if (r == 1)
        take_floor(&q, c);
    db_done(&q);
    if (r < 0)
        return -1;

    if (DB_VALUES(st, err, {&c->claims, SQL(count_live_claims, .consumer = name, .now = now)},
                  {&c->dead, SQL(count_dead, .consumer = name)},
                  {&c->next_due, SQL(next_retry, .consumer = name)}) != 0)
        return -1;
    if (read_backlog(st, c, a, err) != 0)
        return -1;

    r = db_row(st, &q, err, SQL(live_owner, .consumer = name, .now = now));
    if (r == 1)
        c->owner = db_copy(&q, 0, a, &ok).p;
    db_done(&q);
    if (r < 0)
        return -1;

    /* The error of the last failed event, unless a later report exists, or the sink is down. */
    r = db_row(st, &q, err, SQL(last_failure, .consumer = name, .max = STORE_PROBE_EVENTS));
    if (r <= 0)
        return r;
    int64_t at = db_int(&q, 1);
    bool later = !c->last_error || at > c->last_error_at;
    if (later && !c->down) {
        c->last_error = db_copy(&q, 0, a, &ok).p;
        c->last_error_at = at;
    }
    db_done(&q);
    return ok ? 0 : err_nomem(err);
}

/* ---- lists ---- */

/* Everything is read in one snapshot, so that the numbers are consistent. */
int db_consumer_list(struct store *st, const char *name, struct arena *a,
                     struct consumer_info **ret, size_t *ret_n, struct error *err)
{
    struct consumer_info *list = NULL;
    size_t n = 0;
    bool own;
    if (db_give_numbers(st, err) != 0)
        return -1;
    if (db_snapshot_begin(st, &own, err) != 0)
        return -1;
    int r = read_rows(st, name, a, &list, &n, err);
    for (size_t i = 0; i < n && r == 0; i++)
        r = read_state(st, &list[i], a, err);
    db_snapshot_end(st, own);
    if (r != 0)
        return -1;
    *ret = list;
    *ret_n = n;
    return 0;
}

int db_consumer_floors(struct store *st, struct arena *a, struct consumer_info **ret, size_t *ret_n,
                       struct error *err)
{
    struct db_list l = {.a = a, .size = sizeof **ret, .read = read_floor_row};
    if (db_list(st, &l, err, SQL(floors)) != 0)
        return -1;
    *ret = l.elements;
    *ret_n = l.n;
    return 0;
}

int db_consumer_specs(struct store *st, const char *name, struct arena *a,
                      struct consumer_spec **ret, size_t *ret_n, struct error *err)
{
    struct consumer_info *list = NULL;
    size_t n = 0, kept = 0;
    if (read_rows(st, name, a, &list, &n, err) != 0)
        return -1;
    struct consumer_spec *specs = arena_zalloc(a, n + 1, sizeof *specs);
    if (!specs)
        return err_nomem(err);
    for (size_t i = 0; i < n; i++) {
        bool wanted = name || !list[i].paused;
        if (wanted)
            specs[kept++] = list[i].spec;
    }
    *ret = specs;
    *ret_n = kept;
    return 0;
}

/* ---- the state of a consumer, at a cost that does not grow with the backlog ---- */

/* Reads the consumer's row, and fills the part of spec that counting the backlog needs. */
static int read_health(struct store *st, const char *name, struct arena *a,
                       struct consumer_gauge *g, struct consumer_spec *spec, struct error *err)
{
    bool ok = true;
    struct db_rows q;
    int r = db_row(st, &q, err, SQL(consumer_health, .consumer = name));
    if (r < 0)
        return -1;
    if (r == 0)
        return store_no_consumer(name, err);
    *g = (struct consumer_gauge){.paused = db_int(&q, 1) != 0, .now_ms = db_now(st)};
    *spec = (struct consumer_spec){
        .name = name, .events = db_copy(&q, 0, a, &ok).p, .where = "", .lanes = (int)db_int(&q, 2)};
    if (store_says_down(db_text(&q, 3).p))
        g->down_since = db_int(&q, 4);
    db_done(&q);
    return ok ? 0 : err_nomem(err);
}

static int read_gauge(struct store *st, const char *name, struct arena *a, struct consumer_gauge *g,
                      struct error *err)
{
    struct consumer_spec spec;
    struct topics t = {.a = a};
    struct backlog b = {.st = st, .spec = &spec, .max = STORE_PROBE_EVENTS, .topics = &t, .a = a};
    if (read_health(st, name, a, g, &spec, err) != 0)
        return -1;
    if (count_backlog(&b, err) != 0)
        return -1;
    int64_t all[TOPIC_PLACES] = {[TOPIC_PARKED] = b.parked_rows};
    if (b.scanned == b.max)
        all[TOPIC_UNCLAIMED] = b.unclaimed;
    g->overdue_at = b.overdue_at;
    g->parked = b.parked_rows - b.parked_inflight;
    if (store_topics_end(&t, all, g, err) != 0)
        return -1;
    return db_value(st, err, &g->dead, SQL(probe_dead, .consumer = name, .max = STORE_PROBE_ROWS));
}

int db_consumer_gauge(struct store *st, const char *name, struct arena *a,
                      struct consumer_gauge *ret, struct error *err)
{
    struct consumer_gauge g;
    bool own;
    if (db_give_numbers(st, err) != 0)
        return -1;
    if (db_snapshot_begin(st, &own, err) != 0)
        return -1;
    int r = read_gauge(st, name, a, &g, err);
    db_snapshot_end(st, own);
    if (r == 0)
        *ret = g;
    return r;
}

/* ---- the outbox as a whole ---- */

int db_info(struct store *st, struct store_info *ret, struct error *err)
{
    if (db_give_numbers(st, err) != 0)
        return -1;
    struct store_info i = {.now_ms = db_now(st), .passed_at = -1};
    int64_t version = 0, last = 0;
    if (DB_VALUES(st, err, {&version, SQL(schema_version)}, {&i.head, SQL(head)},
                  {&i.tail, SQL(first_event)}, {&last, SQL(last_event)},
                  {&i.oldest_at, SQL(tail_created_at)}, {&i.consumers, SQL(count_consumers)},
                  {&i.dead, SQL(count_all_dead)}) != 0)
        return -1;
    if (db_value(st, err, &i.passed_at, SQL(passed_at, .tail = i.tail)) != 0)
        return -1;
    i.schema_version = (int)version;

    /* A large number of events is not counted: the range of seqs gives an upper bound. */
    if (i.tail)
        i.events = last - i.tail + 1;
    i.events_exact = i.events <= STORE_EXACT_ROWS;
    if (i.events_exact && db_value(st, err, &i.events, SQL(count_events)) != 0)
        return -1;
    *ret = i;
    return 0;
}

int db_marks(struct store *st, const char *stream, mark_visit *visit, void *ctx, struct error *err)
{
    int r = 0, stop = 0;
    struct db_rows q = db_rows(st, err, SQL(list_marks, .stream = stream));
    while (!stop && (r = db_step(&q, err)) == 1) {
        struct hwm m = {db_text(&q, 0), db_int(&q, 2), db_int(&q, 3)};
        stop = visit(ctx, db_text(&q, 1).p, &m, db_int(&q, 4));
    }
    if (!stop)
        return r;
    db_done(&q);
    return 0;
}
