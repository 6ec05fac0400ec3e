/* confirm.c: commands that destroy ask first. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/text.h"
#include "cli/cli.h"

static bool says_yes(void)
{
    char line[64] = "";
    if (!fgets(line, sizeof(line), stdin))
        return false;
    line[strcspn(line, "\r\n")] = '\0';
    return strcasecmp(line, "y") == 0 || strcasecmp(line, "yes") == 0;
}

static bool can_look_first(const struct cli *cli)
{
    bool found = false;
    for (const struct option_def *o = cli->cmd->options; o && o->name; o++)
        found = found || strcmp(o->name, "dry-run") == 0;
    return found;
}

int confirm(const struct cli *cli, struct error *err, const char *fmt, ...)
{
    char what[700];
    struct buf clean;
    va_list ap;
    if (cli->args.yes)
        return 0;
    va_start(ap, fmt);
    vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    if (!isatty(STDIN_FILENO))
        return options_usage(err, "this would %s; say --yes to do it%s", what,
                             can_look_first(cli) ? ", or --dry-run to look first" : "");
    buf_init(&clean, 4096);
    output_clean(&clean, what); /* names in it come from strangers */
    fprintf(stderr, "This will %s. Go on? [y/N] ", buf_cstr(&clean));
    fflush(stderr);
    buf_release(&clean);
    if (says_yes())
        return 0;
    fputs("outbox: nothing was done\n", stderr);
    err->code = CLI_FOUND;
    return -1;
}
