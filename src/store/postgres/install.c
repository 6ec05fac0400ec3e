/* install.c: functions and views. They are no migrations: what this program carries is put in place
 * whenever what is there is not the same, which a fingerprint in meta tells. What an earlier
 * version had and this one has not is taken away, so that no call has two functions to choose
 * from. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/hash.h"
#include "store/postgres/migrate.h"
#include "store/postgres/postgres.h"

extern const char *const postgres_function[], *const postgres_migration[];

#define FORMER_MAX 64 /* fingerprints that were replaced, and are remembered */

void pg_fingerprint(char out[PG_FINGERPRINT])
{
    uint64_t h = HASH_INIT;
    for (size_t i = 0; postgres_function[i]; i++)
        h = hash_add(h, str_of(postgres_function[i]));
    snprintf(out, PG_FINGERPRINT, "%016" PRIx64, hash_end(h));
}

int pg_functions_status(struct pg_store *st, enum functions_status *ret, struct error *err)
{
    char ours[PG_FINGERPRINT];
    pg_fingerprint(ours);
    /* In a schema that was renamed, functions mean the one they were made for: they are put in
     * place anew. */
    PGresult *r = pg_query(
        st, err,
        "SELECT coalesce(bool_or(name = 'functions' AND value = $1), false) AND "
        "NOT EXISTS (SELECT 1 FROM pg_catalog.pg_proc p "
        "WHERE p.pronamespace = '@schema@'::regnamespace AND p.proname = '_ring' "
        "AND pg_catalog.strpos(p.prosrc, $2 || '.') = 0), "
        "coalesce(bool_or(name = 'functions_former' AND $1 = ANY "
        "(string_to_array(value, ' '))), false) FROM @schema@.meta",
        "ss", ours, st->quoted);
    if (!r)
        return -1;
    *ret = FUNCTIONS_OLDER;
    if (pg_true(r, 0, 1))
        *ret = FUNCTIONS_NEWER;
    if (pg_true(r, 0, 0))
        *ret = FUNCTIONS_SAME;
    PQclear(r);
    return 0;
}

/* ---- what this program has ---- */

/* each_name appends the names behind every `mark` of a text to a list: a,b,c. Each gets the
 * prefix. */
static void each_name(const char *text, const char *mark, const char *prefix, struct buf *to)
{
    for (const char *p = text; (p = strstr(p, mark));) {
        p += strlen(mark);
        size_t n = 0;
        while (isalnum((unsigned char)p[n]) || p[n] == '_')
            n++;
        if (to->n)
            buf_addc(to, ',');
        buf_adds(to, prefix);
        buf_add(to, p, n);
    }
}

static void all_names(const char *mark, struct buf *to)
{
    for (size_t i = 0; postgres_function[i]; i++)
        each_name(postgres_function[i], mark, "", to);
}

/* names_in_migrations appends the functions that migrations make, because tables depend on them.
 * 0005_names.sql gave them their underscore. */
static void names_in_migrations(struct buf *to)
{
    for (int v = 0; v < PG_SCHEMA_VERSION; v++)
        each_name(postgres_migration[v], "CREATE FUNCTION @schema@.", "_", to);
}

static const char function_mark[] = "CREATE OR REPLACE FUNCTION @schema@.",
                  view_mark[] = "CREATE OR REPLACE VIEW @schema@.";

/* ---- one text ---- */

static int run_text(struct pg_store *st, const char *sql, char state[6], struct error *err)
{
    char *text = pg_expand(st, sql);
    if (!text)
        return err_nomem(err);
    pg_clear_results(st->db);
    PGresult *r = PQsendQuery(st->db, text) ? pg_last_result(st, st->db) : NULL;
    free(text);
    ExecStatusType s = PQresultStatus(r);
    const char *code = r ? PQresultErrorField(r, PG_DIAG_SQLSTATE) : NULL;
    snprintf(state, 6, "%s", code ? code : "");
    int bad = s == PGRES_COMMAND_OK || s == PGRES_TUPLES_OK ? 0 : pg_fail(st, st->db, r, err);
    PQclear(r);
    return bad;
}

