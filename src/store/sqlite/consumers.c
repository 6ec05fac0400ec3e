/* consumers.c: registering, changing and removing consumers. */
#include <stdlib.h>

#include "base/text.h"
#include "sqlite_sql.h"
#include "store/sqlite/sqlite.h"
#include "store/sqlite/window.h"

static int head_of(struct sqlite_store *st, int64_t *ret, struct error *err)
{
    *ret = 0;
    return sqlite_value(st, err, ret, SQL(head));
}

/* remove_each runs statements that forget rows of a consumer. Each takes its name and nothing else,
 * so the arguments of one fit them all. */
static int remove_each(struct sqlite_store *st, const struct sql *const *each, const char *name,
                       struct error *err)
{
    const struct sql_remove_lanes args = {.consumer = name};
    for (size_t i = 0; each[i]; i++)
        if (sqlite_run(st, err, each[i], &args) != 0)
            return -1;
    return 0;
}

/* ---- creating ---- */

/* make_lanes sets all lanes to one position. */
static int make_lanes(struct sqlite_store *st, const char *name, int lanes, int64_t position,
                      struct error *err)
{
    int64_t head;
    if (head_of(st, &head, err) != 0)
        return -1;
    if (sqlite_run(st, err, SQL(remove_lanes, .consumer = name)) != 0)
        return -1;
    for (int i = 0; i < lanes; i++)
        if (sqlite_run(st, err,
                       SQL(put_lane, .consumer = name, .lane = i, .position = position,
                           .head = head)) != 0)
            return -1;
    return 0;
}

/* start_position gives the position before the first event that a new consumer gets. */
static int start_position(struct sqlite_store *st, const struct consumer_spec *c, int64_t *ret,
                          struct error *err)
{
    *ret = 0;
    switch (c->start) {
    case START_BEGINNING: return 0;
    case START_END: return head_of(st, ret, err);
    case START_SEQ: break;
    }
    if (c->start_seq > 0)
        *ret = c->start_seq - 1;
    return 0;
}

/* create makes a consumer at its start, with nothing that an earlier one of its name left. */
static int create(struct sqlite_store *st, const struct consumer_spec *c, struct error *err)
{
    /* if somebody deleted the earlier consumer by hand, these would count as the new one's */
    static const struct sql *const left_behind[] = {&sql_remove_claims, &sql_remove_parked,
                                                    &sql_remove_passed, &sql_remove_settings, NULL};
    int64_t position;
    if (sqlite_numbers_keep(st, err) != 0)
        return -1; /* else the end could be before events that exist */
    if (start_position(st, c, &position, err) != 0)
        return -1;
    if (remove_each(st, left_behind, c->name, err) != 0)
        return -1;

    struct sql_put_consumer row = {
        .consumer = c->name,
        .events = c->events,
        .predicate = c->where,
        .ordering = store_order_names[c->order],
        .lanes = c->lanes,
        .retry = c->retry,
        .now = sqlite_now(st),
        .start = position,
    };
    if (sqlite_run(st, err, &sql_put_consumer, &row) != 0)
        return -1;
    return make_lanes(st, c->name, c->lanes, position, err);
}

/* ---- changing ---- */

/* reshape changes order or lanes. That is safe only while nothing is on its way; then every lane is
 * at the head, or was told to start beyond it. */
static int reshape(struct sqlite_store *st, const struct consumer_spec *c, struct error *err)
{
    int64_t head, unfinished = 0, position = 0;
    if (head_of(st, &head, err) != 0)
        return -1;
    if (sqlite_value(st, err, &unfinished, SQL(unfinished, .consumer = c->name, .head = head)) != 0)
        return -1;
    if (unfinished)
        return err_set(err, ERR_CONFLICT,
                       "consumer \"%s\" still has events on their way: its order and lanes can "
                       "change only once it is through; run it with the old settings and --drain "
                       "first",
                       c->name);

    const char *ordering = store_order_names[c->order];
    if (sqlite_run(st, err,
                   SQL(set_shape, .consumer = c->name, .ordering = ordering, .lanes = c->lanes)) !=
        0)
        return -1;
    if (sqlite_value(st, err, &position, SQL(furthest_position, .consumer = c->name)) != 0)
        return -1;
    if (position < head)
        position = head;
    return make_lanes(st, c->name, c->lanes, position, err);
}

