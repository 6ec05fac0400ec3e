/* cli.h: declarations shared by the files of the command line. main.c boots, commands.c lists the
 * commands and parses the arguments, config.c merges flags, environment and config file, output.c
 * prints, and each cmd_*.c implements one command. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/option.h"
#include "base/str.h"
#include "cli/config.h"
#include "engine/consumer.h"
#include "event/event.h"
#include "listing/fields.h"
#include "outbox.h"
#include "store/store.h"

/* Exit codes of the process, after sysexits.h. */
enum {
    EXIT_FOUND_ = 1,
    EXIT_USAGE_ = 64,
    EXIT_DATA_ = 65,
    EXIT_UNAVAILABLE_ = 69,
    EXIT_BUG_ = 70,
    EXIT_AGAIN_ = 75,
    EXIT_CONFIG_ = 78
};

/* Error codes of the command line, in addition to enum err_code. */
#define CLI_USAGE 100    /* the arguments are wrong */
#define CLI_FOUND 101    /* the command worked; the problems it found have been printed */
#define CLI_WRONG 102    /* the settings are wrong; the problems have been printed */
#define CLI_DECLINED 103 /* the user answered no; nothing was done, and a note has been printed */

struct cli;

/* ---- the options and arguments of one call ---- */

/* Strings are borrowed from the arguments or the environment, and NULL if not given. */

#define ARGS_OWN 2048 /* bytes for the options of any command */
#define ARGS_MAX 100  /* positional arguments of any command */

#define PAIRS_MAX 64 /* pairs of any option */

/* Values of an option that may be repeated, each NAME=VALUE. */
struct pairs_arg {
    const char *pair[PAIRS_MAX];
    size_t n;
};

/* An optional number. */
struct number_arg {
    bool given;
    int64_t value;
};

/* A key, split at its slash. */
struct key_arg {
    struct str aggregate_type, aggregate_id;
};

/* What the options of a command set: the fields that several commands share, and in `own` a struct
 * that its file defines, which begins with zeroes. */
struct args {
    bool help, json;
    bool yes;           /* do not ask for confirmation */
    bool dry_run;       /* only report the changes */
    const char *config; /* -c */

    const char *pos[ARGS_MAX]; /* positional arguments after command and subcommand */
    int n_pos;

    _Alignas(max_align_t) char own[ARGS_OWN]; /* the struct of the command's own options */
};

#define ARG(field) .at = offsetof(struct args, field)
/* A field of the command's own struct, and that struct as a whole. */
#define OWN(type, field) \
    .at = offsetof(struct args, own) + offsetof(struct type, field) + \
          0 * sizeof(char[sizeof(struct type) <= ARGS_OWN ? 1 : -1])
#define OWN_ALL .at = offsetof(struct args, own)

/* ---- commands ---- */

/* The output of a command with --json. An array of these ends with fields == NULL. */
struct command_json {
    const struct listing_field *fields;
    const char *form; /* "an object", "an array of objects", "an object per line" */
    const char *when; /* "with --check"; NULL: always, or otherwise */
};
#define JSON_OBJECT(fields) ((const struct command_json[]){{fields, "an object", NULL}, {NULL}})
#define JSON_ARRAY(fields) \
    ((const struct command_json[]){{fields, "an array of objects", NULL}, {NULL}})
#define JSON_LINES(fields) \
    ((const struct command_json[]){{fields, "an object per line", NULL}, {NULL}})

/* The store that a command finds open in cli->st. */
enum opens { OPENS_NONE, OPENS_STORE, OPENS_ANY_VERSION };

/* A command, or one of its subcommands: a row of the table in its file. (1) All rows of a table
 * have one name, and either all of them have a sub, or there is only one. (2) min <= max <=
 * ARGS_MAX. */
struct command {
    const char *name;
    const char *sub;  /* subcommand, or NULL */
    const char *args; /* for the usage line: "TYPE", "[ID]" */
    const char *help; /* one line */
    /* set fields of struct args; NULL if the command only takes the global options */
    const struct option_def *options;
    int min, max;   /* number of arguments */
    bool consumers; /* accepts --consumer and the options of consumers */
    bool gathers;   /* reports all problems with the settings, not only the first */
    bool bare;      /* runs without loading any settings */
    enum opens opens;
    const struct command_json *json;
    /* refuses options that cannot be combined, or asks first, before the store is opened; may be
     * NULL */
    int (*check)(struct cli *cli, struct error *err);
    int (*run)(struct cli *cli, struct error *err);
};

