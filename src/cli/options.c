#define OPTIONS_C
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "cli/cli.h"

#define NAMES_MAX 64

/* (1) consumer is the group that --consumer opened last; NULL: none. (2) ended: `--` has been seen.
 *   (3) environment is
 * what is wrong with a variable, if its code is set: told only at the end, because help must not
 * stumble over it. */
struct parser {
    struct cli *cli;
    char **argv;
    int argc, i;
    const char *consumer;
    bool ended;
    struct error environment;
};

int options_usage(struct error *err, const char *fmt, ...)
{
    char text[sizeof(err->text)];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    err_set(err, ERR_CONFIG, "%s", text);
    if (err)
        err->code = CLI_USAGE;
    return -1;
}

/* ---- setters ---- */

int options_consumer_name(void *field, const char *value, const struct option_def *o,
                          struct error *err)
{
    if (store_name_check(value, err) != 0)
        return -1;
    return option_text(field, value, o, err);
}

int options_key(void *field, const char *value, const struct option_def *o, struct error *err)
{
    struct key_arg *key = field;
    const char *slash = strchr(value, '/');
    bool split = slash && slash != value && slash[1];
    (void)o;
    if (!split) {
        return err_set(err, ERR_CONFIG,
                       "\"%s\" is not an aggregate's type and id with a slash between: order/42",
                       value);
    }
    key->aggregate_type = (struct str){value, (size_t)(slash - value)};
    key->aggregate_id = str_of(slash + 1);
    return 0;
}

const struct option_def options_global[] = {
    {"config", "FILE", NULL, "read settings from this file", option_name, ARG(config),
     .letter = 'c', .env = true},
    {"help", NULL, NULL, "show help for the command", option_bool, ARG(help), .letter = 'h'},
    OPTION_END,
};

const struct option_def options_consumer[] = {
    {"consumer", "NAME", NULL, "run this consumer; the consumer options after it apply to it", NULL,
     .at = 0},
    OPTION_END,
};

/* ---- finding ---- */

/* What a name stands for: one of the two. */
struct found {
    const struct option_def *own;    /* of the command, sets struct args */
    const struct option_def *shared; /* a setting: [outbox] or a consumer's */
    bool of_consumer;
};

/* find_own looks by name, or by letter if there is none. */
static const struct option_def *find_own(const struct option_def *table, const char *name,
                                         char letter)
{
    if (!table)
        return NULL;
    if (name)
        return option_find(table, name);
    for (const struct option_def *o = table; o->name; o++)
        if (o->letter == letter)
            return o;
    return NULL;
}

static bool find(const struct command *cmd, const char *name, char letter, struct found *ret)
{
    *ret = (struct found){0};
    if (cmd)
        ret->own = find_own(cmd->options, name, letter);
    if (!ret->own && cmd && cmd->consumers)
        ret->own = find_own(options_consumer, name, letter);
    if (!ret->own)
        ret->own = find_own(options_global, name, letter);
    if (ret->own || !name)
        return ret->own != NULL;
    if (cmd && cmd->consumers)
        ret->shared = option_find(consumer_options, name);
    ret->of_consumer = ret->shared != NULL;
    if (!ret->shared)
        ret->shared = option_find(config_options, name);
    return ret->shared != NULL;
}

static size_t add_names(const struct option_def *table, const char **names, size_t n)
{
    for (const struct option_def *o = table; o && o->name && n < NAMES_MAX; o++)
        names[n++] = o->name;
    return n;
}

static int unknown(const struct cli *cli, const char *name, struct error *err)
{
    const char *names[NAMES_MAX + 1];
    size_t n = add_names(options_global, names, 0);
    if (cli->cmd)
        n = add_names(cli->cmd->options, names, n);
    if (cli->cmd && cli->cmd->consumers) {
        n = add_names(options_consumer, names, n);
        n = add_names(consumer_options, names, n);
    }
    n = add_names(config_options, names, n);
    names[n] = NULL;

    char hint[TEXT_HINT], others[100] = "a command's own options stand behind it: see outbox help";
    if (cli->cmd)
        snprintf(others, sizeof(others), "outbox help %s lists those there are", cli->cmd->name);
    text_hint(name, names, (struct text_hint){"--", NULL, others}, hint);
    return options_usage(err, "unknown option --%s%s", name, hint);
}

/* ---- reading ---- */

/* from_environment sets the options of a table that may come from there. Arguments come later, and
 * so on top. */
static int from_environment(const struct option_def *table, struct args *a, struct error *err)
{
    char variable[CONFIG_VARIABLE];
    for (const struct option_def *o = table; o && o->name; o++) {
        const char *value = o->env ? getenv(config_variable(o->name, variable)) : NULL;
        if (value && *value && option_apply(o, a, value, err) != 0)
            return err_prefix(err, "%s", variable);
    }
    return 0;
}

