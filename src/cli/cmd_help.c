/* cmd_help.c: outbox help and version. Help for the terminal, the manual page and the JSON that
 * tests compare are all printed from the tables of options and commands. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "sink/sink.h"

struct help_args {
    bool man, options, members;
};

#define TABLES_MAX 64 /* of members, in the manual page */
#define COLUMN 32     /* column where the explanation of an option starts */

static const char *const exit_codes[][2] = {
    {"0", "success"},
    {"1",
     "doctor and migrate validate: there is a problem; webhook verify: not genuine; any command "
     "that asks first: the answer was no"},
    {"64", "usage: the arguments are wrong"},
    {"65", "bad data: an event is refused or does not exist, or the database is not an outbox"},
    {"69", "unavailable: the store cannot be reached or written, or the disk is full"},
    {"70", "a bug in outbox"},
    {"75", "try again: another process has locked the database"},
    {"78", "configuration: a setting is missing or wrong"},
};

static const struct option_def help_options[] = {
    {"man", NULL, "no", "print the manual page outbox(1)", option_bool, OWN(help_args, man)},
    {"options", NULL, "no", "print all options as JSON", option_bool, OWN(help_args, options)},
    {"members", NULL, "no", "print a description of the commands' JSON output, as JSON",
     option_bool, OWN(help_args, members)},
    OPTION_END,
};
static const struct option_def version_options[] = {OPTION_JSON, OPTION_END};

/* ---- for the terminal ---- */

/* Prints the left column, with a formatted text, and the explanation beside it; if the text is too
 * wide, on the next line. */