/* One table per command, a row per subcommand. Each table ends with name == NULL. */
extern const struct command cmd_init[], cmd_migrate[], cmd_emit[], cmd_relay[], cmd_consumers[],
    cmd_status[], cmd_doctor[], cmd_events[], cmd_dead[], cmd_hwm[], cmd_trim[], cmd_grant[],
    cmd_revoke[], cmd_adopt[], cmd_config[], cmd_consume[], cmd_receive[], cmd_webhook[],
    cmd_version[], cmd_help[];

/* commands_next returns the row after c, through the tables of all commands; the first row for
 * NULL, and NULL after the last. */
const struct command *commands_next(const struct command *c);
/* commands_need_store fails with ERR_CONFIG if the settings name no store; the message lists the
 * three ways to name one. */
int commands_need_store(const struct cli *cli, struct error *err);
/* commands_open opens the store given in the settings and keeps it in cli->st; main closes it.
 * It takes from `opt` only what the settings do not determine: any_version, create and what create
 * needs. */
int commands_open(struct cli *cli, struct store_options opt, struct error *err);
/* commands_find returns the rows of a command. If there is none, the usage error suggests the
 * nearest name. */
int commands_find(const char *name, const struct command **ret, struct error *err);
/* commands_sub returns the row of a subcommand in `rows`. If there is none, or sub is NULL, the
 * usage error suggests the nearest name or lists them all. */
int commands_sub(const struct command *rows, const char *sub, const struct command **ret,
                 struct error *err);

/* ---- the arguments ---- */

/* One call of the program: its arguments, the settings in effect, and what main releases once the
 * command has run. */
struct cli {
    struct args args;
    struct config config;
    struct settings settings;
    const struct command *rows; /* of the command; NULL if none was given */
    const struct command *cmd;  /* NULL if the subcommand is missing; only help allows that */
    struct store *st;           /* NULL unless the command or commands_open has opened it */
    struct arena arena;
};

/* cli_own returns the struct of the command's own options. */
static inline const void *cli_own(const struct cli *cli)
{
    return cli->args.own;
}

extern const struct option_def commands_global[];   /* -c and -h, accepted by every command */
extern const struct option_def commands_consumer[]; /* --consumer, which opens a group */

/* commands_parse reads the arguments into cli->args, cli->config, cli->rows and cli->cmd. Options
 * of the command that may come from the environment are looked up there, too. It stops at -h and
 * sets cli->args.help. */
