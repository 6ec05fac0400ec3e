/* install.c: functions and views. They are not migrations. This program's versions are installed
 * whenever the fingerprint in table meta differs. Those of earlier versions that no longer exist
 * are dropped, so that no call is ambiguous. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/hash.h"
#include "store/postgres/migrate.h"
#include "store/postgres/postgres.h"

extern const char *const postgres_function[], *const postgres_migration[];
extern const char postgres_statement_close[], postgres_statement_drop_strays[],
    postgres_statement_make_way[], postgres_statement_record[], postgres_statement_set_paths[];

#define FINGERPRINT 17  /* 16 digits and a NUL */
#define FORMER_MAX "64" /* fingerprints that were replaced, and are remembered */

/* The fingerprint of this program's functions and views. */
static void fingerprint(char out[FINGERPRINT])
{
    uint64_t h = HASH_INIT;
    for (size_t i = 0; postgres_function[i]; i++)
        h = hash_add(h, str_of(postgres_function[i]));
    snprintf(out, FINGERPRINT, "%016" PRIx64, hash_end(h));
}

/* In a renamed schema, functions still name the schema they were created for: they do not count as
 * the same, and are installed again. */
/* clang-format off */
static const char status_sql[] =
    "SELECT coalesce(bool_or(name = 'functions' AND value = $1), false) "
           "AND NOT EXISTS ("
               "SELECT 1 "
               "FROM pg_catalog.pg_proc p "
               "WHERE p.pronamespace = '@schema@'::regnamespace "
                 "AND p.proname = '_wakeup_notify' "
                 "AND pg_catalog.strpos(p.prosrc, $2 || '.') = 0), "
           "coalesce(bool_or(name = 'functions_former' "
                            "AND $1 = ANY (string_to_array(value, ' '))), false) "
    "FROM @schema@.meta";
/* clang-format on */

int pg_functions_status(struct pg_store *st, enum functions_status *ret, struct error *err)
{
    char ours[FINGERPRINT];
    fingerprint(ours);
    PGresult *r = pg_query(st, err, status_sql, "ss", ours, st->quoted);
    if (!r)
        return -1;
    bool same = pg_true(r, 0, 0);
    bool replaced_ours = pg_true(r, 0, 1);
    PQclear(r);

    *ret = FUNCTIONS_OLDER;
    if (replaced_ours)
        *ret = FUNCTIONS_NEWER;
    if (same)
        *ret = FUNCTIONS_SAME;
    return 0;
}

/* ---- what this program has ---- */

static const char function_mark[] = "CREATE OR REPLACE FUNCTION @schema@.";
static const char view_mark[] = "CREATE OR REPLACE VIEW @schema@.";

/* Appends the name behind every `mark` of a text to a list a,b,c. */
static void each_name(const char *text, const char *mark, struct buf *to)
{
    for (const char *p = text; (p = strstr(p, mark));) {
        p += strlen(mark);
        size_t n = 0;
        while (isalnum((unsigned char)p[n]) || p[n] == '_')
            n++;
        if (to->n > 0)
            buf_addc(to, ',');
        buf_add(to, p, n);
    }
}

static void all_names(const char *mark, struct buf *to)
{
    for (size_t i = 0; postgres_function[i]; i++)
        each_name(postgres_function[i], mark, to);
}

/* Appends the functions that migrations create, because tables depend on them. */
static void names_in_migrations(struct buf *to)
{
    for (int v = 0; v < PG_SCHEMA_VERSION; v++)
        each_name(postgres_migration[v], "CREATE FUNCTION @schema@.", to);
}

/* ---- filling in ---- */

/* A mark in our statements and its replacement; the last one has a NULL. */
struct mark {
    const char *mark, *text;
};

static const struct mark *mark_at(const char *p, const struct mark *marks)
{
    for (const struct mark *m = marks; m->mark; m++)
        if (strncmp(p, m->mark, strlen(m->mark)) == 0)
            return m;
    return NULL;
}

/* Appends a statement with its marks replaced. It leaves marks it does not know, which pg_expand
 * replaces. */
static void add_filled(struct buf *b, const char *sql, const struct mark *marks)
{
    for (const char *p = sql; *p;) {
        const struct mark *m = mark_at(p, marks);
        if (m) {
            buf_adds(b, m->text);
            p += strlen(m->mark);
        } else {
            buf_addc(b, *p++);
        }
    }
}

/* ---- one text ---- */

/* Appends DROP statements for the functions and views that a text creates. Views may depend on any
 * function, so a function drops all views; they are created last. */
static void add_make_way(struct buf *sql, const char *text)
{
    struct buf views, functions;
    buf_init(&views, 1 << 14);
    buf_init(&functions, 1 << 14);
    each_name(text, function_mark, &functions);
    if (functions.n > 0)
        all_names(view_mark, &views);
    else
        each_name(text, view_mark, &views);

    const struct mark marks[] = {
        {"@views@", buf_cstr(&views)}, {"@functions@", buf_cstr(&functions)}, {NULL, NULL}};
    bool whole = marks[0].text && marks[1].text;
    if (whole)
        add_filled(sql, postgres_statement_make_way, marks);
    else
        sql->failed = true;
    buf_release(&functions);
    buf_release(&views);
}

