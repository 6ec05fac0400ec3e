/* consumers.c: registering consumers, and listing them with their state. */
#include <stdio.h>

#include "base/num.h"
#include "base/text.h"
#include "store/postgres/postgres.h"

#define REGISTER_PATIENCE (30000 * MS_NS)

/* ---- registering ---- */

/* If a transaction has locked the consumer, tries again for REGISTER_PATIENCE, because such
 * transactions are short. After that the error names the transaction. */
int pg_consumer_put(struct store *base, const struct consumer_spec *c, bool *ret_created,
                    struct error *err)
{
    static const char *const how[] = {
        [PUT_START] = "start", [PUT_AGAIN] = "again", [PUT_PURPOSE] = "purpose"};
    struct error why;
    char start[24];
    if (store_spec_check(c, err) != 0)
        return -1;
    switch (c->start) {
    case START_BEGINNING: snprintf(start, sizeof start, "beginning"); break;
    case START_END: snprintf(start, sizeof start, "end"); break;
    case START_SEQ:
        snprintf(start, sizeof start, "%lld", (long long)max_i64(c->start_seq, 0));
        break;
    }

    int64_t began = clock_mono(&clock_system);
    int64_t created;
    while (pg_query_number(pg_of(base), &why, &created,
                           "SELECT @schema@.register($1, $2, $3, $4, $5, $6, $7, $8, $9)",
                           "ssssissss", c->name, c->events, c->where, store_order_names[c->order],
                           (int64_t)c->lanes, c->retry, start, c->by, how[c->how]) != 0) {
        bool patient = clock_mono(&clock_system) - began < REGISTER_PATIENCE;
        if (why.code != ERR_BUSY || !patient)
            return err_copy(err, &why);
    }
    if (ret_created)
        *ret_created = created != 0;
    return 0;
}

int pg_consumer_pause(struct store *base, const char *name, bool paused, struct error *err)
{
    int64_t found;
    if (pg_query_number(pg_of(base), err, &found, "SELECT @schema@.pause($1, $2)", "sb", name,
                        paused) != 0)
        return -1;
    return found ? 0 : store_no_consumer(name, err);
}

int pg_consumer_report(struct store *base, const char *name, const char *text, struct error *err)
{
    char kept[TEXT_KEPT_MAX];
    return pg_exec(pg_of(base), err, "SELECT @schema@._report($1, $2)", "ss", name,
                   text_kept(text, kept));
}

int pg_consumer_remove(struct store *base, const char *name, bool force, struct error *err)
{
    struct pg_store *st = pg_of(base);
    st->patient = true; /* there may be many receipts to delete */
    PGresult *r = pg_query(st, err, "SELECT known, dead, parked, live FROM @schema@.remove($1, $2)",
                           "sb", name, force);
    st->patient = false;
    if (!r)
        return -1;
    int result = 0;
    bool known = pg_true(r, 0, 0);
    if (!known)
        result = store_no_consumer(name, err);
    else if (!force)
        result = store_removable(name, pg_int(r, 0, 1), pg_int(r, 0, 2), pg_int(r, 0, 3), err);
    PQclear(r);
    return result;
}

/* ---- reading rows ---- */

#define SPEC_COLUMNS "name, events, predicate, ordering, lanes, retry"

/* Reads the columns SPEC_COLUMNS of a row. */
static struct consumer_spec read_spec(const PGresult *r, int i, struct arena *a, bool *ok)
{
    return (struct consumer_spec){.name = pg_copy(r, i, 0, a, ok),
                                  .events = pg_copy(r, i, 1, a, ok),
                                  .where = pg_copy(r, i, 2, a, ok),
                                  .order = store_order_of(str_of(PQgetvalue(r, i, 3))),
                                  .lanes = (int)pg_int(r, i, 4),
                                  .retry = pg_copy(r, i, 5, a, ok)};
}

