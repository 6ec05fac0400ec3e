/* consumers.c: registering consumers, and listing them with how they are doing. */
#include <stdio.h>

#include "base/text.h"
#include "store/postgres/postgres.h"

#define REGISTER_PATIENCE (30000 * MS_NS)

/* MS is a timestamp in milliseconds; NULL if it is infinite. */
#define MS(column) \
    "CASE WHEN isfinite(" column ") THEN floor(extract(epoch FROM " column ") * 1000)::bigint END"

/* ---- registering ---- */

/* start_text writes where a new consumer starts, as register() takes it. */
static void start_text(const struct consumer_spec *c, char out[24])
{
    int64_t seq = c->start_seq > 0 ? c->start_seq : 0;
    switch (c->start) {
    case START_BEGINNING: snprintf(out, 24, "beginning"); break;
    case START_END: snprintf(out, 24, "end"); break;
    case START_SEQ: snprintf(out, 24, "%lld", (long long)seq); break;
    }
}

/* put registers a consumer. A transaction that has it locked is usually about to end; if not, the
 * error names it. */
static PGresult *put(struct pg_store *st, const struct consumer_spec *c, struct error *err)
{
    static const char *const how[] = {
        [PUT_START] = "start", [PUT_AGAIN] = "again", [PUT_PURPOSE] = "purpose"};
    char start[24];
    start_text(c, start);
    int64_t began = clock_mono(&clock_system);
    for (;;) {
        PGresult *r = pg_query(
            st, err, "SELECT @schema@.register($1, $2, $3, $4, $5, $6, $7, $8, $9)", "ssssissss",
            c->name, c->events, c->where, store_order_names[c->order], (int64_t)c->lanes, c->retry,
            start, c->by, how[c->how]);
        bool locked = !r && err->code == ERR_BUSY;
        bool patient = clock_mono(&clock_system) - began < REGISTER_PATIENCE;
        if (!locked || !patient)
            return r;
    }
}

int pg_consumer_put(struct store *base, const struct consumer_spec *c, bool *ret_created,
                    struct error *err)
{
    struct error why;
    if (store_name_check(c->name, err) != 0)
        return -1;
    if (c->lanes < 1 || c->lanes > STORE_LANES_MAX)
        return err_set(err, ERR_CONFIG, "lanes must be 1 to %d", STORE_LANES_MAX);
    PGresult *r = put(pg_of(base), c, &why);
    if (!r) {
        if (err)
            *err = why;
        return -1;
    }
    if (ret_created)
        *ret_created = pg_true(r, 0, 0);
    PQclear(r);
    return 0;
}

int pg_consumer_pause(struct store *base, const char *name, bool paused, struct error *err)
{
    PGresult *r = pg_query(pg_of(base), err, "SELECT @schema@.pause($1, $2)", "sb", name, paused);
    if (!r)
        return -1;
    bool found = pg_true(r, 0, 0);
    PQclear(r);
    return found ? 0 : store_no_consumer(name, err);
}

int pg_consumer_report(struct store *base, const char *name, const char *text, struct error *err)
{
    char kept[TEXT_KEPT_MAX];
    return pg_exec(pg_of(base), err, NULL, "SELECT @schema@._report($1, $2)", "ss", name,
                   text_kept(text, kept));
}

