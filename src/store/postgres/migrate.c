/* migrate.c: the tables, in numbered steps, and the functions and views, which are put in place anew with every step. */
#include <stdlib.h>

#include "base/buf.h"
#include "store/postgres/migrate.h"
#include "store/postgres/postgres.h"

extern const char *const postgres_migration[], *const postgres_function[];

static int read_version(struct pg_store *st, int64_t *ret, struct error *err)
{
    *ret = 0;
    PGresult *r = pg_query(
        st, err,
        "SELECT count(*) FILTER (WHERE c.relname = 'meta'), count(*) FILTER (WHERE c.relname = 'event') "
        "FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE "
        "n.nspname = $1 AND c.relkind IN ('r', 'p')",
        "s", st->schema);
    if (!r) return -1;
    bool meta = pg_int(r, 0, 0) > 0, event = pg_int(r, 0, 1) > 0;
    PQclear(r);
    if (event && !meta)
        return err_fate(
            err, ERR_NOTOURS, FATE_FATAL, 0,
            "%s: schema %s has a table event that is not ours (no table meta beside it); use another schema "
            "(?schema=NAME)",
            st->shown, st->quoted);
    if (!meta) return 0;
    r = pg_query(st, err, "SELECT value FROM @schema@.meta WHERE name = 'schema_version'", "");
    if (!r) return -1;
    *ret = PQntuples(r) ? pg_int(r, 0, 0) : 0;
    PQclear(r);
    return 0;
}

int pg_version(struct pg_store *st, int64_t *ret, struct error *err)
{
    if (read_version(st, ret, err) != 0) return -1;
    if (*ret <= PG_SCHEMA_VERSION) return 0;
    return err_fate(err, ERR_NEWER, FATE_FATAL, 0,
                    "%s: the outbox in schema %s has version %lld, this program knows up to %d; use a newer outbox",
                    st->shown, st->quoted, (long long)*ret, PG_SCHEMA_VERSION);
}

int pg_schema_status(struct store *base, struct schema_status *ret, struct error *err)
{
    int64_t there;
    if (read_version(pg_of(base), &there, err) != 0) return -1;
    *ret = (struct schema_status){.there = there, .known = PG_SCHEMA_VERSION};
    return 0;
}

static int run_text(struct pg_store *st, const char *sql, struct error *err)
{
    char *text = pg_expand(st, sql);
    int r = text ? pg_simple(st, text, err) : err_nomem(err);
    free(text);
    return r;
}

/* make_schema: a role that may not create schemas can still use one that was made for it. */
static int make_schema(struct pg_store *st, struct error *err)
{
    PGresult *r = pg_query(st, err, "SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = $1", "s", st->schema);
    if (!r) return -1;
    bool there = PQntuples(r) > 0;
    PQclear(r);
    return there ? 0 : run_text(st, "CREATE SCHEMA @schema@", err);
}

/* Functions may name each other, whatever their order. */
static const char settings[] = "SET LOCAL check_function_bodies = off; SET LOCAL client_min_messages = warning;\n";

int pg_install(struct pg_store *st, int64_t from, struct error *err)
{
    if (pg_simple(st, settings, err) != 0) return -1;
    for (int64_t v = from; v < PG_SCHEMA_VERSION; v++)
        if (run_text(st, postgres_migration[v], err) != 0) return -1;
    for (size_t i = 0; postgres_function[i]; i++)
        if (run_text(st, postgres_function[i], err) != 0) return -1;
    return 0;
}

int pg_migrate_in(struct pg_store *st, int64_t *ret_from, struct error *err)
{
    /* One at a time, whichever program comes first; the others find the work done. */
    if (run_text(st, "SELECT pg_advisory_xact_lock(hashtextextended('@schema@ migrate', 0))", err) != 0 ||
        pg_version(st, ret_from, err) != 0)
        return -1;
    if (*ret_from == PG_SCHEMA_VERSION) return 0;
    if (*ret_from == 0 && make_schema(st, err) != 0) return -1;
    return pg_install(st, *ret_from, err);
}

int pg_init(struct store *base, bool *ret_created, struct error *err)
{
    struct pg_store *st = pg_of(base);
    int64_t from;
    st->patient = true;
    int bad = pg_begin(base, err);
    if (!bad) {
        bad = pg_migrate_in(st, &from, err);
        if (bad) pg_rollback(base);
        else bad = pg_commit(base, err);
    }
    st->patient = false;
    if (!bad) *ret_created = from < PG_SCHEMA_VERSION;
    return bad;
}

/* ---- for other tools ---- */

static void add_text(const struct pg_store *st, const char *sql, struct buf *to)
{
    char *text = pg_expand(st, sql);
    if (text) buf_adds(to, text);
    else to->failed = true;
    free(text);
}

int pg_ddl(const struct ddl_request *req, struct error *err)
{
    struct store_options opt = {0};
    struct pg_store *st = pg_new(req->url, req->schema ? req->schema : PG_SCHEMA, &opt, err);
    if (!st) return -1;
    add_text(st, "CREATE SCHEMA IF NOT EXISTS @schema@;\n", req->up);
    buf_adds(req->up, settings);
    for (int v = 0; v < PG_SCHEMA_VERSION; v++) {
        buf_addc(req->up, '\n');
        add_text(st, postgres_migration[v], req->up);
    }
    for (size_t i = 0; postgres_function[i]; i++) {
        buf_addc(req->up, '\n');
        add_text(st, postgres_function[i], req->up);
    }
    add_text(st, "DROP SCHEMA @schema@ CASCADE;\n", req->down);
    buf_adds(req->ret_schema, st->schema);
    pg_close(&st->base);
    return req->up->failed || req->down->failed || req->ret_schema->failed ? err_nomem(err) : 0;
}
