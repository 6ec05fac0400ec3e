/* emit.c: inserting events and inbox rows, on our connection or inside the caller's transaction. */
#include "base/hash.h"
#include "store/sqlite/sqlite.h"
#include "store_sql.h"

#define SHOWN 100 /* bytes of a key that a message shows */

/* A connection to work on: ours, with cached statements, or the caller's, on which nothing may be
 * left behind. */
struct target {
    struct sqlite_store *st;
    sqlite3 *db;
    bool foreign;
    const char *schema; /* the name of the database that has the outbox */
};

/* ---- where the outbox is ---- */

static bool has_outbox(sqlite3 *db, const char *schema)
{
    return sqlite3_table_column_metadata(db, schema, "outbox_event", "seq", NULL, NULL, NULL, NULL,
                                         NULL) == SQLITE_OK;
}

static bool same_path(const char *a, const char *b)
{
    return a && b && *b && strcmp(a, b) == 0;
}

/* find_outbox gives the name under which the caller's connection has an outbox. If it has several,
 * that of our file wins; if it has none, the statement on "main" will say so. */
static const char *find_outbox(struct sqlite_store *st, sqlite3 *db)
{
    const char *ours = sqlite3_db_filename(st->db, "main");
    const char *first = NULL, *name;
    for (int i = 0; (name = sqlite3_db_name(db, i)); i++) {
        bool temporary = i == 1;
        if (temporary || !has_outbox(db, name))
            continue;
        if (same_path(sqlite3_db_filename(db, name), ours))
            return name;
        if (!first)
            first = name;
    }
    return first ? first : "main";
}

/* check_place refuses a file that nobody else can see, because it was deleted or replaced. */
static int check_place(const struct target *t, struct error *err)
{
    int moved = 0;
    int rc = sqlite3_file_control(t->db, t->schema, SQLITE_FCNTL_HAS_MOVED, &moved);
    if (rc != SQLITE_OK || !moved)
        return 0;
    return err_class(err, ERR_UNAVAILABLE, CLASS_RETRY, SQLITE_READONLY_DBMOVED,
                     "%s: the file that this connection has open was deleted or replaced: what is "
                     "written to it is lost; roll back, close the connection and open the file "
                     "again",
                     t->st->base.shown);
}

/* target_init picks the connection. On the caller's a transaction must be open. */
static int target_init(struct target *t, struct sqlite_store *st, void *foreign, struct error *err)
{
    *t = (struct target){.st = st, .db = st->db, .schema = "main"};
    if (!foreign)
        return sqlite_tx_gone(&st->base.store, err);

    t->db = foreign;
    t->foreign = true;
    if (sqlite3_get_autocommit(foreign))
        return err_set(err, ERR_MISUSE,
                       "no transaction is open on this connection: BEGIN first, so that event and "
                       "data commit together");
    t->schema = find_outbox(st, foreign);
    if (check_place(t, err) != 0)
        return -1;
    /* For want of memory SQLite rolls the caller's transaction back while it looks: an event would
     * then commit by itself. */
    if (sqlite3_get_autocommit(foreign))
        return err_nomem(err);
    return 0;
}

/* ---- statements on a target ---- */

/* write_text writes a statement of emit.sql for a target: its schema instead of "main". Some of
 * them name it twice. */
static void write_text(const struct target *t, const char *sql, sqlite3_str *to)
{
    static const char main_dot[] = "main.";
    const char *at;
    while ((at = strstr(sql, main_dot))) {
        sqlite3_str_append(to, sql, (int)(at - sql));
        sqlite3_str_appendf(to, "\"%w\".", t->schema);
        sql = at + strlen(main_dot);
    }
    sqlite3_str_appendall(to, sql);
}

/* target_prepare prepares a statement that the caller finalizes; NULL on failure. */
static sqlite3_stmt *target_prepare(struct target *t, const char *sql, struct error *err)
{
    sqlite3_stmt *q = NULL;
    sqlite3_str *to = sqlite3_str_new(NULL);
    write_text(t, sql, to);
    char *text = sqlite3_str_finish(to);
    int rc = SQLITE_NOMEM;
    if (text)
        rc = sqlite3_prepare_v2(t->db, text, -1, &q, NULL);
    sqlite3_free(text);
    if (rc != SQLITE_OK)
        sqlite_fail(t->st, t->db, rc, err);
    return q;
}

/* step_to_end passes over rows: with `PRAGMA count_changes` an INSERT gives one. */
static int step_to_end(sqlite3_stmt *q)
{
    int rc;
    do
        rc = sqlite3_step(q);
    while (rc == SQLITE_ROW);
    return rc;
}

/* target_finish runs q to its end and finalizes it; q may be NULL: it failed. */
static int target_finish(struct target *t, sqlite3_stmt *q, struct error *err)
{
    if (!q)
        return -1;
    int rc = step_to_end(q);
    if (rc != SQLITE_DONE)
        sqlite_fail(t->st, t->db, rc, err);
    sqlite3_finalize(q);
    return rc == SQLITE_DONE ? 0 : -1;
}

