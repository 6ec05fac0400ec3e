/* emit.c: inserting events and inbox rows, on our connection or inside the caller's transaction. */
#include "base/str.h"
#include "store/sqlite/sqlite.h"
#include "store_sql.h"

/* ---- where the outbox is ---- */

/* Returns the schema name of the outbox on the caller's connection. If there are several, the one
 * in our file wins; if there is none, the statement on "main" will fail. */
static const char *find_outbox(struct sqlite_store *st, sqlite3 *db)
{
    const char *ours = sqlite3_db_filename(st->db, "main");
    const char *first = NULL, *name;
    for (int i = 0; (name = sqlite3_db_name(db, i)); i++) {
        bool temporary = i == 1;
        int found = sqlite3_table_column_metadata(db, name, "outbox_event", "seq", NULL, NULL, NULL,
                                                  NULL, NULL);
        if (temporary || found != SQLITE_OK)
            continue;
        const char *path = sqlite3_db_filename(db, name);
        bool same_file = path && ours && *ours && strcmp(path, ours) == 0;
        if (same_file)
            return name;
        if (!first)
            first = name;
    }
    return first ? first : "main";
}

int sqlite_target(struct store *base, void *foreign, struct db_target *t, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    *t = (struct db_target){.st = base, .db = st->db, .schema = "main"};
    if (!foreign)
        return sqlite_tx_gone(base, err);

    t->db = foreign;
    t->foreign = true;
    if (sqlite3_get_autocommit(foreign))
        return err_set(err, ERR_MISUSE,
                       "no transaction is open on this connection: BEGIN first, so that event and "
                       "data commit together");
    t->schema = find_outbox(st, foreign);
    int moved = 0, rc = sqlite3_file_control(foreign, t->schema, SQLITE_FCNTL_HAS_MOVED, &moved);
    if (rc == SQLITE_OK && moved) /* other processes cannot see this file */
        return err_class(err, ERR_UNAVAILABLE, CLASS_RETRY, SQLITE_READONLY_DBMOVED,
                         "%s: the file that this connection has open was deleted or replaced: what "
                         "is written to it is lost; roll back, close the connection and open the "
                         "file again",
                         st->base.shown);
    /* If memory runs out, SQLite rolls the caller's transaction back during the lookup: the event
     * would then commit on its own. */
    if (sqlite3_get_autocommit(foreign))
        return err_nomem(err);
    return 0;
}

/* ---- statements on a target ---- */

/* Prepares a statement that the caller finalizes, with the target's schema instead of "main", which
 * a statement may name twice. NULL on failure. */
static sqlite3_stmt *target_prepare(const struct db_target *t, const char *sql, struct error *err)
{
    static const char main_dot[] = "main.";
    sqlite3_stmt *q = NULL;
    sqlite3_str *to = sqlite3_str_new(NULL);
    const char *at;
    while ((at = strstr(sql, main_dot))) {
        sqlite3_str_append(to, sql, (int)(at - sql));
        sqlite3_str_appendf(to, "\"%w\".", t->schema);
        sql = at + strlen(main_dot);
    }
    sqlite3_str_appendall(to, sql);

    char *text = sqlite3_str_finish(to);
    int rc = SQLITE_NOMEM;
    if (text)
        rc = sqlite3_prepare_v2(t->db, text, -1, &q, NULL);
    sqlite3_free(text);
    if (rc != SQLITE_OK)
        sqlite_fail(sqlite_of(t->st), t->db, rc, err);
    return q;
}

struct db_rows sqlite_target_rows(const struct db_target *t, const struct sql *sql,
                                  const void *args, struct error *err)
{
    const char *text = sql->in[SQL_SQLITE].text;
    sqlite3_stmt *q = t->foreign ? target_prepare(t, text, err)
                                 : sqlite_plain(sqlite_of(t->st), text, err);
    if (q)
        sqlite_bind(q, sql, args);
    return (struct db_rows){t->st, q, t->foreign};
}

int64_t sqlite_target_changed(const struct db_target *t)
{
    return sqlite3_changes64(t->db);
}

static int target_exec(const struct db_target *t, const char *sql, struct error *err)
{
    struct db_rows q = {t->st, target_prepare(t, sql, err), true};
    return db_finish(&q, err);
}

