/* grant.c: granting an account or a role the rights of a part. MariaDB grants rights on tables, not
 * on rows: a part covers all consumers, and cannot be limited to a tenant. */
#include <mysqld_error.h>
#include <stdio.h>
#include <string.h>

#include "store/mariadb/mariadb.h"
#include "store_sql.h"

#define STATEMENT_MAX 2048
#define NAME_MAX_ 256

enum part { PRODUCER = 1, CONSUMER = 2, OPERATOR = 4, WORKERS = CONSUMER | OPERATOR };
enum { ALL_PARTS = PRODUCER | CONSUMER | OPERATOR };

static const struct {
    const char *name;
    enum part part;
} parts[] = {{"producer", PRODUCER}, {"consumer", CONSUMER}, {"operator", OPERATOR}};
#define PARTS (sizeof parts / sizeof *parts)

enum verb { SELECT = 1, INSERT = 2, UPDATE = 4, DELETE = 8, EXECUTE = 16 };
enum { WRITE = SELECT | INSERT | UPDATE | DELETE };

static const struct {
    enum verb verb;
    const char *name;
} verbs[] = {{SELECT, "SELECT"},
             {INSERT, "INSERT"},
             {UPDATE, "UPDATE"},
             {DELETE, "DELETE"},
             {EXECUTE, "EXECUTE"}};
#define VERBS (sizeof verbs / sizeof *verbs)

/* The verbs that some parts have on objects. columns: only on these columns of a table. */
struct right {
    unsigned parts, verbs;
    const char *kind; /* "PROCEDURE ", or "" for tables and views */
    const char *what; /* their names without outbox_, separated by blanks */
    const char *columns;
};

/* A producer may not choose the number or the time of an event: after the highest number no number
 * would be left (the trigger outbox_event_numbered covers insert_id). It may read events, because
 * the server requires that for INSERT ... RETURNING. A worker writes to every table except events,
 * which it only trims. statements/doctor.sql recognises a producer by outbox_emit, a consumer by
 * outbox_wait, and an operator by the right to write to outbox_meta, which removing a consumer
 * needs. */
static const struct right rights[] = {
    {ALL_PARTS, SELECT, "", "meta", NULL},
    {OPERATOR, INSERT | UPDATE, "", "meta", NULL},
    {PRODUCER, INSERT, "", "event",
     "id, type, aggregate_type, aggregate_id, version, payload, headers, tenant, not_before, "
     "idempotency_key"},
    {PRODUCER, SELECT, "", "event", NULL},
    {PRODUCER, EXECUTE, "PROCEDURE ", "emit emit_once", NULL},
    {PRODUCER | CONSUMER, EXECUTE, "PROCEDURE ", "refuse_changed", NULL},
    {WORKERS, SELECT | DELETE, "", "event", NULL},
    {WORKERS, SELECT | INSERT | DELETE, "", "fresh order", NULL},
    {WORKERS, SELECT | UPDATE, "", "sequencer", NULL},
    {WORKERS, SELECT | UPDATE | DELETE, "", "marking adopted_row", NULL},
    {WORKERS, WRITE, "",
     "consumer lane claim parked dead handled receipt mark setting ended former_filter passed",
     NULL},
    /* doctor checks whether the guard exists */
    {WORKERS, SELECT, "",
     "guard adopted sequenced idempotency delivery find_unprocessed find_processing find_failed "
     "find_abandoned find_published listeners dead_letters dlq event_handled consumed_events",
     NULL},
    {WORKERS, EXECUTE, "FUNCTION ", "wants json_at json_number json_text", NULL},
    {CONSUMER, EXECUTE, "PROCEDURE ", "wait handle_once", NULL},
};
#define RIGHTS (sizeof rights / sizeof *rights)

/* Returns the next of the names at *at; n == 0: there is none. */
static struct str next_name(const char **at)
{
    *at += strspn(*at, " ");
    struct str name = {*at, strcspn(*at, " ")};
    *at += name.n;
    return name;
}

/* Returns the verbs that some parts have on a whole object. */
static unsigned needed(unsigned of, struct str what)
{
    unsigned all = 0;
    for (size_t i = 0; i < RIGHTS; i++) {
        const char *at = rights[i].what;
        struct str name;
        if (rights[i].columns || !(rights[i].parts & of))
            continue;
        while ((name = next_name(&at)).n > 0)
            if (str_eq(name, what))
                all |= rights[i].verbs;
    }
    return all;
}

/* ---- statements ---- */

/* Writes the statement that grants or revokes the verbs of one right; the role is NAME or
 * NAME@HOST. */