static int target_exec(struct target *t, const char *sql, struct error *err)
{
    return target_finish(t, target_prepare(t, sql, err), err);
}

static int target_run(struct target *t, struct error *err, const struct sql *sql, const void *args)
{
    sqlite3_stmt *q = target_prepare(t, sql->in[SQL_SQLITE].text, err);
    if (q)
        sqlite_bind(q, sql, args);
    return target_finish(t, q, err);
}

/* target_row is sqlite_row on a target; the caller finalizes *ret if there is a row. */
static int target_row(struct target *t, sqlite3_stmt **ret, struct error *err,
                      const struct sql *sql, const void *args)
{
    sqlite3_stmt *q = target_prepare(t, sql->in[SQL_SQLITE].text, err);
    if (!q)
        return -1;
    sqlite_bind(q, sql, args);
    int rc = sqlite3_step(q);
    if (rc == SQLITE_ROW) {
        *ret = q;
        return 1;
    }
    if (rc != SQLITE_DONE)
        sqlite_fail(t->st, t->db, rc, err);
    sqlite3_finalize(q);
    return rc == SQLITE_DONE ? 0 : -1;
}

/* ---- the event ---- */

static struct str payload_of(const struct new_event *ev)
{
    return ev->payload.p ? ev->payload : STR("null");
}

/* step_insert runs the INSERT. A trigger that ignores the event gives no error. */
static int step_insert(struct target *t, sqlite3_stmt *q, struct error *err)
{
    int rc = step_to_end(q);
    if (rc != SQLITE_DONE)
        return sqlite_fail(t->st, t->db, rc, err);
    if (sqlite3_changes(t->db) == 1)
        return 0;
    return err_set(err, ERR_CONFLICT,
                   "%s: a trigger on outbox_event, perhaps a temporary one of this connection, "
                   "ignores the event: it was not stored",
                   t->st->base.shown);
}

/* insert_event inserts the event; on our connection with the cached statement. */
static int insert_event(struct target *t, const struct new_event *ev, const char *id, int64_t now,
                        struct error *err)
{
    struct sql_insert_event row = {
        .id = id,
        .type = ev->type,
        .aggregate_type = ev->aggregate_type,
        .aggregate_id = ev->aggregate_id,
        .version = ev->has_version ? &ev->version : NULL,
        .payload = payload_of(ev),
        .headers = ev->headers,
        .tenant = ev->tenant,
        .not_before = ev->not_before ? &ev->not_before : NULL,
        .now = now,
        .idempotency_key = ev->idempotency_key,
    };
    sqlite3_stmt *q;
    if (t->foreign)
        q = target_prepare(t, sql_insert_event.in[SQL_SQLITE].text, err);
    else
        q = sqlite_plain(t->st, sql_insert_event.in[SQL_SQLITE].text, err);
    if (!q)
        return -1;

    sqlite_bind(q, &sql_insert_event, &row);
    int r = step_insert(t, q, err);
    if (t->foreign)
        sqlite3_finalize(q);
    else
        sqlite3_reset(q);
    return r;
}

/* ---- idempotency keys ---- */

static int64_t content_hash(const struct new_event *ev)
{
    uint64_t h = hash_add(HASH_INIT, ev->type);
    h = hash_add(h, ev->aggregate_type);
    h = hash_add(h, ev->aggregate_id);
    return (int64_t)hash_end(hash_add(h, payload_of(ev)));
}

/* An idempotency key that was used before: by which event, and whether its content was the same. */
struct known_key {
    char id[UUID_TEXT + 1];
    bool same;
};

/* find_key returns 1 with *ret if the key was used before, 0 if not. */
static int find_key(struct target *t, const struct new_event *ev, struct known_key *ret,
                    struct error *err)
{
    struct sql_find_key args = {
        .key = ev->idempotency_key,
        .type = ev->type,
        .aggregate_type = ev->aggregate_type,
        .aggregate_id = ev->aggregate_id,
        .payload = payload_of(ev),
        .hash = content_hash(ev),
    };
    sqlite3_stmt *q;
    int r = target_row(t, &q, err, &sql_find_key, &args);
    if (r != 1)
        return r;
    struct str id = sqlite_text(q, 0);
    if (id.n == UUID_TEXT)
        memcpy(ret->id, id.p, UUID_TEXT + 1);
    ret->same = sqlite3_column_int(q, 1) != 0;
    sqlite3_finalize(q);
    return 1;
}

static int say_used(const struct new_event *ev, const char *id, struct error *err)
{
    struct str key = ev->idempotency_key;
    int shown = key.n < SHOWN ? (int)key.n : SHOWN;
    return err_set(err, ERR_CONFLICT,
                   "idempotency key \"%.*s\" was used before with another type, aggregate or "
                   "payload (event %s)",
                   shown, key.p, id);
}

