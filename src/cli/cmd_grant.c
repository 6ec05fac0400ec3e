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
        return err_set(err, ERR_CONFIG, "more than %d consumers: give some in another call",
                       GRANTED_MAX);
    a->consumers[a->n_consumers++] = value;
    return 0;
}

/* clang-format off */
#define OPTION_CONSUMER \
    {"consumer", "NAME", NULL, \
      "with consumer: only this consumer and its handlers (NAME.handler); NAME* for all that begin with NAME; may be " \
      "repeated; all consumers if not given", \
      add_consumer, ARG(grant)}
/* clang-format on */

/* ---- what is said ---- */

static void add_scope(const struct grant_request *req, struct buf *b)
{
    if (strcmp(req->part, "consumer") != 0)
        return;
    if (req->n_consumers == 0) {
        buf_adds(b, req->revoke ? "" : " of every consumer");
        return;
    }
    for (size_t i = 0; i < req->n_consumers; i++)
        buf_addf(b, "%s%s", i ? ", " : " of ", req->consumers[i]);
}

/* verb_of says what the role is, was or would be. */
static const char *verb_of(const struct grant_request *req, bool changed)
{
    static const char *const granted[2] = {"is", "would be"};
    static const char *const untouched[2] = {"was no", "is no"};
    static const char *const revoked[2] = {"is no longer", "would no longer be"};
    if (!req->revoke)
        return granted[req->dry_run];
    if (!changed)
        return untouched[req->dry_run];
    return revoked[req->dry_run];
}

static void add_text(const struct grant_request *req, bool changed, struct buf *b)
{
    buf_addf(b, "role \"%s\": %s %s", req->role, verb_of(req, changed), req->part);
    add_scope(req, b);
    if (req->tenant)
        buf_addf(b, ", held to tenant \"%s\"", req->tenant);
    if (req->dry_run && !changed)
        buf_adds(b, "; nothing would be done");
    buf_addc(b, '\n');
}

static void add_json(const struct grant_request *req, bool changed, struct buf *b)
{
    buf_addc(b, '{');
    output_string(b, "role", req->role);
    output_string(b, "part", req->part);
    if (req->n_consumers > 0) {
        output_member(b, "consumers");
        for (size_t i = 0; i < req->n_consumers; i++) {
            buf_addc(b, i ? ',' : '[');
            json_quote(b, str_of(req->consumers[i]));
        }
        buf_addc(b, ']');
    }
    if (req->tenant)
        output_string(b, "tenant", req->tenant);
    output_bool(b, "changed", changed);
    if (req->revoke || req->dry_run)
        output_bool(b, "dry_run", req->dry_run);
    buf_adds(b, "}\n");
}

static int report(const struct cli *cli, const struct grant_request *req, bool changed,
                  struct error *err)
{
    struct buf b;
    buf_init(&b, 1 << 16);
    if (cli->args.json)
        add_json(req, changed, &b);
    else
        add_text(req, changed, &b);
    int r = output_flush(&b, err);
    buf_release(&b);
    return r;
}

/* ---- what is done ---- */

static int request(const struct cli *cli, bool take, struct grant_request *req, struct error *err)
{
    const struct args *args = &cli->args;
    const struct grant_args *a = &args->grant;
    int part;
    if (option_index(args->pos[0], parts, &part, err) != 0) {
        err->code = CLI_USAGE;
        return -1;
    }
    *req = (struct grant_request){.part = parts[part],
                                  .role = args->pos[1],
                                  .consumers = a->consumers,
                                  .n_consumers = a->n_consumers,
                                  .tenant = a->tenant,
                                  .revoke = take,
                                  .dry_run = args->dry_run};
    if (a->n_consumers > 0 && strcmp(req->part, "consumer") != 0) {
        err_set(err, ERR_CONFIG, "--consumer goes with the part consumer, not with %s", req->part);
        err->code = CLI_USAGE;
        return -1;
    }
    return 0;
}

static int change(struct cli *cli, bool take, struct error *err)
{
    struct grant_request req;
    struct store *st;
    bool changed = false;
    if (request(cli, take, &req, err) != 0)
        return -1;
    if (take && !req.dry_run &&
        confirm(cli, err,
                "take the part %s from role \"%s\": whoever works as it can do so no longer",
                req.part, req.role) != 0)
        return -1;
    if (commands_store(cli, &st, err) != 0)
        return -1;
    int r = st->ops->grant ? st->ops->grant(st, &req, &changed, err)
                           : err_set(err, ERR_CONFIG,
                                     "a %s: store has no roles: who may write its file, and the "
                                     "folder it is in, may do "
                                     "everything; set its permissions",
                                     st->ops->scheme);
    store_close(st);
    return r == 0 ? report(cli, &req, changed, err) : -1;
}

static int grant_(struct cli *cli, struct error *err)
{
    return change(cli, false, err);
}

static int revoke_(struct cli *cli, struct error *err)
{
    return change(cli, true, err);
}

static const struct option_def options[] = {
    OPTION_CONSUMER,
    {"tenant", "NAME", NULL,
     "confine the role to this tenant, in all its parts, whatever its sessions set", option_name,
     ARG(grant.tenant)},
    OPTION_DRY_RUN,
    OPTION_JSON,
    OPTION_END};
static const struct option_def revoke_options[] = {OPTION_CONSUMER, OPTION_DRY_RUN, OPTION_YES,
                                                   OPTION_JSON, OPTION_END};

const struct command cmd_grant[] = {
    {.name = "grant",
     .args = "producer|consumer|operator ROLE",
     .help = "grant a database role producer, consumer or operator rights",
     .options = options,
     .min = 2,
     .max = 2,
     .run = grant_},
    {.name = NULL},
};

const struct command cmd_revoke[] = {
    {.name = "revoke",
     .args = "producer|consumer|operator ROLE",
     .help = "revoke such rights from a database role",
     .options = revoke_options,
     .min = 2,
     .max = 2,
     .run = revoke_},
    {.name = NULL},
};
