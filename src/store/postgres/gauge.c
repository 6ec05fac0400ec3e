/* gauge.c: how a consumer is doing, at a cost that does not grow with the backlog. */
#include "store/postgres/postgres.h"
#include "store/topics.h"

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

/* Rows are read in the order of seq and no further than the limit; payloads are not touched. The
 * places are those of enum topic_place. */
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

/* probe_types counts the types of what is not delivered. */
static int probe_types(struct pg_store *st, const char *name, struct topics *t, struct error *err)
{
    PGresult *r = pg_query(st, err, types_sql, "si", name, (int64_t)STORE_PROBE_EVENTS);
    if (!r)
        return -1;
    int result = 0;
    for (int i = 0; result == 0 && i < PQntuples(r); i++) {
        struct topic_find f = {.place = (enum topic_place)pg_int(r, i, 0),
                               .type = str_of(pg_str(r, i, 1)),
                               .n = pg_int(r, i, 2),
                               .oldest_at = pg_int(r, i, 3)};
        result = topics_add(t, &f, err);
    }
    PQclear(r);
    return result;
}

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
    if (probe_types(pg_of(base), name, &t, err) != 0)
        return -1;
    if (topics_end(&t, all, &g, err) != 0)
        return -1;
    *ret = g;
    return 0;
}
