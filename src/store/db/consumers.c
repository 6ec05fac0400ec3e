/* consumers.c: registering, changing and removing consumers, and their former settings. */
#include "base/buf.h"
#include "base/num.h"
#include "base/text.h"
#include "event/filter.h"
#include "store/db/db.h"
#include "store_sql.h"

/* Returns whether two lists of patterns are equivalent. `kept` may come from an earlier version,
 * which did not normalise patterns, or be NULL in a database whose constraints were removed. */
static bool same_patterns(const char *kept, const char *events)
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
    return same_patterns(s->events, c->events) && strcmp(s->where, c->where) == 0;
}

/* Reads a row of list_settings. */
static bool read_setting(const struct db_rows *q, struct arena *a, void *element)
{
    struct consumer_settings *s = element;
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
    struct db_list l = {.a = a, .size = sizeof **ret, .read = read_setting};
    if (db_list(st, &l, err, SQL(list_settings, .consumer = name)) != 0)
        return -1;
    *ret = l.elements;
    *ret_n = l.n;
    return 0;
}

/* Records new settings, inside a transaction; the former ones are read into a. ERR_CONFLICT: they
 * were replaced before, and c->how is not PUT_PURPOSE. */
static int replace_settings(struct store *st, const struct consumer_spec *c, struct arena *a,
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

/* Saves a consumer's filter before it is replaced, with the positions up to which it was used. */
static int keep_filter(struct store *st, const char *name, struct error *err)
{
    int64_t n = 0, moved = 0;
    if (db_value(st, err, &n, SQL(last_former, .consumer = name)) != 0)
        return -1;
    if (db_value(st, err, &moved, SQL(moved_since_former, .consumer = name, .n = n)) != 0)
        return -1;
    if (!moved)
        return 0;
    return db_run(st, err, SQL(put_former, .consumer = name, .n = n));
}

#define TRIES 5

/* ---- creating ---- */

/* Sets all lanes to one position. */
static int make_lanes(struct store *st, const char *name, int lanes, int64_t position,
                      struct error *err)
{
    int64_t head = 0;
    if (db_value(st, err, &head, SQL(head)) != 0)
        return -1;
    if (db_run(st, err, SQL(remove_lane, .consumer = name)) != 0)
        return -1;
    for (int i = 0; i < lanes; i++)
        if (db_run(st, err,
                   SQL(put_lane, .consumer = name, .lane = i, .position = position,
                       .head = head)) != 0)
            return -1;
    return 0;
}

/* Creates a consumer at its start position, without leftovers of an earlier one of the same
 * name. */
static int create(struct store *st, const struct consumer_spec *c, struct error *err)
{
    const struct sql_remove_lane name = {.consumer = c->name};
    int64_t position = 0, ignored = 0;
    if (db_value(st, err, &ignored, SQL(lock_trim)) != 0)
        return -1; /* so that trim deletes no event that the consumer may need */
    if (db_keep_numbers(st, err) != 0)
        return -1; /* otherwise the end could be before existing events */
    if (c->start == START_END && db_value(st, err, &position, SQL(head)) != 0)
        return -1;
    if (c->start == START_SEQ && c->start_seq > 0)
        position = c->start_seq - 1;
    /* If the earlier consumer was deleted by hand, the rows it left would count as this one's. */
    if (DB_RUN_ALL(
            st, err, {&sql_remove_claim, &name}, {&sql_remove_parked, &name},
            {&sql_remove_passed, &name}, {&sql_remove_setting, &name},
            {SQL(put_consumer, .consumer = c->name, .events = c->events, .predicate = c->where,
                 .ordering = store_order_names[c->order], .lanes = c->lanes, .retry = c->retry,
                 .now = db_now(st), .start = position)}) != 0)
        return -1;
    return make_lanes(st, c->name, c->lanes, position, err);
}

/* ---- changing ---- */

/* Changes order or lanes. That is safe only when no event is claimed, parked or unclaimed; then
 * every lane is at the head, or was set to start beyond it. */
static int reshape(struct store *st, const struct consumer_spec *c, struct error *err)
{
    int64_t head = 0, unfinished = 0, position = 0;
    if (db_value(st, err, &head, SQL(head)) != 0)
        return -1;
    if (db_value(st, err, &unfinished, SQL(unfinished, .consumer = c->name, .head = head)) != 0)
        return -1;
    if (unfinished)
        return err_set(err, ERR_CONFLICT,
                       "consumer \"%s\" still has undelivered events: its order and lanes can "
                       "change only when it has none; run it with the old settings and --drain "
                       "first",
                       c->name);

    const char *ordering = store_order_names[c->order];
    if (db_run(st, err,
               SQL(set_shape, .consumer = c->name, .ordering = ordering, .lanes = c->lanes)) != 0)
        return -1;
    if (db_value(st, err, &position, SQL(furthest_position, .consumer = c->name)) != 0)
        return -1;
    return make_lanes(st, c->name, c->lanes, max_i64(position, head), err);
}

/* How a registered consumer differs from the requested one. */
struct difference {
    bool filter; /* its meaning */
    bool text;   /* the text of the filter or the retry policy */
    bool shape;  /* order or lanes */
};

/* q is at a row of the statement `registered`. */
static struct difference compare(const struct db_rows *q, const struct consumer_spec *c)
{
    struct str events = db_text(q, 0), where = db_text(q, 1), retry = db_text(q, 4);
    bool same_where = str_is(where, c->where);
    bool same_order = store_order_of(db_text(q, 2)) == c->order;
    bool same_lanes = db_int(q, 3) == c->lanes;
    return (struct difference){
        .filter = !same_patterns(events.p, c->events) || !same_where,
        .text = !str_is(events, c->events) || !same_where || !str_is(retry, c->retry),
        .shape = !same_order || !same_lanes,
    };
}

/* Updates the consumer to c. The settings are recorded first, because they may be refused. */
static int update(struct store *st, const struct consumer_spec *c, struct difference d,
                  struct error *err)
{
    bool other_settings = d.filter || d.shape;
    struct arena a;
    arena_init(&a, 0);
    int r = other_settings ? replace_settings(st, c, &a, err) : 0;
    arena_release(&a);
    if (r != 0)
        return -1;
    if (d.filter && keep_filter(st, c->name, err) != 0)
        return -1;
    if (d.shape && reshape(st, c, err) != 0)
        return -1;
    if (!d.filter && !d.text)
        return 0;
    return db_run(st, err,
                  SQL(set_filter, .consumer = c->name, .events = c->events, .predicate = c->where,
                      .retry = c->retry));
}

/* ---- registering ---- */

/* Creates or updates the consumer, inside a transaction. */
static int put(struct store *st, const struct consumer_spec *c, bool *ret_created,
               struct error *err)
{
    struct db_rows q;
    int r = db_row(st, &q, err, SQL(registered, .consumer = c->name));
    if (r < 0)
        return -1;
    *ret_created = r == 0;
    if (r == 1) {
        struct difference d = compare(&q, c);
        db_done(&q);
        return update(st, c, d, err);
    }
    if (c->how != PUT_START)
        return err_class(err, ERR_NOTFOUND, CLASS_FATAL, 0,
                         "consumer \"%s\" is not registered; it may have been removed", c->name);
    return create(st, c, err);
}

int db_consumer_put(struct store *st, const struct consumer_spec *c, bool *ret_created,
                    struct error *err)
{
    const struct db_driver *d = st->ops->driver;
    struct error why;
    bool created = false;
    if (store_spec_check(c, err) != 0)
        return -1;
    if (db_give_numbers(st, err) != 0)
        return -1; /* so that the end is after all committed events */

    /* Tries again if another session registered the consumer at the same time. */
    int r = -1;
    for (int i = 0; i < TRIES && r != 0; i++) {
        if (db_begin(st, &why) == 0) {
            r = put(st, c, &created, &why);
            r = db_end(st, r, &why);
        }
        if (r != 0 && !(d->again && d->again(&why)))
            break;
    }
    if (r != 0)
        return err_copy(err, &why);
    db_news(st);
    if (ret_created)
        *ret_created = created;
    return 0;
}

/* ---- operators ---- */

int db_consumer_pause(struct store *st, const char *name, bool paused, struct error *err)
{
    int64_t n;
    if (db_change(st, &n, err, SQL(set_paused, .consumer = name, .paused = paused)) != 0)
        return -1;
    if (n == 0)
        return store_no_consumer(name, err);
    db_news(st);
    return 0;
}

int db_consumer_report(struct store *st, const char *name, const char *text, struct error *err)
{
    char kept[TEXT_KEPT_MAX];
    return db_run(
        st, err,
        SQL(set_report, .consumer = name, .report = text_kept(text, kept), .now = db_now(st)));
}

/* ---- removing ---- */

/* Refuses to remove a consumer that does not exist or, without force, one that still has state. */
static int check_removable(struct store *st, const char *name, bool force, struct error *err)
{
    int64_t found = 0, dead = 0, parked = 0, live = 0, now = db_now(st);
    if (db_value(st, err, &found, SQL(lock_consumer, .consumer = name)) != 0)
        return -1;
    if (!found)
        return store_no_consumer(name, err);
    if (force)
        return 0;

    if (DB_VALUES(st, err, {&dead, SQL(count_letters, .consumer = name)},
                  {&parked, SQL(count_parked, .consumer = name)},
                  {&live, SQL(count_live_claims, .consumer = name, .now = now)}) != 0)
        return -1;
    return store_removable(name, dead, parked, live, err);
}

int db_consumer_remove(struct store *st, const char *name, bool force, struct error *err)
{
    /* Each statement takes only the name, so the arguments of one fit all. */
    const struct sql_remove_lane of = {.consumer = name};
    if (db_begin(st, err) != 0)
        return -1;
    int r = check_removable(st, name, force, err);
    if (r == 0)
        r = DB_RUN_ALL(
            st, err, {&sql_keep_epoch, &of}, {&sql_remove_lane, &of}, {&sql_remove_claim, &of},
            {&sql_remove_parked, &of}, {&sql_remove_dead, &of}, {&sql_remove_ended, &of},
            {&sql_remove_former_filter, &of}, {&sql_remove_receipt, &of}, {&sql_remove_mark, &of},
            {&sql_remove_passed, &of}, {&sql_remove_setting, &of}, {&sql_remove_consumer, &of});
    return db_end(st, r, err);
}
