/* cli.h: what the files of the command line share. main.c boots, commands.c lists the commands,
 * options.c reads the arguments, config.c gathers what arguments, environment and file give,
 * output.c prints; a cmd_*.c is a command. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/option.h"
#include "cli/args.h"
#include "engine/consumer.h"
#include "outbox.h"
#include "store/store.h"

/* What the process exits with (sysexits.h). */
enum {
    EXIT_FOUND_ = 1,
    EXIT_USAGE_ = 64,
    EXIT_DATA_ = 65,
    EXIT_UNAVAILABLE_ = 69,
    EXIT_BUG_ = 70,
    EXIT_AGAIN_ = 75,
    EXIT_CONFIG_ = 78
};

/* An error code of our own beside enum err_code: the arguments are wrong. */
#define CLI_USAGE 100
/* And one that is none: all went well, but what was looked at is not in order, which has been
 * printed. */
#define CLI_FOUND 101
/* The settings are wrong, and that has been printed. */
#define CLI_WRONG 102

struct cli;

/* ---- commands ---- */

struct command {
    const char *name;
    const char *sub;  /* subcommand; NULL: there is none */
    const char *args; /* for the usage line: "TYPE", "[ID]" */
    const char *help; /* one line */
    /* their target is a struct args; NULL: none but the global ones */
    const struct option_def *options;
    int min, max;   /* how many args */
    bool consumers; /* takes --consumer and the options of consumers */
    bool gathers;   /* wants to know everything that is wrong with the settings */
    /* works without any settings, and whatever is wrong with them */
    bool bare;
    int (*run)(struct cli *cli, struct error *err);
};

/* Each ends with name == NULL. */
extern const struct command cmd_init[], cmd_migrate[], cmd_emit[], cmd_relay[], cmd_consumers[],
    cmd_status[], cmd_doctor[], cmd_events[], cmd_dead[], cmd_hwm[], cmd_trim[], cmd_grant[],
    cmd_revoke[], cmd_adopt[], cmd_config[], cmd_consume[], cmd_webhook[], cmd_version[],
    cmd_help[];

extern const struct command *const commands_all[]; /* ends with NULL */

/* commands_need_store says the three ways to give a store if there is none: ERR_CONFIG. */
int commands_need_store(const struct cli *cli, struct error *err);
/* commands_store opens the store that the settings name; commands_create does so for `init` and
 * `migrate up`, which may make it. */
int commands_store(struct cli *cli, struct store **ret, struct error *err);
int commands_create(struct cli *cli, struct store **ret, struct error *err);
/* commands_look opens it whatever version it has, to be looked at; it must be there. */
int commands_look(struct cli *cli, struct store **ret, struct error *err);
/* commands_find gives the rows of a command. A usage error names the nearest one. */
int commands_find(const char *name, const struct command **ret, struct error *err);
/* commands_sub gives the row of a subcommand among those. A usage error names the nearest one. */
int commands_sub(const struct command *rows, const char *sub, const struct command **ret,
                 struct error *err);

/* ---- settings: options that flags, environment and file have in common ---- */

enum origin { ORIGIN_DEFAULT, ORIGIN_FILE, ORIGIN_ENV, ORIGIN_FLAG };
#define ORIGINS 4

/* The options of [outbox], as they take effect. Strings are borrowed from the config. */
struct settings {
    const char *store; /* NULL: not given */
    int64_t busy_ms, payload_max;
    int log_level; /* enum log_level */
    int color;     /* enum color */
    int64_t drain_ms, sweep_ms, retention_ms, inbox_ms;
    const char *listen;                                              /* NULL: nowhere */
    const char *listen_token_file, *listen_token_env, *listen_hosts; /* NULL: none */
    int64_t listen_mode;
    int log_format;      /* enum log_format */
    int64_t log_hold_ms; /* 0: nothing is held back */
    int64_t stuck_ms;
    bool core_dumps;
};

enum color { COLOR_AUTO, COLOR_ALWAYS, COLOR_NEVER };

extern const struct option_def config_options[]; /* their target is a struct settings */

/* One value somebody gave. (1) value passed def->set. (2) consumer == NULL: for all consumers, or
 * not about one. */
