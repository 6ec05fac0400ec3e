/* listing.c: consumers and the outbox as a whole, as operators see them. */
#include "store/db/db.h"
#include "store/topics.h"
#include "store_sql.h"

/* ---- the rows ---- */

/* Reads a row of list_consumers; false if memory runs out, or if the row has a NULL that our
 * constraints rule out. */
static bool read_row(const struct db_rows *q, struct arena *a, struct consumer_info *c)
{
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

/* Reads from a row of floors up to where events are no longer needed, and what needs the next
 * one. */
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

/* Reads a row of floors; false if memory runs out, or if the name is NULL. */
static bool read_floor_row(const struct db_rows *q, struct arena *a, struct consumer_info *c)
{
    bool ok = true;
    c->spec.name = db_copy(q, 0, a, &ok).p;
    c->paused = db_int(q, 1) != 0;
    take_floor(q, c);
    return ok && c->spec.name;
}

/* Reads a consumer from each row of a statement. */
static int read_each(struct store *st,
                     bool (*read)(const struct db_rows *, struct arena *, struct consumer_info *),
                     struct arena *a, struct consumer_info **ret, size_t *ret_n, struct error *err,
                     const struct sql *sql, const void *args)
{
    int64_t count = 0;
    if (db_value(st, err, &count, SQL(count_consumers)) != 0)
        return -1;
    struct consumer_info *list = arena_zalloc(a, (size_t)count + 1, sizeof *list);
    if (!list)
        return err_nomem(err);

    size_t n = 0;
    int r = 0;
    bool ok = true;
    struct db_rows q = db_rows(st, err, sql, args);
    while (ok && n < (size_t)count && (r = db_step(&q, err)) == 1)
        ok = read(&q, a, &list[n++]);
    db_done(&q);
    if (!ok)
        return err_nomem(err);
    if (r < 0)
        return -1;
    *ret = list;
    *ret_n = n;
    return 0;
}

/* Reads all consumers, or the named one, without their state. */
static int read_rows(struct store *st, const char *name, struct arena *a,
                     struct consumer_info **ret, size_t *ret_n, struct error *err)
{
    if (read_each(st, read_row, a, ret, ret_n, err, SQL(list_consumers, .name = name)) != 0)
        return -1;
    if (name && *ret_n == 0)
        return store_no_consumer(name, err);
    return 0;
}

/* ---- their state ---- */

/* Counts undelivered events. */
static int read_backlog(struct store *st, struct consumer_info *c, struct arena *a,
                        struct error *err)
{
    struct backlog b = {.spec = &c->spec, .max = STORE_COUNT_EVENTS, .a = a};
    if (*c->spec.where)
        b.max = STORE_PROBE_EVENTS; /* payloads have to be read */
    if (db_backlog(st, &b, err) != 0)
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

/* Reads the error of the last failed event, unless the relay made a later report or its sink is
 * down. */
static int read_failure(struct store *st, struct consumer_info *c, struct arena *a,
                        struct error *err)
{
    bool ok = true;
    struct db_rows q;
    int r = db_row(st, &q, err,
                   SQL(last_failure, .consumer = c->spec.name, .max = STORE_PROBE_EVENTS));
    if (r <= 0)
        return r;
    int64_t at = db_int(&q, 1);
    bool later = !c->last_error || at > c->last_error_at;
    if (later && !c->down) {
        c->last_error = db_copy(&q, 0, a, &ok).p;
        c->last_error_at = at;
    }
    db_done(&q);
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

    const struct db_number wanted[] = {
        {&c->claims, SQL(count_live_claims, .consumer = name, .now = now)},
        {&c->dead, SQL(count_dead, .consumer = name)},
        {&c->next_due, SQL(next_retry, .consumer = name)},
    };
    if (db_values(st, err, wanted, sizeof wanted / sizeof *wanted) != 0)
        return -1;
    if (read_backlog(st, c, a, err) != 0)
        return -1;

    r = db_row(st, &q, err, SQL(live_owner, .consumer = name, .now = now));
    if (r == 1)
        c->owner = db_copy(&q, 0, a, &ok).p;
    db_done(&q);
    return r < 0 ? -1 : read_failure(st, c, a, err);
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
    return read_each(st, read_floor_row, a, ret, ret_n, err, SQL(floors));
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

/* Reads the consumer's row; spec gets the part that counting the backlog needs. */
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
    struct backlog b = {.spec = &spec, .max = STORE_PROBE_EVENTS, .topics = &t, .a = a};
    if (read_health(st, name, a, g, &spec, err) != 0)
        return -1;
    if (db_backlog(st, &b, err) != 0)
        return -1;
    int64_t all[TOPIC_PLACES] = {[TOPIC_PARKED] = b.parked_rows};
    if (b.scanned == b.max)
        all[TOPIC_UNCLAIMED] = b.unclaimed;
    g->overdue_at = b.overdue_at;
    g->parked = b.parked_rows - b.parked_inflight;
    if (topics_end(&t, all, g, err) != 0)
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
    const struct db_number wanted[] = {
        {&version, SQL(schema_version)},      {&i.head, SQL(head)},
        {&i.tail, SQL(first_event)},          {&last, SQL(last_event)},
        {&i.oldest_at, SQL(tail_created_at)}, {&i.consumers, SQL(count_consumers)},
        {&i.dead, SQL(count_all_dead)},
    };
    if (db_values(st, err, wanted, sizeof wanted / sizeof *wanted) != 0)
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
