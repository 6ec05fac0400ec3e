/* migrate.c: creating and upgrading tables, in numbered steps.
 *
 * Producers and workers may be active while an outbox is migrated. ALTER TABLE needs an exclusive
 * lock, and every later session queues behind that request: one long transaction would block all of
 * them. So the migration waits for each lock no longer than LOCK_WAIT, and locks table event last.
 * If it cannot get a lock, it rolls back and tries again later. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/num.h"
#include "base/text.h"
#include "store/postgres/postgres.h"

extern const char *const postgres_migration[];
extern const char postgres_statement_foreign_creators[], postgres_statement_lock_tables[];

#define LOCK_WAIT "200ms"
#define LOCK_PATIENCE_MS 600000
#define PAUSE_FIRST_MS 500
#define PAUSE_MAX_MS 5000
#define TELL_EVERY_MS 10000

/* ---- the current version ---- */

/* clang-format off */
static const char tables_sql[] =
    "SELECT count(*) FILTER (WHERE c.relname = 'meta'), "
           "count(*) FILTER (WHERE c.relname = 'event') "
    "FROM pg_catalog.pg_class c "
    "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
    "WHERE n.nspname = $1 AND c.relkind IN ('r', 'p')";
/* clang-format on */

/* Reads the version of the outbox, even an unknown one; 0: no outbox exists. ERR_NOTOURS: the
 * schema has a table event of another kind. */
static int read_version(struct pg_store *st, int64_t *ret, struct error *err)
{
    PGresult *r = pg_query(st, err, tables_sql, "s", st->schema);
    if (!r)
        return -1;
    bool meta = pg_int(r, 0, 0) > 0;
    bool event = pg_int(r, 0, 1) > 0;
    PQclear(r);
    if (event && !meta)
        return err_class(err, ERR_NOTOURS, CLASS_FATAL, 0,
                         "%s: schema %s has a table event that is not ours (no table meta beside "
                         "it); use another schema (?schema=NAME)",
                         st->shown, st->quoted);
    *ret = 0;
    if (!meta)
        return 0;
    return pg_query_number(st, err, ret,
                           "SELECT value FROM @schema@.meta WHERE name = 'schema_version'", "");
}

int pg_version(struct pg_store *st, int64_t *ret, struct error *err)
{
    if (read_version(st, ret, err) != 0)
        return -1;
    if (*ret <= PG_SCHEMA_VERSION)
        return 0;
    return err_class(err, ERR_NEWER, CLASS_FATAL, 0,
                     "%s: the outbox in schema %s has version %lld, but this program knows only "
                     "versions up to %d; use a newer outbox",
                     st->shown, st->quoted, (long long)*ret, PG_SCHEMA_VERSION);
}

int pg_schema_status(struct store *base, struct schema_status *ret, struct error *err)
{
    int64_t there;
    if (read_version(pg_of(base), &there, err) != 0)
        return -1;
    *ret = (struct schema_status){.there = there, .known = PG_SCHEMA_VERSION};
    if (there != PG_SCHEMA_VERSION)
        return 0;
    return pg_functions_status(pg_of(base), &ret->functions, err);
}

PGresult *pg_foreign_creators(struct pg_store *st, struct error *err)
{
    return pg_query(st, err, postgres_statement_foreign_creators, "s", st->schema);
}

/* ---- migrating ---- */

/* Creates the schema unless it exists. An existing schema can be used unless other roles may create
 * functions in it. */
static int make_schema(struct pg_store *st, struct error *err)
{
    PGresult *r = pg_foreign_creators(st, err);
    if (!r)
        return -1;
    int result = 0;
    bool there = PQntuples(r) > 0;
    if (!there)
        result = pg_script(st, "CREATE SCHEMA @schema@", NULL, err);
    else if (pg_str(r, 0, 0))
        result = err_class(
            err, ERR_NOTOURS, CLASS_FATAL, 0,
            "%s: schema %s exists, and other roles may create functions in it, which would run "
            "with the rights of the outbox's owner: %s; create the outbox as the role that owns "
            "the schema, REVOKE CREATE ON SCHEMA %s FROM the others, or use another schema "
            "(?schema=NAME)",
            st->shown, st->quoted, pg_str(r, 0, 0), st->quoted);
    PQclear(r);
    return result;
}

/* clang-format off */

/* Functions may refer to each other in any order. */
static const char settings_sql[] =
    "SET LOCAL check_function_bodies = off; "
    "SET LOCAL client_min_messages = warning;\n";

/* The SQL for other tools sets our search_path, and restores the previous one. */
static const char path_ours_sql[] =
    "SELECT pg_catalog.set_config('outbox.search_path', "
                                 "pg_catalog.current_setting('search_path'), true);\n"
    "SET LOCAL search_path = " PG_PATH ";\n";
static const char path_back_sql[] =
    "SELECT set_config('search_path', current_setting('outbox.search_path'), true);\n";

/* clang-format on */

/* Runs one migration. The part before its mark `-- @locked@` takes time, and runs before the tables
 * are locked. in_use: other sessions may be using the tables, and are locked out. */