/* What differs between a consumer as it is registered and as it should be. */
struct difference {
    bool filter; /* its meaning */
    bool text;   /* how the filter or the retry policy is written */
    bool shape;  /* order or lanes */
};

/* compare takes the row of `registered`. */
static struct difference compare(sqlite3_stmt *q, const struct consumer_spec *c)
{
    struct str events = sqlite_text(q, 0), where = sqlite_text(q, 1), retry = sqlite_text(q, 4);
    bool same_where = str_is(where, c->where);
    bool same_order = store_order_of(sqlite_text(q, 2)) == c->order;
    bool same_lanes = sqlite3_column_int(q, 3) == c->lanes;
    return (struct difference){
        .filter = !sqlite_settings_same_events(events.p, c->events) || !same_where,
        .text = !str_is(events, c->events) || !same_where || !str_is(retry, c->retry),
        .shape = !same_order || !same_lanes,
    };
}

/* update makes the consumer what c says. The settings are recorded before anything changes, since
 * that refuses some. */
static int update(struct sqlite_store *st, const struct consumer_spec *c, struct difference d,
                  struct error *err)
{
    bool other_settings = d.filter || d.shape;
    if (other_settings && sqlite_settings_replace(st, c, err) != 0)
        return -1;
    if (d.filter && sqlite_former_keep(st, c->name, err) != 0)
        return -1;
    if (d.shape && reshape(st, c, err) != 0)
        return -1;
    if (!d.filter && !d.text)
        return 0;
    return sqlite_run(st, err,
                      SQL(set_filter, .consumer = c->name, .events = c->events,
                          .predicate = c->where, .retry = c->retry));
}

/* ---- registering ---- */

static void member_free(struct sqlite_member *m)
{
    if (!m)
        return;
    free((char *)m->spec.name);
    free((char *)m->spec.events);
    free((char *)m->spec.where);
    free((char *)m->spec.retry);
    free(m);
}

static struct sqlite_member *member_new(const struct consumer_spec *c)
{
    struct sqlite_member *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->spec = *c;
    m->spec.by = NULL;
    m->spec.name = strdup(c->name);
    m->spec.events = strdup(c->events);
    m->spec.where = strdup(c->where);
    m->spec.retry = strdup(c->retry);
    bool whole = m->spec.name && m->spec.events && m->spec.where && m->spec.retry;
    if (whole)
        return m;
    member_free(m);
    return NULL;
}

struct sqlite_member *sqlite_member(const struct sqlite_store *st, const char *name)
{
    struct sqlite_member *m = st->members;
    while (m && strcmp(m->spec.name, name) != 0)
        m = m->next;
    return m;
}

void sqlite_members_moved(struct sqlite_store *st)
{
    for (struct sqlite_member *m = st->members; m; m = m->next)
        m->epoch_seen = 0;
    sqlite_window_forget(st); /* it was read from the other file */
}

void sqlite_members_forget(struct sqlite_store *st)
{
    while (st->members) {
        struct sqlite_member *m = st->members;
        st->members = m->next;
        member_free(m);
    }
}

static void member_drop(struct sqlite_store *st, const char *name)
{
    struct sqlite_member **at = &st->members;
    while (*at && strcmp((*at)->spec.name, name) != 0)
        at = &(*at)->next;
    struct sqlite_member *m = *at;
    if (!m)
        return;
    *at = m->next;
    member_free(m);
}

void sqlite_consumer_forget(struct store *base, const char *name)
{
    member_drop(sqlite_of(base), name);
}

/* member_keep remembers what was registered, because the next file at this path may not know the
 * consumer. Without memory nothing is remembered, and the consumer is not registered again. */
static void member_keep(struct sqlite_store *st, const struct consumer_spec *c)
{
    if (st->home.moving)
        return; /* it is one that we remember */
    struct sqlite_member *m = member_new(c);
    member_drop(st, c->name);
    if (!m)
        return;
    m->next = st->members;
    st->members = m;
}