/* Views go first: they stand on functions, and come last when all is put in place. */
static const char drop_sql[] =
    "DO $outbox$\nDECLARE f record;\nBEGIN\n"
    "FOR f IN SELECT c.oid::regclass AS which FROM pg_catalog.pg_class c WHERE c.relnamespace = "
    "'@schema@'::regnamespace "
    "AND c.relkind = 'v' AND c.relname = ANY ('{%s}') LOOP EXECUTE format('DROP VIEW %%s', "
    "f.which); END LOOP;\n"
    "FOR f IN SELECT p.oid::regprocedure AS which FROM pg_catalog.pg_proc p WHERE p.pronamespace = "
    "'@schema@'::regnamespace "
    "AND p.proname = ANY ('{%s}') ORDER BY p.oid DESC LOOP EXECUTE format('DROP ROUTINE %%s', "
    "f.which); END LOOP;\nEND\n$outbox$";

/* make_way drops what a text makes, where it cannot be replaced in place: its answer has other
 * columns. */
static int make_way(struct pg_store *st, const char *text, struct error *err)
{
    struct buf views, functions, sql;
    char state[6];
    int bad = -1;
    buf_init(&views, 1 << 14);
    buf_init(&functions, 1 << 14);
    buf_init(&sql, 1 << 16);
    each_name(text, function_mark, "", &functions);
    if (functions.n)
        all_names(view_mark, &views);
    else
        each_name(text, view_mark, "", &views);
    if (buf_cstr(&views) && buf_cstr(&functions))
        buf_addf(&sql, drop_sql, views.p, functions.p);
    if (buf_cstr(&sql) && sql.n)
        bad = run_text(st, sql.p, state, err);
    else
        err_nomem(err);
    buf_release(&sql);
    buf_release(&functions);
    buf_release(&views);
    if (bad)
        return err_prefix(err, "a function or view of the outbox changed its columns, and "
                               "something stands on it: drop "
                               "that, and make it again afterwards");
    return 0;
}

static int install_text(struct pg_store *st, const char *text, struct error *err)
{
    static const char keep[] = "SAVEPOINT outbox_install",
                      back[] = "ROLLBACK TO SAVEPOINT outbox_install",
                      done[] = "RELEASE SAVEPOINT outbox_install";
    char state[6];
    if (pg_simple(st, keep, err) != 0)
        return -1;
    int bad = run_text(st, text, state, err);
    bool other_columns = strcmp(state, "42P13") == 0 || strcmp(state, "42P16") == 0;
    if (bad && other_columns) {
        if (pg_simple(st, back, err) != 0 || make_way(st, text, err) != 0)
            return -1;
        bad = run_text(st, text, state, err);
    }
    return bad ? -1 : pg_simple(st, done, err);
}

/* ---- whose names they mean ---- */

/* A function looks names up where its caller does, and whoever may create something there could
 * have his own run in its place, with the caller's rights. So every function has a search_path of
 * its own; but for those that were bound to what they name when they were made (RETURN, BEGIN
 * ATOMIC), and those that say that they write every name with its schema: either can be inlined,
 * and costs nothing. pg_temp comes last, because where it is not named it comes first. */
static const char safe_sql[] =
    "DO $outbox$\nDECLARE f record;\nBEGIN\n"
    "    FOR f IN SELECT p.oid::regprocedure AS which FROM pg_catalog.pg_proc p WHERE "
    "p.pronamespace = '@schema@'::regnamespace\n"
    "             AND p.proname = ANY ('{%s}') AND p.prosqlbody IS NULL AND p.prosrc NOT LIKE "
    "'%%" PG_NAMED_MARK "%%' LOOP\n"
    "        EXECUTE format('ALTER FUNCTION %%s SET search_path = " PG_PATH
    "', f.which);\n    END LOOP;\nEND\n$outbox$;\n";

/* ---- all of them ---- */

/* What an earlier version made, and this run did not: age() is above 0 for what no part of this
 * transaction has written. An outbox of version 1 has no list; there it is what has a name of ours.
 * Where something of the application's stands on one, it stays, and validate tells. */
static const char strays_sql[] =
    "DO $outbox$\nDECLARE\n    former text[];\n    f record;\nBEGIN\n"
    "    SELECT string_to_array(value, E'\\n') INTO former FROM @schema@.meta WHERE name = "
    "'functions_list';\n"
    "    FOR f IN SELECT p.oid::regprocedure AS which FROM pg_proc p WHERE p.pronamespace = "
    "'@schema@'::regnamespace AND\n"
    "             age(p.xmin) > 0 AND CASE WHEN former IS NULL THEN\n"
    "             ARRAY[p.proname, '_' || p.proname]::text[] && '{%s}'\n"
    "             ELSE p.proname || '(' || oidvectortypes(p.proargtypes) || ')' = ANY (former) END "
    "LOOP\n"
    "        BEGIN\n            EXECUTE format('DROP ROUTINE %%s', f.which);\n"
    "        EXCEPTION WHEN dependent_objects_still_exist THEN\n            NULL;\n        END;\n  "
    "  END LOOP;\n"
    /* Rights on what was dropped or is new: a part is given again, whole. */
    "    PERFORM @schema@._give(part, r.rolname) FROM pg_roles r, @schema@.parts(r.rolname) part;\n"
    "    PERFORM @schema@._adopt_again();\nEND\n$outbox$;\n";

