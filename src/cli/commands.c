/* commands.c: the list of commands, and the arguments. Most options live in tables: a command's
 * options set fields of struct args; the settings, which may also come from the environment and the
 * config file, are collected in the config. */
#define COMMANDS_C
#include <stdarg.h>
#include <stdint.h>
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
    text_hint(name, names, (struct text_hint){.otherwise = "`outbox help` lists all commands"},
              hint);
    return commands_usage(err, "unknown command \"%s\"%s", name, hint);
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
        return commands_usage(err, "%s needs a subcommand: one of %s", rows->name, list);

    char hint[TEXT_HINT], all[TEXT_HINT];
    snprintf(all, sizeof(all), "use one of %s", list);
    text_hint(sub, names, (struct text_hint){.otherwise = all}, hint);
    return commands_usage(err, "unknown subcommand \"%s %s\"%s", rows->name, sub, hint);
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

/* ---- the arguments ---- */

/* (1) consumer is the group that --consumer opened last, or NULL. (2) ended is set after `--`.
 * (3) environment holds the error of an invalid variable, if its code is set. It is reported only
 * at the end, so that --help works regardless. */
struct parser {
    struct cli *cli;
    char **argv;
    int argc, i;
    const char *consumer;
    bool ended;
    struct error environment;
};

int commands_usage(struct error *err, const char *fmt, ...)
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

int commands_key(void *field, const char *value, const struct option_def *o, struct error *err)
{
    struct key_arg *key = field;
    const char *slash = strchr(value, '/');
    bool split = slash && slash != value && slash[1];
    (void)o;

    if (!split) {
        return err_set(err, ERR_CONFIG,
                       "\"%s\" is not a key; write the aggregate's type and id with a slash "
                       "between them: order/42",
                       value);
    }
    key->aggregate_type = (struct str){value, (size_t)(slash - value)};
    key->aggregate_id = str_of(slash + 1);
    return 0;
}

int commands_pair(void *field, const char *value, const struct option_def *o, struct error *err)
{
    struct pairs_arg *a = field;
    const char *equals = strchr(value, '=');
    if (!equals || equals == value)
        return err_set(err, ERR_CONFIG, "\"%s\" is not %s", value, o->arg);
    if (a->n == (size_t)o->max)
        return err_set(err, ERR_CONFIG, "at most %d %ss can be given", (int)o->max, o->name);

    size_t n = (size_t)(equals - value) + 1;
    for (size_t i = 0; i < a->n; i++) {
        if (strncmp(a->pair[i], value, n) == 0)
            return err_set(err, ERR_CONFIG, "%.*s is given twice", (int)n - 1, value);
    }
    a->pair[a->n++] = value;
    return 0;
}

static int set_number(option_setter *set, struct number_arg *n, const char *value,
                      const struct option_def *o, struct error *err)
{
    if (set(&n->value, value, o, err) != 0)
        return -1;
    n->given = true;
    return 0;
}

int commands_number(void *field, const char *value, const struct option_def *o, struct error *err)
{
    return set_number(option_long, field, value, o, err);
}

int commands_span(void *field, const char *value, const struct option_def *o, struct error *err)
{
    return set_number(option_span, field, value, o, err);
}

const struct option_def commands_global[] = {
    {"config", "FILE", NULL, "read settings from this file", option_name, ARG(config),
     .letter = 'c', .env = true},
    {"help", NULL, NULL, "show help for the command", option_bool, ARG(help), .letter = 'h'},
    OPTION_END,
};

const struct option_def commands_consumer[] = {
    {"consumer", "NAME", NULL, "run this consumer; the consumer options after it apply to it", NULL,
     .at = 0},
    OPTION_END,
};

/* ---- finding an option ---- */

/* What sets an option: a field of struct args, the group of consumer options that --consumer opens,
 * or a setting. */
enum target { TO_ARGS, TO_GROUP, TO_CONSUMER, TO_OUTBOX };

struct scope {
    const struct option_def *table;
    enum target target;
};
#define SCOPES 5

/* Lists the tables of options in the order in which they are searched. Those of consumers are only
 * for commands that take them. */