static void print_entry(const char *help, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static void print_entry(const char *help, const char *fmt, ...)
{
    char head[160];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(head, sizeof head, fmt, ap);
    va_end(ap);
    if (strlen(head) < COLUMN)
        printf("%-*s%s", COLUMN, head, help);
    else
        printf("%s\n%*s%s", head, COLUMN, "", help);
}

static void print_option(const struct option_def *o)
{
    char letter[8] = "      ";
    if (o->letter)
        snprintf(letter, sizeof letter, "  -%c, ", o->letter);
    print_entry(o->help, "%s--%s%s%s", letter, o->name, o->arg ? " " : "", o->arg ? o->arg : "");
    if (o->def && o->arg)
        printf(" [%s]", o->def);
    putchar('\n');
}

static void print_table(const struct option_def *table)
{
    for (const struct option_def *o = table; o && o->name; o++)
        print_option(o);
}

/* Whether every command uses a setting, not just a relay. */
static bool is_common(const struct option_def *o)
{
    static const char *const names[] = {"store", "busy-timeout", "max-payload", "color"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        if (strcmp(names[i], o->name) == 0)
            return true;
    }
    return false;
}

static void print_settings(bool common)
{
    for (const struct option_def *o = config_options; o->name; o++) {
        if (is_common(o) == common)
            print_option(o);
    }
}

/* full_name writes the command as a user types it: "dead list". */
#define NAME 64
static const char *full_name(const struct command *c, char out[NAME])
{
    if (c->sub)
        snprintf(out, NAME, "%s %s", c->name, c->sub);
    else
        snprintf(out, NAME, "%s", c->name);
    return out;
}

static void print_member(void *ctx, const char *path, const char *type, const char *help)
{
    (void)ctx;
    print_entry(help, "      %s, %s", path, type);
    putchar('\n');
}

/* Prints one form of a command and its options. Of consecutive rows with the same options only the
 * last shows them, unless the row was requested alone; then its --json output is listed as well. */
static void print_row(const struct command *c, bool alone)
{
    const struct command *next = &c[1];
    bool last = alone || !next->name;
    char name[NAME];
    printf("  outbox %s", full_name(c, name));
    if (c->args)
        printf(" %s", c->args);
    if (c->options || c->consumers)
        fputs(" [options]", stdout);
    printf("\n      %s\n", c->help);
    if (!last && next->options == c->options)
        return;

    if (c->options) {
        puts(c->sub ? "" : "\nOptions:");
        print_table(c->options);
    }
    bool shows_json = c->json && (alone || !c->sub);
    for (const struct command_json *j = c->json; shows_json && j->fields; j++) {
        printf("\nWith --json%s%s: %s\n", j->when ? ", " : "", j->when ? j->when : "", j->form);
        listing_document(j->fields, print_member, NULL);
    }
    if (!last)
        putchar('\n');
}

static void print_consumers(void)
{
    puts("\nConsumers:");
    print_table(commands_consumer);
    puts("\nConsumer options; before the first --consumer they apply to all consumers:");
    print_table(consumer_options);
    puts("\nSinks:");
    for (size_t i = 0; sink_kinds[i]; i++) {
        print_entry(sink_kinds[i]->help, "      %s", sink_kinds[i]->synopsis);
        putchar('\n');
    }
    puts("\nRelay settings:");
    print_settings(false);
}

/* Prints all forms of a command, or with `sub` only that one. Settings are shown if one of these
 * forms loads any. */
static void print_command(const struct command *rows, const char *sub)
{
    bool consumers = false, settings = false;
    puts("Usage:");
    for (const struct command *c = rows; c->name; c++) {
        if (sub && strcmp(c->sub, sub) != 0)
            continue;
        print_row(c, sub != NULL);
        if (c->consumers)
            consumers = true;
        if (!c->bare)
            settings = true;
    }
    if (consumers)
        print_consumers();
    puts("\nFor every command:");
    print_table(commands_global);
    if (settings)
        print_settings(true);
}

static void print_overview(void)
{
    puts("outbox: write events in your own database transaction; every consumer receives them, at "
         "least once and in order\n\n"
         "Usage: outbox [-c FILE] [--store URL] COMMAND [options]\n\nCommands:");
    for (const struct command *c = commands_next(NULL); c; c = commands_next(c)) {
        char name[NAME];
        printf("  %-20s%s\n", full_name(c, name), c->help);
    }
    puts("\nFor every command:");
    print_table(commands_global);
    print_settings(true);
    puts("\nEvery setting can also come from the environment (OUTBOX_LEASE=2s) or a config file "
         "(outbox config sample).\n"
         "For more about a command: outbox help COMMAND; for the settings of a relay: "
         "outbox help relay");
}

/* ---- as JSON, for tests that compare all places where an option appears ---- */

/* An option, and where it may be set besides the command line. */
struct listed_option {
    const char *scope;
    struct option_def o;
    const char *variable; /* NULL: not in the environment */
    bool file;
};

#define AT(member) .at = offsetof(struct listed_option, member)
static const struct listing_field fields_option[] = {
    {"scope", LISTING_TEXT, AT(scope)}, {"name", LISTING_TEXT, AT(o.name)},
    {"arg", LISTING_TEXT, AT(o.arg)},   {"default", LISTING_TEXT, AT(o.def)},
    {"help", LISTING_TEXT, AT(o.help)}, {"env", LISTING_TEXT, AT(variable)},
    {"file", LISTING_BOOL, AT(file)},   {NULL},
};
#undef AT

/* The options of commands have variables only if their rows say so; settings always have one, and
 * may appear in the config file. */
static void dump_table(struct listing *l, const char *scope, const struct option_def *table,
                       bool settings)
{
    for (const struct option_def *o = table; o && o->name; o++) {
        char variable[CONFIG_VARIABLE];
        struct listed_option row = {.scope = scope, .o = *o, .file = settings};
        if (settings || o->env)
            row.variable = config_variable(o->name, variable);
        listing_add(l, &row);
    }
}

static int dump_options(struct error *err)
{
    struct listing_form form = {.fields = fields_option, .out = stdout, .json = true};
    struct listing l;
    if (listing_start(&l, &form, err) != 0)
        return -1;
    dump_table(&l, "global", commands_global, false);
    dump_table(&l, "outbox", config_options, true);
    dump_table(&l, "consumer", consumer_options, true);
    for (const struct command *c = commands_next(NULL); c; c = commands_next(c)) {
        char scope[NAME];
        full_name(c, scope);
        if (c->consumers)
            dump_table(&l, scope, commands_consumer, false);
        dump_table(&l, scope, c->options, false);
    }
    return listing_end(&l, 0, err);
}

/* A member of a command's --json output. */
struct documented {
    const char *command, *form, *when, *path, *type, *help;
};

#define AT(member) .at = offsetof(struct documented, member)
static const struct listing_field fields_documented[] = {
    {"command", LISTING_TEXT, AT(command), "the command"},
    {"form", LISTING_TEXT, AT(form), "form of the output: an object, an array of objects"},
    {"when", LISTING_TEXT, AT(when), "when the command prints it, or null"},
    {"member", LISTING_TEXT, AT(path), "path of the member: deliveries[].state"},
    {"type", LISTING_TEXT, AT(type), "type of the member"},
    {"help", LISTING_TEXT, AT(help), "meaning of the member"},
    {NULL},
};
#undef AT

/* A listing of members. */
struct member_dump {
    struct listing listing;
    struct documented row;
};

static void dump_member(void *ctx, const char *path, const char *type, const char *help)
{
    struct member_dump *d = ctx;
    d->row.path = path;
    d->row.type = type;
    d->row.help = help;
    listing_add(&d->listing, &d->row);
}

static int dump_members(struct error *err)
{
    struct listing_form form = {.fields = fields_documented, .out = stdout, .json = true};
    struct member_dump d;
    char name[NAME];
    if (listing_start(&d.listing, &form, err) != 0)
        return -1;
    for (const struct command *c = commands_next(NULL); c; c = commands_next(c)) {
        for (const struct command_json *j = c->json; j && j->fields; j++) {
            d.row = (struct documented){full_name(c, name), j->form, j->when, NULL, NULL, NULL};
            listing_document(j->fields, dump_member, &d);
        }
    }
    return listing_end(&d.listing, 0, err);
}

/* ---- the manual page ---- */

/* Prints text escaped, so that roff reads neither requests nor escapes in it. */
static void man_text(const char *s)
{
    bool request = *s == '.' || *s == '\'';
    if (request)
        fputs("\\&", stdout);
    for (; *s; s++) {
        if (*s == '-')
            fputs("\\-", stdout);
        else if (*s == '\\')
            fputs("\\e", stdout);
        else
            putchar(*s);
    }
}

/* Prints roff in which each $ stands for the next text, which is escaped. */
static void man(const char *roff, ...)
{
    va_list ap;
    va_start(ap, roff);
    for (; *roff; roff++) {
        if (*roff == '$')
            man_text(va_arg(ap, const char *));
        else
            putchar(*roff);
    }
    va_end(ap);
}

static void man_option(const struct option_def *o)
{
    man(".TP\n");
    if (o->letter)
        printf("\\fB\\-%c\\fR, ", o->letter);
    man("\\fB\\-\\-$\\fR", o->name);
    if (o->arg)
        man(" \\fI$\\fR", o->arg);
    man("\n$", o->help);
    if (o->def && o->arg)
        man("; default $", o->def);
    puts(".");
}

static void man_table(const struct option_def *table)
{
    for (const struct option_def *o = table; o && o->name; o++)
        man_option(o);
}

static void man_commands(void)
{
    puts(".SH COMMANDS");
    for (const struct command *c = commands_next(NULL); c; c = commands_next(c)) {
        char name[NAME];
        printf(".SS %s %s\n", full_name(c, name), c->args ? c->args : "");
        man("$.\n", c->help);
        if (c->consumers)
            man_table(commands_consumer);
        man_table(c->options);
    }
}

static void man_member(void *ctx, const char *path, const char *type, const char *help)
{
    (void)ctx;
    man(".TP\n\\fB$\\fR, $\n$.\n", path, type, help);
}

static void man_names(const struct listing_field *fields)
{
    const char *before = ".SS ";
    for (const struct command *c = commands_next(NULL); c; c = commands_next(c)) {
        for (const struct command_json *j = c->json; j && j->fields; j++) {
            char name[NAME];
            if (j->fields != fields)
                continue;
            printf("%s%s", before, full_name(c, name));
            if (j->when)
                printf(" (%s)", j->when);
            before = ", ";
        }
    }
    putchar('\n');
}

/* Lists each table of members once, with all commands that print it. */
static void man_json(void)
{
    const struct listing_field *listed[TABLES_MAX];
    size_t n = 0;
    puts(".SH JSON\nThe output of each command with \\fB\\-\\-json\\fR. A time is a string in RFC "
         "3339. A "
         "command may add members in a later version.");
    for (const struct command *c = commands_next(NULL); c; c = commands_next(c)) {
        for (const struct command_json *j = c->json; j && j->fields; j++) {
            size_t at = 0;
            while (at < n && listed[at] != j->fields)
                at++;
            if (at < n || n == TABLES_MAX)
                continue;
            listed[n++] = j->fields;
            man_names(j->fields);
            listing_document(j->fields, man_member, NULL);
        }
    }
}

/* Prints the page as roff, from the same tables as --help. */
static void print_man(void)
{
    printf(".TH OUTBOX 1 \"\" \"outbox %s\" \"User Commands\"\n", outbox_version());
    puts(".SH NAME\noutbox \\- transactional outbox: store events with your data, deliver them at "
         "least once\n"
         ".SH SYNOPSIS\n.B outbox\n[\\fB\\-c\\fR \\fIFILE\\fR] [\\fB\\-\\-store\\fR \\fIURL\\fR] "
         "\\fICOMMAND\\fR [\\fIoptions\\fR]\n"
         ".SH DESCRIPTION\nAn application writes its events in the database transaction that "
         "changes its data. Every committed event is delivered, at least once and in order, to "
         "every consumer subscribed to it.\n"
         ".SH SETTINGS\nFor every command, and in the section [outbox] of a config file.");
    man_table(commands_global);
    man_table(config_options);
    puts(".SH CONSUMER OPTIONS\nAfter \\fB\\-\\-consumer\\fR, or in a section [consumer NAME]; "
         "before the first \\fB\\-\\-consumer\\fR, or in [outbox], they apply to all consumers.");
    man_table(consumer_options);
    man_commands();
    man_json();
    puts(".SH SINKS");
    for (size_t i = 0; sink_kinds[i]; i++)
        man(".TP\n\\fB$\\fR\n$\n", sink_kinds[i]->synopsis, sink_kinds[i]->help);
    puts(
        ".SH ENVIRONMENT\nEvery setting and every consumer option can come from the "
        "environment, in capitals and with underscores: OUTBOX_STORE, OUTBOX_LEASE, "
        "OUTBOX_DRAIN_DEADLINE. Options override the environment, which overrides the config file. "
        "The environment alone can define consumers: OUTBOX_CONSUMERS=search,mail names them, and "
        "OUTBOX_CONSUMER_SEARCH_SINK is an option of one, with _ for - and . in its name. A "
        "variable that is one letter away from one of these (of five letters or more) is refused "
        "as misspelt; other variables that begin with OUTBOX_ are ignored. NO_COLOR turns colors "
        "off.");
    puts(".SH EXIT STATUS");
    for (size_t i = 0; i < sizeof(exit_codes) / sizeof(*exit_codes); i++)
        printf(".TP\n\\fB%s\\fR\n%s.\n", exit_codes[i][0], exit_codes[i][1]);
}

/* ---- commands ---- */

/* `outbox help`, which -h runs as well. After -h the command and its arguments are those of another
 * command, whose help is printed. */
static int help_run(struct cli *cli, struct error *err)
{
    const struct args *a = &cli->args;
    const struct help_args *own = cli_own(cli);
    bool by_flag = cli->rows && cli->rows != cmd_help;
    if (by_flag) {
        print_command(cli->rows, cli->cmd ? cli->cmd->sub : NULL);
        return 0;
    }

    if (own->man)
        print_man();
    if (own->options)
        return dump_options(err);
    if (own->members)
        return dump_members(err);
    if (own->man)
        return 0;

    if (a->n_pos == 0) {
        print_overview();
        return 0;
    }

    const struct command *rows, *row;
    const char *sub = NULL;
    if (commands_find(a->pos[0], &rows, err) != 0)
        return -1;
    if (a->n_pos > 1) {
        if (commands_sub(rows, a->pos[1], &row, err) != 0)
            return -1;
        sub = row->sub;
    }
    print_command(rows, sub);
    return 0;
}

struct version {
    const char *version;
};

static const struct listing_field fields_version[] = {
    {"version", LISTING_TEXT, .at = offsetof(struct version, version), "version of outbox"},
    {NULL},
};

static void version_text(struct buf *b, const void *row)
{
    buf_addf(b, "outbox %s\n", ((const struct version *)row)->version);
}

static int version_run(struct cli *cli, struct error *err)
{
    struct version row = {outbox_version()};
    return output_result(cli, fields_version, &row, version_text, err);
}

const struct command cmd_version[] = {
    {"version", NULL, NULL, "print the version", .options = version_options, .bare = true,
     .json = JSON_OBJECT(fields_version), .run = version_run},
    {NULL},
};

const struct command cmd_help[] = {
    {"help", NULL, "[COMMAND [SUBCOMMAND]]", "show help for a command", .options = help_options,
     .max = 2, .bare = true, .run = help_run},
    {NULL},
};