/* ---- the event ---- */

static int insert_event(const struct db_target *t, const struct new_event *ev, const char *id,
                        int64_t now, struct error *err)
{
    struct sql_insert_event row = {
        .id = id,
        .type = ev->type,
        .aggregate_type = ev->aggregate_type,
        .aggregate_id = ev->aggregate_id,
        .version = ev->has_version ? &ev->version : NULL,
        .payload = db_emit_payload(ev),
        .headers = ev->headers,
        .tenant = ev->tenant,
        .not_before = ev->not_before ? &ev->not_before : NULL,
        .now = now,
        .idempotency_key = ev->idempotency_key,
    };
    struct db_rows q = sqlite_target_rows(t, &sql_insert_event, &row, err);
    if (db_finish(&q, err) != 0)
        return -1;
    if (sqlite3_changes(t->db) == 1)
        return 0;
    return err_set(err, ERR_CONFLICT,
                   "%s: a trigger on outbox_event, perhaps a temporary one of this connection, "
                   "suppressed the INSERT: the event was not stored",
                   db_of(t->st)->shown);
}

/* ---- idempotency keys ---- */

/* Inserts the event and its key, unless the key was used before. */
static int insert_keyed(const struct db_target *t, const struct new_event *ev,
                        char id[UUID_TEXT + 1], int64_t now, bool *ret_duplicate, struct error *err)
{
    uint64_t h = hash_add(HASH_INIT, ev->type);
    h = hash_add(h, ev->aggregate_type);
    h = hash_add(h, ev->aggregate_id);
    int64_t hash = (int64_t)hash_end(hash_add(h, db_emit_payload(ev)));

    int found = db_emit_find(t, ev, hash, id, err);
    if (found < 0)
        return -1;
    *ret_duplicate = found == 1;
    if (found == 1)
        return 0;
    if (insert_event(t, ev, id, now, err) != 0)
        return -1;
    struct db_rows q = sqlite_target_rows(
        t, SQL(put_key, .key = ev->idempotency_key, .id = id, .hash = hash, .now = now), err);
    return db_finish(&q, err);
}

/* Inserts both or neither, inside the open transaction. The statement that undoes them is prepared
 * first: memory may have run out when it is needed. */
static int emit_keyed(const struct db_target *t, const struct new_event *ev, char id[UUID_TEXT + 1],
                      int64_t now, bool *ret_duplicate, struct error *err)
{
    sqlite3_stmt *undo = target_prepare(t, "ROLLBACK TO outbox_emit", err);
    if (!undo)
        return -1;
    int r = target_exec(t, "SAVEPOINT outbox_emit", err);
    if (r == 0) {
        r = insert_keyed(t, ev, id, now, ret_duplicate, err);
        if (r == 0)
            r = target_exec(t, "RELEASE outbox_emit", err);
        if (r != 0) {
            sqlite3_step(undo);
            target_exec(t, "RELEASE outbox_emit", NULL);
        }
    }
    sqlite3_finalize(undo);
    return r;
}

/* ---- emitting ---- */

/* Without a transaction, a keyed event begins one: a bare SAVEPOINT would not take the write
 * lock. */
int sqlite_insert(const struct db_target *t, const struct new_event *ev, char id[UUID_TEXT + 1],
                  bool *ret_duplicate, struct error *err)
{
    struct store *base = t->st;
    struct sqlite_store *st = sqlite_of(base);
    int64_t now = db_now(base);
    bool alone = !t->foreign && !st->base.in_tx, keyed = ev->idempotency_key.p != NULL;

    /* A plain INSERT on this connection uses the same counter, so the ids of both ascend
     * together. */
    rng_uuid7(&st->uuid, now, (uint64_t)sqlite3_total_changes(t->db), &st->base.rng, id);
    if (keyed && alone && db_begin(base, err) != 0)
        return -1;
    int r;
    if (keyed)
        r = emit_keyed(t, ev, id, now, ret_duplicate, err);
    else
        r = insert_event(t, ev, id, now, err);
    if (!alone)
        return r;

    if (keyed && r == 0)
        return db_commit(base, err);
    if (keyed)
        db_rollback(base);
    /* A commit to a deleted or replaced file counts as failed. */
    return r == 0 ? sqlite_file_check(st, err) : -1;
}
