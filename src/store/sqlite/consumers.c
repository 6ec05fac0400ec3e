/* consumers.c: registering consumers and telling how they are. */
#include <stdio.h>
#include <stdlib.h>

#include "base/text.h"
#include "event/normal.h"
#include "store/sqlite/sqlite.h"

static int head_of(struct sqlite_store *st, int64_t *ret, struct error *err)
{
    *ret = 0;
    return sqlite_number(st, err, ret,
                         "SELECT seq FROM sqlite_sequence WHERE name = 'outbox_event'", "");
}

/* make_lanes: see numbers.c for high. */
static int make_lanes(struct sqlite_store *st, const char *name, int lanes, int64_t position,
                      struct error *err)
{
    int64_t head;
    if (head_of(st, &head, err) != 0)
        return -1;
    if (sqlite_exec(st, err, "DELETE FROM outbox_lane WHERE consumer = ?", "s", name) != 0)
        return -1;
    for (int i = 0; i < lanes; i++)
        if (sqlite_exec(st, err,
                        "INSERT INTO outbox_lane (consumer, lane, position, high, high_id) SELECT "
                        "?1, ?2, ?3, min(?3, ?4), "
                        "(SELECT id FROM outbox_event WHERE seq = min(?3, ?4))",
                        "siii", name, (int64_t)i, position, head) != 0)
            return -1;
    return 0;
}

/* create: epochs go on where those of a consumer that was removed ended, or a claim of that one
 * would be taken for one of this by a worker that lived through both. */
static int create(struct sqlite_store *st, const struct consumer_spec *c, struct error *err)
{
    int64_t position = 0;
    if (sqlite_numbers_keep(st, err) != 0)
        return -1; /* or its end would be before what is there */
    if (c->start == START_END && head_of(st, &position, err) != 0)
        return -1;
    if (c->start == START_SEQ)
        position = c->start_seq > 0 ? c->start_seq - 1 : 0;
    /* What another of this name left behind that somebody deleted by hand: it would be this
     * one's. */
    if (sqlite_exec(st, err, "DELETE FROM outbox_claim WHERE consumer = ?", "s", c->name) != 0 ||
        sqlite_exec(st, err, "DELETE FROM outbox_parked WHERE consumer = ?", "s", c->name) != 0 ||
        sqlite_exec(st, err, "DELETE FROM outbox_passed WHERE consumer = ?", "s", c->name) != 0 ||
        sqlite_exec(st, err, "DELETE FROM outbox_setting WHERE consumer = ?", "s", c->name) != 0)
        return -1;
    if (sqlite_exec(st, err,
                    "INSERT INTO outbox_consumer (name, events, predicate, ordering, lanes, retry, "
                    "created_at, start, epoch) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, coalesce((SELECT CAST(value AS INTEGER) FROM "
                    "outbox_meta WHERE name = "
                    "'epoch'), 0))",
                    "ssssisii", c->name, c->events, c->where, store_order_names[c->order],
                    (int64_t)c->lanes, c->retry, sqlite_now(st), position) != 0)
        return -1;
    return make_lanes(st, c->name, c->lanes, position, err);
}

/* reshape changes order or lanes, which is only safe when nothing is on its way: then every lane is
 * at the head. */
static int reshape(struct sqlite_store *st, const struct consumer_spec *c, struct error *err)
{
    int64_t head, left = 0, position = 0;
    if (head_of(st, &head, err) != 0)
        return -1;
    if (sqlite_number(st, err, &left,
                      "SELECT EXISTS (SELECT 1 FROM outbox_claim WHERE consumer = ?1) OR EXISTS "
                      "(SELECT 1 FROM "
                      "outbox_parked WHERE consumer = ?1) OR EXISTS (SELECT 1 FROM outbox_lane "
                      "WHERE consumer = ?1 AND "
                      "position < ?2) OR (SELECT count(*) FROM outbox_lane WHERE consumer = ?1) < "
                      "(SELECT lanes FROM "
                      "outbox_consumer WHERE name = ?1)",
                      "si", c->name, head) != 0)
        return -1;
    if (left)
        return err_set(err, ERR_CONFLICT,
                       "consumer \"%s\" still has events on their way: its order and lanes can "
                       "change only once it is "
                       "through; run it with the old settings and --drain first",
                       c->name);
    if (sqlite_exec(st, err, "UPDATE outbox_consumer SET ordering = ?, lanes = ? WHERE name = ?",
                    "sis", store_order_names[c->order], (int64_t)c->lanes, c->name) != 0)
        return -1;
    /* One that was told to start further ahead than the head stays there. */
    if (sqlite_number(st, err, &position,
                      "SELECT max(position) FROM outbox_lane WHERE consumer = ?", "s",
                      c->name) != 0)
        return -1;
    return make_lanes(st, c->name, c->lanes, position > head ? position : head, err);
}