struct given {
    const struct option_def *def;
    enum origin origin;
    char *consumer;
    char *value;
    char *where; /* "--lease", "OUTBOX_LEASE", "outbox.conf:12" */
};

/* Names of consumers in the order they came, and where each stands. */
struct consumer_names {
    char **name, **where;
    size_t n;
};

/* Something that is wrong with the settings. */
struct problem {
    char *where; /* "outbox.conf:12", "OUTBOX_LEASE", "--sink"; NULL: nowhere in particular */
    char *text;
    bool warning; /* a relay would start all the same */
};

/* Everything that was given. (1) gather: what is wrong is put among the problems, and reading goes
 * on. */
struct config {
    struct given *given;
    size_t n_given;
    struct consumer_names names[ORIGINS];
    char *path; /* the file that was loaded; NULL: none */
    bool gather;
    struct problem *problem;
    size_t n_problems;
};

void config_init(struct config *c);
void config_release(struct config *c);
/* config_flag takes a value from the arguments; the error is one of usage. consumer may be NULL. */
int config_flag(struct config *c, const char *consumer, const struct option_def *def,
                const char *value, struct error *err);
/* config_flag_consumer opens the group of `--consumer NAME`. */
int config_flag_consumer(struct config *c, const char *name, struct error *err);
/* config_load takes what the environment says (OUTBOX_<OPTION>, and with `consumers` also
 * OUTBOX_CONSUMERS and OUTBOX_CONSUMER_<NAME>_<OPTION>) and what the file says, if path is not
 * NULL. An empty variable counts as one that is not there. config_file takes only the file. */
int config_load(struct config *c, const char *path, bool consumers, struct error *err);
int config_file(struct config *c, const char *path, struct error *err);
/* config_complain notes a problem; it takes nothing over. Returns -1 for want of memory. */
int config_complain(struct config *c, const struct problem *p, struct error *err);
/* config_again makes a config as `from` was made, from the same flags, but from the environment and
 * the file as they are now. The caller releases *ret, also after a failure. */
int config_again(const struct config *from, struct config *ret, struct error *err);
/* config_get gives what counts for a consumer (NULL: for the outbox, or for every consumer) out of
 * all that was given: flags before environment before file, and in each what names the consumer
 * before what is for all. NULL: nothing was given, the default counts. */
const struct given *config_get(const struct config *c, const char *consumer,
                               const struct option_def *def);
/* config_settings puts defaults and what was given into *ret. */
int config_settings(const struct config *c, struct settings *ret, struct error *err);
/* config_consumers gives the names to run: those of the arguments, else those of the environment,
 * else those of the file. */
char *const *config_consumers(const struct config *c, size_t *ret_n);
/* config_check looks whether a relay could run these consumers: there is one, each has a sink, its
 * options go together, and the sink can be opened, which reads the files it needs and connects to
 * nobody. With `connect` it does, too. Each problem is told to `visit`, whose argument is borrowed.
 * The relay looks the same way before it starts. */
typedef void config_visit(void *ctx, const struct problem *p);
void config_check(const struct config *c, bool connect, config_visit *visit, void *ctx);
/* config_mask appends a value with the passwords in its URLs, and the path and query of a webhook,
 * replaced by ***. */
void config_mask(struct buf *b, const char *value);
/* config_secret says whether a value has a password or a token in it for sure: a path may be just a
 * path. */
bool config_secret(const char *value);
/* config_hide masks such a value in its place, as far as it fits: for what is in our arguments. */
void config_hide(char *value);
/* config_cautions tells of secrets that others on this machine can see: arguments, the config file,
 * files that it names. */
void config_cautions(const struct config *c, config_visit *visit, void *ctx);
/* config_guard keeps what we know out of core dumps and from debuggers, if that is a secret, unless
 * core-dumps says otherwise. */
void config_guard(const struct config *c, const struct settings *s);
/* config_variable writes OUTBOX_DRAIN_DEADLINE for drain-deadline. */
#define CONFIG_VARIABLE 64
const char *config_variable(const char *name, char out[CONFIG_VARIABLE]);

/* ---- the arguments ---- */