int commands_parse(struct cli *cli, int argc, char **argv, struct error *err);
/* commands_usage sets a usage error (CLI_USAGE) and returns -1. */
int commands_usage(struct error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#if defined(OUTBOX_ANALYSIS) && !defined(COMMANDS_C) /* see err.h */
#define commands_usage(...) (commands_usage(__VA_ARGS__), -1)
#endif
/* commands_option_names appends the names of a table, which may be NULL, to names, which ends with
 * NULL. */
#define OPTIONS_NAMES 96
void commands_option_names(const struct option_def *table, const char *names[OPTIONS_NAMES]);
/* Setters that several commands share. */
option_setter commands_key;    /* struct key_arg */
option_setter commands_pair;   /* struct pairs_arg, at most o->max */
option_setter commands_number; /* struct number_arg: as option_long */
option_setter commands_span;   /* struct number_arg: as option_span */

/* Options that several commands share. */
/* clang-format off */
#define OPTION_YES \
    {"yes", NULL, "no", "do not ask for confirmation; required without a terminal", \
     option_bool, ARG(yes)}
#define OPTION_DRY_RUN \
    {"dry-run", NULL, "no", "only report what would be done", option_bool, ARG(dry_run)}
#define OPTION_JSON \
    {"json", NULL, "no", "print JSON", option_bool, ARG(json), .env = true}
#define OPTION_END {NULL}
/* clang-format on */

/* ---- output ---- */

/* output_locale makes UTF-8 printable regardless of LANG. */
void output_locale(void);
/* output_color reports whether to print colours on stdout. */
bool output_color(const struct settings *s);

#define OUTPUT_MAX LISTING_MAX

/* output_listing starts a listing on stdout, in JSON with --json; for columns see listing_start. */
int output_listing(const struct cli *cli, struct listing *l, const struct listing_field *fields,
                   const char *columns, struct error *err);
/* output_result prints the result of a command: with --json the object of its fields, else the text
 * that `say` appends. */
typedef void output_say(struct buf *b, const void *row);
int output_result(const struct cli *cli, const struct listing_field *fields, const void *row,
                  output_say *say, struct error *err);
/* output_rows prints a listing of n rows of `size` bytes each. */
int output_rows(const struct cli *cli, const struct listing_field *fields, const char *columns,
                const void *rows, size_t n, size_t size, struct error *err);
/* output_pairs prints a row as JSON, or the named fields of it, one per line. */
int output_pairs(const struct cli *cli, const struct listing_field *fields, const char *names,
                 const void *row, struct error *err);
/* output_masked sets *ret to a copy of a value without its secrets, in the arena of cli. */
int output_masked(struct cli *cli, const char *value, const char **ret, struct error *err);

/* output_flush writes the buffer to stdout and empties it. Untrusted text must first go through
 * output_clean or output_addf, or be quoted as JSON; unsafe characters that remain, except line
 * feeds, are escaped as by text_show. */
int output_flush(struct buf *b, struct error *err);
/* output_flush_painted is output_flush for a buffer with colours in it, written as it is. */
int output_flush_painted(struct buf *b, struct error *err);
/* output_end flushes stdout and fails if anything was not written. */
int output_end(struct error *err);

/* output_clean appends untrusted text as text_show does, on one line. */
void output_clean(struct buf *b, const char *text);
/* output_addf is output_clean for formatted text. A line feed at the end of fmt ends the line. */
void output_addf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#define OUTPUT_NOTE_MAX ((size_t)64 * 1024)
/* output_note is output_addf to stderr. */
void output_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* output_error prints `outbox: text` to stderr. */
void output_error(const char *text);

/* output_confirm asks on the terminal before the command does something that cannot be undone; fmt
 * describes it, as in "delete 3 dead letters". It returns 0 for yes or --yes, and fails with
 * CLI_DECLINED for no. Without a terminal it is a usage error that states what would be done. */
int output_confirm(const struct cli *cli, struct error *err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* A progress bar on stderr. (1) It is on only if stderr is a terminal. (2) total == 0: unknown. */
struct output_progress {
    bool on;
    int64_t total, shown_at;
};
void output_progress_start(struct output_progress *p, int64_t total);
void output_progress_step(struct output_progress *p, int64_t done, int64_t events);
void output_progress_end(struct output_progress *p);

/* ---- findings of validate and doctor ---- */

/* (1) count[level] is the number of findings so far, n that of those in JSON. (2) b holds their
 * text until output_report_end prints it. */
struct report {
    struct buf b;
    bool json, color, ok;
    int64_t n, count[FINDING_LEVELS];
};

extern const struct listing_field fields_report[]; /* its members with --json */
void output_report_start(struct report *r, const struct cli *cli);
void output_report_release(struct report *r);
/* output_finding_visit adds a finding; it is a finding_visit. */
void output_finding_visit(void *report, const struct finding *f);
/* output_finding adds a finding with a formatted text. advice may be NULL. */
void output_finding(struct report *r, enum finding_level level, const char *name,
                    const char *advice, const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* output_report_end prints the findings and a summary. It fails with CLI_FOUND if there is a
 * warning or a problem among them. */
int output_report_end(struct report *r, struct error *err);

/* ---- a part of a command that is in extra ---- */

extern const struct option_def gen_options[]; /* set fields of struct gen_args */
extern const struct listing_field fields_gen[];
/* gen runs `migrate gen`: it prints the SQL for a tool, or writes files with it. */
int gen(struct cli *cli, struct error *err);

#endif
