/* emit.c: inserting events and inbox rows, on our connection or inside the caller's transaction. */
#include "base/hash.h"
#include "store/sqlite/sqlite.h"

#define INSERT_EVENT(schema) \
    "INSERT INTO " schema ".outbox_event (id, type, aggregate_type, aggregate_id, version, " \
    "payload, headers, tenant, not_before, " \
    "created_at, idempotency_key) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"

/* A connection to work on: ours with cached statements, or the caller's, on which nothing may be
 * left behind. The outbox is in the database of that name: unqualified, a temporary table of the
 * caller's could stand before it. */
struct target {
    struct sqlite_store *st;
    sqlite3 *db;
    bool foreign;
    const char *schema;
};

static bool has_outbox(sqlite3 *db, const char *schema)
{
    return sqlite3_table_column_metadata(db, schema, "outbox_event", "seq", NULL, NULL, NULL, NULL,
                                         NULL) == SQLITE_OK;
}

/* find_outbox gives the name under which the caller's connection has an outbox: that of our file,
 * if it has several. */
static const char *find_outbox(struct sqlite_store *st, sqlite3 *db)
{
    const char *first = NULL, *name, *file, *ours = sqlite3_db_filename(st->db, "main");
    for (int i = 0; (name = sqlite3_db_name(db, i)); i++) {
        bool temporary = i == 1;
        if (temporary || !has_outbox(db, name))
            continue;
        file = sqlite3_db_filename(db, name);
        if (file && ours && *ours && strcmp(file, ours) == 0)
            return name;
        if (!first)
            first = name;
    }
    return first ? first : "main"; /* where it will be said that there is none */
}

static int check_place(const struct target *t, struct error *err)
{
    int moved = 0;
    int rc = sqlite3_file_control(t->db, t->schema, SQLITE_FCNTL_HAS_MOVED, &moved);
    if (rc != SQLITE_OK || !moved)
        return 0;
    return err_fate(err, ERR_UNAVAILABLE, FATE_RETRY, SQLITE_READONLY_DBMOVED,
                    "%s: the file that this connection has open was deleted or replaced: what is "
                    "written to it is lost; roll "
                    "back, close the connection and open the file again",
                    t->st->shown);
}

static int target_init(struct target *t, struct sqlite_store *st, void *foreign, struct error *err)
{
    *t = (struct target){st, foreign ? foreign : st->db, foreign != NULL, "main"};
    if (!foreign)
        return sqlite_tx_gone(st, err);
    if (sqlite3_get_autocommit(foreign))
        return err_set(err, ERR_MISUSE,
                       "no transaction is open on this connection: BEGIN first, so that event and "
                       "data commit together");
    t->schema = find_outbox(st, foreign);
    if (check_place(t, err) != 0)
        return -1;
    /* Without memory SQLite rolls the caller's transaction back while it looks: an event would then
     * commit by itself. */
    if (sqlite3_get_autocommit(foreign))
        return err_nomem(err);
    return 0;
}

