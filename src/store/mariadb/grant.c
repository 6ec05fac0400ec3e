/* grant.c: giving an account or a role its part. MariaDB has rights on tables, not on rows: a part
 * is for all consumers, and for no tenant alone. */
#include <mysqld_error.h>
#include <stdio.h>
#include <string.h>

#include "store/mariadb/mariadb.h"
#include "store_sql.h"

#define STATEMENT_MAX 2048

/* What a part may do with what. */
struct right {
    const char *verbs, *what;
};

static const struct right producer[] = {
    {"INSERT, SELECT", "outbox_event"},
    {"EXECUTE", "PROCEDURE outbox_emit"},
    {"EXECUTE", "PROCEDURE outbox_emit_once"},
    {NULL, NULL},
};
/* A relay writes to every table but events, which it only trims. */
static const struct right consumer[] = {
    {"SELECT, DELETE", "outbox_event"},
    {"SELECT, INSERT, UPDATE", "outbox_meta"},
    {"SELECT, INSERT, DELETE", "outbox_fresh"},
    {"SELECT, INSERT, DELETE", "outbox_order"},
    {"SELECT, UPDATE", "outbox_sequencer"},
    {"SELECT, INSERT, UPDATE, DELETE", "outbox_consumer"},
    {"SELECT, INSERT, UPDATE, DELETE", "outbox_lane"},
    {"SELECT, INSERT, UPDATE, DELETE", "outbox_claim"},
    {"SELECT, INSERT, UPDATE, DELETE", "outbox_parked"},
    {"SELECT, INSERT, UPDATE, DELETE", "outbox_dead"},
    {"SELECT, INSERT, UPDATE, DELETE", "outbox_handled"},
    {"SELECT, INSERT, UPDATE, DELETE", "outbox_receipt"},
    {"SELECT, INSERT, UPDATE, DELETE", "outbox_mark"},
    {"SELECT, INSERT, UPDATE, DELETE", "outbox_setting"},
    {"SELECT, INSERT, UPDATE, DELETE", "outbox_ended"},
    {"SELECT, INSERT, UPDATE, DELETE", "outbox_former_filter"},
    {"SELECT, INSERT, UPDATE, DELETE", "outbox_passed"},
    {"SELECT, UPDATE, DELETE", "outbox_marking"},
    {"SELECT, UPDATE, DELETE", "outbox_adopted_row"},
    {"EXECUTE", "PROCEDURE outbox_wait"},
    {"EXECUTE", "PROCEDURE outbox_handle_once"},
    {NULL, NULL},
};

/* rights_of finds the rights of a part; NULL: there is none of that name. An operator may do what a
 * relay does. */
static const struct right *rights_of(const char *part)
{
    if (strcmp(part, "producer") == 0)
        return producer;
    bool works = strcmp(part, "consumer") == 0 || strcmp(part, "operator") == 0;
    return works ? consumer : NULL;
}

/* write_role writes NAME or NAME@HOST, quoted. */
static void write_role(struct buf *b, const char *role)
{
    const char *at = strrchr(role, '@');
    size_t name = at ? (size_t)(at - role) : strlen(role);
    buf_addc(b, '`');
    for (size_t i = 0; i < name; i++) {
        if (role[i] == '`')
            buf_addc(b, '`');
        buf_addc(b, role[i]);
    }
    buf_addc(b, '`');
    if (!at)
        return;
    buf_adds(b, "@`");
    for (const char *p = at + 1; *p; p++) {
        if (*p == '`')
            buf_addc(b, '`');
        buf_addc(b, *p);
    }
    buf_addc(b, '`');
}

static void write_grant(const struct mdb_store *st, const struct grant_request *req,
                        const struct right *r, struct buf *b)
{
    static const char procedure[] = "PROCEDURE ";
    bool is_procedure = strncmp(r->what, procedure, strlen(procedure)) == 0;
    const char *name = is_procedure ? r->what + strlen(procedure) : r->what;
    buf_clear(b);
    buf_addf(b, "%s %s ON %s%s%s %s ", req->revoke ? "REVOKE" : "GRANT", r->verbs,
             is_procedure ? procedure : "", st->quoted, name, req->revoke ? "FROM" : "TO");
    write_role(b, req->role);
}

/* change_one gives or takes one right. To take one that was not given changes nothing. */
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
    bool nobody = why.native == ER_CANT_CREATE_USER_WITH_GRANT ||
                  why.native == ER_PASSWORD_NO_MATCH || why.native == ER_INVALID_ROLE;
    if (err)
        *err = why;
    if (!nobody)
        return -1;
    return err_set(err, ERR_NOTFOUND,
                   "%s: there is no account or role of that name: write NAME@HOST", st->shown);
}

static int check(const struct mdb_store *st, const struct grant_request *req, struct error *err)
{
    if (req->tenant)
        return err_set(
            err, ERR_CONFIG,
            "%s: MariaDB has no row-level security, so nobody can be limited to a tenant "
            "there; give each tenant a database",
            st->shown);
    if (req->n_consumers > 0)
        return err_set(err, ERR_CONFIG,
                       "%s: MariaDB has rights on tables, not on rows: the part of a consumer is "
                       "for all of them",
                       st->shown);
    return 0;
}

int mdb_grant(struct store *base, const struct grant_request *req, bool *ret_changed,
              struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    bool changed = false;
    struct buf b;
    if (check(st, req, err) != 0)
        return -1;
    const struct right *one = rights_of(req->part);
    if (!one)
        return err_set(err, ERR_CONFIG, "there is no part \"%.40s\"", req->part);

    buf_init(&b, STATEMENT_MAX);
    int r = 0;
    for (; one->what && r == 0; one++) {
        write_grant(st, req, one, &b);
        if (req->dry_run)
            changed = true;
        else
            r = change_one(st, &b, &changed, err);
    }
    buf_release(&b);
    if (r != 0)
        return -1;
    *ret_changed = changed;
    return 0;
}