static int read_history(struct sqlite_store *st, const char *name, struct arena *a,
                        struct consumer_settings **ret, size_t *ret_n, struct error *err);

/* same_events: `kept` may have been written by an earlier version, which did not bring patterns
 * into their normal form. NULL, in a file whose constraints somebody took out, is the same as
 * nothing. */
static bool same_events(const char *kept, const char *events)
{
    struct buf b;
    if (!kept)
        return false;
    if (strcmp(kept, events) == 0)
        return true;
    buf_init(&b, 2 * strlen(kept) + 1);
    normal_events(kept, &b);
    const char *text = buf_cstr(&b);
    bool same = text && strcmp(text, events) == 0;
    buf_release(&b);
    return same;
}

static bool same_settings(const struct consumer_settings *s, const struct consumer_spec *c)
{
    return same_events(s->events, c->events) && strcmp(s->where, c->where) == 0 &&
           s->order == c->order && s->lanes == c->lanes;
}

/* note_first: the settings a consumer was made with are remembered from the time they are
 * replaced. */
static int note_first(struct sqlite_store *st, const char *name, struct error *err)
{
    return sqlite_exec(st, err,
                       "INSERT INTO outbox_setting (consumer, generation, events, predicate, "
                       "ordering, lanes, since) "
                       "SELECT name, 1, events, predicate, ordering, lanes, created_at FROM "
                       "outbox_consumer WHERE name = "
                       "?1 AND NOT EXISTS (SELECT 1 FROM outbox_setting WHERE consumer = ?1)",
                       "s", name);
}

static int note_settings(struct sqlite_store *st, const struct consumer_spec *c, int generation,
                         struct error *err)
{
    if (sqlite_exec(st, err, "DELETE FROM outbox_setting WHERE consumer = ? AND generation <= ?",
                    "si", c->name, (int64_t)generation - STORE_GENERATIONS) != 0)
        return -1;
    return sqlite_exec(st, err,
                       "INSERT INTO outbox_setting (consumer, generation, events, predicate, "
                       "ordering, lanes, since, "
                       "by_whom) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                       "sisssiis", c->name, (int64_t)generation, c->events, c->where,
                       store_order_names[c->order], (int64_t)c->lanes, sqlite_now(st), c->by);
}

/* replace notes other settings. What was replaced before comes back only on purpose: a worker that
 * was started with an old file would otherwise take the newer filter away, and what that lets
 * through be passed over for good. */
static int replace(struct sqlite_store *st, const struct consumer_spec *c, struct arena *a,
                   struct error *err)
{
    struct consumer_settings *list;
    const struct consumer_settings *old = NULL;
    size_t n;
    if (note_first(st, c->name, err) != 0 || read_history(st, c->name, a, &list, &n, err) != 0)
        return -1;
    for (size_t i = 0; i < n; i++)
        if (same_settings(&list[i], c))
            old = &list[i];
    if (old && c->how != PUT_PURPOSE)
        return store_replaced(c->name, &list[0], old, err);
    if (old &&
        sqlite_exec(st, err, "DELETE FROM outbox_setting WHERE consumer = ? AND generation = ?",
                    "si", c->name, (int64_t)old->generation) != 0)
        return -1;
    return note_settings(st, c, list[0].generation + 1, err);
}

static int update(struct sqlite_store *st, const struct consumer_spec *c, sqlite3_stmt *q,
                  struct error *err)
{
    bool filter = same_events(sqlite_text(q, 0).p, c->events) &&
                  str_is(sqlite_text(q, 1), c->where);
    bool as_written = str_is(sqlite_text(q, 0), c->events);
    bool retry = str_is(sqlite_text(q, 4), c->retry);
    bool shape = store_order_of(sqlite_text(q, 2)) == c->order &&
                 sqlite3_column_int(q, 3) == c->lanes;
    sqlite3_reset(q);
    if (!filter || !shape) {
        struct arena a;
        arena_init(&a, 0);
        int r = replace(st, c, &a, err);
        arena_release(&a);
        if (r != 0)
            return -1;
    }

