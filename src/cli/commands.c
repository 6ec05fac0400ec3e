/* commands.c: the list of commands, and the ways they open the store. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "cli/cli.h"

#define NAMES_MAX 32

static const struct command *const commands_all[] = {
    cmd_init,      cmd_migrate, cmd_emit,   cmd_relay,  cmd_consume, cmd_receive,
    cmd_consumers, cmd_status,  cmd_doctor, cmd_events, cmd_dead,    cmd_hwm,
    cmd_trim,      cmd_grant,   cmd_revoke, cmd_adopt,  cmd_config,
#ifdef OUTBOX_HTTP
    cmd_webhook,
#endif
    cmd_version,   cmd_help,    NULL,
};

const struct command *commands_next(const struct command *c)
{
    size_t i = 0;
    if (!c)
        return commands_all[0];
    if (c[1].name)
        return &c[1];
    while (strcmp(commands_all[i]->name, c->name) != 0)
        i++;
    return commands_all[i + 1];
}

int commands_find(const char *name, const struct command **ret, struct error *err)
{
    const char *names[NAMES_MAX] = {0};
    for (size_t i = 0; commands_all[i]; i++) {
        names[i] = commands_all[i]->name;
        if (strcmp(names[i], name) == 0) {
            *ret = commands_all[i];
            return 0;
        }
    }

    char hint[TEXT_HINT];
    text_hint(name, names, (struct text_hint){.otherwise = "outbox help lists them"}, hint);
    return options_usage(err, "unknown command \"%s\"%s", name, hint);
}

/* Collects the names while searching, for the message if none matches. */
int commands_sub(const struct command *rows, const char *sub, const struct command **ret,
                 struct error *err)
{
    const char *names[NAMES_MAX] = {0};
    char list[200] = "";
    for (size_t i = 0; rows[i].name; i++) {
        names[i] = rows[i].sub;
        if (sub && strcmp(names[i], sub) == 0) {
            *ret = &rows[i];
            return 0;
        }
        size_t n = strlen(list);
        snprintf(list + n, sizeof(list) - n, "%s%s", i ? ", " : "", names[i]);
    }
    if (!sub)
        return options_usage(err, "%s needs a subcommand: one of %s", rows->name, list);

    char hint[TEXT_HINT], all[TEXT_HINT];
    snprintf(all, sizeof(all), "use one of %s", list);
    text_hint(sub, names, (struct text_hint){.otherwise = all}, hint);
    return options_usage(err, "unknown subcommand \"%s %s\"%s", rows->name, sub, hint);
}

int commands_need_store(const struct cli *cli, struct error *err)
{
    if (cli->settings.store)
        return 0;
    return err_set(err, ERR_CONFIG,
                   "no store given; use --store sqlite:shop.db, set OUTBOX_STORE, or put `store = "
                   "...` into the [outbox] section of a config file and pass the file with -c");
}

static void tell_progress(void *ctx, const char *text)
{
    (void)ctx;
    output_error(text);
}

int commands_open(struct cli *cli, struct store_options opt, struct error *err)
{
    if (commands_need_store(cli, err) != 0)
        return -1;
    opt.clock = &clock_system;
    opt.busy_ms = cli->settings.busy_ms;
    opt.payload_max = cli->settings.payload_max;
    opt.progress = tell_progress;
    return store_open(cli->settings.store, &opt, &cli->st, err);
}