static void write_change(const struct mdb_store *st, const struct grant_request *req,
                         const struct right *r, struct str what, unsigned set, struct buf *b)
{
    const char *between = " ", *at = strrchr(req->role, '@');
    buf_clear(b);
    buf_adds(b, req->revoke ? "REVOKE" : "GRANT");
    for (size_t i = 0; i < VERBS; i++) {
        if (!(set & verbs[i].verb))
            continue;
        buf_addf(b, "%s%s", between, verbs[i].name);
        if (r->columns)
            buf_addf(b, " (%s)", r->columns);
        between = ", ";
    }
    buf_addf(b, " ON %s%soutbox_%.*s %s ", r->kind, st->quoted, (int)what.n, what.p,
             req->revoke ? "FROM" : "TO");

    size_t name = at ? (size_t)(at - req->role) : strlen(req->role);
    mdb_add_name(b, (struct str){req->role, name});
    if (at) {
        buf_addc(b, '@');
        mdb_add_name(b, str_of(at + 1));
    }
}

/* Grants or revokes one right. Revoking one that was not granted changes nothing. */
static int change_one(struct mdb_store *st, struct buf *b, bool *changed, struct error *err)
{
    struct error why;
    const char *text = buf_cstr(b);
    if (!text)
        return err_nomem(err);
    if (mdb_exec(&st->base.store, text, &why) == 0) {
        *changed = true;
        return 0;
    }
    bool had_none = why.native == ER_NONEXISTING_TABLE_GRANT ||
                    why.native == ER_NONEXISTING_PROC_GRANT || why.native == ER_NONEXISTING_GRANT;
    if (had_none)
        return 0;
    bool no_such_role = why.native == ER_CANT_CREATE_USER_WITH_GRANT ||
                        why.native == ER_PASSWORD_NO_MATCH || why.native == ER_INVALID_ROLE;
    if (err)
        *err = why;
    if (!no_such_role)
        return -1;
    return err_set(err, ERR_NOTFOUND,
                   "%s: this account or role does not exist; write it as NAME@HOST",
                   st->base.shown);
}

/* Grants or revokes the rights of a part, except the verbs that the parts in `kept` need. */
static int change(struct mdb_store *st, const struct grant_request *req, unsigned part,
                  unsigned kept, bool *changed, struct error *err)
{
    struct buf b;
    int r = 0;
    buf_init(&b, STATEMENT_MAX);
    for (size_t i = 0; i < RIGHTS && r == 0; i++) {
        const struct right *one = &rights[i];
        const char *at = one->what;
        struct str name;
        while ((one->parts & part) && r == 0 && (name = next_name(&at)).n > 0) {
            unsigned set = one->verbs;
            if (!one->columns)
                set &= ~needed(kept, name);
            if (!set)
                continue;
            write_change(st, req, one, name, set, &b);
            r = change_one(st, &b, changed, err);
        }
    }
    buf_release(&b);
    return r;
}

/* ---- parts ---- */

/* Reads which parts an account has. */
static int held(struct mdb_store *st, const char *role, unsigned *ret, struct error *err)
{
    char user[NAME_MAX_];
    struct db_rows q;
    struct error why = {0};
    const char *at = strrchr(role, '@');
    const char *host = at ? at + 1 : "%";
    int n = at ? (int)(at - role) : (int)strlen(role);
    snprintf(user, sizeof user, "%.*s", n, role);

    int r = db_row(&st->base.store, &q, &why,
                   SQL(parts_of, .schema = st->url.database, .user = user, .host = host));
    if (r != 1)
        return err_class(err, ERR_READONLY, CLASS_FATAL, why.native,
                         "%s: could not read which parts \"%.100s\" has (%.150s); revoking a part "
                         "needs the right to read mysql.procs_priv and mysql.tables_priv",
                         st->base.shown, role, why.text);
    *ret = 0;
    for (size_t i = 0; i < PARTS; i++) {
        if (db_int(&q, (int)i) != 0)
            *ret |= parts[i].part;
    }
    db_done(&q);
    return 0;
}

int mdb_grant(struct store *base, const struct grant_request *req, bool *ret_changed,
              struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    unsigned has = 0;
    bool changed = true, ignored;
    if (req->tenant)
        return err_set(
            err, ERR_CONFIG,
            "%s: MariaDB has no row-level security, so no role can be limited to a tenant "
            "there; give each tenant a database",
            st->base.shown);
    if (req->n_consumers > 0)
        return err_set(err, ERR_CONFIG,
                       "%s: MariaDB grants rights on tables, not on rows: the part \"consumer\" "
                       "always covers all consumers",
                       st->base.shown);
    unsigned part = 0;
    for (size_t i = 0; i < PARTS; i++)
        if (strcmp(req->part, parts[i].name) == 0)
            part = parts[i].part;
    if (!part)
        return err_set(err, ERR_CONFIG,
                       "unknown part \"%.40s\"; write producer, consumer or operator", req->part);

    int r = 0;
    if (req->revoke) {
        r = held(st, req->role, &has, err);
        changed = has & part;
        if (r == 0 && !req->dry_run)
            r = change(st, req, part, has & ~part, &ignored, err);
    } else if (!req->dry_run) {
        r = change(st, req, part, 0, &changed, err);
    }
    if (r != 0)
        return -1;
    *ret_changed = changed;
    return 0;
}
