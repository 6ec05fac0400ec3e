/* gauge.c: how a consumer is, at a price that does not grow with the backlog. */
#include "store/postgres/postgres.h"

/* The position is that of the view consumer_status. */
static const char state_sql[] =
    "SELECT c.events, c.paused, l.position, "
    "greatest(coalesce(pg_sequence_last_value('@schema@.event_seq_seq'), 0) - l.position, 0), "
    "(SELECT count(*) FROM (SELECT FROM @schema@.parked p WHERE p.consumer = c.name LIMIT $2) AS p), "
    "(SELECT count(*) FROM (SELECT FROM @schema@.dead d WHERE d.consumer = c.name AND NOT d.retrying LIMIT $2) AS d), "
    "floor(extract(epoch FROM @schema@.clock()) * 1000)::bigint "
    "FROM @schema@.consumer c CROSS JOIN LATERAL ("
    "SELECT min(CASE WHEN x.lane < 0 THEN NULL WHEN x.target IS NULL THEN x.floor ELSE greatest(x.floor, x.pos) END) "
    "AS position FROM @schema@.lanes(c.name, c.lanes) x) l WHERE c.name = $1";

/* Rows are read in the order of seq and no further than the limit; payloads are not touched. */
static const char types_sql[] =
    "SELECT type, count(*), floor(extract(epoch FROM min(created_at)) * 1000)::bigint FROM ("
    "SELECT type, created_at FROM @schema@.event WHERE seq > $1 ORDER BY seq LIMIT $2) AS e "
    "GROUP BY type ORDER BY 2 DESC, 1";

static const char *copy(const PGresult *r, int row, int col, struct arena *a, bool *ok)
{
    const char *s = PQgetvalue(r, row, col);
    s = arena_bytes(a, s, strlen(s));
    if (!s) *ok = false;
    return s;
}

static int probe_types(struct pg_store *st, int64_t position, struct arena *a, struct consumer_gauge *g,
                       struct error *err)
{
    bool ok = true;
    PGresult *r = pg_query(st, err, types_sql, "ii", position, (int64_t)STORE_PROBE_EVENTS);
    if (!r) return -1;
    g->n_types = (size_t)PQntuples(r);
    struct gauge_type *list = arena_zalloc(a, g->n_types + 1, sizeof *list);
    for (size_t i = 0; list && i < g->n_types; i++) {
        list[i] = (struct gauge_type){copy(r, (int)i, 0, a, &ok), pg_int(r, (int)i, 1), pg_int(r, (int)i, 2)};
        g->probed += list[i].n;
    }
    g->type = list;
    PQclear(r);
    return list && ok ? 0 : err_nomem(err);
}

int pg_consumer_gauge(struct store *base, const char *name, struct arena *a, struct consumer_gauge *ret,
                      struct error *err)
{
    struct consumer_gauge g = {0};
    bool ok = true;
    PGresult *r = pg_query(pg_of(base), err, state_sql, "si", name, (int64_t)STORE_PROBE_ROWS);
    if (!r) return -1;
    bool found = PQntuples(r) == 1;
    int64_t position = found ? pg_int(r, 0, 2) : 0;
    if (found) {
        g.events = copy(r, 0, 0, a, &ok);
        g.paused = pg_true(r, 0, 1);
        g.behind = pg_int(r, 0, 3);
        g.parked = pg_int(r, 0, 4);
        g.dead = pg_int(r, 0, 5);
        g.now_ms = pg_int(r, 0, 6);
    }
    PQclear(r);
    if (!found) return store_no_consumer(name, err);
    if (!ok) return err_nomem(err);
    if (probe_types(pg_of(base), position, a, &g, err) != 0) return -1;
    *ret = g;
    return 0;
}