static int apply(struct parser *p, const struct found *f, const char *value, struct error *err)
{
    struct cli *cli = p->cli;
    if (f->shared) {
        if (config_flag(&cli->config, f->of_consumer ? p->consumer : NULL, f->shared, value, err) !=
            0)
            return -1;
        /* our arguments are ours to write to; a copy is kept */
        config_hide((char *)(uintptr_t)value);
        return 0;
    }
    if (f->own == options_consumer) {
        if (config_flag_consumer(&cli->config, value, err) != 0)
            return -1;
        p->consumer = value;
        return 0;
    }
    if (option_apply(f->own, &cli->args, value, err) == 0)
        return 0;
    err_prefix(err, "--%s", f->own->name);
    if (err->code == ERR_CONFIG)
        err->code = CLI_USAGE;
    return -1;
}

/* take_value gives the value behind an option: what stood after '=', else the next argument; "yes"
 * for a switch. */
static int take_value(struct parser *p, const struct found *f, const char **value,
                      struct error *err)
{
    const struct option_def *def = f->shared ? f->shared : f->own;
    if (*value)
        return 0;
    if (!def->arg) {
        *value = "yes";
        return 0;
    }
    if (p->i + 1 >= p->argc)
        return options_usage(err, "--%s needs a value: --%s %s", def->name, def->name, def->arg);
    *value = p->argv[++p->i];
    return 0;
}

static int long_option(struct parser *p, const char *arg, struct error *err)
{
    char name[64];
    const char *equals = strchr(arg, '=');
    const char *value = equals ? equals + 1 : NULL;
    struct found f;
    int n = equals ? (int)(equals - arg) : (int)strlen(arg);
    snprintf(name, sizeof(name), "%.*s", n, arg);
    if ((size_t)n >= sizeof(name) || !find(p->cli->cmd, name, 0, &f))
        return unknown(p->cli, name, err);
    if (take_value(p, &f, &value, err) != 0)
        return -1;
    return apply(p, &f, value, err);
}

/* short_option takes -c FILE, -cFILE and -h. */
static int short_option(struct parser *p, const char *arg, struct error *err)
{
    struct found f;
    if (!find(p->cli->cmd, NULL, arg[0], &f)) {
        return options_usage(err,
                             "unknown option -%s; short ones are -c FILE and -h, all others have a "
                             "name: see outbox help",
                             arg);
    }
    const char *value = f.own->arg && arg[1] ? arg + 1 : NULL;
    if (!f.own->arg && arg[1])
        return options_usage(err, "unknown option -%s", arg);
    if (take_value(p, &f, &value, err) != 0)
        return -1;
    return apply(p, &f, value, err);
}

static int select_command(struct parser *p, const struct command *cmd, struct error *err)
{
    p->cli->cmd = cmd;
    if (cmd->options && option_defaults(cmd->options, &p->cli->args, err) != 0)
        return -1;
    if (!cmd->bare)
        from_environment(cmd->options, &p->cli->args, &p->environment);
    return 0;
}

static int positional(struct parser *p, const char *arg, struct error *err)
{
    struct cli *cli = p->cli;
    const struct command *row;
    if (!cli->rows) {
        if (commands_find(arg, &cli->rows, err) != 0)
            return -1;
        return cli->rows->sub ? 0 : select_command(p, cli->rows, err);
    }
    if (!cli->cmd) {
        if (commands_sub(cli->rows, arg, &row, err) != 0)
            return -1;
        return select_command(p, row, err);
    }
    if (cli->args.n_pos == cli->cmd->max)
        return options_usage(err, "unexpected argument \"%s\"", arg);
    cli->args.pos[cli->args.n_pos++] = arg;
    return 0;
}

static int one(struct parser *p, const char *arg, struct error *err)
{
    if (p->ended || arg[0] != '-' || !arg[1])
        return positional(p, arg, err);
    if (strcmp(arg, "--") == 0) {
        p->ended = true;
        return 0;
    }
    /* A habit people have; behind a command --version is an option like any other. */
    if (!p->cli->rows && strcmp(arg, "--version") == 0)
        return positional(p, "version", err);
    return arg[1] == '-' ? long_option(p, arg + 2, err) : short_option(p, arg + 1, err);
}

static int check_complete(const struct cli *cli, struct error *err)
{
    const struct command *cmd = cli->cmd;
    if (!cli->rows)
        return options_usage(err, "no command given; outbox help lists them");
    if (!cmd)
        return commands_sub(cli->rows, NULL, &cmd, err);
    if (cli->args.n_pos >= cmd->min)
        return 0;
    return options_usage(err, "%s%s%s needs %s; outbox help %s says more", cmd->name,
                         cmd->sub ? " " : "", cmd->sub ? cmd->sub : "", cmd->args, cmd->name);
}

int options_parse(struct cli *cli, int argc, char **argv, struct error *err)
{
    struct parser p = {.cli = cli, .argv = argv, .argc = argc};
    for (p.i = 1; p.i < argc && !cli->args.help; p.i++) {
        if (one(&p, argv[p.i], err) != 0)
            return -1;
    }
    if (cli->args.help)
        return 0;
    if (p.environment.code) {
        *err = p.environment;
        return -1;
    }
    if (check_complete(cli, err) != 0)
        return -1;
    if (cli->args.config || cli->cmd->bare)
        return 0;
    return from_environment(options_global, &cli->args, err);
}