/* A new function is everybody's to call. Of ours only those are that open_to_all names. */
static const char close_sql[] =
    "DO $outbox$\nDECLARE f record;\nBEGIN\n"
    "FOR f IN SELECT CASE WHEN x.open THEN 'GRANT EXECUTE ON ROUTINE %%s TO PUBLIC' ELSE 'REVOKE "
    "EXECUTE ON ROUTINE %%s FROM "
    "PUBLIC' END AS text, string_agg(x.which, ', ') AS which FROM (SELECT "
    "p.oid::regprocedure::text AS which, p.proname = ANY "
    "(@schema@._open_to_all()) AS open, EXISTS (SELECT 1 FROM aclexplode(coalesce(p.proacl, "
    "acldefault('f', p.proowner))) a WHERE "
    "a.grantee = 0) AS is_open FROM pg_catalog.pg_proc p WHERE p.pronamespace = "
    "'@schema@'::regnamespace AND p.proname = ANY "
    "('{%s}')) x WHERE x.open <> x.is_open GROUP BY x.open LOOP EXECUTE format(f.text, f.which); "
    "END LOOP;\nEND\n$outbox$;\n";

static const char record_sql[] =
    "INSERT INTO @schema@.meta (name, value) SELECT 'functions_former', value FROM @schema@.meta "
    "WHERE name = 'functions' AND "
    "value <> '%s' ON CONFLICT (name) DO UPDATE SET value = "
    "array_to_string((array_remove(string_to_array(meta.value, ' '), "
    "excluded.value) || excluded.value)[greatest(cardinality(string_to_array(meta.value, ' ')) - "
    "%d, 0) + 1:], ' ');\n"
    "UPDATE @schema@.meta SET value = array_to_string(array_remove(string_to_array(value, ' '), "
    "'%s'), ' ') WHERE name = "
    "'functions_former';\n"
    "INSERT INTO @schema@.meta (name, value) SELECT 'functions', '%s' UNION ALL SELECT "
    "'functions_list', string_agg(p.proname || "
    "'(' || pg_catalog.oidvectortypes(p.proargtypes) || ')', E'\\n' ORDER BY 1) FROM "
    "pg_catalog.pg_proc p WHERE p.pronamespace = "
    "'@schema@'::regnamespace AND p.proname = ANY ('{%s}') ON CONFLICT (name) DO UPDATE SET value "
    "= excluded.value;\n";

/* put_record appends what is to be remembered of the functions in place; with_strays: after what is
 * not ours any more went. */
static void put_record(struct buf *b, bool with_strays)
{
    char ours[PG_FINGERPRINT];
    struct buf names, all;
    pg_fingerprint(ours);
    buf_init(&names, 1 << 16);
    buf_init(&all, 1 << 16);
    all_names(function_mark, &names);
    all_names(function_mark, &all);
    names_in_migrations(&all);
    if (buf_cstr(&names) && buf_cstr(&all)) {
        /* first: what it takes for a stray nobody has touched */
        if (with_strays)
            buf_addf(b, strays_sql, names.p);
        buf_addf(b, safe_sql, all.p);
        buf_addf(b, close_sql, names.p);
        buf_addf(b, record_sql, ours, FORMER_MAX, ours, ours, names.p);
    } else
        b->failed = true;
    buf_release(&all);
    buf_release(&names);
}

int pg_functions_install(struct pg_store *st, struct error *err)
{
    char state[6];
    struct buf b;
    for (size_t i = 0; postgres_function[i]; i++)
        if (install_text(st, postgres_function[i], err) != 0)
            return -1;
    buf_init(&b, 1 << 18);
    put_record(&b, true);
    int bad = buf_cstr(&b) ? run_text(st, b.p, state, err) : err_nomem(err);
    buf_release(&b);
    return bad;
}

void pg_functions_ddl(struct buf *to)
{
    for (size_t i = 0; postgres_function[i]; i++) {
        buf_addc(to, '\n');
        buf_adds(to, postgres_function[i]);
    }
    put_record(to, false);
}
