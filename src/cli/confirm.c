/* confirm.c: the question that commands ask before they destroy anything. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/text.h"
#include "cli/cli.h"

/* says_yes reads the answer. Anything but y or yes, even the end of the input, is a no. */
static bool says_yes(void)
{
    char line[64] = "";
    if (!fgets(line, sizeof(line), stdin))
        return false;
    line[strcspn(line, "\r\n")] = '\0';
    return strcasecmp(line, "y") == 0 || strcasecmp(line, "yes") == 0;
}

static bool has_dry_run(const struct cli *cli)
{
    const struct option_def *options = cli->cmd->options;
    return options && option_find(options, "dry-run");
}

int confirm(const struct cli *cli, struct error *err, const char *fmt, ...)
{
    char what[700];
    va_list ap;
    if (cli->args.yes)
        return 0;
    va_start(ap, fmt);
    vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);

    if (!isatty(STDIN_FILENO)) {
        const char *look = has_dry_run(cli) ? ", or --dry-run to look first" : "";
        return options_usage(err, "this would %s; use --yes to do it%s", what, look);
    }

    output_note("This will %s. Continue? [y/N] ", what);
    if (says_yes())
        return 0;
    fputs("outbox: nothing was done\n", stderr);
    err->code = CLI_DECLINED;
    return -1;
}
