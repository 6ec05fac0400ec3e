/* migrate.c: the tables, in numbered steps.
 *
 * Producers and workers may be at work while an outbox is brought up. ALTER TABLE wants a lock that
 * nobody else may share, and whoever comes while it waits for that has to wait behind it: one long
 * transaction would stop everybody. So the locks are waited for LOCK_WAIT at a time, that of the
 * events last, and if they cannot be had all is undone and tried again later. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/buf.h"
#include "base/text.h"
#include "store/postgres/migrate.h"
#include "store/postgres/postgres.h"

extern const char *const postgres_migration[];

#define LOCK_WAIT "200ms"
#define LOCK_PATIENCE_MS 600000
#define PAUSE_FIRST_MS 500
#define PAUSE_MAX_MS 5000
#define TELL_EVERY_MS 10000

static int read_version(struct pg_store *st, int64_t *ret, struct error *err)
{
    *ret = 0;
    PGresult *r = pg_query(
        st, err,
        "SELECT count(*) FILTER (WHERE c.relname = 'meta'), count(*) FILTER (WHERE c.relname = "
        "'event') "
        "FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE "
        "n.nspname = $1 AND c.relkind IN ('r', 'p')",
        "s", st->schema);
    if (!r)
        return -1;
    bool meta = pg_int(r, 0, 0) > 0, event = pg_int(r, 0, 1) > 0;
    PQclear(r);
    if (event && !meta)
        return err_fate(err, ERR_NOTOURS, FATE_FATAL, 0,
                        "%s: schema %s has a table event that is not ours (no table meta beside "
                        "it); use another schema "
                        "(?schema=NAME)",
                        st->shown, st->quoted);
    if (!meta)
        return 0;
    r = pg_query(st, err, "SELECT value FROM @schema@.meta WHERE name = 'schema_version'", "");
    if (!r)
        return -1;
    *ret = PQntuples(r) ? pg_int(r, 0, 0) : 0;
    PQclear(r);
    return 0;
}

int pg_version(struct pg_store *st, int64_t *ret, struct error *err)
{
    if (read_version(st, ret, err) != 0)
        return -1;
    if (*ret <= PG_SCHEMA_VERSION)
        return 0;
    return err_fate(err, ERR_NEWER, FATE_FATAL, 0,
                    "%s: the outbox in schema %s has version %lld, this program knows up to %d; "
                    "use a newer outbox",
                    st->shown, st->quoted, (long long)*ret, PG_SCHEMA_VERSION);
}

int pg_schema_status(struct store *base, struct schema_status *ret, struct error *err)
{
    int64_t there;
    if (read_version(pg_of(base), &there, err) != 0)
        return -1;
    *ret = (struct schema_status){.there = there, .known = PG_SCHEMA_VERSION};
    return there == PG_SCHEMA_VERSION ? pg_functions_status(pg_of(base), &ret->functions, err) : 0;
}

static int run_text(struct pg_store *st, const char *sql, struct error *err)
{
    char *text = pg_expand(st, sql);
    int r = text ? pg_simple(st, text, err) : err_nomem(err);
    free(text);
    return r;
}

/* make_schema: a role that may not create schemas can still use one that was made for it; not one
 * that is somebody else's. */
static int make_schema(struct pg_store *st, struct error *err)
{
    PGresult *r = pg_query(st, err, PG_STRANGERS_SQL, "s", st->schema);
    if (!r)
        return -1;
    bool there = PQntuples(r) > 0;
    int bad = 0;
    if (!there)
        bad = run_text(st, "CREATE SCHEMA @schema@", err);
    else if (pg_str(r, 0, 0))
        bad = err_fate(err, ERR_NOTOURS, FATE_FATAL, 0,
                       "%s: schema %s is there, and others may create functions in it, which would "
                       "run with the rights of the "
                       "outbox's owner: %s; make the outbox as the role that owns the schema, "
                       "REVOKE CREATE ON SCHEMA %s FROM the "
                       "others, or use another schema (?schema=NAME)",
                       st->shown, st->quoted, pg_str(r, 0, 0), st->quoted);
    PQclear(r);
    return bad;
}

