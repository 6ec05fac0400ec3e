/* config.h: the settings: values from flags, environment and config file, and those in effect.
 * config.c collects the values and lists the options of [outbox]; config_read.c reads the config
 * file and the environment; config_check.c checks whether a relay can run with the settings;
 * config_secrets.c hides secrets from other users. */
#ifndef CLI_CONFIG_H
#define CLI_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/option.h"
#include "engine/consumer.h"
#include "sink/sink.h"

/* Where a value comes from; a later origin overrides an earlier one. */
enum origin { ORIGIN_DEFAULT, ORIGIN_FILE, ORIGIN_ENV, ORIGIN_FLAG };

/* The options of the [outbox] section as they take effect. Strings are borrowed from the config. */
struct settings {
    const char *store; /* NULL if not given */
    int64_t busy_ms, payload_max;
    int log_level; /* enum log_level */
    int color;     /* enum color */
    int64_t drain_ms, sweep_ms, retention_ms, inbox_ms;
    int connections;
    int64_t memory;
    const char *listen;                                              /* NULL: do not listen */
    const char *listen_token_file, *listen_token_env, *listen_hosts; /* NULL if not given */
    int64_t listen_mode;
    int log_format;      /* enum log_format */
    int64_t log_hold_ms; /* 0: log every line */
    int64_t stuck_ms;
    bool core_dumps;
};

/* When to print colours; by the option color. */
enum color { COLOR_AUTO, COLOR_ALWAYS, COLOR_NEVER };

extern const struct option_def config_options[]; /* set fields of struct settings */

/* A value from a flag, the environment or the config file. (1) def->set accepted the value. (2)
 * consumer == NULL: the value applies to every consumer, or belongs to [outbox]. */
struct given {
    const struct option_def *def;
    enum origin origin;
    const char *consumer;
    const char *value;
    const char *where; /* "--lease", "OUTBOX_LEASE", "outbox.conf:12" */
};

/* The name of a consumer to run. */
struct named {
    const char *name, *where;
    enum origin origin;
};

/* A problem with the settings. */
struct problem {
    const char *where; /* "outbox.conf:12", "OUTBOX_LEASE", "--sink"; NULL: no particular place */
    const char *text;
    bool warning; /* a relay starts anyway */
};

/* All values given. (1) With gather set, an invalid value is added to the problems and reading
 * continues; without it, reading ends with the first. (2) The strings are in the arena. (3) The
 * names of an origin stand together, in the order given. */
struct config {
    struct arena arena;
    struct given *given;
    size_t n_given;
    struct named *named;
    size_t n_named;
    const char *path; /* the file that was loaded; NULL if none was */
    bool gather;
    struct problem *problem;
    size_t n_problems;
    bool nomem; /* memory for a problem ran out */
};

void config_init(struct config *c);
void config_release(struct config *c);
/* config_flag adds a value from the arguments. consumer may be NULL. */
int config_flag(struct config *c, const char *consumer, const struct option_def *def,
                const char *value, struct error *err);
/* config_load adds the values of the environment (OUTBOX_<OPTION>) and, unless path is NULL, of the
 * config file. With `consumers` it also reads OUTBOX_CONSUMERS and
 * OUTBOX_CONSUMER_<NAME>_<OPTION>. */
int config_load(struct config *c, const char *path, bool consumers, struct error *err);
/* config_file adds the values of the config file alone. */
int config_file(struct config *c, const char *path, struct error *err);
/* config_again builds a new config from the flags of `from` and the current environment and file.
 * The caller releases *ret, even after a failure. */
int config_again(const struct config *from, struct config *ret, struct error *err);
/* config_get returns the value in effect for a consumer (NULL: for the outbox, or for every
 * consumer), or NULL if only the default applies. Flags override the environment, which overrides
 * the file; within each, a value that names the consumer overrides one for all. */
const struct given *config_get(const struct config *c, const char *consumer,
                               const struct option_def *def);
/* config_find is config_get for the option of that name: of a consumer, or of [outbox]. */
const struct given *config_find(const struct config *c, const char *consumer, const char *option);
/* config_value returns the value in effect, which may be the default, or NULL if there is none. */
const char *config_value(const struct config *c, const char *consumer,
                         const struct option_def *def);
/* config_settings fills *ret with the values in effect. */
int config_settings(const struct config *c, struct settings *ret, struct error *err);
/* config_consumers returns the names of the consumers to run: those of the arguments, else those of
 * the environment, else those of the file. */
