#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "cli/cli.h"
#include "sink/sink.h"

#define COLUMN 32 /* where the explanation of an option starts */

static const char *const exit_codes[][2] = {
    {"0", "all is well"},
    {"1", "doctor and migrate validate: what they looked at is not in order"},
    {"64", "usage: the arguments are wrong"},
    {"65", "bad data: what was to be stored is refused, is not there, or the database is not an outbox"},
    {"69", "unavailable: the store cannot be reached or written, the disk is full"},
    {"70", "a bug in outbox"},
    {"75", "try again: the database is locked by someone else"},
    {"78", "configuration: a setting is missing or wrong"},
};

static int set_man(void *target, const char *value, struct error *err)
{
    return text_bool(value, &((struct args *)target)->man, err);
}

static int set_options(void *target, const char *value, struct error *err)
{
    return text_bool(value, &((struct args *)target)->options, err);
}

static const struct cli_option help_options[] = {
    {{"man", NULL, "no", "print the manual page outbox(1)", set_man}, 0, false},
    {{"options", NULL, "no", "print every option there is, as JSON", set_options}, 0, false},
    OPTION_END,
};
static const struct cli_option version_options[] = {OPTION_JSON, OPTION_END};

/* ---- for the terminal ---- */

static void print_option(const struct option_def *o, char letter)
{
    char head[96] = "      ";
    if (letter) snprintf(head, sizeof(head), "  -%c, ", letter);
    size_t n = strlen(head);
    n += (size_t)snprintf(head + n, sizeof(head) - n, "--%s%s%s", o->name, o->arg ? " " : "", o->arg ? o->arg : "");
    printf("%-*s%s%*s%s", COLUMN, head, n >= COLUMN ? "\n" : "", n >= COLUMN ? COLUMN : 0, "", o->help);
    if (o->def && o->arg) printf(" [%s]", o->def);
    putchar('\n');
}

static void print_own(const struct cli_option *table)
{
    for (const struct cli_option *o = table; o && o->def.name; o++) print_option(&o->def, o->letter);
}

static void print_shared(const struct option_def *table)
{
    for (const struct option_def *o = table; o->name; o++) print_option(o, 0);
}

static void print_usage(const struct command *c)
{
    printf("  outbox %s%s%s%s%s%s\n", c->name, c->sub ? " " : "", c->sub ? c->sub : "", c->args ? " " : "",
           c->args ? c->args : "", c->options || c->consumers ? " [options]" : "");
    printf("      %s\n", c->help);
}

static void print_sinks(void)
{
    puts("\nSinks:");
    for (size_t i = 0; sink_kinds[i]; i++)
        printf("      %-*s%s%*s%s\n", COLUMN - 6, sink_kinds[i]->synopsis,
               strlen(sink_kinds[i]->synopsis) >= COLUMN - 6 ? "\n" : "",
               strlen(sink_kinds[i]->synopsis) >= COLUMN - 6 ? COLUMN : 0, "", sink_kinds[i]->help);
}

/* print_row prints one form of a command and its options. Of several with the same options, the last has them. */
static void print_row(const struct command *c, bool alone)
{
    bool last = alone || !c[1].name;
    print_usage(c);
    if (!last && c[1].options == c->options) return;
    if (c->options) {
        puts(c->sub ? "" : "\nOptions:");
        print_own(c->options);
    }
    if (!last) putchar('\n');
}

static void print_command(const struct command *rows, const char *sub)
{
    bool consumers = false;
    puts("Usage:");
    for (const struct command *c = rows; c->name; c++) {
        if (sub && strcmp(c->sub, sub) != 0) continue;
        print_row(c, sub != NULL);
        consumers = consumers || c->consumers;
    }
    if (consumers) {
        puts("\nConsumers:");
        print_own(options_consumer);
        puts("\nOptions of a consumer; before the first --consumer they are for all:");
        print_shared(consumer_options);
        print_sinks();
    }
    puts("\nWith every command:");
    print_own(options_global);
    print_shared(config_options);
}

