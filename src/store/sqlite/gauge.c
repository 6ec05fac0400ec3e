/* gauge.c: how a consumer is, at a price that does not grow with the backlog. */
#include <stdlib.h>

#include "sqlite_sql.h"
#include "store/sqlite/sqlite.h"

/* The types of what waits, as they are found. */
struct types {
    struct arena *a;
    struct gauge_type *list;
    size_t n, room;
};

static int add_type(void *ctx, sqlite3_stmt *row, struct error *err)
{
    struct types *t = ctx;
    struct str type = sqlite_text(row, 1);
    int64_t at = sqlite3_column_int64(row, 2);
    bool ok = true;
    size_t i = 0;
    while (i < t->n && !str_is(type, t->list[i].type))
        i++;
    if (i == t->room) {
        t->room = t->room ? t->room * 2 : 16;
        struct gauge_type *more = arena_zalloc(t->a, t->room, sizeof *more);
        if (!more)
            return err_nomem(err);
        if (t->n)
            memcpy(more, t->list, t->n * sizeof *more);
        t->list = more;
    }
    if (i == t->n) {
        t->list[t->n++] = (struct gauge_type){sqlite_copy(row, 1, t->a, &ok).p, 0, at};
        if (!ok)
            return err_nomem(err);
    }
    t->list[i].n++;
    if (at < t->list[i].oldest_at)
        t->list[i].oldest_at = at;
    return 0;
}

static int most_first(const void *a, const void *b)
{
    const struct gauge_type *x = a, *y = b;
    if (x->n != y->n)
        return x->n < y->n ? 1 : -1;
    return strcmp(x->type, y->type);
}

static int read_gauge(struct sqlite_store *st, const char *name, struct arena *a,
                      struct consumer_gauge *g, struct error *err)
{
    bool ok = true;
    struct types t = {.a = a};
    struct consumer_spec spec = {.name = name, .where = ""};
    sqlite3_stmt *q = sqlite_rows(st, err, SQL(consumer_health, .consumer = name));
    int r = q ? sqlite_step(st, q, err) : -1;
    if (r == 0)
        return store_no_consumer(name, err);
    if (r < 0)
        return -1;
    *g = (struct consumer_gauge){.events = sqlite_copy(q, 0, a, &ok).p,
                                 .paused = sqlite3_column_int(q, 1) != 0};
    spec.events = g->events;
    spec.lanes = sqlite3_column_int(q, 2);
    if (store_says_down(sqlite_text(q, 3).p))
        g->down_since = sqlite3_column_int64(q, 4);
    sqlite3_reset(q);
    g->now_ms = sqlite_now(st);
    if (!ok)
        return err_nomem(err);
    struct backlog b = {.spec = &spec, .max = STORE_PROBE_EVENTS, .visit = add_type, .ctx = &t};
    if (sqlite_backlog(st, &b, err) != 0)
        return -1;
    if (t.n)
        qsort(t.list, t.n, sizeof *t.list, most_first);
    g->type = t.list;
    g->n_types = t.n;
    g->behind = b.behind;
    g->probed = b.scanned;
    if (sqlite_value(
            st, err, &g->parked,
            SQL(probe_parked, .consumer = name, .now = g->now_ms, .max = STORE_PROBE_ROWS)) != 0)
        return -1;
    return sqlite_value(st, err, &g->dead,
                        SQL(probe_dead, .consumer = name, .max = STORE_PROBE_ROWS));
}

int sqlite_consumer_gauge(struct store *base, const char *name, struct arena *a,
                          struct consumer_gauge *ret, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    struct consumer_gauge g;
    bool own;
    if (sqlite_snapshot_begin(st, &own, err) != 0)
        return -1;
    int r = read_gauge(st, name, a, &g, err);
    sqlite_snapshot_end(st, own);
    if (r == 0)
        *ret = g;
    return r;
}