/* Drops what a text creates but cannot replace, because its columns have changed. */
static int make_way(struct pg_store *st, const char *text, struct error *err)
{
    struct buf sql;
    buf_init(&sql, 1 << 16);
    add_make_way(&sql, text);
    int result;
    if (buf_cstr(&sql))
        result = pg_script(st, sql.p, err);
    else
        result = err_nomem(err);
    buf_release(&sql);
    if (result == 0)
        return 0;
    return err_prefix(err, "a function or view of the outbox changed its columns, and something "
                           "depends on it: drop that, and create it again afterwards");
}

/* Whether the last error was that something cannot be replaced in place. */
static bool has_other_columns(const struct pg_store *st)
{
    return strcmp(st->state, "42P13") == 0 || strcmp(st->state, "42P16") == 0;
}

/* Installs a text. *ret_other_columns is set if a function or view there cannot be replaced in
 * place; then nothing was done. */
static int install_or_replace(struct pg_store *st, const char *text, bool *ret_other_columns,
                              struct error *err)
{
    if (pg_simple(st, "SAVEPOINT outbox_install", err) != 0)
        return -1;
    st->state[0] = '\0';
    if (pg_script(st, text, err) != 0) {
        if (!has_other_columns(st))
            return -1;
        if (pg_simple(st, "ROLLBACK TO SAVEPOINT outbox_install", err) != 0)
            return -1;
        *ret_other_columns = true;
    }
    return pg_simple(st, "RELEASE SAVEPOINT outbox_install", err);
}

/* Installs each function or view of a text separately, so that only those that cannot be replaced
 * are dropped. Tables or policies may depend on others. */
static int install_one_by_one(struct pg_store *st, const char *text, struct error *err)
{
    static const char create[] = "\nCREATE OR REPLACE ";
    int result = 0;
    for (const char *p = text, *next; result == 0 && p; p = next) {
        const char *own = strstr(p, create);
        next = own ? strstr(own + 1, create) : NULL;
        char *one = next ? strndup(p, (size_t)(next - p)) : strdup(p);
        bool other_columns = false;
        if (!one)
            return err_nomem(err);
        result = install_or_replace(st, one, &other_columns, err);
        if (result == 0 && other_columns) {
            result = make_way(st, one, err);
            if (result == 0)
                result = pg_script(st, one, err);
        }
        free(one);
    }
    return result;
}

static int install_text(struct pg_store *st, const char *text, struct error *err)
{
    bool other_columns = false;
    if (install_or_replace(st, text, &other_columns, err) != 0)
        return -1;
    return other_columns ? install_one_by_one(st, text, err) : 0;
}

/* ---- installing ---- */

/* Appends what follows the functions: their search_paths and grants, and the record of what is
 * installed. With drop_strays, functions of earlier versions are dropped first, while nothing has
 * touched them. */
static void add_finish(struct buf *b, bool drop_strays)
{
    char ours[FINGERPRINT];
    struct buf names, all;
    fingerprint(ours);
    buf_init(&names, 1 << 16);
    buf_init(&all, 1 << 16);
    all_names(function_mark, &names);
    all_names(function_mark, &all);
    names_in_migrations(&all);

    const struct mark marks[] = {{"@functions@", buf_cstr(&names)},
                                 {"@all_functions@", buf_cstr(&all)},
                                 {"@fingerprint@", ours},
                                 {"@former_max@", FORMER_MAX},
                                 {"@named_mark@", PG_NAMED_MARK},
                                 {"@path@", PG_PATH},
                                 {NULL, NULL}};
    bool whole = marks[0].text && marks[1].text;
    if (whole) {
        if (drop_strays)
            add_filled(b, postgres_statement_drop_strays, marks);
        add_filled(b, postgres_statement_set_paths, marks);
        add_filled(b, postgres_statement_close, marks);
        add_filled(b, postgres_statement_record, marks);
    } else {
        b->failed = true;
    }
    buf_release(&all);
    buf_release(&names);
}

int pg_functions_install(struct pg_store *st, struct error *err)
{
    for (size_t i = 0; postgres_function[i]; i++)
        if (install_text(st, postgres_function[i], err) != 0)
            return -1;

    struct buf b;
    buf_init(&b, 1 << 18);
    add_finish(&b, true);
    int result;
    if (buf_cstr(&b))
        result = pg_script(st, b.p, err);
    else
        result = err_nomem(err);
    buf_release(&b);
    return result;
}

void pg_functions_ddl(struct buf *to)
{
    for (size_t i = 0; postgres_function[i]; i++) {
        buf_addc(to, '\n');
        buf_adds(to, postgres_function[i]);
    }
    add_finish(to, false);
}