    if (!filter && sqlite_former_keep(st, c->name, err) != 0)
        return -1;
    if (!shape && reshape(st, c, err) != 0)
        return -1;
    if (filter && as_written && retry)
        return 0;
    return sqlite_exec(
        st, err, "UPDATE outbox_consumer SET events = ?, predicate = ?, retry = ? WHERE name = ?",
        "ssss", c->events, c->where, c->retry, c->name);
}

void sqlite_spec_forget(struct sqlite_store *st)
{
    free((char *)st->spec.name);
    free((char *)st->spec.events);
    free((char *)st->spec.where);
    free((char *)st->spec.retry);
    st->spec = (struct consumer_spec){0};
}

/* spec_keep: the next file at this path may know nothing of the consumer. For want of memory it is
 * not registered again. */
static void spec_keep(struct sqlite_store *st, const struct consumer_spec *c)
{
    struct consumer_spec kept = *c;
    if (st->home.moving)
        return; /* it is the one we have */
    kept.by = NULL;
    kept.name = strdup(c->name);
    kept.events = strdup(c->events);
    kept.where = strdup(c->where);
    kept.retry = strdup(c->retry);
    sqlite_spec_forget(st);
    st->spec = kept;
    st->epoch_seen = 0;
    if (!kept.name || !kept.events || !kept.where || !kept.retry)
        sqlite_spec_forget(st);
}

int sqlite_consumer_put(struct store *base, const struct consumer_spec *c, bool *ret_created,
                        struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    if (store_name_check(c->name, err) != 0)
        return -1;
    if (c->lanes < 1 || c->lanes > STORE_LANES_MAX)
        return err_set(err, ERR_CONFIG, "lanes must be 1 to %d", STORE_LANES_MAX);
    if (sqlite_begin(base, err) != 0)
        return -1;
    sqlite3_stmt *q = sqlite_query(
        st, err,
        "SELECT events, predicate, ordering, lanes, retry FROM outbox_consumer WHERE name = ?", "s",
        c->name);
    int r = q ? sqlite_step(st, q, err) : -1;
    bool created = r == 0;
    if (r == 0 && c->how != PUT_START)
        r = err_fate(err, ERR_NOTFOUND, FATE_FATAL, 0,
                     "consumer \"%s\" is not registered (any more)", c->name);
    else if (r == 0)
        r = create(st, c, err);
    else if (r == 1)
        r = update(st, c, q, err);
    if (r != 0) {
        sqlite_rollback(base);
        return -1;
    }
    if (sqlite_commit(base, err) != 0)
        return -1;
    spec_keep(st, c);
    if (ret_created)
        *ret_created = created;
    return 0;
}

int sqlite_consumer_pause(struct store *base, const char *name, bool paused, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    /* Why it was paused is over with the pause. */
    if (sqlite_exec(st, err,
                    "UPDATE outbox_consumer SET paused = ?1, report = CASE WHEN ?1 OR report NOT "
                    "LIKE 'paused%' THEN report "
                    "END WHERE name = ?2",
                    "is", (int64_t)paused, name) != 0)
        return -1;
    return sqlite3_changes(st->db) ? 0 : store_no_consumer(name, err);
}

/* consumer_report: a sink that is down for another reason than before is still down since it was
 * first. */
int sqlite_consumer_report(struct store *base, const char *name, const char *text,
                           struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    char kept[TEXT_KEPT_MAX];
    return sqlite_exec(
        st, err,
        "UPDATE outbox_consumer SET report = ?1, report_at = CASE WHEN report LIKE 'sink is down%' "
        "AND ?1 LIKE "
        "'sink is down%' THEN report_at ELSE ?2 END WHERE name = ?3 AND report IS NOT ?1",
        "sis", text_kept(text, kept), sqlite_now(st), name);
}

/* keep_epoch: see create. */
static int keep_epoch(struct sqlite_store *st, const char *name, struct error *err)
{
    return sqlite_exec(st, err,
                       "INSERT INTO outbox_meta (name, value) SELECT 'epoch', epoch FROM "
                       "outbox_consumer WHERE name = ? "
                       "ON CONFLICT (name) DO UPDATE SET value = max(CAST(value AS INTEGER), "
                       "CAST(excluded.value AS "
                       "INTEGER))",
                       "s", name);
}