/* The columns of the view consumer_status that are members of struct consumer_info. */
/* clang-format off */
#define INFO(FLAG, NUMBER, TIME, TEXT) \
    FLAG(paused) TIME(created_at) NUMBER(position) NUMBER(behind) TIME(oldest_at) \
    NUMBER(delivered) NUMBER(inflight) TEXT(owner) NUMBER(parked) NUMBER(dead) TIME(next_due) \
    TEXT(last_error) TIME(last_error_at) NUMBER(floor) TEXT(floor_pin) NUMBER(claims) \
    FLAG(behind_exact) TEXT(report) TIME(report_at) FLAG(parked_exact) TIME(unclaimed_at) \
    TIME(overdue_at)
#define SQL_COLUMN(column) ", " #column
#define SQL_TIME(column) ", " PG_MS(#column)
#define COLUMN(column) L_##column,
enum {
    L_SPEC = 5, INFO(COLUMN, COLUMN, COLUMN, COLUMN)
    L_HEAD, L_NOW, L_PARKED_AT, L_SEQ, L_ATTEMPTS, L_DUE, L_ERROR, L_SINCE
};

static const char list_sql[] =
    "SELECT " SPEC_COLUMNS INFO(SQL_COLUMN, SQL_COLUMN, SQL_TIME, SQL_COLUMN) ", "
           "coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0), "
           PG_MS("@schema@._clock()") ", " PG_MS("parked_at") ", first_seq, first_attempts, "
           PG_MS("first_due") ", first_error, " PG_MS("first_since") " "
    "FROM @schema@.consumer_status "
    "WHERE $1::text IS NULL OR name = $1 "
    "ORDER BY name";
/* clang-format on */

/* Reads a row of list_sql. False: out of memory. */
static bool read_info(const PGresult *r, int i, struct arena *a, struct consumer_info *c)
{
#define READ_FLAG(column) c->column = pg_true(r, i, L_##column);
#define READ_NUMBER(column) c->column = pg_int(r, i, L_##column);
#define READ_TEXT(column) c->column = pg_copy(r, i, L_##column, a, &ok);
    bool ok = true;
    INFO(READ_FLAG, READ_NUMBER, READ_NUMBER, READ_TEXT)
    c->spec = read_spec(r, i, a, &ok);
    c->down = store_says_down(c->report);
    c->inflight_exact = true;
    if (c->overdue_at > pg_int(r, i, L_NOW))
        c->overdue_at = 0;
    c->first_parked = (struct parked_info){.seq = pg_int(r, i, L_SEQ),
                                           .attempts = (int)pg_int(r, i, L_ATTEMPTS),
                                           .due_at = pg_int(r, i, L_DUE),
                                           .error = pg_copy(r, i, L_ERROR, a, &ok),
                                           .since = pg_int(r, i, L_SINCE)};
    /* The last report of a worker is the last error, unless an event has failed since. A report
     * that the sink is down is shown in any case. */
    bool newest = !c->last_error || c->report_at >= c->last_error_at;
    if (c->report && (newest || c->down)) {
        c->last_error = c->report;
        c->last_error_at = c->report_at;
    }
    return ok;
}

/* ---- counts with a predicate ---- */

/* clang-format off */
static const char waiting_sql[] =
    "SELECT w.seq, w.fresh, w.waits, " PG_MS("w.created_at") ", " PG_MS("w.due") ", "
           "CASE WHEN w.waits THEN e.payload END "
    "FROM @schema@._waiting($1, $2::int) w "
    "JOIN @schema@.event e ON e.seq = w.seq "
    "WHERE NOT w.held "
    "ORDER BY w.seq";

/* A parked event matched the filter of the worker that parked it. It counts without checking its
 * payload, which is NULL here, unless it was parked because a worker vanished. */
static const char claimed_sql[] =
    "SELECT e.seq, false, true, " PG_MS("e.created_at") ", "
           PG_MS("greatest(e.created_at, e.not_before)") ", "
           "CASE WHEN k.lane < 0 AND NOT e.suspect THEN NULL ELSE e.payload END "
    "FROM @schema@.claim k, LATERAL @schema@._claimed(k.consumer, k.epoch) e "
    "WHERE k.consumer = $1 AND k.locked_until > @schema@._clock()";
/* clang-format on */

/* The columns of both. */
enum { W_SEQ, W_FRESH, W_WAITS, W_CREATED, W_DUE, W_PAYLOAD };

