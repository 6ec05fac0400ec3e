/* main.c: boots the command line. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "cli/cli.h"
#include "cli/logger.h"

/* The exit code of each error; any other is a bug. */
static const struct {
    int code, exit;
} exits[] = {
    {CLI_FOUND, EXIT_FOUND_},
    {CLI_DECLINED, EXIT_FOUND_},
    {CLI_USAGE, EXIT_USAGE_},
    {CLI_WRONG, EXIT_CONFIG_},
    {ERR_CONFIG, EXIT_CONFIG_},
    {ERR_INVALID, EXIT_DATA_},
    {ERR_CONFLICT, EXIT_DATA_},
    {ERR_NOTFOUND, EXIT_DATA_},
    {ERR_NOTOURS, EXIT_DATA_},
    {ERR_NEWER, EXIT_DATA_},
    {ERR_UNAVAILABLE, EXIT_UNAVAILABLE_},
    {ERR_READONLY, EXIT_UNAVAILABLE_},
    {ERR_FULL, EXIT_UNAVAILABLE_},
    {ERR_NOMEM, EXIT_UNAVAILABLE_},
    {ERR_BUSY, EXIT_AGAIN_},
    {ERR_LOST, EXIT_AGAIN_},
};

static void say_caution(void *ctx, const struct problem *p)
{
    char text[640];
    (void)ctx;
    snprintf(text, sizeof(text), "warning: %s: %s", p->where, p->text);
    output_error(text);
}

/* Parses the arguments, loads the settings and opens the store if the command needs them, and runs
 * the command. */
static int run_command(struct cli *cli, int argc, char **argv, struct error *err)
{
    if (commands_parse(cli, argc, argv, err) != 0)
        return -1;
    if (cli->args.help) {
        /* Options before -h have filled the part of struct args that the commands share. */
        if (cli->cmd != cmd_help)
            memset(cli->args.own, 0, sizeof cli->args.own);
        return cmd_help->run(cli, err);
    }
    const struct command *cmd = cli->cmd;
    if (cmd->bare)
        return cmd->run(cli, err);

    cli->config.gather = cmd->gathers;
    if (config_load(&cli->config, cli->args.config, cmd->consumers, err) != 0)
        return -1;
    if (config_settings(&cli->config, &cli->settings, err) != 0)
        return -1;
    config_guard(&cli->config, &cli->settings);

    /* A relay logs exposed secrets, and config check lists them. */
    bool warns_itself = cmd == cmd_relay || cmd->gathers;
    if (!warns_itself)
        config_cautions(&cli->config, say_caution, NULL);

    if (cmd->check && cmd->check(cli, err) != 0)
        return -1;
    struct store_options opt = {.any_version = cmd->opens == OPENS_ANY_VERSION};
    if (cmd->opens != OPENS_NONE && commands_open(cli, opt, err) != 0)
        return -1;
    return cmd->run(cli, err);
}

/* Opens /dev/null as each of the descriptors 0, 1 and 2 that is closed, so that no file opened
 * later takes its number. The access mode is deliberately wrong: reading stdin and writing to the
 * others still fail. */
static void hold_stdio(void)
{
    static const int wrong_way[] = {O_WRONLY, O_RDONLY, O_RDONLY};
    for (int fd = 0; fd < 3; fd++) {
        bool is_open = fcntl(fd, F_GETFD) >= 0;
        if (!is_open && open("/dev/null", wrong_way[fd]) < 0)
            _exit(EXIT_BUG_);
    }
}

/* Prints the error, unless the command has already reported it, with advice that the store cannot
 * give. */
static void say_error(const struct cli *cli, const struct error *err)
{
    const char *store = cli->settings.store, *advice = "";
    bool is_file = store && strncmp(store, "sqlite:", 7) == 0;
    bool said = err->code == CLI_FOUND || err->code == CLI_WRONG || err->code == CLI_DECLINED;
    if (said)
        return;
    if (err->code == ERR_FULL)
        advice = "; make room, then try again";
    if (err->code == ERR_READONLY && is_file)
        advice = "; you need write permission for the file and its folder";

    char text[sizeof(err->text) + 64];
    snprintf(text, sizeof(text), "%s%s", err->text, advice);
    bool json = cli->cmd == cmd_relay && cli->settings.log_format == LOG_JSON;
    if (json)
        logger_line(LOG_JSON, LOG_ERROR_, NULL, text, 0);
    else
        output_error(text);
}

int main(int argc, char **argv)
{
    struct cli cli = {0};
    struct error err = {0};
    hold_stdio();

    /* Blocked signals are inherited, and a relay could not be stopped. */
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);

    output_locale();
    config_init(&cli.config);
    arena_init(&cli.arena, 0);
    int r = run_command(&cli, argc, argv, &err);
    store_close(cli.st);
    arena_release(&cli.arena);
    if (r == 0)
        r = output_end(&err);
    int status = 0;
    if (r != 0) {
        say_error(&cli, &err);
        status = EXIT_BUG_;
        for (size_t i = 0; i < sizeof(exits) / sizeof(*exits); i++) {
            if (exits[i].code == err.code)
                status = exits[i].exit;
        }
    }
    config_release(&cli.config);
    return status;
}
