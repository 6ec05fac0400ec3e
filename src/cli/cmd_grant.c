/* cmd_grant.c: outbox grant and revoke, which grant rights to database roles and revoke them. */
#include <string.h>

#include "base/json.h"
#include "cli/cli.h"

static const char *const parts[] = {"producer", "consumer", "operator", NULL};

/* ---- options ---- */

static int add_consumer(void *field, const char *value, const struct option_def *o,
                        struct error *err)
{
    struct grant_args *a = field;
    (void)o;
    if (a->n_consumers == GRANTED_MAX)
        return err_set(err, ERR_CONFIG,
                       "at most %d consumers can be given; grant the others with another command",
                       GRANTED_MAX);
    a->consumers[a->n_consumers++] = value;
    return 0;
}

/* clang-format off */
#define OPTION_CONSUMER \
    {"consumer", "NAME", NULL, \
     "with consumer: only this consumer and its handlers (NAME.handler); NAME* for all that " \
     "begin with NAME; may be repeated; all consumers if not given", \
     add_consumer, ARG(grant)}
/* clang-format on */

static const struct option_def grant_options[] = {
    OPTION_CONSUMER,
    {"tenant", "NAME", NULL,
     "confine all rights of the role to this tenant; its sessions cannot choose another",
     option_name, ARG(grant.tenant)},
    OPTION_DRY_RUN,
    OPTION_JSON,
    OPTION_END,
};
static const struct option_def revoke_options[] = {
    OPTION_CONSUMER, OPTION_DRY_RUN, OPTION_YES, OPTION_JSON, OPTION_END,
};

/* ---- the result ---- */

static bool about_consumers(const struct grant_request *req)
{
    return strcmp(req->part, "consumer") == 0;
}

/* Returns the verb for the result: the role has the rights, had them or would have them. */
static const char *verb_of(const struct grant_request *req, bool changed)
{
    static const char *const granted[2] = {"has", "would have"};
    static const char *const untouched[2] = {"had no", "has no"};
    static const char *const revoked[2] = {"no longer has", "would no longer have"};
    if (!req->revoke)
        return granted[req->dry_run];
    if (!changed)
        return untouched[req->dry_run];
    return revoked[req->dry_run];
}

/* A change of rights, and whether it changed anything. */
struct granted {
    struct grant_request req;
    bool changed;
};

static void granted_text(struct buf *b, const void *row)
{
    const struct granted *g = row;
    const struct grant_request *req = &g->req;
    output_addf(b, "role \"%s\": %s %s rights", req->role, verb_of(req, g->changed), req->part);
    for (size_t i = 0; i < req->n_consumers; i++)
        output_addf(b, "%s%s", i ? ", " : " for ", req->consumers[i]);
    if (req->n_consumers == 0 && about_consumers(req) && !req->revoke)
        buf_adds(b, " for all consumers");
    if (req->tenant)
        output_addf(b, ", confined to tenant \"%s\"", req->tenant);
    if (req->dry_run && !g->changed)
        buf_adds(b, "; nothing would be done");
    buf_addc(b, '\n');
}

static bool has_consumers(const void *row)
{
    return ((const struct granted *)row)->req.n_consumers > 0;
}

static bool says_dry_run(const void *row)
{
    const struct granted *g = row;
    return g->req.revoke || g->req.dry_run;
}

static void add_consumers(struct buf *b, const void *row)
{
    const struct granted *g = row;
    buf_addc(b, '[');
    for (size_t i = 0; i < g->req.n_consumers; i++) {
        if (i)
            buf_addc(b, ',');
        json_quote(b, str_of(g->req.consumers[i]));
    }
    buf_addc(b, ']');
}

#define AT(member) .at = offsetof(struct granted, member)
static const struct listing_field fields_granted[] = {
    {"role", LISTING_TEXT, AT(req.role), "the role"},
    {"part", LISTING_TEXT, AT(req.part), "producer, consumer or operator"},
    {"consumers", LISTING_OWN, .json = add_consumers, .kind = "array of strings",
     .only = has_consumers, .help = "the consumers given with --consumer"},
    {"tenant", LISTING_TEXT, AT(req.tenant), "the tenant it is confined to", .optional = true},
    {"changed", LISTING_BOOL, AT(changed), "whether the rights had to be changed"},
    {"dry_run", LISTING_BOOL, AT(req.dry_run), "true: nothing was done", .only = says_dry_run},
    {NULL},
};
#undef AT

/* ---- the command ---- */

static int read_request(const struct cli *cli, bool revoke, struct grant_request *ret,
                        struct error *err)
{
    const struct args *args = &cli->args;
    const struct grant_args *a = &args->grant;
    int part;
    if (option_index(args->pos[0], parts, &part, err) != 0) {
        err->code = CLI_USAGE;
        return -1;
    }
    *ret = (struct grant_request){
        .part = parts[part],
        .role = args->pos[1],
        .consumers = a->consumers,
        .n_consumers = a->n_consumers,
        .tenant = a->tenant,
        .revoke = revoke,
        .dry_run = args->dry_run,
    };
    if (a->n_consumers > 0 && !about_consumers(ret))
        return options_usage(err, "--consumer applies to consumer rights, not to %s rights",
                             ret->part);
    return 0;
}

/* `grant` and `revoke`. Revoking asks first. */
static int change_rights(struct cli *cli, bool revoke, struct error *err)
{
    struct granted g = {.changed = false};
    if (read_request(cli, revoke, &g.req, err) != 0)
        return -1;

    bool ask = revoke && !g.req.dry_run;
    if (ask && output_confirm(cli, err,
                              "revoke %s rights from role \"%s\": programs that use it will fail",
                              g.req.part, g.req.role) != 0)
        return -1;

    struct store *st = commands_store(cli, err);
    if (!st)
        return -1;
    if (!st->ops->grant)
        return err_set(err, ERR_CONFIG,
                       "a %s: store has no roles: anyone who can write the file and its folder can "
                       "do everything; set their permissions",
                       st->ops->scheme);
    if (st->ops->grant(st, &g.req, &g.changed, err) != 0)
        return -1;
    return output_result(cli, fields_granted, &g, granted_text, err);
}

static int grant_run(struct cli *cli, struct error *err)
{
    return change_rights(cli, false, err);
}

static int revoke_run(struct cli *cli, struct error *err)
{
    return change_rights(cli, true, err);
}

const struct command cmd_grant[] = {
    {"grant", NULL, "producer|consumer|operator ROLE",
     "grant a database role producer, consumer or operator rights", .options = grant_options,
     .min = 2, .max = 2, .json = JSON_OBJECT(fields_granted), .run = grant_run},
    {NULL},
};

const struct command cmd_revoke[] = {
    {"revoke", NULL, "producer|consumer|operator ROLE",
     "revoke producer, consumer or operator rights from a database role", .options = revoke_options,
     .min = 2, .max = 2, .json = JSON_OBJECT(fields_granted), .run = revoke_run},
    {NULL},
};