/* Functions may name each other, whatever their order. */
static const char settings[] =
    "SET LOCAL check_function_bodies = off; SET LOCAL client_min_messages = warning;\n";
/* What another tool runs looks names up as we do, and leaves that as it was. */
static const char
    path_ours[] =
        "SELECT pg_catalog.set_config('outbox.search_path', "
        "pg_catalog.current_setting('search_path'), true);\nSET LOCAL search_path = " PG_PATH ";\n",
    path_back[] =
        "SELECT set_config('search_path', current_setting('outbox.search_path'), true);\n";

/* lock_sql takes the tables there are, so that what follows waits for nobody: the events last,
 * because a producer waits from the moment we ask for those. */
static const char lock_sql[] =
    "DO $outbox$\nDECLARE t record;\nBEGIN\n"
    "FOR t IN SELECT c.oid::regclass AS which FROM pg_catalog.pg_class c WHERE c.relnamespace = "
    "'@schema@'::regnamespace "
    "AND c.relkind IN ('r', 'p') AND has_table_privilege(c.oid, 'UPDATE') ORDER BY c.relname = "
    "'event', c.relname LOOP\n"
    "EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', t.which);\nEND LOOP;\nEND\n$outbox$";

/* step runs one migration. What stands before its mark `-- @locked@` takes time, and is done before
 * the tables are locked. */
static int step(struct pg_store *st, const char *sql, bool at_work, struct error *err)
{
    static const char mark[] = "-- @locked@\n";
    const char *locked = strstr(sql, mark);
    char *before = locked ? strndup(sql, (size_t)(locked - sql)) : NULL;
    int bad = 0;
    if (locked && !before)
        return err_nomem(err);
    if (before)
        bad = run_text(st, before, err);
    if (!bad && at_work)
        bad = run_text(st, lock_sql, err);
    if (!bad)
        bad = run_text(st, locked ? locked : sql, err);
    free(before);
    return bad;
}

int pg_install(struct pg_store *st, int64_t from, struct error *err)
{
    if (pg_simple(st, settings, err) != 0)
        return -1;
    for (int64_t v = from; v < PG_SCHEMA_VERSION; v++)
        if (step(st, postgres_migration[v], from > 0, err) != 0)
            return -1;
    return pg_functions_install(st, err);
}

/* ---- init ---- */

struct migrating {
    struct pg_store *st;
    int64_t from;                    /* the version that was there */
    enum functions_status functions; /* where that is ours */
    bool changed;
};

/* become_owner: what a superuser, or a member of the owner's role, makes has to be the owner's,
 * too. */
static int become_owner(struct pg_store *st, struct error *err)
{
    PGresult *r = pg_query(st, err,
                           "SELECT pg_get_userbyid(c.relowner), pg_has_role(c.relowner, 'MEMBER'), "
                           "current_user, quote_ident("
                           "pg_get_userbyid(c.relowner)) FROM pg_catalog.pg_class c JOIN "
                           "pg_catalog.pg_namespace n ON n.oid = "
                           "c.relnamespace WHERE n.nspname = $1 AND c.relname = 'meta'",
                           "s", st->schema);
    if (!r)
        return -1;
    int bad = 0;
    char text[160];
    if (!pg_true(r, 0, 1))
        bad = err_fate(err, ERR_READONLY, FATE_FATAL, 0,
                       "%s: the outbox in schema %s belongs to role \"%.60s\", and \"%.60s\" may "
                       "not change it: bring it up "
                       "to date as its owner; nothing was changed",
                       st->shown, st->quoted, PQgetvalue(r, 0, 0), PQgetvalue(r, 0, 2));
    else if (strcmp(PQgetvalue(r, 0, 0), PQgetvalue(r, 0, 2)) != 0) {
        snprintf(text, sizeof text, "SET LOCAL ROLE %s", PQgetvalue(r, 0, 3));
        bad = pg_simple(st, text, err);
    }
    PQclear(r);
    return bad;
}

/* wanted says whether there is anything to do. */
static bool wanted(const struct migrating *m)
{
    if (m->from < PG_SCHEMA_VERSION)
        return true;
    if (m->functions == FUNCTIONS_NEWER)
        return m->st->opt.replace;
    return m->functions == FUNCTIONS_OLDER;
}

