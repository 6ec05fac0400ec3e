/* cmd_init.c: outbox init, which creates the outbox or brings it up to date. */
#include "cli/cli.h"

struct inited {
    const char *store;
    bool created;
};

static const struct listing_field fields_inited[] = {
    {"store", LISTING_TEXT, .at = offsetof(struct inited, store), "its URL, without the password"},
    {"created", LISTING_BOOL, .at = offsetof(struct inited, created), "whether anything was done"},
    {NULL},
};

static void inited_text(struct buf *b, const void *row)
{
    const struct inited *i = row;
    if (i->created)
        output_addf(b, "%s: the outbox is ready\n", i->store);
    else
        output_addf(b, "%s: already has an outbox of this version; nothing to do\n", i->store);
}

static int init_run(struct cli *cli, struct error *err)
{
    struct inited done = {.created = false};
    struct store *st;
    struct buf url;
    if (commands_create(cli, &st, err) != 0)
        return -1;
    int r = st->ops->init(st, &done.created, err);
    store_close(st);
    if (r != 0)
        return -1;

    done.store = output_store(cli, &url);
    r = output_result(cli, fields_inited, &done, inited_text, err);
    buf_release(&url);
    return r;
}

static const struct option_def options[] = {OPTION_WAIT, OPTION_REPLACE, OPTION_JSON, OPTION_END};

const struct command cmd_init[] = {
    {"init", NULL, NULL, "create the outbox tables, or upgrade them", .options = options,
     .json = JSON_OBJECT(fields_inited), .run = init_run},
    {NULL},
};
