/* gauge.c: how a consumer is doing, at a cost that does not grow with the backlog. */
#include "store/db/db.h"
#include "store/topics.h"
#include "store_sql.h"

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
    *g = (struct consumer_gauge){.paused = db_int(&q, 1) != 0, .now_ms = db_now(st)};
    *spec = (struct consumer_spec){
        .name = name, .events = db_copy(&q, 0, a, &ok).p, .where = "", .lanes = (int)db_int(&q, 2)};
    if (store_says_down(db_text(&q, 3).p))
        g->down_since = db_int(&q, 4);
    db_done(&q);
    return ok ? 0 : err_nomem(err);
}

static int read_backlog(struct store *st, const struct consumer_spec *spec, struct arena *a,
                        struct consumer_gauge *g, struct error *err)
{
    struct topics t = {.a = a};
    struct backlog b = {.spec = spec, .max = STORE_PROBE_EVENTS, .topics = &t, .a = a};
    if (db_backlog(st, &b, err) != 0)
        return -1;

    int64_t all[TOPIC_PLACES] = {[TOPIC_PARKED] = b.parked_rows};
    if (b.scanned == b.max)
        all[TOPIC_UNCLAIMED] = b.unclaimed;
    g->overdue_at = b.overdue_at;
    g->parked = b.parked_rows - b.parked_inflight;
    return topics_end(&t, all, g, err);
}

static int read_gauge(struct store *st, const char *name, struct arena *a, struct consumer_gauge *g,
                      struct error *err)
{
    struct consumer_spec spec;
    if (read_health(st, name, a, g, &spec, err) != 0)
        return -1;
    if (read_backlog(st, &spec, a, g, err) != 0)
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