int pg_consumer_remove(struct store *base, const char *name, bool force, struct error *err)
{
    struct pg_store *st = pg_of(base);
    st->patient = true; /* it may have many receipts */
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

/* read_spec reads the columns SPEC_COLUMNS of a row. */
static struct consumer_spec read_spec(const PGresult *r, int i, struct arena *a, bool *ok)
{
    return (struct consumer_spec){.name = pg_copy(r, i, 0, a, ok),
                                  .events = pg_copy(r, i, 1, a, ok),
                                  .where = pg_copy(r, i, 2, a, ok),
                                  .order = store_order_of(str_of(PQgetvalue(r, i, 3))),
                                  .lanes = (int)pg_int(r, i, 4),
                                  .retry = pg_copy(r, i, 5, a, ok)};
}

/* show_report makes the last report of a worker the last error, unless an event has failed since.
 * That a sink is down is shown in any case. */
static void show_report(struct consumer_info *c)
{
    if (!c->report)
        return;
    bool newest = !c->last_error || c->report_at >= c->last_error_at;
    if (newest || c->down) {
        c->last_error = c->report;
        c->last_error_at = c->report_at;
    }
}

/* read_info reads a row of list_sql. Returns false if there is no room. */
static bool read_info(const PGresult *r, int i, struct arena *a, struct consumer_info *c)
{
    bool ok = true;
    c->spec = read_spec(r, i, a, &ok);
    c->paused = pg_true(r, i, 6);
    c->created_at = pg_int(r, i, 7);
    c->position = pg_int(r, i, 8);
    c->behind = pg_int(r, i, 9);
    c->oldest_at = pg_int(r, i, 10);
    c->delivered = pg_int(r, i, 11);
    c->inflight = pg_int(r, i, 12);
    c->owner = pg_copy(r, i, 13, a, &ok);
    c->parked = pg_int(r, i, 14);
    c->dead = pg_int(r, i, 15);
    c->next_due = pg_int(r, i, 16);
    c->last_error = pg_copy(r, i, 17, a, &ok);
    c->last_error_at = pg_int(r, i, 18);
    c->floor = pg_int(r, i, 19);
    c->floor_pin = pg_copy(r, i, 20, a, &ok);
    c->claims = pg_int(r, i, 21);
    c->behind_exact = pg_true(r, i, 22);
    c->report = pg_copy(r, i, 23, a, &ok);
    c->report_at = pg_int(r, i, 24);
    c->down = store_says_down(c->report);
    c->inflight_exact = true;
    show_report(c);
    return ok;
}

/* ---- what a predicate leaves of a count ---- */

/* clang-format off */
static const char waiting_sql[] =
    "SELECT w.seq, w.fresh, w.waits, " MS("w.created_at") ", "
           "CASE WHEN w.waits THEN e.payload END "
    "FROM @schema@._waiting($1, $2::int) w "
    "JOIN @schema@.event e ON e.seq = w.seq "
    "ORDER BY w.seq";

/* A parked event was wanted by the worker that parked it. It counts without a look at its payload,
 * which is NULL here, unless a worker left it behind and vanished. */
static const char claimed_sql[] =
    "SELECT e.seq, false, true, 0, "
           "CASE WHEN k.lane < 0 AND NOT e.careful THEN NULL ELSE e.payload END "
    "FROM @schema@.claim k, LATERAL @schema@._claimed(k.consumer, k.epoch) e "
    "WHERE k.consumer = $1 AND k.locked_until > @schema@._clock()";
/* clang-format on */

/* The columns of both. */
enum { W_SEQ, W_FRESH, W_WAITS, W_CREATED, W_PAYLOAD };

/* What a predicate wants of the events that were looked at: fresh ones, which no claim has had yet,
 * and the others. */
struct asked {
    int64_t scanned;     /* fresh events looked at, with seqs from first to last */
    int64_t first, last; /* 0: none */
    int64_t wanted;      /* of those */
    int64_t rest;        /* wanted of the others */
    int64_t oldest_at;   /* of all that are wanted; 0: none */
};

/* ask_row counts one event. */
static void ask_row(const struct filter *f, const PGresult *r, int i, struct asked *n)
{
    int64_t seq = pg_int(r, i, W_SEQ);
    int64_t at = pg_int(r, i, W_CREATED);
    bool fresh = pg_true(r, i, W_FRESH);
    if (fresh) {
        n->scanned++;
        n->last = seq;
        if (n->first == 0)
            n->first = seq;
    }
    bool waits = pg_true(r, i, W_WAITS);
    if (!waits || !filter_payload(f, str_of(pg_str(r, i, W_PAYLOAD))))
        return;
    if (fresh)
        n->wanted++;
    else
        n->rest++;
    if (n->oldest_at == 0 || at < n->oldest_at)
        n->oldest_at = at;
}

static struct asked ask(const struct filter *f, const PGresult *r)
{
    struct asked n = {0};
    for (int i = 0; i < PQntuples(r); i++)
        ask_row(f, r, i, &n);
    return n;
}

/* extrapolate estimates how many fresh events up to `head` are wanted, if as many of the others are
 * as of those looked at. */
static int64_t extrapolate(const struct asked *n, int64_t head)
{
    double seqs = (double)(head - n->first + 1);
    double looked_at = (double)(n->last - n->first + 1);
    return (int64_t)((double)n->wanted * seqs / looked_at);
}

/* ask_behind counts what waits: exactly, if a look at STORE_PROBE_EVENTS of them is enough. */
static int ask_behind(struct pg_store *st, const struct filter *f, struct consumer_info *c,
                      int64_t head, struct error *err)
{
    PGresult *r = pg_query(st, err, waiting_sql, "si", c->spec.name, (int64_t)STORE_PROBE_EVENTS);
    if (!r)
        return -1;
    struct asked n = ask(f, r);
    PQclear(r);
    c->behind_exact = n.scanned < STORE_PROBE_EVENTS;
    c->behind = n.rest + n.wanted;
    if (!c->behind_exact && head > n.last)
        c->behind = n.rest + extrapolate(&n, head);
    c->oldest_at = n.oldest_at;
    return 0;
}

/* ask_inflight counts what claims have in hand, unless they are too many to look at. */
static int ask_inflight(struct pg_store *st, const struct filter *f, struct consumer_info *c,
                        struct error *err)
{
    if (c->inflight > STORE_PROBE_EVENTS) {
        c->inflight_exact = false;
        return 0;
    }
    PGresult *r = pg_query(st, err, claimed_sql, "s", c->spec.name);
    if (!r)
        return -1;
    int64_t sure = 0;
    for (int i = 0; i < PQntuples(r); i++)
        sure += PQgetisnull(r, i, W_PAYLOAD);
    struct asked n = ask(f, r);
    PQclear(r);
    c->inflight = sure + n.rest;
    return 0;
}

/* ask_predicate corrects the counts of a consumer with a predicate. The server counts what the type
 * patterns let through; the predicate is evaluated here. */
static int ask_predicate(struct pg_store *st, struct consumer_info *c, int64_t head,
                         struct error *err)
{
    struct filter *f = NULL;
    if (!*c->spec.where)
        return 0;
    if (filter_new(NULL, c->spec.where, &f, NULL) != 0)
        return 0; /* of a worker in SQL, and no predicate of ours */

    int result = 0;
    if (c->behind > 0)
        result = ask_behind(st, f, c, head, err);
    else
        c->behind_exact = true;
    if (result == 0 && c->inflight > 0)
        result = ask_inflight(st, f, c, err);
    filter_free(f);
    return result;
}

/* ---- listing ---- */

/* clang-format off */
static const char list_sql[] =
    "SELECT " SPEC_COLUMNS ", paused, " MS("created_at") ", "
           "position, behind, " MS("oldest_at") ", delivered, inflight, owner, parked, dead, "
           MS("next_due") ", last_error, " MS("last_error_at") ", floor, floor_pin, claims, "
           "behind_exact, report, " MS("report_at") ", "
           "coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0) "
    "FROM @schema@.consumer_status "
    "WHERE $1::text IS NULL OR name = $1 "
    "ORDER BY name";
/* clang-format on */

int pg_consumer_list(struct store *base, const char *name, struct arena *a,
                     struct consumer_info **ret, size_t *ret_n, struct error *err)
{
    PGresult *r = pg_query(pg_of(base), err, list_sql, "s", name);
    if (!r)
        return -1;
    size_t n = (size_t)PQntuples(r);
    int64_t head = 0;
    if (n > 0)
        head = pg_int(r, 0, 25);
    struct consumer_info *list = arena_zalloc(a, n + 1, sizeof *list);
    bool ok = list != NULL;
    for (size_t i = 0; ok && i < n; i++)
        ok = read_info(r, (int)i, a, &list[i]);
    PQclear(r);
    if (!ok)
        return err_nomem(err);
    if (name && n == 0)
        return store_no_consumer(name, err);
    for (size_t i = 0; i < n; i++)
        if (ask_predicate(pg_of(base), &list[i], head, err) != 0)
            return -1;
    *ret = list;
    *ret_n = n;
    return 0;
}

/* take_specs reads the rows of an answer, and clears it. NULL: the query failed. Where a consumer
 * was asked for by its name, it must be there. */
static int take_specs(PGresult *r, const char *name, struct arena *a, struct consumer_spec **ret,
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
    return take_specs(pg_query(st, err, sql, "s", name), name, a, ret, ret_n, err);
}

int pg_consumer_specs(struct store *base, const char *name, struct arena *a,
                      struct consumer_spec **ret, size_t *ret_n, struct error *err)
{
    static const char sql[] = "SELECT " SPEC_COLUMNS " FROM @schema@._workable() WHERE NOT paused";
    if (name)
        return pg_consumer_all_specs(pg_of(base), name, a, ret, ret_n, err);
    return take_specs(pg_query(pg_of(base), err, sql, ""), NULL, a, ret, ret_n, err);
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