static int remove_rows(struct sqlite_store *st, const char *name, struct error *err)
{
    return keep_epoch(st, name, err) ||
                   sqlite_exec(st, err, "DELETE FROM outbox_lane WHERE consumer = ?", "s", name) ||
                   sqlite_exec(st, err, "DELETE FROM outbox_claim WHERE consumer = ?", "s", name) ||
                   sqlite_exec(st, err, "DELETE FROM outbox_parked WHERE consumer = ?", "s",
                               name) ||
                   sqlite_exec(st, err, "DELETE FROM outbox_dead WHERE consumer = ?", "s", name) ||
                   sqlite_exec(st, err, "DELETE FROM outbox_ended WHERE consumer = ?", "s", name) ||
                   sqlite_exec(st, err, "DELETE FROM outbox_former_filter WHERE consumer = ?", "s",
                               name) ||
                   sqlite_exec(st, err, "DELETE FROM outbox_receipt WHERE consumer = ?", "s",
                               name) ||
                   sqlite_exec(st, err, "DELETE FROM outbox_mark WHERE consumer = ?", "s", name) ||
                   sqlite_exec(st, err, "DELETE FROM outbox_passed WHERE consumer = ?", "s",
                               name) ||
                   sqlite_exec(st, err, "DELETE FROM outbox_setting WHERE consumer = ?", "s",
                               name) ||
                   sqlite_exec(st, err, "DELETE FROM outbox_consumer WHERE name = ?", "s", name)
               ? -1
               : 0;
}

static int check_removable(struct sqlite_store *st, const char *name, bool force, struct error *err)
{
    int64_t found = 0, dead = 0, parked = 0, live = 0;
    if (sqlite_number(st, err, &found, "SELECT 1 FROM outbox_consumer WHERE name = ?", "s", name) !=
            0 ||
        sqlite_number(st, err, &dead, "SELECT count(*) FROM outbox_dead WHERE consumer = ?", "s",
                      name) != 0 ||
        sqlite_number(st, err, &parked, "SELECT count(*) FROM outbox_parked WHERE consumer = ?",
                      "s", name) != 0 ||
        sqlite_number(st, err, &live,
                      "SELECT count(*) FROM outbox_claim WHERE consumer = ? AND locked_until > ?",
                      "si", name, sqlite_now(st)) != 0)
        return -1;
    if (!found)
        return store_no_consumer(name, err);
    return force ? 0 : store_removable(name, dead, parked, live, err);
}

int sqlite_consumer_remove(struct store *base, const char *name, bool force, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    if (sqlite_begin(base, err) != 0)
        return -1;
    if (check_removable(st, name, force, err) == 0 && remove_rows(st, name, err) == 0)
        return sqlite_commit(base, err);
    sqlite_rollback(base);
    return -1;
}

/* ---- listing ---- */

static const char *copy(sqlite3_stmt *q, int col, struct arena *a)
{
    bool ok = true;
    return sqlite_copy(q, col, a, &ok).p;
}

static int read_specs(struct sqlite_store *st, const char *name, struct arena *a,
                      struct consumer_info **ret, size_t *n, struct error *err)
{
    int64_t count = 0;
    if (sqlite_number(st, err, &count, "SELECT count(*) FROM outbox_consumer", "") != 0)
        return -1;
    *n = 0;
    *ret = arena_zalloc(a, (size_t)count + 1, sizeof **ret);
    if (!*ret)
        return err_nomem(err);
    sqlite3_stmt *q = sqlite_query(
        st, err,
        "SELECT name, events, predicate, ordering, lanes, retry, paused, created_at, "
        "delivered, report, report_at FROM outbox_consumer WHERE ?1 IS NULL OR name = ?1 "
        "ORDER BY name",
        "s", name);
    if (!q)
        return -1;
    int r = 0;
    while (*n < (size_t)count && (r = sqlite_step(st, q, err)) == 1) {
        struct consumer_info *c = &(*ret)[(*n)++];
        c->spec = (struct consumer_spec){.name = copy(q, 0, a),
                                         .events = copy(q, 1, a),
                                         .where = copy(q, 2, a),
                                         .order = store_order_of(sqlite_text(q, 3)),
                                         .lanes = sqlite3_column_int(q, 4),
                                         .retry = copy(q, 5, a)};
        c->paused = sqlite3_column_int(q, 6) != 0;
        c->created_at = sqlite3_column_int64(q, 7);
        c->delivered = sqlite3_column_int64(q, 8);
        c->report = copy(q, 9, a);
        c->report_at = sqlite3_column_int64(q, 10);
        c->down = store_says_down(c->report);
        c->last_error = c->report;
        c->last_error_at = c->report_at;
        if (c->spec.name && c->spec.events && c->spec.where && c->spec.retry)
            continue;
        r = err_nomem(err);
        break;
    }
    sqlite3_reset(q);
    return r < 0 ? -1 : 0;
}

