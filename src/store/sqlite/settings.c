/* settings.c: the settings a consumer has had. What was replaced comes back only on purpose: a
 * worker started with an old file would otherwise take the newer filter away, and events that only
 * the newer one wants would be skipped for good. */
#include "event/normal.h"
#include "sqlite_sql.h"
#include "store/sqlite/sqlite.h"

bool sqlite_settings_same_events(const char *kept, const char *events)
{
    if (!kept)
        return false;
    if (strcmp(kept, events) == 0)
        return true;

    struct buf b;
    buf_init(&b, 2 * strlen(kept) + 1);
    normal_events(kept, &b);
    const char *text = buf_cstr(&b);
    bool same = text && strcmp(text, events) == 0;
    buf_release(&b);
    return same;
}

static bool same_settings(const struct consumer_settings *s, const struct consumer_spec *c)
{
    if (s->order != c->order || s->lanes != c->lanes)
        return false;
    return sqlite_settings_same_events(s->events, c->events) && strcmp(s->where, c->where) == 0;
}

/* read_setting reads a row of list_settings; false if there is no memory, or if the row lacks what
 * only a file without our constraints can lack. */
static bool read_setting(sqlite3_stmt *q, struct arena *a, struct consumer_settings *s)
{
    bool ok = true;
    *s = (struct consumer_settings){
        .generation = sqlite3_column_int(q, 0),
        .events = sqlite_copy(q, 1, a, &ok).p,
        .where = sqlite_copy(q, 2, a, &ok).p,
        .order = store_order_of(sqlite_text(q, 3)),
        .lanes = sqlite3_column_int(q, 4),
        .since = sqlite3_column_int64(q, 5),
        .by = sqlite_copy(q, 6, a, &ok).p,
    };
    return ok && s->events && s->where;
}

/* read_history lists the recorded settings, newest first. */
static int read_history(struct sqlite_store *st, const char *name, struct arena *a,
                        struct consumer_settings **ret, size_t *ret_n, struct error *err)
{
    int64_t count = 0;
    if (sqlite_value(st, err, &count, SQL(count_settings, .consumer = name)) != 0)
        return -1;
    struct consumer_settings *list = arena_zalloc(a, (size_t)count + 1, sizeof *list);
    if (!list)
        return err_nomem(err);

    size_t n = 0;
    int r = 0;
    bool ok = true;
    sqlite3_stmt *q = sqlite_rows(st, err, SQL(list_settings, .consumer = name));
    while (ok && n < (size_t)count && (r = sqlite_step(st, q, err)) == 1)
        ok = read_setting(q, a, &list[n++]);
    sqlite3_reset(q);
    if (!ok)
        return err_nomem(err);
    if (r < 0)
        return -1;
    *ret = list;
    *ret_n = n;
    return 0;
}

/* put_settings records c as the next generation, and forgets generations that are too old. */
static int put_settings(struct sqlite_store *st, const struct consumer_spec *c, int generation,
                        struct error *err)
{
    struct sql_put_setting row = {
        .consumer = c->name,
        .generation = generation,
        .events = c->events,
        .predicate = c->where,
        .ordering = store_order_names[c->order],
        .lanes = c->lanes,
        .now = sqlite_now(st),
        .by_whom = c->by,
    };
    int64_t too_old = (int64_t)generation - STORE_GENERATIONS;
    if (sqlite_run(st, err, SQL(drop_old_settings, .consumer = c->name, .generation = too_old)) !=
        0)
        return -1;
    return sqlite_run(st, err, &sql_put_setting, &row);
}

/* replace does the work of sqlite_settings_replace; the history lives in a. */
static int replace(struct sqlite_store *st, const struct consumer_spec *c, struct arena *a,
                   struct error *err)
{
    struct consumer_settings *list;
    const struct consumer_settings *old = NULL;
    size_t n;
    if (sqlite_run(st, err, SQL(put_first_setting, .consumer = c->name)) != 0)
        return -1;
    if (read_history(st, c->name, a, &list, &n, err) != 0)
        return -1;
    for (size_t i = 0; i < n; i++)
        if (same_settings(&list[i], c))
            old = &list[i];

    if (old && c->how != PUT_PURPOSE)
        return store_replaced(c->name, &list[0], old, err);
    if (old &&
        sqlite_run(st, err,
                   SQL(drop_setting, .consumer = c->name, .generation = old->generation)) != 0)
        return -1;
    return put_settings(st, c, list[0].generation + 1, err);
}

int sqlite_settings_replace(struct sqlite_store *st, const struct consumer_spec *c,
                            struct error *err)
{
    struct arena a;
    arena_init(&a, 0);
    int r = replace(st, c, &a, err);
    arena_release(&a);
    return r;
}

int sqlite_consumer_history(struct store *base, const char *name, struct arena *a,
                            struct consumer_settings **ret, size_t *ret_n, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    int64_t found = 0;
    if (sqlite_value(st, err, &found, SQL(is_registered, .consumer = name)) != 0)
        return -1;
    if (!found)
        return store_no_consumer(name, err);
    return read_history(st, name, a, ret, ret_n, err);
}
