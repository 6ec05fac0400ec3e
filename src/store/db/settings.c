/* settings.c: the settings a consumer has had. Replaced settings are restored only on request:
 * otherwise a worker started with an old configuration file would replace the newer filter, and
 * events that only the newer one wants would be skipped for good. */
#include "base/buf.h"
#include "event/filter.h"
#include "store/db/db.h"
#include "store_sql.h"

bool db_settings_same_events(const char *kept, const char *events)
{
    if (!kept)
        return false;
    if (strcmp(kept, events) == 0)
        return true;

    struct buf b;
    buf_init(&b, 2 * strlen(kept) + 1);
    filter_normal_events(kept, &b);
    const char *text = buf_cstr(&b);
    bool same = text && strcmp(text, events) == 0;
    buf_release(&b);
    return same;
}

static bool same_settings(const struct consumer_settings *s, const struct consumer_spec *c)
{
    if (s->order != c->order || s->lanes != c->lanes)
        return false;
    return db_settings_same_events(s->events, c->events) && strcmp(s->where, c->where) == 0;
}

/* Reads a row of list_settings; false if memory runs out, or if the row has a NULL that our
 * constraints rule out. */
static bool read_setting(const struct db_rows *q, struct arena *a, struct consumer_settings *s)
{
    bool ok = true;
    *s = (struct consumer_settings){
        .generation = (int)db_int(q, 0),
        .events = db_copy(q, 1, a, &ok).p,
        .where = db_copy(q, 2, a, &ok).p,
        .order = store_order_of(db_text(q, 3)),
        .lanes = (int)db_int(q, 4),
        .since = db_int(q, 5),
        .by = db_copy(q, 6, a, &ok).p,
    };
    return ok && s->events && s->where;
}

/* Lists the recorded settings, newest first. */
static int read_history(struct store *st, const char *name, struct arena *a,
                        struct consumer_settings **ret, size_t *ret_n, struct error *err)
{
    int64_t count = 0;
    if (db_value(st, err, &count, SQL(count_settings, .consumer = name)) != 0)
        return -1;
    struct consumer_settings *list = arena_zalloc(a, (size_t)count + 1, sizeof *list);
    if (!list)
        return err_nomem(err);

    size_t n = 0;
    int r = 0;
    bool ok = true;
    struct db_rows q = db_rows(st, err, SQL(list_settings, .consumer = name));
    while (ok && n < (size_t)count && (r = db_step(&q, err)) == 1)
        ok = read_setting(&q, a, &list[n++]);
    db_done(&q);
    if (!ok)
        return err_nomem(err);
    if (r < 0)
        return -1;
    *ret = list;
    *ret_n = n;
    return 0;
}

/* The history lives in a. */
static int replace(struct store *st, const struct consumer_spec *c, struct arena *a,
                   struct error *err)
{
    struct consumer_settings *list;
    const struct consumer_settings *old = NULL;
    size_t n;
    if (db_run(st, err, SQL(put_first_setting, .consumer = c->name)) != 0)
        return -1;
    if (read_history(st, c->name, a, &list, &n, err) != 0)
        return -1;
    for (size_t i = 0; i < n; i++)
        if (same_settings(&list[i], c))
            old = &list[i];

    if (old && c->how != PUT_PURPOSE)
        return store_replaced(c->name, &list[0], old, err);
    if (old &&
        db_run(st, err, SQL(drop_setting, .consumer = c->name, .generation = old->generation)) != 0)
        return -1;

    /* c becomes the next generation; the oldest ones are deleted. */
    int generation = list[0].generation + 1;
    int64_t too_old = (int64_t)generation - STORE_GENERATIONS;
    if (db_run(st, err, SQL(drop_old_settings, .consumer = c->name, .generation = too_old)) != 0)
        return -1;
    return db_run(st, err,
                  SQL(put_setting, .consumer = c->name, .generation = generation,
                      .events = c->events, .predicate = c->where,
                      .ordering = store_order_names[c->order], .lanes = c->lanes, .now = db_now(st),
                      .by_whom = c->by));
}

int db_settings_replace(struct store *st, const struct consumer_spec *c, struct error *err)
{
    struct arena a;
    arena_init(&a, 0);
    int r = replace(st, c, &a, err);
    arena_release(&a);
    return r;
}

int db_consumer_history(struct store *st, const char *name, struct arena *a,
                        struct consumer_settings **ret, size_t *ret_n, struct error *err)
{
    int64_t found = 0;
    if (db_value(st, err, &found, SQL(is_registered, .consumer = name)) != 0)
        return -1;
    if (!found)
        return store_no_consumer(name, err);
    return read_history(st, name, a, ret, ret_n, err);
}