static int read_history(struct sqlite_store *st, const char *name, struct arena *a,
                        struct consumer_settings **ret, size_t *ret_n, struct error *err)
{
    int64_t count = 0;
    size_t n = 0;
    int r = 0;
    if (sqlite_number(st, err, &count, "SELECT count(*) FROM outbox_setting WHERE consumer = ?",
                      "s", name) != 0)
        return -1;
    struct consumer_settings *list = arena_zalloc(a, (size_t)count + 1, sizeof *list);
    if (!list)
        return err_nomem(err);
    sqlite3_stmt *q = sqlite_query(
        st, err,
        "SELECT generation, events, predicate, ordering, lanes, since, by_whom FROM "
        "outbox_setting WHERE consumer = ? ORDER BY generation DESC",
        "s", name);
    if (!q)
        return -1;
    while (n < (size_t)count && (r = sqlite_step(st, q, err)) == 1) {
        struct consumer_settings *s = &list[n++];
        *s = (struct consumer_settings){.generation = sqlite3_column_int(q, 0),
                                        .events = copy(q, 1, a),
                                        .where = copy(q, 2, a),
                                        .order = store_order_of(sqlite_text(q, 3)),
                                        .lanes = sqlite3_column_int(q, 4),
                                        .since = sqlite3_column_int64(q, 5),
                                        .by = copy(q, 6, a)};
        if (s->events && s->where)
            continue;
        r = err_nomem(err);
        break;
    }
    sqlite3_reset(q);
    if (r < 0)
        return -1;
    *ret = list;
    *ret_n = n;
    return 0;
}

int sqlite_consumer_history(struct store *base, const char *name, struct arena *a,
                            struct consumer_settings **ret, size_t *ret_n, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    int64_t found = 0;
    if (sqlite_number(st, err, &found, "SELECT 1 FROM outbox_consumer WHERE name = ?", "s", name) !=
        0)
        return -1;
    if (!found)
        return store_no_consumer(name, err);
    return read_history(st, name, a, ret, ret_n, err);
}

/* read_errors: the failure of the parked event that failed last, unless the relay reported
 * something later. */
static int read_errors(struct sqlite_store *st, struct consumer_info *c, struct arena *a,
                       struct error *err)
{
    sqlite3_stmt *q = sqlite_query(
        st, err,
        "SELECT error, failed_at FROM outbox_parked WHERE consumer = ? AND failed_at IS NOT "
        "NULL ORDER BY failed_at DESC LIMIT 1",
        "s", c->spec.name);
    int r = q ? sqlite_step(st, q, err) : -1;
    if (r == 1) {
        bool later = !c->last_error || sqlite3_column_int64(q, 1) > c->last_error_at;
        if (later && !c->down) {
            c->last_error = copy(q, 0, a);
            c->last_error_at = sqlite3_column_int64(q, 1);
        }
        sqlite3_reset(q);
    }
    return r < 0 ? -1 : 0;
}

static int read_floor(struct sqlite_store *st, struct consumer_info *c, struct error *err)
{
    int64_t claim = INT64_MAX, parked = INT64_MAX;
    if (sqlite_number(st, err, &claim,
                      "SELECT min(from_seq) FROM outbox_claim WHERE consumer = ? AND parked = 0",
                      "s", c->spec.name) != 0 ||
        sqlite_number(st, err, &parked,
                      "SELECT min(seq) - 1 FROM outbox_parked p WHERE consumer = ?1 AND NOT EXISTS "
                      "(SELECT 1 FROM "
                      "outbox_dead d WHERE d.consumer = ?1 AND d.seq = p.seq)",
                      "s", c->spec.name) != 0)
        return -1;
    c->floor = c->position;
    c->floor_pin = "position";
    if (claim < c->floor)
        c->floor = claim, c->floor_pin = "claim";
    if (parked < c->floor)
        c->floor = parked, c->floor_pin = "parked";
    return 0;
}