static int bring_up(struct migrating *m, struct error *err)
{
    struct pg_store *st = m->st;
    if (m->from == 0)
        return make_schema(st, err) == 0 ? pg_install(st, 0, err) : -1;
    if (become_owner(st, err) != 0)
        return -1;
    if (pg_simple(st, "SET LOCAL lock_timeout = '" LOCK_WAIT "'", err) != 0)
        return -1;
    if (pg_install(st, m->from, err) != 0)
        return -1;
    /* Those of an older version that sleep are to learn of it now. */
    return run_text(st, "SELECT @schema@._bell_ring()", err);
}

/* alone_sql locks a table, which only one can who may change it. Where there is none yet, CREATE
 * lets one through. */
static const char alone_sql[] =
    "DO $outbox$\nBEGIN\nIF has_table_privilege(to_regclass('@schema@.meta'), 'UPDATE') THEN\n"
    "LOCK TABLE @schema@.meta IN SHARE ROW EXCLUSIVE MODE;\nEND IF;\nEND\n$outbox$";

/* attempt is one transaction: all of it, or nothing. */
static int attempt(struct migrating *m, struct error *err)
{
    struct pg_store *st = m->st;
    if (pg_begin(&st->base, err) != 0)
        return -1;
    /* One at a time, whichever program comes first; the others find the work done. */
    int bad = run_text(st,
                       "SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0; "
                       "SET LOCAL idle_in_transaction_session_timeout = 0",
                       err);
    if (!bad)
        bad = run_text(st, alone_sql, err);
    if (!bad)
        bad = pg_version(st, &m->from, err);
    if (!bad && m->from == PG_SCHEMA_VERSION)
        bad = pg_functions_status(st, &m->functions, err);
    if (!bad)
        m->changed = wanted(m);
    if (!bad && m->changed)
        bad = bring_up(m, err);
    if (bad)
        pg_rollback(&st->base);
    else
        bad = pg_commit(&st->base, err);
    return bad;
}

/* tell says who has the tables in use: the oldest transaction among them. */
static void tell(const struct migrating *m, int64_t left_ms)
{
    struct pg_store *st = m->st;
    char text[400], left[32];
    if (!st->opt.progress)
        return;
    text_duration_show(left_ms / 1000 * 1000, left);
    PGresult *r = pg_query(
        st, NULL,
        "SELECT a.pid, coalesce(a.application_name, ''), coalesce(a.state, 'at work'), "
        "coalesce(floor(extract(epoch FROM clock_timestamp() - a.xact_start)), 0) FROM "
        "pg_catalog.pg_locks l "
        "JOIN pg_catalog.pg_class c ON c.oid = l.relation JOIN pg_catalog.pg_namespace n ON n.oid "
        "= "
        "c.relnamespace JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid WHERE n.nspname = $1 "
        "AND l.granted "
        "AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = "
        "current_database()) AND "
        "l.pid <> pg_backend_pid() ORDER BY a.xact_start LIMIT 1",
        "s", st->schema);
    if (r && PQntuples(r))
        snprintf(text, sizeof text,
                 "the outbox is in use by pid %s (\"%.60s\", %s, its transaction is %s s old); "
                 "nothing is changed yet, "
                 "trying again for %s",
                 PQgetvalue(r, 0, 0), PQgetvalue(r, 0, 1), PQgetvalue(r, 0, 2), PQgetvalue(r, 0, 3),
                 left);
    else
        snprintf(text, sizeof text,
                 "the outbox is in use; nothing is changed yet, trying again for %s", left);
    PQclear(r);
    st->opt.progress(st->opt.progress_ctx, text);
}

static void sleep_ms(int64_t ms)
{
    struct timespec ts = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000 * MS_NS)};
    nanosleep(&ts, NULL);
}

/* persist tries until it is done, or cannot be, or has taken too long. Producers get on between the
 * attempts. */
