/* consumers.c: registering consumers and telling how they are. */
#include <stdio.h>

#include "base/text.h"
#include "store/postgres/postgres.h"

#define REGISTER_PATIENCE (30000 * MS_NS)
#define MS(column) \
    "CASE WHEN isfinite(" column ") THEN floor(extract(epoch FROM " column ") * 1000)::bigint END"

int pg_consumer_put(struct store *base, const struct consumer_spec *c, bool *ret_created,
                    struct error *err)
{
    static const char *const how[] = {
        [PUT_START] = "start", [PUT_AGAIN] = "again", [PUT_PURPOSE] = "purpose"};
    char start[24] = "beginning";
    if (store_name_check(c->name, err) != 0)
        return -1;
    if (c->lanes < 1 || c->lanes > STORE_LANES_MAX)
        return err_set(err, ERR_CONFIG, "lanes must be 1 to %d", STORE_LANES_MAX);
    if (c->start == START_END)
        snprintf(start, sizeof start, "end");
    if (c->start == START_SEQ)
        snprintf(start, sizeof start, "%lld", (long long)(c->start_seq > 0 ? c->start_seq : 0));
    PGresult *r;
    int64_t began = clock_mono(&clock_system);
    struct error why;
    do { /* whoever has it locked is mostly about to end; if not, the error says who it is */
        r = pg_query(pg_of(base), &why,
                     "SELECT @schema@.register($1, $2, $3, $4, $5, $6, $7, $8, $9)", "ssssissss",
                     c->name, c->events, c->where, store_order_names[c->order], (int64_t)c->lanes,
                     c->retry, start, c->by, how[c->how]);
    } while (!r && why.code == ERR_BUSY && clock_mono(&clock_system) - began < REGISTER_PATIENCE);
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
    int bad = 0;
    if (!pg_true(r, 0, 0))
        bad = store_no_consumer(name, err);
    else if (!force)
        bad = store_removable(name, pg_int(r, 0, 1), pg_int(r, 0, 2), pg_int(r, 0, 3), err);
    PQclear(r);
    return bad;
}

/* ---- listing ---- */

static const char *copy(const PGresult *r, int row, int col, struct arena *a, bool *ok)
{
    const char *s = pg_str(r, row, col);
    if (!s)
        return NULL;
    s = arena_bytes(a, s, strlen(s));
    if (!s)
        *ok = false;
    return s;
}

static bool read_row(const PGresult *r, int i, struct arena *a, struct consumer_info *c)
{
    bool ok = true;
    c->spec = (struct consumer_spec){.name = copy(r, i, 0, a, &ok),
                                     .events = copy(r, i, 1, a, &ok),
                                     .where = copy(r, i, 2, a, &ok),
                                     .order = store_order_of(str_of(PQgetvalue(r, i, 3))),
                                     .lanes = (int)pg_int(r, i, 4),
                                     .retry = copy(r, i, 5, a, &ok)};
    c->paused = pg_true(r, i, 6);
    c->created_at = pg_int(r, i, 7);
    c->position = pg_int(r, i, 8);
    c->behind = pg_int(r, i, 9);
    c->oldest_at = pg_int(r, i, 10);
    c->delivered = pg_int(r, i, 11);
    c->inflight = pg_int(r, i, 12);
    c->owner = copy(r, i, 13, a, &ok);
    c->parked = pg_int(r, i, 14);
    c->dead = pg_int(r, i, 15);
    c->next_due = pg_int(r, i, 16);
    c->last_error = copy(r, i, 17, a, &ok);
    c->last_error_at = pg_int(r, i, 18);
    c->floor = pg_int(r, i, 19);
    c->floor_pin = copy(r, i, 20, a, &ok);
    c->claims = pg_int(r, i, 21);
    c->behind_exact = pg_true(r, i, 22);
    c->report = copy(r, i, 23, a, &ok);
    c->report_at = pg_int(r, i, 24);
    c->down = store_says_down(c->report);
    c->inflight_exact = true;
    bool reported = c->report && (!c->last_error || c->report_at >= c->last_error_at || c->down);
    if (reported) {
        c->last_error = c->report;
        c->last_error_at = c->report_at;
    }
    return ok;
}

/* A count of payloads that a predicate wants. */
struct asked {
    int64_t scanned, wanted, rest; /* rest: of those wanted, what is not in the row of the others */
    int64_t first, last;
    int64_t oldest_at;
};

/* ask reads rows of (seq, whether it is fresh, whether it waits, created_at, payload). */
static int ask(const struct filter *f, const PGresult *r, struct asked *ret)
{
    *ret = (struct asked){0};
    for (int i = 0; i < PQntuples(r); i++) {
        bool fresh = pg_true(r, i, 1), waits = pg_true(r, i, 2);
        int64_t seq = pg_int(r, i, 0), at = pg_int(r, i, 3);
        if (fresh)
            ret->scanned++;
        if (fresh && !ret->first)
            ret->first = seq;
        if (fresh)
            ret->last = seq;
        if (!waits || !filter_payload(f, str_of(pg_str(r, i, 4))))
            continue;
        if (fresh)
            ret->wanted++;
        else
            ret->rest++;
        if (!ret->oldest_at || at < ret->oldest_at)
            ret->oldest_at = at;
    }
    return 0;
}

