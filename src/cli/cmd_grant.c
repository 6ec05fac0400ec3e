/* cmd_grant.c: outbox grant and revoke, which grant rights to database roles and revoke them. */
#include <string.h>

#include "cli/cli.h"

#define GRANTED_MAX 64

struct grant_args {
    const char *consumers[GRANTED_MAX];
    size_t n_consumers;
    const char *tenant;
};

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
     add_consumer, OWN_ALL}
/* clang-format on */

static const struct option_def grant_options[] = {
    OPTION_CONSUMER,
    {"tenant", "NAME", NULL,
     "confine all rights of the role to this tenant; its sessions cannot choose another",
     option_name, OWN(grant_args, tenant)},
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
    bool says_dry_run; /* JSON has dry_run, even if it is false */
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

#define AT(member) .at = offsetof(struct granted, member)
#define ALSO(member) .also = offsetof(struct granted, member)
static const struct listing_field fields_granted[] = {
    {"role", LISTING_TEXT, AT(req.role), "the role"},
    {"part", LISTING_TEXT, AT(req.part), "producer, consumer or operator"},
    {"consumers", LISTING_STRINGS, AT(req.consumers), "the consumers given with --consumer",
     ALSO(req.n_consumers), .optional = true},
    {"tenant", LISTING_TEXT, AT(req.tenant), "the tenant it is confined to", .optional = true},
    {"changed", LISTING_BOOL, AT(changed), "whether the rights had to be changed"},
    {"dry_run", LISTING_BOOL, AT(req.dry_run), "true: nothing was done", ALSO(says_dry_run),
     .maybe = true, .optional = true},
    {NULL},
};
#undef AT
#undef ALSO

/* ---- the command ---- */

static struct grant_request request_of(const struct cli *cli)
{
    const struct args *args = &cli->args;
    const struct grant_args *a = cli_own(cli);
    return (struct grant_request){
        .part = args->pos[0],
        .role = args->pos[1],
        .consumers = a->consumers,
        .n_consumers = a->n_consumers,
        .tenant = a->tenant,
        .revoke = cli->cmd == cmd_revoke,
        .dry_run = args->dry_run,
    };
}

/* Revoking asks first. */
static int grant_check(struct cli *cli, struct error *err)
{
    struct grant_request req = request_of(cli);
    int part;
    if (option_index(req.part, parts, &part, err) != 0) {
        err->code = CLI_USAGE;
        return -1;
    }
    if (req.n_consumers > 0 && !about_consumers(&req))
        return commands_usage(err, "--consumer applies to consumer rights, not to %s rights",
                              req.part);
    if (!req.revoke || req.dry_run)
        return 0;
    return output_confirm(cli, err,
                          "revoke %s rights from role \"%s\": programs that use it will fail",
                          req.part, req.role);
}

/* `grant` and `revoke`. */
static int grant_run(struct cli *cli, struct error *err)
{
    struct granted g = {.req = request_of(cli)};
    g.says_dry_run = g.req.revoke || g.req.dry_run;
    struct store *st = cli->st;
    if (!st->ops->grant)
        return err_set(err, ERR_CONFIG,
                       "a %s: store has no roles: anyone who can write the file and its folder can "
                       "do everything; set their permissions",
                       st->ops->scheme);
    if (st->ops->grant(st, &g.req, &g.changed, err) != 0)
        return -1;
    return output_result(cli, fields_granted, &g, granted_text, err);
}

#define RIGHTS \
    .min = 2, .max = 2, .opens = OPENS_STORE, .json = JSON_OBJECT(fields_granted), \
    .check = grant_check, .run = grant_run

const struct command cmd_grant[] = {
    {"grant", NULL, "producer|consumer|operator ROLE",
     "grant a database role producer, consumer or operator rights", .options = grant_options,
     RIGHTS},
    {NULL},
};

const struct command cmd_revoke[] = {
    {"revoke", NULL, "producer|consumer|operator ROLE",
     "revoke producer, consumer or operator rights from a database role", .options = revoke_options,
     RIGHTS},
    {NULL},
};