static size_t scopes_of(const struct command *cmd, struct scope out[SCOPES])
{
    bool consumers = cmd && cmd->consumers;
    size_t n = 0;
    if (cmd && cmd->options)
        out[n++] = (struct scope){cmd->options, TO_ARGS};
    if (consumers)
        out[n++] = (struct scope){commands_consumer, TO_GROUP};
    out[n++] = (struct scope){commands_global, TO_ARGS};
    if (consumers)
        out[n++] = (struct scope){consumer_options, TO_CONSUMER};
    out[n++] = (struct scope){config_options, TO_OUTBOX};
    return n;
}

/* Looks an option up by name or, if name is NULL, by letter. */
static const struct option_def *find_option(const struct command *cmd, const char *name,
                                            char letter, enum target *ret)
{
    struct scope scopes[SCOPES];
    size_t n = scopes_of(cmd, scopes);
    for (size_t i = 0; i < n; i++) {
        *ret = scopes[i].target;
        for (const struct option_def *o = scopes[i].table; o->name; o++) {
            bool found = name ? strcmp(o->name, name) == 0 : o->letter == letter;
            if (found)
                return o;
        }
    }
    return NULL;
}

void commands_option_names(const struct option_def *table, const char *names[OPTIONS_NAMES])
{
    size_t n = 0;
    while (names[n])
        n++;
    for (const struct option_def *o = table; o && o->name && n < OPTIONS_NAMES - 1; o++)
        names[n++] = o->name;
    names[n] = NULL;
}

static int unknown_option(const struct cli *cli, const char *name, struct error *err)
{
    const char *names[OPTIONS_NAMES] = {NULL};
    struct scope scopes[SCOPES];
    size_t n = scopes_of(cli->cmd, scopes);
    for (size_t i = 0; i < n; i++)
        commands_option_names(scopes[i].table, names);

    char hint[TEXT_HINT], others[100] = "write the options of a command after it: see outbox help";
    if (cli->cmd)
        snprintf(others, sizeof(others), "outbox help %s lists the options", cli->cmd->name);
    text_hint(name, names, (struct text_hint){"--", NULL, others}, hint);
    return commands_usage(err, "unknown option --%s%s", name, hint);
}

/* ---- reading ---- */

/* Sets the options of a table that are in the environment. Arguments are applied later and override
 * them. */
static int from_environment(const struct option_def *table, struct args *a, struct error *err)
{
    char variable[CONFIG_VARIABLE];
    for (const struct option_def *o = table; o && o->name; o++) {
        if (!o->env)
            continue;
        const char *value = config_getenv(config_variable(o->name, variable));
        if (value && option_apply(o, a, value, err) != 0)
            return err_prefix(err, "%s", variable);
    }
    return 0;
}

/* Takes an option and its value: the text after '=', else the next argument; a switch is set to
 * "yes". A secret in a setting is then masked in argv, which a program may overwrite; the config
 * has its own copy. */
static int take_option(struct parser *p, const struct option_def *o, enum target target,
                       const char *value, struct error *err)
{
    struct config *config = &p->cli->config;
    bool missing = !value && o->arg && p->i + 1 >= p->argc;
    if (missing)
        return commands_usage(err, "--%s needs a value: --%s %s", o->name, o->name, o->arg);
    if (!value)
        value = o->arg ? p->argv[++p->i] : "yes";

    int r;
    switch (target) {
    case TO_ARGS: r = option_apply(o, &p->cli->args, value, err); break;
    case TO_GROUP:
        p->consumer = value;
        r = config_add_name(config, ORIGIN_FLAG, value, "--consumer", err);
        break;
    default:
        r = config_flag(config, target == TO_CONSUMER ? p->consumer : NULL, o, value, err);
        if (r == 0)
            config_hide((char *)(uintptr_t)value);
    }
    if (r == 0)
        return 0;
    err_prefix(err, "--%s", o->name);
    if (err->code == ERR_CONFIG) /* in the environment or the file it is a bad setting */
        err->code = CLI_USAGE;
    return -1;
}

