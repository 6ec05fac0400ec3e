/* validate.c: whether the outbox over there is what this program would make. The way to know is to
 * make one, in a schema of its own and a transaction that is rolled back, and to have PostgreSQL
 * describe both. So nothing here knows what tables look like, and whatever the server's version
 * makes of a definition, it makes of both. */
#include <stdio.h>

#include "store/postgres/migrate.h"
#include "store/postgres/postgres.h"

/* Everything in schema $1: kind, name, definition. Whether older rows were looked at for a
 * constraint makes no difference. With that schema first in search_path its name stays out of what
 * the server writes; from the texts that we wrote (quoted: $2, in a literal: $3), and from names
 * made of it, it is taken out here. */
static const char describe_sql[] =
    "SELECT d.kind, d.name, replace(replace(d.def, $3, '@'), $2, '@') FROM pg_catalog.pg_namespace "
    "n, LATERAL ("
    "SELECT 'table' AS kind, c.relname::text AS name, concat_ws(' ', c.relkind, c.relpersistence, "
    "c.relrowsecurity, "
    "c.relforcerowsecurity, c.reloptions) AS def FROM pg_class c WHERE c.relnamespace = n.oid AND "
    "c.relkind IN ('r', 'p', 'c') "
    "UNION ALL SELECT 'view', CASE c.relname WHEN n.nspname THEN '@' WHEN (n.nspname || "
    "'_dlq')::name THEN '@_dlq' ELSE "
    "c.relname END, concat_ws(' ', c.reloptions, pg_get_viewdef(c.oid)) FROM pg_class c "
    "WHERE c.relnamespace = n.oid AND c.relkind IN ('v', 'm') "
    "UNION ALL SELECT 'sequence', c.relname, concat_ws(' ', format_type(s.seqtypid, NULL), "
    "s.seqstart, s.seqincrement, "
    "s.seqmax, s.seqmin, s.seqcycle) FROM pg_class c JOIN pg_sequence s ON s.seqrelid = c.oid "
    "WHERE c.relnamespace = n.oid "
    "UNION ALL SELECT 'column', c.relname || '.' || a.attname, concat_ws(' ', "
    "format_type(a.atttypid, a.atttypmod), "
    "a.attnotnull, a.attidentity, a.attgenerated, pg_get_expr(x.adbin, x.adrelid)) FROM pg_class c "
    "JOIN pg_attribute a ON "
    "a.attrelid = c.oid LEFT JOIN pg_attrdef x ON x.adrelid = c.oid AND x.adnum = a.attnum WHERE "
    "c.relnamespace = n.oid AND "
    "c.relkind IN ('r', 'p', 'c') AND a.attnum > 0 AND NOT a.attisdropped "
    "UNION ALL SELECT 'index', t.relname || '.' || c.relname, concat_ws(' ', i.indisunique, "
    "i.indisvalid, "
    "substring(pg_get_indexdef(c.oid) FROM ' USING .*')) FROM pg_class c JOIN pg_index i ON "
    "i.indexrelid = c.oid "
    "JOIN pg_class t ON t.oid = i.indrelid WHERE c.relnamespace = n.oid "
    "UNION ALL SELECT 'constraint', c.relname || '.' || k.conname, "
    "replace(pg_get_constraintdef(k.oid, true), ' NOT VALID', '') FROM pg_constraint k JOIN "
    "pg_class c ON c.oid = k.conrelid WHERE c.relnamespace = n.oid AND "
    "k.contype <> 't' "
    "UNION ALL SELECT 'function', p.proname || '(' || pg_get_function_identity_arguments(p.oid) || "
    "')', concat_ws(' ', "
    "pg_get_function_arguments(p.oid), pg_get_function_result(p.oid), l.lanname, p.provolatile, "
    "p.proparallel, p.prosecdef, "
    "p.proisstrict, replace(p.proconfig::text, quote_ident($1), '@'), "
    "coalesce(pg_get_function_sqlbody(p.oid), p.prosrc)) FROM pg_proc p JOIN pg_language l ON "
    "l.oid = p.prolang WHERE p.pronamespace = n.oid "
    "UNION ALL SELECT 'trigger', c.relname || '.' || t.tgname, concat_ws(' ', "
    "pg_get_triggerdef(t.oid, true), t.tgenabled) "
    "FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid WHERE c.relnamespace = n.oid AND NOT "
    "t.tgisinternal "
    "UNION ALL SELECT 'policy', c.relname || '.' || o.polname, concat_ws(' ', o.polcmd, "
    "o.polpermissive, o.polroles, "
    "pg_get_expr(o.polqual, o.polrelid), '/', pg_get_expr(o.polwithcheck, o.polrelid)) FROM "
    "pg_policy o JOIN pg_class c ON "
    "c.oid = o.polrelid WHERE c.relnamespace = n.oid) d WHERE n.nspname = $1 ORDER BY d.kind "
    "COLLATE \"C\", d.name "
    "COLLATE \"C\"";

static PGresult *describe(struct pg_store *st, const struct pg_store *of, struct error *err)
{
    PGresult *r = pg_query(st, err, "SELECT set_config('search_path', $1 || ', pg_temp', true)",
                           "s", of->quoted);
    if (!r)
        return NULL;
    PQclear(r);
    return pg_query(st, err, describe_sql, "sss", of->schema, of->quoted, of->literal);
}

/* harmless says whether what we did not make can do no harm: it only stands beside ours. */
static bool harmless(const char *kind)
{
    static const char *const beside[] = {"table", "view", "sequence", "index", "function", NULL};
    for (size_t i = 0; beside[i]; i++)
        if (strcmp(beside[i], kind) == 0)
            return true;
    return false;
}