/* put creates or updates the consumer, inside a transaction. */
static int put(struct sqlite_store *st, const struct consumer_spec *c, bool *ret_created,
               struct error *err)
{
    sqlite3_stmt *q;
    int r = sqlite_row(st, &q, err, SQL(registered, .consumer = c->name));
    if (r < 0)
        return -1;
    *ret_created = r == 0;
    if (r == 1) {
        struct difference d = compare(q, c);
        sqlite3_reset(q);
        return update(st, c, d, err);
    }
    if (c->how != PUT_START)
        return err_fate(err, ERR_NOTFOUND, FATE_FATAL, 0,
                        "consumer \"%s\" is not registered; it may have been removed", c->name);
    return create(st, c, err);
}

int sqlite_consumer_put(struct store *base, const struct consumer_spec *c, bool *ret_created,
                        struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    bool created;
    if (store_name_check(c->name, err) != 0)
        return -1;
    if (c->lanes < 1 || c->lanes > STORE_LANES_MAX)
        return err_set(err, ERR_CONFIG, "lanes must be 1 to %d", STORE_LANES_MAX);

    if (sqlite_begin(base, err) != 0)
        return -1;
    if (put(st, c, &created, err) != 0) {
        sqlite_rollback(base);
        return -1;
    }
    if (sqlite_commit(base, err) != 0)
        return -1;

    member_keep(st, c);
    if (ret_created)
        *ret_created = created;
    return 0;
}

/* ---- operators ---- */

int sqlite_consumer_pause(struct store *base, const char *name, bool paused, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    if (sqlite_run(st, err, SQL(set_paused, .consumer = name, .paused = paused)) != 0)
        return -1;
    if (sqlite3_changes(st->db) == 0)
        return store_no_consumer(name, err);
    return 0;
}

int sqlite_consumer_report(struct store *base, const char *name, const char *text,
                           struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    char kept[TEXT_KEPT_MAX];
    return sqlite_run(
        st, err,
        SQL(set_report, .consumer = name, .report = text_kept(text, kept), .now = sqlite_now(st)));
}

/* ---- removing ---- */

/* check_removable refuses to remove a consumer that is missing or, without force, one that has
 * something to lose. */
static int check_removable(struct sqlite_store *st, const char *name, bool force, struct error *err)
{
    int64_t found = 0, dead = 0, parked = 0, live = 0, now = sqlite_now(st);
    if (sqlite_value(st, err, &found, SQL(is_registered, .consumer = name)) != 0)
        return -1;
    if (!found)
        return store_no_consumer(name, err);
    if (force)
        return 0;

    const struct sqlite_number wanted[] = {
        {&dead, SQL(count_letters, .consumer = name)},
        {&parked, SQL(count_parked, .consumer = name)},
        {&live, SQL(count_live_claims, .consumer = name, .now = now)},
    };
    if (sqlite_values(st, err, wanted, sizeof wanted / sizeof *wanted) != 0)
        return -1;
    return store_removable(name, dead, parked, live, err);
}

/* keep_epoch remembers where the consumer's epochs end, for the next one of its name. */
static int keep_epoch(struct sqlite_store *st, const char *name, struct error *err)
{
    return sqlite_run(st, err, SQL(keep_epoch, .consumer = name));
}

static int remove_rows(struct sqlite_store *st, const char *name, struct error *err)
{
    static const struct sql *const all[] = {
        &sql_remove_lanes,  &sql_remove_claims,         &sql_remove_parked,   &sql_remove_letters,
        &sql_remove_ended,  &sql_remove_former_filters, &sql_remove_receipts, &sql_remove_marks,
        &sql_remove_passed, &sql_remove_settings,       &sql_remove_consumer, NULL};
    if (keep_epoch(st, name, err) != 0)
        return -1;
    return remove_each(st, all, name, err);
}

int sqlite_consumer_remove(struct store *base, const char *name, bool force, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    if (sqlite_begin(base, err) != 0)
        return -1;
    int r = check_removable(st, name, force, err);
    if (r == 0)
        r = remove_rows(st, name, err);
    if (r == 0)
        return sqlite_commit(base, err);
    sqlite_rollback(base);
    return -1;
}
