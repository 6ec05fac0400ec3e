/* validate.c: comparing the outbox with the one that this program would create. It creates one, in
 * a separate schema and a transaction that is rolled back, and PostgreSQL describes both
 * (sql/postgres/statements/describe.sql). So this code does not depend on the tables, and the
 * server formats both definitions in the same way. */
#include <stdio.h>

#include "store/postgres/postgres.h"

extern const char postgres_statement_describe[];

/* The columns of a description. */
enum { D_KIND, D_NAME, D_DEFINITION };

static const char *kind_of(const PGresult *r, int row)
{
    return PQgetvalue(r, row, D_KIND);
}

static const char *name_of(const PGresult *r, int row)
{
    return PQgetvalue(r, row, D_NAME);
}

static bool is_kind(const PGresult *r, int row, const char *kind)
{
    return strcmp(kind_of(r, row), kind) == 0;
}

/* Describes the outbox of a handle. */
static PGresult *describe(struct pg_store *st, const struct pg_store *of, struct error *err)
{
    PGresult *r = pg_query(st, err, "SELECT set_config('search_path', $1 || ', pg_temp', true)",
                           "s", of->quoted);
    if (!r)
        return NULL;
    PQclear(r);
    return pg_query(st, err, postgres_statement_describe, "sss", of->schema, of->quoted,
                    of->literal);
}

/* ---- reporting ---- */

enum difference { EXTRA, SHADOW, MISSING, CHANGED };

static const struct {
    const char *name, *text, *advice;
} differences[] = {
    [EXTRA] = {"extra", "was not created by this program", "drop it, unless you need it"},
    [SHADOW] = {"extra", "has the same name as a function of the outbox: calls are ambiguous",
                "drop it if it is from an earlier version; otherwise move it to another schema"},
    [MISSING] = {"missing", "is missing", "create it as in the output of `outbox migrate gen`"},
    [CHANGED] = {"changed", "differs from the one this program creates",
                 "create it as in the output of `outbox migrate gen`"},
};

static void report_difference(const PGresult *r, int row, enum difference d, finding_visit *visit,
                              void *ctx)
{
    /* Extra objects of these kinds cannot interfere with ours. */
    static const char *const harmless[] = {"table", "view", "sequence", "index", "function"};
    char text[300];
    snprintf(text, sizeof text, "%s %.200s %s", kind_of(r, row), name_of(r, row),
             differences[d].text);
    struct finding f = {.level = FINDING_PROBLEM,
                        .name = differences[d].name,
                        .text = text,
                        .advice = differences[d].advice};
    for (size_t i = 0; d == EXTRA && i < sizeof harmless / sizeof *harmless; i++) {
        if (is_kind(r, row, harmless[i])) {
            f.level = FINDING_NOTE;
            f.advice = NULL;
        }
    }
    visit(ctx, &f);
}

/* ---- comparing ---- */

/* Whether a description has an object of this kind whose name begins with the first n bytes of
 * `name` and, if `whole`, ends there. */
static bool has_object(const PGresult *r, const char *kind, const char *name, size_t n, bool whole)
{
    for (int i = 0; i < PQntuples(r); i++) {
        const char *other = name_of(r, i);
        if (!is_kind(r, i, kind) || strncmp(other, name, n) != 0)
            continue;
        if (!whole || other[n] == '\0')
            return true;
    }
    return false;
}

/* Whether a column, an index or the like belongs to a table that the other outbox lacks. Then it is
 * enough to report the table. */
static bool of_other_table(const PGresult *r, int row, const PGresult *other)
{
    const char *name = name_of(r, row);
    size_t table = strcspn(name, ".(");
    if (name[table] != '.')
        return false;
    return !has_object(other, "table", name, table, true);
}

/* Orders rows by kind and name; a row past the end sorts last. */
static int compare_rows(const PGresult *a, int i, const PGresult *b, int j)
{
    if (i >= PQntuples(a))
        return 1;
    if (j >= PQntuples(b))
        return -1;
    int kinds = strcmp(kind_of(a, i), kind_of(b, j));
    if (kinds != 0)
        return kinds;
    return strcmp(name_of(a, i), name_of(b, j));
}

/* Walks through both descriptions, which are sorted alike. */
static void compare_outboxes(const PGresult *there, const PGresult *ours, finding_visit *visit,
                             void *ctx)
{
    int i = 0;
    int j = 0;
    while (i < PQntuples(there) || j < PQntuples(ours)) {
        int order = compare_rows(there, i, ours, j);
        if (order < 0) {
            const char *name = name_of(there, i);
            bool shadows = is_kind(there, i, "function") &&
                           has_object(ours, "function", name, strcspn(name, "(") + 1, false);
            if (shadows)
                report_difference(there, i, SHADOW, visit, ctx);
            else if (!of_other_table(there, i, ours))
                report_difference(there, i, EXTRA, visit, ctx);
            i++;
        } else if (order > 0) {
            /* A view of ours is not created if a table of the application has its name. */
            const char *name = name_of(ours, j);
            bool taken = is_kind(ours, j, "view") &&
                         has_object(there, "table", name, strlen(name), true);
            if (!taken && !of_other_table(ours, j, there))
                report_difference(ours, j, MISSING, visit, ctx);
            j++;
        } else {
            const char *definition = PQgetvalue(there, i, D_DEFINITION);
            if (strcmp(definition, PQgetvalue(ours, j, D_DEFINITION)) != 0)
                report_difference(there, i, CHANGED, visit, ctx);
            i++;
            j++;
        }
    }
}

/* ---- the outbox to compare with ---- */

/* Describes the existing outbox and one that this program creates. On success the caller clears
 * both. */
static int describe_both(struct pg_store *st, PGresult **ret_there, PGresult **ret_ours,
                         struct error *err)
{
    struct pg_store twin = *st;
    char name[64], quoted[64], create[128];
    snprintf(name, sizeof name, "outbox_validate_%016llx", (unsigned long long)rng_next(&st->rng));
    snprintf(quoted, sizeof quoted, "\"%s\"", name);
    twin.schema = name;
    twin.quoted = quoted;
    twin.literal = quoted;
    snprintf(create, sizeof create, "CREATE SCHEMA %s", quoted);
    if (pg_simple(&twin, create, err) != 0 || pg_install(&twin, 0, err) != 0)
        return err_prefix(
            err, "validate creates an outbox to compare with, in a transaction that it rolls back");

    PGresult *there = describe(st, st, err);
    if (!there)
        return -1;
    PGresult *ours = describe(st, &twin, err);
    if (!ours) {
        PQclear(there);
        return -1;
    }
    *ret_there = there;
    *ret_ours = ours;
    return 0;
}

int pg_validate(struct store *base, finding_visit *visit, void *ctx, struct error *err)
{
    PGresult *there, *ours;
    if (pg_begin_own(base, err) != 0)
        return -1;
    int result = describe_both(pg_of(base), &there, &ours, err);
    pg_rollback(base);
    if (result != 0)
        return -1;

    compare_outboxes(there, ours, visit, ctx);
    PQclear(there);
    PQclear(ours);
    return 0;
}