static void print_overview(void)
{
    puts("outbox: write events in your own database transaction, have them delivered to everyone who asked\n\n"
         "Usage: outbox [-c FILE] [--store URL] COMMAND [options]\n\nCommands:");
    for (size_t i = 0; commands_all[i]; i++) {
        for (const struct command *c = commands_all[i]; c->name; c++) {
            char name[64];
            snprintf(name, sizeof(name), "%s%s%s", c->name, c->sub ? " " : "", c->sub ? c->sub : "");
            printf("  %-20s%s\n", name, c->help);
        }
    }
    puts("\nWith every command:");
    print_own(options_global);
    print_shared(config_options);
    puts(
        "\nEvery setting can also come from the environment (OUTBOX_LEASE=2s) or a config file (outbox config sample).\n"
        "More about a command: outbox help COMMAND");
}

/* ---- as JSON, for tests that compare all places an option shows up in ---- */

static void dump_option(struct buf *b, const char *scope, const struct option_def *o, bool env, bool file)
{
    char variable[CONFIG_VARIABLE];
    buf_adds(b, b->n > 1 ? ",\n{" : "\n{");
    output_string(b, "scope", scope);
    output_string(b, "name", o->name);
    output_string(b, "arg", o->arg);
    output_string(b, "default", o->def);
    output_string(b, "help", o->help);
    output_string(b, "env", env ? config_variable(o->name, variable) : NULL);
    output_bool(b, "file", file);
    buf_addc(b, '}');
}

static void dump_own(struct buf *b, const char *scope, const struct cli_option *table)
{
    for (const struct cli_option *o = table; o && o->def.name; o++) dump_option(b, scope, &o->def, o->env, false);
}

static void dump_commands(struct buf *b)
{
    for (size_t i = 0; commands_all[i]; i++) {
        for (const struct command *c = commands_all[i]; c->name; c++) {
            char scope[64];
            snprintf(scope, sizeof(scope), "%s%s%s", c->name, c->sub ? " " : "", c->sub ? c->sub : "");
            if (c->consumers) dump_own(b, scope, options_consumer);
            dump_own(b, scope, c->options);
        }
    }
}

static int dump(struct error *err)
{
    struct buf b;
    buf_init(&b, (size_t)1 << 20);
    buf_addc(&b, '[');
    dump_own(&b, "global", options_global);
    for (const struct option_def *o = config_options; o->name; o++) dump_option(&b, "outbox", o, true, true);
    for (const struct option_def *o = consumer_options; o->name; o++) dump_option(&b, "consumer", o, true, true);
    dump_commands(&b);
    buf_adds(&b, "\n]\n");
    int r = output_flush(&b, err);
    buf_release(&b);
    return r;
}

/* ---- the manual page ---- */

/* man_text prints text so that roff takes none of it for its own. */
static void man_text(const char *s)
{
    for (bool start = true; *s; s++, start = false) {
        if (start && (*s == '.' || *s == '\'')) fputs("\\&", stdout);
        if (*s == '-') {
            fputs("\\-", stdout);
        } else if (*s == '\\') {
            fputs("\\e", stdout);
        } else {
            putchar(*s);
        }
    }
}

static void man_option(const struct option_def *o, char letter)
{
    fputs(".TP\n", stdout);
    if (letter) printf("\\fB\\-%c\\fR, ", letter);
    fputs("\\fB\\-\\-", stdout);
    man_text(o->name);
    fputs("\\fR", stdout);
    if (o->arg) {
        fputs(" \\fI", stdout);
        man_text(o->arg);
        fputs("\\fR", stdout);
    }
    putchar('\n');
    man_text(o->help);
    if (o->def && o->arg) {
        fputs("; default ", stdout);
        man_text(o->def);
    }
    puts(".");
}

static void man_own(const struct cli_option *table)
{
    for (const struct cli_option *o = table; o && o->def.name; o++) man_option(&o->def, o->letter);
}

static void man_shared(const struct option_def *table)
{
    for (const struct option_def *o = table; o->name; o++) man_option(o, 0);
}

static void man_commands(void)
{
    puts(".SH COMMANDS");
    for (size_t i = 0; commands_all[i]; i++) {
        for (const struct command *c = commands_all[i]; c->name; c++) {
            printf(".SS %s%s%s %s\n", c->name, c->sub ? " " : "", c->sub ? c->sub : "", c->args ? c->args : "");
            man_text(c->help);
            puts(".");
            if (c->consumers) man_own(options_consumer);
            man_own(c->options);
        }
    }
}