static int read_counts(struct sqlite_store *st, struct consumer_info *c, int64_t now,
                       struct error *err)
{
    const char *name = c->spec.name;
    return sqlite_number(
               st, err, &c->position,
               "SELECT CASE WHEN count(*) < ?2 THEN 0 ELSE min(position) END FROM outbox_lane "
               "WHERE consumer = ?1",
               "si", name,
               (int64_t)c->spec.lanes) || /* where it has lost its place, it may need everything */
                   sqlite_number(
                       st, err, &c->claims,
                       "SELECT count(*) FROM outbox_claim WHERE consumer = ? AND locked_until > ?",
                       "si", name, now) ||
                   sqlite_number(st, err, &c->parked,
                                 "SELECT count(*) FROM outbox_parked p WHERE p.consumer = ?1 AND "
                                 "NOT EXISTS (SELECT 1 FROM "
                                 "outbox_claim k WHERE k.consumer = ?1 AND k.epoch = p.claim AND "
                                 "k.locked_until > ?2)",
                                 "si", name, now) ||
                   sqlite_number(
                       st, err, &c->dead,
                       "SELECT count(*) FROM outbox_dead WHERE consumer = ? AND retrying = 0", "s",
                       name) ||
                   sqlite_number(st, err, &c->next_due,
                                 "SELECT min(due_at) FROM outbox_parked WHERE consumer = ? AND "
                                 "claim IS NULL AND due_at IS "
                                 "NOT NULL",
                                 "s", name)
               ? -1
               : 0;
}

/* read_state; what waits and what is in flight takes looking at events, and is left out unless
 * `counted`. */
static int read_state(struct sqlite_store *st, struct consumer_info *c, bool counted,
                      struct arena *a, struct error *err)
{
    const char *name = c->spec.name;
    int64_t now = sqlite_now(st);
    struct backlog b = {.spec = &c->spec,
                        .max = *c->spec.where ? STORE_PROBE_EVENTS : STORE_COUNT_EVENTS};
    if (read_counts(st, c, now, err) != 0)
        return -1;
    if (!counted)
        return read_floor(st, c, err);
    if (sqlite_backlog(st, &b, err) != 0)
        return -1;
    c->behind = b.behind;
    c->behind_exact = b.scanned < b.max;
    c->oldest_at = b.oldest_at;
    c->inflight = b.inflight;
    c->inflight_exact = true;
    sqlite3_stmt *q = sqlite_query(st, err,
                                   "SELECT owner FROM outbox_claim WHERE consumer = ? AND "
                                   "locked_until > ? ORDER BY epoch DESC LIMIT 1",
                                   "si", name, now);
    int r = q ? sqlite_step(st, q, err) : -1;
    if (r < 0)
        return -1;
    if (r == 1) {
        c->owner = copy(q, 0, a);
        sqlite3_reset(q);
    }
    return read_errors(st, c, a, err) || read_floor(st, c, err) ? -1 : 0;
}

static int list_consumers(struct sqlite_store *st, const char *name, bool counted, struct arena *a,
                          struct consumer_info **ret, size_t *ret_n, struct error *err)
{
    struct consumer_info *list;
    size_t n;
    bool own = sqlite3_get_autocommit(st->db) != 0;
    /* one snapshot for the whole picture */
    if (own && sqlite_exec(st, err, "BEGIN", "") != 0)
        return -1;
    int r = read_specs(st, name, a, &list, &n, err);
    for (size_t i = 0; r == 0 && i < n; i++)
        r = read_state(st, &list[i], counted, a, err);
    if (own)
        sqlite_exec(st, NULL, "ROLLBACK", "");
    if (r == 0 && name && n == 0)
        r = store_no_consumer(name, err);
    if (r != 0)
        return -1;
    *ret = list;
    *ret_n = n;
    return 0;
}

int sqlite_consumer_list(struct store *base, const char *name, struct arena *a,
                         struct consumer_info **ret, size_t *ret_n, struct error *err)
{
    return list_consumers(sqlite_of(base), name, true, a, ret, ret_n, err);
}

int sqlite_consumer_specs(struct store *base, const char *name, struct arena *a,
                          struct consumer_spec **ret, size_t *ret_n, struct error *err)
{
    struct consumer_info *list;
    size_t n, kept = 0;
    if (read_specs(sqlite_of(base), name, a, &list, &n, err) != 0)
        return -1;
    if (name && n == 0)
        return store_no_consumer(name, err);
    struct consumer_spec *specs = arena_zalloc(a, n + 1, sizeof *specs);
    if (!specs)
        return err_nomem(err);
    for (size_t i = 0; i < n; i++) {
        bool wanted = name || !list[i].paused;
        if (wanted)
            specs[kept++] = list[i].spec;
    }
    *ret = specs;
    *ret_n = kept;
    return 0;
}

int sqlite_consumer_floors(struct sqlite_store *st, struct arena *a, struct consumer_info **ret,
                           size_t *ret_n, struct error *err)
{
    return list_consumers(st, NULL, false, a, ret, ret_n, err);
}