/* Reads --name, --name VALUE and --name=VALUE. */
static int long_option(struct parser *p, const char *arg, struct error *err)
{
    char name[64]; /* no option has a longer name */
    enum target target;
    size_t n = strcspn(arg, "=");
    const struct option_def *o = NULL;
    snprintf(name, sizeof(name), "%.*s", (int)n, arg);
    if (n < sizeof(name))
        o = find_option(p->cli->cmd, name, 0, &target);
    if (!o)
        return unknown_option(p->cli, name, err);
    return take_option(p, o, target, arg[n] ? arg + n + 1 : NULL, err);
}

/* Reads -c FILE, -cFILE and -h. */
static int short_option(struct parser *p, const char *arg, struct error *err)
{
    enum target target;
    const struct option_def *o = find_option(p->cli->cmd, NULL, arg[0], &target);
    if (!o)
        return commands_usage(err,
                              "unknown option -%s; the only short options are -c FILE and -h; see "
                              "`outbox help`",
                              arg);
    if (arg[1] && !o->arg)
        return commands_usage(err, "unknown option -%s", arg);
    return take_option(p, o, target, arg[1] ? arg + 1 : NULL, err);
}

/* Sets the defaults of a command's options, then the values of the environment. An error there is
 * kept for later: see struct parser. */
static int select_command(struct parser *p, const struct command *cmd, struct error *err)
{
    p->cli->cmd = cmd;
    if (cmd->options && option_defaults(cmd->options, &p->cli->args, err) != 0)
        return -1;
    if (!cmd->bare)
        from_environment(cmd->options, &p->cli->args, &p->environment);
    return 0;
}

/* Takes the next positional argument: first the command, then the subcommand, then its
 * arguments. */
static int parse_positional(struct parser *p, const char *arg, struct error *err)
{
    struct cli *cli = p->cli;
    if (!cli->rows) {
        if (commands_find(arg, &cli->rows, err) != 0)
            return -1;
        if (cli->rows->sub)
            return 0; /* the subcommand comes next */
        return select_command(p, cli->rows, err);
    }
    if (!cli->cmd) {
        const struct command *row;
        if (commands_sub(cli->rows, arg, &row, err) != 0)
            return -1;
        return select_command(p, row, err);
    }

    if (cli->args.n_pos == cli->cmd->max)
        return commands_usage(err, "unexpected argument \"%s\"; see outbox help %s", arg,
                              cli->cmd->name);
    cli->args.pos[cli->args.n_pos++] = arg;
    return 0;
}

/* Takes one argument, and the value that follows it if it is an option that has one. A lone - is an
 * argument: it stands for stdin. */
static int parse_argument(struct parser *p, const char *arg, struct error *err)
{
    bool option = !p->ended && arg[0] == '-' && arg[1];
    if (!option)
        return parse_positional(p, arg, err);
    if (strcmp(arg, "--") == 0) {
        p->ended = true;
        return 0;
    }

    /* People expect --version of any program. After a command it is an option like any other. */
    if (!p->cli->rows && strcmp(arg, "--version") == 0)
        return parse_positional(p, "version", err);
    if (arg[1] == '-')
        return long_option(p, arg + 2, err);
    return short_option(p, arg + 1, err);
}

static int check_complete(const struct cli *cli, struct error *err)
{
    const struct command *cmd = cli->cmd;
    if (!cli->rows)
        return commands_usage(err, "no command given; `outbox help` lists all commands");
    if (!cmd)
        return commands_sub(cli->rows, NULL, &cmd, err);
    if (cli->args.n_pos >= cmd->min)
        return 0;

    char name[100];
    snprintf(name, sizeof(name), "%s", cmd->name);
    if (cmd->sub)
        snprintf(name, sizeof(name), "%s %s", cmd->name, cmd->sub);
    return commands_usage(err, "%s needs %s; see outbox help %s", name, cmd->args, cmd->name);
}

/* Reports a bad variable only after the arguments, which may ask for help or override it. */
int commands_parse(struct cli *cli, int argc, char **argv, struct error *err)
{
    struct parser p = {.cli = cli, .argv = argv, .argc = argc};
    /* Help takes precedence over errors in the rest. */
    for (p.i = 1; p.i < argc && !cli->args.help; p.i++) {
        if (parse_argument(&p, argv[p.i], err) != 0)
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
    return from_environment(commands_global, &cli->args, err);
}