/* target_prepare: the SQL has "%w" for the schema, once or twice. */
static sqlite3_stmt *target_prepare(struct target *t, const char *sql, struct error *err)
{
    sqlite3_stmt *q = NULL;
    char *text = sqlite3_mprintf(sql, t->schema, t->schema);
    int rc = text ? sqlite3_prepare_v2(t->db, text, -1, &q, NULL) : SQLITE_NOMEM;
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

/* target_step runs one statement: returns 1 with its first row in *out when it gave one (finish
 * with target_done), 0 when it gave none, -1 on failure. */
static int target_step(struct target *t, sqlite3_stmt **out, struct error *err, const char *sql,
                       const char *fmt, ...)
{
    sqlite3_stmt *q = target_prepare(t, sql, err);
    if (!q)
        return -1;
    va_list ap;
    va_start(ap, fmt);
    sqlite_bind(q, fmt, ap);
    va_end(ap);
    int rc = out ? sqlite3_step(q) : step_to_end(q);
    if (rc == SQLITE_ROW && out) { /* step_to_end leaves none */
        *out = q;
        return 1;
    }
    if (rc != SQLITE_DONE)
        sqlite_fail(t->st, t->db, rc, err);
    sqlite3_finalize(q);
    return rc == SQLITE_DONE ? 0 : -1;
}

static sqlite3_stmt *insert_statement(struct target *t, struct error *err)
{
    if (!t->foreign)
        return sqlite_query(t->st, err, INSERT_EVENT("main"), "");
    return target_prepare(t, INSERT_EVENT("\"%w\""), err);
}

static void bind_text(sqlite3_stmt *q, int i, struct str s)
{
    if (s.p)
        sqlite3_bind_text64(q, i, s.p, s.n, SQLITE_STATIC, SQLITE_UTF8);
    else
        sqlite3_bind_null(q, i);
}

static int insert_event(struct target *t, const struct new_event *ev, const char *id, int64_t now,
                        struct error *err)
{
    sqlite3_stmt *q = insert_statement(t, err);
    if (!q)
        return -1;
    bind_text(q, 1, (struct str){id, UUID_TEXT});
    bind_text(q, 2, ev->type);
    bind_text(q, 3, ev->aggregate_type);
    bind_text(q, 4, ev->aggregate_id);
    if (ev->has_version)
        sqlite3_bind_int64(q, 5, ev->version);
    else
        sqlite3_bind_null(q, 5);
    bind_text(q, 6, ev->payload.p ? ev->payload : STR("null"));
    bind_text(q, 7, ev->headers);
    bind_text(q, 8, ev->tenant);
    if (ev->not_before)
        sqlite3_bind_int64(q, 9, ev->not_before);
    else
        sqlite3_bind_null(q, 9);
    sqlite3_bind_int64(q, 10, now);
    bind_text(q, 11, ev->idempotency_key);
    int rc = step_to_end(q);
    bool inserted = rc == SQLITE_DONE && sqlite3_changes(t->db) == 1;
    if (rc != SQLITE_DONE)
        sqlite_fail(t->st, t->db, rc, err);
    else if (!inserted)
        err_set(err, ERR_CONFLICT,
                "%s: a trigger on outbox_event, perhaps a temporary one of this connection, "
                "ignores the "
                "event: it was not stored",
                t->st->shown);
    if (t->foreign)
        sqlite3_finalize(q);
    else
        sqlite3_reset(q);
    return inserted ? 0 : -1;
}

static int64_t content_hash(const struct new_event *ev)
{
    uint64_t h = hash_add(HASH_INIT, ev->type);
    h = hash_add(h, ev->aggregate_type);
    h = hash_add(h, ev->aggregate_id);
    return (int64_t)hash_end(hash_add(h, ev->payload.p ? ev->payload : STR("null")));
}

/* An idempotency key that was found: whose it is, and whether that event was the same as this
 * one. */
struct known_key {
    char id[UUID_TEXT + 1];
    bool same;
};

/* find_key: 1 if the key is known, 0 if not. An event that somebody deleted is told by its hash. */
static int find_key(struct target *t, const struct new_event *ev, struct known_key *ret,
                    struct error *err)
{
    sqlite3_stmt *q;
    int r = target_step(
        t, &q, err,
        "SELECT e.id, (e.type, e.aggregate_type, e.aggregate_id, e.payload) IS (?2, ?3, ?4, ?5) "
        "FROM "
        "\"%w\".outbox_event e WHERE e.idempotency_key = ?1 UNION ALL "
        "SELECT i.event_id, i.hash = ?6 FROM \"%w\".outbox_idempotency i WHERE i.key = ?1 LIMIT 1",
        "ttttti", ev->idempotency_key, ev->type, ev->aggregate_type, ev->aggregate_id,
        ev->payload.p ? ev->payload : STR("null"), content_hash(ev));
    if (r != 1)
        return r;
    struct str id = sqlite_text(q, 0);
    if (id.n == UUID_TEXT)
        memcpy(ret->id, id.p, UUID_TEXT + 1);
    ret->same = sqlite3_column_int(q, 1) != 0;
    sqlite3_finalize(q);
    return 1;
}

/* put_key records the key beside the event, for as long as trimming leaves it, whoever deletes the
 * event. */
static int put_key(struct target *t, const struct new_event *ev, const char *id, int64_t now,
                   struct error *err)
{
    return target_step(
        t, NULL, err,
        "INSERT INTO \"%w\".outbox_idempotency (key, event_id, hash, at) VALUES (?, ?, ?, ?)",
        "tsii", ev->idempotency_key, id, content_hash(ev), now);
}

/* insert_keyed inserts the event, unless its key is known: *ret_duplicate and the first event's
 * id. */
static int insert_keyed(struct target *t, const struct new_event *ev, char id[UUID_TEXT + 1],
                        int64_t now, bool *ret_duplicate, struct error *err)
{
    struct known_key known = {0};
    int found = find_key(t, ev, &known, err);
    if (found < 0)
        return -1;
    if (!found) {
        if (insert_event(t, ev, id, now, err) != 0)
            return -1;
        return put_key(t, ev, id, now, err);
    }
    memcpy(id, known.id, sizeof known.id);
    *ret_duplicate = known.same;
    if (known.same)
        return 0;
    return err_set(err, ERR_CONFLICT,
                   "idempotency key \"%.*s\" was used before with another type, aggregate or "
                   "payload (event %s)",
                   (int)(ev->idempotency_key.n < 100 ? ev->idempotency_key.n : 100),
                   ev->idempotency_key.p, id);
}

/* emit_keyed does both inserts or none, inside whatever transaction is open. */
static int emit_keyed(struct target *t, const struct new_event *ev, char id[UUID_TEXT + 1],
                      int64_t now, bool *ret_duplicate, struct error *err)
{
    if (target_step(t, NULL, err, "SAVEPOINT outbox_emit", "") != 0)
        return -1;
    int r = insert_keyed(t, ev, id, now, ret_duplicate, err);
    if (r != 0)
        target_step(t, NULL, NULL, "ROLLBACK TO outbox_emit", "");
    if (target_step(t, NULL, r == 0 ? err : NULL, "RELEASE outbox_emit", "") != 0 && r == 0)
        return -1;
    return r;
}

int sqlite_emit(struct store *base, void *foreign, const struct new_event *ev,
                char ret_id[UUID_TEXT + 1], bool *ret_duplicate, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    struct target t;
    char id[UUID_TEXT + 1];
    int64_t now = sqlite_now(st);
    bool duplicate = false;
    if (event_check(ev, &(struct event_limits){st->opt.payload_max, now}, err) != 0)
        return -1;
    if (target_init(&t, st, foreign, err) != 0)
        return -1;
    /* What a plain INSERT on this connection counts by, too: so ids of both only grow. */
    uuid7_next(&st->uuid, now, (uint64_t)sqlite3_total_changes(t.db), &st->rng, id);
    if (!ev->idempotency_key.p) {
        if (insert_event(&t, ev, id, now, err) != 0)
            return -1;
        bool committed = !foreign && !st->in_tx;
        if (committed && sqlite_home_check(st, err) != 0)
            return -1; /* what is in a file that is gone was not emitted */
    } else {
        bool own = !foreign && !st->in_tx; /* a bare SAVEPOINT would begin without the write lock */
        if (own && sqlite_begin(base, err) != 0)
            return -1;
        int r = emit_keyed(&t, ev, id, now, &duplicate, err);
        if (own && r == 0)
            r = sqlite_commit(base, err);
        else if (own)
            sqlite_rollback(base);
        if (r != 0)
            return -1;
    }
    memcpy(ret_id, id, sizeof id);
    *ret_duplicate = duplicate;
    return 0;
}

int sqlite_handle_once(struct store *base, void *foreign, struct str handler, struct str key,
                       struct str payload, bool *ret_first, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    struct target t;
    if (!foreign && !st->in_tx)
        return err_set(err, ERR_MISUSE,
                       "no transaction is open: the record must commit together with the effect");
    if (event_check_inbox(handler, key, err) != 0)
        return -1;
    if (target_init(&t, st, foreign, err) != 0)
        return -1;
    int64_t hash = (int64_t)hash_end(hash_add(HASH_INIT, payload));
    sqlite3_stmt *q;
    int r = target_step(&t, &q, err,
                        "SELECT hash FROM \"%w\".outbox_handled WHERE handler = ? AND key = ?",
                        "tt", handler, key);
    if (r < 0)
        return -1;
    if (r == 0) {
        if (target_step(
                &t, NULL, err,
                "INSERT INTO \"%w\".outbox_handled (handler, key, hash, at) VALUES (?, ?, ?, ?)",
                "ttii", handler, key, hash, sqlite_now(st)) != 0)
            return -1;
        *ret_first = true;
        return 0;
    }
    bool same = sqlite3_column_int64(q, 0) == hash;
    sqlite3_finalize(q);
    if (!same)
        return err_set(err, ERR_CONFLICT,
                       "handler \"%.*s\" has handled key \"%.*s\" before with another payload",
                       (int)handler.n, handler.p, (int)(key.n < 100 ? key.n : 100), key.p);
    *ret_first = false;
    return 0;
}