/* How many of the examined events match a predicate. Fresh events were never claimed. */
struct probe {
    int64_t scanned;     /* fresh events examined, with seqs from first to last */
    int64_t first, last; /* 0: none */
    int64_t wanted;      /* fresh events that match */
    int64_t rest;        /* other events that match */
    int64_t oldest_at;   /* of all that match; 0: none */
    int64_t overdue_at;  /* as in consumer_info, but may be in the future */
};

/* Returns the earlier of two times; 0 means no time. */
static int64_t earlier(int64_t a, int64_t b)
{
    if (!a || !b)
        return a ? a : b;
    return a < b ? a : b;
}

/* Counts the rows of a result, and clears it. NULL: the query failed. */
static int probe_rows(const struct filter *f, PGresult *r, struct probe *ret)
{
    struct probe n = {0};
    if (!r)
        return -1;
    for (int i = 0; i < PQntuples(r); i++) {
        int64_t seq = pg_int(r, i, W_SEQ);
        bool fresh = pg_true(r, i, W_FRESH);
        if (fresh) {
            n.scanned++;
            n.last = seq;
            if (n.first == 0)
                n.first = seq;
        }
        const char *payload = pg_str(r, i, W_PAYLOAD);
        bool wanted = pg_true(r, i, W_WAITS) && (!payload || filter_payload(f, str_of(payload)));
        if (!wanted)
            continue;
        if (fresh)
            n.wanted++;
        else
            n.rest++;
        n.oldest_at = earlier(n.oldest_at, pg_int(r, i, W_CREATED));
        n.overdue_at = earlier(n.overdue_at, pg_int(r, i, W_DUE));
    }
    PQclear(r);
    *ret = n;
    return 0;
}

/* Returns the number of unclaimed events: exact if all were examined, otherwise extrapolated to
 * `head`. */
static int64_t unclaimed_of(const struct probe *n, int64_t head)
{
    bool counted_all = n->scanned < STORE_PROBE_EVENTS;
    if (counted_all || head <= n->last)
        return n->rest + n->wanted;
    double seqs = (double)(head - n->first + 1);
    double looked_at = (double)(n->last - n->first + 1);
    return n->rest + (int64_t)((double)n->wanted * seqs / looked_at);
}

/* Corrects the counts of a consumer with a predicate, which the server does not evaluate: it counts
 * all events that match the type patterns. Claimed events are not examined if they are too many.
 * `row` is the consumer's row in the result of list_sql. */
static int probe_predicate(struct pg_store *st, const PGresult *list, int row,
                           struct consumer_info *c, struct error *err)
{
    struct filter *f = NULL;
    struct probe unclaimed = {0}, claimed = {0};
    if (!*c->spec.where)
        return 0;
    if (filter_new(NULL, c->spec.where, &f, NULL) != 0)
        return 0; /* another language, evaluated by a worker in SQL */

    int result = 0;
    c->inflight_exact = c->inflight <= STORE_PROBE_EVENTS;
    if (c->behind > c->inflight + c->parked)
        result = probe_rows(
            f, pg_query(st, err, waiting_sql, "si", c->spec.name, (int64_t)STORE_PROBE_EVENTS),
            &unclaimed);
    if (result == 0 && c->inflight > 0 && c->inflight_exact)
        result = probe_rows(f, pg_query(st, err, claimed_sql, "s", c->spec.name), &claimed);
    filter_free(f);
    if (result != 0)
        return -1;

    int64_t now = pg_int(list, row, L_NOW);
    if (c->inflight_exact) {
        c->inflight = claimed.rest;
        c->oldest_at = earlier(claimed.oldest_at, pg_int(list, row, L_PARKED_AT));
        c->oldest_at = earlier(c->oldest_at, unclaimed.oldest_at);
        c->overdue_at = earlier(claimed.overdue_at, c->first_parked.since);
        c->overdue_at = earlier(c->overdue_at, unclaimed.overdue_at);
        if (c->overdue_at > now)
            c->overdue_at = 0;
    }
    c->unclaimed_at = unclaimed.oldest_at;
    c->behind = unclaimed_of(&unclaimed, pg_int(list, row, L_HEAD)) + c->inflight + c->parked;
    c->behind_exact = unclaimed.scanned < STORE_PROBE_EVENTS && c->inflight_exact &&
                      c->parked_exact;
    return 0;
}