static void man_sinks(void)
{
    puts(".SH SINKS");
    for (size_t i = 0; sink_kinds[i]; i++) {
        fputs(".TP\n\\fB", stdout);
        man_text(sink_kinds[i]->synopsis);
        puts("\\fR");
        man_text(sink_kinds[i]->help);
        putchar('\n');
    }
}

static void man_exit_codes(void)
{
    puts(".SH EXIT STATUS");
    for (size_t i = 0; i < sizeof(exit_codes) / sizeof(*exit_codes); i++) {
        printf(".TP\n\\fB%s\\fR\n%s.\n", exit_codes[i][0], exit_codes[i][1]);
    }
}

static void print_man(void)
{
    printf(".TH OUTBOX 1 \"\" \"outbox %s\" \"User Commands\"\n", outbox_version());
    puts(
        ".SH NAME\noutbox \\- transactional outbox: store events with your data, deliver them at least once\n"
        ".SH SYNOPSIS\n.B outbox\n[\\fB\\-c\\fR \\fIFILE\\fR] [\\fB\\-\\-store\\fR \\fIURL\\fR] \\fICOMMAND\\fR [\\fIoptions\\fR]\n"
        ".SH DESCRIPTION\nAn application writes its events in the database transaction that changes its data; whatever "
        "commits is delivered, at least once and in order, to every consumer that asked.\n"
        ".SH SETTINGS\nWith every command, and in the section [outbox] of a config file.");
    man_own(options_global);
    man_shared(config_options);
    puts(".SH OPTIONS OF A CONSUMER\nBehind \\fB\\-\\-consumer\\fR, in a section [consumer NAME]; before the first "
         "\\fB\\-\\-consumer\\fR or in [outbox] they are for all consumers.");
    man_shared(consumer_options);
    man_commands();
    man_sinks();
    puts(
        ".SH ENVIRONMENT\nEvery setting and every option of a consumer can come from the environment, in capitals and with "
        "underscores: OUTBOX_STORE, OUTBOX_LEASE, OUTBOX_DRAIN_DEADLINE. Options come before the environment, and that "
        "before the config file. Consumers may come from there alone: OUTBOX_CONSUMERS=search,mail names them, and "
        "OUTBOX_CONSUMER_SEARCH_SINK is an option of one, with _ for - and . in its name. NO_COLOR switches colours off.");
    man_exit_codes();
}

/* ---- commands ---- */

static int help(struct cli *cli, struct error *err)
{
    const struct args *a = &cli->args;
    const struct command *rows = cli->rows, *row = cli->cmd;
    if (a->man) print_man();
    if (a->options) return dump(err);
    if (a->man) return 0;
    if (a->n_pos && commands_find(a->pos[0], &rows, err) != 0) return -1;
    if (a->n_pos > 1 && commands_sub(rows, a->pos[1], &row, err) != 0) return -1;
    if (a->help && rows && rows != cmd_help) {
        print_command(rows, row ? row->sub : NULL);
    } else if (rows && a->n_pos) {
        print_command(rows, a->n_pos > 1 ? row->sub : NULL);
    } else {
        print_overview();
    }
    return 0;
}

static int version(struct cli *cli, struct error *err)
{
    struct buf b;
    buf_init(&b, 256);
    if (cli->args.json) {
        buf_addf(&b, "{\"version\":\"%s\"}\n", outbox_version());
    } else {
        buf_addf(&b, "outbox %s\n", outbox_version());
    }
    int r = output_flush(&b, err);
    buf_release(&b);
    return r;
}

const struct command cmd_version[] = {
    {.name = "version", .help = "print the version", .options = version_options, .bare = true, .run = version},
    {.name = NULL},
};

const struct command cmd_help[] = {
    {.name = "help",
     .args = "[COMMAND [SUBCOMMAND]]",
     .help = "say how a command is used",
     .options = help_options,
     .max = 2,
     .bare = true,
     .run = help},
    {.name = NULL},
};