/* insert_keyed inserts the event and its key. If the key was used before, id becomes that of the
 * first event, and *ret_duplicate says whether it was the same. */
static int insert_keyed(struct target *t, const struct new_event *ev, char id[UUID_TEXT + 1],
                        int64_t now, bool *ret_duplicate, struct error *err)
{
    struct known_key known = {0};
    int found = find_key(t, ev, &known, err);
    if (found < 0)
        return -1;
    if (found) {
        memcpy(id, known.id, sizeof known.id);
        *ret_duplicate = known.same;
        return known.same ? 0 : say_used(ev, id, err);
    }
    if (insert_event(t, ev, id, now, err) != 0)
        return -1;
    return target_run(
        t, err,
        SQL(put_key, .key = ev->idempotency_key, .id = id, .hash = content_hash(ev), .now = now));
}

/* emit_keyed does both inserts or none, inside whatever transaction is open. */
static int emit_keyed(struct target *t, const struct new_event *ev, char id[UUID_TEXT + 1],
                      int64_t now, bool *ret_duplicate, struct error *err)
{
    if (target_exec(t, "SAVEPOINT outbox_emit", err) != 0)
        return -1;
    if (insert_keyed(t, ev, id, now, ret_duplicate, err) != 0) {
        target_exec(t, "ROLLBACK TO outbox_emit", NULL);
        target_exec(t, "RELEASE outbox_emit", NULL);
        return -1;
    }
    return target_exec(t, "RELEASE outbox_emit", err);
}

/* emit_keyed_alone is emit_keyed in a transaction of its own: a bare SAVEPOINT would begin one
 * without the write lock. */
static int emit_keyed_alone(struct target *t, const struct new_event *ev, char id[UUID_TEXT + 1],
                            int64_t now, bool *ret_duplicate, struct error *err)
{
    struct store *base = &t->st->base.store;
    if (sqlite_begin(base, err) != 0)
        return -1;
    if (emit_keyed(t, ev, id, now, ret_duplicate, err) != 0) {
        sqlite_rollback(base);
        return -1;
    }
    return sqlite_commit(base, err);
}

/* ---- emitting ---- */

int sqlite_emit(struct store *base, void *foreign, const struct new_event *ev,
                char ret_id[UUID_TEXT + 1], bool *ret_duplicate, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    struct target t;
    char id[UUID_TEXT + 1];
    int64_t now = db_now(base);
    bool duplicate = false, alone = !foreign && !st->base.in_tx;
    if (event_check(ev, &(struct event_limits){st->base.opt.payload_max, now}, err) != 0)
        return -1;
    if (target_init(&t, st, foreign, err) != 0)
        return -1;

    /* A plain INSERT on this connection counts by the same number, so ids of both only grow. */
    uuid7_next(&st->uuid, now, (uint64_t)sqlite3_total_changes(t.db), &st->base.rng, id);
    int r;
    if (!ev->idempotency_key.p)
        r = insert_event(&t, ev, id, now, err);
    else if (alone)
        r = emit_keyed_alone(&t, ev, id, now, &duplicate, err);
    else
        r = emit_keyed(&t, ev, id, now, &duplicate, err);
    if (r != 0)
        return -1;

    bool committed = alone && !ev->idempotency_key.p;
    if (committed && sqlite_file_check(st, err) != 0)
        return -1; /* a commit into a file that is gone did not happen */
    memcpy(ret_id, id, sizeof id);
    *ret_duplicate = duplicate;
    return 0;
}

/* ---- the inbox ---- */

static int say_other_payload(struct str handler, struct str key, struct error *err)
{
    int shown = key.n < SHOWN ? (int)key.n : SHOWN;
    return err_set(err, ERR_CONFLICT,
                   "handler \"%.*s\" has handled key \"%.*s\" before with another payload",
                   (int)handler.n, handler.p, shown, key.p);
}

int sqlite_handle_once(struct store *base, void *foreign, struct str handler, struct str key,
                       struct str payload, bool *ret_first, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    struct target t;
    if (!foreign && !st->base.in_tx)
        return err_set(err, ERR_MISUSE,
                       "no transaction is open: the record must commit together with the effect");
    if (event_check_inbox(handler, key, err) != 0)
        return -1;
    if (target_init(&t, st, foreign, err) != 0)
        return -1;

    int64_t hash = (int64_t)hash_end(hash_add(HASH_INIT, payload));
    sqlite3_stmt *q;
    int r = target_row(&t, &q, err, SQL(handled_hash, .handler = handler, .key = key));
    if (r < 0)
        return -1;
    if (r == 0) {
        if (target_run(&t, err,
                       SQL(put_handled_once, .handler = handler, .key = key, .hash = hash,
                           .now = db_now(base))) != 0)
            return -1;
        *ret_first = true;
        return 0;
    }

    bool same = sqlite3_column_int64(q, 0) == hash;
    sqlite3_finalize(q);
    if (!same)
        return say_other_payload(handler, key, err);
    *ret_first = false;
    return 0;
}
