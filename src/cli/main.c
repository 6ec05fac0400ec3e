/* main.c: boots the command line. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "cli/cli.h"
#include "cli/logger.h"

static int exit_code(int code)
{
    switch (code) {
    case CLI_FOUND: return EXIT_FOUND_;
    case CLI_USAGE: return EXIT_USAGE_;
    case CLI_WRONG:
    case ERR_CONFIG: return EXIT_CONFIG_;
    case ERR_INVALID:
    case ERR_CONFLICT:
    case ERR_NOTFOUND:
    case ERR_NOTOURS:
    case ERR_NEWER: return EXIT_DATA_;
    case ERR_UNAVAILABLE:
    case ERR_READONLY:
    case ERR_FULL:
    case ERR_NOMEM: return EXIT_UNAVAILABLE_;
    case ERR_BUSY:
    case ERR_LOST: return EXIT_AGAIN_;
    default: return EXIT_BUG_;
    }
}

/* advise adds what to do next where the store cannot know it. */
static void advise(const struct cli *cli, struct error *err)
{
    bool file = cli->settings.store && strncmp(cli->settings.store, "sqlite:", 7) == 0;
    const char *next = err->code == ERR_FULL ? "; make room, then try again"
                       : err->code == ERR_READONLY && file
                           ? "; the file and its folder must be writable for you"
                           : "";
    size_t n = strlen(err->text);
    snprintf(err->text + n, sizeof(err->text) - n, "%s", next);
}

static int load_settings(struct cli *cli, struct error *err)
{
    cli->config.gather = cli->cmd->gathers;
    if (config_load(&cli->config, cli->args.config, cli->cmd->consumers, err) != 0)
        return -1;
    return config_settings(&cli->config, &cli->settings, err);
}

static void say_caution(void *ctx, const struct problem *p)
{
    char text[640];
    (void)ctx;
    snprintf(text, sizeof(text), "warning: %s: %s", p->where, p->text);
    output_error(text);
}

/* caution: a relay logs it, and config check lists it. */
static void caution(const struct cli *cli)
{
    bool says_itself = cli->cmd == cmd_relay || cli->cmd->gathers;
    if (!says_itself)
        config_cautions(&cli->config, say_caution, NULL);
}

static int run(struct cli *cli, int argc, char **argv, struct error *err)
{
    if (options_parse(cli, argc, argv, err) != 0)
        return -1;
    if (cli->args.help)
        return cmd_help->run(cli, err);
    if (cli->cmd->bare)
        return cli->cmd->run(cli, err);
    if (load_settings(cli, err) != 0)
        return -1;
    config_guard(&cli->config, &cli->settings);
    caution(cli);
    return cli->cmd->run(cli, err);
}

/* hold_stdio: if one of 0, 1, 2 is closed, nothing else may get its number. Opened the wrong way
 * round, so that reading or writing still fails. */
static void hold_stdio(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) < 0)
            _exit(70);
}

/* hear_signals: whoever started us may have had signals blocked, and that is inherited: a relay
 * could not be stopped. */
static void hear_signals(void)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

int main(int argc, char **argv)
{
    struct cli cli = {0};
    struct error err = {0};
    hold_stdio();
    hear_signals();
    output_locale();
    config_init(&cli.config);
    int r = run(&cli, argc, argv, &err);
    if (r == 0)
        r = output_end(&err);
    if (r != 0 && err.code != CLI_FOUND && err.code != CLI_WRONG) {
        advise(&cli, &err);
        if (cli.cmd == cmd_relay && cli.settings.log_format == LOG_JSON)
            logger_line(LOG_JSON, LOG_ERROR_, NULL, err.text, 0);
        else
            output_error(err.text);
    }
    config_release(&cli.config);
    return r == 0 ? 0 : exit_code(err.code);
}
