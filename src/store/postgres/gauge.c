/* gauge.c: how a consumer is doing, at a cost that does not grow with the backlog. */
#include "store/postgres/postgres.h"

/* clang-format off */
static const char state_sql[] =
    "SELECT c.events, c.paused, b.n, b.scanned, "
           "(SELECT count(*) FROM ("
               "SELECT FROM @schema@.parked p "
               "WHERE p.consumer = c.name "
                 "AND NOT EXISTS ("
                     "SELECT FROM @schema@.claim k "
                     "WHERE k.consumer = c.name AND k.epoch = p.claim "
                       "AND k.locked_until > @schema@._clock()) "
               "LIMIT $2) AS p), "
           "(SELECT count(*) FROM ("
               "SELECT FROM @schema@.dead d "
               "WHERE d.consumer = c.name AND NOT d.retrying "
               "LIMIT $2) AS d), "
           "floor(extract(epoch FROM @schema@._clock()) * 1000)::bigint, "
           "CASE WHEN c.report LIKE 'sink is down%' "
                "THEN floor(extract(epoch FROM c.report_at) * 1000)::bigint END "
    "FROM @schema@.consumer c "
    "CROSS JOIN LATERAL @schema@._backlog(c.name, $3::int) b "
    "WHERE c.name = $1";

/* Rows are read in the order of seq and no further than the limit; payloads are not touched. */
static const char types_sql[] =
    "SELECT w.type, count(*), "
           "floor(extract(epoch FROM min(w.created_at) FILTER (WHERE isfinite(w.created_at))) "
                 "* 1000)::bigint "
    "FROM @schema@._waiting($1, $2::int) w "
    "WHERE w.waits "
    "GROUP BY w.type "
    "ORDER BY 2 DESC, 1";
/* clang-format on */

/* probe_types counts the types among the first events that wait. */
static int probe_types(struct pg_store *st, const char *name, struct arena *a,
                       struct consumer_gauge *g, struct error *err)
{
    bool ok = true;
    PGresult *r = pg_query(st, err, types_sql, "si", name, (int64_t)STORE_PROBE_EVENTS);
    if (!r)
        return -1;
    g->n_types = (size_t)PQntuples(r);
    struct gauge_type *list = arena_zalloc(a, g->n_types + 1, sizeof *list);
    for (int i = 0; list && i < (int)g->n_types; i++)
        list[i] = (struct gauge_type){pg_copy(r, i, 0, a, &ok), pg_int(r, i, 1), pg_int(r, i, 2)};
    g->type = list;
    PQclear(r);
    return list && ok ? 0 : err_nomem(err);
}

int pg_consumer_gauge(struct store *base, const char *name, struct arena *a,
                      struct consumer_gauge *ret, struct error *err)
{
    struct consumer_gauge g = {0};
    bool ok = true;
    PGresult *r = pg_query(pg_of(base), err, state_sql, "sii", name, (int64_t)STORE_PROBE_ROWS,
                           (int64_t)STORE_PROBE_EVENTS);
    if (!r)
        return -1;
    bool found = PQntuples(r) == 1;
    if (found) {
        g.events = pg_copy(r, 0, 0, a, &ok);
        g.paused = pg_true(r, 0, 1);
        g.behind = pg_int(r, 0, 2);
        g.probed = pg_int(r, 0, 3);
        g.parked = pg_int(r, 0, 4);
        g.dead = pg_int(r, 0, 5);
        g.now_ms = pg_int(r, 0, 6);
        g.down_since = pg_int(r, 0, 7);
    }
    PQclear(r);
    if (!found)
        return store_no_consumer(name, err);
    if (!ok)
        return err_nomem(err);
    if (probe_types(pg_of(base), name, a, &g, err) != 0)
        return -1;
    *ret = g;
    return 0;
}