static int persist(struct migrating *m, struct error *err)
{
    int64_t patience = m->st->opt.lock_ms ? m->st->opt.lock_ms : LOCK_PATIENCE_MS;
    int64_t began = clock_mono(&clock_system) / MS_NS, told = -TELL_EVERY_MS,
            pause = PAUSE_FIRST_MS;
    for (;;) {
        struct error why;
        if (attempt(m, &why) == 0)
            return 0;
        int64_t spent = clock_mono(&clock_system) / MS_NS - began, there;
        bool made_by_another = m->from == 0 && read_version(m->st, &there, NULL) == 0 && there > 0;
        if (made_by_another)
            continue;
        if (why.code != ERR_BUSY || m->from == 0) {
            if (err)
                *err = why;
            return -1;
        }
        if (spent + pause > patience)
            return err_fate(err, ERR_BUSY, FATE_RETRY, 0,
                            "%s: the outbox was in use by a long transaction all the time; nothing "
                            "was changed: end that (see "
                            "`outbox doctor`), and try again",
                            m->st->shown);
        if (spent - told >= TELL_EVERY_MS) {
            tell(m, patience - spent);
            told = spent;
        }
        sleep_ms(pause);
        pause = pause * 2 < PAUSE_MAX_MS ? pause * 2 : PAUSE_MAX_MS;
    }
}

/* check_old_rows: constraints that came as NOT VALID hold for what is new from the start. That they
 * hold for what was there is looked at now, which keeps nobody waiting. If they do not, they stay
 * as they are: nothing is wrong with the outbox. */
static int check_old_rows(struct migrating *m, struct error *err)
{
    struct pg_store *st = m->st;
    PGresult *r = pg_query(st, err,
                           "SELECT format('ALTER TABLE %s VALIDATE CONSTRAINT %I', "
                           "k.conrelid::regclass, k.conname) FROM "
                           "pg_catalog.pg_constraint k JOIN pg_catalog.pg_namespace n ON n.oid = "
                           "k.connamespace WHERE n.nspname = "
                           "$1 AND NOT k.convalidated AND k.contype = 'c' AND k.conrelid <> 0",
                           "s", st->schema);
    if (!r)
        return -1;
    for (int i = 0; i < PQntuples(r); i++) {
        struct error ignored;
        if (pg_begin(&st->base, err) != 0)
            break;
        int bad = pg_simple(
            st, "SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '" LOCK_WAIT "'",
            &ignored);
        if (!bad)
            bad = pg_simple(st, PQgetvalue(r, i, 0), &ignored);
        if (bad)
            pg_rollback(&st->base);
        else
            pg_commit(&st->base, &ignored);
    }
    PQclear(r);
    return 0;
}

int pg_init(struct store *base, bool *ret_created, struct error *err)
{
    struct migrating m = {.st = pg_of(base)};
    m.st->patient = true;
    int bad = persist(&m, err);
    if (!bad && m.changed && m.from > 0)
        bad = check_old_rows(&m, err);
    m.st->patient = false;
    if (!bad)
        *ret_created = m.changed;
    return bad;
}

/* ---- for other tools ---- */

static void add_text(const struct pg_store *st, const char *sql, struct buf *to)
{
    char *text = pg_expand(st, sql);
    if (text)
        buf_adds(to, text);
    else
        to->failed = true;
    free(text);
}

int pg_ddl(const struct ddl_request *req, struct error *err)
{
    struct store_options opt = {0};
    struct pg_store *st = pg_new(req->url, req->schema ? req->schema : PG_SCHEMA, &opt, err);
    if (!st)
        return -1;
    add_text(st, "CREATE SCHEMA IF NOT EXISTS @schema@;\n", req->up);
    buf_adds(req->up, path_ours);
    buf_adds(req->up, settings);
    for (int v = 0; v < PG_SCHEMA_VERSION; v++) {
        buf_addc(req->up, '\n');
        add_text(st, postgres_migration[v], req->up);
    }
    struct buf functions;
    buf_init(&functions, (size_t)4 << 20);
    pg_functions_ddl(&functions);
    if (buf_cstr(&functions))
        add_text(st, functions.p, req->up);
    else
        req->up->failed = true;
    buf_adds(req->up, path_back);
    buf_release(&functions);
    add_text(st, "DROP SCHEMA @schema@ CASCADE;\n", req->down);
    buf_adds(req->ret_schema, st->schema);
    pg_close(&st->base);
    return req->up->failed || req->down->failed || req->ret_schema->failed ? err_nomem(err) : 0;
}