const struct named *config_consumers(const struct config *c, size_t *ret_n);
/* config_check looks for problems that would prevent a relay from running these consumers: no
 * consumer is defined, one has no sink, its options contradict each other, or its sink cannot be
 * opened. Opening a sink reads the files it needs; it connects only with `connect`. Each problem is
 * passed to `visit`, which copies what it keeps. The relay itself runs this check before it
 * starts. */
typedef void config_visit(void *ctx, const struct problem *p);
/* config_complain is a config_visit that adds a copy of the problem to the config, or sets
 * nomem. */
config_visit config_complain;
void config_check(const struct config *c, bool connect, config_visit *visit, void *ctx);
/* config_mask appends a value with *** in place of the passwords in its URLs, and of the path and
 * query of a webhook. */
void config_mask(struct buf *b, const char *value);
/* config_secret reports whether a value certainly contains a password or a token. A path does not
 * count, because it may contain no secret. */
bool config_secret(const char *value);
/* config_hide overwrites a secret value in place with its masked form, truncated to fit. It is
 * meant for our own arguments, which ps shows. */
void config_hide(char *value);
/* config_cautions passes a warning to `visit` for every secret that other users of this machine can
 * see: in the arguments, in the config file, in files it names. */
void config_cautions(const struct config *c, config_visit *visit, void *ctx);
/* config_guard forbids core dumps and debuggers if this process holds a secret, unless the option
 * core-dumps allows them. */
void config_guard(const struct config *c, const struct settings *s);
/* config_getenv returns the value of a variable, or NULL. An empty variable counts as unset. */
const char *config_getenv(const char *variable);
/* config_variable writes the name of an option's variable: OUTBOX_DRAIN_DEADLINE for
 * drain-deadline. */
#define CONFIG_VARIABLE 64
const char *config_variable(const char *name, char out[CONFIG_VARIABLE]);

/* ---- among the files of the settings ---- */

/* config_add checks a value and adds a copy of *g. The text of ERR_CONFIG is about the value; the
 * caller adds where it was found. */
int config_add(struct config *c, const struct given *g, struct error *err);
/* config_add_name adds the name of a consumer. It fails with ERR_CONFIG if the name is invalid or
 * already in the list. */
int config_add_name(struct config *c, enum origin origin, const char *name, const char *where,
                    struct error *err);
/* config_wrong handles the error in *err, which was found at `where`. If problems are gathered, it
 * adds this one and returns 0, so that reading continues. Otherwise it puts `where` before the text
 * and returns -1. */
int config_wrong(struct config *c, const char *where, struct error *err);
/* config_environment adds the values of the variables OUTBOX_<OPTION>, and refuses a variable that
 * misspells one of ours by one letter. */
int config_environment(struct config *c, struct error *err);
/* config_environment_consumers reads OUTBOX_CONSUMERS and OUTBOX_CONSUMER_<NAME>_<OPTION>. The
 * names of consumers from flags and file must have been added before. */
int config_environment_consumers(struct config *c, struct error *err);
/* config_where_named returns where a consumer is named ("--consumer", "outbox.conf:12"); NULL if it
 * is not known. */
const char *config_where_named(const struct config *c, const char *consumer);

/* The warning about a server that other machines may reach without a token. */
#define CONFIG_OPEN_LISTEN \
    "other machines may reach it, and no token is set: only /livez and /readyz are served; set " \
    "listen-token-file, or listen on 127.0.0.1 or unix:PATH"

/* One check of the settings. */
struct config_checking {
    const struct config *c;
    bool connect;
    config_visit *visit;
    void *ctx;
};
/* config_tell passes a problem, or a warning, with a formatted text to visit. */
void config_tell(const struct config_checking *k, bool warning, const char *where, const char *fmt,
                 ...) __attribute__((format(printf, 4, 5)));

/* config_try_sink opens the sink of a consumer and, with `connect`, waits for an answer from its
 * peer. If it was opened, *ret is the state of its broker; ret may be NULL. */
int config_try_sink(const struct consumer *c, bool connect, struct sink_broker *ret,
                    struct error *err);
/* config_consumer builds a consumer as the relay would. The caller releases it. ERR_CONFIG. */
int config_consumer(const struct config *c, const char *name, struct consumer *ret,
                    struct error *err);

#endif