/* ---- listing ---- */

int pg_consumer_list(struct store *base, const char *name, struct arena *a,
                     struct consumer_info **ret, size_t *ret_n, struct error *err)
{
    PGresult *r = pg_query(pg_of(base), err, list_sql, "s", name);
    if (!r)
        return -1;
    size_t n = (size_t)PQntuples(r);
    struct consumer_info *list = arena_zalloc(a, n + 1, sizeof *list);
    bool ok = list != NULL;
    for (size_t i = 0; ok && i < n; i++)
        ok = read_info(r, (int)i, a, &list[i]);
    int result = ok ? 0 : err_nomem(err);
    for (size_t i = 0; result == 0 && i < n; i++)
        result = probe_predicate(pg_of(base), r, (int)i, &list[i], err);
    PQclear(r);
    if (result != 0)
        return -1;
    if (name && n == 0)
        return store_no_consumer(name, err);
    *ret = list;
    *ret_n = n;
    return 0;
}

/* Reads the rows of a result, and clears it. NULL: the query failed. A named consumer must exist.
 */
static int read_specs(PGresult *r, const char *name, struct arena *a, struct consumer_spec **ret,
                      size_t *ret_n, struct error *err)
{
    if (!r)
        return -1;
    size_t n = (size_t)PQntuples(r);
    struct consumer_spec *list = arena_zalloc(a, n + 1, sizeof *list);
    bool ok = list != NULL;
    for (size_t i = 0; ok && i < n; i++)
        list[i] = read_spec(r, (int)i, a, &ok);
    PQclear(r);
    if (!ok)
        return err_nomem(err);
    if (name && n == 0)
        return store_no_consumer(name, err);
    *ret = list;
    *ret_n = n;
    return 0;
}

int pg_consumer_all_specs(struct pg_store *st, const char *name, struct arena *a,
                          struct consumer_spec **ret, size_t *ret_n, struct error *err)
{
    static const char sql[] = "SELECT " SPEC_COLUMNS " FROM @schema@.consumer "
                              "WHERE $1::text IS NULL OR name = $1 ORDER BY name";
    return read_specs(pg_query(st, err, sql, "s", name), name, a, ret, ret_n, err);
}

int pg_consumer_specs(struct store *base, const char *name, struct arena *a,
                      struct consumer_spec **ret, size_t *ret_n, struct error *err)
{
    static const char sql[] = "SELECT " SPEC_COLUMNS " FROM @schema@._workable() WHERE NOT paused";
    if (name)
        return pg_consumer_all_specs(pg_of(base), name, a, ret, ret_n, err);
    return read_specs(pg_query(pg_of(base), err, sql, ""), NULL, a, ret, ret_n, err);
}

/* clang-format off */
static const char history_sql[] =
    "SELECT s.generation, s.events, s.predicate, s.ordering, s.lanes, "
           "floor(extract(epoch FROM s.since) * 1000)::bigint, s.by_whom "
    "FROM @schema@.consumer c "
    "LEFT JOIN @schema@.setting s ON s.consumer = c.name "
    "WHERE c.name = $1 "
    "ORDER BY s.generation DESC";
/* clang-format on */

int pg_consumer_history(struct store *base, const char *name, struct arena *a,
                        struct consumer_settings **ret, size_t *ret_n, struct error *err)
{
    PGresult *r = pg_query(pg_of(base), err, history_sql, "s", name);
    if (!r)
        return -1;
    bool found = PQntuples(r) > 0;
    bool has_history = found && pg_str(r, 0, 0);
    size_t n = has_history ? (size_t)PQntuples(r) : 0;
    struct consumer_settings *list = arena_zalloc(a, n + 1, sizeof *list);
    bool ok = list != NULL;
    for (int i = 0; ok && i < (int)n; i++) {
        list[i] = (struct consumer_settings){.generation = (int)pg_int(r, i, 0),
                                             .events = pg_copy(r, i, 1, a, &ok),
                                             .where = pg_copy(r, i, 2, a, &ok),
                                             .order = store_order_of(str_of(PQgetvalue(r, i, 3))),
                                             .lanes = (int)pg_int(r, i, 4),
                                             .since = pg_int(r, i, 5),
                                             .by = pg_copy(r, i, 6, a, &ok)};
    }
    PQclear(r);
    if (!found)
        return store_no_consumer(name, err);
    if (!ok)
        return err_nomem(err);
    *ret = list;
    *ret_n = n;
    return 0;
}

