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

/* The verbs that some parts have on an object. columns: only on these columns of a table. */
struct right {
    unsigned parts, verbs;
    const char *columns;
    const char *kind; /* "PROCEDURE ", or "" for a table or a view */
    const char *what;
};

/* A producer may not choose the number or the time of an event: after the highest number no number
 * would be left (the trigger outbox_event_numbered covers insert_id). It may read events, because
 * the server requires that for INSERT ... RETURNING. A worker writes to every table except events,
 * which it only trims. statements/doctor.sql recognises a producer by outbox_emit, a consumer by
 * outbox_wait, and an operator by the right to write to outbox_meta, which removing a consumer
 * needs. */
static const struct right rights[] = {
    {ALL_PARTS, SELECT, NULL, "", "outbox_meta"},
    {OPERATOR, INSERT | UPDATE, NULL, "", "outbox_meta"},
    {PRODUCER, INSERT,
     "id, type, aggregate_type, aggregate_id, version, payload, headers, tenant, not_before, "
     "idempotency_key",
     "", "outbox_event"},
    {PRODUCER, SELECT, NULL, "", "outbox_event"},
    {PRODUCER, EXECUTE, NULL, "PROCEDURE ", "outbox_emit"},
    {PRODUCER, EXECUTE, NULL, "PROCEDURE ", "outbox_emit_once"},
    {PRODUCER | CONSUMER, EXECUTE, NULL, "PROCEDURE ", "outbox_refuse_changed"},
    {WORKERS, SELECT | DELETE, NULL, "", "outbox_event"},
    {WORKERS, SELECT, NULL, "", "outbox_guard"}, /* for doctor, which checks for its existence */
    {WORKERS, SELECT | INSERT | DELETE, NULL, "", "outbox_fresh"},
    {WORKERS, SELECT | INSERT | DELETE, NULL, "", "outbox_order"},
    {WORKERS, SELECT | UPDATE, NULL, "", "outbox_sequencer"},
    {WORKERS, WRITE, NULL, "", "outbox_consumer"},
    {WORKERS, WRITE, NULL, "", "outbox_lane"},
    {WORKERS, WRITE, NULL, "", "outbox_claim"},
    {WORKERS, WRITE, NULL, "", "outbox_parked"},
    {WORKERS, WRITE, NULL, "", "outbox_dead"},
    {WORKERS, WRITE, NULL, "", "outbox_handled"},
    {WORKERS, WRITE, NULL, "", "outbox_receipt"},
    {WORKERS, WRITE, NULL, "", "outbox_mark"},
    {WORKERS, WRITE, NULL, "", "outbox_setting"},
    {WORKERS, WRITE, NULL, "", "outbox_ended"},
    {WORKERS, WRITE, NULL, "", "outbox_former_filter"},
    {WORKERS, WRITE, NULL, "", "outbox_passed"},
    {WORKERS, SELECT, NULL, "", "outbox_adopted"},
    {WORKERS, SELECT | UPDATE | DELETE, NULL, "", "outbox_marking"},
    {WORKERS, SELECT | UPDATE | DELETE, NULL, "", "outbox_adopted_row"},
    {WORKERS, SELECT, NULL, "", "outbox_sequenced"},
    {WORKERS, SELECT, NULL, "", "outbox_idempotency"},
    {WORKERS, SELECT, NULL, "", "outbox_delivery"},
    {WORKERS, EXECUTE, NULL, "FUNCTION ", "outbox_wants"},
    {WORKERS, EXECUTE, NULL, "FUNCTION ", "outbox_json_at"},
    {WORKERS, EXECUTE, NULL, "FUNCTION ", "outbox_json_number"},
    {WORKERS, EXECUTE, NULL, "FUNCTION ", "outbox_json_text"},
    {WORKERS, SELECT, NULL, "", "outbox_find_unprocessed"},
    {WORKERS, SELECT, NULL, "", "outbox_find_processing"},
    {WORKERS, SELECT, NULL, "", "outbox_find_failed"},
    {WORKERS, SELECT, NULL, "", "outbox_find_abandoned"},
    {WORKERS, SELECT, NULL, "", "outbox_find_published"},
    {WORKERS, SELECT, NULL, "", "outbox_listeners"},
    {WORKERS, SELECT, NULL, "", "outbox_dead_letters"},
    {WORKERS, SELECT, NULL, "", "outbox_dlq"},
    {WORKERS, SELECT, NULL, "", "outbox_event_handled"},
    {WORKERS, SELECT, NULL, "", "outbox_consumed_events"},
    {CONSUMER, EXECUTE, NULL, "PROCEDURE ", "outbox_wait"},
    {CONSUMER, EXECUTE, NULL, "PROCEDURE ", "outbox_handle_once"},
};
#define RIGHTS (sizeof rights / sizeof *rights)

/* Finds a part by its name; 0: unknown name. */
static enum part part_of(const char *name)
{
    for (size_t i = 0; i < PARTS; i++) {
        if (strcmp(name, parts[i].name) == 0)
            return parts[i].part;
    }
    return 0;
}

/* Returns the verbs that some parts have on a whole object. */
static unsigned needed(unsigned of, const char *what)
{
    unsigned all = 0;
    for (size_t i = 0; i < RIGHTS; i++) {
        bool whole = !rights[i].columns && strcmp(rights[i].what, what) == 0;
        if (whole && (rights[i].parts & of))
            all |= rights[i].verbs;
    }
    return all;
}

/* ---- statements ---- */

/* Writes the statement that grants or revokes the verbs of one right; the role is NAME or
 * NAME@HOST. */
static void write_change(const struct mdb_store *st, const struct grant_request *req,
                         const struct right *r, unsigned set, struct buf *b)
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
    buf_addf(b, " ON %s%s%s %s ", r->kind, st->quoted, r->what, req->revoke ? "FROM" : "TO");

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
    if (mdb_exec(st, text, &why) == 0) {
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
        unsigned set = one->verbs;
        if (!(one->parts & part))
            continue;
        if (!one->columns)
            set &= ~needed(kept, one->what);
        if (!set)
            continue;
        write_change(st, req, one, set, &b);
        r = change_one(st, &b, changed, err);
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
                         "%s: could not read which parts \"%.100s\" has (%.150s); revoking one "
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
    enum part part = part_of(req->part);
    if (!part)
        return err_set(err, ERR_CONFIG,
                       "unknown part \"%.40s\"; write producer, consumer or operator", req->part);

    int r = 0;
    if (req->revoke) {
        r = held(st, req->role, &has, err);
        changed = has & part;
        if (r == 0 && !req->dry_run)
            r = change(st, req, part, has & ~(unsigned)part, &ignored, err);
    } else if (!req->dry_run) {
        r = change(st, req, part, 0, &changed, err);
    }
    if (r != 0)
        return -1;
    *ret_changed = changed;
    return 0;
}
