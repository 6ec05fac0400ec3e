/* install.c: functions and views. They are not migrations: this program's are installed whenever
 * the fingerprint in table meta differs. Functions that only earlier versions had are dropped, so
 * that no call is ambiguous. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/str.h"
#include "store/postgres/postgres.h"

extern const char *const postgres_function[], *const postgres_migration[];
extern const char postgres_statement_drop_replaced[], postgres_statement_drop_strays[],
    postgres_statement_finish[];

#define FINGERPRINT 17  /* 16 digits and a NUL */
#define FORMER_MAX "64" /* how many replaced fingerprints are remembered */

/* Writes the fingerprint of this program's functions and views. */
static void fingerprint(char out[FINGERPRINT])
{
    uint64_t h = HASH_INIT;
    for (size_t i = 0; postgres_function[i]; i++)
        h = hash_add(h, str_of(postgres_function[i]));
    snprintf(out, FINGERPRINT, "%016" PRIx64, hash_end(h));
}

/* In a renamed schema, functions still name the old schema: they do not count as the same, and are
 * installed again. */
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

/* ---- names ---- */

static const char function_mark[] = "CREATE OR REPLACE FUNCTION @schema@.";
static const char view_mark[] = "CREATE OR REPLACE VIEW @schema@.";

/* Appends the name after every `mark` of a text to a list a,b,c. */
static void add_names(const char *text, const char *mark, struct buf *to)
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

static void add_all_names(const char *mark, struct buf *to)
{
    for (size_t i = 0; postgres_function[i]; i++)
        add_names(postgres_function[i], mark, to);
}

/* ---- one text ---- */

/* Drops the functions and views of a text that cannot be replaced, because their columns have
 * changed. Views may depend on any function, so with a function all views are dropped; they are
 * created last. */
static int drop_replaced(struct pg_store *st, const char *text, struct error *err)
{
    struct buf views, functions;
    buf_init(&views, 1 << 14);
    buf_init(&functions, 1 << 14);
    add_names(text, function_mark, &functions);
    if (functions.n > 0)
        add_all_names(view_mark, &views);
    else
        add_names(text, view_mark, &views);

    const struct pg_mark marks[] = {
        {"@views@", buf_cstr(&views)}, {"@functions@", buf_cstr(&functions)}, {NULL, NULL}};
    int result;
    if (marks[0].text && marks[1].text)
        result = pg_script(st, postgres_statement_drop_replaced, marks, err);
    else
        result = err_nomem(err);
    buf_release(&functions);
    buf_release(&views);
    if (result == 0)
        return 0;
    return err_prefix(err, "a function or view of the outbox changed its columns, and another "
                           "object depends on it: drop that object, and recreate it afterwards");
}

/* Installs a text. *ret_other_columns is set if a function or view there cannot be replaced in
 * place; then nothing was done. */
static int install_text(struct pg_store *st, const char *text, bool *ret_other_columns,
                        struct error *err)
{
    if (pg_simple(st, "SAVEPOINT outbox_install", err) != 0)
        return -1;
    st->state[0] = '\0';
    if (pg_script(st, text, NULL, err) != 0) {
        bool other_columns = strcmp(st->state, "42P13") == 0 || strcmp(st->state, "42P16") == 0;
        if (!other_columns)
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
        result = install_text(st, one, &other_columns, err);
        if (result == 0 && other_columns) {
            result = drop_replaced(st, one, err);
            if (result == 0)
                result = pg_script(st, one, NULL, err);
        }
        free(one);
    }
    return result;
}

/* ---- installing ---- */

/* Appends the statements that follow the functions. With drop_strays, functions that only earlier
 * versions had are dropped first, before any statement changes them. */
static void add_finish(struct buf *b, const struct pg_store *st, bool drop_strays)
{
    char ours[FINGERPRINT];
    struct buf names, all;
    fingerprint(ours);
    buf_init(&names, 1 << 16);
    buf_init(&all, 1 << 16);
    add_all_names(function_mark, &names);
    add_all_names(function_mark, &all);
    /* Migrations create the functions that tables depend on. */
    for (int v = 0; v < PG_SCHEMA_VERSION; v++)
        add_names(postgres_migration[v], "CREATE FUNCTION @schema@.", &all);

    const struct pg_mark marks[] = {{"@functions@", buf_cstr(&names)},
                                    {"@all_functions@", buf_cstr(&all)},
                                    {"@fingerprint@", ours},
                                    {"@former_max@", FORMER_MAX},
                                    {"@named_mark@", PG_NAMED_MARK},
                                    {"@path@", PG_PATH},
                                    {NULL, NULL}};
    bool whole = marks[0].text && marks[1].text;
    if (whole) {
        if (drop_strays)
            pg_fill(b, st, postgres_statement_drop_strays, marks);
        pg_fill(b, st, postgres_statement_finish, marks);
    } else {
        b->failed = true;
    }
    buf_release(&all);
    buf_release(&names);
}

int pg_functions_install(struct pg_store *st, struct error *err)
{
    for (size_t i = 0; postgres_function[i]; i++) {
        const char *text = postgres_function[i];
        bool other_columns = false;
        if (install_text(st, text, &other_columns, err) != 0)
            return -1;
        if (other_columns && install_one_by_one(st, text, err) != 0)
            return -1;
    }

    struct buf b;
    buf_init(&b, 1 << 18);
    add_finish(&b, st, true);
    const char *text = buf_cstr(&b);
    int result = text ? pg_simple(st, text, err) : err_nomem(err);
    buf_release(&b);
    return result;
}

void pg_functions_ddl(const struct pg_store *st, struct buf *to)
{
    for (size_t i = 0; postgres_function[i]; i++) {
        buf_addc(to, '\n');
        pg_fill(to, st, postgres_function[i], NULL);
    }
    add_finish(to, st, false);
}