/* shadows says whether a function that we did not make has the name of one that we do: a call may
 * mean either. */
static bool shadows(const PGresult *r, int row, const PGresult *ours)
{
    const char *name = PQgetvalue(r, row, 1);
    size_t n = strcspn(name, "(") + 1;
    if (strcmp(PQgetvalue(r, row, 0), "function") != 0)
        return false;
    for (int i = 0; i < PQntuples(ours); i++)
        if (strcmp(PQgetvalue(ours, i, 0), "function") == 0 &&
            strncmp(PQgetvalue(ours, i, 1), name, n) == 0)
            return true;
    return false;
}

static void says_shadow(const PGresult *r, int row, finding_visit *visit, void *ctx)
{
    char text[300];
    snprintf(text, sizeof text,
             "function %.200s has the name of one of the outbox's: a call may mean either",
             PQgetvalue(r, row, 1));
    struct finding f = {
        .level = FINDING_PROBLEM,
        .name = "extra",
        .text = text,
        .advice = "drop it: it is of an earlier version, or belongs into a schema of your own"};
    visit(ctx, &f);
}

static void differs(const PGresult *r, int row, const char *how, finding_visit *visit, void *ctx)
{
    bool extra = strcmp(how, "extra") == 0;
    char text[300];
    const char *kind = PQgetvalue(r, row, 0);
    snprintf(text, sizeof text, "%s %s %s", kind, PQgetvalue(r, row, 1),
             extra                         ? "is not of this program's making"
             : strcmp(how, "missing") == 0 ? "is missing"
                                           : "is not as this program makes it");
    struct finding f = {.level = extra && harmless(kind) ? FINDING_NOTE : FINDING_PROBLEM,
                        .name = how,
                        .text = text};
    if (f.level == FINDING_PROBLEM)
        f.advice = extra ? "drop it, unless you know better"
                         : "put in place what `outbox migrate gen` has for it";
    visit(ctx, &f);
}

static int order(const PGresult *a, int i, const PGresult *b, int j)
{
    if (i >= PQntuples(a))
        return 1;
    if (j >= PQntuples(b))
        return -1;
    int kind = strcmp(PQgetvalue(a, i, 0), PQgetvalue(b, j, 0));
    return kind ? kind : strcmp(PQgetvalue(a, i, 1), PQgetvalue(b, j, 1));
}

/* of_other_table says whether a column, an index or the like belongs to a table that the other side
 * does not have: a word about the table is enough. */
static bool of_other_table(const PGresult *r, int row, const PGresult *other)
{
    const char *name = PQgetvalue(r, row, 1);
    size_t n = strcspn(name, ".(");
    if (name[n] != '.')
        return false;
    for (int i = 0; i < PQntuples(other); i++)
        if (strcmp(PQgetvalue(other, i, 0), "table") == 0 &&
            strncmp(PQgetvalue(other, i, 1), name, n) == 0 && PQgetvalue(other, i, 1)[n] == '\0')
            return false;
    return true;
}

/* taken says whether a view of ours is missing because a table of the application's has its name:
 * then we make none. */
static bool taken(const PGresult *ours, int row, const PGresult *there)
{
    if (strcmp(PQgetvalue(ours, row, 0), "view") != 0)
        return false;
    for (int i = 0; i < PQntuples(there); i++)
        if (strcmp(PQgetvalue(there, i, 0), "table") == 0 &&
            strcmp(PQgetvalue(there, i, 1), PQgetvalue(ours, row, 1)) == 0)
            return true;
    return false;
}

static void compare(const PGresult *there, const PGresult *ours, finding_visit *visit, void *ctx)
{
    for (int i = 0, j = 0; i < PQntuples(there) || j < PQntuples(ours);) {
        int o = order(there, i, ours, j);
        if (o < 0) {
            if (shadows(there, i, ours))
                says_shadow(there, i, visit, ctx);
            else if (!of_other_table(there, i, ours))
                differs(there, i, "extra", visit, ctx);
            i++;
        } else if (o > 0) {
            bool expected = of_other_table(ours, j, there) || taken(ours, j, there);
            if (!expected)
                differs(ours, j, "missing", visit, ctx);
            j++;
        } else {
            if (strcmp(PQgetvalue(there, i, 2), PQgetvalue(ours, j, 2)) != 0)
                differs(there, i, "changed", visit, ctx);
            i++;
            j++;
        }
    }
}

/* make_twin makes an outbox in the schema of `twin`, which shares st's connection. */
static int make_twin(struct pg_store *twin, struct error *err)
{
    char text[128];
    snprintf(text, sizeof text, "CREATE SCHEMA %s", twin->quoted);
    if (pg_simple(twin, text, err) == 0 && pg_install(twin, 0, err) == 0)
        return 0;
    return err_prefix(err,
                      "validate makes an outbox to compare with, in a transaction it rolls back");
}

int pg_validate(struct store *base, finding_visit *visit, void *ctx, struct error *err)
{
    struct pg_store *st = pg_of(base), twin;
    char name[64], quoted[64];
    PGresult *there = NULL, *ours = NULL;
    snprintf(name, sizeof name, "outbox_validate_%016llx", (unsigned long long)rng_next(&st->rng));
    snprintf(quoted, sizeof quoted, "\"%s\"", name);
    if (pg_begin(base, err) != 0)
        return -1;
    twin = *st;
    twin.schema = name;
    twin.quoted = twin.literal = quoted;
    if (make_twin(&twin, err) == 0 && (there = describe(st, st, err)))
        ours = describe(st, &twin, err);
    pg_rollback(base);
    if (ours)
        compare(there, ours, visit, ctx);
    PQclear(there);
    int r = ours ? 0 : -1;
    PQclear(ours);
    return r;
}