static int migration_run(struct pg_store *st, const char *sql, bool in_use, struct error *err)
{
    static const char mark[] = "-- @locked@\n";
    const char *locked = strstr(sql, mark);
    if (locked) {
        char *before = strndup(sql, (size_t)(locked - sql));
        if (!before)
            return err_nomem(err);
        int result = pg_script(st, before, NULL, err);
        free(before);
        if (result != 0)
            return -1;
        sql = locked;
    }
    if (in_use && pg_script(st, postgres_statement_lock_tables, NULL, err) != 0)
        return -1;
    return pg_script(st, sql, NULL, err);
}

int pg_install(struct pg_store *st, int64_t from, struct error *err)
{
    if (pg_simple(st, settings_sql, err) != 0)
        return -1;
    for (int64_t v = from; v < PG_SCHEMA_VERSION; v++)
        if (migration_run(st, postgres_migration[v], from > 0, err) != 0)
            return -1;
    return pg_functions_install(st, err);
}

/* ---- init ---- */

struct migrating {
    struct pg_store *st;
    int64_t from;                    /* the version found */
    enum functions_status functions; /* if that is our version */
    bool changed;
};

/* clang-format off */
static const char owner_sql[] =
    "SELECT pg_get_userbyid(c.relowner), "
           "pg_has_role(c.relowner, 'MEMBER'), "
           "current_user, "
           "quote_ident(pg_get_userbyid(c.relowner)) "
    "FROM pg_catalog.pg_class c "
    "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
    "WHERE n.nspname = $1 AND c.relname = 'meta'";
/* clang-format on */

/* Switches to the role of the outbox's owner, so that objects created by a superuser, or by a
 * member of that role, belong to the owner too. */
static int become_owner(struct pg_store *st, struct error *err)
{
    PGresult *r = pg_query(st, err, owner_sql, "s", st->schema);
    if (!r)
        return -1;
    const char *owner = PQgetvalue(r, 0, 0);
    const char *role = PQgetvalue(r, 0, 2);
    bool may_become = pg_true(r, 0, 1);
    bool is_owner = strcmp(owner, role) == 0;

    int result = 0;
    if (!may_become) {
        result = err_class(err, ERR_READONLY, CLASS_FATAL, 0,
                           "%s: the outbox in schema %s belongs to role \"%.60s\", and \"%.60s\" "
                           "may not change it: upgrade it as its owner; nothing was changed",
                           st->shown, st->quoted, owner, role);
    } else if (!is_owner) {
        char text[160];
        snprintf(text, sizeof text, "SET LOCAL ROLE %s", PQgetvalue(r, 0, 3));
        result = pg_simple(st, text, err);
    }
    PQclear(r);
    return result;
}

/* Creates an outbox, or migrates one step by step to our version. */
static int upgrade(struct migrating *m, struct error *err)
{
    struct pg_store *st = m->st;
    if (m->from == 0) {
        if (make_schema(st, err) != 0)
            return -1;
        return pg_install(st, 0, err);
    }
    if (become_owner(st, err) != 0)
        return -1;
    if (pg_simple(st, "SET LOCAL lock_timeout = '" LOCK_WAIT "'", err) != 0)
        return -1;
    if (pg_install(st, m->from, err) != 0)
        return -1;
    /* Workers of the older version, even sleeping ones, must notice at once. */
    return pg_script(st, "SELECT @schema@._wakeup_notify_all()", NULL, err);
}

/* clang-format off */
static const char no_limits_sql[] =
    "SET LOCAL statement_timeout = 0; "
    "SET LOCAL lock_timeout = 0; "
    "SET LOCAL idle_in_transaction_session_timeout = 0";

/* Lets one migration run at a time. Only a role that may change the outbox can take the lock. If no
 * outbox exists yet, CREATE SCHEMA and CREATE TABLE have the same effect. */
static const char lock_meta_sql[] =
    "DO $outbox$ BEGIN "
        "IF has_table_privilege(to_regclass('@schema@.meta'), 'UPDATE') THEN "
            "LOCK TABLE @schema@.meta IN SHARE ROW EXCLUSIVE MODE; "
        "END IF; "
    "END $outbox$";
/* clang-format on */

/* Upgrades in one transaction. The later of concurrent runs finds nothing to do. */
static int upgrade_once(struct migrating *m, struct error *err)
{
    struct pg_store *st = m->st;
    if (pg_begin_own(&st->base, err) != 0)
        return -1;
    if (pg_simple(st, no_limits_sql, err) != 0)
        goto undo;
    if (pg_script(st, lock_meta_sql, NULL, err) != 0)
        goto undo;
    if (pg_version(st, &m->from, err) != 0)
        goto undo;
    bool known = m->from == PG_SCHEMA_VERSION;
    if (known && pg_functions_status(st, &m->functions, err) != 0)
        goto undo;

    /* A newer program's functions are replaced only on request. */
    m->changed = m->from < PG_SCHEMA_VERSION || m->functions == FUNCTIONS_OLDER;
    if (m->functions == FUNCTIONS_NEWER)
        m->changed = st->opt.replace;
    if (m->changed && upgrade(m, err) != 0)
        goto undo;
    return pg_commit(&st->base, err);

undo:
    pg_rollback(&st->base);
    return -1;
}

