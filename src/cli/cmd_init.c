#include <stdio.h>

#include "cli/cli.h"

static int report(const struct cli *cli, bool created, struct error *err)
{
    struct buf b, url;
    buf_init(&url, 4096);
    buf_init(&b, 8192);
    config_mask(&url, cli->settings.store);
    const char *name = buf_cstr(&url);
    if (cli->args.json) {
        buf_addc(&b, '{');
        output_string(&b, "store", name);
        output_bool(&b, "created", created);
        buf_adds(&b, "}\n");
    } else if (created) {
        buf_addf(&b, "%s: the outbox is ready\n", name ? name : "store");
    } else {
        buf_addf(&b, "%s: holds an outbox of this version already; nothing to do\n",
                 name ? name : "store");
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
    return r == 0 ? report(cli, created, err) : -1;
}

static const struct option_def options[] = {OPTION_WAIT, OPTION_REPLACE, OPTION_JSON, OPTION_END};

const struct command cmd_init[] = {
    {.name = "init",
     .help = "create the outbox tables, or upgrade them",
     .options = options,
     .run = run},
    {.name = NULL},
};
