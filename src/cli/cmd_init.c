/* cmd_init.c: outbox init, which creates the outbox or brings it up to date. */
#include <stdio.h>

#include "cli/cli.h"

/* report names the store without its password. */
static int report(const struct cli *cli, bool created, struct error *err)
{
    struct buf b, url;
    buf_init(&url, 4096);
    buf_init(&b, 8192);
    config_mask(&url, cli->settings.store);
    const char *name = buf_cstr(&url);
    if (!name)
        name = "store";

    if (cli->args.json) {
        buf_addc(&b, '{');
        output_string(&b, "store", name);
        output_bool(&b, "created", created);
        buf_adds(&b, "}\n");
    } else if (created) {
        output_addf(&b, "%s: the outbox is ready\n", name);
    } else {
        output_addf(&b, "%s: already has an outbox of this version; nothing to do\n", name);
    }

    int r = output_flush(&b, err);
    buf_release(&url);
    buf_release(&b);
    return r;
}

static int run(struct cli *cli, struct error *err)
{
    struct store *st;
    bool created = false;
    if (commands_create(cli, &st, err) != 0)
        return -1;
    int r = st->ops->init(st, &created, err);
    store_close(st);
    if (r != 0)
        return -1;
    return report(cli, created, err);
}

static const struct option_def options[] = {OPTION_WAIT, OPTION_REPLACE, OPTION_JSON, OPTION_END};

const struct command cmd_init[] = {
    {.name = "init",
     .help = "create the outbox tables, or upgrade them",
     .options = options,
     .run = run},
    {.name = NULL},
};