struct cli {
    struct args args;
    struct config config;
    struct settings settings;
    const struct command *rows; /* of the command; NULL: none was named */
    const struct command *cmd;  /* NULL: a subcommand is missing, which only help may leave out */
};

extern const struct option_def options_global[];   /* -c, -h: with every command */
extern const struct option_def options_consumer[]; /* --consumer, where it opens a group */

/* options_parse reads the arguments into cli->args, cli->config, cli->rows and cli->cmd. Options of
 * the command that may come from the environment are looked up there, too. Stops at -h, with
 * cli->args.help set. */
int options_parse(struct cli *cli, int argc, char **argv, struct error *err);
/* options_usage fills in a usage error and returns -1. */
int options_usage(struct error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#if defined(OUTBOX_ANALYSIS) && !defined(OPTIONS_C) /* see err.h */
#define options_usage(...) (options_usage(__VA_ARGS__), -1)
#endif
/* Setters for what several commands have in common. */
option_setter options_consumer_name; /* const char *: a valid name of a consumer */
option_setter options_key;           /* struct key_arg */

/* confirm asks, on a terminal, whether to do what cannot be undone: "delete 3 dead letters ...". 0:
 * yes, or --yes was given. CLI_FOUND: no. Elsewhere than on a terminal it is a usage error that
 * says what would be done. */
int confirm(const struct cli *cli, struct error *err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* clang-format off */
#define OPTION_YES {"yes", NULL, "no", "do not ask for confirmation; required without a terminal", option_bool, ARG(yes)}
#define OPTION_DRY_RUN {"dry-run", NULL, "no", "only say what would be done", option_bool, ARG(dry_run)}
#define OPTION_JSON {"json", NULL, "no", "print JSON", option_bool, ARG(json), .env = true}
#define OPTION_WAIT {"wait", "DURATION", "10m", "how long to keep trying while a long transaction is using the outbox", \
    option_span, ARG(init.lock_ms)}
#define OPTION_REPLACE {"replace", NULL, "no", "install this version's functions even if a later build replaced them", \
    option_bool, ARG(init.replace)}
#define OPTION_END {NULL}
/* clang-format on */

/* ---- output ---- */

struct output_column {
    const char *name;
    bool right; /* align */
    bool trunc; /* may be cut to fit the terminal */
};

struct libscols_table;

/* output_locale makes UTF-8 printable whatever LANG says. */
void output_locale(void);
/* output_color says whether stdout takes colours. */
bool output_color(const struct settings *s);

/* output_table starts a table; columns end with name == NULL. output_row adds cells, one per
 * column, NULL for an empty one; output_paint colours a cell of the last row, if colours are on.
 * output_print prints, and frees in any case. Cells may come from strangers: control characters are
 * shown as \xNN. */
int output_table(const struct output_column *columns, bool headings, bool color,
                 struct libscols_table **ret, struct error *err);
int output_row(struct libscols_table *tb, const char *const *cells, struct error *err);
void output_paint(struct libscols_table *tb, size_t column, const char *color);
int output_print(struct libscols_table *tb, struct error *err);
void output_discard(struct libscols_table *tb);

/* A pair of name and value, for what is shown one below the other; output_pair skips an empty
 * value. */
int output_pairs(struct libscols_table **ret, struct error *err);
int output_pair(struct libscols_table *tb, const char *name, const char *value, struct error *err);

/* output_key appends AGGTYPE/AGGID, or nothing. output_event_pairs adds all about an event. */
void output_key(struct buf *b, const struct event *ev);
int output_event_pairs(struct libscols_table *tb, const struct event *ev, struct error *err);

/* of what is printed at once: an event, with everything escaped */
#define OUTPUT_MAX ((size_t)256 << 20)
#define OUTPUT_AGE 32
/* output_age writes a span for people, two units at most: 350ms, 12s, 3m10s, 2h, 4d6h. */
const char *output_age(int64_t ms, char out[OUTPUT_AGE]);
/* output_time writes RFC 3339, or "" for 0. */
const char *output_time(int64_t wall_ms, char out[CLOCK_RFC3339_SIZE]);
#define OUTPUT_INT 24
const char *output_int(int64_t n, char out[OUTPUT_INT]);
/* output_about is output_int with a ~ before what is not exact; output_count has the noun agree,
 * output_events_wait the verb, too. */
