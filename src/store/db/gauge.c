/* gauge.c: how a consumer is doing, at a cost that does not grow with the backlog. */
#include <stdlib.h>

#include "store/db/db.h"
#include "store_sql.h"

/* ---- the types of what waits ---- */

struct types {
    struct arena *a;
    struct gauge_type *list;
    size_t n, room;
};

/* make_room makes sure that one more type fits. */
static int make_room(struct types *t, struct error *err)
{
    if (t->n < t->room)
        return 0;
    size_t room = t->room ? t->room * 2 : 16;
    struct gauge_type *more = arena_zalloc(t->a, room, sizeof *more);
    if (!more)
        return err_nomem(err);
    if (t->n)
        memcpy(more, t->list, t->n * sizeof *more);
    t->list = more;
    t->room = room;
    return 0;
}

/* find_type finds the type of a row in the list, or appends it; NULL: there is no memory. */
static struct gauge_type *find_type(struct types *t, const struct db_rows *row, struct error *err)
{
    struct str type = db_text(row, 1);
    for (size_t i = 0; i < t->n; i++)
        if (str_is(type, t->list[i].type))
            return &t->list[i];

    bool ok = true;
    if (make_room(t, err) != 0)
        return NULL;
    struct gauge_type *new = &t->list[t->n];
    new->type = db_copy(row, 1, t->a, &ok).p;
    new->oldest_at = db_int(row, 2);
    if (!ok) {
        err_nomem(err);
        return NULL;
    }
    t->n++;
    return new;
}

/* add_type counts an event that waits; see struct backlog. */
static int add_type(void *ctx, const struct db_rows *row, struct error *err)
{
    int64_t at = db_int(row, 2);
    struct gauge_type *type = find_type(ctx, row, err);
    if (!type)
        return -1;
    type->n++;
    if (at < type->oldest_at)
        type->oldest_at = at;
    return 0;
}

static int most_first(const void *a, const void *b)
{
    const struct gauge_type *x = a, *y = b;
    if (x->n != y->n)
        return x->n < y->n ? 1 : -1;
    return strcmp(x->type, y->type);
}

/* ---- the gauge ---- */

/* read_health reads what the consumer's row has; spec gets what a backlog needs of it. */
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
    *g = (struct consumer_gauge){
        .events = db_copy(&q, 0, a, &ok).p,
        .paused = db_int(&q, 1) != 0,
        .now_ms = db_now(st),
    };
    *spec = (struct consumer_spec){
        .name = name, .events = g->events, .where = "", .lanes = (int)db_int(&q, 2)};
    if (store_says_down(db_text(&q, 3).p))
        g->down_since = db_int(&q, 4);
    db_done(&q);
    return ok ? 0 : err_nomem(err);
}

static int read_backlog(struct store *st, const struct consumer_spec *spec, struct arena *a,
                        struct consumer_gauge *g, struct error *err)
{
    struct types t = {.a = a};
    struct backlog b = {.spec = spec, .max = STORE_PROBE_EVENTS, .visit = add_type, .ctx = &t};
    if (db_backlog(st, &b, err) != 0)
        return -1;
    if (t.n)
        qsort(t.list, t.n, sizeof *t.list, most_first);
    g->type = t.list;
    g->n_types = t.n;
    g->behind = b.behind;
    g->probed = b.scanned;
    return 0;
}

static int read_gauge(struct store *st, const char *name, struct arena *a, struct consumer_gauge *g,
                      struct error *err)
{
    struct consumer_spec spec;
    if (read_health(st, name, a, g, &spec, err) != 0)
        return -1;
    if (read_backlog(st, &spec, a, g, err) != 0)
        return -1;
    if (db_value(st, err, &g->parked,
                 SQL(probe_parked, .consumer = name, .now = g->now_ms, .max = STORE_PROBE_ROWS)) !=
        0)
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
