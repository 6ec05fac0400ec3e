#include <string.h>

#include "cli/cli.h"

static const char *const parts[] = {"producer", "consumer", "operator", NULL};

static int report(const struct cli *cli, bool taken, bool changed, struct error *err)
{
    const char *part = cli->args.pos[0], *role = cli->args.pos[1];
    struct buf b;
    buf_init(&b, 4096);
    if (cli->args.json) {
        buf_addc(&b, '{');
        output_string(&b, "role", role);
        output_string(&b, "part", part);
        output_bool(&b, "changed", changed);
        if (taken) output_bool(&b, "dry_run", cli->args.dry_run);
        buf_adds(&b, "}\n");
    } else if (taken && cli->args.dry_run) {
        buf_addf(&b, "role \"%s\": %s %s%s\n", role, changed ? "would no longer be" : "is no", part,
                 changed ? "" : "; nothing would be done");
    } else if (taken) {
        buf_addf(&b, "role \"%s\": %s %s\n", role, changed ? "is no longer" : "was no", part);
    } else {
        buf_addf(&b, "role \"%s\": is %s\n", role, part);
    }
    int r = output_flush(&b, err);
    buf_release(&b);
    return r;
}

static int change(struct cli *cli, bool take, struct error *err)
{
    struct grant_request req = {.role = cli->args.pos[1], .revoke = take, .dry_run = cli->args.dry_run};
    struct store *st;
    bool changed = false;
    int part;
    if (options_choice(cli->args.pos[0], parts, &part, err) != 0) {
        err->code = CLI_USAGE;
        return -1;
    }
    req.part = parts[part];
    if (take && !req.dry_run &&
        confirm(cli, err, "take the part %s from role \"%s\": whoever works as it can do so no longer", req.part,
                req.role) != 0)
        return -1;
    if (commands_store(cli, false, &st, err) != 0) return -1;
    int r = st->ops->grant
                ? st->ops->grant(st, &req, &changed, err)
                : err_set(err, ERR_CONFIG,
                          "a %s: store has no roles: who may write its file, and the folder it is in, may do "
                          "everything; set its permissions",
                          st->ops->scheme);
    store_close(st);
    return r == 0 ? report(cli, take, changed, err) : -1;
}

static int grant_(struct cli *cli, struct error *err)
{
    return change(cli, false, err);
}

static int revoke_(struct cli *cli, struct error *err)
{
    return change(cli, true, err);
}

static const struct cli_option options[] = {OPTION_JSON, OPTION_END};
static const struct cli_option revoke_options[] = {OPTION_DRY_RUN, OPTION_YES, OPTION_JSON, OPTION_END};

const struct command cmd_grant[] = {
    {.name = "grant",
     .args = "producer|consumer|operator ROLE",
     .help = "give a role of the database its part",
     .options = options,
     .min = 2,
     .max = 2,
     .run = grant_},
    {.name = NULL},
};

const struct command cmd_revoke[] = {
    {.name = "revoke",
     .args = "producer|consumer|operator ROLE",
     .help = "take a part from a role",
     .options = revoke_options,
     .min = 2,
     .max = 2,
     .run = revoke_},
    {.name = NULL},
};