#define OUTPUT_COUNT 64
const char *output_about(int64_t n, bool exact, char out[OUTPUT_INT]);
const char *output_count(int64_t n, const char *noun, char out[OUTPUT_COUNT]);
const char *output_events_wait(int64_t n, bool exact, char out[OUTPUT_COUNT]);
/* output_last_error is a consumer's, with since when if its sink is down; NULL: none. It may live
 * in `to`, an empty buffer. */
const char *output_last_error(const struct consumer_info *c, int64_t now_ms, struct buf *to);

/* Members of a JSON object: `"name":value`, with a comma before all but the first. Absent strings
 * and times are null. */
void output_member(struct buf *b, const char *name);
void output_string(struct buf *b, const char *name, const char *value);
void output_str(struct buf *b, const char *name, struct str value);
void output_number(struct buf *b, const char *name, int64_t value);
void output_bool(struct buf *b, const char *name, bool value);
void output_stamp(struct buf *b, const char *name, int64_t wall_ms);
void output_event(struct buf *b, const struct event *ev); /* the members of an event */
/* output_flush writes the buffer to stdout and empties it. */
int output_flush(struct buf *b, struct error *err);
/* output_end makes sure that everything reached stdout. */
int output_end(struct error *err);

/* output_clean appends text for a terminal or a log: control characters become ?, and what is no
 * UTF-8. */
void output_clean(struct buf *b, const char *text);
/* output_error prints `outbox: text` to stderr. */
void output_error(const char *text);

/* A progress bar on stderr, if that is a terminal. total == 0: unknown. */
struct output_progress {
    bool on;
    int64_t total, shown_at;
};
void output_progress_start(struct output_progress *p, int64_t total);
void output_progress_step(struct output_progress *p, int64_t done, int64_t events);
void output_progress_end(struct output_progress *p);

/* output_consumer_state says how a consumer is: paused, in-flight, retrying, waiting, behind or
 * idle. */
const char *output_consumer_state(const struct consumer_info *c);
/* output_consumer appends the members of a consumer; lag is counted from now_ms. */
void output_consumer(struct buf *b, const struct consumer_info *c, int64_t now_ms);

/* ---- findings: what validate and doctor have to say ---- */

/* (1) count[level] findings came so far. (2) b holds what is to be printed. */
struct report {
    struct buf b;
    bool json, color;
    size_t count[FINDING_LEVELS];
};

void report_init(struct report *r, const struct cli *cli);
void report_release(struct report *r);
void report_visit(void *report, const struct finding *f); /* a finding_visit */
/* report_say is report_visit for a text to be put together. advice may be NULL. */
void report_say(struct report *r, enum finding_level level, const char *name, const char *advice,
                const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* report_end prints it all, with a last line. Returns -1 with CLI_FOUND if there is a warning or a
 * problem. */
int report_end(struct report *r, struct error *err);

/* ---- SQL for other tools ---- */

extern const char *const gen_tools[]; /* ends with NULL */
/* gen prints what `migrate gen` prints. */
int gen(struct cli *cli, struct error *err);

/* ---- receiving webhooks ---- */

/* listen_run is `webhook listen`: answers until it is told to stop. */
int listen_run(struct cli *cli, struct error *err);

/* ---- reading lines ---- */

/* Lines of a file, each up to `max` bytes. (1) buf[at..n) has not been handed out. */
struct lines {
    int fd;
    char *buf;
    size_t at, n, cap, max;
    int64_t number; /* of the line handed out last */
    int64_t bytes;  /* read so far */
    bool end;
};

int lines_init(struct lines *l, int fd, size_t max, struct error *err);
void lines_release(struct lines *l);
/* lines_next gives the next line without its end, borrowed until the next call; *ret_more is false
 * behind the last. */
int lines_next(struct lines *l, struct str *ret, bool *ret_more, struct error *err);
/* lines_slurp appends the first `max` bytes of a file ("-": stdin) to b. Returns 0 or an errno. */
int lines_slurp(const char *path, size_t max, struct buf *b);

#endif