/* ---- waiting for the tables ---- */

/* clang-format off */
static const char users_sql[] =
    "SELECT a.pid, "
           "coalesce(a.application_name, ''), "
           "coalesce(a.state, 'active'), "
           "coalesce(floor(extract(epoch FROM clock_timestamp() - a.xact_start)), 0) "
    "FROM pg_catalog.pg_locks l "
    "JOIN pg_catalog.pg_class c ON c.oid = l.relation "
    "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
    "JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid "
    "WHERE n.nspname = $1 "
      "AND l.granted "
      "AND l.database = (SELECT oid FROM pg_catalog.pg_database "
                        "WHERE datname = current_database()) "
      "AND l.pid <> pg_backend_pid() "
    "ORDER BY a.xact_start "
    "LIMIT 1";
/* clang-format on */

/* Reports progress: which transaction blocks the upgrade, the oldest of those that use the
 * tables. */
static void report_users(const struct migrating *m, int64_t left_ms)
{
    struct pg_store *st = m->st;
    char text[400], left[32];
    if (!st->opt.progress)
        return;
    text_duration_show(left_ms / 1000 * 1000, left);
    PGresult *r = pg_query(st, NULL, users_sql, "s", st->schema);
    bool known = r && PQntuples(r) > 0;
    if (known)
        snprintf(text, sizeof text,
                 "the outbox is in use by pid %s (\"%.60s\", %s, its transaction is %s s old); "
                 "nothing has changed yet; retrying for %s",
                 PQgetvalue(r, 0, 0), PQgetvalue(r, 0, 1), PQgetvalue(r, 0, 2), PQgetvalue(r, 0, 3),
                 left);
    else
        snprintf(text, sizeof text,
                 "the outbox is in use; nothing has changed yet; retrying for %s", left);
    PQclear(r);
    st->opt.progress(st->opt.progress_ctx, text);
}

/* Uses the system clock, since this waits for real transactions. */
static int64_t now_ms(void)
{
    return clock_mono(&clock_system) / MS_NS;
}

/* Tries until the upgrade succeeds, fails for another reason than a lock, or has taken too long.
 * Producers proceed between attempts. */
static int upgrade_patiently(struct migrating *m, struct error *err)
{
    int64_t patience = m->st->opt.lock_ms ? m->st->opt.lock_ms : LOCK_PATIENCE_MS;
    int64_t began = now_ms();
    int64_t told = -TELL_EVERY_MS;
    int64_t pause = PAUSE_FIRST_MS;
    for (;;) {
        struct error why;
        int64_t there;
        if (upgrade_once(m, &why) == 0)
            return 0;
        int64_t spent = now_ms() - began;
        bool created_by_another = m->from == 0 && read_version(m->st, &there, NULL) == 0 &&
                                  there > 0;
        if (created_by_another)
            continue;

        bool only_busy = why.code == ERR_BUSY && m->from > 0;
        if (!only_busy)
            return err_copy(err, &why);
        if (spent + pause > patience)
            return err_class(
                err, ERR_BUSY, CLASS_RETRY, 0,
                "%s: a long transaction used the outbox throughout; nothing was changed: end it "
                "(see `outbox doctor`), and try again",
                m->st->shown);
        if (spent - told >= TELL_EVERY_MS) {
            report_users(m, patience - spent);
            told = spent;
        }
        struct timespec ts = {.tv_sec = (time_t)(pause / 1000),
                              .tv_nsec = (long)(pause % 1000 * MS_NS)};
        nanosleep(&ts, NULL);
        pause = min_i64(2 * pause, PAUSE_MAX_MS);
    }
}

int pg_init(struct store *base, bool *ret_created, struct error *err)
{
    struct migrating m = {.st = pg_of(base)};
    m.st->patient = true;
    int bad = upgrade_patiently(&m, err);
    m.st->patient = false;
    if (!bad)
        *ret_created = m.changed;
    return bad;
}

/* ---- for other tools ---- */

int pg_ddl(const struct ddl_request *req, struct error *err)
{
    struct store_options opt = {0};
    struct pg_store *st = pg_new(req->url, req->schema ? req->schema : PG_SCHEMA, &opt, err);
    if (!st)
        return -1;

    pg_fill(req->up, st, "CREATE SCHEMA IF NOT EXISTS @schema@;\n", NULL);
    buf_adds(req->up, path_ours_sql);
    buf_adds(req->up, settings_sql);
    for (int v = 0; v < PG_SCHEMA_VERSION; v++) {
        buf_addc(req->up, '\n');
        pg_fill(req->up, st, postgres_migration[v], NULL);
    }
    pg_functions_ddl(st, req->up);
    buf_adds(req->up, path_back_sql);
    pg_fill(req->down, st, "DROP SCHEMA @schema@ CASCADE;\n", NULL);
    buf_adds(req->ret_schema, st->schema);
    pg_close(&st->base);

    bool failed = req->up->failed || req->down->failed || req->ret_schema->failed;
    return failed ? err_nomem(err) : 0;
}
