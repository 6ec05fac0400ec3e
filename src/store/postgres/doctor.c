/* doctor.c: checks on a PostgreSQL server and on the outbox in it. They only read. The checks are
 * in sql/postgres/statements/doctor.sql, whose rows are findings. */
#include <stdio.h>

#include "base/text.h"
#include "store/postgres/postgres.h"

/* Each check begins with a line "-- NAME: text", and reports the text if it finds nothing. A check
 * is left out if the one before it has the same name, and found something. The checks from
 * FIRST_INSIDE on need an outbox. */
extern const char *const postgres_check[];
#define FIRST_INSIDE "grants"

struct look {
    struct pg_store *st;
    const struct doctor_request *req;
    char name[32]; /* of the current check */
    bool found;    /* it returned rows */
};

static void say(const struct look *l, enum finding_level level, const char *text,
                const char *advice)
{
    struct finding f = {.level = level, .name = l->name, .text = text, .advice = advice};
    l->req->visit(l->req->ctx, &f);
}

/* Reports a row of a check: a level, a text, advice, and an age that the text may mention. An age
 * of more than a second is shown in whole seconds. */
static void say_row(const struct look *l, const PGresult *r, int row)
{
    static const char mark[] = "@age@";
    int level = FINDING_OK;
    while (level < FINDING_PROBLEM &&
           strcmp(finding_level_names[level], PQgetvalue(r, row, 0)) != 0)
        level++;
    const char *advice = level == FINDING_OK ? NULL : pg_str(r, row, 2);
    const char *text = PQgetvalue(r, row, 1);
    const char *at = strstr(text, mark);
    char age[32], whole[600];
    bool has_age = at && PQnfields(r) > 3;
    if (has_age) {
        int64_t ms = pg_int(r, row, 3);
        if (ms >= 1000)
            ms = ms / 1000 * 1000;
        text_duration_show(ms, age);
        snprintf(whole, sizeof whole, "%.*s%s%s", (int)(at - text), text, age, at + strlen(mark));
        text = whole;
    }
    say(l, (enum finding_level)level, text, advice);
}

static bool has_name(const char *sql, const char *name)
{
    size_t n = strlen(name);
    return strncmp(sql + 3, name, n) == 0 && sql[3 + n] == ':';
}

/* A check that fails is a finding as well; only a lost server ends the run. */
static int check_failed(const struct look *l, const struct error *why, struct error *err)
{
    char text[600];
    if (why->code == ERR_UNAVAILABLE)
        return err_copy(err, why);
    snprintf(text, sizeof text, "could not be checked: %s", why->text);
    say(l, FINDING_WARNING, text, NULL);
    return 0;
}

static int run_check(struct look *l, const char *sql, struct error *err)
{
    struct error why;
    char fine[100] = "";
    if (has_name(sql, l->name) && l->found)
        return 0;
    sscanf(sql, "-- %31[^:]:%99[^\n]", l->name, fine);
    bool polls = l->st->pooled && has_name(sql, "wakeup");
    if (polls) {
        say(l, FINDING_WARNING,
            "this connection goes through a pooler: relays cannot be woken, and poll every few "
            "milliseconds instead",
            "give relays an address that leads to the server itself");
        return 0;
    }
    const char *parameters = strstr(sql, "$1") ? "i" : "";
    PGresult *r = pg_query(l->st, &why, sql, parameters, l->req->patience_ms);
    if (!r)
        return check_failed(l, &why, err);
    for (int i = 0; i < PQntuples(r); i++)
        say_row(l, r, i);
    l->found = PQntuples(r) > 0;
    if (!l->found && *fine)
        say(l, FINDING_OK, fine + 1, NULL);
    PQclear(r);
    return 0;
}

/* Reports other roles that may create functions in the schema. Such functions could be called in
 * place of ours, with the rights of the outbox's owner. */
static int foreign_creators(struct look *l, struct error *err)
{
    char text[600];
    struct error why;
    snprintf(l->name, sizeof l->name, "schema");
    PGresult *r = pg_foreign_creators(l->st, &why);
    if (!r)
        return check_failed(l, &why, err);
    const char *roles = PQntuples(r) > 0 ? pg_str(r, 0, 0) : NULL;
    if (roles) {
        snprintf(text, sizeof text,
                 "other roles may create functions in schema %s, which would run with the rights "
                 "of the outbox's owner: %s",
                 l->st->quoted, roles);
        say(l, FINDING_PROBLEM, text,
            "REVOKE CREATE ON SCHEMA ... FROM them, or ALTER SCHEMA ... OWNER TO the outbox's "
            "owner");
    } else {
        snprintf(text, sizeof text, "no other role may create anything in schema %s",
                 l->st->quoted);
        say(l, FINDING_OK, text, NULL);
    }
    PQclear(r);
    return 0;
}

int pg_doctor(struct store *base, const struct doctor_request *req, struct error *err)
{
    struct look l = {.st = pg_of(base), .req = req};
    const char *const *sql = postgres_check;
    struct schema_status s;
    struct error why;
    for (; !has_name(*sql, FIRST_INSIDE); sql++)
        if (run_check(&l, *sql, err) != 0)
            return -1;

    bool unread = pg_schema_status(base, &s, &why) != 0;
    bool no_rights = unread && why.code == ERR_READONLY; /* not even to read the version */
    bool of_ours = !unread && s.there == s.known;
    if (!no_rights && !of_ours)
        return 0; /* the caller reports that */
    for (; *sql && (of_ours || has_name(*sql, FIRST_INSIDE)); sql++)
        if (run_check(&l, *sql, err) != 0)
            return -1;
    return of_ours ? foreign_creators(&l, err) : 0;
}