static int ask_behind(struct pg_store *st, const struct filter *f, struct consumer_info *c,
                      int64_t head, struct error *err)
{
    struct asked n;
    PGresult *r = pg_query(st, err,
                           "SELECT w.seq, w.fresh, w.waits, " MS(
                               "w.created_at") ", CASE WHEN w.waits THEN e.payload END "
                                               "FROM @schema@._waiting($1, $2::int) w JOIN "
                                               "@schema@.event e ON e.seq = w.seq ORDER BY w.seq",
                           "si", c->spec.name, (int64_t)STORE_PROBE_EVENTS);
    if (!r)
        return -1;
    ask(f, r, &n);
    PQclear(r);
    c->behind_exact = n.scanned < STORE_PROBE_EVENTS;
    c->behind = n.rest + n.wanted;
    if (!c->behind_exact && head > n.last)
        c->behind = n.rest + (int64_t)((double)n.wanted * (double)(head - n.first + 1) /
                                       (double)(n.last - n.first + 1));
    c->oldest_at = n.oldest_at;
    return 0;
}

static int ask_inflight(struct pg_store *st, const struct filter *f, struct consumer_info *c,
                        struct error *err)
{
    struct asked n;
    if (c->inflight > STORE_PROBE_EVENTS) {
        c->inflight_exact = false;
        return 0;
    }
    /* What is parked was wanted by whoever parked it, unless a worker vanished. */
    PGresult *r = pg_query(
        st, err,
        "SELECT e.seq, false, true, 0, CASE WHEN k.lane < 0 AND NOT e.careful "
        "THEN NULL ELSE e.payload END "
        "FROM @schema@.claim k, LATERAL @schema@._claimed(k.consumer, k.epoch) e "
        "WHERE k.consumer = $1 AND "
        "k.locked_until > @schema@._clock()",
        "s", c->spec.name);
    if (!r)
        return -1;
    int64_t sure = 0;
    for (int i = 0; i < PQntuples(r); i++)
        sure += PQgetisnull(r, i, 4);
    ask(f, r, &n);
    PQclear(r);
    c->inflight = sure + n.rest;
    return 0;
}

/* ask_predicate: the server counts what the type patterns let through; what the predicate leaves
 * out of it is found out here. */
static int ask_predicate(struct pg_store *st, struct consumer_info *c, int64_t head,
                         struct error *err)
{
    struct filter *f = NULL;
    if (!*c->spec.where)
        return 0;
    /* of a worker in SQL, and no predicate of ours */
    if (filter_new(NULL, c->spec.where, &f, NULL) != 0)
        return 0;
    int bad = 0;
    if (c->behind > 0)
        bad = ask_behind(st, f, c, head, err);
    else
        c->behind_exact = true;
    if (!bad && c->inflight > 0)
        bad = ask_inflight(st, f, c, err);
    filter_free(f);
    return bad;
}

/* clang-format off */
static const char list_sql[] =
    "SELECT name, events, predicate, ordering, lanes, retry, paused, " MS("created_at") ", "
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
    int64_t head = n ? pg_int(r, 0, 25) : 0;
    struct consumer_info *list = arena_zalloc(a, n + 1, sizeof *list);
    bool ok = list != NULL;
    for (size_t i = 0; ok && i < n; i++)
        ok = read_row(r, (int)i, a, &list[i]);
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

int pg_consumer_specs(struct store *base, const char *name, struct arena *a,
                      struct consumer_spec **ret, size_t *ret_n, struct error *err)
{
    static const char one[] = "SELECT name, events, predicate, ordering, lanes, retry FROM "
                              "@schema@.consumer WHERE name = $1";
    static const char all[] = "SELECT name, events, predicate, ordering, lanes, retry FROM "
                              "@schema@._workable() WHERE NOT paused";
    PGresult *r = name ? pg_query(pg_of(base), err, one, "s", name)
                       : pg_query(pg_of(base), err, all, "");
    if (!r)
        return -1;
    size_t n = (size_t)PQntuples(r);
    struct consumer_spec *list = arena_zalloc(a, n + 1, sizeof *list);
    bool ok = list != NULL;
    for (int i = 0; ok && i < (int)n; i++) {
        list[i] = (struct consumer_spec){.name = copy(r, i, 0, a, &ok),
                                         .events = copy(r, i, 1, a, &ok),
                                         .where = copy(r, i, 2, a, &ok),
                                         .order = store_order_of(str_of(PQgetvalue(r, i, 3))),
                                         .lanes = (int)pg_int(r, i, 4),
                                         .retry = copy(r, i, 5, a, &ok)};
    }
    PQclear(r);
    if (!ok)
        return err_nomem(err);
    if (name && n == 0)
        return store_no_consumer(name, err);
    *ret = list;
    *ret_n = n;
    return 0;
}

int pg_consumer_history(struct store *base, const char *name, struct arena *a,
                        struct consumer_settings **ret, size_t *ret_n, struct error *err)
{
    PGresult *r = pg_query(pg_of(base), err,
                           "SELECT s.generation, s.events, s.predicate, s.ordering, s.lanes, "
                           "floor(extract(epoch FROM s.since) * 1000)::bigint, "
                           "s.by_whom FROM @schema@.consumer c LEFT JOIN @schema@.setting s ON "
                           "s.consumer = c.name WHERE c.name = $1 "
                           "ORDER BY s.generation DESC",
                           "s", name);
    if (!r)
        return -1;
    bool found = PQntuples(r) > 0;
    size_t n = found && pg_str(r, 0, 0) ? (size_t)PQntuples(r) : 0;
    struct consumer_settings *list = arena_zalloc(a, n + 1, sizeof *list);
    bool ok = list != NULL;
    for (int i = 0; ok && i < (int)n; i++) {
        list[i] = (struct consumer_settings){.generation = (int)pg_int(r, i, 0),
                                             .events = copy(r, i, 1, a, &ok),
                                             .where = copy(r, i, 2, a, &ok),
                                             .order = store_order_of(str_of(PQgetvalue(r, i, 3))),
                                             .lanes = (int)pg_int(r, i, 4),
                                             .since = pg_int(r, i, 5),
                                             .by = copy(r, i, 6, a, &ok)};
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