/* ---- the state of a consumer, at a cost that does not grow with the backlog ---- */

/* clang-format off */
static const char state_sql[] =
    "SELECT c.paused, b.n, b.exact, p.n, "
           "(SELECT count(*) FROM @schema@.claim k, LATERAL @schema@._claimed(c.name, k.epoch) "
            "WHERE k.consumer = c.name AND k.lane < 0 AND k.locked_until > @schema@._clock()), "
           "(SELECT count(*) FROM ("
               "SELECT FROM @schema@.dead d "
               "WHERE d.consumer = c.name AND NOT d.retrying "
               "LIMIT $2) AS d), "
           PG_MS("@schema@._clock()") ", "
           "CASE WHEN c.report LIKE 'sink is down%' THEN " PG_MS("c.report_at") " END, "
           PG_MS("least(b.overdue_at, p.overdue_at)") " "
    "FROM @schema@.consumer c "
    "CROSS JOIN LATERAL @schema@._backlog(c.name, $3::int) b "
    "CROSS JOIN LATERAL @schema@._parked_summary(c.name) p "
    "WHERE c.name = $1";

/* Rows are read in seq order and no further than the limit; payloads are not touched. Places are
 * those of enum topic_place. */
static const char types_sql[] =
    "SELECT x.place, x.type, count(*), "
           PG_MS("min(x.created_at) FILTER (WHERE isfinite(x.created_at))") " "
    "FROM (SELECT w.held::int AS place, w.type, w.created_at "
          "FROM @schema@._waiting($1, $2::int) w "
          "WHERE w.waits OR w.held "
          "UNION ALL "
          "SELECT 2, p.type, p.created_at "
          "FROM @schema@._parked_events($1, $2::int) p) AS x "
    "GROUP BY x.place, x.type";
/* clang-format on */

int pg_consumer_gauge(struct store *base, const char *name, struct arena *a,
                      struct consumer_gauge *ret, struct error *err)
{
    struct consumer_gauge g = {0};
    struct topics t = {.a = a};
    int64_t all[TOPIC_PLACES] = {0};
    PGresult *r = pg_query(pg_of(base), err, state_sql, "sii", name, (int64_t)STORE_PROBE_ROWS,
                           (int64_t)STORE_PROBE_EVENTS);
    if (!r)
        return -1;
    bool found = PQntuples(r) == 1;
    if (found) {
        bool counted_all = pg_true(r, 0, 2);
        if (!counted_all)
            all[TOPIC_UNCLAIMED] = pg_int(r, 0, 1);
        int64_t parked = pg_int(r, 0, 3);
        if (parked >= STORE_PROBE_EVENTS)
            all[TOPIC_PARKED] = parked;
        g.paused = pg_true(r, 0, 0);
        g.parked = parked - pg_int(r, 0, 4);
        g.dead = pg_int(r, 0, 5);
        g.now_ms = pg_int(r, 0, 6);
        g.down_since = pg_int(r, 0, 7);
        g.overdue_at = pg_int(r, 0, 8);
    }
    PQclear(r);
    if (!found)
        return store_no_consumer(name, err);
    if (g.overdue_at > g.now_ms)
        g.overdue_at = 0;

    int result = 0;
    r = pg_query(pg_of(base), err, types_sql, "si", name, (int64_t)STORE_PROBE_EVENTS);
    if (!r)
        return -1;
    for (int i = 0; result == 0 && i < PQntuples(r); i++) {
        struct topic_find f = {.place = (enum topic_place)pg_int(r, i, 0),
                               .type = str_of(pg_str(r, i, 1)),
                               .n = pg_int(r, i, 2),
                               .oldest_at = pg_int(r, i, 3)};
        result = store_topics_add(&t, &f, err);
    }
    PQclear(r);
    if (result == 0)
        result = store_topics_end(&t, all, &g, err);
    if (result == 0)
        *ret = g;
    return result;
}
