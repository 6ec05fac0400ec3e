/* gauge.c: how a consumer is, at a price that does not grow with the backlog. */
#include "store/sqlite/sqlite.h"

static int probe_types(struct sqlite_store *st, int64_t position, struct arena *a, struct consumer_gauge *g,
                       struct error *err)
{
    bool ok = true;
    int r = 0;
    sqlite3_stmt *q = sqlite_query(
        st, err,
        "SELECT type, count(*), min(created_at) FROM (SELECT type, created_at FROM outbox_event "
        "WHERE seq > ? ORDER BY seq LIMIT ?) GROUP BY type ORDER BY 2 DESC, 1",
        "ii", position, (int64_t)STORE_PROBE_EVENTS);
    if (!q) return -1;
    struct gauge_type *list = NULL;
    size_t room = 0;
    while (ok && (r = sqlite_step(st, q, err)) == 1) {
        if (g->n_types == room) {
            struct gauge_type *more = arena_zalloc(a, room = room ? room * 2 : 16, sizeof *more);
            if (more && g->n_types) memcpy(more, list, g->n_types * sizeof *more);
            list = more;
        }
        if (!list) {
            ok = false;
            break;
        }
        struct gauge_type *t = &list[g->n_types++];
        *t = (struct gauge_type){sqlite_copy(q, 0, a, &ok).p, sqlite3_column_int64(q, 1), sqlite3_column_int64(q, 2)};
        g->probed += t->n;
    }
    g->type = list;
    if (!ok) sqlite3_reset(q);
    return !ok ? err_nomem(err) : r < 0 ? -1 : 0;
}

static int read_gauge(struct sqlite_store *st, const char *name, struct arena *a, struct consumer_gauge *g,
                      struct error *err)
{
    int64_t position = 0, head = 0;
    bool ok = true;
    sqlite3_stmt *q = sqlite_query(st, err, "SELECT events, paused FROM outbox_consumer WHERE name = ?", "s", name);
    int r = q ? sqlite_step(st, q, err) : -1;
    if (r == 0) return store_no_consumer(name, err);
    if (r < 0) return -1;
    *g = (struct consumer_gauge){.events = sqlite_copy(q, 0, a, &ok).p, .paused = sqlite3_column_int(q, 1) != 0};
    sqlite3_reset(q);
    g->now_ms = sqlite_now(st);
    if (!ok) return err_nomem(err);
    if (sqlite_number(st, err, &head, "SELECT seq FROM sqlite_sequence WHERE name = 'outbox_event'", "") ||
        sqlite_number(st, err, &position, "SELECT min(position) FROM outbox_lane WHERE consumer = ?", "s", name) ||
        sqlite_number(st, err, &g->parked,
                      "SELECT count(*) FROM (SELECT 1 FROM outbox_parked WHERE consumer = ? LIMIT ?)", "si", name,
                      (int64_t)STORE_PROBE_ROWS) ||
        sqlite_number(st, err, &g->dead,
                      "SELECT count(*) FROM (SELECT 1 FROM outbox_dead WHERE consumer = ? AND retrying = 0 LIMIT ?)",
                      "si", name, (int64_t)STORE_PROBE_ROWS))
        return -1;
    g->behind = head > position ? head - position : 0;
    return probe_types(st, position, a, g, err);
}

int sqlite_consumer_gauge(struct store *base, const char *name, struct arena *a, struct consumer_gauge *ret,
                          struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    struct consumer_gauge g;
    bool own = sqlite3_get_autocommit(st->db) != 0;
    if (own && sqlite_exec(st, err, "BEGIN", "") != 0) return -1; /* one snapshot for the whole picture */
    int r = read_gauge(st, name, a, &g, err);
    if (own) sqlite_exec(st, NULL, "ROLLBACK", "");
    if (r == 0) *ret = g;
    return r;
}
